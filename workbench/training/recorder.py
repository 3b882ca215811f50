"""What a run writes while it trains: rollouts as they are scored, metrics as they are logged, and the time that costs."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from workbench.run.batch import ScoredBatch
from workbench.run.control_file import RunState
from workbench.run.directory import RunDirectory
from workbench.run.metrics import GENERATE_S, KL, REWARD_S, STEP_S, TRAIN_S, weight_of
from workbench.run.rollouts import columns_of, write_part
from workbench.training.watchers import Watcher
from workbench.workspace import to_json

_REQUIRED = ("begin", "update", "end")


class Recorder:
    """Writes a run's rollouts, metrics and events, and passes them on to the watchers.

    Args:
        eos_token_id: what a completion ends with when it was not cut.
        summarise: the summary of a batch, with its `metrics`, `completions`, `dead_count` and `group_count`.
        in_background: parts are written on a thread of their own while the step goes on, and are there when it ends.

    Attributes:
        state: what is in force in the run; every event that is recorded here has been applied to it.
        seconds: wall time spent in here, watchers included: the price of watching.
        watchdog: looks at the health of the stage that trains; None: nobody does.
    """

    def __init__(
        self,
        run: RunDirectory,
        eos_token_id: int | None,
        watchers: Sequence[Watcher] = (),
        *,
        summarise: Callable[[ScoredBatch], Any],
        in_background: bool = False,
    ) -> None:
        self.run, self.eos_token_id, self.watchers, self.summarise = run, eos_token_id, list(watchers), summarise
        self.state = RunState.of(run)
        self.stage, self.measures_kl = "1", True
        self.seconds = 0.0
        self.reward_s: dict[str, float] = {}  # by function
        self.reward_errors: dict[str, int] = {}  # by function: completions that it gave no score because it failed
        self.watchdog: Any = None
        self._writer = ThreadPoolExecutor(1, "rollouts") if in_background else None
        self._writing: Future | None = None
        self._groups: list[dict[str, float]] = []  # of each batch since the latest row of metrics
        self._weights: dict[str, float] = {}
        self._kl_measured: bool | None = None  # in the step that the next row of metrics is about
        self._generated_s = self._rewarded_s = self._recorded_s = 0.0  # since the latest row of metrics
        self._steps_before = 0
        self._batches = self._dead_batches = self._scored = 0

    @property
    def verdict(self) -> str:
        """A few words on a run that cannot have learnt, and on scores that functions failed to give. Else empty."""
        dead = self._batches and self._dead_batches == self._batches
        words = ": NOTHING LEARNT, the completions of every group scored the same in every step (look at the rewards in 02)"
        found = (words if dead else "") + "".join(f"; WARNING: {line}" for line in self.missing)
        if self.watchdog is not None and self.watchdog.words:
            found += f"; {self.watchdog.words} (`workbench watch {self.run.name} --once` says more)"
        return found

    @property
    def missing(self) -> list[str]:
        """For each function that failed: how many completions it gave no score to."""
        return [f"{name} gave no score to {count} of {self._scored} completions" for name, count in self.reward_errors.items()]

    def result(self, status: str, steps: int, seconds: float, paused_s: float, before: dict[str, Any]) -> dict[str, Any]:
        """How a session ended, for the manifest.

        Args:
            seconds: that it took, pauses included.
            before: the result of the session before, whose minutes are added.
        """
        return {
            "status": status,
            "steps": steps,
            "minutes": seconds / 60 + before.get("minutes", 0.0),
            "paused_s": paused_s,
            "rewards_s": sum(self.reward_s.values()),
            "rewards_s_by_function": self.reward_s,
            "reward_errors": self.reward_errors,
            "hooks_s": self.seconds,
            "hooks_share": self.seconds / max(1e-9, seconds - paused_s),
            "health": self.watchdog.found() if self.watchdog else [],
            "drawing_s": sum(getattr(watcher, "drawing_s", 0.0) for watcher in self.watchers),
        }

    def batch(self, scored: ScoredBatch) -> None:
        """Record one generation batch: every completion of every group."""
        started = time.perf_counter()
        self.finish()
        scored = scored.as_trained(self.stage, self.eos_token_id)
        part = (self.run.rollouts, scored.step, columns_of(scored), scored.names)
        if self._writer is not None:
            self._writing = self._writer.submit(write_part, *part)
        else:
            write_part(*part)
        # Now, because what is asked for at the end of the step is in force for the next one.
        self._kl_measured = self.measures_kl
        self._weights = {weight_of(name): weight for name, weight in zip(scored.names, scored.weights, strict=True)}
        summary = self.summarise(scored)
        self._groups.append(summary.metrics)
        self._batches += 1
        self._scored += summary.completions
        self._dead_batches += summary.dead_count == summary.group_count
        for name, seconds in scored.seconds.items():
            self.reward_s[name] = self.reward_s.get(name, 0.0) + seconds
            self._rewarded_s += seconds
        self._note_errors(scored)
        self._guarded(lambda dog: dog.batch(summary))
        self.seconds += time.perf_counter() - started
        self.tell("batch", scored, summary)
        self._recorded_s += time.perf_counter() - started

    def finish(self) -> None:
        """Wait until the latest part is written.

        Raises:
            OSError: if it could not be written.
        """
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def begin_steps(self, step: int) -> None:
        """The next row of metrics is about the steps after this one."""
        self._steps_before = step

    def begin_rewards(self) -> None:
        """Other reward functions are in force: what was seen of the run's health says nothing about them."""
        self._guarded(lambda dog: dog.forget())

    def generated(self, seconds: float) -> None:
        """Take note of how long sampling a generation batch took."""
        self._generated_s += seconds

    def event(self, kind: str, step: int | None = None, **details: Any) -> None:
        """Record one event, apply it to the run's state, and pass it on to the watchers."""
        event = {"event": kind, "step": step, **details}
        self.run.log_event(kind, step, **details)
        self.state.apply(event)
        self.tell("event", event)

    def _note_errors(self, scored: ScoredBatch) -> None:
        for name, errors in scored.errors.items():
            first = min(errors)
            if name not in self.reward_errors:
                print(
                    f"step {scored.step}: {name} gave no score to {len(errors)} of {len(scored.completions)} completions: "
                    f"the first {errors[first]}; they are counted from here on (events.jsonl has each step's first)",
                    flush=True,
                )
            self.reward_errors[name] = self.reward_errors.get(name, 0) + len(errors)
            where = {"prompt": scored.prompts[first], "completion": scored.completions[first]}
            self.event("reward_error", scored.step, function=name, completions=len(errors), error=errors[first], **where)

    def log(self, step: int, logs: dict[str, Any]) -> dict[str, Any]:
        """Record one row of metrics, and return it: what the trainer logged, and what the groups of those steps were like."""
        started = time.perf_counter()
        self.finish()
        values = dict(logs)
        if not (self.measures_kl if self._kl_measured is None else self._kl_measured):
            # Unsloth's GPU trainer logs a kl of 0.0 when beta is 0, which reads as "the policy does not move".
            values.pop(KL, None)
        if self._groups:
            values |= {name: float(np.mean([each[name] for each in self._groups])) for name in self._groups[0]}
            self._groups.clear()
        values.update(self._weights)
        self._split_time(step, values)
        self.run.log_metrics(step, values)
        self._guarded(lambda dog: dog.row(step, values))
        self.seconds += time.perf_counter() - started
        if self.watchdog is not None and self.watchdog.due():
            self.look(step)
        self.tell("update", step, values)
        return values

    def look(self, step: int) -> None:
        """Look at the run's health; what is newly wrong is an event, and an alarm is printed, too."""
        started = time.perf_counter()
        for verdict in self._guarded(lambda dog: dog.look()) or []:
            self.event("health", step, **to_json(verdict))
            print(f"step {step}: {verdict.state.upper()}: {verdict.line} -> {verdict.remedy}", flush=True)
        self.seconds += time.perf_counter() - started
        if self.watchdog is not None:
            self.tell("verdicts", self.watchdog.verdicts)

    def _guarded(self, ask: Callable[[Any], Any]) -> Any:
        # Watching must not end a run; what fails is left out from then on.
        if self.watchdog is None:
            return None
        try:
            return ask(self.watchdog)
        except Exception as error:
            self.watchdog, reason = None, f"{type(error).__name__}: {error}"
            self.run.log_event("watchdog_failed", error=reason)
            warnings.warn(f"the health verdicts failed and are left out, training goes on: {reason}", stacklevel=2)
            return None

    def _split_time(self, step: int, values: dict[str, Any]) -> None:
        # Means over the steps that this row is about, as TRL's step_time is.
        steps, whole = max(1, step - self._steps_before), values.get(STEP_S)
        if self._generated_s and whole is not None:
            spent = (self._generated_s, self._rewarded_s, self._recorded_s)
            generated, rewarded, recorded = (seconds / steps for seconds in spent)
            values[GENERATE_S], values[REWARD_S] = generated, rewarded
            values[TRAIN_S] = max(0.0, whole - generated - rewarded - recorded)
        self._steps_before = step
        self._generated_s = self._rewarded_s = self._recorded_s = 0.0

    def tell(self, what: str, *details: Any) -> None:
        """Call a method of every watcher. One that fails is left out from then on: watching must not end a run."""
        started = time.perf_counter()
        for watcher in list(self.watchers):
            try:
                if what in _REQUIRED or hasattr(watcher, what):
                    getattr(watcher, what)(*details)
            except Exception as error:
                self.watchers.remove(watcher)
                name, reason = type(watcher).__name__, f"{type(error).__name__}: {error}"
                self.run.log_event("watcher_failed", watcher=name, error=reason)
                warnings.warn(f"{name} failed and is left out, training goes on: {reason}", stacklevel=2)
        self.seconds += time.perf_counter() - started
