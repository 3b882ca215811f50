"""Resuming from a checkpoint: the state of training, kept beside the adapter without a pickle; and
a run's own task.

A checkpoint holds the adapter (PEFT), `optimizer.safetensors` (the optimiser's tensors and the
random states of torch) and `state.json` (where the run was: stage, step, schedule, float16's
gradient scaler, Python's and numpy's random states, and the sums of all its files). It is written
atomically, and checked before a run resumes from it; `restoring.py` puts it back into a trainer.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.base.errors import RunError
from workbench.base.kinds import Fields, Model, Module, Tensor, Tokenizer, Trainer
from workbench.base.workspace import (
    find,
    replace_folder,
    shown,
    size_and_sum,
    to_json,
    write_json,
)
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory
from workbench.task import Task, fingerprint
from workbench.tasks.loading import load_task
from workbench.training.randomness import random_states

TENSORS, _STATE = "optimizer.safetensors", "state.json"
# of a checkpoint; the other files are those of an adapter
STATE_FILES = (TENSORS, _STATE, "trainer_state.json")


@dataclass(frozen=True)
class Point:
    """Where a run can resume."""

    folder: Path
    stage: int  # number of the stage, from 0
    step: int  # of the whole run
    done: int  # steps of the stage
    state: Fields
    passed_over: tuple[str, ...] = ()  # newer checkpoints, and what is wrong with each
    held_rate: float | None = None  # the learning rate from here on; None: the schedule's


def save_checkpoint(
    trainer: Any,
    run: RunDirectory,
    known: Fields,
    states: list[dict] | None,
    weights: Fields | None,
) -> Path:
    """Save the adapter and the state of training atomically, and drop old ones.

    `known`: the stage, the steps `done` in it, its adaptive weights' state, and what is `recorded`;
    `states`: what `random_states()` said in each process at the end of the step (None: now, in this
    one); `weights` as `whole_weights` gave them. RunError if the adapter's weights are not numbers.
    """
    from transformers.trainer_utils import rotate_checkpoints

    check_finite(trainer.model, run, trainer.state.global_step, weights)
    check_room(run, trainer.model)
    target = run.checkpoints / f"checkpoint-{trainer.state.global_step}"
    with replace_folder(target) as folder:
        save_adapter(trainer.model, trainer.processing_class, folder, weights)
        trainer.state.save_to_json(str(folder / "trainer_state.json"))
        state = _saved_state(trainer, folder, states or [random_states()], known["done"])
        files = {file.name: size_and_sum(file) for file in folder.iterdir() if file.is_file()}
        state = to_json(state | known | {"run": run.identity, "files": files})
        write_json(folder / _STATE, state | {"sha256": sum_of_state(state)})
    rotate_checkpoints(str(run.checkpoints), trainer.args.save_total_limit)
    return target


def is_spread(trainer: Trainer) -> bool:
    """Whether a process has only its share of weights or optimiser (FSDP, DeepSpeed), so that all
    must help to save them.
    """
    return bool(trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)


def whole_weights(trainer: Trainer) -> Fields | None:
    """The weights of a model that is spread over processes; None: each has them all. All processes
    must call this.
    """
    return trainer.accelerator.get_state_dict(trainer.model_wrapped) if is_spread(trainer) else None


def check_finite(model: Model, run: RunDirectory, step: int, weights: Fields | None = None) -> None:
    """RunError if a trained weight is nan or inf: nothing can continue from it, and no export of it
    can speak.
    """
    weights = weights or dict(_trained(model))
    broken = [name for name, weight in weights.items() if not weight.isfinite().all()]
    if broken:
        tensors = f"{len(broken)} of the trained tensors hold nan or inf, {broken[0]} first"
        raise not_numbers(run, f"after step {step} {tensors}")


def not_numbers(run: RunDirectory, what: str, updates: int | None = None) -> RunError:
    """The error of a run whose weights, or what they compute, are nan or inf: such weights are
    never saved. `updates` of the weights so far: after none the policy itself is damaged.
    """
    good = next(iter(run.saved()), None)
    again = "no checkpoint was saved before"
    if good:
        again = f"`workbench continue {run.name}` resumes from {good.name}"
    elif updates == 0:
        return RunError(
            f"{run.name}: {what}, and nothing has been updated yet",
            rule="a policy's weights are numbers before it is trained",
            remedy="download or copy the weights again, or, if they were trained before, take an"
            " earlier checkpoint: a file of the policy or of its adapter holds nan or inf",
        )
    return RunError(
        f"{run.name}: {what}",
        rule="a policy whose weights are not numbers learns nothing more",
        remedy=f"{again}; what helps: a lower learning_rate or max_grad_norm, bfloat16 instead of"
        " float16",
    )


def check_room(run: RunDirectory, model: Module, args: Any = None, steps: int = 1) -> None:
    """RunError unless there is room for a checkpoint; with the trainer's `args`, for all that it
    keeps over `steps`.
    """
    kept = 1
    if args:
        more = min(max(steps, 0) // max(1, int(args.save_steps)), args.save_total_limit or 1)
        kept += max(0, more - len(run.saved()))
    needed = checkpoint_bytes(model) * kept
    if (free := shutil.disk_usage(run.path).free) < needed:
        raise RunError(
            f"{shown(run.path)}: {free / 1e6:,.0f} MB are free",
            rule=f"checkpoints need about {needed / 1e6:,.0f} MB here",
            remedy=f"make room, then {run.again}",
        )


def checkpoint_bytes(model: Module) -> int:
    """Approximate bytes of a checkpoint: the trained weights, and twice as much in 32 bits for the
    optimiser's moments.
    """
    return sum(weight.numel() * (weight.element_size() + 8) for _, weight in _trained(model))


def _trained(model: Module) -> list[tuple[str, Tensor]]:
    return [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]


def sum_of_state(state: Fields) -> str:
    """What a checkpoint's state.json says of itself: SHA-256 of the rest."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _saved_state(trainer: Any, folder: Path, states: list[Fields], done: int) -> Fields:
    # What makes the numbers go on; tensors are written beside it.
    import torch
    from safetensors.torch import save_file

    # else it is saved before the first step, for a warm start
    begun = trainer.optimizer is not None
    packed: Fields = {"state": {}, "param_groups": []}
    if begun and not is_spread(trainer):
        packed = trainer.optimizer.state_dict()
    moments = {
        f"{index}.{key}": value
        for index, values in packed["state"].items()
        for key, value in values.items()
    }
    tensors = {
        name: value.detach().cpu().contiguous().clone()
        for name, value in moments.items()
        if isinstance(value, torch.Tensor)
    }
    random: Fields = {}
    for number, own in enumerate(states):
        name = f"random{number or ''}"
        random[name] = {kind: own[kind] for kind in ("python", "numpy")}
        parts = {f"{name}.{kind}": own[kind] for kind in ("torch", "cuda")}
        tensors |= {key: value for key, value in parts.items() if value is not None}
    save_file(tensors, str(folder / TENSORS))
    schedule = trainer.lr_scheduler.state_dict() if begun else {}
    schedule.pop("lr_lambdas", None)  # the recipe's own functions
    scaler = trainer.accelerator.scaler  # there is one only where float16 is trained
    args = trainer.args
    window = args.steps_per_generation * trainer.num_iterations
    return random | {
        "step": trainer.state.global_step,
        "tokens": states[0].get("tokens", trainer.state.num_input_tokens_seen),
        "whole_generation": done * args.gradient_accumulation_steps % window == 0,
        "optimizer": {
            "plain": {key: moments[key] for key in moments.keys() - tensors.keys()},
            "groups": packed["param_groups"],
        },
        "scaler": scaler and scaler.state_dict(),
        "schedule": {
            key: value for key, value in schedule.items() if isinstance(value, (int, float, list))
        },
    }


