"""From a plan to a trained adapter: TRL's GRPOTrainer, then the run directory."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.errors import RecipeError, RunError
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory, open_run
from workbench.task import Task
from workbench.training import plan as settings_of
from workbench.training.attach import MADE, attach, go_on
from workbench.training.begun import changed_since_begun
from workbench.training.fitting import memory_on
from workbench.training.policy import Policy, load_policy, trainer_classes
from workbench.training.precision import adapter_in_float32, config_overrides
from workbench.training.prepare import REFUSALS, Plan, prepare, refused, settled
from workbench.training.resuming import STATE_FILES, Point, latest_point, load_adapter
from workbench.training.stages import Stage
from workbench.training.watchers import Watcher


@dataclass(frozen=True)
class Made:
    """What a trainer was made from, for `attach`."""

    given: Plan  # as `make_trainer` got it
    plan: Plan  # as this policy trains it, with settings and reward functions of the trainer's own
    policy: Policy
    next_trainer: Callable[[Stage], Any]  # for a stage after the first


def make_trainer(plan: Plan, policy: Policy, output_dir: str | Path | None = None) -> Any:
    """TRL's GRPOTrainer for a plan: the model, the tokenizer, the reward functions, the GRPOConfig and the prompts.

    >>> plan = wb.plan(wb.Recipe(grpo={"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8}))
    >>> policy = wb.load_policy(plan)
    >>> trainer = wb.make_trainer(plan, policy)
    >>> run = wb.attach(trainer, plan)  # leave it out, and nothing is recorded
    >>> _ = trainer.train()

    It is that of the plan's first stage. Attached, `trainer.train()` trains the later ones, too.

    Args:
        output_dir: where it saves if it is not attached; None: a folder that goes away with it.

    Raises:
        RecipeError, DataError: for settings that TRL refuses together, or that do not fit this policy.
    """
    if any(stage.task is None for stage in plan.stages):
        raise RecipeError(f"{plan.source}: no task", rule="a trainer needs prompts and rewards", remedy="plan(recipe, task=...)")
    made = settled(plan, policy)
    config_class, trainer_class = trainer_classes(policy.backend_name)
    folder = str(output_dir or tempfile.mkdtemp(prefix="workbench-"))
    try:
        configs = {stage.number: build_config(config_class, stage, folder, policy) for stage in made.stages}

        def built(stage: Stage) -> Any:
            return build_trainer(trainer_class, configs[stage.number], stage, policy)

        trainer = built(made.stages[0])
    except BaseException:
        if output_dir is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if output_dir is None:
        weakref.finalize(trainer, shutil.rmtree, folder, ignore_errors=True)
    vars(trainer)[MADE] = Made(plan, made, policy, built)
    return trainer


def train(
    recipe: Recipe,
    *,
    policy: Policy | None = None,
    task: Task | None = None,
    watchers: Sequence[Watcher] | None = None,
    runs: str | Path = "runs",
    changes_of: RunDirectory | None = None,
) -> RunDirectory:
    """Train a policy as the recipe says, and leave the run directory.

    >>> run = wb.train(wb.Recipe(grpo={"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8}))
    >>> run.result()["status"]
    'finished'

    The first Interrupt finishes the step, saves and returns as if the run were over; the second raises
    `KeyboardInterrupt`. What else can be asked of the run while it trains is in `workbench.run.control_file`. Everything that
    can be checked is checked before the run directory is made, so a recipe that cannot work leaves nothing behind; so does
    a run that fails before its first step is recorded.

    Args:
        recipe: what to do.
        policy: a loaded policy; None: the recipe's is loaded.
        task: a task object; None: the recipe's is loaded.
        watchers: what shows the run; None: the live plot in a notebook, nothing elsewhere.
        runs: folder for the run directory.
        changes_of: a recorded run: what was changed while it trained is changed again after the same steps.

    Raises:
        RecipeError, TaskError, RewardError, PolicyError, DataError: with the value, the rule and the remedy.
    """
    plan = prepare(recipe, task, policy=policy, memory=memory_on(estimates=False))
    policy = policy or load_policy(plan)
    trainer = make_trainer(plan, policy)
    run = attach(trainer, plan, watchers=watchers, runs=runs, changes_of=changes_of)
    trainer.train()
    return run


def continue_run(
    run: RunDirectory | str | Path = "latest",
    *,
    policy: Policy | None = None,
    task: Task | None = None,
    watchers: Sequence[Watcher] | None = None,
    steps: int | None = None,
    take_over: bool = False,
) -> RunDirectory:
    """Go on with a run that was stopped, failed or was killed, from its latest checkpoint, in its own folder.

    >>> run = wb.continue_run("run", steps=2)

    Adapter, optimiser, schedule, random states, order of the prompts, and what was changed while it trained are those of
    the checkpoint. What the record holds of later steps is taken out of it: they are trained again.

    Args:
        run: the run, or its name or path.
        policy: a loaded policy of the same recipe; its adapter is overwritten. None: the recipe's is loaded.
        task: the task object, if the run was trained on one that is no file.
        watchers: as for `train`.
        steps: train so many steps more than the recipe says.
        take_over: the run was begun on another machine, which is gone: a Colab runtime that was lost.

    Raises:
        RunError: if the run trains, is over, has no checkpoint, or was trained by a trainer of your own. The others as for
            `train`.
    """
    run = run if isinstance(run, RunDirectory) else open_run(run, latest="begun" if take_over else "resting")
    if run.manifest().get("attached"):
        raise RunError(
            f"{run.name}: trained by a trainer that the workbench was attached to",
            rule="a run goes on from the recipe that it was begun with",
            remedy="make your trainer again, attach it, and call its own train(resume_from_checkpoint=True)",
        )
    if take_over:
        run.take_over()
    recipe, point = run.recipe(), latest_point(run)
    if not steps and run.result()["status"] != "finished" and _all_trained(recipe, point):
        return _finished(run, point)  # whatever became of the task since
    plan = prepare(recipe, task, policy=policy, run=run, memory=memory_on(estimates=False))
    if steps:
        _extend(run, recipe, plan.stages, steps)
    left = tuple(stage for stage in plan.stages if stage.number >= point.stage and _unfinished(stage, point))
    if not left:
        raise RunError(
            f"{run.name}: all {point.step} steps are trained",
            rule="a run goes on to the steps that its recipe asks for",
            remedy="ask for more: continue_run(run, steps=20), `workbench continue RUN --steps 20`",
        )
    policy = policy or load_policy(plan)
    trainer = make_trainer(replace(plan, stages=left), policy)
    load_adapter(policy.model, point.folder)  # before the run is touched: it may be another policy's
    result = run.manifest().get("result")
    run.reopen(point.step)
    try:
        news = [
            *changed_since_begun(run, left),
            f"{run.name} goes on after step {point.step}, from {point.folder.name}",
        ]
        go_on(run, trainer, point, watchers, news)
        if steps:
            recipe.save(run.path / "recipe.yaml")
    except BaseException:
        run.update_manifest(result=result)
        run.release()
        raise
    trainer.train()
    return run


def build_config(config_class: type, stage: Stage, folder: str | Path, policy: Policy) -> Any:
    """The stage's GRPOConfig, for the policy's backend. Trackers are not its business: `trackers.py` guards them.

    Raises:
        RecipeError: for settings that it does not accept together.
    """
    import torch

    settings = {**stage.settings, "report_to": "none"}
    cuda = torch.cuda.is_available()
    try:
        config = settings_of.built(
            config_class,
            settings,
            **config_overrides(policy.backend_name, policy.compute_dtype, settings, cuda=cuda),
            output_dir=str(folder),
            seed=stage.recipe.seed,
            reward_weights=list(stage.suite.weights),
            disable_tqdm=True,  # the watchers show progress
        )
    except REFUSALS as error:
        raise refused(error) from error
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
    except REFUSALS as error:
        raise refused(error) from error
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


def _all_trained(recipe: Recipe, point: Point) -> bool:
    trained = json.loads((point.folder / "trainer_state.json").read_text(encoding="utf-8"))
    asked = recipe.stages[-1].steps if recipe.stages else recipe.grpo.get("max_steps") or -1  # or so many epochs
    return point.stage >= len(recipe.stages) - 1 and trained["global_step"] >= max(trained["max_steps"], asked)


def _unfinished(stage: Stage, point: Point) -> bool:
    if stage.number == point.stage and stage.steps < 0:
        return not _all_trained(stage.recipe, point)
    return stage.number > point.stage or point.done < stage.steps


def _extend(run: RunDirectory, recipe: Recipe, stages: Sequence[Stage], steps: int) -> None:
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
