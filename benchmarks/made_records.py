"""Records of runs that never trained, for replay.py and reading.py: completions in the embedded
policy's ways of answering.
"""

from __future__ import annotations

import json
import math
import random
from typing import Any

GENERATIONS = 8
NAME = "recorded"


def make(completions: int, a_step: int) -> Any:
    """A run called "recorded" under WORKBENCH_HOME, scored by two functions and written by the
    workbench's own recorder.

    Args:
        completions: in all; whole groups of `GENERATIONS`.
        a_step: completions of a step, which are one part of the record.
    """
    from workbench.recipe import Recipe
    from workbench.rewards import library
    from workbench.rewards.suite import RewardSuite
    from workbench.run.directory import RunDirectory
    from workbench.task import Task
    from workbench.tiny.task import task as arithmetic
    from workbench.training.recorder import Recorder

    draw = random.Random(0)
    rows = arithmetic(train=2000, held_out=2).rows
    task = Task(NAME, rows, [library.correctness_reward, library.strict_format_reward])
    suite = RewardSuite(task, GENERATIONS)
    manifest = {
        "rewards": {
            "hash": suite.hash,
            "functions": suite.hashes,
            "weights": dict(zip(suite.names, suite.weights, strict=True)),
        },
        "settings": {
            "asked": {},
            "in_force": {"num_generations": GENERATIONS, "scale_rewards": "group"},
        },
    }
    run = RunDirectory.create(NAME, Recipe(), manifest)
    recorder = Recorder(run, eos_ids=[0])
    suite.on_batch = recorder.batch
    rows = task.with_ids(rows)
    for step, start in enumerate(range(0, completions, a_step)):
        groups = draw.choices(rows, k=min(a_step, completions - start) // GENERATIONS)
        batch = [row for row in groups for _ in range(GENERATIONS)]
        texts = [answer_to(row["answer"], draw) for row in batch]
        call = {
            "prompts": [row["prompt"] for row in batch],
            "completions": [[{"role": "assistant", "content": text}] for text in texts],
            "completion_ids": [list(text.encode()) for text in texts],
            "trainer_state": type("State", (), {"global_step": step}),
            "answer": [row["answer"] for row in batch],
            "prompt_id": [row["prompt_id"] for row in batch],
        }
        for func in suite.funcs:
            func(**call)
    recorder.close()
    suite.close()
    return run


def answer_to(answer: str, draw: random.Random) -> str:
    """One completion: right, wrong, rambling, without tags, or with a tag missing."""
    given = answer if draw.random() < 0.6 else str(draw.randrange(200))
    working = f"{draw.randrange(100)} and {draw.randrange(100)} make {given}"
    kind = draw.random()
    if kind < 0.15:
        working = " ".join([working] * draw.randrange(4, 9))
    if kind > 0.9:
        return f"The answer is {given}."
    end = "</answer>" if kind < 0.8 else ""
    return f"<reasoning>\n{working}\n</reasoning>\n<answer>\n{given}\n{end}"


def metrics_row(
    step: int, steps: int, functions: list[str], chance: random.Random
) -> dict[str, float]:
    """The numbers of one step that are drawn, on the way up."""
    from workbench.run.metrics import per_function, weight_of

    rise = 1 - math.exp(-3 * step / steps)
    row = {per_function(name): rise * chance.random() for name in functions}
    row |= {weight_of(name): 1.0 for name in functions}
    row |= {
        "reward": 3 * rise,
        "group_reward_std": chance.random(),
        "kl": 0.01 * rise,
        "entropy": 1 - rise / 2,
    }
    row |= {"completions/mean_length": 40.0, "completions/clipped_ratio": 0.1 * chance.random()}
    row |= {
        "groups/mixed": 1 - rise,
        "groups/all_right": rise,
        "groups/all_wrong": 0.0,
        "groups/dead": rise / 2,
    }
    return row | {
        "time/generate_s": 0.2,
        "time/reward_s": 0.01,
        "time/train_s": 0.1,
        "step_time": 0.31,
    }


def write_metrics(run: Any, steps: int, functions: list[str]) -> None:
    """`metrics.jsonl` of so many steps, each line with as many numbers as a real one."""
    chance = random.Random(steps)
    with (run.path / "metrics.jsonl").open("w", encoding="utf-8") as lines:
        for step in range(1, steps + 1):
            # TRL's, which nothing here reads
            others = {f"other/{number}": chance.random() for number in range(20)}
            row = {"step": step, **metrics_row(step, steps, functions, chance), **others}
            lines.write(json.dumps(row) + "\n")
