"""Experiment trackers beside the run's own files: TensorBoard, Trackio, Weights & Biases, MLflow,
and any other that transformers has a callback for.

The run directory is the record, and it is complete without them; so a tracker may fail at any
moment: its first error is reported once and removes it. One that hangs holds the run up, as it
would hold up any trainer. What a tracker writes goes to `runs/<run_name>/trackers/<tracker>`,
unless the environment says otherwise; nothing is sent anywhere that the environment does not ask
for, nor TRL's table of completions, as its `report_to` names no tracker.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from workbench import processes
from workbench.kinds import (
    Fields,
    Function,
    Trainer,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from workbench.recipe import packaged
from workbench.training.feature import Feature
from workbench.training.plan import Stage
from workbench.training.settings.values import check_trackers
from workbench.workspace import shown

PROJECT = "grpo-workbench"
# By tracker: its environment, its library, and how to look at it.
KNOWN: dict[str, Fields] = packaged(Path(__file__).with_suffix(".yaml"))
# Trackio's folders, which it reads once, when it is imported.
_TRACKIO = {"TRACKIO_DIR": "", "MEDIA_DIR": "media", "ARTIFACTS_DIR": "artifacts"}
OnFailure = Callable[[str, str], None]


class Trackers(Feature):
    """The trackers of a run's `report_to`; the main process reports."""

    key = "trackers"
    of_recipe = True

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        run = session.run

        def failed(name: str, error: str) -> None:
            run.log_event("tracker_failed", tracker=name, error=error)
            print(f"{name} failed and is left out, training continues: {error}", flush=True)

        self.callbacks, lines = tracker_callbacks(
            session.stages[0].settings["report_to"], run.name, run.path / "trackers", failed
        )
        for line in lines:
            print(line)

    @classmethod
    def check(cls, stage: Stage, where: str) -> None:
        check_trackers(stage.settings["report_to"])

    def around(self, trainer: Trainer) -> dict[str, Function]:
        """Nothing is replaced; they come after the spine's own events, and so log what the record
        holds.
        """
        for tracker in self.callbacks:
            trainer.add_callback(tracker)
        return {}

    def close(self) -> None:
        for tracker in self.callbacks:
            tracker.close()


def planned_trackers(report_to: str | Sequence[str] | None) -> tuple[list[str], list[str]]:
    """(trackers usable here, one line for each that was requested and is not installed);
    RecipeError for an unknown one.
    """
    from transformers.integrations.integration_utils import get_available_reporting_integrations

    names, notes = [], []
    asked = check_trackers(report_to)
    for name in get_available_reporting_integrations() if asked == ["all"] else asked:
        known = KNOWN.get(name, {})
        if any(map(importlib.util.find_spec, known.get("modules", [name]))):
            names.append(name)
        else:
            notes.append(
                f"WARNING: report_to = {name} is left out: it is not installed (uv pip install"
                f" {known.get('package', name)}); the run's own files are written as always"
            )
    return names, notes


def tracker_callbacks(
    report_to: str | Sequence[str] | None, run_name: str, folder: str | Path, on_failure: OnFailure
) -> tuple[list[Any], list[str]]:
    """(a callback for each tracker, the lines to show). Build GRPOConfig with `report_to="none"`
    and add these instead.

    A run may train in several stages, with a trainer each: the callbacks see the first begin, every
    log line, and end at `close()`, which the run calls however it ended. `on_failure` is called
    once with (tracker, what went wrong) for a tracker that is removed. Of several processes, the
    main one reports.
    """
    names, notes = planned_trackers(report_to if processes.is_main() else None)
    callbacks = []
    for name in names:
        settings, line = _environment(name, Path(folder).absolute() / name)
        # a class for each: the trainer takes two of the same class for a mistake
        tracker = type(name, (Tracker,), {})(name, run_name, settings, on_failure)
        if tracker.inner is not None:
            callbacks.append(tracker)
            notes.append(line)
    return callbacks, notes


def _environment(name: str, place: Path) -> tuple[dict[str, str], str]:
    """(environment variables that its library reads and the user has not set, the line that says
    where it writes).
    """
    words = {"place": str(place), "folder": shown(place), "project": PROJECT}
    known = KNOWN.get(name, {})
    wanted = {key: text.format(**words) for key, text in known.get("environment", {}).items()}
    # Without a key wandb asks for one, or waits.
    if name == "wandb" and not os.environ.get("WANDB_API_KEY"):
        wanted["WANDB_MODE"] = "offline"
    settings = {key: value for key, value in wanted.items() if not os.environ.get(key)}
    if not any(str(place) in value for value in settings.values()):
        return settings, f"{name}: where the environment says"
    place.mkdir(parents=True, exist_ok=True)
    return settings, f"{name}: in {shown(place)}; to look at it: {known['look'].format(**words)}"


