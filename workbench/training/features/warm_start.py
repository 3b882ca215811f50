"""Warm start: a policy that never solves a task is first fine-tuned on its own rare right
completions.

GRPO learns from the differences within a group; where no completion is ever right there are none.
So completions of the training prompts are drawn until enough are right (rejection sampling), TRL's
SFTTrainer trains the run's adapter on those, and GRPO continues from there. What is drawn depends
on the recipe's seed alone.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from workbench.audit.completions import builders
from workbench.base import processes
from workbench.base.errors import RecipeError, RunError
from workbench.base.kinds import Fields, Trainer, TrainerControl, TrainerState, TrainingArguments
from workbench.base.progress import progress_line
from workbench.base.workspace import encodable, replace_file
from workbench.data.rendering import prompt_text
from workbench.data.template import turn_end
from workbench.recipe import Recipe, WarmStartPart
from workbench.task import Row
from workbench.training.feature import Asked, Feature, Planned
from workbench.training.plan import Stage
from workbench.training.plan.precision import adapter_in_float32
from workbench.training.policy import Policy
from workbench.training.randomness import random_kept
from workbench.training.resuming import Point, load_adapter
from workbench.training.sampling import Completion, sample

_SAMPLED, _LEARNT = 64, 8  # completions together: at least when sampled, at most in an update
_EVERY_S = 10.0
_EASY = 20  # tries for a right one: of eight completions one is right in every third group then
# As GRPO's trainer has them in force: what the device needs, and how an update is made.
_SHARED = (
    "bf16", "fp16", "use_cpu", "dataloader_pin_memory", "gradient_checkpointing",
    "gradient_checkpointing_kwargs", "optim",
    "weight_decay", "max_grad_norm", "adam_beta1", "adam_beta2", "adam_epsilon", "seed",
)  # fmt: skip


class Right(NamedTuple):
    """A right completion, to train on; `number`: which try it was, from 1."""

    row: Row
    completion: Completion
    scores: dict[str, float]  # by reward function
    number: int


class WarmStart(Feature):
    """The warm start of a recipe that asks for one, before the first step.

    It is saved before and after: a run that is killed during it starts it over, and one that is
    killed later keeps it.
    """

    key = "warm_start"
    of_recipe = True

    @classmethod
    def plan(cls, asked: Asked) -> Planned:
        part, run = asked.recipe.warm_start, asked.run
        if part is None or not asked.stages or (run is not None and run.warm_start.is_file()):
            return Planned()
        return Planned(checked(part, asked.stages[0]))

    @classmethod
    def resumes(cls, recipe: Recipe, point: Point, manifest: Fields) -> list[str]:
        if not point.state.get("warm_started", True):
            return ["its warm start had not finished and starts over"]
        if recipe.warm_start is not None and point.step and "warm_start" not in manifest:
            return ["warm_start changes nothing here: it comes before the first step"]
        return []

    def before_first(self, stage: Stage) -> bool:
        """Whether training may begin: there is no warm start, or it has finished."""
        from transformers import set_seed

        session = self.session
        if stage.number or session.begun_at or stage.recipe.warm_start is None:
            return True
        if session.point is None or not session.point.state["warm_started"]:
            session.save_before_first(warm_started=False)
            report = run(session)
            if report is None:
                load_adapter(session.policy.model, session.run.checkpoints / "checkpoint-0")
                print(
                    f"stopped in the warm start; `workbench continue {session.run.name}` starts it"
                    " over",
                    flush=True,
                )
                return False
            session.run.update_manifest(warm_start=report)
            session.save_before_first(warm_started=True)
        session.trained_before = True
        # the same from here on, whether or not it is resumed from that checkpoint
        set_seed(session.trainer.args.seed)
        return True

    def on_train_begin(self, *_: object, **__: object) -> None:
        session = self.session
        if session.trained_before and session.stage is session.stages[0]:
            session.recorder.event("warm_start", 0, **session.run.manifest()["warm_start"])


def checked(part: WarmStartPart, stage: Stage) -> list[str]:
    """What it will cost and how it affects KL, for the plan; RecipeError for an impossible one."""
    if (count := processes.count()) > 1:
        raise RecipeError(
            f"warm_start in {count} processes",
            rule="a warm start samples and fine-tunes in one process",
            remedy="start one process, or leave warm_start out",
        )
    reference = part.source == "reference"
    if reference and part.rounds > 1:
        raise RecipeError(
            f"warm_start.rounds = {part.rounds} with source = 'reference'",
            rule="a round samples the policy that the one before it left, and reference completions"
            " stay the same",
            remedy="set epochs for more updates on them, or source: policy",
        )
    if reference and stage.task is not None and stage.task.ideal is None:
        raise RecipeError(
            "warm_start.source = 'reference'",
            rule=f"those come from the task's `ideal`, and {stage.task.name!r} has none",
            remedy="write Task(..., ideal=lambda row: row['solution']), or set source: policy",
        )
    most = part.tries * part.samples
    drawn = f"at most {most:,} completions are sampled until {part.samples} are right"
    if reference:
        drawn = f"{part.samples} reference completions that are right"
    updates = part.epochs * -(-part.samples // _together(stage))
    rounds = f"; {part.rounds} rounds of this" if part.rounds > 1 else ""
    lines = [
        f"warm start, before step 1: {drawn}; then {updates} updates on those, learning_rate"
        f" {_rate(part, stage):g}{rounds}"
    ]
    if beta := stage.settings["beta"]:
        model = "base" if stage.recipe.policy.reference == "base" else "adapter that it begins from"
        lines.append(
            f"beta = {beta:g} with warm_start: the reference model is the {model}, without what the"
            " warm start teaches; KL is above 0 from step 1 on, and holds the policy back from"
            " where GRPO begins"
        )
    return lines


def _together(stage: Stage) -> int:
    return min(_LEARNT, stage.settings["per_device_train_batch_size"])


def _rate(part: WarmStartPart, stage: Stage) -> float:
    return part.learning_rate or max(2e-4, float(stage.settings["learning_rate"]))


def collect(
    stage: Stage, policy: Policy, part: WarmStartPart, stops: Callable[[], bool], turn: int = 1
) -> tuple[list[Right], int] | None:
    """(right completions for a stage's prompts in round `turn`, how many were scored to find them);
    None if it was stopped.

    Right: by the task's `right_by`; the policy ended it by itself, and it is new for its prompt.
    RunError: too few are.
    """
    # with separate functions, so that those of the run only ever see GRPO's completions
    stage = stage.fresh()
    task, suite = stage.scored_by
    later = f" {turn}" if turn > 1 else ""
    rng = random.Random(f"warm start {stage.recipe.seed}{later}")
    order, column = rng.sample(stage.rows, len(stage.rows)), suite.names.index(task.right_function)
    sampled = part.source == "policy"
    size = stage.planned.num_generations if sampled else 1
    most = part.tries * part.samples if sampled else len(order)
    at_once = min(max(stage.planned.prompts, _SAMPLED // size), len(order))
    how = {name: stage.settings[name] for name in ("max_completion_length", "temperature")}
    found: dict[tuple[str, str], Right] = {}
    progress = progress_line(f"warm start: {'right' if sampled else 'reference'} completions")
    tries, shown = 0, time.monotonic()
    try:
        while len(found) < part.samples and tries < most:
            if stops():
                return None
            count = min(at_once, -(-(most - tries) // size))
            some = [order[(tries // size + place) % len(order)] for place in range(count)]
            if sampled:
                groups = sample(
                    policy,
                    [row["prompt"] for row in some],
                    num_generations=size,
                    seed=rng.getrandbits(31),
                    batch_size=count * size,
                    **how,
                )
            else:
                texts = [each.reference for each in builders(task, some)]
                end = turn_end(policy.tokenizer, some[0]["prompt"])
                end = policy.tokenizer.eos_token_id if end is None else end
                ids = policy.tokenizer(texts, add_special_tokens=False)["input_ids"]
                pairs = zip(texts, ids, strict=True)
                groups = [[Completion(text, [*own, end], True)] for text, own in pairs]
            rows = [row for row in some for _ in range(size)]
            flat = [own for group in groups for own in group]
            scores = suite.score(rows, [own.text for own in flat], [own.ids for own in flat])
            for row, own, scored in zip(rows, flat, scores.tolist(), strict=True):
                tries += 1
                whole = own.finished and len(own.ids) <= how["max_completion_length"]
                if whole and task.is_right(scored[column]):
                    named = dict(zip(suite.names, scored, strict=True))
                    found.setdefault((row["prompt_id"], own.text), Right(row, own, named, tries))
            progress(len(found), part.samples)
            if time.monotonic() - shown > _EVERY_S:  # for a terminal and a log
                shown = time.monotonic()
                state = f"{len(found)} of {part.samples} right after {tries:,} completions"
                print(f"warm start: {state}", flush=True)
    finally:
        suite.close()
    if len(found) < part.samples:
        raise _too_few(part, len(found), tries)
    return list(found.values())[: part.samples], tries


def _too_few(part: WarmStartPart, found: int, tries: int) -> RunError:
    sampled = part.source == "policy"
    remedy = "`workbench probe` shows whether the reward can pay at all"
    if found:
        remedy = f"set warm_start.samples: {found}"
    if found and sampled:
        enough = -(-tries * 5 // (4 * found))
        remedy += f" or warm_start.tries: {enough}; or take easier prompts"
    elif sampled:
        remedy += (
            "; then take easier prompts, a higher temperature or more tries; or give the task a"
            " reference completion (`ideal`: row -> text) and set warm_start.source: reference"
        )
    kind = "sampled" if sampled else "reference"
    return RunError(
        f"warm_start: {found} of {tries:,} {kind} completions are right and new",
        rule=f"a warm start trains on as many as it asks for, {part.samples}, or on none",
        remedy=remedy,
    )


@random_kept()
def fine_tune(
    trainer: Trainer,
    policy: Policy,
    stage: Stage,
    part: WarmStartPart,
    found: list[Right],
    stops: Callable,
) -> Any:
    """Train the adapter on the completions found, as GRPO's `trainer` would compute it; returns the
    SFTTrainer.

    The loss covers the completions alone. They are trained token by token as they were sampled,
    after the prompt that GRPO renders: nothing goes through the template a second time.
    """
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback

    # Unsloth's on a GPU, if it loaded the policy: it has put its own in their place
    from trl import SFTConfig, SFTTrainer
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    class Stops(TrainerCallback):
        def on_step_end(
            self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
        ) -> None:
            control.should_training_stop |= stops()

    tokenizer = policy.tokenizer
    settings: Fields = {
        **{name: getattr(trainer.args, name) for name in _SHARED},
        "num_train_epochs": part.epochs,
        "learning_rate": _rate(part, stage),
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": _together(stage),
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        # TRL's default loss puts another forward pass into the model, and leaves it there.
        "loss_type": "nll",
        "max_length": None,
        "completion_only_loss": True,
        "packing": False,
        "disable_tqdm": True,
    }
    rows = []
    for row, own, *_ in found:
        plain = isinstance(row["prompt"], str)
        text = prompt_text(row["prompt"], tokenizer)
        before = tokenizer(text, add_special_tokens=plain)["input_ids"]
        rows.append({"input_ids": [*before, *own.ids], "labels": [-100] * len(before) + own.ids})
    with tempfile.TemporaryDirectory(prefix="workbench-") as folder:
        tuned = SFTTrainer(
            policy.model, args=SFTConfig(output_dir=folder, **settings),
                train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer, callbacks=[Stops()],
            data_collator=DataCollatorForLanguageModeling(tokenizer.pad_token_id),
        )  # fmt: skip
        tuned.remove_callback(PrinterCallback)
        adapter_in_float32(policy.model)  # TRL rounds the adapter of a 4-bit model
        tuned.train()
    return tuned


def run(session: Any) -> Fields | None:
    """The warm start of a session's run, for its record; None if it was stopped: then do not use
    the policy.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    policy, stage, started = session.policy, session.stage, time.monotonic()
    part, stops = stage.recipe.warm_start, session.control.stops
    table: list[Fields] = []
    losses: list[float] = []
    tries: list[int] = []
    sampled_s = 0.0
    for turn in range(1, part.rounds + 1):
        began = time.monotonic()
        if (collected := collect(stage, policy, part, stops, turn)) is None:
            return None
        found, tried = collected
        tries.append(tried)
        sampled_s += time.monotonic() - began
        easy = ""
        if part.source == "policy" and turn == 1 and tried <= _EASY * len(found):
            easy = "; the policy is right often enough for GRPO to begin without"
        prompts = len({own.row["prompt_id"] for own in found})
        named = "warm start" if part.rounds == 1 else f"warm start, round {turn} of {part.rounds}"
        print(
            f"{named}: {len(found)} right completions of {prompts} prompts, after {tried:,}"
            f" tries{easy}",
            flush=True,
        )
        table += [
            {
                "round": turn,
                "prompt_id": own.row["prompt_id"],
                "try": own.number,
                "completion": encodable(own.completion.text),
                **{f"score.{name}": score for name, score in own.scores.items()},
            }
            for own in found
        ]
        with replace_file(session.run.warm_start) as beside:
            pq.write_table(pa.Table.from_pylist(table), beside)
        tuned = fine_tune(session.trainer, policy, stage, part, found, stops)
        if session.control.stopped_by:
            return None
        new = [row["loss"] for row in tuned.state.log_history if "loss" in row]
        print(f"{named}: {len(new)} updates, loss {new[0]:.3g} -> {new[-1]:.3g}", flush=True)
        losses += new
    return {
        **part.model_dump(),
        "samples": len(table),
        "tries": sum(tries),
        "tries_by_round": tries,
        "prompts": len({row["prompt_id"] for row in table}),
        "trainer": f"{type(tuned).__module__}.{type(tuned).__name__}",
        "learning_rate": _rate(part, stage),
        "table": session.run.warm_start.name,
        "sampled_s": sampled_s,
        "trained_s": time.monotonic() - started - sampled_s,
        "losses": losses,
    }
