"""Holding an artefact against its passport: every byte of every file, the run if it is at hand, and the run trained again.

A passport suffices to train the run again where its task ships with the workbench. A task that is a file stays with its run,
as its rows are somebody's data: there the run's folder is needed, or the file (`task`), and sums tell whether it is the same.

On a CPU the same recipe gives the same bits if libraries, CPU and number of threads are the same, and unsloth is imported in both
or in neither. The last two are made so; what else is other is named, as a difference there proves nothing against the run.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workbench.errors import ExportError, RunError
from workbench.exporting import apart
from workbench.exporting.about import adapter_of, clean, steps_of, sums_of
from workbench.exporting.apart import Progress
from workbench.exporting.artefacts import meant
from workbench.exporting.passport import VERSION, changed, read_passport
from workbench.recipe import Recipe
from workbench.run.control_file import RunState, send
from workbench.run.directory import RunDirectory
from workbench.training.loading import base_differs
from workbench.workspace import append_line, find, shown, sum_of, write_json

Found = Iterator[tuple[bool | None, str]]  # whether it is as it was (None: cannot be told), and what
_NAMED = 3  # numbers that differ


@dataclass(frozen=True)
class Verified:
    """What of an artefact is as its passport says, and what is not."""

    artefact: str  # its folder, as shown
    holds: tuple[str, ...]
    differs: tuple[str, ...]
    untold: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()  # what is other than where it was trained, if it was trained again

    @property
    def passed(self) -> bool:
        return not self.differs

    def __str__(self) -> str:
        lines = [f"{self.artefact}: " + ("verified" if self.passed else "DIFFERS from its passport")]
        told = {"DIFFERS ": self.differs, "holds   ": self.holds, "cannot be told:": self.untold}
        lines += [f"  {mark} {line}" for mark, of in told.items() for line in of]
        if self.environment:
            why = "" if self.passed else ", so that a difference need not mean anything"
            lines.append(f"  other here than where it was trained{why}:")
        return "\n".join([*lines, *(f"    {line}" for line in self.environment)])


def verify(
    path: str | Path, rerun: bool = False, task: str | Path | None = None, progress: Progress = lambda *_: None
) -> list[Verified]:
    """Hold artefacts against their passports: one, by its folder or its `passport.json`, or all of a run, by its path or name.

    Args:
        rerun: train the run again, in a process of its own and a folder that goes away, and compare metrics, completions and
            adapter to the bit. It takes as long as the run; only for runs on a CPU, with a policy that is on this machine.
        task: the run's task file, where the run's folder is not at hand.
        progress: called with the steps trained again, and all of them.

    Raises:
        ExportError: if there is no artefact, its passport was changed, or the run cannot be trained again here.
    """
    found, again = [], {}
    for folder in meant(path)[1]:
        passport, run = read_passport(folder), _run_of(folder)
        seen, other = [*_files(folder, passport), *_made_of(passport), *(_against_run(passport, run) if run else ())], []
        if rerun:
            key = passport.get("run_id")
            again[key] = again.get(key) or _trained_again(passport, run, task, progress)
            seen, other = [*seen, *again[key][0]], again[key][1]
        lines = (tuple(line for same, line in seen if same is which) for which in (True, False, None))
        found.append(Verified(shown(folder), *lines, tuple(other)))
    return found


def _run_of(folder: Path) -> RunDirectory | None:
    exports = folder.resolve().parent
    is_run = exports.name == "export" and (exports.parent / "recipe.yaml").is_file()
    return RunDirectory(exports.parent) if is_run else None


def _files(folder: Path, passport: dict[str, Any]) -> Found:
    wrong = changed(folder)
    yield from ((False, f"{name} {what}") for name, what in wrong.items())
    if not wrong:
        yield True, f"{len(passport['files'])} files, byte by byte, and the passport itself"


def _made_of(passport: dict[str, Any]) -> Found:
    if passport.get("version") != VERSION:
        yield None, "made by another version of the workbench, which chose other completions as the sample, or said less"
    differs = base_differs(passport.get("trained_on"), passport["base_files"])
    yield None if differs is None else not differs, "the base as the run loaded it" + (f": {differs}" if differs else "")


def _against_run(passport: dict[str, Any], run: RunDirectory) -> Found:
    if passport.get("run_id") != run.identity:
        yield False, f"it was made from another run than {run.name}, in whose folder it lies"
        return
    same = passport["sums"]["recipe"] == sums_of(run)["recipe"]
    yield same, "the recipe is " + ("the run's" if same else "no longer the run's")
    with contextlib.suppress(RunError, OSError):  # it trains, or its adapter was taken away: nothing to compare with
        same = adapter_of(run)["sha256"] == passport["adapter"]["sha256"]
        yield same, "the adapter is " + ("the run's" if same else "not the run's, which may have gone on since the export")


# -- training again ------------------------------------------------------------------------------------------------------
def _trained_again(
    passport: dict[str, Any], run: RunDirectory | None, task: str | Path | None, progress: Progress
) -> tuple[list[tuple[bool | None, str]], list[str]]:
    # What was compared, and what is other here than there.
    from workbench.training.policy import BESIDE

    changes = RunState.of(run).changes if run else passport.get("changes", [])
    files = [change["file"] for change in changes if change["action"] == "reload"]
    _check_possible(passport, bool(run) or not files)
    threads = re.search(r"(\d+) threads", str((then := passport["environment"])["device"]))
    with tempfile.TemporaryDirectory(prefix="workbench-") as scratch:
        # What was changed while it trained, as an earlier run whose changes are made again.
        write_json((before := Path(scratch, "before")) / "manifest.json", {})
        for change in changes:
            append_line(before / "events.jsonl", change)
        for file in files:
            assert run is not None
            (before / file).parent.mkdir(parents=True, exist_ok=True)
            (before / file).write_bytes((run.path / file).read_bytes())
        recipe, beside = _recipe(passport, run, task).model_dump(mode="json"), str(then.get("backend")).endswith(BESIDE)
        request = {"folder": scratch, "recipe": recipe, "beside": beside, **passport["result"]}
        apart.run_apart(__name__, request, progress, {"OMP_NUM_THREADS": threads[1]} if threads else {})
        manifest = (done := RunDirectory(Path(scratch, "runs/again"))).manifest()
        here = clean({**manifest["versions"], **{name: manifest["policy"][name] for name in ("device", "backend")}})
        other = [f"{name}: {then.get(name)} then, {own} here" for name, own in here.items() if then.get(name, own) != own]
        return list(_compared(passport, done, manifest)), other


def _check_possible(passport: dict[str, Any], has_files: bool) -> None:
    device, status = ((passport.get(part) or {}).get(key) for part, key in (("environment", "device"), ("result", "status")))
    why = {
        "the passport names no run": "recipe" not in passport,
        "a trainer of somebody's own trained it, of which there is no recipe": passport.get("attached"),
        f"it was trained on {device}": not str(device).startswith("the CPU"),
        "several processes trained it": passport.get("processes", 1) > 1,
        "its policy had been trained before": passport.get("trained_before"),
        "it went on with another recipe, task or rewards than it was begun with": passport.get("accepted"),
        "its rewards were reloaded while it trained, and the run's folder, which keeps them, is not here": not has_files,
        f"its status is {status}": status not in ("finished", "stopped"),
    }
    if reasons := [reason for reason, holds in why.items() if holds]:
        rule = "a run that one process trained on a CPU, from its recipe alone, can be trained again to the same bits"
        raise ExportError(f"--rerun: {reasons[0]}", rule=rule, remedy="verify it without --rerun; `workbench prove` measures it")


def _recipe(passport: dict[str, Any], run: RunDirectory | None, task: str | Path | None) -> Recipe:
    recipe = run.recipe() if run else Recipe.of(passport["recipe"])
    recipe.run_name, recipe.grpo["report_to"] = "again", "none"
    file = find(task or recipe.task)
    if task is None and run and Path(run.manifest()["task"]["source"]).parent.is_dir() and (run.path / "task.py").is_file():
        file = run.path / "task.py"  # executed where its original lay, beside its rows
    if task is not None or file.is_file():
        recipe.task = str(file)
    elif not passport["task"]["ships"]:
        value = f"--rerun: the task file {passport['task']['file']} is not here"
        rule = "an artefact holds no rows: a task that is a file stays with its run"
        raise ExportError(value, rule=rule, remedy="verify it in the run's folder, or name the file: --task FILE")
    return recipe


class _Follows:
    """Says how far the run is, and stops it where it was stopped: on the schedule of all its steps."""

    def __init__(self, request: dict[str, Any], progress: Progress) -> None:
        self.steps, self.stops, self.progress = request["steps"], request["status"] == "stopped", progress

    def begin(self, run: RunDirectory, total_steps: int, settings: dict[str, Any]) -> None:
        self.run = run
        self.update(0, {})

    def update(self, step: int, values: dict[str, Any]) -> None:
        self.progress(step, self.steps)
        if self.stops and step == self.steps - 1:  # what is asked for now is done after the next
            send(self.run, "stop", by="verify")

    def end(self, message: str) -> None:
        pass


def _train(request: dict[str, Any], progress: Progress) -> dict[str, Any]:
    from workbench.training.trainer import train, trainer_classes

    if request["beside"] and find_spec("unsloth"):
        trainer_classes("unsloth")
    folder = Path(request["folder"])
    before = RunDirectory(folder / "before")
    train(Recipe.of(request["recipe"]), watchers=[_Follows(request, progress)], runs=folder / "runs", changes_of=before)
    return {}


def _compared(passport: dict[str, Any], run: RunDirectory, manifest: dict[str, Any]) -> Found:
    # First what went in, then what came out.
    went_in = {"training rows": (passport["task"]["rows"], manifest["task"]["rows"])}
    functions = passport["rewards"]["functions"] or {}
    went_in |= {f"reward function {name}": (functions.get(name), own) for name, own in manifest["rewards"]["functions"].items()}
    went_in |= {"chat template": (passport["template"], manifest["template"])}
    yield from ((False, f"not the run's {name}: {then} then, {now} now") for name, (then, now) in went_in.items() if then != now)
    then, again = passport["steps"], steps_of(run)
    if first := next((step for step in [*then, *again] if then.get(step) != again.get(step)), None):
        rows, last = passport["metrics"].items(), (run.metrics() or [{}])[-1]
        other = [f"{name} {own} then, {last.get(name)} now" for name, own in rows if "time" not in name and own != last.get(name)]
        rest = f"; in the last {'; '.join(other[:_NAMED])}" if other else ""
        yield False, f"trained again, its metrics differ from step {first} of {len(then)} on{rest}"
    else:
        yield True, f"trained again: the metrics of {len(then)} steps, to the bit"
    same = sums_of(run)["rollouts"] == passport["sums"]["rollouts"]
    if passport.get("version") == VERSION:
        said = f"trained again: {len(passport['rollouts'])} completions of the last step, "
        yield same, said + ("the same" if same else "others")
    kept = run.checkpoints / passport["adapter"]["from"] / "adapter_model.safetensors"
    same = kept.is_file() and sum_of(kept) == passport["adapter"]["sha256"]
    yield same, "trained again: the adapter" + (", to the bit" if same else " is another one")


if __name__ == "__main__":
    apart.answer(_train)
