"""Right answers over a task's levels of difficulty, before and after training: does what was learnt
reach above the trained level?
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from workbench.base.errors import DataError, TaskError
from workbench.base.kinds import Fields
from workbench.base.progress import progress_line
from workbench.base.workspace import to_json
from workbench.inspection import statistics
from workbench.inspection.evaluation import loaded_for, measure_policy
from workbench.inspection.reading import needs
from workbench.instruments.games import is_of_gym
from workbench.instruments.games.levels import fitting
from workbench.run.directory import RunDirectory
from workbench.tasks.loading import load_task
from workbench.training.plan.loading import adapter_sum

FILE = "levels.json"
_BELOW, _ABOVE = 2, 3  # levels around the trained one
_FEWEST = 2  # held-out prompts: an interval needs as many


class LevelShares(NamedTuple):
    """One level, on held-out prompts: shares of the completions with their 95 % intervals, (share,
    low, high).
    """

    level: int
    prompts: int
    before: tuple[float, float, float]  # right, in the strict format
    after: tuple[float, float, float]
    gain: tuple[float, float, float]  # paired by prompt
    right: tuple[float, float]  # in any format, before and after
    right_gain: tuple[float, float, float]

    @classmethod
    def of(
        cls,
        level: int,
        correct: tuple[np.ndarray, np.ndarray],
        right: tuple[np.ndarray, np.ndarray],
    ) -> LevelShares:
        """From [P, G] bools of base and trained: right in the strict format, and in any."""
        before, after = (statistics.share_interval(each) for each in correct)
        gain, right_gain = statistics.share_gain(*correct), statistics.share_gain(*right)
        shares = float(right[0].mean()), float(right[1].mean())
        return cls(level, len(correct[0]), before, after, gain, shares, right_gain)


@dataclass(frozen=True, repr=False)
class OverLevels:
    """A run's gain at each level of its task. A cell shows it as a picture with the trained level
    marked.
    """

    task: str
    trained: int | None  # the highest level that was trained on; None: the task has no levels
    points: Sequence[LevelShares] = ()
    levels: int = 0  # of the task
    samples: int = 1
    skipped: Mapping[int, str] = field(default_factory=dict)  # level -> why it was not measured

    HEADER = ("level", "before", "after", "gain, points", "right in any format")

    @property
    def rows(self) -> list[list[str]]:
        """One row a level, under `HEADER`."""
        rows = []
        for point in self.points:
            trained = " (trained)" if point.level == self.trained else ""
            gain, low, high = point.gain
            ends = statistics.in_points(low, high)
            shares = [f"{share[0]:.0%}" for share in (point.before, point.after)]
            right = " -> ".join(f"{share:.0%}" for share in point.right)
            rows.append([f"{point.level}{trained}", *shares, f"{100 * gain:+.0f} ({ends})", right])
        return rows

    @property
    def reaches(self) -> list[int]:
        """The levels above the trained one at which the gain's interval lies above 0, up to the
        first at which it does not, or which could not be measured.
        """
        reached: list[int] = []
        for point in self._above:
            if point.gain[1] <= 0:
                break
            reached.append(point.level)
        return reached

    @property
    def _gap(self) -> int | None:
        # the easiest level above the trained one that could not be measured
        above = (n for n in self.skipped if self.trained is not None and n > self.trained)
        return min(above, default=None)

    @property
    def _above(self) -> list[LevelShares]:
        # not beyond a gap
        points = [p for p in self.points if self.trained is not None and p.level > self.trained]
        return [p for p in points if self._gap is None or p.level < self._gap]

    @property
    def verdict(self) -> str:
        """Whether what was learnt reaches above the trained level, in words."""
        if self.trained is None or not (self.points or self.skipped):
            return f"{self.task} has no levels of difficulty: nothing to measure above"
        above, reached = self._above, self.reaches
        at = next((point for point in self.points if point.level == self.trained), None)
        if not above and self._gap is not None:
            return f"not known above level {self.trained}: level {self._gap} could not be measured"
        if not above:
            return f"level {self.trained} is the hardest measured: nothing lies above it"
        names = f"level{'s' if len(reached) > 1 else ''} {', '.join(map(str, reached))}"
        if not reached:
            first = above[0]
            ends = statistics.in_points(*first.gain[1:])
            words = (
                f"no gain shows above level {self.trained}: at level {first.level}"
                f" {100 * first.gain[0]:+.0f} points ({ends})"
            )
        else:
            words = f"reaches further: a gain at {names}, above the trained level {self.trained}"
            if not any(p.right_gain[1] > 0 for p in above if p.level in reached):
                words += "; by the form alone: right answers in any format do not increase there"
        if at is not None and at.gain[1] <= 0:
            words += f"; nor is a gain certain at level {self.trained} itself"
        return words

    @property
    def found(self) -> Fields:
        """For `--json` and `levels.json`."""
        kept = {name: getattr(self, name) for name in ("task", "trained", "levels", "samples")}
        return {
            **kept,
            "points": [to_json(point._asdict()) for point in self.points],
            "skipped": [{"level": level, "why": why} for level, why in self.skipped.items()],
            "reaches": self.reaches,
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        skipped = [f"level {level} was not measured: {why}" for level, why in self.skipped.items()]
        if not self.points:
            return "\n".join([self.verdict, *skipped])
        table = [list(self.HEADER), *self.rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
        least, most = (end(point.prompts for point in self.points) for end in (min, max))
        prompts = f"{most}" if least == most else f"{least} to {most}"
        counted = f"{prompts} held-out prompts per level, {self.samples} completions each"
        return "\n".join([self.verdict, counted, *lines, *skipped])

    __repr__ = __str__


def over_levels(
    run: RunDirectory,
    levels: Sequence[int] | None = None,
    *,
    held_out: int = 40,
    samples: int = 2,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> OverLevels:
    """Measure base and trained policy on held-out prompts of several levels of the run's task.

    Leaves `levels.json` in the run's folder; what it holds is not measured again. Nothing is
    measured where the task has no levels, or was not trained at one; a level without enough
    questions that fit is left out, and the result says why.

    Args:
        levels: None: the trained one, two below and three above it.
        held_out, samples, seed: as for `wb.evaluate`, for each level.
        progress: called with (passes done, passes in all).

    Raises:
        RunError: if the run has no adapter.
        DataError: if the task has no such level.
    """
    needs(run, RunDirectory)
    recipe = run.recipe()
    nothing = OverLevels(recipe.task, None)
    if not is_of_gym(recipe.task):
        return nothing
    from workbench.instruments.games import gym

    name, began = gym.parsed(recipe.task)
    known = gym.levels(name)
    if began is None or not known:
        return nothing
    curriculum = run.result().get("curriculum") or {}
    trained = max(began, curriculum.get("highest", began))
    if levels is None:
        levels = [n for n in known if trained - _BELOW <= n <= trained + _ABOVE]
    elif unknown := sorted(set(levels) - set(known)):
        raise DataError(
            f"level {unknown[0]}",
            rule=f"{name} has the levels {known[0]} to {known[-1]}",
            remedy="choose from those",
        )
    in_force = run.manifest()["settings"]["in_force"]
    how = {key: in_force[key] for key in ("max_completion_length", "temperature")}
    about: Fields = {"held_out": held_out, "seed": seed, "samples": samples}
    about |= {"adapter": adapter_sum(run.adapter), "levels": [*levels]}
    file = run.path / FILE
    kept = json.loads(file.read_bytes()) if file.is_file() else {}
    if kept.get("about") == about:
        points = [LevelShares(**point) for point in kept["points"]]
        skipped = {each["level"]: each["why"] for each in kept.get("skipped", ())}
        return OverLevels(recipe.task, trained, points, len(known), samples, skipped)
    with run.alone("eval") as lock:
        policy, _ = loaded_for(run)
        progress = progress or progress_line("levels, passes")
        points, skipped = [], {}
        for number, level in enumerate(levels):
            try:
                task = load_task(str(gym.GymName(name, level)))
            except TaskError as error:
                skipped[level] = error.value
                continue
            completion = how["max_completion_length"]
            fit = fitting(task.held_out, policy.tokenizer, recipe, completion)
            rows, measured = fit[:held_out], []
            if len(rows) < _FEWEST:
                skipped[level] = f"{len(rows)} held-out prompts fit"
                continue
            for base in (True, False):
                measured.append(
                    measure_policy(policy, task, rows, samples=samples, seed=seed, base=base, **how)
                )
                lock.beat()
                progress(2 * number + len(measured), 2 * len(levels))
            old, new = measured
            shares = LevelShares.of(level, (old.correct, new.correct), (old.lenient, new.lenient))
            points.append(shares)
        over = OverLevels(recipe.task, trained, points, len(known), samples, skipped)
        run.write_json(FILE, {"about": about, **over.found})
    return over
