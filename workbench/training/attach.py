"""Putting the workbench on a trainer: record, live figure, health, control and a graceful stop, around its own `train()`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from workbench import processes
from workbench.data.answer_column import answer_named
from workbench.data.split import fingerprint
from workbench.errors import RunError, nearest
from workbench.recipe import Recipe
from workbench.rewards.answers import completion_text
from workbench.rewards.groups import batch_of
from workbench.rewards.hashing import reward_hash
from workbench.rewards.library import max_score_of
from workbench.rewards.suite import RewardSuite
from workbench.run.batch import ScoredBatch
from workbench.run.differences import NOT_SET, Differences
from workbench.run.directory import RunDirectory, environment, now, versions
from workbench.task import RESERVED_COLUMNS, Task, function_name, prompt_key
from workbench.training import settings as settings_of
from workbench.training.background import announce
from workbench.training.loading import base_differs, base_summed, eos_ids, measured, random_kept
from workbench.training.plan import ONLY_STAGE, Plan, Stage
from workbench.training.policy import Policy
from workbench.training.resuming import Point, kept_task
from workbench.training.session import Made, Session, StagedSession
from workbench.training.settings.algorithms import asked_settings
from workbench.training.settings.in_force import as_json, decides, settings_in_force
from workbench.training.watchers import Watchers
from workbench.workspace import shown, to_json

# Trainers that are not GRPO, by a part of their names -> what they do.
_OTHERS = {
    "RLOO": "it has groups, but the baseline is the mean of the others, and the loss is another",
    "OnlineDPO": "it learns from which of two completions a judge prefers",
    "DPO": "it learns from pairs of completions that the dataset brings",
    "SFT": "it learns to write the dataset's texts, without rewards",
}


@random_kept()
def attach(
    trainer: Any,
    plan: Plan | None = None,
    *,
    run_name: str | None = None,
    watchers: Watchers = None,
    runs: str | Path = "runs",
    right_by: str | tuple[str, float] | None = None,
    answer_column: str | None = None,
) -> RunDirectory:
    """Put the workbench on a GRPOTrainer, and return the run that its `train()` will record.

    >>> trainer = GRPOTrainer(model=model, reward_funcs=[my_reward], args=config, train_dataset=rows)
    >>> run = wb.attach(trainer)  # in any notebook, on anyone's trainer
    >>> _ = trainer.train()
    >>> run.result()["status"]
    'finished'

    Every completion of every group, each function's scores, a row of metrics for every step, events and the manifest go
    into the run directory; in a notebook the live figure shows them. The run's health is looked at, the first Interrupt
    stops after the step in flight, and `workbench control` steers. The trainer's numbers stay what they are: the same seed
    gives the same metrics and the same weights with and without this.

    A trainer of `make_trainer` gets more: `wb.continue_run` resumes from its checkpoints, its prompts are read once for all their
    completions, held-out ones are measured (`eval_every`; your own trainer has TRL's `eval_dataset`), and **`trainer.train()`
    trains all the stages of its plan**, each with a separate trainer.

    Args:
        trainer: a `GRPOTrainer` of TRL or Unsloth, ready to train, in one process.
        plan: what `make_trainer` made it from; None: whatever that was.
        run_name: None: the recipe's, or the trainer's own `args.run_name` or output folder.
        watchers: what shows the run; None: the live plot in a notebook, nothing elsewhere.
        runs: folder for the run directory.
        right_by: which of your functions says that a completion is right, as of a `Task`. None: nobody says, and wherever the run
            speaks of right completions it names the first function. A trainer of `make_trainer` has its task's.
        answer_column: the column of your dataset with the right answer; None: recognised by its name where that leaves no doubt.

    Raises:
        RunError: if it is no GRPOTrainer, is attached already, was made from another plan, or calls tools or an environment.
        TaskError: if `right_by` names none of its functions.
    """
    _check(trainer, plan)
    if vars(trainer).get(Made.KEY) and (right_by or answer_column):
        value, rule = "attach(right_by=, answer_column=): this trainer was made from a plan", "its task says both"
        raise RunError(value, rule=rule, remedy="Task(right_by=..., answer_column=...)")
    if made := vars(trainer).get(Made.KEY):
        plan, policy, more = made.plan, made.policy, {}
        changed = settings_of.check_in_force({**plan.stages[0].settings, "report_to": "none"}, trainer.args)
        recipe, stages, notes = plan.recipe, plan.stages, list(dict.fromkeys([*plan.notes, *changed]))
        print(*notes, f"{plan.words}.", f"{plan.generation}.", sep="\n")
    else:
        recipe, policy, stages, notes = _of_theirs(trainer, run_name, right_by, answer_column)
        more = {"attached": True, "settings_table": []}  # who set what in their config is not known
    manifest = manifest_of(recipe, policy, stages, trainer, notes) | more
    name = run_name or recipe.run_name
    run = processes.as_seen(processes.in_main(lambda: RunDirectory.create(name, recipe, manifest, runs)))
    try:
        if made:
            # The tasks as they are now: they may be edited while the run trains, and it may go on later.
            own = [(stage.task, stage.number) for stage in stages if stage.task is not plan.task]
            for task, number in [(plan.task, None), *own]:
                if task is not None and task.source and processes.is_main():
                    (kept := kept_task(run, number)).parent.mkdir(exist_ok=True)
                    shutil.copyfile(task.source, kept)
            StagedSession(run, trainer, watchers)
            announce(run)
        else:
            _record_rewards(Session(run, trainer, stages, watchers))
            print(f"{run.name}: recorded in {shown(run.path)}; {'; '.join(notes)}")
    except BaseException:
        run.discard()
        raise
    return run


@random_kept()
def go_on(run: RunDirectory, trainer: Any, point: Point, watchers: Watchers, notes: Sequence[str]) -> None:
    """Attach a trainer of `make_trainer` to a run that goes on from a checkpoint; `notes` are printed."""
    plan = vars(trainer)[Made.KEY].plan
    print(*plan.notes, *notes, f"{plan.words}.", f"{plan.generation}.", sep="\n")
    StagedSession(run, trainer, watchers, point)
    announce(run)


def _check(trainer: Any, plan: Plan | None) -> None:
    kinds = [kind.__name__ for kind in type(trainer).__mro__]
    if not any(kind.endswith("GRPOTrainer") for kind in kinds) or not hasattr(trainer, "_calculate_rewards"):
        kind = next((kind for kind in kinds if kind.endswith("Trainer")), "")
        about = next((f", which is not GRPO: {does}" for name, does in _OTHERS.items() if name in kind), "")
        rule, remedy = "the workbench attaches to a GRPOTrainer of TRL or Unsloth", "hand over the trainer: wb.attach(trainer)"
        if kind:
            remedy = f"train without attach ({kind}'s own report_to keeps its metrics), or make a GRPOTrainer and attach that"
        raise RunError(f"attach: an object of type {type(trainer).__name__}{about}", rule=rule, remedy=remedy)
    used = {name: getattr(trainer, name, None) for name in settings_of.TURNS}
    used["environment_factory"] = used["environment_factory"] or getattr(trainer, "environment_factories", None)
    settings_of.check_turns(used, "attach", RunError)
    if isinstance(session := getattr(trainer.train, "__self__", None), Session):
        value, rule = f"attach: this trainer is attached already, as {session.run.name}", "a trainer trains one run at a time"
        raise RunError(value, rule=rule, remedy="call trainer.train(), or make the trainer again")
    made = vars(trainer).get(Made.KEY)
    if plan is not None and (made is None or made.given is not plan):
        value, rule = "attach(trainer, plan): this trainer was not made from that plan", "a plan says what its own trainer trains"
        rule += ", its stages and warm start included"
        raise RunError(value, rule=rule, remedy="trainer = wb.make_trainer(plan, policy); or, without it: wb.attach(trainer)")
    if (several := trainer.accelerator.num_processes) > 1 and (made is None or several != processes.count()):
        value = f"attach: {several} processes train together"
        rule = "of several processes, a trainer made from a recipe is recorded, started by `accelerate launch` or torchrun"
        raise RunError(value, rule=rule, remedy="train a recipe, or on one GPU, or without attach")


# -- the manifest: what was found when a run began, beside the recipe, which is what was asked -----------------------
def manifest_of(recipe: Recipe, policy: Policy, stages: Sequence[Stage], trainer: Any, notes: list[str]) -> dict[str, Any]:
    """Versions, device, task, reward hashes, the settings in force in the first stage; `notes` are what was printed."""
    first, task, source = stages[0], stages[0].task, stages[0].task.source
    given, longest = {**first.settings, "report_to": "none", "seed": recipe.seed}, max(first.lengths_tokens, default=None)
    # What notebook 01 left beside the task file: the source, the split's rule, the fingerprints, the band.
    card = Path(source).parent / "card.json"
    asked = {"name": task.name, "source": source or recipe.task, **_right(task), "format_by": task.format_by}
    asked |= {"answer_column": task.answer_column, "rows": fingerprint(task.rows), "held_out": fingerprint(task.held_out)}
    found = {
        "id": uuid.uuid4().hex,
        "created": now(),
        "recipe": recipe.model_dump(mode="json"),
        "versions": versions(),
        "environment": environment(),
        "policy": policy.found(),
        "trainer": f"{type(trainer).__mro__[0].__module__}.{type(trainer).__name__}",
        "task": {**asked, "card": json.loads(card.read_text(encoding="utf-8")) if source and card.is_file() else None},
        "rewards": _rewards(first),
        "processes": processes.count(),
        "eos_ids": eos_ids(trainer),
        "template": _template(policy),
        "settings": {"asked": asked_settings(recipe), "in_force": settings_in_force(trainer.args), "translated": notes},
        "settings_table": [
            {key: as_json(value) for key, value in row._asdict().items()}
            for row in settings_of.in_force_table(settings_of.asked_of(recipe), trainer.args, given)
        ],
        "prompts": {"used": len(first.rows), "left_out_too_long": first.left_out_too_long, "longest_tokens": longest},
    }
    if first.name != ONLY_STAGE or len(stages) > 1:
        found["stages"] = [_stage(stage) for stage in stages]
    return found


def changed_policy(run: RunDirectory, policy: Policy, changed: Differences) -> None:
    """Add to `changed` how the policy differs from the run's manifest: template, device, how it computes; and variables."""
    manifest, found = run.manifest(), policy.found()
    then = {"policy": manifest.get("policy") or {}, "template": manifest.get("template") or _template(policy)}
    changed.diff(
        then | {"environment": _environment_then(manifest)},
        {"policy": found, "template": _template(policy), "environment": environment()},
    )
    if differs := base_differs(then["policy"].get("base"), found["base"]):
        changed.refused.append(f"the base was changed: {differs}")


def _environment_then(manifest: dict[str, Any]) -> dict[str, str]:
    # The variables when the run was last trained; those of now for a run of an earlier version, which kept none.
    then = dict(manifest.get("environment", environment()))
    for changes in (manifest.get("environment_after") or {}).values():
        then |= changes
    return then


def environment_after(manifest: dict[str, Any], step: int) -> dict[str, dict[str, str]]:
    """For the manifest: environment variables that changed, by the step at which the run resumed."""
    earlier = {after: own for after, own in (manifest.get("environment_after") or {}).items() if int(after) < step}
    then = _environment_then({**manifest, "environment_after": earlier})
    here = environment()
    changes = {name: here.get(name, NOT_SET) for name in sorted(then.keys() | here.keys()) if then.get(name) != here.get(name)}
    return earlier | ({str(step): changes} if changes else {})


def changed_settings(run: RunDirectory, trainer: Any, changed: Differences, stage: int) -> None:
    """Add to `changed` effective settings that changed without a request, such as another version's default.

    The manifest has those of the first stage, and what the later ones set otherwise; `stage`: its number, from 0.
    """
    manifest, now = run.manifest(), settings_in_force(trainer.args)
    then, asked = ((manifest.get("settings") or {}).get(of) or {} for of in ("in_force", "asked"))
    known = {line.partition(":")[0].removeprefix("grpo.") for line in changed.shown + changed.refused}
    known |= {"max_steps", *asked}
    if stage:
        first, own = (manifest["stages"][number].get("settings", {}) for number in (0, stage))
        then = {**then, **{name: own[name] for name in own if own[name] != first.get(name)}}
        known |= {"steps_per_generation", "generation_batch_size"}  # which follow from others
    if "environment" not in manifest:  # a version that recorded no environment recorded few settings
        known |= then.keys() ^ now.keys()
    sides = ({"in_force": {name: own[name] for name in own if name not in known}} for own in (then, now))
    changed.diff(*sides)


def _template(policy: Policy) -> str:
    return fingerprint([{"template": policy.tokenizer.chat_template or "", **policy.chat_template_kwargs}])


def _rewards(stage: Stage) -> dict[str, Any]:
    suite = stage.suite
    return {
        "hash": suite.hash,
        "functions": suite.hashes,
        "weights": dict(zip(suite.names, suite.weights, strict=True)),
        "best": dict(zip(suite.names, map(max_score_of, stage.task.reward_funcs), strict=True)),
        "run": suite.functions.places,
    }


def _right(task: Task) -> dict[str, Any]:
    return {"right_by": task.right_function, "right_at": task.right_at, "right_by_default": not task.right_by}


def _stage(stage: Stage) -> dict[str, Any]:
    task = stage.task
    return {
        "name": stage.name, "steps": stage.steps, "after": stage.offset, "task": task.source or task.name,
        "rows": fingerprint(task.rows), "prompts": len(stage.rows), **_right(task),
        "format_by": task.format_by, "rewards": _rewards(stage),
        "settings": {key: as_json(value) for key, value in stage.settings.items() if decides(key)},
    }  # fmt: skip


# -- somebody's own trainer --------------------------------------------------------------------------------------------
class TheirRewards(RewardSuite):
    """What the record needs to know of the reward functions of somebody's trainer, which calls them itself."""

    def __init__(self, trainer: Any, task: Task) -> None:
        self.task, self.names, self.notes, self.on_batch = task, task.function_names, [], None
        self.weights = list(task.weights)
        self.num_generations, self.scale_rewards = trainer.num_generations, trainer.scale_rewards
        self.aggregation = getattr(trainer, "multi_objective_aggregation", "sum_then_normalize")
        self.hashes = dict(zip(self.names, map(_hash, task.reward_funcs), strict=True))
        self.functions = SimpleNamespace(places=dict.fromkeys(self.names, "their trainer"), close=lambda: None)


def _of_theirs(
    trainer: Any, run_name: str | None, right_by: str | tuple[str, float] | None, answer_column: str | None
) -> tuple[Recipe, Policy, list[Stage], list[str]]:
    args, policy, functions = trainer.args, _policy_of(trainer), []
    for function, name in zip(trainer.reward_funcs, trainer.reward_func_names, strict=True):
        same = trainer.reward_func_names[: len(functions)].count(name)
        functions.append(_named(function, f"{name}-{same + 1}" if same else name))
    # The weights in force: an environment's own reward has one, too, that no config names.
    weights = getattr(trainer, "reward_weights", None)
    weights = (args.reward_weights or [1.0] * len(functions)) if weights is None else weights.tolist()
    columns = getattr(trainer.train_dataset, "column_names", None) or ()
    if answer_column and columns and answer_column not in columns:
        value, remedy = f"attach(answer_column={answer_column!r})", nearest(answer_column, columns, "choose one of them")
        raise RunError(value, rule=f"the answer is a column of the rows, which have {', '.join(columns)}", remedy=remedy)
    answers = answer_column or answer_named(columns) or "answer"
    task = Task("attached", (), functions, weights, right_by=right_by, answer_column=answers)
    names = [str(getattr(args, "run_name", None) or ""), Path(args.output_dir).name, "attached"]
    called = next(filter(None, (re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") for name in names)))
    recipe = _recipe_of(trainer, run_name or called, policy, task)
    stage = Stage(ONLY_STAGE, 0, recipe, task, [], settings_in_force(args), None, TheirRewards(trainer, task), {}, [])
    unasked = "" if right_by else " (the first function; right_by= says another)"
    notes = [
        "without a recipe the workbench cannot go on with this run: that is your trainer's resume_from_checkpoint",
        f"a completion counts as right when {task.right_words}{unasked}",
        *[f"the right answers are in the column {answers!r}"] * (answers in columns),
        "wb.evaluate needs a task with held-out prompts: wb.evaluate(run, task=...)"
        if hasattr(trainer.model, "peft_config")
        else "the model is trained whole: your trainer saves it, the run directory does not; so no wb.evaluate, no wb.export",
    ]
    return recipe, policy, [stage], notes


def _record_rewards(session: Session) -> None:
    """Keep a copy of whatever the trainer's functions score, however it calls them."""
    trainer, calculate, suite = session.trainer, session.trainer._calculate_rewards, session.stage.suite
    scored: list[ScoredBatch] | None = None  # by what is being generated now; None: nothing that can be compared is

    def calculated(inputs: Any, prompts: Any, completions: Any, completion_ids: Any, *more: Any, **named: Any) -> Any:
        started = time.perf_counter()
        scores = calculate(inputs, prompts, completions, completion_ids, *more, **named)
        if trainer.model.training:  # it evaluates otherwise
            record(scores, inputs, prompts, completions, completion_ids, time.perf_counter() - started)
        return scores

    @session.safe
    def record(scores: Any, inputs: Any, prompts: Any, completions: Any, completion_ids: Any, seconds: float) -> None:
        scores = scores.detach().double().cpu().numpy()
        names = [name for name in inputs[0] if name not in {"prompt", *RESERVED_COLUMNS}]
        columns = {name: [to_json(row.get(name)) for row in inputs] for name in names}
        columns.setdefault("prompt_id", [_row_key(row) for row in inputs])
        spent = {suite.names[0] if len(suite.names) == 1 else "all functions": seconds}
        found = {"step": trainer.state.global_step + 1, "prompts": [*map(_in_words, prompts)], "seconds": spent}
        ids = {"completion_ids": [list(own) for own in completion_ids], "lengths": np.array(list(map(len, completion_ids)))}
        texts, groups = map(completion_text, completions), (suite.num_generations, suite.scale_rewards, suite.aggregation)
        right = suite.task.is_right(scores[:, suite.names.index(suite.task.right_function)])
        scored_by = (suite.names, suite.weights, scores, list(texts), right, *groups)
        batch = batch_of(*scored_by, reward_hash=suite.hash, columns=columns, **ids, **found)
        session.recorder.batch(batch) if scored is None else scored.append(batch)

    def generated(*args: Any, **named: Any) -> Any:
        nonlocal scored
        outer, scored = scored, []  # a subclass may generate again until it has what it wants
        try:
            made = generate(*args, **named)
        finally:
            batches, scored = scored, outer
        compare(batches, made) if outer is None else outer.extend(batches)
        return made

    @session.safe
    def compare(batches: list[ScoredBatch], made: Any) -> None:
        for batch in batches:
            batch, others = _as_trained_on(batch, made)
            session.recorder.batch(batch)
            if others:
                why = "the trainer learns from other completions; the advantages on record are those of the scores"
                if not said:
                    print(f"step {batch.step}: {len(others)} of {batch.group_count} groups: {why}", flush=True)
                said.append(batch.step)
                session.recorder.event("not_trained_on", batch.step, groups=others, why=why)

    said: list[int] = []
    session.replace("_calculate_rewards", calculated)
    if generate := getattr(trainer, "_generate_and_score_completions", None):
        session.replace("_generate_and_score_completions", generated)


def _as_trained_on(batch: ScoredBatch, made: Any) -> tuple[ScoredBatch, list[int]]:
    """The batch with the advantages that its trainer `made`, and the groups (by place) that it does not learn from.

    A subclass may put completions from a buffer in the place of some, leave some out, or weigh them otherwise.
    """
    try:
        rows, advantages = made["completion_ids"].tolist(), made["advantages"].double().cpu().numpy()
    except (KeyError, TypeError, AttributeError):
        rows, advantages = [], np.zeros(0)
    size, theirs, others = batch.num_generations, batch.advantages.copy(), []
    for place in range(batch.group_count):
        own = slice(place * size, place * size + size)
        # Padded on the right. Most likely it is where it was.
        for start in (own.start, *range(0, len(rows), size)):
            there = rows[start : start + size]
            if len(there) == size and all(
                row[: len(ids)] == ids for row, ids in zip(there, batch.completion_ids[own], strict=True)
            ):
                if not np.allclose(advantages[start : start + size], theirs[own], rtol=0.01, atol=0.001):
                    theirs[own] = advantages[start : start + size]
                break
        else:
            others.append(place)
    return dataclasses.replace(batch, groups=batch.groups._replace(advantages=theirs)), others


def _in_words(prompt: Any) -> Any:
    # Messages whose content is in parts, as they are made of prompts with pictures: [image 640x480] and the text.
    def content(parts: Any) -> Any:
        if not isinstance(parts, list):
            return parts
        named = ((part, part.get("type", "part")) for part in parts)
        return "".join(part.get("text") or str(to_json(part.get(kind, f"[{kind}]"))) for part, kind in named)

    if isinstance(prompt, str):
        return prompt
    return to_json([{**message, "content": content(message.get("content"))} for message in prompt])


def _row_key(row: dict[str, Any]) -> str:
    # One for all completions of a row, whatever its environment or template made of the prompt.
    seen = _pictures([row.get(name) for name in ("prompt", "image", "images")])
    pictures, prompt = [hashlib.sha256(each.tobytes()).hexdigest() for each in seen], to_json(row.get("prompt"))
    return prompt_key([prompt, *pictures] if pictures else prompt)[:12]


def _pictures(value: Any) -> Iterator[Any]:
    if hasattr(value, "getbands"):
        yield value
    elif isinstance(value, (list, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _pictures(each)


def _named(function: Any, name: str) -> Any:
    if not hasattr(function, "parameters") and function_name(function) == name:
        return function

    def scored(**call: Any) -> Any:
        return function(**call)

    scored.__name__ = scored.__qualname__ = name
    scored.of = function
    return scored


def _hash(function: Any) -> str:
    model = getattr(function, "of", function)
    if not hasattr(model, "parameters"):
        return reward_hash(model)
    path = getattr(getattr(model, "config", None), "_name_or_path", "")  # it stands for a model's weights
    return hashlib.sha256((path or type(model).__name__).encode()).hexdigest()[:12]


def _policy_of(trainer: Any) -> Policy:
    model, tokenizer = trainer.model, trainer.processing_class
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    name = str(getattr(base.config, "_name_or_path", "") or type(base).__name__)
    backend = "unsloth" if "unsloth" in sys.modules else "transformers"
    longest = getattr(model, "max_seq_length", None) or getattr(base.config, "max_position_embeddings", None) or 0
    return Policy(
        name=name, source=name, model=model, tokenizer=tokenizer, max_seq_length=max(16, int(longest)),
        device=str(model.device), backend=f"{backend} (your own trainer)", backend_name=backend, load_s=0.0, **measured(model),
        base=base_summed(name),
    )  # fmt: skip


def _recipe_of(trainer: Any, run_name: str, policy: Policy, task: Task) -> Recipe:
    # What is known of it, in a recipe's words: for those who read the run. It was never asked for in them.
    shapes = getattr(policy.model, "peft_config", {})
    shape = shapes.get("default") or next(iter(shapes.values()), None)
    lora = {name: getattr(shape, name) for name in ("r", "lora_alpha", "lora_dropout") if hasattr(shape, name)}
    if isinstance(getattr(shape, "target_modules", None), (set, list)):
        lora["target_modules"] = sorted(shape.target_modules)
    settings = (
        "per_device_train_batch_size", "gradient_accumulation_steps", "num_generations", "max_completion_length",
        "learning_rate", "beta", "temperature", "max_steps",
    )  # fmt: skip
    loaded = {"name": policy.name, "backend": policy.backend_name, "load_in_4bit": policy.linear4bit > 0}
    loaded["max_seq_length"] = policy.max_seq_length
    grpo = {name: getattr(trainer.args, name) for name in settings}
    found = {"run_name": run_name, "task": task.name, "policy": loaded, "lora": lora, "grpo": grpo, "seed": trainer.args.seed}
    return Recipe.of(found, "attach")
