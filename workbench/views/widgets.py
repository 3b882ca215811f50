"""What panels of widgets share: the widgets by name, whether there can be any, and looking again
and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import re
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from workbench.base.kinds import Fields, Function

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

    def __init__(self) -> None:
        super().__init__()
        self._quiet = False

    def add(self, name: str, kind: str, then: Function | None = None, **traits: object) -> Any:
        """Make a widget of ipywidgets, and keep it under a name. `then` is called when a button is
        clicked, and with the new value when somebody changes that of another widget.
        """
        import ipywidgets

        if "description" in traits and kind != "Button":
            traits.setdefault("style", {"description_width": "initial"})
        self[name] = widget = getattr(ipywidgets, kind)(**traits)
        widget.add_class("workbench-" + re.sub(r"[^\w-]", "-", name))
        if then is not None and kind == "Button":
            widget.on_click(lambda _: then())
        elif then is not None:
            widget.observe(lambda change: self._quiet or then(change["new"]), "value")
        return widget

    @contextlib.contextmanager
    def quietly(self) -> Generator[None]:
        """What the panel itself writes into its widgets calls nobody."""
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False


def widget_view(widget: Any) -> Fields:
    """A widget as a mime bundle. ipywidgets 8 makes it itself, 7 (Colab's) only displays."""
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {"application/vnd.jupyter.widget-view+json": view}


def keep_looking(
    look: Callable[[], Awaitable[bool]], every_s: float, failed: Callable[[Exception], None]
) -> asyncio.Task | None:
    """Look again and again, between cells on the kernel's own event loop, until `look` says that
    all is over. None: without a loop there is nobody who could click.
    """

    async def looks() -> None:
        over = False
        while not over:
            await asyncio.sleep(every_s)
            try:
                over = await look()
            except Exception as error:  # the next look may succeed
                failed(error)

    with contextlib.suppress(RuntimeError):
        return asyncio.get_running_loop().create_task(looks())
    return None
