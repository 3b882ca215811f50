"""The features of a run, called in order. Only this module knows which there are."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from workbench.base.errors import RecipeError
from workbench.base.instruments import TABLE
from workbench.base.kinds import Fields
from workbench.recipe import Recipe
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.training.feature import Asked, Feature, Planned
from workbench.training.plan import Stage
from workbench.training.plan.settings.device import Machine

if TYPE_CHECKING:
    from workbench.training.resuming import Point


# Fields of a recipe that are nothing without an instrument.
_READ_BY = {"curriculum": "games", "difficulty": "games", "judge": "judge"}


def kinds() -> tuple[type[Feature], ...]:
    """All features, in their order."""
    from workbench.training.features import FEATURES

    return FEATURES


def planned(asked: Asked) -> Planned:
    """What all features make of a run: their lines, the recipe as they changed it one after
    another, and the first that decides on memory.
    """
    lines, memory = [], None
    for name, instrument in _READ_BY.items():
        if getattr(asked.recipe, name) and instrument not in TABLE:
            raise RecipeError(
                f"{name} in the recipe",
                rule=f"the instrument `{instrument}` reads it, and it is not installed",
                remedy="leave it out",
            )
    for kind in kinds():
        answer = kind.plan(asked)
        lines += answer.lines
        memory = memory or answer.memory
        asked = asked._replace(recipe=answer.changes or asked.recipe)
    return Planned(lines, asked.recipe, memory)


def generation_lines(stages: Sequence[Stage], machine: Machine, shape: Any) -> list[str]:
    """Who samples the completions, each line once."""
    lines = [kind.generates(stage, machine, shape) for stage in stages for kind in kinds()]
    return list(dict.fromkeys(filter(None, lines)))


def resume_lines(recipe: Recipe, point: Point, manifest: Fields) -> list[str]:
    """The lines of all features where a run is resumed."""
    return [line for kind in kinds() for line in kind.resumes(recipe, point, manifest)]


def late_results(run: RunDirectory) -> Fields:
    """What all features add to the result of a run that was killed before it wrote one."""
    return {name: value for kind in kinds() for name, value in kind.late_result(run).items()}


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
