"""Putting the workbench on a trainer: record, live figure, health, control and a graceful stop, around its own `train()`."""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from workbench.errors import RunError
from workbench.health import RunConfig, Watchdog
from workbench.health.summary import summarise
from workbench.recipe import Recipe
from workbench.rewards.answers import completion_text
from workbench.rewards.groups import batch_of
from workbench.rewards.hashing import reward_hash
from workbench.rewards.library import max_score_of
from workbench.rewards.suite import RewardSuite
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.run.state import RunState
from workbench.task import RESERVED_COLUMNS, Task, function_name, prompt_key
from workbench.training import plan as settings_of
from workbench.training import watchers as shows
from workbench.training.background import announce
from workbench.training.begun import kept_task
from workbench.training.control import LiveRun
from workbench.training.fitting import Fit
from workbench.training.loading import measured, random_kept
from workbench.training.manifest import manifest_of, settings_in_force
from workbench.training.policy import Policy
from workbench.training.prepare import Plan
from workbench.training.recorder import Recorder
from workbench.training.resuming import Point
from workbench.training.session import Session, StagedSession
from workbench.training.stages import ONLY_STAGE, Stage
from workbench.training.trackers import tracker_callbacks
from workbench.training.watchers import Watcher
from workbench.workspace import shown

MADE = "_workbench_made_from"  # of a trainer, what `make_trainer` made it from


@random_kept()
def attach(
    trainer: Any,
    plan: Plan | None = None,
    *,
    run_name: str | None = None,
    watchers: Sequence[Watcher] | None = None,
    runs: str | Path = "runs",
    changes_of: RunDirectory | None = None,
) -> RunDirectory:
    """Put the workbench on a GRPOTrainer, and return the run that its `train()` will record.

    >>> trainer = GRPOTrainer(model=model, reward_funcs=[my_reward], args=config, train_dataset=rows)
    >>> run = wb.attach(trainer)  # in any notebook, on anyone's trainer
    >>> _ = trainer.train()
    >>> run.result()["status"]
    'finished'

    Every completion of every group, each function's scores, a row of metrics for every step, events and the manifest go
    into the run directory; in a notebook the live figure shows them. The run's health is looked at, the first Interrupt
    stops after the step in flight, and `workbench control` steers. The trainer's numbers stay what they are: the same seed
    gives the same metrics and the same weights with and without this.

    A trainer of `make_trainer` gets more: `wb.continue_run` resumes from its checkpoints, its prompts are read once for all their
    completions, and **`trainer.train()` trains all the stages of its plan**, each with a separate trainer.

    Args:
        trainer: a `GRPOTrainer` of TRL or Unsloth, ready to train, in one process.
        plan: that `make_trainer` made it from; None: whatever it was made from.
        run_name: the run's folder; None: the recipe's, or the trainer's own `args.run_name` or output folder.
        watchers: what shows the run; None: the live plot in a notebook, nothing elsewhere.
        runs: folder for the run directory.
        changes_of: a recorded run: what was changed while it trained is changed again after the same steps.

    Raises:
        RunError: if it is no GRPOTrainer, is attached already, or was made from another plan.
    """
    _check(trainer, plan)
    made = vars(trainer).get(MADE)
    if made is None:
        return _to_theirs(trainer, run_name, watchers, runs)
    recipe, stages = made.plan.recipe, made.plan.stages
    changed = settings_of.check_in_force({**stages[0].settings, "report_to": "none"}, trainer.args)
    notes = list(dict.fromkeys([*made.plan.notes, *changed]))
    _say(made.plan, notes)
    manifest = manifest_of(recipe, made.policy, stages, trainer, notes)
    run = RunDirectory.create(run_name or recipe.run_name, recipe, manifest, runs)
    try:
        _keep_tasks(run, made.plan.task, stages)
        replayed = RunState.of(changes_of).changes if changes_of else None
        _begin(run, trainer, watchers, replayed=replayed, replayed_from=changes_of.path if changes_of else None)
    except BaseException:
        run.discard()
        raise
    return run


