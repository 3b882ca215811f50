"""Going on from a checkpoint: the state of training, kept beside the adapter without a pickle; and a run's own task.

A checkpoint holds the adapter (PEFT), `optimizer.safetensors` (the optimiser's tensors and the random states of torch) and
`state.json` (where the run was: stage, step, schedule, float16's gradient scaler, Python's and numpy's random states). A
run that goes on from it takes the same prompts in the same order with the same random numbers, so on a CPU its numbers are
those of a run that never stopped; `inexact` names what is not restored.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workbench.data.split import fingerprint
from workbench.errors import RunError
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory
from workbench.task import Task, load_task
from workbench.training.loading import put_back, random_states
from workbench.workspace import find, shown, write_json

_TENSORS, _STATE = "optimizer.safetensors", "state.json"
STATE_FILES = (_TENSORS, _STATE, "trainer_state.json")  # of a checkpoint; the other files are those of an adapter


@dataclass(frozen=True)
class Point:
    """Where a run can go on."""

    folder: Path
    stage: int  # number of the stage, from 0
    step: int  # of the whole run
    done: int  # steps of the stage
    state: dict[str, Any]


def save_state(
    trainer: Any, folder: Path, stage: int, done: int, adaptive: dict[str, Any], states: dict[str, Any] | None
) -> None:
    """Write the state of training beside an adapter that was just saved, after `done` steps of the stage.

    `adaptive` is the state of the adaptive weights; `states` is what `random_states()` said at the end of the step (None: now).
    """
    import torch
    from safetensors.torch import save_file

    packed, states = trainer.optimizer.state_dict(), states or random_states()
    moments = {f"{index}.{key}": value for index, values in packed["state"].items() for key, value in values.items()}
    tensors = {name: value for name, value in moments.items() if isinstance(value, torch.Tensor)}
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    random = {f"random.{name}": states[name] for name in ("torch", "cuda") if states[name] is not None}
    save_file({**tensors, **random}, str(folder / _TENSORS))
    version, numbers, gauss = states["python"]
    kind, keys, *more = states["numpy"]
    schedule = trainer.lr_scheduler.state_dict()
    schedule.pop("lr_lambdas", None)  # the recipe's own functions
    scaler = trainer.accelerator.scaler  # there is one only where float16 is trained
    state = {
        "stage": stage,
        "step": trainer.state.global_step,
        "done": done,
        "adaptive": adaptive,
        "tokens": states.get("tokens", trainer.state.num_input_tokens_seen),
        "whole_generation": trainer._step % (trainer.args.steps_per_generation * trainer.num_iterations) == 0,
        "optimizer": {"plain": {key: moments[key] for key in moments if key not in tensors}, "groups": packed["param_groups"]},
        "scaler": scaler and scaler.state_dict(),
        "schedule": {key: value for key, value in schedule.items() if isinstance(value, (int, float, list))},
        "random": {"python": [version, list(numbers), gauss], "numpy": [kind, keys.tolist(), *more]},
    }
    write_json(folder / _STATE, state)


def latest_point(run: RunDirectory) -> Point:
    """The newest checkpoint of a run that it can go on from; RunError if it has none."""
    for folder in run.saved():
        try:
            state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # a kill while it was being saved: the one before is whole
        if (folder / _TENSORS).is_file() and (folder / "adapter_config.json").is_file():
            return Point(folder, state["stage"], state["step"], state["done"], state)
    value, remedy = f"{shown(run.checkpoints)}: no checkpoint to go on from", "start a new run, with a lower grpo.save_steps"
    raise RunError(value, rule="a run goes on from a checkpoint-N with its state, saved every save_steps", remedy=remedy)


def save_adapter(model: Any, tokenizer: Any, folder: Path) -> Path:
    """Save a trained adapter with its tokenizer."""
    names = model.active_adapters
    model.save_pretrained(str(folder), selected_adapters=names)
    if len(names) == 1 and names != ["default"]:  # PEFT puts any other name into a folder inside
        shutil.copytree(folder / names[0], folder, dirs_exist_ok=True)
        shutil.rmtree(folder / names[0])
    tokenizer.save_pretrained(str(folder))
    # PEFT's model card is a form that nobody has filled in.
    (folder / "README.md").unlink(missing_ok=True)
    return folder


def load_adapter(model: Any, folder: Path) -> None:
    """Put a checkpoint's adapter weights into a model's own adapter; RunError if they are another adapter's."""
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    weights = load_file(str(folder / "adapter_model.safetensors"))
    try:
        strange = set_peft_model_state_dict(model, weights, adapter_name="default").unexpected_keys
        if not strange:
            return
        what, cause = f"{len(strange)} of its weights fit nowhere, {strange[0]} first", None
    except RuntimeError as error:  # torch's word for a wrong shape
        first = str(error).strip().splitlines()[1:2] or [str(error)]
        what, cause = f"its weights do not fit: {first[0].strip()}", error
    rule, remedy = "a run goes on with the LoRA shape that it was begun with", "load the policy as recipe.yaml says"
    raise RunError(f"{shown(folder)}: {what}", rule=rule, remedy=remedy) from cause


