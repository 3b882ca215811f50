"""Which parts of a reward function's source its completions reach, and which pieces of the text it
matched.

A reward that cannot fire has a branch that nothing reaches, often half of a line: `[1.0 if match
else 0.0 for match in ...]`. So coverage is by expression: the interpreter's trace of instructions,
each of which knows its columns in the source.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import linecache
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, cast

from workbench.kinds import Fields, Function
from workbench.rewards.code import Place, Trace, code_objects, code_within

Position = tuple[int, int, int, int]  # line, column to end line, end column
Spans = set[tuple[int, int]]
# Variables whose text is what a function took out of a completion.
_TAKEN = re.compile(
    r"answer|extract|given|guess|found|result|pred|match|number|value", re.IGNORECASE
)
_MOST_SPANS = 200
_MATCHING = ("match", "search", "fullmatch", "findall", "finditer")
_BROAD = ("Exception", "BaseException")
_OF_RE = [getattr(re, name).__code__ for name in _MATCHING]


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
    matched: dict[str, Spans] = {text: set() for text in texts}
    places = {code: list(code.co_positions()) for code in codes}

    def local(frame: FrameType, event: str, value: object) -> Any:
        code = frame.f_code
        if event == "opcode":
            # two bytes an instruction
            reached[code.co_filename].add(places[code][frame.f_lasti // 2])
        elif event in ("line", "return"):
            # The right answers, which the function is handed, are not what it took out of a
            # completion.
            count = code.co_argcount + code.co_kwonlyargcount if code is codes[0] else 0
            columns, variables = code.co_varnames[:count], frame.f_locals.items()
            _note_matches({name: own for name, own in variables if name not in columns}, matched)
        return local

    def called(frame: FrameType, event: str, value: object) -> None:
        # A compiled pattern's method tells neither its text nor what it found: it is asked again,
        # for the texts at hand. Those of `re` call one, too.
        caller = frame.f_back if frame.f_code in _OF_RE else frame
        method, pattern = getattr(value, "__name__", ""), getattr(value, "__self__", None)
        if (
            event == "c_call"
            and method in _MATCHING
            and caller is not None
            and caller.f_code in places
            and isinstance(pattern, re.Pattern)
        ):
            local_texts = [each for each in frame.f_locals.values() if isinstance(each, str)]
            for string in local_texts or list(matched)[:1]:
                if string in matched:
                    found = getattr(pattern, method.replace("findall", "finditer"))(string)
                    each = [found] if isinstance(found, re.Match) else found or ()
                    _note_matches({"found": [*itertools.islice(each, _MOST_SPANS)]}, matched)

    def entered(frame: FrameType, event: str, value: object) -> Any:
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


def _note_matches(variables: Fields, matched: dict[str, Spans]) -> None:
    for name, value in list(variables.items()):
        for item in value[:_MOST_SPANS] if isinstance(value, list) else (value,):
            if isinstance(item, re.Match) and item.string in matched:
                spans = matched[item.string]
                if len(spans) < _MOST_SPANS:
                    spans |= {span for span in item.regs if span[0] >= 0}
            elif isinstance(item, str) and 0 < len(item) <= 200 and _TAKEN.search(name):
                for text, spans in matched.items() if len(matched) == 1 else ():
                    if item != text and (start := text.rfind(item)) >= 0:
                        spans.add((start, start + len(item)))


def unreached(function: Function, trace: Trace) -> list[Unreached]:
    """The branches of a function that the traced calls never evaluated, outermost first; empty if
    its source is missing.
    """
    found: list[tuple[Position, Unreached]] = []
    for code, node in _definitions(function):
        file = code.co_filename
        places = [place for each in code_within(code) for place in each.co_positions()]
        positions = cast(list[Position], [place for place in places if None not in place])
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
            if own and not around and trace.reached.get(file, set()).isdisjoint(own):
                numbers = [0.0, *(number for statement in branch for number in _numbers(statement))]
                source = linecache.getline(file, begin[0]).strip()
                part = ast.unparse(branch[0]).splitlines()[0]
                missed = Unreached(file, begin[0], source, part, max(numbers), min(numbers))
                found.append(((*begin, *end), missed))
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


def keywords_of(function: Function) -> list[str]:
    """The names that a function takes out of its `**kwargs` by `get` or in brackets, in order."""
    found: list[str] = []
    for _, node in _definitions(function):
        spare = getattr(vars(node)["args"].kwarg, "arg", "")
        for each in ast.walk(node):
            match each:
                case ast.Call(
                    ast.Attribute(ast.Name(holder), "get" | "pop"), [ast.Constant(key), *_]
                ) | ast.Subscript(ast.Name(holder), ast.Constant(key)) if holder == spare:
                    found.append(str(key))
    return [*dict.fromkeys(found)]


def _places(function: Function, wanted: Callable[[ast.AST], bool]) -> list[str]:
    lines = [
        f"{Path(code.co_filename).name}:{vars(each)['lineno']}"
        for code, node in _definitions(function)
        for each in ast.walk(node)
        if wanted(each)
    ]
    return [*dict.fromkeys(lines)]


def _hides(node: ast.AST) -> bool:
    if not isinstance(node, ast.ExceptHandler) or (
        node.type and getattr(node.type, "id", "") not in _BROAD
    ):
        return False
    inside = list(ast.walk(node))
    returned = [each.value for each in inside if isinstance(each, ast.Return)]
    none = returned and all(getattr(value, "value", value) is None for value in returned)
    calls = [getattr(each, "value", None) for each in node.body if isinstance(each, ast.Expr)]
    # It prints or logs, and returns None: no score.
    silent = none and any(isinstance(each, ast.Call) for each in calls)
    return not silent and not any(isinstance(each, ast.Raise) for each in inside)


def _definitions(function: Function) -> Iterator[tuple[CodeType, ast.AST]]:
    # A function's code objects, each with its place in the source, where there is one.
    for code in code_objects(function):
        with contextlib.suppress(SyntaxError, ValueError):
            for node in ast.walk(ast.parse("".join(linecache.getlines(code.co_filename)))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    begins = {node.lineno, *(each.lineno for each in node.decorator_list)}
                    if node.name == code.co_name and code.co_firstlineno in begins:
                        yield code, node


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
    number = getattr(node, "value", None)
    if isinstance(number, (int, float)) and not isinstance(number, bool):
        yield sign * number
    if isinstance(node, (ast.Compare, ast.Subscript)):
        return
    takes = isinstance(getattr(node, "op", None), (ast.USub, ast.Sub)) and isinstance(
        node, (ast.UnaryOp, ast.AugAssign)
    )
    for child in ast.iter_child_nodes(node):
        yield from _numbers(child, -sign if takes else sign)