@random_kept()
def go_on(run: RunDirectory, trainer: Any, point: Point, watchers: Sequence[Watcher] | None, notes: Sequence[str]) -> None:
    """Attach a trainer of `make_trainer` to a run that goes on from a checkpoint."""
    made = vars(trainer)[MADE]
    _say(made.plan, [*made.plan.notes, *notes])
    _begin(run, trainer, watchers, point=point)


def _check(trainer: Any, plan: Plan | None) -> None:
    kinds = [kind.__name__ for kind in type(trainer).__mro__]
    if not any(kind.endswith("GRPOTrainer") for kind in kinds) or not hasattr(trainer, "_calculate_rewards"):
        raise RunError(
            f"attach({type(trainer).__name__})",
            rule="the workbench attaches to a GRPOTrainer of TRL or Unsloth",
            remedy="hand over the trainer itself: run = wb.attach(trainer), before trainer.train()",
        )
    if isinstance(session := getattr(trainer.train, "__self__", None), Session):
        raise RunError(
            f"attach: this trainer is attached already, as {session.run.name}",
            rule="a trainer trains one run at a time",
            remedy="call trainer.train(), or make the trainer again",
        )
    made = vars(trainer).get(MADE)
    if plan is not None and (made is None or made.given is not plan):
        raise RunError(
            "attach(trainer, plan): this trainer was not made from that plan",
            rule="a plan says what its own trainer trains",
            remedy="trainer = wb.make_trainer(plan, policy); or leave the plan out: wb.attach(trainer)",
        )
    if trainer.accelerator.num_processes > 1:
        raise RunError(
            f"attach: {trainer.accelerator.num_processes} processes train together",
            rule="a run is recorded by one process, which sees every completion",
            remedy="train on one GPU, or without attach",
        )


def _begin(run: RunDirectory, trainer: Any, watchers: Sequence[Watcher] | None, point: Point | None = None, **more: Any) -> None:
    made = vars(trainer)[MADE]
    stages, policy = made.plan.stages, made.policy
    recorder = _recorder(run, policy.tokenizer, watchers)
    session = StagedSession(
        run, trainer, stages, recorder, next_trainer=made.next_trainer, policy=policy, fit=Fit,
        trackers=_trackers(run, stages[0]), point=point, watch=_watchdog, **more,
    )  # fmt: skip
    _until_trained(session, run.release if point else run.discard)
    announce(run)


def _until_trained(session: Session, leave: Callable[[], None]) -> None:
    """If `trainer.train()` is never called, leave nothing of the run when the process ends."""
    process = os.getpid()

    def forgotten() -> None:
        if os.getpid() == process:  # not a child's end
            leave()

    atexit.register(forgotten)
    session.at_end = lambda: atexit.unregister(forgotten)


def _recorder(run: RunDirectory, tokenizer: Any, watchers: Sequence[Watcher] | None) -> Recorder:
    watchers = [make() for make in shows.unasked] if watchers is None else watchers
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # a processor of text and images holds one
    return Recorder(run, tokenizer.eos_token_id, watchers, summarise=summarise, in_background=True)


def _watchdog(live: LiveRun) -> Watchdog:
    fp16 = live.trainer.args.fp16  # whoever chose that; it comes with a gradient scaler

    def config() -> RunConfig:  # as it is now
        suite, task, steps = live.suite, live.task, live.stage.steps
        return RunConfig.of(
            live.stage.settings,
            best=dict(zip(suite.names, map(max_score_of, task.reward_funcs), strict=True)),
            right_by=task.right_function,
            format_by=task.format_by,
            total_steps=steps if steps > 0 else None,
            fp16=fp16,
        )

    return Watchdog(config)


def _say(plan: Plan, notes: Sequence[str]) -> None:
    print(*notes, f"{plan.words}.", f"{plan.generation}.", sep="\n")


