"""A duel: which of two recipes, or more, is better at one budget of completions.

Pairs of runs, one seed in all arms: the same first adapter, the same prompts in the same order, the
same held-out prompts. They train one after another, and the arm that goes first changes from pair
to pair, so that a busy machine favours none. What is compared is the rate of held-out prompts
solved at the end, never one reward's numbers with another's; `sequential.py` decides after each
pair. Beside the runs nothing is kept but what was asked for: the verdict is read off them again.
"""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from workbench.base.errors import RunError
from workbench.base.kinds import Fields
from workbench.base.workspace import made, shown, write_json
from workbench.inspection.statistics import in_points
from workbench.instruments.duel import sequential
from workbench.instruments.duel.planning import Arm, DuelPlan, plan_duel
from workbench.instruments.duel.sequential import FIRST, MOST, Look
from workbench.recipe import Recipe
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import RunDirectory
from workbench.run.held_out import flags, held_out
from workbench.tasks.loading import load_task
from workbench.training.trainer import continue_run, train
from workbench.training.watchers import Watchers

FILE = "duel.json"


@dataclass(frozen=True, repr=False)
class Duel:
    """A duel as its runs say it; a cell shows the curves, and each difference with its interval."""

    plan: DuelPlan
    # [pair][arm]: completions trained on -> which held-out prompts were solved, [P] bools
    curves: list[list[dict[int, np.ndarray]]]

    @cached_property
    def ends(self) -> dict[str, np.ndarray]:
        """Arm -> what its runs solved at their end: [pair, P] of 0 and 1."""
        return {
            arm.name: np.array([pair[place][self.plan.completions] for pair in self.curves], float)
            for place, arm in enumerate(self.plan.arms)
        }

    @cached_property
    def differences(self) -> dict[tuple[str, str], np.ndarray]:
        """(one arm, another) -> what the second solved and the first did not: [pair, P] of -1 to
        1.
        """
        pairs = itertools.combinations(self.ends, 2) if self.curves else ()
        return {(one, other): self.ends[other] - self.ends[one] for one, other in pairs}

    @cached_property
    def looks(self) -> dict[tuple[str, str], Look]:
        """(one arm, another) -> how much higher the second's rate is, as it stands."""
        looks = sequential.compared([*self.differences.values()], self.plan.pairs)
        return dict(zip(self.differences, looks))

    @property
    def called(self) -> bool:
        """Whether every comparison is decided."""
        return bool(self.looks) and all(look.called for look in self.looks.values())

    @property
    def over(self) -> bool:
        """Whether nothing is left to train: all is called, or no pair is left."""
        return self.called or len(self.curves) == self.plan.pairs

    @property
    def found(self) -> Fields:
        """For `--json`."""
        comparisons = [
            {"arms": names, "better": names[look.mean > 0] if look.called else None}
            | look._asdict()
            for names, look in self.looks.items()
        ]
        return {
            "verdict": "called" if self.called else "undecided",
            "comparisons": comparisons,
            "rates": {name: solved.mean(axis=1).tolist() for name, solved in self.ends.items()},
            "pairs": len(self.curves),
            "most_pairs": self.plan.pairs,
            "completions": len(self.curves) * len(self.plan.arms) * self.plan.completions,
            "budget": self.plan.budget,
            "right_by": self.plan.arms[0].task.right_words,
            "runs": str(self.plan.folder),
            "words": str(self),
        }

    def __str__(self) -> str:
        if not self.curves:
            return "no seed has been trained"
        lines = [_words(names, look, self.over) for names, look in self.looks.items()]
        rates = ", ".join(f"{name} {solved.mean():.0%}" for name, solved in self.ends.items())
        base = np.mean([pair[0][0].mean() for pair in self.curves])
        count, most = len(self.curves), self.plan.pairs
        lines.append(f"held-out prompts solved, {count} of {most} seeds: {rates}; base {base:.0%}")
        if count > 1 and not any(own.any() for own in self.differences.values()):
            lines.append("all recipes solved the same prompts: check that they differ in training")
        return "\n".join(lines)

    __repr__ = __str__


