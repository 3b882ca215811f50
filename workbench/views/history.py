"""The data of a run's figure: columns that grow by a row per step, their reduction to buckets, and
marks of events.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from workbench.kinds import Fields
from workbench.run import metrics
from workbench.views.tables import cut, short_name

LENGTHS = ("completions/min_length", "completions/max_length")  # logged by TRL
# nats; the sum that one completion's tokens add up to
KL_PER_COMPLETION = "kl x completions/mean_length"
_COLUMNS = (
    metrics.REWARD, metrics.REWARD_STD, metrics.GROUP_STD, metrics.MIXED, metrics.ALL_RIGHT,
        metrics.ALL_WRONG,
    metrics.DEAD, metrics.KL, KL_PER_COMPLETION, metrics.ENTROPY, metrics.MEAN_LENGTH, *LENGTHS,
    metrics.CLIPPED, metrics.STEP_S, metrics.GENERATE_S, metrics.REWARD_S, metrics.TRAIN_S,
)  # fmt: skip
_RECENT = 20  # steps that tell how long the next ones will take


def weighted(function: str) -> str:
    """The column of what one function adds to the reward: its mean times the weight that it had in
    that step.
    """
    return f"{metrics.per_function(function)} x weight"


class History:
    """The columns that the figure draws, as flat arrays of doubles (NaN where a step lacks the
    number).

    `weights`, by function, are for rows without the effective weight (older runs). A function that
    appears later (another task, a reloaded file) gets its column then.
    """

    def __init__(self, weights: Mapping[str, float] | Sequence[str] = ()) -> None:
        self.weights: dict[str, float] = (
            dict(weights) if isinstance(weights, Mapping) else dict.fromkeys(weights, 1.0)
        )
        self.functions: list[str] = []
        self.steps = array("d")
        self.columns = {key: array("d") for key in _COLUMNS}
        for name in self.weights:
            self._grow(name)

    def _grow(self, function: str) -> None:
        self.functions.append(function)
        for key in (metrics.per_function(function), weighted(function)):
            self.columns[key] = array("d", [float("nan")]) * len(self.steps)

    def add(self, step: int, values: Mapping[str, object]) -> None:
        """Append one row of metrics. A resumed run goes back to its checkpoint: later rows are
        dropped.
        """
        if all(name == "step" or name.startswith("eval_") for name in values):
            return  # the trainer's own evaluation after a step is not drawn
        while self.step >= step and self.steps:
            for column in (self.steps, *self.columns.values()):
                column.pop()
        for name in metrics.function_names(set(values)):
            if name not in self.functions:
                self._grow(name)
        row = {
            key: float(value) for key, value in values.items() if isinstance(value, (int, float))
        }
        nan = float("nan")
        row[KL_PER_COMPLETION] = row.get(metrics.KL, nan) * row.get(metrics.MEAN_LENGTH, nan)
        for name in self.functions:
            weight = row.get(metrics.weight_of(name), nan)
            if weight == weight:
                self.weights[name] = weight
            row[weighted(name)] = row.get(metrics.per_function(name), nan) * self.weights.get(
                name, 1.0
            )
        self.steps.append(step)
        for key, column in self.columns.items():
            column.append(row.get(key, nan))

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, key: str) -> np.ndarray:
        return np.array(self.columns[key])

    @property
    def step(self) -> int:
        """The latest step; 0 before the first."""
        return int(self.steps[-1]) if self.steps else 0

    def measured(self, key: str) -> np.ndarray:
        """Which rows `key` may be in: not those of a step that generated nothing, unless it is also
        logged in these.

        With num_iterations or steps_per_generation above 1 most steps learn from a batch that an
        earlier one generated.
        """
        idle = np.isnan(self[metrics.REWARD])
        return (
            ~idle
            if not idle.all() and np.isnan(self[key][idle]).all()
            else np.ones(len(idle), dtype=bool)
        )

    def last(self, key: str) -> float | None:
        """The number under `key` in the newest row that may have it; None if it is missing."""
        if key not in self.columns or not self.steps:
            return None
        newest = float(self[key][self.measured(key)][-1])
        return newest if newest == newest else None

    def recent_step_s(self) -> float | None:
        """Median wall time of the latest steps, in seconds: a slow first step (compilation) soon
        counts no more.
        """
        recent = [
            seconds for seconds in self.columns[metrics.STEP_S][-_RECENT:] if seconds == seconds
        ]
        return float(np.median(recent)) if recent else None


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
    # the last bucket may be a short one
    ends = np.minimum(np.arange(size, len(x) + size, size), len(x)) - 1
    parts = np.pad(y, (0, -len(y) % size), constant_values=np.nan).reshape(-1, size)
    with np.errstate(invalid="ignore"):
        mean = np.nansum(parts, axis=1) / (~np.isnan(parts)).sum(axis=1)
        # These two pass over NaN, unless there is nothing else.
        low, high = np.fmin.reduce(parts, axis=1), np.fmax.reduce(parts, axis=1)
    return Envelope((x[::size] + x[ends]) / 2, low, mean, high)


CHANGE, ADAPTIVE, STAGE, CHECKPOINT = "change", "adaptive", "stage", "checkpoint"
_LONGEST = 34  # characters of a mark's words


class Mark(NamedTuple):
    """One event at one step: a change by somebody or by the recipe, a stage, a checkpoint."""

    step: int
    kind: str
    text: str
    after: int = 0  # the event's own step: what is changed after step 5 counts from step 6


def add_mark(marks: list[Mark], event: Fields) -> None:
    """Append the mark of an event, if it leaves one. A resumed run goes back to its checkpoint:
    later marks are dropped.

    A change that was made after the checkpoint's own step is in the checkpoint, though it counts
    from the step after.
    """
    kind, after = event.get("event"), int(event.get("step") or 0)
    step = int(event.get("from_step") or after)
    if kind == "continued":
        marks[:] = [
            *(before for before in marks if before.after <= after),
            Mark(step + 1, STAGE, "continued", after),
        ]
    elif kind == "checkpoint":
        marks.append(Mark(step, CHECKPOINT, "checkpoint", after))
    elif kind == "warm_start" or (kind == "stage" and step):
        # the stage that a run begins with is no change
        named = (
            f"warm start on {event.get('samples')}"
            if kind == "warm_start"
            else f"stage {event.get('stage', '')}"
        )
        mark = Mark(step + 1, STAGE, cut(named, _LONGEST), after)
        # a stage that a continued run begins again is one stage
        marks += [mark] if mark not in marks else []
    elif kind == "control" and event.get("applied") and (text := change_text(event)):
        by_itself = str(event.get("by", "")).startswith("adaptive")
        marks.append(Mark(step, ADAPTIVE if by_itself else CHANGE, cut(text, _LONGEST), after))


def change_text(event: Fields) -> str | None:
    """A change to a run's settings in few words (`correctness x 2 → x 0.5`); None for an event that
    changes none.
    """
    action, function = event.get("action"), event.get("function", "")
    sides = [
        side.get(function) if isinstance(side, dict) else side
        for side in (event.get("before"), event.get("after"))
    ]
    before, after = (
        f"{side:.3g}" if isinstance(side, (int, float)) and not isinstance(side, bool) else "?"
        for side in sides
    )
    name = short_name(str(function))
    match action:
        case "weight" | "unmute":
            return f"{name} x {before} → x {after}"
        case "beta" | "learning_rate":
            return f"{action} {before} → {after}"
        case "mute":
            return f"{name} muted"
        case "reload":
            return "rewards reloaded"
    return None
