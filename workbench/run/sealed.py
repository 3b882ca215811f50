"""Saved adapters compared with what training saved: a run's manifest holds the sums of their files.

Whatever reads an adapter would otherwise be compared with the very files that were changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from workbench.base.errors import RunError, WorkbenchError
from workbench.base.kinds import Fields
from workbench.base.workspace import shown, size_and_sum, sum_of
from workbench.run.record import RunRecord

Sums = dict[str, list[object]]  # file -> [bytes, SHA-256]
_ABOUT = "run"  # among the names of adapters: what was trained


def saved_with(run: RunRecord, folder: Path) -> Fields:
    """The manifest's `saved`, with the sums of an adapter that has just been saved, and of the
    run's recipe and task.
    """
    saved = run.manifest().get("saved") or {}
    kept = {name: sums for name, sums in saved.items() if (run.checkpoints / name).is_dir()}
    sums = {file.name: size_and_sum(file) for file in folder.iterdir() if file.is_file()}
    return kept | {folder.name: sums, _ABOUT: _told(run)}


def _told(run: RunRecord) -> Fields:
    # Where base and task are may be another place on another machine; their own sums are recorded.
    recipe: Fields = {}
    with contextlib.suppress(OSError, WorkbenchError):  # edited meanwhile, it says nothing
        recipe = run.recipe().model_dump(mode="json", exclude_defaults=True)
    task = run.path / "task.py"
    for part in (recipe, recipe.get("policy", {})):
        for name in ("run_name", "task", "name"):
            part.pop(name, None)
    text = json.dumps(recipe, sort_keys=True)
    return {
        "recipe.yaml": hashlib.sha256(text.encode()).hexdigest(),
        "task.py": sum_of(task) if task.is_file() else "",
    }


def recorded_sums(folder: Path) -> tuple[Sums, int | None] | None:
    """The sums of an adapter's files, as its run recorded them, and its step if it is a checkpoint;
    None: not recorded.

    Those of a final and a best adapter are in the manifest, those of a checkpoint in its own
    state.json.
    """
    with contextlib.suppress(RunError):
        saved = RunRecord(folder.parent.parent).manifest().get("saved") or {}
        if folder.parent.name == "checkpoints" and (sums := saved.get(folder.name)):
            return sums, None
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        sums = {name: own for name, own in state["files"].items() if "optimizer" not in name}
        return sums, state["step"] if folder.name.startswith("checkpoint-") else None
    return None


def weights(folder: Path) -> str:
    """The SHA-256 of an adapter's weights as recorded; empty: not recorded."""
    sums, _ = recorded_sums(folder) or ({}, None)
    return str(sums.get("adapter_model.safetensors", ("", ""))[1])


def unlike(folder: Path, sums: Sums, step: int | None = None) -> str:
    """How a folder differs from the sums of its files, in words; empty: in nothing. `step`: of a
    checkpoint.
    """
    if step is not None and folder.name != f"checkpoint-{step}":
        return f"it holds checkpoint-{step}"
    for name, saved in sums.items():
        if not (file := folder / name).is_file():
            return f"{name} is missing"
        if (now := size_and_sum(file)) != saved:
            return f"{name} was changed: SHA-256 {str(now[1])[:12]}, not {str(saved[1])[:12]}"
    return ""


def unlike_saved(folder: Path) -> list[str]:
    """A line on a run's adapter that is not what training saved; none where it is, or where no sum
    was recorded, as in runs of older versions.
    """
    known = recorded_sums(folder)
    changed = known and unlike(folder, *known)
    return [f"{shown(folder)}: {changed}"] if changed else []


def retold(run: RunRecord) -> str:
    """How the recipe or copied task of a run that has ended changed since, in words; or empty."""
    manifest = run.manifest()
    then = (manifest.get("result") and (manifest.get("saved") or {}).get(_ABOUT)) or {}
    changed = [name for name, now in _told(run).items() if then.get(name, now) != now]
    return f"{' and '.join(changed)} changed since it was trained" if changed else ""


def check_told(run: RunRecord) -> None:
    """RunError if the run's recipe or copied task is no longer the one that was trained."""
    if changed := retold(run):
        raise RunError(
            f"{shown(run.path)}: {changed}",
            rule="a run's recipe and task say what was trained",
            remedy="put the file back: manifest.json has the recipe, and where the task came from;"
            " or train again",
        )


def as_saved(folder: Path) -> Path:
    """A folder with an adapter; RunError if it is a run's, and not what training saved."""
    for changed in unlike_saved(folder):
        sums, _ = recorded_sums(folder) or ({}, None)
        copies = (
            f"copy {shown(copy)} there, which has the bytes that were saved"
            for name, own in sums.items()
            for copy in sorted(folder.parent.glob(f"*/{name}"))
            if name in changed and size_and_sum(copy) == own
        )
        raise RunError(
            changed,
            rule="a saved adapter is used as training saved it, to the byte",
            remedy=f"{next(copies, 'put the file back from a copy')}; or train again",
        )
    return folder


def unsummed(run: RunRecord) -> str:
    """A line, where a run's adapter cannot be compared with what training saved; else empty."""
    saved = run._saved_adapter()
    if saved is None or recorded_sums(saved):
        return ""
    return f"{shown(saved)}: recorded without a sum, cannot be compared with what training saved"
