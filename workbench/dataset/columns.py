"""Which column is the prompt and which the answer: asked for by name, or taken by a well-known name and said.

A name that is not `prompt` or `answer` is never used in silence: it is in the notes, with the way to choose another.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import NamedTuple

from workbench.dataset.task import RESERVED_COLUMNS
from workbench.run.errors import DataError

PROMPT_ALIASES = ("query", "question", "problem", "instruction", "input", "messages", "conversations")
ANSWER_ALIASES = ("ground_truth", "solution", "answers", "expert_answer", "raw_answer", "target", "output")
NO_ANSWER = "none"


class Columns(NamedTuple):
    """Names in the source of what the rows will call `prompt` and `answer`."""

    prompt: str
    answer: str | None
    notes: tuple[str, ...] = ()


def choose_columns(names: Sequence[str], prompt: str | None = None, answer: str | None = None) -> Columns:
    """Decide which columns hold prompt and answer.

    Args:
        names: the columns that there are.
        prompt: the prompt's; None: `prompt`, or the one well-known other name that is there.
        answer: the answer's; None: likewise; "none": the task has no answers.

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
    prompt_name, said_prompt = _one(names, "prompt", prompt, PROMPT_ALIASES)
    if answer == NO_ANSWER:
        return Columns(prompt_name, None, said_prompt)
    answer_name, said_answer = _one([name for name in names if name != prompt_name], "answer", answer, ANSWER_ALIASES)
    return Columns(prompt_name, answer_name, said_prompt + said_answer)


def _one(names: Sequence[str], role: str, asked: str | None, aliases: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    there = ", ".join(map(str, names)) or "no other columns"
    if asked is not None:
        if asked not in names:
            near = difflib.get_close_matches(asked, [*map(str, names)], n=1)
            raise DataError(
                f"{role}_column = {asked!r}; the rows have {there}",
                rule=f"the {role} is a column of the rows",
                remedy=f"did you mean {near[0]!r}?" if near else "choose one of those",
            )
        return asked, ()
    if role in names:
        return role, ()
    found = [name for name in names if str(name).strip().casefold() in (role, *aliases)]
    if len(found) == 1:
        note = f"{role}: taken from the column {found[0]!r} (--{role} or {role}_column chooses another)"
        return found[0], (note,)
    remedy = f"say which, for example {role}_column={found[0] if found else next(iter(names), 'question')!r}"
    if role == "answer":
        remedy += f", or answer_column={NO_ANSWER!r} if no reward needs one"
    what = f"{' and '.join(map(repr, found))} could both be the {role}" if found else f"no column {role!r}"
    raise DataError(
        f"{what}; the rows have {there}",
        rule=f"the {role} is a column of the rows, called {role!r} or by its own name",
        remedy=remedy,
    )
