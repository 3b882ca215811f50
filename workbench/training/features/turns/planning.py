"""What a plan says of a task whose rollouts have turns, and what it refuses."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from workbench.base import processes
from workbench.base.environments import factories_of, takes_seed
from workbench.base.errors import DataError, PolicyError, RecipeError
from workbench.base.kinds import Fields
from workbench.data.template import markers_of
from workbench.task import Task
from workbench.training.feature import Asked
from workbench.training.plan import Stage
from workbench.training.plan.loading import load_tokenizer
from workbench.training.playing import with_calls
from workbench.training.policy import trainer_classes
from workbench.training.transcribing import text_tokenizer

# Of a recipe: what samples one turn, and would measure or teach something else than the run does.
_ONE_TURN = {
    "warm_start": "its examples are completions of one turn",
    "difficulty": "it is found by completions of one turn",
}
_PLAYED = {"eval_every": "a rollout_func generates with the trainer, which training alone has"}
_UNTIL_FULL = "calls until the completion is full (max_tool_calling_iterations caps them)"


def check_turns(stage: Stage) -> None:
    """RecipeError for what a stage whose rollouts have turns cannot have."""
    if stage.task is None or not stage.task.for_turns:
        return
    if processes.count() > 1:
        raise RecipeError(
            f"{stage.where}{processes.count()} processes, and {stage.task.name!r} has turns",
            rule="turns are recorded by the process that generates them",
            remedy="train on one GPU, in one process",
        )
    refused = _ONE_TURN | (_PLAYED if stage.task.rollout_func else {})
    for name, why in refused.items():
        if value := getattr(stage.recipe, name):
            raise RecipeError(
                f"{stage.where}{name} = {value}",
                rule=f"{why}; the rollouts of {stage.task.name!r} have several",
                remedy=f"leave {name} out",
            )


def turns_lines(asked: Asked) -> list[str]:
    """Lines for a plan; TaskError, RecipeError where the tools or the policy's template will not
    do.
    """
    stages = [stage for stage in asked.stages if stage.task]
    return [line for stage in stages for line in dict.fromkeys(_lines(asked, stage))]


def _lines(asked: Asked, stage: Stage) -> Iterator[str]:
    task, policy = stage.task, asked.recipe.policy
    assert task is not None
    if task.rollout_func:
        name = getattr(task.rollout_func, "__name__", type(task.rollout_func).__name__)
        yield f"turns: {name} generates, in TRL's place; without an env_mask all its tokens train"
    tools = dict.fromkeys(_signature(own) for each in task.tool_schemas.values() for own in each)
    most = stage.recipe.grpo.get("max_tool_calling_iterations")
    if not tools:
        if most is not None:
            yield "max_tool_calling_iterations does nothing here: the task has no tools"
        return
    rounds = "1 round" if most == 1 else f"{most} rounds"
    until = f"at most {rounds} of calls" if most is not None else _UNTIL_FULL
    lengths = (
        "max_completion_length is for a whole rollout, what tools answer included;"
        " prompt lengths include the tools"
    )
    if task.environment:
        lengths += ", but not what `reset` says: leave room for it in max_seq_length"
    yield f"turns: {', '.join(tools)}; {until}; {lengths}"
    yield from _starts(task)
    try:
        tokenizer = load_tokenizer(policy.name, asked.recipe.chat_template_kwargs)
    except (DataError, PolicyError) as error:
        if not error.network:
            raise
        yield f"turns: not checked whether the template carries calls: {error.value}"
        return
    yield from template_lines(tokenizer, f"policy {str(policy.name)!r}", policy.backend)


def _starts(task: Task) -> Iterator[str]:
    # TRL itself does not pass a seed to `reset`.
    for factory in factories_of(task.environment).values():
        made = factory()
        name = type(made).__name__
        seeds = [row["seed"] for row in task.rows if "seed" in row]
        parameters = inspect.signature(made.reset).parameters.values()
        reads = takes_seed(made) or any(p.kind is p.VAR_KEYWORD for p in parameters)
        if without := sum(seed is None for seed in seeds):
            said = "rows have the seed None: what reset draws for them differs within a group"
            yield f"turns: {without} {said}"
        elif seeds and reads:
            yield f"turns: {name}.reset gets the seed of its row"
        elif not takes_seed(made):
            yield f"turns: {name}.reset takes no seed: what it draws differs within a group"
        else:
            yield f"turns: {name}.reset gets a seed, the same for each member of a group"


def _signature(schema: Fields) -> str:
    function = schema["function"]
    known = function["parameters"].get("properties", {})
    inside = ", ".join(f"{name}: {own.get('type', 'any')}" for name, own in known.items())
    return f"{function['name']}({inside})"


def template_lines(tokenizer: Any, who: str, backend: str) -> list[str]:
    """Lines on a chat template; RecipeError where it cannot carry calls, or none is parsed."""
    trainer_classes(backend)  # unsloth comes before trl
    from trl import chat_template_utils as templates

    rule = "calls are written, parsed and answered in the policy's chat template"
    remedy = "take a policy whose template has tools, such as Qwen2.5 or Qwen3"
    if not templates.supports_tool_calling(tokenizer):
        raise RecipeError(
            f"{who}: its chat template drops tool calls, or what tools answer",
            rule=rule,
            remedy=remedy,
        )
    try:
        _, other = with_calls(tokenizer, calls=True)
    except ValueError as error:
        said = re.split(r"(?<=[.]) ", str(error))[0]
        raise RecipeError(f"{who}: {said}", rule=rule, remedy=remedy) from error
    return ["turns: TRL's training template takes the place of the policy's own"] if other else []


def described(trainer: Any) -> Fields:
    """For the manifest: tools as JSON schemas, environments by class, and most rounds of calls."""
    from transformers.utils import get_json_schema

    tools = getattr(trainer, "tools", None) or []
    pools = (getattr(trainer, "_environment_pool", None) or {}).values()
    if not tools and not getattr(trainer, "rollout_func", None):
        return {}
    markers = markers_of(text_tokenizer(trainer))
    return {
        "markers": markers and markers._asdict(),
        "tools": [get_json_schema(tool) for tool in tools],
        "environments": list(dict.fromkeys(type(pool[0]).__name__ for pool in pools)),
        "max_tool_calling_iterations": trainer.args.max_tool_calling_iterations,
    }
