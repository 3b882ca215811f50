"""Runs side by side: every setting that differs, held-out results, and each run's completions on
the prompts that all drew.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.errors import RunError
from workbench.inspection.compared import regressions
from workbench.inspection.evaluation import last_measured, read_evaluation
from workbench.inspection.listing import Listing, frame_of
from workbench.inspection.measured import gain_in_words
from workbench.inspection.reading import needs, question
from workbench.kinds import Fields
from workbench.run.differences import flat
from workbench.run.directory import RunDirectory
from workbench.run.parts import parts, span
from workbench.run.rollouts import KEY, prompt_of, qualified, query, unstated_right

# Of the manifest, that decide what a run is.
_FACTS = ("versions", "environment", "environment_after", "policy", "rewards", "template")
# in which any two differ
_OF_A_RUN = {"run_name", "output_dir", "logging_dir", "load_s", "trained_in"}


@dataclass(frozen=True, repr=False)
class Comparison:
    """Two or more runs; a cell overlays their curves, then shows each table."""

    runs: tuple[RunDirectory, ...]
    settings: Listing  # setting, and its value in each run, where they differ
    # what each gained; of two that were measured on the same prompts, prompt by prompt
    held_out: Listing
    # prompts that all drew in the last quarter of their steps: share right and one completion of
    # each
    prompts: Listing

    def __str__(self) -> str:
        return "\n\n".join(map(str, (self.settings, self.held_out, self.prompts)))

    __repr__ = __str__


def compare_runs(*runs: RunDirectory) -> Comparison:
    """Runs side by side: all settings that differ, their curves, their held-out results, rollouts
    on shared prompts.

    >>> wb.inspection.compare_runs(wb.open_run(), wb.open_run()).settings.numbers["differ"]
    0

    Each is compared with the first.

    Raises:
        RunError: if there are fewer than two, or one of them recorded nothing.
    """
    for run in runs:
        needs(run, RunDirectory)
    if len(runs) < 2:
        remedy = "wb.inspection.compare_runs(wb.open_run('one'), wb.open_run('other'))"
        raise RunError(f"{len(runs)} run", rule="two or more runs are compared", remedy=remedy)
    all_ = [run.name for run in runs]
    names = [
        f"{name} ({place})" if name in all_[: place - 1] else name
        for place, name in enumerate(all_, 1)
    ]
    return Comparison(runs, _settings(runs, names), _held_out(runs, names), _prompts(runs, names))


def _settings(runs: Sequence[RunDirectory], names: list[str]) -> Listing:
    known = [_known(run) for run in runs]
    # A setting that a run of an earlier version, or one made elsewhere, did not record was asked
    # for by name, or is not known.
    asked = {f"grpo.{name}" for run in runs for name in run.recipe().grpo}
    keys = list(dict.fromkeys(key for own in known for key in own))
    keys = [
        key
        for key in keys
        if not key.startswith("grpo.") or key in asked or all(key in own for own in known)
    ]
    if not all(run.manifest().get("environment") is not None for run in runs):
        keys = [key for key in keys if not key.startswith("found.environment.")]
    values = {key: [own.get(key) for own in known] for key in keys}
    rows = [
        (key, *(str(own.get(key, "-")) for own in known))
        for key in keys
        if any(each != values[key][0] for each in values[key])
    ]
    verdict = f"{len(rows)} settings differ, {len(keys) - len(rows)} are the same"
    return Listing(
        verdict, frame_of(rows, ["setting", *names]), {"differ": len(rows), "of": len(keys)}
    )


def _known(run: RunDirectory) -> Fields:
    # One value a setting, by its dotted name: what was in force, where that is known, else what was
    # requested.
    manifest = run.manifest()
    recipe = run.recipe().model_dump(mode="json")
    asked, in_force = recipe.get("grpo", {}), (manifest.get("settings") or {}).get("in_force") or {}
    # a run may go on
    recipe["grpo"] = {
        **asked,
        **in_force,
        **{name: asked[name] for name in ("max_steps",) if name in asked},
    }
    facts = {name: found for name in _FACTS if (found := manifest.get(name))}
    facts["data"] = {name: (manifest.get("task") or {}).get(name) for name in ("rows", "held_out")}
    return {
        name: value
        for name, value in flat(recipe | {"found": facts}).items()
        if not {*name.split(".")} & _OF_A_RUN
    }


def _held_out(runs: Sequence[RunDirectory], names: list[str]) -> Listing:
    lines, rows = [], []
    for run, name in zip(runs, names, strict=True):
        found = last_measured(run)
        how = (
            "wb.evaluate(run, task=...)"
            if run.manifest().get("attached")
            else f"`workbench eval {run.name}`"
        )
        lines.append(f"{name}: {gain_in_words(found) if found else f'not evaluated: {how}'}")
        if found:
            gain, after = found["gain"], found["after"]
            rows.append(
                (
                    name,
                    found["before"]["correct"],
                    after["correct"],
                    gain["low"],
                    gain["high"],
                    after["reward"],
                )
            )
    frame = frame_of(rows, ["run", "base", "trained", "gain_low", "gain_high", "reward"])
    for run, name in zip(runs[1:], names[1:], strict=True):
        # measured on other prompts, or before every completion was kept
        with contextlib.suppress(RunError, ValueError):
            found = regressions(*map(read_evaluation, (runs[0], run)))
            lines.append(
                f"{names[0]} -> {name}, on {len(found)} prompts that both were measured on:"
                f" {found.verdict}"
            )
            frame = found.frame if len(runs) == 2 else frame
    return Listing("\n".join(lines), frame)


def _prompts(runs: Sequence[RunDirectory], names: list[str]) -> Listing:
    frames = []
    for number, run in enumerate(runs):
        last = span(parts(run.rollouts)[-1])[1]
        sql = f"""select {KEY} as key, any_value(prompt) as prompt, avg(cast("right" as double)) as share,
            arg_max(completion, (step, total)) as text from rollouts where step > {0.75 * last} group by key"""  # noqa: E501
        frames.append(query(run.rollouts, sql).set_index("key").add_suffix(f"_{number}"))
    all_ = functools.reduce(lambda left, right: left.join(right, how="inner"), frames)
    shares = {f"share_{number}": name for number, name in enumerate(names)}
    texts = {f"text_{number}": f"text of {name}" for number, name in enumerate(names)}
    all_["change"] = all_[[*shares][-1]] - all_["share_0"]
    all_["prompt"] = [question(prompt_of(own)) for own in all_["prompt_0"]]
    all_ = all_.sort_values("change", kind="stable").reset_index(drop=True)
    verdict = (
        f"{len(all_)} prompts were drawn by {'both' if len(runs) == 2 else 'all'} in the last"
        " quarter of their steps"
    )
    if len(all_):
        verdict += ": right " + ", ".join(
            f"{all_[share].mean():.0%} in {name}" for share, name in shares.items()
        )
    unstated = ", ".join(
        dict.fromkeys(filter(None, (unstated_right(run.manifest()) for run in runs)))
    )
    return Listing(
        qualified(verdict, unstated),
        all_[["prompt", *shares, "change", *texts]].rename(columns=shares | texts),
    )
