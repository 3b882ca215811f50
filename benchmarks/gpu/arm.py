"""One unit of the arms: train random weights for some steps through `workbench.train`, and time and weigh them.

Everything is the same for every arm but what the arm is about. The unit's JSON is written again after every step.
"""

from __future__ import annotations

import dataclasses
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpu.hardware import synchronise
from gpu.models import QWEN2_5_1_5B, TOY_CONFIG, random_model, word_task
from gpu.setting import Setting, Sizes
from gpu.units import Unit

GENERATIONS = 8
COMPLETIONS = 64  # of a step
PROMPTS = 256  # more than any unit uses, so that no prompt comes twice
MEASURED, RUNNING, FAILED, CUT = "measured", "running", "failed", "cut short"
Row = dict[str, Any]


class Clock:
    """A watcher that takes the time from one logged step to the next, and the most memory that was held until then.

    A step is logged after its loss was read from the GPU, so the GPU has nothing left to do when the clock is read.

    Args:
        seconds: no step is begun after so long, once enough were measured.
        keep: called with all rows after each step.
    """

    def __init__(self, sizes: Sizes, seconds: float, keep: Callable[[list[Row]], None]) -> None:
        self.sizes, self.seconds, self.keep = sizes, seconds, keep
        self.rows: list[Row] = []
        self.settings: dict[str, Any] = {}

    def begin(self, run: Any, total_steps: int, settings: dict[str, Any]) -> None:
        import torch

        self.run, self.settings = run, dict(settings)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()  # what loading took is another matter
        synchronise()
        self.begun = self.last = time.perf_counter()

    def update(self, step: int, values: dict[str, Any]) -> None:
        synchronise()
        now = time.perf_counter()
        seconds, self.last = now - self.last, now
        self.rows.append({"step": step, "seconds": seconds, **_of_interest(values), **_memory()})
        self.keep(self.rows)
        # The request is answered at the end of the next step, so one more is measured before the run ends.
        enough = len(self.rows) + 1 >= self.sizes.warmup + self.sizes.least
        if enough and now - self.begun + 2 * seconds > self.seconds and self.run.live:
            from workbench.run.requests import send

            send(self.run, "stop", by="the suite's clock")

    def end(self, message: str) -> None:
        pass


def _of_interest(values: dict[str, Any]) -> Row:
    from workbench.run.metrics import CLIPPED, GENERATE_S, MEAN_LENGTH, REWARD_S, TRAIN_S

    mean = values.get(MEAN_LENGTH)
    return {
        "generate_s": values.get(GENERATE_S),
        "train_s": values.get(TRAIN_S),
        "reward_s": values.get(REWARD_S),
        "tokens": None if mean is None else mean * COMPLETIONS,  # really generated, also where one ended early
        "longest": values.get("completions/max_length"),
        "clipped": values.get(CLIPPED),
        **{key: values.get(key) for key in ("reward", "group_reward_std", "loss", "grad_norm", "entropy")},
    }


