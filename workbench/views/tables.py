"""Tables and words. Model text is shown only as text: escaped, in `<pre>`, with invisible
characters made visible.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from workbench.base.printable import printable
from workbench.views.look import ALARM, BAD, FAINT, GOOD, LESS, MORE, MUTED, WARNING

LONGEST_SHOWN = 2000
_NUMBER_WIDE = 12  # characters
_PADDED = "padding:2px 8px"
_HEAD = f"vertical-align:bottom;overflow-wrap:normal;{_PADDED}"
_ROW = f"border-top:1px solid {FAINT}"
_COLOURS = {
    "alarm": BAD,
    "error": BAD,
    "warning": WARNING,
    "note": MUTED,
    "passed": GOOD,
    "FAILED": BAD,
    "cannot be told": WARNING,
    "measured": MUTED,
    "ticked": GOOD,
    "open": BAD,
}
# JupyterLab breaks lines of <pre> inside words, and makes all columns of a table equally wide.
PRE = "margin:0;white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere;background:transparent;color:inherit;"  # noqa: E501


class Table:
    """A small table: HTML in a notebook, aligned text elsewhere."""

    def __init__(
        self, header: Iterable[str], rows: Iterable[Iterable[object]], caption: str = ""
    ) -> None:
        self.header, self.rows, self.caption = list(header), [list(row) for row in rows], caption

    def _repr_html_(self) -> str:
        # A long name may be wrapped, so that what one reads gets the room.
        names = [as_html(str(name)).replace("_", "_<wbr>") for name in self.header]
        sides = ["right" if any(map(_is_number, own)) else "left" for own in zip(*self.rows)]
        head = "".join(
            f"<th style='text-align:{side};{_HEAD}'>{name}</th>"
            for name, side in itertools.zip_longest(names, sides, fillvalue="left")
        )
        body = "".join(f"<tr style='{_ROW}'>{''.join(map(_cell, row))}</tr>" for row in self.rows)
        caption = pre(self.caption, "margin:6px 0;font-weight:bold") if self.caption else ""
        parts = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
        table = f"<table style='border-collapse:collapse'>{parts}</table>"
        return no_formulas(f"{caption}<div style='overflow-x:auto;line-height:1.4'>{table}</div>")

    def __str__(self) -> str:
        flat = [
            [_text(value).replace("\n", "\\n") for value in row]
            for row in (self.header, *self.rows)
        ]
        widths = [max(map(len, column)) for column in zip(*flat, strict=True)]
        lines = [printable(self.caption)] if self.caption else []
        for row in flat:
            lines.append("  ".join(map(str.ljust, row, widths)).rstrip())
        return "\n".join(lines)

    __repr__ = __str__


@dataclass(repr=False)
class View:
    """A page of HTML for a notebook, and the same as text for elsewhere."""

    html: str
    text: str

    def _repr_html_(self) -> str:
        return no_formulas(self.html)

    def __str__(self) -> str:
        return printable(self.text)

    __repr__ = __str__


def joined(views: Iterable[View | Table]) -> View:
    """Views one after the other, as one."""
    shown = list(views)
    page = "".join(view._repr_html_() for view in shown)
    return View(page, "\n\n".join(map(str, shown)))


class Verbatim(str):
    """Text written by a model or taken from a dataset: shown in `<pre>`."""


@dataclass
class Html:
    """HTML that was made, and escaped, here, for a cell in `<pre>`; `text` is the same as text."""

    page: str
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass
class CellMark:
    """A verdict in a word, in its colour; or a number or word in a given colour."""

    text: str
    colour: str = ""

    def __post_init__(self) -> None:
        self.colour = self.colour or _COLOURS[self.text]

    def __str__(self) -> str:
        return self.text


def no_formulas(page: str) -> str:
    """HTML in which MathJax (2, then 3, as in JupyterLab 4) does not turn text between two dollars
    into a formula.
    """
    return f"<div class='tex2jax_ignore mathjax_ignore'>{page}</div>"


def as_html(text: str) -> str:
    """HTML of text as it is, cut to a bounded length."""
    return html.escape(plain_text(text))


def verbatim(page: str, style: str = "") -> str:
    """HTML that was escaped, in `<pre>`, where MathJax makes no formula of it."""
    return f"<pre style='{PRE}{style}'>{page}</pre>"


def typed(text: str, style: str = "") -> str:
    """HTML of somebody's text as it is, in `<pre>`, as on a typewriter."""
    return verbatim(as_html(text), style)