def _keep_tasks(run: RunDirectory, task: Task | None, stages: Sequence[Stage]) -> None:
    # As they are now: they may be edited while the run trains, and it may go on later.
    if task is not None and task.source:
        shutil.copyfile(task.source, run.path / "task.py")
    for stage in stages:
        if stage.task is not task and stage.task.source:
            (run.path / "tasks").mkdir(exist_ok=True)
            shutil.copyfile(stage.task.source, run.path / "tasks" / kept_task(stage.number))


def _trackers(run: RunDirectory, stage: Stage) -> list[Any]:
    def failed(name: str, error: str) -> None:
        run.log_event("tracker_failed", tracker=name, error=error)
        print(f"{name} failed and is left out, training goes on: {error}", flush=True)

    found, lines = tracker_callbacks(stage.settings["report_to"], run.name, run.path / "trackers", failed)
    print(*lines, sep="\n", end="\n" if lines else "")
    return found


# -- somebody's own trainer --------------------------------------------------------------------------------------------
class TheirRewards(RewardSuite):
    """What the record needs to know of the reward functions of somebody's trainer, which calls them itself."""

    def __init__(self, trainer: Any, task: Task) -> None:
        self.task, self.names, self.notes, self.on_batch = task, task.function_names, [], None
        self.weights = list(task.weights)
        self.num_generations, self.scale_rewards = trainer.num_generations, trainer.scale_rewards
        self.aggregation = getattr(trainer, "multi_objective_aggregation", "sum_then_normalize")
        self.hashes = {name: _hash(function) for name, function in zip(self.names, task.reward_funcs, strict=True)}
        self.functions = SimpleNamespace(places=dict.fromkeys(self.names, "their trainer"), close=lambda: None)

    def batch(self, scores: Any, completions: list[str], inputs: list[dict[str, Any]], **more: Any) -> ScoredBatch:
        """The batch that the trainer has just scored; `inputs` are its rows, one per completion."""
        names = [name for name in inputs[0] if name not in {"prompt", *RESERVED_COLUMNS}]
        columns = {name: [row.get(name) for row in inputs] for name in names}
        columns.setdefault("prompt_id", [prompt_key(prompt)[:12] for prompt in more["prompts"]])
        return batch_of(
            self.names, self.weights, scores, completions, scores[:, 0] > 0, self.num_generations, self.scale_rewards,
            self.aggregation, columns=columns, reward_hash=self.hash, **more,
        )  # fmt: skip


