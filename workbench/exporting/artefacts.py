"""Artefacts: a run's policy in the forms that others load. Each is a folder that appears
atomically.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from workbench.base.errors import ExportError, RunError, nearest
from workbench.base.kinds import Fields
from workbench.base.workspace import find, looked_in, resolve, shown
from workbench.exporting.merging import base_of
from workbench.run.directory import RunDirectory, open_run
from workbench.tiny.named import named_policies

PASSPORT = "passport.json"
# What a run can be exported as, in the order in which one is made of another; each is a folder of
# its run's `export/`.
FORMATS = ("adapter", "merged_16bit", "merged_4bit", "gguf_f16", "gguf_q8_0", "gguf_q4_k_m")
QUANTISED = ("merged_4bit", "gguf_q8_0", "gguf_q4_k_m")  # measured, rather than proven equal
# what an adapter is merged into
INTO = {"base": "the 16-bit base", "dequantised": "the dequantised 4-bit weights"}


@dataclass(frozen=True)
class Artefact:
    """One form of a run's policy: a folder with the model, its card (`README.md`) and its
    `passport.json`.
    """

    path: Path
    format: str  # one of FORMATS
    base: str  # folder or hub name of the 16-bit base
    # what the adapter was merged into: the 16-bit weights, or "dequantised", the 4-bit ones in 16
    # bits
    into: str = "base"
    run: RunDirectory | None = None  # the run that it was made of, where that is at hand

    @property
    def gguf(self) -> Path:
        """The one GGUF file of a `gguf_…` artefact, existing or to be made."""
        name = f"{self.run.name if self.run else 'model'}-{self.format.removeprefix('gguf_').upper()}.gguf"  # noqa: E501
        return next(self.path.glob("*.gguf"), self.path / name)


@dataclass(frozen=True, repr=False)
class Exported:
    """A run's artefacts; the text lists their files."""

    run: RunDirectory
    artefacts: dict[str, Artefact]  # by format
    # what was kept, what nobody asked for, and what the adapter was merged into
    notes: tuple[str, ...] = ()

    def __getitem__(self, format: str) -> Artefact:
        return self.artefacts[format]

    def found(self) -> Fields:
        """For scripts."""
        made = {
            name: {"path": str(one.path), "into": None if name == "adapter" else one.into}
            for name, one in self.artefacts.items()
        }
        return {"run": str(self.run.path), "artefacts": made, "notes": self.notes}

    def __str__(self) -> str:
        lines = []
        for artefact in self.artefacts.values():
            lines.append(shown(artefact.path))
            for file in sorted(artefact.path.iterdir()):
                lines.append(f"  {file.name}  {-(-file.stat().st_size // 1024):,} KiB")
        return "\n".join([*lines, *self.notes])

    __repr__ = __str__


def meant(path: str | Path) -> tuple[RunDirectory | None, list[Path]]:
    """(None, an artefact, by its folder or passport); or (a run, by path, name or `export` folder;
    all its artefacts).

    ExportError: it is neither, or a run without artefacts.
    """
    place = find(path)
    places = [place, place.parent] if place.name in (PASSPORT, "export") else [place]
    for each in places:
        if (each / PASSPORT).is_file():
            return None, [each]
    of_run = next((each for each in places if (each / "recipe.yaml").is_file()), path)
    try:
        run = open_run(of_run, latest="trained")
    except RunError:
        if str(path) == "latest":
            raise
        what = f"neither an artefact (no {PASSPORT}) nor a run (no recipe.yaml)"
        if not place.exists():
            what = f"no run or artefact of that name; {looked_in()}"
        known = [each.parent.name for each in resolve("runs").glob("*/recipe.yaml")]
        known += [shown(each.parent) for each in resolve("runs").glob(f"*/export/[!.]*/{PASSPORT}")]
        raise ExportError(
            f"{path}: {what}",
            rule="an artefact is a folder that `export` wrote",
            remedy=nearest(str(path), known, "`workbench export RUN` makes one"),
        ) from None
    there = {file.parent for file in run.export.glob(f"[!.]*/{PASSPORT}")}
    folders = [run.export / format for format in FORMATS if run.export / format in there]
    for folder in sorted(there.difference(folders)):
        try:
            folders.append(open_artefact(folder, run).path)
        except ExportError as error:  # somebody else's, put there
            print(f"left out: {error.value}")
    if not folders:
        raise ExportError(
            f"{run.name}: no artefact in {shown(run.export)}",
            rule="an artefact is a folder that `export` wrote",
            remedy=f"`workbench export {run.name}` makes them",
        )
    return run, folders


def open_artefact(path: str | Path, run: RunDirectory | None = None) -> Artefact:
    """The artefact in a folder that `export` wrote, by its passport; its run is found from the
    folder, or given.

    ExportError: there is no passport, or it belongs to another run than the given one.
    """
    folder, passport = resolve(path), {}
    with contextlib.suppress(OSError, ValueError):
        passport = json.loads((folder / PASSPORT).read_text(encoding="utf-8"))
    if not isinstance(passport, dict) or passport.get("format") not in FORMATS:
        there = (folder / PASSPORT).exists()
        what = "its passport.json is not a passport" if there else "no passport.json"
        raise ExportError(
            f"{shown(folder)}: {what}",
            rule="an artefact is a folder that `export` wrote",
            remedy="give a folder of runs/RUN/export, or make one: `workbench export RUN`",
        )

    def made_it(one: RunDirectory) -> bool:
        try:
            identity = one.identity
        except RunError:
            return False
        named = identity or passport.get("run") == one.name
        return bool(named) and identity == passport.get("run_id")

    if run is not None and not made_it(run):
        raise ExportError(
            f"{shown(folder)}: made from run {passport.get('run')!r}, not from {run.name!r}",
            rule="an artefact is compared with the run that it was made from",
            remedy="give that run",
        )
    if run is None and made_it(parent := RunDirectory(folder.absolute().parents[1])):
        run = parent
    base = str(passport.get("base", ""))
    if run:
        base = base_of(run)
    elif (name := passport.get("recipe", {}).get("policy", {}).get("name")) in named_policies():
        base = name
    return Artefact(folder, passport["format"], base, passport.get("into", "base"), run)
