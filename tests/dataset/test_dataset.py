"""Rows in, checks, lengths, split: every row is kept or listed, and the same row falls on the same side for ever."""

from __future__ import annotations

import json
import random

import pytest

from workbench.dataset.checks import check_rows
from workbench.dataset.lengths import check_budget, covering_lengths, keep_within
from workbench.dataset.sources import load_rows, save_rows
from workbench.dataset.split import fingerprint, percentile, split_rows
from workbench.run.errors import DataError
from workbench.tiny import arithmetic
from workbench.tiny.task import SPLIT_SALT, questions


def row(text="What is 1 + 1?", **columns):
    return {"prompt": [{"role": "user", "content": text}], "answer": "2", **columns}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"answer": "2"}, "no prompt"),
        ({"prompt": "  ", "answer": "2"}, "prompt is empty"),
        ({"prompt": [], "answer": "2"}, "neither text nor a list"),
        ({"prompt": 7, "answer": "2"}, "neither text nor a list"),
        ({"prompt": [{"role": "user"}], "answer": "2"}, "not {role, content}"),
        ({"prompt": ["hello"], "answer": "2"}, "not {role, content}"),
        ({"prompt": [{"role": "robot", "content": "x"}], "answer": "2"}, "role is not one of"),
        ({"prompt": [{"role": "user", "content": " "}], "answer": "2"}, "prompt is empty"),
        ({"prompt": [{"role": "assistant", "content": "x"}], "answer": "2"}, "nothing is left to generate"),
        ({"prompt": "x"}, "no answer"),
        ({"prompt": "x", "answer": " "}, "no answer"),
        ({"prompt": "x", "answer": "2", "completions": 1}, "reserved by TRL"),
        ("not a dict", "row is not a dict"),
    ],
)
def test_each_fault_has_its_reason(bad, reason):
    report = check_rows([bad])
    assert report.kept == []
    assert reason in report.left_out[0][1]


def test_every_row_is_kept_or_listed():
    rows = [row(), row("b"), row(), {"prompt": "text", "answer": "2"}, row("c", answer=None), row("held out")]
    report = check_rows(rows, other=[row("held out")])
    assert report.read == 6 == len(report.kept) + len(report.left_out)
    assert [number for number, _ in report.left_out] == [2, 3, 4, 5]
    assert "2 kept, 4 left out" in str(report)


def test_a_task_without_answers_needs_none():
    assert len(check_rows([{"prompt": "x"}], answer_column=None).kept) == 1


def test_rows_round_trip(tmp_path):
    rows = [row("é漢🙂"), row("b", extra={"nested": [1, None]})]
    assert load_rows(save_rows(rows, tmp_path / "deep" / "rows.jsonl")) == rows


def test_a_byte_order_mark_and_blank_lines_are_no_rows(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(row()).encode() + b"\r\n\r\n")
    assert load_rows(file) == [row()]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.jsonl", '{"prompt": "a"}\n{"pro', "line 2"),
        ("rows.jsonl", "[1, 2]\n", "line 1: a list"),
        ("rows.csv", "prompt,answer\n", "a .csv file"),
    ],
)
def test_bad_files_name_the_line_or_the_kind(tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=said):
        load_rows(tmp_path / name)


def test_a_missing_file(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        load_rows(tmp_path / "none.jsonl")


def test_the_split_does_not_depend_on_order_and_keeps_keys_together():
    rows = [row(str(index), pair=str(index % 50)) for index in range(500)]
    train, held_out = split_rows(rows, 20, key="pair")
    shuffled = rows.copy()
    random.Random(0).shuffle(shuffled)
    again, _ = split_rows(shuffled, 20, key="pair")
    assert sorted(fingerprint([r]) for r in train) == sorted(fingerprint([r]) for r in again)
    assert not {r["pair"] for r in train} & {r["pair"] for r in held_out}
    assert len(train) + len(held_out) == 500


def test_the_hash_is_the_same_on_every_machine():
    # sha256("a") begins ca978112, which is 3398926610; its last two digits are 10.
    assert percentile("a") == 10


def test_notebook_01_splits_as_the_embedded_policy_was_trained():
    rows = [{"prompt": arithmetic.to_messages(r["question"]), **r} for r in questions(1000)]
    train, held_out = split_rows(rows, arithmetic.HELD_OUT_PERCENT, key="pair", salt=SPLIT_SALT)
    of = {problem.question: arithmetic.is_held_out(problem) for problem in arithmetic.all_problems()}
    assert not any(of[r["question"]] for r in train)
    assert all(of[r["question"]] for r in held_out)
    assert len(held_out) == 100


def test_fingerprint_sees_every_change():
    assert fingerprint([row()]) == fingerprint([dict(reversed(row().items()))])
    assert fingerprint([row()]) != fingerprint([row(), row()])
    assert fingerprint([row()]) != fingerprint([row(answer="3")])


def test_covering_lengths_by_hand():
    assert covering_lengths(list(range(1, 101))) == {0.95: 95, 0.99: 99, 1.0: 100}
    assert covering_lengths([7]) == {0.95: 7, 0.99: 7, 1.0: 7}
    assert covering_lengths([]) == {}


def test_keep_within():
    assert keep_within([row("a"), row("b"), row("c")], [5, 6, 7], 6) == ([row("a"), row("b")], 1)


@pytest.mark.parametrize(("longest", "fits"), [(159, True), (160, True), (161, False)])
def test_budget_at_its_limit(longest, fits):
    if fits:
        check_budget(longest, 96, 256)
    else:
        with pytest.raises(DataError, match=r"257 tokens\n.*max_seq_length = 256\n.*at least 257"):
            check_budget(longest, 96, 256)
