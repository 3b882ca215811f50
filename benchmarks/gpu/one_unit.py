"""One process of the arms: train random weights for some steps a unit through `workbench.train`, and time and weigh them.

Everything is the same for every arm but what the arm is about. A unit's JSON is written when its first step begins, with all
that is known then, and again after every step: one that is cut has lost its steps to come and nothing else.
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

from measuring import say

from gpu.hardware import synchronise
from gpu.models import QWEN2_5_1_5B, TOY_CONFIG, random_model, word_task
from gpu.setting import Setting
from gpu.units import Unit

GENERATIONS = 8
COMPLETIONS = 64  # of a step
PROMPTS = 256  # more than any unit uses, so that no prompt comes twice
RESERVE_S = 10  # of a process's time, to end a run
MEASURED, RUNNING, FAILED, CUT = "measured", "running", "failed", "cut short"
Row = dict[str, Any]


class Clock:
    """A watcher that takes the time from one logged step to the next, and the most memory that was held until then.

    A step is logged after its loss was read from the GPU, and the GPU is waited for before the clock is read.

    Args:
        seconds: no step is begun that would end after so long; two are made at least.
        begun: called with the run and its settings before the first step.
        keep: called with all rows after each step.
    """

    def __init__(
        self,
        seconds: float,
        begun: Callable[[Any, dict[str, Any]], None] = lambda run, settings: None,
        keep: Callable[[list[Row]], None] = lambda rows: None,
    ) -> None:
        self.seconds, self.begun, self.keep = seconds, begun, keep
        self.rows: list[Row] = []

    def begin(self, run: Any, total_steps: int, settings: dict[str, Any]) -> None:
        import torch

        self.run, self.total = run, total_steps
        self.begun(run, dict(settings))
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()  # what loading took is another matter
        synchronise()
        self.first = self.last = time.perf_counter()

    def update(self, step: int, values: dict[str, Any]) -> None:
        synchronise()
        now = time.perf_counter()
        seconds, self.last = now - self.last, now
        self.rows.append({"step": step, "seconds": seconds, **_split(seconds, values), **_memory()})
        self.keep(self.rows)
        # The request is answered at the end of the next step, so one more is made before the run ends.
        if now - self.first + 2 * seconds > self.seconds and step + 1 < self.total and self.run.live:
            from workbench.run.requests import send

            send(self.run, "stop", by="the suite's clock")

    def end(self, message: str) -> None:
        pass


def _split(seconds: float, values: dict[str, Any]) -> Row:
    from workbench.run.metrics import CLIPPED, GENERATE_S, MEAN_LENGTH, REWARD_S

    mean, generate_s, reward_s = values.get(MEAN_LENGTH), values.get(GENERATE_S), values.get(REWARD_S)
    return {
        "generate_s": generate_s,
        # All the rest, the optimiser too. TRL's own time of a step leaves that out, and does not wait for the GPU.
        "train_s": None if generate_s is None else seconds - generate_s - (reward_s or 0.0),
        "reward_s": reward_s,
        "tokens": None if mean is None else mean * COMPLETIONS,  # really generated, also where one ended early
        "longest": values.get("completions/max_length"),
        "clipped": values.get(CLIPPED),
        **{key: values.get(key) for key in ("reward", "group_reward_std", "loss", "grad_norm")},
    }


def _memory() -> Row:
    import torch

    if not torch.cuda.is_available():
        return {"held_bytes": None, "allocated_bytes": None, "reserved_bytes": None}
    return {
        "held_bytes": torch.cuda.memory_allocated(),
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


def recipe_of(setting: Setting, unit: Unit, policy: str, steps: int) -> Any:
    """The unit's recipe, for at most so many steps."""
    from workbench.run.recipe import Recipe

    rows = 16 if setting.toy else 8  # of a backward pass
    asked = {
        "run_name": unit.name,
        "policy": {
            "name": policy,
            "backend": unit.backend,
            "load_in_4bit": unit.precision == "nf4",
            "max_seq_length": setting.sizes.prompt + max(setting.sizes.completions),  # one policy for both lengths
            "dtype": "bfloat16" if setting.cuda else None,
        },
        "grpo": {
            "max_steps": steps,
            "num_generations": GENERATIONS,
            "per_device_train_batch_size": rows,
            "gradient_accumulation_steps": COMPLETIONS // rows,
            "max_completion_length": unit.completion,
            "learning_rate": 1e-5,
            "beta": 0.0,
            "temperature": 1.0,
            # In every arm alike but one, though some would fit without it: it is what an ordinary card is used with.
            "gradient_checkpointing": unit.checkpointing,
            "logging_steps": 1,
            "save_steps": 10_000,
        },
        "generation": unit.generation,
        "seed": unit.round,
    }
    return Recipe.of(asked)


def measure(setting: Setting, units: Sequence[Unit]) -> None:
    """Measure units that share a process in this one, one after the other, while there is time; leaves their JSON files.

    What goes wrong stands in the unit's file and is not raised. It ends the process: what is left of one that failed may
    not be sound.
    """
    from workbench.train.policy import trainer_classes

    policy = None
    for number, unit in enumerate(units):
        step_s = expected_s(setting, unit)
        if number and setting.left_s() - RESERVE_S < (step_s or limit_s(setting, unit)):
            say(f"{unit.name}: not begun, {setting.left_s():.0f} s are left")
            continue
        found: dict[str, Any] = {"unit": dataclasses.asdict(unit), "arm": unit.arm, "status": RUNNING, "rows": []}
        found["nth_in_process"] = number
        started = time.monotonic()
        try:
            # Before anything asks the GPU for its name: Unsloth sets up torch's allocator when it is imported.
            trainer_classes(unit.backend)
            _write(setting, unit, found)
            policy = policy or _policy(setting, unit)
            _train(setting, unit, policy, step_s, found)
            found["status"] = MEASURED
        except Exception as error:  # one arm that cannot run is a finding, and the others are still to be measured
            found |= {"status": FAILED, "error": f"{type(error).__name__}: {error}"[:2000]}
        found["whole_s"] = time.monotonic() - started
        _write(setting, unit, found)
        gc.collect()
        if found["status"] == FAILED:
            return


