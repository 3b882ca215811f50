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
import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from workbench.decide import sequential
from workbench.decide.sequential import ERROR, FIRST, MOST, Look
from workbench.errors import RecipeError, RunError
from workbench.inspection.statistics import in_points
from workbench.kinds import Fields
from workbench.recipe import Recipe
from workbench.rewards.hashing import reward_hash
from workbench.rewards.suite import RewardSuite
from workbench.run.differences import NOT_SET, flat
from workbench.run.directory import RunDirectory, check_name
from workbench.run.held_out import flags, held_out
from workbench.task import Task, fingerprint
from workbench.tasks.loading import load_task
from workbench.training.prepare import prepare
from workbench.training.presets import find_recipe
from workbench.training.settings.batches import arithmetic
from workbench.training.trainer import continue_run, train
from workbench.training.watchers import Watchers
from workbench.workspace import made, resolve, shown, write_json

PAIRS = 6  # where the budget alone decides
MEASURED = 4  # times that a run measures its held-out prompts, beside the base
FILE = "duel.json"
METHOD = "group-sequential t test, Lan-DeMets alpha spending (power family, exponent 1.5)"


@dataclass(frozen=True)
class Arm:
    """A recipe of the duel, as each of its runs has it but for the seed and the name."""

    name: str
    recipe: Recipe
    task: Task
    completions: int  # a step
    rewards: str  # hash of its functions and weights

    @property
    def measure(self) -> tuple[object, ...]:
        """What decides whether a completion is solved."""
        task, functions = self.task, dict(zip(self.task.function_names, self.task.reward_funcs))
        by = filter(None, (task.right_function, task.format_by))
        hashes = (reward_hash(functions[name]) for name in by)
        return fingerprint(task.held_out), task.right_at, *hashes


@dataclass(frozen=True)
class DuelPlan:
    """What a duel would train, decided before the first run."""

    arms: tuple[Arm, ...]
    pairs: int  # at most: of runs, one for each arm
    completions: int  # of a run
    budget: int  # of all runs together
    seed: int  # of the first pair
    folder: Path

    @property
    def asked(self) -> Fields:
        """What decides its runs: a duel resumes where this is unchanged."""
        numbers = {name: vars(self)[name] for name in ("pairs", "completions", "budget", "seed")}
        arms = {
            arm.name: {
                "recipe": arm.recipe.model_dump(mode="json", exclude={"run_name"}),
                "rewards": arm.rewards,
                "rows": [fingerprint(arm.task.rows), fingerprint(arm.task.held_out)],
            }
            for arm in self.arms
        }
        return {"arms": arms, **numbers}

    def __str__(self) -> str:
        first, *others = self.arms
        steps = ", ".join(
            f"{arm.name} {self.completions // arm.completions} steps x {arm.completions}"
            for arm in self.arms
        )
        most = len(self.arms) * self.pairs * self.completions
        by = " and ".join(filter(None, (first.task.right_words, first.task.format_by)))
        lines = [
            f"up to {self.pairs} seeds, a run of each recipe for each: {steps} completions; in all"
            f" at most {most:,} of the budget of {self.budget:,}",
            f"compared: the share of {first.recipe.eval_prompts} held-out prompts solved at the"
            f" end ({by}); a seed's runs have the same ones, measured up to {MEASURED + 1} times,"
            " beside the budget",
            f"test: {METHOD}, after each seed from the third on; where no recipe is better, about"
            f" {ERROR:.0%} of duels still call one, and more where a recipe's seeds sometimes"
            " collapse",
        ]
        own = flat(first.recipe.model_dump(mode="json"))
        for arm in others:
            theirs = flat(arm.recipe.model_dump(mode="json"))
            differ = [
                f"{key}: {own.get(key, NOT_SET)} -> {theirs.get(key, NOT_SET)}"
                for key in own | theirs
                if own.get(key) != theirs.get(key) and key not in ("run_name", "eval_every")
            ]
            lines.append(f"{first.name} -> {arm.name}: {'; '.join(differ)}")
            if fingerprint(first.task.rows) != fingerprint(arm.task.rows):
                lines.append(f"note: {arm.name} trains on other prompts")
            if arm.measure != first.measure:
                lines.append(f"note: what {arm.name} writes is judged by the task of {first.name}")
        lines += [
            f"note: the budget does not count the completions of {arm.name}'s warm start"
            for arm in self.arms
            if arm.recipe.warm_start
        ]
        return "\n".join([*lines, f"runs: {shown(self.folder)}"])


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


