"""A twin as a picture: what grew in a run, and what became of it without the suspect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.views.figure import Picture, as_text, new_figure
from workbench.views.look import BLUE, GREY, INK, ORANGE, PALE

if TYPE_CHECKING:
    from workbench.instruments.twin.growing import Twin


def twin_picture(twin: Twin) -> Picture:
    """The sign over the steps of both runs; grey: the clean steps, and those that are compared."""
    plan, sign = twin.plan, twin.plan.sign
    figure, axis = new_figure(9, 2.9)
    shared = sign.groups["step"] <= plan.step
    lines = [
        (sign.groups, ORANGE, plan.run.name),
        (twin.groups[twin.groups["step"] > plan.step], BLUE, f"its twin, {plan.change}"),
        (sign.groups[shared], INK, "both"),
    ]
    for groups, colour, label in lines:
        mean = groups[groups["step"] <= plan.end].groupby("step")["value"].mean()
        axis.plot(mean.index, mean, color=colour, linewidth=1.8, label=as_text(label, 60))
    late = twin.late["step"]
    for first, last in ((sign.first, sign.last), (late.min(), late.max())):
        if first <= last:
            axis.axvspan(first - 0.5, last + 0.5, color=PALE, alpha=0.4, linewidth=0)
    axis.axvline(plan.step + 0.5, color=GREY, linewidth=0.8, linestyle=":")
    axis.set(xlabel="step", ylabel=as_text(plan.what, 40))
    if sign.share:
        axis.set_ylim(-0.02, 1.02)
        axis.yaxis.set_major_formatter("{x:.0%}")
    axis.legend(fontsize=8, frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
    text = str(twin)
    title = text.partition(":")[0]
    figure.suptitle(as_text(title, 110), fontsize=9, x=0.01, ha="left")
    figure.tight_layout()
    return Picture(figure, text)
