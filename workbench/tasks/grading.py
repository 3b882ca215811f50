"""Which function says that a completion is right, where a task has not said so yet: for the difficulty profile of 01."""

from __future__ import annotations

from collections.abc import Callable

from workbench.audit.prompt_format import parse_format
from workbench.data.answer_column import MARK
from workbench.errors import DataError
from workbench.rewards.answers import TAGS
from workbench.rewards.library import THINK_TAGS, correctness_reward, last_line_reward, mark_correctness_reward
from workbench.rewards.verifiers import countdown_reward, json_right_reward
from workbench.task import Row


def grader_for(row: Row) -> Callable[..., list[float]]:
    """The function that judges completions of a row, by what the row holds and by the format that its prompt asks for.

    Raises:
        DataError: if the row has no answer: nothing then says what is right.
    """
    if "answer" not in row:
        raise DataError(
            "the rows have no answer",
            rule="a pass rate needs a right answer",
            remedy="measure without one (profile_prompts = 0), or with a reward function of your own",
        )
    if "numbers" in row and "target" in row:
        return countdown_reward
    if "schema" in row:
        return json_right_reward
    prompt = row["prompt"]
    asked = prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)
    if "<answer>" in asked:
        return correctness_reward
    return mark_correctness_reward if MARK in asked else last_line_reward


def advice(row: Row) -> str:
    """A line for rows that the five reward functions of notebook 02 do not fit, with what does; empty where they fit."""
    if "answer" not in row:
        return (
            "these rows have no answer: in 02, leave correctness_reward out and write reward functions that need none"
        )
    judge = grader_for(row)
    named = {countdown_reward: ("countdown", "countdown"), json_right_reward: ("json", "structured")}
    if judge in named:
        task, module = named[judge]
        return f"these rows need other rewards than 02's: `task: {task}` in a recipe, or import from workbench.rewards.{module}"
    asked = parse_format(row)
    if tuple(block.name for block in asked.blocks) == TAGS:
        return ""
    fits = [judge.__name__]
    if tuple(block.name for block in asked.blocks) == THINK_TAGS:
        fits.append("think_answer_format_reward")
    elif asked.blocks:
        fits.append(f"make_tags_reward({tuple(block.name for block in asked.blocks)})")
    return (
        f"02's reward functions look for <reasoning> and <answer>, and these prompts ask for {asked}; what fits in "
        f"workbench.rewards: {', '.join(fits)}"
    )
