"""A `MergeRisk` for people: one bar per layer, in groups of a kind, against what training added."""

from __future__ import annotations

import textwrap

import numpy as np

from workbench.exporting.risk import MergeRisk
from workbench.views.figure import Picture, as_text, new_figure, with_legend
from workbench.views.look import BLUE, GREY, ORANGE


def merge_risk_picture(risk: MergeRisk) -> Picture:
    """Bars on a log scale, a line at 1: above it, the merge moves a layer further than training
    did.
    """
    from matplotlib.ticker import LogLocator

    kinds: dict[str, list[float]] = {}
    for layer, ratio in risk.layers.items():
        kinds.setdefault(layer.rpartition(".")[2], []).append(ratio)
    drawn = [ratio for ratio in risk.layers.values() if 0 < ratio < float("inf")]
    title = "\n".join(["Merge risk, layer by layer", *textwrap.wrap(risk.verdict, 100)])
    figure, axis = new_figure(8, 2.8 if drawn else 1)
    if not drawn:  # nothing that a log scale could show
        axis.set_axis_off()
        return Picture(with_legend(figure, axis, [], [], title=title), str(risk))
    low, high = min([*drawn, 1.0]) / 2, max([*drawn, 1.0]) * 2
    axis.set_yscale("log", subs=[])
    axis.set_ylim(low, high)
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 50 else (1,)))
    axis.yaxis.set_major_formatter("{x:,.12g}")
    place = 0
    ticks = {}
    for kind, ratios in kinds.items():
        places = place + np.arange(len(ratios))
        colours = [ORANGE if ratio > 1 else BLUE for ratio in ratios]
        axis.bar(places, np.clip(ratios, low, high), width=0.8, color=colours)
        ticks[places.mean()] = as_text(kind, 24)
        place += len(ratios) + 1
    as_far = axis.axhline(1.0, color=GREY, linewidth=1.0, linestyle="--")
    axis.set_xticks(list(ticks), ticks.values())
    x, y = "adapted layers, by kind, first to last", "shift of the base /\nwhat training added"
    words = ["1: as far as\ntraining moved it"]
    return Picture(with_legend(figure, axis, [as_far], words, x=x, y=y, title=title), str(risk))
