"""The reference completion, as an honest policy would write it: the format that the prompt asks for, with the right answer.

A reward that does not pay for it in full pays for nothing that a policy can learn from this prompt.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from workbench.audit.prompt_format import parse_format
from workbench.data.answer_column import ANSWER_ALIASES, is_number
from workbench.errors import TaskError
from workbench.task import Task

AS_ASKED = "as asked"
_WHOLE_NUMBER = re.compile(r"-?\d{1,15}", re.ASCII)
Row = Mapping[str, Any]


class Style(NamedTuple):
    """What a prompt leaves open about a reference completion."""

    name: str = ""
    lines: tuple[str, str] | None = None  # between a tag and what is in it, and between two blocks; None: as asked
    step: str = ""  # what each step of the reasoning begins with, for example "{}. "


_LAYOUTS = (
    ("with a line break between its blocks", ("", "\n")),
    ("with an empty line between its blocks", ("", "\n\n")),
    ("with each tag on a line of its own", ("\n", "\n")),
)
_STEPS = (("", ""), ("in numbered steps", "{}. "), ("in steps ('Step 1: ...')", "Step {}: "))


class CompletionBuilder:
    """Writes completions for one row: the reference, and others in its format.

    Args:
        row: of the task.
        answer_column: the column that holds the right answer.
        ideal: row -> the reference completion, where the task says what it looks like; None: it is read off the prompt.
        others: answers of other rows: the best wrong ones.

    Raises:
        TaskError: if `ideal` raises or returns no text.
    """

    def __init__(
        self,
        row: Row,
        answer_column: str = "answer",
        ideal: Callable[[Row], str] | None = None,
        others: Sequence[str] = (),
    ) -> None:
        self.row, self.column, self._ideal = row, answer_column, ideal
        self.format, answer = parse_format(row), answer_of(row, answer_column)
        self.has_answer, self.answer = bool(answer), answer or "what was asked for"
        known = self.answer.strip().casefold()
        others = [other for other in others if other.strip().casefold() != known]
        self.wrong = wrong_answer(self.answer, others)
        self.wrong_too = wrong_answer(self.wrong, others)
        self._step = ""
        self.reference = self._made(row) if ideal is not None else self.write(self.reasoning(), self.answer)
        # Where it stands nowhere in the task's own reference (a program, a plan), a wrong one can only be added.
        self.places_answer = ideal is None or self.write("", self.wrong) != f"{self.reference}\n{self.wrong}"

    def reasoning(self, answer: str | None = None, lines: int = 2) -> str:
        """Short reasoning that ends in the right answer, or in this one; `lines` = 1: all on one line."""
        answer = self.answer if answer is None else answer
        last = f"{int(answer) - 1} + 1 = {answer}" if _WHOLE_NUMBER.fullmatch(answer) else f"it comes to {answer}"
        steps = ["Read the question.", "Work it out.", last] if self._step else ["Step by step:", last]
        return (" " if lines == 1 else "\n").join(self._step.format(number) + each for number, each in enumerate(steps, 1))

    def styles(self) -> list[Style]:
        """The ways in which the reference could be written, as far as the prompt leaves that open; its present one first."""
        if self._ideal is not None or self.format.json:
            return [Style()]
        layouts = [("", None), *(_LAYOUTS if not self.format.shown else ())]
        return [Style(f"{how} {name}".strip(), lines, step) for how, step in _STEPS for name, lines in layouts]

    def adopt(self, style: Style) -> None:
        """Write in this style from now on."""
        if style.lines is not None:
            inside, between = style.lines
            blocks = tuple(block._replace(before=inside, after=inside, between=between) for block in self.format.blocks)
            self.format = self.format._replace(blocks=blocks)
        self._step = style.step
        self.reference = self.write(self.reasoning(), self.answer)

    def in_style(self, style: Style) -> str:
        """The reference completion in this style."""
        other = copy.copy(self)
        other.adopt(style)
        return other.reference

    @property
    def free(self) -> bool:
        """Whether neither the prompt nor the task says what a completion looks like."""
        return self._ideal is None and not self.format.asks

    @property
    def guessed(self) -> bool:
        """Whether the reference is a guess: the prompt asks for no format that can be read, or has no answer."""
        return self._ideal is None and not (self.format.asks and self.has_answer)

    def write(self, reasoning: str, answer: str, *, compact: bool = False) -> str:
        """A completion with this reasoning and this answer, as the prompt (or the task's `ideal`) has it."""
        if self._ideal is not None:
            return self._ideal_with(answer)
        text, prompt = self.format.write(reasoning, answer, compact=compact), self.row["prompt"]
        opening = self.format.blocks[0].opening if self.format.blocks else ""
        # What the prompt has already opened, the completion does not open again.
        begun = opening and isinstance(prompt, str) and prompt.rstrip().endswith(opening)
        return text.removeprefix(opening) if begun else text

    def reference_completions(self) -> dict[str, str]:
        """Name -> text: the first as the prompt asks, the others with differences that no reader would mind."""
        one, answer = self.reasoning(lines=1), self.answer
        if self.free:
            others = {"in a sentence": f"It is {answer}", "after 'Answer:'": f"{one}\nAnswer: {answer}"}
            return {AS_ASKED: self.reference, "the answer alone": answer, **others}
        found = {AS_ASKED: self.reference, "with a newline at the end": self.reference + "\n"}
        if self._ideal is None and not self.format.json:
            found["with its reasoning on one line"] = one_line = self.write(one, answer)
            found["with its reasoning on one line and a newline at the end"] = one_line + "\n"
            if self.format.blocks:
                found["all on one line"] = self.write(one, answer, compact=True)
        return found

    def _ideal_with(self, answer: str) -> str:
        value: Any = answer
        try:  # `ideal` is there for right answers: it may fail for others
            if not isinstance(self.row.get(self.column, ""), (str, type(None))):
                value = json.loads(answer)
            text = self._made({**self.row, self.column: value})
        except ValueError:
            text = None
        if text is not None and (answer == self.answer or text != self.reference):
            return text
        # A 0 in the middle of a program is no answer.
        found = list(re.finditer(rf"(?<![\w.\[]){re.escape(self.answer)}(?![\w\]])", self.reference))
        if not found:
            return f"{self.reference}\n{answer}"
        start, end = found[-1].span()
        return self.reference[:start] + answer + self.reference[end:]

    def _made(self, row: Row) -> str:
        rule = "ideal returns the reference completion of a row"
        try:
            text = self._ideal(row)
        except Exception as error:
            raise TaskError(f"ideal raised {type(error).__name__}: {error}", rule=rule, remedy="correct it") from error
        if not isinstance(text, str):
            raise TaskError(f"ideal returned {type(text).__name__}", rule=rule, remedy="return a str")
        return text


def answer_of(row: Row, column: str = "answer") -> str:
    """The right answer as a policy would write it; empty if the row has none."""
    answer = row.get(column)
    if answer is None:
        return ""
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, default=str)


