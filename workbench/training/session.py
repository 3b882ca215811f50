"""One session of training: the stages of a run, one after the other, on the same adapter, in one run directory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.errors import RecipeError
from workbench.health.verdicts import RunConfig
from workbench.health.watchdog import Watchdog
from workbench.rewards.library import max_score_of
from workbench.run.control_file import write_request
from workbench.run.directory import RunDirectory
from workbench.run.state import RunState
from workbench.training import plan
from workbench.training.adaptive import AdaptiveWeights
from workbench.training.control import Live, Steering
from workbench.training.fitting import Fit
from workbench.training.generation import Generation, expected
from workbench.training.loading import random_states
from workbench.training.policy import Policy
from workbench.training.precision import adapter_in_float32, config_overrides
from workbench.training.recorder import Recorder, Watcher
from workbench.training.resuming import Point, Restored, load_adapter, save_state
from workbench.training.signals import GracefulStop
from workbench.training.stages import ONLY_STAGE, Stage

_REFUSALS = (TypeError, ValueError, ImportError, NotImplementedError)


def build_config(config_class: type, stage: Stage, folder: str | Path, policy: Policy) -> Any:
    """The stage's GRPOConfig, for the policy's backend. Trackers are not its business: `trackers.py` guards them.

    Raises:
        RecipeError: for settings that it does not accept together.
    """
    import torch

    settings = {**stage.settings, "report_to": "none"}
    try:
        config = plan.built(
            config_class,
            settings,
            **config_overrides(policy.backend_name, policy.compute_dtype, settings, cuda=torch.cuda.is_available()),
            output_dir=str(folder),
            seed=stage.recipe.seed,
            reward_weights=list(stage.suite.weights),
            disable_tqdm=True,  # the watchers show progress
        )
    except _REFUSALS as error:
        raise _refused(error) from error
    if config.n_gpu > 1:
        config._n_gpu = 1  # or transformers would train on all at once, with a batch and a loss so many times as large
    # What is recorded follows from what is in force, whoever chose it.
    stage.suite.scale_rewards, stage.suite.aggregation = config.scale_rewards, config.multi_objective_aggregation
    return config


def build_trainer(trainer_class: type, config: Any, stage: Stage, policy: Policy) -> Any:
    """TRL's trainer for a stage, on the policy's own adapter.

    Raises:
        RecipeError: for settings that it does not accept together.
    """
    from datasets import Dataset
    from transformers import PrinterCallback

    _drop_reference(policy)
    policy.tokenizer.chat_template_kwargs = stage.recipe.chat_template_kwargs
    try:
        trainer = trainer_class(
            model=policy.model,
            processing_class=policy.tokenizer,
            reward_funcs=stage.suite.funcs,
            args=config,
            train_dataset=Dataset.from_list(stage.rows),
        )
    except _REFUSALS as error:
        raise _refused(error) from error
    trainer.remove_callback(PrinterCallback)
    # A form that nobody has filled in, and that asks trackers for their addresses at every checkpoint.
    trainer.create_model_card = lambda *_, **__: None
    # TRL's reference is a frozen copy of the adapter as the stage finds it; Unsloth's is the base model. One meaning for
    # both, for every stage and for a run that goes on: without that copy TRL takes the base model, too.
    _drop_reference(policy)
    # TRL rounds the adapter of a 4-bit model to bfloat16, where a small learning rate's updates vanish.
    adapter_in_float32(policy.model)
    return trainer


def _drop_reference(policy: Policy) -> None:
    if "ref" in policy.model.peft_config:
        policy.model.delete_adapter("ref")


def _refused(error: Exception) -> RecipeError:
    return RecipeError(
        f"grpo: {error}",
        rule="GRPOConfig and GRPOTrainer accept these settings together",
        remedy="change the setting that it names",
    )


class Session:
    """Trains the stages of a run until they end, are stopped or fail, and closes the record.

    Args:
        run: owned by this process.
        stages: checked and fitted.
        first: the first stage's trainer, built already.
        rest: builds a later stage's trainer.
        watchers: what shows the run.
        trackers: callbacks of trackers, guarded; closed at the end.
        point: where to go on; None: from the start.
        replayed, replayed_from: as for `Steering`.
    """

    def __init__(
        self,
        run: RunDirectory,
        stages: Sequence[Stage],
        first: Any,
        rest: Any,
        policy: Policy,
        watchers: Sequence[Watcher],
        trackers: Sequence[Any] = (),
        point: Point | None = None,
        replayed: list[dict[str, Any]] | None = None,
        replayed_from: Path | None = None,
    ) -> None:
        self.run, self.stages, self.policy, self.point = run, list(stages), policy, point
        self.trainer, self.rest, self.trackers = first, rest, trackers
        self.stop = GracefulStop(lambda by: write_request(run, "stop", by, {}))
        self.steering = Steering(run, self.stop, replayed, replayed_from)
        stage = self.stages[0]
        self.recorder = Recorder(
            run,
            stage.suite,
            policy.tokenizer.eos_token_id,
            watchers,
            measures_kl=bool(stage.settings["beta"]),
            in_background=True,
        )
        self.generation = Generation(policy.model)
        last = self.stages[-1]
        self.total = last.offset + last.steps if last.steps > 0 else -1  # -1: it follows from epochs
        self.began = False

    def train(self) -> None:
        """Run the session to its end.

        Raises:
            Whatever ended it before its time; the record says so, too.
        """
        started, status, details = time.monotonic(), "failed", {}
        begun_at = self.point.step if self.point else 0
        step = begun_at
        try:
            with self.stop:
                self.policy.trained_in.append(self.run.name)
                for stage in self.stages:
                    self._stage(stage)
                    if self.steering.stopped_by:
                        break
                by = self.steering.stopped_by
                if by and stage is self.stages[-1] and self.trainer.state.global_step >= self.trainer.state.max_steps:
                    by = None  # asked for at the end of the last step: there was nothing left to stop
                status, details = ("stopped" if by else "finished"), {"by": by}
                # Still inside: an Interrupt that comes while the adapter is being saved must not lose it.
                save_adapter(self.policy, self.run.final)
        except BaseException as error:
            if isinstance(error, Exception) and self.trainer.state.global_step > begun_at:
                self._rescue()
            status = "aborted" if isinstance(error, KeyboardInterrupt) else "failed"
            details = {"error": f"{type(error).__name__}: {error}"}
            raise
        finally:
            for tracker in self.trackers:
                tracker.close()
            step = max(step, self.trainer.state.global_step)
            self._close(status, step, time.monotonic() - started, details)

    def _rescue(self) -> None:
        # An error after hours must not take them along: the weights are those of the last whole step.
        trainer = self.trainer
        if (self.run.checkpoints / f"checkpoint-{trainer.state.global_step}" / "state.json").is_file():
            return
        with contextlib.suppress(Exception):  # the error that is being raised says more
            trainer._save_checkpoint(trainer.model, trial=None)
            trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)

    def _stage(self, stage: Stage) -> None:
        if stage is not self.stages[0]:
            self.trainer = self.rest(stage)
        trainer, recorder = self.trainer, self.recorder
        recorder.suite, recorder.stage = stage.suite, stage.name
        recorder.watchdog = Watchdog(lambda: _config(stage, trainer.args.fp16))
        recorder.measures_kl = bool(stage.settings["beta"])
        adaptive = AdaptiveWeights(stage.adaptive, stage.suite)
        live = Live(trainer, self.policy, stage, recorder, adaptive)

        def scored(batch: Any) -> None:
            adaptive.note(batch, live.suite.names)
            recorder.batch(batch)

        stage.suite.on_batch = scored
        trainer.args.output_dir = str(self.run.checkpoints)
        _time_generation(trainer, recorder)
        restored = None
        if self.point is not None and stage.number == self.point.stage:
            load_adapter(self.policy.model, self.point.folder)
            restored = Restored(self.point, stage.steps)
            restored.prepare(trainer)
        self.fit = Fit(stage)
        if self.fit.note:
            print(self.fit.note)
        trainer.add_callback(_callback(self, live, restored))
        for tracker in self.trackers:
            trainer.add_callback(tracker)
        why_not = expected(stage.recipe, stage.settings, self.policy.model.device.type == "cuda")
        self.generation = Generation(self.policy.model, why_not, self._generates, before=self.generation)
        try:
            with self.generation:
                trainer.train()
        except Exception as error:
            explained = self.fit.explained(error)
            if explained is error:
                raise
            raise explained from error
        finally:
            live.suite.close()

    def _generates(self, why_not: str | None) -> None:
        step = self.trainer.state.global_step + 1
        self.recorder.event("generation", step, **({"by": "trl", "why": why_not} if why_not else {"by": "workbench"}))
        if why_not:
            print(f"from step {step} on TRL's own path generates: {why_not}", flush=True)

    def _close(self, status: str, step: int, seconds: float, details: dict[str, Any]) -> None:
        recorder = self.recorder
        with contextlib.suppress(OSError):  # the error that ended the run, if it was this one
            recorder.finish()
        recorder.look(step)
        self.steering.refuse_rest(recorder, step)
        before = self.run.manifest().get("before") or {}
        recorder.tell("end", f"{status} after {step} steps{recorder.verdict}")
        if step or status in ("finished", "stopped"):
            minutes = seconds / 60
            try:
                self.run.update_manifest(
                    result=_result(status, step, minutes, recorder, self.steering.paused_s, before)
                    | {"generation": self.generation.found()}
                )
                self.run.log_event(status, step, **details)
            finally:
                self.run.release()
        else:
            self.run.discard()
            print(f"{self.run.name}: ended before its first step, so nothing of it is kept", flush=True)


def _result(
    status: str, steps: int, minutes: float, recorder: Recorder, paused_s: float, before: dict[str, Any]
) -> dict[str, Any]:
    busy = max(1e-9, 60 * minutes - paused_s)
    return {
        "status": status,
        "steps": steps,
        "minutes": minutes + before.get("minutes", 0.0),
        "paused_s": paused_s,
        "rewards_s": sum(recorder.reward_s.values()),
        "rewards_s_by_function": recorder.reward_s,
        "reward_errors": recorder.reward_errors,
        "hooks_s": recorder.seconds,
        "hooks_share": recorder.seconds / busy,
        "health": recorder.watchdog.found() if recorder.watchdog else [],
        "drawing_s": sum(getattr(watcher, "drawing_s", 0.0) for watcher in recorder.watchers),
    }


def save_adapter(policy: Policy, folder: Path) -> Path:
    """Save the trained adapter with the tokenizer."""
    policy.model.save_pretrained(str(folder), selected_adapters=["default"])
    policy.tokenizer.save_pretrained(str(folder))
    # PEFT's model card is a form that nobody has filled in.
    (folder / "README.md").unlink(missing_ok=True)
    return folder


def _config(stage: Stage, fp16: bool) -> RunConfig:
    # As it is now: weights and settings may be changed while the stage trains.
    suite, task = stage.suite, stage.task
    return RunConfig.of(
        stage.settings,
        weights=dict(zip(suite.names, suite.weights, strict=True)),
        best=dict(zip(suite.names, map(max_score_of, task.reward_funcs), strict=True)),
        num_generations=suite.num_generations,
        aggregation=suite.aggregation,
        right_by=task.right_function,
        format_by=task.format_by,
        total_steps=stage.steps if stage.steps > 0 else None,
        fp16=fp16,
    )


def _time_generation(trainer: Any, recorder: Recorder) -> None:
    # A private method of TRL's trainer, also in Unsloth's; where it is missing, the split of time is not measured.
    generate = getattr(trainer, "_generate", None)
    if generate is None:
        return

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return generate(*args, **kwargs)
        finally:
            recorder.generated(time.perf_counter() - started)

    trainer._generate = timed


def _callback(session: Session, live: Live, restored: Restored | None) -> Any:
    from transformers import TrainerCallback

    recorder, run, stage, trainer = session.recorder, session.run, live.stage, live.trainer
    # Step numbers go on through the stages, as one run.
    begun_at = session.point.step if restored else stage.offset
    another = stage is not session.stages[-1]
    at_step_end: dict[str, Any] = {}  # the random states, before anything that comes after draws from them

    class WorkbenchCallback(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            steps = stage.steps if stage.steps > 0 else restored.total if restored else state.max_steps
            state.global_step, state.max_steps = begun_at, stage.offset + steps
            trainer._globalstep_last_logged = begun_at
            if restored:
                restored.begin(trainer)
                live.adaptive.restore(restored.point.state.get("adaptive", {}))
                past = [event for event in RunState.of(run).changes if stage.offset <= event["step"] <= begun_at]
                session.steering.catch_up(live, past)
            if not session.began:
                session.began = True
                total = session.total if session.total > 0 else state.max_steps
                recorder.tell("begin", run, total, stage.settings)
                inexact = "; ".join(restored.inexact) if restored else ""
                why_not = session.generation.why_not
                recorder.event(
                    "continued" if session.point else "started", begun_at, generation=why_not or "the workbench's loop",
                    **({"inexact": inexact} if inexact else {}),
                )  # fmt: skip
            if restored is None and stage.name != ONLY_STAGE:
                recorder.event(
                    "stage", stage.offset, stage=stage.name, weights=live.weights, beta=trainer.beta,
                    learning_rate=args.learning_rate, temperature=args.temperature, steps=steps, task=stage.task.name,
                )  # fmt: skip
            recorder.begin_steps(begun_at)
            if restored is None:
                session.steering.begin_stage(live, begun_at, control)

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if restored:
                restored.epoch_begins()

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if restored:
                restored.step_begins()

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
            if logs and "loss" in logs:  # the last call of a run carries only totals
                values = recorder.log(state.global_step, logs)
                # The trackers, which come after this, show what the record holds.
                logs.clear()
                logs.update(values)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            session.fit.first_step_done(run)
            if restored:
                state.epoch = restored.epoch(state.epoch)
            at_step_end.update(random_states(), tokens=state.num_input_tokens_seen)
            started, waited = time.perf_counter(), session.steering.paused_s
            ended = state.global_step >= state.max_steps
            session.steering.boundary(live, state.global_step, control, ends=ended and another)
            recorder.seconds += time.perf_counter() - started - (session.steering.paused_s - waited)
            if ended or control.should_training_stop:
                control.should_log = True  # the last steps have a row, too, where logging_steps does not divide

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            folder = run.checkpoints / f"checkpoint-{state.global_step}"
            # A pickle that nothing needs; a run holds none.
            (folder / "training_args.bin").unlink(missing_ok=True)
            (folder / "README.md").unlink(missing_ok=True)  # PEFT's model card
            save_state(
                trainer,
                folder,
                stage.number,
                state.global_step - stage.offset,
                live.adaptive.state(),
                at_step_end or None,
            )
            recorder.event("checkpoint", state.global_step, folder=folder.name)

    return WorkbenchCallback()
