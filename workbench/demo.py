"""The notebooks executed in real kernels: all five in order (the demonstration), or one with your parameters."""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from workbench.errors import RunError, nearest
from workbench.run.directory import RunDirectory, check_name, open_run
from workbench.workspace import find, resolve, shown

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
    cell = _parameters_cell(notebook, name)
    lines = cell.source.splitlines()
    for parameter, value in parameters.items():
        places = [number for number, line in enumerate(lines) if line.split("=")[0].strip() == parameter]
        if not places:
            known = [line.split("=")[0].strip() for line in lines if "=" in line]
            raise RunError(
                f"{name}: no parameter {parameter!r}",
                rule=f"the cell tagged `parameters` assigns {', '.join(known)}",
                remedy=nearest(parameter, known, "choose one of those"),
            )
        comment = lines[places[0]].partition("  # ")[2]
        lines[places[0]] = f"{parameter} = {value!r}" + (f"  # {comment}" if comment else "")
    cell.source = "\n".join(lines)
    return notebook


def _parameters_cell(notebook: Any, name: str) -> Any:
    cells = [cell for cell in notebook.cells if "parameters" in cell.get("metadata", {}).get("tags", [])]
    if len(cells) != 1:
        raise RunError(
            f"{name}: {len(cells)} cells tagged `parameters`", rule="a notebook has exactly one", remedy="tag one cell"
        )
    return cells[0]


def read_parameters(said: Sequence[str], notebook: Any, name: str) -> dict[str, Any]:
    """`["max_steps=5", "policy_name=tiny"]` as values by name: Python literals; where text stands now, text.

    Raises:
        RunError: if one is not NAME=VALUE, or its value is neither.
    """
    standing = {}
    for node in ast.parse(_parameters_cell(notebook, name).source).body:
        with contextlib.suppress(ValueError):
            standing[ast.unparse(node.targets[0])] = ast.literal_eval(node.value)
    found: dict[str, Any] = {}
    for text in said:
        parameter, equals, written = (part.strip() for part in text.partition("="))
        now, value = standing.get(parameter), written
        with contextlib.suppress(ValueError, SyntaxError):
            value = ast.literal_eval(written)
        if isinstance(now, str) and value is not None and not isinstance(value, str):
            value = written
        if not equals or not parameter or (value is written and now is not None and not isinstance(now, str)):
            raise RunError(
                f"--set {text}",
                rule="a parameter is NAME=VALUE, its value a Python literal: 5, 1e-4, True, None, [1, 2], text",
                remedy=f"for example --set {parameter}={now!r}" if parameter in standing else "for example --set seed=1",
            )
        found[parameter] = value
    return found


def find_notebook(name: str) -> Path:
    """One of the five by number (`3`, `03`), name (`train`, `03_train`), or any notebook by its path.

    Raises:
        RunError: if there is none.
    """
    path = find(name)
    if path.suffix == ".ipynb" and path.is_file():
        return path
    for stem in NOTEBOOKS:
        if name in (stem, stem[:2], stem[1:2], stem[3:]):
            return notebooks_to_edit() / f"{stem}.ipynb"
    raise RunError(
        f"notebook {name!r}: there is none",
        rule="a notebook is one of " + ", ".join(NOTEBOOKS) + ", or the path of an .ipynb file",
        remedy=nearest(name, [word for stem in NOTEBOOKS for word in (stem, stem[3:])], "choose one of them"),
    )


def run_notebook(
    name: str, said: Sequence[str] = (), out: Path | None = None, on_cell: Callable[[int, int], None] = lambda *_: None
) -> dict[str, Any]:
    """Execute one notebook with other parameters; the notebook itself stays as it is.

    Args:
        name: as for `find_notebook`.
        said: "NAME=VALUE", as for `read_parameters`.
        out: the executed copy; None: a new file in `runs/notebooks/`.
        on_cell: called with (cells done, cells in all).

    Returns:
        {"notebook", "out", "parameters", "minutes"}.

    Raises:
        RunError: for an unknown notebook or parameter, and if a cell fails.
    """
    import nbformat

    started, source = time.monotonic(), find_notebook(name)
    notebook = nbformat.read(source, as_version=4)
    parameters = read_parameters(said, notebook, source.name)
    with_parameters(notebook, parameters, source.name)  # an unknown one is an error before anything runs
    target = Path.cwd() / out if out is not None else _free(resolve(f"runs/notebooks/{source.name}"))
    if target.is_dir() or target.resolve() == source.resolve():
        raise RunError(
            f"out = {shown(target)}: " + ("a folder" if target.is_dir() else "the notebook itself"),
            rule="the executed copy is a separate file",
            remedy="choose another file, such as executed.ipynb",
        )
    execute(source, target, parameters, resolve("."), on_cell)
    minutes = (time.monotonic() - started) / 60
    return {"notebook": str(source), "out": str(target), "parameters": parameters, "minutes": minutes}


