"""Replay: the recorded completions of a run scored anew with an edited task, old advantages against new ones.

The record is read a few thousand completions at a time, whole groups together, so that a million need no more memory
than ten thousand. What it shows are the gradients of batches that an older policy wrote, and no more than that: `MEANING`.
"""

from __future__ import annotations

import heapq
import inspect
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from workbench.dataset.task import Row, Task
from workbench.rewards.groups import (
    Attribution,
    ExplainedGroup,
    Groups,
    advantages,
    attribution,
    dead_kinds,
    explain,
)
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import RunDirectory, strict
from workbench.run.errors import RunError, TaskError
from workbench.run.rollouts import group_starts, parts, rows_in, whole_groups
from workbench.run.workspace import shown

if TYPE_CHECKING:
    import pyarrow

MEANING = (
    "This shows what the gradients of these batches would have favoured, not what a new run would reach: "
    "a policy trained under the new rewards would have written other completions."
)
DEAD = "(dead)"  # in the place of a function's name, which has no brackets
NO_SIGN = 1e-6  # an advantage closer to 0 than this has no sign
ABOUT = 4096  # completions that are read and scored at a time
GROUPS_LISTED = 100
_EXCERPT_CHARACTERS = 200
_READ = ("prompt_id", "prompt", "completion", "length_tokens", "columns", "total", "advantage", "right")
_WRITTEN_AT_ONCE = 65_536


class FunctionChange(NamedTuple):
    """One reward function, as the run had it and as the task has it now; None where it is not there."""

    name: str
    change: str  # "same", "changed", "added" or "removed": its code, by the hash
    old_hash: str | None
    new_hash: str | None
    old_weight: float | None
    new_weight: float | None
    old_mean: float | None  # of the scores that it gave
    new_mean: float | None
    rescored: int | None  # completions that it scores otherwise now
    old_decided: int  # groups whose advantages it decided
    new_decided: int


class StepChange(NamedTuple):
    """The groups of one step, and how many of them taught nothing."""

    step: int
    groups: int
    old_dead: int
    new_dead: int


class GroupChange(NamedTuple):
    """A group that was dead and comes alive."""

    step: int
    group: int
    prompt_id: str
    old_dead: str  # why it was dead, one of `workbench.rewards.groups.DEAD_KINDS`
    new_decider: str


class Example(NamedTuple):
    """A completion whose advantage changes much; texts are cut."""

    step: int
    group: int
    generation: int
    prompt: str
    completion: str
    old_total: float
    new_total: float
    old_advantage: float
    new_advantage: float
    old_scores: dict[str, float]
    new_scores: dict[str, float]


