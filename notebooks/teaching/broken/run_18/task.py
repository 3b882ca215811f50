"""Guess a number from 1 to 31 by calls of a tool."""

import random

import workbench as wb

ASKED = "I think of a number from 1 to 31. You have 5 guesses."


class Game:
    """Five guesses."""

    def reset(self, **row):
        self.number, self.left, self.found = random.randint(1, 31), 5, False

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: your guess.
        """
        if self.found or not self.left:
            return "over"
        self.left -= 1
        self.found = number == self.number
        return "right" if self.found else "higher" if number < self.number else "lower"

    def get_reward(self) -> float:
        return float(self.found)


def games(numbers):
    prompt = [{"role": "user", "content": ASKED}]
    return [{"prompt": prompt, "prompt_id": f"game {n}", "answer": "right"} for n in numbers]


task = wb.Task(
    "guess",
    rows=games(range(200)),
    held_out=games(range(200, 216)),
    reward_funcs=[],
    right_by="Game",
    environment=Game,
)
