"""Adaptive weights: a reward function's weight follows its success, within bounds, while a stage
trains.
"""

from __future__ import annotations

import numpy as np

from workbench.errors import RecipeError
from workbench.kinds import Fields
from workbench.recipe import AdaptivePart
from workbench.rewards.library import max_score_of
from workbench.rewards.suite import RewardSuite
from workbench.run.batch import LARGEST_WEIGHT, ScoredBatch
from workbench.training.feature import Feature
from workbench.training.plan import Stage


class Adaptive(Feature):
    """The adaptive weights of the current stage. Changes are requests like any other, so the record
    holds them.
    """

    key = "adaptive"
    of_recipe = True

    @classmethod
    def check(cls, stage: Stage, where: str) -> None:
        """RecipeError for a function that the stage does not have, or a weight that cannot
        adapt.
        """
        if stage.suite is None:
            return
        if unknown := sorted(set(stage.adaptive) - set(stage.suite.names)):
            raise RecipeError(
                f"{where}adaptive_weights: {unknown[0]!r}",
                rule="an adaptive weight names one of the task's reward functions",
                remedy=f"choose from {', '.join(stage.suite.names)}",
            )
        AdaptiveWeights(stage.adaptive, stage.suite)

    def begin_stage(self, stage: Stage) -> None:
        self.weights = AdaptiveWeights(stage.adaptive, stage.scored_by[1])
        self.on_batch, self.changes = self.weights.note, self.weights.due
        self.reloaded, self.restore = self.weights.reloaded, self.weights.restore

    def state(self) -> Fields:
        return {"adaptive": self.weights.state}


class AdaptiveWeights:
    """Follows the success of the functions that a recipe names, and decides when a weight should
    change.

    A function that succeeds too seldom weighs more, one that nearly always does weighs less;
    success is the share of its best score that it pays on average. Only the ratio between several
    functions' weights matters: `scale_rewards: group` divides advantages by their own spread. The
    bounds are taken from the weights that the suite has at first; RecipeError for a weight of 0,
    which no factor changes. `state`, for JSON, holds by function the mean `scores` of the batches
    and the `steps` since the last decision, and `most_seen`.
    """

    def __init__(self, parts: dict[str, AdaptivePart], suite: RewardSuite) -> None:
        self.parts = parts
        self.begun_with = dict(zip(suite.names, suite.weights, strict=True))
        for name in parts:
            if not self.begun_with[name]:
                raise RecipeError(
                    f"adaptive_weights: {name} has the weight 0",
                    rule="a factor changes it",
                    remedy=f"give {name} a weight, or leave it out of adaptive_weights",
                )
        self.reloaded(suite)
        self.state: dict[str, Fields] = {
            "most_seen": dict.fromkeys(parts, 0.0),
            "steps": dict.fromkeys(parts, 0),
            "scores": {name: [] for name in parts},
        }

    def note(self, scored: ScoredBatch) -> None:
        """Take in one scored batch."""
        for name in self.parts.keys() & set(scored.names):
            column = scored.scores[:, scored.names.index(name)]
            if not np.isnan(column).all():
                self.state["scores"][name].append(float(np.nanmean(column)))
                most = max(self.state["most_seen"][name], float(np.nanmax(column)))
                self.state["most_seen"][name] = most

    def due(self, weights: dict[str, float]) -> list[Fields]:
        """Called once per step: each `function` to change now (never a muted one), its new weight
        `value`, and `why`.
        """
        changes, steps = [], self.state["steps"]
        for name, part in self.parts.items():
            steps[name] += 1
            scores = self.state["scores"][name]
            if steps[name] < part.every or not scores or not weights.get(name):
                continue
            steps[name], self.state["scores"][name] = 0, []
            best = self.best[name] or self.state["most_seen"][name]
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

    def reloaded(self, suite: RewardSuite) -> None:
        """Functions were loaded: their stated maximum may have changed."""
        functions = dict(zip(suite.names, suite.task.reward_funcs, strict=True))
        self.best = {
            name: part.best_score or max_score_of(functions[name])
            for name, part in self.parts.items()
            if name in functions
        }

    def restore(self, state: Fields) -> None:
        """Continue from a checkpoint's state."""
        for key, by_function in self.state.items():
            by_function.update(state.get("adaptive", {}).get(key, {}))