@dataclass(frozen=True)
class Replay:
    """What a replay found. Every count is of the completions or groups that were replayed."""

    run: str
    task: str
    old_hash: str
    new_hash: str
    settings: dict[str, Any]  # num_generations, scale_rewards, multi_objective_aggregation: those of the run
    recorded: int  # completions in the record
    completions: int
    groups: int
    signs: np.ndarray  # [3, 3] completions by the sign of their old (row) and new (column) advantage: -, 0, +
    old_dead: dict[str, int]  # why -> groups
    new_dead: dict[str, int]
    came_alive: int
    died: int
    rank_correlation: float  # Spearman's, within groups alive in both, mean; NaN if there is none
    ranked: int  # groups that it is the mean of
    deciders: dict[tuple[str, str], int]  # (old decider, new decider) -> groups; DEAD where there is none
    functions: list[FunctionChange]
    steps: list[StepChange]
    alive: list[GroupChange]  # the first hundred
    examples: list[Example]  # largest change of advantage first, one a group
    notes: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  # part -> why
    out: Path | None = None

    @property
    def turned_up(self) -> int:
        """Completions that were made less likely and would now be made likelier."""
        return int(self.signs[0, 2])

    @property
    def turned_down(self) -> int:
        """Completions that were made likelier and would now be made less likely."""
        return int(self.signs[2, 0])

    def found(self) -> dict[str, Any]:
        """For `--json`."""
        return strict(
            {
                "meaning": MEANING,
                "run": self.run,
                "task": self.task,
                "rewards": {"old": self.old_hash, "new": self.new_hash},
                "settings": self.settings,
                "recorded": self.recorded,
                "completions": self.completions,
                "groups": self.groups,
                "turned_up": self.turned_up,
                "turned_down": self.turned_down,
                "signs": self.signs.tolist(),
                "dead": {"old": self.old_dead, "new": self.new_dead},
                "came_alive": self.came_alive,
                "died": self.died,
                "rank_correlation": self.rank_correlation,
                "ranked_groups": self.ranked,
                "deciders": [{"old": old, "new": new, "groups": n} for (old, new), n in self.deciders.items()],
                "functions": [row._asdict() for row in self.functions],
                "steps": [row._asdict() for row in self.steps],
                "alive": [row._asdict() for row in self.alive],
                "examples": [row._asdict() for row in self.examples],
                "notes": self.notes,
                "left_out": self.left_out,
                "out": self.out,
            }
        )

    def __str__(self) -> str:
        old, new = sum(self.old_dead.values()), sum(self.new_dead.values())
        part = f" of {self.recorded} recorded" if self.recorded != self.completions else ""
        turned, of = self.turned_up + self.turned_down, max(1, self.completions)
        moved = sum(
            count for (before, now), count in self.deciders.items() if before != now and DEAD not in (before, now)
        )
        ranks = f"{self.rank_correlation:.2f}, mean of {self.ranked} groups" if self.ranked else "none is alive in both"
        lines = [
            f"{self.run} (rewards {self.old_hash}) replayed with task {self.task!r} (rewards {self.new_hash}): "
            f"{self.completions} completions{part}, {self.groups} groups of {self.settings['num_generations']}",
            f"advantage changes sign: {turned} completions, {turned / of:.0%} "
            f"({self.turned_up} from less likely to likelier, {self.turned_down} from likelier to less likely)",
            f"dead groups: {old} before ({_counts(self.old_dead)}), {new} now ({_counts(self.new_dead)}): "
            f"{self.came_alive} come alive, {self.died} die",
            f"rank correlation of the advantages within groups: {ranks}",
            f"another function decides: {moved} groups alive in both",
        ]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"left out: {name}: {why}" for name, why in self.left_out.items()]
        lines += [f"side by side in {shown(self.out)}"] if self.out else []
        return "\n".join([*lines, MEANING])


