"""A `MergeRisk` for people: one bar per layer, against what training added."""

from __future__ import annotations

from workbench.exporting.risk import MergeRisk
from workbench.views.figure import Picture, new_figure, with_legend
from workbench.views.look import BLUE, GREY, ORANGE


def merge_risk_picture(risk: MergeRisk) -> Picture:
    """Bars on a log scale, a line at 1: above it, the merge moves a layer further than training
    did.
    """
    drawn = [ratio for ratio in risk.layers.values() if 0 < ratio < float("inf")]
    figure, axis = new_figure(8, 2.8)
    axis.bar(range(len(drawn)), drawn, color=[ORANGE if ratio > 1 else BLUE for ratio in drawn])
    axis.set_yscale("log")
    line = axis.axhline(1.0, color=GREY, linestyle="--")
    words, y = ["1: as far as\ntraining moved it"], "shift of the base /\nwhat training added"
    title = f"Merge risk: {risk.verdict.partition(':')[0]}"
    labels = {"x": "adapted layers, first to last", "y": y, "title": title}
    return Picture(with_legend(figure, axis, [line], words, **labels), str(risk))
