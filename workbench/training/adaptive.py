"""Adaptive reward weights: a function that succeeds too seldom weighs more, one that nearly always does weighs less.

Success is the share of its best score that a function pays on average. Only the ratio between the weights of several
functions matters: with `scale_rewards: group`, advantages are divided by their own spread, so that the weight of a single
function changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.errors import RecipeError
from workbench.recipe import AdaptivePart
from workbench.rewards.library import max_score_of
from workbench.rewards.suite import RewardSuite
from workbench.run.batch import ScoredBatch


@dataclass(frozen=True)
class Change:
    """A weight that should be another one, and why."""

    function: str
    weight: float
    why: str


class AdaptiveWeights:
    """Follows the success of the functions that a recipe names, and says when a weight should change.

    Args:
        parts: how, by function.
        suite: whose weights at this moment are what the bounds are taken from.

    Raises:
        RecipeError: if a function that should adapt has the weight 0, which no factor changes.
    """

    def __init__(self, parts: dict[str, AdaptivePart], suite: RewardSuite) -> None:
        self.parts = parts
        weights = dict(zip(suite.names, suite.weights, strict=True))
        self.begun_with = {name: weights[name] for name in parts}
        for name, weight in self.begun_with.items():
            if not weight:
                raise RecipeError(
                    f"adaptive_weights: {name} has the weight 0",
                    rule="an adaptive weight is multiplied",
                    remedy=f"give {name} a weight, or leave it out of adaptive_weights",
                )
        stated = dict(zip(suite.names, map(max_score_of, suite.task.reward_funcs), strict=True))
        self._best = {name: part.best_score or stated[name] for name, part in parts.items()}
        self._most_seen: dict[str, float] = defaultdict(float)
        self._scores: dict[str, list[float]] = defaultdict(list)  # mean score of each batch since the last decision
        self._steps: dict[str, int] = defaultdict(int)

    def note(self, scored: ScoredBatch) -> None:
        """Take in one scored batch."""
        for name in self.parts:
            if name not in scored.names:
                continue
            column = scored.scores[:, scored.names.index(name)]
            if not np.isnan(column).all():
                self._scores[name].append(float(np.nanmean(column)))
                self._most_seen[name] = max(self._most_seen[name], float(np.nanmax(column)))

    def due(self, weights: dict[str, float]) -> list[Change]:
        """Called once a step: the weights that should change now.

        Args:
            weights: those in force, by function. One that is muted (0) is left alone.
        """
        changes = []
        for name, part in self.parts.items():
            self._steps[name] += 1
            if self._steps[name] < part.every or not self._scores[name] or not weights.get(name):
                continue
            best = self._best[name] or self._most_seen[name]
            mean = float(np.mean(self._scores[name]))
            self._steps[name] = 0
            self._scores[name].clear()
            success = mean / best if best > 0 else 0.0  # nothing was ever earned
            factor = part.up if success < part.below else part.down if success > part.above else 1.0
            low, high = sorted(bound * self.begun_with[name] for bound in (part.least, part.most))
            weight = min(max(weights[name] * factor, low), high)
            if weight != weights[name]:
                said = f"pays {success:.0%} of {best:g}" if best > 0 else "paid nothing"
                edge = f"below {part.below:.0%}" if factor > 1 else f"above {part.above:.0%}"
                changes.append(Change(name, weight, f"{said} over {part.every} steps, {edge}"))
        return changes

    def reloaded(self, reward_funcs: dict[str, Any]) -> None:
        """Functions were loaded anew: what they state as their maximum may be another number."""
        for name, part in self.parts.items():
            if name in reward_funcs:
                self._best[name] = part.best_score or max_score_of(reward_funcs[name])

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, for JSON."""
        return {"scores": dict(self._scores), "most_seen": dict(self._most_seen), "steps": dict(self._steps)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` said."""
        self._scores.update({name: list(scores) for name, scores in state.get("scores", {}).items()})
        self._most_seen.update(state.get("most_seen", {}))
        self._steps.update(state.get("steps", {}))
