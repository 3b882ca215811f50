"""From a recipe to a trained adapter: checks first, then TRL's GRPOTrainer, then the run directory."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.errors import RunError
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory, open_run
from workbench.run.state import RunState
from workbench.task import Task
from workbench.training import plan
from workbench.training.background import announce
from workbench.training.fitting import memory_on
from workbench.training.manifest import manifest_of
from workbench.training.policy import Policy, load_policy, trainer_classes
from workbench.training.prepare import Plan, prepare, settled
from workbench.training.recorder import Watcher
from workbench.training.resuming import STATE_FILES, Point, latest_point, load_adapter
from workbench.training.session import Session, build_config, build_trainer
from workbench.training.stages import Stage, changed_since_begun, kept_task
from workbench.training.trackers import tracker_callbacks


def train(
    recipe: Recipe,
    *,
    policy: Policy | None = None,
    task: Task | None = None,
    watchers: Sequence[Watcher] = (),
    runs: str | Path = "runs",
    changes_of: RunDirectory | None = None,
) -> RunDirectory:
    """Train a policy as the recipe says, and leave the run directory.

    The first Interrupt finishes the step, saves and returns as if the run were over; the second raises
    `KeyboardInterrupt`. What else can be asked of the run while it trains is in `workbench.run.control_file`. Everything that
    can be checked is checked before the run directory is made, so a recipe that cannot work leaves nothing behind; so does
    a run that fails before its first step is recorded.

    Args:
        recipe: what to do.
        policy: a loaded policy; None: the recipe's is loaded.
        task: a task object; None: the recipe's is loaded.
        watchers: what shows the run (a `LivePlot`, a `TerminalProgress`).
        runs: folder for the run directory.
        changes_of: a recorded run: what was changed while it trained is changed again after the same steps.

    Raises:
        RecipeError, TaskError, RewardError, PolicyError, DataError: with the value, the rule and the remedy.
    """
    made = prepare(recipe, task, policy=policy, memory=memory_on(estimates=False))
    policy = policy or load_policy(made)
    made = settled(made, policy)
    recipe, task, stages, notes = made.recipe, made.task, made.stages, list(made.notes)
    config_class, trainer_class = trainer_classes(policy.backend_name)
    with tempfile.TemporaryDirectory(prefix="workbench-") as scratch:
        configs = [build_config(config_class, stage, scratch, policy) for stage in stages]
        first = build_trainer(trainer_class, configs[0], stages[0], policy)
        changed = plan.check_in_force({**stages[0].settings, "report_to": "none"}, first.args)
        notes += [line for line in changed if line not in notes]
        _say(made, notes)
        manifest = manifest_of(recipe, policy, stages, first, notes)
        run = RunDirectory.create(recipe.run_name, recipe, manifest, runs)
    try:
        _keep_tasks(run, task, stages)
        session = Session(
            run, stages, first, lambda stage: build_trainer(trainer_class, configs[stage.number], stage, policy), policy,
            watchers, _trackers(run, stages[0]), replayed=RunState.of(changes_of).changes if changes_of else None,
            replayed_from=changes_of.path if changes_of else None,
        )  # fmt: skip
        announce(run)
    except BaseException:
        run.discard()
        raise
    session.train()
    return run


def continue_run(
    run: RunDirectory | str | Path = "latest",
    *,
    policy: Policy | None = None,
    task: Task | None = None,
    watchers: Sequence[Watcher] = (),
    steps: int | None = None,
    take_over: bool = False,
) -> RunDirectory:
    """Go on with a run that was stopped, failed or was killed, from its latest checkpoint, in its own folder.

    Adapter, optimiser, schedule, random states, order of the prompts, and what was changed while it trained are those of
    the checkpoint. What the record holds of later steps is taken out of it: they are trained again.

    Args:
        run: the run, or its name or path.
        policy: a loaded policy of the same recipe; its adapter is overwritten. None: the recipe's is loaded.
        task: the task object, if the run was trained on one that is no file.
        steps: train so many steps more than the recipe says.
        take_over: the run was begun on another machine, which is gone: a Colab runtime that was lost.

    Raises:
        RunError: if the run trains, is over, or has no checkpoint. The others as for `train`.
    """
    run = run if isinstance(run, RunDirectory) else open_run(run, latest="begun" if take_over else "resting")
    if take_over:
        run.take_over()
    recipe, point = run.recipe(), latest_point(run)
    if not steps and run.result()["status"] != "finished" and _all_trained(recipe, point):
        return _finished(run, point)  # whatever became of the task since
    made = prepare(recipe, task, policy=policy, run=run, memory=memory_on(estimates=False))
    if steps:
        _extend(run, recipe, made.stages, steps)
    left = [stage for stage in made.stages if stage.number >= point.stage and _unfinished(stage, point)]
    if not left:
        raise RunError(
            f"{run.name}: all {point.step} steps are trained",
            rule="a run goes on to the steps that its recipe asks for",
            remedy="ask for more: continue_run(run, steps=20), `workbench continue RUN --steps 20`",
        )
    policy = policy or load_policy(made)
    made = settled(replace(made, stages=tuple(left)), policy)
    left, notes = made.stages, [*made.notes, *changed_since_begun(run, made.stages)]
    config_class, trainer_class = trainer_classes(policy.backend_name)
    with tempfile.TemporaryDirectory(prefix="workbench-") as scratch:
        configs = {stage.number: build_config(config_class, stage, scratch, policy) for stage in left}
        first = build_trainer(trainer_class, configs[left[0].number], left[0], policy)
        load_adapter(policy.model, point.folder)  # before the run is touched: it may be another policy's
        result = run.manifest().get("result")
        run.reopen(point.step)
    notes.append(f"{run.name} goes on after step {point.step}, from {point.folder.name}")
    _say(made, notes)
    try:
        session = Session(
            run, left, first, lambda stage: build_trainer(trainer_class, configs[stage.number], stage, policy), policy,
            watchers, _trackers(run, left[0]), point=point,
        )  # fmt: skip
        if steps:
            recipe.save(run.path / "recipe.yaml")
        announce(run)
    except BaseException:
        run.update_manifest(result=result)
        run.release()
        raise
    session.train()
    return run


def _finished(run: RunDirectory, point: Point) -> RunDirectory:
    # It ended between its last checkpoint and its result: what is left to do is what the end of a run does.
    run.reopen(point.step)
    try:
        state = shutil.ignore_patterns(*STATE_FILES)
        shutil.copytree(point.folder, run.final, ignore=state, dirs_exist_ok=True)
        run.update_manifest(result={**run.result(), "status": "finished"})
        run.log_event("finished", point.step)
    finally:
        run.release()
    print(f"{run.name}: all {point.step} steps were trained; finished with the adapter of {point.folder.name}")
    return run


def _keep_tasks(run: RunDirectory, task: Task, stages: Sequence[Stage]) -> None:
    # As they are now: they may be edited while the run trains, and it may go on later.
    if task.source:
        shutil.copyfile(task.source, run.path / "task.py")
    for stage in stages:
        if stage.task is not task and stage.task.source:
            (run.path / "tasks").mkdir(exist_ok=True)
            shutil.copyfile(stage.task.source, run.path / "tasks" / kept_task(stage.number))


def _say(made: Plan, notes: Sequence[str]) -> None:
    print(*notes, f"{made.words}.", f"{made.generation}.", sep="\n")


def _trackers(run: RunDirectory, stage: Stage) -> list[Any]:
    def failed(name: str, error: str) -> None:
        run.log_event("tracker_failed", tracker=name, error=error)
        print(f"{name} failed and is left out, training goes on: {error}", flush=True)

    found, lines = tracker_callbacks(stage.settings["report_to"], run.name, run.path / "trackers", failed)
    print(*lines, sep="\n", end="\n" if lines else "")
    return found


def _all_trained(recipe: Recipe, point: Point) -> bool:
    trained = json.loads((point.folder / "trainer_state.json").read_text(encoding="utf-8"))
    asked = recipe.stages[-1].steps if recipe.stages else recipe.grpo.get("max_steps") or -1  # or so many epochs
    return point.stage >= len(recipe.stages) - 1 and trained["global_step"] >= max(trained["max_steps"], asked)


def _unfinished(stage: Stage, point: Point) -> bool:
    if stage.number == point.stage and stage.steps < 0:
        return not _all_trained(stage.recipe, point)
    return stage.number > point.stage or point.done < stage.steps


def _extend(run: RunDirectory, recipe: Recipe, stages: list[Stage], steps: int) -> None:
    last = stages[-1]
    if last.steps < 0:
        raise RunError(
            f"{run.name}: trained for {last.settings['num_train_epochs']} epochs",
            rule="steps can be added to a number of steps",
            remedy="continue it as it is, or start a new run with grpo.max_steps",
        )
    last.settings["max_steps"] += steps
    if recipe.stages:
        recipe.stages[-1].steps += steps
    else:
        recipe.grpo["max_steps"] = last.settings["max_steps"]
