"""The embedded policy's questions: sums and differences of two numbers below 100."""

import hashlib
import random
from typing import NamedTuple

from workbench.data.prompts import SYSTEM_PROMPT, to_messages

LIMIT = 100  # operands run from 0 to 99
HELD_OUT_PERCENT = 10


class Problem(NamedTuple):
    """``a op b`` with 0 <= a, b < 100; for ``-`` also a >= b, so that no answer is negative."""

    a: int
    op: str
    b: int

    @property
    def question(self) -> str:
        """The user's message, for instance ``What is 15 + 27?``."""
        return f"What is {self.a} {self.op} {self.b}?"

    @property
    def answer(self) -> str:
        """The right answer in decimal digits."""
        return str(self.a + self.b if self.op == "+" else self.a - self.b)

    @property
    def key(self) -> str:
        """The operand pair without order or sign: ``15+27``, ``27+15`` and ``27-15`` share ``15,27``."""
        return f"{min(self.a, self.b)},{max(self.a, self.b)}"


def all_problems() -> list[Problem]:
    """Every problem: 10,000 sums, then 5,050 differences."""
    sums = [Problem(a, "+", b) for a in range(LIMIT) for b in range(LIMIT)]
    return sums + [Problem(a, "-", b) for a in range(LIMIT) for b in range(a + 1)]


def is_held_out(problem: Problem) -> bool:
    """True for about a tenth of the operand pairs: by a hash, so the same on every machine and in every version.

    A pair is held out as a whole. If ``15 + 27`` is, then so are ``27 + 15`` and ``27 - 15``.
    """
    digest = hashlib.sha256(f"workbench.tiny:{problem.key}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % 100 < HELD_OUT_PERCENT


def problems(split: str = "train") -> list[Problem]:
    """The problems of one split, ``"train"`` or ``"held_out"``, in a fixed order. Other names raise ValueError."""
    if split not in ("train", "held_out"):
        raise ValueError(f"split={split!r}: there are two splits; use 'train' or 'held_out'.")
    return [problem for problem in all_problems() if is_held_out(problem) == (split == "held_out")]


def sample_problems(split: str = "train", n: int | None = None, seed: int = 0) -> list[Problem]:
    """``n`` different problems of a split in an order drawn from ``seed``, half sums and half differences.

    ``n=None`` gives all of them, each once, shuffled (two thirds are sums). Asking for more than there are, or for
    none, raises ValueError.
    """
    pool, rng = problems(split), random.Random(f"{split}:{seed}")
    if n is None:
        rng.shuffle(pool)
        return pool
    sums = [problem for problem in pool if problem.op == "+"]
    differences = [problem for problem in pool if problem.op == "-"]
    most = 2 * len(differences)
    if not 1 <= n <= most:
        raise ValueError(f"n={n}: the {split} split holds 1 to {most} problems, half of each kind; ask for fewer.")
    chosen = rng.sample(sums, (n + 1) // 2) + rng.sample(differences, n // 2)
    rng.shuffle(chosen)
    return chosen


def rows(split: str = "train", n: int | None = None, seed: int = 0) -> list[dict]:
    """``[{"prompt": [system message, user message], "answer": "42"}, ...]``; the same list for the same arguments."""
    return [
        {"prompt": to_messages(problem.question, SYSTEM_PROMPT), "answer": problem.answer}
        for problem in sample_problems(split, n, seed)
    ]
