"""The stages of a run: what is trained, on which prompts, under which rewards and settings, for how
many steps.

A recipe without stages has one. Each stage is checked before anything is loaded, so that a mistake
in the third is not found only after the second has trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from workbench.data.rendering import PromptLengths, prompt_lengths_tokens, template_notes
from workbench.errors import RecipeError
from workbench.kinds import Fields, Tokenizer
from workbench.recipe import Recipe, StagePart
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import RunDirectory
from workbench.task import Row, Task, load_task
from workbench.training import settings as settings_of
from workbench.training.around import asked
from workbench.training.plan import ONLY_STAGE, Stage, suite_of
from workbench.training.policy import Policy
from workbench.training.resuming import begun_task
from workbench.training.settings.device import COST, NOT_IN_FORCE, Machine
from workbench.workspace import find

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
    for number, part in enumerate(recipe.stages or [None]):
        own_task, file, own, adaptive = task, recipe.task, recipe, recipe.adaptive_weights
        if part is not None:
            if part.task:
                own_task = (
                    begun_task(begun, recipe, number) if begun is not None else load_task(part.task)
                )
            file, own = part.task or recipe.task, _for_stage(recipe, part, own_task)
            adaptive = {**_of(adaptive, own_task), **part.adaptive_weights}
        _, settings, notes = settings_of.normalised(
            own, settings_of.field_names(config_class), machine
        )
        planned = settings_of.batch(settings)
        settings_of.check_values(settings, settings_of.field_kinds(config_class))
        settings_of.check_lengths(own, settings)
        rows, suite = (
            _prompts(own, part, own_task, settings, planned) if own_task is not None else ([], None)
        )
        source = (own_task.source if own_task else "") or (
            str(find(file)) if Path(file).suffix == ".py" else ""
        )
        offset = stages[-1].offset + stages[-1].steps if stages else 0
        name = part.name if part else ONLY_STAGE
        stage = Stage(
            name,
            number,
            own,
            own_task,
            rows,
            settings,
            planned,
            suite,
            adaptive,
            notes,
            source,
            offset,
        )
        asked("check", stage, f"stage {part.name!r}: " if part else "")
        if suite is not None:
            try:
                suite.rehearse(rows)
            finally:
                suite.close()
        stages.append(stage)
    return stages


def _of(by_function: Fields, task: Task | None) -> Fields:
    # The recipe's words are about its own task; a stage's task may lack some of those functions.
    return {
        name: value
        for name, value in by_function.items()
        if task is None or name in task.function_names
    }


def _for_stage(recipe: Recipe, part: StagePart, task: Task | None) -> Recipe:
    for name in [name for name in _NOT_BY_STAGE if name in part.grpo]:
        rule = (
            "a stage's length is its `steps`; precision, checkpointing, vLLM and trackers belong to"
            " the whole run"
        )
        remedy = f"set stages: {part.name}.steps" if name in _LENGTHS else f"set grpo.{name}"
        raise RecipeError(
            f"stages: {part.name}.grpo.{name} = {part.grpo[name]!r}", rule=rule, remedy=remedy
        )
    weights = _of(recipe.reward_weights, task) if part.task else recipe.reward_weights
    grpo = {key: value for key, value in recipe.grpo.items() if key not in _LENGTHS}
    own = {
        "grpo": {**grpo, **part.grpo, "max_steps": part.steps},
        "reward_weights": {**weights, **part.reward_weights},
    }
    return recipe.model_copy(update={**own, "stages": []})


def _prompts(
    recipe: Recipe, part: StagePart | None, task: Task, settings: Fields, planned: settings_of.Batch
) -> tuple[list[Row], RewardSuite]:
    """The stage's rows, and its reward functions."""
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
            rule = f"prompts are chosen by a column; the rows have {', '.join(map(str, rows[0]))}"
            raise RecipeError(f"{where}prompts: {column!r}", rule=rule, remedy="name one of those")
        kept = [
            row
            for row in rows
            if row.get(column) in (values if isinstance(values, list) else [values])
        ]
        if not kept:
            remedy = (
                f"{column} holds, for example,"
                f" {', '.join(sorted({str(row.get(column)) for row in rows})[:5])}"
            )
            raise RecipeError(
                f"{where}prompts: no row has {column} = {values!r}",
                rule="a stage needs prompts",
                remedy=remedy,
            )
        rows = kept
    settings_of.check_prompts(len(rows), planned)
    return rows, suite_of(task, recipe, settings)


def fit(stage: Stage, tokenizer: Tokenizer, max_seq_length: int) -> Stage:
    """The stage without prompts longer than the recipe allows, the rest checked against the
    context.

    The tokenizer carries the stage's `chat_template_kwargs` from now on. RecipeError, DataError: if
    too few are left, or prompt and completion do not fit.
    """
    tokenizer.chat_template_kwargs = stage.recipe.chat_template_kwargs
    if not stage.rows:
        return stage
    notes, rows, longer = template_notes(stage.rows, tokenizer), stage.rows, []
    lengths, longest = prompt_lengths_tokens(rows, tokenizer), stage.recipe.max_prompt_length
    measured = PromptLengths(rows, lengths, max_tokens=longest)
    if longest is not None:
        rows, longer = measured.keep()
        lengths = [length for length in lengths if length <= longest]
        if longer:
            notes.append(
                f"max_prompt_length = {longest}: {len(longer)} longer prompts left out, {len(rows)}"
                " kept"
            )
        settings_of.check_prompts(len(rows), stage.planned)
    measured.check_budget(stage.settings["max_completion_length"], max_seq_length)
    left_out, notes = (
        stage.left_out_too_long + len(longer),
        list(dict.fromkeys([*stage.notes, *notes])),
    )
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
