"""The manifest: what was found when a run began; the recipe beside it holds what was requested."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path

from workbench.base import processes
from workbench.base.errors import PolicyError, RunError
from workbench.base.kinds import Fields, Trainer
from workbench.base.workspace import shown
from workbench.recipe import Recipe
from workbench.rewards.library import max_score_of
from workbench.run.differences import NOT_SET, Differences
from workbench.run.directory import RunDirectory, now
from workbench.run.machine import environment, versions
from workbench.task import Task, fingerprint
from workbench.training.plan import ONLY_STAGE, Stage
from workbench.training.plan import settings as settings_of
from workbench.training.plan.loading import adapter_named, base_differs, eos_ids
from workbench.training.plan.settings.algorithms import asked_settings
from workbench.training.plan.settings.in_force import as_json, decides, settings_in_force
from workbench.training.policy import Policy


def manifest_of(
    recipe: Recipe, policy: Policy, stages: Sequence[Stage], trainer: Trainer, notes: list[str]
) -> Fields:
    """Versions, device, task, reward hashes, the effective settings of the first stage; `notes` are
    the printed lines.
    """
    first, task = stages[0], stages[0].scored_by[0]
    given = {**first.settings, "report_to": "none", "seed": recipe.seed}
    asked = settings_of.asked_of(recipe)
    # What notebook 01 left beside the task file: the source, the split's rule, the fingerprints,
    # the band.
    card = Path(task.source).with_name("card.json") if task.source else None
    manifest = {
        "id": uuid.uuid4().hex,
        "created": now(),
        "recipe": recipe.model_dump(mode="json"),
        "versions": versions(),
        "environment": environment(),
        "policy": policy.found(),
        # what KL is measured from, where beta is not 0
        "reference": "adapter" if "ref" in getattr(policy.model, "peft_config", ()) else "base",
        "trainer": f"{type(trainer).__module__}.{type(trainer).__name__}",
        "task": {
            "name": task.name,
            "source": task.source or recipe.task,
            **_right(task),
            "answer_column": task.answer_column,
            "rows": fingerprint(task.rows),
            "held_out": fingerprint(task.held_out),
            "card": json.loads(card.read_text("utf-8")) if card and card.is_file() else None,
        },
        "rewards": rewards_of(first),
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
            for row in settings_of.in_force_table(asked, trainer.args, given)
        ],
        "prompts": {
            "used": len(first.rows),
            "left_out_too_long": first.left_out_too_long,
            "longest_tokens": max(first.lengths_tokens, default=None),
        },
    }
    if first.name != ONLY_STAGE or len(stages) > 1:
        manifest["stages"] = [_stage(stage) for stage in stages]
    return manifest


def changed_policy(run: RunDirectory, policy: Policy, changed: Differences) -> None:
    """Add to `changed` how the policy differs from the run's manifest (template, device,
    precision), and changed variables.
    """
    manifest, found = run.manifest(), policy.found()
    then = {name: manifest[name] for name in ("policy", "template")}
    now = {"policy": found, "template": _template(policy), "environment": environment()}
    changed.diff({**then, "environment": _environment_then(manifest)}, now)
    if differs := base_differs(manifest["policy"].get("base"), found["base"]):
        changed.refused.append(f"the base was changed: {differs}")
    began = run.recipe().policy
    if began.adapter and began.reference == "adapter":
        known = manifest["policy"]["trained_in"]
        try:
            now = adapter_named(began.adapter)
        except PolicyError:
            gone = f"KL is measured from policy.adapter, which is gone: {', '.join(known)}"
            changed.refused.append(gone)
        else:
            if now not in known:
                changed.refused.append(f"the reference, policy.adapter, was changed: now {now}")


def _environment_then(manifest: Fields) -> dict[str, str]:
    # The variables when the run was last trained.
    then = dict(manifest["environment"])
    for changes in manifest.get("environment_after", {}).values():
        then |= changes
    return then


def environment_after(manifest: Fields, step: int) -> dict[str, dict[str, str]]:
    """For the manifest: environment variables that changed, by the step at which the run
    resumed.
    """
    after = manifest.get("environment_after", {})
    earlier = {resumed: own for resumed, own in after.items() if int(resumed) < step}
    then = _environment_then({**manifest, "environment_after": earlier})
    here = environment()
    names = sorted(name for name in {**then, **here} if then.get(name) != here.get(name))
    changes = {name: here.get(name, NOT_SET) for name in names}
    return earlier | ({str(step): changes} if changes else {})


def changed_settings(run: RunDirectory, trainer: Trainer, changed: Differences, stage: int) -> None:
    """Add to `changed` effective settings that changed without a request, such as another version's
    default.

    The manifest has those of the first stage, and what the later ones set otherwise; `stage`: its
    number, from 0.
    """
    manifest, now = run.manifest(), settings_in_force(trainer.args)
    then = manifest["settings"]["in_force"]
    told = [line.partition(":")[0] for line in changed.shown + changed.refused]
    known = {name.removeprefix("grpo.") for name in told}
    known |= {"max_steps", *manifest["settings"]["asked"]}
    if stage:
        first, own = (manifest["stages"][number]["settings"] for number in (0, stage))
        then = {**then, **{name: own[name] for name in own if own[name] != first.get(name)}}
        known |= {"steps_per_generation", "generation_batch_size"}  # which follow from others
    before, after = (
        {"in_force": {name: value for name, value in side.items() if name not in known}}
        for side in (then, now)
    )
    changed.diff(before, after)


def check_same(run: RunDirectory, changed: Differences, accepted: bool) -> None:
    """RunError if the run would become another one by what `changed`, unless that is `accepted`."""
    if not changed.held and (accepted or not changed.refused):
        return
    lines = [*changed.held, *changed.refused, *changed.shown]
    more = "; …" if len(lines) > 8 else ""
    rule = "a run resumes as it started"
    remedy = f"put it back (settings: in {shown(run.path / 'recipe.yaml')}), or train a new run; "
    if changed.held:
        name = changed.held[0].partition(":")[0]
        rule = f"the checkpoint's optimiser and schedule decide on {name} in any case"
        command = f"`workbench control {run.name} learning_rate 1e-5`"
        remedy += f"{command} changes that one while it trains"
    else:
        remedy += (
            "or resume all the same, which is recorded: continue_run(run, accept_changes=True),"
            " `--accept-changes`"
        )
    raise RunError(
        f"{run.name}: not as when it was begun: {'; '.join(lines[:8])}{more}",
        rule=rule,
        remedy=remedy,
    )


def _template(policy: Policy) -> str:
    return fingerprint(
        [{"template": policy.tokenizer.chat_template or "", **policy.chat_template_kwargs}]
    )


def rewards_of(stage: Stage) -> Fields:
    """What a manifest says of a stage's reward functions: their hashes, weights and best scores."""
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
        "format_by": task.format_by,
    }


def _stage(stage: Stage) -> Fields:
    task = stage.scored_by[0]
    return {
        "name": stage.name, "steps": stage.steps, "after": stage.offset,
        "task": task.source or task.name, **_right(task),
        "rows": fingerprint(task.rows), "prompts": len(stage.rows), "rewards": rewards_of(stage),
        "settings": {key: as_json(value) for key, value in stage.settings.items() if decides(key)},
    }  # fmt: skip
