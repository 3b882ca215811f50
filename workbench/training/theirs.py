"""A user's own trainer: what the record needs to know of it, and its rewards as it scores them."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from workbench.base.errors import RunError, nearest
from workbench.base.kinds import (
    Fields,
    Function,
    Prompt,
    Tensor,
    Trainer,
    TrainerControl,
    TrainerState,
)
from workbench.base.workspace import to_json
from workbench.data.answer_column import answer_named
from workbench.recipe import LoraPart, Recipe
from workbench.rewards.hashing import reward_hash
from workbench.rewards.suite import RewardSuite
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.run.metrics import LEARNING_RATE
from workbench.task import RESERVED_COLUMNS, Task, function_name, prompt_key
from workbench.training.plan import ONLY_STAGE, Stage
from workbench.training.plan.loading import base_summed, measured
from workbench.training.plan.settings import Batch
from workbench.training.plan.settings.in_force import settings_in_force
from workbench.training.policy import Policy
from workbench.training.replaced import replaces
from workbench.training.session import Session
from workbench.training.watchers import Watchers

# Of their config, what a recipe says in `grpo`.
_SETTINGS = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "num_generations",
    "max_completion_length", "learning_rate", "beta", "temperature", "max_steps",
)  # fmt: skip


class TheirRewards(RewardSuite):
    """What the record needs to know of the reward functions of a user's trainer, which calls them
    itself.
    """

    def __init__(self, trainer: Trainer, task: Task) -> None:
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
    if weights is None:
        weights = args.reward_weights or [1.0] * len(functions)
    columns = getattr(trainer.train_dataset, "column_names", None) or ()
    if answer_column and columns and answer_column not in columns:
        raise RunError(
            f"attach(answer_column={answer_column!r})",
            rule=f"the answer is a column of the rows, which have {', '.join(columns)}",
            remedy=nearest(answer_column, columns, "choose one of them"),
        )
    answers = answer_column or answer_named(columns) or "answer"
    weights = [float(weight) for weight in weights]
    task = Task("attached", (), functions, weights, right_by=right_by, answer_column=answers)
    names = [str(getattr(args, "run_name", None) or ""), Path(args.output_dir).name, "attached"]
    plain = (re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") for name in names)
    recipe = _recipe_of(trainer, run_name or next(filter(None, plain)), policy, task)
    planned, settings = (
        Batch(args.generation_batch_size, args.num_generations),
        settings_in_force(args),
    )
    suite = TheirRewards(trainer, task)
    stage = Stage(ONLY_STAGE, 0, recipe, task, [], settings, planned, suite, {}, [])
    unasked = "" if right_by else " (the first function; right_by= names another)"
    notes = [
        "without a recipe the workbench cannot resume this run: use your trainer's"
        " resume_from_checkpoint",
        f"a completion counts as right when {task.right_words}{unasked}",
    ]
    if answers in columns:
        notes.append(f"the right answers are in the column {answers!r}")
    notes.append(
        "wb.evaluate needs a task with held-out prompts: wb.evaluate(run, task=...)"
        if hasattr(trainer.model, "peft_config")
        else "the whole model is trained: your trainer saves it, the run directory does not; so"
        " no wb.evaluate, no wb.export"
    )
    return recipe, policy, [stage], notes


@replaces("_calculate_rewards", "_generate_and_score_completions")
class TheirSession(Session):
    """Records a trainer of the user's own: everything that its functions score, however it calls
    them, and a row for every step.
    """

    def __init__(
        self, run: RunDirectory, trainer: Trainer, stages: Sequence[Stage], watchers: Watchers
    ) -> None:
        super().__init__(run, trainer, stages, watchers)
        # by what is being generated now; None: nothing that can be compared is
        self._scored: list[ScoredBatch] | None = None
        self._told = False  # that it learns from other completions
        self._row: tuple[int, Fields] | None = None  # of a step that the trainer is about to log
        self._seen: dict[str, int] = {}  # numbers of the trainer's that are in rows already
        self._calculate = trainer._calculate_rewards
        self._generate: Any = getattr(trainer, "_generate_and_score_completions", None)
        self.replace("_calculate_rewards", self._calculated)
        if self._generate is not None:
            self.replace("_generate_and_score_completions", self._generated)

    def _calculated(
        self,
        inputs: Sequence[Fields],
        prompts: Sequence[Prompt],
        completions: Sequence[object],
        ids: Sequence[Sequence[int]],
        *more: object,
        **named: object,
    ) -> Tensor:
        started = time.perf_counter()
        scores = self._calculate(inputs, prompts, completions, ids, *more, **named)
        spent_s = time.perf_counter() - started
        if not self.trainer.model.training:  # it evaluates
            return scores
        with self.spared():
            suite = self.stage.scored_by[1]
            names = [name for name in inputs[0] if name not in {"prompt", *RESERVED_COLUMNS}]
            columns = {name: [to_json(row.get(name)) for row in inputs] for name in names}
            columns.setdefault("prompt_id", [_row_key(row) for row in inputs])
            batch = suite.batch(
                scores.detach().double().cpu().numpy(),
                completions,
                ids,
                columns=columns,
                step=self.trainer.state.global_step + 1,
                prompts=list(map(_in_words, prompts)),
                seconds={suite.names[0] if len(suite.names) == 1 else "all functions": spent_s},
            )
            self.scored(batch) if self._scored is None else self._scored.append(batch)
        return scores

    def _generated(self, *args: object, **named: object) -> object:
        # a subclass may generate again until it has what it wants
        outer, self._scored = self._scored, []
        try:
            made = self._generate(*args, **named)
        finally:
            batches, self._scored = self._scored, outer
        if outer is not None:
            outer += batches
            return made
        with self.spared():
            for batch in batches:
                self._compare(batch, made)
        return made

    def _compare(self, batch: ScoredBatch, made: Fields) -> None:
        batch, others = _as_trained_on(batch, made)
        self.scored(batch)
        if others:
            why = (
                "the trainer learns from other completions; the recorded advantages are those of"
                " the scores"
            )
            if not self._told:
                count = f"{len(others)} of {batch.group_count} groups"
                print(f"step {batch.step}: {count}: {why}", flush=True)
            self._told = True
            self.recorder.event("not_trained_on", batch.step, groups=others, why=why)

    # -- the trainer's hooks
    # --------------------------------------------------------------------------------------------
    def on_train_begin(self, state: TrainerState, control: TrainerControl) -> None:
        # a checkpoint that the user goes on from
        self.begun_at = self.recorder.steps_before = state.global_step
        self.recorder.tell("begin", self.run, state.max_steps, self.stage.settings)
        self.recorder.event("started", state.global_step, generation="the trainer")

    def on_step_begin(self, state: TrainerState, control: TrainerControl) -> None:
        # at the step's end it is already the next one's
        self._learning_rate = self.trainer._get_learning_rate()

    def on_step_end(self, state: TrainerState, control: TrainerControl) -> None:
        # A row for every step, however seldom the trainer logs: what it has noted of this step,
        # averaged as it would.
        known = {LEARNING_RATE: self._learning_rate, "epoch": state.epoch}
        self._row = state.global_step, self._noted() | known
        if not control.should_log:
            self._write_row({})

    def on_log(self, state: TrainerState, control: TrainerControl, logs: Fields) -> None:
        evaluated = {key: value for key, value in logs.items() if key.startswith("eval_")}
        if evaluated:  # of the trainer's own eval_dataset, after the step's row
            self.run.log_metrics(state.global_step, evaluated)
            return
        self._seen.clear()  # the trainer starts its averages again
        if "loss" in logs:
            self._write_row({key: logs[key] for key in ("loss", "grad_norm") if key in logs})

    def on_save(self, state: TrainerState, control: TrainerControl) -> None:
        folder = f"{self.trainer.args.output_dir}/checkpoint-{state.global_step}"
        self.recorder.event("checkpoint", state.global_step, folder=folder)

    def _noted(self) -> Fields:
        noted: Fields = {}
        for name, values in getattr(self.trainer, "_metrics", {}).get("train", {}).items():
            new = values[self._seen.get(name, 0) :]
            self._seen[name] = len(values)
            if new:
                numbers = [value for value in new if not math.isnan(value)]
                noted[name] = sum(numbers) / len(numbers) if numbers else None
        return noted

    def _write_row(self, logged: Fields) -> None:
        if self._row is not None:
            (step, row), self._row = self._row, None
            self.recorder.log(step, row | logged)


def _as_trained_on(batch: ScoredBatch, made: Fields) -> tuple[ScoredBatch, list[int]]:
    """The batch with the advantages that its trainer `made`, and the indices of the groups that it
    does not learn from.

    A subclass may replace some completions with others from a buffer, leave some out, or weigh them
    differently.
    """
    try:
        rows = made["completion_ids"].tolist()
        advantages = made["advantages"].double().cpu().numpy()
    except (KeyError, TypeError, AttributeError):
        rows, advantages = [], np.zeros(0)
    size, theirs, others = batch.num_generations, batch.advantages.copy(), []
    for place, first in enumerate(range(0, batch.group_count * size, size)):
        own = slice(first, first + size)
        # Most likely it is where it was.
        for start in (first, *range(0, len(rows), size)):
            there = slice(start, start + size)
            if _begin_with(rows[there], batch.completion_ids[own]):
                if not np.allclose(advantages[there], theirs[own], rtol=0.01, atol=0.001):
                    theirs[own] = advantages[there]
                break
        else:
            others.append(place)
    return dataclasses.replace(batch, groups=batch.groups._replace(advantages=theirs)), others


def _begin_with(rows: list[list[int]], own: Sequence[list[int]]) -> bool:
    # Rows are padded on the right.
    return len(rows) == len(own) and all(map(lambda row, ids: row[: len(ids)] == ids, rows, own))


def _in_words(prompt: Prompt) -> object:
    # Messages whose content is in parts, as they are made of prompts with pictures: [image 640x480]
    # and the text.
    def word(part: Fields) -> str:
        kind = part.get("type", "part")
        return part.get("text") or str(to_json(part.get(kind, f"[{kind}]")))

    def content(parts: object) -> object:
        return "".join(map(word, parts)) if isinstance(parts, list) else parts

    if isinstance(prompt, str):
        return prompt
    return to_json([{**message, "content": content(message.get("content"))} for message in prompt])


def _row_key(row: Fields) -> str:
    # One for all completions of a row, whatever its environment or template made of the prompt.
    seen = _pictures([row.get(name) for name in ("prompt", "image", "images")])
    pictures = [hashlib.sha256(each.tobytes()).hexdigest() for each in seen]
    prompt = to_json(row.get("prompt"))
    return prompt_key([prompt, *pictures] if pictures else prompt)[:12]


def _pictures(value: object) -> Iterator[Any]:
    if hasattr(value, "getbands"):
        yield value
    elif isinstance(value, (list, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _pictures(each)


def _named(function: Function, name: str) -> object:
    if not hasattr(function, "parameters") and function_name(function) == name:
        return function

    def scored(**call: object) -> object:
        return function(**call)

    scored.__name__ = scored.__qualname__ = name
    vars(scored)["of"] = function
    return scored


def _hash(function: Function) -> str:
    model = getattr(function, "of", function)
    if not hasattr(model, "parameters"):
        return reward_hash(model)
    # it stands for a model's weights
    path = getattr(getattr(model, "config", None), "_name_or_path", "")
    return hashlib.sha256((path or type(model).__name__).encode()).hexdigest()[:12]


def _policy_of(trainer: Any) -> Policy:
    model = trainer.model
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    name = str(getattr(base.config, "_name_or_path", "") or type(base).__name__)
    backend = "unsloth" if "unsloth" in sys.modules else "transformers"
    positions = getattr(base.config, "max_position_embeddings", None)
    longest = getattr(model, "max_seq_length", None) or positions or 0
    return Policy(
        name=name,
        source=name,
        model=model,
        tokenizer=trainer.processing_class,
        max_seq_length=max(16, int(longest)),
        device=str(model.device),
        backend=f"{backend} (your own trainer)",
        backend_name=backend,
        load_s=0.0,
        **measured(model),
        base=base_summed(name),
    )


def _recipe_of(trainer: Trainer, run_name: str, policy: Policy, task: Task) -> Recipe:
    # What is known of it, in a recipe's words: for those who read the run. It was never asked for
    # in them.
    shapes = getattr(policy.model, "peft_config", {})
    shape = shapes.get("default") or next(iter(shapes.values()), None)
    known = {name: getattr(shape, name, None) for name in LoraPart.model_fields}
    targets = known["target_modules"]
    known["target_modules"] = sorted(targets) if isinstance(targets, (set, list)) else None
    lora = {name: value for name, value in known.items() if value is not None}
    content = {
        "run_name": run_name,
        "task": task.name,
        "policy": {
            "name": policy.name,
            "backend": policy.backend_name,
            "load_in_4bit": policy.linear4bit > 0,
            "max_seq_length": policy.max_seq_length,
        },
        "lora": lora,
        "grpo": {name: getattr(trainer.args, name) for name in _SETTINGS},
        "seed": trainer.args.seed,
    }
    return Recipe.of(content, "attach")
