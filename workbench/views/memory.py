"""Will it fit? The memory of a recipe as bars against the card."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from workbench.memory import UNCALIBRATED, MemoryEstimate
from workbench.memory.parts import GB, PHASES, add, in_gb
from workbench.views.figure import Picture, new_figure, stacked_bars, with_legend
from workbench.views.look import INK, RED, settings

# What is drawn in one colour: name -> its parts' names, and the colour.
GROUPS = settings(Path(__file__).with_name("memory.yaml"))


def memory_picture(estimate: MemoryEstimate) -> Picture:
    """One bar per phase, its parts stacked, the whole range from low to high as a whisker, the
    card's limit as a line.
    """
    figure, axis = new_figure(9.5, 2.7)
    spans = [estimate.total(phase) for phase in PHASES]
    parts = []
    colours = []
    for name, group in GROUPS.items():
        own = [
            [part for part in estimate.of(phase) if part.name in group["parts"]] for phase in PHASES
        ]
        if any(own):
            parts.append((name, np.array([add(each).bytes / GB for each in own])))
            colours.append(group["colour"])
    # The figures stand beside the bars: on them they would cross the card's line.
    labels = [
        f"{phase}\n{in_gb(span.bytes)}\n({span.low / GB:.1f} to {span.high / GB:.1f})"
        for phase, span in zip(PHASES, spans)
    ]
    stacked_bars(axis, labels, parts, colours)
    size, low, high = np.array(spans).T / GB
    ends = {"xerr": [size - low, high - size], "elinewidth": 1.2, "capsize": 5, "capthick": 1.2}
    axis.errorbar(size, range(len(PHASES)), fmt="none", ecolor=INK, **ends)
    card = estimate.vram_bytes or 0
    widest = 1.12 * max(card / GB, *high)
    axis.set_xlim(0, widest)
    if card:
        axis.axvline(card / GB, color=RED, linewidth=1.8, label=f"the card: {in_gb(card)}")
        axis.axvspan(card / GB, widest, color=RED, alpha=0.06)
    unit = f"GB, estimated: {UNCALIBRATED}"
    title = f"{estimate.shape.name}: {estimate.verdict}"
    return Picture(with_legend(figure, axis, x=unit, title=title), str(estimate))
