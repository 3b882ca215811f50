"""A run's health while it trains: looked at after every step, unless looking would cost too large a share of the run."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from workbench.health import ALARM, WARNING, Facts, Verdict, diagnose, worsened
from workbench.health.summary import StepSummary
from workbench.rewards.library import max_score_of
from workbench.training.stages import Stage

LATEST = 200  # batches and rows that are looked at
BUDGET = 0.005  # share of the run's time that looking may take


class Watchdog:
    """Keeps the latest batches and rows of metrics, and says what is wrong with them.

    Args:
        eos_token_id: what a completion ends with when it was not cut.
        fp16: the trainer computes in float16, whoever chose that, and so with a gradient scaler.
    """

    def __init__(self, stage: Stage, eos_token_id: int, *, fp16: bool = False) -> None:
        import scipy.special  # noqa: F401 - the verdicts' intervals need it, and it takes 0.2 s the first time

        self.stage, self.eos_token_id, self.fp16 = stage, eos_token_id, fp16
        self.verdicts: list[Verdict] = []
        self.seconds = 0.0
        self._summaries: deque[StepSummary] = deque(maxlen=LATEST)
        self._rows: deque[dict[str, Any]] = deque(maxlen=LATEST)
        self._began = self._looked_at = time.monotonic()
        self._cost_s = 0.01

    def batch(self, summary: StepSummary) -> None:
        """Take in the summary of one scored batch."""
        self._summaries.append(summary)

    def row(self, step: int, values: dict[str, Any]) -> None:
        """Take in one row of metrics."""
        self._rows.append({"step": step, **values})

    def forget(self) -> None:
        """Other reward functions are in force: what was seen says nothing about them."""
        self._summaries.clear()

    def due(self) -> bool:
        """Whether it is time for another look."""
        now = time.monotonic()
        return bool(self._summaries) and self.seconds + self._cost_s <= BUDGET * (now - self._began) + 0.02

    def look(self) -> list[Verdict]:
        """Look at the run, and return the alarms and warnings that it did not have when it was looked at before."""
        started = time.perf_counter()
        found = diagnose(list(self._summaries), list(self._rows), self._facts())
        new = worsened(self.verdicts, found)
        self.verdicts = found
        self._cost_s = time.perf_counter() - started
        self.seconds += self._cost_s
        return new

    def found(self) -> list[dict[str, Any]]:
        """The alarms and warnings of the latest look, for JSON."""
        return [as_event(verdict) for verdict in self.verdicts if verdict.state in (ALARM, WARNING)]

    def _facts(self) -> Facts:
        suite, settings, task = self.stage.suite, self.stage.settings, self.stage.task
        steps = self.stage.steps
        return Facts(
            weights=dict(zip(suite.names, suite.weights, strict=True)),
            best=dict(zip(suite.names, map(max_score_of, task.reward_funcs), strict=True)),
            num_generations=suite.num_generations,
            max_completion_length=settings.get("max_completion_length"),
            beta=settings.get("beta"),
            learning_rate=settings.get("learning_rate"),
            temperature=settings.get("temperature"),
            scale_rewards=settings.get("scale_rewards"),
            aggregation=suite.aggregation,
            right_by=task.right_function,
            format_by=task.format_by,
            total_steps=steps if steps > 0 else None,
            fp16=self.fp16,
        )


def as_event(verdict: Verdict) -> dict[str, Any]:
    """A verdict as an event holds it."""
    return {
        "name": verdict.name, "state": verdict.state, "line": verdict.line, "cause": verdict.cause,
        "remedy": verdict.remedy, "function": verdict.function, "evidence": verdict.evidence,
        "first_step": verdict.first_step, "last_step": verdict.last_step, "prompts": list(verdict.prompts),
    }  # fmt: skip
