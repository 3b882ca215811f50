"""Sources: every kind of file and object gives the same rows, and what cannot be read stands in its place."""

from __future__ import annotations

import json

import pytest

from workbench.base.errors import DataError
from workbench.data.sources import Unreadable, load_rows, open_source, save_rows

BOM = b"\xef\xbb\xbf"
ROWS = [{"question": "What is 1 + 1?", "answer": "2"}, {"question": "Où est l'été, 漢🙂?", "answer": 'ici, "là"'}]


def write(path, data: str | bytes):
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def as_csv(rows, separator=",", end="\n") -> str:
    quoted = [['"' + str(value).replace('"', '""') + '"' for value in row.values()] for row in rows]
    return end.join([separator.join(rows[0]), *(separator.join(values) for values in quoted)]) + end


LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


def parquet(path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(ROWS), path)
    return path


MADE = {
    "json lines": lambda folder: write(folder / "a.jsonl", LINES),
    "json lines, BOM, CRLF, blank": lambda f: write(f / "a.jsonl", BOM + LINES.replace("\n", "\r\n\r\n").encode()),
    "json lines, no last newline": lambda folder: write(folder / "a.ndjson", LINES.rstrip()),
    "json list": lambda folder: write(folder / "a.json", json.dumps(ROWS)),
    "json object of one list": lambda folder: write(folder / "a.json", json.dumps({"version": 1, "data": ROWS})),
    "json columns": lambda folder: write(folder / "a.json", json.dumps({k: [r[k] for r in ROWS] for k in ROWS[0]})),
    "csv": lambda folder: write(folder / "a.csv", as_csv(ROWS)),
    "csv, BOM, CRLF": lambda folder: write(folder / "a.csv", BOM + as_csv(ROWS, end="\r\n").encode()),
    "csv, semicolons": lambda folder: write(folder / "a.csv", as_csv(ROWS, ";")),
    "json lines, UTF-16": lambda folder: write(folder / "a.jsonl", LINES.encode("utf-16")),
    "csv, blank lines first": lambda folder: write(folder / "a.csv", "\n\n" + as_csv(ROWS)),
    "csv, UTF-16": lambda folder: write(folder / "a.csv", as_csv(ROWS).encode("utf-16")),
    "tsv": lambda folder: write(folder / "a.tsv", as_csv(ROWS, "\t")),
    "parquet": lambda folder: parquet(folder / "a.parquet"),
    "python, bound": lambda folder: write(folder / "a.py", f"dataset = {ROWS!r}\n"),
    "python, a function": lambda folder: write(folder / "a.py", f"def get_dataset():\n    return {ROWS!r}\n"),
}  # fmt: skip


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_every_kind_of_file_gives_the_same_rows(home, make):
    source = open_source(make(home))
    assert list(source) == ROWS
    assert list(source) == ROWS, "a source can be gone through twice"


def objects():
    import datasets
    import pandas

    columns = {key: [row[key] for row in ROWS] for key in ROWS[0]}
    return {
        "list": ROWS,
        "generator": (row for row in ROWS),
        "columns": columns,
        "frame": pandas.DataFrame(ROWS),
        "Dataset": datasets.Dataset.from_list(ROWS),
        "DatasetDict": datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}),
        "Source": open_source(ROWS),
    }


@pytest.mark.parametrize("kind", ["list", "generator", "columns", "frame", "Dataset", "DatasetDict", "Source"])
def test_every_kind_of_object_gives_the_same_rows(kind):
    assert list(open_source(objects()[kind])) == ROWS


def test_a_missing_value_of_a_frame_is_none():
    import pandas

    frame = pandas.DataFrame({"question": ["a", None], "answer": [1.0, float("nan")]})
    assert list(open_source(frame))[1] == {"question": None, "answer": None}


def test_a_folder_in_the_hubs_layout(hub_folder):
    source = open_source(hub_folder)
    assert len(list(source)) == 280
    assert source.notes == ["subset 'main' of main, socratic", "split 'train' of train, test"]
    assert len(list(open_source(hub_folder, subset="socratic", split="test"))) == 18


