"""From a recipe to a trained adapter: checks first, then TRL's GRPOTrainer, then the run directory."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.dataset.lengths import check_budget, keep_within, prompt_lengths_tokens
from workbench.dataset.split import fingerprint
from workbench.dataset.task import Task, load_task
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import RunDirectory, check_name
from workbench.run.errors import RecipeError, RewardError
from workbench.run.recipe import Recipe
from workbench.run.versions import versions
from workbench.train import plan
from workbench.train.control import GracefulStop
from workbench.train.policy import Policy, load_policy, trainer_classes
from workbench.train.recorder import Recorder, Watcher

# Settings whose values in force the manifest keeps: those that libraries change, or that decide what a run costs.
_IN_FORCE = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size",
    "num_generations", "max_completion_length", "max_steps", "num_train_epochs", "learning_rate", "lr_scheduler_type",
    "warmup_steps", "optim", "weight_decay", "max_grad_norm", "beta", "loss_type", "scale_rewards",
    "multi_objective_aggregation", "epsilon",
    "epsilon_high", "mask_truncated_completions", "num_iterations", "temperature", "top_p", "top_k", "min_p",
    "repetition_penalty", "bf16", "fp16", "gradient_checkpointing", "seed", "use_vllm",
)  # fmt: skip


def train(
    recipe: Recipe,
    *,
    policy: Policy | None = None,
    task: Task | None = None,
    watchers: Sequence[Watcher] = (),
    runs: str | Path = "runs",
) -> RunDirectory:
    """Train a policy as the recipe says, and leave the run directory.

    The first Interrupt finishes the step, saves and returns as if the run were over; the second raises
    `KeyboardInterrupt`. Everything that can be checked is checked before the run directory is made, so a recipe that
    cannot work leaves nothing behind; so does a run that fails before its first step is recorded.

    Args:
        recipe: what to do.
        policy: a loaded policy; None: the recipe's is loaded.
        task: a task object; None: the recipe's is loaded.
        watchers: what shows the run (a `LivePlot`, a `TerminalProgress`).
        runs: folder for the run directory.

    Raises:
        RecipeError, TaskError, RewardError, PolicyError, DataError: with the value, the rule and the remedy.
    """
    check_name(recipe.run_name)
    task = task or load_task(recipe.task)
    if not len(task.rows):
        raise RecipeError(f"task {task.name!r}: 0 prompts", rule="training needs prompts", remedy="give the task rows")
    config_class, trainer_class = trainer_classes()
    settings, notes = plan.settings(recipe, plan.field_names(config_class))
    planned = plan.batch(settings)
    plan.check_values(settings, plan.field_kinds(config_class))
    rows = task.with_ids(task.rows)
    plan.check_prompts(len(rows), planned)
    suite = RewardSuite(
        task,
        planned.num_generations,
        recipe.reward_weights,
        settings["scale_rewards"],
        settings.get("multi_objective_aggregation", "sum_then_normalize"),
        deadline_s=recipe.rewards.deadline_s,
        on_error=recipe.rewards.on_error,
    )
    suite.rehearse(rows)
    policy = policy or load_policy(
        recipe.policy.name,
        load_in_4bit=recipe.policy.load_in_4bit,
        max_seq_length=recipe.policy.max_seq_length,
        dtype=recipe.policy.dtype,
        lora=recipe.lora,
        gradient_checkpointing=settings["gradient_checkpointing"],
        seed=recipe.seed,
    )
    rows, lengths, left_out = _fitting(rows, policy, recipe, settings, planned)
    if policy.trained_in:
        notes.append(
            f"this policy's adapter was already trained in {', '.join(policy.trained_in)}; this run goes on from there"
        )
    notes += suite.notes + _warnings(task)
    for line in (*notes, plan.in_words(planned, settings, len(rows))):
        print(line)

    with tempfile.TemporaryDirectory(prefix="workbench-") as scratch:
        trainer = _trainer(config_class, trainer_class, settings, recipe, policy, rows, suite, scratch)
        manifest = _manifest(recipe, policy, task, suite, trainer, notes)
        manifest["prompts"] = {"used": len(rows), "left_out_too_long": left_out, "longest_tokens": max(lengths)}
        run = RunDirectory.create(recipe.run_name, recipe, manifest, runs)
        trainer.args.output_dir = str(run.checkpoints)
        _run(trainer, run, suite, policy, settings, watchers, task.source)
    return run


def _warnings(task: Task) -> list[str]:
    warned = []
    if task.right_by is None:
        warned.append(
            f"WARNING: the task names no right_by: a completion counts as right when {task.right_function} > 0 "
            "(the first function); this decides nothing but the groups panel and the measurement in 04"
        )
    if not len(task.held_out):
        warned.append(
            "WARNING: the task has no held_out prompts: what this run buys cannot be measured afterwards (notebook 04)"
        )
    return warned


def _fitting(
    rows: list, policy: Policy, recipe: Recipe, settings: dict, planned: plan.Batch
) -> tuple[list, list[int], int]:
    lengths, left_out = prompt_lengths_tokens(rows, policy.tokenizer), 0
    if recipe.max_prompt_length is not None:
        rows, longer = keep_within(rows, lengths, recipe.max_prompt_length)
        left_out = len(longer)
        lengths = [length for length in lengths if length <= recipe.max_prompt_length]
        if left_out:
            print(
                f"max_prompt_length = {recipe.max_prompt_length}: {left_out} longer prompts left out, {len(rows)} kept"
            )
        plan.check_prompts(len(rows), planned)
    check_budget(max(lengths), settings["max_completion_length"], policy.max_seq_length, min(lengths))
    return rows, lengths, left_out


def _trainer(
    config_class: type,
    trainer_class: type,
    settings: dict,
    recipe: Recipe,
    policy: Policy,
    rows: list,
    suite: RewardSuite,
    scratch: str,
) -> Any:
    from datasets import Dataset
    from transformers import PrinterCallback

    if "ref" in policy.model.peft_config:
        # TRL's frozen copy from an earlier run on this policy; it makes its own and refuses to find one.
        policy.model.delete_adapter("ref")
    try:
        config = config_class(
            **settings,
            output_dir=scratch,
            seed=recipe.seed,
            reward_weights=suite.weights,
            disable_tqdm=True,  # the watchers show progress
        )
        trainer = trainer_class(
            model=policy.model,
            processing_class=policy.tokenizer,
            reward_funcs=suite.funcs,
            args=config,
            train_dataset=Dataset.from_list(rows),
        )
    except (TypeError, ValueError) as error:
        raise RecipeError(
            f"grpo: {error}",
            rule="GRPOConfig and GRPOTrainer accept these settings together",
            remedy="change the setting that it names",
        ) from error
    trainer.remove_callback(PrinterCallback)
    return trainer


def _run(
    trainer: Any,
    run: RunDirectory,
    suite: RewardSuite,
    policy: Policy,
    settings: dict,
    watchers: Sequence[Watcher],
    task_file: str,
) -> None:
    recorder = Recorder(run, suite, policy.tokenizer.eos_token_id, watchers, measures_kl=bool(settings["beta"]))
    suite.on_batch = recorder.batch
    started, status, stop = time.monotonic(), "failed", GracefulStop()
    details: dict[str, Any] = {}
    try:
        if task_file:
            shutil.copyfile(task_file, run.path / "task.py")
        run.log_event("started", 0)
        trainer.add_callback(_callback(recorder, stop, run, settings))
        with stop:
            policy.trained_in.append(run.name)
            trainer.train()
            status, details = ("stopped" if stop.requested else "finished"), {"by": stop.requested}
            # Still inside: an Interrupt that comes while the adapter is being saved must not lose it.
            save_adapter(policy, run.final)
    except BaseException as error:
        if isinstance(error, RewardError) and trainer.state.global_step:
            # A reward that fails after hours must not take them along: the weights are those of the last whole step.
            trainer._save_checkpoint(trainer.model, trial=None)
            trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)
        status = "aborted" if isinstance(error, KeyboardInterrupt) else "failed"
        details = {"error": f"{type(error).__name__}: {error}"}
        raise
    finally:
        step = trainer.state.global_step
        recorder.tell("end", f"{status} after {step} steps{recorder.verdict}")
        if step or status in ("finished", "stopped"):
            minutes = (time.monotonic() - started) / 60
            run.update_manifest(result=_result(status, step, minutes, recorder))
            run.log_event(status, step, **details)
            run.release()
        else:
            run.discard()
            print(f"{run.name}: ended before its first step, so nothing of it is kept", flush=True)


def _result(status: str, steps: int, minutes: float, recorder: Recorder) -> dict[str, Any]:
    return {
        "status": status,
        "steps": steps,
        "minutes": minutes,
        "rewards_s": sum(recorder.reward_s.values()),
        "rewards_s_by_function": recorder.reward_s,
        "reward_errors": recorder.reward_errors,
        "hooks_s": recorder.seconds,
        "hooks_share": recorder.seconds / (60 * minutes),
        "drawing_s": sum(getattr(watcher, "drawing_s", 0.0) for watcher in recorder.watchers),
    }


def save_adapter(policy: Policy, folder: Path) -> Path:
    """Save the trained adapter (and only it: not TRL's frozen copy for the reference) with the tokenizer."""
    policy.model.save_pretrained(str(folder), selected_adapters=["default"])
    policy.tokenizer.save_pretrained(str(folder))
    # PEFT's model card is a form that nobody has filled in.
    (folder / "README.md").unlink(missing_ok=True)
    return folder


def _callback(recorder: Recorder, stop: GracefulStop, run: RunDirectory, settings: dict) -> Any:
    from transformers import TrainerCallback

    class WorkbenchCallback(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            recorder.tell("begin", run, state.max_steps, settings)

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
            if logs and "loss" in logs:  # the last call of a run carries only totals
                recorder.log(state.global_step, logs)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if stop.requested:
                control.should_training_stop = control.should_save = True

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            folder = run.checkpoints / f"checkpoint-{state.global_step}"
            # A pickle that nothing needs; a run holds none.
            (folder / "training_args.bin").unlink(missing_ok=True)
            (folder / "README.md").unlink(missing_ok=True)
            run.log_event("checkpoint", state.global_step, folder=folder.name)

    return WorkbenchCallback()


def _manifest(
    recipe: Recipe, policy: Policy, task: Task, suite: RewardSuite, trainer: Any, notes: list[str]
) -> dict[str, Any]:
    from workbench.run.directory import now

    template = policy.tokenizer.chat_template or ""
    in_force = {key: _plain(getattr(trainer.args, key)) for key in _IN_FORCE if hasattr(trainer.args, key)}
    return {
        "created": now(),
        "versions": versions(),
        "policy": policy.found(),
        "trainer": f"{type(trainer).__mro__[0].__module__}.{type(trainer).__name__}",
        "task": {
            "name": task.name,
            "source": task.source or recipe.task,
            "right_by": task.right_function,
            "format_by": task.format_by,
            "rows": fingerprint(task.rows),
            "held_out": fingerprint(task.held_out),
            "card": _dataset_card(task.source),
        },
        "rewards": {
            "hash": suite.hash,
            "functions": suite.hashes,
            "weights": dict(zip(suite.names, suite.weights, strict=True)),
            "run": suite.functions.places,
        },
        "template": fingerprint([{"template": template}]),
        "settings": {"asked": recipe.grpo, "in_force": in_force, "translated": notes},
    }


def _dataset_card(task_file: str) -> dict[str, Any] | None:
    # What notebook 01 left beside the task file: the source, the split's rule, the fingerprints, the band.
    card = Path(task_file).parent / "card.json" if task_file else None
    return json.loads(card.read_text(encoding="utf-8")) if card is not None and card.is_file() else None


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(getattr(value, "value", value))