def pre(text: str, style: str = "") -> str:
    """HTML of words as they are, in `<pre>` but in the type of the page: neither markup in them nor
    a formula between two dollars runs.
    """
    return verbatim(as_html(text), f"font:inherit;line-height:1.4;{style}")


def signed(value: float, zero: str = "inherit") -> str:
    """The colour of an advantage, whose sign says the same."""
    return MORE if value > 0 else LESS if value < 0 else zero


def coloured(text: str, colour: str = "inherit") -> str:
    """HTML of text as it is, in a colour."""
    return pre(text, f"color:{colour}")


def item(state: str, head: str, *texts: str) -> str:
    """A finding in a list: its state ("alarm", "error", "warning" or "note") and head in its
    colour, then its texts as they are.
    """
    sign = {"alarm": f"{ALARM} ", "warning": "! "}.get(state, "")
    bold = pre(f"{sign}{state}{head and ': '}{head}", f"color:{_COLOURS[state]};font-weight:bold")
    # What is wrong and what to do stand out against what lies between.
    shades = [f"color:{MUTED}" if 0 < place < len(texts) - 1 else "" for place in range(len(texts))]
    return f"<li style='margin:4px 0'>{bold}{''.join(map(pre, texts, shades))}</li>"


def cut(text: str, most: int) -> str:
    """`text` truncated to `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def middle_cut(text: str, most: int, most_lines: int) -> str:
    """`text` in at most about `most` characters and lines: its beginning, and its end, where the
    answer is.
    """
    lines = text.split("\n")
    if (hidden := len(lines) - most_lines) > 0:
        end = most_lines // 3
        lines[most_lines - end : -end] = [f"… ({hidden} line{'s' * (hidden > 1)}) …"]
        text = "\n".join(lines)
    if (hidden := len(text) - most) <= 0:
        return text
    end = most // 3
    return f"{text[: most - end]}\n… ({hidden} characters) …\n{text[-end:]}"


def one_line(text: str, most: int = LONGEST_SHOWN) -> str:
    """`text` in one line of at most `most` characters, with line breaks and invisible characters
    made visible.
    """
    return cut(plain_text(text.replace("\n", "⏎")), most)


def number(value: object, form: str = ".3g") -> str:
    """A number as text; "-" for None and NaN."""
    return "-" if value is None or value != value else format(value, form)


def short_name(function: str) -> str:
    """A reward function's name for a column: without the ending that they all share."""
    return function.removesuffix("_func").removesuffix("_reward") or function


def plain_text(text: str) -> str:
    """`text` cut to a bounded length, with control, invisible and direction-turning characters made
    visible.
    """
    if len(text) > LONGEST_SHOWN:
        text = f"{text[:LONGEST_SHOWN]} … ({len(text) - LONGEST_SHOWN} more characters)"
    return printable(text)


def _text(value: object) -> str:
    if value is None or value != value:
        return "-"
    if isinstance(value, float):
        return format(value, ".3g" if abs(value) < 100 else ".0f")
    return plain_text(str(value))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _cell(value: object) -> str:
    text = value.page if isinstance(value, Html) else html.escape(_text(value))
    if isinstance(value, (Verbatim, Html)):
        style = f"text-align:left;vertical-align:top;min-width:12em;{_PADDED}"
        return f"<td style='{style}'>{verbatim(text)}</td>"
    side = "right" if _is_number(value) else "left"
    # A word is not broken for the sake of a narrow column, and neither is "100 %".
    wrap = "overflow-wrap:normal;word-break:keep-all"
    if len(text) <= _NUMBER_WIDE:
        wrap = "white-space:nowrap"
    if isinstance(value, CellMark):
        text = f"<b style='color:{value.colour}'>{text}</b>"
    return f"<td style='text-align:{side};vertical-align:top;{wrap};{_PADDED}'>{text}</td>"
