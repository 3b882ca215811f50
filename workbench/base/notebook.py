"""A notebook executed in a real kernel, with your parameters."""

from __future__ import annotations

import ast
import contextlib
import itertools
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from workbench.base.errors import RunError, nearest
from workbench.base.kinds import Fields
from workbench.base.workspace import find, made, replace_file, resolve, shown

NOTEBOOKS = ("01_dataset", "02_rewards", "03_train", "04_inspect", "05_export")


def notebooks_folder() -> Path:
    """The folder of the five notebooks: the repository's, or the copy that an installed package
    carries.
    """
    package = Path(__file__).parents[1]
    folder = package.parent / "notebooks"
    return folder if (folder / f"{NOTEBOOKS[0]}.ipynb").is_file() else package / "_notebooks"


def notebooks_to_edit() -> Path:
    """The folder of notebooks that the user may change: the repository's, or copies in the
    workspace.

    An installed package's notebooks belong to the package. An existing copy is left as it is.
    """
    folder, own = notebooks_folder(), resolve("notebooks")
    if folder.name != "_notebooks":
        return folder
    made(own)
    for file in folder.glob("*.ipynb"):
        if not (own / file.name).exists():
            shutil.copyfile(file, own / file.name)
    return own


def _parameter_cells(notebook: Any, name: str) -> list[Any]:
    cells = [own for own in notebook.cells if "parameters" in own.metadata.get("tags", [])]
    if not cells:
        raise RunError(
            f"{name}: 0 cells tagged `parameters`",
            rule="a notebook has one, or two",
            remedy="tag the cell that assigns them",
        )
    return cells


def _values(cell: Any) -> dict[str, ast.expr]:
    """Parameter -> its value: of each assignment, and of each key of a dict that is assigned
    (`grpo`'s "max_steps").
    """
    values: dict[str, ast.expr] = {}
    for node in ast.parse(cell.source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(keys=keys) as value):
                values[name] = value
                for key, entry in zip(keys, value.values):
                    if isinstance(key, ast.Constant):
                        values.setdefault(str(key.value), entry)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                values[name] = value
    return values


def with_parameters(notebook: object, parameters: Fields, name: str) -> Any:
    """Write `parameters` into the notebook's cells tagged `parameters`, in place of the present
    values.

    A notebook without such a cell, or a parameter that none of them assigns, is a RunError.
    """
    cells = _parameter_cells(notebook, name)
    for parameter, value in parameters.items():
        cell = next((each for each in cells if parameter in _values(each)), None)
        if cell is None:
            known = [each for own in cells for each in _values(own)]
            raise RunError(
                f"{name}: no parameter {parameter!r}",
                rule=f"the cells tagged `parameters` assign {', '.join(known)}",
                remedy=nearest(parameter, known, "choose one of those"),
            )
        _replace(cell, _values(cell)[parameter], repr(value))
    return notebook


def _replace(cell: Any, node: ast.expr, text: str) -> None:
    source = cell.source.encode()  # columns count bytes
    starts = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]
    start = starts[node.lineno - 1] + node.col_offset
    end = starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)
    cell.source = (source[:start] + text.encode() + source[end:]).decode()


def read_parameters(said: Sequence[str], notebook: object, name: str) -> Fields:
    """`["max_steps=5", "policy_name=tiny"]` as values by name; RunError for what is not NAME=VALUE.

    A value is a Python literal; where the notebook has text, it is text.
    """
    standing: Fields = {}
    for cell in _parameter_cells(notebook, name):
        for parameter, node in _values(cell).items():
            with contextlib.suppress(ValueError):
                standing[parameter] = ast.literal_eval(node)
    values = {}
    for text in said:
        parameter, _, written = (part.strip() for part in text.partition("="))
        now = standing.get(parameter)
        try:
            value = ast.literal_eval(written)
        except (ValueError, SyntaxError):
            value = written
        if isinstance(now, str) and value is not None and not isinstance(value, str):
            value = written
        refused = value is written and now is not None and not isinstance(now, str)
        if refused or not parameter or "=" not in text:
            raise RunError(
                f"--set {text}",
                rule="a parameter is NAME=VALUE, its value a Python literal: 5, 1e-4, True, None,"
                " [1, 2], text",
                remedy=f"for example --set {parameter or 'seed'}={standing.get(parameter, 1)!r}",
            )
        values[parameter] = value
    return values


