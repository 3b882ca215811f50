"""The completion that an honest policy would write: the format that the prompt asks for, filled with the right answer.

A reward that does not pay for it in full pays for nothing that a policy can learn from this prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from workbench.dataset.answer_column import is_number
from workbench.rewards.asked import Format, asked_format
from workbench.run.errors import TaskError

AS_ASKED = "as asked"
ONE_LINE = "all on one line"
NO_ANSWER = "what was asked for"  # written where the task has no answers
Row = Mapping[str, Any]


class Ideal(NamedTuple):
    """An honest completion, and in what it differs from the one that was asked for."""

    name: str
    text: str


class Writer:
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
        self.asked: Format = asked_format(row)
        self.has_answer = bool(answer_of(row, answer_column))
        self.answer = answer_of(row, answer_column) or NO_ANSWER
        known = self.answer.strip().casefold()
        others = [other for other in others if other.strip().casefold() != known]
        self.wrong = wrong_answer(self.answer, others)
        self.wrong_too = wrong_answer(self.wrong, others)
        self.honest = self._made(row) if ideal is not None else self.write(reasoning_for(self.answer), self.answer)

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

    def ideals(self) -> list[Ideal]:
        """Honest completions: the first as its prompt asks, the others with differences that no reader would mind."""
        answer, one = self.answer, reasoning_for(self.answer, 1)
        if self._ideal is not None:
            return [Ideal(AS_ASKED, self.honest), Ideal("with a newline at the end", self.honest + "\n")]
        if self.free:
            return [
                Ideal(AS_ASKED, self.honest),
                Ideal("the answer alone", answer),
                Ideal("in a sentence", f"It is {answer}"),
                Ideal("after 'Answer:'", f"{one}\nAnswer: {answer}"),
            ]
        found = [Ideal(AS_ASKED, self.honest), Ideal("with a newline at the end", self.honest + "\n")]
        if not self.asked.json:
            one_line = self.write(one, answer)
            found += [Ideal("with its reasoning on one line", one_line)]
            found += [Ideal("with its reasoning on one line and a newline at the end", one_line + "\n")]
            if self.asked.blocks:
                found.append(Ideal(ONE_LINE, self.write(one, answer, compact=True)))
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
        before, found, after = self.honest.rpartition(self.answer)
        return before + answer + after if found else f"{self.honest}\n{answer}"

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


def reasoning_for(answer: str, lines: int = 2) -> str:
    """A short working that ends in the answer.

    >>> reasoning_for("42")
    'Step by step:\\n41 + 1 = 42'
    """
    last = (
        f"{int(answer) - 1} + 1 = {answer}"
        if re.fullmatch(r"-?\d{1,15}", answer, re.ASCII)
        else f"it comes to {answer}"
    )
    return f"Step by step:{' ' if lines == 1 else chr(10)}{last}"


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


def ideals(row: Row, answer_column: str = "answer", ideal: Callable[[Row], str] | None = None) -> list[Ideal]:
    """Honest completions of a row; arguments and errors as for `Writer`."""
    return Writer(row, answer_column, ideal).ideals()
