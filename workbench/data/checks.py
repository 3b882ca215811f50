"""Checks on rows, one by one: each is kept, repaired by a stated rule and kept, or left out and listed with its reason.

Rows stream through: what is remembered of a row is a hash of its prompt and one of its answer, and its number if it was
repaired or left out.
"""

from __future__ import annotations

import contextlib
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
from workbench.data.messages import clean, comparable, last_turn, messages_of, plain, question_text, whole
from workbench.data.prompts import examples_for, system_prompt, to_messages
from workbench.data.reasons import Findings, LeftOut
from workbench.data.report import Report
from workbench.data.sources import Source, Unreadable, open_source
from workbench.errors import DataError
from workbench.progress import count_line
from workbench.task import RESERVED_COLUMNS, Row

LONGEST_CHARACTERS = 100_000  # of one prompt; no context of a single GPU's policy holds more
SHORTEST_COPY = 20  # characters: shorter answers stand in many a question by chance


def check(
    source: Any,
    *,
    prompt_column: str | None = None,
    answer_column: str | None = None,
    answer_after: str | None = "auto",
    system: str = "none",
    worked_example: bool = False,
    other: Any = None,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> Report:
    """Check every row of a source and turn those that can be used into prompts.

    >>> report = wb.check([{"question": "What is 1 + 1?", "answer": 2}, {"question": "", "answer": "2"}], system="tags")
    >>> print(report)
    2 rows read, 1 kept (1 of them repaired), 1 left out; rows are counted from 0
    ...
    >>> rows = report.require()

    Args:
        source: anything that `wb.open_source` takes, or what it returned.
        prompt_column: None: "prompt", or a well-known other name such as "question", which the report then states.
        answer_column: likewise; "assistant": the last turn of a chat; "none": the task has no answers.
        answer_after: mark that the answer stands after; "auto": GSM8K's `####`, where most answers have it; None: none.
        system: the format that the system message asks for: "tags", "think", "mark", "none", or a text.
        worked_example: show one worked example ("tags", "think" and "mark" have one).
        other: the other split: a prompt that also stands there is contamination.
        progress: called with the number of rows read, now and then; None: a count in the cell.
        options: as for `Checked`.

    Returns:
        A `Report`, which shows itself; `report.require()` returns the rows that were kept.

    Raises:
        DataError: if the source cannot be opened, is empty, or its columns are ambiguous.
    """
    return Checked(
        source,
        prompt_column=prompt_column,
        answer_column=answer_column,
        answer_after=answer_after,
        system=system_prompt(system),
        examples=examples_for(system) if worked_example else (),
        other=() if other is None else other,
        progress=progress or count_line("rows"),
        **options,
    ).collect()


class Checked:
    """The rows of a source that can be used, one by one; `report` is complete once all have been gone through.

    A row of the result has `prompt` (chat messages, or text), `answer` (text) if the task has answers, and every other
    column as it was.

    Args:
        source: anything that `open_source` takes.
        prompt_column, answer_column: None: `prompt` and `answer`, or a well-known other name, which the notes then state.
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
        self.numeric = _numeric(answers, self.mark)
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
        names = [name for name in names if name in everywhere or name not in RESERVED_COLUMNS or name in (prompt, answer)]
        answered = {name for row in first for name in row if last_turn(row[name], Findings())[1] is not None}
        return choose_columns(names, prompt, answer, answered)

    def _notes(self, answer_after: str | None) -> list[str]:
        notes = [f"the column {old!r} is kept as {new!r}" for old, new in self.names.items() if old in ("prompt", "answer")]
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
            try:
                row = self._usable(raw)
            except LeftOut as left_out:
                report.leave_out(number, left_out.reason, raw)
            else:
                report.keep(number, self._found)
                self._units.count(number, row.get("answer"))
                yield row
            if self.progress is not None and number % 1000 == 999:
                self.progress(number + 1)
        report.notes += self._units.notes
        if self.progress is not None:
            self.progress(report.read)

    def begin(self) -> Report:
        """Begin a pass: nothing has been seen, and the report is empty but for its notes."""
        self._seen: dict[int, int] = {}
        self._kinds, self._units = _Kinds(), Units()
        self._chat_rows: bool | None = None
        self.report = Report(self.source.name, notes=[*self.notes], columns=self.report.columns)
        return self.report

    def look(self, raw: Any) -> tuple[Row, str | None]:
        """(the row as it can be used, the reason why it cannot); what this pass has seen before is remembered."""
        try:
            return self._usable(raw), None
        except LeftOut as left_out:
            return {}, left_out.reason

    def _raw_answer(self, row: Row) -> Any:
        if self.last_turn:
            return last_turn(row.get(self.columns.prompt), Findings())[1]
        return row.get(self.columns.answer)

    def _usable(self, raw: Any) -> Row:
        self._found, self._kinds.met = Findings(), {}
        if isinstance(raw, Unreadable):
            raise LeftOut(raw.reason)
        if not isinstance(raw, dict):
            raise LeftOut(reasons.NOT_AN_OBJECT)
        if not self.reserved.isdisjoint(raw):
            raise LeftOut(reasons.reserved(sorted(self.reserved.intersection(raw))[0]))
        asked = raw.get(self.columns.prompt)
        if self.last_turn:
            asked, answer = last_turn(asked, self._found)
            raw = {**raw, LAST_TURN: answer}
        row: Row = {"prompt": self._prompt(asked)}
        if self.columns.answer is not None:
            self._answer(raw, row)
        self._others(raw, row)
        self._twice(row)
        self._kinds.learn()
        self._chat_rows = not isinstance(row["prompt"], str)
        return row

    def _prompt(self, value: Any) -> Any:
        if hasattr(value, "tolist"):  # a frame's array of messages
            value = value.tolist()
        if isinstance(value, str):
            prompt: Any = clean(value, self._found)
            size = len(prompt)
            if not prompt.strip():
                raise LeftOut(reasons.EMPTY)
            if self.chat:
                prompt = to_messages(prompt, self.system, self.examples, as_turns=self.as_turns)
        else:
            prompt = messages_of(value, self._found)
            size = sum(len(message["content"]) for message in prompt)
            prompt = self._with_system(prompt)
        if size > self.longest:
            raise LeftOut(reasons.too_long(self.longest))
        if self._chat_rows is not None and isinstance(prompt, str) is self._chat_rows:
            raise LeftOut(reasons.MIXED)
        return prompt

    def _with_system(self, prompt: list[Row]) -> list[Row]:
        if self.examples:
            self._found.warn(reasons.NO_EXAMPLE)
        if not self.system:
            return prompt
        if prompt[0]["role"] != "system":
            return [{"role": "system", "content": self.system}, *prompt]
        if prompt[0]["content"] != self.system:
            self._found.warn(reasons.OWN_SYSTEM)
        return prompt

    def _answer(self, raw: Row, row: Row) -> None:
        value = raw.get(self.columns.answer)
        if value is None and self.last_turn:
            raise LeftOut(reasons.NO_TURN)
        if self.mark is not None:
            given = extract_answer(value, self.mark) if isinstance(value, str) else None
            if given is None:
                raise LeftOut(reasons.unmarked(self.mark) if value not in (None, "") else reasons.NO_ANSWER)
            row[self.names[""]] = whole(value, self._found)
            value = given
        text = as_text(value, self._found)
        if self.numbers and not is_number(text):
            raise LeftOut(reasons.NO_NUMBER)
        if is_placeholder(text):
            if self.numeric:
                raise LeftOut(reasons.PLACEHOLDER)
            self._found.warn(reasons.PLACEHOLDER_KEPT)
        if self.mark is None and MARK in text:
            self._found.warn(reasons.MARKED)
        row["answer"] = answer = clean(text, self._found).strip()
        if not answer:
            raise LeftOut(reasons.EMPTY_ANSWER)
        question = question_text(row["prompt"])
        folded, wanted = question.casefold(), answer.casefold()
        if wanted in folded or ("," in folded and wanted in folded.replace(",", "")):
            *earlier, last = question.rstrip().splitlines()
            if says(last, answer):
                raise LeftOut(reasons.LEAK)
            if any(says(line, answer) for line in earlier):
                self._found.warn(reasons.EARLIER)
            elif len(answer) >= SHORTEST_COPY:
                self._found.warn(reasons.VERBATIM)

    def _others(self, raw: Row, row: Row) -> None:
        for name, value in raw.items():
            if name not in (self.columns.prompt, self.columns.answer):
                value = plain(name, value, self._found)
                self._kinds.look(name, value, self._found)
                row[self.names.get(name, name)] = value
        for message in () if isinstance(row["prompt"], str) else row["prompt"]:
            for name in message.keys() - {"role", "content"}:
                self._kinds.look(f"prompt.{name}", message[name], Findings())

    def _twice(self, row: Row) -> None:
        if self.elsewhere and hash(comparable(row["prompt"], system=False)) in self.elsewhere:
            raise LeftOut(reasons.CONTAMINATED)
        key, answer = hash(comparable(row["prompt"])), hash(row.get("answer"))
        if key in self._seen:
            raise LeftOut(reasons.DUPLICATE if self._seen[key] == answer else reasons.CONTRADICTS)
        self._seen[key] = answer


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


def _numeric(answers: list[Any], mark: str | None) -> bool:
    # Nearly all are numbers, with a unit or without, and there are enough to tell.
    texts = []
    for answer in answers:
        with contextlib.suppress(LeftOut):
            texts.append(extract_answer(answer, mark) if mark else as_text(answer, Findings()))
    texts = [text for text in texts if text and not is_placeholder(text)]
    numbers = sum(is_number(text) or unit_of(text) is not None for text in texts)
    return len(texts) >= 10 and numbers >= 0.9 * len(texts)


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


# Whole numbers and fractions are one kind, as they are for Arrow.
_KINDS = {
    str: "text", int: "a number", float: "a number", bool: "true or false", list: "a list", tuple: "a list", dict: "an object",
}  # fmt: skip
_LARGEST = 2**63


class _Kinds:
    """The kind of value in each column, and at each place inside it (`meta.level`, `tags[]`): Arrow takes only one."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._keys: dict[str, Any] = {}
        self.met: dict[str, str] = {}  # in the row at hand, for the first time

    def look(self, column: str, value: Any, found: Findings) -> None:
        """LeftOut for a value that does not go with the earlier ones."""
        if type(value) is dict and self._keys.setdefault(column, value.keys()) != value.keys():
            found.warn(reasons.other_keys(column))
        for place, inner in _parts(column, value):
            kind = _KINDS[type(inner)]
            known = self._known.get(place) or self.met.setdefault(place, kind)
            if known != kind:
                raise LeftOut(reasons.column_is(place, f"is {kind}, and {known} in earlier rows"))
            if type(inner) is int and not -_LARGEST <= inner < _LARGEST:
                raise LeftOut(reasons.column_is(place, "holds a whole number beyond 64 bits"))

    def learn(self) -> None:
        """The row was kept."""
        self._known.update(self.met)


def _parts(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    if type(value) not in _KINDS:
        return
    yield place, value
    if type(value) is dict:
        for key, inner in value.items():
            yield from _parts(f"{place}.{key}", inner)
    elif type(value) in (list, tuple):
        for inner in value:
            yield from _parts(f"{place}[]", inner)
