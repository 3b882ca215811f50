"""Tasks of several turns that ship: games by seed, and a calculator."""

from __future__ import annotations

import collections
import random
import re

import pytest

from workbench.base.environments import takes_seed
from workbench.instruments.games import calculator, guess_the_number
from workbench.instruments.games.guess_the_number import GUESSES, HIGHEST, GuessTheNumber
from workbench.rewards.suite import RewardSuite
from workbench.tasks.loading import EMBEDDED, load_task

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
