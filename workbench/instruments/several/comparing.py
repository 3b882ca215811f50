"""Runs side by side: every setting that differs, held-out results, and each run's completions on
the prompts that all drew.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from workbench.base.errors import RunError
from workbench.base.kinds import Fields
from workbench.inspection.compared import regressions
from workbench.inspection.evaluation import last_measured, read_evaluation
from workbench.inspection.measured import gain_in_words
from workbench.inspection.reading import Listing, frame_of, needs, shown_prompts, with_meaning
from workbench.run.differences import flat
from workbench.run.directory import RunDirectory
from workbench.run.parts import parts, span
from workbench.run.rollouts import KEY, query

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
        raise RunError(
            f"{len(runs)} run",
            rule="two or more runs are compared",
            remedy="wb.inspection.compare_runs(wb.open_run('one'), wb.open_run('other'))",
        )
    named: dict[str, RunDirectory] = {}
    for place, run in enumerate(runs, 1):
        named[f"{run.name} ({place})" if run.name in named else run.name] = run
    return Comparison(runs, _settings(named), _held_out(named), _prompts(named))


def _settings(named: dict[str, RunDirectory]) -> Listing:
    known = [_known(run) for run in named.values()]
    # A setting that a run made elsewhere did not record was asked for by name, or is not known.
    asked = {f"grpo.{name}" for run in named.values() for name in run.recipe().grpo}
    keys = [
        key
        for key in dict.fromkeys(key for own in known for key in own)
        if not key.startswith("grpo.") or key in asked or all(key in own for own in known)
    ]
    rows = [
        (key, *(str(own.get(key, "-")) for own in known))
        for key in keys
        if any(own.get(key) != known[0].get(key) for own in known)
    ]
    verdict = f"{len(rows)} settings differ, {len(keys) - len(rows)} are the same"
    numbers = {"differ": len(rows), "of": len(keys)}
    return Listing(verdict, frame_of(rows, ["setting", *named]), numbers)


def _known(run: RunDirectory) -> Fields:
    # One value a setting, by its dotted name: what was in force, where that is known, else what was
    # requested.
    manifest, recipe = run.manifest(), run.recipe().model_dump(mode="json")
    asked, in_force = recipe["grpo"], (manifest.get("settings") or {}).get("in_force") or {}
    steps = {name: asked[name] for name in ("max_steps",) if name in asked}  # a run may go on
    recipe["grpo"] = {**asked, **in_force, **steps}
    recipe["found"] = {name: facts for name in _FACTS if (facts := manifest.get(name))}
    about = manifest.get("task") or {}
    recipe["found"]["data"] = {name: about.get(name) for name in ("rows", "held_out")}
    return {
        name: value for name, value in flat(recipe).items() if _OF_A_RUN.isdisjoint(name.split("."))
    }


def _held_out(named: dict[str, RunDirectory]) -> Listing:
    lines, rows = [], []
    for name, run in named.items():
        if found := last_measured(run):
            gain, after = found["gain"], found["after"]
            before = found["before"]["correct"]
            numbers = before, after["correct"], gain["low"], gain["high"], after["reward"]
            rows.append((name, *numbers))
            lines.append(f"{name}: {gain_in_words(found)}")
        else:
            theirs = run.manifest().get("attached")
            how = "wb.evaluate(run, task=...)" if theirs else f"`workbench eval {run.name}`"
            lines.append(f"{name}: not evaluated: {how}")
    frame = frame_of(rows, ["run", "base", "trained", "gain_low", "gain_high", "reward"])
    (first_name, first), *others = named.items()
    for name, run in others:
        # measured on other prompts, or before every completion was kept
        with contextlib.suppress(RunError, ValueError):
            changed = regressions(read_evaluation(first), read_evaluation(run))
            lines.append(
                f"{first_name} -> {name}, on {len(changed)} prompts that both were measured on:"
                f" {changed.verdict}"
            )
            if len(named) == 2:
                frame = changed.frame
    return Listing("\n".join(lines), frame)


def _prompts(named: dict[str, RunDirectory]) -> Listing:
    frames = []
    for name, run in named.items():
        last = span(parts(run.rollouts)[-1])[1]
        sql = f"""select {KEY} as key, any_value(prompt) as prompt,
            avg(cast("right" as double)) as share, arg_max(completion, (step, total)) as text
            from rollouts where step > {0.75 * last} group by key"""
        columns = {"share": name, "text": f"text of {name}"}
        frames.append(query(run.rollouts, sql).set_index("key").rename(columns=columns))
    frame = frames[0].join([own.drop(columns="prompt") for own in frames[1:]], how="inner")
    first, *_, last = named
    frame["change"] = frame[last] - frame[first]
    frame["prompt"] = shown_prompts(frame["prompt"])
    frame = frame.sort_values("change", kind="stable").reset_index(drop=True)
    who = "both" if len(named) == 2 else "all"
    verdict = f"{len(frame)} prompts were drawn by {who} in the last quarter of their steps"
    if len(frame):
        verdict += ": right " + ", ".join(f"{frame[name].mean():.0%} in {name}" for name in named)
    columns = ["prompt", *named, "change", *(f"text of {name}" for name in named)]
    return Listing(with_meaning(verdict, *named.values()), frame[columns])
