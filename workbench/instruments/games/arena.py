"""TextArena's one-player games: `textarena/NAME`, such as `textarena/FrozenLake`, or a version of
one, `textarena/FrozenLake-v0-random`. Needs the extra `tasks`.

Its games draw from Python's global `random`, which they also seed. Here each rollout has its own
random state, so that neither the trainer nor the other rollouts of a batch change what it draws.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import itertools
import math
import random
import sys
from collections.abc import Generator
from typing import Any

from workbench.base.errors import TaskError, nearest
from workbench.data.prompts import to_messages
from workbench.instruments.games import ARENA
from workbench.task import Row, Task

STARTS, HELD_OUT = 256, 64
# Whose starts take half a second to three to make: fewer of them.
_FEWER = {"RushHour": 10, "Sokoban": 40}
_REPEATS = 40  # seeds in a row that begin as others did, until there are no more
ASKED = "Play this game: make each move by a call of `act`.\n\n"


class TextArena:
    """A rollout of one game.

    Args:
        game: its name in the library, such as `FrozenLake-v0`.
    """

    def __init__(self, game: str) -> None:
        self._random = random.Random()
        self._over = False
        with self._apart():
            # Without the library's wrappers, which repeat the whole game at each move.
            self._game = _library().make(f"{game}-raw")

    def reset(self, seed: int | None = None, **row: object) -> str:
        """Begin at the start that `seed` draws; returns the rules and the board."""
        self._random.seed(seed)
        self._over = False
        with self._apart():
            self._game.reset(num_players=1, seed=seed)
            return self._news()

    def act(self, action: str) -> str:
        """Make a move.

        Args:
            action: the move, in the form that the rules ask for, such as [up].
        """
        if self._over:
            return "The game is over."
        with self._apart():
            self._over, _ = self._game.step(action if "[" in action else f"[{action}]")
            said = self._news()
        why = self._game.state.game_info[0].get("reason") if self._over else None
        return f"{said}\n\n{why}" if why else said

    def get_reward(self) -> float | None:
        """What the game gives, most often 0 to 1; 0 for one that was not played to its end. None
        where the game gives no number: three of them give a sentence to who makes two bad moves.
        """
        given = (self._game.close()[0] or {}).get(0) if self._over else 0.0
        number = isinstance(given, (int, float)) and math.isfinite(given)
        return float(given) if number else None

    def _news(self) -> str:
        # what the game has said since it was last asked; its echo of the move is left out
        _, said = self._game.get_observation()
        return "\n\n".join(str(text) for author, text, _ in said if author != 0)

    def _state(self) -> str:
        return repr(self._game.state.game_state)

    @contextlib.contextmanager
    def _apart(self) -> Generator[None]:
        # The game draws its own numbers, and what it prints is for its authors.
        others = random.getstate()
        random.setstate(self._random.getstate())
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                yield
        finally:
            self._random.setstate(random.getstate())
            random.setstate(others)


def _library() -> Any:
    try:
        return importlib.import_module("textarena")
    except ImportError as error:
        raise TaskError(
            f"task {ARENA}...: textarena is not installed",
            rule="its games come with the extra `tasks`",
            remedy="`pip install textarena==0.7.4`, or `uv sync --extra tasks`",
        ) from error


def task(name: str) -> Task:
    """A game as a task: starts by seed, those that are held out differ from all that are trained
    on. TaskError: there is no such game, or it cannot be played by one player here.
    """
    _library()
    registered = sys.modules["textarena.envs.registration"].ENV_REGISTRY
    asked = name.removeprefix(ARENA)
    game = asked if asked in registered else f"{asked}-v0"
    if game not in registered:
        families = dict.fromkeys(each.partition("-v")[0] for each in registered)
        raise TaskError(
            f"task {name!r}",
            rule="TextArena has no such game",
            remedy=nearest(asked, families, "textarena.pprint_registry_detailed() lists them"),
        )
    try:
        starts = _starts(game)
    except Exception as error:  # of the game's own code
        said = next(iter(str(error).strip(" *\n").splitlines()), "")
        raise TaskError(
            f"task {name!r}: {type(error).__name__}: {said}",
            rule="a game is played by one player, with nothing to download and no server",
            remedy=f"take another one, such as {ARENA}FrozenLake-v0-random",
        ) from error
    held_out = starts[::5][:HELD_OUT] if len(starts) > 1 else []
    rows = [row for row in starts if row not in held_out]
    environment = functools.partial(TextArena, game)
    won = (TextArena.__name__, 1.0)
    return Task(name, rows, [], held_out=held_out, right_by=won, environment=environment)


def _starts(game: str) -> list[Row]:
    environment = TextArena(game)
    wanted = _FEWER.get(game.partition("-v")[0], STARTS + HELD_OUT)
    seen: set[tuple[str, str]] = set()
    rows: list[Row] = []
    last_new = 0
    for seed in itertools.count():
        start = environment.reset(seed=seed), environment._state()
        if start not in seen:
            seen.add(start)
            last_new = seed
            prompt = to_messages(ASKED)
            rows.append({"prompt": prompt, "prompt_id": f"start {seed}", "seed": seed})
        if len(rows) == wanted or seed - last_new >= _REPEATS:
            return rows
    return rows
