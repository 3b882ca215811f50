"""TextArena's games for one player."""

from __future__ import annotations

import functools
import importlib.util
import random

import pytest

from workbench.base.environments import methods_of
from workbench.base.errors import TaskError
from workbench.tasks.loading import load_task

needs_arena = pytest.mark.skipif(importlib.util.find_spec("textarena") is None, reason="the extra `tasks` is not installed")


@needs_arena
def test_frozen_lake_is_won_by_the_way_around_its_holes():
    task = load_task("textarena/FrozenLake-v0-random")
    assert task.function_names == ["TextArena"]
    assert (len(task.rows), len(task.held_out)) == (256, 64)
    won = 0
    for row in task.rows[:20]:
        game = task.environment()
        board = game.reset(seed=row["seed"])
        assert game.get_reward() == 0.0  # not played to its end
        for move in _way(board):
            said = game.act(move)
        won += game.get_reward() == 1.0
        assert game.act("[up]") == "The game is over."
        assert said
    assert won == 20


def _way(board: str) -> list[str]:
    """Moves from P to G, none into H: read from what the game shows."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in board.splitlines() if line.startswith("|")]
    places = {(row, column): cell for row, line in enumerate(cells) for column, cell in enumerate(line)}
    (start,) = (place for place, cell in places.items() if cell == "P")
    steps = {"[up]": (-1, 0), "[down]": (1, 0), "[left]": (0, -1), "[right]": (0, 1)}
    ways = {start: []}
    for place in (queue := [start]):
        for name, (down, right) in steps.items():
            there = place[0] + down, place[1] + right
            if there in places and places[there] != "H" and there not in ways:
                ways[there] = [*ways[place], name]
                queue.append(there)
    return next(way for place, way in ways.items() if places[place] == "G")


@needs_arena
def test_rollouts_that_take_turns_draw_none_of_each_others_numbers():
    """Blackjack deals from Python's global random as it is played."""
    environment = load_task("textarena/Blackjack").environment

    def played(others: int) -> list[str]:
        games = [environment() for _ in range(1 + others)]
        said = [[game.reset(seed=5)] for game in games]
        for move in ("[Hit]", "[Stand]", "[Hit]", "[Hit]", "[Stand]"):
            for own, game in zip(said, games, strict=True):
                own.append(game.act(move))
        assert all(own == said[0] for own in said), "one seed, one game"
        return said[0]

    random.seed(1)
    state = random.getstate()
    assert played(0) == played(3)
    assert random.getstate() == state
    assert played(0) != [environment().reset(seed=6)]


@needs_arena
@pytest.mark.parametrize("game", ["Slitherlink", "ThreeCardMonte", "Cryptarithm"])
def test_a_game_that_gives_no_number_gives_no_score(game):
    """The library hands over a sentence in the reward's place where two moves were bad."""
    own = load_task(f"textarena/{game}").environment()
    own.reset(seed=0)
    while own.act("nonsense") != "The game is over.":
        pass
    assert own.get_reward() is None


@needs_arena
@pytest.mark.parametrize(
    ("name", "word"),
    [("FrozenLak", "FrozenLake"), ("GuessWho", "server"), ("Klondike", "SyntaxError"), ("", "no such game")],
)
def test_a_game_that_cannot_be_played_here_is_refused_with_the_reason(name, word):
    with pytest.raises(TaskError, match=word):
        load_task(f"textarena/{name}")


@needs_arena
def test_held_out_starts_differ_from_those_that_are_trained_on():
    task = load_task("textarena/Mastermind")

    def code(row):
        game = task.environment()
        game.reset(seed=row["seed"])
        return tuple(game._game.state.game_state["secret_code"])

    trained, held_out = {code(row) for row in task.rows}, {code(row) for row in task.held_out}
    assert len(held_out) == 64
    assert not trained & held_out
    assert isinstance(task.environment, functools.partial)
    assert [method.__name__ for method in methods_of(task.environment())] == ["act"]


def test_without_the_extra_one_line_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(TaskError, match="not installed") as caught:
        load_task("textarena/FrozenLake")
    assert "uv sync --extra tasks" in caught.value.remedy
