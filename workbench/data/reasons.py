"""Why a row was left out, or needs a look, and what to do about it: every such text, and the report
of them all.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from workbench.errors import DataError
from workbench.kinds import Fields
from workbench.task import Row

LONGEST_CHARACTERS = 100_000  # of one prompt; no context of a single GPU's policy holds more

FILL_IN = "fill it in, or delete those rows"
FILL_IN_ANSWER = f"{FILL_IN}; or state that the task has no answers"
AS_MESSAGES = 'write messages as {"role": "user", "content": "..."}'
FROM_ITS_SOURCE = "get the text again from its source"


class Reason(str):
    """A text with its `remedy`."""

    remedy: str

    def __new__(cls, text: str, remedy: str = "correct or delete those rows") -> Reason:
        made = super().__new__(cls, text)
        made.remedy = remedy
        return made


class LeftOut(Exception):
    """A row that cannot be used, with the reason."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason


# Lines and rows of files.
NOT_UTF8 = Reason("line is not UTF-8", "save the file as UTF-8")
NOT_JSON = Reason("line is not JSON", "correct or delete those lines")
TORN = Reason(
    "last line is half-written", "the writer was cut off: write the file again, or delete that line"
)
TOO_DEEP = Reason("line is nested too deeply")
OPEN_QUOTE = Reason(
    "a quote is opened and never closed", "close it; everything after it was read as one field"
)
FEWER_FIELDS = Reason(
    "row has fewer fields than the header", "quote the fields that hold the separator"
)
MORE_FIELDS = Reason("row has more fields than the header", FEWER_FIELDS.remedy)
NOT_AN_OBJECT = Reason(
    "row is not an object", 'write one object per row: {"prompt": ..., "answer": ...}'
)

# Prompts.
NO_PROMPT = Reason("no prompt", FILL_IN)
EMPTY = Reason("prompt is empty", FILL_IN)
NO_MESSAGES = Reason(
    "prompt is neither text nor a list of messages",
    'give a text, or a list of {"role", "content"} messages',
)
NO_MESSAGE = Reason("a message is not {role, content}", AS_MESSAGES)
NO_ROLE = Reason("a message's role is not one of system, user, assistant, tool", AS_MESSAGES)
NO_TEXT = Reason("a message's content is not text", AS_MESSAGES)
NOT_ONLY_TEXT = Reason("a message holds something other than text", AS_MESSAGES)
LATE_SYSTEM = Reason("a system message stands after the first", "move it to the front")
NO_USER = Reason("no message is the user's", "end the prompt with what the user asks")
ANSWERED = Reason(
    "the last message is the assistant's: nothing is left to generate",
    "take it as the right answer (--answer assistant, answer_column='assistant'), or cut it off",
)
TOO_LONG = Reason(
    f"prompt has more than {LONGEST_CHARACTERS} characters",
    "shorten it: no policy on one GPU reads so much",
)
MIXED = Reason(
    "prompt is chat in some rows and text in others", "make all prompts chat messages, or all text"
)
DUPLICATE = Reason("prompt is a duplicate of an earlier row", "nothing: the first of them was kept")
CONTRADICTS = Reason(
    f"{DUPLICATE}, with another answer", "decide which answer is right; the first was kept"
)
CONTAMINATED = Reason(
    "prompt is also in the other split",
    "nothing: if it stood in both, the evaluation would test memory",
)
OWN_SYSTEM = Reason(
    "prompt brings its own system message, which was kept instead of the one given",
    "check that it asks for the format that the rewards look for",
)
NO_EXAMPLE = Reason(
    "prompt is chat already: no worked example was added",
    "write one into those prompts, or give them as text",
)
REPLACED = Reason("text holds U+FFFD: letters were lost when it was decoded", FROM_ITS_SOURCE)
MOJIBAKE = Reason(
    "text looks like UTF-8 that was read as Windows-1252 (Ã©, â€™)",
    f"{FROM_ITS_SOURCE}, and read it as UTF-8",
)

# Answers.
NO_ANSWER = Reason("no answer", FILL_IN_ANSWER)
EMPTY_ANSWER = Reason("answer is empty", FILL_IN_ANSWER)
NO_TURN = Reason(
    "the last message is not the assistant's: it holds no answer",
    "end those chats with the answer, or delete them",
)
NO_NUMBER = Reason(
    "answer is not a number", "correct those answers, or allow texts (without --numbers)"
)
PLACEHOLDER = Reason(
    "answer is a placeholder (N/A, none, unknown, -), and the others are numbers", FILL_IN
)
PLACEHOLDER_KEPT = Reason(
    "answer looks like a placeholder (N/A, none, unknown, -), and was kept as the right answer",
    f"fine if it is the right answer; otherwise {FILL_IN}",
)
MARKED = Reason(
    "answer contains ####, and all of it was kept",
    "if the answer is what follows, say so: --answer-after '####' or answer_after",
)
LEAK = Reason(
    "the prompt's last line says the answer",
    "take it out of the question: a policy that copies it learns nothing",
)
EARLIER = Reason(
    "an earlier line of the prompt says the answer",
    "fine for a worked example; otherwise the policy can copy it",
)
VERBATIM = Reason(
    "the prompt contains the answer verbatim",
    "fine for questions about a text; otherwise the policy can copy it",
)


def answer_is(what: str) -> Reason:
    return Reason(f"answer is {what}", "write the answer as one text")


