"""The passport of an artefact: what it was made from and by, the sum of each of its files, and its
own sum over all that.

`verify` sees one changed byte anywhere in the folder, the passport included. It is not a signature:
anyone who changes a file can also write another passport. `workbench prove` stands up to that: it
compares the artefact with the run's own policy.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

from workbench.base.errors import ExportError
from workbench.base.kinds import Fields
from workbench.base.workspace import (
    replace_folder,
    shown,
    size_and_sum,
    sum_of,
    to_json,
    write_json,
)
from workbench.exporting import serving
from workbench.exporting.artefacts import PASSPORT, Artefact, meant
from workbench.exporting.card import CARD, write_card
from workbench.exporting.checks import Proof
from workbench.exporting.public import clean, public_name
from workbench.inspection.evaluation import last_measured
from workbench.run import sealed
from workbench.run.directory import RunDirectory
from workbench.tasks.loading import EMBEDDED
from workbench.tiny.named import origin_of
from workbench.training.plan.loading import adapter_sum, base_differs, base_files

PROOF = "proof.json"
_PROVEN = ".proof.part"  # a folder: a whole proof on its way into the artefact
_NAMED_BASE = {"adapter_config.json": "base_model_name_or_path", "config.json": "_name_or_path"}
# what `replace_file` and `replace_folder` call what is not whole yet
_PARTIAL = re.compile(r"(^|/)\.[^/]*\.part(/|$)")
# whether it is as it was (None: cannot be told), and what
Findings = Iterator[tuple[bool | None, str]]


def stamp(folder: Path, artefact: Artefact, merge_risk: str = "") -> None:
    """Write the card and, as the last file of an export, `passport.json` of the artefact whose
    files are staged in `folder`.

    The base's path on this machine, in the libraries' own files, becomes its name. `merge_risk`:
    its verdict, if it was measured.
    """
    for name, key in _NAMED_BASE.items():
        if (file := folder / name).is_file():
            config = json.loads(file.read_text(encoding="utf-8"))
            if config.get(key):
                write_json(file, config | {key: public_name(config[key])})
    known = about(artefact) | {"merge_risk": merge_risk}
    write_card(folder, artefact, known)
    _write(folder, known | {"files": files_in(folder)})


def add_proof(artefact: Artefact, proof: Proof) -> None:
    """Put the proof beside the artefact (`proof.json`), into its card and into its passport.

    The three are first written whole beside the others; after a kill on their way into place,
    reading the passport finishes it.
    """
    passport = read_passport(artefact.path)
    content = clean(proof.for_scripts())
    with replace_folder(artefact.path / _PROVEN) as staged:
        write_json(staged / PROOF, content)
        write_card(artefact.path, artefact, passport, proof, into=staged)
        passport["files"] |= {name: size_and_sum(staged / name) for name in (PROOF, CARD)}
        _write(staged, passport | {"proof": content})
    _into_place(artefact.path)


def _into_place(folder: Path) -> None:
    for name in (PROOF, CARD, PASSPORT):
        with contextlib.suppress(FileNotFoundError):
            os.replace(folder / _PROVEN / name, folder / name)
    with contextlib.suppress(OSError):  # it is gone, or whoever wrote it stages another one
        (folder / _PROVEN).rmdir()


def read_passport(folder: Path) -> Fields:
    """The passport of an artefact, without its own sum; ExportError if there is none, or a byte of
    it was changed.
    """
    file, what = folder / PASSPORT, "it was changed after the export"
    with contextlib.suppress(OSError):  # on a drive that can only be read
        _into_place(folder)
    try:
        content = file.read_bytes()
        passport = json.loads(content)
        # as write_json
        text = json.dumps(passport, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        if passport.pop("sha256") == _sum(passport) and content == text.encode():
            return passport
    except OSError as error:
        what = f"it cannot be read: {error.strerror}"
    except (ValueError, LookupError, TypeError, AttributeError):
        what = "it holds no passport"
    raise ExportError(
        f"{shown(file)}: {what}",
        rule="a passport is a JSON file that holds its own sum",
        remedy="export again with overwrite=True, `workbench export`; or put the file back from a"
        " copy",
    )


def changed_files(folder: Path) -> dict[str, str]:
    """Files of an artefact that differ from its passport -> how; ExportError as in
    `read_passport`.
    """
    recorded, there = read_passport(folder)["files"], files_in(folder)
    return {
        name: _changed(recorded.get(name), there.get(name))
        for name in sorted(recorded.keys() | there)
        if recorded.get(name) != there.get(name)
    }


def _changed(then: list | None, now: list | None) -> str:
    if now is None:
        return "is missing"
    if then is None:
        return "is not in the passport"
    return f"was changed: {then[0]:,} bytes then, {now[0]:,} now"


def _write(folder: Path, passport: Fields) -> None:
    content = to_json(passport)
    write_json(folder / PASSPORT, content | {"sha256": _sum(content)})


def _sum(content: Fields) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# -- what it says
# --------------------------------------------------------------------------------------------------
def files_in(folder: Path) -> dict[str, list[object]]:
    """Path within the folder -> [bytes, SHA-256] of each file, including subfolders, but not of
    the passport and what a kill left.
    """
    files = {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*"))}
    return {
        name: size_and_sum(file)
        for name, file in files.items()
        if file.is_file() and name != PASSPORT and not _PARTIAL.search(name)
    }


def recipe_sum(run: RunDirectory) -> str:
    """The sum of a run's recipe as it is: on another machine, cleaning would remove other words."""
    return _sum(to_json(run.recipe().model_dump(mode="json")))


