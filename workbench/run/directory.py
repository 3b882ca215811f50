"""The run directory: `recipe.yaml`, `manifest.json`, `metrics.jsonl`, `events.jsonl`, `rollouts/`,
`checkpoints/`, `export/`.

Lines are appended and flushed, whole files are renamed into place, and there is no pickle or
database: a kill at any moment loses at most the record of the step in flight, and a network mount
is as good as a disk. The weights are as old as the latest checkpoint.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from workbench.base.errors import RunError, nearest
from workbench.base.kinds import Fields
from workbench.base.workspace import (
    append_line,
    encodable,
    made,
    replace_file,
    resolve,
    shown,
    write_json,
)
from workbench.recipe import Recipe
from workbench.run.lock import in_turn
from workbench.run.record import RunRecord
from workbench.run.reopening import Aside, removed

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MOST_BESIDE = 4  # other runs that are named
_ONE_OWNER = "one process at a time owns a run"
# what `open_run` takes for another run; where `workbench notebook` writes
_RESERVED = ("latest", "notebooks")
# what `discard` removes
_WRITTEN = (
    "recipe.yaml", "manifest.json", "metrics.jsonl", "events.jsonl", "control.jsonl", "task.py",
    "warm_start.parquet", "rollouts", "checkpoints", "held_out", "tasks", "trackers",
)  # fmt: skip


class RunDirectory(RunRecord):
    """One run's folder. `create` starts a new one and owns it; `open_run` reads an old one.

    `adapter` is the newest saved one, `final` where it is saved when the run ends, stopped or not;
    `best`: see `eval_every`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._aside = Aside(path)
        # byte of control.jsonl from which requests are for this owner
        self.requests_from: int | None = None

    @property
    def adapter(self) -> Path:
        """The newest saved adapter: the final one, or that of the latest checkpoint if the run was
        killed.

        Raises RunError if the run was killed before it saved one, or trained a whole model; or if
        it is not the one that training saved.
        """
        from workbench.run.sealed import as_saved

        if (saved := self._saved_adapter()) is not None:
            return as_saved(saved)
        self.check_ended()
        rule = "a run saves its adapter every save_steps steps, and when it ends or is stopped"
        remedy = (
            f"choose another run{self._finished_one()}; to lose less next time, lower"
            " grpo.save_steps"
        )
        if self.manifest().get("attached"):
            rule = "a run of your own trainer keeps the final adapter, and no whole model"
            remedy = (
                "trainer.save_model(folder) saves the model; evaluate and export that with your own"
                " tools"
            )
        raise RunError(f"{shown(self.checkpoints)}: no adapter", rule=rule, remedy=remedy)

    def use_best(self, best: bool = True) -> Path:
        """From now on use the best adapter for export, proof and evaluation; False: the final one
        again.
        """
        with self.check_ended().alone("eval"), self.alone("export"):
            self.update_manifest(adapter=self.best.name if best else None)
            return self.adapter

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
        folder = resolve(root)
        if encodable(str(folder)) != str(folder):
            raise RunError(
                f"{encodable(str(folder))}: not in UTF-8",
                rule="Parquet opens paths in UTF-8 only",
                remedy="rename that folder, or set WORKBENCH_HOME to another",
            )
        names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        run = next(run for run in (cls(folder / each) for each in names) if run._claim())
        run.requests_from = 0
        newest = max((_modified(other) for other in _runs_in(folder)), default=0.0)
        with contextlib.ExitStack() as failed, run.writing():
            failed.callback(run.discard)
            run.write_json("manifest.json", manifest)
            file = run.path / "recipe.yaml"
            # last: it makes the folder a run
            recipe.model_copy(update={"run_name": run.name}).save(file)
            if _modified(run) <= newest:  # the clock was set back: it is the latest all the same
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
        if not self.live or (take_over and elsewhere):
            return
        value = f"{self.name} is training"
        remedy = (
            f"watch it: `workbench watch {self.name}`; or stop it first: `workbench control"
            f" {self.name} stop`"
        )
        if elsewhere:
            host = self.lock.owner.get("host", "an unknown machine")
            value += f" on {host}"
            remedy += (
                f"; or, if {host} is gone: `workbench continue {self.name} --take-over`,"
                " continue_run(..., take_over=True)"
            )
        raise RunError(value, rule=_ONE_OWNER, remedy=remedy)

    def reopen(self, step: int, take_over: bool = False) -> None:
        """Own a run again that has ended or was killed, to resume after `step`; RunError as in
        `check_free`.

        Its later records are kept aside until it `went_on`, or is `put_back`.
        """
        self.check_free(take_over)
        with self.writing(), contextlib.ExitStack() as failed:
            if not self.lock.take(over=take_over):
                raise RunError(
                    f"{self.name}: another process has just resumed it",
                    rule=_ONE_OWNER,
                    remedy="watch it: `workbench watch`",
                )
            failed.callback(self.lock.release)
            failed.callback(self.put_back)
            self.put_back()
            self._aside.take_out(step)
            requests = self.path / "control.jsonl"
            self.requests_from = requests.stat().st_size if requests.is_file() else 0
            manifest = self.manifest()
            before = manifest.get("result") or manifest.get("before")
            self.update_manifest(result=None, adapter=None, before=before)
            rows = [row for row in self.metrics() if row["step"] <= step]
            with replace_file(self.path / "metrics.jsonl") as beside:
                beside.touch()
                for row in rows:
                    append_line(beside, row)
            failed.pop_all()

    @property
    def kept_aside(self) -> bool:
        """Whether it was resumed, or killed while resuming, and has no new step on record."""
        return self._aside.kept

    def went_on(self) -> None:
        """A new step is on record: what was taken out is no longer needed."""
        self.lock.check()
        self._aside.drop()

    def put_back(self) -> None:
        """Restore the run, byte by byte, to before it was reopened, unless it `went_on`. After a
        kill, call it again.
        """
        if self.lock.mine:  # else it is somebody else's
            self._aside.put_back()

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

    def release(self) -> None:
        """Release the lock; nobody owns the run then."""
        self.lock.release()

    def discard(self) -> None:
        """Remove what a run wrote, and its folder if nothing else is in it: for a run that never
        took a step.
        """
        for name in _WRITTEN:
            removed(self.path / name)
        self.lock.release()
        if not any(self.path.iterdir()):
            self.path.rmdir()

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
            if other := self._finished_one():
                remedy += f"; or choose another run{other}"
            raise RunError(f"{self.name}: {self.state}", rule=rule, remedy=remedy)
        return self

    def _finished_one(self) -> str:
        for run in reversed(_runs_in(self.path.parent)):
            if run.path != self.path and run.has_adapter:
                return f", for example run_name = {run.name!r}, which has ended"
        return ""

    def update_manifest(self, **found: object) -> None:
        """Add later findings (shapes, timings, the result) to the manifest."""
        self.lock.check()
        with in_turn(self.path):
            self.write_json("manifest.json", {**self.read_json("manifest.json"), **found})

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
        event = {"time": now(), "event": kind, "step": step, **details}
        append_line(self.path / "events.jsonl", event)

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
    otherwise = "train one with notebook 03 or `workbench train`, or make one with `workbench demo`"
    otherwise += "" if names else f"; looked in {folder}"
    raise RunError(
        f"no run {str(name)[:200]!r} (runs in {shown(folder)}: {', '.join(names) or 'none'})",
        rule="a run is a folder with a recipe.yaml",
        remedy=nearest(str(name), names, otherwise),
    )