def find_notebook(name: str) -> Path:
    """One of the five by number (`3`, `03`), name (`train`, `03_train`), or any notebook by its
    path; RunError if none.
    """
    path = find(name)
    if path.suffix == ".ipynb" and path.is_file():
        return path
    for stem in NOTEBOOKS:
        if name in (stem, stem[:2], stem[1:2], stem[3:]):
            return notebooks_to_edit() / f"{stem}.ipynb"
    raise RunError(
        f"notebook {name!r}: not found",
        rule=f"a notebook is one of {', '.join(NOTEBOOKS)}, or the path of an .ipynb file",
        remedy=nearest(
            name, [word for stem in NOTEBOOKS for word in (stem, stem[3:])], "choose one of them"
        ),
    )


def run_notebook(
    name: str,
    said: Sequence[str] = (),
    out: Path | None = None,
    on_cell: Callable[[int, int], None] = lambda *_: None,
) -> Fields:
    """Execute a copy of one notebook (as for `find_notebook`) with other parameters
    (`read_parameters`).

    The executed copy is `out`, or a new file in `runs/notebooks/`; `on_cell` is called with (cells
    done, cells in all). Returns {"notebook", "out", "parameters", "minutes"}; RunError for an
    unknown notebook or parameter, or a cell that fails.
    """
    import nbformat

    started, source = time.monotonic(), find_notebook(name)
    parameters = read_parameters(said, nbformat.read(source, as_version=4), source.name)
    target = free(resolve(f"runs/notebooks/{source.name}")) if out is None else Path.cwd() / out
    if target.is_dir() or target.resolve() == source.resolve():
        what = "a folder" if target.is_dir() else "the notebook itself"
        raise RunError(
            f"out = {shown(target)}: {what}",
            rule="the executed copy is a separate file",
            remedy="choose another file, such as executed.ipynb",
        )
    execute(source, target, parameters, on_cell)
    minutes = (time.monotonic() - started) / 60
    places = {"notebook": str(source), "out": str(target)}
    return {**places, "parameters": parameters, "minutes": minutes}


def execute(
    source: Path,
    out: Path,
    parameters: Fields,
    on_cell: Callable[[int, int], None] = lambda *_: None,
) -> None:
    """Run one notebook in a separate kernel, in the workspace, and save the executed copy, even if
    a cell fails.

    `on_cell` is called with (cells done, cells in all). A cell that fails is a RunError which names
    the notebook.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError

    notebook = with_parameters(nbformat.read(source, as_version=4), parameters, source.name)
    total = len(notebook.cells)
    for cell in notebook.cells:  # what it was saved with is not what this kernel showed
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        # ipykernel warns at every start that its messages are not encrypted, and prints a traceback
        # when it is ended; what fails in a cell is told by nbclient.
        extra_arguments=["--log-level=CRITICAL"],
        resources={"metadata": {"path": str(resolve("."))}},
        on_cell_executed=lambda cell_index, **_: on_cell(cell_index + 1, total),
    )
    made(out.parent)
    try:
        with _interruptible(client), _sockets(client):
            # The copy is read, not clicked: without a kernel a panel would be an empty place.
            client.execute(env={**os.environ, "WORKBENCH_WIDGETS": "0"})
        on_cell(total, total)  # the last cell may be prose, which is not executed
    except (CellExecutionError, DeadKernelError) as error:
        kind = type(error).__name__
        said = str(getattr(error, "evalue", "") or error).strip() or kind
        remedies = re.findall(r"^\s*remedy:[ ]*(.*?)\s*$", said, re.MULTILINE)
        raise RunError(
            f"{source.name}: {getattr(error, 'ename', kind)}: {said.splitlines()[0]}",
            rule="every cell of a notebook runs",
            remedy="; ".join([*remedies, f"the executed copy shows the cell: {shown(out)}"]),
        ) from error
    finally:
        with replace_file(out) as beside:
            nbformat.write(notebook, beside)


@contextlib.contextmanager
def _interruptible(client: Any) -> Generator[None]:
    # nbclient answers Ctrl-C by ending the kernel, and raises whatever comes of that.
    try:
        yield
    except BaseException:
        if getattr(client, "_async_cleanup_kernel_future", None) is None:
            raise
        raise KeyboardInterrupt from None


@contextlib.contextmanager
def _sockets(client: Any) -> Generator[None]:
    # Kernels that start at once may choose one port, and one of them dies; files are their own.
    if os.name != "posix":
        yield
        return
    with tempfile.TemporaryDirectory(prefix="kernel-") as folder:
        manager = client.create_kernel_manager()
        manager.transport, manager.ip = "ipc", f"{folder}/socket"
        yield


def free(path: Path) -> Path:
    """`path`, or the first of `path-2`, `path-3`, ... that does not exist."""
    others = (path.with_name(f"{path.stem}-{count}{path.suffix}") for count in itertools.count(2))
    return next(each for each in itertools.chain([path], others) if not each.exists())