def limit_s(setting: Setting, unit: Unit) -> float:
    """Seconds after which no step of a unit is begun."""
    return setting.sizes.arm_s[setting.sizes.completions.index(unit.completion)]


def expected_s(setting: Setting, unit: Unit) -> float | None:
    """A step's seconds by what the same arm took at the short length; None where that was not measured."""
    short = dataclasses.replace(unit, completion=setting.sizes.completions[0], variant="")
    step_s = (setting.read(file_of(short)) or {}).get("step_s")
    return step_s * unit.completion / short.completion if step_s else None


def file_of(unit: Unit) -> str:
    """The unit's file in the out folder."""
    return f"arms/{unit.name}.json"


def _write(setting: Setting, unit: Unit, found: dict[str, Any]) -> None:
    setting.write(file_of(unit), {**found, **summary(found["rows"], setting.sizes.warmup)})


def _policy(setting: Setting, unit: Unit) -> Any:
    from workbench.train.policy import load_policy

    recipe = recipe_of(setting, unit, str(build(setting)), 1)
    return load_policy(
        recipe.policy.name,
        backend=recipe.policy.backend,
        load_in_4bit=recipe.policy.load_in_4bit,
        max_seq_length=recipe.policy.max_seq_length,
        dtype=recipe.policy.dtype,
        lora=recipe.lora,
        gradient_checkpointing=unit.checkpointing,
        seed=recipe.seed,
    )


def _train(setting: Setting, unit: Unit, policy: Any, step_s: float | None, found: dict[str, Any]) -> None:
    """Train the unit's steps; into `found` goes what is known before the first step, then its rows, then the rest."""
    from workbench.train.trainer import train

    sizes = setting.sizes
    task = word_task(PROMPTS, sizes.prompt)
    seconds = min(limit_s(setting, unit), setting.left_s() - RESERVE_S)
    # A stop is answered one step late, so one step alone has to be asked for before it begins.
    alone = step_s is not None and unit.completion > min(sizes.completions) and 2 * step_s > seconds
    recipe = recipe_of(setting, unit, str(build(setting)), 1 if alone else sizes.warmup + sizes.most)

    def begun(run: Any, settings: dict[str, Any]) -> None:
        found.update(_known(setting, recipe, policy, run, settings))
        _write(setting, unit, found)

    def keep(rows: list[Row]) -> None:
        found["rows"] = list(rows)
        _write(setting, unit, found)

    clock = Clock(seconds, begun, keep)
    with tempfile.TemporaryDirectory(prefix="arm-", dir=setting.work) as runs:
        run = train(recipe, policy=policy, task=task, watchers=[clock], runs=runs)
        if not clock.rows:
            raise RuntimeError(f"no step was logged; the run's events: {run.events()}")
        result = run.result()
    found["generation"] = result["generation"]
    found["result"] = {key: result.get(key) for key in ("status", "steps", "minutes", "hooks_share")}


def _known(setting: Setting, recipe: Any, policy: Any, run: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """What is known of a unit before its first step."""
    from workbench.train.generation import expected

    manifest = run.manifest()
    why = expected(recipe, settings, setting.cuda)
    found = {
        "policy": manifest["policy"],
        "trainer": manifest["trainer"],
        "settings": manifest["settings"]["in_force"],
        # Until the run says which path really generated.
        "generation": {"by": "trl" if why else "workbench", "planned": True, **({"why": why} if why else {})},
        "load_s": policy.load_s,
        "prompt": setting.sizes.prompt,
        "held_bytes": _memory()["held_bytes"],
    }
    try:
        found |= _predicted(setting, recipe, settings)
    except Exception as error:  # the steps are worth measuring without it
        found["estimate_error"] = f"{type(error).__name__}: {error}"
    return found


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
    """Medians over the steps after the warm-up, and the most memory over all; {} without a step.

    Where the time sufficed for no other, the first steps count, and `warm` is false.
    """
    if not rows:
        return {}
    counted = rows[warmup:] or rows

    def median(name: str) -> float | None:
        values = [row[name] for row in counted if row.get(name) is not None]
        return statistics.median(values) if values else None

    def most(name: str) -> float | None:
        return max((row[name] for row in rows if row.get(name) is not None), default=None)

    step_s, generate_s, tokens = median("seconds"), median("generate_s"), median("tokens")
    return {
        "steps": len(counted),
        "warm": len(rows) > warmup,
        "step_s": step_s,
        "least_step_s": min(row["seconds"] for row in counted),
        **{name: median(name) for name in ("generate_s", "train_s", "reward_s", "tokens", "longest")},
        "tokens_per_s": tokens / step_s if tokens else None,
        "generated_tokens_per_s": tokens / generate_s if tokens and generate_s else None,
        "allocated_bytes": most("allocated_bytes"),
        "reserved_bytes": most("reserved_bytes"),
    }
