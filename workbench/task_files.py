"""Task files as modules, which every process can import by name: pools pickle the functions of a
task so. What lies beside a task file is imported with it, and again when it is loaded again.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import linecache
import os
import sys
from collections.abc import Generator
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from urllib.parse import quote, unquote

from workbench.door import door, said
from workbench.errors import TaskError
from workbench.workspace import shown

# Below it each task file is a module, named after its address: a pickle names the functions of a
# pool so, and whoever reads it, in any process, imports that file.
_OWN_MODULE = f"{__name__}."
__path__: list[str] = []
_NOWHERE = "\0"
# the folder of the last task file, and the names of modules that were there before it
_latest: tuple[str, frozenset[str]] = _NOWHERE, frozenset()


def modules_of_tasks() -> list[ModuleType]:
    """The loaded task files, and the modules that the last one brought from its folder: they are
    executed as they were when they were loaded.
    """
    brought = {*_brought()}
    return [
        module
        for name, module in [*sys.modules.items()]
        if name.startswith(_OWN_MODULE) or name in brought
    ]


def _brought() -> list[str]:
    # Names of the modules of the last task file's folder that came with it, or since: another task
    # may have some of the same names.
    folder, known = _latest
    found = []
    for name in set(sys.modules) - known:
        if name.partition(".")[0] == __package__:  # which lies beside a task file in a clone
            continue
        file = getattr(sys.modules[name], "__file__", None) or "site-packages"
        if "site-packages" not in file and Path(file).resolve().is_relative_to(folder):
            found.append(name)
    return found


def executed_as(path: Path, *before: Path) -> Path:
    """Where a run's own copy is executed: in the place of the file that it was copied from; what
    that one reads lies there.
    """
    try:
        manifest = json.loads((path.parent / "manifest.json").read_bytes())
        source = Path(manifest["task"]["source"])
    except (OSError, ValueError, KeyError, TypeError):
        return path
    before = (*before, path)  # copies may name each other
    copied = path.name == "task.py" and source.suffix == ".py" and source not in before
    return executed_as(source, *before) if copied else path


@contextlib.contextmanager
def _beside(folder: str) -> Generator[None]:
    # A task's own modules lie beside it: first while it is loaded, and last from then on, for what
    # a function imports when it is called. They are reloaded with it.
    global _latest
    for name in _brought():
        del sys.modules[name]
    with contextlib.suppress(ValueError):
        sys.path.remove(_latest[0])
    last, known = os.path.join(folder, ""), frozenset(sys.modules)  # told apart from the user's own
    _latest = _NOWHERE, known  # for a task that it loads
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        sys.path.append(last)
        _latest = last, known
        for name in _brought():
            # As for the task file itself: nobody may read bytecode of an earlier save.
            with contextlib.suppress(OSError):
                Path(importlib.util.cache_from_source(f"{sys.modules[name].__file__}")).unlink()


def executed(text: Path, place: Path) -> ModuleType:
    """The module of a task file's text, executed as if it stood at `place`."""
    where = dict.fromkeys(str(path.absolute()) for path in (place, text))
    name = _OWN_MODULE + quote("\0".join(where)).replace(".", "%2E")
    sys.modules.pop(name, None)
    return importlib.import_module(name)


class _TaskFiles(Loader):
    """Imports a task file by the name that `executed` gave it."""

    @classmethod
    def find_spec(cls, name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, cls()) if name.startswith(f"{_OWN_MODULE}/") else None

    def exec_module(self, module: ModuleType) -> None:
        place, *others = unquote(module.__name__.removeprefix(_OWN_MODULE)).split("\0")
        text, folder = (
            Path(others[0] if others else place),
            os.path.dirname(os.path.realpath(place)),
        )
        # As a script: it is in no package.
        module.__file__, module.__package__, module.__spec__ = place, None, None
        try:
            with _beside(folder):
                # Not by way of the cached bytecode: a second save within a second, of the same
                # length, would not be seen.
                source = importlib.util.decode_source(text.read_bytes())
                # A function's source is the one that it was made from, also when the file has been
                # saved since.
                linecache.cache[place] = (
                    len(source),
                    None,
                    source.splitlines(keepends=True),
                    place,
                )
                with door():
                    exec(compile(source, place, "exec"), module.__dict__)
        except TaskError:
            raise
        except Exception as error:
            value, remedy = shown(text), "correct that line"
            if others:
                value += f", executed as {shown(Path(place))}"
                remedy = f"{shown(Path(folder))} is gone: put it back"
                if os.path.isdir(folder):
                    remedy = f"put back what it reads from {shown(Path(folder))}"
                remedy += ", or pass the task in Python: continue_run(run, task=...)"
            elif isinstance(error, ModuleNotFoundError):
                remedy = "put that module beside the task file, or install it"
            value += f": {said(error, place)}"
            rule = "a task file runs when it is imported"
            raise TaskError(value, rule=rule, remedy=remedy) from error


sys.meta_path.append(_TaskFiles)
