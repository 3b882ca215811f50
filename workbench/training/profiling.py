"""What a policy makes of prompts: how it reads them, how long they are for it, how often it solves them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.audit.prompt_format import advice, grader_for
from workbench.data.difficulty import Profile, Solved, measure, pick, row_key
from workbench.data.template import PromptLengths, TemplateCard, prompt_lengths_tokens, template_card
from workbench.progress import count_line, progress_line
from workbench.rewards.suite import RewardSuite
from workbench.task import Row, Task
from workbench.training.loading import load_tokenizer
from workbench.training.policy import Policy, load_policy
from workbench.training.sampling import sample


def preview(
    row: Any,
    policy: Any = "tiny",
    chat_template_kwargs: dict[str, Any] | None = None,
    tags: Sequence[str] | None = None,
) -> TemplateCard:
    """The exact text that the model will read for a prompt, and what in it would make a reward impossible to earn.

    >>> wb.preview([{"role": "user", "content": "What is 1 + 1?"}], "tiny").text
    '<|user|>What is 1 + 1?</s><|assistant|>'

    Args:
        row: a row with a `prompt`, or the prompt itself.
        policy: a policy, its name, or a tokenizer.
        chat_template_kwargs: what the template is rendered with, such as {"enable_thinking": False}.
        tags: what the reward functions look for in completions; None: what the system message asks for.

    Raises:
        DataError: if the template refuses the prompt.
    """
    prompt = row["prompt"] if isinstance(row, dict) else row
    return template_card(_tokenizer(policy, chat_template_kwargs), prompt, tags)


def prompt_lengths(
    rows: Sequence[Row],
    policy: Any = "tiny",
    *,
    chat_template_kwargs: dict[str, Any] | None = None,
    max_tokens: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> PromptLengths:
    """How many tokens each prompt takes through the policy's chat template; shows itself as a histogram.

    >>> lengths = wb.prompt_lengths([{"prompt": "What is 1 + 1?"}, {"prompt": "Why?"}], "tiny")
    >>> rows, too_long = lengths.keep(5)
    >>> len(rows), len(too_long)
    (1, 1)

    Args:
        policy: a policy, its name, or a tokenizer.
        chat_template_kwargs: as for `preview`.
        max_tokens: longer prompts are to be left out; None: none.
        progress: called with the number of prompts measured, now and then; None: a count in the cell.
    """
    measured = prompt_lengths_tokens(rows, _tokenizer(policy, chat_template_kwargs), progress or count_line("prompts"))
    return PromptLengths(rows, measured, str(getattr(policy, "name", policy)), max_tokens)


def _tokenizer(policy: Any, chat_template_kwargs: dict[str, Any] | None) -> Any:
    if isinstance(policy, (str, Path)):
        return load_tokenizer(policy, chat_template_kwargs)
    return getattr(policy, "tokenizer", policy)


def profile_difficulty(
    policy: Policy | str,
    rows: Sequence[Row],
    file: str | Path,
    *,
    task: Task | None = None,
    prompts: int | None = None,
    max_seq_length: int = 256,
    chat_template_kwargs: dict[str, Any] | None = None,
    num_generations: int = 8,
    max_completion_length: int = 96,
    temperature: float = 1.0,
    seed: int = 0,
    batch: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> Profile:
    """Sample `num_generations` completions of each prompt and count how many are right. Shows itself as a picture.

    Interruptible and resumable: what was measured is kept in `file`, and the next call goes on from there.

    >>> profile = wb.profile_difficulty("tiny", wb.load_task("arithmetic").rows, "tasks/mine/difficulty.jsonl", prompts=4)
    >>> band = profile.within(0.01, 0.99)

    Args:
        policy: measured as it stands, adapter included; or the name of one to load.
        rows: with the prompts to measure.
        file: `difficulty.jsonl` beside the dataset.
        task: its `right_by` says which completions are right; None: what fits the rows and the format they ask for.
        prompts: how many to measure, spread over the rows; None: all; 0: none.
        max_seq_length, chat_template_kwargs: for a policy that is loaded here.
        batch: prompts at a time; `batch * num_generations` completions are generated together.
        progress: called with (prompts measured, prompts in all); None: a bar in the cell.

    Returns:
        The profile; an empty one if nothing was to be measured, or the rows have no answer to measure by.

    Raises:
        DataError: if `file` holds a profile of another policy, reward or way of sampling.
    """
    chosen = list(rows) if prompts is None else pick(rows, prompts)
    if task is None and rows and (line := advice(rows[0])):
        print(line)
    if not chosen or (task is None and "answer" not in rows[0]):
        return Profile({}, {}, rows)
    if task is None:
        grader = grader_for(rows[0])
        task = Task("difficulty", rows, [grader], right_by=grader.__name__)
    if isinstance(policy, (str, Path)):
        options = {"max_seq_length": max_seq_length, "chat_template_kwargs": chat_template_kwargs, "seed": seed}
        policy = load_policy(policy, **options)
        print(policy, f"a completion is right where {task.right_function} pays", sep="\n")
    suite = RewardSuite(task, num_generations)
    column = suite.names.index(task.right_function)

    def attempt(some: Sequence[Row]) -> list[Solved]:
        # A seed of the batch's own: a profile that was interrupted between two batches ends as if it had not been.
        own_seed = seed + int(row_key(some[0])[:6], 16)
        groups = sample(
            policy,
            [row["prompt"] for row in some],
            num_generations=num_generations,
            max_completion_length=max_completion_length,
            temperature=temperature,
            seed=own_seed,
            batch_size=batch * num_generations,
        )
        flat = [completion for group in groups for completion in group]
        repeated = [row for row in some for _ in range(num_generations)]
        right = suite.score(repeated, [c.text for c in flat], [c.ids for c in flat])[:, column] > 0
        return [
            Solved(int(right[start : start + num_generations].sum()), num_generations, sum(c.finished for c in group))
            for start, group in zip(range(0, len(flat), num_generations), groups, strict=True)
        ]

    settings = {
        "policy": policy.source if policy.name != "tiny" else "tiny",
        "precision": policy.precision,
        "trained_in": policy.trained_in,
        "right_by": f"{task.right_function} {suite.hashes[task.right_function]}",
        "num_generations": num_generations,
        "max_completion_length": max_completion_length,
        "temperature": temperature,
        "seed": seed,
    }
    if policy.chat_template_kwargs:
        settings["chat_template_kwargs"] = policy.chat_template_kwargs
    progress = progress or progress_line("difficulty")
    profile = measure(chosen, attempt, file, settings, batch=batch, progress=progress)
    return replace(profile, rows=rows)
