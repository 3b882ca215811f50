"""What test_two_processes.py has two processes do, one thing after the other; `accelerate launch` starts this file."""

from __future__ import annotations

import json

import workbench as wb
from workbench.run.control_file import send
from workbench.run.processes import rank
from workbench.tiny.task import task as arithmetic

GRPO = {
    "max_steps": 6, "save_steps": 2, "num_generations": 8, "per_device_train_batch_size": 4, "max_completion_length": 12,
    "learning_rate": 1e-3, "scale_rewards": "batch",
}  # fmt: skip


def recipe(name: str, **grpo) -> wb.Recipe:
    policy = {"name": "tiny", "backend": "transformers", "load_in_4bit": False}
    return wb.Recipe.of({"run_name": name, "policy": policy, "seed": 3, "grpo": {**GRPO, **grpo}})


def task():
    return arithmetic(16, 4)


class Asking:
    """A watcher, so in the main process alone: it asks for something after a step."""

    def __init__(self, step: int, *asked: str) -> None:
        self.step, self.asked = step, asked

    def begin(self, run, total_steps, settings) -> None:
        self.run = run

    def update(self, step, values) -> None:
        if step == self.step:
            for action in self.asked:
                details = {"function": "correctness_reward", "value": 0.5} if action == "weight" else {}
                send(self.run, action, **details)

    def end(self, message) -> None:
        pass


def main() -> None:
    found: dict = {}
    plan = wb.plan(recipe("whole"), task())
    policy = wb.load_policy(plan)
    trainer = wb.make_trainer(plan, policy)
    run = wb.attach(trainer, plan, watchers=[])
    advantages: list[float] = []
    calculate = trainer._generate_and_score_completions

    def calculated(*args, **kwargs):
        outputs = calculate(*args, **kwargs)
        advantages.extend(list(trainer._logs["advantages"])[-8:])
        return outputs

    trainer._generate_and_score_completions = calculated
    trainer.train()
    found |= {"advantages": advantages, "words": plan.words, "weights": wb_sum(policy)}

    stopped = wb.train(recipe("stopped"), task=task(), watchers=[Asking(3, "weight", "stop")])
    found |= {"stopped": stopped.result(), "events": stopped.events()}
    # As if it had been killed: continued from its own checkpoint of step 4 onwards it must be as it was.
    wb.train(recipe("parts", max_steps=4), task=task(), watchers=[])
    again = wb.continue_run("parts", task=task(), watchers=[], steps=2)
    found["parts"] = again.result()["status"]
    if rank() == 0:
        with open("found.json", "w") as file:
            json.dump(found, file)


def wb_sum(policy) -> float:
    return float(sum(weight.double().abs().sum() for name, weight in policy.model.named_parameters() if "lora_" in name))


if __name__ == "__main__":
    main()
