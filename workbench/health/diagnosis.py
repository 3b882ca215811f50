"""What is wrong with this run: verdicts with their evidence, for a running and for a recorded
run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from workbench.base.kinds import Fields
from workbench.base.workspace import to_json
from workbench.health.rules import RULES
from workbench.health.summary import Known, StepSummary, summaries_of
from workbench.health.verdicts import (
    ALARM,
    OK,
    SKIPPED,
    STATES,
    WARNING,
    ExaminedRun,
    RunConfig,
    Verdict,
    worst_first,
)
from workbench.run.control_file import RunState
from workbench.run.directory import RunDirectory
from workbench.run.held_out import held_out
from workbench.run.rollouts import stage_in, unstated_right

WRONG = (ALARM, WARNING)
LATEST = 200  # batches and rows that a watchdog looks at
BUDGET = 0.005  # share of the run's time that looking may take


class Verdicts(list[Verdict]):
    """The verdicts on a run, one per issue: a list that a cell shows as a report, problems
    first.
    """

    def __str__(self) -> str:
        lines = [str(each) for each in worst_first(self) if each.state not in (OK, SKIPPED)]
        return "\n".join(lines) or "no issue found"

    __repr__ = __str__


def diagnose(
    summaries: Sequence[StepSummary],
    rows: Sequence[Fields],
    config: RunConfig,
    held_out: Sequence[Fields] = (),
) -> Verdicts:
    """What can be said about a run at the end of these batches: a verdict for each issue, in a
    fixed order.

    It looks at the latest stage; the latest 20 batches describe the current state, and trends are
    sought in up to 100. Given the last 200 batches and rows it takes a few milliseconds, so it can
    run at every step.

    Args:
        summaries: of the batches, in order.
        rows: of the metrics, in order, as logged or as in `metrics.jsonl`: keys may be absent,
            values None, "inf" or "-inf".
        config: the run's requested settings.
        held_out: as for `ExaminedRun`.
    """
    view = ExaminedRun([*summaries], [*rows], config, held_out)
    return Verdicts(verdict for rule in RULES for verdict in rule(view))


def worsened(before: Sequence[Verdict], after: Sequence[Verdict]) -> list[Verdict]:
    """The alarms and warnings of `after` that are new or worse than in `before`: those worth an
    event.
    """
    known = {verdict.key: verdict.state for verdict in before}
    return [
        each
        for each in after
        if each.state in WRONG
        and STATES.index(each.state) < STATES.index(known.get(each.key, SKIPPED))
    ]


def config_of(run: RunDirectory, stage: str | None = None) -> RunConfig:
    """The requested settings of a run's `stage` (None: it has no stages), from its manifest and
    recipe.
    """
    recipe, manifest, state = run.recipe(), run.manifest(), RunState.of(run)
    known = stage_in(manifest, stage)
    settings, rewards = {**recipe.grpo, **known["settings"]}, known["rewards"]
    # What was changed while it trained, if this is the stage that it is in.
    if stage in (None, "1", state.stage):
        settings |= {"beta": state.beta, "learning_rate": state.learning_rate}
    own = next((part.grpo for part in recipe.stages if part.name == stage), {})
    asked = (manifest.get("settings") or {}).get("asked") or recipe.grpo
    return RunConfig.of(
        settings,
        best=rewards.get("best") or {},
        right_by=known["right_by"],
        unstated_right=unstated_right(manifest),
        format_by=known["format_by"],
        fp16=settings.get("fp16") is True,
        asked=tuple({**asked, **own}),
        warm_start=run.warm_start.is_file(),
        environment=bool((manifest.get("turns") or {}).get("environments")),
        attached=bool(manifest.get("attached")),
    )


def examine_run(
    run: RunDirectory,
    last: int | None = None,
    known: Known | None = None,
) -> Verdicts:
    """What is wrong with a recorded run, judged at its end: a verdict for each issue, with
    evidence, cause and remedy.

    >>> print(wb.examine_run(wb.open_run("latest")))
    ...

    Args:
        last: only this many of the latest batches, and the metrics of the same steps; None: all.
        known: as for `summaries_of`.
    """
    summaries, rows = summaries_of(run, last, known), run.metrics()
    if last is not None and summaries:
        rows = [row for row in rows if (row.get("step") or 0) >= summaries[0].step]
    config = config_of(run, summaries[-1].stage if summaries else None)
    return diagnose(summaries, rows, config, held_out(run.events()))


class Watchdog:
    """A run's health while it trains: checked after every step, unless that would cost too large a
    share of the run's time.

    `config` is called at each check, as weights and settings may change; `held_out`, which is as
    for `ExaminedRun`, may grow.
    """

    def __init__(self, config: Callable[[], RunConfig], held_out: Sequence[Fields] = ()) -> None:
        import scipy.special  # noqa: F401 - the verdicts' intervals need it, and it takes 0.2 s the first time

        self.config, self.held_out = config, held_out
        self.verdicts: list[Verdict] = []
        self.seconds = 0.0
        self._summaries: deque[StepSummary] = deque(maxlen=LATEST)
        self._rows: deque[Fields] = deque(maxlen=LATEST)
        self._began = time.monotonic()
        self._cost_s = 0.01

    def batch(self, summary: StepSummary) -> None:
        """Take in the summary of one scored batch."""
        self._summaries.append(summary)

    def row(self, step: int, values: Fields) -> None:
        """Take in one row of metrics."""
        self._rows.append({"step": step, **values})

    def forget(self) -> None:
        """Other reward functions are effective: forget the batches seen, which say nothing about
        them.
        """
        self._summaries.clear()

    def due(self) -> bool:
        """Whether another check is due."""
        allowed = BUDGET * (time.monotonic() - self._began) + 0.02
        return bool(self._summaries) and self.seconds + self._cost_s <= allowed

    def look(self) -> list[Verdict]:
        """Check the run, and return the alarms and warnings that are new since the last check."""
        started, before = time.perf_counter(), self.verdicts
        self.verdicts = diagnose(self._summaries, self._rows, self.config(), self.held_out)
        self._cost_s = time.perf_counter() - started
        self.seconds += self._cost_s
        return worsened(before, self.verdicts)

    def found(self) -> list[Fields]:
        """The alarms and warnings of the latest check, for JSON."""
        return [to_json(verdict) for verdict in self.verdicts if verdict.state in WRONG]

    @property
    def words(self) -> str:
        """Those in a line, by state and issue; empty if there are none."""
        functions: dict[str, list[str]] = {}
        for each in self.verdicts:
            if each.state in WRONG:
                named = functions.setdefault(f"{each.state}: {each.title}", [])
                named += [each.function] if each.function else []
        return ", ".join(
            f"{kind} ({', '.join(named)})" if named else kind for kind, named in functions.items()
        )
