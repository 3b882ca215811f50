"""The session of a recipe's run: the stages of a plan, one after the other, on the same adapter.

It saves what a run needs to be resumed, and can begin from that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench import processes
from workbench.errors import RunError
from workbench.kinds import Fields, Model, Trainer, TrainerControl, TrainerState, TrainingArguments
from workbench.run.directory import RunDirectory
from workbench.training.loading import random_states
from workbench.training.plan import ONLY_STAGE, Plan, Stage
from workbench.training.policy import Policy
from workbench.training.resuming import (
    Point,
    Restored,
    check_finite,
    check_room,
    is_spread,
    load_adapter,
    recorded,
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
        self.policy, self.point, self.begun_at = self.made.policy, point, point.step if point else 0
        super().__init__(run, trainer, self.made.plan.stages, watchers, **more)

    def train(self, *args: object, **kwargs: object) -> Any:
        """Train the plan's stages; RunError for `resume_from_checkpoint` or another argument of the
        trainer's own `train`.
        """
        if any([*args, *kwargs.values()]):
            value = f"{self.run.name}: trainer.train({', '.join(kwargs) or 'with an argument'})"
            remedy = (
                "call trainer.train() without arguments; to resume an earlier run:"
                " wb.continue_run(run)"
            )
            raise RunError(
                value,
                rule="a trainer made from a plan takes its checkpoints from the run",
                remedy=remedy,
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
        trainer, policy, suite = self.trainer, self.made.policy, stage.scored_by[1]
        suite.on_batch = self.scored
        suite.gather = processes.gathered if processes.count() > 1 else None
        trainer.args.output_dir = str(self.run.checkpoints)
        self.restored, self._at_step_end, self._before = None, None, (0, {}, {})
        if self.point is not None and stage.number == self.point.stage:
            load_adapter(policy.model, self.point.folder)
            if self.point.step:  # else it was saved for a warm start, and training begins as always
                self.restored = Restored(self.point, stage.steps)
                self.restored.prepare(trainer)
        check_room(
            self.run,
            policy.model,
            trainer.args,
            stage.steps - (self.restored.point.done if self.restored else 0),
        )
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
            rule, remedy = (
                "processes that train together end together",
                "its own error, or why it was killed, is printed above",
            )
            return RunError(
                f"{self.run.name}: another process ended during step {step + 1}",
                rule=rule,
                remedy=remedy,
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
        trainer, stage = self.trainer, self.stage
        weights = whole_weights(trainer)
        if not processes.is_main():
            return
        self.run.went_on()
        step, recorded, state = self._before
        if step <= trainer.state.global_step:
            recorded, state = self.recorder.on_record, self.around.merged("state")
        known = {"stage": stage.number, "done": trainer.state.global_step - stage.offset, **state}
        known["recorded"] = recorded | {"events.jsonl": self.recorder.state.in_force}
        save_checkpoint(trainer, self.run, known | more, self._at_step_end, weights)

    # -- the trainer's hooks
    # --------------------------------------------------------------------------------------------
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        # Step numbers go on through the stages, as one run.
        stage, trainer, recorder, restored = self.stage, self.trainer, self.recorder, self.restored
        begun_at = restored.point.step if restored else stage.offset
        steps = stage.steps if stage.steps > 0 else restored.total if restored else state.max_steps
        state.global_step, state.max_steps = begun_at, stage.offset + steps
        trainer._globalstep_last_logged = recorder.steps_before = begun_at
        if restored:
            restored.begin(trainer)
            self.around.each("restore", restored.point.state)
        if stage is self.stages[0]:
            last = self.stages[-1]
            recorder.tell(
                "begin",
                self.run,
                last.offset + last.steps if last.steps > 0 else state.max_steps,
                stage.settings,
            )
            inexact = (
                {"inexact": "; ".join(restored.inexact)} if restored and restored.inexact else {}
            )
            recorder.event(
                "continued" if self.point else "started",
                begun_at,
                **self.around.merged("started"),
                **inexact,
            )

    def then_on_train_begin(
        self, args: Any, state: Any, control: TrainerControl, **_: object
    ) -> None:
        stage, trainer, recorder, begun_at = (
            self.stage,
            self.trainer,
            self.recorder,
            state.global_step,
        )
        if self.restored:
            self.control.catch_up()
        if self.point and stage is self.stages[0]:
            recorder.catch_up(recorded(self.run, begun_at))
            self.around.each("resumed", begun_at, stage.offset)
        if self.restored:
            return
        if stage.name != ONLY_STAGE:
            recorder.event(
                "stage", stage.offset, stage=stage.name, weights=self.control.weights,
                beta=trainer.beta,
                learning_rate=args.learning_rate, temperature=args.temperature,
                    steps=state.max_steps - stage.offset,
                task=self.control.task.name,
            )  # fmt: skip
        self.control.begin_stage(begun_at, control)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        if self.restored:
            self.restored.epoch_begins()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        if self.restored:
            self.restored.load_random()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Fields | None = None,
        **_: object,
    ) -> None:
        if logs and "loss" in logs:  # the last call of a run carries only totals
            values = self.recorder.log(state.global_step, logs)
            # The trackers, which come after this, show what the record holds.
            logs.clear()
            logs.update(values)

    def on_step_end(
        self, args: TrainingArguments, state: Any, control: TrainerControl, **_: object
    ) -> None:
        self.updating = False
        if self.restored:
            state.epoch = self.restored.epoch(state.epoch)
        # The random states, before anything that comes after draws from them.
        self._at_step_end = processes.gathered(
            {**random_states(), "tokens": state.num_input_tokens_seen}
        )

    def then_on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        ended = state.global_step >= state.max_steps
        self.control.boundary(
            state.global_step, control, ends=ended and self.stage is not self.stages[-1]
        )
        if ended or control.should_training_stop:
            # the last steps have a row, too, where logging_steps does not divide
            control.should_log = True

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.recorder.event(
            "checkpoint", state.global_step, folder=f"checkpoint-{state.global_step}"
        )
