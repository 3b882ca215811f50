"""What a run writes while it trains: rollouts as they are scored, metrics as they are logged, and
the time spent on it.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from workbench.base.kinds import Fields
from workbench.base.printable import printable
from workbench.base.processes import is_main
from workbench.run.batch import ScoredBatch
from workbench.run.control_file import RunState
from workbench.run.directory import RunDirectory
from workbench.run.held_out import reward_errors
from workbench.run.metrics import DEAD, GENERATE_S, KL, REWARD_S, STEP_S, TRAIN_S, weight_of
from workbench.run.parts import MERGE, merge
from workbench.run.rollouts import columns_of, write_part
from workbench.training.watchers import Watcher

_REQUIRED = ("begin", "update", "end")  # of a watcher


class Recorder:
    """Writes a run's rollouts, metrics and events, and passes them on to the watchers.

    Parts are written on a separate thread while the step continues, and are complete when it ends;
    another merges those of older steps. `eos_ids`: the tokens that end a completion that was not
    cut.
    """

    def __init__(
        self, run: RunDirectory, eos_ids: Collection[int], watchers: Sequence[Watcher] = ()
    ) -> None:
        self.run, self.eos_ids, self.watchers = run, eos_ids, list(watchers)
        # the effective settings: every event recorded here has been applied to it
        self.state = RunState.of(run)
        self.stage, self.measures_kl = "1", True
        self._timing: set[str] = set()  # what is being timed
        self.seconds = 0.0  # spent in here, watchers included: the price of watching
        self.generated_s = 0.0  # that sampling took since the latest row of metrics
        self._splits = False  # a step's time is split: sampling was timed
        self.steps_before = 0  # the next row is about the steps after this one
        self.reward_s: Counter[str] = Counter()  # by function
        # by function: completions that it gave no score because it failed
        self.reward_errors: Counter[str] = Counter()
        # more numbers for the row that is being written
        self.rows: Callable[[], dict[str, float]] = dict
        self._writer = ThreadPoolExecutor(1, "rollouts")
        self._merger = ThreadPoolExecutor(1, "merged rollouts")
        self._writing: tuple[int, Future] | None = None  # the latest step's part
        # told of a step's part that could not be written; None: raise
        self.lost: Callable[[int, BaseException], None] | None = None
        self._merging: Future | None = None
        self._merged = 0  # so many times `MERGE` steps
        self._groups: list[dict[str, float]] = []  # of each batch since the latest row of metrics
        self._weights: dict[str, float] = {}
        self._kl_measured: bool | None = None  # in the step that the next row of metrics is about
        self._rewarded_s = self._recorded_s = 0.0  # since the latest row of metrics
        self.scored, self.right, self.all_dead = 0, 0, True
        # since the run began: rows, completions
        self.on_record = {"metrics.jsonl": 0, "rollouts": 0}

    def batch(self, scored: ScoredBatch) -> None:
        """Record one generation batch: every completion of every group."""
        from workbench.health.summary import summarise

        with self.timed("_recorded_s"), self.timed():
            self.finish()
            scored = scored.as_trained(self.stage, self.eos_ids)
            if is_main():
                self._write(scored)
            # Now, because what is asked for at the end of the step is in force for the next one.
            self._kl_measured = self.measures_kl
            weights = zip(scored.names, scored.weights, strict=True)
            self._weights = {weight_of(name): weight for name, weight in weights}
            summary = summarise(scored)
            self._groups.append(summary.metrics)
            self.scored += summary.completions
            self.right += summary.right
            self.on_record["rollouts"] += summary.completions
            self.all_dead = self.all_dead and summary.dead_count == summary.group_count
            self.reward_s.update(scored.seconds)
            self._rewarded_s += sum(scored.seconds.values())
            self._note_errors(scored)
        with self.timed("_recorded_s"):
            self.tell("batch", scored, summary)

    def _write(self, scored: ScoredBatch) -> None:
        self.run.lock.check()  # what somebody else owns by now is not written over
        part = (self.run.rollouts, scored.step, columns_of(scored), scored.names)
        self._writing = scored.step, self._writer.submit(write_part, *part)
        whole = (scored.step - 1) // MERGE  # that of this step is still being written
        if whole > self._merged and not self.run.kept_aside:
            self._merged = whole
            self._merging = self._merger.submit(merge, self.run.rollouts, whole * MERGE)

    def catch_up(self, on_record: Fields) -> None:
        """The run is resumed: restore the counts; `on_record` is what `recorded` returns."""
        self.on_record, self.scored = on_record, on_record["rollouts"]
        self.reward_errors = reward_errors(self.run.events())
        self.all_dead = all(row.get(DEAD) == 1 for row in self.run.metrics())

    def finish(self) -> None:
        """Wait until the latest part is written; OSError, once, if it could not be (unless `lost`
        is told).
        """
        writing, self._writing = self._writing, None
        if writing is None or (error := writing[1].exception()) is None:
            return
        if self.lost is None:
            raise error
        self.lost(writing[0], error)

    def close(self) -> None:
        """Wait until everything is written; OSError if the latest part could not be."""
        self._merger.shutdown()
        if self._merging is not None and (error := self._merging.exception()):
            left = "parts of the record were not merged and stay as they are"
            warnings.warn(f"{left}: {error}", stacklevel=2)
        self.finish()
        self._writer.shutdown()

    def event(self, kind: str, step: int | None = None, **details: object) -> None:
        """Record one event, apply it to the run's state, and pass it on to the watchers."""
        event = {"event": kind, "step": step, **details}
        self.run.log_event(kind, step, **details)
        self.state.apply(event)
        self.tell("event", event)

    def _note_errors(self, scored: ScoredBatch) -> None:
        for name, errors in scored.errors.items():
            first = min(errors)
            if name not in self.reward_errors:
                share = f"{len(errors)} of {len(scored.completions)} completions"
                said = f"step {scored.step}: {name} gave no score to {share}: the first"
                said += f" {errors[first]}; events.jsonl has each step's first"
                print(printable(said), flush=True)
            self.reward_errors[name] += len(errors)
            self.event(
                "reward_error",
                scored.step,
                function=name,
                completions=len(errors),
                error=errors[first],
                prompt=scored.prompts[first],
                completion=scored.completions[first],
            )

    def log(self, step: int, logs: Fields) -> Fields:
        """Record one row of metrics, and return it: what the trainer logged, and a summary of the
        groups of those steps.
        """
        with self.timed():
            self.finish()
            values = dict(logs)
            if not (self.measures_kl if self._kl_measured is None else self._kl_measured):
                # Unsloth's GPU trainer logs a kl of 0.0 when beta is 0, which reads as "the policy
                # does not move".
                values.pop(KL, None)
            for name in self._groups[0] if self._groups else ():
                if known := [own for each in self._groups if (own := each[name]) == own]:
                    values[name] = float(np.mean(known))
            self._groups.clear()
            values |= self._weights | self.rows()
            # not in every step, where one learns from what an earlier one generated
            self._splits |= self.generated_s > 0
            if self._splits and (whole := values.get(STEP_S)) is not None:
                # Means over the steps that this row is about, as TRL's step_time is.
                steps = max(1, step - self.steps_before)
                spent = (self.generated_s, self._rewarded_s, self._recorded_s)
                generated, rewarded, recorded = (seconds / steps for seconds in spent)
                values |= {GENERATE_S: generated, REWARD_S: rewarded}
                values[TRAIN_S] = max(0.0, whole - sum((generated, rewarded, recorded)))
            self.run.lock.beat()
            self.run.log_metrics(step, values)
            self.run.went_on()
            self.on_record["metrics.jsonl"] += 1
            self.steps_before = step
            self.generated_s = self._rewarded_s = self._recorded_s = 0.0
        self.tell("update", step, values)
        return values

    def tell(self, what: str, *details: object) -> None:
        """Call a method of every watcher."""
        for watcher in list(self.watchers):
            if what in _REQUIRED or hasattr(watcher, what):
                self.watching(watcher, lambda called=watcher: getattr(called, what)(*details))

    def watching(self, watcher: Watcher, call: Callable[[], object]) -> None:
        """Let a watcher act. One that fails is left out from then on: watching must not end a
        run.
        """
        with self.timed():
            try:
                call()
            except Exception as error:
                self.watchers.remove(watcher)
                reason = f"{type(error).__name__}: {error}"
                name = getattr(watcher, "called", type(watcher).__name__)
                event = getattr(watcher, "failed", "watcher_failed")
                self.run.log_event(event, watcher=name, error=reason)
                left = f"{name} failed and is left out, training continues"
                warnings.warn(f"{left}: {reason}", stacklevel=3)

    @contextmanager
    def timed(self, what: str = "seconds") -> Generator[None]:
        """Add the time of the block, or the function, to one of the attributes in seconds; nested
        blocks count once.
        """
        started, inside = time.perf_counter(), what in self._timing
        self._timing.add(what)
        try:
            yield
        finally:
            if not inside:
                self._timing.discard(what)
                setattr(self, what, getattr(self, what) + time.perf_counter() - started)
