"""Steering: requests to a running run, applied at step boundaries, answered and recorded as events.

Nothing here touches the model while a step is in flight. A change is in force for everything that is generated after the
boundary; the record of each completion says which weight it was scored under.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import RequestError, WorkbenchError
from workbench.rewards.suite import RewardSuite
from workbench.run.control_file import ControlReader, Request, check_request, write_request
from workbench.run.directory import RunDirectory
from workbench.run.lines import append_line
from workbench.task import Task, load_task
from workbench.training.adaptive import AdaptiveWeights
from workbench.training.policy import Policy
from workbench.training.recorder import Recorder
from workbench.training.stages import Stage
from workbench.workspace import resolve, shown

if TYPE_CHECKING:
    from workbench.training.signals import GracefulStop

POLL_S = 0.1
CARRIED = "the stage before"  # who asked for a reload that a stage inherits
_CHANGES = ("weight", "mute", "unmute", "reload", "beta", "learning_rate")
SAMPLED_PROMPTS = 4


@dataclass
class Live:
    """The objects of a stage that trains: what a request may change."""

    trainer: Any
    policy: Policy
    stage: Stage
    recorder: Recorder
    adaptive: AdaptiveWeights

    @property
    def suite(self) -> RewardSuite:
        return self.stage.suite

    @property
    def weights(self) -> dict[str, float]:
        return dict(zip(self.suite.names, self.suite.weights, strict=True))


def _far(what: str, before: float, after: float) -> dict[str, str]:
    # It is applied: who steers may know better. But a slip of the keyboard can end a policy in one step.
    undone = f"{before:g} again does not undo what the weights learn until then"
    if before > 0 and after > 10 * before:
        return {"why": f"WARNING: {after / before:.3g} times the {what} that was in force; {undone}"}
    if before > 0 > after:
        return {"why": f"WARNING: below 0, so what the function paid for is punished from here on; {undone}"}
    return {}


def _named(details: dict[str, Any]) -> dict[str, Any]:
    return {key: details[key] for key in ("function", "value") if key in details}


def _steps_to_generation(trainer: Any) -> int:
    """Steps that still learn from completions that were generated before this boundary."""
    window = trainer.args.steps_per_generation * trainer.num_iterations  # forward passes of one generation
    return -(-(-trainer._step % window) // trainer.args.gradient_accumulation_steps)


class Steering:
    """Reads a run's requests at each step boundary and applies them.

    Args:
        run: whose `control.jsonl` is read and whose events are written.
        stop: the Interrupt's flag.
        replayed: changes of an earlier run (`list_events`), applied again after the same steps.
        replayed_from: that run's folder, in which the reward files that it reloaded lie.
    """

    def __init__(
        self,
        run: RunDirectory,
        stop: GracefulStop,
        replayed: list[dict[str, Any]] | None = None,
        replayed_from: Path | None = None,
    ) -> None:
        self.run, self.stop, self.mailbox = run, stop, ControlReader(run)
        # Adaptive weights change, and reloads are carried into the next stage, by themselves again.
        self.replayed = [event for event in replayed or [] if event.get("by") not in ("adaptive", CARRIED)]
        self.replayed_from = replayed_from or run.path
        self.paused_s = 0.0
        self.stopped_by: str | None = None
        self._muted: dict[str, float] = {}
        self._held: list[Request] = []  # for the next boundary
        self._reloaded: dict[str, Path] = {}  # edited task file -> the copy that is in force

    def begin_stage(self, live: Live, step: int, control: Any) -> None:
        """A stage begins: what was asked for at the end of the one before is applied to it.

        Its weights, beta and learning rate are the recipe's; reward functions that were reloaded stay so, where the stage
        scores with the same task file.
        """
        self._muted.clear()
        if live.stage.source in self._reloaded:
            request = Request("reload", CARRIED, "")
            found = self._reload(live, step, self._reloaded[live.stage.source])
            self._answer(live, request, step, **found)
        self.boundary(live, step, control, begins=True)

    def boundary(self, live: Live, step: int, control: Any, *, begins: bool = False, ends: bool = False) -> None:
        """Apply what was asked for since the last boundary.

        Args:
            step: steps that are done.
            control: the trainer's flags: asked to save, asked to stop.
            begins: no step of the stage is done; there is nothing to save yet.
            ends: all are, and another stage follows: a change is meant for that one.
        """
        asked, self._held = [*self._held, *self.mailbox.take()], []
        later = ("checkpoint",) if begins else _CHANGES if ends else ()
        self._held = [request for request in asked if request.action in later]
        asked = [request for request in asked if request.action not in later]
        if not ends:
            for event in [event for event in self.replayed if event["step"] == step]:
                self._again(live, step, control, event)
            self.replayed = [event for event in self.replayed if event["step"] > step]
        if not ends and not begins:
            asked += self._adapted(live)
        if self._handle(live, step, control, asked):
            self._wait(live, step, control)
        if self.stop.requested and self.stopped_by is None:
            # The Interrupt's own line could not be written, or stands after what was read.
            self.stopped_by = self.stop.requested
        if self.stopped_by is not None:
            control.should_training_stop = control.should_save = True

    def _adapted(self, live: Live) -> list[Request]:
        # Written as a request like any other, so that the record has it; and read back at once.
        for change in live.adaptive.due(live.weights):
            details = {"function": change.function, "value": change.weight, "why": change.why}
            write_request(self.run, "weight", "adaptive", details)
        return self.mailbox.take()

    def refuse_rest(self, recorder: Recorder, step: int) -> None:
        """The run is over: who asked for something that no boundary came for is told so."""
        for request in [*self._held, *self.mailbox.take()]:
            event = {"id": request.id, "action": request.action, "by": request.by, "applied": False}
            recorder.event("control", step, **event, from_step=step + 1, why="the run is over")
        self._held = []

    def catch_up(self, live: Live, events: list[dict[str, Any]]) -> None:
        """Put in force again what was in force at the checkpoint that a run goes on from; recorded already, so in silence."""
        for event in events:
            action, function = event["action"], event.get("function", "")
            if action == "mute":
                self._mute(live, function)
            elif action == "unmute":
                self._unmute(live, function)
            elif action == "weight":
                self._weight(live, function, event["value"])
            elif action == "beta":
                self._beta(live, event["value"])
            elif action == "learning_rate":
                self._learning_rate(live, event["value"])
            elif action == "reload":
                self._reload(live, event["step"], self.run.path / event["file"])

    def _handle(self, live: Live, step: int, control: Any, asked: list[Request]) -> bool:
        """Answer these requests; whether the run should wait now."""
        waiting = False
        for request in asked:
            if request.action == "pause" and self.stopped_by is not None:
                self._answer(live, request, step, why="the run stops", applied=False)
            elif request.action == "pause":
                waiting = True
                self._answer(live, request, step)
            elif request.action == "resume":
                self._answer(live, request, step, why=None if waiting else "the run was not paused", applied=waiting)
                waiting = False
            else:
                self._one(live, step, control, request)
                waiting = waiting and self.stopped_by is None
        return waiting

    def _wait(self, live: Live, step: int, control: Any) -> None:
        began = time.monotonic()
        print(f"paused after step {step}; `workbench control {self.run.name} resume` goes on", flush=True)
        while self.stopped_by is None and not self.stop.requested:
            time.sleep(POLL_S)
            went_on = False
            for request in self.mailbox.take():
                if request.action in ("resume", "pause"):
                    went_on = request.action == "resume"
                    self._answer(live, request, step)
                else:
                    self._one(live, step, control, request)
                    if request.action == "checkpoint":
                        # Nothing else happens before it goes on: the trainer saves only at the end of a step.
                        control.should_save = False
                        self._save(live)
            if went_on:
                break
        self.paused_s += time.monotonic() - began

    @staticmethod
    def _save(live: Live) -> None:
        trainer = live.trainer
        trainer._save_checkpoint(trainer.model, trial=None)
        trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)

    def _one(self, live: Live, step: int, control: Any, request: Request) -> None:
        try:
            why = request.details.pop("why", None)
            if not request.action:
                raise RequestError(
                    f"control.jsonl: {request.details['line']!r}",
                    rule="a request is one JSON object",
                    remedy="use send()",
                )
            details = check_request(request.action, request.details)
            found = self._apply(live, step, control, request, details)
            self._answer(live, request, step, **{"why": why, **found})
        except Exception as error:  # whatever a user's edited file does when it is loaded must not end the run
            said = str(error) if isinstance(error, WorkbenchError) else f"{type(error).__name__}: {error}"
            print(f"step {step}: {request.action or 'request'} refused, training goes on: {said}", flush=True)
            self._answer(live, request, step, why=said, applied=False, **_named(request.details))

    def _apply(self, live: Live, step: int, control: Any, request: Request, details: dict[str, Any]) -> dict[str, Any]:
        action: Callable[..., dict[str, Any] | None] = {
            "stop": lambda: setattr(self, "stopped_by", request.by),
            "checkpoint": lambda: setattr(control, "should_save", True),
            "sample": lambda: self._sample(live, step),
            "weight": lambda: self._weight(live, details["function"], details["value"]),
            "mute": lambda: self._mute(live, details["function"]),
            "unmute": lambda: self._unmute(live, details["function"]),
            "reload": lambda: self._reload(live, step),
            "beta": lambda: self._beta(live, details["value"]),
            "learning_rate": lambda: self._learning_rate(live, details["value"]),
        }[request.action]
        return {**details, **(action() or {})}

    def _again(self, live: Live, step: int, control: Any, event: dict[str, Any]) -> None:
        request = Request(event["action"], f"replay of {event.get('by', '?')}", "", _named(event))
        if event["action"] != "reload":
            return self._one(live, step, control, request)
        try:
            found = self._reload(live, step, self.replayed_from / event["file"])
            self._answer(live, request, step, **found)
        except Exception as error:  # as in `_one`
            self._answer(live, request, step, why=str(error), applied=False)

    def _answer(
        self, live: Live, request: Request, step: int, *, why: str | None = None, applied: bool = True, **found: Any
    ) -> None:
        generated = request.action in ("weight", "mute", "unmute", "reload")
        event = {
            "id": request.id, "action": request.action, "by": request.by, "applied": applied,
            "from_step": step + 1 + (_steps_to_generation(live.trainer) if generated else 0),
            **found, **({"why": why} if why else {}),
        }  # fmt: skip
        live.recorder.event("control", step, **event)

    # -- what can be asked -------------------------------------------------------------------------------------------
    def _weight(self, live: Live, function: str, value: float) -> dict[str, Any]:
        before = live.weights
        self._set_weights(live, {**before, self._known(live, function): value})
        self._muted.pop(function, None)
        return {"before": before, "after": live.weights, **_far("weight", before[function], value)}

    def _mute(self, live: Live, function: str) -> dict[str, Any]:
        weight = live.weights[self._known(live, function)]
        found = self._weight(live, function, 0.0)
        self._muted[function] = weight
        return found

    def _unmute(self, live: Live, function: str) -> dict[str, Any]:
        self._known(live, function)
        if function not in self._muted:
            raise RequestError(
                f"unmute {function}: it is not muted",
                rule="unmute gives a muted function its weight back",
                remedy=f"its weight is {live.weights[function]:g}; `weight` changes it",
            )
        return self._weight(live, function, self._muted[function])

    @staticmethod
    def _known(live: Live, function: str) -> str:
        if function not in live.suite.names:
            raise RequestError(
                f"function {function!r}",
                rule="a weight is that of one of the stage's reward functions",
                remedy=f"choose from {', '.join(live.suite.names)}",
            )
        return function

    @staticmethod
    def _set_weights(live: Live, weights: dict[str, float]) -> None:
        import torch

        if not any(weights.values()):
            raise RequestError(
                f"{', '.join(weights)}: all would weigh 0",
                rule="the reward is the weighted sum of the functions",
                remedy="give another function a weight first",
            )
        live.suite.weights[:] = [weights[name] for name in live.suite.names]
        live.trainer.reward_weights = torch.tensor(live.suite.weights, dtype=torch.float32)
        live.trainer.args.reward_weights = list(live.suite.weights)

    def _reload(self, live: Live, step: int, file: Path | None = None) -> dict[str, Any]:
        source = str(file or live.stage.source)
        if not source or not resolve(source).is_file():
            raise RequestError(
                f"reload: task {live.stage.task.name!r} is not a file",
                rule="reward functions are loaded again from the file that they came from",
                remedy="train a task file (notebook 02 writes one)",
            )
        task = load_task(live.stage.source, file) if file and live.stage.source else load_task(source)
        before, old = live.weights, live.suite
        weights = {name: before.get(name, own) for name, own in zip(task.function_names, task.weights, strict=True)}
        suite = RewardSuite(
            task, old.num_generations, weights, old.scale_rewards, old.aggregation,
            on_batch=old.on_batch, deadline_s=old.deadline_s, on_error=old.on_error,
        )  # fmt: skip
        try:
            suite.rehearse(live.stage.rows)  # the prompts stay those of the run
            if any(suite.functions.is_async(name) for name in suite.names) and not live.trainer._has_async_funcs:
                raise RequestError(
                    "reload: a reward function is a coroutine now",
                    rule="TRL starts the loop that coroutines run in when a run begins, and only if it has one",
                    remedy="start a new run",
                )
            kept = self._keep(resolve(source), step)
        except BaseException:
            suite.close()
            raise
        found = {"hash_before": old.hash, "hash_after": suite.hash, "file": f"tasks/{kept.name}"}
        if suite.hash == old.hash:
            found["why"] = f"the reward functions in {shown(source)} are those that were in force: nothing changed"
        self._put_in(live, task, suite)
        self._reloaded[live.stage.source] = kept
        old.close()
        return {"before": before, "after": live.weights, **found}

    def _keep(self, source: Path, step: int) -> Path:
        # So that the run can be replayed, and go on, although the file is edited again.
        folder = self.run.path / "tasks"
        folder.mkdir(exist_ok=True)
        kept = folder / f"after-step-{step}.py"
        if kept.resolve() != source.resolve():
            shutil.copyfile(source, kept)
        return kept

    @staticmethod
    def _put_in(live: Live, task: Task, suite: RewardSuite) -> None:
        import torch

        trainer = live.trainer
        trainer.reward_funcs = suite.funcs
        trainer.reward_func_names = list(suite.names)
        trainer.reward_processing_classes = [None] * len(suite.names)
        trainer.reward_weights = torch.tensor(suite.weights, dtype=torch.float32)
        trainer.args.reward_weights = list(suite.weights)
        live.stage.task, live.stage.suite, live.recorder.suite = task, suite, suite
        if live.recorder.watchdog is not None:
            live.recorder.watchdog.forget()
        live.adaptive.reloaded(dict(zip(suite.names, task.reward_funcs, strict=True)))

    @staticmethod
    def _beta(live: Live, value: float) -> dict[str, Any]:
        before = live.trainer.beta
        if value and not before:
            # What is left of a batch that serves several steps has no reference's log-probabilities: it is generated anew.
            live.trainer._buffered_inputs = None
        live.trainer.beta = live.trainer.args.beta = live.stage.settings["beta"] = value
        live.recorder.measures_kl = bool(value)
        return {"before": before, "after": value, **_far("beta", before, value)}

    @staticmethod
    def _learning_rate(live: Live, value: float) -> dict[str, Any]:
        trainer = live.trainer
        schedule = trainer.lr_scheduler
        before = float(schedule.base_lrs[0])
        # The schedule multiplies its base by a factor of the step; the factor goes on as it was planned.
        for number, group in enumerate(trainer.optimizer.param_groups):
            factor = float(group["lr"]) / schedule.base_lrs[number] if schedule.base_lrs[number] else 1.0
            group["initial_lr"], group["lr"] = value, value * factor
        schedule.base_lrs = [value] * len(schedule.base_lrs)
        schedule._last_lr = [float(group["lr"]) for group in trainer.optimizer.param_groups]
        trainer.args.learning_rate = live.stage.settings["learning_rate"] = value
        return {"before": before, "after": value, **_far("learning rate", before, value)}

    def _sample(self, live: Live, step: int) -> dict[str, Any]:
        from workbench.training.sampling import sample

        stage = live.stage
        held_out = stage.task.held_out
        rows = list((stage.task.with_ids(held_out) if len(held_out) else stage.rows)[:SAMPLED_PROMPTS])
        found = sample(
            live.policy,
            [row["prompt"] for row in rows],
            max_completion_length=stage.settings["max_completion_length"],
            temperature=stage.settings["temperature"],
            seed=step,
        )
        texts = [completions[0].text for completions in found]
        scores = live.suite.score_each(rows, texts, [completions[0].ids for completions in found])
        for number, (row, text) in enumerate(zip(rows, texts, strict=True)):
            line = {
                "step": step,
                "held_out": bool(len(held_out)),
                "prompt": row["prompt"],
                "answer": row.get(stage.task.answer_column),
                "completion": text,
                "scores": {name: scored.scores[number] for name, scored in scores.items()},
            }
            append_line(self.run.path / "samples.jsonl", line)
        return {"file": "samples.jsonl", "completions": len(texts), "first": texts[0][:500]}
