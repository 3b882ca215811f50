"""One name, one meaning: no public class or function of the package is defined in two modules."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "workbench"
# Names that several modules define because one caller looks them up in each of them.
PROTOCOLS = {
    "task": "each module of a task that ships has it (task.EMBEDDED)",
    "source": "each task that makes its rows has it (data.sources)",
    "rows": "the rows of a task that ships, beside its `task` and `source`",
    "extract_answer": "the helper that users' snippets call (data.sources.HELPERS), and rewards' own of the same job",
}


def defined() -> dict[str, list[str]]:
    """Public top-level class or function -> the modules that define it; a command is the function that it calls."""
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        if not path.name.startswith("cli") and path.name != "commands.py":
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                    places[node.name].append(str(path.relative_to(PACKAGE)))
    return places


def test_no_public_name_has_two_meanings():
    several = {name: places for name, places in defined().items() if len(places) > 1}
    assert {name: several[name] for name in several.keys() - PROTOCOLS.keys()} == {}
    assert PROTOCOLS.keys() <= several.keys(), "a protocol that one module has is none"
