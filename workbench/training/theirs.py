"""A user's own trainer: what the record needs to know of it, and its rewards as it scores them."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from workbench.data.answer_column import answer_named
from workbench.errors import RunError, nearest
from workbench.kinds import Fields, Tensor
from workbench.recipe import Recipe
from workbench.rewards.answers import completion_text
from workbench.rewards.groups import batch_of
from workbench.rewards.hashing import reward_hash
from workbench.rewards.suite import RewardSuite
from workbench.run.batch import ScoredBatch
from workbench.task import RESERVED_COLUMNS, Task, function_name, prompt_key
from workbench.training.loading import base_summed, measured
from workbench.training.plan import ONLY_STAGE, Stage
from workbench.training.policy import Policy
from workbench.training.session import Session
from workbench.training.settings import Batch
from workbench.training.settings.in_force import settings_in_force
from workbench.workspace import to_json


class TheirRewards(RewardSuite):
    """What the record needs to know of the reward functions of a user's trainer, which calls them
    itself.
    """

    def __init__(self, trainer: Any, task: Task) -> None:
        self.task, self.names, self.notes, self.on_batch = task, task.function_names, [], None
        self.weights = list(task.weights)
        self.num_generations, self.scale_rewards = trainer.num_generations, trainer.scale_rewards
        self.aggregation = getattr(trainer, "multi_objective_aggregation", "sum_then_normalize")
        self.hashes = dict(zip(self.names, map(_hash, task.reward_funcs), strict=True))
        self.functions = SimpleNamespace(
            places=dict.fromkeys(self.names, "their trainer"), close=lambda: None
        )


def of_theirs(
    trainer: Any,
    run_name: str | None,
    right_by: str | tuple[str, float] | None,
    answer_column: str | None,
) -> tuple[Recipe, Policy, list[Stage], list[str]]:
    args, policy, functions = trainer.args, _policy_of(trainer), []
    for function, name in zip(trainer.reward_funcs, trainer.reward_func_names, strict=True):
        same = trainer.reward_func_names[: len(functions)].count(name)
        functions.append(_named(function, f"{name}-{same + 1}" if same else name))
    # The weights in force: an environment's own reward has one, too, that no config names.
    weights = getattr(trainer, "reward_weights", None)
    weights = (
        (args.reward_weights or [1.0] * len(functions)) if weights is None else weights.tolist()
    )
    columns = getattr(trainer.train_dataset, "column_names", None) or ()
    if answer_column and columns and answer_column not in columns:
        value, remedy = (
            f"attach(answer_column={answer_column!r})",
            nearest(answer_column, columns, "choose one of them"),
        )
        raise RunError(
            value,
            rule=f"the answer is a column of the rows, which have {', '.join(columns)}",
            remedy=remedy,
        )
    answers = answer_column or answer_named(columns) or "answer"
    task = Task("attached", (), functions, weights, right_by=right_by, answer_column=answers)
    names = [str(getattr(args, "run_name", None) or ""), Path(args.output_dir).name, "attached"]
    called = next(
        filter(None, (re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") for name in names))
    )
    recipe = _recipe_of(trainer, run_name or called, policy, task)
    planned = Batch(args.generation_batch_size, args.num_generations)
    stage = Stage(
        ONLY_STAGE,
        0,
        recipe,
        task,
        [],
        settings_in_force(args),
        planned,
        TheirRewards(trainer, task),
        {},
        [],
    )
    unasked = "" if right_by else " (the first function; right_by= names another)"
    notes = [
        (
            "without a recipe the workbench cannot resume this run: use your trainer's"
            " resume_from_checkpoint"
        ),
        f"a completion counts as right when {task.right_words}{unasked}",
        *[f"the right answers are in the column {answers!r}"] * (answers in columns),
        (
            "wb.evaluate needs a task with held-out prompts: wb.evaluate(run, task=...)"
            if hasattr(trainer.model, "peft_config")
            else (
                "the whole model is trained: your trainer saves it, the run directory does not; so"
                " no wb.evaluate, no wb.export"
            )
        ),
    ]
    return recipe, policy, [stage], notes


def record_rewards(session: Session) -> None:
    """Keep a copy of everything that the trainer's functions score, however it calls them."""
    trainer, calculate, suite = (
        session.trainer,
        session.trainer._calculate_rewards,
        session.stage.scored_by[1],
    )
    generate: Any = getattr(trainer, "_generate_and_score_completions", None)
    # by what is being generated now; None: nothing that can be compared is
    scored: list[ScoredBatch] | None = None

    def calculated(
        inputs: object,
        prompts: object,
        completions: object,
        completion_ids: object,
        *more: object,
        **named: object,
    ) -> Any:
        started = time.perf_counter()
        scores = calculate(inputs, prompts, completions, completion_ids, *more, **named)
        if trainer.model.training:  # it evaluates otherwise
            record(
                scores, inputs, prompts, completions, completion_ids, time.perf_counter() - started
            )
        return scores

    @session.safe
    def record(
        scores: Tensor,
        inputs: Any,
        prompts: Any,
        completions: Any,
        completion_ids: Any,
        seconds: float,
    ) -> None:
        scores = scores.detach().double().cpu().numpy()
        names = [name for name in inputs[0] if name not in {"prompt", *RESERVED_COLUMNS}]
        columns = {name: [to_json(row.get(name)) for row in inputs] for name in names}
        columns.setdefault("prompt_id", [_row_key(row) for row in inputs])
        spent = {suite.names[0] if len(suite.names) == 1 else "all functions": seconds}
        found = {
            "step": trainer.state.global_step + 1,
            "prompts": [*map(_in_words, prompts)],
            "seconds": spent,
        }
        ids = {
            "completion_ids": [list(own) for own in completion_ids],
            "lengths": np.array(list(map(len, completion_ids))),
        }
        texts, groups = (
            map(completion_text, completions),
            (
                suite.num_generations,
                suite.scale_rewards,
                suite.aggregation,
            ),
        )
        right = suite.task.is_right(scores[:, suite.names.index(suite.task.right_function)])
        scored_by = (suite.names, suite.weights, scores, list(texts), right, *groups)
        batch = batch_of(*scored_by, reward_hash=suite.hash, columns=columns, **ids, **found)
        session.scored(batch) if scored is None else scored.append(batch)

    def generated(*args: object, **named: object) -> Any:
        nonlocal scored
        outer, scored = scored, []  # a subclass may generate again until it has what it wants
        try:
            made = generate(*args, **named)
        finally:
            batches, scored = scored, outer
        compare(batches, made) if outer is None else outer.extend(batches)
        return made

    @session.safe
    def compare(batches: list[ScoredBatch], made: object) -> None:
        for batch in batches:
            batch, others = _as_trained_on(batch, made)
            session.scored(batch)
            if others:
                why = (
                    "the trainer learns from other completions; the recorded advantages are those"
                    " of the scores"
                )
                if not said:
                    print(
                        f"step {batch.step}: {len(others)} of {batch.group_count} groups: {why}",
                        flush=True,
                    )
                said.append(batch.step)
                session.recorder.event("not_trained_on", batch.step, groups=others, why=why)

    said: list[int] = []
    session.replace("_calculate_rewards", calculated)
    if generate is not None:
        session.replace("_generate_and_score_completions", generated)


