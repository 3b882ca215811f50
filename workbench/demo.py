"""The demonstration: the five notebooks, executed in order in real kernels, each from its own file."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from workbench.run.directory import RunDirectory, check_name
from workbench.run.errors import RunError
from workbench.run.workspace import resolve, shown

NOTEBOOKS = ("01_dataset", "02_rewards", "03_train", "04_inspect", "05_export")
CELL_TIMEOUT_S = 1800


def notebooks_folder() -> Path:
    """The folder of the five notebooks: the repository's, or the copy that an installed package carries."""
    package = Path(__file__).parent
    for folder in (package.parent / "notebooks", package / "_notebooks"):
        if (folder / f"{NOTEBOOKS[0]}.ipynb").is_file():
            return folder
    raise RunError(
        f"no notebooks beside {shown(package)}",
        rule="the five notebooks travel with the package",
        remedy="clone the repository, or install the package again",
    )


def notebooks_to_edit() -> Path:
    """The folder of notebooks that are the user's to change: the repository's, or a copy in the workspace.

    The copies that an installed package carries are the package's: `workbench lab` puts its own beside `runs/`, and leaves
    those that are there already as they are.
    """
    folder = notebooks_folder()
    if folder.name != "_notebooks":
        return folder
    own = resolve("notebooks")
    own.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*.ipynb"):
        if not (own / file.name).exists():
            shutil.copyfile(file, own / file.name)
    return own


def with_parameters(notebook: Any, parameters: dict[str, Any], name: str) -> Any:
    """Write `parameters` into the notebook's cell tagged `parameters`, in place of the values that stand there.

    Raises:
        RunError: if the notebook has no such cell, or the cell does not assign one of them.
    """
    cells = [cell for cell in notebook.cells if "parameters" in cell.get("metadata", {}).get("tags", [])]
    if len(cells) != 1:
        raise RunError(
            f"{name}: {len(cells)} cells tagged `parameters`", rule="a notebook has exactly one", remedy="tag one cell"
        )
    lines = cells[0].source.splitlines()
    for parameter, value in parameters.items():
        places = [number for number, line in enumerate(lines) if line.split("=")[0].strip() == parameter]
        if not places:
            raise RunError(
                f"{name}: no parameter {parameter!r}",
                rule="a parameter is assigned in the cell tagged `parameters`",
                remedy="one of " + ", ".join(line.split("=")[0].strip() for line in lines if "=" in line),
            )
        comment = lines[places[0]].partition("  # ")[2]
        lines[places[0]] = f"{parameter} = {value!r}" + (f"  # {comment}" if comment else "")
    cells[0].source = "\n".join(lines)
    return notebook


def execute(
    source: Path, out: Path, parameters: dict[str, Any], workdir: Path, on_cell: Callable[[int, int], None]
) -> None:
    """Run one notebook in a kernel of its own, and save the executed copy, also when a cell fails.

    Args:
        on_cell: called with (cells done, cells in all) after each cell.

    Raises:
        RunError: naming notebook and cell, if a cell fails.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError

    notebook = with_parameters(nbformat.read(source, as_version=4), parameters, source.name)
    total = len(notebook.cells)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        # Local kernels talk over the loopback interface, signed; ipykernel warns of that at every start.
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(workdir)}},
        on_cell_executed=lambda cell, cell_index, execute_reply: on_cell(cell_index + 1, total),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        # The copy is read, not clicked: without a kernel a panel would be an empty place.
        client.execute(env={**os.environ, "WORKBENCH_WIDGETS": "0"})
        on_cell(total, total)  # the last cell may be prose, which is not executed
    except (CellExecutionError, DeadKernelError, TimeoutError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise RunError(
            f"{source.name}: {lines[-1] if lines else type(error).__name__}",
            rule="every cell of the five notebooks runs",
            remedy=f"the executed copy shows the cell: {shown(out)}",
        ) from error
    finally:
        nbformat.write(notebook, out)


def run_notebooks(
    name: str = "demo",
    *,
    seed: int = 0,
    parameters: dict[str, dict[str, Any]] | None = None,
    on_cell: Callable[[str, int, int], None] = lambda notebook, done, total: None,
    on_step: Callable[[int], None] = lambda steps: None,
) -> dict[str, Any]:
    """Execute the five notebooks in order, all their files under `runs/<name>/`.

    Args:
        name: name of the run; `name-2` and so on if there is one of that name.
        seed: of the adapter, of training and of sampling.
        parameters: more parameters, by notebook ("03_train": {"max_steps": 3}).
        on_cell: called with (notebook, cells done, cells in all).
        on_step: called with the steps that 03 has trained so far, every second, from another thread.

    Returns:
        {"before", "after", "gain", "steps", "minutes", "run"}: what `workbench demo --json` prints.
    """
    started = time.monotonic()
    folder = _new_folder(name)
    notebooks = notebooks_folder()
    task_dir, run = f"runs/{folder.name}/task", f"runs/{folder.name}"
    shared = {
        "01_dataset": {"task_dir": task_dir, "seed": seed},
        "02_rewards": {"task_dir": task_dir},
        "03_train": {"task_dir": task_dir, "run_name": folder.name, "seed": seed},
        "04_inspect": {"run_name": run, "seed": seed},
        "05_export": {"run_name": run},
    }
    minutes: dict[str, float] = {}
    for stem in NOTEBOOKS:
        began = time.monotonic()
        wanted = {**shared[stem], **(parameters or {}).get(stem, {})}
        out = folder / "notebooks" / f"{stem}.ipynb"
        with _following(folder / "metrics.jsonl", on_step) if stem == "03_train" else contextlib.nullcontext():
            execute(notebooks / f"{stem}.ipynb", out, wanted, resolve("."), functools.partial(on_cell, stem))
        if stem == "04_inspect":
            to_html(out, folder / "report.html")
        minutes[stem] = (time.monotonic() - began) / 60
    run = RunDirectory.open(folder)
    measured = run.read_json("evaluation.json")
    result = {
        "before": {key: measured["before"][key] for key in ("correct", "format")},
        "after": {key: measured["after"][key] for key in ("correct", "format")},
        "gain": measured["gain"],
        "steps": run.result()["steps"],
        "minutes": (time.monotonic() - started) / 60,
        "run": str(run.path),
    }
    run.write_json("demo.json", {**result, "seed": seed, "minutes_by_notebook": minutes})
    return result


@contextlib.contextmanager
def _following(metrics: Path, on_step: Callable[[int], None]) -> Iterator[None]:
    # The cell that trains is one long cell; its progress is in the run's own file.
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(1.0):
            if metrics.is_file():
                on_step(metrics.read_bytes().count(b"\n"))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _new_folder(name: str) -> Path:
    check_name(name)
    root, count = resolve("runs"), 1
    folder = root / name
    while folder.exists():
        count += 1
        folder = root / f"{name}-{count}"
    folder.mkdir(parents=True)
    return folder


def to_html(notebook: Path, out: Path) -> Path:
    """An executed notebook as one HTML file that needs no network."""
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(mathjax_url="", require_js_url="", jquery_url="", widget_renderer_url="")
    html, _ = exporter.from_filename(str(notebook))
    # What is left of the scripts that were not asked for: one empty element each.
    out.write_text(re.sub(r'<script src="">\s*</script>', "", html), encoding="utf-8")
    return out
