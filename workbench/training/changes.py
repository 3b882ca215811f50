"""What a resumed run has that it did not begin with: other settings, rows, rewards, libraries, or a
record that lacks what its checkpoint counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.base import processes
from workbench.base.kinds import Fields
from workbench.base.workspace import read_lines, to_json
from workbench.recipe import Recipe
from workbench.run.control_file import RunState
from workbench.run.differences import Differences, flat
from workbench.run.directory import RunDirectory
from workbench.run.machine import versions
from workbench.run.rollouts import query
from workbench.task import fingerprint
from workbench.training.plan.settings.algorithms import asked_settings
from workbench.training.resuming import Point, begun_with


def recorded(run: RunDirectory, step: int) -> Fields:
    """Rows, completions and effective settings in a run's record up to a saved step. RunError: a
    part cannot be read.
    """
    state = RunState.of(run)
    state.apply({"event": "continued", "step": step})
    completions = 0
    if any(run.rollouts.glob("step-*.parquet")):
        sql = f"select count(*) from rollouts where step <= {step}"
        completions = int(query(run.rollouts, sql).iat[0, 0])
    return {
        "metrics.jsonl": sum(row["step"] <= step for row in run.metrics()),
        "rollouts": completions,
        "events.jsonl": state.in_force,
    }


def doubled(run: RunDirectory) -> list[str]:
    """A line on steps with two rows of metrics, if there are any: the later row is kept."""
    rows = Counter(str(row.get("step")) for row in read_lines(run.path / "metrics.jsonl"))
    twice = ", ".join(step for step, count in rows.items() if count > 1)
    return [f"metrics.jsonl has two rows for step {twice}: the later one is kept"] if twice else []


def lost_since(run: RunDirectory, point: Point) -> list[str]:
    """Entries of the run's record that a checkpoint counted and that are now missing: one line
    each.
    """
    saved = flat(point.state["recorded"])
    there = flat(to_json(recorded(run, point.step)))
    # Of what is counted there may be more: a checkpoint that was made during a pause is older than
    # the row of its step.
    counted = ("metrics.jsonl", "rollouts")
    lost = [
        name
        for name, value in saved.items()
        if value != there.get(name) and not (name in counted and there[name] > value)
    ]
    return [f"{name} up to step {point.step}: {saved[name]} -> {there.get(name)}" for name in lost]


def changed_since_begun(
    run: RunDirectory, recipe: Recipe, stages: Sequence[Any], point: Point
) -> Differences:
    """Recipe, rows, rewards, libraries and record of a resumed run, compared with what it started
    from.
    """
    from workbench.run.sealed import unlike_saved

    manifest = run.manifest()
    # a run that resumes replaces its final adapter
    changed = Differences([*doubled(run), *unlike_saved(run.final)], lost_since(run, point))
    started = Recipe.of(manifest["recipe"], "manifest.json")
    # Another algorithm is other settings, and the same settings are the same run, whoever named
    # them.
    begun, fields = (
        flat(each.model_copy(update={"grpo": asked_settings(each)}).model_dump(mode="json"))
        for each in (started, recipe)
    )
    for name in fields:
        names = {Path(str(each.get(name))).name for each in (begun, fields)}
        if name.endswith("task") and len(names) == 1:  # found from another folder
            begun[name] = fields[name]
    changed.diff(
        {
            "recipe": begun,
            "versions": manifest.get("versions"),
            "processes": manifest.get("processes", 1),
        },
        {"recipe": fields, "versions": versions(), "processes": processes.count()},
    )
    for stage in stages:
        suite = stage.suite
        weights = dict(zip(suite.names, suite.weights, strict=True))
        own = {"functions": suite.hashes, "weights": weights, "rows": fingerprint(stage.task.rows)}
        then = begun_with(manifest, stage.number)
        then = {name: then[name] for name in own if then.get(name)}
        changed.diff({"stage": then}, {"stage": own})
    last = max((row["step"] for row in run.metrics()), default=point.step)
    # saved during a pause, and killed before it was over
    if point.step - last >= recipe.grpo.get("logging_steps", 1):
        changed.shown.append(
            f"metrics.jsonl ends with step {last}, the checkpoint with step {point.step}"
        )
    return changed
