"""Splitting by a stable hash, the same on every machine and in any order, and what notebook 01
leaves in a task's folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.base.errors import DataError
from workbench.base.kinds import Fields
from workbench.base.workspace import resolve, shown, write_json
from workbench.data.prompts import comparable
from workbench.data.reasons import Report
from workbench.data.sources import Source, save_rows
from workbench.task import Row, fingerprint, prompt_key


@dataclass(frozen=True)
class Split:
    """Rows to train on and rows that are never trained on. `by` records how they were told
    apart.
    """

    train: list[Row]
    held_out: list[Row]
    by: Fields = field(default_factory=dict)

    @property
    def shared(self) -> list[Row]:
        """Held-out rows whose question is also a training one, ignoring case, spaces and closing
        marks.
        """

        def asked(row: Row) -> int:
            return hash(comparable(row["prompt"], system=False).casefold().rstrip(" .?!:"))

        known = set(map(asked, self.train))
        return [row for row in self.held_out if asked(row) in known]

    def steps(self, completions_per_step: int, num_generations: int) -> str:
        """What a training step takes from these rows, in words; DataError: no step of whole groups
        is possible.
        """
        return step_of(len(self.train), completions_per_step, num_generations)

    def record(self) -> Fields:
        """For the dataset's card."""
        return self.by

    def __repr__(self) -> str:
        by = self.by.get("held_out_split") or self.by.get("key") or "the question"
        also = (
            f"{len(self.shared)} held-out questions are also training questions (ignoring case,"
            " spaces and closing marks)"
        )
        return f"{len(self.train)} rows to train on, {len(self.held_out)} held out, by {by}\n{also}"


def split(
    rows: Sequence[Row],
    held_out_percent: int = 10,
    *,
    source: Source | None = None,
    held_out: Sequence[Row] | None = None,
    held_out_split: str = "another split",
) -> Split:
    """Hold out rows that training must never see: by a stable hash, or the rows of another split.

    >>> halves = wb.split([{"prompt": f"What is {n} + 1?"} for n in range(100)], held_out_percent=10)
    >>> len(halves.train), len(halves.held_out), halves.shared
    (90, 10, [])

    Args:
        rows: rows with a `prompt`.
        held_out_percent: on average.
        source: where they come from: it may name a column whose equal values stay on one side;
            without one it is the prompt without its system message, so that asking for another
            format keeps the split. Its `salt` makes the split another than that of other sources.
        held_out: rows to hold out instead, such as those of the split named `held_out_split`.

    Raises:
        DataError: if the percentage is not one, or the source's column is missing.
    """  # noqa: E501
    if held_out is not None:
        return Split(list(rows), list(held_out), {"held_out_split": held_out_split})
    if not 0 <= held_out_percent < 100 or 0 < held_out_percent < 1:
        value, rule = f"held_out_percent = {held_out_percent}", "a percentage is from 0 to 99"
        raise DataError(value, rule=rule, remedy="take 10")
    key, salt = (source.split_by, source.salt) if source is not None else (None, "")
    sides: tuple[list[Row], list[Row]] = [], []
    for number, row in enumerate(rows):
        if key is None:
            text = prompt_key(comparable(row["prompt"], system=False))
        elif key in row:
            text = str(row[key])
        else:
            value, rule = f"row {number} has no column {key!r}", "rows stay together by a column"
            raise DataError(value, rule=rule, remedy="split by another column")
        digest = hashlib.sha256(f"{salt}{text}".encode("utf-8", "backslashreplace")).digest()
        sides[bool(int.from_bytes(digest[:4], "big") % 100 < held_out_percent)].append(row)
    by = {"held_out_percent": held_out_percent, "key": key, "salt": salt}
    return Split(*sides, by)


def step_of(prompts: int, completions_per_step: int, num_generations: int) -> str:
    """As `Split.steps`, for a number of prompts."""
    each, rest = divmod(completions_per_step, max(num_generations, 1))
    if num_generations < 2:
        value = f"num_generations = {num_generations}"
        rule = "an advantage compares at least 2 completions of a prompt"
        remedy = "use 4 to try things out, 8 as a rule"
    elif rest or each < 1:
        near = max(each, 1) * num_generations
        value = f"{completions_per_step} completions per step, num_generations = {num_generations}"
        rule = "a step holds whole groups"
        remedy = f"take {near} or {near + num_generations} completions per step"
    elif prompts < each:
        value = f"{prompts} prompts"
        rule = f"a step takes {each} different prompts, or none is trained"
        remedy = f"give at least {each} prompts, or take fewer completions per step"
    else:
        epoch = f"steps per epoch: {prompts // each}"
        return f"a step takes {each} prompts x {num_generations} completions; {epoch}"
    raise DataError(value, rule=rule, remedy=remedy)


class DatasetCard(dict):
    """The card as it was written; it prints as the list of files."""

    folder: Path

    def __repr__(self) -> str:
        files = sorted(file.name for file in self.folder.iterdir())
        return "\n  ".join([f"written to {shown(self.folder)}", *files])


def write_dataset(
    folder: str | Path,
    train: Sequence[Row],
    held_out: Sequence[Row],
    report: Report,
    *,
    filtered_out: Mapping[str, Sequence[Row]] | None = None,
    **card: Any,
) -> DatasetCard:
    """Write `train.jsonl`, `held_out.jsonl`, `filtered_out.jsonl` (if there are any), `checks.json`
    and `card.json`.

    >>> wb.write_dataset("tasks/mine", halves.train, halves.held_out, report, split=halves)
    written to tasks/mine
      card.json
      checks.json
      difficulty.jsonl
      held_out.jsonl
      train.jsonl

    Args:
        report: what the checks found; every row goes into `checks.json`, the counts into the card.
        filtered_out: rows that are kept out of training, by reason; each is written whole, beside
            its reason.
        card: further facts: values, or the results of notebook 01 (`lengths=`, `split=`,
            `difficulty=`).
    """
    folder = resolve(folder)
    save_rows(train, folder / "train.jsonl")
    save_rows(held_out, folder / "held_out.jsonl")
    aside = [
        {"reason": reason, "row": row}
        for reason, rows in (filtered_out or {}).items()
        for row in rows
    ]
    save_rows(aside, folder / "filtered_out.jsonl")
    if not aside:
        (folder / "filtered_out.jsonl").unlink()
    checks = report.found()
    write_json(folder / "checks.json", checks)
    listed = ("reasons", "repairs", "warnings", "source")
    whole = DatasetCard(
        source=report.source,
        **{
            name: value.record() if hasattr(value, "record") else value
            for name, value in card.items()
        },
        checked={name: value for name, value in checks.items() if name not in listed},
        left_out=dict(report.reasons),
        repairs=dict(report.repairs),
        rows={"train": len(train), "held_out": len(held_out), "filtered_out": len(aside)},
        fingerprint={"train": fingerprint(train), "held_out": fingerprint(held_out)},
    )
    whole.folder = folder
    write_json(folder / "card.json", whole)
    return whole
