"""Rows in and out: one call for every kind of source, one shape out.

A source is opened, not loaded: rows come one by one; one that cannot be read comes as `Unreadable`,
with the reason.
"""

from __future__ import annotations

import itertools
import json
import runpy
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.base.errors import DataError, WorkbenchError, fault_line, nearest
from workbench.base.shipped import loader, makes_rows
from workbench.base.workspace import find, looked_in, replace_file, resolve, shown
from workbench.data import files, hub
from workbench.data.files import Unreadable
from workbench.recipe import packaged
from workbench.task import Row

if TYPE_CHECKING:
    import pandas

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
HELPERS = packaged(Path(__file__).with_name("helpers.yaml"))


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
        source: a shipped name ("arithmetic", "countdown", "csv_qa", "json", "reviews") or
            one of reasoning-gym's ("reasoning_gym/chain_sum"); the path of a `.jsonl`, `.json`,
            `.csv`, `.tsv`, `.parquet` or `.py` file, or of a folder in the hub's layout; a hub
            name ("openai/gsm8k"); a pandas DataFrame, a `datasets.Dataset`, a list of dicts, a dict
            of columns, or another `Source`.
        subset: name of the hub dataset's configuration; None: "main" where there is one, else the
            only one.
        split: None: "train".
        limit: read at most this many rows.
        seed: for sources that make their rows.

    Raises:
        DataError: if there is no such source, or it is of a kind that cannot be read.
    """
    if not isinstance(source, (str, Path)):
        if subset is not None:
            raise files.no_splits(f"a {type(source).__name__}", subset)
        opened = _from_object(source, split)
    elif not makes_rows(source):
        opened = _from_path(str(source), subset, split)
    elif subset or split:
        raise files.no_splits(str(source), subset or split or "")
    else:
        opened = loader().open_source(str(source), limit, seed)
    if limit is None:
        return opened
    return replace(opened, open=lambda: itertools.islice(opened.open(), limit))


def _from_path(text: str, subset: str | None, split: str | None) -> Source:
    path = find(text)
    name, kind = shown(path), path.suffix.lower()
    if path.is_file() and kind == ".py":
        return replace(open_source(_rows_of_script(path), subset=subset, split=split), name=name)
    if path.is_file():
        return _from_file(path, subset, split)
    folder = path.is_dir()
    on_hub = text if folder else hub.MOVED.get(text, text)
    if not folder and (
        on_hub.count("/") != 1 or text.startswith((".", "/", "~")) or kind in {*_READERS, ".py"}
    ):
        written = "notebook 01 writes it: run that first, or " if path.name == "train.jsonl" else ""
        shipped = [own for own in loader().sources if own[-1] != "/"]
        rule = f"rows come from {KINDS}, or are one of {', '.join(shipped)}"
        otherwise = f"{written}check the path; {looked_in()}"
        raise DataError(
            f"{name}: no such file",
            rule=rule,
            remedy=nearest(text, () if kind else shipped, otherwise),
        )
    called = name if folder else on_hub
    dataset, notes = hub.load(str(path) if folder else on_hub, called, subset)
    opened = _from_object(dataset, split, called)
    if on_hub != text:
        notes = [f"{text} is called {on_hub} on the hub", *notes]
    return replace(opened, notes=[*notes, *opened.notes])


def _from_file(path: Path, subset: str | None, split: str | None) -> Source:
    name, kind = shown(path), path.suffix.lower()
    if kind not in _READERS:
        raise DataError(
            f"{name}: a {kind or 'nameless'} file",
            rule=f"rows come from {KINDS}",
            remedy="convert it, or read it yourself and give the rows as a list",
        )
    if kind == ".json" and subset is None:
        return Source(name, *files.json_file(path, split))
    if subset or split:
        raise files.no_splits(name, split or subset or "")
    return Source(name, *_READERS[kind](path))


def _from_object(rows: Any, split: str | None, name: str = "") -> Source:
    kind = type(rows).__name__
    name = name or f"a {kind}"
    if kind in ("DatasetDict", "IterableDatasetDict"):
        chosen = files.choose("split", name, split, [*rows], "train")
        notes = [f"split {chosen!r} of {', '.join(rows)}"] if len(rows) > 1 else []
        return Source(name, lambda: _batches(rows[chosen]), notes)
    if split is not None:
        raise files.no_splits(name, split)
    if isinstance(rows, Source):
        return rows
    if hasattr(rows, "iter") and hasattr(rows, "features"):
        return Source(name, lambda: _batches(rows))
    if hasattr(rows, "iloc"):
        missing = [f"{name!r} ({n})" for name, n in rows.isna().sum().items() if n]
        notes = [f"no value (NaN, NaT, NA) read as None: {', '.join(missing)}"] if missing else []
        return Source("a pandas DataFrame", lambda: _frame_rows(rows), notes)
    if isinstance(rows, dict):
        return Source("a dict of columns", files.by_row(rows, "the source"))
    if isinstance(rows, (bytes, bytearray)) or not hasattr(rows, "__iter__"):
        raise DataError(
            name,
            rule=f"rows come from {KINDS}, a DataFrame, a Dataset or a list of dicts",
            remedy="give one of those",
        )
    listed = rows if isinstance(rows, (list, tuple)) else list(rows)
    return Source(f"a {kind} of {len(listed)} rows", lambda: iter(listed))


def _batches(dataset: Any, size: int = 1000) -> Iterator[Row]:
    # Whole batches: a row alone costs `datasets` 20 times as much.
    return itertools.chain.from_iterable(map(files.zipped, dataset.iter(batch_size=size)))


def _frame_rows(frame: pandas.DataFrame) -> Iterator[Row]:
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise DataError(
            f"a pandas DataFrame with two columns {str(twice)!r}",
            rule="each column has its own name",
            remedy="rename one of them",
        )
    objects = frame.astype(object)
    # A missing value is NaN, NaT or NA in pandas, and None everywhere else.
    columns = objects.where(objects.notna(), None).to_dict("list")
    return files.zipped({str(name): values for name, values in columns.items()})


def _rows_of_script(path: Path) -> object:
    # The name is the path's, so that two files called alike do not answer for one another.
    name = f"workbench_rows_{abs(hash(path))}"
    loads = "load_dataset" in path.read_text(encoding="utf-8", errors="replace")
    try:
        with hub.without_waiting() if loads else nullcontext():
            module = runpy.run_path(str(path), run_name=name)
        bound = next((module[name] for name in BINDINGS if name in module), None)
        rows = bound() if callable(bound) and not hasattr(bound, "iter") else bound
        if hasattr(rows, "__next__"):
            rows = list(rows)  # here, where what it raises can be explained
    except WorkbenchError:
        raise
    except (Exception, SystemExit) as error:
        raise _explained(error, path) from error
    if rows is None:
        raise DataError(
            f"{shown(path)}: binds none of {', '.join(BINDINGS)}",
            rule="a data file in Python binds its rows as `dataset`, or defines get_dataset()",
            remedy="end it with dataset = ...",
        )
    return rows


def _explained(error: BaseException, path: Path) -> DataError:
    name = f"{type(error).__name__}: {str(error)[:300]}"
    rule, remedy, after = "a data file in Python runs when it is read", "correct that line", ""
    if isinstance(error, NameError):
        word = error.name or str(error)
        name, rule = f"{word!r} is not defined", "a snippet brings the helpers that it calls"
        remedy = HELPERS.get(word, f"define {word}, or import it")
    elif columns := _columns_of_row(error):
        word = str(error.args[0])
        name, after = f"no column {word!r}", f"; the rows have {', '.join(columns)}"
        rule = "code may ask a row only for columns that it has"
        remedy = nearest(word, columns, "use one of those")
    elif any(sign in name for sign in ("Connection", "Offline", "offline", "reach")):
        remedy = "the hub cannot be reached: connect, or load a local file or folder instead"
    return DataError(
        f"{shown(path)}: {name}{fault_line(error, path)}{after}", rule=rule, remedy=remedy
    )


def _columns_of_row(error: BaseException) -> list[str]:
    # The row that lacks a key is a local variable of the innermost call: a dict, or `datasets`'
    # wrapper of one.
    columns: list[str] = []
    if not isinstance(error, KeyError):
        return columns
    for frame, _ in traceback.walk_tb(error.__traceback__):
        inside = frame.f_locals.values() if frame.f_code.co_name != "<module>" else ()
        for row in (getattr(value, "data", value) for value in inside):
            if isinstance(row, dict) and row and error.args[0] not in row:
                columns = list(map(str, row))
    return columns


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
            where, reason = f"row {len(rows)}", f"a {type(row).__name__}"
            if isinstance(row, Unreadable):
                where, reason = row
            raise DataError(
                f"{opened.name}, {where}: {reason}",
                rule="each row is one object",
                remedy=f"correct or delete it; `workbench check {opened.name}` lists them all",
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
