"""`workbench check`: a source gone through once, with its report, its prompt lengths and the kept rows if they are wanted."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.dataset.checks import Checked, Report
from workbench.dataset.lengths import covering_lengths, stream_lengths
from workbench.dataset.prompts import system_prompt
from workbench.dataset.sources import load_rows, open_source
from workbench.dataset.task import Row
from workbench.run.workspace import resolve, shown


@dataclass
class Found:
    """What `workbench check` found out."""

    report: Report
    lengths: dict[str, Any] | None
    out: Path | None

    def found(self) -> dict[str, Any]:
        """For `--json`."""
        return {**self.report.found(), "lengths": self.lengths, "out": str(self.out) if self.out else None}

    def __str__(self) -> str:
        lines = [str(self.report)]
        if self.lengths:
            covering = ", ".join(
                f"{share} of the prompts have at most {limit}" for share, limit in self.lengths["covering"].items()
            )
            lines.append(f"prompt lengths in tokens ({self.lengths['policy']}): {covering}")
        if self.out:
            lines.append(f"kept rows written to {shown(self.out)}")
        return "\n".join(lines)


def check_source(
    source: Any,
    *,
    subset: str | None = None,
    split: str | None = None,
    other: Path | None = None,
    out: Path | None = None,
    policy: str | None = None,
    system: str = "none",
    **options: Any,
) -> Found:
    """Go through a source once; no more than a thousand of its rows are held at a time.

    Args:
        other: file with the rows of the other split.
        out: where the kept rows go, as JSON lines; whole, or not at all.
        policy: whose tokenizer and template to measure prompt lengths with; None: they are not measured.
        system: a name from `workbench.dataset.prompts`, or a text.
        options: as for `Checked`.
    """
    from workbench.views.terminal import counter

    opened = open_source(source, subset=subset, split=split)
    rows_of_other = load_rows(other) if other is not None else ()
    with counter("rows") as progress:
        checked = Checked(opened, system=system_prompt(system), other=rows_of_other, progress=progress, **options)
        rows: Iterable[Row] = checked
        lengths = None
        if policy is not None:
            rows, lengths = _measured(rows, policy)
        target = resolve(out) if out is not None else None
        with _written(rows, target) as written:
            for _ in written:
                pass
    found = None
    if lengths is not None:
        covering = {f"{share:.0%}": limit for share, limit in covering_lengths(lengths).items()}
        found = {"policy": policy, "covering": covering, "longest_tokens": max(lengths, default=None)}
    return Found(checked.report, found, target)


def _measured(rows: Iterable[Row], policy: str) -> tuple[Iterator[Row], list[int]]:
    from array import array

    from workbench.train.policy import load_tokenizer

    lengths = array("L")
    tokenizer = load_tokenizer(policy)

    def measured() -> Iterator[Row]:
        for row, length in stream_lengths(rows, tokenizer):
            lengths.append(length)
            yield row

    return measured(), lengths


@contextlib.contextmanager
def _written(rows: Iterable[Row], target: Path | None) -> Iterator[Iterable[Row]]:
    if target is None:
        yield rows
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.part")
    with beside.open("w", encoding="utf-8") as lines:

        def passed() -> Iterator[Row]:
            for row in rows:
                lines.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
                yield row

        yield passed()
    os.replace(beside, target)
