"""A task's level of difficulty: found before a run (`difficulty: auto`), and moved while it trains
(`curriculum: true`).

The rule of the curriculum: where the last 5 batches at one level were right in more than 80 % of
their completions, the next batch comes from the next harder level; in fewer than 20 %, from the
next easier one. The count begins again at each level, so that one lucky batch moves nothing. The
trainer draws its prompts as ever; in a batch of another level each is replaced by the prompt that
has its place there. Held-out prompts stay those of the level that the run began with. A step waits
for the questions of a level that is new to the run: they are 300, and the run stays where it is if
they take more than 210 s.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

from workbench.base.errors import RecipeError, TaskError
from workbench.base.kinds import Fields, Function, Trainer
from workbench.health.trends import percent
from workbench.instruments.games import is_of_gym
from workbench.instruments.games.levels import BAND, find_level, fitting
from workbench.run.batch import ScoredBatch
from workbench.run.metrics import LEVEL
from workbench.task import Row
from workbench.training.feature import Asked, Feature, Planned, Watched
from workbench.training.plan import Stage
from workbench.training.replaced import replaces

BATCHES = 5
_QUESTIONS = 300  # of a level that is moved to
_QUIET_S = 2.0  # before a line says what a step is waiting for


def moved(level: int, shares: Sequence[float]) -> int:
    """The next batch's level, by the right shares of the batches at this one so far."""
    if len(shares) < BATCHES:
        return level
    mean = sum(shares[-BATCHES:]) / BATCHES
    return level + (mean > BAND[1]) - (mean < BAND[0])


@replaces("_generate_and_score_completions")
class Curriculum(Feature):
    """The level of a run whose recipe has `difficulty: auto` or `curriculum: true`."""

    key = "curriculum"
    of_recipe = True

    @classmethod
    def plan(cls, asked: Asked) -> Planned:
        recipe, task = asked.recipe, asked.task
        if recipe.difficulty is not None and not asked.stages:
            found, lines = find_level(recipe, asked.policy)
            return Planned(lines, found)
        if recipe.difficulty is not None and task is not None:
            raise RecipeError(
                f"difficulty = 'auto' beside a task object, {task.name!r}",
                rule="a level is found for a task that the recipe names",
                remedy="leave difficulty out, or pass no task",
            )
        for stage in asked.stages:
            if stage.recipe.curriculum and stage.task is not None:
                _begin(stage.task.name, stage.where)
        if not recipe.curriculum or task is None:
            return Planned()
        level, levels = _begin(task.name)
        return Planned(
            [
                f"curriculum: begins at level {level} of {levels[0]} to {levels[-1]}; up where more"
                f" than {percent(BAND[1])} of the completions of {BATCHES} batches are right, down"
                f" where fewer than {percent(BAND[0])} are"
            ]
        )

    @classmethod
    def of(cls, session: Watched) -> Curriculum | None:
        return cls(session) if session.policy and session.plan.recipe.curriculum else None

    def begin_stage(self, stage: Stage) -> None:
        self.stage = stage
        self.began, self.levels = _begin(stage.scored_by[0].name)
        self.level = self.highest = self.began
        self.shares: list[float] = []  # right completions of the batches at this level
        self.places = {row["prompt_id"]: place for place, row in enumerate(stage.rows)}
        self.rows: dict[int, list[Row]] = {self.began: stage.rows}

    def around(self, trainer: Trainer) -> dict[str, Function]:
        generate = trainer._generate_and_score_completions

        def of_level(inputs: list[Row]) -> object:
            rows = self._rows(self.level)
            if self.level != self.began:
                places = (self.places[row["prompt_id"]] for row in inputs)
                inputs = [dict(rows[place % len(rows)]) for place in places]
            return generate(inputs)

        return {"_generate_and_score_completions": of_level}

    def on_batch(self, scored: ScoredBatch) -> None:
        if not scored.right.count():
            return  # nothing says so of this batch
        self.shares.append(float(scored.right.mean()))
        self.of_batch = self.level
        level = moved(self.level, self.shares)
        if level == self.level or level not in self.levels or not self._rows(level):
            return
        mean = sum(self.shares[-BATCHES:]) / BATCHES
        why = f"{percent(mean)} right over {BATCHES} batches"
        self.session.recorder.event(self.key, scored.step, before=self.level, after=level, why=why)
        print(f"step {scored.step}: level {self.level} -> {level}: {why}", flush=True)
        self.level, self.shares = level, []
        self.highest = max(self.highest, level)

    def _rows(self, level: int) -> list[Row]:
        # Those that fit, as the stage's own do; none where too few are left for a batch, or where
        # the level makes no questions: then the run stays where it is.
        if level not in self.rows:
            from workbench.instruments.games import gym

            name = self.stage.scored_by[0].name.partition("@")[0]
            # to today's stdout: the library's is taken away meanwhile
            waits = f"curriculum: the step waits for the questions of level {level}"
            said = {"file": sys.stdout, "flush": True}
            telling = threading.Timer(_QUIET_S, print, [waits], said)
            telling.start()
            try:
                task = gym.task(f"{name}@{level}", questions=_QUESTIONS)
            except TaskError as error:
                print(f"curriculum: stays at level {self.level}: {error.value}", flush=True)
                self.rows[level] = []
                return []
            finally:
                telling.cancel()
            rows = task.with_ids(task.rows)
            tokenizer = self.session.trainer.processing_class
            completion = self.stage.settings["max_completion_length"]
            kept = fitting(rows, tokenizer, self.stage.recipe, completion)
            self.rows[level] = kept if len(kept) >= self.stage.planned.prompts else []
        return self.rows[level]

    def row(self) -> dict[str, float]:
        return {LEVEL: getattr(self, "of_batch", self.level)}

    def state(self) -> Fields:
        kept = {"level": self.level, "highest": self.highest, "shares": self.shares}
        return {self.key: kept}

    def restore(self, state: Fields) -> None:
        vars(self).update(state.get(self.key, {}))

    def result(self, seconds: float) -> Fields:
        return {self.key: {"began": self.began, "level": self.level, "highest": self.highest}}


def _begin(task: str, where: str = "") -> tuple[int, Sequence[int]]:
    # (the level that a task's name says, all of its levels)
    if is_of_gym(task):
        from workbench.instruments.games import gym

        name, level = gym.parsed(task)
        if level is not None:
            return level, gym.levels(name)
    raise RecipeError(
        f"{where}curriculum = True with task {task!r}",
        rule="a curriculum begins at a level of a task `reasoning_gym/NAME`",
        remedy="say `difficulty: auto`, or name one: reasoning_gym/chain_sum@0; or leave it out",
    )
