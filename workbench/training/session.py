"""One session of training: a trainer's own `train()` with the record, the run's control and a
graceful stop around it.

`Session` touches nothing that decides a number, so it fits around anyone's trainer. `staged.py` has
the session of a recipe's run.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import functools
import math
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any

from workbench import processes
from workbench.errors import RunError
from workbench.kinds import Fields, Function, TrainerControl, TrainerState, TrainingArguments
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.run.metrics import LEARNING_RATE
from workbench.training.around import REPLACED, Around
from workbench.training.control import RunControl, save_now
from workbench.training.loading import eos_ids
from workbench.training.plan import Stage
from workbench.training.policy import Policy
from workbench.training.recorder import Recorder
from workbench.training.resuming import Point, check_finite, is_spread, save_adapter, whole_weights
from workbench.training.watchers import Watchers, unasked
from workbench.workspace import replace_folder

# of the step in flight, which is not counted yet
_BATCH = "a batch of completions was not recorded"


class Session:
    """Trains once, with a trainer as it is, through its `train`, and closes the record however that
    ends.

    `watchers` show the run (None: the defaults).
    """

    policy: Policy | None = None  # None: a trainer of the user's own
    point: Point | None = None  # where to resume; None: from the start
    begun_at = 0  # the step before the first
    # before the first step, and that is saved: the run is kept, whatever becomes of that step
    trained_before = False
    measured: Sequence[Fields] = ()  # of held-out prompts, so far

    def __init__(
        self, run: RunDirectory, trainer: Any, stages: Sequence[Stage], watchers: Watchers
    ) -> None:
        self.run, self.trainer, self.stages, self.stage = run, trainer, stages, stages[0]
        # a processor of images holds one
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        shown_by = [make() for make in unasked] if watchers is None else watchers
        # TRL counts a completion whose last token is padding as ended, too
        ends = {*eos_ids(trainer), tokenizer.pad_token_id}
        self.recorder = Recorder(run, ends, shown_by if processes.is_main() else ())
        self.control = RunControl(run, self.recorder)
        self._row: tuple[int, Fields] | None = None  # of a step that the trainer is about to log
        self._seen: dict[str, int] = {}  # numbers of the trainer's that are in rows already
        # of somebody's own trainer: what could not be recorded, and how often
        self.lost: Counter[str] = Counter()
        self.recorder.lost = None if self.policy else functools.partial(self._lost, _BATCH)
        self.updating = False  # mid-update: the weights belong to no step
        self.at_end = contextlib.ExitStack()  # what puts everything back
        self._train = trainer.train
        # before the trainer is touched: what fails here leaves it as it was
        self.around = Around(self)
        self.recorder.rows = lambda: self.around.merged("row")
        self.replace("train", self.train)
        process, unused = (
            os.getpid(),
            ((lambda: (run.put_back(), run.release())) if self.point else run.discard),
        )
        # If the trainer is never asked to train: at the end of this process, not of a child's.
        forgotten = atexit.register(lambda: unused() if os.getpid() == process else None)
        self.at_end.callback(atexit.unregister, forgotten)

    def replace(self, name: str, value: object) -> None:
        """Replace one of the trainer's methods with `value` until the session is over."""
        if name not in REPLACED:
            raise KeyError(
                f"{name}: not in REPLACED, which lists all methods of a trainer that are replaced"
            )
        own = vars(self.trainer)
        if name in own:
            self.at_end.callback(own.update, {name: own[name]})
        else:
            self.at_end.callback(own.pop, name, None)
        own[name] = value

    def train(self, *args: object, **kwargs: object) -> Any:
        """The trainer's own `train`, watched and recorded; an error that ends it early is recorded
        and raised.
        """
        # all of it: an Interrupt that comes while something is being saved must not lose it
        with self.control.graceful():
            return self._recorded(*args, **kwargs)

    def _recorded(self, *args: object, **kwargs: object) -> object:
        started, status, details = time.monotonic(), "failed", {}
        try:
            result = self._train_all(*args, **kwargs)
            state, by, model = self.trainer.state, self.control.stopped_by, self.trainer.model
            if self.stage is self.stages[-1] and 0 < state.max_steps <= state.global_step:
                by = None  # asked for at the end of the last step: there was nothing left to stop
            status, details = ("stopped" if by else "finished"), {"by": by}
            with self._spared("the adapter was not saved"), self.run.writing():
                weights = whole_weights(self.trainer)
                if hasattr(model, "peft_config") and processes.is_main():
                    check_finite(model, self.run, state.global_step, weights)
                    self.run.lock.check()
                    with replace_folder(self.run.final) as folder:
                        save_adapter(model, self.trainer.processing_class, folder, weights)
            return result
        except BaseException as error:
            status = "aborted" if isinstance(error, KeyboardInterrupt) else "failed"
            details = {"error": f"{type(error).__name__}: {error}"}
            step = self.trainer.state.global_step
            if self.policy and step > self.begun_at and self._may_save(step):
                # An error after hours must not take them along: the weights are those of the last
                # whole step.
                with contextlib.suppress(Exception):  # the error that is being raised says more
                    save_now(self.trainer)
            raise
        finally:
            self.at_end.close()
            try:
                with self._spared("the record was not closed"), self.run.writing():
                    self.run.lock.beat()  # or it is somebody else's by now
                    self._close(
                        status,
                        max(self.begun_at, self.trainer.state.global_step),
                        time.monotonic() - started,
                        details,
                    )
            except (OSError, RunError):
                if status != "failed":  # else the error that is being raised says more
                    raise
            finally:
                self.run.release()

    def _may_save(self, step: int) -> bool:
        # The weights are whole, the record knows the step (or a hole in it would be for ever), and
        # it is not saved yet.
        recorded = step - self.recorder.steps_before < max(1, self.trainer.args.logging_steps)
        if not recorded or self.updating or self.run.lock.lost:
            return False
        saved = (self.run.checkpoints / f"checkpoint-{step}").exists()
        # other processes may not be there to hand in their share
        return not saved and not is_spread(self.trainer)

    def _train_all(self, *args: Any, **kwargs: Any) -> Any:
        self._begin(self.stage)
        return self._train(*args, **kwargs)

    @contextlib.contextmanager
    def _spared(self, lost: str) -> Generator[None]:
        """Watching must not end somebody's own training: there, what fails is lost, and reported
        once.
        """
        try:
            yield
        except Exception as error:
            if self.policy:
                raise  # a run cannot resume from what its record lacks
            self._lost(lost, self.trainer.state.global_step + (lost == _BATCH), error)

    def safe(self, hook: Function, lost: str = _BATCH) -> Callable[..., None]:
        """The hook, spared at every call."""

        def called(*args: object, **kwargs: object) -> None:
            with self._spared(lost):
                hook(*args, **kwargs)

        return called

    def _lost(self, lost: str, step: int, error: BaseException) -> None:
        reason = f"{type(error).__name__}: {error}"
        self.lost[lost] += 1
        if self.lost[lost] == 1:  # an event says it of each step
            warnings.warn(
                f"{self.run.name}: step {step}: {lost}, training continues: {reason}", stacklevel=4
            )
        with contextlib.suppress(Exception):  # the disk may be what is full
            self.recorder.event("not_recorded", step, what=lost, error=reason)

    def _begin(self, stage: Stage) -> None:
        trainer, recorder = self.trainer, self.recorder
        self.stage = stage
        self.control.steer(trainer, self.policy, stage, self.around)
        recorder.stage, recorder.measures_kl = stage.name, bool(stage.settings["beta"])
        self.around.each("begin_stage", stage)
        # A private method of TRL's trainer, also in Unsloth's; where it is missing, the split of
        # time is not measured.
        if generate := getattr(trainer, "_generate", None):
            self.replace("_generate", recorder.timed("generated_s")(generate))
        self._add_callbacks()
        for feature in self.around.features:
            for name, method in feature.around(trainer).items():
                self.replace(name, method)

    def _add_callbacks(self) -> None:
        # In three layers: what the session keeps, the features, and what is asked of the run.
        from transformers import TrainerCallback

        names = [name for name in vars(TrainerCallback) if name.startswith("on_")]
        layers = [[(name, getattr(self, name)) for name in names if hasattr(self, name)]]
        layers += [
            [(name, hook) for name, hook in feature.events(names)]
            for feature in self.around.features
        ]
        layers.append(
            [
                (name, getattr(self, f"then_{name}"))
                for name in names
                if hasattr(self, f"then_{name}")
            ]
        )
        for hooks in filter(None, layers):
            spared = {name: staticmethod(self.safe(hook, f"{name} failed")) for name, hook in hooks}
            callback = type("WorkbenchCallback", (TrainerCallback,), spared)()
            self.trainer.add_callback(callback)
            self.at_end.callback(self.trainer.remove_callback, callback)

    def scored(self, batch: ScoredBatch) -> None:
        """A generation batch was scored: it goes to the features, and into the record."""
        # What a checkpoint of the step before says, if this one is not finished.
        self._before = (
            batch.step,
            dict(self.recorder.on_record),
            copy.deepcopy(self.around.merged("state")),
        )
        self.around.each("on_batch", batch)
        self.recorder.batch(batch)

    def _close(self, status: str, step: int, seconds: float, details: Fields) -> None:
        recorder, run = self.recorder, self.run
        with contextlib.suppress(OSError):  # the error that ended the run, if it was this one
            recorder.close()
        if self.run.kept_aside:
            self.run.put_back()
            self.control.refuse_rest(step)
            self.run.log_event("put_back", step, status=status, **details)
            recorder.tell(
                "end",
                ended := f"{status} before a new step; it is what it was: {run.result()['status']}",
            )
            print(f"{run.name}: {ended}", flush=True)
            return
        self.around.each("closing", step)
        # the result of the session before
        paused_s, before = self.control.paused_s, run.manifest().get("before") or {}
        minutes = seconds / 60 + before.get("minutes", 0.0)
        steps = "1 step" if step == 1 else f"{step} steps"
        ended = f"{status} after {steps}{''.join(self.around.each('words'))}"
        if self.lost:
            ended += "; WARNING: " + ", ".join(
                f"{lost} ({times} times)" for lost, times in self.lost.items()
            )
        recorder.tell("end", ended)
        if step or self.trained_before or self.point or status in ("finished", "stopped"):
            result = {
                "status": status,
                "steps": step,
                "minutes": minutes,
                "paused_s": paused_s,
                "rewards_s": sum(recorder.reward_s.values()),
                "rewards_s_by_function": recorder.reward_s,
                "reward_errors": recorder.reward_errors,
                "hooks_s": recorder.seconds,
                "hooks_share": recorder.seconds / max(1e-9, seconds - paused_s),
                "drawing_s": sum(
                    getattr(watcher, "drawing_s", 0.0) for watcher in recorder.watchers
                ),
            }
            result |= self.around.merged("result", 60 * minutes)
            run.update_manifest(result=result)
            self.control.refuse_rest(step)  # after the result: who asks later sees it
            run.log_event(status, step, **details)
            if not self.policy:
                print(f"{run.name}: {ended}; to record another train(), attach again", flush=True)
        else:
            run.discard()
            print(f"{run.name}: ended before its first step, so nothing of it is kept", flush=True)

    # -- the trainer's hooks
    # --------------------------------------------------------------------------------------------
    def on_train_begin(
        self, args: TrainingArguments, state: Any, control: TrainerControl, **_: object
    ) -> None:
        # a checkpoint that the user goes on from
        self.begun_at = self.recorder.steps_before = state.global_step
        self.recorder.tell("begin", self.run, state.max_steps, self.stage.settings)
        self.recorder.event("started", state.global_step, generation="the trainer")

    def then_on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.control.begin_stage(state.global_step, control)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        # at the step's end it is already the next one's
        self._learning_rate = self.trainer._get_learning_rate()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.updating = True

    def on_step_end(
        self, args: TrainingArguments, state: Any, control: TrainerControl, **_: object
    ) -> None:
        # A row for every step, however seldom the trainer logs: what it has noted of this step,
        # averaged as it would.
        self._row = (
            state.global_step,
            self._noted() | {LEARNING_RATE: self._learning_rate, "epoch": state.epoch},
        )
        if not control.should_log:
            self._write_row({})

    def then_on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.control.boundary(state.global_step, control)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Fields | None = None,
        **_: object,
    ) -> None:
        if evaluated := {
            key: value for key, value in (logs or {}).items() if key.startswith("eval_")
        }:
            # of the trainer's own eval_dataset, after the step's row
            self.run.log_metrics(state.global_step, evaluated)
            return
        self._seen.clear()  # the trainer starts its averages again
        if logs and "loss" in logs and self._row is not None:
            self._write_row({key: logs[key] for key in ("loss", "grad_norm") if key in logs})

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.recorder.event(
            "checkpoint",
            state.global_step,
            folder=f"{args.output_dir}/checkpoint-{state.global_step}",
        )

    def _noted(self) -> Fields:
        found = {}
        for name, values in getattr(self.trainer, "_metrics", {}).get("train", {}).items():
            new = [value for value in values[self._seen.get(name, 0) :] if not math.isnan(value)]
            if len(values) > self._seen.get(name, 0):
                found[name] = sum(new) / len(new) if new else None
            self._seen[name] = len(values)
        return found

    def _write_row(self, logged: Fields) -> None:
        if self._row is not None:
            (step, row), self._row = self._row, None
            self.recorder.log(step, row | logged)
