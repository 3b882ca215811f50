"""Checks on rows: nothing is dropped in silence, every row that is left out is listed with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from workbench.dataset.split import prompt_key
from workbench.dataset.task import RESERVED_COLUMNS, Row

ROLES = ("system", "user", "assistant", "tool")


@dataclass
class Report:
    """What was read, what was kept, and why the rest was not.

    `left_out` holds (row number from 0, reason) pairs; `kept + left_out` always adds up to `read`.
    """

    read: int = 0
    kept: list[Row] = field(default_factory=list)
    left_out: list[tuple[int, str]] = field(default_factory=list)

    @property
    def reasons(self) -> Counter[str]:
        return Counter(reason for _, reason in self.left_out)

    def __str__(self) -> str:
        lines = [f"{self.read} rows read, {len(self.kept)} kept, {len(self.left_out)} left out"]
        for reason, count in self.reasons.most_common():
            where = [str(number) for number, why in self.left_out if why == reason]
            lines.append(f"  {count:>6}  {reason} (rows {', '.join(where[:5])}{', …' if count > 5 else ''})")
        return "\n".join(lines)


def check_rows(rows: Iterable[Row], answer_column: str | None = "answer", other: Iterable[Row] = ()) -> Report:
    """Check rows one by one.

    Args:
        rows: what to check.
        answer_column: the column that must hold an answer; None if the task has none.
        other: rows of the other split; a prompt that also stands there is contamination.
    """
    report = Report()
    elsewhere = {prompt_key(row["prompt"]) for row in other if "prompt" in row}
    seen: set[str] = set()
    kind: str | None = None
    for number, row in enumerate(rows):
        report.read += 1
        reason = _prompt_problem(row) or _column_problem(row, answer_column)
        if reason is None:
            key, this_kind = prompt_key(row["prompt"]), type(row["prompt"]).__name__
            kind = kind or this_kind
            if this_kind != kind:
                reason = "prompt is chat in some rows and text in others"
            elif key in elsewhere:
                reason = "prompt is also in the other split"
            elif key in seen:
                reason = "prompt is a duplicate of an earlier row"
            seen.add(key)
        if reason is None:
            report.kept.append(row)
        else:
            report.left_out.append((number, reason))
    return report


def _prompt_problem(row: Row) -> str | None:
    if not isinstance(row, dict):
        return "row is not a dict"
    prompt = row.get("prompt")
    if prompt is None:
        return "no prompt"
    if isinstance(prompt, str):
        return None if prompt.strip() else "prompt is empty"
    if not isinstance(prompt, list) or not prompt:
        return "prompt is neither text nor a list of messages"
    for message in prompt:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            return "a message is not {role, content}"
        if message.get("role") not in ROLES:
            return f"a message's role is not one of {', '.join(ROLES)}"
    if prompt[-1]["role"] == "assistant":
        return "the last message is the assistant's: nothing is left to generate"
    return None if any(message["content"].strip() for message in prompt) else "prompt is empty"


def _column_problem(row: Row, answer_column: str | None) -> str | None:
    reserved = RESERVED_COLUMNS.intersection(row)
    if reserved:
        return f"column {sorted(reserved)[0]!r} is reserved by TRL"
    if answer_column is None:
        return None
    answer = row.get(answer_column)
    return f"no {answer_column}" if answer is None or not str(answer).strip() else None
