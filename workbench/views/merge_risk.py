"""A `MergeRisk` for people: one bar per layer, in groups of a kind, against what training added."""

from __future__ import annotations

import textwrap

from workbench.exporting.risk import MergeRisk
from workbench.views.figure import BLUE, GREY, ORANGE, Picture, as_text, new_figure, with_legend


def merge_risk_picture(found: MergeRisk) -> Picture:
    """Bars on a log scale, a line at 1: above it, the merge moves a layer further than training
    did.
    """
    from matplotlib.ticker import LogLocator

    kinds: dict[str, list[float]] = {}
    for layer, ratio in found.layers.items():
        kinds.setdefault(layer.rpartition(".")[2], []).append(ratio)
    drawn = [ratio for ratio in found.layers.values() if 0 < ratio < float("inf")]
    title = "\n".join(["Merge risk, layer by layer", *textwrap.wrap(found.verdict, 100)])
    if not drawn:  # nothing that a log scale could show
        figure, axis = new_figure(8, 1)
        axis.set_axis_off()
        return Picture(with_legend(figure, axis, [], [], title=title), str(found))
    low, high = min([*drawn, 1.0]) / 2, max([*drawn, 1.0]) * 2
    figure, axis = new_figure(8, 2.8)
    axis.set_yscale("log", subs=[])
    axis.set_ylim(low, high)
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 50 else (1,)))
    axis.yaxis.set_major_formatter("{x:,.12g}")
    place, ticks = 0, []
    for kind, ratios in kinds.items():
        # 0 and infinity run to the frame
        heights = [min(max(ratio, low), high) for ratio in ratios]
        axis.bar(
            range(place, place + len(ratios)),
            heights,
            width=0.8,
            color=[ORANGE if own > 1 else BLUE for own in ratios],
        )
        ticks.append((place + (len(ratios) - 1) / 2, kind))
        place += len(ratios) + 1
    axis.axhline(1.0, color=GREY, linewidth=1.0, linestyle="--")
    axis.text(
        1.01,
        1.0,
        "1: as far as\ntraining\nmoved it",
        transform=axis.get_yaxis_transform(),
        va="center",
        fontsize=8,
    )
    axis.set_xticks(
        [where for where, _ in ticks], [as_text(kind, 24) for _, kind in ticks], fontsize=8
    )
    x, y = "adapted layers, by kind, first to last", "shift of the base /\nwhat training added"
    return Picture(with_legend(figure, axis, [], [], x=x, y=y, title=title), str(found))
