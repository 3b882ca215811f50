"""The session of a recipe's run: the stages of a plan, one after the other, on the same adapter.

It saves what a run needs to be resumed, and can begin from that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.base import processes
from workbench.base.errors import RunError
from workbench.base.kinds import Fields, Model, Trainer, TrainerControl, TrainerState
from workbench.run.directory import RunDirectory
from workbench.training.changes import recorded
from workbench.training.plan import ONLY_STAGE, Plan, Stage
from workbench.training.policy import Policy
from workbench.training.randomness import random_states
from workbench.training.replaced import replaces
from workbench.training.restoring import Restored
from workbench.training.resuming import (
    Point,
    check_finite,
    check_room,
    is_spread,
    load_adapter,
    save_checkpoint,
    whole_weights,
)
from workbench.training.session import Session
from workbench.training.watchers import Watchers


@dataclass(frozen=True)
class Made:
    """What `make_trainer` made a trainer from; the trainer's attribute `KEY` holds this."""

    given: Plan  # as `make_trainer` got it
    plan: Plan  # as this policy trains it, with settings and reward functions of the trainer's own
    policy: Policy
    # for a stage after the first; and what it warns of
    next_trainer: Callable[[Stage], tuple[Any, list[str]]]

    KEY = "_workbench_made_from"


