"""Words that the embedded policy does not know: said in the plan, and where a run begins."""

from __future__ import annotations

import re
from collections.abc import Iterable

from workbench.task import Row
from workbench.tiny.task import SYSTEM_PROMPT, WORDING
from workbench.training.feature import Asked, Feature

_WORD = re.compile(r"[^\W\d_]+|[^\w\s]")
# in the prompts that it was taught, and marks that it writes itself
_READ = {*_WORD.findall(f"{SYSTEM_PROMPT} {WORDING.format(1)}".casefold()), *"+-=.,:;"}
_ROWS = 200  # of a stage that are looked at
_SHOWN = 5


class KnownWords(Feature):
    """A line for a task with words that `policy: tiny` was never taught."""

    key = "known_words"

    @classmethod
    def of(cls, session: object) -> None:
        return None  # it has nothing to do while it trains

    @classmethod
    def plan(cls, asked: Asked) -> list[str]:
        if asked.recipe.policy.name != "tiny":
            return []
        new: dict[str, None] = {}
        for stage in asked.stages:
            column = stage.task.answer_column if stage.task else ""
            new |= dict.fromkeys(new_words(stage.rows[:_ROWS], column))
        words = ", ".join(map(repr, [*new][:_SHOWN]))
        more = f" and {len(new) - _SHOWN} more" if len(new) > _SHOWN else ""
        told = f"policy tiny knows the task arithmetic alone, which never says {words}{more}"
        remedy = "where it is never right it cannot learn; policy smollm2 reads any words"
        return [f"{told}: {remedy}"] if new else []


def new_words(rows: Iterable[Row], answer_column: str = "answer") -> list[str]:
    """Words and marks, in order, that these prompts and answers have, and those of the task
    arithmetic do not.
    """
    found: dict[str, None] = {}
    for row in rows:
        prompt = row["prompt"]
        messages = [prompt] if isinstance(prompt, str) else [each.get("content") for each in prompt]
        for text in (*messages, row.get(answer_column, "")):
            found |= dict.fromkeys(_WORD.findall(str(text or "").casefold()))
    return [word for word in found if word not in _READ]
