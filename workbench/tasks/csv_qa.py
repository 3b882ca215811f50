"""Questions and an expert's answers from a CSV file: here, about GRPO's own words. Replace it with
your own file.
"""

from __future__ import annotations

from pathlib import Path

from workbench.data.sources import Source, open_source
from workbench.task import Task
from workbench.tasks.checked import task_of
from workbench.tiny.task import REWARD_FUNCS

EXAMPLE_FILE = Path(__file__).parent / "questions.csv"

SYSTEM = """You answer questions about training language models with GRPO, in the words that its libraries use.
Respond in the following format:
<reasoning>
[what the question is about]
</reasoning>
<answer>
[the one name or number that is asked for]
</answer>"""  # noqa: E501


def source(limit: int | None = None, seed: int = 0) -> Source:
    """The questions that travel with the package: columns `question` and `expert_answer`."""
    return open_source(EXAMPLE_FILE)


def task(
    file: str | Path = EXAMPLE_FILE,
    prompt_column: str = "question",
    answer_column: str = "expert_answer",
    system: str = SYSTEM,
) -> Task:
    """A task of any CSV file with a column of questions and one of short answers.

    The `system` message must ask for the format that the rewards look for.
    """
    name = Path(file).stem if Path(file) != EXAMPLE_FILE else "csv_qa"
    return task_of(
        name,
        open_source(file),
        REWARD_FUNCS[:-1],  # all but style
        right_by="correctness_reward",
        format_by="strict_format_reward",
        percent=20,
        system=system,
        prompt_column=prompt_column,
        answer_column=answer_column,
    )
