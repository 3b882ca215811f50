"""Runs that are ill, each in one way, made for real on the embedded policy in a few steps."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.data.prompts import SYSTEM_PROMPT, to_messages
from workbench.recipe import Recipe
from workbench.rewards.answers import completion_text
from workbench.rewards.library import correctness_reward, lenient_correctness_reward, max_score, strict_format_reward
from workbench.run.directory import RunDirectory, open_run
from workbench.task import Task
from workbench.teaching._lib.gallery import Fresh as Fresh
from workbench.teaching._lib.gallery import trained
from workbench.tiny.task import task as arithmetic
from workbench.training.trainer import train

GRPO = {
    "max_steps": 5,
    "num_generations": 8,
    "per_device_train_batch_size": 32,
    "max_completion_length": 24,
    "learning_rate": 1e-3,
    "beta": 0.001,
}


# --- prompts and rewards ----------------------------------------------------------------------------------------


def bare(count: int = 200) -> list[dict]:
    """Sums without a system prompt, which the policy answers in a few tokens."""
    return [{"prompt": to_messages(f"What is {10 + n} + {n % 7}?"), "answer": str(10 + n + n % 7)} for n in range(count)]


def hard(count: int = 200, system: str | None = SYSTEM_PROMPT) -> list[dict]:
    """Sums of three digits: the policy knows the format and not the answer."""
    return [
        {"prompt": to_messages(f"What is {200 + 7 * n} + {345 + 3 * n}?", system), "answer": str(545 + 10 * n)}
        for n in range(count)
    ]


@max_score(1.0)
def digits_reward(completions, **kwargs):
    """Something that the policy can learn in a few tokens: digits, and no words."""
    return [min(1.0, sum(sign.isdigit() for sign in completion_text(each)) / 4) for each in completions]


@max_score(1.0)
def one_line_reward(completions, **kwargs):
    """The pattern of many a notebook: it wants the blocks on one line, and the prompt asks for several."""
    pattern = r"<reasoning>.*</reasoning><answer>.*</answer>$"
    return [1.0 if re.match(pattern, completion_text(each)) else 0.0 for each in completions]


def debug_reward(completions, **kwargs):
    """For trying things out, and left in."""
    return [1.0] * len(completions)


@max_score(2.0)
def answered_reward(completions, **kwargs):
    """So easy that the policy always does it."""
    return [2.0 if completion_text(each) else 0.0 for each in completions]


def padding_reward(completions, **kwargs):
    """The longer the better."""
    return [len(completion_text(each)) / 100 for each in completions]


def short() -> Task:
    """A task that is learnt in a few tokens."""
    funcs = [digits_reward, lenient_correctness_reward]
    return Task("short", bare(), funcs, right_by="lenient_correctness_reward")


def sums(*funcs: Any, right_by: str = "correctness_reward") -> Task:
    return Task("sums", arithmetic(200, 8).rows, funcs, right_by=right_by)


# --- the runs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IllRun:
    """A run that is ill, and what it has to be told.

    Args:
        verdict: the illness.
        states: one of which its verdict has.
        task: makes the task.
        grpo: over `GRPO`.
        poison_after: a step after which one gradient is made no number; None: none is.
    """

    verdict: str
    states: Sequence[str]
    task: Callable[[], Task]
    grpo: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    poison_after: int | None = None


RUNS = {
    "cannot pay": IllRun(
        "reward_cannot_pay", ["alarm"], lambda: sums(correctness_reward, one_line_reward), {"max_completion_length": 48}
    ),
    "same score": IllRun(
        "dead_groups",
        ["alarm"],
        lambda: sums(debug_reward, correctness_reward),
        {"max_completion_length": 48},
        {"correctness_reward": 0.0},
    ),
    "all wrong": IllRun("dead_groups", ["alarm"], lambda: Task("wrong", hard(8, None), [correctness_reward])),
    "wasted": IllRun("wasted", ["warning"], lambda: Task("wrong", hard(8, None), [correctness_reward])),
    "all right": IllRun("learnt_out", ["note"], lambda: Task("right", bare(), [answered_reward])),
    "collapse": IllRun(
        "collapse",
        ["alarm"],
        lambda: Task("wrong", hard(200, None), [correctness_reward]),
        {"temperature": 0.001, "max_steps": 8},
    ),
    "truncation": IllRun("truncation", ["alarm"], lambda: arithmetic(200, 8), {"max_completion_length": 10}),
    "kl runaway": IllRun("kl_runaway", ["alarm"], short, {"learning_rate": 0.05, "max_steps": 6}),
    "not a number": IllRun("non_finite", ["alarm"], short, poison_after=3),
    "length drift": IllRun(
        "length_drift",
        ["alarm", "warning"],
        lambda: Task("padded", bare(), [padding_reward]),
        {"max_completion_length": 40, "learning_rate": 3e-3, "max_steps": 12},
    ),
    "format without right": IllRun(
        "format_without_right",
        ["alarm", "warning"],
        lambda: Task(
            "hard",
            hard(),
            [strict_format_reward, correctness_reward],
            right_by="correctness_reward",
            format_by="strict_format_reward",
        ),
        {"max_completion_length": 56, "learning_rate": 3e-3, "max_steps": 12, "per_device_train_batch_size": 16},
    ),
    "one function": IllRun(
        "one_function",
        ["alarm"],
        lambda: sums(correctness_reward, padding_reward),
        {"max_completion_length": 64},
        {"padding_reward": 100.0},
    ),
    "kl not measured": IllRun("kl_not_measured", ["note"], short, {"beta": 0.0, "max_steps": 3}),
    "slow learning": IllRun("slow_learning", ["warning"], short, {"learning_rate": 1e-9, "max_steps": 16}),
}


class Poison:
    """A watcher that makes one gradient no number, in the step after `step`."""

    def __init__(self, policy: Any, step: int) -> None:
        self.parameter, self.step = trained(policy)[0][1], step

    def begin(self, *details):
        pass

    def end(self, message):
        pass

    def update(self, step, values):
        if step == self.step:
            hook = self.parameter.register_hook(lambda gradient: (hook.remove(), gradient * math.nan)[1])


def run_ill(ill: IllRun, policy: Any, name: str = "ill") -> tuple[RunDirectory, Task]:
    """Train as an ill run is trained; one that is poisoned fails on the way, as its weights are no numbers either."""
    task = ill.task()
    recipe = Recipe.of({"run_name": name, "grpo": {**GRPO, **ill.grpo}, "reward_weights": ill.weights})
    if ill.poison_after is None:
        return train(recipe, policy=policy, task=task), task
    try:
        train(recipe, policy=policy, task=task, watchers=[Poison(policy, ill.poison_after)])
    except RuntimeError:
        return open_run(name), task
    raise AssertionError("the poison did not work")
