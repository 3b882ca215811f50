"""What a run's folder holds, for whoever reads it.

A record may be another version's, a stranger's, or edited by hand. A value of another kind is left
out where it is read, with a warning that names it, so that nobody else has to look.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

from workbench.base.errors import DiskError, RunError, WorkbenchError
from workbench.base.kinds import Fields
from workbench.base.workspace import object_in, read_lines, shown, written
from workbench.recipe import Recipe, packaged
from workbench.run.held_out import best_of, held_out
from workbench.run.lock import Lock

# What a manifest's parts are, where they are there.
_SHAPE: dict[str, type] = {
    "stages": list,
    **dict.fromkeys(("result", "before", "settings", "task", "rewards", "policy", "saved"), dict),
}


class RunRecord:
    """A run's recipe, manifest, result, metrics, events and saved adapters, as they are now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name
        self.rollouts = path / "rollouts"
        self.checkpoints = path / "checkpoints"
        self.export = path / "export"
        self.final = self.checkpoints / "final"
        # a row for each completion that a warm start trained on
        self.warm_start = path / "warm_start.parquet"
        self.lock = Lock(path)

    @property
    def live(self) -> bool:
        """Whether the process that owns the run is still alive, as far as can be told from here."""
        return self.lock.held

    @property
    def identity(self) -> str:
        """The run's unique id, in any folder; empty for a run of an earlier version."""
        return str(self.manifest().get("id", ""))

    def recipe(self) -> Recipe:
        return Recipe.load(self.path / "recipe.yaml")

    def manifest(self) -> Fields:
        manifest = self.read_json("manifest.json")
        for name, kind in _SHAPE.items():
            if not isinstance(manifest.get(name), kind | None):
                file = shown(self.path / "manifest.json")
                raise RunError(
                    f"{file}: {name} = {str(manifest[name])[:80]!r}",
                    rule="it must be as training wrote it",
                    remedy=f"put it back, then {self.again}",
                )
        return next(fitted_lines("manifest.json", [manifest]), {})

    def result(self) -> Fields:
        """`status`, `steps` and `minutes`: from the manifest, or from the record of a run that has
        not ended by itself.

        The status is then "running" while its process lives, else "killed".
        """
        ended = self.manifest().get("result") or {}
        if {"status", "steps", "minutes"} <= ended.keys():
            return ended
        steps = self.metrics()
        return {
            "status": "running" if self.live else "killed",
            "steps": steps[-1]["step"] if steps else 0,
            "minutes": sum(float(row.get("step_time") or 0.0) for row in steps) / 60,
            **ended,
        }

    @property
    def state(self) -> str:
        """`still training, step 5 of 24`, or how it ended: `finished after 45 steps, measured`."""
        try:
            result, total = self.result(), self.planned_steps
        except (OSError, ValueError, KeyError, TypeError, WorkbenchError):
            return "not readable"
        steps = result["steps"]
        if result["status"] == "running":
            return f"still training, step {steps}" + (f" of {total}" if total else "")
        adapter = "" if self.has_adapter else ", no adapter"
        measured = ", measured" if (self.path / "evaluation.json").is_file() else ""
        return (
            f"{result['status']} after {steps} step{'' if steps == 1 else 's'}{adapter}{measured}"
        )

    @property
    def planned_steps(self) -> int:
        """Steps requested over all stages, `continue --steps` included; 0 for epochs."""
        effective = self.manifest().get("settings", {}).get("in_force", {})
        return max(0, int(self.recipe().requested_steps or effective.get("max_steps") or 0))

    @property
    def again(self) -> str:
        """How to resume once the cause is fixed."""
        with contextlib.suppress(OSError):  # with no handle left, nobody can look
            if not self.saved():
                return "train again: it had saved no checkpoint"
        return f"`workbench continue {self.name}` resumes from the newest whole checkpoint"

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
            raise RunError(
                error.value,
                rule="a run writes every step before it begins the next",
                remedy=f"{error.remedy}; then {self.again}",
            ) from (error.__cause__ or error)

    @contextlib.contextmanager
    def alone(self, work: str, refused: type[WorkbenchError] = RunError) -> Generator[Lock]:
        """Do `work` ("eval", "export") on the run in this process only; `refused` is raised if
        another process is doing it.
        """
        lock = Lock(self.path, f".{work}.lock")
        with written(self.path):
            taken = lock.take()
        if not taken:
            raise refused(
                f"{self.name}: another process is running {work} on it",
                rule="one process at a time may do that",
                remedy="wait until it has ended, and try again: what it made is kept",
            )
        try:
            yield lock
        finally:
            lock.release()

    def read_json(self, name: str) -> Fields:
        """Read one of the run's JSON files. Raises RunError if it is missing or torn."""
        file = self.path / name
        with contextlib.suppress(OSError):
            # also with a byte order mark, as some editors leave it
            if (content := object_in(file.read_bytes())) is not None:
                return content
        remedy = "run the notebook that writes it first"
        if name == "manifest.json":
            remedy = f"put it back, then {self.again}"
        why = "empty, torn, or not a JSON object" if file.is_file() else "no such file"
        raise RunError(
            f"{shown(file)}: {why}", rule="each stage reads what an earlier one left", remedy=remedy
        )

    def metrics(self) -> list[Fields]:
        """A row for each step, in order: where several lines about one step have a number, the
        latest counts.
        """
        rows: dict[int, Fields] = {}  # what a trainer measured after a step is in a separate line
        for row in self._lines("metrics.jsonl"):
            rows[row["step"]] = rows.get(row["step"], {}) | row
        return [rows[step] for step in sorted(rows)]

    def events(self) -> list[Fields]:
        return [*self._lines("events.jsonl")]

    def _lines(self, name: str) -> Iterator[Fields]:
        return fitted_lines(name, read_lines(self.path / name, being_written=self.live))

    def saved(self, kind: str = "checkpoint") -> list[Path]:
        """The folders of its checkpoints, the newest first; or of its "best" adapters."""
        steps = {
            int(number): folder
            for folder in self.checkpoints.glob(f"{kind}-*")
            if (number := folder.name.removeprefix(f"{kind}-")).isdecimal()
        }
        return [steps[step] for step in sorted(steps, reverse=True)]

    def _saved_adapter(self) -> Path | None:
        """The newest saved adapter, if there is one."""
        manifest: Fields = {}
        with contextlib.suppress(RunError):
            manifest = self.manifest()
        places = [self.final, *self.saved()]
        ended = (manifest.get("result") or {}).get("status") in ("finished", "stopped")
        if manifest.get("before") and not ended:
            # That of the end stays where the run resumes, until there is another; what is saved
            # meanwhile is newer.
            places = [*self.saved(), self.final]
        if chosen := manifest.get("adapter"):  # of `use_best`
            places.insert(0, self.checkpoints / chosen)
        return next((each for each in places if (each / "adapter_config.json").is_file()), None)

    @property
    def has_adapter(self) -> bool:
        """Whether it has ended, with an adapter."""
        return not self.live and self._saved_adapter() is not None

    @property
    def best(self) -> Path:
        """The adapter with the best held-out score of `eval_every`: `checkpoints/best-STEP`;
        RunError if there is none.
        """
        kept = {folder.name: folder for folder in self.saved("best")}
        measured = [own for own in held_out(self.events()) if f"best-{own['step']}" in kept]
        if (best := best_of(measured)) is None:
            raise RunError(
                f"{self.name}: no best adapter",
                rule="eval_every in the recipe keeps it",
                remedy="train with eval_every, or take run.adapter",
            )
        return kept[f"best-{best['step']}"]


