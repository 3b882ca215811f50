"""Runs with a record, made without training: completions go through the suite and the recorder as in training."""

from __future__ import annotations

from types import SimpleNamespace

from workbench.recipe import Recipe
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import RunDirectory
from workbench.task import Task
from workbench.training.recorder import Recorder


def record(
    task: Task,
    batches: list[list[tuple[dict, list[str]]]],
    *,
    name: str = "r",
    weights: dict[str, float] | None = None,
    scale: str = "group",
    aggregation: str = "sum_then_normalize",
) -> RunDirectory:
    """A run with one step a batch; a batch is a list of (row, the group's texts). A token a word."""
    size = len(batches[0][0][1])
    suite = RewardSuite(task, size, weights, scale, aggregation)
    manifest = {
        "rewards": {"hash": suite.hash, "functions": suite.hashes, "weights": dict(zip(suite.names, suite.weights))},
        "settings": {
            "asked": {"multi_objective_aggregation": aggregation},
            "in_force": {"num_generations": size, "scale_rewards": scale},
        },
    }
    run = RunDirectory.create(name, Recipe(reward_weights=weights or {}), manifest)
    recorder = Recorder(run, eos_ids=[0])
    suite.on_batch = recorder.batch
    for step, batch in enumerate(batches):
        rows = [row for row, texts in batch for _ in texts]
        texts = [text for _, texts in batch for text in texts]
        chat = [not isinstance(row["prompt"], str) for row in rows]
        call = {
            "prompts": [row["prompt"] for row in rows],
            "completions": [[{"role": "assistant", "content": t}] if c else t for t, c in zip(texts, chat)],
            "completion_ids": [[1] * len(text.split()) for text in texts],
            "trainer_state": SimpleNamespace(global_step=step),
            **{key: [row[key] for row in rows] for key in rows[0] if key != "prompt"},
        }
        for func in suite.funcs:
            func(**call)
    recorder.close()
    return run
