"""A judge on trial, before it may train: is its score one of the answer, or of its place, length,
form or claims?

The cases come from the task's prompts: a good completion, a wrong one, and versions of both that a
policy could use to sway a judge. Each is judged afresh, bypassing the cache. Every measure has an
interval, and a limit for which `trial.yaml` gives the reason; where the interval spans the limit,
there were too few cases to tell.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from workbench.audit.completions import CompletionBuilder, builders
from workbench.audit.examination import spread
from workbench.base.errors import RewardError, TaskError
from workbench.base.kinds import Fields
from workbench.base.workspace import append_line, made, resolve
from workbench.data.difficulty import row_key
from workbench.instruments.judge.judge_rewards import prompt_as_text
from workbench.instruments.judge.judging import FOLDER, Judge, Question, Spent, UnreadableAnswer
from workbench.instruments.judge.measures import (
    FAILED,
    GROUP,
    NOTES,
    PASSED,
    TEMPTED,
    UNTOLD,
    Cases,
    JudgeMeasure,
    Names,
    trial_texts,
)
from workbench.recipe import Recipe
from workbench.rewards.beside import CoroutineLoop
from workbench.rewards.code import judge_of
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import now
from workbench.task import Row, Task, function_name
from workbench.tasks.loading import load_task
from workbench.training.plan.prepare import prepare
from workbench.training.plan.presets import find_recipe
from workbench.training.plan.settings.batches import arithmetic

PER = 1000  # completions, where no run is planned
_TOGETHER = 4  # rows


@dataclass(frozen=True)
class JudgeTrial:
    """The trial of one judge on one task. A cell shows it as a table."""

    function: str
    task: str
    asked: str  # who was asked
    key: str  # of the judge and the task's prompts: a trial of another key does not count
    time: str
    rows: int
    measures: list[JudgeMeasure]
    spent: Spent  # by the trial
    planned: Fields  # what judging will take: completions, warming, calls, tokens, cost, minutes

    @property
    def ok(self) -> bool:
        """Whether it may train: nothing failed, and nothing was left untold."""
        return self.state == PASSED

    @property
    def state(self) -> str:
        """Passed, failed, or cannot be told."""
        verdicts = {each.verdict for each in self.measures}
        return next((each for each in (FAILED, UNTOLD) if each in verdicts), PASSED)

    @property
    def verdict(self) -> str:
        """One line: passed, or what failed, with its numbers."""
        why = [str(each) for each in self.measures if each.verdict == self.state != PASSED]
        return ": ".join([self.state, *filter(None, ["; ".join(why)])])

    @property
    def price(self) -> str:
        """One line: what judging will take."""
        of, cost = self.planned, self.planned["cost"]
        paid = f", {cost:.4g} in the currency of its prices" if cost else ""
        more = f"; a warm start draws up to {of['warming']:,} more" if of["warming"] else ""
        return (
            f"{of['completions']:,} completions take about {of['calls']:,} calls,"
            f" {of['tokens']:,} tokens and {of['minutes']:.1f} minutes{paid}{more}; the trial took"
            f" {self.spent.calls} calls and {self.spent.tokens:,} tokens"
        )

    def __str__(self) -> str:
        return f"{self.function} on {self.task}: {self.verdict}\n{self.price}"

    def found(self) -> Fields:
        """For `--json`, the file of trials and the manifest."""
        content = dataclasses.asdict(self) | {"ok": self.ok, "verdict": self.verdict}
        return content | {"measures": [each._asdict() for each in self.measures]}


def trial(
    source: str | Path | Task | Recipe,
    *,
    function: str | None = None,
    cases: int = 40,
    progress: Callable[[int, int], None] | None = None,
) -> JudgeTrial:
    """Put a task's judge on trial, and keep the result: a run with that judge asks for it.

    It asks some 12 questions for each of `cases` prompts (18 of a judge that ranks), past the
    cache, within the judge's own budget.

    >>> def call(text): return '{"score": 7}'
    >>> judged = wb.rewards.make_judge_reward(call)
    >>> task = wb.Task("sums", wb.load_task("arithmetic").rows, [judged])
    >>> wb.rewards.trial(task, cases=8).verdict
    'failed: dead groups 1.00 (0.68 to 1.00; at most 0.3)'

    Args:
        source: a task, its name or file; or a recipe, its file or a preset's name: then what
            judging costs is that of its run.
        function: the reward function on trial; None: the task's only one that asks a judge.
        cases: prompts, spread over the task's.
        progress: called with (prompts done, prompts).

    Raises:
        TaskError: no function asks a judge, or no good and wrong completions can be made.
        RewardError: the judge cannot be reached. BudgetError: it would cost more than it may.
    """
    task, run = _planned(source)
    reward, judge = _on_trial(task, function)
    rows = spread(task.rows, cases)
    texts = [_texts(to) for to in _builders(task, rows)]
    judge.spent = Spent()
    asked, loop = _questions(judge.ranks), CoroutineLoop.of(reward)
    answers: dict[Names, list[Any]] = {names: [] for names in asked}
    for start in range(0, len(rows), _TOGETHER):
        stop = min(start + _TOGETHER, len(rows))
        some = [(row, names) for row in range(start, stop) for names in asked]
        questions = [
            Question(prompt_as_text(rows[row]["prompt"]), tuple(texts[row][name] for name in names))
            for row, names in some
        ]
        waiting = loop.begin(judge.scores_of(questions, fresh=True))
        try:
            scores = waiting.result()
        finally:
            waiting.cancel()  # interrupted: what is not asked costs nothing
        for (_, names), each in zip(some, scores, strict=True):
            if isinstance(each, RewardError) and not isinstance(each, UnreadableAnswer):
                raise each
            lost = isinstance(each, UnreadableAnswer)
            answers[names].append([math.nan] * len(names) if lost else each)
        if progress is not None:
            progress(stop, len(rows))
    by_names = {
        names: np.array(own).reshape(len(rows), -1, len(names)) for names, own in answers.items()
    }
    measures = Cases(judge.ranks, _right(task, rows, texts), by_names).measures
    result = JudgeTrial(
        function_name(reward), task.name, judge.asks, judge.key(task), now(), len(rows),
        [*measures(task.right_function)], judge.spent, _cost(judge, run),
    )  # fmt: skip
    append_line(made(resolve(FOLDER)) / "trials.jsonl", result.found())
    return result


class PlannedRun(NamedTuple):
    """What a run scores."""

    completions: int  # of its groups
    alone: int = 0  # held-out, which a judge that ranks is not asked about
    warming: int = 0  # for a warm start, at most
    size: int = 8  # of a group


def _planned(source: object) -> tuple[Task, PlannedRun]:
    if isinstance(source, str | Path) and str(source).endswith((".yaml", ".yml")):
        source = Recipe.load(find_recipe(source))
    if not isinstance(source, Recipe):
        return load_task(source), PlannedRun(PER)  # ty: ignore[invalid-argument-type]  it says so itself
    plan = prepare(source.model_copy(update={"judge": "accept"}))
    assert plan.task is not None
    completions = alone = warming = 0
    for stage in plan.stages:
        task = stage.task or plan.task
        _, learnt, uses, *_, steps = arithmetic(stage.planned, stage.settings, len(task.rows))
        completions += steps * learnt // uses
        if every := source.eval_every:
            held_out = min(len(set(map(row_key, task.held_out))), source.eval_prompts)
            alone += (1 + math.ceil(steps / every)) * held_out
    if warm := source.warm_start:
        warming = warm.samples
        if warm.source == "policy":
            warming *= warm.rounds * warm.tries
    return plan.task, PlannedRun(completions, alone, warming, plan.batch.num_generations)


def _on_trial(task: Task, name: str | None) -> tuple[Any, Judge]:
    known = {
        function_name(each): (each, judge)
        for each in task.reward_funcs
        if (judge := judge_of(each)) is not None
    }
    if name is None and len(known) == 1:
        name = next(iter(known))
    if name in known:
        return known[name]
    raise TaskError(
        f"task {task.name!r}: {name or f'{len(known)} functions ask a judge'}",
        rule="a trial is of one reward function that asks a judge",
        remedy=f"function=..., --function: one of {', '.join(known)}"
        if known
        else "make one with wb.rewards.make_judge_reward or make_ranking_reward",
    )


def _builders(task: Task, rows: Sequence[Row]) -> list[CompletionBuilder]:
    made = builders(task, rows)
    if len(rows) < 2 or any(each.guessed and not each.has_answer for each in made):
        raise TaskError(
            f"task {task.name!r}: {len(rows)} prompts, and what a good answer to them is, is not"
            " known",
            rule="a trial compares good completions with wrong ones",
            remedy="give the rows an answer column, or Task(ideal=lambda row: ...)",
        )
    return made


def _texts(to: CompletionBuilder) -> dict[str, str]:
    good, bad = to.reference, to.write(to.reasoning(to.wrong), to.wrong)
    texts = {
        "good": good,
        "bad": bad,
        "cut": good[: len(good) // 3],
        "refusal": trial_texts()["refusal"],
    }
    for name, of in TEMPTED.items():
        kind, _, number = name.partition(" ") if name in NOTES else (name, "", "")
        template = trial_texts()[kind][int(number)] if number else trial_texts()[kind]
        texts[name] = template.format(text=texts[of])
    return texts


def _right(task: Task, rows: Sequence[Row], texts: Sequence[dict[str, str]]) -> np.ndarray:
    # [P, 2] whether the good and the wrong completion are right, by the function that decides.
    name = task.right_function
    if judge_of(task.reward_funcs[task.function_names.index(name)]):
        return np.zeros((len(rows), 2), dtype=bool)
    pairs = [own[name] for own in texts for name in ("good", "bad")]
    doubled = [row for row in rows for _ in range(2)]
    with contextlib.closing(RewardSuite(task, 1, on_error="skip", keep_state=False)) as suite:
        scores = suite.score_each(doubled, pairs, names=[name], quiet=True)[name].scores
    return task.is_right(scores).reshape(-1, 2)


def _questions(ranks: bool) -> list[Names]:
    # What is asked of each prompt: completions alone, or pairs in both orders and a group.
    pairs = [("good", "bad"), *TEMPTED.items()]
    if not ranks:
        return [(name,) for name in ("good", *dict.fromkeys([*GROUP, *TEMPTED]))]
    both = [order for one, other in pairs for order in ((one, other), (other, one))]
    return [("good", "bad"), *both, GROUP]


def _cost(judge: Judge, run: PlannedRun) -> Fields:
    spent, size = judge.spent, run.size
    scored = run.completions + (0 if judge.ranks else run.alone)
    questions = math.ceil(scored / size) if judge.ranks else scored
    asked = questions / max(1, spent.calls - spent.retries)
    # A group is longer than the pairs that most of the trial's questions showed.
    longer = asked * (size / 2 if judge.ranks else 1)
    return {
        "completions": scored, "warming": run.warming, "calls": round(asked * spent.calls),
        "tokens": round(longer * spent.tokens), "cost": longer * spent.cost,
        "minutes": longer * spent.seconds / judge.together / 60,
    }  # fmt: skip