def _to_theirs(trainer: Any, run_name: str | None, watchers: Sequence[Watcher] | None, runs: str | Path) -> RunDirectory:
    args, model = trainer.args, trainer.model
    names = [str(getattr(args, "run_name", None) or ""), Path(args.output_dir).name, "attached"]
    called = next(filter(None, (re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") for name in names)))
    task, policy = _task_of(trainer), _policy_of(trainer)
    recipe, suite = _recipe_of(trainer, run_name or called, policy, task), TheirRewards(trainer, task)
    stage = Stage(ONLY_STAGE, 0, recipe, task, [], settings_in_force(args), None, suite, {}, [])
    adapter = hasattr(model, "peft_config")
    without = [
        "without a recipe the workbench cannot go on with this run: that is your trainer's resume_from_checkpoint",
        f"a completion counts as right when {suite.names[0]} > 0 (the first function)",
        "wb.evaluate needs a task with held-out prompts: wb.evaluate(run, task=...)"
        if adapter
        else "the model is trained whole: your trainer saves it, the run directory does not; so no wb.evaluate, no wb.export",
    ]
    # Who set what in their config is not known, so no table of it is kept.
    manifest = manifest_of(recipe, policy, [stage], trainer, without) | {"attached": True, "settings_table": []}
    run = RunDirectory.create(recipe.run_name, recipe, manifest, runs)
    try:
        session = Session(run, trainer, stage, _recorder(run, trainer.processing_class, watchers), watch=_watchdog)
        _record_rewards(session, suite)
        _until_trained(session, run.discard)
    except BaseException:
        run.discard()
        raise
    print(f"{run.name}: recorded in {shown(run.path)}; {'; '.join(without)}")
    return run


def _record_rewards(session: Session, suite: TheirRewards) -> None:
    """Keep a copy of whatever the trainer's functions score, however it calls them."""
    trainer, calculate = session.trainer, session.trainer._calculate_rewards

    def calculated(inputs: Any, prompts: Any, completions: Any, completion_ids: Any, *more: Any, **named: Any) -> Any:
        started = time.perf_counter()
        scores = calculate(inputs, prompts, completions, completion_ids, *more, **named)
        if trainer.model.training:  # it evaluates otherwise
            seconds = time.perf_counter() - started
            record(scores, inputs, prompts, completions, completion_ids, seconds)
        return scores

    @session.safe
    def record(scores: Any, inputs: Any, prompts: Any, completions: Any, completion_ids: Any, seconds: float) -> None:
        batch = suite.batch(
            scores.detach().double().cpu().numpy(),
            [completion_text(completion) for completion in completions],
            inputs,
            step=trainer.state.global_step + 1,
            prompts=list(prompts),
            completion_ids=[list(ids) for ids in completion_ids],
            lengths=np.array([len(ids) for ids in completion_ids]),
            seconds={suite.names[0] if len(suite.names) == 1 else "all functions": seconds},
        )
        session.recorder.batch(batch)

    session.replace("_calculate_rewards", calculated)


def _task_of(trainer: Any) -> Task:
    names: list[str] = []
    for name in trainer.reward_func_names:
        names.append(name if name not in names else f"{name}-{names.count(name) + 1}")
    functions = [_named(*each) for each in zip(trainer.reward_funcs, names, strict=True)]
    weights = trainer.args.reward_weights or [1.0] * len(names)
    return Task("attached", (), functions, weights)


def _named(function: Any, name: str) -> Any:
    if not hasattr(function, "parameters") and function_name(function) == name:
        return function

    def scored(**call: Any) -> Any:
        return function(**call)

    scored.__name__ = scored.__qualname__ = name
    scored.of = function
    return scored


def _hash(function: Any) -> str:
    model = getattr(function, "of", function)
    path = getattr(getattr(model, "config", None), "_name_or_path", "")
    if hasattr(model, "parameters"):  # its path stands for its weights
        return hashlib.sha256((path or type(model).__name__).encode()).hexdigest()[:12]
    return reward_hash(model)


def _policy_of(trainer: Any) -> Policy:
    model, tokenizer = trainer.model, trainer.processing_class
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    name = str(getattr(base.config, "_name_or_path", "") or type(base).__name__)
    backend = "unsloth" if "unsloth" in sys.modules else "transformers"
    longest = getattr(model, "max_seq_length", None) or getattr(base.config, "max_position_embeddings", None) or 0
    return Policy(
        name=name, source=name, model=model, tokenizer=tokenizer, max_seq_length=max(16, int(longest)),
        device=str(model.device), backend=f"{backend} (your own trainer)", load_s=0.0, **measured(model),
    )  # fmt: skip


def _recipe_of(trainer: Any, run_name: str, policy: Policy, task: Task) -> Recipe:
    # What is known of it, in a recipe's words: for those who read the run. It was never asked for in them.
    shapes = getattr(policy.model, "peft_config", {})
    shape = shapes.get("default") or next(iter(shapes.values()), None)
    lora = {name: getattr(shape, name) for name in ("r", "lora_alpha", "lora_dropout") if hasattr(shape, name)}
    if isinstance(getattr(shape, "target_modules", None), (set, list)):
        lora["target_modules"] = sorted(shape.target_modules)
    settings = ("num_generations", "max_completion_length", "learning_rate", "beta", "temperature", "max_steps")
    loaded = {"name": policy.name, "backend": policy.backend_name, "load_in_4bit": policy.linear4bit > 0}
    return Recipe.of(
        {
            "run_name": run_name,
            "task": task.name,
            "policy": {**loaded, "max_seq_length": policy.max_seq_length},
            "lora": lora,
            "grpo": {name: getattr(trainer.args, name) for name in settings},
            "seed": trainer.args.seed,
        },
        "attach",
    )
