"""Which column is the prompt and which the answer (always reported), and the right answer inside
it, as text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from datetime import date
from decimal import Decimal
from typing import Any, NamedTuple

from workbench.data import reasons
from workbench.data.prompts import last_turn
from workbench.data.reasons import LeftOut, answer_is
from workbench.errors import DataError, nearest
from workbench.task import RESERVED_COLUMNS, Row

MARK = "####"
_NOUNS = ("answer", "solution", "result")
FEW = 3  # rows that may have one answer by chance
_LONGEST = 60  # digits of an answer that is a number
# words that often stand for "there is none"
PLACEHOLDERS = {"n/a", "none", "null", "nan", "unknown", "tbd", "-", "?"}
_WITH_UNIT = re.compile(
    r"[+-]?[$€£]?\d[\d,.]*\s*([^\W\d_][^\d\s]*(?: [^\W\d_]+)?|[°µ€£][^\d\s]{0,5})[²³]?"
)
_COMMA = re.compile(r"[+-]?\d+,(?!\d{3}$)\d+", re.ASCII)  # 0,75; no thousands
_NUMBER = re.compile(r"[+-]?\$?[+-]?(\d{1,3}(,\d{3})+|\d+)?(\.\d+)?(/\d+)?%?", re.ASCII)
PROMPT_ALIASES = (
    "query",
    "question",
    "problem",
    "instruction",
    "input",
    "messages",
    "conversations",
)
ANSWER_ALIASES = (
    "ground_truth",
    "solution",
    "answers",
    "expert_answer",
    "raw_answer",
    "target",
    "output",
)
LAST_TURN = "assistant"  # the answer is what the assistant says last in the prompt's chat
_NO_ANSWER = "none"
_LIKELY = {
    "prompt": re.compile("prompt|question|problem|instruction|query|task|input|text", re.I),
    "answer": re.compile("answer|solution|label|target|expected", re.I),
}


class Columns(NamedTuple):
    """Which columns hold prompt and answer, and how they were chosen."""

    prompt: str
    answer: str | None  # None: the task has no answers
    notes: list[str]


def choose_columns(first: Sequence[Row], prompt: str | None, answer: str | None) -> Columns:
    """Which columns of these rows hold prompt and answer, requested as in `check`.

    DataError: there is no such column, several could be meant, or a column has a name that TRL
    reserves.
    """
    # A reserved name in some rows is those rows' fault; in all of them it is the dataset's.
    reserved = RESERVED_COLUMNS - {prompt, answer}
    if everywhere := reserved.intersection(*first):
        rule = "TRL passes its own argument of that name to every reward function"
        raise DataError(
            f"a column is called {min(everywhere)!r}", rule=rule, remedy="rename the column"
        )
    names = [
        name
        for name in dict.fromkeys(name for row in first for name in row)
        if name not in reserved
    ]
    chats = {name for row in first for name in row if last_turn(row[name], [])[1] is not None}
    there = ", ".join(map(str, names)) or "no columns"
    prompt, notes = _one("prompt", prompt, names, there, PROMPT_ALIASES, chats)
    if answer == _NO_ANSWER:
        return Columns(prompt, None, notes)
    if answer == LAST_TURN and prompt in chats and LAST_TURN not in names:
        return Columns(
            prompt, LAST_TURN, [*notes, f"answer: the assistant's last turn in {prompt!r}"]
        )
    names = [name for name in names if name != prompt]
    answer, more = _one("answer", answer, names, there, ANSWER_ALIASES, set(), prompt in chats)
    return Columns(prompt, answer, notes + more)


def _one(
    role: str,
    asked: str | None,
    names: Sequence[str],
    there: str,
    aliases: tuple[str, ...],
    chats: set[str],
    turns=False,
) -> tuple[str, list[str]]:
    wanted = role if asked is None else asked
    if wanted in names:
        return wanted, []
    if asked is not None:
        value = f"{role}_column = {asked!r}; the rows have {there}"
        remedy = nearest(asked, map(str, names), "choose one of those")
        raise DataError(value, rule=f"the {role} is a column of the rows", remedy=remedy)
    found = _called(names, role, aliases)
    if len(found) == 1:
        return found[0], [
            f"{role}: taken from the column {found[0]!r} (--{role} or {role}_column chooses"
            " another)"
        ]
    likely = found or [name for name in names if name in chats or _LIKELY[role].search(str(name))]
    choices = {str(name): "" for name in (likely if turns else [*likely, *names])[:1]}
    choices |= {LAST_TURN: " for what the assistant says last"} if turns else {}
    choices |= {_NO_ANSWER: " if no reward needs one"} if role == "answer" else {}
    # Each as it is typed in a terminal, and in Python.
    quoted = {
        name: name if re.fullmatch(r"[\w.-]+", name) else json.dumps(name, ensure_ascii=False)
        for name in choices
    }
    typed = ", or ".join(
        f"--{role} {quoted[name]} ({role}_column={name!r}){when}" for name, when in choices.items()
    )
    what = (
        f"{' and '.join(map(repr, found))} could both be the {role}"
        if found
        else f"no column {role!r}"
    )
    rule = f"the {role} is a column of the rows, called {role!r} or by its own name"
    remedy = f"say which: {typed}" if typed else "give the rows named columns"
    raise DataError(f"{what}; the rows have {there}", rule=rule, remedy=remedy)


def has_constant(rows: Sequence[Row], column: str = "answer") -> bool:
    """Whether a column is the same in each of four rows or more: it cannot answer different
    questions.
    """
    if len(rows) <= FEW or (first := rows[0].get(column)) is None:
        return False
    return all(str(row.get(column)) == str(first) for row in rows)


def extract_answer(text: object, mark: str = MARK) -> str | None:
    """What stands after the last `mark` of a worked answer, without thousands' commas; None if
    there is no mark.

    >>> extract_answer("5 + 3 = <<5+3=8>>8\\n#### 1,008")
    '1008'
    """
    _, found, tail = str(text).rpartition(mark)
    first = next(iter(tail.strip().splitlines()), "").strip()
    if not found or not first:
        return None
    return first.replace(",", "") if is_number(first) else first


def _called(names: Iterable[str], role: str, aliases: tuple[str, ...]) -> list[str]:
    return [name for name in names if str(name).strip().casefold() in (role, *aliases)]


def answer_named(names: Iterable[str]) -> str | None:
    """The column that holds the answer, judged by name; None if none has such a name, or several
    do.
    """
    names = list(names)
    called = _called(names, "answer", ANSWER_ALIASES)
    return "answer" if "answer" in names else called[0] if len(called) == 1 else None


def is_number(text: str) -> bool:
    """Whether a text is one number: digits, thousands' commas, a sign, a fraction, `$` or `%`; "12
    apples" is none.
    """
    text = text.strip()
    return (
        len(text) <= _LONGEST
        and any(map(str.isdigit, text))
        and _NUMBER.fullmatch(text) is not None
    )


def unit_of(text: str) -> str | None:
    """The unit of a text that is one number and its unit, as km/h of "3 km/h"; None if it is
    anything else.
    """
    found = _WITH_UNIT.fullmatch(text) if len(text) <= _LONGEST else None
    return found and found[1]


class Units(dict[str, list]):
    """How a dataset's numeric answers are written: unit, "" (bare) or "0,75" -> [how many, the
    first].
    """

    def count(self, number: int, answer: str | None) -> None:
        """Count the answer of a kept row."""
        answer = answer or ""
        unit = "" if answer.isdigit() or is_number(answer) else unit_of(answer)
        for kind in (unit, "0,75" if _COMMA.fullmatch(answer) else None):
            if kind is not None and (kind in self or len(self) < 100):
                self.setdefault(kind, [0, f"{answer!r}, row {number}"])[0] += 1

    def notes(self) -> list[str]:
        """Lines about answers that are not all written alike, or that a comma makes doubtful."""
        notes = []
        if "0,75" in self:
            found = f"{self['0,75'][0]} of the answers hold a comma as in 0,75 ({self['0,75'][1]})"
            notes.append(
                f"{found}: rewards take them for two numbers; write 0.75 if they are decimals"
            )
        bare, first_bare = self.get("", (0, ""))
        units = sorted(
            (found for kind, found in self.items() if kind not in ("", "0,75")),
            key=lambda found: -found[0],
        )
        if units and len(units) + bool(bare) > 1:
            examples = "; ".join(first for _, first in units[:3])
            found = (
                f"{sum(count for count, _ in units)} answers are a number and a unit ({examples})"
            )
            found += (
                f", {bare} bare number{'s' * (bare > 1)} ({first_bare})"
                if bare
                else f", of {len(units)} units"
            )
            notes.append(
                f"{found}: a reward that compares them calls one form wrong where the other is the"
                " answer"
            )
        return notes


def says(line: str, answer: str) -> bool:
    """Whether a line says the answer and nothing after it: `The answer is $12.`, `#### 12`,
    `\\boxed{12}`; in linear time.
    """
    line, wanted = line.casefold(), _bare(answer)
    for mark in (*_NOUNS, MARK, "<answer>", "\\boxed"):
        _, found, rest = line.rpartition(mark)
        if mark in _NOUNS:
            rest = rest.lstrip("* \t")
            found = found and rest.startswith(("is ", "is:", ":", "="))
            rest = rest.removeprefix("is")
        if found and _bare(rest) == wanted:
            return True
    return False


def _bare(text: str) -> str:
    text = (
        text.strip()
        .casefold()
        .replace("</answer>", "")
        .replace("\\boxed", "")
        .strip(" \t*\"'`{}()$.!:=")
    )
    return text.replace(",", "") if is_number(text) else text


def answer_as_text(answer: Any, found: list[str]) -> str:
    """The answer as text, which rewards compare and Arrow takes in every row, or LeftOut; repairs
    are added to `found`.
    """
    if hasattr(answer, "tolist"):  # numpy's numbers and arrays
        answer = answer.tolist()
    match answer:
        case str():
            text = answer.strip()
            if not text:
                raise LeftOut(reasons.EMPTY_ANSWER)
            repair = "surrounding white space taken off" if text != answer else ""
        case None:
            raise LeftOut(reasons.NO_ANSWER)
        case bool() | dict():
            raise LeftOut(
                answer_is(
                    "true or false, not text" if isinstance(answer, bool) else "an object, not text"
                )
            )
        case int() | float():
            if isinstance(answer, float) and not math.isfinite(answer):
                raise LeftOut(answer_is("not a finite number"))
            # A spreadsheet and JSON both make 4.0 of a whole number now and then.
            exact = (
                int(answer)
                if isinstance(answer, int) or (answer == int(answer) and abs(answer) < 1e15)
                else answer
            )
            if isinstance(exact, int) and abs(exact) >= 10**_LONGEST:
                raise LeftOut(answer_is(f"a number of more than {_LONGEST} digits"))
            text, repair = repr(exact), "number written as text"
        case list() | tuple() if len(answer) == 1 and isinstance(answer[0], (str, int, float)):
            text, repair = answer_as_text(answer[0], []), "taken out of a list of one"
        case list() | tuple():
            several = "a list of several" if len(answer) > 1 else "a list without a text in it"
            raise LeftOut(answer_is(several if answer else "an empty list"))
        case bytes() | bytearray():
            try:
                text, repair = (
                    answer_as_text(bytes(answer).decode("utf-8"), []),
                    "bytes read as UTF-8",
                )
            except UnicodeDecodeError:
                raise LeftOut(answer_is("bytes that are not UTF-8")) from None
        case Decimal() | date():  # a datetime is a date
            text, repair = str(answer), f"{type(answer).__name__} written as text"
        case _:
            raise LeftOut(answer_is(f"a {type(answer).__name__}, not text"))
    if repair:
        found.append(f"answer: {repair}")
    return text
