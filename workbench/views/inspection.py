"""Findings in a run, for a cell: listings with their word diffs, and a completion shaded token by
token.
"""

from __future__ import annotations

from typing import Any

from workbench.inspection.compared import diff_as_text, word_diff
from workbench.inspection.reading import Listing
from workbench.inspection.tokens import TokenView
from workbench.views.look import MORE, MUTED, SHADES
from workbench.views.tables import (
    Html,
    Table,
    Verbatim,
    View,
    as_html,
    middle_cut,
    pre,
    signed,
)

_LONGEST = (600, 14)  # characters, lines of a text in a cell
_SHARES = ("before", "after", "share", "first", "last", "clipped")
_DIFF = {
    " ": "{}",
    "-": f"<del style='color:{MUTED}'>{{}}</del>",
    "+": f"<ins style='color:{MORE}'>{{}}</ins>",
}


def listing_table(listing: Listing) -> Table:
    """A `Listing`: its verdict, and some of its rows, texts as they are; of two texts the first,
    with a word diff.
    """
    names = list(listing.frame.columns)
    differs = {"text_before", "text_after"} <= set(names)
    if differs:
        names.remove("text_after")
    rows = []
    for row in listing.some.to_dict("records"):
        rows.append([_cell(name, row[name]) for name in names])
        if differs:
            texts = [middle_cut(row[name], *_LONGEST) for name in ("text_before", "text_after")]
            parts = [_DIFF[mark].format(as_html(words)) for mark, words in word_diff(*texts)]
            rows[-1].append(Html("".join(parts), diff_as_text(*texts)))
    header = [name.replace("_", " ") for name in names] + ["words that changed"] * differs
    caption = "\n".join(filter(None, [listing.verdict, listing.left_out]))
    return Table(header if rows else [], rows, caption)


def _cell(name: str, value: Any) -> object:
    if (name in _SHARES or name.startswith(("share_", "share of "))) and value == value:
        return f"{value:.0%}"
    if name == "change":
        return f"{100 * value:+.0f} points"
    return Verbatim(middle_cut(value, *_LONGEST)) if isinstance(value, str) else value


def token_page(view: TokenView) -> View:
    """A `TokenView`: each token shaded by its share of the KL, underlined by the effect of the
    advantage.
    """
    most = float(view.kl.max()) or 1.0
    line = signed(view.advantage, "transparent")
    spans = []
    for text, base, trained, kl in zip(view.tokens, view.base, view.trained, view.kl, strict=True):
        colour = SHADES[int(trained <= base)]
        title = f"base {base:.3f}, trained {trained:.3f}, KL {kl:.4f}"
        shade = f"color-mix(in srgb,{colour} {90 * kl / most:.1f}%,transparent)"
        style = f"background:{shade};border-bottom:2px solid {line}"
        # A line break would leave nothing to shade, and so would a further byte of a character.
        shown = as_html(text).replace("\n", "⏎\n") or "·"
        spans.append(f"<span title='{title}' style='{style}'>{shown}</span>")
    legend = (
        "orange: likelier since training; blue: less likely; the deeper, the larger the token's"
        " share of the KL"
    )
    shaded = f"<pre style='white-space:pre-wrap;line-height:2'>{''.join(spans)}</pre>"
    return View(f"{pre(view.verdict)}{shaded}{pre(legend)}", str(view))
