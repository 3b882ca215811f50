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
import os
import time
import warnings
from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any

from workbench.base import processes
from workbench.base.errors import RunError
from workbench.base.kinds import Fields, Function, TrainerControl, TrainerState
from workbench.base.workspace import replace_folder
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.training.around import Around
from workbench.training.control import RunControl, save_now
from workbench.training.plan import Stage
from workbench.training.plan.loading import eos_ids
from workbench.training.policy import Policy
from workbench.training.recorder import Recorder
from workbench.training.replaced import replace, replaces
from workbench.training.resuming import Point, check_finite, is_spread, save_adapter, whole_weights
from workbench.training.watchers import Watchers, unasked

# of the step in flight, which is not counted yet
BATCH = "a batch of completions was not recorded"


def _never_trained(run: RunDirectory, resumed: bool, process: int) -> None:
    if os.getpid() != process:  # a child's end is not this process's
        return
    if resumed:
        run.put_back()
        run.release()
    else:
        run.discard()


def _short(hook: Function) -> Function:
    # The session's own hooks take (state, control), and `on_log` the logs.
    return lambda _args, state, control, logs=None, **_: (
        hook(state, control) if logs is None else hook(state, control, logs)
    )


@replaces("train", "_generate")
class Session:
    """Trains once, with a trainer as it is, through its `train`, and closes the record however that
    ends.

    `watchers` show the run (None: the defaults).
    """

    policy: Policy | None = None  # None: a trainer of the user's own
    plan: Any = None  # what it was made from, if it was
    restored: Any = None
    point: Point | None = None  # where to resume; None: from the start
    begun_at = 0  # the step before the first
    # before the first step, and that is saved: the run is kept, whatever becomes of that step
    trained_before = False
    measured: Sequence[Fields] = ()  # of held-out prompts, so far

    def __init__(
        self, run: RunDirectory, trainer: Any, stages: Sequence[Stage], watchers: Watchers
    ) -> None:
        self.run, self.trainer, self.stages, self.stage = run, trainer, stages, stages[0]
        shown_by = [make() for make in unasked] if watchers is None else watchers
        from workbench.training.transcribing import text_tokenizer

        # TRL counts a completion whose last token is padding as ended, too
        ends = {*eos_ids(trainer), text_tokenizer(trainer).pad_token_id}
        self.recorder = Recorder(run, ends, shown_by if processes.is_main() else ())
        self.control = RunControl(run, self.recorder)
        # of somebody's own trainer: what could not be recorded, and how often
        self.lost: Counter[str] = Counter()
        self.recorder.lost = None if self.policy else functools.partial(self._lost, BATCH)
        self.updating = False  # mid-update: the weights belong to no step
        self.at_end = contextlib.ExitStack()  # what puts everything back
        self._train = trainer.train
        # before the trainer is touched: what fails here leaves it as it was
        self.around = Around(self)
        self.recorder.rows = lambda: self.around.merged("row")
        self.replace("train", self.train)
        # If the trainer is never asked to train.
        unused = functools.partial(_never_trained, run, self.point is not None, os.getpid())
        self.at_end.callback(atexit.unregister, atexit.register(unused))

    def replace(self, name: str, value: object) -> None:
        """Replace a method of the trainer until the session is over."""
        own = vars(self.trainer)
        if name in own:
            self.at_end.callback(own.update, {name: own[name]})
        else:
            self.at_end.callback(own.pop, name, None)
        replace(self.trainer, name, value)

    def train(self, *args: object, **kwargs: object) -> Any:
        """The trainer's own `train`, watched and recorded; an error that ends it early is recorded
        and raised.
        """
        # all of it: an Interrupt that comes while something is being saved must not lose it
        with self.control.interrupts.graceful():
            return self._recorded(*args, **kwargs)

    def _recorded(self, *args: object, **kwargs: object) -> object:
        started, status, details = time.monotonic(), "failed", {}
        try:
            result = self._train_all(*args, **kwargs)
            state, by = self.trainer.state, self.control.stopped_by
            if self.stage is self.stages[-1] and 0 < state.max_steps <= state.global_step:
                by = None  # asked for at the end of the last step: there was nothing left to stop
            status, details = ("stopped" if by else "finished"), {"by": by}
            with self.spared("the adapter was not saved"), self.run.writing():
                self._save_final()
            return result
        except BaseException as error:
            status = "aborted" if isinstance(error, KeyboardInterrupt) else "failed"
            details = {"error": f"{type(error).__name__}: {error}"}
            # An error after hours must not take them along: the weights are those of the last
            # whole step. The error that is being raised says more than another one would.
            with contextlib.suppress(Exception):
                if self._may_save(self.trainer.state.global_step):
                    save_now(self.trainer)
            raise
        finally:
            self.at_end.close()
            try:
                with self.spared("the record was not closed"), self.run.writing():
                    self.run.lock.beat()  # or it is somebody else's by now
                    self._close(status, time.monotonic() - started, details)
            except (OSError, RunError):
                if status != "failed":  # else the error that is being raised says more
                    raise
            finally:
                self.run.release()

    def _save_final(self) -> None:
        from workbench.run.sealed import saved_with

        model, weights = self.trainer.model, whole_weights(self.trainer)
        if hasattr(model, "peft_config") and processes.is_main():
            check_finite(model, self.run, self.trainer.state.global_step, weights)
            self.run.lock.check()
            with replace_folder(self.run.final) as folder:
                save_adapter(model, self.trainer.processing_class, folder, weights)
            self.run.update_manifest(saved=saved_with(self.run, self.run.final))

    def _may_save(self, step: int) -> bool:
        # The weights are whole, the record knows the step (or a hole in it would be for ever), it
        # is not saved yet, and no other process has to be there to hand in its share.
        recorded = step - self.recorder.steps_before < max(1, self.trainer.args.logging_steps)
        return bool(
            self.policy
            and step > self.begun_at
            and recorded
            and not (self.updating or self.run.lock.lost or is_spread(self.trainer))
            and not (self.run.checkpoints / f"checkpoint-{step}").exists()
        )

    @contextlib.contextmanager
    def spared(self, lost: str = BATCH) -> Generator[None]:
        """Watching must not end somebody's own training: there, what fails in the block, or the
        function, is lost, and reported once.
        """
        try:
            yield
        except Exception as error:
            if self.policy:
                raise  # a run cannot resume from what its record lacks
            self._lost(lost, self.trainer.state.global_step + (lost == BATCH), error)

    def _train_all(self, *args: Any, **kwargs: Any) -> Any:
        self._begin(self.stage)
        return self._train(*args, **kwargs)

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
        layers = [(self, ""), *((feature, "") for feature in self.around.features), (self, "then_")]
        for owner, when in layers:
            hooks = {}
            for name in names:
                if hook := getattr(owner, when + name, None):
                    hook = _short(hook) if owner is self else hook
                    hooks[name] = staticmethod(self.spared(f"{name} failed")(hook))
            callback = type("WorkbenchCallback", (TrainerCallback,), hooks)()
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
        self.recorder.batch(self.around.scored(batch))

    def _close(self, status: str, seconds: float, details: Fields) -> None:
        recorder, run = self.recorder, self.run
        step = max(self.begun_at, self.trainer.state.global_step)
        with contextlib.suppress(OSError):  # the error that ended the run, if it was this one
            recorder.close()
        if run.kept_aside:
            run.put_back()
            self.control.refuse_rest(step)
            run.log_event("put_back", step, status=status, **details)
            ended = f"{status} before a new step; it is what it was: {run.result()['status']}"
            recorder.tell("end", ended)
            print(f"{run.name}: {ended}", flush=True)
            return
        self.around.each("closing", step)
        result = self._result(status, step, seconds)
        words = "".join(self.around.each("words", 60 * result["minutes"]))
        ended = f"{status} after {step} step{'' if step == 1 else 's'}{words}"
        if self.lost:
            lost = ", ".join(f"{what} ({times} times)" for what, times in self.lost.items())
            ended += f"; WARNING: {lost}"
        recorder.tell("end", ended)
        if not (step or self.trained_before or self.point or status in ("finished", "stopped")):
            run.discard()
            print(f"{run.name}: ended before its first step, so nothing of it is kept", flush=True)
            return
        run.update_manifest(result=result)
        self.control.refuse_rest(step)  # after the result: who asks later sees it
        run.log_event(status, step, **details)
        if not self.policy:
            print(f"{run.name}: {ended}; to record another train(), attach again", flush=True)

    def _result(self, status: str, step: int, seconds: float) -> Fields:
        recorder, paused_s = self.recorder, self.control.paused_s
        before = self.run.manifest().get("before") or {}  # the result of the session before
        minutes = seconds / 60 + before.get("minutes", 0.0)
        return {
            "status": status,
            "steps": step,
            "minutes": minutes,
            "paused_s": paused_s,
            "rewards_s": sum(recorder.reward_s.values()),
            "rewards_s_by_function": recorder.reward_s,
            "reward_errors": recorder.reward_errors,
            "hooks_s": recorder.seconds,
            "hooks_share": recorder.seconds / max(1e-9, seconds - paused_s),
            "drawing_s": sum(getattr(each, "drawing_s", 0.0) for each in recorder.watchers),
            **self.around.merged("result", 60 * minutes),
        }

    # -- the trainer's hooks
    # --------------------------------------------------------------------------------------------
    def then_on_train_begin(self, state: TrainerState, control: TrainerControl) -> None:
        self.control.begin_stage(state.global_step, control)

    def on_pre_optimizer_step(self, state: TrainerState, control: TrainerControl) -> None:
        self.updating = True

    def then_on_step_end(self, state: TrainerState, control: TrainerControl) -> None:
        self.control.boundary(state.global_step, control)
