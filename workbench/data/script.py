"""Rows that a Python file makes: your own code, or a snippet from a course or a blog, with errors that help.

The file binds `dataset`, `train_dataset` or `rows`, or defines `get_dataset()`.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from workbench.data.hub import without_waiting
from workbench.errors import DataError, WorkbenchError, fault_line, nearest
from workbench.workspace import shown

BINDINGS = ("get_dataset", "dataset", "train_dataset", "rows")

# Helpers that snippets call and never define -> what does their job here.
HELPERS = {
    "extract_answer": "from workbench.data.answer_column import extract_answer",
    "extract_number": "from workbench.data.answer_column import extract_answer as extract_number",
    "extract_final_answer": "from workbench.rewards.answers import extract_answer as extract_final_answer",
    "format_prompt": "define it: format_prompt = '{}'.format, or whatever text the question should stand in",
    "SYSTEM_PROMPT": "from workbench.data.prompts import SYSTEM_PROMPT",
    "CUSTOM_SYSTEM_PROMPT": "define it: CUSTOM_SYSTEM_PROMPT = 'who answers, and in which format'",
    "load_dataset": "from datasets import load_dataset",
    "Dataset": "from datasets import Dataset",
}


def rows_of_script(path: Path) -> Any:
    """What a Python file makes: anything that `open_source` takes.

    Raises:
        DataError: if the file fails, naming the line and the right word, or if it binds nothing.
    """
    # The name is the path's, so that two files called alike do not answer for one another.
    spec = importlib.util.spec_from_file_location(f"workbench_rows_{abs(hash(path))}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    loads = "load_dataset" in path.read_text(encoding="utf-8", errors="replace")
    try:
        with without_waiting() if loads else nullcontext():
            spec.loader.exec_module(module)
        bound = next((getattr(module, name) for name in BINDINGS if hasattr(module, name)), None)
        found = bound() if callable(bound) and not hasattr(bound, "iter") else bound
        if hasattr(found, "__next__"):
            found = list(found)  # here, where what it raises can be explained
    except WorkbenchError:
        raise
    except (Exception, SystemExit) as error:
        raise _explain(error, path) from error
    finally:
        sys.modules.pop(spec.name, None)
    if found is None:
        rule = "a data file in Python binds its rows as `dataset`, or defines get_dataset()"
        raise DataError(f"{shown(path)}: binds none of {', '.join(BINDINGS)}", rule=rule, remedy="end it with dataset = ...")
    return found


def _explain(error: BaseException, path: Path) -> DataError:
    columns = _columns_in_sight(error) if isinstance(error, KeyError) and error.args else []
    offline = any(word in f"{type(error).__name__} {error}" for word in ("Connection", "Offline", "offline", "reach"))
    said, after = f"{type(error).__name__}: {str(error)[:300]}", ""
    rule, remedy = "a data file in Python runs when it is read", "correct that line"
    if isinstance(error, NameError):
        name = error.name or str(error)
        said, rule = f"{name!r} is not defined", "a snippet brings the helpers that it calls"
        remedy = HELPERS.get(name, f"define {name}, or import it")
    elif columns:
        word = str(error.args[0])
        inside = next((column for column in columns if column in word or word in column), None)
        said, after = f"no column {word!r}", f"; the rows have {', '.join(columns)}"
        rule = "a row is asked for columns that it has"
        remedy = f"use {inside!r}" if inside else nearest(word, columns, "use one of those")
    elif offline:
        remedy = "the hub cannot be reached: connect, or load a local file or folder instead"
    return DataError(f"{shown(path)}: {said}{fault_line(error, path)}{after}", rule=rule, remedy=remedy)


def _columns_in_sight(error: KeyError) -> list[str]:
    # The row that was asked is a local variable of the innermost call: a dict, or `datasets`' wrapper of one.
    columns: list[str] = []
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values() if frame.f_code.co_name != "<module>" else ():
            row = getattr(value, "data", value)
            if isinstance(row, dict) and row and error.args[0] not in row and all(isinstance(key, str) for key in row):
                columns = list(row)
    return columns
