"""The arithmetic task: the embedded policy's prompts with the five reward functions."""

from __future__ import annotations

from pathlib import Path

from workbench.data.sources import Source
from workbench.rewards import library
from workbench.task import Row, Task
from workbench.tiny import arithmetic

CASES = Path(__file__).parent / "cases.jsonl"
SPLIT_SALT = "workbench.tiny:"

REWARD_FUNCS = (
    library.correctness_reward,
    library.strict_format_reward,
    library.incremental_format_reward,
    library.length_reward,
    library.style_reward,
)


def task(train: int = 2000, held_out: int = 200, seed: int = 0) -> Task:
    """The arithmetic task with `train` training prompts and `held_out` prompts that the policy never saw."""
    return Task(
        name="arithmetic",
        rows=arithmetic.rows("train", train, seed),
        held_out=arithmetic.rows("held_out", held_out, seed),
        reward_funcs=REWARD_FUNCS,
        right_by="correctness_reward",
        format_by="strict_format_reward",
        cases=CASES,
    )


def source(limit: int | None = None, seed: int = 0) -> Source:
    """The questions as a source, split by operand pair as the embedded policy was trained."""
    return Source("arithmetic", lambda: iter(questions(limit or 2400, seed)), split_by="pair", salt=SPLIT_SALT)


def questions(count: int = 2400, seed: int = 0) -> list[Row]:
    """Bare questions as a dataset has them, both splits mixed: columns `question`, `answer` and `pair`.

    `pair` names the two operands without order, so that `15 + 27` and `27 + 15` stay on one side of a split.
    """
    held_out = max(2, count // 10)
    problems = arithmetic.sample_problems("train", count - held_out, seed)
    problems += arithmetic.sample_problems("held_out", held_out, seed)
    problems.sort(key=lambda problem: arithmetic.hashlib.sha256(f"{seed}{problem}".encode()).digest())
    return [{"question": problem.question, "answer": problem.answer, "pair": problem.key} for problem in problems]
