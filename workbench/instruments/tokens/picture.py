"""A completion for a cell, shaded token by token."""

from __future__ import annotations

from workbench.instruments.tokens.shading import TokenView
from workbench.views.look import ORANGE, SKY
from workbench.views.tables import View, as_html, pre, signed

SHADES = (ORANGE, SKY)  # likelier, less likely


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
