"""Figures as plain PNG, without pyplot, whose global state Jupyter's own hooks close and redraw
behind a running cell.
"""

from __future__ import annotations

import base64
import html
import io
import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.base.kinds import Axes, Fields, Figure
from workbench.base.printable import printable
from workbench.views.look import AXES, DARK_PROGRAMS, PAPER, RULE, SERIES, SMALL, TITLE
from workbench.views.tables import cut

if TYPE_CHECKING:
    from matplotlib.container import BarContainer

_SHARP = 2  # pixels of a picture that stays, for each of the page


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, Any]:
    """(Figure, axes), drawn by Agg. Sizes in inches."""
    figure, axes = mosaic(width, height, np.arange(rows * columns).reshape(rows, columns))
    return figure, list(axes.values()) if len(axes) > 1 else axes[0]


def mosaic(
    width: float, height: float, layout: np.ndarray | list[list[str]], **grid: float
) -> tuple[Figure, dict[Any, Axes]]:
    """(Figure, axes by name), drawn by Agg. Sizes in inches, of 100 pixels."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = FigureCanvasAgg(Figure(figsize=(width, height), dpi=100)).figure
    with rc_context(AXES):
        return figure, figure.subplot_mosaic(layout, gridspec_kw=grid)


def as_text(text: object, most: int = 1000) -> str:
    """Text as it is, in a figure, where matplotlib would set anything between two dollars as a
    formula.
    """
    return cut(printable(str(text)), most).replace("$", r"\$")


def with_legend(
    figure: Figure, axis: Axes, *entries: object, x: str = "", y: str = "", title: str = ""
) -> Figure:
    """The figure, laid out, with what its axes and their title say, and the legend (or these
    handles and labels) on its right.
    """
    axis.set(xlabel=x, ylabel=y)
    axis.set_title(as_text(title), fontsize=TITLE, loc="left")
    axis.legend(
        *entries, fontsize=SMALL, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0)
    )
    figure.tight_layout()
    return figure


def lying(axis: Any, places: object, labels: Iterable[object]) -> None:
    """An axis of horizontal bars: labels from the top down, the grid upright."""
    axis.set_yticks(places, [as_text(label, 48) for label in labels])
    axis.invert_yaxis()
    axis.grid(axis="x", color=RULE, linewidth=0.6)
    axis.grid(visible=False, axis="y")


def stacked_bars(
    axis: Axes,
    labels: Sequence[str],
    parts: Iterable[tuple[str, np.ndarray]],
    colours: Iterable[str] = SERIES,
) -> None:
    """Horizontal bars of named parts: positive values right of 0, negative ones left."""
    gap: Fields = {"edgecolor": PAPER, "linewidth": 0.8}  # between neighbours
    places = range(len(labels))
    right = left = np.zeros(len(labels))
    for (name, added), colour in zip(parts, itertools.cycle(colours)):
        start = np.where(added >= 0, right, left)
        axis.barh(places, added, 0.7, start, color=colour, label=as_text(name, 48), **gap)
        right = right + np.maximum(added, 0)
        left = left + np.minimum(added, 0)
    lying(axis, places, labels)


def twin_bars(axis: Any, labels: Sequence[str], twins: Fields, **look: Any) -> list[BarContainer]:
    """Horizontal bars side by side, of two named series: {name: (colour, values, errors)}."""
    places = np.arange(len(labels))
    bars = [
        axis.barh(places + offset, values, 0.36, color=colour, label=name, xerr=errors, **look)
        for offset, (name, (colour, values, errors)) in zip((-0.2, 0.2), twins.items())
    ]
    lying(axis, places, labels)
    return bars


def drawn_once(artist: Any) -> None:
    """Draw an artist that does not change from its own pixels, until the figure's size changes: the
    legends of a run's figure are a quarter of what a drawing costs.
    """
    from matplotlib.backends.backend_agg import RendererAgg

    draw, kept = artist.draw, {}

    def draw_pixels(renderer: Any) -> None:
        size = renderer.width, renderer.height, renderer.dpi
        if size not in kept:
            kept.clear()
            draw(own := RendererAgg(*size))
            pixels = np.asarray(own.buffer_rgba())[::-1]
            y, x = (np.flatnonzero(pixels[..., 3].any(axis)) for axis in (1, 0))
            if len(x):  # it is not hidden
                kept[size] = x[0], y[0], pixels[y[0] : y[-1] + 1, x[0] : x[-1] + 1].copy()
        if size in kept:
            renderer.draw_image(renderer.new_gc(), *kept[size])

    artist.draw = draw_pixels


def png(figure: Any, sharp: bool = True) -> bytes:
    """The figure as PNG bytes, in at most 128 colours: a chart has few, and it is then a third of
    the size. `sharp`: for a screen of twice as many pixels, at half as much again of the time.
    """
    from matplotlib import rc_context
    from PIL import Image

    figure.set_dpi(100 * (_SHARP if sharp else 1))
    with rc_context({"text.hinting": "none"}):  # to hint glyphs is a fifth of what a drawing costs
        figure.canvas.draw()
    image = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")
    image = image.quantize(128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    image.save(buffer, format="png", compress_level=4)
    return buffer.getvalue()


def image_bundle(figure: Figure, data: bytes, text: str) -> dict[str, str]:
    """A display bundle: the figure's image as HTML that turns dark with the page, as wide as the
    figure, and as PNG for programs that show no HTML; and a line of text for readers who cannot see
    it.
    """
    encoded, words = base64.b64encode(data).decode("ascii"), printable(text)
    wide = 100 * figure.get_figwidth()  # pixels of the page
    page = (
        f"<style>{DARK_PROGRAMS}</style><img src='data:image/png;base64,{encoded}' class='chart'"
        f" alt='{html.escape(words)}' width='{wide:.0f}' style='max-width:100%'>"
    )
    return {"text/html": page, "image/png": encoded, "text/plain": words}


class Picture:
    """A figure as the view of a result, with a text for readers who cannot see it."""

    def __init__(self, figure: Figure, text: str) -> None:
        self.figure, self.text = figure, text

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return image_bundle(self.figure, png(self.figure), self.text)

    def __str__(self) -> str:
        return printable(self.text)


def inline_image(figure: Figure, text: str) -> str:
    """The figure as HTML, for a view that shows it among other things; the text is for readers who
    cannot see it.
    """
    return image_bundle(figure, png(figure), text)["text/html"]
