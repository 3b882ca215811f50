"""One process of the arms: train random weights for some steps a unit through `workbench.training`,
and time and weigh them.

Everything is the same for every arm but what the arm is about. A unit's JSON is written when its
first step begins, with all that is known then, and again after every step: one that is cut has lost
its steps to come and nothing else.
"""

from __future__ import annotations

import dataclasses
import gc
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measuring import say

from gpu.clock import COMPLETIONS, Clock, Row, memory_held, summary
from gpu.models import QWEN2_5_1_5B, TOY_CONFIG, random_model, word_task
from gpu.setting import Setting
from gpu.units import Unit

GENERATIONS = 8
PROMPTS = 256  # more than any unit uses, so that no prompt comes twice
RESERVE_S = 10  # of a process's time, to end a run
MEASURED, RUNNING, FAILED, CUT = "measured", "running", "failed", "cut short"


def config_of(setting: Setting) -> dict[str, Any]:
    """The model's configuration."""
    return TOY_CONFIG if setting.toy else QWEN2_5_1_5B


def model_folder(setting: Setting) -> Path:
    """The folder of the random weights."""
    return setting.work / ("toy-model" if setting.toy else "random-1.5b")


def build(setting: Setting) -> Path:
    """The folder of the random weights; made once."""
    return random_model(model_folder(setting), config_of(setting), setting.device)


def recipe_of(setting: Setting, unit: Unit, policy: str, steps: int) -> Any:
    """The unit's recipe, for at most so many steps."""
    from workbench.recipe import Recipe

    rows = 32 if setting.toy else 8  # of a backward pass
    asked = {
        "run_name": unit.name,
        "policy": {
            "name": policy,
            "backend": unit.backend,
            "load_in_4bit": unit.precision == "nf4",
            # one policy for both lengths
            "max_seq_length": setting.sizes.prompt + max(setting.sizes.completions),
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
            # In every arm alike but one, though some would fit without it: it is what an ordinary
            # card is used with.
            "gradient_checkpointing": unit.checkpointing,
            "logging_steps": 1,
            "save_steps": 10_000,
        },
        "generation": unit.generation,
        "seed": unit.round,
    }
    return Recipe.of(asked)


def measure(setting: Setting, units: Sequence[Unit]) -> None:
    """Measure units that share a process in this one, one after the other, while there is time;
    leaves their JSON files.

    What goes wrong stands in the unit's file and is not raised. It ends the process: what is left
    of one that failed may not be sound.
    """
    from workbench.training.policy import trainer_classes

    policy = None
    for number, unit in enumerate(units):
        step_s = expected_s(setting, unit)
        if number and setting.left_s() - RESERVE_S < (step_s or limit_s(setting, unit)):
            say(f"{unit.name}: not begun, {setting.left_s():.0f} s are left")
            continue
        found: dict[str, Any] = {
            "unit": dataclasses.asdict(unit),
            "arm": unit.arm,
            "status": RUNNING,
            "rows": [],
        }
        found["nth_in_process"] = number
        started = time.monotonic()
        try:
            # Before anything asks the GPU for its name: Unsloth sets up torch's allocator when it
            # is imported.
            trainer_classes(unit.backend)
            _write(setting, unit, found)
            policy = policy or _policy(setting, unit)
            _train(setting, unit, policy, step_s, found)
            found["status"] = MEASURED
        except Exception as error:
            # one arm that cannot run is a finding, and the others are still to be measured
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
    """A step's seconds by what the same arm took at the short length; None where that was not
    measured.
    """
    short = dataclasses.replace(unit, completion=setting.sizes.completions[0], variant="")
    step_s = (setting.read(file_of(short)) or {}).get("step_s")
    return step_s * unit.completion / short.completion if step_s else None


def file_of(unit: Unit) -> str:
    """The unit's file in the out folder."""
    return f"arms/{unit.name}.json"


def _write(setting: Setting, unit: Unit, found: dict[str, Any]) -> None:
    setting.write(file_of(unit), {**found, **summary(found["rows"], setting.sizes.warmup)})


def _policy(setting: Setting, unit: Unit) -> Any:
    from workbench.training.policy import load_policy

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


def _train(
    setting: Setting, unit: Unit, policy: Any, step_s: float | None, found: dict[str, Any]
) -> None:
    """Train the unit's steps; into `found` goes what is known before the first step, then its rows,
    then the rest.
    """
    from workbench.training.trainer import train

    sizes = setting.sizes
    task = word_task(PROMPTS, sizes.prompt)
    seconds = min(limit_s(setting, unit), setting.left_s() - RESERVE_S)
    # A stop is answered one step late, so one step alone has to be asked for before it begins.
    alone = step_s is not None and unit.completion > min(sizes.completions) and 2 * step_s > seconds
    recipe = recipe_of(
        setting, unit, str(build(setting)), 1 if alone else sizes.warmup + sizes.most
    )

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
    found["result"] = {
        key: result.get(key) for key in ("status", "steps", "minutes", "hooks_share")
    }


def _known(
    setting: Setting, recipe: Any, policy: Any, run: Any, settings: dict[str, Any]
) -> dict[str, Any]:
    """What is known of a unit before its first step."""
    from workbench.instruments.cpu.generation import expected

    manifest = run.manifest()
    why = expected(recipe, settings, setting.cuda)
    found = {
        "policy": manifest["policy"],
        "trainer": manifest["trainer"],
        "settings": manifest["settings"]["in_force"],
        # Until the run says which path really generated.
        "generation": {
            "by": "trl" if why else "workbench",
            "planned": True,
            **({"why": why} if why else {}),
        },
        "load_s": policy.load_s,
        "prompt": setting.sizes.prompt,
        "held_bytes": memory_held()["held_bytes"],
    }
    try:
        found |= _predicted(setting, recipe, settings)
    except Exception as error:  # the steps are worth measuring without it
        found["estimate_error"] = f"{type(error).__name__}: {error}"
    return found


def _predicted(setting: Setting, recipe: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """The memory estimate of the measured steps, and the two sizes in bytes that the decoding
    ceiling is made of.
    """
    from workbench import memory
    from workbench.memory.parts import kv_bytes, weight_bytes
    from workbench.training.plan.settings.device import Machine

    made = memory.estimate(
        recipe,
        settings,
        longest_prompt_tokens=setting.sizes.prompt,
        vram_gb=Machine.here().card_gb if setting.cuda else None,
    )
    # A tied embedding is read whole, for the logits; of one that is not tied a few rows are read.
    shape = made.shape
    in_step = weight_bytes(shape, recipe.policy.load_in_4bit)
    if not shape.tied:
        in_step -= 2 * shape.vocab_size * shape.hidden_size
    return {"estimate": made.found(), "weight_bytes": in_step, "token_bytes": kv_bytes(shape, 1, 1)}
