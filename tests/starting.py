"""Environments whose starts are alike or not, for the tests of starts."""

from __future__ import annotations

import random
import threading

from workbench.task import Task

MESSAGES = [{"role": "user", "content": "Guess."}]


class Fixed:
    """Begins with what its row says."""

    def reset(self, level=5, **row):
        self.secret = level
        return " Go."

    def guess(self, number: int) -> str:
        """Guess.

        Args:
            number: From 1 to 9.
        """
        return "yes" if number == self.secret else "no"

    def get_reward(self) -> float:
        """As lucky as the secret is low."""
        return float(random.random() * 10 > getattr(self, "secret", 5))


class Seeded(Fixed):
    """Draws from its seed."""

    def reset(self, seed=0, **row):
        return super().reset(random.Random(seed).randint(1, 9))


class Drawn(Fixed):
    """Draws what it likes."""

    def reset(self, **row):
        return super().reset(random.randint(1, 9))


class Entropic(Fixed):
    """Draws from what nobody can pin."""

    def reset(self, **row):
        return super().reset(random.Random().randint(1, 9))


class Locked(Fixed):
    def reset(self, level=5, **row):
        self.secret, self.lock = level, threading.Lock()


def task_of(environment, rows=16, **more):
    return Task("game", [{"prompt": MESSAGES, "level": 1 + n % 9, **more} for n in range(rows)], [], environment=environment)


TASK = """
import random
import workbench as wb

class Guess:
    def reset(self, **row):
        self.secret = random.randint(1, 9)

    def guess(self, number: int) -> str:
        '''Guess.

        Args:
            number: the guess.
        '''
        return str(number == self.secret)

    def get_reward(self) -> float:
        return 0.0

rows = [{"prompt": [{"role": "user", "content": "Guess."}]}] * 4
task = wb.Task("guess", rows, [], environment=Guess)
"""