@pytest.mark.parametrize(
    ("options", "said"),
    [({"split": "dev"}, "no split 'dev'.*train, test"), ({"subset": "maine"}, "(?s)maine.*main.*socratic")],
)
def test_a_split_or_subset_that_is_not_there(hub_folder, options, said):
    with pytest.raises(DataError, match=f"(?s){said}"):
        open_source(hub_folder, **options)


def test_a_folder_that_has_changed_is_read_anew(home, hub_folder):
    import shutil

    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = shutil.copytree(hub_folder, home / "gsm8k")
    assert len(list(open_source(folder, split="test"))) == 18
    changed = pa.Table.from_pylist([{"question": "new?", "answer": "#### 1"}])
    pq.write_table(changed, folder / "main" / "test-00000-of-00001.parquet")
    assert list(open_source(folder, split="test")) == [{"question": "new?", "answer": "#### 1"}]


def test_a_saved_dataset_is_read(home):
    import datasets

    datasets.Dataset.from_list(ROWS).save_to_disk(home / "saved")
    assert list(open_source(home / "saved")) == ROWS


def test_a_limit():
    assert list(open_source([{"n": n} for n in range(10)], limit=3)) == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_shipped_sources_are_the_same_for_the_same_seed():
    for name in ("arithmetic", "arithmetic_harder", "countdown", "json"):
        rows = list(open_source(name, limit=30, seed=1))
        assert len(rows) == 30
        assert rows == list(open_source(name, limit=30, seed=1))
        assert rows != list(open_source(name, limit=30, seed=2))


@pytest.mark.parametrize(
    ("name", "content", "places"),
    [
        ("a.jsonl", b'{"a": 1}\nnot json\n{"a": 2}\n', {1: "line is not JSON"}),
        ("a.jsonl", b'{"a": 1}\n{"a": ', {1: "last line is half-written"}),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', {1: "line is not UTF-8"}),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xc3', {1: "last line is half-written"}),
        ("a.jsonl", b'{"a": 1}\n' + b"[" * 100_000 + b"\n", {1: "line is nested too deeply"}),
        ("a.csv", b"a,b\n1,2\n1\n1,2,3\n3,4\n", {1: "row has fewer fields", 2: "row has more fields"}),
        ("a.csv", b'a,b\n1,2\n3,"never closed\n5,6\n', {1: "a quote is opened and never closed"}),
    ],
    ids=["json", "torn", "bytes", "torn letter", "deep", "fields", "quote"],
)
def test_what_cannot_be_read_stands_in_its_place(home, name, content, places):
    rows = list(open_source(write(home / name, content)))
    found = {place: row.reason for place, row in enumerate(rows) if isinstance(row, Unreadable)}
    assert found.keys() == places.keys()
    assert all(found[place].startswith(reason) for place, reason in places.items())
    assert all(row.where.startswith("line ") for row in rows if isinstance(row, Unreadable))


def test_a_spreadsheet_in_windows_1252_is_read_and_said(home):
    source = open_source(write(home / "a.csv", "question,answer\nété,1\n".encode("cp1252")))
    assert list(source) == [{"question": "été", "answer": "1"}]
    assert "Windows-1252" in source.notes[0]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", "[1, 2", "a.json: .*correct it at that place"),
        ("a.json", '{"a": 1}\n{"a": 2}', "looks like JSON lines"),
        ("a.json", '{"a": 1}', "a dict with 'a'.*a list of objects"),
        ("a.csv", "", "a.csv: empty"),
        ("a.csv", "a,a\n1,2\n", "two columns are called 'a'"),
        ("a.parquet", "PAR1", "a whole Parquet file"),
        ("a.docx", "x", "a .docx file"),
        ("a.py", "x = 1", "binds none of get_dataset, dataset, train_dataset, rows"),
        ("a.py", "1 / 0", r"ZeroDivisionError: division by zero \(a.py:1: 1 / 0\)"),
    ],
)
def test_files_that_are_none_are_errors_with_a_remedy(home, name, content, said):
    with pytest.raises(DataError, match=f"(?s){said}"):
        open_source(write(home / name, content))


