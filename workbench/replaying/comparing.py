"""Old scores against new: what is counted while a replay goes on, and what comes of it."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from workbench.replaying.recorded import Block, Recorded
from workbench.rewards.groups import (
    Attribution,
    Groups,
    attribution,
    batch_advantages,
    dead_kinds,
)
from workbench.rewards.suite import RewardSuite
from workbench.workspace import shown, to_json

if TYPE_CHECKING:
    pass


MEANING = (
    "This shows what the gradients of these batches would have favoured, not what a new run would reach: "
    "a policy trained under the new rewards would have written other completions."
)
DEAD = "(dead)"  # in the place of a function's name, which has no brackets
NO_SIGN = 1e-6  # an advantage closer to 0 than this has no sign
GROUPS_LISTED = 100
_EXCERPT_CHARACTERS = 200


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
        return to_json(
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
            f"another function decides: {moved} of {self.groups} groups (of those that are alive before and now)",
        ]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"left out: {name}: {why}" for name, why in self.left_out.items()]
        lines += [f"side by side in {shown(self.out)}"] if self.out else []
        return "\n".join([*lines, MEANING])


def _counts(kinds: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"


@dataclass(frozen=True)
class Compared:
    """A block with what both sets of rewards make of it. [B] a completion, [P] a group."""

    block: Block
    scores: np.ndarray  # [B, F] new
    old: Groups
    new: Groups
    old_dead: list[str | None]  # [P]
    new_dead: list[str | None]
    old_deciders: np.ndarray  # [P], -1 in a dead group
    new_deciders: np.ndarray

    @classmethod
    def of(cls, block: Block, scores: np.ndarray, old: Recorded, suite: RewardSuite) -> Compared:
        size, settings = old.num_generations, (old.num_generations, old.scale_rewards, old.aggregation)
        right = scores[:, suite.names.index(suite.task.right_function)] > 0
        sides: list[tuple[Groups, list[str | None], Attribution]] = []
        for own, own_weights, own_right in ((block.scores, block.weights, block.right), (scores, suite.weights, right)):
            groups = batch_advantages(own, own_weights, *settings)
            kinds = dead_kinds(groups, own_right, block.completions, size, old.aggregation)
            sides.append((groups, kinds, attribution(own, own_weights, *settings)))
        (before, was, by), (after, now, by_now) = sides
        return cls(block, scores, before, after, was, now, by.deciders, by_now.deciders)


class Tally:
    """Counts that grow with neither the record's length nor that of its texts."""

    def __init__(self, old: Recorded, suite: RewardSuite, examples: int) -> None:
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

    def add(self, found: Compared) -> None:
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

    def _add_groups(self, found: Compared) -> None:
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

    def _add_examples(self, found: Compared) -> None:
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

    def _example(self, found: Compared, row: int) -> Example:
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
