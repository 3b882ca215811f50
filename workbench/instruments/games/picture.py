"""A gain over the levels of difficulty, as a picture."""

from __future__ import annotations

from workbench.instruments.games.over_levels import OverLevels
from workbench.views.look import BLUE, GREY
from workbench.views.results import shares_picture
from workbench.views.tables import View, pre, typed


def levels_picture(over: OverLevels) -> View:
    """The shares of right completions over the levels, before and after, with the trained level
    marked; and the numbers.
    """
    text = str(over)
    if not over.points:
        return View(pre(text), text)
    levels = [point.level for point in over.points]
    curves = {
        "base": (*zip(*(point.before for point in over.points)), GREY),
        "trained": (*zip(*(point.after for point in over.points)), BLUE),
    }
    axes = {"x": "level of difficulty", "y": "correct, strict format"}
    axes["title"] = over.verdict.partition(";")[0]
    return View(shares_picture(levels, curves, axes, levels, over.trained) + typed(text), text)
