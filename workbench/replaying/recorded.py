"""A run's recorded completions, read a few thousand at a time, whole groups together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from workbench.errors import RunError
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import parts, read_batches, rows_in
from workbench.task import Row
from workbench.workspace import shown

ABOUT = 4096  # completions that are read and scored at a time


class Recorded(NamedTuple):
    """A run's rewards and the settings that its advantages were made with."""

    names: list[str]
    hashes: dict[str, str]
    hash: str
    num_generations: int
    scale_rewards: str | bool
    aggregation: str

    @classmethod
    def of(cls, run: RunDirectory) -> Recorded:
        manifest = run.manifest()
        try:
            rewards, settings = manifest["rewards"], manifest["settings"]
            in_force = {**(settings.get("asked") or {}), **settings["in_force"]}
            return cls(
                names=list(rewards["functions"]),
                hashes=dict(rewards["functions"]),
                hash=rewards["hash"],
                num_generations=int(in_force["num_generations"]),
                scale_rewards=in_force["scale_rewards"],
                aggregation=in_force.get("multi_objective_aggregation", "sum_then_normalize"),
            )
        except KeyError as error:
            raise RunError(
                f"{shown(run.path / 'manifest.json')}: no {error.args[0]!r}",
                rule="a manifest names the run's reward functions and the settings in force",
                remedy="choose a run that was trained with the workbench",
            ) from None


@dataclass(frozen=True)
class Block:
    """Whole groups of one part: B completions, P groups, F functions as the run had them."""

    places: dict[str, list[Any]]  # step, group, generation, prompt_id
    rows: list[Row]
    completions: list[str]
    completion_ids: list[list[int]]
    scores: np.ndarray  # [B, F]
    weights: list[float]
    totals: np.ndarray  # [B]
    advantages: np.ndarray  # [B]
    right: np.ndarray  # [B] bool


class Record:
    """The record, block by block. What cannot be used is left out and told in `left_out`, part by part."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.left_out: dict[str, str] = {}
        self.recorded = 0
        for file in parts(run.rollouts):
            with suppress(RunError):  # told when its turn comes
                self.recorded += rows_in(file)

    def __iter__(self) -> Iterator[Block]:
        for batch in read_batches(self.run, at_most=ABOUT, left_out=self.left_out):
            yield _block(batch)


def _block(batch: ScoredBatch) -> Block:
    size, count = batch.num_generations, len(batch.completions)
    return Block(
        places={
            "step": [batch.step] * count,
            "group": np.repeat(batch.group_places, size).tolist(),
            "generation": (np.arange(count) % size).tolist(),
            "prompt_id": batch.prompt_ids,
        },
        rows=batch.rows,
        completions=batch.completions,
        completion_ids=[[0] * length for length in batch.lengths],
        scores=batch.scores,
        weights=batch.weights,
        totals=batch.groups.totals,
        advantages=batch.groups.advantages,
        right=batch.right,
    )
