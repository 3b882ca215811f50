"""Why a row was left out, or needs a look, and what to do about it: the report of all such reasons.

The texts are in reasons.yaml; `reasons.NO_PROMPT` is the `Reason` of that name there.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.base.errors import DataError
from workbench.base.kinds import Fields
from workbench.recipe import packaged
from workbench.task import Row

LONGEST_CHARACTERS = 100_000  # of one prompt; no context of a single GPU's policy holds more


class Reason(str):
    """A text with its `remedy`."""

    remedy: str

    def __new__(cls, text: str, remedy: str = "correct or delete those rows") -> Reason:
        made = super().__new__(cls, text)
        made.remedy = remedy
        return made


class Repair(str):
    """The rule of a repair, with an `example` of what it did."""

    example: str

    def __new__(cls, rule: str, before: str, after: str) -> Repair:
        made = super().__new__(cls, rule)
        made.example = f"{before[-60:]!r} -> {after!r:.60}"
        return made


class LeftOut(Exception):
    """A row that cannot be used, with the reason."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason


def _reasons() -> dict[str, Reason]:
    texts = packaged(Path(__file__).with_suffix(".yaml"))
    return {name: Reason(each["reason"], each["do"]) for name, each in texts.items()}


REASONS = _reasons()


def __getattr__(name: str) -> Reason:
    if name in REASONS:
        return REASONS[name]
    raise AttributeError(f"reasons.yaml has no {name}")


def answer_is(what: str) -> Reason:
    return Reason(f"answer is {what}", "write the answer as one text")


def unmarked(mark: str) -> Reason:
    remedy = (
        "correct those answers, or state that the whole column is the answer (--answer-after none,"
        " answer_after=None)"
    )
    return Reason(f"answer has no {mark}", remedy)


def column_is(
    column: str,
    what: str,
    remedy: str = "give it one kind of value in every row, or keep it as text",
) -> Reason:
    return Reason(f"column {column!r} {what}", remedy)


def differs(names: Sequence[str], joins: str) -> Reason:
    many = ", ".join(map(repr, names))
    return Reason(f"prompt is one of an earlier row, which differs in {many}", joins)


_AS_TEXT = " written as text"


def becomes_text(what: str) -> str:
    """The rule for a value that becomes text, which repairs nothing."""
    return what + _AS_TEXT


LEFT_OUT, REPAIRED, WARNED = "left out", "changed and kept", "kept, but look"
# reason, rule of a repair, or warning -> the numbers of its rows
Rows = dict[Any, array]


@dataclass
class Report:
    """What was read, what was kept, and why the rest was not: `kept_rows + len(left_out)` always
    adds up to `read`.

    Rows are counted from 0, in the order of the source. `kept` holds the rows themselves where they
    were collected.
    """

    source: str = ""
    read: int = 0
    kept_rows: int = 0
    repaired_rows: int = 0
    kept: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    columns: dict[str, str | None] = field(default_factory=dict)
    _groups: dict[str, Rows] = field(
        default_factory=lambda: {LEFT_OUT: {}, REPAIRED: {}, WARNED: {}}
    )
    _examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def left_out(self) -> list[tuple[int, str]]:
        """(row number, reason) of every row that was left out, in order."""
        return sorted(
            (number, why) for why, rows in self._groups[LEFT_OUT].items() for number in rows
        )

    # How many rows each of them has.
    reasons = property(lambda self: self._counts(LEFT_OUT))
    repairs = property(lambda self: self._counts(REPAIRED))
    warnings = property(lambda self: self._counts(WARNED))

    def _counts(self, group: str) -> Counter[Any]:
        return Counter({why: len(rows) for why, rows in self._groups[group].items()})

    def keep(self, number: int, oddities: list[str]) -> None:
        """Count a row as kept, with the rules that repaired it (texts) and its warnings
        (reasons).
        """
        self.kept_rows += 1
        # a number that becomes text was not broken
        self.repaired_rows += not all(
            isinstance(each, Reason) or each.endswith(_AS_TEXT) for each in oddities
        )
        for each in dict.fromkeys(oddities):
            group = WARNED if isinstance(each, Reason) else REPAIRED
            self._groups[group].setdefault(each, array("Q")).append(number)
            if isinstance(each, Repair):
                self._examples.setdefault(each, [each.example])

    def leave_out(self, number: int, reason: Reason, row: object) -> None:
        """Count a row as left out; the first three of each reason are shown, cut after 100
        characters.
        """
        self._groups[LEFT_OUT].setdefault(reason, array("Q")).append(number)
        examples = self._examples.setdefault(reason, [])
        if len(examples) < 3:
            where, text = getattr(row, "where", None), repr(row)
            cut = text if len(text) <= 100 else f"{text[:100]}…"
            examples.append(f"{where} of the file" if where else cut)

    def require(self) -> list[Row]:
        """The rows that were kept; DataError, with the commonest reason, if there are none."""
        if not self.kept_rows:
            why, count = next(iter(self.reasons.most_common(1)), (Reason("there are no rows"), 0))
            raise DataError(
                f"{self.source}: none of {self.read} rows could be kept; {count} times: {why}",
                rule="a dataset has rows that can be trained on",
                remedy=why.remedy,
            )
        return self.kept

    def found(self) -> Fields:
        """For `workbench check --json` and the dataset's record: every number, every row."""
        return {
            "source": self.source,
            "read": self.read,
            "kept": self.kept_rows,
            "repaired": self.repaired_rows,
            "left_out": self.read - self.kept_rows,
            "columns": self.columns,
            "notes": self.notes,
            "reasons": self._listed("reason", LEFT_OUT),
            "repairs": self._listed("rule", REPAIRED),
            "warnings": self._listed("warning", WARNED),
        }

    def _listed(self, kind: str, group: str) -> list[Fields]:
        listed = []
        for why, rows in _ordered(self._groups[group]):
            one: Fields = {kind: why, "count": len(rows)}
            if isinstance(why, Reason):
                one["do"] = why.remedy
            one["rows"] = rows.tolist()
            if why in self._examples:
                one["examples"] = self._examples[why]
            listed.append(one)
        return listed

    def __repr__(self) -> str:
        left = self.read - self.kept_rows
        repaired = f" ({self.repaired_rows} of them repaired)" if self.repaired_rows else ""
        first = f"{self.read} rows read, {self.kept_rows} kept{repaired}, {left} left out"
        if any(self._groups.values()):
            first += "; rows are counted from 0"
        lines = [first, *(f"  note: {note}" for note in self.notes)]
        for title, group in self._groups.items():
            lines += [f"{title}:"] if group else []
            for why, rows in _ordered(group):
                some = ", ".join(map(str, rows[:5])) + (", …" if len(rows) > 5 else "")
                lines.append(f"  {len(rows):>7}  {why}  (row{'s' if len(rows) > 1 else ''} {some})")
                for example in self._examples.get(why, [])[:1]:
                    lines.append(f"           e.g. {example}")
                if isinstance(why, Reason):
                    lines.append(f"           -> {why.remedy}")
        return "\n".join(lines)


def _ordered(group: Rows) -> list[tuple[Any, array]]:
    # The commonest first; of those as common, the earliest.
    return sorted(group.items(), key=lambda item: (-len(item[1]), item[1][0]))
