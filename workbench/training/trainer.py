"""From a recipe to a trained adapter: checks first, then TRL's GRPOTrainer, then the run directory."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.errors import RunError
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory, check_name, open_run
from workbench.run.state import RunState
from workbench.task import Task, load_task
from workbench.training import fast_inference, plan
from workbench.training.background import announce
from workbench.training.fitting import settle_checkpointing
from workbench.training.generation import expected, in_words
from workbench.training.loading import local_model
from workbench.training.manifest import manifest_of
from workbench.training.policy import Policy, load_policy, trainer_classes
from workbench.training.precision import one_of
from workbench.training.recorder import Watcher
from workbench.training.resuming import STATE_FILES, Point, latest_point, load_adapter
from workbench.training.session import Session, build_config, build_trainer
from workbench.training.stages import ONLY_STAGE, Stage, begun_task, changed_since_begun, fit, kept_task, planned_stages
from workbench.training.trackers import planned_trackers, tracker_callbacks


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
    check_name(recipe.run_name)
    task = task or load_task(recipe.task)
    if policy is None:
        local_model(recipe.policy.name)  # before torch and Unsloth are imported
    config_class, trainer_class = trainer_classes(policy.backend_name if policy else recipe.policy.backend)
    recipe, renamed = plan.renamed(recipe, plan.field_names(config_class))
    stages = planned_stages(recipe, task, config_class)
    planned_trackers(stages[0].settings["report_to"])  # an unknown name is an error before anything is loaded
    checkpointing = settle_checkpointing(stages, policy)
    policy = policy or load_recipe_policy(recipe, stages[0].settings)
    notes = renamed + plan.stages_decide(recipe) + checkpointing + fast_inference.agree(stages, policy)
    notes += _ready(stages, policy)
    if policy.trained_in:
        notes.append(
            f"this policy's adapter was already trained in {', '.join(policy.trained_in)}; this run goes on from there"
        )
    notes += _warnings(task) + one_of(policy.backend_name)
    with tempfile.TemporaryDirectory(prefix="workbench-") as scratch:
        configs = [build_config(config_class, stage, scratch, policy) for stage in stages]
        first = build_trainer(trainer_class, configs[0], stages[0], policy)
        notes += plan.check_in_force({**stages[0].settings, "report_to": "none"}, first.args)
        _say(notes, stages, policy)
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
    task = task or begun_task(run, recipe)
    config_class, trainer_class = trainer_classes(policy.backend_name if policy else recipe.policy.backend)
    stages = planned_stages(recipe, task, config_class, run)
    if steps:
        _extend(run, recipe, stages, steps)
    left = [stage for stage in stages if stage.number >= point.stage and _unfinished(stage, point)]
    if not left:
        raise RunError(
            f"{run.name}: all {point.step} steps are trained",
            rule="a run goes on to the steps that its recipe asks for",
            remedy="ask for more: continue_run(run, steps=20), `workbench continue RUN --steps 20`",
        )
    begun_with = run.manifest()["settings"]["in_force"].get("gradient_checkpointing")
    notes = settle_checkpointing(left, policy, begun_with)
    policy = policy or load_recipe_policy(recipe, left[0].settings)
    notes += fast_inference.agree(left, policy) + _ready(left, policy) + changed_since_begun(run, left)
    with tempfile.TemporaryDirectory(prefix="workbench-") as scratch:
        configs = {stage.number: build_config(config_class, stage, scratch, policy) for stage in left}
        first = build_trainer(trainer_class, configs[left[0].number], left[0], policy)
        load_adapter(policy.model, point.folder)  # before the run is touched: it may be another policy's
        result = run.manifest().get("result")
        run.reopen(point.step)
    notes.append(f"{run.name} goes on after step {point.step}, from {point.folder.name}")
    _say(notes, left, policy)
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


def load_recipe_policy(
    recipe: Recipe, settings: dict[str, Any] | None = None, adapter: str | Path | None = None
) -> Policy:
    """The policy that a recipe asks for, on its backend, with every field of the recipe.

    Args:
        settings: GRPOConfig's in force, which decide on gradient checkpointing and vLLM; None: neither, to measure with.
        adapter: folder of a trained adapter to put on instead of a new one.

    Raises:
        PolicyError: as `load_policy`.
    """
    settings = settings or {}
    return load_policy(
        recipe.policy.name,
        backend=recipe.policy.backend,
        load_in_4bit=recipe.policy.load_in_4bit,
        max_seq_length=recipe.policy.max_seq_length,
        dtype=recipe.policy.dtype,
        lora=recipe.lora,
        adapter=adapter,
        gradient_checkpointing=bool(settings.get("gradient_checkpointing")),
        fast_inference=bool(settings.get("use_vllm")) and recipe.policy.backend == "unsloth",
        gpu_memory_utilization=recipe.policy.gpu_memory_utilization,
        chat_template_kwargs=recipe.chat_template_kwargs,
        seed=recipe.seed,
    )


def _ready(stages: Sequence[Stage], policy: Policy) -> list[str]:
    notes, before = [], policy.chat_template_kwargs
    if before != (own := stages[0].recipe.chat_template_kwargs):
        notes.append(f"chat_template_kwargs = {own}, as the recipe says; the policy was loaded with {before}")
    for stage in stages:
        fit(stage, policy.tokenizer, policy.max_seq_length)
        where = f"stage {stage.name}: " if stage.name != ONLY_STAGE else ""
        notes += [where + note for note in (*stage.notes, *stage.suite.notes)]
    return notes


def _say(notes: list[str], stages: Sequence[Stage], policy: Policy) -> None:
    for line in notes:
        print(line)
    for stage in stages:
        where = f"stage {stage.name}: " if stage.name != ONLY_STAGE else ""
        print(where + plan.in_words(stage.planned, stage.settings, len(stage.rows)))
    cuda = policy.model.device.type == "cuda"
    for line in dict.fromkeys(
        in_words(expected(stage.recipe, stage.settings, cuda), stage.settings["num_generations"]) for stage in stages
    ):
        print(line)


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


def _warnings(task: Task) -> list[str]:
    warned = []
    if task.right_by is None:
        warned.append(
            f"WARNING: the task names no right_by: a completion counts as right when {task.right_function} > 0 "
            "(the first function); this decides nothing but the groups panel and the measurement in 04"
        )
    if not len(task.held_out):
        warned.append(
            "WARNING: the task has no held_out prompts: what training gained cannot be measured afterwards (notebook 04)"
        )
    return warned