def latest_point(run: RunDirectory, checkpoint: str | None = None) -> Point:
    """The newest whole checkpoint of a run, or the one called `checkpoint`; RunError if it is
    missing or not whole.
    """
    saved = {folder.name: folder for folder in run.saved()}
    if checkpoint:
        name = f"checkpoint-{checkpoint}" if checkpoint.isdecimal() else checkpoint
        if name not in saved:
            raise RunError(
                f"{run.name}: no {name}",
                rule="a run resumes from one of its checkpoints",
                remedy=f"choose one that it has: {', '.join(saved) or 'none'}",
            )
        saved = {name: saved[name]}
    damaged: list[str] = []
    for name, folder in saved.items():
        try:
            state = _whole_state(folder, run)
            place = state["stage"], state["step"], state["done"]
            return Point(folder, *place, state, tuple(damaged))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            known = type(error) is ValueError
            why = error if known else f"{_STATE}: {type(error).__name__}: {error}"
            damaged.append(f"{name} is damaged ({why})")
    remedy = "start a new run, with a lower grpo.save_steps"
    if damaged:
        remedy = "choose another with --from checkpoint-N, or put the file back from a copy"
        remedy += "; the final adapter is in checkpoints/final" if run.final.is_dir() else ""
    raise RunError(
        "; ".join([f"{shown(run.checkpoints)}: no checkpoint to resume from", *damaged]),
        rule="a run resumes from a whole checkpoint-N, saved every save_steps",
        remedy=remedy,
    )


