"""From a plan to a trained adapter: TRL's GRPOTrainer, then the run directory."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import weakref
from dataclasses import replace
from pathlib import Path

from workbench.base import processes
from workbench.base.errors import RecipeError, RunError
from workbench.base.kinds import Fields, Trainer
from workbench.base.workspace import replace_folder, shown
from workbench.recipe import Recipe
from workbench.run.differences import Differences
from workbench.run.directory import RunDirectory, open_run
from workbench.run.metrics import LEARNING_RATE
from workbench.task import Task
from workbench.training import around, resuming
from workbench.training.attach import attach, go_on
from workbench.training.building import build_config, build_trainer
from workbench.training.changes import changed_since_begun, doubled, lost_since
from workbench.training.manifest import (
    changed_policy,
    changed_settings,
    check_same,
    environment_after,
    manifest_of,
)
from workbench.training.plan import Plan, Stage
from workbench.training.plan.prepare import prepare, settled
from workbench.training.policy import Policy, load_policy, trainer_classes
from workbench.training.resuming import (
    STATE_FILES,
    Point,
    latest_point,
    load_adapter,
)
from workbench.training.staged import Made
from workbench.training.watchers import Watchers


def make_trainer(plan: Plan, policy: Policy, output_dir: str | Path | None = None) -> Trainer:
    """TRL's GRPOTrainer for a plan: the model, the tokenizer, the reward functions, the GRPOConfig
    and the prompts.

    >>> plan = wb.plan(wb.Recipe(grpo={"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8}))
    >>> policy = wb.load_policy(plan)
    >>> trainer = wb.make_trainer(plan, policy)
    >>> run = wb.attach(trainer, plan)  # leave it out, and nothing is recorded
    >>> _ = trainer.train()

    It trains the plan's first stage. Once attached, `trainer.train()` also trains the later ones,
    after a warm start if the recipe asks for one.

    Args:
        output_dir: where it saves if it is not attached; None: a temporary folder, deleted with the
            trainer.

    Raises:
        RecipeError, DataError: for settings that TRL refuses together, or that do not fit this
            policy.
    """  # noqa: E501
    if any(stage.task is None for stage in plan.stages):
        raise RecipeError(
            f"{plan.source}: no task",
            rule="a trainer needs prompts and rewards",
            remedy="plan(recipe, task=...)",
        )
    made = settled(plan, policy)
    config_class, trainer_class = trainer_classes(policy.backend_name)

    def built(stage: Stage) -> tuple[Trainer, list[str]]:
        return build_trainer(trainer_class, configs[stage.number], stage, policy)

    if output_dir is None:
        output_dir = tempfile.mkdtemp(prefix="workbench-")
        weakref.finalize(built, shutil.rmtree, output_dir, ignore_errors=True)
    configs = {
        stage.number: build_config(config_class, stage, output_dir, policy) for stage in made.stages
    }
    trainer, heard = built(made.stages[0])
    made = replace(made, notes=tuple(dict.fromkeys([*made.notes, *heard])))
    vars(trainer)[Made.KEY] = Made(plan, made, policy, built)
    return trainer


def train(
    recipe: str | Path | Fields | Recipe,
    *,
    policy: Policy | None = None,
    task: Task | None = None,
    watchers: Watchers = None,
    runs: str | Path = "runs",
) -> RunDirectory:
    """Train a policy as the recipe says, and leave the run directory.

    >>> run = wb.train(wb.Recipe(grpo={"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8}))
    >>> run.result()["status"]
    'finished'

    The first Interrupt finishes the step, saves, and returns as if the run were over; the second
    raises `KeyboardInterrupt`. `workbench.run.control_file` lists the other requests that a running
    run takes. All that can be checked is checked before the run directory is made; a run that fails
    before its first step leaves nothing behind.

    Args:
        recipe: a recipe, a mapping, a recipe's file, or the name of a preset.
        policy: a loaded policy; None: the recipe's is loaded.
        task: a task object; None: the recipe's is loaded.
        watchers, runs: as for `attach`.

    Raises:
        RecipeError, TaskError, RewardError, PolicyError, DataError: with the value, the rule and
            the remedy.
    """  # noqa: E501
    from workbench.training.plan.kept import asked_anew

    plan = asked_anew(lambda: prepare(recipe, task, policy=policy))
    trainer = make_trainer(plan, policy or load_policy(plan))
    run = attach(trainer, plan, watchers=watchers, runs=runs)
    trainer.train()
    return run


def continue_run(
    run: RunDirectory | str | Path = "latest",
    *,
    policy: Policy | None = None,
    task: Task | None = None,
    watchers: Watchers = None,
    steps: int | None = None,
    hold_rate: bool = False,
    checkpoint: str | None = None,
    accept_changes: bool = False,
    take_over: bool = False,
) -> RunDirectory:
    """Resume a run that was stopped, failed or was killed, from its latest checkpoint, in its own
    folder.

    >>> run = wb.continue_run("run", steps=2)

    Adapter, optimiser, schedule, random states, order of the prompts, and changes made while it
    trained are those of the checkpoint. The record of later steps is removed when the first of them
    is trained again; until then nothing is lost, however the run ends. A checkpoint that is not
    whole is skipped with a line, and the one before it is taken.

    Args:
        run: the run, or its name or path.
        policy: a loaded policy of the same recipe; its adapter is overwritten. None: the recipe's
            is loaded.
        task: the task object, if the run was trained on one without a file.
        watchers: as for `attach`.
        steps: train this many steps more than the recipe says. A schedule of the learning rate
            then runs over all of them; the event `continued` has the rate of the first.
        hold_rate: with `steps`, keep the last step's learning rate instead.
        checkpoint: resume from this one, `"checkpoint-20"`; None: the newest. Later ones are
            deleted after the first new step.
        accept_changes: resume although the recipe, the rows or the rewards are not those that the
            run started with.
        take_over: the run started on another machine that is gone, such as a lost Colab runtime.

    Raises:
        RunError: if the run is training, is over, has no whole checkpoint, was trained by your own
            trainer, or would become another run (`accept_changes`). Others as for `train`.
    """
    if not isinstance(run, RunDirectory):
        run = open_run(run, latest="begun" if take_over else "resting")
    run = processes.as_seen(run)
    run.check_free(take_over)
    processes.in_main(lambda: run.mend(take_over) and None)
    _check_resumable(run)
    recipe, point = run.recipe(), latest_point(run, checkpoint)
    if not steps and run.result()["status"] != "finished" and _all_trained(recipe, point):
        # whatever became of the task since
        return processes.in_main(lambda: _finished(run, point, take_over))
    plan = prepare(recipe, task, policy=policy, run=run)
    if steps:
        _add_steps(run, plan, recipe, steps)
    left = tuple(stage for stage in plan.stages if _unfinished(stage, point))
    if hold_rate:
        added = steps if left and left[-1].number == point.stage else None
        point = replace(point, held_rate=_held_rate(run, point, added))
    if not left:
        raise RunError(
            f"{run.name}: all {point.step} steps are trained",
            rule="a run resumes up to the steps that its recipe asks for",
            remedy="ask for more: continue_run(run, steps=20), `workbench continue RUN --steps 20`",
        )
    changed = changed_since_begun(run, plan.recipe, left, point)
    check_same(run, changed, accept_changes)
    policy = policy or _policy_at(point, run, plan)
    changed_policy(run, policy, changed)
    check_same(run, changed, accept_changes)
    trainer = make_trainer(replace(plan, stages=left), policy)
    changed_settings(run, trainer, changed, left[0].number)
    # before the run is touched: it may be another policy's
    load_adapter(policy.model, point.folder)
    before = run.manifest()
    news = _news(run, point, changed, left[-1], run.result()["steps"])
    done = point.done if left[0].number == point.stage else 0
    resuming.check_room(run, policy.model, trainer.args, left[0].steps - done)
    try:
        processes.in_main(lambda: run.reopen(point.step, take_over))
        found: Fields = {}
        if changed.refused:  # what was accepted is what the run is from here on
            stages = [*plan.stages[: -len(left)], *vars(trainer)[Made.KEY].plan.stages]
            found = manifest_of(plan.recipe, policy, stages, trainer, list(plan.notes))
            for name in ("id", "created", "versions", "environment"):
                del found[name]
        found["environment_after"] = environment_after(before, point.step)
        found["recipe"] = (recipe if steps else plan.recipe).model_dump(mode="json")
        found["processes"] = processes.count()
        run.update_manifest(**found)
        news += around.resume_lines(recipe, point, before)
        news = [*_edited(run), *news] if task is None else news
        go_on(run, trainer, point, watchers, news)
        _tell_changes(run, point, changed)
        if steps and processes.is_main():
            recipe.save(run.path / "recipe.yaml")
    except BaseException:
        run.put_back()
        run.release()
        raise
    trainer.train()
    return run


def _held_rate(run: RunDirectory, point: Point, added: int | None) -> float:
    # The learning rate of the last step, for steps that are added to its stage.
    rates = [row.get(LEARNING_RATE) for row in run.metrics() if row["step"] <= point.step]
    held = next(filter(None, reversed(rates)), None)
    if not (added and held):
        raise RunError(
            f"{run.name}: hold_rate",
            rule="the learning rate of the last step is held over steps that are added to the"
            " stage that it trained",
            remedy="add --steps N; or leave it out",
        )
    return held


def _policy_at(point: Point, run: RunDirectory, plan: Plan) -> Policy:
    # The adapter that the run began from may be gone: the checkpoint has what became of it.
    part = plan.recipe.policy
    saved = {"adapter": part.adapter and str(point.folder), "reference": "base"}
    resumed = plan.recipe.model_copy(update={"policy": part.model_copy(update=saved)})
    policy = load_policy(replace(plan, recipe=resumed))
    policy.trained_in = list(run.manifest()["policy"].get("trained_in", ()))
    return policy


def _tell_changes(run: RunDirectory, point: Point, changed: Differences) -> None:
    told = {
        "accepted": changed.refused,
        "shown": changed.shown,
        "passed_over": point.passed_over,
    }
    if any(told.values()):
        run.log_event("changed", point.step, **told)


def _check_resumable(run: RunDirectory) -> None:
    manifest = run.manifest()
    if manifest.get("attached"):
        raise RunError(
            f"{run.name}: it was trained by your own trainer",
            rule="a run resumes from the recipe that it started with",
            remedy=(
                "make your trainer again, attach it, and call its own"
                " train(resume_from_checkpoint=True)"
            ),
        )


def _add_steps(run: RunDirectory, plan: Plan, recipe: Recipe, steps: int) -> None:
    last = plan.stages[-1]
    if last.steps < 0:
        raise RunError(
            f"{run.name}: trained for epochs",
            rule="steps can be added to a number of steps",
            remedy="continue it as it is, or start a new run with grpo.max_steps",
        )
    last.settings["max_steps"] += steps
    if recipe.stages:
        recipe.stages[-1].steps += steps
    else:
        recipe.grpo["max_steps"] = last.settings["max_steps"]


def _edited(run: RunDirectory) -> list[str]:
    # A task file that was mended beside the run's copy of it, without which it is of no use.
    source, copy = run.manifest().get("task", {}).get("source"), resuming.kept_task(run, None)
    with contextlib.suppress(OSError, TypeError):
        if copy.read_bytes() != Path(source).read_bytes():
            used = f"the run's own copy, {shown(copy)}, which is used: edit that one"
            return [f"{shown(source)} differs from {used}"]
    return []


def _news(
    run: RunDirectory, point: Point, changed: Differences, last: Stage, reached: int
) -> list[str]:
    begun = f"not as when {run.name} was begun"
    resumes = f"{run.name} resumes after step {point.step}, from {point.folder.name}"
    if last.steps > 0:
        resumes += f", to step {last.offset + last.steps}"
    if reached > point.step:
        resumes += f"; steps {point.step + 1} to {reached} are trained again"
    return [
        *(f"WARNING: {what}" for what in point.passed_over),
        *(f"{begun}: {what}" for what in changed.shown),
        *(f"{begun}, and accepted: {what}" for what in changed.refused),
        resumes,
    ]


def _finished(run: RunDirectory, point: Point, take_over: bool) -> RunDirectory:
    # It ended between its last checkpoint and its result: what is left to do is what the end of a
    # run does.
    from workbench.run.sealed import saved_with

    for what in [*lost_since(run, point), *doubled(run)]:
        print(f"WARNING: {what}")
    run.reopen(point.step, take_over)
    result = run.result() | around.late_results(run)
    ignored = shutil.ignore_patterns(*STATE_FILES)
    try:
        with run.writing(), replace_folder(run.final) as folder:
            shutil.copytree(point.folder, folder, ignore=ignored, dirs_exist_ok=True)
        result["status"] = "finished"
        run.update_manifest(saved=saved_with(run, run.final), result=result)
        run.log_event("finished", point.step)
        run.went_on()
    finally:
        run.put_back()
        run.release()
    taken = f"finished with the adapter of {point.folder.name}"
    print(f"{run.name}: all {point.step} steps were trained; {taken}")
    return run


def _all_trained(recipe: Recipe, point: Point) -> bool:
    trained = json.loads((point.folder / "trainer_state.json").read_text(encoding="utf-8"))
    asked = recipe.requested_steps or trained["max_steps"]  # of so many epochs
    last = point.stage >= len(recipe.stages) - 1
    return last and trained["global_step"] >= asked and point.step > 0


def _unfinished(stage: Stage, point: Point) -> bool:
    if stage.number != point.stage:
        return stage.number > point.stage
    return point.done < stage.steps if stage.steps >= 0 else not _all_trained(stage.recipe, point)
