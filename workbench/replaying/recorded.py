"""A run's recorded completions, read a few thousand at a time, whole groups together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from workbench.errors import RunError
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import group_starts, rows_in, whole_groups
from workbench.task import Row
from workbench.workspace import shown

if TYPE_CHECKING:
    import pyarrow


ABOUT = 4096  # completions that are read and scored at a time
_READ = ("prompt_id", "prompt", "completion", "length_tokens", "columns", "total", "advantage", "right")


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

    def __init__(self, files: list[Path], old: Recorded, in_pieces: bool = True) -> None:
        self.files, self.old = files, old
        # Scaled by the batch, an advantage depends on all groups of it: then a part stays in one piece.
        alone = old.aggregation == "sum_then_normalize" and old.scale_rewards != "batch"
        self.about = ABOUT if in_pieces and alone else None
        self.left_out: dict[str, str] = {}
        self.recorded = 0
        for file in files:
            with suppress(RunError):  # told when its turn comes
                self.recorded += rows_in(file)

    def __iter__(self) -> Iterator[Block]:
        columns = [*_READ, *(f"{kind}.{function}" for function in self.old.names for kind in ("score", "weight"))]
        for file in self.files:
            try:
                for table in whole_groups(file, columns, self.about):
                    block = self._block(file.name, table)
                    if block is not None:
                        yield block
            except RunError as error:
                self.left_out[file.name] = error.value.partition(": ")[2] or error.value

    def _block(self, name: str, table: pyarrow.Table) -> Block | None:
        sizes = np.diff([*group_starts(table), len(table)])
        whole = np.repeat(sizes == self.old.num_generations, sizes)
        if not whole.all():
            count = int((sizes != self.old.num_generations).sum())
            self.left_out[name] = f"{count} groups that are not of {self.old.num_generations} completions"
            table = table.filter(whole)
        return _read(table, self.old.names) if len(table) else None


def _read(table: pyarrow.Table, functions: list[str]) -> Block:
    columns = {name: table.column(name).to_pylist() for name in ("prompt", "columns", "completion", "length_tokens")}
    places = {name: table.column(name).to_pylist() for name in ("step", "group", "generation", "prompt_id")}
    scores = [table.column(f"score.{name}").to_numpy() for name in functions]
    return Block(
        places=places,
        rows=[
            {"prompt": _prompt(prompt), **json.loads(own), **({"prompt_id": prompt_id} if prompt_id else {})}
            for prompt, own, prompt_id in zip(columns["prompt"], columns["columns"], places["prompt_id"], strict=True)
        ],
        completions=columns["completion"],
        completion_ids=[[0] * length for length in columns["length_tokens"]],
        scores=np.stack(scores, axis=1).astype(np.float64),
        weights=[table.column(f"weight.{name}")[0].as_py() for name in functions],
        totals=table.column("total").to_numpy().astype(np.float64),
        advantages=table.column("advantage").to_numpy().astype(np.float64),
        right=table.column("right").to_numpy().astype(bool),
    )


def _prompt(recorded: str) -> Any:
    # Messages are recorded as JSON, a prompt that is text as it is, be it JSON or not.
    if not recorded.startswith("[{"):
        return recorded
    try:
        messages = json.loads(recorded)
    except ValueError:
        return recorded
    return messages if all(isinstance(message, dict) and "role" in message for message in messages) else recorded