def plan_duel(
    *recipes: Recipe | str | Path,
    budget: int = 6000,
    steps: int | None = None,
    held_out: int | None = None,
    seed: int = 1,
    name: str | None = None,
    runs: str | Path = "runs",
) -> DuelPlan:
    """What `duel` would train, checked as `plan` checks a recipe; nothing is loaded. Arguments and
    errors as for `duel`.
    """
    if len(recipes) < 2:
        rule, remedy = "a duel compares two or more", "give another recipe"
        raise RecipeError(f"{len(recipes)} recipe", rule=rule, remedy=remedy)
    named = _named(recipes)
    first = next(iter(named.values()))
    shared: Fields = {"eval_temperature": first.eval_temperature, "eval_every": 1, "seed": seed}
    shared["eval_prompts"] = held_out or first.eval_prompts
    arms = [_arm(label, recipe.model_copy(update=shared)) for label, recipe in named.items()]
    for one, other in itertools.combinations(arms, 2):
        _check_comparable(one, other)
    check_name(name or (name := "-vs-".join(named)))
    folder = resolve(runs) / name
    pairs, completions = _divided(arms, budget, steps)
    ready = []
    for arm in arms:
        length = completions // arm.completions
        often = {"eval_every": math.ceil(length / MEASURED)}
        ready.append(replace(arm, recipe=_lasting(arm.recipe, length).model_copy(update=often)))
    return DuelPlan(tuple(ready), pairs, completions, budget, seed, folder)


def _named(recipes: Sequence[Recipe | str | Path]) -> dict[str, Recipe]:
    # By names that a folder can have, from the files or the runs.
    files = [own if isinstance(own, Recipe) else find_recipe(own) for own in recipes]
    labels = [own.run_name if isinstance(own, Recipe) else own.stem for own in files]
    labels = [re.sub(r"\W+", "_", label, flags=re.ASCII).strip("_") or "arm" for label in labels]
    if len(set(labels)) < len(labels):
        labels = [f"{label}_{place}" for place, label in enumerate(labels, 1)]
    loaded = [own if isinstance(own, Recipe) else Recipe.load(own) for own in files]
    return dict(zip(labels, loaded))


def _lasting(recipe: Recipe, steps: int) -> Recipe:
    grpo = {name: value for name, value in recipe.grpo.items() if name != "num_train_epochs"}
    return recipe.model_copy(update={"grpo": {**grpo, "max_steps": steps}})


def _arm(name: str, recipe: Recipe) -> Arm:
    if recipe.stages:
        raise RecipeError(
            f"{name}: stages",
            rule="a duel decides how long a run is, and stages set their own steps",
            remedy="leave them out; `wb.inspection.compare_runs` shows two runs side by side",
        )
    try:
        [stage] = prepare(_lasting(recipe, 1)).stages
    except Exception as error:
        error.add_note(f"  note:   in {name}; nothing was trained")
        raise
    task, suite = stage.scored_by
    _, learnt, uses, *_ = arithmetic(stage.planned, stage.settings, len(task.rows))
    if learnt % uses:
        raise RecipeError(
            f"{name}: num_iterations = {uses} of {learnt} completions",
            rule="a duel gives each recipe the same number of completions, and a step whole ones",
            remedy="choose a num_iterations that divides the completions of a step",
        )
    return Arm(name, recipe, task, learnt // uses, suite.hash)


def _check_comparable(one: Arm, other: Arm) -> None:
    whole, theirs = (
        [
            _lasting(arm.recipe, 1).model_dump(exclude={"run_name", "task", "reward_weights"}),
            arm.rewards,
            fingerprint(arm.task.rows),
        ]
        for arm in (one, other)
    )
    if whole == theirs:
        raise RecipeError(
            f"{one.name} and {other.name} differ in nothing",
            rule="with the same seeds they would be the same runs",
            remedy="change what is to be compared in one of them",
        )
    mine, others = (
        [row["prompt_id"] for row in arm.task.with_ids(arm.task.held_out)] for arm in (one, other)
    )
    if mine != others:
        same = len({*mine} & {*others})
        raise RecipeError(
            f"held-out prompts: {one.name} {len(mine)}, {other.name} {len(others)}, {same} in both",
            rule="recipes are compared on the same held-out prompts, in one order",
            remedy="give both tasks the same held_out rows",
        )
    if other.task.for_turns and one.measure != other.measure:
        raise RecipeError(
            f"{one.name} is judged by {one.task.right_words}, {other.name} by"
            f" {other.task.right_words}",
            rule="rollouts of several turns cannot be judged again by another task",
            remedy="give both tasks the same right_by and format_by",
        )


def _divided(arms: Sequence[Arm], budget: int, steps: int | None) -> tuple[int, int]:
    # (pairs, completions of a run)
    unit = math.lcm(*(arm.completions for arm in arms))  # whole steps in every arm
    own = (steps or arms[0].recipe.grpo.get("max_steps") or 0) * arms[0].completions
    run = own if steps else budget // (PAIRS * len(arms))
    if own > 0:
        run = min(run, own)
    run = run // unit * unit or unit
    pairs = min(MOST, budget // (len(arms) * run))
    if pairs < FIRST:
        raise RecipeError(
            f"a budget of {budget:,} completions is {pairs} runs of {run:,} for each recipe",
            rule=f"runs of one recipe differ by luck, so a duel takes {FIRST} or more of each",
            remedy=f"--budget {FIRST * len(arms) * run} or more, or fewer completions a step",
        )
    return pairs, run


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
    >>> wb.duel(slow, fast, budget=12, held_out=4, on_pair=lambda so_far: None).found["pairs"]
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
