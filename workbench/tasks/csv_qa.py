"""Questions and an expert's answers from a CSV file: here, about GRPO's own words. Put a file of your own in its place."""

from __future__ import annotations

from pathlib import Path

from workbench.data.sources import Source, open_source
from workbench.rewards.library import (
    correctness_reward,
    incremental_format_reward,
    length_reward,
    strict_format_reward,
)
from workbench.task import Task
from workbench.tasks import task_rows

EXAMPLE_FILE = Path(__file__).parent / "questions.csv"

SYSTEM = """You answer questions about training language models with GRPO, in the words that its libraries use.
Respond in the following format:
<reasoning>
[what the question is about]
</reasoning>
<answer>
[the one name or number that is asked for]
</answer>"""


def source(limit: int | None = None, seed: int = 0) -> Source:
    """The questions that travel with the package: columns `question` and `expert_answer`."""
    return open_source(EXAMPLE_FILE)


def task(
    file: str | Path = EXAMPLE_FILE,
    prompt_column: str = "question",
    answer_column: str = "expert_answer",
    system: str = SYSTEM,
) -> Task:
    """A question-answer task of any CSV file.

    Args:
        file: with one column of questions and one of short answers.
        system: the system message; it must ask for the format that the rewards look for.
    """
    train, held_out = task_rows(open_source(file), 20, system=system, prompt_column=prompt_column, answer_column=answer_column)
    return Task(
        name=Path(file).stem if Path(file) != EXAMPLE_FILE else "csv_qa",
        rows=train,
        held_out=held_out,
        reward_funcs=(correctness_reward, strict_format_reward, incremental_format_reward, length_reward),
        right_by="correctness_reward",
        format_by="strict_format_reward",
    )
