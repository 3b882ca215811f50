"""The features of a run, called in order. Only this module knows which there are."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from workbench.kinds import Fields
from workbench.recipe import Recipe
from workbench.run.batch import ScoredBatch
from workbench.training.feature import Feature
from workbench.training.plan import Memory


def kinds() -> tuple[type[Feature], ...]:
    """All features, in their order."""
    from workbench.training.features import FEATURES

    return FEATURES


def asked(hook: str, *details: object) -> list[Any]:
    """What each feature's class answers before a run exists; answers of None are left out."""
    answers = [getattr(kind, hook)(*details) for kind in kinds()]
    return [answer for answer in answers if answer is not None]


def lines(hook: str, *details: object) -> list[str]:
    """The lines of all features, one after another."""
    return [line for answer in asked(hook, *details) for line in answer]


def found(recipe: Recipe, policy: object) -> tuple[Recipe, list[str]]:
    """The recipe with what the features find out before its task is loaded, and their lines."""
    lines: list[str] = []
    for kind in kinds():
        recipe, more = kind.find(recipe, policy)
        lines += more
    return recipe, lines


def memory_feature(vram_gb: float | None = None, *, estimates: bool = True) -> Memory | None:
    """For `prepare(memory=...)`: the callback of the first feature that decides on memory."""
    return next(iter(asked("memory", vram_gb, estimates)), None)


class Around:
    """The features of one session, in their order."""

    def __init__(self, session: Any) -> None:
        self.features: list[Feature] = []
        for kind in kinds():
            feature = kind.of(session)
            if feature is not None:
                self.features.append(feature)
                session.at_end.callback(feature.close)

    def each(self, hook: str, *details: object) -> list[Any]:
        """Call one hook of every feature, and return the answers."""
        return [getattr(feature, hook)(*details) for feature in self.features]

    def scored(self, batch: ScoredBatch) -> ScoredBatch:
        """Hand a batch from one feature to the next: each may replace it."""
        for feature in self.features:
            batch = feature.on_batch(batch) or batch
        return batch

    def merged(self, hook: str, *details: object) -> Fields:
        """All answers merged into one dict."""
        return {
            name: value for answer in self.each(hook, *details) for name, value in answer.items()
        }

    @contextlib.contextmanager
    def training(self) -> Generator[None]:
        """Entered while a stage's trainer trains."""
        with contextlib.ExitStack() as entered:
            for feature in self.features:
                entered.enter_context(feature.training())
            yield

    def changes(self, weights: dict[str, float]) -> list[tuple[str, Fields]]:
        """(requesting feature, `weight` request) for each weight that should change after this
        step.
        """
        return [
            (feature.key, change)
            for feature in self.features
            for change in feature.changes(weights)
        ]

    def explained(self, error: Exception) -> Exception:
        """The error to raise for the one that ended training."""
        for feature in self.features:
            explained = feature.explained(error)
            if explained is not error:
                return explained
        return error
