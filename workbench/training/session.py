"""One session of training: a trainer's own `train()` with the record, the run's control and a graceful stop around it.

`Session` keeps its hands off everything that decides a number, so it goes around anyone's trainer. `StagedSession` trains
the stages of a plan, one after the other, on the same adapter, and saves what a run needs to go on.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from workbench.errors import RunError
from workbench.run.control_file import write_request
from workbench.run.directory import RunDirectory
from workbench.run.metrics import LEARNING_RATE
from workbench.training.adaptive import AdaptiveWeights
from workbench.training.control import LiveRun, RunControl, save_now
from workbench.training.generation import Generation, expected
from workbench.training.loading import random_states
from workbench.training.policy import Policy
from workbench.training.recorder import Recorder
from workbench.training.resuming import Point, Restored, load_adapter, save_state
from workbench.training.signals import GracefulStop
from workbench.training.stages import ONLY_STAGE, Stage

_HOOKS = ("train_begin", "epoch_begin", "step_begin", "step_end", "log", "save")


class Session:
    """Trains with a trainer as it is, once, and closes the record, however that ends.

    Args:
        run: owned by this process.
        trainer: its `train` is this session's until it has trained.
        stage: what it trains on.
        recorder: of this run.
        watch: makes the watchdog of a stage that begins.
        replayed, replayed_from: as for `RunControl`.
    """

    def __init__(
        self,
        run: RunDirectory,
        trainer: Any,
        stage: Stage,
        recorder: Recorder,
        watch: Callable[[LiveRun], Any],
        replayed: list[dict[str, Any]] | None = None,
        replayed_from: Path | None = None,
    ) -> None:
        self.run, self.trainer, self.stage, self.recorder, self.watch = run, trainer, stage, recorder, watch
        self.stop = GracefulStop(lambda by: write_request(run, "stop", by, {}))
        self.control = RunControl(run, self.stop, replayed, replayed_from)
        self.begun_at = 0
        self.at_end: Callable[[], Any] = lambda: None
        self._replaced: list[tuple[Any, str, Any]] = []  # (trainer, name, what stood there)
        self._row: tuple[int, dict[str, Any]] | None = None  # of a step that the trainer is about to log
        self._learning_rate: float | None = None  # of the step in flight
        self._seen: dict[str, int] = {}  # numbers of the trainer's that are in rows already
        self.broken = False  # recording failed
        self._callback: Any = None
        self._train = trainer.train
        self.replace("train", self.train)

    def replace(self, name: str, value: Any) -> None:
        """Put `value` in the place of one of the trainer's methods until the session is over."""
        self._replaced.append((self.trainer, name, vars(self.trainer).get(name)))
        setattr(self.trainer, name, value)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """The trainer's own `train`, watched and recorded.

        Raises:
            Whatever ended it before its time; the record says so, too.
        """
        started, status, details = time.monotonic(), "failed", {}
        try:
            with self.stop:
                result = self._train_all(*args, **kwargs)
                state, by = self.trainer.state, self.control.stopped_by
                if by and self._is_last and state.global_step >= state.max_steps:
                    by = None  # asked for at the end of the last step: there was nothing left to stop
                status, details = ("stopped" if by else "finished"), {"by": by}
                # Still inside: an Interrupt that comes while the adapter is being saved must not lose it.
                self._save_final()
            return result
        except BaseException as error:
            status = "aborted" if isinstance(error, KeyboardInterrupt) else "failed"
            details = {"error": f"{type(error).__name__}: {error}"}
            if isinstance(error, Exception) and self.trainer.state.global_step > self.begun_at:
                self._rescue()
            raise
        finally:
            self._let_go()
            step = max(self.begun_at, self.trainer.state.global_step)
            seconds = time.monotonic() - started
            try:
                self._spared("the record was not closed", lambda: self._close(status, step, seconds, details))
            finally:
                self.run.release()

    # -- what a plan's session does more of ----------------------------------------------------------------------------
    _is_last = True

    def _train_all(self, *args: Any, **kwargs: Any) -> Any:
        self._begin(self.stage, None)
        return self._train(*args, **kwargs)

    def _save_final(self) -> None:
        model, tokenizer, final = self.trainer.model, self.trainer.processing_class, self.run.final
        if hasattr(model, "peft_config"):
            self._spared("the adapter was not saved", lambda: save_adapter(model, tokenizer, final))

    def _rescue(self) -> None:
        pass

    def _found(self) -> dict[str, Any]:
        return {}

    def _let_go(self) -> None:
        for trainer, name, before in reversed(self._replaced):
            if before is None:
                vars(trainer).pop(name, None)
            else:
                setattr(trainer, name, before)
        self._replaced.clear()
        self.at_end()
        if self._callback is not None:
            self.trainer.remove_callback(self._callback)

    def _spared(self, lost: str, save: Callable[[], Any]) -> None:
        """Their training is over: what fails from here on is a warning, not an error of their `train()`."""
        try:
            save()
        except Exception as error:
            warnings.warn(f"{self.run.name}: {lost}: {type(error).__name__}: {error}", stacklevel=3)

    def safe(self, hook: Callable[..., Any]) -> Callable[..., None]:
        """Watching must not end somebody's training: when a hook fails, this one and the others are left out from then on."""

        def called(*args: Any, **kwargs: Any) -> None:
            if self.broken:
                return
            try:
                hook(*args, **kwargs)
            except Exception as error:
                self.broken, reason = True, f"{type(error).__name__}: {error}"
                warnings.warn(f"{self.run.name}: recording failed, training goes on without it: {reason}", stacklevel=2)

        return called

    # -- around a stage -----------------------------------------------------------------------------------------------
    def _begin(self, stage: Stage, policy: Policy | None, adaptive: AdaptiveWeights | None = None) -> None:
        trainer, recorder = self.trainer, self.recorder
        self.stage = stage
        self.live = LiveRun(trainer, policy, stage, recorder, stage.task, stage.suite, adaptive)
        recorder.stage, recorder.measures_kl = stage.name, bool(stage.settings["beta"])
        recorder.watchdog = self.watch(self.live)
        self._time_generation()
        self._callback = _callback_of(self)
        trainer.add_callback(self._callback)

    def _time_generation(self) -> None:
        # A private method of TRL's trainer, also in Unsloth's; where it is missing, the split of time is not measured.
        generate = getattr(self.trainer, "_generate", None)
        if generate is None:
            return

        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return generate(*args, **kwargs)
            finally:
                self.recorder.generated(time.perf_counter() - started)

        self.replace("_generate", timed)

    def _close(self, status: str, step: int, seconds: float, details: dict[str, Any]) -> None:
        recorder, run = self.recorder, self.run
        with contextlib.suppress(OSError):  # the error that ended the run, if it was this one
            recorder.finish()
        recorder.look(step)
        self.control.refuse_rest(recorder, step)
        recorder.tell("end", f"{status} after {step} steps{recorder.verdict}")
        if step or status in ("finished", "stopped"):
            before = run.manifest().get("before") or {}
            result = recorder.result(status, step, seconds, self.control.paused_s, before) | self._found()
            run.update_manifest(result=result)
            run.log_event(status, step, **details)
        else:
            run.discard()
            print(f"{run.name}: ended before its first step, so nothing of it is kept", flush=True)

    # -- the trainer's hooks --------------------------------------------------------------------------------------------
    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.begun_at = state.global_step  # a checkpoint that the user goes on from
        self.recorder.tell("begin", self.run, state.max_steps, self.stage.settings)
        self.recorder.event("started", state.global_step, generation="the trainer")
        self.recorder.begin_steps(state.global_step)
        self.control.begin_stage(self.live, state.global_step, control)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        pass

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._learning_rate = self.trainer._get_learning_rate()  # at the step's end it is already the next one's

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # A row for every step, however seldom the trainer logs: what it has noted of this step, averaged as it would.
        row = self._noted() | {LEARNING_RATE: self._learning_rate, "epoch": state.epoch}
        self._row = (state.global_step, row)
        if not control.should_log:
            self._write_row({})
        self._boundary(state.global_step, control)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        self._seen.clear()  # the trainer begins its averages anew
        if logs and "loss" in logs and self._row is not None:
            self._write_row({key: logs[key] for key in ("loss", "grad_norm") if key in logs})

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.recorder.event("checkpoint", state.global_step, folder=f"{args.output_dir}/checkpoint-{state.global_step}")

    def _boundary(self, step: int, control: Any, *, ends: bool = False) -> None:
        started, waited = time.perf_counter(), self.control.paused_s
        self.control.boundary(self.live, step, control, ends=ends)
        self.recorder.seconds += time.perf_counter() - started - (self.control.paused_s - waited)

    def _noted(self) -> dict[str, Any]:
        found = {}
        for name, values in getattr(self.trainer, "_metrics", {}).get("train", {}).items():
            new = [value for value in values[self._seen.get(name, 0) :] if not math.isnan(value)]
            if len(values) > self._seen.get(name, 0):
                found[name] = sum(new) / len(new) if new else None
            self._seen[name] = len(values)
        return found

    def _write_row(self, logged: dict[str, Any]) -> None:
        (step, row), self._row = self._row, None
        self.recorder.log(step, row | logged)