def wrong_answer(answer: str, others: Sequence[str] = ()) -> str:
    """An answer of the same kind that is not right.

    Args:
        others: answers of other rows.

    >>> wrong_answer("42"), wrong_answer("Paris", ["Paris", "Rome"]), wrong_answer('{"age": 41}')
    ('43', 'Rome', '{"age": 42}')
    """
    if _WHOLE_NUMBER.fullmatch(answer):
        return str(int(answer) + 1)
    if is_number(answer):
        return "999999"
    if answer.lstrip()[:1] in ("{", "["):
        try:
            return json.dumps(_other(json.loads(answer)), ensure_ascii=False)
        except ValueError:
            pass
    known = answer.strip().casefold()
    return next((other for other in others if other.strip().casefold() not in ("", known)), f"not {answer}")


def _other(value: Any) -> Any:
    # The same shape with other values, so that it still keeps to a schema.
    if isinstance(value, dict):
        return {key: _other(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_other(item) for item in value]
    if isinstance(value, bool) or value is None:
        return not value
    return value + 1 if isinstance(value, (int, float)) else "something else"


def builders(task: Task, rows: Sequence[Row]) -> list[CompletionBuilder]:
    """How an honest policy writes for each of these rows of a task; each takes its wrong answers from the other rows.

    Raises:
        TaskError: if the task's `ideal` fails.
    """
    column = task.answer_column
    if all(row.get(column) is None for row in rows):
        column = next((name for name in ANSWER_ALIASES if all(row.get(name) is not None for row in rows)), column)
    answers = [answer_of(row, column) for row in rows]
    return [
        CompletionBuilder(row, column, task.ideal, [other for other in answers if other != own])
        for row, own in zip(rows, answers, strict=True)
    ]
