"""Where a group's advantages come from: tables and pictures."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.rewards.groups import ExplainedGroup
from workbench.views.charts import advantage_bars
from workbench.views.figure import BLACK, GREY, SERIES, inline_image, new_figure
from workbench.views.tables import Table, Verbatim, short_name


class ExplainedView:
    """An `ExplainedGroup`: rewards and advantages, and what each function adds to them, as bars; and the tables behind them."""

    def __init__(self, found: ExplainedGroup) -> None:
        self.found, self.tables = found, group_tables(found)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables))

    def _repr_html_(self) -> str:
        found = self.found
        labels = [f"completion {number}" for number in range(len(found.texts))]
        totals, learnt = np.nan_to_num(found.totals).tolist(), found.advantages.tolist()
        bars = inline_image(advantage_bars(labels, totals, learnt), "rewards and advantages of the group")
        bars += inline_image(contribution_bars(found), found.verdict)
        return bars + "".join(table._repr_html_() for table in self.tables)


def group_tables(found: ExplainedGroup, completions: bool = True) -> list[Table]:
    """Three tables: scores and advantages under every scaling, what each function adds, and the functions' shares.

    Args:
        completions: with their texts.
    """
    short = [short_name(name) for name in found.names]
    scales = list(found.by_scale)
    scored = Table(
        ["", *(["completion"] if completions else []), *short, "total", *(f"advantage, {scale}" for scale in scales)],
        [
            [
                number,
                *([Verbatim(text)] if completions else []),
                *map(float, found.scores[number]),
                float(found.totals[number]),
                *(float(found.by_scale[scale][number]) for scale in scales),
            ]
            for number, text in enumerate(found.texts)
        ],
        f"scores, weighted total (mean {found.mean:.3g}, std {found.std:.3g}), and the advantage under each scale_rewards",
    )
    added = Table(
        ["", *short, "advantage"],
        [[number, *map(float, row), float(found.advantages[number])] for number, row in enumerate(found.contributions)],
        "what each function adds to the advantage; a row adds up to it",
    )
    functions = Table(
        ["function", "weight", "mean score", "std of scores", "share of the advantages' variance"],
        [
            [name, found.weights[f], *_statistics(found.scores[:, f]), _percent(found.shares[f])]
            for f, name in enumerate(found.names)
        ],
        found.verdict,
    )
    return [scored, added, functions]


def _statistics(scores: np.ndarray) -> tuple[float | None, float | None]:
    there = scores[~np.isnan(scores)]
    if not len(there):
        return None, None
    return float(there.mean()), float(there.std(ddof=1)) if len(there) > 1 else 0.0


def contribution_bars(
    found: ExplainedGroup, labels: Sequence[str] | None = None, order: Sequence[int] | None = None
) -> Any:
    """Each completion's advantage as the sum of what the functions add: to the right of 0 up, to the left down.

    Args:
        labels: [G] of the completions as they stand in `found`; None: their numbers, as in `group_tables`.
        order: [G] numbers of the completions from the top down, as a table beside it has them; None: as in `found`.
    """
    count = len(found.texts)
    order = list(range(count)) if order is None else list(order)
    labels = [f"completion {number}" for number in range(count)] if labels is None else labels
    figure, axis = new_figure(9, 0.42 * count + 1.3)
    places = np.arange(count)
    right, left = np.zeros(count), np.zeros(count)
    for f, (name, colour) in enumerate(zip(found.names, SERIES * 9, strict=False)):
        added = found.contributions[order, f]
        start = np.where(added >= 0, right, left)
        axis.barh(places, added, left=start, color=colour, height=0.7, label=short_name(name))
        right, left = right + np.maximum(added, 0), left + np.minimum(added, 0)
    axis.plot(found.advantages[order], places, "D", color=BLACK, markersize=5, label="advantage")
    axis.axvline(0, color=GREY, linewidth=0.8)
    axis.set_yticks(places, [labels[number] for number in order], fontsize=8)
    axis.invert_yaxis()
    axis.grid(axis="x", color="#dddddd", linewidth=0.6)
    axis.grid(visible=False, axis="y")
    axis.set_xlabel("advantage", fontsize=8)
    axis.set_title(textwrap.fill(found.verdict, 110), fontsize=9, loc="left")
    axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    return figure


def _percent(share: float) -> str:
    return "-" if share != share else f"{share:.0%}"