class StagedSession(Session):
    """Trains a plan's stages, from the start or from a checkpoint.

    Args:
        stages: those that are left to train; `trainer` is the first one's.
        next_trainer: makes the trainer of a later stage.
        policy: loaded; its adapter is trained.
        fit: makes what watches a stage's memory.
        trackers: callbacks of trackers, guarded; closed at the end.
        point: where to go on; None: from the start.
        The others: as for `Session`.
    """

    def __init__(
        self,
        run: RunDirectory,
        trainer: Any,
        stages: Sequence[Stage],
        recorder: Recorder,
        *,
        next_trainer: Callable[[Stage], Any],
        policy: Policy,
        fit: Callable[[Stage], Any],
        trackers: Sequence[Any] = (),
        point: Point | None = None,
        **more: Any,
    ) -> None:
        super().__init__(run, trainer, stages[0], recorder, **more)
        self.stages, self.next_trainer, self.policy = list(stages), next_trainer, policy
        self.make_fit, self.trackers, self.point = fit, trackers, point
        self.generation = Generation(policy.model)
        self.begun_at = point.step if point else 0
        last = self.stages[-1]
        self.total = last.offset + last.steps if last.steps > 0 else -1  # -1: it follows from epochs
        self._began = False

    @property
    def _is_last(self) -> bool:
        return self.stage is self.stages[-1]

    def _spared(self, lost: str, save: Callable[[], Any]) -> None:
        save()

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train the plan's stages, from the start or from the checkpoint that the run goes on from.

        Raises:
            RunError: for `resume_from_checkpoint` or another argument of the trainer's own `train`.
            Whatever ended it before its time; the record says so, too.
        """
        if any([*args, *kwargs.values()]):
            raise RunError(
                f"{self.run.name}: trainer.train({', '.join(kwargs) or 'with an argument'})",
                rule="a trainer made from a plan takes its stages and checkpoints from the run",
                remedy="call trainer.train() alone; to go on with an earlier run: wb.continue_run(run)",
            )
        return super().train()

    def safe(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        return hook  # what a run's record lacks, it cannot go on from

    def _train_all(self) -> Any:
        self.policy.trained_in.append(self.run.name)
        for stage in self.stages:
            if stage is not self.stages[0]:
                self.trainer = self.next_trainer(stage)
                self._train = self.trainer.train
            result = self._train_stage(stage)
            if self.control.stopped_by:
                break
        return result

    def _train_stage(self, stage: Stage) -> Any:
        trainer, policy = self.trainer, self.policy
        adaptive = AdaptiveWeights(stage.adaptive, stage.suite)
        stage.suite.on_batch = lambda batch: (adaptive.note(batch), self.recorder.batch(batch))
        trainer.args.output_dir = str(self.run.checkpoints)
        self.restored, self._at_step_end = None, {}
        if self.point is not None and stage.number == self.point.stage:
            load_adapter(policy.model, self.point.folder)
            self.restored = Restored(self.point, stage.steps)
            self.restored.prepare(trainer)
        self.fit = self.make_fit(stage)
        if self.fit.note:
            print(self.fit.note)
        self._begin(stage, policy, adaptive)
        for tracker in self.trackers:
            trainer.add_callback(tracker)
        why_not = expected(stage.recipe, stage.settings, policy.model.device.type == "cuda")
        self.generation = Generation(policy.model, why_not, self._generates, before=self.generation)
        try:
            with self.generation:
                return self._train()
        except Exception as error:
            explained = self.fit.explained(error)
            if explained is error:
                raise
            raise explained from error
        finally:
            self.live.suite.close()

    def _generates(self, why_not: str | None) -> None:
        step = self.trainer.state.global_step + 1
        self.recorder.event("generation", step, **({"by": "trl", "why": why_not} if why_not else {"by": "workbench"}))
        if why_not:
            print(f"from step {step} on TRL's own path generates: {why_not}", flush=True)

    def _save_final(self) -> None:
        save_adapter(self.policy.model, self.policy.tokenizer, self.run.final)

    def _rescue(self) -> None:
        # An error after hours must not take them along: the weights are those of the last whole step.
        folder = self.run.checkpoints / f"checkpoint-{self.trainer.state.global_step}"
        if not (folder / "state.json").is_file():
            with contextlib.suppress(Exception):  # the error that is being raised says more
                save_now(self.trainer)

    def _let_go(self) -> None:
        super()._let_go()
        for tracker in self.trackers:
            tracker.close()

    def _found(self) -> dict[str, Any]:
        return {"generation": self.generation.found()}

    # -- the trainer's hooks --------------------------------------------------------------------------------------------
    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # Step numbers go on through the stages, as one run.
        stage, trainer, recorder, restored = self.stage, self.trainer, self.recorder, self.restored
        begun_at = self.point.step if restored else stage.offset
        steps = stage.steps if stage.steps > 0 else restored.total if restored else state.max_steps
        state.global_step, state.max_steps = begun_at, stage.offset + steps
        trainer._globalstep_last_logged = begun_at
        if restored:
            restored.begin(trainer)
            self.live.adaptive.restore(restored.point.state.get("adaptive", {}))
        if not self._began:
            self._began = True
            recorder.tell("begin", self.run, self.total if self.total > 0 else state.max_steps, stage.settings)
            inexact = {"inexact": "; ".join(restored.inexact)} if restored and restored.inexact else {}
            how = self.generation.why_not or "the workbench's loop"
            recorder.event("continued" if self.point else "started", begun_at, generation=how, **inexact)
        if restored:
            self.control.catch_up(self.live)
        elif stage.name != ONLY_STAGE:
            recorder.event(
                "stage", stage.offset, stage=stage.name, weights=self.live.weights, beta=trainer.beta,
                learning_rate=args.learning_rate, temperature=args.temperature, steps=steps, task=stage.task.name,
            )  # fmt: skip
        recorder.begin_steps(begun_at)
        if restored is None:
            self.control.begin_stage(self.live, begun_at, control)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.restored:
            self.restored.epoch_begins()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.restored:
            self.restored.step_begins()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if logs and "loss" in logs:  # the last call of a run carries only totals
            values = self.recorder.log(state.global_step, logs)
            # The trackers, which come after this, show what the record holds.
            logs.clear()
            logs.update(values)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.fit.first_step_done(self.run)
        if self.restored:
            state.epoch = self.restored.epoch(state.epoch)
        # The random states, before anything that comes after draws from them.
        self._at_step_end = {**random_states(), "tokens": state.num_input_tokens_seen}
        ended = state.global_step >= state.max_steps
        self._boundary(state.global_step, control, ends=ended and not self._is_last)
        if ended or control.should_training_stop:
            control.should_log = True  # the last steps have a row, too, where logging_steps does not divide

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder, stage = self.run.checkpoints / f"checkpoint-{state.global_step}", self.stage
        # A pickle that nothing needs; a run holds none.
        (folder / "training_args.bin").unlink(missing_ok=True)
        (folder / "README.md").unlink(missing_ok=True)  # PEFT's model card
        done, adaptive = state.global_step - stage.offset, self.live.adaptive.state()
        save_state(self.trainer, folder, stage.number, done, adaptive, self._at_step_end or None)
        self.recorder.event("checkpoint", state.global_step, folder=folder.name)


def save_adapter(model: Any, tokenizer: Any, folder: Path) -> Path:
    """Save a trained adapter with its tokenizer."""
    names = model.active_adapters
    model.save_pretrained(str(folder), selected_adapters=names)
    if len(names) == 1 and names != ["default"]:  # PEFT puts any other name into a folder inside
        shutil.copytree(folder / names[0], folder, dirs_exist_ok=True)
        shutil.rmtree(folder / names[0])
    tokenizer.save_pretrained(str(folder))
    # PEFT's model card is a form that nobody has filled in.
    (folder / "README.md").unlink(missing_ok=True)
    return folder


def _callback_of(session: Session) -> Any:
    from transformers import TrainerCallback

    hooks = {f"on_{name}": session.safe(getattr(session, f"on_{name}")) for name in _HOOKS}
    return type("WorkbenchCallback", (TrainerCallback,), {name: staticmethod(hook) for name, hook in hooks.items()})()
