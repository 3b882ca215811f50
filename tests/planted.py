"""Runs that never trained, with what is to be found in them planted: completions through the suite and the recorder."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from workbench.inspection.kept import Kept
from workbench.inspection.measured import Evaluation, Measured
from workbench.recipe import Recipe
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import RunDirectory
from workbench.task import Task
from workbench.training.recorder import Recorder

GENERATIONS, PROMPTS = 4, 8
ASKED = "Write <answer>the number</answer>."


def correctness_reward(completions, answer, **kwargs):
    return [1.0 if f"<answer>{right}</answer>" in text[0]["content"] else 0.0 for text, right in zip(completions, answer)]


def format_reward(completions, **kwargs):
    return [0.5 if "<answer>" in text[0]["content"] and "</answer>" in text[0]["content"] else 0.0 for text in completions]


def because_reward(completions, **kwargs):
    """Meant to pay for reasons, it pays for a word."""
    return [min(2.0, 0.5 * text[0]["content"].count("because")) for text in completions]


def any_answer_reward(completions, answer, **kwargs):
    return correctness_reward(completions, answer)


def one_answer_reward(completions, answer, **kwargs):
    paid = correctness_reward(completions, answer)
    return [own if text[0]["content"].count("<answer>") == 1 else 0.0 for own, text in zip(paid, completions)]


def rows(count: int = 40) -> list[dict]:
    return [
        {"prompt": [{"role": "system", "content": ASKED}, {"role": "user", "content": f"What is {n} + {n + 1}?"}],
         "answer": str(2 * n + 1), "prompt_id": f"p{n}"}
        for n in range(10, 10 + count)
    ]  # fmt: skip


def planted(
    name: str,
    text_of: Callable[[int, dict, random.Random], str],
    functions: tuple = (correctness_reward, format_reward),
    weights: tuple | None = None,
    steps: int = 60,
    seed: int = 0,
    asked: list[dict] | None = None,
) -> RunDirectory:
    """A record of `steps` steps in which the completion of a row at a step (0 to steps - 1) is `text_of(step, row, draw)`."""
    asked, draw = asked or rows(), random.Random(seed)
    task = Task(name, asked, list(functions), weights and list(weights), format_by="format_reward")
    suite = RewardSuite(task, GENERATIONS)
    manifest = {
        "rewards": {"hash": suite.hash, "functions": suite.hashes, "weights": dict(zip(suite.names, suite.weights))},
        "settings": {"asked": {}, "in_force": {"num_generations": GENERATIONS, "scale_rewards": "group"}},
        "task": {"format_by": "format_reward"},
    }
    run = RunDirectory.create(name, Recipe(run_name=name, grpo={"max_steps": steps}), manifest)
    recorder = Recorder(run, eos_ids=[0])
    suite.on_batch = recorder.batch
    for step in range(steps):
        batch = [asked[(step * PROMPTS + place) % len(asked)] for place in range(PROMPTS) for _ in range(GENERATIONS)]
        texts = [text_of(step, row, draw) for row in batch]
        call = {
            "prompts": [row["prompt"] for row in batch],
            "completions": [[{"role": "assistant", "content": text.removesuffix("…")}] for text in texts],
            # One that ends with an ellipsis was cut: it has no EOS token.
            "completion_ids": [[1] * len(text.split()) + [0] * (not text.endswith("…")) for text in texts],
            "trainer_state": SimpleNamespace(global_step=step),
            "answer": [row["answer"] for row in batch],
            "prompt_id": [row["prompt_id"] for row in batch],
        }
        scores = [func(**call) for func in suite.funcs]
        recorder.log(step + 1, {"reward": sum(map(sum, scores)) / len(batch)})
    recorder.close()
    suite.close()
    return run


def healthy(step: int, row: dict, draw: random.Random, steps: int = 60) -> str:
    """A policy that learns format and sum alike."""
    good = 0.15 + 0.7 * step / steps
    answer = int(row["answer"]) if draw.random() < good else int(row["answer"]) + draw.choice([-10, -1, 3, 10, 17])
    return f"<answer>{answer}</answer>" if draw.random() < 0.4 + good else f"it is {answer}, because I added"


def measured(right: np.ndarray, text=lambda row, right, g: f"<answer>{row['answer'] if right else 0}</answer>") -> Measured:
    asked = rows(len(right))
    texts = [[text(row, flag, g) for g, flag in enumerate(flags)] for row, flags in zip(asked, right)]
    return Measured(texts, right, None, np.ones_like(right), right.astype(float))


def evaluation(before: np.ndarray, after: np.ndarray) -> Evaluation:
    asked = rows(len(before))
    return Evaluation([row["prompt"] for row in asked], measured(before), measured(after), "correctness_reward", rows=asked)


def kept(run: RunDirectory, before: np.ndarray, after: np.ndarray) -> None:
    """An evaluation on record, as if a policy had been measured."""
    made, whose = evaluation(before, after), {"base": "", "trained": "sum"}
    held = Kept.open(run, {"right_by": "correctness_reward"})
    held.asked = {"rows": [row["prompt_id"] for row in made.rows], "adapters": whose, "greedy": False, "steps": 3}
    for who, measured in (("base", made.before), ("trained", made.after)):
        same = {"length_tokens": 1, "finished": True, "format": None}
        groups = [
            [{**same, "completion": text, "total": float(right), "right": bool(right)} for text, right in zip(*own)]
            for own in zip(measured.completions, measured.lenient)
        ]
        held.add(who, "sampled", {row["prompt_id"]: row for row in made.rows}, groups)
    run.write_json("evaluation.json", held.evaluation().found)
