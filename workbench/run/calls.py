"""Calls that nobody parsed: what a policy meant as a tool call, and why it was none.

A parser passes over them in silence: the rollout ends there, TRL's `tools/failure_frequency` does
not count it, and the reward sees an answer that is none.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection
from typing import NamedTuple

from workbench.base.errors import nearest


class Markers(NamedTuple):
    """What a chat template wraps a call in."""

    open: str
    close: str  # empty: not known
    line: str = ""  # of the template, that writes them
    json: bool = True  # whether an object stands between them, with name and arguments


# A name beside its quotes, and what encloses it; bounded, so that a text is read once.
_NAMED = re.compile(r"\{[^{}]{0,200}?(['\"])name\1\s*:\s*['\"]([\w.-]{1,80})['\"][^{}]{0,40}")
_FOREIGN = re.compile(
    r"<tool_call>|<function=|<function_call>|<invoke name=|<\|python_tag\|>|\[TOOL_CALLS\]"
    r"|<\|tool_call\|>|<tool>"
)
_THOUGHT = re.compile(r"</(think|thinking|reasoning|thought)>")
_ARGUMENTS = re.compile(r"['\"](arguments|parameters)['\"]\s*:")
_LONGEST = 20_000  # characters that are looked at, from the end: a call ends a turn


def unparsed(text: str, tools: Collection[str], markers: Markers | None = None) -> str:
    """Why what looks like a call is none; empty: nothing does.

    Args:
        text: of one turn of the policy, out of which no call was parsed.
        tools: the names that can be called.
        markers: None: what the template wraps a call in is not known.
    """
    text = text[-_LONGEST:]
    if markers and markers.open in text:
        return _inside(text, tools, markers)
    around = f"without {markers.open}" if markers else "without the template's tags"
    if (named := _NAMED.search(text)) and (named[2] in tools or _ARGUMENTS.search(named[0])):
        if named[2] not in tools:
            return f"unknown tool {named[2]!r}, {around}"
        if text.rfind("```", 0, named.start()) >= 0:
            return f"in a code fence, {around}"
        return f"single quotes, {around}" if named[1] == "'" else around
    if foreign := _FOREIGN.search(text):
        return f"{foreign[0]} is another template's"
    lines = (line.strip() for line in text.splitlines())
    called = next((line for line in lines if _as_python(line, tools)), "")
    return f"as Python, {around}" if called else ""


def _inside(text: str, tools: Collection[str], markers: Markers) -> str:
    start = text.rfind(markers.open)
    inside, after = text[start + len(markers.open) :], ""
    if markers.close:
        inside, closed, after = inside.partition(markers.close)
    if markers.close and not closed:
        return f"cut off: no {markers.close} follows"
    if _THOUGHT.search(after):
        return "inside the reasoning"
    if not markers.json:
        return "not in the template's form"
    try:
        call = json.loads(inside)
    except (ValueError, RecursionError):
        return _no_json(inside)
    if not isinstance(call, dict):
        return f"{type(call).__name__} in place of an object with name and arguments"
    name = call.get("name")
    if not isinstance(name, str) or name not in tools:
        return f"unknown tool {name!r}: {nearest(str(name), tools, 'none is like it')}"
    if not isinstance(call.get("arguments"), dict):
        return "arguments is not an object"
    return "not parsed, although it is whole"


def _no_json(inside: str) -> str:
    try:
        ast.literal_eval(inside.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return "no JSON between the tags"
    return "single quotes: JSON has double ones"


def _as_python(line: str, tools: Collection[str]) -> bool:
    name, bracket, _ = line.partition("(")
    return bool(bracket) and line.endswith(")") and name in tools
