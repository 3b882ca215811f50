"""What notebook 01 measured of the prompts, repeated in the plan of a run on them."""

from __future__ import annotations

from pathlib import Path

from workbench.data.difficulty import load_profile
from workbench.errors import DataError
from workbench.training.feature import Asked, Feature


class MeasuredDifficulty(Feature):
    """A line of the plan about the `difficulty.jsonl` beside the task file; nothing while it
    trains.
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
        return [f"measured in 01 with {profile.settings.get('policy')}: {words}"]