def _runs_in(folder: Path) -> list[RunDirectory]:
    # Begun last comes last.
    return sorted(
        (RunDirectory(file.parent) for file in folder.glob("*/recipe.yaml")), key=_modified
    )


def _modified(run: RunDirectory, name: str = "recipe.yaml") -> float:
    file = run.path / name
    return file.stat().st_mtime if file.is_file() else 0.0


# Which run "latest" is, where not just any may be it -> whether one may, and what is wrong with all
# of them where none may.
_LATEST: dict[str, tuple[Callable[[RunDirectory], bool], str]] = {
    "resting": (lambda run: not run.live, "all train"),
    "recorded": (
        lambda run: any(run.rollouts.glob("step-*.parquet")),
        "none has completions on record",
    ),
    "trained": (lambda run: run.has_adapter, "none has an adapter"),
    "measured": (lambda run: run.has_adapter, "none has an adapter"),
}


def _latest(known: list[RunDirectory], which: str) -> RunDirectory:
    if which == "begun":
        return known[-1]
    if which == "training":
        return next((run for run in reversed(known) if run.live), known[-1])
    may_be, lacks = _LATEST[which]
    runs = [run for run in known if may_be(run)]
    if which == "measured":
        runs.sort(key=lambda run: max(_modified(run), _modified(run, "evaluation.json")))
    if runs:
        return runs[-1]
    known[-1].check_ended()
    states = ", ".join(f"{run.name}: {run.state}" for run in known[-_MOST_BESIDE:])
    raise RunError(
        f"latest: {lacks} ({states})",
        rule="a run records every step, and saves its adapter when it ends or is stopped",
        remedy="train one with notebook 03 or `workbench train`, or name another run by its path",
    )


def check_name(name: str) -> None:
    """Raises RunError unless a run's name is a plain folder name."""
    rule = (
        "a run's name is a folder name: up to 128 letters, digits, '.', '_', '-', a letter or digit"
        " first"
    )
    if name in _RESERVED:
        rule = f"{' and '.join(_RESERVED)} mean something else"
    elif _NAME.fullmatch(name):
        return
    raise RunError(f"run_name = {name[:200]!r}", rule=rule, remedy="choose another run_name")


def now() -> str:
    """The time, in UTC, to the second, as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
