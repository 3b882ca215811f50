"""How hard prompts are for a policy: how many of a few completions of each are right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from workbench.audit.prompt_format import format_advice, grader_for
from workbench.base.errors import DataError
from workbench.base.kinds import Fields
from workbench.base.progress import progress_line
from workbench.data.answer_column import has_constant
from workbench.data.difficulty import Profile, Solved, measure_difficulty, pick, row_key
from workbench.rewards.suite import RewardSuite
from workbench.task import Row, Task, function_name
from workbench.tasks.loading import load_task
from workbench.tiny.named import named_policies
from workbench.tiny.words import new_words, words_line
from workbench.training.policy import Policy, load_policy
from workbench.training.sampling import scored_groups


def profile_difficulty(
    policy: Policy | str,
    rows: Sequence[Row],
    file: str | Path,
    *,
    task: Task | str | Path | None = None,
    prompts: int | None = None,
    max_seq_length: int = 256,
    chat_template_kwargs: Fields | None = None,
    num_generations: int = 8,
    max_completion_length: int = 96,
    temperature: float = 1.0,
    seed: int = 0,
    batch: int = 8,
) -> Profile:
    """Sample `num_generations` completions of each prompt and count how many are right. Displays as
    a picture.

    You may interrupt it: what was measured is kept in `file`, and the next call continues from
    there.

    >>> profile = wb.profile_difficulty("tiny", wb.load_task("arithmetic").rows, "tasks/mine/difficulty.jsonl", prompts=4)
    >>> band = profile.within(0.01, 0.99)

    Args:
        policy: measured as it stands, adapter included; or the name of one to load.
        file: `difficulty.jsonl` beside the dataset.
        task: a `Task`, a task file or the name of a task that ships: its `right_by` says which
            completions are right. None: what fits the rows and the format that they ask for.
        prompts: how many to measure, spread over the rows; None: all; 0: none.
        max_seq_length, chat_template_kwargs: for a policy that is loaded here.
        batch: prompts at a time; `batch * num_generations` completions are generated together.

    Returns:
        An empty profile, with a line that says why, if nothing was to be measured or nothing
        decides which completions are right.

    Raises:
        DataError: if `file` holds a profile of another policy, reward or way of sampling.
    """  # noqa: E501
    chosen = list(rows) if prompts is None else pick(rows, prompts)
    if task is None and rows and (line := format_advice(rows[0])):
        print(line)
    if not chosen or (task is None and "answer" not in rows[0]):
        return Profile({}, {}, rows)
    if task is None:
        try:
            grader = grader_for(rows[0], has_constant(rows))
        except DataError as error:
            print(f"{error.value}; {error.remedy}")
            return Profile({}, {}, rows)
        task = Task("difficulty", rows, [grader], right_by=function_name(grader))
    task = load_task(task)
    if isinstance(policy, (str, Path)):
        shape: Fields = {"max_seq_length": max_seq_length, "seed": seed}
        policy = load_policy(policy, chat_template_kwargs=chat_template_kwargs, **shape)
        of_tiny = words_line(new_words(chosen, task.answer_column)) if policy.name == "tiny" else []
        right = f"a completion is right where {task.right_words}"
        print(policy, right, *of_tiny, sep="\n")
    suite = RewardSuite(task, num_generations)
    limits = {"max_completion_length": max_completion_length, "temperature": temperature}
    how: Fields = {**limits, "batch_size": batch * num_generations}

    def attempt(some: Sequence[Row]) -> list[Solved]:
        # A seed of the batch's own: a profile that was interrupted between two batches ends as if
        # it had not been.
        seeded = seed + int(row_key(some[0])[:6], 16)
        groups = scored_groups(policy, task, some, suite, num_generations, seed=seeded, **how)
        return [_solved(group) for group in groups]

    settings = {
        "policy": policy.name if policy.name in named_policies() else policy.source,
        "precision": policy.precision,
        "trained_in": policy.trained_in,
        "right_by": f"{task.right_rule} {suite.hashes[task.right_function]}",
        "num_generations": num_generations,
        **limits,
        "seed": seed,
    }
    if policy.chat_template_kwargs:
        settings["chat_template_kwargs"] = policy.chat_template_kwargs
    shown = progress_line("difficulty, prompts")
    profile = measure_difficulty(chosen, attempt, file, settings, batch=batch, progress=shown)
    return replace(profile, rows=rows)


def _solved(group: list[Fields]) -> Solved:
    right = sum(each["right"] or False for each in group)
    return Solved(right, len(group), sum(each["finished"] for each in group))
