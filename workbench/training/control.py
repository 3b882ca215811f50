"""Changing a run while it trains: requests, applied between two steps, answered and recorded as
events.

Nothing here touches the model while a step is in flight. A change is effective for everything
generated after it; the record of each completion names the weight it was scored under.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any, cast

from workbench.base.errors import RequestError, WorkbenchError
from workbench.base.kinds import Fields, Trainer, TrainerControl
from workbench.base.processes import gathered, is_main
from workbench.base.workspace import append_line, resolve, shown
from workbench.rewards.execution import AWAITED
from workbench.rewards.suite import RewardSuite
from workbench.run.control_file import CHANGES, ControlReader, Request, check_request, write_request
from workbench.run.directory import RunDirectory
from workbench.tasks.loading import load_task
from workbench.training.around import Around
from workbench.training.plan import Stage
from workbench.training.policy import Policy
from workbench.training.recorder import Recorder
from workbench.training.signals import ECHO_S, Interrupts

POLL_S = 0.1
CARRIED = "the stage before"  # who asked for a reload that a stage inherits
SAMPLED_PROMPTS = 4
_NAMED = ("function", "value")
_ON_REWARDS = ("weight", "mute", "unmute", "reload")


class RunControl:
    """Reads a run's requests between two steps, applies them to the current stage, and answers each
    with an event.
    """

    def __init__(self, run: RunDirectory, recorder: Recorder) -> None:
        self.run, self.recorder, self.requests = run, recorder, ControlReader(run)
        self.paused_s, self.stopped_by = 0.0, None
        self.interrupts = Interrupts(self._interrupt)
        self._held: list[Request] = []  # for the next boundary
        self._reloaded: dict[str, Path] = {}  # edited task file -> the effective copy

    def _interrupt(self, by: str) -> None:
        if is_main():
            write_request(self.run, "stop", by, {})
            again = f"to abort at once, interrupt again in {ECHO_S:g} seconds or later"
            print(f"stopping after this step; {again}", flush=True)

    def steer(self, trainer: Any, policy: Policy | None, stage: Stage, around: Around) -> None:
        """Requests change this from now on; `policy`: None for the user's own trainer."""
        self.trainer, self.policy, self.stage, self.around = trainer, policy, stage, around
        self.task, self.suite = stage.scored_by

    @property
    def weights(self) -> dict[str, float]:
        return dict(zip(self.suite.names, self.suite.weights, strict=True))

    def begin_stage(self, step: int, flags: TrainerControl) -> None:
        """A stage begins: requests made at the end of the previous one are applied to it.

        Its weights, beta and learning rate are the recipe's; reward functions that were reloaded
        stay so, where the stage scores with the same task file.
        """
        self.step = step
        if file := self._reloaded.get(self.stage.source):
            self._answer(Request("reload", CARRIED, "", {}), **self._reload(file))
        self.boundary(step, flags, begins=True)

    def boundary(
        self, step: int, flags: TrainerControl, *, begins: bool = False, ends: bool = False
    ) -> None:
        """After `step` steps, apply the requests since the last boundary; `flags` are the
        trainer's, to save or to stop.

        When a stage `begins`, there is nothing to save yet; when it `ends` and another follows, a
        change applies to the next one.
        """
        self.step, self.flags = step, flags
        with self.recorder.timed():
            requests = [*self._held, *self._taken()]
            later = ("checkpoint",) if begins else CHANGES if ends else ()
            self._held = [request for request in requests if request.action in later]
            requests = [request for request in requests if request.action not in later]
            if not ends and not begins:
                # Written as a request like any other, so that the record has it; and read back at
                # once.
                for by, change in self.around.changes(self.weights):
                    if is_main():
                        write_request(self.run, "weight", by, change)
                requests += self._taken()
            if self._handle(requests):
                self._wait()
        if self._is_stopped():
            flags.should_training_stop = flags.should_save = True

    def stops(self) -> bool:
        """Before the first step: whether the run was asked to stop. All other requests wait for
        that step.
        """
        self.run.lock.beat()
        self.step, self._held = 0, [*self._held, *self._taken()]
        for request in [each for each in self._held if each.action == "stop"]:
            self._held.remove(request)
            self.stopped_by = request.by
            self._answer(request)
        return self._is_stopped()

    def _is_stopped(self) -> bool:
        # An Interrupt's own line could not be written, or stands after what was read.
        self.stopped_by = self.stopped_by or self._interrupted() or None
        return self.stopped_by is not None

    def _taken(self) -> list[Request]:
        return gathered(self.requests.take() if is_main() else [])[0]

    def _interrupted(self) -> str:
        # Whichever of the processes was: they stop after the same step.
        return next(filter(None, gathered(self.interrupts.by)), "")

    def refuse_rest(self, step: int) -> None:
        """The run is over: answer the requests that came after the last boundary."""
        for request in [*self._held, *self.requests.take()]:
            self._record(request, step, step + 1, applied=False, why="the run is over")
        self._held = []

    def catch_up(self) -> None:
        """Restore the settings that were effective at the checkpoint; they are recorded already, so
        nothing is reported.
        """
        state = self.recorder.state
        past = [event for event in state.changes if event["step"] >= self.stage.offset]
        changed = {event["action"]: event for event in past}
        if reload := changed.get("reload"):
            self.step = reload["step"]
            self._reload(self.run.path / reload["file"])
        if changed.keys() & set(_ON_REWARDS):
            self._set_weights(state.weights)
        if "beta" in changed:
            self._beta(cast(float, state.beta))
        if "learning_rate" in changed:
            self._learning_rate(cast(float, state.learning_rate))

    def _handle(self, requests: list[Request], waiting: bool = False) -> bool:
        """Answer these requests; whether the run should wait from here on."""
        for request in requests:
            why = None
            if request.action == "pause":
                waiting = self.stopped_by is None
                why = None if waiting else "the run stops"
            elif request.action == "resume":
                why = None if waiting else "the run was not paused"
                waiting = False
            else:
                self._one(request)
                waiting = waiting and self.stopped_by is None
                continue
            self._answer(request, why=why, applied=why is None)
        return waiting

    def _wait(self) -> None:
        began, waiting = time.monotonic(), True
        words = f"`workbench control {self.run.name} resume` continues"
        print(f"paused after step {self.step}; {words}", flush=True)
        while waiting and not self._interrupted():
            time.sleep(POLL_S)
            self.run.lock.beat()
            waiting = self._handle(self._taken(), waiting)
            if self.flags.should_save:  # now, and not at the end of the step, as the trainer would
                self.flags.should_save = False
                save_now(self.trainer)
        waited = time.monotonic() - began
        self.paused_s += waited
        self.recorder.seconds -= waited

    def _one(self, request: Request) -> None:
        """Apply one request and answer it."""
        try:
            why = request.details.pop("why", None)
            if not request.action:
                raise RequestError(
                    f"control.jsonl: {request.details['line']!r}",
                    rule="a request is one JSON object",
                    remedy="use send()",
                )
            details = check_request(request.action, request.details)
            self._answer(request, **{"why": why, **details, **self._apply(request, **details)})
        except Exception as error:
            # anything that a user's edited file does on loading must not end the run
            known = isinstance(error, WorkbenchError)
            why = str(error) if known else f"{type(error).__name__}: {error}"
            refused = f"{request.action or 'request'} refused, training continues"
            print(f"step {self.step}: {refused}: {why}", flush=True)
            given = {key: request.details[key] for key in _NAMED if key in request.details}
            self._answer(request, why=why, applied=False, **given)

    def _answer(
        self, request: Request, *, why: str | None = None, applied: bool = True, **found: object
    ) -> None:
        args, waits = self.trainer.args, 0
        # steps that still learn from completions that were generated before now
        if request.action in _ON_REWARDS:
            # forward passes of one generation
            window = args.steps_per_generation * self.trainer.num_iterations
            waits = -(-(-self.trainer._step % window) // args.gradient_accumulation_steps)
        found |= {"why": why} if why else {}
        self._record(request, self.step, self.step + 1 + waits, applied=applied, **found)

    def _record(self, request: Request, step: int, from_step: int, **found: object) -> None:
        asked = {"id": request.id, "action": request.action, "by": request.by}
        self.recorder.event("control", step, **asked, from_step=from_step, **found)

    # -- what can be asked
    # -------------------------------------------------------------------------------------------
    def _apply(self, request: Request, function: str = "", value: float = 0.0) -> Fields:
        match request.action:
            case "stop":
                self.stopped_by = request.by
            case "checkpoint":
                self.flags.should_save = True
            case "sample":
                return self._sample()
            case "reload":
                return self._reload()
            case "beta" | "learning_rate" as action:
                return getattr(self, f"_{action}")(value)
            case "weight" | "mute" | "unmute" as action:
                return self._weight(action, function, value)
        return {}

    def _weight(self, action: str, function: str, value: float) -> Fields:
        before, muted = self.weights, self.recorder.state.muted
        if function not in before:
            raise RequestError(
                f"function {function!r}",
                rule="only the stage's reward functions have weights",
                remedy=f"choose from {', '.join(before)}",
            )
        if action == "unmute" and function not in muted:
            raise RequestError(
                f"unmute {function}: it is not muted",
                rule="unmute undoes a mute",
                remedy=f"its weight is {before[function]:g}; `weight` changes it",
            )
        value = {"mute": 0.0, "unmute": muted.get(function, 0.0)}.get(action, value)
        after = {**before, function: value}
        if not any(after.values()):
            raise RequestError(
                f"{', '.join(after)}: all would weigh 0",
                rule="the reward is the weighted sum of the functions",
                remedy="give another one a weight first",
            )
        self._set_weights(after)
        return {"before": before, "after": self.weights, **_far("weight", before[function], value)}

    def _set_weights(self, weights: dict[str, float]) -> None:
        import torch

        self.suite.weights[:] = [weights.get(name, own) for name, own in self.weights.items()]
        self.trainer.args.reward_weights = list(self.suite.weights)
        self.trainer.reward_weights = torch.tensor(self.suite.weights, dtype=torch.float32)

    def _reload(self, file: Path | None = None) -> Fields:
        trainer, old, before = self.trainer, self.suite, self.weights
        place = self.stage.source
        source = resolve(file or place)
        if not source.is_file():
            raise RequestError(
                f"reload: task {self.task.name!r} is not a file",
                rule="reward functions are reloaded from the file that they came from",
                remedy="train a task file (notebook 02 writes one)",
            )
        task = load_task(place, file) if file and place else load_task(source)
        weights = {
            name: before.get(name, own)
            for name, own in zip(task.function_names, task.weights, strict=True)
        }
        kept = self.run.path / "tasks" / f"after-step-{self.step}.py"
        suite = RewardSuite(
            task, old.num_generations, weights, old.scale_rewards, old.aggregation,
            on_batch=old.on_batch, deadline_s=old.deadline_s, on_error=old.on_error,
        )  # fmt: skip
        suite.gather = old.gather
        try:
            suite.rehearse(self.stage.rows)  # the prompts stay those of the run
            if AWAITED in suite.functions.places.values() and not trainer._has_async_funcs:
                raise RequestError(
                    "reload: a reward function is now a coroutine",
                    rule="TRL starts the event loop for coroutines when a run begins, and only if"
                    " the run has a coroutine",
                    remedy="start a new run",
                )
            # Kept, so that the run can go on, although the file is edited again.
            kept.parent.mkdir(exist_ok=True)
            if kept.resolve() != source.resolve() and is_main():
                shutil.copyfile(source, kept)
        except BaseException:
            suite.close()
            raise
        trainer.reward_funcs, trainer.reward_func_names = suite.funcs, list(suite.names)
        trainer.reward_processing_classes = [None] * len(suite.names)
        self.task, self.suite, self._reloaded[self.stage.source] = task, suite, kept
        self._set_weights(self.weights)
        self.around.each("reloaded", suite)
        old.close()
        same = f"the reward functions in {shown(source)} are already in effect: nothing changed"
        return {
            "before": before,
            "after": self.weights,
            "hash_before": old.hash,
            "hash_after": suite.hash,
            "file": f"tasks/{kept.name}",
            **({"why": same} if suite.hash == old.hash else {}),
        }

    def _beta(self, value: float) -> Fields:
        before, trainer = self.trainer.beta, self.trainer
        if value and trainer.ref_model is None and not hasattr(trainer.model, "peft_config"):
            raise RequestError(
                f"beta = {value:g}: this trainer has no reference model",
                rule="without an adapter, TRL loads the reference when the trainer is made, and"
                " only if beta > 0",
                remedy="make the trainer with beta > 0 in its GRPOConfig",
            )
        if value and not before:
            # What is left of a batch that serves several steps has no reference's
            # log-probabilities: it is generated again.
            trainer._buffered_inputs = None
        trainer.beta = trainer.args.beta = self.stage.settings["beta"] = value
        self.recorder.measures_kl = bool(value)
        return {"before": before, "after": value, **_far("beta", before, value)}

    def _learning_rate(self, value: float) -> Fields:
        trainer, schedule = self.trainer, self.trainer.lr_scheduler
        before = float(schedule.base_lrs[0])
        if value != before:
            # The schedule multiplies its base by a factor of the step; the factor goes on as it was
            # planned.
            for group, base in zip(trainer.optimizer.param_groups, schedule.base_lrs, strict=True):
                group["lr"] = value * (float(group["lr"]) / base if base else 1.0)
                group["initial_lr"] = value
            schedule.base_lrs = [value] * len(schedule.base_lrs)
            schedule._last_lr = [float(group["lr"]) for group in trainer.optimizer.param_groups]
        trainer.args.learning_rate = self.stage.settings["learning_rate"] = value
        return {"before": before, "after": value, **_far("learning rate", before, value)}

    def _sample(self) -> Fields:
        if self.policy is None:
            raise RequestError(
                "sample: this trainer was not made from a recipe",
                rule="the workbench samples from policies that it loaded",
                remedy="train with wb.train(recipe), or wb.make_trainer(plan, policy)",
            )
        from workbench.training.sampling import as_trained, scored_groups

        task, held_out = self.task, bool(len(self.task.held_out))
        rows = task.with_ids(task.held_out) if held_out else self.stage.rows
        rows = list(rows[:SAMPLED_PROMPTS])
        how = as_trained(self.stage.settings, task)
        groups = scored_groups(self.policy, task, rows, self.suite, 1, seed=self.step, **how)
        for row, [own] in zip(rows, groups, strict=True):
            line = {
                "step": self.step,
                "held_out": held_out,
                "prompt": row["prompt"],
                "answer": row.get(task.answer_column),
                "completion": own["completion"],
                "scores": {name: own[f"score.{name}"] for name in self.suite.names},
            }
            if is_main():
                append_line(self.run.path / "samples.jsonl", line)
        first = groups[0][0]["completion"][:500]
        return {"file": "samples.jsonl", "completions": len(rows), "first": first}


def save_now(trainer: Trainer) -> None:
    """Save a checkpoint between two steps, as the trainer does at the end of one."""
    trainer._save_checkpoint(trainer.model, trial=None)
    trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)


def _far(what: str, before: float, after: float) -> dict[str, str]:
    # It is applied: who steers may know better. But a slip of the keyboard can end a policy in one
    # step.
    undone = f"{before:g} again does not undo what the weights learn until then"
    if before > 0 and after > 10 * before:
        return {"why": f"WARNING: {after / before:.3g} times the effective {what}; {undone}"}
    if before > 0 > after:
        penalised = "negative weight: what this function rewarded is now penalised"
        return {"why": f"WARNING: {penalised}; {undone}"}
    return {}
