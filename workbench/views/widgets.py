"""Whether buttons are answered here: it depends on the front end, the kernel, and on whether a cell is busy."""

from __future__ import annotations

import os
from typing import Any

WIDGETS = "WORKBENCH_WIDGETS"  # "0" where nobody can click: a notebook that is executed and then only read


def buttons_work(in_cell: bool) -> tuple[bool, str]:
    """(whether a click is seen while the run trains, how that is here, in a sentence).

    Args:
        in_cell: the run trains in a cell of this kernel, which is busy then; else in a process of its own.
    """
    if os.environ.get(WIDGETS) == "0":
        return False, f"There are no buttons ({WIDGETS}=0)."
    try:
        import ipywidgets  # noqa: F401
    except ImportError:
        return False, "There are no buttons: ipywidgets is not installed."
    if not in_cell:
        return True, "The run has a process of its own, so buttons work in every front end while this kernel is idle."
    instead = (
        "Interrupt the cell instead: once stops after the step and saves, twice aborts. For everything else, `workbench "
        "control` in a terminal, or train in a process of its own: start(recipe)."
    )
    # Kaggle's image is Colab's, variables included.
    if "COLAB_RELEASE_TAG" in os.environ and "KAGGLE_KERNEL_RUN_TYPE" not in os.environ:
        return False, f"In Colab a click waits until the cell is done. {instead}"
    if any(name in os.environ for name in ("VSCODE_PID", "VSCODE_CWD")):
        return False, f"In VS Code a click waits until the cell is done. {instead}"
    kernel = _kernel_version()
    # Measured: 7.0 to 7.3 handle a click on a thread beside the cell; 7.4 sends it to the busy one again.
    if (7, 0) <= kernel < (7, 4):
        return True, "In JupyterLab these buttons work while the cell trains; elsewhere, interrupt the cell to stop."
    shown = ".".join(map(str, kernel))
    return False, f"With ipykernel {shown} a click waits until the cell is done. {instead}"


def view_of(widget: Any) -> dict[str, Any]:
    """A widget as a mime bundle. ipywidgets 8 makes it itself, 7 (Colab's) only displays."""
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {"application/vnd.jupyter.widget-view+json": view}


def _kernel_version() -> tuple[int, int]:
    try:
        import ipykernel

        major, minor = ipykernel.__version__.split(".")[:2]
        return int(major), int(minor)
    except (ImportError, ValueError):
        return 0, 0
