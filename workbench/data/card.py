"""What notebook 01 leaves in a task's folder: the two halves, what was filtered out, and a card that says how it came about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.data.report import Report
from workbench.data.sources import save_rows
from workbench.data.split import fingerprint
from workbench.task import Row
from workbench.workspace import write_json


def leave(
    folder: str | Path,
    train: Sequence[Row],
    held_out: Sequence[Row],
    filtered_out: Mapping[str, Sequence[Row]],
    report: Report,
    card: Mapping[str, Any],
) -> dict[str, Any]:
    """Write `train.jsonl`, `held_out.jsonl`, `filtered_out.jsonl` (if there is any), `checks.json` and `card.json`.

    Args:
        filtered_out: rows that are kept out of training, by reason; each is written whole, beside its reason.
        report: what the checks found; every row goes into `checks.json`, the counts into the card.
        card: what is known of the dataset; counts and fingerprints are added.

    Returns:
        The card as it was written.
    """
    folder = Path(folder)
    save_rows(train, folder / "train.jsonl")
    save_rows(held_out, folder / "held_out.jsonl")
    aside = [{"reason": reason, "row": row} for reason, rows in filtered_out.items() for row in rows]
    if aside:
        save_rows(aside, folder / "filtered_out.jsonl")
    else:
        (folder / "filtered_out.jsonl").unlink(missing_ok=True)
    found = report.found()
    write_json(folder / "checks.json", found)
    whole = {
        **card,
        "checked": {key: found[key] for key in ("read", "kept", "repaired", "left_out", "columns", "notes")},
        "left_out": dict(report.reasons),
        "repairs": dict(report.repairs),
        "rows": {"train": len(train), "held_out": len(held_out), "filtered_out": len(aside)},
        "fingerprint": {"train": fingerprint(train), "held_out": fingerprint(held_out)},
    }
    write_json(folder / "card.json", whole)
    return whole
