"""What a card and a passport say of an artefact: collected once from its run, without what must not leave the machine."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import re
import socket
from pathlib import Path, PureWindowsPath
from typing import Any

from workbench.exporting.artefacts import Artefact
from workbench.inspection.evaluation import last_measured
from workbench.run.control_file import RunState
from workbench.run.directory import RunDirectory
from workbench.run.metrics import GROUP_STD, KL, REWARD
from workbench.run.parts import parts, span
from workbench.run.rollouts import read_batches
from workbench.secret import LOOKS, NAMED, is_secret, secret_variables
from workbench.task import EMBEDDED
from workbench.tiny import MODEL_DIR
from workbench.training.loading import adapter_sum, base_files
from workbench.workspace import size_and_sum, sum_of, to_json

SAMPLED = 8  # completions
_CURVE = 8  # points
_PARTIAL = re.compile(r"(^|/)\.[^/]*\.part(/|$)")  # what `replace_file` and `replace_folder` call what is not whole yet
# Two parts at least: "/no_think" is a word that models know, "</answer>" a tag, "https://…" an address.
_PATH = re.compile(r"(?<![\w.:/<])~?/[A-Za-z_.~][\w.@+~-]*(?:/[\w.@+~-]+)+/?|(?<!\w)[A-Za-z]:\\[\w.@+~-]+(?:\\[\w.@+~-]+)+\\?")


def clean(value: Any) -> Any:
    """`value` without keys, absolute paths (their last part stays) and home folder, at any depth.

    The names of user and host go from paths and from NAME@HOST only: elsewhere they are words, and may mean something.
    """
    home, host, keys = Path.home(), socket.gethostname().partition(".")[0], secret_variables()
    users = {home.name} - {""}
    with contextlib.suppress(OSError, KeyError):
        users.add(getpass.getuser())
    account = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, users))})@[\w.-]+|(?<!\w)[\w.-]+@{re.escape(host)}[\w.-]*")

    def last(path: str) -> str:
        name = PureWindowsPath(path).name
        return "user" if name in users else name

    def text(value: str) -> str:
        for key in keys:
            value = value.replace(key, "[removed]")
        value = LOOKS.sub("[removed]", value)
        # The whole text, also one with spaces in it; what begins with a backslash, and no share, is LaTeX.
        whole = re.match(r"/(?!/)|[A-Za-z]:[\\/]|\\\\[\w.-]+\\[\w.$-]+\\", value) and "\n" not in value
        value = last(value) if whole and len(PureWindowsPath(value).parts) > 2 else value
        value = re.sub(rf"(?<!\w){re.escape(str(home))}(?!\w)", "~", value)
        return account.sub("user@host", _PATH.sub(lambda match: last(match[0]), value))

    def cleaned(value: Any, name: Any = "") -> Any:
        if isinstance(value, dict):
            # Names of settings and functions are looked up by others.
            return {key if key.isidentifier() else cleaned(key): cleaned(item, key) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [cleaned(item) for item in value]
        if not isinstance(value, str):
            return value
        return "[removed]" if is_secret(str(name), value) and NAMED.search(str(name)) else text(value)

    return cleaned(value)


def public_name(base: str | Path) -> str:
    """What others call a base: its hub name, without `-bnb-4bit`; of a folder its own name."""
    text = str(base)
    if hub := re.search(r"models--([^/]+)--([^/]+)[/\\]snapshots", text):
        text = f"{hub[1]}/{hub[2]}"
    elif Path(text).parts[-3:] == MODEL_DIR.parts[-3:]:  # also that of another installation
        text = "tiny"
    elif Path(text).is_dir() or text.startswith(("/", "~", ".")) or text.count("/") > 1 or "\\" in text:
        text = PureWindowsPath(text).name
    return clean(re.sub(r"-(unsloth-)?bnb-4bit$", "", text, flags=re.IGNORECASE))


def files_in(folder: Path, without: str = "") -> dict[str, list[Any]]:
    """Path within the folder -> [bytes, SHA-256] of each file, in folders inside it, too, but not of what a kill left."""
    names = {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*")) if file.is_file()}
    return {name: size_and_sum(file) for name, file in names.items() if name != without and not _PARTIAL.search(name)}


def sample_of(run: RunDirectory) -> list[dict[str, Any]]:
    """Completions of the last step on record, the first of each group, then the second: prompt, completion, scores, advantage."""
    if not any(run.rollouts.glob("step-*.parquet")):
        return []
    batch = next(read_batches(run, [span(parts(run.rollouts)[-1])[1]]))
    rows = list(zip(batch.prompts, batch.completions, batch.scores.tolist(), batch.advantages.tolist(), strict=True))
    chosen = sorted(range(len(rows)), key=lambda place: place % batch.num_generations)[:SAMPLED]  # one group may be all alike
    found = ((p, c, dict(zip(batch.names, s, strict=True)), a) for p, c, s, a in map(rows.__getitem__, chosen))
    return to_json([dict(zip(("prompt", "completion", "scores", "advantage"), own, strict=True)) for own in found])


def recipe_sum(run: RunDirectory) -> str:
    """The sum of a run's recipe as it is: on another machine it would be cleaned of other words."""
    text = json.dumps(to_json(run.recipe().model_dump(mode="json")), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def adapter_of(run: RunDirectory) -> dict[str, Any]:
    """Where a run's adapter is, and the sum of its weights."""
    return {"from": run.adapter.name, "sha256": adapter_sum(run.adapter)}


def about(artefact: Artefact) -> dict[str, Any]:
    """All that is known of an artefact but its own files: what it was made from, and by what."""
    found: dict[str, Any] = {"format": artefact.format, "base": public_name(artefact.base), "into": artefact.into}
    found["base_files"] = base_files(artefact.base)
    if (run := artefact.run) is None:
        return found
    manifest, rows = run.manifest(), run.metrics()
    task = dict(manifest.get("task") or {})
    recipe, source = run.recipe(), str(task.pop("source", ""))
    ships, kept = (source or recipe.task) in EMBEDDED, run.path / "task.py"
    policy = manifest.get("policy") or {}
    environment = {**(manifest.get("versions") or {}), "device": policy.get("device"), "backend": policy.get("backend")}
    task |= {"ships": ships, "file": PureWindowsPath(source).name, "sha256": sum_of(kept) if kept.is_file() else None}
    points = [rows[round(place * (len(rows) - 1) / (_CURVE - 1))]["step"] for place in range(_CURVE)] if rows else []
    found |= {
        "run": run.name, "created": manifest.get("created"), "result": run.result(),
        "recipe": recipe.model_dump(mode="json"), "task": task, "prompts": manifest.get("prompts") or {},
        "rewards": {name: (manifest.get("rewards") or {}).get(name) for name in ("hash", "functions", "weights")},
        "template": manifest.get("template"), "settings": (manifest.get("settings") or {}).get("in_force") or {},
        "environment": environment, "attached": bool(manifest.get("attached")),
        "trained_before": policy.get("trained_in") or [], "precision": policy.get("precision"),
        "backend_name": policy.get("backend_name"),
        "changes": RunState.of(run).changes,
        "curve": [{name: row.get(name) for name in ("step", REWARD, GROUP_STD, KL)} for row in rows if row["step"] in points],
        "evaluation": last_measured(run), "warm_start": manifest.get("warm_start"),
    }  # fmt: skip
    # A revision looks like a key.
    found = clean(to_json(found)) | {"base_files": found["base_files"], "trained_on": policy.get("base")}
    found |= {"run_id": run.identity, "adapter": adapter_of(run), "recipe_sha256": recipe_sum(run)}
    return found | {"rollouts": clean(sample_of(run))}
