"""What a duel would train: its arms, how long each run is, and whether they can be compared."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from workbench.base.errors import RecipeError
from workbench.base.kinds import Fields
from workbench.base.workspace import resolve, shown
from workbench.instruments.duel.sequential import ERROR, FIRST, MOST
from workbench.recipe import Recipe
from workbench.rewards.hashing import reward_hash
from workbench.run.differences import NOT_SET, flat
from workbench.run.directory import check_name
from workbench.task import Task, fingerprint
from workbench.training.plan.prepare import prepare
from workbench.training.plan.presets import find_recipe
from workbench.training.plan.settings.batches import arithmetic

PAIRS = 6  # where the budget alone decides
MEASURED = 4  # times that a run measures its held-out prompts, beside the base
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
        raise RecipeError(
            f"{len(recipes)} recipe",
            rule="a duel compares two or more",
            remedy="give another recipe",
        )
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