# -- the kind of each value, by name (lines.yaml)
def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300


_FITS: dict[str | None, Callable[[Any], bool]] = {
    None: lambda value: True,
    "number": _number,
    "measure": lambda value: _number(value) or value in ("inf", "-inf"),
    "count": lambda value: type(value) is int and 0 <= value < 2**31,
    "text": lambda value: isinstance(value, str),
    "object": lambda value: isinstance(value, dict),
    "scale": lambda value: value in ("group", "batch", "none", True, False),
}
_known = functools.cache(functools.partial(packaged, Path(__file__).with_name("lines.yaml")))


def fitted_lines(file: str, lines: Iterable[Fields]) -> Iterator[Fields]:
    """The lines of a run's file (or the one object in it) that say something, without the values
    that do not fit.
    """
    kinds = _known()[file]
    for line in lines:
        known = kinds.get(str(line.get("action", line.get("event"))), kinds["any"])
        if kept := _kept((file,), line, known):
            yield kept


def _kept(place: tuple[str, ...], value: Any, kind: Any) -> Any:
    # None: it does not fit, or says nothing.
    if isinstance(kind, list) and isinstance(value, list):
        return [own for each in value if (own := _kept(place, each, kind[0])) is not None]
    if not (isinstance(kind, dict) and isinstance(value, dict)):
        return value if not isinstance(kind, dict | list) and _FITS[kind](value) else None
    kept = {}
    for name, own in value.items():
        fit = _kept((*place, name), own, kind.get(name, kind.get("*")))
        if fit is None is not own:
            where = ": ".join((*place, name))
            said = f"{where} = {own!r:.80}: left out, not as training writes it"
            warnings.warn(said, stacklevel=3)
        else:
            kept[name] = fit
    return None if any(kept.get(name) is None for name in kind.get("needs", ())) else kept