def _as_trained_on(batch: ScoredBatch, made: Any) -> tuple[ScoredBatch, list[int]]:
    """The batch with the advantages that its trainer `made`, and the indices of the groups that it
    does not learn from.

    A subclass may replace some completions with others from a buffer, leave some out, or weigh them
    differently.
    """
    try:
        rows, advantages = (
            made["completion_ids"].tolist(),
            made["advantages"].double().cpu().numpy(),
        )
    except (KeyError, TypeError, AttributeError):
        rows, advantages = [], np.zeros(0)
    size, theirs, others = batch.num_generations, batch.advantages.copy(), []
    for place in range(batch.group_count):
        own = slice(place * size, place * size + size)
        # Padded on the right. Most likely it is where it was.
        for start in (own.start, *range(0, len(rows), size)):
            there = rows[start : start + size]
            if len(there) == size and all(
                row[: len(ids)] == ids
                for row, ids in zip(there, batch.completion_ids[own], strict=True)
            ):
                if not np.allclose(
                    advantages[start : start + size], theirs[own], rtol=0.01, atol=0.001
                ):
                    theirs[own] = advantages[start : start + size]
                break
        else:
            others.append(place)
    return dataclasses.replace(batch, groups=batch.groups._replace(advantages=theirs)), others


def _in_words(prompt: Any) -> object:
    # Messages whose content is in parts, as they are made of prompts with pictures: [image 640x480]
    # and the text.
    def content(parts: object) -> Any:
        if not isinstance(parts, list):
            return parts
        named = ((part, part.get("type", "part")) for part in parts)
        return "".join(
            part.get("text") or str(to_json(part.get(kind, f"[{kind}]"))) for part, kind in named
        )

    if isinstance(prompt, str):
        return prompt
    return to_json([{**message, "content": content(message.get("content"))} for message in prompt])