def _memory() -> Row:
    import torch

    if not torch.cuda.is_available():
        return {"allocated_bytes": None, "reserved_bytes": None}
    return {
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def config_of(setting: Setting) -> dict[str, Any]:
    """The model's configuration."""
    return TOY_CONFIG if setting.toy else QWEN2_5_1_5B


def build(setting: Setting) -> Path:
    """The folder of the random weights; made once."""
    name = "toy-model" if setting.toy else "random-1.5b"
    return random_model(setting.work / name, config_of(setting), setting.device)


def recipe_of(setting: Setting, unit: Unit, policy: str) -> Any:
    """The unit's recipe.

    Raises:
        RecipeError: where this version's recipe has no `generation`, and the unit needs it.
    """
    from workbench.run.recipe import Recipe

    rows = 16 if setting.toy else 8  # of a backward pass
    asked = {
        "run_name": unit.name,
        "policy": {
            "name": policy,
            "backend": unit.backend,
            "load_in_4bit": unit.precision == "nf4",
            "max_seq_length": setting.sizes.prompt + unit.completion,
            "dtype": "bfloat16" if setting.cuda else None,
        },
        "grpo": {
            "max_steps": setting.sizes.warmup + setting.sizes.most,
            "num_generations": GENERATIONS,
            "per_device_train_batch_size": rows,
            "gradient_accumulation_steps": COMPLETIONS // rows,
            "max_completion_length": unit.completion,
            "learning_rate": 1e-5,
            "beta": 0.0,
            "temperature": 1.0,
            # In every arm alike, though some would fit without it: it is what an ordinary card is used with.
            "gradient_checkpointing": True,
            "logging_steps": 1,
            "save_steps": 10_000,
        },
        "seed": unit.round,
    }
    if "generation" in Recipe.model_fields or unit.generation == "auto":
        asked["generation"] = unit.generation
    return Recipe.of(asked)


def measure(setting: Setting, unit: Unit) -> dict[str, Any]:
    """Train the unit's steps in this process, and leave its JSON. What goes wrong stands in it, and is not raised."""
    found: dict[str, Any] = {"unit": dataclasses.asdict(unit), "arm": unit.arm, "status": RUNNING, "rows": []}
    started = time.monotonic()

    def keep(rows: list[Row]) -> None:
        found["rows"] = list(rows)
        setting.write(f"arms/{unit.name}.json", {**found, **summary(rows, setting.sizes.warmup)})

    try:
        from workbench.train.policy import trainer_classes

        # Before anything asks the GPU for its name: Unsloth sets up torch's allocator when it is imported.
        trainer_classes(unit.backend)
        keep([])
        found |= {**_trained(setting, unit, keep), "status": MEASURED}
    except Exception as error:  # one arm that cannot run is a finding, and the others are still to be measured
        found |= {"status": FAILED, "error": f"{type(error).__name__}: {error}"[:2000]}
    found |= {"whole_s": time.monotonic() - started, **summary(found["rows"], setting.sizes.warmup)}
    setting.write(f"arms/{unit.name}.json", found)
    gc.collect()
    return found


def _trained(setting: Setting, unit: Unit, keep: Callable[[list[Row]], None]) -> dict[str, Any]:
    from workbench.train.policy import load_policy
    from workbench.train.trainer import train

    recipe = recipe_of(setting, unit, str(build(setting)))
    task = word_task(PROMPTS, setting.sizes.prompt)
    limit_s = setting.sizes.arm_s[setting.sizes.completions.index(unit.completion)]
    clock = Clock(setting.sizes, min(limit_s, setting.left_s() - 10), keep)
    policy = load_policy(
        recipe.policy.name,
        backend=recipe.policy.backend,
        load_in_4bit=recipe.policy.load_in_4bit,
        max_seq_length=recipe.policy.max_seq_length,
        dtype=recipe.policy.dtype,
        lora=recipe.lora,
        gradient_checkpointing=recipe.grpo["gradient_checkpointing"],
        seed=recipe.seed,
    )
    with tempfile.TemporaryDirectory(prefix="arm-", dir=setting.work) as runs:
        run = train(recipe, policy=policy, task=task, watchers=[clock], runs=runs)
        manifest, events = run.manifest(), run.events()
        if len(clock.rows) <= setting.sizes.warmup:
            raise RuntimeError(f"{len(clock.rows)} steps were logged; the run's events: {events}")
        return {
            "policy": manifest["policy"],
            "trainer": manifest["trainer"],
            "settings": manifest["settings"]["in_force"],
            # Which path generated; with "trl", `why` says why it was not the workbench's.
            "generation": run.result().get("generation") or manifest.get("generation"),
            "result": {key: run.result().get(key) for key in ("status", "steps", "minutes", "hooks_share")},
            "load_s": policy.load_s,
            "prompt": setting.sizes.prompt,
            **_predicted(setting, recipe, clock.settings),
        }


def _predicted(setting: Setting, recipe: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """The memory estimate of the measured steps, and the two sizes in bytes that the decoding ceiling is made of."""
    from workbench.train import memory
    from workbench.train.memory.footprint import kv_bytes, weight_bytes

    card = memory.card() if setting.cuda else None
    made = memory.estimate(
        recipe,
        settings,
        longest_prompt_tokens=setting.sizes.prompt,
        vram_gb=card[1] / 1e9 if card else None,
        device=setting.device,
    )
    # A tied embedding is read whole, for the logits; of one that is not tied a few rows are read.
    shape = made.shape
    in_step = weight_bytes(shape, recipe.policy.load_in_4bit)
    if not shape.tied:
        in_step -= 2 * shape.vocab_size * shape.hidden_size
    return {"estimate": made.found(), "weight_bytes": in_step, "token_bytes": kv_bytes(shape, 1, 1)}


def summary(rows: Sequence[Row], warmup: int) -> dict[str, Any]:
    """Medians over the steps after the warm-up, and the most memory over all; {} if no step is left."""
    counted = rows[warmup:]
    if not counted:
        return {}

    def median(name: str) -> float | None:
        values = [row[name] for row in counted if row.get(name) is not None]
        return statistics.median(values) if values else None

    def most(name: str) -> float | None:
        return max((row[name] for row in rows if row.get(name) is not None), default=None)

    step_s, generate_s, tokens = median("seconds"), median("generate_s"), median("tokens")
    return {
        "steps": len(counted),
        "step_s": step_s,
        "least_step_s": min(row["seconds"] for row in counted),
        **{name: median(name) for name in ("generate_s", "train_s", "reward_s", "tokens", "longest")},
        "tokens_per_s": tokens / step_s if tokens else None,
        "generated_tokens_per_s": tokens / generate_s if tokens and generate_s else None,
        "allocated_bytes": most("allocated_bytes"),
        "reserved_bytes": most("reserved_bytes"),
    }
