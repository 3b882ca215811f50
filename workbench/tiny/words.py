"""Words that the embedded policy was never taught."""

from __future__ import annotations

import re
from collections.abc import Iterable

from workbench.base.instruments import places_in
from workbench.task import Row
from workbench.tiny.task import SYSTEM_PROMPT, WORDING

_WORD = re.compile(r"[^\W\d_]+|[^\w\s]")
# in the prompts that it was taught, and marks that it writes itself
_READ = {*_WORD.findall(f"{SYSTEM_PROMPT} {WORDING.format(1)}".casefold()), *"+-=.,:;"}
_SHOWN = 5


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


def words_line(new: Iterable[str]) -> list[str]:
    """The line about such words; none if there are none."""
    new = list(dict.fromkeys(new))
    words = ", ".join(map(repr, new[:_SHOWN]))
    more = f" and {len(new) - _SHOWN} more" if len(new) > _SHOWN else ""
    line = f"policy tiny knows the task arithmetic alone, which never says {words}{more}"
    others = " or ".join(f"policy {one}" for one in places_in("policies")) or "one of the hub"
    remedy = f"where it is never right it cannot learn; {others} reads any words"
    return [f"{line}: {remedy}"] if new else []
