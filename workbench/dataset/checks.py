"""Checks on rows, one by one: each is kept, repaired by a stated rule and kept, or left out and listed with its reason.

Rows stream through: what is remembered of a million rows is a hash of each prompt, and the numbers of those that were
repaired or left out.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.dataset import reasons
from workbench.dataset.answer_column import MARK, as_text, extract_answer, is_number
from workbench.dataset.columns import Columns, choose_columns
from workbench.dataset.messages import clean, comparable, messages_of
from workbench.dataset.prompts import question_of, to_messages
from workbench.dataset.sources import Source, Unreadable, open_source
from workbench.dataset.task import RESERVED_COLUMNS, Row
from workbench.run.errors import DataError

LONGEST_CHARACTERS = 100_000  # of one prompt; no context of a single GPU's policy holds more
SHORTEST_LEAK = 20  # characters: shorter answers stand in many a question by chance
_GIVES_IT_AWAY = ("answer:", "answer is", "answer:**", "solution:", "####", "<answer>", "result:")
_EXCERPTS = 3


@dataclass
class Report:
    """What was read, what was kept, and why the rest was not: `kept_rows + len(left_out)` always adds up to `read`.

    Rows are counted from 0, in the order of the source. `kept` holds the rows themselves where they were collected.
    """

    source: str = ""
    read: int = 0
    kept_rows: int = 0
    kept: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    columns: dict[str, str | None] = field(default_factory=dict)
    _left_out: dict[str, array] = field(default_factory=dict)
    _repaired: dict[str, array] = field(default_factory=dict)
    _warned: dict[str, array] = field(default_factory=dict)
    _excerpts: dict[str, list[str]] = field(default_factory=dict)
    repaired_rows: int = 0

    @property
    def left_out(self) -> list[tuple[int, str]]:
        """(row number, reason) of every row that was left out, in order."""
        return sorted((number, reason) for reason, numbers in self._left_out.items() for number in numbers)

    @property
    def reasons(self) -> Counter[str]:
        return Counter({reason: len(numbers) for reason, numbers in self._left_out.items()})

    @property
    def repairs(self) -> Counter[str]:
        return Counter({rule: len(numbers) for rule, numbers in self._repaired.items()})

    @property
    def warnings(self) -> Counter[str]:
        return Counter({what: len(numbers) for what, numbers in self._warned.items()})

    def leave_out(self, number: int, reason: str, excerpt: str = "") -> None:
        _note(self._left_out, reason, number)
        shown = self._excerpts.setdefault(reason, [])
        if excerpt and len(shown) < _EXCERPTS:
            shown.append(excerpt)

    def repair(self, number: int, rule: str) -> None:
        _note(self._repaired, rule, number)

    def warn(self, number: int, what: str) -> None:
        _note(self._warned, what, number)

    def found(self) -> dict[str, Any]:
        """For `workbench check --json` and the dataset's card: every number, every row."""
        return {
            "source": self.source,
            "read": self.read,
            "kept": self.kept_rows,
            "repaired": self.repaired_rows,
            "left_out": self.read - self.kept_rows,
            "columns": self.columns,
            "notes": self.notes,
            "reasons": [
                {
                    "reason": why,
                    "count": len(rows),
                    "rows": rows.tolist(),
                    "do": reasons.remedy(why),
                    "examples": self._excerpts[why],
                }
                for why, rows in _by_count(self._left_out)
            ],
            "repairs": [
                {"rule": why, "count": len(rows), "rows": rows.tolist()} for why, rows in _by_count(self._repaired)
            ],
            "warnings": [
                {"warning": why, "count": len(rows), "rows": rows.tolist(), "do": reasons.remedy(why)}
                for why, rows in _by_count(self._warned)
            ],
        }

    def __str__(self) -> str:
        left = self.read - self.kept_rows
        repaired = f" ({self.repaired_rows} of them repaired)" if self.repaired_rows else ""
        lines = [f"{self.read} rows read, {self.kept_rows} kept{repaired}, {left} left out"]
        lines[0] += "; rows are counted from 0" if left or self.repaired_rows else ""
        lines += [f"  note: {note}" for note in self.notes]
        for title, found in (
            ("left out", self._left_out),
            ("repaired and kept", self._repaired),
            ("kept, but look", self._warned),
        ):
            lines += [f"{title}:"] if found else []
            for why, rows in _by_count(found):
                lines.append(f"  {len(rows):>7}  {why}  (row{'s' if len(rows) > 1 else ''} {_some(rows)})")
                lines += [f"           e.g. {excerpt}" for excerpt in self._excerpts.get(why, [])[:1]]
                todo = reasons.remedy(why) if found is not self._repaired else ""
                lines += [f"           -> {todo}"] if todo else []
        return "\n".join(lines)


def _note(found: dict[str, array], key: str, number: int) -> None:
    if key not in found:
        found[key] = array("Q")
    found[key].append(number)


def _by_count(found: dict[str, array]) -> list[tuple[str, array]]:
    return sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))


