"""The run directory: `recipe.yaml`, `manifest.json`, `metrics.jsonl`, `events.jsonl`, `rollouts/`,
`checkpoints/`, `export/`.

Lines are appended and flushed, whole files are renamed into place, and there is no pickle or
database: a kill at any moment loses at most the record of the step in flight, and a network mount
is as good as a disk. The weights are as old as the latest checkpoint.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from workbench.errors import DiskError, RunError, WorkbenchError, nearest
from workbench.kinds import Fields
from workbench.recipe import Recipe
from workbench.run.held_out import best_of, held_out
from workbench.run.lock import Lock, in_turn
from workbench.run.parts import cut_short
from workbench.secret import may_be_shown
from workbench.workspace import (
    append_line,
    encodable,
    made,
    read_lines,
    renamed,
    replace_file,
    replace_folder,
    resolve,
    shown,
    write_json,
    written,
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MOST_BESIDE = 4  # other runs that are named
_LIBRARIES = (
    "unsloth", "unsloth_zoo", "trl", "transformers", "peft", "datasets", "bitsandbytes", "torch",
    "vllm", "ipykernel",
    "grpo-workbench",
)  # fmt: skip
_DECIDING = ("UNSLOTH_", "TRL_", "VLLM_", "PYTORCH_", "CUBLAS_")
# What Unsloth leaves in the environment of a process about itself and the model that it loaded.
_LEFT_THERE = ("_IS_PRESENT", "UNSLOTH_PATCHED", "UNSLOTH_MODEL_NAME")
_ONE_OWNER = "one process at a time owns a run"
# what `open_run` takes for another run; where `workbench notebook` writes
_RESERVED = ("latest", "notebooks")
# What a run that goes on takes out is kept here until its first new step is on record, and then on
# the way back.
_ASIDE, _BACK, _NAMES = ".before", ".put-back", "names.json"
# by the first new step
_CHANGED = ("manifest.json", "recipe.yaml", "metrics.jsonl", "events.jsonl", "held_out", "tasks")
# What a manifest's parts are, where they are there.
_SHAPE: dict[str, type] = {
    "stages": list,
    **dict.fromkeys(("result", "before", "settings", "task", "rewards", "policy"), dict),
}


class RunDirectory:
    """One run's folder. `create` starts a new one and owns it; `open_run` reads an old one.

    `adapter` is the newest saved one, `final` where it is saved when the run ends, stopped or not;
    `best`: see `eval_every`.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        self.rollouts, self.checkpoints, self.export = (
            path / name for name in ("rollouts", "checkpoints", "export")
        )
        self.final = self.checkpoints / "final"
        # a row for each completion that a warm start trained on
        self.warm_start = path / "warm_start.parquet"
        self.lock = Lock(path)
        # byte of control.jsonl from which requests are for this owner
        self.requests_from: int | None = None

    @property
    def adapter(self) -> Path:
        """The newest saved adapter: the final one, or that of the latest checkpoint if the run was
        killed.

        Raises RunError if the run was killed before it saved one, or trained a whole model.
        """
        if (saved := self._saved_adapter()) is not None:
            return saved
        self.check_ended()
        rule = "a run saves its adapter every save_steps steps, and when it ends or is stopped"
        remedy = (
            f"choose another run{self._finished_one()}; to lose less next time, lower"
            " grpo.save_steps"
        )
        if self.manifest().get("attached"):
            rule = (
                "a run of your own trainer keeps the final adapter; a fully trained model is not"
                " kept"
            )
            remedy = (
                "trainer.save_model(folder) saves the model; evaluate and export that with your own"
                " tools"
            )
        raise RunError(f"{shown(self.checkpoints)}: no adapter", rule=rule, remedy=remedy)

    def saved(self) -> list[Path]:
        """The folders of its checkpoints, the newest first."""
        found = [
            folder
            for folder in self.checkpoints.glob("checkpoint-*")
            if folder.name[11:].isdecimal()
        ]
        return sorted(found, key=lambda folder: -int(folder.name[11:]))

    def _saved_adapter(self) -> Path | None:
        manifest: Fields = {}
        with contextlib.suppress(RunError):
            manifest = self.manifest()
        chosen = manifest.get("adapter")  # of `use_best`
        ended = (manifest.get("result") or {}).get("status") in ("finished", "stopped")
        # That of the end stays where the run goes on, until there is another; what is saved
        # meanwhile is newer.
        places = (
            [self.final, *self.saved()]
            if ended or not manifest.get("before")
            else [*self.saved(), self.final]
        )
        places = [*([self.checkpoints / chosen] if chosen else []), *places]
        return next((each for each in places if (each / "adapter_config.json").is_file()), None)

    @property
    def best(self) -> Path:
        """The adapter with the best held-out score of `eval_every`: `checkpoints/best-STEP`;
        RunError if there is none.
        """
        kept = {
            int(folder.name[5:]): folder
            for folder in self.checkpoints.glob("best-*")
            if folder.name[5:].isdecimal()
        }
        best = best_of([own for own in held_out(self.events()) if own["step"] in kept])
        if best is None:
            rule, remedy = (
                "eval_every in the recipe keeps it",
                "train with eval_every, or take run.adapter",
            )
            raise RunError(f"{self.name}: no best adapter", rule=rule, remedy=remedy)
        return kept[best["step"]]

    def use_best(self, best: bool = True) -> Path:
        """From now on use the best adapter for export, proof and evaluation; False: the final one
        again.
        """
        with self.check_ended().alone("eval"), self.alone("export"):
            self.update_manifest(adapter=self.best.name if best else None)
            return self.adapter

    @contextlib.contextmanager
    def alone(self, work: str, refused: type[WorkbenchError] = RunError) -> Generator[Lock]:
        """Do `work` ("eval", "export") on the run in this process only; `refused` is raised if
        another process is doing it.
        """
        lock = Lock(self.path, f".{work}.lock")
        with written(self.path):
            taken = lock.take()
        if not taken:
            value, rule = (
                f"{self.name}: another process is running {work} on it",
                "one process at a time may do that",
            )
            raise refused(
                value,
                rule=rule,
                remedy="wait until it has ended, and try again: what it made is kept",
            )
        try:
            yield lock
        finally:
            lock.release()

    @property
    def has_adapter(self) -> bool:
        """Whether it has ended, with an adapter."""
        return not self.live and self._saved_adapter() is not None

    @classmethod
    def create(
        cls, name: str, recipe: Recipe, manifest: Fields, root: str | Path = "runs"
    ) -> RunDirectory:
        """Make `root/name`, lock it, and write the recipe and the manifest. Raises RunError if
        `name` is not a plain file name.

        A folder that already holds a run is never overwritten: the new run is then called `name-2`,
        `name-3`, ….
        """
        check_name(name)
        if encodable(place := str(resolve(root))) != place:
            rule, remedy = (
                "Parquet opens paths in UTF-8 only",
                "rename that folder, or set WORKBENCH_HOME to another",
            )
            raise RunError(f"{place}: not in UTF-8", rule=rule, remedy=remedy)
        names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        run = next(run for own in names if (run := cls(resolve(root) / own))._claim())
        run.requests_from, newest = (
            0,
            max((_modified(file) for file in run.path.parent.glob("*/recipe.yaml")), default=0.0),
        )
        with contextlib.ExitStack() as failed, run.writing():
            failed.callback(run.discard)
            run.write_json("manifest.json", manifest)
            file = run.path / "recipe.yaml"
            # last: it makes the folder a run
            recipe.model_copy(update={"run_name": run.name}).save(file)
            if _modified(file) <= newest:  # the clock was set back: it is the latest all the same
                os.utime(file, (newest + 1, newest + 1))
            failed.pop_all()
        return run

    def _claim(self) -> bool:
        if self.path.is_file() or (self.path / "recipe.yaml").exists():
            return False
        made(self.path)
        with self.writing():
            if not self.lock.take():
                return False
        if begun := (self.path / "recipe.yaml").exists():  # by somebody who has released it already
            self.lock.release()
        return not begun

    def check_free(self, take_over: bool = False) -> None:
        """RunError if it is training; `take_over`: it was, on another machine that is gone (a lost
        Colab runtime).
        """
        elsewhere = self.lock.elsewhere
        if self.live and not (take_over and elsewhere):
            host = self.lock.owner.get("host", "an unknown machine")
            remedy = (
                f"watch it: `workbench watch {self.name}`; or stop it first: `workbench control"
                f" {self.name} stop`"
            )
            if elsewhere:
                again = (
                    f"`workbench continue {self.name} --take-over`, continue_run(...,"
                    " take_over=True)"
                )
                remedy += f"; or, if {host} is gone: {again}"
            there = f" on {host}" if elsewhere else ""
            raise RunError(f"{self.name} is training{there}", rule=_ONE_OWNER, remedy=remedy)

    def reopen(self, step: int, take_over: bool = False) -> None:
        """Own a run again that has ended or was killed, to resume after `step`; RunError as in
        `check_free`.

        Its later records are kept aside until it `went_on`, or is `put_back`.
        """
        self.check_free(take_over)
        with self.writing():
            self._take_back(step, take_over)

    def _take_back(self, step: int, take_over: bool) -> None:
        if not self.lock.take(over=take_over):
            value = f"{self.name}: another process has just resumed it"
            raise RunError(value, rule=_ONE_OWNER, remedy="watch it: `workbench watch`")
        with contextlib.ExitStack() as failed:
            failed.callback(self.lock.release)
            failed.callback(self.put_back)
            self.put_back()
            self._take_out(step)
            failed.pop_all()

    def _take_out(self, step: int) -> None:
        folders, aside = ("rollouts", "checkpoints", "held_out", "tasks"), self.path / _ASIDE
        with replace_folder(aside) as staged:
            for each in filter(Path.exists, (self.path / name for name in _CHANGED)):
                (shutil.copytree if each.is_dir() else shutil.copy2)(each, staged / each.name)
            for name in folders[:2]:
                (staged / name).mkdir()
            write_json(
                staged / _NAMES,
                {name: [each.name for each in (self.path / name).glob("*")] for name in folders},
            )
        torn = list(self.checkpoints.glob(".*.part"))  # by a kill
        later = [*self.saved(), *self.checkpoints.glob("best-*")]
        for folder in torn + [each for each in later if int(each.name.rpartition("-")[2]) > step]:
            renamed(folder, aside / "checkpoints" / folder.name)
        cut_short(self.rollouts, step, aside / "rollouts")
        asked = self.path / "control.jsonl"
        self.requests_from = asked.stat().st_size if asked.is_file() else 0
        manifest = self.manifest()
        self.update_manifest(
            result=None, adapter=None, before=manifest.get("result") or manifest.get("before")
        )
        rows = [row for row in self.metrics() if row["step"] <= step]
        with replace_file(self.path / "metrics.jsonl") as beside:
            beside.touch()
            for row in rows:
                append_line(beside, row)

    @property
    def kept_aside(self) -> bool:
        """Whether it was resumed, or killed while resuming, and has no new step on record."""
        return any((self.path / name).is_dir() for name in (_ASIDE, _BACK))

    def went_on(self) -> None:
        """A new step is on record: what was taken out is no longer needed."""
        self.lock.check()
        aside, gone = self.path / _ASIDE, self.path / f"{_ASIDE}.part"
        if aside.is_dir():
            renamed(aside, gone)  # at once: half of it could not be put back
        shutil.rmtree(gone, ignore_errors=True)

    def put_back(self) -> None:
        """Restore the run, byte by byte, to before it was reopened, unless it `went_on`. After a
        kill, call it again.
        """
        aside, back = self.path / _ASIDE, self.path / _BACK
        if not self.lock.mine:  # it is somebody else's
            return
        if aside.is_dir():
            for folder, names in json.loads((aside / _NAMES).read_text(encoding="utf-8")).items():
                for each in (self.path / folder).glob("*"):
                    # made since
                    if each.name not in names or (aside / folder / each.name).exists():
                        shutil.rmtree(each) if each.is_dir() else each.unlink()
            renamed(aside, back)
        if back.is_dir():
            for each in [
                *back.glob("*/*"),
                *(back / name for name in _CHANGED if (back / name).is_file()),
            ]:
                (place := self.path / each.relative_to(back)).parent.mkdir(exist_ok=True)
                renamed(each, place)
            shutil.rmtree(back)

    def mend(self, take_over: bool | None = None) -> RunDirectory:
        """The run itself; if it was killed while resuming, before a new step was on record, it is
        put back first.

        `take_over`: as for `reopen`. A reader, None, leaves it alone where the owner may live on
        another machine.
        """
        may = self.kept_aside and not (take_over is None and self.lock.elsewhere)
        # a drive that can only be read
        with contextlib.suppress(OSError), contextlib.ExitStack() as released:
            if may and self.lock.take(over=bool(take_over)):
                released.callback(self.lock.release)
                self.put_back()
        return self

    @contextlib.contextmanager
    def writing(self) -> Generator[None]:
        """RunError in place of the system's own error, where a file of the run cannot be
        written.
        """
        try:
            with written(self.path):
                yield
        except DiskError as error:
            if not (error.place.is_relative_to(self.path) or self.path.is_relative_to(error.place)):
                raise
            remedy = f"free some space, or reconnect the drive, then {self.again}"
            rule = "a run writes every step before it begins the next"
            raise RunError(error.value, rule=rule, remedy=remedy) from (error.__cause__ or error)

    @property
    def again(self) -> str:
        """How to resume once the cause is fixed."""
        with contextlib.suppress(OSError):  # with no handle left, nobody can look
            if not self.saved():
                return "train again: it had saved no checkpoint"
        return f"`workbench continue {self.name}` resumes from the newest whole checkpoint"

    def release(self) -> None:
        """Release the lock; nobody owns the run then."""
        self.lock.release()

    def discard(self) -> None:
        """Remove what a run wrote, and its folder if nothing else is in it: for a run that never
        took a step.
        """
        files = (
            "recipe.yaml manifest.json metrics.jsonl events.jsonl control.jsonl task.py"
            " warm_start.parquet"
        )
        for name in files.split():
            (self.path / name).unlink(missing_ok=True)
        self.lock.release()
        for folder in (
            self.rollouts,
            self.checkpoints,
            *(self.path / name for name in ("held_out", "tasks", "trackers")),
        ):
            shutil.rmtree(folder, ignore_errors=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def recipe(self) -> Recipe:
        return Recipe.load(self.path / "recipe.yaml", recorded=True)

    def manifest(self) -> Fields:
        manifest = self.read_json("manifest.json")
        for name, kind in _SHAPE.items():
            if not isinstance(manifest.get(name), kind | None):
                value = (
                    f"{shown(self.path / 'manifest.json')}: {name} = {str(manifest[name])[:80]!r}"
                )
                raise RunError(
                    value,
                    rule="it must be as training wrote it",
                    remedy=f"put it back, then {self.again}",
                )
        return manifest

    def result(self) -> Fields:
        """`status`, `steps` and `minutes`: from the manifest, or from the record of a run that has
        not ended by itself.

        The status is then "running" while its process lives, else "killed".
        """
        if (ended := self.manifest().get("result")) is not None:
            return ended
        steps, status = self.metrics(), "running" if self.live else "killed"
        minutes = sum(row.get("step_time") or 0.0 for row in steps) / 60
        return {"status": status, "steps": steps[-1]["step"] if steps else 0, "minutes": minutes}

    @property
    def state(self) -> str:
        """`still training, step 5 of 24`, or how it ended: `finished after 45 steps, measured`."""
        try:
            result, total = self.result(), planned_steps(self)
        except (OSError, ValueError, KeyError, TypeError, WorkbenchError):
            return "not readable"
        if result["status"] == "running":
            return f"still training, step {result['steps']}" + (f" of {total}" if total else "")
        adapter = "" if self.has_adapter else ", no adapter"
        measured = ", measured" if (self.path / "evaluation.json").is_file() else ""
        return (
            f"{result['status']} after {result['steps']}"
            f" step{'s' * (result['steps'] != 1)}{adapter}{measured}"
        )

    def describe(self, asked: str | Path = "latest") -> str:
        """`a (finished after 45 steps)`; for "latest", also the other runs beside it, the newest
        first.
        """
        own = f"{self.name} ({self.state})"
        if str(asked) != "latest":
            return own
        others = [run for run in reversed(_runs_in(self.path.parent)) if run.path != self.path]
        named = [f"{run.name} ({run.state})" for run in others[:_MOST_BESIDE]]
        if len(others) > _MOST_BESIDE:
            named.append(f"{len(others) - _MOST_BESIDE} more")
        return f"latest: {own}" + (f"; beside it: {', '.join(named)}" if named else "")

    def check_ended(self) -> RunDirectory:
        """The run itself. Raises RunError if it is training, with its progress."""
        if self.live:
            rule = "a run saves its adapter when it ends or is stopped"
            remedy = f"wait; or stop it, which saves: `workbench control {self.name} stop`"
            if found := self._finished_one():
                remedy += f"; or choose another run{found}"
            raise RunError(f"{self.name}: {self.state}", rule=rule, remedy=remedy)
        return self

    def _finished_one(self) -> str:
        found = [
            run.name
            for run in _runs_in(self.path.parent)
            if run.path != self.path and run.has_adapter
        ]
        return f", for example run_name = {found[-1]!r}, which has ended" if found else ""

    @property
    def live(self) -> bool:
        """Whether the process that owns the run is still alive, as far as can be told from here."""
        return self.lock.held

    @property
    def identity(self) -> str:
        """The run's unique id, in any folder; empty for a run of an earlier version."""
        return str(self.manifest().get("id", ""))

    def update_manifest(self, **found: object) -> None:
        """Add later findings (shapes, timings, the result) to the manifest."""
        self.lock.check()
        with in_turn(self.path):
            self.write_json("manifest.json", {**self.manifest(), **found})

    def read_json(self, name: str) -> Fields:
        """Read one of the run's JSON files. Raises RunError if it is missing or torn."""
        file, content = self.path / name, None
        with contextlib.suppress(OSError, ValueError, RecursionError):
            # with a byte order mark, too, as some editors leave it
            content = json.loads(file.read_bytes())
        if isinstance(content, dict):
            return content
        rule, remedy = (
            "each stage reads what an earlier one left",
            "run the notebook that writes it first",
        )
        if name == "manifest.json":
            remedy = f"put it back, then {self.again}"
        value = f"{shown(file)}: " + (
            "empty, torn, or not a JSON object" if file.is_file() else "no such file"
        )
        raise RunError(value, rule=rule, remedy=remedy)

    def write_json(self, name: str, content: object) -> Path:
        """Write one of the run's JSON files atomically."""
        return write_json(self.path / name, content)

    def log_metrics(self, step: int, values: Fields) -> None:
        """Append one row of numbers to `metrics.jsonl`. Like all writers: RunError if another
        process now owns the run.
        """
        self.lock.check()
        append_line(self.path / "metrics.jsonl", {"step": step, **values})

    def log_event(self, kind: str, step: int | None = None, **details: object) -> None:
        """Append one event (`started`, `stopped`, `checkpoint`, `finished`, `failed`, …) to
        `events.jsonl`.
        """
        self.lock.check()
        append_line(
            self.path / "events.jsonl", {"time": now(), "event": kind, "step": step, **details}
        )

    def metrics(self) -> list[Fields]:
        """A row for each step, in order: where several lines about one step have a number, the
        latest counts.
        """
        rows: dict[int, Fields] = {}  # what a trainer measured after a step is in a separate line
        for row in read_lines(self.path / "metrics.jsonl", being_written=self.live):
            if isinstance(step := row.get("step"), int):
                rows[step] = rows.get(step, {}) | row
        return [rows[step] for step in sorted(rows)]

    def events(self) -> list[Fields]:
        lines = read_lines(self.path / "events.jsonl", being_written=self.live)
        return [event for event in lines if isinstance(event.get("event"), str)]

    def __repr__(self) -> str:
        return f"RunDirectory({shown(self.path)!r})"


def open_run(
    name: str | Path = "latest", root: str | Path = "runs", latest: str = "begun"
) -> RunDirectory:
    """Open a run by name, by path, or the latest one. Raises RunError if there is none, and lists
    the existing runs.

    >>> run = wb.open_run("latest", latest="trained")
    >>> run.result()["status"]
    'finished'

    Args:
        name: its name under `root`, its path, or "latest".
        latest: which run "latest" is. "begun": the one begun last. "training": the one that is
            training; if none is, the one begun last. "resting": the one begun last of those not
            training; "recorded": of those with completions on record; "trained": of those that
            ended with an adapter. "measured": like "trained", but the run that notebook 04 has
            measured since the last of them was begun comes first.
    """
    folder = resolve(root)
    known = _runs_in(folder)
    if str(name) == "latest" and known:
        return _latest(known, latest).mend()
    for candidate in (resolve(name), folder / str(name)):
        with contextlib.suppress(OSError, ValueError):  # a name that no file can have
            if str(name) != "latest" and (candidate / "recipe.yaml").is_file():
                return RunDirectory(candidate).mend()
    names = [run.name for run in known]
    value = f"no run {str(name)[:200]!r} (runs in {shown(folder)}: {', '.join(names) or 'none'})"
    otherwise = "train one with notebook 03 or `workbench train`, or make one with `workbench demo`"
    raise RunError(
        value,
        rule="a run is a folder with a recipe.yaml",
        remedy=nearest(str(name), names, otherwise),
    )


def _runs_in(folder: Path) -> list[RunDirectory]:
    # Begun last comes last.
    return [
        RunDirectory(file.parent) for file in sorted(folder.glob("*/recipe.yaml"), key=_modified)
    ]


def _modified(file: Path) -> float:
    return file.stat().st_mtime if file.is_file() else 0.0


# Which run "latest" is -> whether a run may be it, and what is wrong with all of them where none
# may.
_LATEST: dict[str, tuple[Callable[[RunDirectory], bool], str]] = {
    "begun": (lambda run: True, ""),
    "training": (lambda run: run.live, ""),
    "resting": (lambda run: not run.live, "all train"),
    "recorded": (
        lambda run: any(run.rollouts.glob("step-*.parquet")),
        "none has completions on record",
    ),
    "trained": (lambda run: run.has_adapter, "none has an adapter"),
    "measured": (lambda run: run.has_adapter, "none has an adapter"),
}


def _latest(known: list[RunDirectory], which: str) -> RunDirectory:
    may_be, lacks = _LATEST[which]
    found = [run for run in known if may_be(run)]
    if which == "measured":
        found.sort(
            key=lambda run: max(
                _modified(run.path / name) for name in ("recipe.yaml", "evaluation.json")
            )
        )
    if found or which == "training":
        return (found or known)[-1]
    known[-1].check_ended()
    raise RunError(
        f"latest: {lacks}"
        f" ({', '.join(f'{run.name}: {run.state}' for run in known[-_MOST_BESIDE:])})",
        rule="a run records every step, and saves its adapter when it ends or is stopped",
        remedy="train one with notebook 03 or `workbench train`, or name another run by its path",
    )


def planned_steps(run: RunDirectory) -> int:
    """Steps requested of a run, over all stages; 0 if it was asked for epochs."""
    recipe = run.recipe()
    if recipe.stages:
        return sum(stage.steps for stage in recipe.stages)
    return max(0, int(run.manifest().get("settings", {}).get("in_force", {}).get("max_steps") or 0))


def check_name(name: str) -> None:
    """Raises RunError unless a run's name is a plain folder name."""
    if not _NAME.fullmatch(name) or name in _RESERVED:
        rule = (
            "a run's name is a folder name: up to 128 letters, digits, '.', '_', '-', a letter or"
            " digit first"
        )
        rule = f"{' and '.join(_RESERVED)} mean something else" if name in _RESERVED else rule
        raise RunError(f"run_name = {name[:200]!r}", rule=rule, remedy="choose another run_name")


def now() -> str:
    """The time, in UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> Fields:
    """Python, the libraries (None where one is absent), the machine, and the workbench's own commit
    if it has one.
    """
    found: Fields = {"python": platform.python_version(), **dict.fromkeys(_LIBRARIES)}
    for library in _LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[library] = metadata.version(library)
    root, commit = Path(__file__).parents[2], ""
    if (root / ".git").exists():
        describe = ["git", "-C", str(root), "describe", "--always", "--dirty"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            commit = subprocess.run(
                describe, capture_output=True, text=True, timeout=10, check=True
            ).stdout.strip()
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return found | {"machine": machine, "cpu": _cpu(), "commit": commit or None}


def environment() -> dict[str, str]:
    """The set variables by which libraries decide how to compute; for secrets and paths only that
    they are set.
    """
    own = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_DECIDING) and not name.endswith(_LEFT_THERE)
    }
    return {
        name: own[name] if may_be_shown(name, own[name]) else "set, not shown"
        for name in sorted(own)
    }


def _cpu() -> str | None:
    # Its model decides which kernels run, and so the last bits of what is trained.
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None
