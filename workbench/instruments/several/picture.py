"""Several runs for people: their curves overlaid, then what differs."""

from __future__ import annotations

from workbench.instruments.several.comparing import Comparison
from workbench.run.metrics import GROUP_STD, KL, REWARD
from workbench.views.figure import inline_image, new_figure, with_legend
from workbench.views.inspection import listing_table
from workbench.views.look import SERIES, TITLE
from workbench.views.tables import View, joined


def comparison_view(comparison: Comparison) -> View:
    """A `Comparison`: the runs' reward, group std and KL overlaid, then what differs."""
    figure, axes = new_figure(10, 2.6, columns=3)
    for number, run in enumerate(comparison.runs):
        colour = SERIES[number % len(SERIES)]
        rows = run.metrics()
        for axis, key in zip(axes, (REWARD, GROUP_STD, KL), strict=True):
            points = [row for row in rows if row.get(key) is not None]
            x, y = ([row[of] for row in points] for of in ("step", key))
            axis.plot(x, y, color=colour, linewidth=1, label=run.name)
            axis.set_title(key, fontsize=TITLE, loc="left")
    with_legend(figure, axes[-1], x="step", title=KL)
    parts = (comparison.settings, comparison.held_out, comparison.prompts)
    image = inline_image(figure, ", ".join(run.name for run in comparison.runs))
    return View(image + joined(map(listing_table, parts)).html, str(comparison))