def _whole_state(folder: Path, run: RunDirectory) -> Fields:
    # What a checkpoint's state.json says, if all of the checkpoint is as it was saved. ValueError
    # says what is not.
    from workbench.run.sealed import unlike

    state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    if state.pop("sha256") != sum_of_state(state):
        raise ValueError(f"{_STATE} was changed")
    if state["run"] != run.identity:
        raise ValueError("it is another run's")
    if changed := unlike(folder, state["files"], state["step"]):
        raise ValueError(changed)
    return state


def save_adapter(
    model: Any, tokenizer: Tokenizer, folder: Path, weights: Fields | None = None
) -> Path:
    """Save a trained adapter with its tokenizer; `weights` as `whole_weights` gave them."""
    names = model.active_adapters
    model.save_pretrained(str(folder), selected_adapters=names, state_dict=weights)
    if len(names) == 1 and names != ["default"]:  # PEFT puts any other name into a folder inside
        shutil.copytree(folder / names[0], folder, dirs_exist_ok=True)
        shutil.rmtree(folder / names[0])
    tokenizer.save_pretrained(str(folder))
    # PEFT's model card is a form that nobody has filled in.
    (folder / "README.md").unlink(missing_ok=True)
    return folder


def load_adapter(model: Model, folder: Path) -> None:
    """Put a checkpoint's adapter weights into a model's own adapter; RunError if they are another
    adapter's.
    """
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    weights = load_file(str(folder / "adapter_model.safetensors"))
    cause = None
    try:
        strange = set_peft_model_state_dict(model, weights, adapter_name="default").unexpected_keys
        what = f"{len(strange)} of its weights fit nowhere, {' '.join(strange[:1])} first"
    except RuntimeError as error:  # torch's word for a wrong shape
        strange, cause = ["shape"], error
        what = f"its weights do not fit: {' '.join(str(error).split(chr(10))[:2])}"
    if strange:
        raise RunError(
            f"{shown(folder)}: {what}",
            rule="a run resumes with the LoRA shape that it started with",
            remedy="load the policy as recipe.yaml says",
        ) from cause


def kept_task(run: RunDirectory, number: int | None) -> Path:
    """The run's own copy of its task file, or (`number`, from 0) of that of a stage."""
    return run.path / ("task.py" if number is None else f"tasks/stage-{number}.py")


def begun_task(run: RunDirectory, recipe: Recipe, number: int | None = None) -> Task:
    """The task that a run, or its stage `number` (from 0), started with: its copy, executed in
    place of the original file.

    RunError if it is another task, or has other rows; TaskError if it cannot be loaded.
    """
    name = (recipe.task if number is None else recipe.stages[number].task) or recipe.task
    kept = kept_task(run, number)
    # The run's own task is recorded with the first stage that has no other; with none, if each
    # stage has its own.
    shared = [place for place, part in enumerate(recipe.stages) if not part.task]
    places = ([0] if not recipe.stages else shared) if number is None else [number]
    begun = begun_with(run.manifest(), places[0]) if places else {}
    if kept.is_file():
        source = Path(begun.get("source", name))
        # Where the whole workspace was moved, the recipe's relative path still leads to the file.
        task = load_task(
            source if source.parent.is_dir() or not find(name).is_file() else find(name), kept
        )
    else:
        task = load_task(name)
        if begun and (task.name, task.function_names) != (begun["name"], list(begun["functions"])):
            raise RunError(
                f"{run.name}: it was trained on the task object {begun['name']!r}, and its recipe"
                f" names {name!r}",
                rule="a run resumes with its own task, and a task object has no file to load it"
                " from",
                remedy="pass it in Python: continue_run(run, task=...)",
            )
    if begun.get("rows") not in (None, fingerprint(task.rows)):
        where = shown(Path(task.source).parent) if task.source else f"task {name!r}"
        raise RunError(
            f"{where}: its {len(task.rows)} training rows are not those that {run.name} started"
            " with",
            rule="a run resumes with the same prompts in the same order",
            remedy="put those rows back; or resume with these: continue_run(run,"
            " task=load_task(...)); or train a new run",
        )
    return task


def begun_with(manifest: Fields, number: int) -> Fields:
    """What a run's stage started with: name, source and rows of its task, and its functions'
    hashes.
    """
    if "stages" not in manifest:
        return {**manifest["task"], **manifest["rewards"]}
    stage = manifest["stages"][number]
    return {**stage, **stage["rewards"], "source": stage["task"], "name": stage["task"]}
