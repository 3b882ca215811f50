"""Changing a run while it trains: requests, applied between two steps, answered and recorded as events.

Nothing here touches the model while a step is in flight. A change is in force for everything that is generated after it;
the record of each completion names the weight it was scored under.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import RequestError, WorkbenchError
from workbench.rewards.suite import RewardSuite
from workbench.run.control_file import CHANGES, ControlReader, Request, check_request, write_request
from workbench.run.directory import RunDirectory
from workbench.task import Task, load_task
from workbench.training.adaptive import AdaptiveWeights
from workbench.training.policy import Policy
from workbench.training.recorder import Recorder
from workbench.training.signals import GracefulStop
from workbench.training.stages import Stage
from workbench.workspace import append_line, resolve, shown

POLL_S = 0.1
CARRIED = "the stage before"  # who asked for a reload that a stage inherits
SAMPLED_PROMPTS = 4
_ON_REWARDS = ("weight", "mute", "unmute", "reload")


@dataclass
class LiveRun:
    """The objects of a stage that trains: what a request may change."""

    trainer: Any
    policy: Policy | None  # None: a trainer of the user's own
    stage: Stage
    recorder: Recorder
    task: Task
    suite: RewardSuite
    adaptive: AdaptiveWeights | None = None

    @property
    def weights(self) -> dict[str, float]:
        return dict(zip(self.suite.names, self.suite.weights, strict=True))


def _far(what: str, before: float, after: float) -> dict[str, str]:
    # It is applied: who steers may know better. But a slip of the keyboard can end a policy in one step.
    undone = f"{before:g} again does not undo what the weights learn until then"
    if before > 0 and after > 10 * before:
        return {"why": f"WARNING: {after / before:.3g} times the effective {what}; {undone}"}
    if before > 0 > after:
        return {"why": f"WARNING: below 0, so what the function paid for is punished from here on; {undone}"}
    return {}


def _steps_to_generation(trainer: Any) -> int:
    """Steps that still learn from completions that were generated before now."""
    window = trainer.args.steps_per_generation * trainer.num_iterations  # forward passes of one generation
    return -(-(-trainer._step % window) // trainer.args.gradient_accumulation_steps)


class RunControl:
    """Reads a run's requests between two steps and applies them.

    Args:
        run: whose `control.jsonl` is read and whose events are written.
        stop: the Interrupt's flag.
        replayed: changes of an earlier run (`RunState.changes`), applied again after the same steps.
        replayed_from: that run's folder, which holds the reward files it reloaded.
    """

    def __init__(
        self,
        run: RunDirectory,
        stop: GracefulStop,
        replayed: list[dict[str, Any]] | None = None,
        replayed_from: Path | None = None,
    ) -> None:
        self.run, self.stop, self.requests = run, stop, ControlReader(run)
        # Adaptive weights change, and reloads are carried into the next stage, by themselves again.
        self.replayed = [event for event in replayed or [] if event.get("by") not in ("adaptive", CARRIED)]
        self.replayed_from = replayed_from or run.path
        self.paused_s = 0.0
        self.stopped_by: str | None = None
        self._held: list[Request] = []  # for the next boundary
        self._reloaded: dict[str, Path] = {}  # edited task file -> the copy that is in force

    def begin_stage(self, live: LiveRun, step: int, control: Any) -> None:
        """A stage begins: what was asked for at the end of the one before is applied to it.

        Its weights, beta and learning rate are the recipe's; reward functions that were reloaded stay so, where the stage
        scores with the same task file.
        """
        if live.stage.source in self._reloaded:
            found = self._reload(live, step, self._reloaded[live.stage.source])
            self._answer(live, Request("reload", CARRIED, "", {}), step, **found)
        self.boundary(live, step, control, begins=True)

    def boundary(self, live: LiveRun, step: int, control: Any, *, begins: bool = False, ends: bool = False) -> None:
        """Apply what was asked for since the last boundary.

        Args:
            step: steps that are done.
            control: the trainer's flags: asked to save, asked to stop.
            begins: no step of the stage is done; there is nothing to save yet.
            ends: all are, and another stage follows: a change is meant for that one.
        """
        asked, later = [*self._held, *self.requests.take()], ("checkpoint",) if begins else CHANGES if ends else ()
        self._held = [request for request in asked if request.action in later]
        asked = [request for request in asked if request.action not in later]
        if not ends:
            for event in [event for event in self.replayed if event["step"] == step]:
                self._again(live, step, control, event)
            self.replayed = [event for event in self.replayed if event["step"] > step]
        if not ends and not begins and live.adaptive is not None:
            # Written as a request like any other, so that the record has it; and read back at once.
            for change in live.adaptive.due(live.weights):
                details = {"function": change.function, "value": change.weight, "why": change.why}
                write_request(self.run, "weight", "adaptive", details)
            asked += self.requests.take()
        if self._handle(live, step, control, asked):
            self._wait(live, step, control)
        if self.stop.requested and self.stopped_by is None:
            # The Interrupt's own line could not be written, or stands after what was read.
            self.stopped_by = self.stop.requested
        if self.stopped_by is not None:
            control.should_training_stop = control.should_save = True

    def refuse_rest(self, recorder: Recorder, step: int) -> None:
        """The run is over: answer the requests that no boundary came for."""
        for request in [*self._held, *self.requests.take()]:
            event = {"id": request.id, "action": request.action, "by": request.by, "applied": False}
            recorder.event("control", step, **event, from_step=step + 1, why="the run is over")
        self._held = []

    def catch_up(self, live: LiveRun) -> None:
        """Put in force what was in force at the checkpoint that a run goes on from; recorded already, so in silence."""
        state, offset = live.recorder.state, live.stage.offset
        past = [event for event in state.changes if event["step"] >= offset]
        for event in [event for event in past if event["action"] == "reload"][-1:]:
            self._reload(live, event["step"], self.run.path / event["file"])
        changed = {event["action"] for event in past}
        if changed & set(_ON_REWARDS):
            self._set_weights(live, {name: state.weights.get(name, own) for name, own in live.weights.items()})
        if "beta" in changed:
            self._beta(live, state.beta)
        if "learning_rate" in changed:
            self._learning_rate(live, state.learning_rate)

    def _handle(self, live: LiveRun, step: int, control: Any, asked: list[Request]) -> bool:
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

    def _wait(self, live: LiveRun, step: int, control: Any) -> None:
        began, went_on = time.monotonic(), False
        print(f"paused after step {step}; `workbench control {self.run.name} resume` goes on", flush=True)
        while self.stopped_by is None and not self.stop.requested and not went_on:
            time.sleep(POLL_S)
            for request in self.requests.take():
                if request.action in ("resume", "pause"):
                    went_on = request.action == "resume"
                    self._answer(live, request, step)
                    continue
                self._one(live, step, control, request)
                if request.action == "checkpoint":
                    # Nothing else happens before it goes on: the trainer saves only at the end of a step.
                    control.should_save = False
                    save_now(live.trainer)
        self.paused_s += time.monotonic() - began

    def _one(self, live: LiveRun, step: int, control: Any, request: Request, file: Path | None = None) -> None:
        """Apply one request and answer it; `file`: the reward file of a reload that is replayed."""
        try:
            why = request.details.pop("why", None)
            if not request.action:
                line = request.details["line"]
                raise RequestError(f"control.jsonl: {line!r}", rule="a request is one JSON object", remedy="use send()")
            details = check_request(request.action, request.details)
            found = self._apply(live, step, control, request, details, file) or {}
            self._answer(live, request, step, **{"why": why, **details, **found})
        except Exception as error:  # whatever a user's edited file does when it is loaded must not end the run
            said = str(error) if isinstance(error, WorkbenchError) else f"{type(error).__name__}: {error}"
            print(f"step {step}: {request.action or 'request'} refused, training goes on: {said}", flush=True)
            self._answer(live, request, step, why=said, applied=False, **_named(request.details))

    def _apply(
        self, live: LiveRun, step: int, control: Any, request: Request, details: dict[str, Any], file: Path | None
    ) -> dict[str, Any] | None:
        match request.action:
            case "stop":
                self.stopped_by = request.by
            case "checkpoint":
                control.should_save = True
            case "sample":
                return self._sample(live, step)
            case "reload":
                return self._reload(live, step, file)
            case "beta" | "learning_rate":
                return getattr(self, f"_{request.action}")(live, details["value"])
            case "weight":
                return self._weight(live, details["function"], details["value"])
            case "mute":
                return self._weight(live, details["function"], 0.0)
            case "unmute":
                return self._unmute(live, details["function"])
        return None

    def _again(self, live: LiveRun, step: int, control: Any, event: dict[str, Any]) -> None:
        request = Request(event["action"], f"replay of {event.get('by', '?')}", "", _named(event))
        file = self.replayed_from / event["file"] if event["action"] == "reload" else None
        self._one(live, step, control, request, file)

    def _answer(
        self, live: LiveRun, request: Request, step: int, *, why: str | None = None, applied: bool = True, **found: Any
    ) -> None:
        event = {
            "id": request.id, "action": request.action, "by": request.by, "applied": applied,
            "from_step": step + 1 + (_steps_to_generation(live.trainer) if request.action in _ON_REWARDS else 0),
            **found, **({"why": why} if why else {}),
        }  # fmt: skip
        live.recorder.event("control", step, **event)

    # -- what can be asked -------------------------------------------------------------------------------------------
    def _weight(self, live: LiveRun, function: str, value: float) -> dict[str, Any]:
        before = live.weights
        self._set_weights(live, {**before, self._known(live, function): value})
        return {"before": before, "after": live.weights, **_far("weight", before[function], value)}

    def _unmute(self, live: LiveRun, function: str) -> dict[str, Any]:
        muted = live.recorder.state.muted
        if self._known(live, function) not in muted:
            raise RequestError(
                f"unmute {function}: it is not muted",
                rule="unmute gives a muted function its weight back",
                remedy=f"its weight is {live.weights[function]:g}; `weight` changes it",
            )
        return self._weight(live, function, muted[function])

    @staticmethod
    def _known(live: LiveRun, function: str) -> str:
        if function not in live.suite.names:
            raise RequestError(
                f"function {function!r}",
                rule="a weight is that of one of the stage's reward functions",
                remedy=f"choose from {', '.join(live.suite.names)}",
            )
        return function

    @staticmethod
    def _set_weights(live: LiveRun, weights: dict[str, float]) -> None:
        if not any(weights.values()):
            raise RequestError(
                f"{', '.join(weights)}: all would weigh 0",
                rule="the reward is the weighted sum of the functions",
                remedy="give another function a weight first",
            )
        live.suite.weights[:] = [weights[name] for name in live.suite.names]
        _tell_weights(live)

    def _reload(self, live: LiveRun, step: int, file: Path | None = None) -> dict[str, Any]:
        source = str(file or live.stage.source)
        if not source or not resolve(source).is_file():
            raise RequestError(
                f"reload: task {live.task.name!r} is not a file",
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
            found["why"] = f"the reward functions in {shown(source)} are already in effect: nothing changed"
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
    def _put_in(live: LiveRun, task: Task, suite: RewardSuite) -> None:
        trainer = live.trainer
        trainer.reward_funcs, trainer.reward_func_names = suite.funcs, list(suite.names)
        trainer.reward_processing_classes = [None] * len(suite.names)
        live.task, live.suite = task, suite
        _tell_weights(live)
        live.recorder.begin_rewards()
        if live.adaptive is not None:
            live.adaptive.reloaded(dict(zip(suite.names, task.reward_funcs, strict=True)))

    @staticmethod
    def _beta(live: LiveRun, value: float) -> dict[str, Any]:
        before, trainer = live.trainer.beta, live.trainer
        if value and trainer.ref_model is None and not hasattr(trainer.model, "peft_config"):
            raise RequestError(
                f"beta = {value:g}: this trainer has no reference model",
                rule="TRL loads the reference of a model without an adapter when the trainer is made, and only if beta > 0",
                remedy="make the trainer with beta > 0 in its GRPOConfig",
            )
        if value and not before:
            # What is left of a batch that serves several steps has no reference's log-probabilities: it is generated anew.
            trainer._buffered_inputs = None
        trainer.beta = trainer.args.beta = live.stage.settings["beta"] = value
        live.recorder.measures_kl = bool(value)
        return {"before": before, "after": value, **_far("beta", before, value)}

    @staticmethod
    def _learning_rate(live: LiveRun, value: float) -> dict[str, Any]:
        trainer, schedule = live.trainer, live.trainer.lr_scheduler
        before = float(schedule.base_lrs[0])
        if value != before:
            # The schedule multiplies its base by a factor of the step; the factor goes on as it was planned.
            for number, group in enumerate(trainer.optimizer.param_groups):
                factor = float(group["lr"]) / schedule.base_lrs[number] if schedule.base_lrs[number] else 1.0
                group["initial_lr"], group["lr"] = value, value * factor
            schedule.base_lrs = [value] * len(schedule.base_lrs)
            schedule._last_lr = [float(group["lr"]) for group in trainer.optimizer.param_groups]
        trainer.args.learning_rate = live.stage.settings["learning_rate"] = value
        return {"before": before, "after": value, **_far("learning rate", before, value)}

    def _sample(self, live: LiveRun, step: int) -> dict[str, Any]:
        from workbench.training.sampling import sample

        if live.policy is None:
            raise RequestError(
                "sample: this trainer was not made from a recipe",
                rule="the workbench samples from policies that it has loaded",
                remedy="train with wb.train(recipe), or wb.make_trainer(plan, policy)",
            )
        stage, task = live.stage, live.task
        rows = list((task.with_ids(task.held_out) if len(task.held_out) else stage.rows)[:SAMPLED_PROMPTS])
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
            asked = {"step": step, "held_out": bool(len(task.held_out)), "prompt": row["prompt"]}
            own = {name: scored.scores[number] for name, scored in scores.items()}
            line = {**asked, "answer": row.get(task.answer_column), "completion": text, "scores": own}
            append_line(self.run.path / "samples.jsonl", line)
        return {"file": "samples.jsonl", "completions": len(texts), "first": texts[0][:500]}


def save_now(trainer: Any) -> None:
    """Save a checkpoint between two steps, as the trainer does at the end of one."""
    trainer._save_checkpoint(trainer.model, trial=None)
    trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)


def _tell_weights(live: LiveRun) -> None:
    import torch

    weights = list(live.suite.weights)
    live.trainer.reward_weights = torch.tensor(weights, dtype=torch.float32)
    live.trainer.args.reward_weights = weights


def _named(details: dict[str, Any]) -> dict[str, Any]:
    return {key: details[key] for key in ("function", "value") if key in details}