def about(artefact: Artefact) -> Fields:
    """All that is known of an artefact besides its own files: what it was made from, and by
    what.
    """
    run = artefact.run
    facts: Fields = {"format": artefact.format, "into": artefact.into}
    facts |= {"base": public_name(artefact.base), "base_notes": origin_of(artefact.base)}
    if run is not None:
        facts |= clean(to_json(_about_run(run)))
        # Not cleaned: a revision looks like a key.
        facts |= {
            "trained_on": run.manifest()["policy"].get("base"),
            "run_id": run.identity,
            "adapter": {"from": run.adapter.name, "sha256": adapter_sum(run.adapter)},
            "recipe_sha256": recipe_sum(run),
        }
    return facts | {"base_files": base_files(artefact.base)}


# -- comparing with it
# -------------------------------------------------------------------------------------------------
def _about_run(run: RunDirectory) -> Fields:
    manifest, recipe = run.manifest(), run.recipe()
    policy, task = manifest["policy"], dict(manifest.get("task") or {})
    source, kept = str(task.pop("source", "")), run.path / "task.py"
    task["ships"] = (source or recipe.task) in EMBEDDED
    task["file"] = PureWindowsPath(source).name
    task["sha256"] = sum_of(kept) if kept.is_file() else None
    facts = {name: manifest.get(name) for name in ("created", "template", "warm_start", "turns")}
    rewards = manifest.get("rewards") or {}
    for name in ("precision", "backend_name"):
        facts[name] = policy.get(name)
    environment = dict(manifest.get("versions") or {})
    for name in ("device", "backend"):
        environment[name] = policy.get(name)
    return facts | {
        "run": run.name,
        "result": run.result(),
        "recipe": recipe.model_dump(mode="json"),
        "task": task,
        "prompts": manifest.get("prompts") or {},
        "rewards": {name: rewards.get(name) for name in ("hash", "functions", "weights")},
        "settings": (manifest.get("settings") or {}).get("in_force") or {},
        "environment": environment,
        "evaluation": last_measured(run),
        "prompt": serving.first_prompt(run),
    }


@dataclass(frozen=True)
class Verified:
    """What of an artefact matches its passport, and what does not."""

    artefact: str  # its folder, as shown
    holds: tuple[str, ...]
    differs: tuple[str, ...]
    untold: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.differs

    def __str__(self) -> str:
        verdict = "verified" if self.passed else "DIFFERS from its passport"
        lines = [f"  DIFFERS  {line}" for line in self.differs]
        lines += [f"  holds    {line}" for line in self.holds]
        lines += [f"  cannot be told: {line}" for line in self.untold]
        return "\n".join([f"{self.artefact}: {verdict}", *lines])


def verify(path: str | Path) -> list[Verified]:
    """Compare artefacts with their passports: one, by its folder or its `passport.json`, or all of
    a run, by its path or name.

    ExportError: there is no artefact, or its passport was changed.
    """
    return [_verified(folder) for folder in meant(path)[1]]


def _verified(folder: Path) -> Verified:
    findings = list(_findings(folder, read_passport(folder)))
    holds, differs, undecided = (
        tuple(line for same, line in findings if same is which) for which in (True, False, None)
    )
    return Verified(shown(folder), holds, differs, undecided)


def _findings(folder: Path, passport: Fields) -> Findings:
    wrong = changed_files(folder)
    for name, what in wrong.items():
        yield False, f"{name} {what}"
    if not wrong:
        yield True, f"{len(passport['files'])} files, byte by byte, and the passport itself"
    differs = base_differs(passport.get("trained_on"), passport["base_files"])
    same = None if differs is None else not differs
    yield same, "the base as the run loaded it" + (f": {differs}" if differs else "")
    run = RunDirectory(folder.resolve().parents[1])
    if folder.resolve().parent.name == "export" and (run.path / "recipe.yaml").is_file():
        yield from _against_run(passport, run)


def _against_run(passport: Fields, run: RunDirectory) -> Findings:
    if passport.get("run_id") != run.identity:
        yield False, f"it was made from another run than {run.name}, in whose folder it is"
        return
    same = passport["recipe_sha256"] == recipe_sum(run)
    yield same, f"the recipe is {'the' if same else 'no longer the'} run's"
    if retold := sealed.retold(run):
        yield False, f"{run.name}: {retold}"
    if (saved := run._saved_adapter()) is None:
        return
    for line in sealed.unlike_saved(saved):
        yield False, line
    if unsummed := sealed.unsummed(run):
        yield None, unsummed
    # it trains, or its adapter was taken away: nothing to compare with
    with contextlib.suppress(OSError):
        now = sealed.weights(saved) or adapter_sum(saved)
        same = now == passport["adapter"]["sha256"]
        more = "" if same else ", which may have been trained further since"
        yield same, f"the adapter is {'the' if same else 'not the'} run's{more}"
