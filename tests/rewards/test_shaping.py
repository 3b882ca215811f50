"""Length, repetition, running over and nearness: the exact numbers, the bounds, and TRL's own beside them."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.base.errors import TaskError
from workbench.rewards.library import (
    closeness_reward,
    make_closeness_reward,
    max_score_of,
)
from workbench.rewards.shaping import make_length_reward, make_overlong_reward, make_repetition_reward, repetition_reward
from workbench.rewards.suite import RewardSuite
from workbench.task import Task

ROWS = [{"prompt": [{"role": "user", "content": "What is 1 + 1?"}], "answer": "2"}]


def tokens(*counts: int) -> list[list[int]]:
    return [list(range(count)) for count in counts]


def answered(characters: int) -> str:
    return "<answer>4</answer>" + "x" * (characters - 18)


@pytest.mark.parametrize(("length", "expected"), [(50, 1.0), (100, 1.0), (150, 0.5), (199, 0.01), (200, 0.0), (9000, 0.0)])
def test_length_counts_what_it_is_told_to(length, expected):
    characters = make_length_reward(100, maximum=1.0)
    assert characters(completions=[answered(length)], completion_ids=tokens(1)) == [pytest.approx(expected)]
    of_tokens = make_length_reward(100, "tokens", maximum=1.0)
    assert of_tokens(completions=[answered(20)], completion_ids=tokens(length)) == [pytest.approx(expected)]


def test_length_says_its_unit():
    assert make_length_reward(100).__name__ == "length_100_characters_reward"
    func = make_length_reward(64, "tokens", maximum=0.3)
    assert func.__name__ == "length_64_tokens_reward"
    assert "within 64 tokens, nothing at 128" in func.__doc__
    assert max_score_of(func) == 0.3


def test_length_pays_for_an_answer_or_at_least_for_words():
    texts = ["", "words", "<answer></answer>", "<answer>4</answer>", "\\boxed{4}"]
    call = {"completions": texts, "completion_ids": tokens(*[1] * len(texts))}
    assert make_length_reward(100)(**call) == [0, 0, 0, 0.5, 0]
    assert make_length_reward(100, answer_in="boxed")(**call) == [0, 0, 0, 0, 0.5]
    assert make_length_reward(100, answer_in=None)(**call) == [0, 0.5, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("arguments", [(0,), (-5,), (100, "words")])
def test_a_length_that_means_nothing_is_refused(arguments):
    with pytest.raises(TaskError, match="target|unit"):
        make_length_reward(*arguments)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0.0),
        ("one two", 0.0),  # too short for a group of three
        ("one two three four", 0.0),
        ("a b c a b c", -0.25),  # four groups of three, one of them twice
        ("no no no no no no", -0.75),
        ("no " * 1000, -(1 - 1 / 998)),
    ],
)
def test_repetition(text, expected):
    assert repetition_reward(completions=[text]) == [pytest.approx(expected)]
    halved = make_repetition_reward(maximum_penalty=0.5)
    assert halved(completions=[[{"role": "assistant", "content": text}]]) == [pytest.approx(expected / 2)]


def test_repetition_names_and_bounds():
    assert repetition_reward.__name__ == "repetition_reward"
    assert make_repetition_reward(2, unit="tokens").__name__ == "repetition_2_tokens_reward"
    assert max_score_of(repetition_reward) == 0.0
    for arguments in ((0,), (3, -1.0), (3, 1.0, "letters")):
        with pytest.raises(TaskError):
            make_repetition_reward(*arguments)


@pytest.mark.timing
def test_a_long_loop_is_counted_in_no_time():
    started = time.perf_counter()
    make_repetition_reward(20)(completions=["ab " * 100_000])
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(("limit", "buffer"), [(100, 20), (100, 0), (100, 100), (7, 3), (1, 1)])
def test_overlong_is_what_trl_pays(limit, buffer):
    from trl.rewards import get_soft_overlong_punishment

    counted = tokens(*range(2 * limit + 2))
    ours = make_overlong_reward(limit, buffer)(completions=[""] * len(counted), completion_ids=counted)
    assert ours == get_soft_overlong_punishment(limit, buffer)(counted)
    assert min(ours) == -1.0
    assert max(ours) == 0.0


def test_overlong_says_its_unit_and_refuses_a_buffer_beyond_the_limit():
    func = make_overlong_reward(512, 128)
    assert func.__name__ == "overlong_512_tokens_reward"
    assert "0 up to 384 tokens" in func.__doc__
    assert max_score_of(func) == 0.0
    with pytest.raises(TaskError, match="buffer_tokens = 513"):
        make_overlong_reward(512, 513)


@given(st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=5), st.integers(1, 4))
def test_repeated_tokens_cost_what_they_cost_in_trl(counted, ngram):
    from trl.rewards import get_repetition_penalty_reward

    ours = make_repetition_reward(ngram, unit="tokens")(completions=[""] * len(counted), completion_ids=counted)
    assert ours == pytest.approx(get_repetition_penalty_reward(ngram)(counted))


def test_trls_own_pass_through_the_suite_unchanged():
    from trl.rewards import get_repetition_penalty_reward, get_soft_overlong_punishment, think_format_reward

    functions = (get_soft_overlong_punishment(10, 5), get_repetition_penalty_reward(2), think_format_reward)
    texts, counted = ["<think>x</think>42", "42"], [list(range(8)), [5] * 12]
    suite = RewardSuite(Task("t", rows=ROWS, reward_funcs=functions), 2)
    assert suite.names == ["soft_overlong_punishment_reward", "repetition_penalty_reward", "think_format_reward"]
    scores = suite.score(ROWS * 2, texts, counted)
    chat = [[{"role": "assistant", "content": text}] for text in texts]
    expected = [functions[0](counted), functions[1](counted), functions[2](chat)]
    assert scores.T.tolist() == expected
    assert scores.tolist() == [[-0.6, 0.0, 1.0], [-1.0, pytest.approx(-10 / 11), 0.0]]


@pytest.mark.parametrize(
    ("answer", "text", "expected"),
    [
        ("40", "40", 1.0),
        ("40", "$40.00", 1.0),
        ("40", "30", 0.75),
        ("40", "50", 0.75),
        ("40", "80", 0.0),
        ("40", "-40", 0.0),
        ("40", "forty", 0.0),
        ("40", "", 0.0),
        ("-40", "-30", 0.75),
        ("0.5", "0", 0.5),  # below 1 the distance is measured against 1
        ("0", "0.25", 0.75),
        ("3/4", "1/4", 0.5),
        ("1,000", "900", 0.9),
        ("40", "9" * 5000, 0.0),
        ("9" * 50, "9" * 50, 1.0),
        ("9" * 50, "1", 0.0),
        ("40", "1e999999999", 0.0),
        ("40", "1/0", 0.0),
        ("40", "nan", 0.0),
        ("40", "inf", 0.0),
        ("Paris", "40", None),
        ("1/0", "40", None),
    ],
)
def test_closeness(answer, text, expected):
    [score] = closeness_reward(completions=[f"<answer>{text}</answer>"], answer=[answer])
    assert score == (expected if expected is None else pytest.approx(expected, abs=1e-12))


def test_closeness_in_other_places_and_on_other_scales():
    within_five = make_closeness_reward(5, maximum=2.0, where="number")
    assert within_five(completions=["I say 43", "I say 50", "I say nothing"], answer=[42] * 3) == [1.6, 0.0, 0.0]
    assert within_five.__name__ == "closeness_5_reward"
    assert max_score_of(within_five) == 2.0
    for scale in (0, -1.0, math.inf, math.nan):
        with pytest.raises(TaskError, match="scale"):
            make_closeness_reward(scale)


@given(st.text(), st.text(), st.floats(1e-9, 1e9))
def test_closeness_is_always_between_its_bounds(text, answer, scale):
    for func in (closeness_reward, make_closeness_reward(scale)):
        for right in (answer, "12"):
            [score] = func(completions=[f"<answer>{text}</answer>"], answer=[right])
            assert score is None or 0.0 <= score <= 1.0
