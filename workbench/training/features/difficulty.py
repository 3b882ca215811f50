"""What notebook 01 measured of the prompts, repeated in the plan of a run on them."""

from __future__ import annotations

from pathlib import Path

from workbench.data.difficulty import load_profile
from workbench.errors import DataError
from workbench.health.rung import which_rung
from workbench.training.feature import Asked, Feature


class MeasuredDifficulty(Feature):
    """Lines of the plan about the `difficulty.jsonl` beside the task file, and the rung that it
    advises; nothing while it trains.
    """

    key = "difficulty"

    @classmethod
    def plan(cls, asked: Asked) -> list[str]:
        if asked.task is None or not asked.task.source:
            return []
        try:
            profile = load_profile(Path(asked.task.source).with_name("difficulty.jsonl"))
        except DataError:  # there is none, or it is something else of that name
            return []
        words = str(profile).replace("\n", "; ")
        policy, recipe = profile.settings.get("policy"), asked.recipe
        lines = [f"measured in 01 with {policy}: {words}"]
        begun = recipe.policy.adapter or recipe.warm_start
        if profile.solved and policy == recipe.policy.name and not begun:
            size = asked.stages[0].planned.num_generations
            rung = which_rung(profile, num_generations=size, ideal=asked.task.ideal is not None)
            lines.append(rung.words.replace("\n", "; "))
        return lines
