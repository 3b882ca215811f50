"""Checks on rows, one by one: each is kept, repaired by a stated rule and kept, or left out and listed with its reason.

Rows stream through: what is remembered of a row is a hash of its prompt and one of its answer, and its number if it was
repaired or left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from workbench.data import reasons
from workbench.data.answer_column import (
    MARK,
    Units,
    as_text,
    extract_answer,
    is_marked,
    is_number,
    is_placeholder,
    says,
    unit_of,
)
from workbench.data.columns import LAST_TURN, Columns, choose_columns
from workbench.data.kinds import Kinds
from workbench.data.messages import clean, comparable, last_turn, messages_of, plain, question_text, whole
from workbench.data.prompts import to_messages
from workbench.data.report import Report
from workbench.data.sources import Source, Unreadable, open_source
from workbench.errors import DataError
from workbench.task import RESERVED_COLUMNS, Row

LONGEST_CHARACTERS = 100_000  # of one prompt; no context of a single GPU's policy holds more
SHORTEST_COPY = 20  # characters: shorter answers stand in many a question by chance


class Checked:
    """The rows of a source that can be used, one by one; `report` is complete once all have been gone through.

    A row of the result has `prompt` (chat messages, or text), `answer` (text) if the task has answers, and every other
    column as it was.

    Args:
        source: anything that `open_source` takes.
        prompt_column, answer_column: None: `prompt` and `answer`, or a well-known other name, which is then said.
            `answer_column="none"` for a task without answers, "assistant" for chats that end with the right answer.
        system: text of a system message for prompts that bring none; empty: none.
        examples: worked (question, answer) pairs to show before a prompt that is text.
        as_turns: show the examples as turns of the chat, not in the system message.
        chat: make chat messages of prompts that are text; False keeps them text.
        answer_after: the mark that the answer stands after in a longer text; "auto": `####`, if most of the first answers
            end with a line that begins with it; None: the whole column is the answer.
        numbers: an answer that is no number cannot be right, so its row is left out.
        other: the other split, anything that `open_source` takes: a prompt that stands there too is contamination.
        longest: characters that a prompt may have.
        progress: called with the number of rows read, now and then.

    Raises:
        DataError: if the columns cannot be told, or there are no rows, before the first row is given out.
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
        other: Any = (),
        longest: int = LONGEST_CHARACTERS,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        if not chat and (system or examples):
            raise DataError(
                "chat = False, and a system message or examples",
                rule="only chat messages have a system message",
                remedy="leave chat as it is, or write both into the prompts yourself",
            )
        self.source = source if isinstance(source, Source) else open_source(source)
        first = self.source.first()
        self.columns = self._columns(first, prompt_column, answer_column)
        self.names = _free_names(first, self.columns)
        self.reserved = RESERVED_COLUMNS - {self.columns.prompt, self.columns.answer}
        self.last_turn = self.columns.answer == LAST_TURN and not any(LAST_TURN in row for row in first)
        answers = [self._raw_answer(row) for row in first] if self.columns.answer else []
        self.mark = _mark(answers, answer_after)
        told = [extract_answer(answer, self.mark) if self.mark else as_text(answer)[0] for answer in answers]
        self.numeric = _numeric([text for text in told if text and not is_placeholder(text)])
        self.notes = [*self.source.notes, *self.columns.notes, *self._notes(answer_after)]
        self.report = Report(self.source.name, notes=self.notes)
        self.report.columns = {"prompt": self.columns.prompt, "answer": self.columns.answer}
        self.system, self.examples, self.as_turns, self.chat = system, tuple(examples), as_turns, chat
        self.numbers, self.longest, self.progress = numbers, longest, progress
        self.elsewhere = _questions(other, self.last_turn)

    def _columns(self, first: list[Row], prompt: str | None, answer: str | None) -> Columns:
        if not first:
            if next(iter(self.source), self) is self:
                raise DataError(f"{self.source.name}: no rows", rule="a dataset has rows", remedy="check the file")
            return Columns("prompt", "answer")  # nothing can be read: every row is listed with its reason
        names = list(dict.fromkeys(name for row in first for name in row))
        # A reserved name in some rows is those rows' fault; in all of them it is the dataset's.
        everywhere = set.intersection(*(set(row) for row in first))
        names = [
            name for name in names if name in everywhere or name not in RESERVED_COLUMNS or name in (prompt, answer)
        ]
        answered = {name for row in first for name in row if last_turn(row[name], [], [])[1] is not None}
        return choose_columns(names, prompt, answer, answered)

    def _notes(self, answer_after: str | None) -> list[str]:
        notes = [
            f"the column {old!r} is kept as {new!r}" for old, new in self.names.items() if old in ("prompt", "answer")
        ]
        if self.mark is not None and answer_after == "auto":
            notes.append(f"answer: what stands after {self.mark}; the whole text is kept as {self.names['']!r}")
        return notes

    def collect(self) -> Report:
        """Go through all rows and keep them in the report."""
        rows = list(self)
        self.report.kept = rows
        return self.report

    def __iter__(self) -> Iterator[Row]:
        report = self.begin()
        for number, raw in enumerate(self.source):
            report.read += 1
            row, reason = self.look(raw)
            if reason is None:
                report.keep(number, self._repairs, self._warnings)
                self._units.count(number, row.get("answer"))
                yield row
            else:
                report.leave_out(number, reason, raw)
            if self.progress is not None and number % 1000 == 999:
                self.progress(number + 1)
        report.notes += self._units.notes
        if self.progress is not None:
            self.progress(report.read)

    def begin(self) -> Report:
        """Begin a pass: nothing has been seen, and the report is empty but for its notes."""
        self._seen: dict[int, int] = {}
        self._kinds, self._units = Kinds(), Units()
        self._chat_rows: bool | None = None
        self.report = Report(self.source.name, notes=[*self.notes], columns=self.report.columns)
        return self.report

    def _raw_answer(self, row: Row) -> Any:
        return last_turn(row.get(self.columns.prompt), [], [])[1] if self.last_turn else row.get(self.columns.answer)

    def look(self, raw: Any) -> tuple[Row, str | None]:
        """(the row as it can be used, the reason why it cannot); what this pass has seen before is remembered."""
        self._repairs: list[str] = []
        self._warnings: list[str] = []
        if isinstance(raw, Unreadable):
            return {}, raw.reason
        if not isinstance(raw, dict):
            return {}, reasons.NOT_AN_OBJECT
        if not self.reserved.isdisjoint(raw):
            return {}, reasons.reserved(sorted(self.reserved.intersection(raw))[0])
        asked = raw.get(self.columns.prompt)
        if self.last_turn:
            asked, answer = last_turn(asked, self._repairs, self._warnings)
            raw = {**raw, LAST_TURN: answer}
        prompt, reason = self._prompt(asked)
        row: Row = {"prompt": prompt}
        if reason is None and self.columns.answer is not None:
            reason = self._answer(raw, row)
        if reason is None:
            reason = self._others(raw, row) or self._twice(row)
        if reason is None:
            self._kinds.learn()
            self._chat_rows = not isinstance(prompt, str)
        return row, reason

    def _prompt(self, value: Any) -> tuple[Any, str | None]:
        if hasattr(value, "tolist"):  # a frame's array of messages
            value = value.tolist()
        if isinstance(value, str):
            prompt: Any = clean(value, self._repairs, self._warnings)
            reason = None if prompt.strip() else reasons.EMPTY
            size = len(prompt)
            if self.chat:
                prompt = to_messages(prompt, self.system, self.examples, as_turns=self.as_turns)
        else:
            prompt, reason = messages_of(value, self._repairs, self._warnings)
            size = 0 if reason else sum(len(message["content"]) for message in prompt)
            if reason is None:
                prompt = self._with_system(prompt)
        if reason is None and size > self.longest:
            reason = reasons.too_long(self.longest)
        if reason is None and self._chat_rows is not None and isinstance(prompt, str) is self._chat_rows:
            reason = reasons.MIXED
        return prompt, reason

    def _with_system(self, prompt: list[Row]) -> list[Row]:
        if self.examples:
            self._warnings.append(reasons.NO_EXAMPLE)
        if not self.system:
            return prompt
        if prompt[0]["role"] != "system":
            return [{"role": "system", "content": self.system}, *prompt]
        if prompt[0]["content"] != self.system:
            self._warnings.append(reasons.OWN_SYSTEM)
        return prompt

    def _answer(self, raw: Row, row: Row) -> str | None:
        value = raw.get(self.columns.answer)
        if value is None and self.last_turn:
            return reasons.NO_TURN
        if self.mark is not None:
            given = extract_answer(value, self.mark) if isinstance(value, str) else None
            if given is None:
                return reasons.unmarked(self.mark) if value not in (None, "") else "no answer"
            row[self.names[""]] = whole(value, self._repairs)
            value = given
        text, repair, reason = as_text(value)
        if reason is not None:
            return reason
        if repair is not None:
            self._repairs.append(repair)
        if self.numbers and not is_number(text):
            return reasons.NO_NUMBER
        if is_placeholder(text):
            if self.numeric:
                return reasons.PLACEHOLDER
            self._warnings.append(reasons.PLACEHOLDER_KEPT)
        if self.mark is None and MARK in text:
            self._warnings.append(reasons.MARKED)
        row["answer"] = answer = clean(text, self._repairs, self._warnings).strip()
        if not answer:
            return "answer is empty"
        question = question_text(row["prompt"])
        folded, wanted = question.casefold(), answer.casefold()
        if wanted in folded or ("," in folded and wanted in folded.replace(",", "")):
            *earlier, last = question.rstrip().splitlines()
            if says(last, answer):
                return reasons.LEAK
            if any(says(line, answer) for line in earlier):
                self._warnings.append(reasons.EARLIER)
            elif len(answer) >= SHORTEST_COPY:
                self._warnings.append(reasons.VERBATIM)
        return None

    def _others(self, raw: Row, row: Row) -> str | None:
        for name, value in raw.items():
            if name in (self.columns.prompt, self.columns.answer):
                continue
            value = plain(name, value, self._repairs)
            reason = self._kinds.look(name, value, self._warnings)
            if reason is not None:
                return reason
            row[self.names.get(name, name)] = value
        if isinstance(row["prompt"], str):
            return None
        return self._kinds.look_at_messages(row["prompt"])

    def _twice(self, row: Row) -> str | None:
        if self.elsewhere and hash(comparable(row["prompt"], system=False)) in self.elsewhere:
            return reasons.CONTAMINATED
        key, answer = hash(comparable(row["prompt"])), hash(row.get("answer"))
        if key not in self._seen:
            self._seen[key] = answer
            return None
        return reasons.DUPLICATE if self._seen[key] == answer else reasons.CONTRADICTS