@replaces("_save_checkpoint")
class StagedSession(Session):
    """Trains the stages that a trainer of `make_trainer` was made for, from the start or from a
    checkpoint.
    """

    def __init__(
        self,
        run: RunDirectory,
        trainer: Trainer,
        watchers: Watchers,
        point: Point | None = None,
        **more: object,
    ) -> None:
        self.made: Made = vars(trainer)[Made.KEY]
        self.plan, self.policy = self.made.plan, self.made.policy
        self.point, self.begun_at = point, point.step if point else 0
        super().__init__(run, trainer, self.plan.stages, watchers, **more)

    def train(self, *args: object, **kwargs: object) -> Any:
        """Train the plan's stages; RunError for `resume_from_checkpoint` or another argument of the
        trainer's own `train`.
        """
        if any([*args, *kwargs.values()]):
            raise RunError(
                f"{self.run.name}: trainer.train({', '.join(kwargs) or 'with an argument'})",
                rule="a trainer made from a plan takes its checkpoints from the run",
                remedy=(
                    "call trainer.train() without arguments; to resume an earlier run:"
                    " wb.continue_run(run)"
                ),
            )
        result = super().train()
        processes.gathered(None)  # what the main process saves at the end is there for all
        return result

    def _train_all(self) -> Any:
        self.made.policy.trained_in.append(self.run.name)
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
        trainer, model, suite = self.trainer, self.made.policy.model, stage.scored_by[1]
        suite.on_batch = self.scored
        suite.gather = processes.gathered if processes.count() > 1 else None
        trainer.args.output_dir = str(self.run.checkpoints)
        self.restored, self._at_step_end, self._before = None, None, (0, {}, {})
        done = 0
        if self.point is not None and stage.number == self.point.stage:
            load_adapter(model, self.point.folder)
            if self.point.step:  # else it was saved for a warm start, and training begins as always
                self.restored = Restored(self.point, stage.steps)
                self.restored.prepare(trainer)
                done = self.point.done
        check_room(self.run, model, trainer.args, stage.steps - done)
        self._begin(stage)
        self.replace("_save_checkpoint", self._save_checkpoint)
        try:
            with self.run.writing():
                if not all(self.around.each("before_first", stage)):
                    return None
            with self.around.training(), self.run.writing():
                return self._train()
        except Exception as error:
            explained = self._explained(error)
            if explained is error:
                raise
            raise explained from error
        finally:
            self.control.suite.close()

    def save_before_first(self, **known: object) -> None:
        """Save a checkpoint of step 0, with `known` added to its state."""
        self._save_checkpoint(self.trainer.model, **known)
        self.run.log_event("checkpoint", 0, folder="checkpoint-0")  # the watchers have not begun

    def _explained(self, error: Exception) -> Exception:
        step = self.trainer.state.global_step
        explained = self.around.explained(error)
        if explained is not error:
            return explained
        if processes.count() > 1 and "peer" in str(error):  # gloo's word, where a connection breaks
            return RunError(
                f"{self.run.name}: another process ended during step {step + 1}",
                rule="processes that train together end together",
                remedy="its own error, or why it was killed, is printed above",
            )
        if not isinstance(error, RunError) and not is_spread(self.trainer):
            try:
                check_finite(self.made.policy.model, self.run, step)
            except RunError as cause:
                return cause
        return error

    def _save_checkpoint(self, model: Model, trial: object = None, **more: object) -> None:
        # In the place of the trainer's own, which deletes an old checkpoint before the new one is
        # whole, and saves nan.
        weights = whole_weights(self.trainer)
        if not processes.is_main():
            return
        self.run.went_on()
        reached = self.trainer.state.global_step
        step, on_record, state = self._before
        if step <= reached:
            on_record, state = self.recorder.on_record, self.around.merged("state")
        known = {**state, "stage": self.stage.number, "done": reached - self.stage.offset, **more}
        known["recorded"] = {**on_record, "events.jsonl": self.recorder.state.in_force}
        save_checkpoint(self.trainer, self.run, known, self._at_step_end, weights)

    # -- the trainer's hooks
    # --------------------------------------------------------------------------------------------
    def on_train_begin(self, state: TrainerState, control: TrainerControl) -> None:
        # Step numbers go on through the stages, as one run.
        stage, recorder, restored = self.stage, self.recorder, self.restored
        begun_at = restored.point.step if restored else stage.offset
        steps = stage.steps if stage.steps > 0 else restored.total if restored else state.max_steps
        state.global_step, state.max_steps = begun_at, stage.offset + steps
        self.trainer._globalstep_last_logged = recorder.steps_before = begun_at
        if restored:
            restored.begin(self.trainer)
            self.around.each("restore", restored.point.state)
        if stage is self.stages[0]:
            last = self.stages[-1]
            total = last.offset + last.steps if last.steps > 0 else state.max_steps
            recorder.tell("begin", self.run, total, stage.settings)
            details = self.around.merged("started")
            if restored and restored.schedule:
                details |= restored.schedule
                print(restored.schedule["schedule"], flush=True)
            if restored and restored.inexact:
                details["inexact"] = "; ".join(restored.inexact)
            recorder.event("continued" if self.point else "started", begun_at, **details)

    def then_on_train_begin(self, state: TrainerState, control: TrainerControl) -> None:
        stage, begun_at, args = self.stage, state.global_step, self.trainer.args
        if self.restored:
            self.control.catch_up()
        if self.point and stage is self.stages[0]:
            self.recorder.catch_up(recorded(self.run, begun_at))
            self.around.each("resumed", begun_at, stage.offset)
        if self.restored:
            return
        if stage.name != ONLY_STAGE:
            self.recorder.event(
                "stage",
                stage.offset,
                stage=stage.name,
                weights=self.control.weights,
                beta=self.trainer.beta,
                learning_rate=args.learning_rate,
                temperature=args.temperature,
                steps=state.max_steps - stage.offset,
                task=self.control.task.name,
            )
        self.control.begin_stage(begun_at, control)

    def on_epoch_begin(self, state: TrainerState, control: TrainerControl) -> None:
        if self.restored:
            self.restored.epoch_begins()

    def on_step_begin(self, state: TrainerState, control: TrainerControl) -> None:
        if self.restored:
            self.restored.load_random()

    def on_log(self, state: TrainerState, control: TrainerControl, logs: Fields) -> None:
        if "loss" in logs:  # the last call of a run carries only totals
            values = self.recorder.log(state.global_step, logs)
            # The trackers, which come after this, show what the record holds.
            logs.clear()
            logs.update(values)

    def on_step_end(self, state: TrainerState, control: TrainerControl) -> None:
        self.updating = False
        if self.restored:
            state.epoch = self.restored.epoch(state.epoch)
        # The random states, before anything that comes after draws from them.
        states = {**random_states(), "tokens": state.num_input_tokens_seen}
        self._at_step_end = processes.gathered(states)

    def then_on_step_end(self, state: TrainerState, control: TrainerControl) -> None:
        ended = state.global_step >= state.max_steps
        last = self.stage is self.stages[-1]
        self.control.boundary(state.global_step, control, ends=ended and not last)
        if ended or control.should_training_stop:
            # the last steps have a row, too, where logging_steps does not divide
            control.should_log = True

    def on_save(self, state: TrainerState, control: TrainerControl) -> None:
        folder = f"checkpoint-{state.global_step}"
        self.recorder.event("checkpoint", state.global_step, folder=folder)
