"""Checks on rows, one by one: each is kept, repaired by a stated rule and kept, or left out and
listed with its reason.

Rows stream through: only a hash of a row's prompt and answer is kept, and its number if it was not
plain.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from workbench.data import answer_column as columns
from workbench.data import prompts, reasons
from workbench.data.answer_column import (
    LAST_TURN,
    MARK,
    PLACEHOLDERS,
    answer_as_text,
    extract_answer,
    is_number,
    says,
)
from workbench.data.prompts import comparable, last_turn
from workbench.data.reasons import LeftOut, Reason, Report
from workbench.data.sources import Unreadable, open_source
from workbench.errors import DataError
from workbench.kinds import Fields
from workbench.progress import count_line
from workbench.task import RESERVED_COLUMNS, Row

# Whole numbers and fractions are one kind, as they are for Arrow.
_KINDS: dict[type, str] = {str: "text", int: "a number", float: "a number", bool: "true or false"}
_KINDS |= {list: "a list", tuple: "a list", dict: "an object"}


def check(
    source: Any,
    *,
    prompt_column: str | None = None,
    answer_column: str | None = None,
    answer_after: str | None = "auto",
    system: str = "none",
    worked_example: bool = False,
    other: object = None,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> Report:
    """Check every row of a source and turn those that can be used into prompts; the `Report` shows
    itself.

    >>> report = wb.check([{"question": "What is 1 + 1?", "answer": 2}, {"question": "", "answer": "2"}], system="tags")
    >>> print(report)
    2 rows read, 1 kept (1 of them repaired), 1 left out; rows are counted from 0
    ...
    >>> rows = report.require()

    Args:
        source: anything that `wb.open_source` takes, or what it returned.
        prompt_column: None: "prompt", or a well-known other name such as "question", which the
            report then states.
        answer_column: likewise; "assistant": the last turn of a chat; "none": the task has no
            answers.
        answer_after: mark that the answer stands after; "auto": GSM8K's `####`, where most answers
            have it; None: none.
        system: the format that the system message asks for: "tags", "think", "mark", "none", or a
            text.
        worked_example: show one worked example ("tags", "think" and "mark" have one).
        other: the other split, anything that can be opened: a prompt that is also there is
            contamination.
        progress: called with the number of rows read, now and then; None: a count in the cell.
        options: `numbers`, `examples`, `as_turns` and `chat`, as for `Checked`.

    Raises:
        DataError: if the source cannot be opened, is empty, or its columns are ambiguous.
    """  # noqa: E501
    if worked_example:
        options["examples"] = prompts.examples_for(system)
    options |= {
        "prompt_column": prompt_column,
        "answer_column": answer_column,
        "answer_after": answer_after,
        "other": other,
    }
    return Checked(
        source,
        system=prompts.prompt_for_system(system),
        progress=progress or count_line("rows"),
        **options,
    ).collect()


@dataclass(eq=False)
class Checked:
    """The usable rows of a source, one by one; `report` is complete after the last.

    A row of the result has `prompt` (chat messages, or text), `answer` (text) if the task has
    answers, and every other column as it was. Other arguments and errors are as for `check`.
    """

    source: Any
    _: KW_ONLY
    prompt_column: str | None = None
    answer_column: str | None = None
    system: str = ""  # text of a system message for prompts that bring none; empty: none
    # worked (question, answer) pairs to show before a prompt that is text
    examples: Sequence[tuple[str, str]] = ()
    as_turns: bool = False  # show the examples as turns of the chat, not in the system message
    chat: bool = True  # make chat messages of prompts that are text; False keeps them text
    answer_after: str | None = "auto"
    numbers: bool = False  # an answer that is no number cannot be right, so its row is left out
    # the other split, anything that `open_source` takes: a prompt that stands there too is
    # contamination
    other: Any = None
    progress: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        if not self.chat and (self.system or self.examples):
            rule, remedy = (
                "only chats have a system message",
                "leave chat as it is, or write both into the prompts yourself",
            )
            raise DataError(
                "chat = False, and a system message or examples", rule=rule, remedy=remedy
            )
        self.source = open_source(self.source)
        first = self.source.first()
        taken = {name for row in first for name in row}
        if not first and next(iter(self.source), self) is self:
            raise DataError(
                f"{self.source.name}: no rows", rule="a dataset has rows", remedy="check the file"
            )
        # Where nothing can be read, every row is listed with its reason.
        chosen = columns.Columns("prompt", "answer", [])
        if first:
            chosen = columns.choose_columns(first, self.prompt_column, self.answer_column)
        self.prompt_column = chosen.prompt
        self.answer_column = chosen.answer
        own = {self.prompt_column, self.answer_column}
        self.names = _free_names(taken, own)
        self.reserved = RESERVED_COLUMNS - own
        self.last_turn = self.answer_column == LAST_TURN and LAST_TURN not in taken
        self.notes = [*self.source.notes, *chosen.notes]
        self.notes += [
            f"the column {old!r} is kept as {new!r}" for old, new in self.names.items() if old
        ]
        answers = [row.get(self.answer_column) for row in first] if self.answer_column else []
        if self.last_turn:
            answers = [last_turn(row.get(self.prompt_column), [])[1] for row in first]
        self.mark = self.answer_after
        if self.mark == "auto":
            # Most end with a line that begins with the mark, as GSM8K's do.
            ends = [
                text.rstrip().rpartition("\n")[2].lstrip()
                for text in answers
                if isinstance(text, str)
            ]
            self.mark = (
                MARK if sum(end.startswith(MARK) for end in ends) * 2 > len(answers) else None
            )
            if self.mark is not None:
                self.notes.append(
                    f"answer: what stands after {MARK}; the whole text is kept as"
                    f" {self.names['']!r}"
                )
        self.numeric = _numeric(answers, self.mark)
        # hashes of what the other split asks, without system messages
        self.elsewhere: set[int] = set()
        other = open_source(() if self.other is None else self.other)
        if other.first(1):
            rows = Checked(other, answer_column="none")
            rows.last_turn = self.last_turn  # its chats may end with an answer, too
            self.elsewhere = {hash(comparable(row["prompt"], system=False)) for row in rows}
        self.begin()

    def collect(self) -> Report:
        """Go through all rows and keep them in the report."""
        self.report.kept = list(self)
        return self.report

    def __iter__(self) -> Iterator[Row]:
        report, units, answers = self.begin(), columns.Units(), set()
        for number, raw in enumerate(self.source):
            report.read += 1
            row, reason = self.look(raw)
            if reason is not None:
                report.leave_out(number, reason, raw)
            else:
                report.keep(number, self._found)
                units.count(number, row.get("answer"))
                answers |= {row.get("answer")} if len(answers) < 2 else set()
                yield row
            if self.progress is not None and number % 1000 == 999:
                self.progress(number + 1)
        report.notes += units.notes()
        if (
            answers - {None}
            and len(answers) == 1
            and report.read - len(report.left_out) > columns.FEW
        ):
            report.notes.append(
                f"answer: every row has {answers.pop()!r}, which is no answer: choose another"
                " column, or none"
            )
        if self.progress is not None:
            self.progress(report.read)

    def begin(self) -> Report:
        """Begin a pass: nothing seen yet, and a report that holds only its notes."""
        self._seen: dict[int, int] = {}  # prompt -> answer, both as hashes
        # The kind of value in each column and at each place inside it (`meta.level`, `tags[]`):
        # Arrow takes only one.
        self._kinds: dict[str, str] = {}
        self._keys: Fields = {}
        self._chat_rows: bool | None = None
        chosen = {"prompt": self.prompt_column, "answer": self.answer_column}
        self.report = Report(self.source.name, notes=[*self.notes], columns=chosen)
        return self.report

    def look(self, raw: object) -> tuple[Row, Reason | None]:
        """(the usable row, or the reason why it is not); this pass remembers what it has seen."""
        self._found, self._met = [], {}
        try:
            return self._usable(raw), None
        except LeftOut as left_out:
            return {}, left_out.reason

    def _usable(self, raw: object) -> Row:
        if not isinstance(raw, dict):
            raise LeftOut(raw.reason if isinstance(raw, Unreadable) else reasons.NOT_AN_OBJECT)
        if not self.reserved.isdisjoint(raw):
            raise LeftOut(
                reasons.column_is(
                    min(self.reserved.intersection(raw)), "is reserved by TRL", "rename the column"
                )
            )
        asked = raw.get(self.prompt_column)
        if self.last_turn:
            asked, answer = last_turn(asked, self._found)
            raw = {**raw, LAST_TURN: answer}
        row: Row = {"prompt": self._prompt(asked)}
        if self.answer_column is not None:
            self._answer(raw.get(self.answer_column), row)
        for name, value in raw.items():
            if name not in (self.prompt_column, self.answer_column):
                row[self.names.get(name, name)] = value = prompts.plain_words(
                    name, value, self._found
                )
                self._one_kind(name, value, self._found)
        for message in () if isinstance(row["prompt"], str) else row["prompt"]:
            for name in message.keys() - {"role", "content"}:
                self._one_kind(f"prompt.{name}", message[name], [])
        if self.elsewhere and hash(comparable(row["prompt"], system=False)) in self.elsewhere:
            raise LeftOut(reasons.CONTAMINATED)
        key, answer = hash(comparable(row["prompt"])), hash(row.get("answer"))
        if key in self._seen:
            raise LeftOut(reasons.DUPLICATE if self._seen[key] == answer else reasons.CONTRADICTS)
        self._seen[key] = answer
        self._kinds |= self._met
        self._chat_rows = not isinstance(row["prompt"], str)
        return row

    def _prompt(self, value: Any) -> Any:
        if hasattr(value, "tolist"):  # a frame's array of messages
            value = value.tolist()
        if isinstance(value, str):
            prompt: Any = prompts.clean_text(value, self._found)
            size = len(prompt)
            if not prompt.strip():
                raise LeftOut(reasons.EMPTY)
            if self.chat:
                prompt = prompts.to_messages(
                    prompt, self.system, self.examples, as_turns=self.as_turns
                )
        else:
            prompt = prompts.messages_of(value, self._found)
            size = sum(len(message["content"]) for message in prompt)
            if self.examples:
                self._found.append(reasons.NO_EXAMPLE)
            if self.system and prompt[0]["role"] != "system":
                prompt = [{"role": "system", "content": self.system}, *prompt]
            elif self.system and prompt[0]["content"] != self.system:
                self._found.append(reasons.OWN_SYSTEM)
        if size > reasons.LONGEST_CHARACTERS:
            raise LeftOut(reasons.TOO_LONG)
        if self._chat_rows is not None and isinstance(prompt, str) is self._chat_rows:
            raise LeftOut(reasons.MIXED)
        return prompt

    def _answer(self, value: Any, row: Row) -> None:
        if value is None and self.last_turn:
            raise LeftOut(reasons.NO_TURN)
        if self.mark is not None:
            given = extract_answer(value, self.mark) if isinstance(value, str) else None
            if given is None:
                raise LeftOut(
                    reasons.unmarked(self.mark) if value not in (None, "") else reasons.NO_ANSWER
                )
            row[self.names[""]] = prompts.whole(value, self._found)
            value = given
        text = answer_as_text(value, self._found)
        if self.numbers and not is_number(text):
            raise LeftOut(reasons.NO_NUMBER)
        if text.casefold() in PLACEHOLDERS:
            if self.numeric:
                raise LeftOut(reasons.PLACEHOLDER)
            self._found.append(reasons.PLACEHOLDER_KEPT)
        if self.mark is None and MARK in text:
            self._found.append(reasons.MARKED)
        row["answer"] = answer = prompts.clean_text(text, self._found).strip()
        if not answer:
            raise LeftOut(reasons.EMPTY_ANSWER)
        question = prompts.question_text(row["prompt"])
        folded, wanted = question.casefold(), answer.casefold()
        if wanted in folded or ("," in folded and wanted in folded.replace(",", "")):
            *earlier, last = question.rstrip().splitlines()
            if says(last, answer):
                raise LeftOut(reasons.LEAK)
            if any(says(line, answer) for line in earlier):
                self._found.append(reasons.EARLIER)
            elif len(answer) >= 20:  # characters: shorter ones stand in many a question by chance
                self._found.append(reasons.VERBATIM)

    def _one_kind(self, column: str, value: object, found: list[str]) -> None:
        if type(value) is dict and self._keys.setdefault(column, value.keys()) != value.keys():
            found.append(reasons.other_keys(column))
        for place, inner in _parts(column, value):
            kind = _KINDS[type(inner)]
            known = self._kinds.get(place) or self._met.setdefault(place, kind)
            if known != kind:
                raise LeftOut(reasons.column_is(place, f"is {kind}, and {known} in earlier rows"))
            if type(inner) is int and not -(2**63) <= inner < 2**63:
                raise LeftOut(reasons.column_is(place, "holds a whole number beyond 64 bits"))


def _free_names(taken: set[str], own: set[str | None]) -> dict[str, str]:
    # What the row's own `prompt` and `answer` displace goes on under a name that no column has; ""
    # is the worked answer.
    found = {}
    for old, wish in (
        ("prompt", "original_prompt"),
        ("answer", "original_answer"),
        ("", "rationale"),
    ):
        if not old or old in taken - own:
            wishes = itertools.chain([wish], (f"{wish}_{count}" for count in itertools.count(2)))
            found[old] = next(name for name in wishes if name not in {*taken, *found.values()})
    return found


def _numeric(answers: list[Any], mark: str | None) -> bool:
    # Nearly all are numbers, with a unit or without, and there are enough to tell.
    texts = []
    for answer in answers:
        with contextlib.suppress(LeftOut):
            texts.append(extract_answer(answer, mark) if mark else answer_as_text(answer, []))
    texts = [text for text in texts if text and text.casefold() not in PLACEHOLDERS]
    numbers = sum(is_number(text) or columns.unit_of(text) is not None for text in texts)
    return len(texts) >= 10 and numbers >= 0.9 * len(texts)


def _parts(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    if type(value) in _KINDS:
        yield place, value
    if type(value) is dict:
        for key, inner in value.items():
            yield from _parts(f"{place}.{key}", inner)
    elif type(value) in (list, tuple):
        for inner in value:
            yield from _parts(f"{place}[]", inner)
