"""Identifies a reward function by a hash of what it does, so that scores of different rewards are
never confused.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import itertools
import os
import re
import textwrap
import tokenize
from types import CodeType
from typing import Any

from workbench.base.kinds import Function
from workbench.rewards.code import cells_of, code_within

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# of a task file's module, which is named after its address: a folder that was moved scores the same
_TASK_FILE = re.compile(r"workbench\.tasks\.loading\.[^'. ]*/([^'. ]*)%2Epy")
_PYTHON = os.path.dirname(os.__file__)
_PLAIN = str | bytes | int | float | complex | tuple | list | dict | set | frozenset | None
_VALUES = _PLAIN | re.Pattern
_CACHED = type(functools.lru_cache(len))  # a function that keeps what it returned


def reward_hash(func: Function) -> str:
    """12 hex digits that change when a reward function's behaviour changes, and are the same in
    every process.

    They cover its source, but for docstrings; its defaults; the values that it closes
    over or was made with (factories, partials, instances); the values that it uses by name
    (patterns, lists, tables); and the functions that it calls by name or as `module.function` of a
    module that is not an installed library.
    """
    text = "\n".join(_parts_of(func, set()))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:12]


def _parts_of(value: object, seen: set[int]) -> list[str]:
    if not callable(value):
        return [_text_of(value)]
    if id(value) in seen:
        return []
    seen.add(id(value))
    own = []
    if isinstance(value, functools.partial):
        beneath = [value.func, *value.args, *itertools.chain(*sorted(value.keywords.items()))]
    elif inspect.ismethod(value):
        beneath = [value.__self__, value.__func__]
    elif inspect.isfunction(value):
        code, space = value.__code__, value.__globals__
        own = [_behaviour(value) or _instructions(code, value.__doc__)]
        names = sorted({name for each in code_within(code) for name in each.co_names})
        # `kind.__name__` is no use of the module's own name, which says where a function lies.
        names = [name for name in names if not name.startswith("__")]
        used = [space[name] for name in names if name in space]
        for module in filter(inspect.ismodule, list(used)):
            file = getattr(module, "__file__", None) or _PYTHON
            if "site-packages" not in file and not file.startswith(_PYTHON):
                used += [vars(module)[name] for name in names if name in vars(module)]
        beneath = [
            *cells_of(value).values(),
            *(value.__defaults__ or ()),
            *(value.__kwdefaults__ or {}).values(),
            *(other for other in used if inspect.isfunction(other) or isinstance(other, _VALUES)),
            *(other.__wrapped__ for other in used if isinstance(other, _CACHED)),
        ]
    elif not isinstance(value, type) and hasattr(value, "__dict__"):
        own = [_behaviour(type(value)) or type(value).__qualname__]
        beneath = itertools.chain(*sorted(vars(value).items()))
    else:
        return [_text_of(value)]
    return own + [part for each in beneath for part in _parts_of(each, seen)]


def _text_of(value: object) -> str:
    if isinstance(value, (set, frozenset)):
        return repr(sorted(map(_text_of, value)))  # their order differs from process to process
    if isinstance(value, dict):
        return repr([(_text_of(key), _text_of(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return repr([_text_of(item) for item in value])
    return _ADDRESS.sub("", _TASK_FILE.sub(r"workbench_task_\1", repr(value)))


def _instructions(code: CodeType, docstring: str | None = None) -> str:
    inner = [
        _instructions(each) if isinstance(each, CodeType) else _text_of(each)
        for each in code.co_consts
        if each not in (None, docstring)
    ]
    return "".join([code.co_code.hex(), *inner])


def _behaviour(thing: Any) -> str:
    # The source without its docstrings, which change no score; empty where there is none.
    source = behaviour = textwrap.dedent(source_code(thing) or "")
    with contextlib.suppress(SyntaxError):  # a part of a line: a lambda
        for node in ast.walk(ast.parse(source)):
            documented = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if documented and ast.get_docstring(node, clean=False) is not None:
                text = re.escape(ast.get_source_segment(source, node.body[0]) or "")
                behaviour = re.sub(rf"\n?[ \t]*{text}", "", behaviour, count=1)
    return behaviour


def source_code(thing: Any) -> str | None:
    """The source of a function or a class; None where it has none."""
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        # no file, or one that has been changed since
        return None
