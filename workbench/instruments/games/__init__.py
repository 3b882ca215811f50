"""Guess the number, the calculator, tasks of reasoning-gym with their levels, TextArena's games,
and the luck of a start.
"""

from workbench.base.shipped import is_under

# Before the name of one of reasoning-gym's tasks, and of one of TextArena's games.
GYM, ARENA = "reasoning_gym/", "textarena/"


def is_of_gym(name: object) -> bool:
    """Whether a task's name is one of reasoning-gym's, `reasoning_gym/NAME`."""
    return is_under(GYM, name)
