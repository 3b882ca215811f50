"""The manifest: what was found when a run began; the recipe beside it holds what was requested."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path

from workbench import processes
from workbench.data.split import fingerprint
from workbench.kinds import Fields, Trainer
from workbench.recipe import Recipe
from workbench.rewards.library import max_score_of
from workbench.run.differences import NOT_SET, Differences
from workbench.run.directory import RunDirectory, environment, now, versions
from workbench.task import Task
from workbench.training import settings as settings_of
from workbench.training.loading import base_differs, eos_ids
from workbench.training.plan import ONLY_STAGE, Stage
from workbench.training.policy import Policy
from workbench.training.settings.algorithms import asked_settings
from workbench.training.settings.in_force import as_json, decides, settings_in_force


def manifest_of(
    recipe: Recipe, policy: Policy, stages: Sequence[Stage], trainer: Trainer, notes: list[str]
) -> Fields:
    """Versions, device, task, reward hashes, the effective settings of the first stage; `notes` are
    the printed lines.
    """
    first, task = stages[0], stages[0].scored_by[0]
    source = task.source
    given = {**first.settings, "report_to": "none", "seed": recipe.seed}
    longest = max(first.lengths_tokens, default=None)
    # What notebook 01 left beside the task file: the source, the split's rule, the fingerprints,
    # the band.
    card = Path(source).parent / "card.json"
    asked = {
        "name": task.name,
        "source": source or recipe.task,
        **_right(task),
        "format_by": task.format_by,
    }
    asked |= {
        "answer_column": task.answer_column,
        "rows": fingerprint(task.rows),
        "held_out": fingerprint(task.held_out),
    }
    found = {
        "id": uuid.uuid4().hex,
        "created": now(),
        "recipe": recipe.model_dump(mode="json"),
        "versions": versions(),
        "environment": environment(),
        "policy": policy.found(),
        "trainer": f"{type(trainer).__mro__[0].__module__}.{type(trainer).__name__}",
        "task": {
            **asked,
            "card": (
                json.loads(card.read_text(encoding="utf-8")) if source and card.is_file() else None
            ),
        },
        "rewards": _rewards(first),
        "processes": processes.count(),
        "eos_ids": eos_ids(trainer),
        "template": _template(policy),
        "settings": {
            "asked": asked_settings(recipe),
            "in_force": settings_in_force(trainer.args),
            "translated": notes,
        },
        "settings_table": [
            {key: as_json(value) for key, value in row._asdict().items()}
            for row in settings_of.in_force_table(settings_of.asked_of(recipe), trainer.args, given)
        ],
        "prompts": {
            "used": len(first.rows),
            "left_out_too_long": first.left_out_too_long,
            "longest_tokens": longest,
        },
    }
    if first.name != ONLY_STAGE or len(stages) > 1:
        found["stages"] = [_stage(stage) for stage in stages]
    return found


def changed_policy(run: RunDirectory, policy: Policy, changed: Differences) -> None:
    """Add to `changed` how the policy differs from the run's manifest (template, device,
    precision), and changed variables.
    """
    manifest, found = run.manifest(), policy.found()
    then = {
        "policy": manifest.get("policy") or {},
        "template": manifest.get("template") or _template(policy),
    }
    changed.diff(
        then | {"environment": _environment_then(manifest)},
        {"policy": found, "template": _template(policy), "environment": environment()},
    )
    if differs := base_differs(then["policy"].get("base"), found["base"]):
        changed.refused.append(f"the base was changed: {differs}")


def _environment_then(manifest: Fields) -> dict[str, str]:
    # The variables when the run was last trained; those of now for a run of an earlier version,
    # which kept none.
    then = dict(manifest.get("environment", environment()))
    for changes in (manifest.get("environment_after") or {}).values():
        then |= changes
    return then


def environment_after(manifest: Fields, step: int) -> dict[str, dict[str, str]]:
    """For the manifest: environment variables that changed, by the step at which the run
    resumed.
    """
    earlier = {
        after: own
        for after, own in (manifest.get("environment_after") or {}).items()
        if int(after) < step
    }
    then = _environment_then({**manifest, "environment_after": earlier})
    here = environment()
    changes = {
        name: here.get(name, NOT_SET)
        for name in sorted(then.keys() | here.keys())
        if then.get(name) != here.get(name)
    }
    return earlier | ({str(step): changes} if changes else {})


def changed_settings(run: RunDirectory, trainer: Trainer, changed: Differences, stage: int) -> None:
    """Add to `changed` effective settings that changed without a request, such as another version's
    default.

    The manifest has those of the first stage, and what the later ones set otherwise; `stage`: its
    number, from 0.
    """
    manifest, now = run.manifest(), settings_in_force(trainer.args)
    then, asked = ((manifest.get("settings") or {}).get(of) or {} for of in ("in_force", "asked"))
    known = {
        line.partition(":")[0].removeprefix("grpo.") for line in changed.shown + changed.refused
    }
    known |= {"max_steps", *asked}
    if stage:
        first, own = (manifest["stages"][number].get("settings", {}) for number in (0, stage))
        then = {**then, **{name: own[name] for name in own if own[name] != first.get(name)}}
        known |= {"steps_per_generation", "generation_batch_size"}  # which follow from others
    # a version that recorded no environment recorded few settings
    if "environment" not in manifest:
        known |= then.keys() ^ now.keys()
    sides = (
        {"in_force": {name: own[name] for name in own if name not in known}} for own in (then, now)
    )
    changed.diff(*sides)


def _template(policy: Policy) -> str:
    return fingerprint(
        [{"template": policy.tokenizer.chat_template or "", **policy.chat_template_kwargs}]
    )


def _rewards(stage: Stage) -> Fields:
    task, suite = stage.scored_by
    return {
        "hash": suite.hash,
        "functions": suite.hashes,
        "weights": dict(zip(suite.names, suite.weights, strict=True)),
        "best": dict(zip(suite.names, map(max_score_of, task.reward_funcs), strict=True)),
        "run": suite.functions.places,
    }


def _right(task: Task) -> Fields:
    return {
        "right_by": task.right_function,
        "right_at": task.right_at,
        "right_by_default": not task.right_by,
    }


def _stage(stage: Stage) -> Fields:
    task = stage.scored_by[0]
    return {
        "name": stage.name, "steps": stage.steps, "after": stage.offset,
        "task": task.source or task.name,
        "rows": fingerprint(task.rows), "prompts": len(stage.rows), **_right(task),
        "format_by": task.format_by, "rewards": _rewards(stage),
        "settings": {key: as_json(value) for key, value in stage.settings.items() if decides(key)},
    }  # fmt: skip
