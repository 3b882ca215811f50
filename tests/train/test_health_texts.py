"""Causes and remedies: each case of texts.yaml is named by a rule, and each that a rule names is there."""

from __future__ import annotations

import ast
from pathlib import Path

from workbench.health import rules
from workbench.health.verdicts import CASES
from workbench.rewards.groups import ALL_RIGHT, DEAD_KINDS

FOLDER = Path(rules.__file__).parent
STATES = {"alarm", "warning", "note", "ok", "skipped"}


def cases_named(tree: ast.Module) -> set[str]:
    """What is given as a case: the fourth argument of `verdict`, `case=`, or what is assigned to a `case`."""
    given = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in ("verdict",):
            given += [*node.args[3:4], *(each.value for each in node.keywords if each.arg == "case")]
        elif isinstance(node, ast.Assign) and "case" in ast.unparse(node.targets[0]):
            given.append(node.value)
    names = (leaf for value in given for leaf in ast.walk(value) if isinstance(leaf, ast.Constant))
    return {leaf.value for leaf in names if isinstance(leaf.value, str)} - {""}


def test_the_rules_name_every_case_and_no_other():
    named = set().union(*(cases_named(ast.parse(file.read_text(encoding="utf-8"))) for file in FOLDER.glob("*.py")))
    assert named | {*DEAD_KINDS} - {ALL_RIGHT} == {*CASES}
    assert all(set(each) == {"cause", "remedy"} and any(each.values()) for each in CASES.values())
