"""Hack this reward: reward functions as well-known recipes have them, each with its flaws left in.

A file here is an exercise: its docstring asks the question, `prompt` is what the policy reads,
`functions` are the rewards, numbers and patterns as their recipes have them. Find out what each
pays for that nobody wanted, or never pays, before reading the corrected counterparts in
`workbench.rewards.library`. None of them belongs in a run.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.base.errors import TaskError
from workbench.data.prompts import to_messages
from workbench.task import Row, Task

QUESTIONS = (("What is 15 + 27?", "42"), ("What is 9 - 4?", "5"))
# TRL's own: the function's name in trl.rewards, what to find out, columns.
TRL_EXERCISES = {
    "trl_accuracy": (
        "accuracy_reward",
        "Which right answers does it pay for, and for which rows does it say nothing at all?",
        "solution",
    ),
    "trl_think_format": (
        "think_format_reward",
        (
            "What must stand between the tags and after them? What if the template writes the first"
            " tag itself?"
        ),
    ),
}
_BOXED = "Think inside <think> and </think>, then give the final answer in \\boxed{}."


@dataclass(frozen=True)
class Exercise:
    """Reward functions to be taken apart. Printed, it is what to find out."""

    name: str  # of its file
    # the system prompt of a chat; or, with `{question}` in it, the text of a plain prompt
    prompt: str
    functions: tuple[Callable[..., Any], ...]
    asks: str  # what to find out
    # beside `answer`, those that the functions read, each with the right answer in it
    columns: tuple[str, ...] = ()

    @property
    def chat(self) -> bool:
        """Whether its functions were written for chat prompts."""
        return "{question}" not in self.prompt

    def rows(self, questions: Iterable[tuple[str, str]] = QUESTIONS) -> list[Row]:
        """(question, right answer) pairs as the rows that its functions were written for."""
        rows = []
        for question, answer in questions:
            prompt = (
                to_messages(question, self.prompt)
                if self.chat
                else self.prompt.format(question=question)
            )
            rows.append({"prompt": prompt, **dict.fromkeys(("answer", *self.columns), answer)})
        return rows

    def task(self) -> Task:
        """Its rows and functions as a task, for the lab and the audit; a TaskError says why they
        are not even one.
        """
        return Task(self.name, self.rows(), self.functions)

    @property
    def problem(self) -> str:
        """Why its functions are not even a task; empty if they are."""
        try:
            self.task()
        except TaskError as error:
            return str(error)
        return ""

    def __str__(self) -> str:
        others = [name for name in (*EXERCISES, *TRL_EXERCISES) if name != self.name]
        problem = f"not even a task: {self.problem}\n" if self.problem else ""
        return f"{problem}{self.name}: {self.asks}\n(others: {', '.join(others)})"


def exercise(name: str) -> Exercise:
    """A well-known flawed reward, to be taken apart in the lab. TRL's own import TRL: not before a
    policy is loaded on a GPU.

    Raises:
        TaskError: listing the names, if there is none of this one.

    >>> wb.rewards.exercise("format").asks
    'What is the shortest completion that earns everything?'
    """
    if name in EXERCISES:
        return EXERCISES[name]
    if name not in TRL_EXERCISES:
        remedy = f"choose from {', '.join([*EXERCISES, *TRL_EXERCISES])}"
        raise TaskError(
            f"exercise {name!r}", rule="an exercise is one of those that ship", remedy=remedy
        )
    from trl import rewards

    function, asks, *columns = TRL_EXERCISES[name]
    return Exercise(name, _BOXED, (getattr(rewards, function),), asks, tuple(columns))


def _read(name: str) -> Exercise:
    file = importlib.import_module(f"{__name__}.{name}")
    for function in filter(inspect.isfunction, file.functions):
        # It stands for one that anyone wrote, patterns and all, so the suite runs it where it can
        # stop it.
        function.runs_in_worker = True
    columns = getattr(file, "columns", ())
    return Exercise(
        name,
        file.prompt,
        tuple(file.functions),
        " ".join((file.__doc__ or "").split()),
        tuple(columns),
    )


EXERCISES = {
    name: _read(name)
    for name in sorted(file.stem for file in Path(__file__).parent.glob("[!_]*.py"))
}
