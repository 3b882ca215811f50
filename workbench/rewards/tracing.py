"""Which parts of a reward function's source its completions reach, and which pieces of the text it
matched.

A reward that cannot fire has a branch that nothing reaches, often half of a line: `[1.0 if match
else 0.0 for match in ...]`. So coverage is by expression: the interpreter's trace of instructions,
each of which knows its columns in the source.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import itertools
import linecache
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, cast

from workbench.base.kinds import Fields, Function
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
_LEAVES = re.compile("JUMP|RETURN|LIST_APPEND")
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
    follower = _Follower(function, texts)
    # what it reached before it failed counts
    with _following(follower), contextlib.suppress(Exception):
        function(*args, **kwargs)
    return Trace(follower.reached, follower.matched)


class _Follower:
    """Collects what the interpreter reports of a function's code, and of that of its files."""

    def __init__(self, function: Function, texts: Iterable[str]) -> None:
        codes = code_objects(function)
        self.start = codes[0] if codes else None
        self.reached: dict[str, set[Place]] = {code.co_filename: set() for code in codes}
        self.matched: dict[str, Spans] = {text: set() for text in texts}
        self.places: dict[CodeType, dict[int, Place]] = {}

    def enter(self, code: CodeType) -> bool:
        """Whether this code is followed."""
        if code not in self.places and code.co_filename in self.reached:
            self.places[code] = _evaluated(code)
        return code in self.places

    def step(self, code: CodeType, offset: int) -> None:
        if place := self.places[code].get(offset):
            self.reached[code.co_filename].add(place)

    def look(self, frame: FrameType) -> None:
        # The right answers, which the function is handed, are not what it took out of a completion.
        code = frame.f_code
        count = code.co_argcount + code.co_kwonlyargcount if code is self.start else 0
        columns, variables = code.co_varnames[:count], frame.f_locals.items()
        _note_matches({name: own for name, own in variables if name not in columns}, self.matched)

    def call(self, frame: FrameType, method: object, pattern: object) -> None:
        # A compiled pattern's method tells neither its text nor what it found: it is asked again,
        # for the texts at hand. Those of `re` call one, too.
        caller = frame.f_back if frame.f_code in _OF_RE else frame
        name = getattr(method, "__name__", "")
        if (
            name in _MATCHING
            and caller is not None
            and caller.f_code in self.places
            and isinstance(pattern, re.Pattern)
        ):
            local_texts = [each for each in frame.f_locals.values() if isinstance(each, str)]
            for string in local_texts or list(self.matched)[:1]:
                if string in self.matched:
                    found = getattr(pattern, name.replace("findall", "finditer"))(string)
                    each = [found] if isinstance(found, re.Match) else found or ()
                    _note_matches({"found": [*itertools.islice(each, _MOST_SPANS)]}, self.matched)


def _evaluated(code: CodeType) -> dict[int, Place]:
    # Places by offset. What leaves or ends a comprehension bears the place of its element, or of
    # its last condition: such a step counts where nothing else stands, as in `continue`.
    steps = [
        (step.offset, cast(Place, (*(step.positions or ()),)), step.opname)
        for step in dis.get_instructions(code)
    ]
    own = {place for _, place, name in steps if not _LEAVES.search(name)}
    return {at: place for at, place, name in steps if not (_LEAVES.search(name) and place in own)}


if sys.version_info >= (3, 12):

    @contextlib.contextmanager
    def _following(follower: _Follower) -> Generator[None]:
        # Comprehensions are a part of their function here, and `sys.settrace` misses instructions.
        monitoring = sys.monitoring
        events = monitoring.events
        tool = next(each for each in range(5, -1, -1) if monitoring.get_tool(each) is None)
        looking = (events.LINE, events.JUMP, events.PY_RETURN)
        within = sum(looking) | events.INSTRUCTION | events.CALL

        def entered(code: CodeType, offset: int) -> None:
            if follower.enter(code):
                monitoring.set_local_events(tool, code, within)

        def look(*_: object) -> None:
            follower.look(sys._getframe(1))

        def called(code: CodeType, offset: int, function: object, first: object) -> None:
            # a method with what it is called on, or one that is bound to it
            follower.call(sys._getframe(1), function, getattr(function, "__self__", first))

        heard = {events.PY_START: entered, events.INSTRUCTION: follower.step, events.CALL: called}
        monitoring.use_tool_id(tool, "workbench")
        try:
            for event, callback in (heard | dict.fromkeys(looking, look)).items():
                monitoring.register_callback(tool, event, callback)
            for code in _OF_RE:
                monitoring.set_local_events(tool, code, events.CALL)
            monitoring.set_events(tool, events.PY_START)
            yield
        finally:
            monitoring.set_events(tool, 0)
            for code in (*_OF_RE, *follower.places):
                monitoring.set_local_events(tool, code, 0)
            monitoring.free_tool_id(tool)

else:

    @contextlib.contextmanager
    def _following(follower: _Follower) -> Generator[None]:
        def local(frame: FrameType, event: str, value: object) -> Any:
            if event == "opcode":
                follower.step(frame.f_code, frame.f_lasti)
            elif event in ("line", "return"):
                follower.look(frame)
            return local

        def called(frame: FrameType, event: str, value: object) -> None:
            if event == "c_call":
                follower.call(frame, value, getattr(value, "__self__", None))

        def entered(frame: FrameType, event: str, value: object) -> Any:
            frame.f_trace_opcodes = follower.enter(frame.f_code)
            return local if frame.f_trace_opcodes else None

        before, profile = sys.gettrace(), sys.getprofile()
        sys.setprofile(called)
        sys.settrace(entered)
        try:
            yield
        finally:
            sys.settrace(before)
            sys.setprofile(profile)


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


def overlooks(function: Function) -> bool:
    """Whether a function's code looks at no completion: it counts them, or goes through them beside
    others, at most. False where its source is missing.
    """
    code, node = next(_definitions(function), (None, None))
    if node is None or code not in code_objects(function)[:1]:
        return False
    args: ast.arguments = vars(node)["args"]
    takes = {each.arg for each in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
    holds = {each.arg for each in (args.vararg, args.kwarg) if each}
    holds |= {"completions", "completion_ids"}
    each_of, idle = set[str](), list[ast.AST]()
    for step in ast.walk(node):
        to: list[Any] = [ast.Name("")]  # what is counted gets no name
        match step:
            case ast.Call(ast.Name("len"), of):
                pass
            case ast.For(target, source) | ast.comprehension(target, source):
                to, of = getattr(target, "elts", [target]), getattr(source, "args", [source])
            case _:
                continue
        for one, source in zip(to, of) if len(to) == len(of) else ():
            if isinstance(one, ast.Name) and getattr(source, "id", "") in holds:
                idle.append(source)
                each_of.add(one.id)
    loads = [each for each in ast.walk(node) if isinstance(getattr(each, "ctx", 0), ast.Load)]
    looks = any(getattr(each, "id", None) in holds | each_of for each in loads if each not in idle)
    return not looks and not takes.isdisjoint({"prompts", "completions"})


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
