"""Scores completions of a task's prompts while one types: the content of the lab, without the
panel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from workbench.audit.completions import CompletionBuilder, builders
from workbench.audit.examination import audit_rewards
from workbench.audit.probes import probes
from workbench.base.errors import TaskError, WorkbenchError
from workbench.rewards.groups import ExplainedGroup, batch_of, explain_in
from workbench.rewards.right import right_under
from workbench.rewards.suite import RewardSuite
from workbench.task import Row, Task
from workbench.tasks.loading import load_task
from workbench.views.audit import audit_view
from workbench.views.groups import group_tables
from workbench.views.tables import Table, View, pre

_DEADLINE_S = 5.0  # for one function and all completions of the panel


class Bench:
    """A task with the scoring of its completions: the content of the panel, without the panel.
    Arguments as for `Lab`.

    Raises:
        TaskError: if the task cannot be loaded, has no prompts, or a function lacks a column.
    """

    def __init__(self, task: Task | str | Path, scale_rewards: str = "group") -> None:
        self.scale_rewards = scale_rewards
        self.task = load_task(task)
        if not len(self.task.rows):
            raise TaskError(
                f"task {self.task.name!r}: 0 prompts",
                rule="completions answer a prompt",
                remedy="give it rows",
            )
        self._writers: dict[int, CompletionBuilder] = {}
        self.writer(0)
        # A function that fails leaves its completion without a score.
        self.suite = RewardSuite(
            self.task, 1, deadline_s=_DEADLINE_S, on_error="skip", keep_state=False
        )
        self.suite.check_signatures(self.task.rows)

    def writer(self, row: int) -> CompletionBuilder:
        """How an honest policy writes for a prompt of the task."""
        if row not in self._writers:
            rows = self.task.rows
            near = [rows[other] for other in range(min(len(rows), 20)) if other != row]
            self._writers[row] = builders(self.task, [rows[row], *near])[0]
        return self._writers[row]

    def starters(self, row: int) -> dict[str, str]:
        """Completions to start with, by name: the reference completions, then the probes."""
        writer = self.writer(row)
        (_, first), *others = writer.reference_completions().items()
        honest = {"an honest answer": first, **{f"honest, {name}": text for name, text in others}}
        return honest | {probe.name: probe.text for probe in probes(writer, self.task.probes)}

    def group(self, row: Row, texts: Sequence[str]) -> tuple[ExplainedGroup, list[tuple[int, str]]]:
        """(the completions as one group, (completion, what a function did instead of scoring it)
        for each that failed).
        """
        texts = list(texts) or [""]  # nothing written yet
        names = self.suite.names
        count = len(texts)
        scored = self.suite.score_each([row] * count, texts, quiet=True)
        scores = np.array([scored[name].scores for name in names], dtype=float).T
        right = right_under(self.suite, scores, count)
        problems = [
            (index, f"{name} {what}")
            for name, each in scored.items()
            for index, what in each.errors.items()
        ]
        given = (names, self.suite.weights, scores, texts, right, count, self.scale_rewards)
        return explain_in(batch_of(*given)), sorted(problems)

    @property
    def not_scored(self) -> str:
        """Which functions score no text here, and why; "": all do."""
        if not (names := self.suite.given_by_environments):
            return ""
        return (
            f"{', '.join(names)}: given by the environment, and a text alone has none, so"
            " totals and advantages are without it; wb.inspection.ByHand(task) plays a rollout"
        )

    def matched(self, row: Row, text: str, function: str) -> set[tuple[int, int]]:
        """(start, end) of what a function took out of a completion."""
        trace = self.suite.trace(function, [row], [text])
        return trace.matched.get(text, set()) if trace is not None else set()

    def tables(self, row: Row, texts: Sequence[str]) -> list[View | Table]:
        """The panel as plain tables, the audit last."""
        group, problems = self.group(row, texts)
        failed = Table(["completion", "what a function did instead of scoring it"], problems)
        shown: list[View | Table] = [*group_tables(group)]
        if said := self.not_scored:
            shown = [View(pre(said), said), shown[0]]
        return [*shown, *([failed] if problems else []), self.report]

    @cached_property
    def report(self) -> View | Table:
        """What `audit_rewards` finds in the task, for people, or why it cannot be audited."""
        try:
            return audit_view(audit_rewards(self.task), chart=False)
        except WorkbenchError as error:
            return Table(["the task cannot be audited"], [[str(error)]])