class Tracker:
    """A trainer's callback that forwards its events to the tracker's own for as long as that
    works.
    """

    def __init__(
        self, name: str, run_name: str, settings: dict[str, str], on_failure: OnFailure
    ) -> None:
        self.name, self.run_name, self.on_failure = name, run_name, on_failure
        self.inner: Any = None  # the tracker's own callback, while it works
        self.end: Callable[[], object] | None = None  # from the first event on
        # For as long as it works: libraries read the environment again when they log, some in
        # separate threads.
        self.environment = contextlib.ExitStack()
        self.environment.enter_context(_in_environment(settings))
        self.inner = self.guarded("start", lambda: _start(name, run_name, settings))

    def __getattr__(self, event: str) -> Callable[..., None]:
        if not event.startswith("on_"):
            raise AttributeError(event)
        # a stage's end is not the run's
        return functools.partial(self.forward, "" if event == "on_train_end" else event)

    def close(self) -> None:
        """End the tracker's run and restore the environment; a second call does nothing."""
        if self.end:
            self.end()
        if self.inner is not None and self.name == "wandb" and self.inner.own:
            # transformers leaves wandb's run open, and the next run in this process would be
            # logged into it.
            self.guarded("end", self.inner._wandb.finish)
        self.leave_out()

    def forward(
        self,
        event: str,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **more: Any,
    ) -> None:
        """Call the tracker's own `event`, for a run of the workbench's name."""
        later_stage = event == "on_train_begin" and self.end
        kept = {key: more.get(key) for key in ("model", "processing_class")}
        self.end = functools.partial(self.forward, "on_train_end", args, state, control, **kept)
        method = getattr(self.inner, event, None)
        if later_stage or method is None:
            return
        own = copy.copy(args)
        own.run_name, own.report_to = self.run_name, [self.name]
        if getattr(own, "project", None) == "huggingface":  # the default of transformers
            own.project = PROJECT
        if logs := more.get("logs"):
            # A function that scored nothing logs None, which is no number to any of them.
            more["logs"] = {key: value for key, value in logs.items() if value is not None}
        # A copy of control: to watch a run is not to steer it.
        self.guarded(
            event.removeprefix("on_"), lambda: method(own, state, copy.copy(control), **more)
        )

    def guarded(self, when: str, call: Callable[[], object]) -> Any:
        """What the call returns; if it fails, the tracker is left out."""
        try:
            return call()
        except (Exception, SystemExit) as error:
            self.leave_out()
            first_line = str(error).strip().partition("\n")[0]
            self.on_failure(self.name, f"{when}: {type(error).__name__}: {first_line}")

    def leave_out(self) -> None:
        """Forward nothing more, and restore the environment."""
        self.inner = None
        self.environment.close()


def _start(name: str, run_name: str, settings: dict[str, str]) -> Any:
    from transformers.integrations import get_reporting_integration_callbacks

    callback = get_reporting_integration_callbacks(name)[0]()
    if name == "wandb":
        import wandb

        callback.own = wandb.run is None  # else the user's own, which stays open
        if callback.own:
            # wandb reads its folder from the environment once per process; a run started here is
            # told it in words.
            told: Fields = {
                word: settings.get(f"WANDB_{word.upper()}") for word in ("dir", "mode", "project")
            }
            wandb.init(name=run_name, **told)
    return callback


@contextlib.contextmanager
def _in_environment(settings: dict[str, str]) -> Generator[None]:
    # MLflow sets that itself
    before = {key: os.environ.get(key) for key in (*settings, "MLFLOW_EXPERIMENT_ID")}
    os.environ.update(settings)
    moved = []
    if place := settings.get("TRACKIO_DIR"):
        # TRL imports it long before there is a run.
        import trackio.sqlite_storage  # noqa: F401

        modules = [module for key, module in sys.modules.items() if key.split(".")[0] == "trackio"]
        moved = [(vars(one), key) for one in modules for key in _TRACKIO if key in vars(one)]
        moved = [(names, key, names[key]) for names, key in moved]
        for names, key, _ in moved:
            names[key] = Path(place) / _TRACKIO[key]
    try:
        yield
    finally:
        for names, key, value in moved:
            names[key] = value
        for key, value in before.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = value
