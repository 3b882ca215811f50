"""Results display themselves: which view IPython shows for which result.

Stages return plain results and import no view; IPython looks the view up here, by the type's name.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from workbench.base.instruments import places_in
from workbench.base.kinds import Fields
from workbench.base.workspace import replace_file, resolve, shown, sum_of
from workbench.base.yaml_text import packaged
from workbench.training import watchers

# Type of a result -> what makes its view.
VIEWS: dict[str, str] = {
    f"workbench.{kind}": f"workbench.views.{view}"
    for kind, view in packaged(Path(__file__).with_suffix(".yaml")).items()
}
# A result of an instrument is named within its folder, in which its view lies, too.
VIEWS |= {f"{view.rpartition('.')[0]}.{kind}": view for kind, view in places_in("views").items()}


def register(shell: Any = None) -> bool:
    """Register the results with IPython's display; returns whether there was a shell.

    The face does it whenever a name of it is first used. None: the running shell, if there is one;
    IPython is not imported for it.
    """
    if shell is None and "IPython" in sys.modules:
        shell = getattr(sys.modules["IPython"], "get_ipython", lambda: None)()
    display = getattr(shell, "display_formatter", None)
    if display is None:
        return False

    def shown(result: object) -> Fields:
        # IPython has its own text for these, and would take that
        if isinstance(result, (list, tuple)):
            text = display.formatters["text/plain"]
            text.for_type(type(result), lambda own, printer, cycle: printer.text(str(view_of(own))))
        view = view_of(result)
        rich = (
            view._repr_mimebundle_()
            if hasattr(view, "_repr_mimebundle_")
            else {"text/html": view._repr_html_()}
        )
        return {"text/plain": str(view), **rich}  # for readers who see neither HTML nor images

    if hasattr(shell, "register_magic_function"):

        def write(line: str, cell: str) -> None:
            """Write the cell to a file, as %%writefile does, unless the file was edited or no cell
            wrote it.
            """
            print(write_unless_edited(line.strip(), cell))

        shell.register_magic_function(write, "cell", "write_unless_edited")
    for result in VIEWS:
        display.mimebundle_formatter.for_type_by_name(*result.rsplit(".", 1), shown)
    if hasattr(shell, "kernel"):  # a run that trains in a notebook's cell is drawn there
        watchers.unasked[:] = [lambda: importlib.import_module("workbench.views.live").LivePlot()]
    return True


def view_of(result: object) -> Any:
    """The view of a result, as a cell would show it; a result without one is its own."""
    for kind in type(result).__mro__:
        if view := VIEWS.get(f"{kind.__module__}.{kind.__qualname__}"):
            return resolve_name(view)(result)
    return result


def write_unless_edited(file: str, text: str) -> str:
    """Write a notebook cell's text to its file, unless the file is somebody else's; returns what
    was done, in a sentence.

    It is written where there is no file, or one unchanged since the last write, by the SHA-256 in a
    hidden file beside it. A relative path starts from the workspace; no path: nothing is written.
    """
    if not file:
        return "nothing written"
    path, mine = resolve(file), hashlib.sha256(text.encode()).hexdigest()
    note = path.with_name(f".{path.name}.written")
    there = sum_of(path) if path.is_file() else None
    last = note.read_text(encoding="utf-8") if note.is_file() else None
    if there not in (None, mine, last):
        how = "was edited since this cell wrote it" if last else "was not written by this cell"
        return (
            f"{shown(path)} {how}: it stays, and the cells below use it. To write this cell"
            " instead, rename or delete it."
        )
    for target, content in ((path, text), (note, mine)):
        with replace_file(target) as beside:
            beside.write_text(content, encoding="utf-8", newline="")
    return f"{shown(path)}: {'as in this cell' if there == mine else 'written'}"
