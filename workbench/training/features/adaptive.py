"""Adaptive weights: a reward function's weight follows its success, within bounds, while a stage
trains.

A function that succeeds too seldom weighs more, one that nearly always does weighs less; success is
the share of its best score that it pays on average. Only the ratio between several functions'
weights matters: `scale_rewards: group` divides advantages by their own spread. Changes are requests
like any other, so the record holds them.
"""

from __future__ import annotations

import numpy as np

from workbench.base.errors import RecipeError
from workbench.base.kinds import Fields
from workbench.recipe import AdaptivePart
from workbench.rewards.library import max_score_of
from workbench.rewards.suite import RewardSuite
from workbench.run.batch import LARGEST_WEIGHT, ScoredBatch
from workbench.training.feature import Asked, Feature, Planned
from workbench.training.plan import Stage


class Adaptive(Feature):
    """The adaptive weights of the current stage."""

    key = "adaptive"
    of_recipe = True

    @classmethod
    def plan(cls, asked: Asked) -> Planned:
        for stage in asked.stages:
            if stage.suite is not None:
                cls.__new__(cls).follow(stage.adaptive, stage.suite, stage.where)
        return Planned()

    def begin_stage(self, stage: Stage) -> None:
        self.follow(stage.adaptive, stage.scored_by[1])

    def follow(self, parts: dict[str, AdaptivePart], suite: RewardSuite, where: str = "") -> None:
        """Follow these functions, with bounds of the suite's weights; RecipeError for one that it
        does not have, or whose weight of 0 no factor changes.
        """
        weights = dict(zip(suite.names, suite.weights, strict=True))
        for name in sorted(parts):
            if name not in weights:
                raise RecipeError(
                    f"{where}adaptive_weights: {name!r}",
                    rule="an adaptive weight names one of the task's reward functions",
                    remedy=f"choose from {', '.join(weights)}",
                )
            if not weights[name]:
                raise RecipeError(
                    f"{where}adaptive_weights: {name} has the weight 0",
                    rule="a factor changes it",
                    remedy=f"give {name} a weight, or leave it out of adaptive_weights",
                )
        self.parts, self.begun_with = parts, weights
        self.most_seen = dict.fromkeys(parts, 0.0)
        self.steps = dict.fromkeys(parts, 0)  # since the last decision
        self.scores: dict[str, list[float]] = {name: [] for name in parts}  # means of batches
        self.reloaded(suite)

    def reloaded(self, suite: RewardSuite) -> None:
        functions = dict(zip(suite.names, suite.task.reward_funcs, strict=True))
        self.best = {
            name: part.best_score or max_score_of(functions[name])
            for name, part in self.parts.items()
            if name in functions
        }

    def on_batch(self, scored: ScoredBatch) -> None:
        for name in self.parts.keys() & set(scored.names):
            column = scored.scores[:, scored.names.index(name)]
            if not np.isnan(column).all():
                self.scores[name].append(float(np.nanmean(column)))
                self.most_seen[name] = max(self.most_seen[name], float(np.nanmax(column)))

    def changes(self, weights: dict[str, float]) -> list[Fields]:
        changes = []
        for name, part in self.parts.items():
            self.steps[name] += 1
            scores = self.scores[name]
            if self.steps[name] < part.every or not scores or not weights.get(name):  # muted: 0
                continue
            self.steps[name], self.scores[name] = 0, []
            best = self.best[name] or self.most_seen[name]
            success = float(np.mean(scores)) / best if best > 0 else 0.0  # nothing was ever earned
            factor = part.up if success < part.below else part.down if success > part.above else 1.0
            low, high = sorted(bound * self.begun_with[name] for bound in (part.least, part.most))
            weight = min(max(weights[name] * factor, low, -LARGEST_WEIGHT), high, LARGEST_WEIGHT)
            if weight != weights[name]:
                pays = f"pays {success:.0%} of {best:g}" if best > 0 else "paid nothing"
                edge = f"below {part.below:.0%}" if factor > 1 else f"above {part.above:.0%}"
                why = f"{pays} over {part.every} steps, {edge}"
                changes.append({"function": name, "value": weight, "why": why})
        return changes

    def state(self) -> Fields:
        kept = {"most_seen": self.most_seen, "steps": self.steps, "scores": self.scores}
        return {"adaptive": kept}

    def restore(self, state: Fields) -> None:
        for key, by_function in self.state()["adaptive"].items():
            by_function.update(state.get("adaptive", {}).get(key, {}))
