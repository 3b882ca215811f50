"""The stages of a run: what is trained, on which prompts, under which rewards and settings, for how many steps.

A recipe without stages has one. Each stage is checked before anything is loaded, so that the third one's mistake is not
found when the second has trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workbench.data.template import PromptLengths, prompt_lengths_tokens, template_notes
from workbench.errors import RecipeError
from workbench.recipe import AdaptivePart, Recipe, StagePart
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import RunDirectory
from workbench.task import Row, Task, load_task
from workbench.training import plan
from workbench.training.adaptive import AdaptiveWeights
from workbench.training.begun import begun_task
from workbench.training.fast_inference import COST, NOT_IN_FORCE
from workbench.training.plan.device import Machine
from workbench.training.plan.values import check_trackers
from workbench.training.policy import Policy
from workbench.workspace import find

ONLY_STAGE = "1"
# What is trained at a time: (recipe, settings, longest prompt in tokens or None).
Part = tuple[Recipe, dict[str, Any], int | None]
# Called with the parts, the machine, and gradient checkpointing where that is decided already (else None); returns
# gradient checkpointing, lines to show and an estimate (or None).
Memory = Callable[[Sequence[Part], Machine, bool | None], tuple[bool, list[str], Any]]
# What is decided when the policy is loaded, or is counted over the whole run.
_NOT_BY_STAGE = ("gradient_checkpointing", "use_vllm", "max_steps", "num_train_epochs", "bf16", "fp16", "report_to")


@dataclass(frozen=True)
class Stage:
    """One stage, checked: everything that its trainer is built from."""

    name: str
    number: int  # from 0
    recipe: Recipe  # the run's, with the stage's own settings and weights in it
    task: Task | None  # None: not known, and then there are neither rows nor a suite
    rows: list[Row]
    settings: dict[str, Any]
    planned: plan.Batch
    suite: RewardSuite | None
    adaptive: dict[str, AdaptivePart]
    notes: list[str]
    source: str = ""  # the task file that a person edits; empty: none
    offset: int = 0  # steps of the stages before
    left_out_too_long: int = 0
    lengths_tokens: list[int] = field(default_factory=list)  # of the prompts that are used

    @property
    def steps(self) -> int:
        """Steps that the stage trains; -1 where that follows from epochs."""
        return self.settings["max_steps"]

    def fresh(self) -> Stage:
        """The same stage, with settings and reward functions that nothing else changes: each trainer gets its own."""
        return replace(self, settings=dict(self.settings), suite=_suite(self.task, self.recipe, self.settings))


def planned_stages(
    recipe: Recipe,
    task: Task | None,
    config_class: type,
    machine: Machine | None = None,
    begun: RunDirectory | None = None,
) -> list[Stage]:
    """The recipe's stages, in order, checked as far as can be without a policy.

    Args:
        recipe: under today's names.
        task: the recipe's; None: not known, and then only the settings are checked.
        machine: what it trains on; None: this one.
        begun: the run that goes on: its stages' tasks are those that it was begun with; None: as they are now.

    Raises:
        RecipeError, TaskError, RewardError: naming the stage, where there are several.
    """
    if not recipe.stages:
        only = _stage(recipe, task, config_class, machine, ONLY_STAGE, 0, recipe.adaptive_weights)
        return [replace(only, source=_edited(recipe.task, task))]
    stages: list[Stage] = []
    for number, part in enumerate(recipe.stages):
        own_task = task
        if part.task:
            own_task = begun_task(begun, recipe, number) if begun is not None else load_task(part.task)
        stage = _stage(
            _for_stage(recipe, part, own_task),
            own_task,
            config_class,
            machine,
            part.name,
            number,
            {**_of(recipe.adaptive_weights, own_task), **part.adaptive_weights},
            part.prompts,
        )
        offset = stages[-1].offset + stages[-1].steps if stages else 0
        stages.append(replace(stage, source=_edited(part.task or recipe.task, own_task), offset=offset))
    return stages


def _edited(name: str, task: Task | None) -> str:
    return (task.source if task else "") or (str(find(name)) if Path(name).suffix == ".py" else "")


def _of(by_function: dict[str, Any], task: Task | None) -> dict[str, Any]:
    # The recipe's words are about its own task; a stage's task may lack some of those functions.
    return {name: value for name, value in by_function.items() if task is None or name in task.function_names}


def _for_stage(recipe: Recipe, part: StagePart, task: Task | None) -> Recipe:
    for name in _NOT_BY_STAGE:
        if name in part.grpo:
            raise RecipeError(
                f"stages: {part.name}.grpo.{name} = {part.grpo[name]!r}",
                rule="a stage's length is its `steps`; precision, checkpointing, vLLM and trackers are the whole run's",
                remedy=f"set stages: {part.name}.steps" if name in ("max_steps", "num_train_epochs") else f"set grpo.{name}",
            )
    own = _of(recipe.reward_weights, task) if part.task else recipe.reward_weights
    grpo = {key: value for key, value in recipe.grpo.items() if key not in ("max_steps", "num_train_epochs")}
    return recipe.model_copy(
        update={
            "grpo": {**grpo, **part.grpo, "max_steps": part.steps},
            "reward_weights": {**own, **part.reward_weights},
            "stages": [],
        }
    )


def _stage(
    recipe: Recipe,
    task: Task | None,
    config_class: type,
    machine: Machine | None,
    name: str,
    number: int,
    adaptive: dict[str, AdaptivePart],
    prompts: dict[str, Any] | None = None,
) -> Stage:
    where = f"stage {name!r}: " if name != ONLY_STAGE else ""
    settings, planned, notes = _checked_settings(recipe, config_class, machine)
    if task is None:
        return Stage(name, number, recipe, None, [], settings, planned, None, adaptive, notes)
    if not len(task.rows):
        raise RecipeError(f"{where}task {task.name!r}: 0 prompts", rule="training needs prompts", remedy="give the task rows")
    rows = _chosen(task.with_ids(task.rows), prompts or {}, where)
    plan.check_prompts(len(rows), planned)
    suite = _suite(task, recipe, settings)
    unknown = sorted(set(adaptive) - set(suite.names))
    if unknown:
        raise RecipeError(
            f"{where}adaptive_weights: {unknown[0]!r}",
            rule="an adaptive weight names one of the task's reward functions",
            remedy=f"choose from {', '.join(suite.names)}",
        )
    AdaptiveWeights(adaptive, suite)  # says what cannot adapt
    try:
        suite.rehearse(rows)
    finally:
        suite.close()
    return Stage(name, number, recipe, task, rows, settings, planned, suite, adaptive, notes)


def _checked_settings(
    recipe: Recipe, config_class: type, machine: Machine | None
) -> tuple[dict[str, Any], plan.Batch, list[str]]:
    """(what GRPOConfig is built from, its generation batch, one line for each thing that is not as it was asked).

    Raises:
        RecipeError: for a value that cannot work.
    """
    _, settings, notes = plan.normalised(recipe, plan.field_names(config_class), machine)
    planned = plan.batch(settings)
    plan.check_values(settings, plan.field_kinds(config_class))
    plan.check_lengths(recipe, settings)
    check_trackers(settings["report_to"])
    return settings, planned, notes


def _suite(task: Task, recipe: Recipe, settings: dict[str, Any]) -> RewardSuite:
    return RewardSuite(
        task,
        settings["num_generations"],
        recipe.reward_weights,
        settings["scale_rewards"],
        settings.get("multi_objective_aggregation", "sum_then_normalize"),
        deadline_s=recipe.rewards.deadline_s,
        on_error=recipe.rewards.on_error,
    )


def _chosen(rows: Sequence[Row], wanted: dict[str, Any], where: str) -> list[Row]:
    for column, values in wanted.items():
        if column not in rows[0]:
            raise RecipeError(
                f"{where}prompts: {column!r}",
                rule=f"prompts are chosen by a column; the rows have {', '.join(map(str, rows[0]))}",
                remedy="name one of those",
            )
        allowed = values if isinstance(values, list) else [values]
        kept = [row for row in rows if row.get(column) in allowed]
        if not kept:
            some = sorted({str(row.get(column)) for row in rows})[:5]
            raise RecipeError(
                f"{where}prompts: no row has {column} = {values!r}",
                rule="a stage needs prompts",
                remedy=f"{column} holds, for example, {', '.join(some)}",
            )
        rows = kept
    return list(rows)


def fit(stage: Stage, tokenizer: Any, max_seq_length: int) -> Stage:
    """The stage without the prompts that are longer than the recipe allows, the rest checked against the context.

    The tokenizer carries the stage's `chat_template_kwargs` from here on.

    Raises:
        RecipeError, DataError: if too few are left, or prompt and completion do not fit.
    """
    tokenizer.chat_template_kwargs = stage.recipe.chat_template_kwargs
    if not stage.rows:
        return stage
    notes, rows = template_notes(stage.rows, tokenizer), stage.rows
    lengths, longest, longer = prompt_lengths_tokens(rows, tokenizer), stage.recipe.max_prompt_length, []
    measured = PromptLengths(rows, lengths, max_tokens=longest)
    if longest is not None:
        rows, longer = measured.keep()
        lengths = [length for length in lengths if length <= longest]
        if longer:
            notes.append(f"max_prompt_length = {longest}: {len(longer)} longer prompts left out, {len(rows)} kept")
        plan.check_prompts(len(rows), stage.planned)
    measured.check_budget(stage.settings["max_completion_length"], max_seq_length)
    left_out = stage.left_out_too_long + len(longer)
    notes = [*stage.notes, *(note for note in notes if note not in stage.notes)]
    return replace(stage, rows=rows, left_out_too_long=left_out, lengths_tokens=lengths, notes=notes)


def settled_vllm(stages: Sequence[Stage], policy: Policy) -> tuple[list[Stage], list[str]]:
    """The stages with `use_vllm` as the policy was loaded, and one line where that is not what was asked.

    Unsloth's trainer generates with the engine that came with the model. Told to use vLLM without one it would start a
    second, which cannot be given a 4-bit policy's weights.
    """
    asked = {bool(stage.settings.get("use_vllm")) for stage in stages}
    if policy.backend_name != "unsloth" or asked == {policy.fast_inference}:
        return list(stages), []
    settled = [replace(stage, settings={**stage.settings, "use_vllm": policy.fast_inference}) for stage in stages]
    if policy.fast_inference:
        return settled, ["use_vllm becomes True: the policy was loaded with vLLM (fast_inference), which generates"]
    said = [note for note in policy.notes if note.startswith(NOT_IN_FORCE)]
    return settled, said or [f"use_vllm = True becomes False: the policy was loaded without vLLM; {COST}"]
