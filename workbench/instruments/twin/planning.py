"""What a twin would train, checked before anything is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from workbench.base.errors import RunError
from workbench.base.kinds import Fields
from workbench.base.workspace import find, shown, sum_of
from workbench.instruments.twin.signs import WRONG, Sign, grown, signs_of
from workbench.recipe import Recipe
from workbench.run.control_file import RunState
from workbench.run.directory import RunDirectory, open_run
from workbench.task import Task, fingerprint
from workbench.tasks.loading import load_task
from workbench.training.manifest import rewards_of
from workbench.training.plan.prepare import prepare
from workbench.training.resuming import begun_task


@dataclass(frozen=True)
class TwinPlan:
    """What a twin would train, decided before anything is."""

    run: RunDirectory  # the original
    folder: Path  # of the twin
    recipe: Recipe  # of the twin
    task: Task
    rewards: Fields  # of the twin's manifest
    suspects: list[str]  # the functions that are changed
    muted: str | None
    patch: Path | None
    sign: Sign
    step: int  # of the checkpoint; 0: from the start
    end: int  # the last step

    @property
    def asked(self) -> Fields:
        """For the twin's manifest: of which run it is, from where, and what was changed."""
        return {
            "of": self.run.name,
            "run_id": self.run.identity,
            "from": self.step,
            "changed": self.suspects,
            "patch": self.patch and _patched(self.patch),
        }

    @property
    def what(self) -> str:
        """The sign in words."""
        if self.sign.sql == WRONG:
            return "the share of wrong completions"
        return f"{'the share of' if self.sign.share else 'the mean of'} {self.sign.sql}"

    @property
    def change(self) -> str:
        """The change in words."""
        names = ", ".join(self.suspects)
        return f"{names} muted" if self.muted else f"{names} as in {shown(self.patch or '')}"

    def __str__(self) -> str:
        begins = f"from checkpoint-{self.step}" if self.step else "from the start"
        lines = [
            f"{self.folder.name}: {self.run.name} again {begins}, steps {self.step + 1} to"
            f" {self.end}, with {self.change}",
            f"compared: {self.what}, lowest in steps {self.sign.first} to {self.sign.last}; called"
            " where the twin surely undoes more, or surely less, than half of what it grew",
        ]
        if self.step >= self.sign.last:
            lines.append(f"note: it was lowest before checkpoint-{self.step}: see --from")
        if self.muted and self.recipe.grpo.get("scale_rewards", "group") not in (False, "none"):
            lines.append(
                f"note: advantages are divided by their spread, so without {self.muted} the other"
                " functions push as hard as all did together"
            )
        lines.append("assumed: luck alone, after the change, does not undo half of what grew")
        return "\n".join([*lines, f"run: {shown(self.folder)}"])


def _patched(file: Path) -> Fields:
    return {"file": str(file), "sha256": sum_of(file)}


def plan_twin(
    run: RunDirectory | str | Path = "latest",
    *,
    mute: str | None = None,
    patch: str | Path | None = None,
    checkpoint: str | None = None,
    steps: int | None = None,
    sign: str | None = None,
) -> TwinPlan:
    """What `twin` would train, checked as `plan` checks a recipe; nothing is loaded. Arguments and
    errors as for `twin`.
    """
    run = run if isinstance(run, RunDirectory) else open_run(run, latest="recorded")
    file = find(patch) if patch else None
    if (about := run.manifest().get("twin")) and (
        about["changed"] == [mute] or (file and about["patch"] == _patched(file))
    ):  # "latest" is the twin itself, which is to be resumed
        run = open_run(run.path.with_name(about["of"]))
    run.check_ended()
    manifest, recipe = run.manifest(), run.recipe()
    if (
        manifest.get("attached")
        or "recipe" not in manifest
        or recipe.stages
        or bool(mute) == bool(patch)
    ):
        raise RunError(
            f"{run.name}: a twin of {'stages' if recipe.stages else 'this run'}, with"
            f" mute = {mute!r} and patch = {str(patch) if patch else None!r}",
            rule="a twin is of a run of one recipe without stages, and has one change",
            remedy="name one function to mute, or one edited task file",
        )
    rewards, weights = manifest["rewards"], RunState.of(run).weights
    if mute and not weights.get(mute):
        paid = ", ".join(name for name, weight in weights.items() if weight)
        raise RunError(
            f"{run.name}: {mute!r} {'weighs 0' if mute in weights else 'is no function of it'}",
            rule="what is muted was paid",
            remedy=f"choose from {paid}",
        )
    task = load_task(file) if file else begun_task(run, recipe)
    if fingerprint(task.rows) != manifest["task"]["rows"]:
        raise RunError(
            f"{shown(file or task.source)}: not the training rows of {run.name}",
            rule="a twin trains on the same prompts in the same order",
            remedy="copy the run's task file, and change its reward functions alone",
        )
    recipe = recipe.model_copy(deep=True)
    if mute:
        recipe.reward_weights[mute] = 0.0
        recipe.adaptive_weights.pop(mute, None)
    else:
        recipe.task = str(file)
    now_paid = rewards_of(prepare(recipe, task).stages[0])
    suspects = _changed(rewards, now_paid)
    if suspects != [mute] if mute else not suspects:
        raise RunError(
            f"{run.name}: changed are {', '.join(suspects) or 'no reward functions'}",
            rule="a twin differs from its run in what is to be tried, and in nothing else",
            remedy="restore the other functions as they were" if mute else "edit one in the file",
        )
    signs = signs_of(run, task if file else None, suspects, sign, weights)
    found = grown(run, signs, checkpoint, steps)
    how = f"without-{mute}" if mute else f"with-{Path(recipe.task).stem}"
    name = re.sub(r"[^A-Za-z0-9._-]", "_", f"{run.name}-{how}-from-{found[1]}")
    recipe.run_name, folder = name, run.path.with_name(name)
    return TwinPlan(run, folder, recipe, task, now_paid, suspects, mute, file, *found)


def why_no_twin(run: RunDirectory, mute: str) -> str:
    """What the record lacks for a twin with this function muted, and what to do; empty: nothing."""
    try:
        grown(run, signs_of(run, None, [mute], None, RunState.of(run).weights))
    except RunError as error:
        return f"{error.value}; {error.remedy}"
    return ""


def _changed(then: Fields, now_paid: Fields) -> list[str]:
    # functions whose code or weight is another
    before, after = (
        {name: (code, each["weights"][name]) for name, code in each["functions"].items()}
        for each in (then, now_paid)
    )
    return sorted(name for name in before | after if before.get(name) != after.get(name))
