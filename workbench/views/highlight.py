"""A completion with what the reward functions matched in it marked, as HTML that shows text and nothing else."""

from __future__ import annotations

import html
from collections.abc import Iterable

from workbench.views.tables import LONGEST_SHOWN, PRE, plain

_MARK = "background:#ffe08a;color:#222"
_ASKED = "border-bottom:2px solid #0072B2"


def highlighted(text: str, matched: Iterable[tuple[int, int]], asked: Iterable[str] = ()) -> str:
    """HTML of a completion in `<pre>`, where neither HTML nor MathJax runs.

    Args:
        matched: (start, end) of what the functions took out of it; shown on yellow.
        asked: the marks of the format that was asked for (`<answer>`, ...); underlined where they stand.
    """
    shown = text[:LONGEST_SHOWN]
    found, named = [False] * len(shown), [False] * len(shown)
    for start, end in matched:
        found[start:end] = [True] * len(found[start:end])
    for mark in asked:
        place = shown.find(mark) if mark else -1
        while place >= 0:
            named[place : place + len(mark)] = [True] * len(mark)
            place = shown.find(mark, place + len(mark))
    pieces, start = [], 0
    for index in range(1, len(shown) + 1):
        if index == len(shown) or (found[index], named[index]) != (found[start], named[start]):
            pieces.append(_piece(shown[start:index], found[start], named[start]))
            start = index
    more = f" … ({len(text) - LONGEST_SHOWN} more characters)" if len(text) > LONGEST_SHOWN else ""
    return f"<pre style='{PRE}'>{''.join(pieces)}{more}</pre>"


def _piece(text: str, found: bool, named: bool) -> str:
    # White space that was matched would not be seen.
    body = html.escape(plain(text), quote=True)
    if found:
        body = f"<mark style='{_MARK}'>{body.replace(chr(10), '↵' + chr(10))}</mark>"
    return f"<span style='{_ASKED}'>{body}</span>" if named else body
