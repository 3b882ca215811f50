"""Readers of data files: each returns (a function that begins a pass over the rows, notes).

A pass yields dicts, and `Unread` for what stands where a row should and is none. Blank lines are no rows.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from workbench.run.errors import DataError
from workbench.run.workspace import shown

BOM = b"\xef\xbb\xbf"
LONGEST_FIELD = 64 * 2**20  # bytes; Python's csv stops at 128 KiB
_BLOCK = 2**20


class Unread(NamedTuple):
    """What could not be read: (where, why)."""

    where: str
    reason: str


Opened = tuple[Callable[[], Iterator[Any]], list[str]]


def json_lines(path: Path) -> Opened:
    """One JSON object a line, UTF-8 with or without a byte order mark."""
    with path.open("rb") as lines:
        notes = ["a byte order mark at the start of the file was left out"] if lines.read(3) == BOM else []

    # `json.loads` would look at each line's first bytes to guess an encoding.
    decode = json.JSONDecoder().decode

    def rows() -> Iterator[Any]:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if number == 1:
                    line = line.removeprefix(BOM)
                if not line.strip():
                    continue
                try:
                    yield decode(line.decode("utf-8"))
                except UnicodeDecodeError:
                    yield Unread(f"line {number}", "line is not UTF-8")
                except RecursionError:
                    yield Unread(f"line {number}", "line is nested too deeply")
                except ValueError:
                    torn = not line.endswith(b"\n")
                    yield Unread(f"line {number}", "last line is half-written" if torn else "line is not JSON")

    return rows, notes


def json_file(path: Path) -> Opened:
    """One JSON document: a list of objects, an object that holds one such list, or an object of columns.

    The document is read whole: for millions of rows, JSON lines or Parquet are the better form.

    Raises:
        DataError: if it is not JSON, or of another shape.
    """
    try:
        document = json.loads(path.read_bytes().removeprefix(BOM))
    except ValueError as error:
        hint = "; it looks like JSON lines: call it .jsonl" if "Extra data" in str(error) else ""
        raise DataError(
            f"{shown(path)}: {error}",
            rule="a .json file is one JSON document",
            remedy=f"correct it at that place{hint}",
        ) from None
    if isinstance(document, list):
        return lambda: iter(document), []
    lists = (
        {key: value for key, value in document.items() if isinstance(value, list)} if isinstance(document, dict) else {}
    )
    of_objects = [key for key, value in lists.items() if value and all(isinstance(row, dict) for row in value[:10])]
    if len(of_objects) == 1:
        return lambda: iter(lists[of_objects[0]]), [f"the rows are the list {of_objects[0]!r} of the document"]
    if lists and len(lists) == len(document) and len({len(value) for value in lists.values()}) == 1:
        return lambda: (dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)), [
            f"the document holds columns: {', '.join(lists)}"
        ]
    raise DataError(
        f"{shown(path)}: a {type(document).__name__}"
        + (f" with {', '.join(map(repr, list(document)[:8]))}" if isinstance(document, dict) else ""),
        rule="a .json file holds a list of objects, or columns of one length",
        remedy='write [{"prompt": ..., "answer": ...}, ...]',
    )


def csv_file(path: Path) -> Opened:
    """Comma-, semicolon-, tab- or bar-separated text with a header line; quoting as spreadsheets write it.

    Raises:
        DataError: if there is no header, or two columns have one name.
    """
    encoding, notes = _encoding(path)
    with path.open(encoding=encoding, newline="") as text:
        head = text.read(8192)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(head)
    if delimiter != ",":
        notes.append(f"columns are separated by {delimiter!r}")
    previous = csv.field_size_limit(LONGEST_FIELD)
    try:
        header = next(iter(csv.reader(head.splitlines(keepends=True)[:50], delimiter=delimiter)), [])
    finally:
        csv.field_size_limit(previous)
    names = [name.strip() or f"unnamed_{place}" for place, name in enumerate(header)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names or twice:
        raise DataError(
            f"{shown(path)}: " + (f"two columns are called {twice[0]!r}" if twice else "empty"),
            rule="the first line names the columns, each once",
            remedy="correct the header line",
        )

    def rows() -> Iterator[Any]:
        before = csv.field_size_limit(LONGEST_FIELD)
        try:
            with path.open(encoding=encoding, newline="") as text:
                reader = csv.reader(text, delimiter=delimiter, strict=True)
                next(reader, None)
                while True:
                    began = reader.line_num + 1
                    try:
                        values = next(reader)
                    except StopIteration:
                        return
                    except csv.Error as error:
                        reason = (
                            "a quote is opened and never closed"
                            if "end of data" in str(error)
                            else f"not CSV ({error})"
                        )
                        yield Unread(f"line {began}", reason)
                        continue
                    if not values:
                        continue
                    if len(values) != len(names):
                        fewer = "fewer" if len(values) < len(names) else "more"
                        yield Unread(f"line {began}", f"row has {fewer} fields than the header")
                        continue
                    # An empty field says that there is no value; CSV has no other way to say it.
                    yield {name: value if value != "" else None for name, value in zip(names, values, strict=True)}
        finally:
            csv.field_size_limit(before)

    return rows, notes


def _encoding(path: Path) -> tuple[str, list[str]]:
    with path.open("rb") as data:
        start = data.read(4)
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16", ["read as UTF-16, as its byte order mark says"]
        notes = ["a byte order mark at the start of the file was left out"] if start.startswith(BOM) else []
        data.seek(0)
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while block := data.read(_BLOCK):
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            # The only other encoding that spreadsheets commonly write; every byte means something in Latin-1.
            return "latin-1" if _has_undefined(path) else "cp1252", [
                "the file is not UTF-8: read as Windows-1252, as spreadsheets write it; look at its accents"
            ]
    return "utf-8-sig", notes


def _has_undefined(path: Path) -> bool:
    with path.open("rb") as data:
        return any(
            byte in block for block in iter(lambda: data.read(_BLOCK), b"") for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)
        )


def _delimiter(head: str) -> str:
    first = head.splitlines()[0] if head.strip() else ""
    counts = {mark: first.count(mark) for mark in ",;\t|"}
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] > counts[","] else ","


def parquet_file(path: Path) -> Opened:
    """A Parquet file, in batches.

    Raises:
        DataError: if it is not one.
    """
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
