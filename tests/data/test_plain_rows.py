"""Rows of a task as people have them: made plain once, or refused with row, column and remedy."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from workbench.base.errors import TaskError
from workbench.task import Task, fingerprint

CHAT = [{"role": "user", "content": "q"}]


def a_reward(completions, **kwargs):
    return [0.0] * len(completions)


def rows_of(*rows, **parts):
    return Task("t", rows, [a_reward], **parts)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (np.int64(4), 4),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (np.array([1.5, 2.0]), [1.5, 2.0]),
        (np.array([{"a": np.array([1])}], dtype=object), [{"a": [1]}]),
        ((1, (2,)), [1, [2]]),
        ({1: {"b": float("nan")}}, {"1": {"b": None}}),
        (float("nan"), None),
        (pd.NA, None),
        (pd.NaT, None),
        (np.datetime64("NaT"), None),
        (pd.Timestamp("2026-01-02"), "2026-01-02 00:00:00"),
        (np.datetime64("2026-01-02T00:00:00.000000000"), "2026-01-02 00:00:00"),
        (timedelta(days=1), "1 day, 0:00:00"),
        (Decimal("1.50"), "1.50"),
    ],
)
def test_a_value_becomes_what_json_has(given, plain):
    [row] = rows_of({"prompt": "q", "value": given}).rows
    assert row["value"] == plain
    assert type(row["value"]) is type(plain)
    assert json.loads(json.dumps(row)) == row


def test_what_was_lost_or_rewritten_is_counted():
    task = rows_of({"prompt": "q", "made": pd.Timestamp("2026-01-02"), "note": None}, {"prompt": "r", "note": float("nan")})
    assert task.made_plain == {"column 'made': Timestamp written as text": 1, "column 'note': NaN read as None": 1}


@pytest.mark.parametrize("value", [{1}, b"x", object(), print])
def test_what_json_cannot_hold_is_refused_by_row_and_column(value):
    with pytest.raises(TaskError, match="rows\\[1\\], column 'odd': a ") as caught:
        rows_of({"prompt": "q"}, {"prompt": "r", "odd": [value]})
    assert type(value).__name__ in str(caught.value)
    with pytest.raises(TaskError, match="held_out\\[0\\], column 'odd'"):
        rows_of({"prompt": "q"}, held_out=[{"prompt": "r", "odd": value}])


@pytest.mark.parametrize("prompt", [5, None, [], [1, 2], ["hello"], ["my role"], [{"from": "human", "value": "q"}], {"a": 1}])
def test_a_prompt_is_text_or_messages(prompt):
    with pytest.raises(TaskError, match="rows\\[0\\]: prompt = ") as caught:
        rows_of({"prompt": prompt})
    assert "wb.check(rows)" in caught.value.remedy


@pytest.mark.parametrize("row", [5, None, ["a"], "prompt"])
def test_a_row_is_an_object(row):
    with pytest.raises(TaskError, match="rows\\[0\\]: a "):
        rows_of(row)


def test_a_frame_of_chats_read_from_parquet_is_the_same_rows(tmp_path):
    listed = [{"prompt": [{"role": "user", "content": f"q{n}"}], "answer": n, "tags": ["a", "b"]} for n in range(3)]
    pd.DataFrame(listed).to_parquet(tmp_path / "a.parquet")
    frame = pd.read_parquet(tmp_path / "a.parquet")
    of_frame, of_list = Task("t", frame, [a_reward]), rows_of(*listed)
    assert of_frame.rows == Task("t", frame.to_dict("records"), [a_reward]).rows == of_list.rows == listed
    assert of_frame.with_ids(of_frame.rows) == of_list.with_ids(listed)
    assert fingerprint(of_frame.rows) == fingerprint(listed)


def test_a_reserved_column_of_a_later_row_is_refused_too():
    with pytest.raises(TaskError, match="have a column 'completions'"):
        rows_of({"prompt": "q"}, {"prompt": "r", "completions": 1})


def test_the_recorder_takes_arrays_that_a_trainer_passes_on():
    from workbench.run.rollouts import _each_once

    arrays = [np.array([1, 2]), np.array([1, 2]), np.array([3, 4])]
    assert _each_once(list(zip(arrays, strict=True)), lambda row: row[0].tolist()) == [[1, 2], [1, 2], [3, 4]]
