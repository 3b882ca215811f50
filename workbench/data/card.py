"""What notebook 01 leaves in a task's folder: the two halves, what was filtered out, and a card that says how it came about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.data.report import Report
from workbench.data.sources import save_rows
from workbench.data.split import fingerprint
from workbench.task import Row
from workbench.workspace import resolve, shown, write_json


class DatasetCard(dict):
    """The card as it was written; it prints as the list of files."""

    folder: Path

    def __repr__(self) -> str:
        return "\n  ".join([f"written to {shown(self.folder)}", *sorted(file.name for file in self.folder.iterdir())])


def write_dataset(
    folder: str | Path,
    train: Sequence[Row],
    held_out: Sequence[Row],
    report: Report,
    *,
    filtered_out: Mapping[str, Sequence[Row]] | None = None,
    **card: Any,
) -> DatasetCard:
    """Write `train.jsonl`, `held_out.jsonl`, `filtered_out.jsonl` (if there are any), `checks.json` and `card.json`.

    >>> wb.write_dataset("tasks/mine", halves.train, halves.held_out, report, split=halves)
    written to tasks/mine
      card.json
      checks.json
      difficulty.jsonl
      held_out.jsonl
      train.jsonl

    Args:
        report: what the checks found; every row goes into `checks.json`, the counts into the card.
        filtered_out: rows that are kept out of training, by reason; each is written whole, beside its reason.
        card: what else is known: values, or the results of notebook 01 (`lengths=`, `split=`, `difficulty=`).
    """
    folder = resolve(folder)
    save_rows(train, folder / "train.jsonl")
    save_rows(held_out, folder / "held_out.jsonl")
    aside = [{"reason": reason, "row": row} for reason, rows in (filtered_out or {}).items() for row in rows]
    if aside:
        save_rows(aside, folder / "filtered_out.jsonl")
    else:
        (folder / "filtered_out.jsonl").unlink(missing_ok=True)
    found = report.found()
    write_json(folder / "checks.json", found)
    whole = DatasetCard(
        {
            "source": report.source,
            **{name: value.record() if hasattr(value, "record") else value for name, value in card.items()},
            "checked": {key: found[key] for key in ("read", "kept", "repaired", "left_out", "columns", "notes")},
            "left_out": dict(report.reasons),
            "repairs": dict(report.repairs),
            "rows": {"train": len(train), "held_out": len(held_out), "filtered_out": len(aside)},
            "fingerprint": {"train": fingerprint(train), "held_out": fingerprint(held_out)},
        }
    )
    whole.folder = folder
    write_json(folder / "card.json", whole)
    return whole