def _words(names: tuple[str, str], look: Look, over: bool) -> str:
    sign = -1 if look.mean < 0 else 1
    better, other = names[::-sign]
    points = f"{100 * abs(look.mean):.1f} points"
    leads = f"{better} leads {other} by {points}"
    if look.pairs < FIRST:
        return f"{leads} so far; the first look is after {FIRST} seeds"
    interval = f"({in_points(*sorted((sign * look.low, sign * look.high)))})"
    p = f"p = {look.p:.2g}, called at {look.level:.2g}"
    if look.called:
        found = f"{better} is better than {other}: {points} {interval}"
        return f"{found}, called after {look.pairs} seeds; {p}"
    if not over:
        return f"not called yet: {leads} {interval}; {p}"
    line = f"undecided: {leads} {interval}; {p}"
    if look.needed is None:
        return f"{line}; the difference is too small for a duel, which has at most {MOST} seeds"
    return f"{line}; a new duel of about {look.needed} seeds would tell"


def duel(
    *recipes: Recipe | str | Path,
    budget: int = 6000,
    steps: int | None = None,
    held_out: int | None = None,
    seed: int = 1,
    name: str | None = None,
    runs: str | Path = "runs",
    watchers: Watchers = (),
    on_pair: Callable[[Duel], None] = print,
) -> Duel:
    """Train recipes against each other until it is decided which is better, or the budget is spent.

    >>> settings = {"num_generations": 2, "per_device_train_batch_size": 2, "max_completion_length": 8}
    >>> slow, fast = (wb.Recipe(grpo=settings | {"learning_rate": rate}) for rate in (1e-4, 1e-3))
    >>> wb.inspection.duel(slow, fast, budget=12, held_out=4, on_pair=lambda so_far: None).found["pairs"]
    3

    Two runs cannot tell two rewards apart: each would end elsewhere with another seed. A duel
    trains pairs of runs, with a new seed each, and tests their differences after each pair from the
    third on. The runs stay under `runs/NAME/`, and are runs like any other. Called again, it
    resumes.

    Args:
        recipes: two or more: recipes, files or presets. What is compared is correctness as the
            first one's task measures it, on the same held-out prompts.
        budget: completions that training may sample, all runs together. Each run samples the same
            number.
        steps: of a run of the first recipe; None: as many as leave six runs for each recipe, and
            not more than the recipe says.
        held_out: prompts that each run measures; None: the first recipe's `eval_prompts`.
        seed: of the first pair.
        name: of the folder; None: the recipes' names.
        watchers: as for `train`.
        on_pair: called with the duel so far, after each pair.

    Raises:
        RecipeError: if the recipes differ in nothing or cannot be compared, or the budget is too
            small for three pairs. Others as for `plan`: before anything is trained.
        RunError: if a run fails: nothing is called then.
    """  # noqa: E501
    options: Fields = {"budget": budget, "steps": steps, "held_out": held_out, "seed": seed}
    plan = plan_duel(*recipes, **options, name=name, runs=runs)
    return fight(plan, watchers=watchers, on_pair=on_pair)


