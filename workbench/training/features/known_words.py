"""Words that the embedded policy does not know: said in the plan, and where a run begins."""

from __future__ import annotations

from workbench.tiny.words import new_words, words_line
from workbench.training.feature import Asked, Feature, Planned

_ROWS = 200  # of a stage that are looked at


class KnownWords(Feature):
    """A line for a task with words that `policy: tiny` was never taught."""

    key = "known_words"

    @classmethod
    def of(cls, session: object) -> None:
        return None  # it has nothing to do while it trains

    @classmethod
    def plan(cls, asked: Asked) -> Planned:
        if asked.recipe.policy.name != "tiny":
            return Planned()
        new: list[str] = []
        for stage in asked.stages:
            column = stage.task.answer_column if stage.task else ""
            new += new_words(stage.rows[:_ROWS], column)
        return Planned(words_line(new))
