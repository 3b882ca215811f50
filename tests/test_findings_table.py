"""The table of what strangers found names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent


def functions_of(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef)}


def named() -> list[tuple[str, str, str]]:
    """(line of the table, file, test) for each test that it names; one without a file is in the file named before it."""
    found, file = [], ""
    for line in (TESTS / "findings.md").read_text(encoding="utf-8").splitlines():
        for path, test in re.findall(r"([\w/]*test_\w+\.py)?(?:::(\w+))?", line):
            file = path or file
            if test:
                found.append((line[:60], file, test))
    return found


def test_every_test_that_the_table_names_exists():
    files = {file.name: functions_of(file) for file in TESTS.rglob("test_*.py")}
    missing = [(line, file, test) for line, file, test in named() if test not in files.get(Path(file).name, ())]
    assert not missing


def test_the_table_names_tests():
    assert len(named()) > 100
