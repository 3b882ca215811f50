"""Sums that are too long for the head, and a calculator: one tool, called or not."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from workbench.data.sources import Source
from workbench.rewards.answers import Column, completion_text, find_answer
from workbench.rewards.library import max_score, number_of
from workbench.rewards.verifiers import evaluate_expression
from workbench.task import Row, Task
from workbench.tasks.checked import task_of

QUESTIONS = 1200
LONGEST = 300  # characters of the last turn: a number at the end of anything is no answer
ASKED = "What is {}?"


def calculate(expression: str) -> str:
    """Work out an expression.

    Args:
        expression: whole numbers with + - * / and parentheses, such as 12 * (3 + 4).
    """
    found = evaluate_expression(str(expression))
    if found is None:
        raise ValueError(f"not an expression: {str(expression)[:80]}")
    return str(found[0])


@max_score(1.0)
def last_turn_reward(completions: Column, answer: Column, **kwargs: object) -> list[float]:
    """1.0 if the last number of the policy's last turn, of at most `LONGEST` characters, is the
    answer.
    """
    return [
        float(_last_number(given) == number_of(right)) for given, right in zip(completions, answer)
    ]


def _last_number(completion: object) -> object:
    last = completion[-1:] if isinstance(completion, list) else completion
    text = completion_text(last)
    # A call that nobody parsed has numbers, too.
    if calculate.__name__ in text or len(text) > LONGEST:
        return None
    return number_of(find_answer(text, "number"))


def source(limit: int | None = None, seed: int = 0) -> Source:
    """`limit` sums, differences and products of numbers from 10 to 999, the same for the same
    seed.
    """

    def rows() -> Iterator[Row]:
        random_source = random.Random(seed)
        for _ in range(limit or QUESTIONS):
            expression = expression_of(random_source)
            yield {"question": ASKED.format(expression), "answer": calculate(expression)}

    return Source("calculator", rows)


def expression_of(random_source: random.Random) -> str:
    """One expression, for instance `347 * 26`; a difference is not negative."""
    a, b = sorted((random_source.randint(10, 999) for _ in range(2)), reverse=True)
    return f"{a} {random_source.choice('+-*')} {b}"


def task(questions: int = QUESTIONS, seed: int = 0) -> Task:
    """Sums, differences and products, with a calculator as a tool."""
    made = task_of(
        "calculator",
        source(questions, seed),
        (last_turn_reward,),
        right_by="last_turn_reward",
    )
    cases = Path(__file__).with_name("cases_calculator.jsonl")
    return replace(made, tools=[calculate], cases=cases)
