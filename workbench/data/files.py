"""Readers of data files: each returns (a function whose passes yield dicts, or `Unreadable` in
their place; notes).
"""

from __future__ import annotations

import ast
import codecs
import contextlib
import csv
import itertools
import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from workbench.base.errors import DataError
from workbench.base.workspace import shown
from workbench.data import reasons
from workbench.data.answer_column import is_number
from workbench.data.reasons import Reason
from workbench.task import Row


class Unreadable(NamedTuple):
    """A row that could not be read: where it stands, and why."""

    where: str
    reason: Reason


Opened = tuple[Callable[[], Iterator[Any]], list[str]]


def _encoding(path: Path) -> tuple[str, list[str]]:
    # (the encoding that the byte order mark says, else UTF-8; a note).
    with path.open("rb") as data:
        start = data.read(3)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16", ["read as UTF-16, as its byte order mark says"]
    marked = start == codecs.BOM_UTF8
    note = "a byte order mark at the start of the file was left out"
    return "utf-8-sig", [note] if marked else []


def json_lines(path: Path) -> Opened:
    """One JSON object per line, UTF-8 (with or without a byte order mark) or UTF-16."""
    encoding, notes = _encoding(path)
    decode = json.JSONDecoder().decode
    # Bytes that are not UTF-8 come as surrogates, which no line of UTF-8 holds.
    errors = "replace" if encoding == "utf-16" else "surrogateescape"

    def rows() -> Iterator[Any]:
        with path.open(encoding=encoding, errors=errors, newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    line.encode()
                    yield decode(line)
                except RecursionError:
                    yield Unreadable(f"line {number}", reasons.TOO_DEEP)
                except ValueError as error:
                    reason = reasons.NOT_JSON
                    if not line.endswith("\n"):
                        reason = reasons.TORN
                    elif isinstance(error, UnicodeError):
                        reason = reasons.NOT_UTF8
                    yield Unreadable(f"line {number}", reason)

    return rows, notes


def json_file(path: Path, split: str | None = None) -> Opened:
    """One JSON document, read whole: a list of objects, an object of such lists (of which `split`
    names one), or of columns.

    DataError: it is not JSON, of another shape, or has no such split.
    """
    name = shown(path)
    try:
        document = json.loads(path.read_bytes().removeprefix(codecs.BOM_UTF8))
    except (ValueError, RecursionError) as error:
        hint = "; it looks like JSON lines: call it .jsonl" if "Extra data" in str(error) else ""
        raise DataError(
            f"{name}: {error}",
            rule="a .json file is one JSON document",
            remedy=f"correct it at that place{hint}",
        ) from None
    if isinstance(document, list) and split is None:
        return lambda: iter(document), []
    members = document if isinstance(document, dict) else {}
    of_objects = [
        key
        for key, value in members.items()
        if isinstance(value, list) and value and isinstance(value[0], dict)
    ]
    if of_objects:
        chosen = choose("split", name, split, of_objects, "train")
        note = f"the rows are the list {chosen!r} of {', '.join(of_objects)}"
        return lambda: iter(members[chosen]), [note]
    if split is not None:
        raise no_splits(name, split)
    return by_row(document, name), [f"the document holds columns: {', '.join(members)}"]


def by_row(columns: Any, name: str) -> Callable[[], Iterator[Row]]:
    """What goes through the rows of columns of one length; DataError if it is something else."""
    sizes = {}
    if isinstance(columns, dict):
        sizes = {
            key: len(values) if isinstance(values, list | tuple) else None
            for key, values in columns.items()
        }
    if None in sizes.values() or len({*sizes.values()}) != 1:
        value = f"{name}: a {type(columns).__name__} with"
        value += ", ".join(f" {key!r} ({size or 'no list'})" for key, size in sizes.items())
        raise DataError(
            value,
            rule="rows are a list of objects, or columns: lists of one length",
            remedy='write [{"prompt": ..., "answer": ...}, ...]',
        )
    return lambda: zipped(columns)


def zipped(columns: Mapping[str, Sequence[object]]) -> Iterator[Row]:
    """The rows of columns of one length."""
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def choose(what: str, name: str, wanted: str | None, there: Sequence[str], usual: str) -> str:
    """The requested split or subset, else the usual one, else the only one; DataError if it is
    missing.
    """
    chosen = wanted or (usual if usual in there else there[0] if len(there) == 1 else None)
    if chosen is not None and chosen in there:
        return chosen
    value = f"no {what} {wanted!r}" if wanted else f"{len(there)} {what}s"
    raise DataError(
        f"{name}: {value}",
        rule=f"rows come from one {what}",
        remedy=f"choose with {what} (--{what}): {', '.join(there[:12])}",
    )


def no_splits(name: str, split: str) -> DataError:
    """The error for a split requested of something that has none."""
    return DataError(
        f"{name}: split {split!r}",
        rule="only hub datasets, folders, DatasetDicts and JSON objects of lists have splits",
        remedy="leave split out, or name the file that holds that split",
    )


def csv_file(path: Path) -> Opened:
    """Comma-, semicolon- or tab-separated text; DataError where a header line is missing or names
    two columns alike.
    """
    encoding, notes = _encoding(path)
    if encoding != "utf-16" and not _is_utf8(path):
        # the only other encoding that spreadsheets commonly write
        note = "the file is not UTF-8: read as Windows-1252, as spreadsheets write it"
        encoding, notes = "cp1252", [f"{note}; look at its accents"]
    csv.field_size_limit(64 * 2**20)  # characters; Python's csv stops at 128 Ki
    open_text = partial(path.open, encoding=encoding, errors="replace", newline="")
    with open_text() as text:
        first = next(filter(str.strip, text), "")
    delimiter = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=first.count)
    if delimiter != ",":
        notes.append(f"columns are separated by {delimiter!r}")

    def records() -> Iterator[tuple[int, list[str] | Reason]]:
        with open_text() as text:
            reader = csv.reader(text, delimiter=delimiter, strict=True)
            while True:
                began = reader.line_num + 1
                try:
                    values = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    unclosed = "end of data" in str(error)
                    yield began, reasons.OPEN_QUOTE if unclosed else Reason(f"not CSV ({error})")
                    continue
                if any(values) or len(values) > 1:
                    yield began, values

    _, header = next(records(), (0, Reason("empty")))
    fault = header if isinstance(header, str) else ""
    names = [name.strip() or f"unnamed_{n}" for n, name in enumerate([] if fault else header)]
    if unnamed := [name for name in names if name.lower().startswith("unnamed")]:
        notes.append(f"column {unnamed[0]!r} has no name: pandas writes its index so")
    for name in names:
        if names.count(name) > 1:
            fault = f"two columns are called {name!r}"
    if fault:
        raise DataError(
            f"{shown(path)}: {fault}",
            rule="the first line names the columns, each once",
            remedy="correct the header line",
        )

    first = [
        cells
        for _, cells in itertools.islice(records(), 1, 101)
        if isinstance(cells, list) and len(cells) == len(names)
    ]
    meant: dict[str, Callable[[str], Any]] = {}
    numbers: list[str] = []
    for name, column in zip(names, zip(*first, strict=True), strict=False):
        cells = [cell for cell in column if cell]
        for kind, own in _MEANT.items():
            if cells and all(own(cell) != cell for cell in cells):
                meant[name] = own
                notes.append(f"column {name!r}: {kind}, as {own(cells[0])!r:.40}")
        if cells and name not in meant and all(map(is_number, cells)):
            numbers.append(repr(name))
    if numbers:
        notes.append(f"numbers stay text, as CSV has them: {', '.join(numbers)}")

    def rows() -> Iterator[Any]:
        for began, values in itertools.islice(records(), 1, None):
            if isinstance(values, str):
                yield Unreadable(f"line {began}", values)
            elif len(values) != len(names):
                fewer = len(values) < len(names)
                reason = reasons.FEWER_FIELDS if fewer else reasons.MORE_FIELDS
                yield Unreadable(f"line {began}", reason)
            else:
                # CSV has no other way to write that there is no value.
                row = dict(zip(names, (value or None for value in values), strict=True))
                yield row | {name: own(cell) for name, own in meant.items() if (cell := row[name])}

    return rows, notes


def _as_object(cell: str) -> Any:
    # What Python's repr wrote, which is no JSON; else the text itself.
    if cell[0] in "[{" and "'" in cell:
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return ast.literal_eval(cell)
    return cell


# What pandas writes into a CSV for something else.
_MEANT: dict[str, Callable[[str], Any]] = {
    "whole numbers written with .0, where a cell is empty, are read without": partial(
        re.sub, r"^(-?\d+)\.0$", r"\1"
    ),
    "lists and objects written as text are read as such": _as_object,
}


def _is_utf8(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as text:
            deque(iter(partial(text.read, 2**20), ""), maxlen=0)
    except UnicodeDecodeError:
        return False
    return True


def parquet_file(path: Path) -> Opened:
    """A Parquet file, in batches; DataError if it is not one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        pq.read_schema(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(
            f"{shown(path)}: {str(error).splitlines()[0]}",
            rule="a .parquet file is a whole Parquet file",
            remedy="write it again; a file that was cut off cannot be read",
        ) from None

    def rows() -> Iterator[Any]:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1000):
                yield from batch.to_pylist()

    return rows, []