def unmarked(mark: str) -> Reason:
    remedy = (
        "correct those answers, or state that the whole column is the answer (--answer-after none,"
        " answer_after=None)"
    )
    return Reason(f"answer has no {mark}", remedy)


def column_is(
    column: str,
    what: str,
    remedy: str = "give it one kind of value in every row, or keep it as text",
) -> Reason:
    return Reason(f"column {column!r} {what}", remedy)


def other_keys(column: str) -> Reason:
    remedy = (
        "`datasets` gives every row all keys, the missing ones as None: keep such a column as JSON"
        " text"
    )
    return column_is(column, "is an object with other keys than before", remedy)


# reason, rule of a repair, or warning -> the numbers of its rows
Rows = dict[Any, array]


@dataclass
class Report:
    """What was read, what was kept, and why the rest was not: `kept_rows + len(left_out)` always
    adds up to `read`.

    Rows are counted from 0, in the order of the source. `kept` holds the rows themselves where they
    were collected.
    """

    source: str = ""
    read: int = 0
    kept_rows: int = 0
    repaired_rows: int = 0
    kept: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    columns: dict[str, str | None] = field(default_factory=dict)
    _left_out: Rows = field(default_factory=dict)
    _repaired: Rows = field(default_factory=dict)
    _warned: Rows = field(default_factory=dict)
    _examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def left_out(self) -> list[tuple[int, str]]:
        """(row number, reason) of every row that was left out, in order."""
        return sorted((number, why) for why, rows in self._left_out.items() for number in rows)

    # How many rows each of them has.
    reasons = property(lambda self: _counts(self._left_out))
    repairs = property(lambda self: _counts(self._repaired))
    warnings = property(lambda self: _counts(self._warned))

    def keep(self, number: int, oddities: list[str]) -> None:
        """Count a row as kept, with the rules that repaired it (texts) and its warnings
        (reasons).
        """
        self.kept_rows += 1
        self.repaired_rows += not all(isinstance(each, Reason) for each in oddities)
        for each in dict.fromkeys(oddities):
            group = self._warned if isinstance(each, Reason) else self._repaired
            group.setdefault(each, array("Q")).append(number)

    def leave_out(self, number: int, reason: Reason, row: object) -> None:
        """Count a row as left out; the first three of each reason are shown, cut after 100
        characters.
        """
        self._left_out.setdefault(reason, array("Q")).append(number)
        examples = self._examples.setdefault(reason, [])
        if len(examples) < 3:
            where, text = getattr(row, "where", None), repr(row)
            cut = text if len(text) <= 100 else f"{text[:100]}…"
            examples.append(f"{where} of the file" if where else cut)

    def require(self) -> list[Row]:
        """The rows that were kept; DataError, with the commonest reason, if there are none."""
        if not self.kept_rows:
            why, count = next(iter(self.reasons.most_common(1)), (Reason("there are no rows"), 0))
            value = f"{self.source}: none of {self.read} rows could be kept; {count} times: {why}"
            rule = "a dataset has rows that can be trained on"
            raise DataError(value, rule=rule, remedy=why.remedy)
        return self.kept

    def found(self) -> Fields:
        """For `workbench check --json` and the dataset's record: every number, every row."""
        return {
            "source": self.source,
            "read": self.read,
            "kept": self.kept_rows,
            "repaired": self.repaired_rows,
            "left_out": self.read - self.kept_rows,
            "columns": self.columns,
            "notes": self.notes,
            "reasons": self._listed("reason", self._left_out),
            "repairs": self._listed("rule", self._repaired),
            "warnings": self._listed("warning", self._warned),
        }

    def _listed(self, kind: str, group: Rows) -> list[Fields]:
        listed = []
        for why, rows in _ordered(group):
            one: Fields = {kind: why, "count": len(rows)}
            if isinstance(why, Reason):
                one["do"] = why.remedy
            one["rows"] = rows.tolist()
            if group is self._left_out:
                one["examples"] = self._examples[why]
            listed.append(one)
        return listed

    def __repr__(self) -> str:
        left = self.read - self.kept_rows
        repaired = f" ({self.repaired_rows} of them repaired)" if self.repaired_rows else ""
        first = f"{self.read} rows read, {self.kept_rows} kept{repaired}, {left} left out"
        if left or self._repaired or self._warned:
            first += "; rows are counted from 0"
        lines = [first, *(f"  note: {note}" for note in self.notes)]
        groups = {
            "left out": self._left_out,
            "repaired and kept": self._repaired,
            "kept, but look": self._warned,
        }
        for title, group in groups.items():
            lines += [f"{title}:"] if group else []
            for why, rows in _ordered(group):
                some = ", ".join(map(str, rows[:5])) + (", …" if len(rows) > 5 else "")
                lines.append(f"  {len(rows):>7}  {why}  (row{'s' if len(rows) > 1 else ''} {some})")
                for example in self._examples.get(why, [])[:1]:
                    lines.append(f"           e.g. {example}")
                if isinstance(why, Reason):
                    lines.append(f"           -> {why.remedy}")
        return "\n".join(lines)


def _counts(group: Rows) -> Counter[Any]:
    return Counter({why: len(rows) for why, rows in group.items()})


def _ordered(group: Rows) -> list[tuple[Any, array]]:
    # The commonest first; of those as common, the earliest.
    return sorted(group.items(), key=lambda item: (-len(item[1]), item[1][0]))
