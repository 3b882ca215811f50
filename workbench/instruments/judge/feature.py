"""Judges among the reward functions: none trains that has not passed its trial, unless the recipe
accepts it; what each was asked, and what that took, stands in the manifest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from workbench.base import processes
from workbench.base.errors import RecipeError
from workbench.base.kinds import Fields
from workbench.base.workspace import shown
from workbench.instruments.judge.judging import Judge, Spent
from workbench.rewards.code import judge_of
from workbench.task import Task, function_name
from workbench.training.feature import Asked, Feature, Planned, Watched
from workbench.training.plan import Stage


class JudgeWatch(Feature):
    """Nothing without a judge."""

    key = "judge"
    of_recipe = True

    @classmethod
    def plan(cls, asked: Asked) -> Planned:
        lines = []
        for stage in asked.stages:
            for name, judge in judges(stage):
                if judge.ranks and processes.count() > 1:
                    raise RecipeError(
                        f"{name} in {processes.count()} processes",
                        rule="a judge ranks whole groups, and a group may lie across processes",
                        remedy="start one process, or score each with make_judge_reward",
                    )
                lines.append(
                    f"{name} asks {judge.asks}: it is sent every prompt and every completion"
                )
                # what is resumed was accepted when it began
                task = stage.scored_by[0]
                if judge.ranks and name == task.right_function and asked.recipe.eval_every:
                    raise RecipeError(
                        f"{name} decides which answers are right, and held-out answers stand alone",
                        rule="a completion that is alone has no rank, so none would be right",
                        remedy="let another function of the task decide (right_by=...), score each"
                        " with make_judge_reward, or leave out eval_every",
                    )
                told = _verdict(name, judge, stage)
                if told and not (
                    asked.recipe.judge == "accept" or _began_with(asked, name, judge, task)
                ):
                    raise told
                kept = judge.trial_on(task) or {"verdict": "no trial: accepted"}
                lines.append(f"{name}, on trial: {kept['verdict']}")
        return Planned([*dict.fromkeys(lines)])

    def __init__(self, session: Watched) -> None:
        super().__init__(session)
        self.judges = dict(each for stage in session.stages for each in judges(stage))
        for judge in self.judges.values():
            judge.spent = Spent()  # its budget is of this run

    def before_first(self, stage: Stage) -> bool:
        """The trials of its judges go into the manifest; training may begin."""
        task, run = stage.scored_by[0], self.session.run
        for name, judge in judges(stage):
            trials = run.manifest().get("judges", {})
            if trials.get(name, {}).get("key") != judge.key(task):
                accepted = stage.recipe.judge == "accept"
                kept = {
                    "accepted": accepted,
                    "trial": judge.trial_on(task),
                    "key": judge.key(task),
                }
                run.update_manifest(judges={**trials, name: kept})
        return True

    def result(self, seconds: float) -> Fields:
        before = (self.session.run.manifest().get("before") or {}).get("judges", {})
        spent = {
            name: _summed(before.get(name, {}), dataclasses.asdict(judge.spent))
            for name, judge in self.judges.items()
        }
        spent = before | spent
        return {"judges": spent} if spent else {}


def judges(stage: Stage) -> Iterator[tuple[str, Judge]]:
    """(name, judge) of each function of a stage that asks one."""
    for function in stage.task.reward_funcs if stage.task else ():
        if judge := judge_of(function):
            yield function_name(function), judge


def _began_with(asked: Asked, name: str, judge: Judge, task: Task) -> bool:
    # Whether the run that is resumed had this judge on this task: it was accepted then.
    judges = asked.run.manifest().get("judges", {}) if asked.run else {}
    return judges.get(name, {}).get("key") == judge.key(task)


def _summed(before: Fields, own: Fields) -> Fields:
    """What a judge took in the sittings before and in this one."""
    return {
        part: value or before.get(part, "")
        if isinstance(value, str)
        else before.get(part, 0) + value
        for part, value in own.items()
    }


def _verdict(name: str, judge: Judge, stage: Stage) -> RecipeError | None:
    # The error where it may not train.
    task = stage.scored_by[0]
    trial = judge.trial_on(task)
    if trial and trial["ok"]:
        return None
    value = f"{name} has no trial on this task, as judge, rubric and prompts are now"
    if trial:
        value = f"{name}, on trial: {trial['verdict']}"
    try_it = f"workbench trial {shown(task.source)}" if task.source else "wb.rewards.trial(task)"
    return RecipeError(
        value,
        rule="a judge trains after it has passed its trial",
        remedy=f"{try_it} says what to change; `judge: accept` in the recipe trains all the same",
    )
