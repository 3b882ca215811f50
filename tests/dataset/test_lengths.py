"""Prompt lengths: counted through the template, covered by limits, filtered, and fitted into the context."""

from __future__ import annotations

import pytest

from workbench.dataset.lengths import (
    check_budget,
    covering_lengths,
    keep_within,
    prompt_lengths_tokens,
    prompt_text,
    stream_lengths,
)
from workbench.run.errors import DataError
from workbench.train.policy import load_tokenizer


def chat(text):
    return {"prompt": [{"role": "user", "content": text}]}


def test_lengths_are_those_of_the_rendered_text_however_they_are_batched():
    tokenizer = load_tokenizer()
    rows = [chat("What is 1 + 1?" + " and" * (number % 7)) for number in range(2300)]
    one_by_one = [
        len(tokenizer(prompt_text(row["prompt"], tokenizer), add_special_tokens=False)["input_ids"])
        for row in rows[:20]
    ]
    told = []
    lengths = prompt_lengths_tokens(rows, tokenizer, progress=told.append)
    assert list(lengths[:20]) == one_by_one
    assert len(lengths) == 2300
    assert told == [1000, 2000]
    assert [row for row, _ in stream_lengths(iter(rows), tokenizer)] == rows


def test_a_plain_prompt_gets_the_tokens_that_the_tokenizer_adds():
    tokenizer = load_tokenizer()
    [length] = prompt_lengths_tokens([{"prompt": "1 + 1 ="}], tokenizer)
    assert length == len(tokenizer("1 + 1 =")["input_ids"])


def test_no_rows_no_lengths():
    assert len(prompt_lengths_tokens([], load_tokenizer())) == 0


def test_covering_lengths_by_hand():
    assert covering_lengths(list(range(1, 101))) == {0.95: 95, 0.99: 99, 1.0: 100}
    assert covering_lengths([7]) == {0.95: 7, 0.99: 7, 1.0: 7}
    assert covering_lengths([]) == {}


def test_keep_within_returns_both_sides():
    a, b, c = chat("a"), chat("b"), chat("c")
    assert keep_within([a, b, c], [5, 6, 7], 6) == ([a, b], [c])


def test_a_limit_that_no_prompt_is_within_is_an_error():
    with pytest.raises(DataError, match=r"(?s)all 2 prompts are longer, the shortest has 5.*7 keeps all"):
        keep_within([chat("a"), chat("b")], [5, 7], 4)
    with pytest.raises(DataError) as caught:
        check_budget(48, 96, 100, shortest_prompt=40)
    assert "max_prompt_length" not in str(caught.value), "a limit of 4 tokens would help nobody"


@pytest.mark.parametrize(("longest", "fits"), [(159, True), (160, True), (161, False)])
def test_budget_at_its_limit(longest, fits):
    if fits:
        check_budget(longest, 96, 256)
    else:
        with pytest.raises(DataError, match=r"257 tokens\n.*max_seq_length = 256\n.*at least 257"):
            check_budget(longest, 96, 256)
