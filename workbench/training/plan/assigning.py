"""Assignments to what a call made, after the call: `args = GRPOConfig(...)` and then `args.beta = 0.2`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_PERHAPS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match)


class Assigned(NamedTuple):
    """One assignment to an attribute or an item."""

    line: int
    target: str  # as it is written: args.beta
    value: ast.expr
    operator: ast.operator | None  # that of `+=` and its like
    node: ast.AST

    @property
    def name(self) -> str:
        """What is assigned to: beta."""
        return self.target.rpartition(".")[2]

    @property
    def written(self) -> str:
        """The assignment in a few characters."""
        text = ast.unparse(self.node)
        return text if len(text) <= 60 else f"{text[:57]}..."


def assignments(node: ast.AST) -> Iterator[Assigned]:
    """Those of one statement: `a.b = 1`, `a.b, a.c = 1, 2`, `a.b *= 2`, `a.b: int = 1` and `setattr(a, "b", 1)`."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _pairs(node, target, node.value)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield from _pairs(node, node.target, node.value)
    elif isinstance(node, ast.AugAssign):
        for one in _pairs(node, node.target, node.value):
            yield one._replace(operator=node.op)
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr" and len(node.args) == 3:
        holder, name, value = node.args
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            yield Assigned(node.lineno, f"{ast.unparse(holder)}.{name.value}", value, None, node)


def _pairs(node: Any, target: ast.expr, value: ast.expr) -> Iterator[Assigned]:
    if isinstance(target, (ast.Attribute, ast.Subscript)):
        yield Assigned(node.lineno, ast.unparse(target), value, None, node)
    elif isinstance(target, (ast.Tuple, ast.List)):
        alike = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
        for number, part in enumerate(target.elts):
            yield from _pairs(node, part, value.elts[number] if alike else value)


def names_of(node: ast.AST, parents: dict[int, ast.AST]) -> tuple[str, ...]:
    """The variables (or attributes) that a call's result goes into."""
    parent = parents.get(id(node))
    if isinstance(parent, ast.Assign):
        targets: list[ast.expr] = parent.targets
    elif isinstance(parent, (ast.AnnAssign, ast.NamedExpr)):
        targets = [parent.target]
    else:
        return ()
    return tuple(ast.unparse(target) for target in targets if isinstance(target, (ast.Name, ast.Attribute)))


def to_object(
    call: ast.Call,
    holders: Iterable[str],
    assigned: Iterable[Assigned],
    bound: dict[str, list[ast.expr]],
    parents: dict[int, ast.AST],
) -> tuple[list[Assigned], list[tuple[int, str]]]:
    """Assignments to attributes of what a call made, in order.

    Args:
        call: what made the object.
        holders: names that the object goes by.
        assigned: every assignment of the script.
        bound: variable -> what is assigned to it, anywhere.
        parents: id of a node -> the node around it.

    Returns:
        (those that are certain to happen, one (line, sentence) for each that is not).
    """
    holders = _with_aliases(set(holders), bound)
    certain, doubtful = [], []
    for one in sorted(assigned, key=lambda one: one.line):
        holder = next((name for name in holders if one.target.startswith((f"{name}.", f"{name}["))), None)
        if holder is None or one.line < call.lineno:
            continue
        again = [node for node in bound.get(holder, []) if call.lineno < node.lineno < one.line]
        if any(isinstance(node, ast.Call) for node in again):
            continue  # by then the name stands for something else
        why = doubt(call, one.node, parents)
        if one.target[len(holder)] == "[" or "." in one.target[len(holder) + 1 :] or one.target.endswith("]"):
            why = "is no plain attribute"
        if why:
            doubtful.append((one.line, f"{one.written} {why}: left out"))
        else:
            certain.append(one)
    return certain, doubtful


def _with_aliases(holders: set[str], bound: dict[str, list[ast.expr]]) -> list[str]:
    # `cfg = args`: one object under two names.
    for _ in range(3):
        holders |= {
            name
            for name, nodes in bound.items()
            if any(isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) in holders for node in nodes)
        }
    return sorted(holders, key=len, reverse=True)


def around(node: ast.AST, parents: dict[int, ast.AST]) -> list[ast.AST]:
    """What a node stands in, innermost first."""
    found = []
    while (above := parents.get(id(node))) is not None:
        found.append(above)
        node = above
    return found


def scopes(node: ast.AST, parents: dict[int, ast.AST]) -> list[ast.AST | None]:
    """The functions and classes that a node stands in, innermost first; None, the module, is the last."""
    return [*(above for above in around(node, parents) if isinstance(above, _SCOPES)), None]


def doubt(call: ast.AST, node: ast.AST, parents: dict[int, ast.AST]) -> str:
    """Why an assignment may not be in force where a call stands; empty: it is."""
    made, here = around(call, parents), around(node, parents)
    common = {id(above) for above in made}
    inner = [above for above in here if id(above) not in common]
    if any(isinstance(above, _SCOPES) for above in [*inner, *(a for a in made if a not in here)]):
        return "stands in another function or class than the call"
    if any(isinstance(above, _PERHAPS) and not _as_a_program(above) for above in inner):
        return "may happen or not, which only running it could tell"
    # The two branches of one condition: the call in one, the assignment in the other.
    for above in here:
        if (
            isinstance(above, ast.If)
            and id(above) in common
            and _branch(above, made, call) != _branch(above, here, node)
        ):
            return "stands in another branch than the call"
    return ""


def _as_a_program(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _branch(condition: ast.If, around: list[ast.AST], node: ast.AST) -> bool:
    inside = {id(node), *map(id, around)}
    return any(id(statement) in inside for statement in condition.body)
