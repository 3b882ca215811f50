"""JSON lines: appended whole, read whole, followed while they are written; and files that are replaced whole."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from workbench.base.tail import Tail
from workbench.base.workspace import append_line, read_lines, replace_file, to_json


def test_a_torn_line_is_skipped_with_a_warning_and_the_next_is_kept(tmp_path):
    file = tmp_path / "metrics.jsonl"
    append_line(file, {"step": 1})
    with file.open("ab") as lines:
        lines.write(b'{"step": 2, "rew')
    append_line(file, {"step": 3})
    with pytest.warns(UserWarning, match="line 2: torn, skipped"):
        assert [row["step"] for row in read_lines(file)] == [1, 3]


def test_the_last_line_is_torn_only_if_nobody_is_writing_it(tmp_path):
    file = tmp_path / "metrics.jsonl"
    append_line(file, {"step": 1})
    with file.open("ab") as lines:
        lines.write(b'{"step": 2, "rew')
    assert [row["step"] for row in read_lines(file, being_written=True)] == [1]
    with pytest.warns(UserWarning, match="line 2: torn, skipped"):
        assert [row["step"] for row in read_lines(file)] == [1]


def test_json_is_made_of_what_json_cannot_say():
    import numpy as np

    value = {"a": np.float32(0.5), "b": float("-inf"), 3: (1, None), "p": object}
    assert json.loads(json.dumps(to_json(value), allow_nan=False)) == {
        "a": 0.5,
        "b": "-inf",
        "3": [1, None],
        "p": str(object),
    }


def test_lines_are_read_once_and_a_line_in_flight_is_waited_for(tmp_path):
    file = tmp_path / "lines.jsonl"
    lines = Tail(file)
    assert (lines.take(), lines.rewritten) == ([], False)
    file.write_bytes(b'{"a": 1}\n{"a"')
    assert (lines.take(), lines.rewritten) == ([{"a": 1}], False)
    with file.open("ab") as more:
        more.write(b': 2}\nno json\n[3]\n{"a": 4}\n')
    assert (lines.take(), lines.rewritten) == ([{"a": 2}, {"a": 4}], False)
    assert (lines.take(), lines.rewritten) == ([], False)


def test_a_file_that_was_written_anew_is_read_anew(tmp_path):
    file = tmp_path / "lines.jsonl"
    file.write_text('{"a": 1}\n{"a": 2}\n')
    lines = Tail(file)
    lines.take()
    (tmp_path / "other").write_text('{"a": 1}\n{"a": 3}\n{"a": 4}\n')
    (tmp_path / "other").replace(file)
    assert (lines.take(), lines.rewritten) == ([{"a": 1}, {"a": 3}, {"a": 4}], True)


def test_records_are_json_by_their_fields():
    import numpy as np

    @dataclass
    class Record:
        place: tuple
        array: object

    class Pair(NamedTuple):
        name: str
        value: float

    found = to_json(Record((Pair("a", float("nan")),), np.array([[1, 2]])))
    assert found == {"place": [{"name": "a", "value": None}], "array": [[1, 2]]}
    assert to_json(Path("a") / "b") == os.path.join("a", "b")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    file = tmp_path / "new" / "a.txt"
    with replace_file(file) as beside:
        beside.write_text("old")
    with pytest.raises(ZeroDivisionError), replace_file(file) as beside:
        beside.write_text(str(1 / 0))
    assert file.read_text() == "old"
    assert os.listdir(file.parent) == ["a.txt"]
