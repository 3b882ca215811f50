"""Readers of data files: each returns (a function that begins a pass over the rows, notes).

A pass yields dicts, and `Unreadable` in the place of what is not one. Blank lines are skipped.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import json
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from workbench.data import reasons
from workbench.data.reasons import Reason
from workbench.errors import DataError
from workbench.workspace import shown

BOM = b"\xef\xbb\xbf"
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
LONGEST_FIELD = 64 * 2**20  # characters; Python's csv stops at 128 Ki
_BLOCK = 2**20
_BOM_NOTE = "a byte order mark at the start of the file was left out"
_UTF_16_NOTE = "read as UTF-16, as its byte order mark says"
# Of the 256 bytes, Windows-1252 gives no meaning to these.
_NOT_IN_1252 = bytes([0x81, 0x8D, 0x8F, 0x90, 0x9D])


class Unreadable(NamedTuple):
    """A row that could not be read: where it stands, and why."""

    where: str
    reason: Reason


Opened = tuple[Callable[[], Iterator[Any]], list[str]]


def json_lines(path: Path) -> Opened:
    """One JSON object a line, UTF-8 (with or without a byte order mark) or UTF-16."""
    with path.open("rb") as data:
        start = data.read(3)
    wide = start.startswith(UTF_16)
    notes = [_UTF_16_NOTE] if wide else [_BOM_NOTE] if start == BOM else []
    # `json.loads` would look at each line's first bytes to guess an encoding.
    decode = json.JSONDecoder().decode

    def rows() -> Iterator[Any]:
        with path.open("rb") as data:
            for number, line in enumerate(_lines_of_utf_16(data) if wide else data, start=1):
                if number == 1:
                    line = line.removeprefix(BOM)
                if not line.strip():
                    continue
                try:
                    yield decode(line.decode("utf-8"))
                except RecursionError:
                    yield Unreadable(f"line {number}", reasons.TOO_DEEP)
                except ValueError as error:
                    reason = reasons.NOT_UTF8 if isinstance(error, UnicodeDecodeError) else reasons.NOT_JSON
                    yield Unreadable(f"line {number}", reason if line.endswith(b"\n") else reasons.TORN)

    return rows, notes


def _blocks(data: Any) -> Iterator[bytes]:
    return iter(lambda: data.read(_BLOCK), b"")


def _lines_of_utf_16(data: Any) -> Iterator[bytes]:
    # As UTF-8, so that one loop reads both.
    rest = ""
    for text in codecs.iterdecode(_blocks(data), "utf-16", errors="replace"):
        *whole, rest = (rest + text).split("\n")
        yield from (f"{line}\n".encode() for line in whole)
    if rest:
        yield rest.encode()


def json_file(path: Path, split: str | None = None) -> Opened:
    """One JSON document: a list of objects, an object that holds such lists (of which `split` names one), or of columns.

    The document is read whole: for millions of rows, JSON lines or Parquet are the better form.

    Raises:
        DataError: if it is not JSON, or of another shape, or has no such split.
    """
    try:
        document = json.loads(path.read_bytes().removeprefix(BOM))
    except (ValueError, RecursionError) as error:
        hint = "; it looks like JSON lines: call it .jsonl" if "Extra data" in str(error) else ""
        raise DataError(
            f"{shown(path)}: {error}",
            rule="a .json file is one JSON document",
            remedy=f"correct it at that place{hint}",
        ) from None
    if isinstance(document, list) and split is None:
        return lambda: iter(document), []
    lists = {}
    if isinstance(document, dict):
        lists = {key: value for key, value in document.items() if isinstance(value, list)}
    of_objects = [key for key, value in lists.items() if value and all(isinstance(row, dict) for row in value[:10])]
    if of_objects:
        chosen = split or ("train" if "train" in of_objects else of_objects[0] if len(of_objects) == 1 else None)
        if chosen not in of_objects:
            raise DataError(
                f"{shown(path)}: " + (f"no split {split!r}" if split else f"{len(of_objects)} lists of objects"),
                rule="rows come from one of the lists",
                remedy=f"choose with split (--split): {', '.join(of_objects)}",
            )
        return lambda: iter(lists[chosen]), [f"the rows are the list {chosen!r} of {', '.join(of_objects)}"]
    if split is not None:
        raise no_splits(shown(path), split)
    if lists and len(lists) == len(document) and len({len(value) for value in lists.values()}) == 1:
        note = f"the document holds columns: {', '.join(lists)}"
        return lambda: (dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)), [note]
    holds = f" with {', '.join(map(repr, list(document)[:8]))}" if isinstance(document, dict) else ""
    raise DataError(
        f"{shown(path)}: a {type(document).__name__}{holds}",
        rule="a .json file holds a list of objects, or columns of one length",
        remedy='write [{"prompt": ..., "answer": ...}, ...]',
    )


def no_splits(name: str, split: str) -> DataError:
    """The error for a split that was asked of something that has none."""
    return DataError(
        f"{name}: split {split!r}",
        rule="only hub datasets, folders, DatasetDicts and JSON objects of lists have splits",
        remedy="leave split out, or name the file that holds that split",
    )


def csv_file(path: Path) -> Opened:
    """Comma-, semicolon- or tab-separated text with a header line; quoting as spreadsheets write it.

    Raises:
        DataError: if there is no header, or two columns have one name.
    """
    encoding, notes = _encoding(path)
    csv.field_size_limit(LONGEST_FIELD)

    def open_text() -> TextIO:
        return path.open(encoding=encoding, errors="replace", newline="")

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
                else:
                    if any(values) or len(values) > 1:
                        yield began, values

    _, header = next(records(), (0, []))
    names = [] if isinstance(header, str) else [name.strip() or f"unnamed_{n}" for n, name in enumerate(header)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names or twice:
        raise DataError(
            f"{shown(path)}: {f'two columns are called {twice[0]!r}' if twice else header or 'empty'}",
            rule="the first line names the columns, each once",
            remedy="correct the header line",
        )

    def rows() -> Iterator[Any]:
        for began, values in itertools.islice(records(), 1, None):
            if isinstance(values, str):
                yield Unreadable(f"line {began}", values)
            elif len(values) != len(names):
                reason = reasons.FEWER_FIELDS if len(values) < len(names) else reasons.MORE_FIELDS
                yield Unreadable(f"line {began}", reason)
            else:
                # CSV has no other way to write that there is no value.
                yield {name: value if value != "" else None for name, value in zip(names, values, strict=True)}

    return rows, notes


def _encoding(path: Path) -> tuple[str, list[str]]:
    with path.open("rb") as data:
        start = data.read(4)
    if start.startswith(UTF_16):
        return "utf-16", [_UTF_16_NOTE]
    try:
        with path.open(encoding="utf-8") as text:
            deque(iter(lambda: text.read(_BLOCK), ""), maxlen=0)
        return "utf-8-sig", [_BOM_NOTE] if start.startswith(BOM) else []
    except UnicodeDecodeError:
        # The only other encoding that spreadsheets commonly write; every byte means something in Latin-1.
        note = "the file is not UTF-8: read as Windows-1252, as spreadsheets write it; look at its accents"
        with path.open("rb") as data:
            undefined = any(byte in block for block in _blocks(data) for byte in _NOT_IN_1252)
        return "latin-1" if undefined else "cp1252", [note]


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