def _some(numbers: Sequence[int], most: int = 5) -> str:
    return ", ".join(map(str, numbers[:most])) + (", …" if len(numbers) > most else "")


class Checked:
    """The rows of a source that can be used, one by one; `report` is complete once all have been gone through.

    A row of the result has `prompt` (chat messages, or text), `answer` (text) if the task has answers, and every other
    column as it was.

    Args:
        source: anything that `open_source` takes.
        prompt_column, answer_column: None: `prompt` and `answer`, or a well-known other name, which is then said.
            `answer_column="none"` for a task without answers.
        system: text of a system message; empty: none.
        examples: worked (question, answer) pairs to show first.
        as_turns: show the examples as turns of the chat, not in the system message.
        chat: make chat messages of prompts that are text; False keeps them text.
        answer_after: the mark that the answer stands after in a longer text; "auto": `####`, if the first answers have
            it; None: the whole column is the answer.
        numbers: an answer that is no number cannot be right, so its row is left out.
        other: rows of the other split: a prompt that stands there too is contamination.
        longest: characters that a prompt may have.
        progress: called with the number of rows read, now and then.

    Raises:
        DataError: if the columns cannot be told, before the first row is read.
    """

    def __init__(
        self,
        source: Any,
        *,
        prompt_column: str | None = None,
        answer_column: str | None = None,
        system: str = "",
        examples: Sequence[tuple[str, str]] = (),
        as_turns: bool = False,
        chat: bool = True,
        answer_after: str | None = "auto",
        numbers: bool = False,
        other: Iterable[Row] = (),
        longest: int = LONGEST_CHARACTERS,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.source = source if isinstance(source, Source) else open_source(source)
        first = self.source.first()
        if not first:
            nothing = next(iter(self.source), None) is None
            raise DataError(
                f"{self.source.name}: " + ("no rows" if nothing else "no row of the first ones can be read"),
                rule="a dataset has rows, each one object",
                remedy="check the file",
            )
        names = list(dict.fromkeys(name for row in first for name in row))
        names = [name for name in names if name not in RESERVED_COLUMNS]  # such rows are listed, one by one
        self.columns: Columns = choose_columns(names, prompt_column, answer_column)
        self.report = Report(self.source.name, notes=[*self.source.notes, *self.columns.notes])
        for role, chosen in (("prompt", self.columns.prompt), ("answer", self.columns.answer)):
            if role in names and chosen != role:
                self.report.notes.append(
                    f"the column {role!r} gives way to {chosen!r}, and is kept as 'original_{role}'"
                )
        self.report.columns = {"prompt": self.columns.prompt, "answer": self.columns.answer}
        self.mark = self._mark(first, answer_after)
        self.system, self.examples, self.as_turns, self.chat = system, tuple(examples), as_turns, chat
        self.numbers, self.longest, self.progress = numbers, longest, progress
        self.elsewhere = {hash(comparable(row["prompt"])) for row in other}

    def _mark(self, first: list[Row], asked: str | None) -> str | None:
        if asked != "auto" or self.columns.answer is None:
            return None if asked == "auto" else asked
        answers = [row.get(self.columns.answer) for row in first]
        marked = sum(isinstance(answer, str) and MARK in answer for answer in answers)
        if marked * 2 <= len(answers):
            return None
        self.report.notes.append(f"answer: what stands after {MARK}; the whole text is kept as `rationale`")
        return MARK

    def collect(self) -> Report:
        """Go through all rows and keep them in the report."""
        self.report.kept = list(self)
        return self.report

    def __iter__(self) -> Iterator[Row]:
        report = self.begin()
        for number, raw in enumerate(self.source):
            report.read += 1
            row, reason = self.look(raw)
            if reason is None:
                report.kept_rows += 1
                report.repaired_rows += bool(self._repairs)
                for rule in self._repairs:
                    report.repair(number, rule)
                for what in self._warnings:
                    report.warn(number, what)
                yield row
            else:
                report.leave_out(number, reason, _excerpt(raw))
            if self.progress is not None and number % 1000 == 999:
                self.progress(number + 1)
        if self.progress is not None:
            self.progress(report.read)

    def begin(self) -> Report:
        """Begin a pass: nothing has been seen, and the report is empty but for its notes."""
        self._seen: dict[int, int] = {}
        self._kinds: dict[str, str] = {}
        self._keys: dict[str, Any] = {}
        self._chat_rows: bool | None = None
        self.report = Report(self.source.name, notes=self.report.notes, columns=self.report.columns)
        return self.report

    def look(self, raw: Any) -> tuple[Row, str | None]:
        """(the row as it can be used, the reason why it cannot); what this pass has seen before is remembered."""
        self._repairs: list[str] = []
        self._warnings: list[str] = []
        return self._check(raw)

    def _check(self, raw: Any) -> tuple[Row, str | None]:
        if isinstance(raw, Unreadable):
            return {}, raw.reason
        if not isinstance(raw, dict):
            return {}, reasons.NOT_AN_OBJECT
        if not RESERVED_COLUMNS.isdisjoint(raw):
            return {}, reasons.reserved(sorted(RESERVED_COLUMNS.intersection(raw))[0])
        prompt, reason = self._prompt(raw.get(self.columns.prompt))
        if reason is not None:
            return {}, reason
        row: Row = {"prompt": prompt}
        if self.columns.answer is not None:
            reason = self._answer(raw, row)
            if reason is not None:
                return {}, reason
        for name, value in raw.items():
            if name not in (self.columns.prompt, self.columns.answer):
                reason = self._column(name, value)
                if reason is not None:
                    return {}, reason
                row[f"original_{name}" if name in ("prompt", "answer") else name] = value
        return row, self._twice(row) or self._learn_kinds(row)

    def _prompt(self, value: Any) -> tuple[Any, str | None]:
        if isinstance(value, str):
            text = clean(value, self._repairs, self._warnings)
            reason = None if text.strip() else reasons.EMPTY
            size = len(text)
            prompt = to_messages(text, self.system, self.examples, as_turns=self.as_turns) if self.chat else text
        else:
            prompt, reason = messages_of(value, self._repairs, self._warnings)
            if reason is None and self.system and prompt[0]["role"] != "system":
                prompt = [{"role": "system", "content": self.system}, *prompt]
            size = 0 if reason else sum(len(message["content"]) for message in prompt)
        if reason is None and size > self.longest:
            reason = reasons.too_long(self.longest)
        is_chat = not isinstance(prompt, str)
        if reason is None and self._chat_rows is not None and is_chat != self._chat_rows:
            reason = reasons.MIXED
        return prompt, reason

    def _answer(self, raw: Row, row: Row) -> str | None:
        value = raw.get(self.columns.answer)
        if self.mark is not None:
            given = extract_answer(value, self.mark) if isinstance(value, str) else None
            if given is None:
                return reasons.unmarked(self.mark) if value not in (None, "") else "no answer"
            if "rationale" not in raw:
                row["rationale"] = value
            value = given
        text, repair, reason = as_text(value)
        if reason is not None:
            return reason
        if repair is not None:
            self._repairs.append(repair)
        if self.numbers and not is_number(text):
            return reasons.NO_NUMBER
        cleaned = clean(text, self._repairs, self._warnings).strip()
        row["answer"] = cleaned
        return self._leak(question_of(row["prompt"]), cleaned) if cleaned else "answer is empty"

    def _leak(self, question: str, answer: str) -> str | None:
        place = question.find(answer)
        if place < 0:
            return None
        while place >= 0:
            before, after = (
                question[max(0, place - 30) : place].rstrip(" *\n\t").casefold(),
                question[place + len(answer) :][:1],
            )
            if before.endswith(_GIVES_IT_AWAY) and not after.isalnum():
                return reasons.LEAK
            place = question.find(answer, place + 1)
        if len(answer) >= SHORTEST_LEAK:
            self._warnings.append(reasons.VERBATIM)
        return None

    def _column(self, name: str, value: Any) -> str | None:
        if value is None or (kind := _KINDS.get(type(value))) is None:
            return None
        if kind == "an object" and self._keys.setdefault(name, value.keys()) != value.keys():
            self._warnings.append(reasons.other_keys(name))
        known = self._kinds.get(name)
        return reasons.other_kind(name, kind, known) if known is not None and known != kind else None

    def _twice(self, row: Row) -> str | None:
        key = hash(comparable(row["prompt"]))
        if key in self.elsewhere:
            return reasons.CONTAMINATED
        answer = hash(row.get("answer"))
        if key not in self._seen:
            self._seen[key] = answer
            return None
        return reasons.DUPLICATE if self._seen[key] == answer else reasons.CONTRADICTS

    def _learn_kinds(self, row: Row) -> str | None:
        if self._chat_rows is None:
            self._chat_rows = not isinstance(row["prompt"], str)
        for name, value in row.items():
            if name not in self._kinds and name not in ("prompt", "answer"):
                kind = None if value is None else _KINDS.get(type(value))
                if kind is not None:
                    self._kinds[name] = kind
        return None


# A column holds one kind; whole numbers and fractions are one, as they are for pyarrow.
_KINDS = {
    str: "text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    tuple: "a list",
    dict: "an object",
}


def _excerpt(raw: Any, longest: int = 100) -> str:
    if isinstance(raw, Unreadable):
        return raw.where
    text = (
        repr(raw)
        if not isinstance(raw, (str, dict, list)) or len(raw) < 1000
        else f"{type(raw).__name__} of {len(raw)}"
    )
    return text if len(text) <= longest else f"{text[:longest]}…"


def check_rows(rows: Any, answer_column: str | None = "answer", other: Iterable[Row] = (), **options: Any) -> Report:
    """Check rows that are prompts already, and collect those that can be used.

    Args:
        rows: anything that `open_source` takes.
        answer_column: None if the task has no answers.
        other: rows of the other split; a prompt that also stands there is contamination.
        options: as for `Checked`.
    """
    options = {"prompt_column": "prompt", "answer_after": None, "chat": False, **options}
    return Checked(rows, answer_column=answer_column or "none", other=other, **options).collect()
