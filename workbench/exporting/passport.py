"""The passport of an artefact: what it was made of and by, the sum of each of its files, and its own sum over all that.

One changed byte anywhere in the folder, the passport included, is seen. It is not a signature: whoever changes a file can also
write another passport. What stands up to that is `workbench prove`, which compares the artefact with the run's own policy.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from workbench.errors import ExportError
from workbench.exporting.about import about, clean, files_in, public_name
from workbench.exporting.artefacts import PASSPORT, Artefact
from workbench.exporting.card import CARD, write_card
from workbench.exporting.checks import Proof
from workbench.workspace import replace_folder, shown, size_and_sum, to_json, write_json

PROOF = "proof.json"
_PROVEN = ".proof.part"  # a folder: a whole proof on its way into the artefact
_NAMED_BASE = {"adapter_config.json": "base_model_name_or_path", "config.json": "_name_or_path"}


def stamp(folder: Path, artefact: Artefact, merge_risk: str = "") -> None:
    """Write the card and, as the last file of an export, `passport.json` of the artefact whose files lie (staged) in `folder`.

    What the libraries' own files say of the base's place on this machine becomes its name. `merge_risk`: its verdict, if it
    was measured.
    """
    for name, key in _NAMED_BASE.items():
        if (file := folder / name).is_file() and (config := json.loads(file.read_text(encoding="utf-8"))).get(key):
            write_json(file, config | {key: public_name(config[key])})
    write_card(folder, artefact, known := about(artefact) | {"merge_risk": merge_risk})
    _write(folder, known | {"files": files_in(folder, PASSPORT)})


def add_proof(artefact: Artefact, proof: Proof) -> None:
    """Put the proof beside the artefact (`proof.json`), into its card and into its passport.

    The three are made whole beside the others first; a kill on their way into place is made up for by whoever reads the passport.
    """
    passport, content = read_passport(artefact.path), clean(to_json(proof))
    with replace_folder(artefact.path / _PROVEN) as staged:
        write_json(staged / PROOF, content | {"passed": proof.passed})
        write_card(artefact.path, artefact, passport, proof, into=staged)
        passport["files"] |= {name: size_and_sum(staged / name) for name in (PROOF, CARD)}
        short = [{key: value for key, value in check.items() if key != "numbers"} for check in content["checks"]]
        _write(staged, passport | {"proof": content | {"passed": proof.passed, "checks": short}})
    _into_place(artefact.path)


def _into_place(folder: Path) -> None:
    for name in (PROOF, CARD, PASSPORT):
        with contextlib.suppress(FileNotFoundError):
            os.replace(folder / _PROVEN / name, folder / name)
    with contextlib.suppress(OSError):  # it is gone, or whoever wrote it stages another one
        (folder / _PROVEN).rmdir()


def read_passport(folder: Path) -> dict[str, Any]:
    """The passport of an artefact, without its own sum; ExportError if there is none, or a byte of it was changed."""
    file, what = folder / PASSPORT, "it was changed after the export"
    try:
        with contextlib.suppress(OSError):  # on a drive that can only be read
            _into_place(folder)
        content = file.read_bytes()
        found = json.loads(content)
        text = json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False) + "\n"  # as write_json
        if isinstance(found, dict) and content == text.encode() and found.pop("sha256") == _sum(found):
            return found
        what = what if isinstance(found, dict) else "it holds no passport"
    except OSError as error:
        what = f"it cannot be read: {error.strerror}"
    except (ValueError, KeyError):
        what = "it holds no passport"
    remedy = "export again with overwrite=True, `workbench export`; or put the file back from a copy"
    raise ExportError(f"{shown(file)}: {what}", rule="a passport is a JSON file that holds its own sum", remedy=remedy)


def changed(folder: Path) -> dict[str, str]:
    """Which files of an artefact are not as its passport says -> how; ExportError as of `read_passport`."""
    said, there, found = read_passport(folder)["files"], files_in(folder, PASSPORT), {}
    for name in sorted(said.keys() | there.keys()):
        if name not in there:
            found[name] = "is missing"
        elif name not in said:
            found[name] = "is not in the passport"
        elif (then := said[name]) != (now := there[name]):
            found[name] = "was changed" + (f": {then[0]:,} bytes then, {now[0]:,} now" if then[0] != now[0] else "")
    return found


def _write(folder: Path, found: dict[str, Any]) -> None:
    found = to_json(found)
    write_json(folder / PASSPORT, found | {"sha256": _sum(found)})


def _sum(found: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
