"""What checking a dataset found: for people, with the reason and the remedy; for machines, with every row."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from workbench.data.reasons import Findings, Reason
from workbench.errors import DataError
from workbench.task import Row

EXCERPTS = 3  # kept of each reason
_EXCERPT_CHARACTERS = 100


class _ByReason(dict[Any, array]):
    """reason (or rule) -> the numbers of its rows."""

    def __missing__(self, reason: str) -> array:
        return self.setdefault(reason, array("Q"))

    def counts(self) -> Counter[str]:
        return Counter({reason: len(numbers) for reason, numbers in self.items()})

    def ordered(self) -> list[tuple[Any, array]]:
        """The commonest first; of those as common, the earliest."""
        return sorted(self.items(), key=lambda item: (-len(item[1]), item[1][0]))


@dataclass
class Report:
    """What was read, what was kept, and why the rest was not: `kept_rows + len(left_out)` always adds up to `read`.

    Rows are counted from 0, in the order of the source. `kept` holds the rows themselves where they were collected.
    """

    source: str = ""
    read: int = 0
    kept_rows: int = 0
    repaired_rows: int = 0
    kept: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    columns: dict[str, str | None] = field(default_factory=dict)
    _left_out: _ByReason = field(default_factory=_ByReason)
    _repaired: _ByReason = field(default_factory=_ByReason)
    _warned: _ByReason = field(default_factory=_ByReason)
    _excerpts: dict[str, list[str]] = field(default_factory=dict)

    @property
    def left_out(self) -> list[tuple[int, str]]:
        """(row number, reason) of every row that was left out, in order."""
        return sorted((number, reason) for reason, numbers in self._left_out.items() for number in numbers)

    # reason, rule or warning -> how many rows
    reasons = property(lambda self: self._left_out.counts())
    repairs = property(lambda self: self._repaired.counts())
    warnings = property(lambda self: self._warned.counts())

    def keep(self, number: int, found: Findings) -> None:
        """Count a row as kept, with the rules that repaired it and what is odd about it."""
        self.kept_rows += 1
        self.repaired_rows += bool(found.repairs)
        for rule in found.repairs:
            self._repaired[rule].append(number)
        for what in found.warnings:
            self._warned[what].append(number)

    def leave_out(self, number: int, reason: Reason, row: Any) -> None:
        """Count a row as left out; the first few of each reason are shown."""
        self._left_out[reason].append(number)
        excerpts = self._excerpts.setdefault(reason, [])
        if len(excerpts) < EXCERPTS:
            where, text = getattr(row, "where", None), repr(row)
            cut = text if len(text) <= _EXCERPT_CHARACTERS else f"{text[:_EXCERPT_CHARACTERS]}…"
            excerpts.append(f"{where} of the file" if isinstance(where, str) else cut)

    def require(self) -> list[Row]:
        """The rows that were kept.

        Raises:
            DataError: if there are none, with the commonest reason.
        """
        if not self.kept_rows:
            why, count = next(iter(self.reasons.most_common(1)), (Reason("there are no rows"), 0))
            raise DataError(
                f"{self.source}: none of {self.read} rows could be kept; {count} times: {why}",
                rule="a dataset has rows that can be trained on",
                remedy=why.remedy,
            )
        return self.kept

    def found(self) -> dict[str, Any]:
        """For `workbench check --json` and the dataset's record: every number, every row."""

        def listed(key: str, rows_of: _ByReason) -> list[dict[str, Any]]:
            return [
                {key: why, "count": len(rows)} | ({} if key == "rule" else {"do": why.remedy}) | {"rows": rows.tolist()}
                for why, rows in rows_of.ordered()
            ]

        return {
            "source": self.source,
            "read": self.read,
            "kept": self.kept_rows,
            "repaired": self.repaired_rows,
            "left_out": self.read - self.kept_rows,
            "columns": self.columns,
            "notes": self.notes,
            "reasons": [{**one, "examples": self._excerpts[one["reason"]]} for one in listed("reason", self._left_out)],
            "repairs": listed("rule", self._repaired),
            "warnings": listed("warning", self._warned),
        }

    def __repr__(self) -> str:
        left = self.read - self.kept_rows
        repaired = f" ({self.repaired_rows} of them repaired)" if self.repaired_rows else ""
        lines = [f"{self.read} rows read, {self.kept_rows} kept{repaired}, {left} left out"]
        lines[0] += "; rows are counted from 0" if left or self.repaired_rows or self._warned else ""
        lines += [f"  note: {note}" for note in self.notes]
        groups = (("left out", self._left_out), ("repaired and kept", self._repaired), ("kept, but look", self._warned))
        for title, found in groups:
            lines += [f"{title}:"] if found else []
            for why, rows in found.ordered():
                some = ", ".join(map(str, rows[:5])) + (", …" if len(rows) > 5 else "")
                lines.append(f"  {len(rows):>7}  {why}  (row{'s' if len(rows) > 1 else ''} {some})")
                lines += [f"           e.g. {excerpt}" for excerpt in self._excerpts.get(why, [])[:1]]
                lines += [f"           -> {why.remedy}"] if isinstance(why, Reason) else []
        return "\n".join(lines)
