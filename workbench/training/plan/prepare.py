"""One `prepare` for what is shown and what is trained: it checks a recipe as far as possible
without loading its policy.

`plan` shows a `Plan` and `train` trains one, so the second accepts what the first accepts.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.base import processes
from workbench.base.errors import DataError, PolicyError, WorkbenchError
from workbench.base.kinds import Fields
from workbench.base.printable import printable
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory
from workbench.run.machine import environment
from workbench.task import Task
from workbench.tasks.loading import load_task
from workbench.training import around
from workbench.training.building import Built, build
from workbench.training.feature import Asked, Planned
from workbench.training.plan import Memory, Plan, Stage
from workbench.training.plan import settings as settings_of
from workbench.training.plan.loading import find_model
from workbench.training.plan.measuring import (
    measure_of,
    measuring,
    sampled_besides,
    shape_of_policy,
    without_extras,
)
from workbench.training.plan.precision import choose_dtype, unsloths_choice
from workbench.training.plan.settings.algorithms import ALGORITHMS
from workbench.training.plan.settings.device import Machine, asks_for_vllm
from workbench.training.plan.settings.in_force import Row
from workbench.training.plan.settings.values import ENVIRONMENT
from workbench.training.plan.stages import fit, planned_stages, settled_vllm
from workbench.training.policy import grpo_config
from workbench.training.resuming import begun_task

if TYPE_CHECKING:
    from workbench.training.policy import Policy


def prepare(
    recipe: str | Path | Fields | Recipe,
    task: Task | None = None,
    machine: Machine | None = None,
    *,
    policy: Policy | None = None,
    run: RunDirectory | None = None,
    vram_gb: float | None = None,
    shown: bool = False,
    with_task: bool = True,
    with_policy: bool = True,
) -> Plan:
    """Check all that can be checked without loading the policy, and return what the run will be.
    Raises as `plan`.

    Args:
        task: None: the recipe's is loaded, or that of the resumed `run`.
        policy: an already loaded policy, which then decides on backend, context, checkpointing and
            vLLM.
        vram_gb: as for `plan`.
        shown: nothing is trained yet: memory is estimated, and a hub that cannot be reached is a
            note instead of an error.
        with_task, with_policy: False: the recipe's only stands in for an unknown one, so no prompt,
            or no memory, is looked at.
    """
    from workbench.training.plan.presets import recipe_of

    recipe, of_adapter = _begun(recipe_of(recipe), run)
    backend, of_extras = _loadable(recipe, policy)
    found, unread = Planned(), []
    if task is None and with_task:
        if run is None:
            found = around.planned(Asked(recipe, policy=policy))
        recipe = found.changes or recipe
        task, unread = _task(recipe, run, shown)
    config_class = grpo_config(backend)
    recipe, renamed = settings_of.with_new_names(recipe, settings_of.field_names(config_class))
    settings_of.check_lora(recipe.lora)
    machine = machine or Machine.here(for_vllm=asks_for_vllm(recipe.grpo, recipe))
    stages = planned_stages(recipe, task, config_class, machine, run)
    steps = sum(stage.steps for stage in stages) if recipe.stages else stages[0].steps
    planned = around.planned(Asked(recipe, task, stages, steps, run, policy, shown, vram_gb))
    for stage in stages:
        _rehearse(stage)
    stages, measured = _measured(recipe, stages, policy, shown)
    shape, of_shape = shape_of_policy(recipe, policy)
    memory = planned.memory if with_policy else None
    on, chosen, estimate = _memory(stages, machine, policy, run, memory)
    for stage in stages:
        stage.settings["gradient_checkpointing"] = on
    settings = {**stages[0].settings, "max_steps": steps}
    parts = [(recipe, settings)]
    parts += [(stage.recipe, stage.settings) for stage in stages if recipe.stages]
    built = [_built(config_class, *part, machine, backend) for part in parts]
    given, config, _ = built[0]
    notes = [
        *renamed, *found.lines, *settings_of.stages_decide(recipe), *_of_stages(stages),
        *unread, *measured, *planned.lines, *of_shape, *chosen, *of_adapter,
        *_warned(task), *_heard(built), *of_extras, *one_gpu(backend, machine),
        *settings_of.check_in_force(given, config), *_never_saved(recipe, settings, steps),
        *_from_outside(recipe, backend, settings),
    ]  # fmt: skip
    words = ". ".join(around.generation_lines(stages, machine, shape))
    rows = _rows(recipe, stages, given, config)
    return Plan(recipe, task, machine, tuple(stages), settings, tuple(notes), words, rows, estimate)


def _loadable(recipe: Recipe, policy: Policy | None) -> tuple[str, list[str]]:
    # (the backend, lines on what is not installed); errors before torch and Unsloth are imported.
    backend = policy.backend_name if policy else recipe.policy.backend
    processes.check_processes(backend)
    if policy is not None:
        return backend, []
    find_model(recipe.policy.name, ask_hub=False)
    return backend, without_extras(recipe)


def _task(recipe: Recipe, run: RunDirectory | None, offline: bool) -> tuple[Task | None, list[str]]:
    if run is not None:
        return begun_task(run, recipe), []
    missed = "its prompts were neither counted nor measured"
    return _reached(lambda: load_task(recipe.task), missed, offline)


def _rehearse(stage: Stage) -> None:
    if stage.suite is not None:
        with contextlib.closing(stage.suite):
            stage.suite.rehearse(stage.rows)


def _never_saved(recipe: Recipe, settings: Fields, steps: int) -> list[str]:
    every, by_steps = settings["save_steps"], settings["save_strategy"] == "steps"
    does = "nothing is saved before the end, and a run that is killed begins again"
    beyond = "save_steps" in recipe.grpo and by_steps and 0 < steps < every
    return [f"save_steps {every:g} > max_steps {steps}: {does}"] if beyond else []


def _from_outside(recipe: Recipe, backend: str, settings: Fields) -> list[str]:
    # What decides numbers beside the recipe: variables of Unsloth and vLLM, the policy's own files.
    libraries = ["UNSLOTH"] * (backend == "unsloth") + ["VLLM"] * bool(settings.get("use_vllm"))
    kinds = [kind for kind in ENVIRONMENT if kind.partition("_")[0] in libraries]
    names = environment()
    found = [f"{name} = {names[name]}" for kind in kinds for name in fnmatch.filter(names, kind)]
    does = "set in the environment, and changes how Unsloth or vLLM compute"
    lines = [f"{', '.join(found)}: {does}"] if found else []
    return lines + sampled_besides(recipe.policy.name, settings)


def _reached(call: Callable[[], object], missed: str, offline: bool) -> tuple[Any, list[str]]:
    # (what it returns, None: the hub cannot be reached; a line on what is `missed` then).
    try:
        return call(), []
    except (DataError, PolicyError) as error:
        if error.network and offline:
            return None, [f"not checked: {error.value}; so {missed}"]
        raise


def _measured(
    recipe: Recipe, stages: list[Stage], policy: Policy | None, offline: bool
) -> tuple[list[Stage], list[str]]:
    # (the stages with the prompts that fit; lines), measured with the policy's tokenizer.
    if policy is not None:
        return _as_loaded(stages, policy)
    measure = measure_of(recipe.policy.name, recipe.chat_template_kwargs)
    length, missed = recipe.policy.max_seq_length, "no prompt was measured with its tokenizer"
    fitted, notes = _reached(lambda: [fit(one, measure, length) for one in stages], missed, offline)
    return fitted or stages, notes


def _begun(recipe: Recipe, run: RunDirectory | None) -> tuple[Recipe, list[str]]:
    own = recipe.policy
    begins = own.adapter is not None or own.merge_adapter or own.reference == "adapter"
    if run is not None or not begins:  # a run is resumed from its own checkpoint
        return recipe, []
    from workbench.training.adapters import fitted_to_adapter

    return fitted_to_adapter(recipe)


def _warned(task: Task | None) -> list[str]:
    if task is None:
        return []
    lines = [f"rows: {what} ({count})" for what, count in task.made_plain.items()]
    if task.right_by is None:
        lines.append(
            "WARNING: the task names no right_by: a completion counts as right when"
            f" {task.right_function} > 0 (the first function); this only decides the groups panel"
            " and the measurement in 04"
        )
    if not len(task.held_out):
        lines.append(
            "WARNING: the task has no held_out prompts: what training gained cannot be measured"
            " (notebook 04)"
        )
    return lines


def _rows(recipe: Recipe, stages: Sequence[Stage], given: Fields, built: object) -> tuple[Row, ...]:
    said = settings_of.asked_of(recipe) | (recipe.stages[0].grpo if recipe.stages else {})
    papers: Fields = {}
    if recipe.algorithm:
        papers = settings_of.papers_fields(stages[0].recipe)
        source = f"{recipe.algorithm} ({ALGORITHMS[recipe.algorithm].source})"
    rows = []
    for row in settings_of.in_force_table(said, built, {**given, "seed": recipe.seed}):
        if recipe.stages and row.name == "max_steps":
            row = row._replace(by="stages")
        elif row.name in papers and papers[row.name] == row.in_force:
            row = row._replace(by=source)
        rows.append(row)

    def theirs(row: Row) -> tuple[bool, bool]:
        # what you asked for first, then what the workbench decides, then the libraries
        return row.asked is None, "TRL" in row.by or "Unsloth" in row.by

    return tuple(sorted(rows, key=theirs))


def plan(
    source: str | Path | Recipe,
    task: Task | None = None,
    *,
    machine: Machine | None = None,
    vram_gb: float | None = None,
    said: Sequence[str] = (),
    steps: int | None = None,
) -> Plan:
    """What a run would be, checked as far as possible without loading the policy, including its GPU
    memory. Only `difficulty: auto` loads it and samples, once: what it finds is kept.

    >>> plan = wb.plan(wb.Recipe(grpo={"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8}))
    >>> plan.words
    '2 steps; each learns from 8 completions (2 prompts x 4)...'

    Args:
        source: a recipe, a recipe file, a preset's name, or a Python script (a `.py` file, or its
            text), which is read and never run.
        task: a task object; None: the recipe's is loaded.
        machine: what it trains on; None: this one.
        vram_gb: GPU memory to plan for, in 10^9 bytes; None: that of the machine's card. On a
            machine without a GPU the settings stay those of the machine, and the estimate is of a
            card.
        said, steps: as for `overridden`: the values of `--set` and `--steps`.

    Raises:
        RecipeError, TaskError, DataError, PolicyError, RewardError: what would stop the training,
            with the remedy. A hub that cannot be reached is a note, and so is memory that cannot be
            estimated.
    """  # noqa: E501
    from workbench.training.plan.presets import of_recipe, read_source

    called, recipe, notes, named, tasked = read_source(source, said)
    with of_recipe(called):
        recipe = settings_of.overridden(recipe, said, steps)
    # Prompts that stand in for a script's own say nothing about its epochs, lengths or memory.
    with_task = tasked or task is not None
    how: Fields = {"vram_gb": vram_gb, "with_task": with_task, "with_policy": named}
    try:
        with of_recipe(called):
            made = prepare(recipe, task, machine, shown=True, **how)
    except WorkbenchError as error:
        for note in notes:  # what was read otherwise than it stands in a script may be the cause
            error.add_note(f"  note:   {printable(note)}")
        raise
    if not named:
        why = "because no model name could be read from the script"
        notes = [*notes, f"not estimated: memory, {why}"]
    return replace(
        made,
        source=called,
        notes=(*notes, *(line for line in made.notes if line not in notes)),
        stand_ins=tuple(name for name, own in (("task", tasked), ("policy", named)) if not own),
    )


def settled(made: Plan, policy: Policy) -> Plan:
    """The plan as this loaded policy trains it, with separate settings and reward functions for one
    trainer.

    How the policy was loaded decides on vLLM and gradient checkpointing; prompts are measured
    again. Raises as `prepare`.
    """
    stages, notes = _as_loaded([stage.fresh() for stage in made.stages], policy)
    # beside what the recipe names
    if before := policy.trained_in[made.recipe.policy.adapter is not None :]:
        notes.append(
            f"this policy's adapter was already trained in {', '.join(before)}; this run continues"
            " from there"
        )
    notes = [*made.notes, *notes, *_of_stages(stages)]
    return replace(made, stages=tuple(stages), notes=tuple(dict.fromkeys(notes)))


def _as_loaded(stages: Sequence[Stage], policy: Policy) -> tuple[list[Stage], list[str]]:
    stages, notes = settled_vllm(stages, policy)
    own, loaded = stages[0].recipe.chat_template_kwargs, policy.chat_template_kwargs
    if own != loaded:
        said = f"chat_template_kwargs = {own}, as the recipe says"
        notes = [f"{said}; the policy was loaded with {loaded}", *notes]
    measure = measuring(policy.tokenizer)
    return [fit(stage, measure, policy.max_seq_length) for stage in stages], notes


def _memory(
    stages: Sequence[Stage],
    machine: Machine,
    policy: Policy | None,
    run: RunDirectory | None,
    memory: Memory | None,
) -> tuple[bool, list[str], Any]:
    # (gradient checkpointing for the whole run: as the recipe says, else as the run began, as the
    # policy was loaded, as it fits; lines; the estimate).
    name, first = "gradient_checkpointing", stages[0]
    on, decided, lines = first.settings[name], None, []
    if name in first.recipe.grpo:
        decided = on
    if decided is None and run is not None:
        decided = run.manifest()["settings"]["in_force"].get(name)
    if decided is None and policy:
        decided = policy.gradient_checkpointing
        lines = [f"{name} = True: the policy was loaded with it"] if decided else []
    on = on if decided is None else decided
    if memory is None:
        return on, lines, None
    parts = [(one.recipe, one.settings, max(one.lengths_tokens, default=None)) for one in stages]
    try:
        on, more, estimate = memory(parts, machine, decided)
    except PolicyError as error:
        return on, [*lines, f"not estimated: memory; {error.value}"], None
    return on, [*lines, *more], estimate


def _built(
    config_class: type, recipe: Recipe, settings: Fields, machine: Machine, backend: str
) -> Built:
    # The config that will be trained with, as far as is known before the policy is loaded.
    dtype, cuda = recipe.policy.dtype, machine.cuda
    computes, _ = choose_dtype(dtype, backend, cuda=cuda, bf16=machine.bf16)
    how: Fields = {"backend": backend, "computes": computes, "cuda": cuda, "seed": recipe.seed}
    with tempfile.TemporaryDirectory(prefix="workbench-") as scratch:
        made = build(config_class, settings, scratch, **how)
    if cuda and backend == "unsloth":  # its trainer decides, when it is made
        vars(made.config).update(unsloths_choice(dtype, made.given, bf16=machine.bf16))
    return made


def _heard(built: Sequence[Built]) -> list[str]:
    # What the libraries warn of, each once.
    return list(dict.fromkeys(line for each in built for line in each.heard))


def _of_stages(stages: Sequence[Stage]) -> list[str]:
    # Once what all of them say, with a stage's name what is its own.
    said = {
        stage.name: [*stage.notes, *(stage.suite.notes if stage.suite else ())] for stage in stages
    }
    of_all = set.intersection(*map(set, said.values()))
    lines = [(name, line) for name, own in said.items() for line in own]
    return list(
        dict.fromkeys(line if line in of_all else f"stage {name}: {line}" for name, line in lines)
    )


def one_gpu(backend: str, machine: Machine) -> list[str]:
    """A line for a machine with several GPUs; none where a launcher started a process for each of
    them.
    """
    if machine.gpus < 2 or "LOCAL_RANK" in os.environ:
        return []
    spread = "; Unsloth spreads over all of them a model that leaves too little room on one" * (
        backend == "unsloth"
    )
    return [
        f"{machine.gpus} GPUs, and a run trains on one, the first that it sees{spread}."
        " CUDA_VISIBLE_DEVICES=1, set before torch is imported, lets it see the second alone"
    ]
