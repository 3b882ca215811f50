"""Checks on rows, one by one: each is kept, repaired by a stated rule and kept, or left out and
listed with its reason.

Rows stream through: only a hash of a row's prompt and answer is kept, and its number if it was not
plain.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from workbench.base.errors import DataError
from workbench.base.progress import count_line
from workbench.data import columns, prompts, reasons
from workbench.data.answer_column import (
    extract_answer,
    folded,
    is_number,
    labels_of,
    unwrapped,
)
from workbench.data.columns import LAST_TURN, PLACEHOLDERS, answer_as_text, last_turn, says
from workbench.data.prompts import Cleaner, comparable
from workbench.data.reasons import LeftOut, Repair, Report
from workbench.data.sources import Unreadable, open_source
from workbench.task import RESERVED_COLUMNS, Row

# Whole numbers and fractions are one kind, as they are for Arrow.
_KINDS: dict[type, str] = {str: "text", int: "a number", float: "a number", bool: "true or false"}
_KINDS |= {list: "a list", tuple: "a list", dict: "an object"}


def check(
    source: object,
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
    2 rows read, 1 kept, 1 left out; rows are counted from 0
    ...
    >>> rows = report.require()

    Args:
        source: anything that `wb.open_source` takes, or what it returned.
        prompt_column: None: "prompt", or a well-known other name such as "question", which the
            report then states; a template such as "{instruction}\\n\\n{input}" joins columns.
        answer_column: likewise; "assistant": the last turn of a chat; "none": the task has no
            answers.
        answer_after: mark that the answer stands after; "auto": answers are taken out of their tag,
            box, `####` and the like, and labels that differ in case or spaces alone are written
            alike; None: they stay as they are.
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
    return Checked(
        source,
        prompt_column=prompt_column,
        answer_column=answer_column,
        answer_after=answer_after,
        system=prompts.prompt_for_system(system),
        other=other,
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
            rule = "only chats have a system message"
            remedy = "leave chat as it is, or write both into the prompts yourself"
            value = "chat = False, and a system message or examples"
            raise DataError(value, rule=rule, remedy=remedy)
        self.source = opened = open_source(self.source)
        wanted = (self.prompt_column, self.answer_column)
        fields = [name for name in wanted if name and re.search(r"[{.]", name)]
        self.source = replace(
            opened, open=lambda: (columns.as_values(row, fields) for row in opened)
        )
        first = self.source.first()
        self.notes = list(self.source.notes)
        self.beside, self.joins = (), ""
        if first:
            chosen = columns.choose_columns(first, self.prompt_column, self.answer_column)
            self.prompt_column, self.answer_column, notes, self.beside, self.joins = chosen
            self.notes += notes
        elif any(True for _ in self.source):
            # Nothing can be read: every row is listed with its reason.
            self.prompt_column, self.answer_column = "prompt", "answer"
        else:
            value = f"{self.source.name}: no rows"
            raise DataError(value, rule="a dataset has rows", remedy="check the file")
        taken = {name for row in first for name in row}
        own = {self.prompt_column, self.answer_column}
        self.names = _free_names(taken, own)
        for old, new in self.names.items():
            self.notes += [f"the column {old!r} is kept as {new!r}"] if old else []
        self.reserved = RESERVED_COLUMNS - own
        self.last_turn = self.answer_column == LAST_TURN and LAST_TURN not in taken
        holds = self.prompt_column if self.last_turn else self.answer_column
        answers = [stored(row.get(holds)) for row in first]
        self.mark = self.answer_after
        self.labels: dict[str, str] = {}
        if self.answer_after == "auto":
            answers, self.mark = self._unwrapped(answers)
            self.labels = labels_of(answers)
        self.elsewhere = self._elsewhere()
        self.report = Report(self.source.name)
        # Of one pass: prompt -> answer, and what stands beside the prompt, as hashes; the kind of
        # value at each place in the prompts (`prompt[].weight`), of which Arrow takes only one; and
        # the kind of the prompts.
        self.seen: dict[int, tuple[int, int]] = {}
        self.kinds: dict[str, str] = {}
        self.kind: type | None = None

    def _unwrapped(self, answers: Sequence[object]) -> tuple[list[object], str | None]:
        # The answers alone, and what most of them stand in, if that is the end of a worked answer.
        found, marks = [], Counter[str]()
        for text in answers:
            alone, stood_in = unwrapped(text) if isinstance(text, str) else (text, [])
            found.append(alone)
            for mark in stood_in[:1]:
                before = str(text).lower().rpartition(mark[:6])[0].lstrip()
                marks[mark] += "\n" in before or len(before.split()) > 5
        mark, most = next(iter(marks.most_common(1)), ("", 0))
        if most * 2 <= len(answers):
            return found, None
        where = "in" if mark in ("<answer>", "\\boxed{}") else "after"
        kept_as = f"the whole text is kept as {self.names['']!r}"
        self.notes.append(f"answer: what stands {where} {mark}; {kept_as}")
        return found, mark

    def _elsewhere(self) -> set[int]:
        # Hashes of what the other split asks, without system messages.
        other = open_source(() if self.other is None else self.other)
        if not other.first(1):
            return set()
        asks = self.prompt_column if self.prompt_column in other.first(1)[0] else None
        rows = Checked(other, prompt_column=asks, answer_column="none")
        rows.last_turn = self.last_turn  # its chats may end with an answer, too
        return {hash(comparable(row["prompt"], system=False)) for row in rows}

    def collect(self) -> Report:
        """Go through all rows and keep them in the report."""
        self.report.kept = list(self)
        return self.report

    def __iter__(self) -> Iterator[Row]:
        chosen = {"prompt": self.prompt_column, "answer": self.answer_column}
        self.report = report = Report(self.source.name, notes=[*self.notes], columns=chosen)
        one = copy.copy(self)
        one.seen, one.kinds, one.kind = {}, {}, None
        writing = columns.Writing()
        for number, raw in enumerate(self.source):
            report.read += 1
            try:
                row, oddities = one._row(raw)
            except LeftOut as left_out:
                report.leave_out(number, left_out.reason, raw)
            else:
                report.keep(number, oddities)
                writing.count(number, row.get("answer"))
                yield row
            if self.progress is not None and number % 1000 == 999:
                self.progress(number + 1)
        report.notes += writing.notes()
        if self.progress is not None:
            self.progress(report.read)

    def _row(self, raw: object) -> tuple[Row, list[str]]:
        # (the usable row, its repairs and warnings), or LeftOut
        clean = Cleaner()
        if not isinstance(raw, dict):
            raise LeftOut(raw.reason if isinstance(raw, Unreadable) else reasons.NOT_AN_OBJECT)
        if reserved := self.reserved.intersection(raw):
            if any(prompts.is_picture(raw[name]) for name in reserved):
                raise LeftOut(reasons.PICTURE)
            remedy = "rename the column"
            raise LeftOut(reasons.column_is(min(reserved), "is reserved by TRL", remedy))
        question = raw.get(self.prompt_column)
        if self.last_turn:
            question, answer = clean.last_turn(question)
            raw = {**raw, LAST_TURN: answer}
        prompt = self._prompt(question, clean)
        row: Row = {"prompt": prompt}
        if self.answer_column is not None:
            row |= self._answer(raw.get(self.answer_column), prompt, clean)
        for name, value in raw.items():
            if name not in (self.prompt_column, self.answer_column):
                row[self.names.get(name, name)] = clean.column(name, value)
        self._one_kind(prompt)
        self._first_of_its_kind(row, [str(raw.get(name)) for name in self.beside])
        self.kind = type(prompt)
        return row, clean.oddities

    def _first_of_its_kind(self, row: Row, beside: list[str]) -> None:
        prompt = row["prompt"]
        if self.elsewhere and hash(comparable(prompt, system=False)) in self.elsewhere:
            raise LeftOut(reasons.CONTAMINATED)
        own = hash(row.get("answer")), hash(tuple(beside))
        first = self.seen.setdefault(hash(comparable(prompt)), own)
        if first is own:
            return
        if first[1] != own[1]:
            raise LeftOut(reasons.differs(self.beside, self.joins))
        raise LeftOut(reasons.DUPLICATE if first == own else reasons.CONTRADICTS)

    def _prompt(self, value: Any, clean: Cleaner) -> Any:
        if isinstance(value, str):
            prompt: Any = clean.text(value)
            said = [prompt]
            if not prompt.strip():
                raise LeftOut(reasons.EMPTY)
            if self.chat:
                shown = self.examples
                prompt = prompts.to_messages(prompt, self.system, shown, as_turns=self.as_turns)
        else:
            prompt = clean.messages(value)
            said = [message["content"] for message in prompt]
            if self.examples:
                clean.oddities.append(reasons.NO_EXAMPLE)
            if self.system and prompt[0]["role"] != "system":
                prompt = [{"role": "system", "content": self.system}, *prompt]
            elif self.system and prompt[0]["content"] != self.system:
                clean.oddities.append(reasons.OWN_SYSTEM)
        if any(map(prompts.about_picture, said)):
            raise LeftOut(reasons.PICTURE)
        if sum(map(len, said)) > reasons.LONGEST_CHARACTERS:
            raise LeftOut(reasons.TOO_LONG)
        if self.kind is not None and type(prompt) is not self.kind:
            raise LeftOut(reasons.MIXED)
        return prompt

    def _answer(self, value: Any, prompt: Any, clean: Cleaner) -> dict[str, str]:
        # The answer as a column, and the whole of what it was taken out of as another.
        mark, oddities = self.mark, clean.oddities
        if value is None and self.last_turn:
            raise LeftOut(reasons.NO_TURN)
        if (said := stored(value)) is not value:
            oddities.append("answer: what the assistant says last")
        whole, repairs = answer_as_text(said)
        oddities += repairs
        text, found, question = whole, [mark], prompts.question_text(prompt)
        if self.answer_after == "auto":
            text, found = unwrapped(whole, question)
            if found and not mark:
                oddities.append(Repair(f"answer: taken out of {found[0]}", whole, text))
        elif mark is not None:
            marked = extract_answer(whole, mark)
            found, text = [] if marked is None else [mark], marked or ""
        kept = {}
        if mark is not None:
            if not found:
                raise LeftOut(reasons.unmarked(mark))
            kept[self.names[""]] = clean.encodable(whole)
        if (label := self.labels.get(folded(text), text)) != text:
            oddities.append(Repair("answer: its label written as in most rows", text, label))
            text = label
        if self.numbers and not is_number(text):
            raise LeftOut(reasons.NO_NUMBER)
        if text.casefold() in PLACEHOLDERS:
            oddities.append(reasons.PLACEHOLDER)
        answer = clean.text(text).strip()
        if not answer:
            raise LeftOut(reasons.EMPTY_ANSWER)
        if says(question.rstrip().rpartition("\n")[2], answer):
            raise LeftOut(reasons.LEAK)
        return kept | {"answer": answer}

    def _one_kind(self, prompt: object) -> None:
        kinds = self.kinds.copy()
        for place, inner in _parts("prompt", prompt):
            kind = _KINDS[type(inner)]
            if (known := kinds.setdefault(place, kind)) != kind:
                raise LeftOut(reasons.column_is(place, f"is {kind}, and {known} in earlier rows"))
            if type(inner) is int and not -(2**63) <= inner < 2**63:
                raise LeftOut(reasons.column_is(place, "holds a whole number beyond 64 bits"))
        self.kinds = kinds


def stored(value: Any) -> Any:
    """An answer's value; of a chat that ends with the assistant's turn, what that says."""
    said = last_turn(value)
    return value if said is None else said


def _free_names(taken: set[str], own: set[str | None]) -> dict[str, str]:
    # What the row's own `prompt` and `answer` displace goes on under a name that no column has; ""
    # is the worked answer.
    names: dict[str, str] = {}
    wishes = {"prompt": "original_prompt", "answer": "original_answer", "": "rationale"}
    for old, name in wishes.items():
        if not old or old in taken - own:
            while name in taken:
                name += "_2"
            names[old] = name
    return names


def _parts(place: str, value: Any) -> Iterator[tuple[str, object]]:
    if type(value) in _KINDS:
        yield place, value
    if type(value) is dict:
        for key, inner in value.items():
            yield from _parts(f"{place}.{key}", inner)
    elif type(value) in (list, tuple):
        for inner in value:
            yield from _parts(f"{place}[]", inner)
