"""Which column is the prompt and which the answer (always reported), and the answers as text: how
they are written, and whether the prompt gives them away.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from datetime import date
from decimal import Decimal
from string import ascii_uppercase
from typing import Any, NamedTuple

from workbench.base.errors import DataError, nearest
from workbench.base.plain import listed
from workbench.base.progress import in_kernel
from workbench.data import reasons
from workbench.data.answer_column import (
    ANSWER_ALIASES,
    LABELS,
    called,
    extract_answer,
    is_number,
    unit_of,
    unwrapped,
)
from workbench.data.prompts import Cleaner, is_picture
from workbench.data.reasons import LeftOut, answer_is
from workbench.task import RESERVED_COLUMNS, Row

_LONGEST = 60  # digits of an answer that is a number
# What an answer that stands at the end of a prompt stands in.
_SAYS = (["<answer>"], ["\\boxed{}"], ["answer:"])
# words that often stand for "there is none"
PLACEHOLDERS = {"n/a", "none", "null", "nan", "unknown", "tbd", "-", "?"}
PROMPT_ALIASES = (
    "query",
    "question",
    "problem",
    "instruction",
    "input",
    "messages",
    "conversations",
)
SAID = "completion"  # the answer in rows made for fine-tuning
LAST_TURN = "assistant"  # the answer is what the assistant says last in the prompt's chat
_NO_ANSWER = "none"
_LIKELY = {
    "prompt": re.compile("prompt|question|problem|instruction|query|task|input|text", re.I),
    "answer": re.compile(
        "answer|solution|label|target|expected|chosen|response|truth|gold|^gt$|output", re.I
    ),
}
# A column with one of these words in its name may be half of the question.
_BESIDE = re.compile(
    r"(?:.*_)?(?:input|context|passage|paragraph|option|choice|candidate|ending|schema|code|document"
    r"|table|text|article|story|dialogue|premise|hypothesis|sentence|fact|background|evidence"
    r"|snippet|body|email|review)(?:s|_?\d)?(?:_(?:text|list))?",
    re.IGNORECASE,
)
_NOT_BESIDE = re.compile("answer|solution|target|truth|test|output|expected|gold|label", re.I)
_PARAGRAPHS = "\n\n"
_FIELD = re.compile(r"\{([\w .-]+)\}")
_CHOICES = re.compile("option|choice|candidate|ending", re.I)


class Columns(NamedTuple):
    """Which columns hold prompt and answer, and how they were chosen."""

    prompt: str
    answer: str | None  # None: the task has no answers
    notes: list[str]
    beside: Sequence[str] = ()  # columns that may be half of the question, and are not in it
    joins: str = ""  # how to put them there


def choose_columns(first: Sequence[Row], prompt: str | None, answer: str | None) -> Columns:
    """Which columns of these rows hold prompt and answer, requested as in `check`.

    DataError: there is no such column, several could be meant, or a column has a name that TRL
    reserves.
    """
    names = list({name: 0 for row in first for name in row})
    # In TRL's layout for fine-tuning the answer has one of the names that it reserves.
    aliases = ANSWER_ALIASES if called(names, "answer", ANSWER_ALIASES) else (SAID,)
    # A reserved name in some rows is those rows' fault; in all of them it is the dataset's.
    pictures = {name for row in first for name, value in row.items() if is_picture(value)}
    reserved = RESERVED_COLUMNS - {prompt, answer, *(aliases if answer is None else ())}
    if everywhere := reserved.difference(pictures).intersection(*first):
        raise DataError(
            f"a column is called {min(everywhere)!r}",
            rule="TRL passes its own argument of that name to every reward function",
            remedy="rename the column",
        )
    template = prompt if prompt and "{" in prompt else None
    columns = [name for name in names if name not in {*reserved, template}]
    columns += [
        f"{name}.{key}"
        for name in columns
        if isinstance(first[0].get(name), dict)
        for key in called(first[0][name], "answer", ANSWER_ALIASES)
    ]
    chats = {name for row in first for name in row if last_turn(row[name]) is not None}
    prompt, notes = _chosen("prompt", prompt, columns, PROMPT_ALIASES, chats)
    if unseen := pictures - reserved - {prompt}:
        many = ", ".join(map(repr, sorted(unseen)))
        notes.append(f"{many} holds pictures, or paths of some: no policy of text sees them")
    if answer == _NO_ANSWER:
        answer = None
    elif answer == LAST_TURN and prompt in chats and LAST_TURN not in columns:
        notes.append(f"answer: the assistant's last turn in {prompt!r}")
    else:
        answer, more = _chosen("answer", answer, columns, aliases, chats, prompt)
        notes += more
    beside = _beside(first, [name for name in columns if name not in (prompt, answer)], prompt)
    joins = "write it into the user's message"
    if all(isinstance(row.get(prompt), str | None) for row in first):
        fields = [template or f"{{{prompt}}}", *map("{{{}}}".format, beside)]
        joins = f"{_typed('prompt', _PARAGRAPHS.join(fields))} joins them"
    if beside:
        most = f"{max(beside.values())} of the first {len(first)} rows"
        some = f"{', '.join(map(repr, beside))} ({most})"
        notes.append(f"beside the prompt, not in it: {some}; if the question needs it, {joins}")
    return Columns(prompt, answer, notes, [*beside], joins)


def _beside(first: Sequence[Row], names: Sequence[str], prompt: str) -> dict[str, int]:
    # Columns whose text may belong to the question and is not in the prompt -> in how many rows.
    counts: Counter[str] = Counter()
    known: dict[str, Row] = {}
    for row in first:
        inside = " ".join(_texts(row.get(prompt)))
        same = known.setdefault(inside, row)
        for name in map(str, names):
            texts = [text for text in _texts(row.get(name)) if text not in inside]
            # two rows with one prompt differ in it
            told = any(map(str.split, texts)) and str(row[name]) != str(same.get(name))
            fits = _BESIDE.fullmatch(name) or (told and " " in texts[0])
            if texts and fits and not _NOT_BESIDE.search(name) and f"{{{name}}}" not in prompt:
                counts[name] += 1
    return dict(counts)


def _texts(value: Any) -> Iterator[str]:
    # every text in a value, white space as one space
    if isinstance(value, str) and value.strip():
        yield " ".join(value.split())
    elif isinstance(value, (list, tuple, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def last_turn(value: Any) -> str | None:
    """What the assistant says at the end of a chat; None where it ends otherwise."""
    return Cleaner().last_turn(value)[1]


def as_values(row: Any, fields: Sequence[str]) -> Any:
    """A row, its arrays as lists, with these fields as columns, where it has none of that name:
    a field within a column, `reward_model.ground_truth`, or a template,
    "{instruction}\\n\\n{input}". What is no row as it is.
    """
    if not isinstance(row, dict):
        return row
    row = {name: listed(value) for name, value in row.items()}
    for name in fields:
        value = _filled_in(name, row) if "{" in name else _within(name, row)
        if value is not None:
            row.setdefault(name, value)
    return row


def _within(name: str, value: Any) -> Any:
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _filled_in(template: str, row: Row) -> str:
    # A list of choices becomes lines A), B), another list of texts lines, and an object JSON. A
    # line, or a paragraph, of which all columns are empty is left out.
    def filled(text: str) -> bool:
        names = _FIELD.findall(text)
        return not names or any(_in_words(name, row.get(name)).strip() for name in names)

    paragraphs = filter(filled, template.replace("\\n", "\n").split(_PARAGRAPHS))
    kept = ["\n".join(filter(filled, each.split("\n"))) for each in paragraphs]
    return _FIELD.sub(lambda field: _in_words(field[1], row.get(field[1])), _PARAGRAPHS.join(kept))


def _in_words(name: str, value: Any) -> str:
    numbered = "{}) {}".format
    if isinstance(value, dict) and value.keys() >= {"text", "label"}:  # ARC's choices
        return "\n".join(map(numbered, value["label"], value["text"]))
    if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
        lettered = _CHOICES.search(name) and len(value) <= len(ascii_uppercase)
        return "\n".join(map(numbered, ascii_uppercase, value) if lettered else value)
    if value is None or value != value:  # NaN
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _chosen(
    role: str,
    requested: str | None,
    columns: Sequence[str],
    aliases: Sequence[str],
    chats: Collection[str],
    prompt: str | None = None,
) -> tuple[str, list[str]]:
    """(the column of a role, notes); `prompt`: the column that is taken already."""
    names = [name for name in columns if name != prompt]
    there = ", ".join(map(str, columns)) or "no columns"
    if requested and "{" in requested and (fields := _FIELD.findall(requested)):
        missing = [name for name in fields if name not in names]
        if not missing:
            return requested, [f"prompt: {requested!r}, filled in"]
        requested = missing[0]
    if (requested or role) in names:
        return requested or role, []
    if requested is not None:
        value = f"{role}_column = {requested!r}; the rows have {there}"
        remedy = nearest(requested, map(str, names), "choose one of those")
        raise DataError(value, rule=f"the {role} is a column of the rows", remedy=remedy)
    matches = called(names, role, aliases)
    if len(matches) == 1:
        chooses = f"(--{role} or {role}_column chooses another)"
        return matches[0], [f"{role}: taken from the column {matches[0]!r} {chooses}"]
    value = f"no column {role!r}"
    if matches:
        value = f"{' and '.join(map(repr, matches))} could both be the {role}"
    remedy = _say_which(role, matches, names, chats, prompt)
    raise DataError(
        f"{value}; the rows have {there}",
        rule=f"the {role} is a column of the rows, called {role!r} or by its own name",
        remedy=remedy,
    )


def _say_which(
    role: str,
    matches: Sequence[str],
    names: Sequence[str],
    chats: Collection[str],
    prompt: str | None,
) -> str:
    chats_fit = prompt is None
    likely = matches or [
        name for name in names if _LIKELY[role].search(str(name)) or (chats_fit and name in chats)
    ]
    choices = {}
    if prompt in chats:
        choices = dict.fromkeys(likely[:1], "") | {LAST_TURN: " for what the assistant says last"}
    elif names:
        choices = {[*likely, *names][0]: ""}
        if prompt is None and any(map(_BESIDE.fullmatch, matches[1:])):
            choices = {_PARAGRAPHS.join(f"{{{name}}}" for name in matches): " for both", **choices}
    if role == "answer":
        choices[_NO_ANSWER] = " if no reward needs one"
    ways = [f"{_typed(role, str(name))}{when}" for name, when in choices.items()]
    return f"say which: {', or '.join(ways)}" if ways else "give the rows named columns"


def _typed(role: str, name: str) -> str:
    # as it is typed in a terminal, and in Python; where one is now first
    plain = re.fullmatch(r"[\w.-]+", name)
    flag = f"--{role} {name if plain else json.dumps(name, ensure_ascii=False)}"
    own = f"{role}_column={name!r}"
    return f"{own} in 01's More parameters ({flag})" if in_kernel() else f"{flag} ({own})"


class Writing:
    """How a dataset's answers are written: a few labels, numbers with units or bare."""

    def __init__(self) -> None:
        self.labels: Counter[str | None] = Counter()  # of the first, until they are too many
        self.counts: Counter[str] = Counter()  # by unit; "": a bare number
        self.first: dict[str, str] = {}

    def count(self, number: int, answer: str | None) -> None:
        """Count the answer of a kept row."""
        if len(self.labels) <= LABELS:
            self.labels[answer] += 1
        if answer is None:
            return
        unit = "" if answer.isdigit() or is_number(answer) else unit_of(answer)
        if unit is not None:
            self.counts[unit] += 1
            self.first.setdefault(unit, f"{answer!r}, row {number}")

    def notes(self) -> list[str]:
        """Lines about answers that are not all written alike."""
        notes, rows = [], self.labels.total()
        if 0 < len(self.labels) <= min(LABELS, rows // 4) and None not in self.labels:
            counted = ", ".join(f"{label!r:.40} ({n})" for label, n in self.labels.most_common())
            found = f"one of {len(self.labels)}: {counted}"
            if len(self.labels) == 1:
                only = f"every row has {next(iter(self.labels))!r:.40}"
                found = f"{only}, which is no answer: choose another column, or none"
            notes.append(f"answer: {found}")
        units = self.counts.copy()
        bare = units.pop("", 0)
        if units and len(units) + bool(bare) > 1:
            examples = "; ".join(self.first[unit] for unit, _ in units.most_common(3))
            others = f" of {len(units)} units"
            if bare:
                others = f" {bare} bare number{'s' if bare > 1 else ''} ({self.first['']})"
            notes.append(
                f"{units.total()} answers are a number and a unit ({examples}),{others}: a reward"
                " that compares them calls one form wrong where the other is the answer"
            )
        return notes


def says(line: str, answer: str) -> bool:
    """Whether a line says the answer and nothing after it: `The answer is $12.`, `#### 12`,
    `\\boxed{12}`; in linear time.
    """
    found, marks = unwrapped(line)
    if marks[:1] not in _SAYS:
        found = extract_answer(line)
    return found is not None and _bare(found) == _bare(answer)


def _bare(text: str) -> str:
    text = text.casefold().strip(" \t*\"'`$.!")
    return text.replace(",", "") if is_number(text) else text


def answer_as_text(answer: Any) -> tuple[str, list[str]]:
    """(the answer as text, which rewards compare and Arrow takes in every row; the repair of it, if
    there was one), or LeftOut.
    """
    match answer:
        case None:
            raise LeftOut(reasons.NO_ANSWER)
        case str():
            text, repair = answer.strip(), "surrounding white space taken off"
            if not text:
                raise LeftOut(reasons.EMPTY_ANSWER)
        case [str() | int() | float() as only]:
            (text, _), repair = answer_as_text(only), "taken out of a list of one"
        case bool():
            raise LeftOut(answer_is("true or false, not text"))
        case dict():
            raise LeftOut(answer_is("an object, not text"))
        case list() | tuple():
            raise LeftOut(answer_is("a list of several" if answer else "an empty list"))
        case int() | float():
            text, repair = _number_as_text(answer), reasons.becomes_text("number")
        case Decimal() | date():  # a datetime is a date
            text, repair = str(answer), reasons.becomes_text(type(answer).__name__)
        case _:
            raise LeftOut(answer_is(f"a {type(answer).__name__}, not text"))
    return text, [] if text == answer else [f"answer: {repair}"]


def _number_as_text(number: float) -> str:
    if isinstance(number, float):
        if not math.isfinite(number):
            raise LeftOut(answer_is("not a finite number"))
        # A spreadsheet and JSON both make 4.0 of a whole number now and then.
        return repr(int(number) if number == int(number) and abs(number) < 1e15 else number)
    if abs(number) >= 10**_LONGEST:
        raise LeftOut(answer_is(f"a number of more than {_LONGEST} digits"))
    return repr(int(number))
