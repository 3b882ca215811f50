"""The data of a run's figure: columns that grow by a row per step, their reduction to buckets, and
marks of events.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from workbench.base.kinds import Fields
from workbench.health.verdicts import NAMES
from workbench.run import metrics
from workbench.views.tables import cut, short_name

# nats; the sum that one completion's tokens add up to
KL_PER_COMPLETION = f"{metrics.KL} x {metrics.MEAN_LENGTH}"
_RECENT = 20  # steps that tell how long the next ones will take
_NAN = float("nan")


def weighted(function: str) -> str:
    """The column of what one function adds to the reward: its mean times the weight that it had in
    that step.
    """
    return f"{metrics.per_function(function)} x weight"


class History:
    """Metrics by step, as flat arrays of doubles (NaN where a step lacks the number).

    `weights`, by function, are for rows without the effective weight. A metric or a function that
    appears later (another task, a reloaded file) gets its column then.
    """

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self.weights = dict(weights or {})
        self.functions = list(self.weights)
        self.steps = array("d")
        self.columns: dict[str, array] = {}

    def add(self, step: int, values: Mapping[str, object]) -> None:
        """Append one row of metrics. A resumed run goes back to its checkpoint: later rows are
        dropped.
        """
        if all(key == "step" or key.startswith("eval_") for key in values):
            return  # the trainer's own evaluation after a step is not drawn
        while self.step >= step and self.steps:
            for column in (self.steps, *self.columns.values()):
                column.pop()
        row = {key: float(own) for key, own in values.items() if isinstance(own, (int, float))}
        row.pop("step", None)
        names = metrics.function_names(values)
        self.functions += [name for name in names if name not in self.functions]
        row[KL_PER_COMPLETION] = row.get(metrics.KL, _NAN) * row.get(metrics.MEAN_LENGTH, _NAN)
        for name in self.functions:
            before = self.weights.get(name, 1.0)
            self.weights[name] = weight = row.get(metrics.weight_of(name), before)
            row[weighted(name)] = row.get(metrics.per_function(name), _NAN) * weight
        for key in row:
            if key not in self.columns:
                self.columns[key] = array("d", [_NAN]) * len(self.steps)
        self.steps.append(step)
        for key, column in self.columns.items():
            column.append(row.get(key, _NAN))

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, key: str) -> np.ndarray:
        return np.array(self.columns[key]) if key in self.columns else np.full(len(self), _NAN)

    @property
    def step(self) -> int:
        """The latest step; 0 before the first."""
        return int(self.steps[-1]) if self.steps else 0

    def absent(self, key: str) -> bool:
        """Whether no row has a number under `key`."""
        return bool(np.isnan(self[key]).all())

    def measured(self, key: str) -> np.ndarray:
        """Which rows `key` may be in: not those of a step that generated nothing, unless it is also
        logged in these.

        With num_iterations or steps_per_generation above 1 most steps learn from a batch that an
        earlier one generated.
        """
        idle = np.isnan(self[metrics.REWARD])
        if idle.all() or not np.isnan(self[key][idle]).all():
            return np.ones(len(idle), dtype=bool)
        return ~idle

    def curve(self, key: str, points: int) -> Envelope:
        """The column under `key` over the steps that it may be in, in at most this many points."""
        rows = self.measured(key)
        return envelope(np.array(self.steps)[rows], self[key][rows], points)

    def last(self, key: str) -> float | None:
        """The number under `key` in the newest row that may have it; None if it is missing."""
        newest = self[key][self.measured(key)][-1:]
        return None if np.isnan(newest).all() else float(newest[0])

    def recent_step_s(self) -> float | None:
        """Median wall time of the latest steps, in seconds: a slow first step (compilation) soon
        counts no more.
        """
        recent = self[metrics.STEP_S][-_RECENT:]
        return None if np.isnan(recent).all() else float(np.nanmedian(recent))


class Envelope(NamedTuple):
    """A column in buckets of steps: the middle step of each, and its minimum, mean and maximum."""

    x: np.ndarray
    low: np.ndarray
    mean: np.ndarray
    high: np.ndarray


def envelope(x: np.ndarray, y: np.ndarray, buckets: int) -> Envelope:
    """At most this many buckets, NaN where one holds no number: no peak is lost, and the mean does
    not zigzag.
    """
    if len(x) <= buckets:
        return Envelope(x, y, y, y)
    size = -(-len(x) // buckets)
    missing = (0, -len(x) % size)  # in the last bucket, which may be a short one
    values = np.pad(y, missing, constant_values=np.nan).reshape(-1, size)
    steps = np.pad(x, missing, mode="edge").reshape(-1, size)
    with np.errstate(invalid="ignore"):
        mean = np.nansum(values, axis=1) / (~np.isnan(values)).sum(axis=1)
    # These two pass over NaN, unless there is nothing else.
    low, high = (least.reduce(values, axis=1) for least in (np.fmin, np.fmax))
    return Envelope((steps[:, 0] + steps[:, -1]) / 2, low, mean, high)


CHANGE, ADAPTIVE, STAGE, CHECKPOINT = "change", "adaptive", "stage", "checkpoint"
ALARMED = "alarm"
_LONGEST = 34  # characters of a mark's words


class Mark(NamedTuple):
    """One event at one step: a change by somebody or by the recipe, a stage, a checkpoint, an
    alarm.
    """

    step: int
    kind: str
    text: str
    after: int = 0  # the event's own step: what is changed after step 5 counts from step 6
    issue: str = ""  # of an alarm: the name of its verdict


def add_mark(marks: list[Mark], event: Fields) -> None:
    """Append the mark of an event, if it leaves one. A resumed run goes back to its checkpoint:
    later marks are dropped.

    A change that was made after the checkpoint's own step is in the checkpoint, though it counts
    from the step after.
    """
    after = int(event.get("step") or 0)
    step = int(event.get("from_step") or after)
    match event.get("event"):
        case "continued":
            marks[:] = [before for before in marks if before.after <= after]
            rate = event.get("learning_rate")
            at_rate = f", learning_rate {rate:.3g}" if isinstance(rate, float) else ""
            marks.append(Mark(step + 1, STAGE, f"continued{at_rate}", after))
        case "health" if event.get("state") == "alarm":
            issue = str(event.get("name"))
            if all(before.issue != issue for before in marks):  # it may come and go
                words = NAMES.get(issue, issue)
                marks.append(Mark(step, ALARMED, cut(words, _LONGEST), after, issue))
        case "checkpoint":
            marks.append(Mark(step, CHECKPOINT, "checkpoint", after))
        case "warm_start":
            _once(marks, Mark(step + 1, STAGE, f"warm start on {event.get('samples')}", after))
        case "stage" if step:  # the one that a run begins with is no change
            _once(marks, Mark(step + 1, STAGE, f"stage {event.get('stage', '')}", after))
        case "control" if event.get("applied") and (text := change_text(event)):
            by_itself = str(event.get("by", "")).startswith("adaptive")
            marks.append(Mark(step, ADAPTIVE if by_itself else CHANGE, cut(text, _LONGEST), after))


def _once(marks: list[Mark], mark: Mark) -> None:
    # A stage that a continued run begins again is one stage.
    mark = mark._replace(text=cut(mark.text, _LONGEST))
    if mark not in marks:
        marks.append(mark)


def change_text(event: Fields) -> str | None:
    """A change to a run's settings in few words (`correctness x 2 → x 0.5`); None for an event that
    changes none.
    """

    def value(side: str) -> str:
        value = event.get(side)
        value = value.get(function) if isinstance(value, dict) else value
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return f"{value:.3g}" if number else "?"

    action, function = event.get("action"), event.get("function", "")
    name = short_name(str(function))
    match action:
        case "weight" | "unmute":
            return f"{name} x {value('before')} → x {value('after')}"
        case "beta" | "learning_rate":
            return f"{action} {value('before')} → {value('after')}"
        case "mute":
            return f"{name} muted"
        case "reload":
            return "rewards reloaded"
    return None