def _free_names(first: list[Row], columns: Columns) -> dict[str, str]:
    # What the row's own `prompt` and `answer` displace goes on under a name that no column has; "" is the worked answer.
    taken = {name for row in first for name in row}
    found = {}
    for old, wish in (("prompt", "original_prompt"), ("answer", "original_answer"), ("", "rationale")):
        if old and (old not in taken or old in (columns.prompt, columns.answer)):
            continue
        name = next(n for n in (wish, *(f"{wish}_{count}" for count in range(2, 1000))) if n not in taken)
        found[old] = name
        taken.add(name)
    return found


def _mark(answers: list[Any], asked: str | None) -> str | None:
    if asked != "auto":
        return asked
    return MARK if sum(map(is_marked, answers)) * 2 > len(answers) else None


def _numeric(answers: list[str]) -> bool:
    # Nearly all are numbers, with a unit or without, and there are enough to tell.
    numbers = sum(is_number(text) or unit_of(text) is not None for text in answers)
    return len(answers) >= 10 and numbers >= 0.9 * len(answers)


def _questions(other: Any, cut: bool) -> set[int]:
    """Hashes of the questions of the other split: what they ask, without system messages."""
    if isinstance(other, (list, tuple)) and not other:
        return set()
    source = open_source(other)
    if not source.first(1):
        return set()
    rows = Checked(source, answer_column="none")
    rows.last_turn = cut  # its chats may end with an answer, too
    return {hash(comparable(row["prompt"], system=False)) for row in rows}


def check_rows(rows: Any, answer_column: str | None = "answer", other: Any = (), **options: Any) -> Report:
    """Check rows that are prompts already, and collect those that can be used.

    Args:
        rows: anything that `open_source` takes.
        answer_column: None if the task has no answers.
        other: the other split; a prompt that also stands there is contamination.
        options: as for `Checked`.
    """
    options = {"prompt_column": "prompt", "answer_after": None, "chat": False, **options}
    return Checked(rows, answer_column=answer_column or "none", other=other, **options).collect()
