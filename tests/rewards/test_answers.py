"""Parsers: the right block, never an exception, and time linear in the text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.rewards.answers import blocks, completion_text, extract_answer, same_answer
from workbench.rewards.library import keeps_strict_format
from workbench.tiny.task import REWARD_FUNCS

PIECES = [
    "<answer>",
    "</answer>",
    "<reasoning>",
    "</reasoning>",
    "<",
    ">",
    "/",
    "\n",
    " ",
    "42",
    "x",
    "é",
    "\x00",
    "\ud800",
]


def test_blocks_in_order():
    assert blocks("a<answer>1</answer>b<answer></answer>c<answer>3", "answer") == ["1", ""]


def test_completion_text_of_a_message_without_content():
    assert completion_text([{"role": "assistant", "content": None}]) == ""


@pytest.mark.parametrize(
    "text", ["", "42", "<answer></answer>", "<answer>1<answer>2</answer>", "<answer>1</answer>" * 2]
)
def test_no_answer_in(text):
    assert extract_answer(text) is None


@pytest.mark.parametrize("hostile", ["9^{9^{9^9}}", "1e999999999", "9" * 100_000, "NaN", "inf", "٤٢"])
def test_hostile_numbers_are_only_text(hostile):
    started = time.perf_counter()
    assert same_answer(hostile, "42") is False
    assert time.perf_counter() - started < 0.1


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_any_text_gets_one_finite_score(text):
    for func in REWARD_FUNCS:
        [score] = func(prompts=[""], completions=[text], answer=["42"])
        assert 0.0 <= score <= 2.0


@pytest.mark.parametrize(
    "pattern", ["<reasoning>", "<answer>1</answer>", "<reasoning>x</reasoning>\n", "x\n", "<answer>"]
)
def test_time_is_linear(pattern):
    def seconds(copies: int) -> float:
        text = pattern * copies
        best = float("inf")
        for _ in range(5):
            started = time.perf_counter()
            keeps_strict_format(text)
            for func in REWARD_FUNCS:
                func(prompts=[""], completions=[text], answer=["42"])
            best = min(best, time.perf_counter() - started)
        return best

    seconds(1000)
    assert seconds(40_000) / seconds(10_000) < 12  # 4 if linear, 16 if quadratic
