"""Which reward functions fit rows that nobody has written a task for yet: from what they hold and what their prompts ask for."""

from __future__ import annotations

from collections.abc import Callable

from workbench.audit.prompt_format import parse_format, prompt_text
from workbench.data.answer_column import MARK
from workbench.errors import DataError
from workbench.rewards.answers import TAGS
from workbench.rewards.library import THINK_TAGS, correctness_reward, last_line_reward, mark_correctness_reward
from workbench.rewards.verifiers import countdown_reward, json_right_reward
from workbench.task import Row


def grader_for(row: Row) -> Callable[..., list[float]]:
    """The function that says whether a completion of this row is right, for the difficulty profile of 01.

    Raises:
        DataError: if the row has no answer: nothing then says what is right.
    """
    if "answer" not in row:
        remedy = "measure without one (profile_prompts = 0), or with a reward function of your own"
        raise DataError("the rows have no answer", rule="a pass rate needs a right answer", remedy=remedy)
    if "numbers" in row and "target" in row:
        return countdown_reward
    if "schema" in row:
        return json_right_reward
    asked = prompt_text(row["prompt"])
    if "<answer>" in asked:
        return correctness_reward
    return mark_correctness_reward if MARK in asked else last_line_reward


def advice(row: Row) -> str:
    """Which reward functions fit the row, where the five of notebook 02 do not; empty where they do."""
    if "answer" not in row:
        return "these rows have no answer: leave correctness_reward out and write reward functions that need none"
    grader, expected = grader_for(row), parse_format(row)
    if shipped := {countdown_reward: "countdown", json_right_reward: "json"}.get(grader):
        return f"these rows need other rewards: `task: {shipped}` in a recipe, or workbench.rewards.{grader.__name__}"
    tags = tuple(block.name for block in expected.blocks)
    also = "think_answer_format_reward" if tags == THINK_TAGS else f"make_tags_reward({tags})"
    fits = f"{grader.__name__}, {also}" if tags else grader.__name__
    others = f"these prompts ask for {expected}, and 02's reward functions look for <reasoning> and <answer>"
    return "" if tags == TAGS else f"{others}; what fits, in workbench.rewards: {fits}"
