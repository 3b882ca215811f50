"""A run that goes on without training: made-up completions through the suite and the recorder, requests answered.

`python tests/running.py NAME STEPS SECONDS` does it in a process of its own, under WORKBENCH_HOME.
"""

from __future__ import annotations

import math
import random
import sys
import time
from types import SimpleNamespace

from workbench.recipe import Recipe
from workbench.rewards.suite import RewardSuite
from workbench.run.control_file import ControlReader
from workbench.run.directory import RunDirectory
from workbench.run.metrics import (
    CLIPPED,
    ENTROPY,
    GENERATE_S,
    KL,
    MEAN_LENGTH,
    REWARD,
    REWARD_S,
    REWARD_STD,
    STEP_S,
    TRAIN_S,
    per_function,
    weight_of,
)
from workbench.task import Task
from workbench.training.recorder import Recorder

HOSTILE = "<img src=x onerror='window.hacked=1'> <script>window.hacked=1</script></pre> $x^2$ \\(y\\) \u202e"
GENERATIONS, PROMPTS = 4, 4


def correctness_reward(completions, answer, **kwargs):
    return [2.0 if right in text[0]["content"] else 0.0 for text, right in zip(completions, answer)]


def format_reward(completions, **kwargs):
    return [1.0 if "<answer>" in text[0]["content"] else 0.0 for text in completions]


ROWS = [
    {"prompt": [{"role": "user", "content": f"What is {n} + {n}?"}], "answer": str(2 * n), "prompt_id": str(n)}
    for n in range(1, 9)
]
TASK = Task("doubles", ROWS, [correctness_reward, format_reward])


class Running:
    """A run whose steps are taken one by one, with `step()`.

    Args:
        steps: that its recipe asks for.
        functions: of the task; None: two.
    """

    def __init__(self, name: str = "r", steps: int = 40, task: Task = TASK, beta: float = 0.01) -> None:
        self.suite = RewardSuite(task, GENERATIONS, keep_state=True)
        manifest = {
            "rewards": {"hash": self.suite.hash, "functions": self.suite.hashes, "weights": self.weights},
            "settings": {
                "asked": {},
                "in_force": {
                    "num_generations": GENERATIONS, "scale_rewards": "group", "beta": beta, "learning_rate": 1e-5,
                    "max_steps": steps, "max_completion_length": 96,
                },
            },
        }  # fmt: skip
        self.run = RunDirectory.create(name, Recipe(run_name=name, grpo={"max_steps": steps}), manifest)
        self.run.log_event("started", 0)
        self.recorder = Recorder(self.run, eos_ids=[0])
        self.mailbox = ControlReader(self.run)
        self.suite.on_batch = self.recorder.batch
        self.beta, self.done, self.paused, self.stopped = beta, 0, False, False
        self.muted: dict[str, float] = {}
        self.rng = random.Random(0)

    @property
    def weights(self) -> dict[str, float]:
        return dict(zip(self.suite.names, self.suite.weights))

    def step(self, seconds: float = 0.0) -> None:
        """One step, and what was asked for during it."""
        time.sleep(seconds)
        done = self.done
        rows = [ROWS[(done + p) % len(ROWS)] for p in range(PROMPTS) for _ in range(GENERATIONS)]
        good = 1 - math.exp(-(done + 1) / 15)
        texts = [self._text(row["answer"], good) for row in rows]
        call = {
            "prompts": [row["prompt"] for row in rows],
            "completions": [[{"role": "assistant", "content": text}] for text in texts],
            "completion_ids": [[1] * len(text.split()) + [0] for text in texts],
            "trainer_state": SimpleNamespace(global_step=done),
            "answer": [row["answer"] for row in rows],
            "prompt_id": [row["prompt_id"] for row in rows],
        }
        scores = {name: func(**call) for name, func in zip(self.suite.names, self.suite.funcs)}
        self.done += 1
        means = {name: sum(each) / len(each) for name, each in scores.items()}
        values = {per_function(name): mean for name, mean in means.items()}
        values |= {weight_of(name): weight for name, weight in self.weights.items()}
        values |= {
            REWARD: sum(self.weights[name] * mean for name, mean in means.items()),
            REWARD_STD: 0.9, ENTROPY: 1.2 * (1 - 0.6 * good), KL: 0.02 * good if self.beta else None,
            MEAN_LENGTH: 20 + 10 * good, "completions/min_length": 4.0, "completions/max_length": 60.0, CLIPPED: 0.1,
            STEP_S: max(seconds, 0.3), GENERATE_S: 0.6 * max(seconds, 0.3), REWARD_S: 0.02, TRAIN_S: 0.3 * max(seconds, 0.3),
        }  # fmt: skip
        self.recorder.log(self.done, values)
        self.answer()

    def _text(self, answer: str, good: float) -> str:
        kind = self.rng.random()
        if kind < 0.25:
            return f"<answer>{HOSTILE}</answer>"
        return (
            f"<reasoning>\nTwice the number.\n</reasoning>\n<answer>{answer}</answer>" if kind < 0.25 + 0.75 * good
            else "I do not know."
        )  # fmt: skip

    def answer(self) -> None:
        """Answer the requests of this boundary as the trainer does."""
        for request in self.mailbox.take():
            found, why = self._apply(request.action, request.details)
            event = {"id": request.id, "action": request.action, "by": request.by, "applied": not why}
            event |= {"from_step": self.done + 1, **request.details, **found, **({"why": why} if why else {})}
            self.run.log_event("control", self.done, **event)

    def _apply(self, action: str, details: dict) -> tuple[dict, str]:
        before, function = self.weights, details.get("function", "")
        if action in ("weight", "mute", "unmute") and function not in before:
            return {}, f"function {function!r}\n  rule: a weight is that of a reward function"
        if action == "mute":
            self.muted[function] = before[function]
        if action in ("weight", "mute", "unmute"):
            value = details["value"] if action == "weight" else 0.0 if action == "mute" else self.muted.pop(function, 1.0)
            self.suite.weights[self.suite.names.index(function)] = value
            return {"before": before, "after": self.weights}, ""
        if action in ("beta", "learning_rate"):
            return {"before": getattr(self, action, 1e-5), "after": details["value"]}, ""
        self.paused = {"pause": True, "resume": False}.get(action, self.paused)
        self.stopped = self.stopped or action == "stop"
        if action == "checkpoint":
            self.run.log_event("checkpoint", self.done, folder=f"checkpoint-{self.done}")
        return {}, ""

    def finish(self, status: str = "finished") -> RunDirectory:
        self.run.update_manifest(result={"status": status, "steps": self.done, "minutes": self.done * 0.3 / 60})
        self.run.log_event(status, self.done)
        self.run.release()
        self.suite.close()
        return self.run


def main(name: str, steps: int, seconds: float) -> None:
    running = Running(name, steps)
    while running.done < steps and not running.stopped:
        if running.paused:
            time.sleep(0.1)
            running.answer()
        else:
            running.step(seconds)
    running.finish("stopped" if running.stopped else "finished")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
