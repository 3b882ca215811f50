"""The same stages without a notebook. A command and a notebook cell call the same functions.

Nothing heavy is imported before a command needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import importlib

from workbench.base.instruments import places_in
from workbench.commands.command import app as app
from workbench.commands.command import main as main

# Each module puts its commands on as it is imported; within a group, in this order.
MODULES = (
    "workbench.commands.cli_start",
    "workbench.commands.cli_before",
    "workbench.commands.cli_train",
    "workbench.commands.cli_after",
    *places_in("commands").values(),
)
for module in MODULES:
    importlib.import_module(module)
