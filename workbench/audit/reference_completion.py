"""The completion that an honest policy would write: the format that the prompt asks for, filled with the right answer.

A reward that does not pay for it in full pays for nothing that a policy can learn from this prompt.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from workbench.audit.prompt_format import ExpectedFormat, parse_format
from workbench.data.answer_column import is_number
from workbench.errors import TaskError

AS_ASKED = "as asked"
ONE_LINE = "all on one line"
NO_ANSWER = "what was asked for"  # written where the task has no answers
Row = Mapping[str, Any]


class ReferenceCompletion(NamedTuple):
    """An honest completion, and in what it differs from the one that was asked for."""

    name: str
    text: str


class Manner(NamedTuple):
    """What a prompt leaves open about an honest completion."""

    name: str = ""
    lines: tuple[str, str] | None = None  # between a tag and what is in it, and between two blocks; None: as asked
    step: str = ""  # what each step of the reasoning begins with, for example "{}. "


_LAYOUTS = (
    ("with a line break between its blocks", ("", "\n")),
    ("with an empty line between its blocks", ("", "\n\n")),
    ("with each tag on a line of its own", ("\n", "\n")),
)
_STEPS = (("in numbered steps", "{}. "), ("in steps ('Step 1: ...')", "Step {}: "))


class CompletionBuilder:
    """How an honest policy writes for one row, and one that is not.

    Args:
        row: of the task.
        answer_column: the column that holds the right answer.
        ideal: row -> the honest completion, where the task says how it looks; None: it is read off the prompt.
        others: answers of other rows: the best wrong ones.

    Raises:
        TaskError: if `ideal` raises or makes no text.
    """

    def __init__(
        self,
        row: Row,
        answer_column: str = "answer",
        ideal: Callable[[Row], str] | None = None,
        others: Sequence[str] = (),
    ) -> None:
        self.row, self.column, self._ideal = row, answer_column, ideal
        self.asked: ExpectedFormat = parse_format(row)
        self.has_answer = bool(answer_of(row, answer_column))
        self.answer = answer_of(row, answer_column) or NO_ANSWER
        known = self.answer.strip().casefold()
        others = [other for other in others if other.strip().casefold() != known]
        self.wrong = wrong_answer(self.answer, others)
        self.wrong_too = wrong_answer(self.wrong, others)
        self._step = ""
        self.honest = self._made(row) if ideal is not None else self.write(self.reasoning(), self.answer)
        # Where it stands nowhere in the task's own honest completion (a program, a plan), a wrong one can only be added.
        self.places_answer = ideal is None or self.write("", self.wrong) != f"{self.honest}\n{self.wrong}"

    def reasoning(self, answer: str | None = None, lines: int = 2) -> str:
        """A short working that ends in the right answer, or in this one."""
        return reasoning_for(self.answer if answer is None else answer, lines, self._step)

    def manners(self) -> list[Manner]:
        """The ways in which an honest completion could be written, as far as the prompt leaves that open; its own first."""
        if self._ideal is not None or self.asked.json:
            return [Manner()]
        layouts = [("", None), *(_LAYOUTS if not self.asked.shown else ())]
        found = [Manner(name, lines) for name, lines in layouts]
        return found + [Manner(f"{how} {name}".strip(), lines, step) for how, step in _STEPS for name, lines in layouts]

    def adopt(self, manner: Manner) -> None:
        """Write in this manner from now on."""
        if manner.lines is not None:
            inside, between = manner.lines
            blocks = tuple(block._replace(before=inside, after=inside, between=between) for block in self.asked.blocks)
            self.asked = self.asked._replace(blocks=blocks)
        self._step = manner.step
        self.honest = self.write(self.reasoning(), self.answer)

    def in_manner(self, manner: Manner) -> str:
        """The honest completion in this manner."""
        other = copy.copy(self)
        other.adopt(manner)
        return other.honest

    @property
    def free(self) -> bool:
        """Whether neither the prompt nor the task says how a completion looks."""
        return self._ideal is None and not self.asked.asks

    @property
    def guessed(self) -> bool:
        """Whether the honest completion is a guess: the prompt asks for no format that can be read, or has no answer."""
        return self._ideal is None and not (self.asked.asks and self.has_answer)

    def write(self, reasoning: str, answer: str, *, compact: bool = False) -> str:
        """A completion with this reasoning and this answer, as the prompt (or the task's `ideal`) has it."""
        if self._ideal is not None:
            text = self._with(answer)
            return text if answer == self.answer or text != self.honest else self._replaced(answer)
        text = self.asked.write(reasoning, answer, compact=compact)
        prompt = self.row["prompt"]
        opening = self.asked.blocks[0].opening if self.asked.blocks else ""
        # What the prompt has already opened, the completion does not open again.
        begun = opening and isinstance(prompt, str) and prompt.rstrip().endswith(opening)
        return text.removeprefix(opening) if begun else text

    def reference_completions(self) -> list[ReferenceCompletion]:
        """Honest completions: the first as its prompt asks, the others with differences that no reader would mind."""
        answer, one = self.answer, self.reasoning(lines=1)
        if self._ideal is not None:
            return [
                ReferenceCompletion(AS_ASKED, self.honest),
                ReferenceCompletion("with a newline at the end", self.honest + "\n"),
            ]
        if self.free:
            return [
                ReferenceCompletion(AS_ASKED, self.honest),
                ReferenceCompletion("the answer alone", answer),
                ReferenceCompletion("in a sentence", f"It is {answer}"),
                ReferenceCompletion("after 'Answer:'", f"{one}\nAnswer: {answer}"),
            ]
        found = [
            ReferenceCompletion(AS_ASKED, self.honest),
            ReferenceCompletion("with a newline at the end", self.honest + "\n"),
        ]
        if not self.asked.json:
            one_line = self.write(one, answer)
            found += [ReferenceCompletion("with its reasoning on one line", one_line)]
            found += [ReferenceCompletion("with its reasoning on one line and a newline at the end", one_line + "\n")]
            if self.asked.blocks:
                found.append(ReferenceCompletion(ONE_LINE, self.write(one, answer, compact=True)))
        return found

    def _with(self, answer: str) -> str:
        right = self.row.get(self.column)
        value: Any = answer
        if right is not None and not isinstance(right, str):
            try:
                value = json.loads(answer)
            except ValueError:
                return self._replaced(answer)
        try:
            return self._made({**self.row, self.column: value})
        except TaskError:
            return self._replaced(answer)  # it is there for right answers

    def _replaced(self, answer: str) -> str:
        # A 0 in the middle of a program is no answer.
        found = list(re.finditer(rf"(?<![\w.\[]){re.escape(self.answer)}(?![\w\]])", self.honest))
        if not found:
            return f"{self.honest}\n{answer}"
        return self.honest[: found[-1].start()] + answer + self.honest[found[-1].end() :]

    def _made(self, row: Row) -> str:
        rule = "ideal makes the honest completion of a row"
        try:
            text = self._ideal(row)
        except Exception as error:
            raise TaskError(
                f"ideal raised {type(error).__name__}: {error}", rule=rule, remedy="correct that function"
            ) from error
        if not isinstance(text, str):
            raise TaskError(f"ideal returned {type(text).__name__}", rule=rule, remedy="return a str")
        return text


def reasoning_for(answer: str, lines: int = 2, step: str = "") -> str:
    """A short working that ends in the answer.

    Args:
        lines: 1: all on one.
        step: what each of its steps begins with; "{}" is its number.

    >>> reasoning_for("42")
    'Step by step:\\n41 + 1 = 42'
    """
    last = (
        f"{int(answer) - 1} + 1 = {answer}"
        if re.fullmatch(r"-?\d{1,15}", answer, re.ASCII)
        else f"it comes to {answer}"
    )
    steps = ["Read the question.", "Work it out.", last] if step else ["Step by step:", last]
    return (" " if lines == 1 else "\n").join(step.format(number) + each for number, each in enumerate(steps, 1))


def answer_of(row: Mapping[str, Any], column: str = "answer") -> str:
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
    if re.fullmatch(r"-?\d{1,15}", answer, re.ASCII):
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


def reference_completions(
    row: Row, answer_column: str = "answer", ideal: Callable[[Row], str] | None = None
) -> list[ReferenceCompletion]:
    """Honest completions of a row; arguments and errors as for `CompletionBuilder`."""
    return CompletionBuilder(row, answer_column, ideal).reference_completions()
