"""Rows in and out: one call for every kind of source, one shape out.

A source is opened, not loaded: rows come one by one; one that cannot be read comes as `Unreadable`,
with the reason.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workbench.data import files, hub
from workbench.data.files import Unreadable
from workbench.errors import DataError, WorkbenchError, fault_line, nearest
from workbench.task import EMBEDDED, Row
from workbench.workspace import find, looked_in, replace_file, resolve, shown

# Questions that travel with the package -> the module that makes them, with a function
# `source(limit, seed)`.
SHIPPED = {name: module for name, module in EMBEDDED.items() if name != "gsm8k"}
_READERS = {
    ".jsonl": files.json_lines,
    ".ndjson": files.json_lines,
    ".json": files.json_file,
    ".csv": files.csv_file,
    ".tsv": files.csv_file,
    ".parquet": files.parquet_file,
}
KINDS = (
    "a .jsonl, .json, .csv, .tsv, .parquet or .py file, a folder in the hub's layout, or a hub name"
    " (owner/name)"
)
BINDINGS = ("get_dataset", "dataset", "train_dataset", "rows")
# Helpers that snippets call and never define -> what does their job here.
HELPERS = {
    "extract_answer": "from workbench.data.answer_column import extract_answer",
    "extract_number": "from workbench.data.answer_column import extract_answer as extract_number",
    "extract_final_answer": (
        "from workbench.rewards.answers import extract_answer as extract_final_answer"
    ),
    "format_prompt": (
        "define it: format_prompt = '{}'.format, or any text that the question should stand in"
    ),
    "SYSTEM_PROMPT": "from workbench.data.prompts import SYSTEM_PROMPT",
    "CUSTOM_SYSTEM_PROMPT": "define it: CUSTOM_SYSTEM_PROMPT = 'who answers, and in which format'",
    "load_dataset": "from datasets import load_dataset",
    "Dataset": "from datasets import Dataset",
}


class Rows(list):
    """Rows that display as a table."""

    name = ""


@dataclass
class Source:
    """Rows that can be iterated more than once."""

    name: str  # what was asked for, for people
    open: Callable[[], Iterator[Row | Unreadable]] = field(repr=False)  # begins a new pass
    # what was decided while opening (an encoding, a split)
    notes: list[str] = field(default_factory=list)
    # column whose equal values belong on one side of a split; None: the prompt itself
    split_by: str | None = None
    salt: str = ""  # makes the split of these rows another than that of others

    def __iter__(self) -> Iterator[Row | Unreadable]:
        return self.open()

    def first(self, count: int = 100) -> Rows:
        """The first readable rows, at most `count`."""
        found = Rows(itertools.islice((row for row in self.open() if isinstance(row, dict)), count))
        found.name = self.name
        return found


def open_source(
    source: object,
    *,
    subset: str | None = None,
    split: str | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Source:
    """Open rows of any kind; only the beginning is read yet.

    >>> wb.open_source([{"question": "What is 1 + 1?", "answer": "2"}]).first(5)
    [{'question': 'What is 1 + 1?', 'answer': '2'}]

    Args:
        source: a shipped name ("arithmetic", "countdown", "csv_qa", "json"); the path of a
            `.jsonl`, `.json`, `.csv`, `.tsv`, `.parquet` or `.py` file, or of a folder in the hub's
            layout; a hub name ("openai/gsm8k"); a pandas DataFrame, a `datasets.Dataset`, a list of
            dicts, a dict of columns, or another `Source`.
        subset: name of the hub dataset's configuration; None: "main" where there is one, else the
            only one.
        split: None: "train".
        limit: read at most this many rows.
        seed: for sources that make their rows.

    Raises:
        DataError: if there is no such source, or it is of a kind that cannot be read.
    """
    named = isinstance(source, (str, Path))
    if named and str(source) not in SHIPPED:
        opened = _from_path(str(source), subset, split)
    elif subset is not None or (named and split is not None):
        raise files.no_splits(
            str(source) if named else f"a {type(source).__name__}", subset or split or ""
        )
    elif named:
        opened = importlib.import_module(SHIPPED[str(source)]).source(limit, seed)
    else:
        opened = _from_object(source, split)
    return (
        opened
        if limit is None
        else replace(opened, open=lambda: itertools.islice(opened.open(), limit))
    )


def _from_path(text: str, subset: str | None, split: str | None) -> Source:
    path = find(text)
    name, kind = shown(path), path.suffix.lower()
    if path.is_file() and kind == ".py":
        return replace(open_source(_rows_of_script(path), subset=subset, split=split), name=name)
    if path.is_file():
        if kind not in _READERS:
            remedy = "convert it, or read it yourself and give the rows as a list"
            raise DataError(
                f"{name}: a {kind or 'nameless'} file",
                rule=f"rows come from {KINDS}",
                remedy=remedy,
            )
        if subset is not None or (split is not None and kind != ".json"):
            raise files.no_splits(name, split or subset or "")
        return Source(
            name, *(files.json_file(path, split) if kind == ".json" else _READERS[kind](path))
        )
    folder = path.is_dir()
    on_hub = text if folder else hub.MOVED.get(text, text)
    if not folder and (
        on_hub.count("/") != 1 or text.startswith((".", "/", "~")) or kind in {*_READERS, ".py"}
    ):
        written = "notebook 01 writes it: run that first, or " if path.name == "train.jsonl" else ""
        rule = f"rows come from {KINDS}, or are one of {', '.join(SHIPPED)}"
        raise DataError(
            f"{name}: no such file", rule=rule, remedy=f"{written}check the path; {looked_in()}"
        )
    called = name if folder else on_hub
    found, notes = hub.load(str(path) if folder else on_hub, called, subset)
    opened = _from_object(found, split, called)
    moved = [f"{text} is called {on_hub} on the hub"] if on_hub != text else []
    opened.notes[:0] = [*moved, *notes]
    return opened


def _from_object(found: Any, split: str | None, name: str = "") -> Source:
    kind = type(found).__name__
    if kind in ("DatasetDict", "IterableDatasetDict"):
        chosen = files.choose("split", name or kind, split, [*found], "train")
        notes = [f"split {chosen!r} of {', '.join(found)}"] if len(found) > 1 else []
        return Source(name or kind, lambda: _batches(found[chosen]), notes)
    if split is not None:
        raise files.no_splits(name or f"a {kind}", split)
    if isinstance(found, Source):
        return found
    if hasattr(found, "iter") and hasattr(found, "features"):
        return Source(name or f"a {kind}", lambda: _batches(found))
    if hasattr(found, "to_dict") and hasattr(found, "iloc"):
        return Source(name or "a pandas DataFrame", lambda: _frame_rows(found))
    if isinstance(found, dict):
        sizes = {
            key: len(value) if isinstance(value, (list, tuple)) else None
            for key, value in found.items()
        }
        if not sizes or None in sizes.values() or len(set(sizes.values())) > 1:
            value = (
                "a dict with"
                f" {', '.join(f'{key}: {size}' for key, size in sizes.items()) or 'nothing'}"
            )
            remedy = "give {'prompt': [...], 'answer': [...]}"
            raise DataError(
                value, rule="a dict of columns holds lists of one length", remedy=remedy
            )
        return Source(name or "a dict of columns", lambda: files.by_row(found))
    if isinstance(found, (bytes, bytearray)) or not hasattr(found, "__iter__"):
        rule = f"rows come from {KINDS}, a DataFrame, a Dataset or a list of dicts"
        raise DataError(f"a {kind}", rule=rule, remedy="give one of those")
    rows = found if isinstance(found, (list, tuple)) else list(found)
    return Source(name or f"a {kind} of {len(rows)} rows", lambda: iter(rows))


def _batches(dataset: Any, size: int = 1000) -> Iterator[Row]:
    # Whole batches: a row alone costs `datasets` 20 times as much.
    return itertools.chain.from_iterable(map(files.by_row, dataset.iter(batch_size=size)))


def _frame_rows(frame: Any, size: int = 10_000) -> Iterator[Row]:
    import pandas

    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        value = f"a pandas DataFrame with two columns {str(twice[0])!r}"
        raise DataError(value, rule="each column has its own name", remedy="rename one of them")
    for start in range(0, len(frame), size):
        for row in frame.iloc[start : start + size].to_dict("records"):
            # A missing value is NaN, NaT or NA in pandas, and None everywhere else.
            yield {
                str(key): None if pandas.api.types.is_scalar(v) and pandas.isna(v) else v
                for key, v in row.items()
            }


def _rows_of_script(path: Path) -> object:
    # The name is the path's, so that two files called alike do not answer for one another.
    spec = importlib.util.spec_from_file_location(f"workbench_rows_{abs(hash(path))}", path)
    assert spec is not None and spec.loader is not None  # noqa: PT018  as for every .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    loads = "load_dataset" in path.read_text(encoding="utf-8", errors="replace")
    try:
        with hub.without_waiting() if loads else nullcontext():
            spec.loader.exec_module(module)
        bound = next((getattr(module, name) for name in BINDINGS if hasattr(module, name)), None)
        found = bound() if callable(bound) and not hasattr(bound, "iter") else bound
        if hasattr(found, "__next__"):
            found = list(found)  # here, where what it raises can be explained
    except WorkbenchError:
        raise
    except (Exception, SystemExit) as error:
        raise _explain(error, path) from error
    finally:
        sys.modules.pop(spec.name, None)
    if found is None:
        rule = "a data file in Python binds its rows as `dataset`, or defines get_dataset()"
        raise DataError(
            f"{shown(path)}: binds none of {', '.join(BINDINGS)}",
            rule=rule,
            remedy="end it with dataset = ...",
        )
    return found


def _explain(error: BaseException, path: Path) -> DataError:
    columns: list[str] = []
    # The row that was asked is a local variable of the innermost call: a dict, or `datasets`'
    # wrapper of one.
    for frame, _ in (
        traceback.walk_tb(error.__traceback__) if isinstance(error, KeyError) and error.args else ()
    ):
        for value in frame.f_locals.values() if frame.f_code.co_name != "<module>" else ():
            row = getattr(value, "data", value)
            if (
                isinstance(row, dict)
                and row
                and error.args[0] not in row
                and all(isinstance(key, str) for key in row)
            ):
                columns = list(row)
    offline = any(
        word in f"{type(error).__name__} {error}"
        for word in ("Connection", "Offline", "offline", "reach")
    )
    said, after = f"{type(error).__name__}: {str(error)[:300]}", ""
    rule, remedy = "a data file in Python runs when it is read", "correct that line"
    if isinstance(error, NameError):
        name = error.name or str(error)
        said, rule = f"{name!r} is not defined", "a snippet brings the helpers that it calls"
        remedy = HELPERS.get(name, f"define {name}, or import it")
    elif columns:
        word = str(error.args[0])
        inside = next((column for column in columns if column in word or word in column), None)
        said, after = f"no column {word!r}", f"; the rows have {', '.join(columns)}"
        rule = "code may ask a row only for columns that it has"
        remedy = f"use {inside!r}" if inside else nearest(word, columns, "use one of those")
    elif offline:
        remedy = "the hub cannot be reached: connect, or load a local file or folder instead"
    return DataError(
        f"{shown(path)}: {said}{fault_line(error, path)}{after}", rule=rule, remedy=remedy
    )


def load_rows(source: str | Path | Iterable[Row]) -> list[Row]:
    """All rows of a source that must be whole: how a task file reads the rows that notebook 01
    wrote.

    >>> wb.load_rows([{"prompt": "What is 1 + 1?", "answer": "2"}])
    [{'prompt': 'What is 1 + 1?', 'answer': '2'}]

    Raises:
        DataError: if the source is missing or of another kind, or a row cannot be read (it is
            named).
    """
    opened = open_source(source)
    rows: list[Row] = []
    for row in opened:
        if not isinstance(row, dict):
            where, reason = (
                row
                if isinstance(row, Unreadable)
                else (f"row {len(rows)}", f"a {type(row).__name__}")
            )
            remedy = f"correct or delete it; `workbench check {opened.name}` lists them all"
            raise DataError(
                f"{opened.name}, {where}: {reason}", rule="each row is one object", remedy=remedy
            )
        rows.append(dict(row))
    return rows


def save_rows(rows: Iterable[Row], path: str | Path) -> Path:
    """Write rows as JSON lines, atomically; values that JSON cannot hold become text."""
    path = resolve(path)
    # Half a surrogate pair, which UTF-8 cannot hold, is written as JSON's own escape.
    with (
        replace_file(path) as beside,
        beside.open("w", encoding="utf-8", errors="backslashreplace") as lines,
    ):
        lines.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    return path
