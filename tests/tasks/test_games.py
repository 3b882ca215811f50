"""Tasks of several turns that ship: games by seed, a calculator, and TextArena's games for one player."""

from __future__ import annotations

import collections
import functools
import importlib.util
import random
import re

import pytest

from workbench.base.environments import methods_of, takes_seed
from workbench.base.errors import TaskError
from workbench.rewards.suite import RewardSuite
from workbench.tasks import calculator, guess_the_number
from workbench.tasks.guess_the_number import GUESSES, HIGHEST, GuessTheNumber
from workbench.tasks.loading import EMBEDDED, load_task

needs_arena = pytest.mark.skipif(importlib.util.find_spec("textarena") is None, reason="the extra `tasks` is not installed")


# --- guess the number


def test_halving_finds_every_number_by_the_last_guess():
    guesses = collections.Counter()
    for seed in range(300):
        game, low, high = GuessTheNumber(), 1, HIGHEST
        game.reset(seed=seed)
        for count in range(1, GUESSES + 1):  # noqa: B007  read after the loop
            middle = (low + high) // 2
            answer = game.guess(middle)
            low, high = (middle + 1, high) if answer == "higher" else (low, middle - 1)
            if answer == "right":
                break
        assert (answer, game.get_reward()) == ("right", 1.0)
        assert game.guess(middle) == "over"
        assert game.get_reward() == 1.0
        guesses[count] += 1
    assert max(guesses) == GUESSES  # one guess fewer is too few for some


def test_without_a_guess_left_the_game_is_over_and_pays_nothing():
    game = GuessTheNumber()
    game.reset(seed=0)
    wrong = next(number for number in range(1, HIGHEST + 1) if number != guess_the_number.number_of_start(0))
    assert {game.guess(wrong) for _ in range(GUESSES)} <= {"higher", "lower"}
    assert game.guess(guess_the_number.number_of_start(0)) == "over"
    assert game.get_reward() == 0.0


def test_what_is_no_number_raises_and_costs_no_guess():
    game = GuessTheNumber()
    game.reset(seed=0)
    for bad in ("16", None, [1]):
        with pytest.raises(TypeError):
            game.guess(bad)
    assert game.guess(guess_the_number.number_of_start(0)) == "right"
    assert game.get_reward() == 1.0


def test_a_seed_draws_the_start_and_no_seed_draws_another_each_time():
    def number_of(game, **row):
        game.reset(**row)
        return next(number for number in range(1, HIGHEST + 1) if _asked(game, number) == "right")

    def _asked(game, number):
        game._left = 2  # as often as it takes
        return game.guess(number)

    assert takes_seed(GuessTheNumber())
    assert len({number_of(GuessTheNumber(), seed=7) for _ in range(5)}) == 1
    assert len({number_of(GuessTheNumber()) for _ in range(40)}) > 5
    state = random.getstate()
    number_of(GuessTheNumber(), seed=7)
    assert random.getstate() == state


def test_held_out_numbers_are_never_trained_on():
    task = load_task("guess_the_number")
    trained, held_out = ({guess_the_number.number_of_start(row["seed"]) for row in rows} for rows in (task.rows, task.held_out))
    assert held_out == set(range(4, HIGHEST + 1, 4))
    assert trained == set(range(1, HIGHEST + 1)) - held_out
    ids = [row["prompt_id"] for row in (*task.rows, *task.held_out)]
    assert len(set(ids)) == len(ids) == 512 + 64
    assert task.function_names == ["GuessTheNumber"] == [task.right_function]


# --- the calculator


@pytest.mark.parametrize(("expression", "result"), [("347 * 26", "9022"), ("(3 + 4) * 2", "14"), ("7 / 2", "7/2")])
def test_a_calculator_works_out_an_expression(expression, result):
    assert calculator.calculate(expression) == result


@pytest.mark.parametrize("text", ["", "__import__('os')", "2 ** 9", "1 / 0", "347 x", "a" * 10_000])
def test_what_is_no_expression_is_an_error_that_is_short(text):
    with pytest.raises(ValueError, match="not an expression") as caught:
        calculator.calculate(text)
    assert len(str(caught.value)) < 120


def test_the_last_turn_decides_whatever_was_called_before():
    task = load_task("calculator")
    row = {**task.rows[0], "answer": "9022"}
    call = {"type": "function", "function": {"name": "calculate", "arguments": {"expression": "347 * 26"}}}
    asked = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "calculate", "content": "9022"},
    ]
    said = ["The answer is 9022.", "9,022", "", "The answer is 9023.", "Not 9022."]
    completions = [[*asked, {"role": "assistant", "content": text}] for text in said]
    completions += [asked, [{"role": "assistant", "content": "9022"}]]
    scores = calculator.last_turn_reward(completions=completions, answer=[row["answer"]] * len(completions))
    assert scores == [1, 1, 0, 0, 0, 0, 1]


def test_the_sums_are_the_same_for_a_seed_and_none_is_on_both_sides():
    task = load_task("calculator")
    assert [*task.rows[:5]] == [*load_task("calculator").rows[:5]]
    trained, held_out = ({row["prompt"][-1]["content"] for row in rows} for rows in (task.rows, task.held_out))
    assert len(held_out) > 60
    assert not trained & held_out
    for row in (*task.rows, *task.held_out):
        a, op, b = re.fullmatch(r"What is (\d+) ([+*-]) (\d+)\?", row["prompt"][-1]["content"]).groups()
        assert int(row["answer"]) == {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[op] >= 0


@pytest.mark.parametrize("name", ["guess_the_number", "calculator"])
def test_a_policy_is_told_what_it_may_call(name):
    task = load_task(name)
    [[tool]] = task.tool_schemas.values()
    assert tool["function"]["description"]
    assert all(own["description"] for own in tool["function"]["parameters"]["properties"].values())
    RewardSuite(task, 4).rehearse(task.with_ids(task.rows))


def test_every_task_that_ships_and_has_turns_is_tested_here():
    turns = {name for name in set(EMBEDDED) - {"gsm8k"} if load_task(name).for_turns}
    assert turns == {"guess_the_number", "calculator"}


# --- TextArena


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
