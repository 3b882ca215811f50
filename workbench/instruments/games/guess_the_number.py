"""Guess the number: a game of several turns, played by calls of a tool. Each row is a start of its
own, and the numbers of held-out starts are never trained on.
"""

from __future__ import annotations

import itertools
import random

from workbench.data.prompts import to_messages
from workbench.task import Row, Task

# Halving finds each of these by 5 guesses; guesses anywhere between the bounds often do not.
HIGHEST = 31
GUESSES = 5
ASKED = "I think of a number from 1 to {}. You have {} guesses."


class GuessTheNumber:
    """A number from 1 to `HIGHEST`, found by at most `GUESSES` calls of `guess`."""

    def reset(self, seed: int | None = None, **row: object) -> None:
        """Begin: a number drawn from `seed`; without one, each rollout has another number."""
        self._number = number_of_start(seed)
        self._left, self._found = GUESSES, False

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: your guess.

        Returns:
            "higher", "lower", "right", or "over" when there is no guess left.
        """
        if self._found or not self._left:
            return "over"
        higher = number < self._number  # raises on a wrong type, before it costs a guess
        self._left -= 1
        self._found = number == self._number
        return "right" if self._found else "higher" if higher else "lower"

    def get_reward(self) -> float:
        """1 if the number was found."""
        return float(self._found)


def number_of_start(seed: int | None) -> int:
    """The number of the start that a seed draws."""
    return random.Random(seed).randint(1, HIGHEST)


def is_never_trained_on(number: int) -> bool:
    """Every fourth number: 4, 8, ..., 28."""
    return number % 4 == 0


def rows(held_out: bool, count: int) -> list[Row]:
    """`count` starts: columns `prompt`, `prompt_id`, `seed`."""
    kind = (is_never_trained_on(number_of_start(seed)) == held_out for seed in itertools.count())
    seeds = itertools.compress(itertools.count(), kind)
    prompt = to_messages(ASKED.format(HIGHEST, GUESSES))
    return [
        {"prompt": prompt, "prompt_id": f"start {seed}", "seed": seed}
        for seed in itertools.islice(seeds, count)
    ]


def task(starts: int = 512, held_out: int = 64, name: str = "guess_the_number") -> Task:
    """The game, with `starts` to train on and `held_out` that are never trained on."""
    return Task(
        name,
        rows(False, starts),
        [],
        held_out=rows(True, held_out),
        right_by=GuessTheNumber.__name__,
        environment=GuessTheNumber,
    )
