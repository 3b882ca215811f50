"""What a lesson uses beside `import workbench as wb`: `from workbench.teaching import done`. Each
name is imported when used.
"""

import importlib

# Name -> the module that has it, or that it is.
OFFERS = {
    "lessons": "teaching._lib.lessons",
    "cells": "teaching._lib.cells",  # blanks and their solutions
    "done": "teaching._lib.lessons",  # notes that an exercise is passed
    "gallery": "teaching._lib.gallery",  # the broken runs
    "grading": "teaching._lib.grading",  # what a class has passed
    "rows": "tiny.task",  # sums and differences below 100
    "Table": "views.tables",
    "TokenView": "inspection.tokens",
    "BLUE": "views.look",
    "ORANGE": "views.look",
    "Picture": "views.figure",
    "new_figure": "views.figure",
    "with_legend": "views.figure",
}


def __getattr__(name: str) -> object:
    if name not in OFFERS:
        raise AttributeError(f"workbench.teaching offers {', '.join(OFFERS)}; no {name!r}")
    module = importlib.import_module(f"workbench.{OFFERS[name]}")
    return module if OFFERS[name].endswith(f".{name}") else getattr(module, name)
