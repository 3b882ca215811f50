"""Completions made from a task's rows: the reference, as an honest policy would write it, and
probes of the rewards.

A reward that does not pay the reference in full pays for nothing that a policy can learn from the
prompt. A policy finds anything else that pays, and it has a million tries: it will learn a reward
hack that earns what the reference earns.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from workbench.audit.json_shapes import WORDING
from workbench.audit.prompt_format import TagBlock, asking_text, parse_format
from workbench.base.door import DEADLINE_S, door, words
from workbench.base.errors import TaskError
from workbench.base.kinds import Fields
from workbench.data.answer_column import ANSWER_ALIASES, has_constant, is_number, unwrapped
from workbench.rewards.beside import ProcessState
from workbench.rewards.guarding import text_of
from workbench.task import Row, Task

AS_ASKED = "as asked"
_SYLLABLES = ("lo", "ra", "mi", "tu", "ne", "sa", "ko", "vi", "pe", "du")
# No word twice, so that what counts repetitions counts none.
WORDS_ONCE = " ".join(map("".join, itertools.product(_SYLLABLES, repeat=2)))
_WHOLE_NUMBER = re.compile(r"-?\d{1,15}", re.ASCII)


class Style(NamedTuple):
    """What a prompt leaves open about a reference completion."""

    name: str = ""
    # before and after what is in a tag, and between two blocks; None: as asked
    lines: tuple[str, str, str] | None = None
    step: str = ""  # what each step of the reasoning begins with, for example "{}. "
    other_type: bool = False  # a number in JSON as text, or the other way round
    stored: bool = False  # the answer with all that it is stored in


class CompletionBuilder:
    """Writes completions for one row: the reference, and others in its format.

    Args:
        ideal: row -> the reference completion (TaskError if it fails or returns no text); None: it
            is read off the prompt.
        others: answers of other rows, unwrapped: the best wrong ones.
        schemas: as for `parse_format`.
    """

    def __init__(
        self,
        row: Row,
        answer_column: str = "answer",
        ideal: Callable[[Row], str] | None = None,
        others: Sequence[str] = (),
        schemas: Sequence[Fields] = (),
    ) -> None:
        self.row, self.column, self._ideal = row, answer_column, ideal
        self._stored = answer_of(row, answer_column)
        answer, taken_out = unwrapped(self._stored, asking_text(row["prompt"]))
        answer = answer if taken_out else self._stored
        self.format = parse_format(row, answer, schemas)
        self.has_answer, self.answer = bool(answer), answer or "what was asked for"
        # neither the prompt nor the task says what a completion looks like
        self.free = ideal is None and not self.format.asks
        # the reference is a guess
        self.guessed = ideal is None and (self.free or self.format.guessed or not answer)
        others = [other for other in others if _plain(other) != _plain(self.answer)]
        self.wrong = wrong_answer(self.answer, others)
        self.wrong_too = wrong_answer(self.wrong, others)
        self._step = ""
        self.reference = (
            text_of_author("ideal", ideal, row)
            if ideal is not None
            else self.write(self.reasoning(), self.answer)
        )
        # Where it stands nowhere in the task's own reference (a program, a plan), a wrong one can
        # only be added.
        self.places_answer = (
            ideal is None or self.write("", self.wrong) != f"{self.reference}\n{self.wrong}"
        )

    def reasoning(self, answer: str | None = None, lines: int = 2) -> str:
        """Short reasoning that ends in the right answer, or in this one; `lines` = 1: all on one
        line.
        """
        answer = self.answer if answer is None else answer
        last = f"it comes to {answer}"
        if _WHOLE_NUMBER.fullmatch(answer):
            last = f"{int(answer) - 1} + 1 = {answer}"
        begin = ["Read the question.", "Work it out."] if self._step else ["Step by step:"]
        steps = [self._step.format(place) + each for place, each in enumerate([*begin, last], 1)]
        return (" " if lines == 1 else "\n").join(steps)

    def styles(self) -> list[Style]:
        """The ways in which the reference could be written, as far as the prompt leaves that open;
        its present one first.
        """
        if self._ideal is not None:
            return [Style()]
        if self.format.json:
            styles = [Style()]
        else:
            layouts = WORDING["layouts"]
            styles = [
                Style(f"{how} {name}".strip(), lines, step)
                for how, step in WORDING["steps"]
                for name, lines in (layouts[:1] if self.format.shown else layouts)
            ]
        if self.format.other_type(self.answer):
            how = "a number" if self.format.slot(self.answer).has_text else "text"
            styles.append(Style(f"with the answer as {how} in the JSON", other_type=True))
        if self.has_answer and self._stored != self.answer:
            styles.append(Style("with the answer as it is stored", stored=True))
        return styles

    def adopt(self, style: Style) -> str:
        """From now on write in this style; returns the reference completion in it."""
        if style.lines is not None:
            blocks = [TagBlock(*block[:3], *style.lines) for block in self.format.blocks]
            self.format = self.format._replace(blocks=tuple(blocks))
        if style.other_type:
            self.format = self.format.other_type(self.answer) or self.format
        if style.stored:
            wrong = [self._stored_as(each) for each in (self.wrong, self.wrong_too)]
            self.answer, (self.wrong, self.wrong_too) = self._stored, wrong
        self._step = style.step
        self.reference = self.write(self.reasoning(), self.answer)
        return self.reference

    def write(self, reasoning: str, answer: str, *, compact: bool = False) -> str:
        """A completion with this reasoning and this answer, as the prompt (or the task's `ideal`)
        has it.
        """
        if self._ideal is not None:
            return self._ideal_with(self._ideal, answer)
        text, prompt = self.format.write(reasoning, answer, compact=compact), self.row["prompt"]
        opening = self.format.blocks[0].opening if self.format.blocks else ""
        # What the prompt has already opened, the completion does not open again.
        begun = opening and isinstance(prompt, str) and prompt.rstrip().endswith(opening)
        return text.removeprefix(opening) if begun else text

    def reasoned(self, reasoning: str) -> str:
        """The right answer after this reasoning, which stands before the format that has no place
        for it.
        """
        text = self.write(reasoning, self.answer)
        return text if text != self.write("", self.answer) else f"{reasoning}\n{text}"

    def reference_completions(self) -> dict[str, str]:
        """Name -> text: the first as the prompt asks, the others with differences that no reader
        would mind.
        """
        one, answer = self.reasoning(lines=1), self.answer
        if self.free:
            others = {
                "in a sentence": f"It is {answer}",
                "after 'Answer:'": f"{one}\nAnswer: {answer}",
            }
            return {AS_ASKED: self.reference, "the answer alone": answer, **others}
        found = {AS_ASKED: self.reference, "with a newline at the end": self.reference + "\n"}
        if self._ideal is None and not self.format.json:
            found["with its reasoning on one line"] = one_line = self.write(one, answer)
            found["with its reasoning on one line and a newline at the end"] = one_line + "\n"
            if self.format.blocks:
                found["all on one line"] = self.write(one, answer, compact=True)
        return found

    def _stored_as(self, answer: str) -> str:
        before, found, after = self._stored.rpartition(self.answer)
        return f"{before}{answer}{after}" if found else answer

    def _ideal_with(self, ideal: Callable[[Fields], str], answer: str) -> str:
        value, text = self._stored_as(answer), None
        # it is there for right answers: it may fail for others
        with contextlib.suppress(ValueError):
            if not isinstance(self.row.get(self.column, ""), (str, type(None))):
                value = json.loads(answer)
            text = text_of_author("ideal", ideal, {**self.row, self.column: value})
        if text is not None and (answer == self.answer or text != self.reference):
            return text
        if swapped := self.in_json(lambda own: _swapped(own, self.answer, answer)):
            return swapped
        # A 0 in the middle of a program is no answer.
        *before, after = re.split(
            rf"(?<![\w.\[]){re.escape(self.answer)}(?![\w\]])", self.reference
        )
        return self.answer.join(before) + answer + after if before else f"{after}\n{answer}"

    def in_json(self, changed: Callable[[Any], Any]) -> str:
        """The reference with the plain values of its JSON object changed; empty: it has none, or it
        stays the same.
        """
        start = self.reference.find("{")
        with contextlib.suppress(ValueError, RecursionError):
            value, end = json.JSONDecoder().raw_decode(self.reference, max(0, start))
            if (other := _mapped(value, changed)) != value:
                text = json.dumps(other, ensure_ascii=False)
                return f"{self.reference[:start]}{text}{self.reference[end:]}"
        return ""


def _mapped(value: Any, other: Callable[[Any], Any]) -> Any:
    # JSON of the same shape, each plain value of it another one.
    if isinstance(value, dict):
        return {key: _mapped(item, other) for key, item in value.items()}
    return [_mapped(item, other) for item in value] if isinstance(value, list) else other(value)


def _swapped(value: Any, right: str, other: str) -> Any:
    # Another answer for the right one; a number becomes a number, or text where the other is none.
    if answer_of({"answer": value}) != right:
        return value
    return other if isinstance(value, str) else next(iter(as_numbers([other])), other)


def text_of_author(what: str, make: str | Callable[[Row], str], row: Row) -> str:
    """What the task's author gives, or makes from a row; TaskError if that is not text."""
    try:
        with door(ProcessState(), DEADLINE_S):
            text, cause = make(row) if callable(make) else make, None
            text = text_of(text) if isinstance(text, str) else text
        value = f"{what} returned {type(text).__name__}"
    except Exception as error:
        text, cause, value = None, error, f"{what} raised {words(error)}"
    if isinstance(text, str):
        return text
    raise TaskError(
        value,
        rule=f"{what} gives the text of a completion of a row",
        remedy="return a str: json.dumps(...) for JSON",
    ) from cause


def answer_of(row: Row, column: str = "answer") -> str:
    """The right answer as a policy would write it; empty if the row has none."""
    answer = "" if row.get(column) is None else row[column]
    if isinstance(answer, str):
        return answer
    return json.dumps(answer, ensure_ascii=False, default=str)


def as_numbers(answers: Sequence[str]) -> list[int | float]:
    """The answers as JSON's numbers; empty unless each is one."""
    values = []
    with contextlib.suppress(ValueError):
        values = [json.loads(answer) for answer in answers]
    return values if all(type(value) in (int, float) for value in values) else []


def wrong_answer(answer: str, others: Sequence[str] = ()) -> str:
    """A wrong answer of the same kind, or one of other rows' answers.

    >>> wrong_answer("42"), wrong_answer("Paris", ["Paris", "Rome"]), wrong_answer('{"age": 41}')
    ('43', 'Rome', '{"age": 42}')
    """
    if _WHOLE_NUMBER.fullmatch(answer):
        return str(int(answer) + 1)
    if is_number(answer):
        return "999999"
    if answer.lstrip()[:1] in ("{", "["):
        with contextlib.suppress(ValueError):
            return json.dumps(_mapped(json.loads(answer), _other), ensure_ascii=False)
    known = ("", _plain(answer))
    return next((other for other in others if _plain(other) not in known), f"not {answer}")


def _plain(answer: str) -> str:
    return answer.strip().casefold()


def _other(value: object) -> object:
    # Of the same type, so that it still keeps to a schema.
    if isinstance(value, bool) or value is None:
        return not value
    return value + 1 if isinstance(value, (int, float)) else "something else"


def builders(task: Task, rows: Sequence[Row]) -> list[CompletionBuilder]:
    """How an honest policy writes for each row of a task, wrong answers taken from the others.
    TaskError if its `ideal` fails.
    """
    column = task.answer_column
    if all(row.get(column) is None for row in rows):
        column = next(
            (name for name in ANSWER_ALIASES if all(row.get(name) is not None for row in rows)),
            column,
        )
    # the same everywhere, it is no answer
    column = "" if has_constant(task.rows, column) else column
    answers = [unwrapped(answer_of(row, column), asking_text(row["prompt"]))[0] for row in rows]
    declared = [getattr(function, "schema", None) for function in task.reward_funcs]
    schemas = [schema for schema in declared if isinstance(schema, dict)]
    return [CompletionBuilder(row, column, task.ideal, answers, schemas) for row in rows]


def spellings(answer: str, free: bool = False) -> dict[str, str]:
    """Way -> other ways to write a whole number that a reader would accept; empty for other
    answers. `free`: where no format is asked for, also within a sentence.

    >>> spellings("1000")
    {'.0': '1000.0', '$': '$1000', '.': '1000.', '$$': '$1000$', ',': '1,000'}
    """
    if not answer.lstrip("-").isascii() or not answer.lstrip("-").isdigit() or len(answer) > 12:
        return {}
    ways = ["{}.0", "${}", "{}.", "${}$"]
    ways += ["**{}**", "The answer is {}.", "{} pens", "It is {} pens, in total."] if free else []
    written = {way.replace("{}", ""): way.format(answer) for way in ways}
    grouped = f"{int(answer):,}"
    return written | ({",": grouped} if grouped != answer else {})