class Restored:
    """Puts a trainer where a checkpoint was: call `prepare` before `train()`, and the others as it begins."""

    def __init__(self, point: Point, total: int) -> None:
        self.point, self.total = point, total  # total: steps of the stage; -1: it follows from epochs
        self.inexact: list[str] = []
        self._epochs_begun = 0
        self._random: dict[str, Any] | None = None  # to be put back, once

    def prepare(self, trainer: Any) -> None:
        """Make the trainer begin in the epoch, at the prompts and on the schedule of the checkpoint."""
        point, args = self.point, trainer.args
        per_step = args.per_device_train_batch_size * args.steps_per_generation * args.gradient_accumulation_steps
        per_epoch = max(1, -(-len(trainer.get_train_dataloader()) // args.gradient_accumulation_steps))
        if self.total < 0:
            self.total = math.ceil(args.num_train_epochs * per_epoch)
        if point.done >= self.total:
            rule, remedy = "a run goes on to the steps that its recipe asks for", "start a new run with more num_train_epochs"
            raise RunError(f"all {point.step} steps are trained", rule=rule, remedy=remedy)
        self.epochs, self.skipped = divmod(point.done, per_epoch)
        self._of_an_epoch = self.skipped / per_epoch
        args.max_steps = self.total - self.epochs * per_epoch
        schedule, sampler = trainer.create_scheduler, trainer._get_train_sampler
        trainer.create_scheduler = lambda num_training_steps, **more: schedule(num_training_steps=self.total, **more)
        trainer._get_train_sampler = lambda *a, **k: _Skipping(sampler(*a, **k), self.epochs, self.skipped * per_step)
        if not point.state["whole_generation"]:
            self.inexact.append("the checkpoint lies between two generations: the rest of that batch is generated anew")
        if args.logging_steps > 1 and point.step % args.logging_steps:
            self.inexact.append("the next row of metrics is about the steps after the checkpoint only")

    def begin(self, trainer: Any) -> None:
        """When training has begun: the optimiser's and the schedule's state."""
        from safetensors.torch import load_file

        state, tensors = self.point.state, load_file(str(self.point.folder / _TENSORS))
        (version, numbers, gauss), (kind, keys, *more) = state["random"]["python"], state["random"]["numpy"]
        self._random = {
            "python": (version, tuple(numbers), gauss),
            "numpy": (kind, np.array(keys, dtype=np.uint32), *more),
            "torch": tensors.pop("random.torch"),
            "cuda": tensors.pop("random.cuda", None),
        }
        by_parameter: dict[int, dict[str, Any]] = {}
        for name, value in [*tensors.items(), *state["optimizer"]["plain"].items()]:
            index, _, key = name.partition(".")
            by_parameter.setdefault(int(index), {})[key] = value
        if state["optimizer"]["groups"]:
            trainer.optimizer.load_state_dict({"state": by_parameter, "param_groups": state["optimizer"]["groups"]})
        # Its functions are the recipe's; what was saved are its numbers.
        schedule = trainer.lr_scheduler
        schedule.load_state_dict({**schedule.state_dict(), **state["schedule"]})
        trainer.state.num_input_tokens_seen = state["tokens"]
        trainer._step = self.point.done * trainer.args.gradient_accumulation_steps
        scaler = trainer.accelerator.scaler
        if scaler is not None and state.get("scaler"):
            scaler.load_state_dict(state["scaler"])
        elif scaler is not None:
            self.inexact.append("float16's gradient scaler begins anew: steps are skipped until its scale fits")

    def epoch_begins(self) -> None:
        """Before the first epoch's prompts are drawn."""
        self._epochs_begun += 1
        if not self.skipped:
            self.load_random()

    def epoch(self, counted: float) -> float:
        """The epoch as the run counts it, from that of a trainer that began in the middle of one."""
        return counted + self.epochs + (self._of_an_epoch if self._epochs_begun == 1 else 0.0)

    def load_random(self) -> None:
        """The checkpoint's random states, the first time: before the first step, or the epoch that begins with it."""
        if self._random is not None:
            put_back(self._random)
            self._random = None


class _Skipping:
    """A sampler that begins in the middle: whole epochs' orders are drawn and thrown away, then some items skipped."""

    def __init__(self, sampler: Any, epochs: int, items: int) -> None:
        self.sampler, self.epochs, self.items = sampler, epochs, items

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.epochs):
            next(iter(self.sampler), None)  # an order is drawn when its first prompt is
        items = itertools.islice(iter(self.sampler), self.items, None)
        self.epochs = self.items = 0
        yield from items


# -- the task that a run was begun with --------------------------------------------------------------------------------
def kept_task(run: RunDirectory, number: int | None) -> Path:
    """The run's own copy of its task file, or (`number`, from 0) of that of a stage."""
    return run.path / ("task.py" if number is None else f"tasks/stage-{number}.py")


def begun_task(run: RunDirectory, recipe: Recipe, number: int | None = None) -> Task:
    """The task that a run, or its stage `number` (from 0), was begun with: its copy, executed in the place of the original file.

    RunError if it is another task, or has other rows; TaskError if it cannot be loaded.
    """
    name = recipe.task if number is None else recipe.stages[number].task
    kept = kept_task(run, number)
    # The run's own task is recorded with the first stage that has no other; with none, if each stage has its own.
    shared = [place for place, part in enumerate(recipe.stages) if not part.task] if recipe.stages else [0]
    place = next(iter(shared), None) if number is None else number
    found = {} if place is None else _recorded(run.manifest(), place)
    if kept.is_file():
        source = Path(found.get("source", name))
        # Where the whole workspace was moved, the recipe's relative path still leads to the file.
        task = load_task(source if source.parent.is_dir() or not find(name).is_file() else find(name), kept)
    else:
        task = load_task(name)
        if found and (task.name, task.function_names) != (found["name"], list(found["functions"])):
            value = f"{run.name}: it was trained on the task object {found['name']!r}, and its recipe names {name!r}"
            rule = "a run goes on with its own task, and a task object has no file to load it from"
            raise RunError(value, rule=rule, remedy="hand it over in Python: continue_run(run, task=...)")
    if found.get("rows") not in (None, fingerprint(task.rows)):
        where = shown(Path(task.source).parent) if task.source else f"task {name!r}"
        value = f"{where}: its {len(task.rows)} training rows are not those that {run.name} was begun with"
        remedy = "put those rows back; go on with these: continue_run(run, task=load_task(...)); or train a new run"
        raise RunError(value, rule="a run goes on with the same prompts in the same order", remedy=remedy)
    return task


def _recorded(manifest: dict[str, Any], number: int) -> dict[str, Any]:
    """What a run was begun with in a stage: name, source and rows of its task, and its functions' hashes."""
    if "stages" not in manifest:
        return {**manifest["task"], **manifest["rewards"]}
    found = manifest["stages"][number]
    return {**found, **found["rewards"], "source": found["task"], "name": found["task"]}


def changed_since_begun(run: RunDirectory, stages: Sequence[Any]) -> list[str]:
    """One line for each stage whose rewards or rows are not those that the run was begun with."""
    lines, manifest = [], run.manifest()
    for stage in stages:
        begun = _recorded(manifest, stage.number)
        changed = [name for name, now in stage.suite.hashes.items() if begun["functions"].get(name) != now]
        if begun.get("rows") not in (None, fingerprint(stage.task.rows)):
            changed.append("the training rows")
        if changed:
            lines.append(f"WARNING: not as they were when {run.name} was begun: {', '.join(changed)}")
    return lines
