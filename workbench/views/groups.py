"""Where a group's advantages come from: tables and pictures."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.rewards.groups import ExplainedGroup
from workbench.views.figure import BLACK, BLUE, GREEN, GREY, RED, inline_image, lying, new_figure, stacked_bars, with_legend
from workbench.views.tables import Table, Verbatim, View, number, short_name


def explained_view(found: ExplainedGroup) -> View:
    """Rewards and advantages, and what each function adds to them, as bars; and the tables behind them."""
    tables = group_tables(found)
    bars = advantage_bars(_labels(found), np.nan_to_num(found.totals).tolist(), found.advantages.tolist())
    parts = [inline_image(bars, "rewards and advantages of the group")]
    parts += [inline_image(contribution_bars(found), found.verdict), *(table._repr_html_() for table in tables)]
    return View("".join(parts), "\n\n".join(map(str, tables)))


def group_tables(found: ExplainedGroup, completions: bool = True) -> list[Table]:
    """Three tables: scores (and texts) with advantages under every scaling, what each function adds, the functions' shares."""
    short, scales = list(map(short_name, found.names)), found.by_scale
    places = list(found.labels) or [*range(len(found.texts))]
    texts = [[Verbatim(text)] if completions else [] for text in found.texts]
    caption = f"scores, weighted total (mean {found.mean:.3g}, std {found.std:.3g}), and the advantage under each scale_rewards"
    numbers = zip(places, texts, *found.scores.T, found.totals, *scales.values(), strict=True)
    head = ["", *(["completion"] if completions else []), *short, "total", *(f"advantage, {scale}" for scale in scales)]
    scored = Table(head, [[place, *text, *map(float, own)] for place, text, *own in numbers], caption)
    added = zip(places, found.contributions, found.advantages, strict=True)
    rows = [[place, *map(float, [*own, advantage])] for place, own, advantage in added]
    added = Table(["", *short, "advantage"], rows, "what each function adds to the advantage; rows sum to it")
    rows = []
    for name, weight, scores, share in zip(found.names, found.weights, found.scores.T, found.shares, strict=True):
        there = scores[~np.isnan(scores)]
        std = float(there.std(ddof=1)) if len(there) > 1 else 0.0
        rows.append([name, weight, *((float(there.mean()), std) if len(there) else (None, None)), number(share, ".0%")])
    header = ["function", "weight", "mean score", "std of scores", "share of the advantages' variance"]
    return [scored, added, Table(header, rows, found.verdict)]


def contribution_bars(found: ExplainedGroup) -> Any:
    """Each completion's advantage as the sum of what the functions add: to the right of 0 up, to the left down."""
    figure, axis = new_figure(9, 0.42 * len(found.texts) + 1.3)
    stacked_bars(axis, _labels(found), zip(map(short_name, found.names), found.contributions.T, strict=True))
    axis.plot(found.advantages, range(len(found.texts)), "D", color=BLACK, markersize=5, label="advantage")
    axis.axvline(0, color=GREY, linewidth=0.8)
    return with_legend(figure, axis, x="advantage", title=textwrap.fill(found.verdict, 110))


def _labels(found: ExplainedGroup) -> list[str]:
    return list(found.labels) or [f"completion {index}" for index in range(len(found.texts))]


def advantage_bars(labels: Sequence[str], totals: Sequence[float], advantages: Sequence[float]) -> Any:
    """A group: each completion's reward with the group's mean, and the advantage that comes of it."""
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
