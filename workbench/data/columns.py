"""Which column is the prompt and which the answer: asked for by name, or taken by a well-known name and said.

A name that is not `prompt` or `answer` is never used in silence: it is in the notes, with the way to choose another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from workbench.errors import DataError, nearest
from workbench.task import RESERVED_COLUMNS

PROMPT_ALIASES = ("query", "question", "problem", "instruction", "input", "messages", "conversations")
ANSWER_ALIASES = ("ground_truth", "solution", "answers", "expert_answer", "raw_answer", "target", "output")
LAST_TURN = "assistant"  # the answer is what the assistant says last in the prompt's chat
_NO_ANSWER = "none"
_LIKELY = {
    "prompt": re.compile("prompt|question|problem|instruction|query|task|input|text", re.I),
    "answer": re.compile("answer|solution|label|target|expected", re.I),
}


class Columns(NamedTuple):
    """Names in the source of what the rows will call `prompt` and `answer`."""

    prompt: str
    answer: str | None
    notes: tuple[str, ...] = ()


def choose_columns(
    names: Sequence[str], prompt: str | None = None, answer: str | None = None, answered: Collection[str] = ()
) -> Columns:
    """Decide which columns hold prompt and answer.

    Args:
        names: the columns that there are.
        prompt: the prompt's; None: `prompt`, or the one well-known other name that is there.
        answer: the answer's; None: likewise; "none": the task has no answers; "assistant" (unless a column is called so):
            what the assistant says last in the prompt's chat.
        answered: the columns that hold chats which end with the assistant's turn.

    Raises:
        DataError: if there is no such column, several could be meant, or a column has a name that TRL reserves.
    """
    reserved = sorted(RESERVED_COLUMNS.intersection(names) - {prompt, answer})
    if reserved:  # in every row; a row that alone has such a column is left out by the checks
        rule = "TRL hands its own argument of that name to every reward function"
        raise DataError(f"a column is called {reserved[0]!r}", rule=rule, remedy="rename the column")
    there = ", ".join(map(str, names)) or "no columns"
    prompt, said = _one("prompt", prompt, names, there, PROMPT_ALIASES, answered)
    if answer == _NO_ANSWER:
        return Columns(prompt, None, said)
    turns = prompt in answered
    if answer == LAST_TURN and turns and LAST_TURN not in names:
        return Columns(prompt, LAST_TURN, (*said, f"answer: the assistant's last turn in {prompt!r}"))
    others = [name for name in names if name != prompt]
    answer, also_said = _one("answer", answer, others, there, ANSWER_ALIASES, (), turns)
    return Columns(prompt, answer, said + also_said)


def _one(
    role: str, asked: str | None, names: Sequence[str], there: str, aliases: tuple[str, ...], chats: Collection[str], turns=False
) -> tuple[str, tuple[str, ...]]:
    if asked is None and role in names:
        return role, ()
    if asked is not None:
        if asked in names:
            return asked, ()
        remedy = nearest(asked, map(str, names), "choose one of those")
        value = f"{role}_column = {asked!r}; the rows have {there}"
        raise DataError(value, rule=f"the {role} is a column of the rows", remedy=remedy)
    found = [name for name in names if str(name).strip().casefold() in (role, *aliases)]
    if len(found) == 1:
        return found[0], (f"{role}: taken from the column {found[0]!r} (--{role} or {role}_column chooses another)",)
    likely = found or [name for name in names if name in chats or _LIKELY[role].search(str(name))]
    choices = {str(name): "" for name in (likely if turns else [*likely, *names])[:1]}
    choices |= {LAST_TURN: " for what the assistant says last"} if turns else {}
    choices |= {_NO_ANSWER: " if no reward needs one"} if role == "answer" else {}
    # Each as it is typed in a terminal, and in Python.
    quoted = {name: name if re.fullmatch(r"[\w.-]+", name) else json.dumps(name, ensure_ascii=False) for name in choices}
    typed = ", or ".join(f"--{role} {quoted[name]} ({role}_column={name!r}){when}" for name, when in choices.items())
    what = f"{' and '.join(map(repr, found))} could both be the {role}" if found else f"no column {role!r}"
    raise DataError(
        f"{what}; the rows have {there}",
        rule=f"the {role} is a column of the rows, called {role!r} or by its own name",
        remedy=f"say which: {typed}" if typed else "give the rows named columns",
    )
