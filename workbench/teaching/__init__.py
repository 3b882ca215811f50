"""Teaching: the glossary. Lessons, exercises and broken runs lie beside their notebooks.

The folder `notebooks/teaching` is a part of this package, so `workbench.teaching.exercises` is its
`exercises/`. What a lesson needs beside the face is offered here by its `_lib/`: `from
workbench.teaching import done`.
"""

import importlib
from typing import Any

from workbench.base.notebook import notebooks_folder

__path__.append(str(notebooks_folder() / "teaching"))


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("workbench.teaching._lib"), name)