@pytest.mark.parametrize("name", ["none.jsonl", "nowhere", "./x/y", "a/b/c"])
def test_a_missing_file(home, name, monkeypatch):
    (home / "here").mkdir()
    monkeypatch.chdir(home / "here")
    with pytest.raises(DataError, match=r"(?s)no such file.*looked in .* and in "):
        open_source(name)


def test_a_split_that_cannot_be_honoured_is_refused(home):
    write(home / "a.jsonl", LINES)
    for source in ("a.jsonl", ROWS, "arithmetic", {"question": ["a"]}):
        with pytest.raises(DataError, match="split 'test'"):
            open_source(source, split="test")


def test_a_json_object_of_splits(home):
    write(home / "a.json", json.dumps({"train": ROWS, "test": ROWS[:1]}))
    assert list(open_source("a.json")) == ROWS
    assert list(open_source("a.json", split="test")) == ROWS[:1]
    with pytest.raises(DataError, match="(?s)no split 'dev'.*train, test"):
        open_source("a.json", split="dev")


def test_a_file_is_found_from_the_current_folder_too(home, monkeypatch):
    (home / "here").mkdir()
    write(home / "here" / "a.jsonl", LINES)
    monkeypatch.chdir(home / "here")
    assert list(open_source("a.jsonl")) == ROWS


def test_a_folder_with_a_torn_file_names_the_way_to_find_the_line(home):
    (home / "data").mkdir()
    write(home / "data" / "train.jsonl", LINES + '{"question": "ha')
    with pytest.raises(DataError, match=r"(?s)workbench check data/train.jsonl"):
        open_source("data")


def test_a_script_that_exits_or_whose_rows_fail_is_explained(home):
    write(home / "a.py", "import sys\nsys.exit(3)")
    with pytest.raises(DataError, match="SystemExit: 3"):
        open_source("a.py")
    write(home / "b.py", "def get_dataset():\n    yield {}['boom']\n")
    with pytest.raises(DataError, match="boom"):
        open_source("b.py")


@pytest.mark.parametrize("thing", [7, b"bytes", {"a": 1}, {"a": [1], "b": [1, 2]}, {}])
def test_objects_that_are_no_rows(thing):
    with pytest.raises(DataError):
        open_source(thing)


@pytest.mark.parametrize(
    ("name", "said"), [("no-such/dataset", "'no-such/dataset' is not on this machine"), ("gsm8k", "'openai/gsm8k'")]
)
def test_without_a_network_a_hub_name_says_so(home, monkeypatch, name, said):
    # Whatever the machine: the hub's address is one that nobody answers at.
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DataError, match=f"(?s){said}.*give the path of a local file or folder"):
        open_source(name)


def test_rows_round_trip_and_a_bad_line_is_named(home):
    assert load_rows(save_rows(ROWS, "deep/rows.jsonl")) == ROWS
    with (home / "deep" / "rows.jsonl").open("a") as lines:
        lines.write('{"prompt": "a"')
    with pytest.raises(DataError, match=r"(?s)rows.jsonl, line 3: last line is half-written.*workbench check"):
        load_rows("deep/rows.jsonl")


def test_a_folder_says_which_of_its_files_it_is_read_from(home):
    folder = home / "own"
    folder.mkdir()
    for name, text in (
        ("train.jsonl", '{"prompt": "a"}\n'),
        ("chat.jsonl", '{"messages": []}\n'),
        ("units.csv", "q\n1\n"),
    ):
        (folder / name).write_text(text)
    source = open_source(folder)
    assert [row["prompt"] for row in source] == ["a"]
    assert source.notes == ["read from train.jsonl; not from chat.jsonl, units.csv: to read one of those, name it"]
    (folder / "chat.jsonl").unlink()
    (folder / "units.csv").unlink()
    assert open_source(folder).notes == ["read from train.jsonl"]
