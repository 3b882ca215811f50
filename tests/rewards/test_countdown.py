"""Countdown's parser: exact arithmetic, linear time, nothing executed; and the rewards that rest on it."""

from __future__ import annotations

import re
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.rewards.verifiers import countdown_reward, evaluate_expression, numbers_used_reward, solves

expressions = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda parts: f"({parts[0]} {parts[1]} {parts[2]})")
        | st.tuples(inner, st.sampled_from("+-*/"), inner).map(" ".join)
    ),
    max_leaves=8,
)


def reference(text):
    """The same by Python itself, in fractions."""
    return eval(re.sub(r"\d+", r"Fraction(\g<0>)", text), {"Fraction": Fraction})


@given(expressions)
def test_it_reads_what_python_reads(text):
    if len(text) > 200:
        return
    try:
        expected = reference(text)
    except ZeroDivisionError:
        assert evaluate_expression(text) is None
    else:
        assert evaluate_expression(text)[0] == expected


@pytest.mark.parametrize(
    "text",
    ["", "+", "1 +", "* 2", "(1 + 2", "1 + 2)", "()", "1 2", "2 ** 3", "2 // 3", "-3", "1.5", "x", "1 + x", "1 / 0",
     "__import__('os')", "(" * 500 + "1" + ")" * 500, "1" * 300, "9" * 10, "1 + + 2", "٤ + 2"],
)  # fmt: skip
def test_what_is_no_expression(text):
    assert evaluate_expression(text) is None


@pytest.mark.timing
def test_a_hostile_text_costs_nothing():
    started = time.perf_counter()
    for text in ("(" * 1_000_000, "1+" * 1_000_000, "*".join(["999999999"] * 20)):
        evaluate_expression(text)
    assert time.perf_counter() - started < 0.2


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("(55 - 7) + 36 - 19", True),
        ("55 + 36 − 19 − 7", True),
        ("55 + 36 - 19 - 7 = 65", True),
        ("55 + 36 - 19 - 7 = 66", False),
        ("65", False),
        ("55 + 36 - 19", False),
        ("55 + 36 - 19 - 7 + 7 - 7", False),
        ("(55 + 36 - 19 - 7) * 1", False),
    ],
)
def test_each_number_once_and_the_target(answer, right):
    assert solves(answer, [19, 36, 55, 7], 65) is right


def test_the_rewards_by_hand_for_chat_and_text():
    texts = [
        "<answer>\n2 * 3 + 4\n</answer>",
        "<answer>2 + 3 + 4</answer>",
        "2 * 3 + 4",
        "<answer>2*3+4</answer><answer>1</answer>",
    ]
    columns = {"numbers": [[2, 3, 4]] * 4, "target": [10] * 4}
    chat = [[{"role": "assistant", "content": text}] for text in texts]
    for completions in (texts, chat):
        assert countdown_reward(completions=completions, prompts=[""] * 4, **columns) == [2.0, 0.0, 0.0, 0.0]
        assert numbers_used_reward(completions=completions, **columns) == [0.5, 0.5, 0.0, 0.0]
