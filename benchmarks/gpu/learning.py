"""(e) Does it learn? A policy of about 50 million parameters, taught on this machine as the
embedded one was, then GRPO.

The text, the tokenizer, the loss and the schedule are `workbench.tiny`'s; only the model is larger,
and a GPU takes larger batches. What is learned is the arithmetic task; prompts with a held-out pair
of numbers are in neither stage.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import say

from gpu.processes import own_process
from gpu.setting import Checks, Setting

FILE, TAUGHT = "learning.json", "taught.json"
# of AdamW, at the schedule's top; a wider model takes smaller steps than the embedded one
TAUGHT_RATE = 6e-4
LEARNED_RATE = 1e-4
TIMED = 5  # first steps, on text of their own, that say how many there is time for


def run(setting: Setting) -> dict[str, Any]:
    """Teach, train with GRPO, measure before and after; leaves `learning.json` and `learning.png`.

    Each stage is done once. A GRPO run that the time ended is measured as far as it came, and goes
    on in the next call.
    """
    found = setting.read(FILE) or {"part": "learning", "done": False, "checks": []}
    if found["done"]:
        say("learning: done before")
        return found
    if not (folder_of(setting) / "config.json").is_file():
        # Plain transformers, so in a process that Unsloth has not changed.
        if setting.fresh:
            status, said = own_process(
                setting, "teach", "--job", "teach", limit_s=setting.left_s() - 5
            )
            if status:
                raise RuntimeError(f"teaching ended with status {status}:\n{said}")
        else:
            teach(setting)
    found["taught"] = setting.read(TAUGHT)
    setting.write(FILE, found)
    if found["taught"] is None or setting.left_s() < (0 if setting.toy else 60):
        return found
    found |= _learned(setting, found)
    return found


def folder_of(setting: Setting) -> Path:
    """The taught policy."""
    return setting.work / ("taught-toy" if setting.toy else "taught")


# --- supervised
# --------------------------------------------------------------------------------------------------


def teach(setting: Setting) -> dict[str, Any]:
    """Make the policy from nothing; leaves its folder and `taught.json`.

    Without the time for all steps there are fewer, and the schedule is that of those.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tools.tiny.build import save
    from tools.tiny.vocabulary import (
        CONTEXT_TOKENS,
        to_tokenizer,
        train_sentencepiece,
        vocabulary_text,
    )

    sizes, started = setting.sizes, time.monotonic()
    pieces = train_sentencepiece(vocabulary_text())
    tokenizer = to_tokenizer(pieces)
    torch.manual_seed(0)
    heads = max(1, sizes.width // 64)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=sizes.width,
            intermediate_size=sizes.inner,
            num_hidden_layers=sizes.layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=CONTEXT_TOKENS,
            tie_word_embeddings=False,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    ).to(setting.device)
    found: dict[str, Any] = {"parameters": model.num_parameters(), "rows_a_step": sizes.taught_rows}
    losses = _taught(setting, model, tokenizer)
    folder = folder_of(setting)
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    save(model.cpu(), tokenizer, pieces, beside)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(beside, folder)
    found |= {
        "steps": len(losses),
        "seconds": time.monotonic() - started,
        "loss": sum(losses[-20:]) / len(losses[-20:]),
        "losses": losses[:: max(1, len(losses) // 200)],
    }
    setting.write(TAUGHT, found)
    say(
        f"taught {found['parameters']:,} parameters in {found['steps']} steps,"
        f" {found['seconds']:.0f} s"
    )
    return found


def _taught(setting: Setting, model: Any, tokenizer: Any) -> list[float]:
    """Nats per completion token of every step; the weights end on NF4's grid, as the embedded
    policy's do.
    """
    import torch
    from torch.nn.utils import parametrize

    from tools.tiny.learning import (
        NF4_FROM,
        SKILL_SHARE,
        completion_loss,
        learning_rate_at,
        see_through_nf4,
        settle_on_nf4,
        to_batch,
        training_texts,
    )

    sizes = setting.sizes
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=TAUGHT_RATE, betas=(0.9, 0.98), weight_decay=0.05
    )
    model.train()
    losses: list[float] = []

    def step(texts: Any, rate: float) -> None:
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = to_batch([next(texts) for _ in range(sizes.taught_rows)], tokenizer)
        batch = [
            type(rows)(*(None if part is None else part.to(setting.device) for part in rows))
            for rows in batch
        ]
        with torch.autocast("cuda", torch.bfloat16, enabled=setting.cuda), parametrize.cached():
            loss = completion_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    begun, own_text = time.monotonic(), training_texts(seed=1)
    for number in range(TIMED):
        step(own_text, TAUGHT_RATE * 0.1)
        if number == 0:
            begun = time.monotonic()  # the first one compiles and allocates
    each_s = (time.monotonic() - begun) / (TIMED - 1)
    room_s = min(sizes.taught_s, setting.left_s() - (0 if setting.toy else 30))
    # The last two fifths are computed through NF4 as well, which takes about half as long again.
    steps = max(1, min(sizes.taught_steps, int(room_s / (1.3 * each_s))))
    say(f"teaching: {steps} of {sizes.taught_steps} steps, {each_s:.3f} s each")
    texts = training_texts(seed=0, skill_rows=int(steps * SKILL_SHARE) * sizes.taught_rows)
    for number in range(steps):
        if number == int(steps * NF4_FROM):
            see_through_nf4(model)
        step(texts, TAUGHT_RATE * learning_rate_at(number, steps))
        if number % 100 == 99:
            say(f"teaching: step {number + 1}, loss {losses[-1]:.3f}")
    settle_on_nf4(model)
    return losses


# --- GRPO
# --------------------------------------------------------------------------------------------------


class UntilDeadline:
    """A watcher that stops the run so early that a checkpoint and a measurement still fit in."""

    def __init__(self, setting: Setting, reserve_s: float) -> None:
        self.setting, self.reserve_s = setting, reserve_s
        self.last = time.monotonic()

    def begin(self, run: Any, total_steps: int, settings: dict[str, Any]) -> None:
        self.run, self.last = run, time.monotonic()

    def update(self, step: int, values: dict[str, Any]) -> None:
        from workbench.run.control_file import send

        now = time.monotonic()
        took_s, self.last = now - self.last, now
        if step % 10 == 0:
            say(f"GRPO: step {step}, reward {values.get('reward')}, {took_s:.2f} s")
        if self.setting.left_s() < self.reserve_s + 2 * took_s and self.run.live:
            send(self.run, "stop", by="the suite's clock")

    def end(self, message: str) -> None:
        pass


def _learned(setting: Setting, found: dict[str, Any]) -> dict[str, Any]:
    from workbench.training.policy import load_policy, trainer_classes

    trainer_classes()  # unsloth before transformers
    from workbench.run.directory import open_run
    from workbench.tiny.task import task as arithmetic
    from workbench.training.resuming import load_adapter
    from workbench.training.trainer import continue_run, train

    sizes, recipe = setting.sizes, _recipe(setting)
    task = arithmetic(held_out=sizes.held_out)
    policy = load_policy(
        recipe.policy.name,
        load_in_4bit=True,
        max_seq_length=256,
        lora=recipe.lora,
        seed=recipe.seed,
    )
    watcher = UntilDeadline(setting, reserve_s=0 if setting.toy else 75)
    folder = setting.work / "runs" / recipe.run_name
    state = _state(folder)
    if state == "finished":
        run = open_run(folder)
        load_adapter(policy.model, run.final)
    elif state == "begun":
        run = continue_run(folder, policy=policy, task=task, watchers=[watcher])
    else:
        shutil.rmtree(folder, ignore_errors=True)
        run = train(recipe, policy=policy, task=task, watchers=[watcher], runs=folder.parent)
    rows = run.metrics()
    result = {
        "result": run.result(),
        "steps": run.result()["steps"],
        "policy": policy.found(),
        "curve": _curve(rows, task),
    }
    found = {**found, **result}
    setting.write(FILE, found)
    try:
        draw(
            setting.out / "learning.png",
            result["curve"],
            (found.get("taught") or {}).get("losses", []),
        )
    except ImportError as error:  # the numbers are in the JSON
        say(f"no picture: {error}")
    # Also of a run that the time has stopped: it may be the last that is seen of it.
    found["done"] = run.result()["status"] == "finished"
    found |= _before_and_after(
        setting, policy, task, after_steps=result["steps"], finished=found["done"]
    )
    setting.write(FILE, found)
    return found


def _state(folder: Path) -> str:
    """Of the GRPO run: "finished", "begun" (it can go on), or "" (from the start)."""
    from workbench.base.errors import RunError
    from workbench.run.directory import open_run
    from workbench.training.resuming import latest_point

    try:
        run = open_run(folder)
        if run.result()["status"] == "finished":
            return "finished"
        latest_point(run)
    except RunError:  # no run, or one without a checkpoint
        return ""
    return "begun"


def _recipe(setting: Setting) -> Any:
    from workbench.recipe import Recipe

    sizes = setting.sizes
    return Recipe.of(
        {
            "run_name": f"learning-{setting.device}",
            "policy": {
                "name": str(folder_of(setting)),
                "load_in_4bit": True,
                "max_seq_length": 256,
            },
            "grpo": {
                "max_steps": sizes.learned_steps,
                "num_generations": 8,
                "per_device_train_batch_size": sizes.learned_batch,
                "max_completion_length": 96 if not setting.toy else 24,
                "learning_rate": LEARNED_RATE,
                "beta": 0.001,
                "temperature": 1.0,
                "logging_steps": 1,
                "save_steps": 25,
            },
            "seed": 0,
        }
    )


def _curve(rows: list[dict[str, Any]], task: Any) -> dict[str, list[float | None]]:
    from workbench.run.metrics import per_function

    names = {
        "step": "step", "reward": "reward", "right": per_function(task.right_function),
        "format": per_function(task.format_by), "kl": "kl", "group_reward_std": "group_reward_std",
        "seconds": "step_time",
    }  # fmt: skip
    return {name: [row.get(key) for row in rows] for name, key in names.items()}


def _before_and_after(
    setting: Setting, policy: Any, task: Any, after_steps: int, finished: bool
) -> dict[str, Any]:
    from workbench.inspection.evaluation import measure_policy
    from workbench.inspection.measured import Evaluation

    sizes = setting.sizes
    length = 24 if setting.toy else 96
    measured = [
        measure_policy(
            policy,
            task,
            samples=sizes.samples,
            max_completion_length=length,
            base=base,
            batch_size=256,
        )
        for base in (True, False)
    ]
    held_out, checks = {"after_steps": after_steps, **Evaluation([], *measured).found}, Checks()
    low = held_out["gain"]["low"]
    judged = finished and not setting.toy
    checks.note(
        "the held-out gain's interval lies above 0", low > 0 if judged else None, held_out["gain"]
    )
    return {"held_out": held_out, "checks": checks.found}


def draw(file: Path, curve: dict[str, list[float | None]], losses: list[float]) -> None:
    """The loss while it was taught, and reward, right answers and format while GRPO trained, as a
    PNG.
    """
    import numpy as np

    from workbench.views.figure import new_figure, png
    from workbench.views.look import BLUE, GREEN, ORANGE

    figure, (left, middle, right) = new_figure(12, 3.2, 1, 3)
    left.plot(np.linspace(0, 1, len(losses)), losses, color=BLUE)
    left.set(title="taught: loss, nats a token", xlabel="share of the steps")

    def line(axis: Any, name: str, colour: str, label: str) -> None:
        points = [(x, y) for x, y in zip(curve["step"], curve[name], strict=True) if y is not None]
        axis.plot([x for x, _ in points], [y for _, y in points], color=colour, label=label)

    line(middle, "reward", BLUE, "reward")
    middle.set(title="GRPO: reward", xlabel="step")
    line(right, "right", GREEN, "right (mean score)")
    line(right, "format", ORANGE, "format (mean score)")
    right.set(title="GRPO: by function", xlabel="step")
    right.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    file.write_bytes(png(figure))
