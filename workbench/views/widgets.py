"""The widgets of a panel by name, and whether a panel can have any."""

from __future__ import annotations

import importlib.util
import os
import re
from typing import Any

from workbench.kinds import Fields

# "0" where nobody can click: a notebook that is executed and then only read
WIDGETS = "WORKBENCH_WIDGETS"


def no_widgets() -> str:
    """Why a panel has no widgets here, in words; empty if it has."""
    if os.environ.get(WIDGETS) == "0":
        return f"{WIDGETS}=0"
    missing = [
        name for name in ("ipywidgets", "ipykernel") if importlib.util.find_spec(name) is None
    ]
    return f"{missing[0]} is not installed" if missing else ""


class Parts(Fields):
    """The widgets of a panel by name, `apply beta`; in the page their class is
    `workbench-apply-beta`.
    """

    def add(self, name: str, widget: Any) -> Any:
        """Keep a widget under a name, and return it."""
        widget.add_class("workbench-" + re.sub(r"[^\w-]", "-", name))
        self[name] = widget
        return widget


def widget_view(widget: Any) -> Fields:
    """A widget as a mime bundle. ipywidgets 8 makes it itself, 7 (Colab's) only displays."""
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {"application/vnd.jupyter.widget-view+json": view}
