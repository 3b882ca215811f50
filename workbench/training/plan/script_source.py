"""What a training script says: its calls, with their arguments, and the names that it binds once to
a literal. It is parsed and never run.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import textwrap
import warnings
from collections import Counter
from typing import Any, NamedTuple

from workbench.base.errors import RecipeError
from workbench.base.kinds import Fields
from workbench.training.plan.settings.names import TABLE

PASTE = "paste the part that builds the config and loads the model"
_LONGEST, _LONGEST_LINE = 200_000, 400  # characters of a script; of a line with newer syntax
_TABLE = TABLE["script"]
_CALLS: dict[str, Fields] = _TABLE["calls"]


def syntax_of(text: str, source: str) -> tuple[ast.Module, list[str]]:
    """(the script, lines on syntax that this Python lacks): as it is, without what only a notebook
    or a blog has, or without newer syntax. RecipeError if it is Python in no way.
    """
    plain = _plain(text)
    lines = plain.split("\n")
    older = [*map(_older, lines)]
    newer = [
        f"line {number} is read without syntax of a newer Python than this one"
        for number, (line, now) in enumerate(zip(lines, older, strict=True), 1)
        if line != now
    ]
    at, why = "", f"{len(text):,} characters; at most {_LONGEST:,} are read"
    attempts = [(text, []), (plain, []), ("\n".join(older), newer)]
    for attempt, notes in attempts if len(text) <= _LONGEST else ():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the script's style
                return ast.parse(attempt), notes
        except SyntaxError as error:
            if notes is not newer:
                at, why = f", line {error.lineno}: {(error.text or '').strip()}", error.msg
        except ValueError as error:
            why = str(error)
    raise RecipeError(
        source + at,
        rule=f"a script is Python {sys.version_info[0]}.{sys.version_info[1]} ({why})",
        remedy=PASTE,
    )


def _plain(text: str) -> str:
    for pattern, instead in _TABLE["skipped"].items():
        text = re.sub(pattern, instead, text)
    return textwrap.dedent(text)


def _older(line: str) -> str:
    for pattern, instead in _TABLE["newer"].items() if len(line) < _LONGEST_LINE else ():
        line = re.sub(pattern, instead, line)
    return line


class Call(NamedTuple):
    """One call in the source."""

    role: str  # of those in names.yaml; empty: not known
    name: str  # with the module that it is imported from
    line: int
    arguments: list[tuple[str, ast.expr]]  # by keyword; "**" for what is unpacked
    bound_to: set[str]  # names that its result goes into


class ScriptSource:
    """A script's imports, calls, and the names that it binds once."""

    def __init__(self, tree: ast.Module) -> None:
        self.nodes = sorted(ast.walk(tree), key=lambda node: getattr(node, "lineno", 0))
        attributes = self._each(ast.Attribute)
        self.set_attributes = [node for node in attributes if isinstance(node.ctx, ast.Store)]
        self.uses = Counter(node.id for node in self._each(ast.Name))
        self.modules: dict[str, str] = {}  # imported name -> its full name
        star = 0  # `from x import *` may bind any name again
        for node in self._each(ast.Import, ast.ImportFrom):
            module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            self.modules |= {one.asname or one.name: module + one.name for one in node.names}
            star = node.lineno if node.names[0].name == "*" else star
        bound = Counter(name for node in self.nodes for name in _binds(node))
        self.once: dict[str, ast.expr] = {}
        targets: dict[ast.expr, set[str]] = {}
        for node in self._each(ast.Assign):
            for target in node.targets:
                parts = {ast.unparse(part) for part in getattr(target, "elts", [target])}
                targets.setdefault(node.value, set()).update(parts)
                once = isinstance(target, ast.Name) and bound[target.id] == 1
                if once and node in tree.body and node.lineno > star:
                    self.once[target.id] = node.value
        self.all = [
            # one that stands among arguments goes by its own text
            self._call(node, targets.get(node) or {ast.unparse(node)})
            for node in self._each(ast.Call)
        ]

    def _each(self, *kinds: type) -> list[Any]:
        return [node for node in self.nodes if isinstance(node, kinds)]

    def _call(self, node: ast.Call, bound_to: set[str]) -> Call:
        first, dot, rest = ast.unparse(node.func).partition(".")
        name = self.modules.get(first, first) + dot + rest
        role = next((role for role, kind in _CALLS.items() if _is(name, kind["name"])), "")
        names: list[str] = _CALLS[role].get("arguments", []) if role else []
        given = [*zip(names, node.args, strict=False)]
        given += [(word.arg or "**", word.value) for word in node.keywords]
        return Call(role, name, node.lineno, given, bound_to)

    def calls(self, *roles: str) -> list[Call]:
        """The script's calls with these roles, role by role."""
        return [call for role in roles for call in self.all if call.role == role]

    def value(self, node: ast.expr) -> object:
        """The literal that an expression is or stands for; otherwise the expression itself."""
        literal = node
        if isinstance(node, ast.Name):
            literal = self.once.get(node.id, node)
            changeable = isinstance(literal, ast.List | ast.Tuple | ast.Dict)
            if changeable and self.uses[node.id] > 2:  # beside this one and the binding
                return node
        if word := re.fullmatch(r"(?:torch|TaskType)\.(\w+)", ast.unparse(literal)):
            return word[1]
        try:
            # by way of JSON: no bytes, sets or complex numbers; lists for tuples
            return json.loads(json.dumps(ast.literal_eval(literal)))
        except (ValueError, TypeError):
            return node


def _is(name: str, kind: str) -> bool:
    return re.fullmatch(f"{_TABLE['libraries']}(?:{kind})", name) is not None


def _binds(node: ast.AST) -> list[str]:
    # Names that a node gives a value, in whichever scope; of an import, also the name that it had.
    if isinstance(node, ast.Name):
        return [] if isinstance(node.ctx, ast.Load) else [node.id]
    if isinstance(node, ast.keyword):
        return []
    words = [getattr(node, key, None) for key in ("name", "asname", "rest", "arg")]
    return [word.split(".")[0] for word in words if isinstance(word, str)]
