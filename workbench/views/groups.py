"""Where a group's advantages come from: tables and pictures."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.rewards.groups import ExplainedGroup
from workbench.views.figure import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    RED,
    inline_image,
    lying,
    new_figure,
    stacked_bars,
    with_legend,
)
from workbench.views.tables import Table, Verbatim, View, number, short_name


def explained_view(group: ExplainedGroup) -> View:
    """Rewards and advantages, and what each function adds to them, as bars; and the tables behind
    them.
    """
    tables = group_tables(group)
    totals = np.nan_to_num(group.totals).tolist()
    bars = advantage_bars(_labels(group), totals, group.advantages.tolist())
    parts = [inline_image(bars, "rewards and advantages of the group")]
    parts.append(inline_image(contribution_bars(group), group.verdict))
    parts += [table._repr_html_() for table in tables]
    return View("".join(parts), "\n\n".join(map(str, tables)))


def group_tables(group: ExplainedGroup, completions: bool = True) -> list[Table]:
    """Three tables: scores (and texts) with advantages under every scaling, what each function
    adds, the functions' shares.
    """
    import pandas

    short = list(map(short_name, group.names))
    places = list(group.labels) or list(range(len(group.texts)))
    numbers = np.column_stack([group.scores, group.totals, *group.by_scale.values()]).tolist()
    rows = [
        [place, Verbatim(text), *own] if completions else [place, *own]
        for place, text, own in zip(places, group.texts, numbers, strict=True)
    ]
    head = ["", "completion"] if completions else [""]
    head += [*short, "total", *(f"advantage, {scale}" for scale in group.by_scale)]
    caption = (
        f"scores, weighted total (mean {group.mean:.3g}, std {group.std:.3g}), and the advantage"
        " under each scale_rewards"
    )
    scored = Table(head, rows, caption)
    numbers = np.column_stack([group.contributions, group.advantages]).tolist()
    rows = [[place, *own] for place, own in zip(places, numbers, strict=True)]
    caption = "what each function adds to the advantage; rows sum to it"
    added = Table(["", *short, "advantage"], rows, caption)
    scores = pandas.DataFrame(group.scores)
    functions = zip(group.names, group.weights, scores.mean(), scores.std(), group.shares)
    rows = [[*own, number(share, ".0%")] for *own, share in functions]
    head = ["function", "weight", "mean score", "std of scores"]
    head.append("share of the advantages' variance")
    return [scored, added, Table(head, rows, group.verdict)]


def contribution_bars(group: ExplainedGroup) -> Any:
    """Each completion's advantage as the sum of what the functions add: to the right of 0 up, to
    the left down.
    """
    count = len(group.texts)
    figure, axis = new_figure(9, 0.42 * count + 1.3)
    parts = zip(map(short_name, group.names), group.contributions.T, strict=True)
    stacked_bars(axis, _labels(group), parts)
    look = {"color": BLACK, "markersize": 5, "label": "advantage"}
    axis.plot(group.advantages, range(count), "D", **look)
    axis.axvline(0, color=GREY, linewidth=0.8)
    return with_legend(figure, axis, x="advantage", title=textwrap.fill(group.verdict, 110))


def _labels(group: ExplainedGroup) -> list[str]:
    return list(group.labels) or [f"completion {index}" for index in range(len(group.texts))]


def advantage_bars(
    labels: Sequence[str], totals: Sequence[float], advantages: Sequence[float]
) -> Any:
    """A group: each completion's reward with the group's mean, and the resulting advantage."""
    figure, (left, right) = new_figure(9, 0.42 * len(labels) + 1.1, 1, 2)
    places, mean = range(len(labels)), np.mean(totals)
    left.barh(places, totals, color=BLUE)
    left.axvline(mean, color=BLACK, linestyle="--", label=f"group mean {mean:.2f}")
    left.set_title("reward (weighted total)", fontsize=9, loc="left")
    left.legend(fontsize=8, frameon=False, loc="lower right")
    right.barh(places, advantages, color=[GREEN if value > 0 else RED for value in advantages])
    right.axvline(0, color=GREY, linewidth=0.8)
    right.set_title("advantage: above 0 reinforced, below 0 suppressed", fontsize=9, loc="left")
    left.set_xlabel("reward")
    right.set_xlabel("advantage")
    lying(left, places, labels)
    lying(right, places, [""] * len(labels))
    figure.tight_layout()
    return figure
