"""Experiment trackers beside the run's own files: TensorBoard, Trackio, Weights & Biases, MLflow,
and any other that transformers has a callback for.

The run directory is the record, and it is complete without them; so a tracker may fail or hang at
any moment. Each runs in a separate thread with a deadline for every event: the first failure is
reported once and removes that tracker. What a tracker writes goes to
`runs/<run_name>/trackers/<tracker>`, unless the environment says otherwise; nothing is sent
anywhere that the environment does not ask for, nor TRL's table of completions, as its `report_to`
names no tracker.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import os
import queue
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from workbench import processes
from workbench.kinds import Fields, Function, Trainer
from workbench.training.feature import Feature
from workbench.training.plan import Stage
from workbench.training.settings.values import check_trackers
from workbench.workspace import shown

PROJECT = "grpo-workbench"
DEADLINE_S = 60.0  # for one event of one tracker; a tracker that works takes milliseconds
# where pip's name is another
_PACKAGES = {"comet_ml": "comet-ml", "azure_ml": "azureml-core", "flyte": "flytekit"}
_MODULES = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "azure_ml": ("azureml",),
    "flyte": ("flytekit",),
    "kubeflow": (),
}
OnFailure = Callable[[str, str], None]


class Trackers(Feature):
    """The trackers of a run's `report_to`; the main process reports."""

    key = "trackers"

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        run = session.run
        wanted = session.stages[0].settings["report_to"] if processes.is_main() else "none"

        def failed(name: str, error: str) -> None:
            run.log_event("tracker_failed", tracker=name, error=error)
            print(f"{name} failed and is left out, training continues: {error}", flush=True)

        self.callbacks, lines = tracker_callbacks(wanted, run.name, run.path / "trackers", failed)
        for line in lines:
            print(line)

    @classmethod
    def of(cls, session: Any) -> Trackers | None:
        return cls(session) if session.policy else None

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

    asked = check_trackers(report_to)
    asked = get_available_reporting_integrations() if asked == ["all"] else asked
    modules = {name: _MODULES.get(name, (name,)) for name in asked}
    found = [
        name for name, own in modules.items() if not own or any(map(importlib.util.find_spec, own))
    ]
    return found, [
        f"WARNING: report_to = {name} is left out: it is not installed (uv pip install"
        f" {_PACKAGES.get(name, name)}); the run's own files are written as always"
        for name in asked
        if name not in found
    ]


def tracker_callbacks(
    report_to: str | Sequence[str] | None, run_name: str, folder: str | Path, on_failure: OnFailure
) -> tuple[list[Any], list[str]]:
    """(a callback for each tracker, the lines to show). Build GRPOConfig with `report_to="none"`
    and add these instead.

    A run may train in several stages, with a trainer each: the callbacks see the first begin, every
    log line, and end at `close()`, which the run calls however it ended. `on_failure` is called
    once with (tracker, what went wrong), in the trainer's own thread, for a tracker that is
    removed.
    """
    names, notes = planned_trackers(report_to)
    # of several processes that train together, the first reports
    if os.environ.get("RANK", "0") != "0":
        return [], []
    callbacks = []
    for name in names:
        settings, line = _environment(name, Path(folder).absolute() / name)
        tracker = _guarded(name, run_name, settings, on_failure)
        if tracker.works:
            callbacks.append(tracker)
            notes.append(line)
    return callbacks, notes


def _environment(name: str, place: Path) -> tuple[dict[str, str], str]:
    """(environment variables that its library reads and the user has not set, the line that says
    where it writes).
    """
    # A database is what MLflow wants; its small edition (mlflow-skinny) has none and keeps files.
    store = (
        f"sqlite:///{place}/mlflow.db" if importlib.util.find_spec("sqlalchemy") else place.as_uri()
    )
    # Without a key wandb asks for one, or waits.
    offline = not os.environ.get("WANDB_API_KEY") and not os.environ.get("WANDB_MODE")
    folder, wanted, after = shown(place), {}, ""
    match name:
        case "tensorboard":
            wanted, after = (
                {"TENSORBOARD_LOGGING_DIR": str(place)},
                f"; to look at it: tensorboard --logdir {folder}",
            )
        case "trackio":
            wanted, after = (
                {"TRACKIO_DIR": str(place)},
                f"; to look at it: TRACKIO_DIR={folder} trackio show",
            )
        case "wandb":
            # Its console would send the notebook's output through itself; 30 s: a network that is
            # not there.
            wanted = {
                "WANDB_DIR": str(place),
                "WANDB_PROJECT": PROJECT,
                "WANDB_SILENT": "true",
                "WANDB_CONSOLE": "off",
            }
            wanted |= {"WANDB_INIT_TIMEOUT": "30"} | ({"WANDB_MODE": "offline"} if offline else {})
            after = (
                f"; offline, as WANDB_API_KEY is not set: wandb sync {folder}/wandb/offline-run-*"
                * offline
            )
        case "mlflow":
            wanted = {
                "MLFLOW_TRACKING_URI": store,
                "MLFLOW_EXPERIMENT_NAME": PROJECT,
                "MLFLOW_ALLOW_FILE_STORE": "true",
            }
            wanted["MLFLOW_DISABLE_TELEMETRY"] = "true"
            after = f"; to look at it: mlflow ui --backend-store-uri {store}"
    settings = {key: value for key, value in wanted.items() if not os.environ.get(key)}
    if not any(str(place) in value for value in settings.values()):
        return settings, f"{name}: where the environment says"
    place.mkdir(parents=True, exist_ok=True)
    return settings, f"{name}: in {folder}{after}"


