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
from typing import Any

from workbench.errors import ExportError, RunError
from workbench.exporting.artefacts import PASSPORT, Artefact, meant
from workbench.exporting.card import CARD, write_card
from workbench.exporting.checks import Proof
from workbench.exporting.public import clean, public_name
from workbench.inspection.evaluation import last_measured
from workbench.kinds import Fields
from workbench.run.control_file import RunState
from workbench.run.directory import RunDirectory
from workbench.run.metrics import GROUP_STD, KL, REWARD
from workbench.run.parts import parts, span
from workbench.run.rollouts import read_batches
from workbench.task import EMBEDDED
from workbench.training.loading import adapter_sum, base_differs, base_files
from workbench.workspace import replace_folder, shown, size_and_sum, sum_of, to_json, write_json

PROOF = "proof.json"
SAMPLED = 8  # completions
_PROVEN = ".proof.part"  # a folder: a whole proof on its way into the artefact
_NAMED_BASE = {"adapter_config.json": "base_model_name_or_path", "config.json": "_name_or_path"}
_CURVE = 8  # points
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
        if (file := folder / name).is_file() and (
            config := json.loads(file.read_text(encoding="utf-8"))
        ).get(key):
            write_json(file, config | {key: public_name(config[key])})
    write_card(folder, artefact, known := about(artefact) | {"merge_risk": merge_risk})
    _write(folder, known | {"files": files_in(folder, PASSPORT)})


def add_proof(artefact: Artefact, proof: Proof) -> None:
    """Put the proof beside the artefact (`proof.json`), into its card and into its passport.

    The three are first written whole beside the others; after a kill on their way into place,
    reading the passport finishes it.
    """
    passport, content = read_passport(artefact.path), clean(to_json(proof))
    with replace_folder(artefact.path / _PROVEN) as staged:
        write_json(staged / PROOF, content | {"passed": proof.passed})
        write_card(artefact.path, artefact, passport, proof, into=staged)
        passport["files"] |= {name: size_and_sum(staged / name) for name in (PROOF, CARD)}
        short = [
            {key: value for key, value in check.items() if key != "numbers"}
            for check in content["checks"]
        ]
        _write(staged, passport | {"proof": content | {"passed": proof.passed, "checks": short}})
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
    try:
        with contextlib.suppress(OSError):  # on a drive that can only be read
            _into_place(folder)
        content = file.read_bytes()
        found = json.loads(content)
        # as write_json
        text = json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        if (
            isinstance(found, dict)
            and content == text.encode()
            and found.pop("sha256") == _sum(found)
        ):
            return found
        what = what if isinstance(found, dict) else "it holds no passport"
    except OSError as error:
        what = f"it cannot be read: {error.strerror}"
    except (ValueError, KeyError):
        what = "it holds no passport"
    remedy = (
        "export again with overwrite=True, `workbench export`; or put the file back from a copy"
    )
    raise ExportError(
        f"{shown(file)}: {what}",
        rule="a passport is a JSON file that holds its own sum",
        remedy=remedy,
    )


def changed_files(folder: Path) -> dict[str, str]:
    """Files of an artefact that differ from its passport -> how; ExportError as in
    `read_passport`.
    """
    said, there, found = read_passport(folder)["files"], files_in(folder, PASSPORT), {}
    for name in sorted(said.keys() | there.keys()):
        if name not in there:
            found[name] = "is missing"
        elif name not in said:
            found[name] = "is not in the passport"
        elif (then := said[name]) != (now := there[name]):
            found[name] = "was changed" + (
                f": {then[0]:,} bytes then, {now[0]:,} now" if then[0] != now[0] else ""
            )
    return found


def _write(folder: Path, found: Fields) -> None:
    found = to_json(found)
    write_json(folder / PASSPORT, found | {"sha256": _sum(found)})


def _sum(found: Fields) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


