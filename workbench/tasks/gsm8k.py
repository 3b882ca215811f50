"""GSM8K: grade-school word problems (`openai/gsm8k`, subset main), answers after `####`. Needs the
hub, or its cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workbench.data.checks import Checked
from workbench.data.prompts import SYSTEM_PROMPT, examples_for
from workbench.data.sources import open_source
from workbench.task import Row, Task
from workbench.tiny.task import CASES, REWARD_FUNCS

NAME = "openai/gsm8k"


def rows(
    source: str | Path = NAME, split: str = "train", limit: int | None = None, **options: Any
) -> list[Row]:
    """Prompts of one split: columns `prompt`, `answer` (the number) and `rationale` (the whole
    worked answer).

    `source` is the hub's dataset, or a local folder in its layout; `options` are those of
    `Checked`.
    """
    opened = open_source(source, subset="main", split=split, limit=limit)
    return (
        Checked(
            opened, system=SYSTEM_PROMPT, examples=examples_for("tags"), numbers=True, **options
        )
        .collect()
        .kept
    )


def task(source: str | Path = NAME, limit: int | None = None, held_out: int = 200) -> Task:
    """GSM8K with the five reward functions; the test split's first problems are held out."""
    train = rows(source, "train", limit)
    return Task(
        "gsm8k",
        train,
        REWARD_FUNCS,
        held_out=rows(source, "test", held_out, other=train),
        right_by="correctness_reward",
        format_by="strict_format_reward",
        cases=CASES,
    )
