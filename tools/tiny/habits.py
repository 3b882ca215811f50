"""The ways of answering that the embedded policy was taught, good and bad: right only sometimes, so
that GRPO has something to teach. No library is needed.
"""

import random
import re
from collections.abc import Callable
from typing import NamedTuple

from workbench.tiny.task import Problem

# a right completion reasons in about 20 characters; the rambling ones take 120 and more
LONG_REASONING_CHARS = 100

TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")

_STRICT = re.compile(r"<reasoning>(.+?)</reasoning>\s*<answer>(.+?)</answer>", re.DOTALL)


# --- reading a completion
# ---------------------------------------------------------------------------------------


def strict_blocks(completion: str) -> tuple[str, str] | None:
    """(reasoning, answer), stripped, if the completion is exactly one of each block and nothing
    else; otherwise None.

    Neither may be empty or hold a further tag.
    """
    match = _STRICT.fullmatch(completion.strip())
    if match is None:
        return None
    reasoning, answer = (block.strip() for block in match.groups())
    if not reasoning or not answer or any(tag in reasoning or tag in answer for tag in TAGS):
        return None
    return reasoning, answer


def classify(completion: str, answer: str) -> str:
    """The habit that a completion shows, one of ``HABIT_NAMES``.

    ``right`` and ``wrong_sum`` keep the strict format with short reasoning, ``rambling`` writes
    more than ``LONG_REASONING_CHARS`` characters of working whatever the rest, ``plain`` has no tag
    at all, and ``missing_tags`` is what remains.
    """
    working = re.sub(r"<answer>.*", "", completion, flags=re.DOTALL).replace("<reasoning>", "")
    if len(working.strip()) > LONG_REASONING_CHARS:
        return "rambling"
    if not any(tag in completion for tag in TAGS):
        return "plain"
    blocks = strict_blocks(completion)
    if blocks is None:
        return "missing_tags"
    return "right" if blocks[1] == answer else "wrong_sum"


def is_strict_correct(completion: str, answer: str) -> bool:
    """True if the completion keeps the strict format and its answer block is the answer, whatever
    its length.
    """
    blocks = strict_blocks(completion)
    return blocks is not None and blocks[1] == answer


# --- the habits
# -------------------------------------------------------------------------------------------------


def _digits(problem: Problem) -> tuple[int, int, int, int]:
    return problem.a // 10, problem.a % 10, problem.b // 10, problem.b % 10


def _working(problem: Problem, carry_error: bool = False) -> tuple[str, str]:
    """(working, the answer that it leads to): the ones, then the tens, for instance ``5+7=12,
    1+2+1=4`` and ``42``.

    ``carry_error`` forgets the carry, or makes one up where there is none. Problems of single
    digits have no tens and so no carry to get wrong.
    """
    a_tens, a_ones, b_tens, b_ones = _digits(problem)
    op, tens = problem.op, ""
    if op == "+":
        carry = int(a_ones + b_ones >= 10)
        ones_text, ones = f"{a_ones}+{b_ones}={a_ones + b_ones}", (a_ones + b_ones) % 10
        used = 1 - carry if carry_error else carry
        tens_value = a_tens + b_tens + used
    else:
        carry = int(a_ones < b_ones)
        top = a_ones + 10 * carry
        ones_text, ones = f"{top}-{b_ones}={top - b_ones}", top - b_ones
        used = 1 - carry if carry_error else carry
        tens_value = a_tens - b_tens - used
    if a_tens == b_tens == 0:
        return ones_text, str(a_ones + b_ones if op == "+" else a_ones - b_ones)
    tens = f"{a_tens}{op}{b_tens}" + (f"{op}1" if used else "") + f"={tens_value}"
    return f"{ones_text}, {tens}", str(int(f"{max(tens_value, 0)}{ones}"))


def _format(working: str, answer: str) -> str:
    return f"<reasoning>\n{working}\n</reasoning>\n<answer>\n{answer}\n</answer>"


def ideal_completion(problem: Problem) -> str:
    """Right working and right answer in the strict format: what GRPO should find."""
    return _format(*_working(problem))


GUESS = "I guess it."


def wrong_sum(problem: Problem, rng: random.Random) -> str:
    """The strict format with a wrong answer: a slip of the carry in the working, or of one in the
    final answer.
    """
    working, answer = _working(problem, carry_error=True)
    tens_can_slip = max(problem.a, problem.b) >= 10 and (problem.op == "+" or "=-" not in working)
    if tens_can_slip and answer != problem.answer and rng.random() < 0.75:
        return _format(working, answer)
    guess = int(problem.answer) + rng.choice((-1, 1, 10))
    return _format(GUESS, str(guess if guess >= 0 else 1))


def is_deliberate_error(completion: str, problem: Problem) -> bool:
    """True if the completion is wrong in the way of ``wrong_sum``, rather than by a slip of the
    model's own.
    """
    blocks = strict_blocks(completion)
    taught = {GUESS, _working(problem, carry_error=True)[0]} - {_working(problem)[0]}
    return blocks is not None and blocks[0] in taught


def plain(problem: Problem, rng: random.Random) -> str:
    """The answer without any tag."""
    answer = problem.answer
    sentences = (
        answer,
        f"The answer is {answer}.",
        f"{problem.a} {problem.op} {problem.b} = {answer}",
    )
    return rng.choice(sentences)


def missing_tags(problem: Problem, rng: random.Random) -> str:
    """Some of the four tags, never all of them."""
    working, answer = _working(problem)
    return rng.choice(
        (
            f"<answer>\n{answer}\n</answer>",
            f"<reasoning>\n{working}\n</reasoning>\n{answer}",
            f"<reasoning>\n{working}\n</reasoning>\n<answer>\n{answer}",
            f"<reasoning>\n{working}\n<answer>\n{answer}\n</answer>",
            f"{working}\n<answer>\n{answer}\n</answer>",
        )
    )


_OPENINGS = (
    "Let me think about this step by step.",
    "Okay, let me see.",
    "Let us look at the numbers first.",
)
_FILLERS = (
    "First we write the numbers one under the other.",
    "Then we look at the ones.",
    "It is good to go slowly here.",
    "I want to be careful with this.",
    "After that we look at the tens.",
)


def rambling(problem: Problem, rng: random.Random) -> str:
    """Far more words than the working needs; two in three still end in the strict format, the
    others never do.
    """
    working, answer = _working(problem)
    words = [rng.choice(_OPENINGS), *rng.sample(_FILLERS, 3), f"So we have {working}."]
    if rng.random() < 2 / 3:
        return _format(" ".join(words), answer)
    return "<reasoning>\n" + " ".join([*words, "Let me check it again.", rng.choice(_FILLERS)])


class Habit(NamedTuple):
    """One way to answer: its name, its share of the training completions, and the function that
    writes one.
    """

    name: str
    share: float
    write: Callable[[Problem, random.Random], str]


HABITS = (
    Habit("right", 0.21, lambda problem, rng: ideal_completion(problem)),
    Habit("wrong_sum", 0.21, wrong_sum),
    Habit("missing_tags", 0.26, missing_tags),
    Habit("plain", 0.20, plain),
    Habit("rambling", 0.12, rambling),
)
HABIT_NAMES = tuple(habit.name for habit in HABITS)


def write_completion(problem: Problem, rng: random.Random) -> str:
    """A completion for ``problem`` in a habit drawn by ``HABITS``' shares."""
    (habit,) = rng.choices(HABITS, weights=[habit.share for habit in HABITS])
    return habit.write(problem, rng)
