"""What is known of the prompts before a run: words that the embedded policy was never taught, and
what notebook 01 measured, repeated in the plan.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from workbench.base.errors import DataError
from workbench.data.difficulty import load_profile, row_key
from workbench.health.rung import which_rung
from workbench.tiny.words import new_words, words_line
from workbench.training.feature import Asked, Feature, Planned
from workbench.training.plan.loading import adapter_named

_ROWS = 200  # of a stage whose words are looked at


class MeasuredDifficulty(Feature):
    """Lines of the plan about the words of the prompts, the `difficulty.jsonl` beside the task file
    and the rung that it advises; nothing while it trains.
    """

    key = "difficulty"

    @classmethod
    def plan(cls, asked: Asked) -> Planned:
        new: list[str] = []
        for stage in asked.stages if asked.recipe.policy.name == "tiny" else ():
            column = stage.task.answer_column if stage.task else ""
            new += new_words(stage.rows[:_ROWS], column)
        return Planned(words_line(new) + _measured(asked))


def _measured(asked: Asked) -> list[str]:
    if asked.task is None or not asked.task.source:
        return []
    try:
        profile = load_profile(Path(asked.task.source).with_name("difficulty.jsonl"))
    except DataError:  # there is none, or it is something else of that name
        return []
    keys = set(map(row_key, asked.task.rows))  # of those that are trained on
    solved = {key: one for key, one in profile.solved.items() if key in keys}
    profile = replace(profile, solved=solved or profile.solved)
    words = str(profile).replace("\n", "; ")
    settings, recipe = profile.settings, asked.recipe
    lines = [f"measured in 01 with {settings.get('policy')}: {words}"]
    adapter = recipe.policy.adapter
    before = [adapter_named(adapter)] if adapter else []
    same = settings.get("policy") == recipe.policy.name
    same &= settings.get("trained_in", []) == before
    if profile.solved and same and recipe.warm_start is None:
        size = asked.stages[0].planned.num_generations
        rung = which_rung(profile, num_generations=size, ideal=asked.task.ideal is not None)
        lines.append(rung.words.replace("\n", "; "))
    return lines
