"""Rows in and out: JSON lines, and lists of dicts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from workbench.dataset.task import Row
from workbench.run.errors import DataError
from workbench.run.workspace import resolve, shown


def load_rows(source: str | Path | Iterable[Row]) -> list[Row]:
    """Rows from a `.jsonl` file, or from any iterable of dicts (a list, a `datasets.Dataset`).

    Raises:
        DataError: if the file is missing, is of another kind, or a line is not a JSON object (the line is named).
    """
    if not isinstance(source, (str, Path)):
        return [dict(row) for row in source]
    path = resolve(source)
    if path.suffix != ".jsonl" or not path.is_file():
        raise DataError(
            f"{shown(path)}: " + ("no such file" if path.suffix == ".jsonl" else f"a {path.suffix or 'nameless'} file"),
            rule="rows are read from JSON lines (.jsonl), one object a line, or from a list of dicts",
            remedy="notebook 01 writes tasks/arithmetic/train.jsonl; or pass a list",
        )
    rows = []
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(
                    f"{shown(path)}, line {number}: {error}",
                    rule="each line is one JSON object",
                    remedy="correct or delete that line",
                ) from None
            if not isinstance(row, dict):
                raise DataError(
                    f"{shown(path)}, line {number}: a {type(row).__name__}",
                    rule="each line is one JSON object",
                    remedy='write {"prompt": ..., "answer": ...}',
                )
            rows.append(row)
    return rows


def save_rows(rows: Iterable[Row], path: str | Path) -> Path:
    """Write rows as JSON lines, whole or not at all."""
    path = resolve(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    with beside.open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    os.replace(beside, path)
    return path
