"""The arithmetic task: the embedded policy's questions, sums and differences of numbers below 100,
and five rewards.
"""

from __future__ import annotations

import functools
import hashlib
import random
from pathlib import Path
from typing import NamedTuple

from workbench.data.prompts import SYSTEM_PROMPT, to_messages
from workbench.data.sources import Source
from workbench.rewards import library, shaping
from workbench.task import Row, Task

LIMIT = 100  # operands run from 0 to 99
HELD_OUT_PERCENT = 10
CASES = Path(__file__).parent / "cases.jsonl"
SPLIT_SALT = "workbench.tiny:"
WORDING = "What is {}?"  # as the embedded policy was taught

REWARD_FUNCS = (
    library.correctness_reward,
    library.strict_format_reward,
    library.incremental_format_reward,
    shaping.length_reward,
    shaping.style_reward,
)


class Problem(NamedTuple):
    """``a op b`` with 0 <= a, b < 100; for ``-`` also a >= b, so that no answer is negative."""

    a: int
    op: str
    b: int

    @property
    def question(self) -> str:
        """The user's message, for instance ``What is 15 + 27?``."""
        return self.asked(WORDING)

    def asked(self, wording: str) -> str:
        """The message in other words, which stand around the `{}`."""
        return wording.format(f"{self.a} {self.op} {self.b}")

    @property
    def answer(self) -> str:
        """The right answer in decimal digits."""
        return str(self.a + self.b if self.op == "+" else self.a - self.b)

    @property
    def key(self) -> str:
        """The operand pair without order or sign: ``15+27``, ``27+15`` and ``27-15`` share
        ``15,27``.
        """
        return f"{min(self.a, self.b)},{max(self.a, self.b)}"


def all_problems() -> list[Problem]:
    """Every problem: 10,000 sums, then 5,050 differences."""
    sums = [Problem(a, "+", b) for a in range(LIMIT) for b in range(LIMIT)]
    return sums + [Problem(a, "-", b) for a in range(LIMIT) for b in range(a + 1)]


def is_held_out(problem: Problem) -> bool:
    """True for about a tenth of the operand pairs: by a hash of the pair, so the same on every
    machine and in every version.
    """
    digest = hashlib.sha256(f"{SPLIT_SALT}{problem.key}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % 100 < HELD_OUT_PERCENT


@functools.cache
def problems(split: str = "train") -> tuple[Problem, ...]:
    """The problems of one split, ``"train"`` or ``"held_out"``, in a fixed order. Other names raise
    ValueError.
    """
    if split not in ("train", "held_out"):
        raise ValueError(f"split={split!r}: there are two splits; use 'train' or 'held_out'.")
    return tuple(
        problem for problem in all_problems() if is_held_out(problem) == (split == "held_out")
    )


def sample_problems(split: str, n: int, seed: int = 0) -> list[Problem]:
    """``n`` different problems of a split in an order drawn from ``seed``, half sums and half
    differences.

    Asking for more than there are, or for none, raises ValueError.
    """
    sums, differences = (
        [problem for problem in problems(split) if problem.op == op] for op in "+-"
    )
    rng, most = random.Random(f"{split}:{seed}"), 2 * len(differences)
    if not 1 <= n <= most:
        raise ValueError(
            f"n={n}: the {split} split holds 1 to {most} problems, half of each kind; ask for"
            " fewer."
        )
    chosen = rng.sample(sums, (n + 1) // 2) + rng.sample(differences, n // 2)
    rng.shuffle(chosen)
    return chosen


def rows(split: str, n: int, seed: int = 0, wording: str = WORDING) -> list[Row]:
    """``[{"prompt": [system message, user message], "answer": "42"}, ...]``; the same list for the
    same arguments.
    """
    chosen = sample_problems(split, n, seed)
    return [
        {"prompt": to_messages(problem.asked(wording), SYSTEM_PROMPT), "answer": problem.answer}
        for problem in chosen
    ]


def task(
    train: int = 2000,
    held_out: int = 200,
    seed: int = 0,
    name: str = "arithmetic",
    wording: str = WORDING,
) -> Task:
    """The arithmetic task with `train` training prompts and `held_out` prompts that the policy
    never saw.
    """
    return Task(
        name=name,
        rows=rows("train", train, seed, wording),
        held_out=rows("held_out", held_out, seed, wording),
        reward_funcs=REWARD_FUNCS,
        right_by="correctness_reward",
        format_by="strict_format_reward",
        cases=CASES,
    )


def source(
    limit: int | None = None, seed: int = 0, name: str = "arithmetic", wording: str = WORDING
) -> Source:
    """The questions as a source, split by operand pair as the embedded policy was trained."""
    return Source(
        name,
        lambda: iter(questions(limit or 2400, seed, wording)),
        split_by="pair",
        salt=SPLIT_SALT,
    )


def questions(count: int = 2400, seed: int = 0, wording: str = WORDING) -> list[Row]:
    """Bare questions as a dataset has them, both splits mixed: columns `question`, `answer` and
    `pair`, a problem's key.
    """
    held_out = max(2, count // 10)
    found = sample_problems("train", count - held_out, seed) + sample_problems(
        "held_out", held_out, seed
    )
    found.sort(key=lambda problem: hashlib.sha256(f"{seed}{problem}".encode()).digest())
    return [
        {"question": problem.asked(wording), "answer": problem.answer, "pair": problem.key}
        for problem in found
    ]
