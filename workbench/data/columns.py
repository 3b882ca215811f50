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
NO_ANSWER = "none"
LAST_TURN = "assistant"  # the answer is what the assistant says last in the prompt's chat
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
        raise DataError(
            f"a column is called {reserved[0]!r}",
            rule="TRL hands its own argument of that name to every reward function",
            remedy="rename the column",
        )
    prompt_name, said_prompt = _one(names, "prompt", prompt, PROMPT_ALIASES, answered)
    if answer == NO_ANSWER:
        return Columns(prompt_name, None, said_prompt)
    turns = prompt_name in answered
    if answer == LAST_TURN and turns and LAST_TURN not in names:
        return Columns(prompt_name, LAST_TURN, (*said_prompt, f"answer: the assistant's last turn in {prompt_name!r}"))
    others = [name for name in names if name != prompt_name]
    answer_name, said_answer = _one(others, "answer", answer, ANSWER_ALIASES, (), names, turns)
    return Columns(prompt_name, answer_name, said_prompt + said_answer)


def _one(
    names: Sequence[str],
    role: str,
    asked: str | None,
    aliases: Sequence[str],
    chats: Collection[str],
    all_names: Sequence[str] = (),
    turns: bool = False,
) -> tuple[str, tuple[str, ...]]:
    there = ", ".join(map(str, all_names or names)) or "no columns"
    if asked is not None:
        if asked not in names:
            raise DataError(
                f"{role}_column = {asked!r}; the rows have {there}",
                rule=f"the {role} is a column of the rows",
                remedy=nearest(asked, map(str, names), "choose one of those"),
            )
        return asked, ()
    if role in names:
        return role, ()
    found = [name for name in names if str(name).strip().casefold() in (role, *aliases)]
    if len(found) == 1:
        note = f"{role}: taken from the column {found[0]!r} (--{role} or {role}_column chooses another)"
        return found[0], (note,)
    likely = found or [name for name in names if name in chats or _LIKELY[role].search(str(name))]
    choices = {str(name): "" for name in (likely if turns else [*likely, *names])[:1]}
    choices |= {LAST_TURN: " for what the assistant says last"} if turns else {}
    choices |= {NO_ANSWER: " if no reward needs one"} if role == "answer" else {}
    typed = ", or ".join(f"{_typed(role, name)}{when}" for name, when in choices.items())
    what = f"{' and '.join(map(repr, found))} could both be the {role}" if found else f"no column {role!r}"
    raise DataError(
        f"{what}; the rows have {there}",
        rule=f"the {role} is a column of the rows, called {role!r} or by its own name",
        remedy=f"say which: {typed}" if typed else "give the rows named columns",
    )


def _typed(role: str, name: str) -> str:
    # As it is typed in a terminal, and in Python.
    quoted = name if re.fullmatch(r"[\w.-]+", name) else json.dumps(name, ensure_ascii=False)
    return f"--{role} {quoted} ({role}_column={name!r})"