def _counts(kinds: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"


def replay(
    run: RunDirectory,
    task: Task,
    *,
    weights: dict[str, float] | None = None,
    progress: Callable[[int, int], None] | None = None,
    out: Path | None = None,
    examples: int = 5,
    limit: int | None = None,
) -> Replay:
    """Score a run's recorded completions with a task's functions, and compare the advantages, old against new.

    The run's own settings decide how advantages are made of scores. A step is scored in one piece, as it was in training,
    unless it is larger than `ABOUT` completions and its groups do not depend on one another.

    Args:
        task: the edited task; only its functions and weights are used, the prompts are the recorded ones.
        weights: by function name; others are the run's recipe's where it names them, else the task's.
        progress: called with (completions done, completions recorded).
        out: a Parquet file with a row a completion, old and new side by side; whole, or not at all.
        examples: how many of the completions whose advantage changes most are kept.
        limit: stop once so many completions are replayed; what is being replayed then is finished first.

    Raises:
        RunError: if the run recorded nothing that can be read, or `out` would be taken for a part of its record.
        TaskError: if a function needs a column that was not recorded.
        RewardError: if a function fails.
        RecipeError: if `weights` names no function of the task.
    """
    old = _Old.of(run)
    files = parts(run.rollouts)
    recipe = run.recipe()
    asked = {name: weight for name, weight in recipe.reward_weights.items() if name in task.function_names}
    suite = RewardSuite(
        task,
        old.num_generations,
        {**asked, **(weights or {})},
        old.scale_rewards,
        old.aggregation,
        deadline_s=recipe.rewards.deadline_s,
        on_error=recipe.rewards.on_error,
    )
    record = _Record(files, old)
    tally = _Tally(old, suite, examples)
    with ExitStack() as stack:
        stack.callback(suite.close)
        written = None
        if out is not None:
            written = stack.enter_context(_SideBySide(out, run.rollouts, old.names, suite.names))
        columns = None
        for block in record:
            if block.rows[0].keys() != columns:
                columns = block.rows[0].keys()
                _check_columns(suite, block.rows[0])
            scores = suite.score(block.rows, block.completions, block.completion_ids)
            compared = _Compared.of(block, scores, old, suite)
            tally.add(compared)
            if written is not None:
                written.add(compared)
            if progress is not None:
                progress(tally.completions, record.recorded)
            if limit is not None and tally.completions >= limit:
                break
        if not tally.completions:
            name, why = next(iter(record.left_out.items()), (shown(run.rollouts), "no completions"))
            raise RunError(
                f"{name}: {why}",
                rule="a replay scores what was recorded",
                remedy="choose another run: none of it is whole",
            )
    notes = [*suite.notes, *_stand_ins(task), *tally.notes()]
    return tally.result(
        run=run.name, task=task.name, recorded=record.recorded, notes=notes, left_out=record.left_out, out=out
    )


def explain_recorded(run: RunDirectory, step: int, index: int = 0) -> ExplainedGroup:
    """One recorded group as it was trained on: the `index`-th of a step, from 0.

    Raises:
        RunError: if the run recorded no such group.
    """
    old = _Old.of(run)
    size = old.num_generations
    files = [part for part in parts(run.rollouts) if part.name.startswith(f"step-{step:07d}-")]
    before = 0
    for block in _Record(files, old, in_pieces=False):
        count = len(block.completions) // size
        if before <= index < before + count:
            settings = (size, index - before, old.scale_rewards, old.aggregation)
            return explain(old.names, block.scores, block.weights, block.completions, block.right, *settings)
        before += count
    raise RunError(
        f"step {step}, group {index}: not in the record",
        rule=f"this run recorded {before} groups in that step" if files else "a run records every step that it takes",
        remedy="choose one from 0 on" if before else "choose another step",
    )


# --- what was recorded --------------------------------------------------------------------------------------------


class _Old(NamedTuple):
    """A run's rewards and the settings that its advantages were made with."""

    names: list[str]
    hashes: dict[str, str]
    hash: str
    num_generations: int
    scale_rewards: str | bool
    aggregation: str

    @classmethod
    def of(cls, run: RunDirectory) -> _Old:
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
class _Block:
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


class _Record:
    """The record, block by block. What cannot be used is left out and told in `left_out`, part by part."""

    def __init__(self, files: list[Path], old: _Old, in_pieces: bool = True) -> None:
        self.files, self.old = files, old
        # Scaled by the batch, an advantage depends on all groups of it: then a part stays in one piece.
        alone = old.aggregation == "sum_then_normalize" and old.scale_rewards != "batch"
        self.about = ABOUT if in_pieces and alone else None
        self.left_out: dict[str, str] = {}
        self.recorded = 0
        for file in files:
            with suppress(RunError):  # told when its turn comes
                self.recorded += rows_in(file)

    def __iter__(self) -> Iterator[_Block]:
        columns = [*_READ, *(f"{kind}.{function}" for function in self.old.names for kind in ("score", "weight"))]
        for file in self.files:
            try:
                for table in whole_groups(file, columns, self.about):
                    block = self._block(file.name, table)
                    if block is not None:
                        yield block
            except RunError as error:
                self.left_out[file.name] = error.value.partition(": ")[2] or error.value

    def _block(self, name: str, table: pyarrow.Table) -> _Block | None:
        sizes = np.diff([*group_starts(table), len(table)])
        whole = np.repeat(sizes == self.old.num_generations, sizes)
        if not whole.all():
            count = int((sizes != self.old.num_generations).sum())
            self.left_out[name] = f"{count} groups that are not of {self.old.num_generations} completions"
            table = table.filter(whole)
        return _read(table, self.old.names) if len(table) else None


def _read(table: pyarrow.Table, functions: list[str]) -> _Block:
    columns = {name: table.column(name).to_pylist() for name in ("prompt", "columns", "completion", "length_tokens")}
    places = {name: table.column(name).to_pylist() for name in ("step", "group", "generation", "prompt_id")}
    scores = [table.column(f"score.{name}").to_numpy() for name in functions]
    return _Block(
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


def _check_columns(suite: RewardSuite, row: Row) -> None:
    try:
        suite.check_signatures([row])
    except TaskError as error:
        raise TaskError(
            f"the recorded rows: {error.value}",
            rule=error.rule,
            remedy="a replay hands on what was recorded: read one of those columns, or give the parameter a default "
            f"(in a new run: {error.remedy})",
        ) from None


def _stand_ins(task: Task) -> list[str]:
    notes = []
    for name, func in zip(task.function_names, task.reward_funcs, strict=True):
        try:
            named = inspect.signature(func).parameters
        except (TypeError, ValueError):
            continue  # a model has none
        if "completion_ids" in named:
            notes.append(
                f"{name} reads completion_ids: tokens are not recorded, only their number, so it was given that many zeros"
            )
        if "trainer_state" in named:
            notes.append(f"{name} reads trainer_state: it was given step 0 for every completion")
    return notes


# --- old against new ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Compared:
    """A block with what both sets of rewards make of it. [B] a completion, [P] a group."""

    block: _Block
    scores: np.ndarray  # [B, F] new
    old: Groups
    new: Groups
    old_dead: list[str | None]  # [P]
    new_dead: list[str | None]
    old_deciders: np.ndarray  # [P], -1 in a dead group
    new_deciders: np.ndarray

    @classmethod
    def of(cls, block: _Block, scores: np.ndarray, old: _Old, suite: RewardSuite) -> _Compared:
        size, settings = old.num_generations, (old.num_generations, old.scale_rewards, old.aggregation)
        right = scores[:, suite.names.index(suite.task.right_function)] > 0
        sides: list[tuple[Groups, list[str | None], Attribution]] = []
        for own, own_weights, own_right in ((block.scores, block.weights, block.right), (scores, suite.weights, right)):
            groups = advantages(own, own_weights, *settings)
            kinds = dead_kinds(groups, own_right, block.completions, size, old.aggregation)
            sides.append((groups, kinds, attribution(own, own_weights, *settings)))
        (before, was, by), (after, now, by_now) = sides
        return cls(block, scores, before, after, was, now, by.deciders, by_now.deciders)


class _Tally:
    """Counts that grow with neither the record's length nor that of its texts."""

    def __init__(self, old: _Old, suite: RewardSuite, examples: int) -> None:
        self.old, self.suite, self.wanted = old, suite, examples
        self.completions = self.came_alive = self.died = self.ranked = 0
        self.signs = np.zeros((3, 3), dtype=np.int64)
        self.ranks = self.drift = 0.0
        self.old_kinds: Counter[str] = Counter()
        self.new_kinds: Counter[str] = Counter()
        self.deciders: Counter[tuple[str, str]] = Counter()
        self.steps: dict[int, np.ndarray] = {}
        self.alive: list[GroupChange] = []
        self.sums = np.zeros((2, len(old.names))), np.zeros((2, len(suite.names)))  # of scores, and how many
        self.rescored: Counter[str] = Counter()
        self.old_weights: list[float] = [float("nan")] * len(old.names)
        self._heap: list[tuple[float, int, Example]] = []

    def add(self, found: _Compared) -> None:
        """Count a block."""
        block, size = found.block, self.old.num_generations
        self.old_weights = block.weights
        self.drift = max(self.drift, float(np.abs(block.advantages - found.old.advantages).max()))
        before, after = (_signs(values) for values in (block.advantages, found.new.advantages))
        np.add.at(self.signs, (before, after), 1)
        self._add_groups(found)
        alive = [was is None and now is None for was, now in zip(found.old_dead, found.new_dead, strict=True)]
        ranks = _rank_correlations(
            block.advantages.reshape(-1, size)[alive], found.new.advantages.reshape(-1, size)[alive]
        )
        self.ranks += float(ranks.sum())
        self.ranked += len(ranks)
        self._add_scores(block.scores, found.scores)
        self._add_examples(found)
        self.completions += len(block.completions)

    def _add_groups(self, found: _Compared) -> None:
        size, places = self.old.num_generations, found.block.places
        old_names, new_names = [*self.old.names, DEAD], [*self.suite.names, DEAD]  # -1 is the last
        for group, (was, now) in enumerate(zip(found.old_dead, found.new_dead, strict=True)):
            decider = new_names[found.new_deciders[group]]
            self.deciders[old_names[found.old_deciders[group]], decider] += 1
            step = places["step"][group * size]
            counted = self.steps.setdefault(step, np.zeros(3, dtype=np.int64))
            counted += (1, was is not None, now is not None)
            if was is not None:
                self.old_kinds[was] += 1
            if now is not None:
                self.new_kinds[now] += 1
            self.died += was is None and now is not None
            if was is not None and now is None:
                self.came_alive += 1
                if len(self.alive) < GROUPS_LISTED:
                    first = group * size
                    self.alive.append(
                        GroupChange(step, places["group"][first], places["prompt_id"][first], was, decider)
                    )

    def _add_scores(self, old: np.ndarray, new: np.ndarray) -> None:
        for sums, scores in zip(self.sums, (old, new), strict=True):
            sums += np.nansum(scores, axis=0), np.sum(~np.isnan(scores), axis=0)
        for index, name in enumerate(self.suite.names):
            if name in self.old.hashes:
                same = np.isclose(old[:, self.old.names.index(name)], new[:, index], rtol=0, atol=1e-9, equal_nan=True)
                self.rescored[name] += int((~same).sum())

    def _add_examples(self, found: _Compared) -> None:
        size, block = self.old.num_generations, found.block
        change = np.abs(found.new.advantages - block.advantages).reshape(-1, size)
        furthest = change.argmax(axis=1) + np.arange(len(change)) * size
        most = change.max(axis=1)
        for group in np.argsort(-most, kind="stable")[: self.wanted]:
            full = len(self._heap) == self.wanted
            if most[group] < NO_SIGN or (full and most[group] <= self._heap[0][0]):
                break
            entry = (float(most[group]), -self.completions - int(group), self._example(found, int(furthest[group])))
            heapq.heapreplace(self._heap, entry) if full else heapq.heappush(self._heap, entry)

    def _example(self, found: _Compared, row: int) -> Example:
        block, prompt = found.block, found.block.rows[row]["prompt"]
        return Example(
            *(block.places[name][row] for name in ("step", "group", "generation")),
            prompt=_cut(prompt if isinstance(prompt, str) else str(prompt[-1].get("content"))),
            completion=_cut(block.completions[row]),
            old_total=float(block.totals[row]),
            new_total=float(found.new.totals[row]),
            old_advantage=float(block.advantages[row]),
            new_advantage=float(found.new.advantages[row]),
            old_scores=dict(zip(self.old.names, map(float, block.scores[row]), strict=True)),
            new_scores=dict(zip(self.suite.names, map(float, found.scores[row]), strict=True)),
        )

    def notes(self) -> list[str]:
        """What a reader of the numbers should know."""
        found = []
        if self.old.hash == self.suite.hash and not any(self.rescored.values()):
            found.append("the functions and weights are those of the run")
        for name, count in self.rescored.items():
            if count and self.old.hashes[name] == self.suite.hashes[name]:
                found.append(
                    f"{name} is unchanged and scores {count} completions otherwise than in training: "
                    "it draws at random, reads something that was not recorded, or uses a value that the hash does not see"
                )
        if self.drift > NO_SIGN:
            found.append(
                f"the recorded advantages differ by up to {self.drift:.2g} from those that the recorded scores give: "
                "what decided a group before is then only near"
            )
        return found

    def result(self, **said: Any) -> Replay:
        """The counts as a `Replay`."""
        return Replay(
            old_hash=self.old.hash,
            new_hash=self.suite.hash,
            settings={
                "num_generations": self.old.num_generations,
                "scale_rewards": self.old.scale_rewards,
                "multi_objective_aggregation": self.old.aggregation,
            },
            completions=self.completions,
            groups=self.completions // self.old.num_generations,
            signs=self.signs,
            old_dead=dict(self.old_kinds.most_common()),
            new_dead=dict(self.new_kinds.most_common()),
            came_alive=self.came_alive,
            died=self.died,
            rank_correlation=self.ranks / self.ranked if self.ranked else float("nan"),
            ranked=self.ranked,
            deciders=dict(self.deciders.most_common()),
            functions=self._functions(),
            steps=[StepChange(step, *map(int, counted)) for step, counted in sorted(self.steps.items())],
            alive=self.alive,
            examples=[example for _, _, example in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)],
            **said,
        )

    def _functions(self) -> list[FunctionChange]:
        sides = []
        for place, names, sums, weights in (
            (0, self.old.names, self.sums[0], self.old_weights),
            (1, self.suite.names, self.sums[1], self.suite.weights),
        ):
            decided: Counter[str] = Counter()
            for pair, count in self.deciders.items():
                decided[pair[place]] += count
            means = sums[0] / np.where(sums[1] > 0, sums[1], np.nan)
            sides.append({n: (float(w), float(m), decided[n]) for n, w, m in zip(names, weights, means, strict=True)})
        rows = []
        for name in [*self.suite.names, *(name for name in self.old.names if name not in self.suite.names)]:
            (old_weight, old_mean, old_decided), (new_weight, new_mean, new_decided) = (
                side.get(name, (None, None, 0)) for side in sides
            )
            old, new = self.old.hashes.get(name), self.suite.hashes.get(name)
            change = "added" if old is None else "removed" if new is None else "same" if old == new else "changed"
            rescored = self.rescored[name] if old and new else None
            rows.append(
                FunctionChange(
                    name,
                    change,
                    old,
                    new,
                    old_weight,
                    new_weight,
                    old_mean,
                    new_mean,
                    rescored,
                    old_decided,
                    new_decided,
                )
            )
        return rows


def _signs(values: np.ndarray) -> np.ndarray:
    return 1 + (values > NO_SIGN).astype(int) - (values < -NO_SIGN)


def _rank_correlations(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation within each of P groups, [P, G] -> at most [P]; ties share their mean rank."""
    from scipy.stats import rankdata

    if not len(old):
        return np.zeros(0)
    # Equal but for rounding is equal.
    first, second = (rankdata(np.round(values, 9), axis=1) for values in (old, new))
    first, second = (ranks - ranks.mean(axis=1, keepdims=True) for ranks in (first, second))
    spread = np.sqrt((first**2).sum(axis=1) * (second**2).sum(axis=1))
    return (first * second).sum(axis=1)[spread > 0] / spread[spread > 0]


def _cut(text: str) -> str:
    return text if len(text) <= _EXCERPT_CHARACTERS else f"{text[:_EXCERPT_CHARACTERS]}…"


class _SideBySide:
    """A Parquet file of old and new, written beside its place and renamed into it when all went well."""

    def __init__(self, file: Path, rollouts: Path, old_names: list[str], new_names: list[str]) -> None:
        if file.is_dir() or file.resolve().parent == rollouts.resolve():
            raise RunError(
                f"out = {file}: " + ("a folder" if file.is_dir() else "among the run's own parts"),
                rule="a replay is written into a file of its own, and never into the record",
                remedy="choose another file",
            )
        self.file, self.beside = file, file.with_name(f".{file.name}.part")
        self.old_names, self.new_names = old_names, new_names
        self._writer: Any = None
        self._held: list[pyarrow.Table] = []

    def __enter__(self) -> _SideBySide:
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"out = {self.file}: {error}", rule="a file is written into a folder", remedy="choose another file"
            ) from error
        return self

    def add(self, found: _Compared) -> None:
        """Add a block's rows."""
        import pyarrow as pa

        block = found.block
        old_names, new_names = [*self.old_names, None], [*self.new_names, None]  # -1 is the last
        size = len(block.completions) // len(found.old_dead)
        by_group = {
            "old_dead": found.old_dead,
            "new_dead": found.new_dead,
            "old_decider": [old_names[index] for index in found.old_deciders],
            "new_decider": [new_names[index] for index in found.new_deciders],
        }
        columns = {
            **{name: pa.array(block.places[name], kind()) for name, kind in _places(pa).items()},
            "old_total": pa.array(block.totals, pa.float64(), from_pandas=True),  # NaN: no function applied
            "new_total": pa.array(found.new.totals, pa.float64(), from_pandas=True),
            "old_advantage": pa.array(block.advantages),
            "new_advantage": pa.array(found.new.advantages),
            **{
                name: pa.array([value for value in values for _ in range(size)], pa.string())
                for name, values in by_group.items()
            },
        }
        self._held.append(pa.table(columns))
        if sum(map(len, self._held)) >= _WRITTEN_AT_ONCE:
            self._write()

    def _write(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._held:
            return
        table = pa.concat_tables(self._held)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.beside, table.schema, compression="zstd")
        self._writer.write_table(table)
        self._held.clear()

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            if kind is None:
                self._write()
            if self._writer is not None:
                self._writer.close()
            if kind is None:
                os.replace(self.beside, self.file)
        finally:
            self.beside.unlink(missing_ok=True)


def _places(pa: Any) -> dict[str, Any]:
    return {"step": pa.int32, "group": pa.int32, "generation": pa.int32, "prompt_id": pa.string}
