"""Experiment trackers beside the run's own files: TensorBoard, Trackio, Weights & Biases, MLflow, and what else transformers
has a callback for.

The run directory is the record, and it is whole without them; so a tracker may fail or hang at any moment
(`tracker_guard.py`). What a tracker writes goes to `runs/<run_name>/trackers/<tracker>`, unless the environment says
otherwise; nothing is sent anywhere that the environment does not ask for.

TRL sends its table of completions to wandb and trackio by itself, and only if they stand in its own `report_to`, which they
do not here. Every completion of every step is in the run's `rollouts/`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from workbench.training.plan.values import check_trackers
from workbench.training.tracker_guard import PROJECT, guarded
from workbench.workspace import shown

_PACKAGES = {"comet_ml": "comet-ml", "azure_ml": "azureml-core", "flyte": "flytekit"}  # where pip's name is another
_MODULES = {
    "tensorboard": ("tensorboard", "tensorboardX"), "azure_ml": ("azureml",), "flyte": ("flytekit",),
    "kubeflow": (),
}  # fmt: skip
_OPEN_WITH = {
    "tensorboard": "tensorboard --logdir {folder}",
    "trackio": "TRACKIO_DIR={folder} trackio show",
    "mlflow": "mlflow ui --backend-store-uri {uri}",
}

OnFailure = Callable[[str, str], None]


def planned_trackers(report_to: str | Sequence[str] | None) -> tuple[list[str], list[str]]:
    """(trackers that can be used here, one line for each that is asked for and not installed). Starts nothing.

    Args:
        report_to: "none", a name, several names, or "all" that are installed.

    Raises:
        RecipeError: for a name that transformers knows no tracker by.
    """
    from transformers.integrations.integration_utils import get_available_reporting_integrations

    asked = check_trackers(report_to)
    found, notes = [], []
    for name in get_available_reporting_integrations() if asked == ["all"] else asked:
        modules = _MODULES.get(name, (name,))
        if modules and not any(importlib.util.find_spec(module) for module in modules):
            notes.append(
                f"WARNING: report_to = {name} is left out: it is not installed (uv pip install {_PACKAGES.get(name, name)}); "
                "the run's own files are written as always"
            )
            continue
        found.append(name)
    return found, notes


def tracker_callbacks(
    report_to: str | Sequence[str] | None, run_name: str, folder: str | Path, on_failure: OnFailure
) -> tuple[list[Any], list[str]]:
    """(a callback for each tracker, the lines to show). Build GRPOConfig with `report_to="none"` and add these instead.

    A run may train in several stages, with a trainer each: the callbacks see the first beginning, every log line, and end
    at `close()`, which the run calls whatever became of it.

    Args:
        run_name: the run's name in the trackers.
        folder: the run directory's folder for trackers; made if a tracker needs it.
        on_failure: called once with (tracker, what went wrong) for a tracker that is taken out.

    Raises:
        RecipeError: for a name that is no tracker.
    """
    names, notes = planned_trackers(report_to)
    if os.environ.get("RANK", "0") != "0":  # of several processes that train together, the first reports
        return [], []
    callbacks = []
    for name in names:
        place = Path(folder).absolute() / name
        settings = _environment(name, place)
        tracker = guarded(name, run_name, settings, on_failure)
        if not tracker.open():
            continue
        callbacks.append(tracker)
        notes.append(_where(name, place, settings))
    return callbacks, notes


def _environment(name: str, place: Path) -> dict[str, str]:
    """What each library reads from the environment; what the user has set there stays as it is."""
    wanted = {
        "tensorboard": {"TENSORBOARD_LOGGING_DIR": str(place)},
        "trackio": {"TRACKIO_DIR": str(place)},
        "wandb": {
            "WANDB_DIR": str(place),
            "WANDB_PROJECT": PROJECT,
            "WANDB_SILENT": "true",
            "WANDB_CONSOLE": "off",  # it would send the notebook's output through itself
            "WANDB_INIT_TIMEOUT": "30",  # seconds; a network that is not there
        },
        "mlflow": {
            "MLFLOW_TRACKING_URI": _mlflow_store(place),
            "MLFLOW_EXPERIMENT_NAME": PROJECT,
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_ALLOW_FILE_STORE": "true",
        },
    }.get(name, {})
    if name == "wandb" and not os.environ.get("WANDB_API_KEY"):
        # Without a key it asks for one, or waits for a network that may not be there.
        wanted["WANDB_MODE"] = "offline"
    settings = {key: value for key, value in wanted.items() if not os.environ.get(key)}
    if _in_folder(place, settings):
        place.mkdir(parents=True, exist_ok=True)
    return settings


def _mlflow_store(place: Path) -> str:
    # A database is what MLflow wants; its small edition (mlflow-skinny) has none and keeps files.
    return f"sqlite:///{place}/mlflow.db" if importlib.util.find_spec("sqlalchemy") else place.as_uri()


def _in_folder(place: Path, settings: dict[str, str]) -> bool:
    return any(str(place) in value for value in settings.values())


def _where(name: str, place: Path, settings: dict[str, str]) -> str:
    if not _in_folder(place, settings):
        return f"{name}: where the environment says"
    if name == "wandb":
        sends = "" if settings.get("WANDB_MODE") != "offline" else (
            f"; offline, as WANDB_API_KEY is not set: wandb sync {shown(place)}/wandb/offline-run-*"
        )  # fmt: skip
        return f"wandb: in {shown(place)}{sends}"
    uri = settings.get("MLFLOW_TRACKING_URI", "")
    return f"{name}: in {shown(place)}; to look at it: {_OPEN_WITH[name].format(folder=shown(place), uri=uri)}"
