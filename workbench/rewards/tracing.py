"""Which parts of a reward function's source its completions reach, and which pieces of the text it
matched.

A reward that cannot fire has a branch that nothing reaches, often half of a line: `[1.0 if match
else 0.0 for match in ...]`. So coverage is by expression: the interpreter's trace of instructions,
each of which knows its columns in the source.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import itertools
import linecache
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, cast

from workbench.kinds import Fields, Function

Position = tuple[int, int, int, int]  # line, column to end line, end column
# of an instruction: line, end line, column, end column
Place = tuple[int | None, int | None, int | None, int | None]
# Variables whose text is what a function took out of a completion.
_TAKEN = re.compile(
    r"answer|extract|given|guess|found|result|pred|match|number|value", re.IGNORECASE
)
_MOST_SPANS = 200
_MATCHING = ("match", "search", "fullmatch", "findall", "finditer")
_BROAD = ("Exception", "BaseException")
_OF_RE = {getattr(re, name).__code__: name for name in _MATCHING}


class Trace(NamedTuple):
    """What a traced call reached, by file, and the (start, end) of what it matched, by text."""

    reached: dict[str, set[Place]]
    matched: dict[str, set[tuple[int, int]]]


class Unreached(NamedTuple):
    """A part of a function that was never evaluated."""

    file: str
    line: int
    source: str  # the whole line
    part: str  # the expression or statement
    pays: float  # the largest number that is written in it as a score; 0 if there is none above
    takes: float  # the lowest; 0 if there is none below

    def __str__(self) -> str:
        part = self.part if len(self.part) < 60 else self.part[:60] + "…"
        return f"{Path(self.file).name}:{self.line}: `{part}`" + (
            f" in `{self.source}`" if part != self.source else ""
        )


def traced(function: Function, texts: Iterable[str], *args: object, **kwargs: object) -> Trace:
    """Call a function and trace it, with what it calls in its own files; `texts`: where to look for
    what was matched.
    """
    codes = code_objects(function)
    reached: dict[str, set[Place]] = {code.co_filename: set() for code in codes}
    matched: dict[str, set[tuple[int, int]]] = {text: set() for text in texts}
    places = {code: list(code.co_positions()) for code in codes}

    def local(frame: FrameType, event: str, value: object) -> Any:
        code = frame.f_code
        if event == "opcode":
            # two bytes an instruction
            reached[code.co_filename].add(places[code][frame.f_lasti // 2])
        elif event in ("line", "return"):
            # The right answers, which the function is handed, are not what it took out of a
            # completion.
            columns = (
                code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
                if code is codes[0]
                else ()
            )
            _note_matches(
                {name: value for name, value in frame.f_locals.items() if name not in columns},
                matched,
            )
        return local

    def matching(frame: FrameType, event: str, value: object) -> Any:
        # re.match(...) in the middle of an expression is bound to no variable: what it hands back
        # is seen on its way.
        if event == "return" and value is not None:
            given = frame.f_locals
            _note_call(
                re.compile(given["pattern"], given["flags"]),
                _OF_RE[frame.f_code],
                [given["string"]],
                matched,
            )
        return matching

    def called(frame: FrameType, event: str, value: Any) -> None:
        # A compiled pattern's method tells neither its text nor what it found: it is asked again,
        # for the texts at hand.
        if (
            event == "c_call"
            and frame.f_code in places
            and getattr(value, "__name__", "") in _MATCHING
        ):
            pattern = getattr(value, "__self__", None)
            if isinstance(pattern, re.Pattern):
                local_texts = [each for each in frame.f_locals.values() if isinstance(each, str)]
                _note_call(pattern, value.__name__, local_texts or list(matched)[:1], matched)

    def entered(frame: FrameType, event: str, value: object) -> Any:
        if frame.f_code in _OF_RE and frame.f_back is not None and frame.f_back.f_code in places:
            return matching
        if frame.f_code not in places:
            if frame.f_code.co_filename not in reached:
                return None
            places[frame.f_code] = list(frame.f_code.co_positions())
        frame.f_trace_opcodes = True
        return local

    before, profile = sys.gettrace(), sys.getprofile()
    sys.setprofile(called)
    sys.settrace(entered)
    try:
        with contextlib.suppress(Exception):  # what it reached before it failed counts
            function(*args, **kwargs)
    finally:
        sys.settrace(before)
        sys.setprofile(profile)
    return Trace(reached, matched)


def _note_call(
    pattern: re.Pattern,
    method: str,
    strings: Iterable[object],
    matched: dict[str, set[tuple[int, int]]],
) -> None:
    for string in strings:
        if string in matched:
            found = getattr(pattern, "finditer" if method == "findall" else method)(string)
            each = [found] if isinstance(found, re.Match) else found or ()
            _note_matches({"found": list(itertools.islice(each, _MOST_SPANS))}, matched)


def _note_matches(variables: Fields, matched: dict[str, set[tuple[int, int]]]) -> None:
    for name, value in list(variables.items()):
        for item in value[:_MOST_SPANS] if isinstance(value, list) else (value,):
            if isinstance(item, re.Match) and item.string in matched:
                spans = matched[item.string]
                if len(spans) < _MOST_SPANS:
                    spans.update(
                        span
                        for span in map(item.span, range(len(item.groups()) + 1))
                        if span[0] >= 0
                    )
            elif (
                isinstance(item, str)
                and 0 < len(item) <= 200
                and len(matched) == 1
                and _TAKEN.search(name)
            ):
                [(text, spans)] = matched.items()
                if item != text and (start := text.rfind(item)) >= 0:
                    spans.add((start, start + len(item)))


def code_within(code: CodeType) -> Iterator[CodeType]:
    """A code object, and those of the comprehensions and functions in it, which are among its
    constants.
    """
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from code_within(constant)


def code_objects(function: Function) -> list[CodeType]:
    """The code of a function, of its inner functions, and of the functions of the same file that it
    calls by name.
    """
    while isinstance(function, functools.partial) or hasattr(function, "beneath"):
        function = (
            function.func if isinstance(function, functools.partial) else vars(function)["beneath"]
        )
    function = inspect.unwrap(function)
    if not inspect.isroutine(function) and callable(function):
        function = type(function).__call__
    start = getattr(function, "__code__", None)
    if start is None:
        return []
    found: list[CodeType] = []
    waiting, names, cells = [start], getattr(function, "__globals__", {}), {}
    for name, cell in zip(start.co_freevars, getattr(function, "__closure__", None) or ()):
        with contextlib.suppress(ValueError):  # not assigned yet
            cells[name] = cell.cell_contents
    while waiting:
        if (code := waiting.pop()) in found:
            continue
        found.append(code)
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        for other in (*map(names.get, code.co_names), *map(cells.get, code.co_freevars)):
            beneath = inspect.unwrap(other) if inspect.isfunction(other) else None
            if beneath is not None and beneath.__code__.co_filename == start.co_filename:
                waiting.append(beneath.__code__)
    return found


def unreached(function: Function, trace: Trace) -> list[Unreached]:
    """The branches of a function that the traced calls never evaluated, outermost first; empty if
    its source is missing.
    """
    found: list[tuple[Position, Unreached]] = []
    for code in code_objects(function):
        file, lines = code.co_filename, linecache.getlines(code.co_filename)
        if (node := _definition(code, lines)) is None:
            continue
        places = [
            place
            for each in code_within(code)
            for place in each.co_positions()
            if None not in place
        ]
        positions = cast(list[Position], places)
        reached = trace.reached.get(file, set())
        for branch in _branches(node):
            begin, last = (branch[0].lineno, branch[0].col_offset), branch[-1]
            # the parser gives both
            end = last.end_lineno or last.lineno, last.end_col_offset or last.col_offset
            # An instruction's place is (line, end line, column, end column).
            own = [
                place
                for place in positions
                if (place[0], place[2]) >= begin and (place[1], place[3]) <= end
            ]
            around = any(
                begin >= outer[:2] and end <= outer[2:]
                for outer, other in found
                if other.file == file
            )
            if own and not reached.intersection(own) and not around:
                numbers = [0.0, *(number for statement in branch for number in _numbers(statement))]
                source, part = lines[begin[0] - 1].strip(), ast.unparse(branch[0]).splitlines()[0]
                found.append(
                    (
                        (*begin, *end),
                        Unreached(file, begin[0], source, part, max(numbers), min(numbers)),
                    )
                )
    return sorted((each for _, each in found), key=lambda each: (each.file, each.line))


def broad_handlers(function: Function) -> list[str]:
    """`except:` and `except Exception:` of a function that continue without raising: "file.py:12",
    in order.
    """
    return _places(function, _hides)


def calls_of(function: Function, names: Iterable[str]) -> list[str]:
    """Where a function calls one of these builtins: "file.py:12", in order."""
    return _places(
        function, lambda node: isinstance(node, ast.Call) and getattr(node.func, "id", "") in names
    )


def _places(function: Function, wanted: Callable[[ast.AST], bool]) -> list[str]:
    codes = [
        (code, _definition(code, linecache.getlines(code.co_filename)))
        for code in code_objects(function)
    ]
    nodes = [
        (code, each)
        for code, node in codes
        if node is not None
        for each in ast.walk(node)
        if wanted(each)
    ]
    placed = [(Path(code.co_filename).name, vars(each)["lineno"]) for code, each in nodes]
    return [*dict.fromkeys(f"{file}:{line}" for file, line in placed)]


def _hides(node: ast.AST) -> bool:
    if not isinstance(node, ast.ExceptHandler) or (
        node.type and getattr(node.type, "id", "") not in _BROAD
    ):
        return False
    inside = list(ast.walk(node))
    returns = [each.value for each in inside if isinstance(each, ast.Return)]
    # It prints or logs, and returns None: no score.
    calls = any(
        isinstance(each, ast.Expr) and isinstance(each.value, ast.Call) for each in node.body
    )
    none = returns and all(
        value is None or (isinstance(value, ast.Constant) and value.value is None)
        for value in returns
    )
    return not any(isinstance(each, ast.Raise) for each in inside) and not (none and calls)


def _definition(code: CodeType, lines: list[str]) -> ast.AST | None:
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return None
    named = [
        n
        for n in ast.walk(tree)
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and n.name == code.co_name
    ]
    return next(
        (
            n
            for n in named
            if code.co_firstlineno in [n.lineno, *(each.lineno for each in n.decorator_list)]
        ),
        None,
    )


def _branches(function: ast.AST) -> Iterator[Sequence[ast.expr | ast.stmt]]:
    # Every part that is evaluated only under a condition, from the outside in.
    for node in ast.walk(function):
        if isinstance(node, ast.IfExp):
            yield [node.body]
            yield [node.orelse]
        elif isinstance(node, ast.BoolOp):
            yield from ([value] for value in node.values[1:])
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp)) and any(
            clause.ifs for clause in node.generators
        ):
            yield [node.elt]
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list) and statements:
                if isinstance(node, (ast.If, ast.While, ast.For, ast.ExceptHandler)):
                    yield statements
                # After a return, a continue or an exception, what follows is a branch too.
                yield from ([statement] for statement in statements[1:])


def _numbers(node: ast.AST, sign: float = 1.0) -> Iterator[float]:
    # With their signs, and without those that are only compared with or counted to.
    if (
        isinstance(node, ast.Constant)
        and isinstance(node.value, (int, float))
        and not isinstance(node.value, bool)
    ):
        yield sign * node.value
    if isinstance(node, (ast.Compare, ast.Subscript)):
        return
    takes = isinstance(getattr(node, "op", None), (ast.USub, ast.Sub)) and isinstance(
        node, (ast.UnaryOp, ast.AugAssign)
    )
    for child in ast.iter_child_nodes(node):
        yield from _numbers(child, -sign if takes else sign)
