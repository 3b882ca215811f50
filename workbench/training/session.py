"""One session of training: a trainer's own `train()` with the record, the run's control and a graceful stop around it.

`Session` keeps its hands off everything that decides a number, so it goes around anyone's trainer. `StagedSession` trains
the stages of a plan, one after the other, on the same adapter, and saves what a run needs to go on.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from workbench import processes
from workbench.errors import RunError
from workbench.health import Watchdog
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.run.held_out import told
from workbench.run.metrics import LEARNING_RATE, RATIO_HIGH, RATIO_LOW, RATIO_MASKED
from workbench.training import warm_start
from workbench.training.control import RunControl, save_now
from workbench.training.fitting import Fit
from workbench.training.generation import Generation, expected
from workbench.training.held_out import HeldOut
from workbench.training.loading import eos_ids, random_states
from workbench.training.plan import ONLY_STAGE, Plan, Stage
from workbench.training.policy import Policy
from workbench.training.recorder import Recorder
from workbench.training.resuming import (
    Point,
    Restored,
    check_finite,
    check_room,
    is_spread,
    load_adapter,
    not_numbers,
    recorded,
    save_adapter,
    save_checkpoint,
    whole_weights,
)  # fmt: skip
from workbench.training.stages import AdaptiveWeights
from workbench.training.trackers import tracker_callbacks
from workbench.training.watchers import Watchers, unasked
from workbench.workspace import replace_folder

_BATCH = "a batch of completions was not recorded"  # of the step in flight, which is not counted yet


@dataclass(frozen=True)
class Made:
    """What a trainer of `make_trainer` was made from; its attribute `KEY` holds this."""

    given: Plan  # as `make_trainer` got it
    plan: Plan  # as this policy trains it, with settings and reward functions of the trainer's own
    policy: Policy
    next_trainer: Callable[[Stage], tuple[Any, list[str]]]  # for a stage after the first; and what it warns of

    KEY = "_workbench_made_from"


class Session:
    """Trains with a trainer as it is, once, through the trainer's `train`, and closes the record, however that ends.

    `watchers` show the run (None: what is shown unasked).
    """

    policy: Policy | None = None  # None: a trainer of the user's own
    point: Point | None = None  # where to go on; None: from the start
    generation: Generation | None = None
    held_out: HeldOut | None = None  # as `eval_every` asks for
    begun_at = 0  # the step before the first
    warmed = False  # a warm start is over and saved: it is kept, whatever becomes of the first step

    def __init__(self, run: RunDirectory, trainer: Any, stages: Sequence[Stage], watchers: Watchers) -> None:
        self.run, self.trainer, self.stages, self.stage = run, trainer, stages, stages[0]
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)  # a processor of images holds one
        shown_by = [make() for make in unasked] if watchers is None else watchers
        ends = {*eos_ids(trainer), tokenizer.pad_token_id}  # TRL counts a completion whose last token is padding as ended, too
        self.recorder = Recorder(run, ends, shown_by if processes.is_main() else ())
        self.control = RunControl(run, self.recorder)
        self._row: tuple[int, dict[str, Any]] | None = None  # of a step that the trainer is about to log
        self._seen: dict[str, int] = {}  # numbers of the trainer's that are in rows already
        self.lost: Counter[str] = Counter()  # of somebody's own trainer: what could not be recorded, and how often
        self.recorder.lost = None if self.policy else functools.partial(self._lost, _BATCH)
        self.updating = False  # the weights are those of no step: the optimiser is at them
        self.at_end = contextlib.ExitStack()  # what puts everything back
        self._train = trainer.train
        self.replace("train", self.train)
        process, unused = os.getpid(), (lambda: (run.put_back(), run.release())) if self.point else run.discard
        # If the trainer is never asked to train: at the end of this process, not of a child's.
        forgotten = atexit.register(lambda: unused() if os.getpid() == process else None)
        self.at_end.callback(atexit.unregister, forgotten)

    def replace(self, name: str, value: Any) -> None:
        """Put `value` in the place of one of the trainer's methods until the session is over."""
        own = vars(self.trainer)
        if name in own:
            self.at_end.callback(own.update, {name: own[name]})
        else:
            self.at_end.callback(own.pop, name, None)
        own[name] = value

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """The trainer's own `train`, watched and recorded; what ends it before its time is recorded and raised."""
        with self.control.graceful():  # all of it: an Interrupt that comes while something is being saved must not lose it
            return self._recorded(*args, **kwargs)

    def _recorded(self, *args: Any, **kwargs: Any) -> Any:
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
                # An error after hours must not take them along: the weights are those of the last whole step.
                with contextlib.suppress(Exception):  # the error that is being raised says more
                    save_now(self.trainer)
            raise
        finally:
            self.at_end.close()
            try:
                with self._spared("the record was not closed"), self.run.writing():
                    self.run.lock.beat()  # or it is somebody else's by now
                    self._close(status, max(self.begun_at, self.trainer.state.global_step), time.monotonic() - started, details)
            except (OSError, RunError):
                if status != "failed":  # else the error that is being raised says more
                    raise
            finally:
                self.run.release()

    def _may_save(self, step: int) -> bool:
        # The weights are whole, the record knows the step (or a hole in it would be for ever), and it is not saved yet.
        recorded = step - self.recorder.steps_before < max(1, self.trainer.args.logging_steps)
        spread = is_spread(self.trainer)  # the other processes may not be there to hand in their share
        mine = not self.run.lock.lost
        return (
            mine and recorded and not self.updating and not spread and not (self.run.checkpoints / f"checkpoint-{step}").exists()
        )

    def _train_all(self, *args: Any, **kwargs: Any) -> Any:
        self._begin(self.stage)
        return self._train(*args, **kwargs)

    @contextlib.contextmanager
    def _spared(self, lost: str) -> Iterator[None]:
        """Watching must not end somebody's own training: there, what fails is lost once, and said."""
        try:
            yield
        except Exception as error:
            if self.policy:
                raise  # what a run's record lacks, it cannot go on from
            self._lost(lost, self.trainer.state.global_step + (lost == _BATCH), error)

    def safe(self, hook: Callable[..., Any], lost: str = _BATCH) -> Callable[..., None]:
        """The hook, spared, each time anew."""

        def called(*args: Any, **kwargs: Any) -> None:
            with self._spared(lost):
                hook(*args, **kwargs)

        return called

    def _lost(self, lost: str, step: int, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        self.lost[lost] += 1
        if self.lost[lost] == 1:  # an event says it of each step
            warnings.warn(f"{self.run.name}: step {step}: {lost}, training goes on: {reason}", stacklevel=4)
        with contextlib.suppress(Exception):  # the disk may be what is full
            self.recorder.event("not_recorded", step, what=lost, error=reason)

    def _begin(self, stage: Stage, adaptive: AdaptiveWeights | None = None) -> None:
        from transformers import TrainerCallback

        trainer, recorder = self.trainer, self.recorder
        self.stage = stage
        self.control.steer(trainer, self.policy, stage, adaptive)
        recorder.stage, recorder.measures_kl = stage.name, bool(stage.settings["beta"])
        measured = self.held_out.found if self.held_out else ()
        recorder.watchdog = Watchdog(self.control.config, measured) if processes.is_main() else None
        # A private method of TRL's trainer, also in Unsloth's; where it is missing, the split of time is not measured.
        if generate := getattr(trainer, "_generate", None):
            self.replace("_generate", recorder.timed("generated_s")(generate))
        self._watch_ratio()
        own = {name: self.safe(getattr(self, name), f"{name} failed") for name in dir(self) if name.startswith("on_")}
        hooks = {name: staticmethod(hook) for name, hook in own.items()}
        callback = type("WorkbenchCallback", (TrainerCallback,), hooks)()
        trainer.add_callback(callback)
        self.at_end.callback(trainer.remove_callback, callback)

    def _watch_ratio(self) -> None:
        # How far the importance ratio goes, of which TRL logs only what was clipped. Unsloth's GPU trainer computes its loss
        # elsewhere: there nothing is noted.
        trainer, ratios = self.trainer, self.recorder.ratios
        names = ("_compute_loss", "_get_per_token_logps_and_entropies", "get_off_policy_mask")
        if not all(hasattr(trainer, name) for name in names):
            return
        compute, logps_of, mask_of = (getattr(trainer, name) for name in names)
        batch: list[dict[str, Any]] = []  # of the latest loss

        @functools.partial(self.safe, lost="a ratio was not recorded")
        def note(logps: Any) -> None:
            old, low, high = batch[0].get("old_per_token_logps"), 1.0, 1.0
            if old is not None:
                mask = batch[0]["completion_mask"] * batch[0].get("tool_mask", 1)
                away, kept = (logps.detach() - old) * mask, mask.bool()
                if trainer.importance_sampling_level == "sequence":
                    away, kept = away.sum(-1) / mask.sum(-1).clamp(min=1), mask.sum(-1) > 0
                if not kept.any():
                    return
                low, high = (float(end) for end in away[kept].exp().aminmax())
            ratios[RATIO_LOW].append(low)
            ratios[RATIO_HIGH].append(high)

        def _compute_loss(model: Any, inputs: Any) -> Any:
            batch[:] = [inputs]
            return compute(model, inputs)

        def logps(*args: Any, **more: Any) -> Any:
            found = logps_of(*args, **more)
            if batch and found[0].requires_grad:  # not those of the old policy or the reference
                note(found[0])
            return found

        def get_off_policy_mask(*args: Any, **more: Any) -> Any:
            kept = mask_of(*args, **more)
            self.safe(lambda: ratios[RATIO_MASKED].append(1 - float(kept.float().mean())), "a ratio was not recorded")()
            return kept

        for name, own in zip(names, (_compute_loss, logps, get_off_policy_mask), strict=True):
            self.replace(name, own)

    def _close(self, status: str, step: int, seconds: float, details: dict[str, Any]) -> None:
        recorder, run = self.recorder, self.run
        with contextlib.suppress(OSError):  # the error that ended the run, if it was this one
            recorder.close()
        if self.run.kept_aside:
            self.run.put_back()
            self.control.refuse_rest(step)
            self.run.log_event("put_back", step, status=status, **details)
            recorder.tell("end", ended := f"{status} before a new step; it is what it was: {run.result()['status']}")
            print(f"{run.name}: {ended}", flush=True)
            return
        recorder.look(step)
        paused_s, before = self.control.paused_s, run.manifest().get("before") or {}  # the result of the session before
        minutes = seconds / 60 + before.get("minutes", 0.0)
        held_out = self.held_out.result(60 * minutes) if self.held_out else {}
        ended = f"{status} after {step} steps{recorder.verdict}" + (f"; {told(held_out)}" if held_out else "")
        if self.lost:
            ended += "; WARNING: " + ", ".join(f"{lost} ({times} times)" for lost, times in self.lost.items())
        recorder.tell("end", ended)
        if step or self.warmed or self.point or status in ("finished", "stopped"):
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
                "health": recorder.watchdog.found() if recorder.watchdog else [],
                "drawing_s": sum(getattr(watcher, "drawing_s", 0.0) for watcher in recorder.watchers),
            }
            result |= {"held_out": held_out} if held_out else {}
            run.update_manifest(result=result | ({"generation": self.generation.found()} if self.generation else {}))
            self.control.refuse_rest(step)  # after the result: who asks later sees it
            run.log_event(status, step, **details)
            if not self.policy:
                print(f"{run.name}: {ended}; to record another train(), attach again", flush=True)
        else:
            run.discard()
            print(f"{run.name}: ended before its first step, so nothing of it is kept", flush=True)

    # -- the trainer's hooks --------------------------------------------------------------------------------------------
    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.begun_at = self.recorder.steps_before = state.global_step  # a checkpoint that the user goes on from
        self.recorder.tell("begin", self.run, state.max_steps, self.stage.settings)
        self.recorder.event("started", state.global_step, generation="the trainer")
        self.control.begin_stage(state.global_step, control)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._learning_rate = self.trainer._get_learning_rate()  # at the step's end it is already the next one's

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.updating = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # A row for every step, however seldom the trainer logs: what it has noted of this step, averaged as it would.
        try:
            self._row = (state.global_step, self._noted() | {LEARNING_RATE: self._learning_rate, "epoch": state.epoch})
            if not control.should_log:
                self._write_row({})
        finally:
            self.control.boundary(state.global_step, control)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if evaluated := {key: value for key, value in (logs or {}).items() if key.startswith("eval_")}:
            self.run.log_metrics(state.global_step, evaluated)  # of the trainer's own eval_dataset, after the step's row
            return
        self._seen.clear()  # the trainer begins its averages anew
        if logs and "loss" in logs and self._row is not None:
            self._write_row({key: logs[key] for key in ("loss", "grad_norm") if key in logs})

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.recorder.event("checkpoint", state.global_step, folder=f"{args.output_dir}/checkpoint-{state.global_step}")

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
    """Trains the stages that a trainer of `make_trainer` was made for, from the start or from a checkpoint."""

    def __init__(self, run: RunDirectory, trainer: Any, watchers: Watchers, point: Point | None = None, **more: Any) -> None:
        self.made: Made = vars(trainer)[Made.KEY]
        self.policy, self.point, self.begun_at = self.made.policy, point, point.step if point else 0
        self.generation, stages = Generation(self.policy.model), self.made.plan.stages

        def failed(name: str, error: str) -> None:
            run.log_event("tracker_failed", tracker=name, error=error)
            print(f"{name} failed and is left out, training goes on: {error}", flush=True)

        # Before the trainer is touched: what fails here leaves it as it was.
        wanted = stages[0].settings["report_to"]
        wanted = wanted if processes.is_main() else "none"
        self.trackers, lines = tracker_callbacks(wanted, run.name, run.path / "trackers", failed)
        print(*lines, sep="\n", end="\n" * bool(lines))
        if self.made.plan.recipe.eval_every:
            told_to = lambda *said, **more: self.recorder.held_out(*said, **more)  # noqa: E731 - made below
            self.held_out = HeldOut(run, self.made.plan, self.policy, told_to, self.begun_at)
        super().__init__(run, trainer, stages, watchers, **more)
        if self.held_out:
            self.at_end.callback(self.held_out.suite.close)
        for tracker in self.trackers:
            self.at_end.callback(tracker.close)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train the plan's stages; RunError for `resume_from_checkpoint` or another argument of the trainer's own `train`."""
        if any([*args, *kwargs.values()]):
            value = f"{self.run.name}: trainer.train({', '.join(kwargs) or 'with an argument'})"
            remedy = "call trainer.train() alone; to go on with an earlier run: wb.continue_run(run)"
            raise RunError(value, rule="a trainer made from a plan takes its checkpoints from the run", remedy=remedy)
        result = super().train()
        processes.gathered(None)  # what the main process saves at the end is there for all
        return result

    def _train_all(self) -> Any:
        self.policy.trained_in.append(self.run.name)
        for stage in self.stages:
            if stage is not self.stages[0]:
                self.trainer, warned = self.made.next_trainer(stage)
                print(*warned, sep="\n", end="\n" * bool(warned))
                self._train = self.trainer.train
            result = self._train_stage(stage)
            if self.control.stopped_by:
                break
        return result

    def _train_stage(self, stage: Stage) -> Any:
        trainer, policy = self.trainer, self.policy
        adaptive = AdaptiveWeights(stage.adaptive, stage.suite)

        def scored(batch: ScoredBatch) -> None:
            # What a checkpoint of the step before says, if this one is not finished.
            self._before = batch.step, dict(self.recorder.on_record), copy.deepcopy(adaptive.state)
            adaptive.note(batch)
            self.recorder.batch(batch)

        stage.suite.on_batch = scored
        stage.suite.gather = processes.gathered if processes.count() > 1 else None
        trainer.args.output_dir = str(self.run.checkpoints)
        self.restored, self._at_step_end, self._before = None, None, (0, {}, {})
        if self.point is not None and stage.number == self.point.stage:
            load_adapter(policy.model, self.point.folder)
            if self.point.step:  # else it was saved for a warm start, and training begins as always
                self.restored = Restored(self.point, stage.steps)
                self.restored.prepare(trainer)
        self.fit = Fit(stage)
        if self.fit.estimate and self.fit.estimate.verdict:
            print(self.fit.estimate.verdict)
        check_room(self.run, policy.model, trainer.args, stage.steps - (self.point.done if self.restored else 0))
        self._begin(stage, adaptive)
        self.replace("_save_checkpoint", self._save_checkpoint)
        for tracker in self.trackers:
            trainer.add_callback(tracker)
        why_not = expected(stage.recipe, stage.settings, policy.model.device.type == "cuda")
        self.generation = Generation(policy.model, why_not, self._generates, before=self.generation)
        try:
            with self.run.writing():
                if not self._warm_start(stage):
                    return None
            with self.generation, self.run.writing():
                return self._train()
        except Exception as error:
            explained = self._explained(error)
            if explained is error:
                raise
            raise explained from error
        finally:
            self.control.suite.close()

    def _warm_start(self, stage: Stage) -> bool:
        # Whether training may begin: there is no warm start, or it is over. It is saved before and after, so that a run that is
        # killed in it begins it anew, and one that is killed later has it.
        from transformers import set_seed

        if stage.number or self.begun_at or stage.recipe.warm_start is None:
            return True
        if self.point is None or not self.point.state["warm_started"]:
            self._save_before_first(warm_started=False)
            if (found := warm_start.run(self)) is None:
                load_adapter(self.policy.model, self.run.checkpoints / "checkpoint-0")
                print(f"stopped in the warm start; `workbench continue {self.run.name}` begins it anew", flush=True)
                return False
            self.run.update_manifest(warm_start=found)
            self._save_before_first(warm_started=True)
        self.warmed = True
        set_seed(self.trainer.args.seed)  # the same from here on, whether or not it goes on from that checkpoint
        return True

    def _save_before_first(self, **known: Any) -> None:
        self._save_checkpoint(self.trainer.model, **known)
        self.run.log_event("checkpoint", 0, folder="checkpoint-0")  # the watchers have not begun

    def _explained(self, error: Exception) -> Exception:
        from workbench.training.generation.decoding import NotNumbers  # imports transformers

        step = self.trainer.state.global_step
        if isinstance(error, NotNumbers):
            return not_numbers(self.run, f"in step {step + 1} {error}")
        if processes.count() > 1 and "peer" in str(error):  # gloo's word, where a connection breaks
            rule, remedy = "processes that train together end together", "its own error, or why it was killed, stands above"
            return RunError(f"{self.run.name}: another process ended during step {step + 1}", rule=rule, remedy=remedy)
        if not isinstance(error, RunError) and not is_spread(self.trainer):
            try:
                check_finite(self.policy.model, self.run, step)
            except RunError as cause:
                return cause
        return self.fit.explained(error)

    def _save_checkpoint(self, model: Any, trial: Any = None, **more: Any) -> None:
        # In the place of the trainer's own, which deletes an old checkpoint before the new one is whole, and saves nan.
        trainer, stage = self.trainer, self.stage
        weights = whole_weights(trainer)
        if not processes.is_main():
            return
        self.run.went_on()
        step, recorded, adaptive = self._before
        if step <= trainer.state.global_step:
            recorded, adaptive = self.recorder.on_record, self.control.adaptive.state
        known = {"stage": stage.number, "done": trainer.state.global_step - stage.offset, "adaptive": adaptive}
        known["recorded"] = recorded | {"events.jsonl": self.recorder.state.in_force}
        save_checkpoint(trainer, self.run, known | more, self._at_step_end, weights)

    def _generates(self, why_not: str | None) -> None:
        step, by = self.trainer.state.global_step + 1, {"by": "trl", "why": why_not} if why_not else {"by": "workbench"}
        self.recorder.event("generation", step, **by)
        if why_not:
            print(f"from step {step} on TRL's own path generates: {why_not}", flush=True)

    # -- the trainer's hooks --------------------------------------------------------------------------------------------
    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # Step numbers go on through the stages, as one run.
        stage, trainer, recorder, restored = self.stage, self.trainer, self.recorder, self.restored
        begun_at = self.point.step if restored else stage.offset
        steps = stage.steps if stage.steps > 0 else restored.total if restored else state.max_steps
        state.global_step, state.max_steps = begun_at, stage.offset + steps
        trainer._globalstep_last_logged = recorder.steps_before = begun_at
        if restored:
            restored.begin(trainer)
            self.control.adaptive.restore(restored.point.state.get("adaptive", {}))
        if stage is self.stages[0]:
            last = self.stages[-1]
            recorder.tell("begin", self.run, last.offset + last.steps if last.steps > 0 else state.max_steps, stage.settings)
            inexact = {"inexact": "; ".join(restored.inexact)} if restored and restored.inexact else {}
            how = self.generation.why_not or "the workbench's loop"
            recorder.event("continued" if self.point else "started", begun_at, generation=how, **inexact)
            if self.warmed:
                recorder.event("warm_start", 0, **self.run.manifest()["warm_start"])
        if self.held_out and stage is self.stages[0]:
            self.held_out.begin(self.warmed or self.made.plan.recipe.policy.adapter is not None)
        if restored:
            self.control.catch_up()
        if self.point and stage is self.stages[0]:
            recorder.catch_up(recorded(self.run, begun_at), begun_at, stage.offset)
        if restored:
            return
        if stage.name != ONLY_STAGE:
            recorder.event(
                "stage", stage.offset, stage=stage.name, weights=self.control.weights, beta=trainer.beta,
                learning_rate=args.learning_rate, temperature=args.temperature, steps=steps, task=stage.task.name,
            )  # fmt: skip
        self.control.begin_stage(begun_at, control)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.restored:
            self.restored.epoch_begins()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.restored:
            self.restored.load_random()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if logs and "loss" in logs:  # the last call of a run carries only totals
            values = self.recorder.log(state.global_step, logs)
            # The trackers, which come after this, show what the record holds.
            logs.clear()
            logs.update(values)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.updating = False
        self.fit.first_step_done(self.run)
        if self.restored:
            state.epoch = self.restored.epoch(state.epoch)
        # The random states, before anything that comes after draws from them.
        self._at_step_end = processes.gathered({**random_states(), "tokens": state.num_input_tokens_seen})
        ended = state.global_step >= state.max_steps
        if self.held_out:
            self.held_out.after(state.global_step, ended and self.stage is self.stages[-1])
        self.control.boundary(state.global_step, control, ends=ended and self.stage is not self.stages[-1])
        if ended or control.should_training_stop:
            control.should_log = True  # the last steps have a row, too, where logging_steps does not divide

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.recorder.event("checkpoint", state.global_step, folder=f"checkpoint-{state.global_step}")
