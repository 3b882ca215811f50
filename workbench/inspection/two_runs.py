"""Two runs side by side: every setting that differs, held-out results, and what each made of the prompts that both drew."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from workbench.errors import RunError
from workbench.inspection.compared import regressions
from workbench.inspection.evaluation import gain_in_words, last_measured, read_evaluation
from workbench.inspection.listing import Listing, frame_of
from workbench.inspection.reading import question
from workbench.run.directory import RunDirectory
from workbench.run.parts import parts, span
from workbench.run.rollouts import KEY, prompt_of, query

_FACTS = ("versions", "policy", "rewards", "template")  # of the manifest, that decide what a run is
_OF_A_RUN = ("run_name", "output_dir", "logging_dir", "load_s", "trained_in")  # in which any two differ


@dataclass(frozen=True, repr=False)
class Comparison:
    """Two runs; a cell shows their curves over one another, then each table."""

    runs: tuple[RunDirectory, RunDirectory]
    settings: Listing  # setting, and its value in each run, where they differ
    held_out: Listing  # what each gained; prompt by prompt where both were measured on the same
    prompts: Listing  # prompts that both drew in the last quarter of their steps: share right and one completion of each

    def __str__(self) -> str:
        return "\n\n".join(map(str, (self.settings, self.held_out, self.prompts)))

    __repr__ = __str__


def compare_runs(one: RunDirectory, other: RunDirectory) -> Comparison:
    """Two runs side by side: all settings that differ, their curves, their held-out results, rollouts on shared prompts.

    >>> wb.inspection.compare_runs(wb.open_run(), wb.open_run()).settings.numbers["differ"]
    0

    Raises:
        RunError: if one of them recorded nothing.
    """
    names = _names(one, other)
    return Comparison((one, other), _settings(one, other, names), _held_out(one, other, names), _prompts(one, other, names))


def _names(one: RunDirectory, other: RunDirectory) -> list[str]:
    return [one.name, other.name if other.name != one.name else f"{other.name} (2)"]


def _settings(one: RunDirectory, other: RunDirectory, names: list[str]) -> Listing:
    first, second = (_known(run) for run in (one, other))
    keys = list(dict.fromkeys([*first, *second]))
    rows = [(key, *(str(of.get(key, "-")) for of in (first, second))) for key in keys if first.get(key) != second.get(key)]
    verdict = f"{len(rows)} settings differ, {len(keys) - len(rows)} are the same"
    return Listing(verdict, frame_of(rows, ["setting", *names]), {"differ": len(rows), "of": len(keys)})


def _known(run: RunDirectory) -> dict[str, Any]:
    # One value a setting, by its dotted name: what was in force, where that is known, else what was requested.
    manifest = run.manifest()
    recipe = run.recipe().model_dump(mode="json")
    recipe["grpo"] = {**recipe.get("grpo", {}), **((manifest.get("settings") or {}).get("in_force") or {})}
    facts = {name: manifest.get(name) for name in _FACTS}
    facts["data"] = {name: (manifest.get("task") or {}).get(name) for name in ("rows", "held_out")}
    return dict(_flat(recipe | {"found": facts}))


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    # Settings by their dotted names; lists as they are.
    if not isinstance(value, dict) or not value:
        yield name, value
        return
    for key, own in value.items():
        if key not in _OF_A_RUN:
            yield from _flat(own, f"{name}.{key}" if name else str(key))


def _held_out(one: RunDirectory, other: RunDirectory, names: list[str]) -> Listing:
    lines, rows = [], []
    for run, name in zip((one, other), names, strict=True):
        found = last_measured(run)
        lines.append(f"{name}: {gain_in_words(found) if found else f'not evaluated: `workbench eval {run.name}`'}")
        if found:
            gain, after = found["gain"], found["after"]
            rows.append((name, found["before"]["correct"], after["correct"], gain["low"], gain["high"], after["reward"]))
    with contextlib.suppress(RunError, ValueError):  # measured on other prompts, or before every completion was kept
        return Listing("\n".join([*lines, (found := regressions(*map(read_evaluation, (one, other)))).verdict]), found.frame)
    names = ["run", "base", "trained", "gain_low", "gain_high", "reward"]
    return Listing("\n".join(lines), frame_of(rows, names))


def _prompts(one: RunDirectory, other: RunDirectory, names: list[str]) -> Listing:
    frames = []
    for number, run in enumerate((one, other)):
        last = span(parts(run.rollouts)[-1])[1]
        sql = f"""select {KEY} as key, any_value(prompt) as prompt, avg(cast("right" as double)) as share,
            arg_max(completion, (step, total)) as text from rollouts where step > {0.75 * last} group by key"""
        frames.append(query(run.rollouts, sql).set_index("key").add_suffix(f"_{number}"))
    both = frames[0].join(frames[1], how="inner")
    both["change"] = both["share_1"] - both["share_0"]
    both["prompt"] = [question(prompt_of(own)) for own in both["prompt_0"]]
    both = both.sort_values("change", kind="stable").reset_index(drop=True)
    verdict = f"{len(both)} prompts were drawn by both in the last quarter of their steps"
    if len(both):
        verdict += f": right {both['share_0'].mean():.0%} in {names[0]}, {both['share_1'].mean():.0%} in {names[1]}"
    renamed = {"share_0": names[0], "share_1": names[1], "text_0": f"text of {names[0]}", "text_1": f"text of {names[1]}"}
    return Listing(verdict, both[["prompt", "share_0", "share_1", "change", "text_0", "text_1"]].rename(columns=renamed))
