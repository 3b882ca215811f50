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
    bars = advantage_bars(
        _labels(group), np.nan_to_num(group.totals).tolist(), group.advantages.tolist()
    )
    parts = [inline_image(bars, "rewards and advantages of the group")]
    parts += [
        inline_image(contribution_bars(group), group.verdict),
        *(table._repr_html_() for table in tables),
    ]
    return View("".join(parts), "\n\n".join(map(str, tables)))


def group_tables(group: ExplainedGroup, completions: bool = True) -> list[Table]:
    """Three tables: scores (and texts) with advantages under every scaling, what each function
    adds, the functions' shares.
    """
    short = list(map(short_name, group.names))
    scales = group.by_scale
    places = list(group.labels) or [*range(len(group.texts))]
    texts = [[Verbatim(text)] if completions else [] for text in group.texts]
    caption = (
        f"scores, weighted total (mean {group.mean:.3g}, std {group.std:.3g}), and the advantage"
        " under each scale_rewards"
    )
    numbers = zip(places, texts, *group.scores.T, group.totals, *scales.values(), strict=True)
    head = [
        "",
        *(["completion"] if completions else []),
        *short,
        "total",
        *(f"advantage, {scale}" for scale in scales),
    ]
    scored = Table(
        head, [[place, *text, *map(float, own)] for place, text, *own in numbers], caption
    )
    added = zip(places, group.contributions, group.advantages, strict=True)
    rows = [[place, *map(float, [*parts, advantage])] for place, parts, advantage in added]
    added = Table(
        ["", *short, "advantage"], rows, "what each function adds to the advantage; rows sum to it"
    )
    rows = []
    for name, weight, scores, share in zip(
        group.names, group.weights, group.scores.T, group.shares, strict=True
    ):
        there = scores[~np.isnan(scores)]
        std = float(there.std(ddof=1)) if len(there) > 1 else 0.0
        rows.append(
            [
                name,
                weight,
                *((float(there.mean()), std) if len(there) else (None, None)),
                number(share, ".0%"),
            ]
        )
    header = [
        "function",
        "weight",
        "mean score",
        "std of scores",
        "share of the advantages' variance",
    ]
    return [scored, added, Table(header, rows, group.verdict)]


def contribution_bars(group: ExplainedGroup) -> Any:
    """Each completion's advantage as the sum of what the functions add: to the right of 0 up, to
    the left down.
    """
    figure, axis = new_figure(9, 0.42 * len(group.texts) + 1.3)
    stacked_bars(
        axis, _labels(group), zip(map(short_name, group.names), group.contributions.T, strict=True)
    )
    axis.plot(
        group.advantages, range(len(group.texts)), "D", color=BLACK, markersize=5, label="advantage"
    )
    axis.axvline(0, color=GREY, linewidth=0.8)
    return with_legend(figure, axis, x="advantage", title=textwrap.fill(group.verdict, 110))


def _labels(group: ExplainedGroup) -> list[str]:
    return list(group.labels) or [f"completion {index}" for index in range(len(group.texts))]


def advantage_bars(
    labels: Sequence[str], totals: Sequence[float], advantages: Sequence[float]
) -> Any:
    """A group: each completion's reward with the group's mean, and the resulting advantage."""
    figure, (left, right) = new_figure(9, 0.42 * len(labels) + 1.1, 1, 2)
    places = range(len(labels))
    left.barh(places, totals, color=BLUE)
    mean = sum(totals) / len(totals)
    left.axvline(mean, color=BLACK, linestyle="--", label=f"group mean {mean:.2f}")
    left.set_title("reward (weighted total)", fontsize=9, loc="left")
    left.legend(fontsize=8, frameon=False, loc="lower right")
    right.barh(places, advantages, color=[GREEN if value > 0 else RED for value in advantages])
    right.axvline(0, color=GREY, linewidth=0.8)
    right.set_title("advantage: above 0 reinforced, below 0 suppressed", fontsize=9, loc="left")
    for axis, label, names in ((left, "reward", labels), (right, "advantage", [""] * len(labels))):
        axis.set_xlabel(label, fontsize=8)
        lying(axis, places, names)
    figure.tight_layout()
    return figure
