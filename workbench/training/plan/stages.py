"""The stages of a run: what is trained, on which prompts, under which rewards and settings, for how
many steps.

A recipe without stages has one. Each stage is checked before anything is loaded, so that a mistake
in the third is not found only after the second has trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from workbench.base.errors import RecipeError
from workbench.base.kinds import Fields
from workbench.base.workspace import find
from workbench.data.rendering import Measure, PromptLengths
from workbench.recipe import Recipe, StagePart
from workbench.run.directory import RunDirectory
from workbench.task import Row, Task
from workbench.tasks.loading import load_task
from workbench.training.plan import ONLY_STAGE, Stage, suite_of
from workbench.training.plan import settings as settings_of
from workbench.training.plan.settings.device import COST, NOT_IN_FORCE, Machine
from workbench.training.policy import Policy
from workbench.training.resuming import begun_task

# What is decided when the policy is loaded, or is counted over the whole run.
_LENGTHS = ("max_steps", "num_train_epochs")
_NOT_BY_STAGE = ("gradient_checkpointing", "use_vllm", *_LENGTHS, "bf16", "fp16", "report_to")


def planned_stages(
    recipe: Recipe,
    task: Task | None,
    config_class: type,
    machine: Machine | None = None,
    begun: RunDirectory | None = None,
) -> list[Stage]:
    """The recipe's stages, in order, checked as far as possible without a policy. Raises
    RecipeError, TaskError or RewardError.

    Args:
        task: the recipe's; None: not known, and then only the settings are checked.
        begun: the run to resume: its stages' tasks are those that it started with; None: as they
            are now.
    """
    stages: list[Stage] = []
    offset = 0
    for number, part in enumerate(recipe.stages or [None]):
        own_task, file, own, adaptive = task, recipe.task, recipe, recipe.adaptive_weights
        if part is not None:
            if part.task:
                own_task = begun_task(begun, recipe, number) if begun else load_task(part.task)
                file = part.task
            own = _for_stage(recipe, part, own_task)
            adaptive = {**_of(adaptive, own_task), **part.adaptive_weights}
        fields = settings_of.field_names(config_class)
        _, settings, notes = settings_of.normalised(own, fields, machine)
        planned = settings_of.batch(settings)
        settings_of.check_values(settings, settings_of.field_kinds(config_class))
        settings_of.check_lengths(own, settings)
        rows, suite, source = [], None, str(find(file)) if file.endswith(".py") else ""
        if own_task is not None:
            rows, source = _prompts(part, own_task), own_task.source or source
            settings_of.check_prompts(len(rows), planned)
            suite = suite_of(own_task, own, settings)
        stage = Stage(
            name=part.name if part else ONLY_STAGE,
            number=number,
            recipe=own,
            task=own_task,
            rows=rows,
            settings=settings,
            planned=planned,
            suite=suite,
            adaptive=adaptive,
            notes=notes,
            source=source,
            offset=offset,
        )
        stages.append(stage)
        offset += stage.steps
    return stages


def _of(by_function: Fields, task: Task | None) -> Fields:
    # The recipe's words are about its own task; a stage's task may lack some of those functions.
    return {
        name: value
        for name, value in by_function.items()
        if task is None or name in task.function_names
    }


def _for_stage(recipe: Recipe, part: StagePart, task: Task | None) -> Recipe:
    for name in _NOT_BY_STAGE:
        if name in part.grpo:
            length = name in _LENGTHS
            raise RecipeError(
                f"stages: {part.name}.grpo.{name} = {part.grpo[name]!r}",
                rule=(
                    "a stage's length is its `steps`; precision, checkpointing, vLLM and trackers"
                    " belong to the whole run"
                ),
                remedy=f"set stages: {part.name}.steps" if length else f"set grpo.{name}",
            )
    weights = _of(recipe.reward_weights, task) if part.task else recipe.reward_weights
    grpo = {key: value for key, value in recipe.grpo.items() if key not in _LENGTHS}
    own = {
        "grpo": {**grpo, **part.grpo, "max_steps": part.steps},
        "reward_weights": {**weights, **part.reward_weights},
        "stages": [],
    }
    return recipe.model_copy(update=own)


def _prompts(part: StagePart | None, task: Task) -> list[Row]:
    where = f"stage {part.name!r}: " if part else ""
    if not len(task.rows):
        raise RecipeError(
            f"{where}task {task.name!r}: 0 prompts",
            rule="training needs prompts",
            remedy="give the task rows",
        )
    rows = list(task.with_ids(task.rows))
    for column, values in (part.prompts if part else {}).items():
        if column not in rows[0]:
            columns = ", ".join(map(str, rows[0]))
            raise RecipeError(
                f"{where}prompts: {column!r}",
                rule=f"prompts are chosen by a column; the rows have {columns}",
                remedy="name one of those",
            )
        wanted = values if isinstance(values, list) else [values]
        kept = [row for row in rows if row.get(column) in wanted]
        if not kept:
            examples = ", ".join(sorted({str(row.get(column)) for row in rows})[:5])
            raise RecipeError(
                f"{where}prompts: no row has {column} = {values!r}",
                rule="a stage needs prompts",
                remedy=f"{column} holds, for example, {examples}",
            )
        rows = kept
    return rows


def fit(stage: Stage, measure: Measure, max_seq_length: int) -> Stage:
    """The stage without prompts longer than the recipe allows, the rest checked against the
    context.

    RecipeError, DataError: if too few are left, or prompt and completion do not fit.
    """
    rows, longest = stage.rows, stage.recipe.max_prompt_length
    tools = stage.task.tool_schemas if stage.task else None
    said, lengths = measure(stage.recipe.chat_template_kwargs, rows, tools)
    if not rows:
        return stage
    notes = [*stage.notes, *said]
    measured = PromptLengths(rows, lengths, max_tokens=longest)
    left_out = stage.left_out_too_long
    if longest is not None:
        rows, longer = measured.keep()
        lengths = [length for length in lengths if length <= longest]
        left_out += len(longer)
        if longer:
            kept = f"{len(longer)} longer prompts left out, {len(rows)} kept"
            notes.append(f"max_prompt_length = {longest}: {kept}")
        settings_of.check_prompts(len(rows), stage.planned)
    measured.check_budget(stage.settings["max_completion_length"], max_seq_length)
    notes = list(dict.fromkeys(notes))
    return replace(
        stage, rows=rows, left_out_too_long=left_out, lengths_tokens=lengths, notes=notes
    )


def settled_vllm(stages: Sequence[Stage], policy: Policy) -> tuple[list[Stage], list[str]]:
    """The stages with `use_vllm` as the policy was loaded, and one line where that differs from the
    request.

    Unsloth's trainer generates with the engine that came with the model. If told to use vLLM
    without one, it would start a second, which cannot take a 4-bit policy's weights.
    """
    requested = {bool(stage.settings.get("use_vllm")) for stage in stages}
    if policy.backend_name != "unsloth" or requested == {policy.fast_inference}:
        return list(stages), []
    settled = [
        replace(stage, settings={**stage.settings, "use_vllm": policy.fast_inference})
        for stage in stages
    ]
    if policy.fast_inference:
        return settled, [
            "use_vllm becomes True: the policy was loaded with vLLM (fast_inference), which"
            " generates"
        ]
    said = [note for note in policy.notes if note.startswith(NOT_IN_FORCE)]
    return settled, said or [
        f"use_vllm = True becomes False: the policy was loaded without vLLM; {COST}"
    ]
