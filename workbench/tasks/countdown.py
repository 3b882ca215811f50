"""Countdown: reach a target from a few numbers, each used once. Puzzles are made here, and each has
a solution.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from workbench.data.prompts import SYSTEM_PROMPT
from workbench.data.sources import Source
from workbench.rewards.library import strict_format_reward
from workbench.rewards.verifiers import countdown_reward, numbers_used_reward
from workbench.task import Row, Task
from workbench.tasks.checked import task_of

QUESTIONS = 2400
EXAMPLE = (
    "Reach 10 from the numbers 2, 3 and 4: use each once, with + - * / and parentheses.",
    "<reasoning>\n3 * 4 = 12, and 12 - 2 = 10.\n</reasoning>\n<answer>\n3 * 4 - 2\n</answer>",
)


def puzzle(random_source: random.Random, count: int) -> Row:
    """One puzzle of `count` numbers with a solution: columns `question`, `answer` (one solution),
    `numbers`, `target`.
    """
    while True:
        numbers = [random_source.randint(1, 99) for _ in range(count)]
        if (found := _combined(numbers, random_source)) is not None:
            value, text = found
            listed = f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
            question = (
                f"Reach {value} from the numbers {listed}: use each once, with + - * / and"
                " parentheses."
            )
            return {"question": question, "answer": text, "numbers": numbers, "target": value}


def _combined(numbers: list[int], random_source: random.Random) -> tuple[int, str] | None:
    parts = [(number, str(number)) for number in random_source.sample(numbers, len(numbers))]
    while len(parts) > 1:
        (a, first), (b, second), *rest = parts
        ways = [(a + b, "+"), (a - b, "-"), (a * b, "*")] + (
            [(a // b, "/")] if b and a % b == 0 else []
        )
        ways = [(value, mark) for value, mark in ways if 0 < value <= 999]
        if not ways:
            return None
        value, mark = random_source.choice(ways)
        text = f"{first} {mark} {second}"
        parts = [(value, f"({text})" if rest else text), *rest]
        random_source.shuffle(parts)
    return parts[0]


def source(limit: int | None = None, seed: int = 0) -> Source:
    """`limit` puzzles of three and four numbers, the same for the same seed."""

    def rows() -> Iterator[Row]:
        random_source = random.Random(seed)
        for _ in range(limit or QUESTIONS):
            yield puzzle(random_source, random_source.choice((3, 4)))

    return Source("countdown", rows)


def task(questions: int = QUESTIONS, seed: int = 0) -> Task:
    """Countdown with the strict format, one worked example in the system message."""
    return task_of(
        "countdown",
        source(questions, seed),
        (countdown_reward, numbers_used_reward, strict_format_reward),
        right_by="countdown_reward",
        format_by="strict_format_reward",
        cases="cases_countdown.jsonl",
        system=SYSTEM_PROMPT,
        examples=[EXAMPLE],
    )
