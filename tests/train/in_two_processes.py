"""What test_two_processes.py has two processes do, one run after the other; `accelerate launch` starts this file."""

from __future__ import annotations

import json
import os
import signal
import threading

from transformers import TrainerCallback

import workbench as wb
from workbench.base.processes import gathered, is_main, rank
from workbench.run.control_file import send
from workbench.task import Task
from workbench.tiny.task import task as arithmetic

GRPO = {
    "max_steps": 6, "save_steps": 2, "num_generations": 8, "per_device_train_batch_size": 4, "max_completion_length": 12,
    "learning_rate": 1e-3, "scale_rewards": "batch",
}  # fmt: skip


def recipe(name: str, **grpo) -> wb.Recipe:
    """A group of 8 lies across the two processes: each generates 4 completions a step."""
    policy = {"name": "tiny", "backend": "transformers", "load_in_4bit": False}
    return wb.Recipe.of({"run_name": name, "policy": policy, "seed": 3, "grpo": {**GRPO, **grpo}})


def task():
    return arithmetic(16, 4)


async def awaited_reward(completions, **kwargs):
    return [len(completion[0]["content"]) % 3 for completion in completions]


def counted_reward(completions, log_metric, **kwargs):
    log_metric("seen", len(completions))
    return [float(completion[0]["content"].count("1")) for completion in completions]


class Asking:
    """A watcher, so in the main process alone: it sends requests after steps."""

    def __init__(self, asked: dict[int, tuple[str, dict]], later: str = "") -> None:
        self.asked, self.later = asked, later

    def begin(self, run, total_steps, settings) -> None:
        self.run = run

    def update(self, step, values) -> None:
        action, details = self.asked.get(step, ("", {}))
        if action:
            send(self.run, action, **details)
        if action == "pause":
            threading.Timer(1.0, lambda: send(self.run, "resume")).start()

    def end(self, message) -> None:
        pass


class Ended(TrainerCallback):
    """As if a scheduler had ended one process, which is not the main one."""

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        if state.global_step == 4 and rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def trained(name: str, on: Task, watchers=(), callback=None) -> dict:
    """Train in the open, and return what TRL computed itself, beside the weights of each process."""
    plan = wb.plan(recipe(name), on)
    policy = wb.load_policy(plan)
    trainer = wb.make_trainer(plan, policy)
    run = wb.attach(trainer, plan, watchers=list(watchers))
    generate, advantages = trainer._generate_and_score_completions, []

    def generated(*args, **kwargs):
        outputs = generate(*args, **kwargs)
        advantages.extend(trainer._logs["advantages"])
        return outputs

    trainer._generate_and_score_completions = generated
    if callback:
        trainer.add_callback(callback)
    trainer.train()
    weights = [float(weight.detach().double().abs().sum()) for key, weight in policy.model.named_parameters() if "lora_" in key]
    return {"advantages": advantages, "weights": gathered(weights), "words": plan.words, "steps": gathered(run.result()["steps"])}


def main() -> None:
    found = {"whole": trained("whole", task())}
    wb.train(recipe("stopped"), task=task(), watchers=[Asking({3: ("stop", {})})])
    found["stopped"] = wb.open_run("stopped").result()
    gathered(None)
    wb.continue_run("stopped", task=task(), watchers=[])
    of_two = Task("of two", arithmetic(16, 4).rows, [awaited_reward, counted_reward])
    asked = {1: ("weight", {"function": "counted_reward", "value": 0.5}), 2: ("pause", {})}
    found["asked"] = trained("asked", of_two, [Asking(asked)], Ended())
    if is_main():
        with open("found.json", "w", encoding="utf-8") as file:
            json.dump(found, file)


if __name__ == "__main__":
    main()