def execute(source: Path, out: Path, parameters: dict[str, Any], workdir: Path, on_cell: Callable[[int, int], None]) -> None:
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
        said = str(getattr(error, "evalue", "") or error).strip().splitlines() or [type(error).__name__]
        remedy = [line.partition("remedy:")[2].strip() + "; " for line in said if line.strip().startswith("remedy:")]
        raise RunError(
            f"{source.name}: {getattr(error, 'ename', type(error).__name__)}: {said[0]}",
            rule="every cell of a notebook runs",
            remedy=f"{''.join(remedy)}the executed copy shows the cell: {shown(out)}",
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
    check_name(name)
    folder = _free(resolve("runs") / name)
    folder.mkdir(parents=True)
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
            to_html(out, folder / "report.html", open_run(folder))
        minutes[stem] = (time.monotonic() - began) / 60
    run = open_run(folder)
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


def result_table(result: dict[str, Any]) -> str:
    """What `run_notebooks` found, for people."""
    from workbench.inspection.evaluation import gain_in_words
    from workbench.views.tables import Table

    before, after, run = result["before"], result["after"], shown(result["run"])
    gain = gain_in_words(open_run(result["run"]).read_json("evaluation.json"))
    rows = [
        ["correct, in strict format", f"{before['correct']:.0%} -> {after['correct']:.0%}"],
        ["", gain.removeprefix("gain ")],
        ["strict format", f"{before['format']:.0%} -> {after['format']:.0%}"],
        ["steps", result["steps"]],
        ["minutes", f"{result['minutes']:.1f}"],
        ["run", run],
        ["report", f"{run}/report.html"],
        ["notebooks", f"{run}/notebooks/"],
        ["merged model", f"{run}/export/merged_16bit/"],
    ]
    return str(Table(["held-out prompts", "before -> after training"], rows))


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


def _free(path: Path) -> Path:
    """`path`, or the first of `path-2`, `path-3`, ... that is not there."""
    others = (path.with_name(f"{path.stem}-{count}{path.suffix}") for count in itertools.count(2))
    return next(each for each in itertools.chain([path], others) if not each.exists())


def to_html(notebook: Path, out: Path, run: RunDirectory) -> Path:
    """An executed notebook 04 as a report to hand on: what it found, without its code, in one file that needs no network."""
    import nbformat
    from nbconvert import HTMLExporter

    from workbench.inspection.evaluation import gain_in_words

    measured, manifest, result = run.read_json("evaluation.json"), run.manifest(), run.result()
    title = f"{run.name}: {gain_in_words(measured)}"
    read = nbformat.read(notebook, as_version=4)
    # The first cell tells what to do with the notebook, the last what comes after it.
    read.cells = [
        nbformat.v4.new_markdown_cell(f"# {title}\n\n{_about(manifest, result, measured)}"),
        *read.cells[1:-1],
    ]
    exporter = HTMLExporter(
        mathjax_url="", require_js_url="", jquery_url="", widget_renderer_url="",
        exclude_input=True, exclude_output_prompt=True,
    )  # fmt: skip
    html, _ = exporter.from_notebook_node(read, resources={"metadata": {"name": title}})
    # What is left of the scripts that were not asked for: one empty element each.
    out.write_text(re.sub(r'<script src="">\s*</script>', "", html), encoding="utf-8")
    return out


def _about(manifest: dict[str, Any], result: dict[str, Any], measured: dict[str, Any]) -> str:
    policy, before, after = manifest["policy"], measured["before"]["correct"], measured["after"]["correct"]
    return (
        f"Correct answers in the strict format: **{before:.0%} -> {after:.0%}** of {measured['samples']} completions each of "
        f"{measured['prompts']} held-out prompts. {policy['name']} in {policy['precision']} on "
        f"{policy['device']} through {policy['backend']}; {result['status']} after {result['steps']} steps, "
        f"{result['minutes']:.1f} minutes; {manifest['created'][:10]}."
    )