# -- what it says
# --------------------------------------------------------------------------------------------------
def files_in(folder: Path, without: str = "") -> dict[str, list[Any]]:
    """Path within the folder -> [bytes, SHA-256] of each file, including subfolders, but not of
    what a kill left.
    """
    names = {
        file.relative_to(folder).as_posix(): file
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    return {
        name: size_and_sum(file)
        for name, file in names.items()
        if name != without and not _PARTIAL.search(name)
    }


def sample_of(run: RunDirectory) -> list[Fields]:
    """Completions of the last recorded step, the first of each group, then the second: prompt,
    completion, scores, advantage.
    """
    if not any(run.rollouts.glob("step-*.parquet")):
        return []
    batch = next(read_batches(run, [span(parts(run.rollouts)[-1])[1]]))
    rows = list(
        zip(
            batch.prompts,
            batch.completions,
            batch.scores.tolist(),
            batch.advantages.tolist(),
            strict=True,
        )
    )
    # one group may be all alike
    chosen = sorted(range(len(rows)), key=lambda place: place % batch.num_generations)[:SAMPLED]
    found = (
        (p, c, dict(zip(batch.names, s, strict=True)), a)
        for p, c, s, a in map(rows.__getitem__, chosen)
    )
    return to_json(
        [
            dict(zip(("prompt", "completion", "scores", "advantage"), own, strict=True))
            for own in found
        ]
    )


def recipe_sum(run: RunDirectory) -> str:
    """The sum of a run's recipe as it is: on another machine, cleaning would remove other words."""
    text = json.dumps(to_json(run.recipe().model_dump(mode="json")), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def about(artefact: Artefact) -> Fields:
    """All that is known of an artefact besides its own files: what it was made from, and by
    what.
    """
    found: Fields = {
        "format": artefact.format,
        "base": public_name(artefact.base),
        "into": artefact.into,
    }
    found["base_files"] = base_files(artefact.base)
    if (run := artefact.run) is None:
        return found
    manifest, rows = run.manifest(), run.metrics()
    task = dict(manifest.get("task") or {})
    recipe, source = run.recipe(), str(task.pop("source", ""))
    ships, kept = (source or recipe.task) in EMBEDDED, run.path / "task.py"
    policy = manifest.get("policy") or {}
    environment = {
        **(manifest.get("versions") or {}),
        "device": policy.get("device"),
        "backend": policy.get("backend"),
    }
    task |= {
        "ships": ships,
        "file": PureWindowsPath(source).name,
        "sha256": sum_of(kept) if kept.is_file() else None,
    }
    points = (
        [rows[round(place * (len(rows) - 1) / (_CURVE - 1))]["step"] for place in range(_CURVE)]
        if rows
        else []
    )
    found |= {
        "run": run.name, "created": manifest.get("created"), "result": run.result(),
        "recipe": recipe.model_dump(mode="json"), "task": task,
        "prompts": manifest.get("prompts") or {},
        "rewards": {name: (manifest.get("rewards") or {}).get(name) for name in ("hash",
        "functions", "weights")},
        "template": manifest.get("template"),
        "settings": (manifest.get("settings") or {}).get("in_force") or {},
        "environment": environment, "attached": bool(manifest.get("attached")),
        "trained_before": policy.get("trained_in") or [], "precision": policy.get("precision"),
        "backend_name": policy.get("backend_name"),
        "changes": RunState.of(run).changes,
        "curve": [{name: row.get(name) for name in ("step", REWARD, GROUP_STD,
        KL)} for row in rows if row["step"] in points],
        "evaluation": last_measured(run), "warm_start": manifest.get("warm_start"),
    }  # fmt: skip
    # A revision looks like a key.
    found = clean(to_json(found)) | {
        "base_files": found["base_files"],
        "trained_on": policy.get("base"),
    }
    found |= {
        "run_id": run.identity,
        "adapter": {"from": run.adapter.name, "sha256": adapter_sum(run.adapter)},
        "recipe_sha256": recipe_sum(run),
    }
    return found | {"rollouts": clean(sample_of(run))}


# -- comparing with it
# -------------------------------------------------------------------------------------------------
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
        lines = [
            f"{self.artefact}: " + ("verified" if self.passed else "DIFFERS from its passport")
        ]
        marked = {"DIFFERS ": self.differs, "holds   ": self.holds, "cannot be told:": self.untold}
        return "\n".join(
            [*lines, *(f"  {mark} {line}" for mark, of in marked.items() for line in of)]
        )


def verify(path: str | Path) -> list[Verified]:
    """Compare artefacts with their passports: one, by its folder or its `passport.json`, or all of
    a run, by its path or name.

    ExportError: there is no artefact, or its passport was changed.
    """
    reports = []
    for folder in meant(path)[1]:
        findings = list(_findings(folder, read_passport(folder)))
        lines = (
            tuple(line for same, line in findings if same is which) for which in (True, False, None)
        )
        reports.append(Verified(shown(folder), *lines))
    return reports


def _findings(folder: Path, passport: Fields) -> Findings:
    wrong = changed_files(folder)
    yield from ((False, f"{name} {what}") for name, what in wrong.items())
    if not wrong:
        yield True, f"{len(passport['files'])} files, byte by byte, and the passport itself"
    differs = base_differs(passport.get("trained_on"), passport["base_files"])
    yield (
        None if differs is None else not differs,
        "the base as the run loaded it" + (f": {differs}" if differs else ""),
    )
    exports = folder.resolve().parent
    if exports.name == "export" and (exports.parent / "recipe.yaml").is_file():
        yield from _against_run(passport, RunDirectory(exports.parent))


def _against_run(passport: Fields, run: RunDirectory) -> Findings:
    if passport.get("run_id") != run.identity:
        yield False, f"it was made from another run than {run.name}, in whose folder it is"
        return
    same = passport["recipe_sha256"] == recipe_sum(run)
    yield same, "the recipe is " + ("the run's" if same else "no longer the run's")
    # it trains, or its adapter was taken away: nothing to compare with
    with contextlib.suppress(RunError, OSError):
        same = adapter_sum(run.adapter) == passport["adapter"]["sha256"]
        yield (
            same,
            "the adapter is "
            + ("the run's" if same else "not the run's, which may have been trained further since"),
        )