def _work(calls: queue.SimpleQueue) -> None:
    while (item := calls.get()) is not None:
        function, future = item
        try:
            future.set_result(function())
        except BaseException as error:  # a library that calls sys.exit must not end the run either
            future.set_exception(error)


def _guarded(name: str, run_name: str, settings: dict[str, str], on_failure: OnFailure) -> Any:
    """A `TrainerCallback` that forwards a trainer's events to the tracker's own callback for as
    long as that works.
    """
    from transformers import TrainerCallback

    # a class for each: the trainer takes two of the same class for a mistake
    class Tracker(TrainerCallback):
        def __init__(self) -> None:
            self.name = name
            self._inner: Any = None
            self._last: tuple[Any, ...] = ()  # what the latest event came with
            # One thread for its whole life: trackio and mlflow keep their run in variables of the
            # thread.
            self._calls: queue.SimpleQueue = queue.SimpleQueue()
            threading.Thread(
                target=_work, args=(self._calls,), name=f"tracker-{name}", daemon=True
            ).start()
            # For as long as it works: libraries read the environment again when they log, some in
            # threads of their own.
            self._environment = contextlib.ExitStack()
            self._environment.enter_context(_in_environment(settings))
            self._inner = self._guard("start", lambda: _start(name, run_name, settings))

        @property
        def works(self) -> bool:
            """Whether it still receives the run's events."""
            return self._inner is not None

        def close(self) -> None:
            """End the tracker's run and restore the environment; a second call does nothing."""
            if self._last:
                self._pass("on_train_end", *self._last[:3], **self._last[3])
            if self.works and name == "wandb" and self._inner.own:
                # transformers leaves wandb's run open, and the next run in this process would be
                # logged into it.
                self._guard("end", self._inner._wandb.finish)
            self._let_go()

        def _pass(self, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            later_stage = event == "on_train_begin" and self._last
            self._last = (
                args,
                state,
                control,
                {key: kwargs.get(key) for key in ("model", "processing_class")},
            )
            if (
                later_stage
                or not self.works
                or getattr(type(self._inner), event) is getattr(TrainerCallback, event)
            ):
                return
            own, method = copy.copy(args), getattr(self._inner, event)
            own.run_name, own.report_to = run_name, [name]
            if getattr(own, "project", None) == "huggingface":  # the default of transformers
                own.project = PROJECT
            if kwargs.get("logs"):
                # A function that scored nothing logs None, which is no number to any of them.
                kwargs["logs"] = {
                    key: value for key, value in kwargs["logs"].items() if value is not None
                }
            # A copy of control: to watch a run is not to steer it.
            self._guard(
                event.removeprefix("on_"), lambda: method(own, state, copy.copy(control), **kwargs)
            )

        def _guard(self, when: str, call: Callable[[], Any]) -> object:
            future: Future = Future()
            self._calls.put((call, future))
            try:
                return future.result(DEADLINE_S)
            except (Exception, SystemExit) as error:
                late = "" if future.done() else f"no answer within {DEADLINE_S:g} s"
                self._let_go()
                on_failure(
                    name,
                    f"{when}: {type(error).__name__}:"
                    f" {(str(error).strip() or late).partition(chr(10))[0]}",
                )

        def _let_go(self) -> None:
            self._inner = None
            self._calls.put(None)
            self._environment.close()

    for event in vars(TrainerCallback):
        if event.startswith("on_") and event != "on_train_end":  # a stage's end is not the run's
            setattr(Tracker, event, functools.partialmethod(Tracker._pass, event))
    return Tracker()


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
                word: settings[key]
                for word, key in (("dir", "WANDB_DIR"), ("mode", "WANDB_MODE"))
                if key in settings
            }
            wandb.init(project=os.environ.get("WANDB_PROJECT", PROJECT), name=run_name, **told)
    return callback


@contextlib.contextmanager
def _in_environment(settings: dict[str, str]) -> Generator[None]:
    # MLflow sets that itself
    before = {key: os.environ.get(key) for key in (*settings, "MLFLOW_EXPERIMENT_ID")}
    os.environ.update(settings)
    moved = []
    if place := settings.get("TRACKIO_DIR"):
        # Trackio reads its folder once, when it is imported, and TRL imports it long before there
        # is a run.
        import trackio.sqlite_storage  # noqa: F401

        folders = {
            "TRACKIO_DIR": Path(place),
            "MEDIA_DIR": Path(place) / "media",
            "ARTIFACTS_DIR": Path(place) / "artifacts",
        }
        loaded = [
            module
            for module_name, module in list(sys.modules.items())
            if module_name.split(".")[0] == "trackio"
        ]
        moved = [
            (module, key, vars(module)[key])
            for module in loaded
            for key in folders
            if key in vars(module)
        ]
        for module, key, _ in moved:
            setattr(module, key, folders[key])
    try:
        yield
    finally:
        for module, key, value in moved:
            setattr(module, key, value)
        for key, value in before.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = value