def _row_key(row: Fields) -> str:
    # One for all completions of a row, whatever its environment or template made of the prompt.
    seen = _pictures([row.get(name) for name in ("prompt", "image", "images")])
    pictures, prompt = (
        [hashlib.sha256(each.tobytes()).hexdigest() for each in seen],
        to_json(row.get("prompt")),
    )
    return prompt_key([prompt, *pictures] if pictures else prompt)[:12]


def _pictures(value: object) -> Iterator[Any]:
    if hasattr(value, "getbands"):
        yield value
    elif isinstance(value, (list, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _pictures(each)


def _named(function: Any, name: str) -> object:
    if not hasattr(function, "parameters") and function_name(function) == name:
        return function

    def scored(**call: Any) -> Any:
        return function(**call)

    scored.__name__ = scored.__qualname__ = name
    vars(scored)["of"] = function
    return scored


def _hash(function: Any) -> str:
    model = getattr(function, "of", function)
    if not hasattr(model, "parameters"):
        return reward_hash(model)
    # it stands for a model's weights
    path = getattr(getattr(model, "config", None), "_name_or_path", "")
    return hashlib.sha256((path or type(model).__name__).encode()).hexdigest()[:12]


def _policy_of(trainer: Any) -> Policy:
    model, tokenizer = trainer.model, trainer.processing_class
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    name = str(getattr(base.config, "_name_or_path", "") or type(base).__name__)
    backend = "unsloth" if "unsloth" in sys.modules else "transformers"
    longest = (
        getattr(model, "max_seq_length", None)
        or getattr(base.config, "max_position_embeddings", None)
        or 0
    )
    return Policy(
        name=name, source=name, model=model, tokenizer=tokenizer, max_seq_length=max(16,
            int(longest)),
        device=str(model.device), backend=f"{backend} (your own trainer)", backend_name=backend,
            load_s=0.0, **measured(model),
        base=base_summed(name),
    )  # fmt: skip


def _recipe_of(trainer: Any, run_name: str, policy: Policy, task: Task) -> Recipe:
    # What is known of it, in a recipe's words: for those who read the run. It was never asked for
    # in them.
    shapes = getattr(policy.model, "peft_config", {})
    shape = shapes.get("default") or next(iter(shapes.values()), None)
    lora = {
        name: getattr(shape, name)
        for name in ("r", "lora_alpha", "lora_dropout")
        if hasattr(shape, name)
    }
    targets = getattr(shape, "target_modules", None)
    if isinstance(targets, (set, list)):
        lora["target_modules"] = sorted(targets)
    settings = (
        "per_device_train_batch_size", "gradient_accumulation_steps", "num_generations",
        "max_completion_length",
        "learning_rate", "beta", "temperature", "max_steps",
    )  # fmt: skip
    loaded = {
        "name": policy.name,
        "backend": policy.backend_name,
        "load_in_4bit": policy.linear4bit > 0,
    }
    loaded["max_seq_length"] = policy.max_seq_length
    grpo = {name: getattr(trainer.args, name) for name in settings}
    found = {
        "run_name": run_name,
        "task": task.name,
        "policy": loaded,
        "lora": lora,
        "grpo": grpo,
        "seed": trainer.args.seed,
    }
    return Recipe.of(found, "attach")
