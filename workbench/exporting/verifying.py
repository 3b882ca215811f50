"""Comparing an artefact with its passport: every byte of every file, its base, and the run if it is at hand."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import RunError
from workbench.exporting.about import adapter_of, recipe_sum
from workbench.exporting.artefacts import meant
from workbench.exporting.passport import changed, read_passport
from workbench.run.directory import RunDirectory
from workbench.training.loading import base_differs
from workbench.workspace import shown

Findings = Iterator[tuple[bool | None, str]]  # whether it is as it was (None: cannot be told), and what


@dataclass(frozen=True)
class Verified:
    """What of an artefact is as its passport says, and what is not."""

    artefact: str  # its folder, as shown
    holds: tuple[str, ...]
    differs: tuple[str, ...]
    untold: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.differs

    def __str__(self) -> str:
        lines = [f"{self.artefact}: " + ("verified" if self.passed else "DIFFERS from its passport")]
        marked = {"DIFFERS ": self.differs, "holds   ": self.holds, "cannot be told:": self.untold}
        return "\n".join([*lines, *(f"  {mark} {line}" for mark, of in marked.items() for line in of)])


def verify(path: str | Path) -> list[Verified]:
    """Compare artefacts with their passports: one, by its folder or its `passport.json`, or all of a run, by its path or name.

    ExportError: there is no artefact, or its passport was changed.
    """
    reports = []
    for folder in meant(path)[1]:
        findings = list(_findings(folder, read_passport(folder)))
        lines = (tuple(line for same, line in findings if same is which) for which in (True, False, None))
        reports.append(Verified(shown(folder), *lines))
    return reports


def _findings(folder: Path, passport: dict[str, Any]) -> Findings:
    wrong = changed(folder)
    yield from ((False, f"{name} {what}") for name, what in wrong.items())
    if not wrong:
        yield True, f"{len(passport['files'])} files, byte by byte, and the passport itself"
    differs = base_differs(passport.get("trained_on"), passport["base_files"])
    yield None if differs is None else not differs, "the base as the run loaded it" + (f": {differs}" if differs else "")
    exports = folder.resolve().parent
    if exports.name == "export" and (exports.parent / "recipe.yaml").is_file():
        yield from _against_run(passport, RunDirectory(exports.parent))


def _against_run(passport: dict[str, Any], run: RunDirectory) -> Findings:
    if passport.get("run_id") != run.identity:
        yield False, f"it was made from another run than {run.name}, in whose folder it lies"
        return
    same = passport["recipe_sha256"] == recipe_sum(run)
    yield same, "the recipe is " + ("the run's" if same else "no longer the run's")
    with contextlib.suppress(RunError, OSError):  # it trains, or its adapter was taken away: nothing to compare with
        same = adapter_of(run)["sha256"] == passport["adapter"]["sha256"]
        yield same, "the adapter is " + ("the run's" if same else "not the run's, which may have been trained further since")