def fight(
    plan: DuelPlan, *, watchers: Watchers = (), on_pair: Callable[[Duel], None] = print
) -> Duel:
    """Train what is left of a planned duel."""
    kept = plan.folder / FILE
    if not kept.is_file():
        if plan.folder.exists() and any(plan.folder.iterdir()):
            raise RunError(
                f"{shown(plan.folder)}: not the folder of a duel",
                rule="a duel's folder holds its runs and nothing else",
                remedy="--name another",
            )
        made(plan.folder)
        write_json(kept, plan.asked)
    elif json.loads(kept.read_text(encoding="utf-8")) != json.loads(json.dumps(plan.asked)):
        raise RunError(
            f"{shown(plan.folder)}: a duel of other recipes, rewards or numbers",
            rule="a duel resumes as it began: more seeds, once its result is seen, are a new duel",
            remedy="--name another, and --seed for fresh seeds",
        )
    duel = Duel(plan, [])
    while not duel.over:
        pair, count = len(duel.curves), len(plan.arms)
        order = [(pair + turn) % count for turn in range(count)]
        curves = {place: _curve(plan, plan.arms[place], pair, watchers) for place in order}
        duel = Duel(plan, [*duel.curves, [curves[place] for place in range(count)]])
        on_pair(duel)
    return duel


def _curve(plan: DuelPlan, arm: Arm, pair: int, watchers: Watchers) -> dict[int, np.ndarray]:
    # of one run, which is trained unless it is there: completions -> held-out prompts solved
    own: Fields = {"seed": plan.seed + pair, "run_name": f"{arm.name}-{plan.seed + pair}"}
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # a run's notes: the plan has said them
            run = _trained(arm.recipe.model_copy(update=own), plan.folder, watchers)
        curve = {step * arm.completions: solved for step, solved in _solved(plan, arm, run).items()}
    except Exception as error:
        said = getattr(error, "value", f"{type(error).__name__}: {error}")
        raise RunError(
            f"{own['run_name']} failed: {said}",
            rule="a duel compares finished runs, so nothing is called",
            remedy=f"{getattr(error, 'remedy', 'fix the cause')}; then the same command resumes",
        ) from error
    gc.collect()  # reference cycles hold the policy, and the next one needs its room
    return curve


def _trained(recipe: Recipe, folder: Path, watchers: Watchers) -> RunDirectory:
    run = RunDirectory(folder / recipe.run_name)
    if (run.path / "recipe.yaml").is_file():
        run.mend().check_free()
        if run.result()["status"] == "finished":
            return run
    if run.path.exists() and run.saved():
        run = continue_run(run, watchers=watchers)
    else:  # or it was killed before its first checkpoint
        shutil.rmtree(run.path, ignore_errors=True)
        run = train(recipe, watchers=watchers, runs=folder)
    if run.result()["status"] != "finished":  # somebody stopped it
        raise KeyboardInterrupt
    return run


def _solved(plan: DuelPlan, arm: Arm, run: RunDirectory) -> dict[int, np.ndarray]:
    measured = {own["step"]: flags(own)[:, 0] for own in held_out(run.events())}
    if plan.completions // arm.completions not in measured:
        raise RunError(
            "its held-out prompts were not measured at its end",
            rule="a duel compares what was measured",
            remedy=f"see held_out_failed in {shown(run.path / 'events.jsonl')}, and delete the run",
        )
    if arm.measure != plan.arms[0].measure:
        return {step: _judged(plan.arms[0], run, step) for step in measured}
    return measured


def _judged(first: Arm, run: RunDirectory, step: int) -> np.ndarray:
    # By the first arm's task, whatever the run's own says: [P] bools.
    import pyarrow.parquet as pq

    file = sorted((run.path / "held_out").glob(f"step-{step:07d}-*.parquet"))[-1]
    task, completions = load_task(first.recipe.task), pq.read_table(file).to_pylist()
    rows = {row["prompt_id"]: row for row in task.with_ids(task.held_out)}
    asked = [rows[own["prompt_id"]] for own in completions]
    texts = [own["completion"] for own in completions]
    by = [name for name in (task.right_function, task.format_by) if name]  # no other is called
    with contextlib.closing(RewardSuite(task, 1, keep_state=False)) as suite:
        scored = suite.score_each(asked, texts, names=by)
    right, *form = (np.array(scored[name].scores, dtype=float) for name in by)
    return np.logical_and.reduce([task.is_right(right), *(each > 0 for each in form)])
