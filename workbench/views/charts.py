"""The small pictures of the notebooks: prompt lengths, a group's advantages, before against after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.views.figure import BLUE, GREEN, GREY, ORANGE, RED, new_figure


def length_histogram(lengths: Sequence[int], limits: dict[float, int]) -> Any:
    """Distribution of prompt lengths (tokens), with the limit that keeps each share of the rows."""
    figure, axis = new_figure(8, 2.6)
    bins = range(min(lengths), max(lengths) + 2)
    axis.hist(lengths, bins=bins if len(bins) < 60 else 60, color=BLUE, align="left" if len(bins) < 60 else "mid")
    for (share, limit), style in zip(sorted(limits.items()), (":", "--", "-"), strict=False):
        axis.axvline(
            limit, color=ORANGE, linestyle=style, label=f"{share:.0%} of the prompts have at most {limit} tokens"
        )
    axis.set_xlabel("prompt length, tokens", fontsize=8)
    axis.set_ylabel("rows", fontsize=8)
    axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    return figure


def advantage_bars(labels: Sequence[str], totals: Sequence[float], advantages: Sequence[float]) -> Any:
    """A group: each completion's reward with the group's mean, and the advantage that comes of it."""
    figure, (left, right) = new_figure(9, 0.42 * len(labels) + 1.1, 1, 2)
    places = range(len(labels))
    left.barh(places, totals, color=BLUE)
    mean = sum(totals) / len(totals)
    left.axvline(mean, color=ORANGE, linestyle="--", label=f"group mean {mean:.2f}")
    left.set_yticks(places, labels, fontsize=8)
    left.set_title("reward (weighted total)", fontsize=9, loc="left")
    left.legend(fontsize=8, frameon=False, loc="lower right")
    right.barh(places, advantages, color=[GREEN if value > 0 else RED for value in advantages])
    right.axvline(0, color=GREY, linewidth=0.8)
    right.set_yticks(places, [""] * len(labels))
    right.set_title("advantage: made likelier (green), less likely (red)", fontsize=9, loc="left")
    for axis in (left, right):
        axis.invert_yaxis()
        axis.grid(axis="x", color="#dddddd", linewidth=0.6)
        axis.grid(visible=False, axis="y")
    figure.tight_layout()
    return figure


def before_after(rows: Sequence[tuple[str, tuple[float, float, float], tuple[float, float, float]]]) -> Any:
    """Shares before and after training, each (share, low, high) with its 95 % interval drawn."""
    figure, axis = new_figure(8, 0.75 * len(rows) + 0.9)
    for offset, which, colour in ((-0.18, 1, GREY), (0.18, 2, BLUE)):
        for place, row in enumerate(rows):
            share, low, high = row[which]
            axis.barh(
                place + offset, share, height=0.32, color=colour, xerr=[[share - low], [high - share]],
                error_kw={"elinewidth": 1, "capsize": 3}, label=("base", "trained")[which - 1] if place == 0 else None,
            )  # fmt: skip
            axis.text(min(high + 0.015, 1.0), place + offset, f"{share:.0%}", va="center", fontsize=8)
    axis.set_yticks(range(len(rows)), [row[0] for row in rows], fontsize=9)
    axis.set_xlim(0, 1.08)
    axis.set_xlabel("share of held-out completions", fontsize=8)
    axis.invert_yaxis()
    axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axis.grid(visible=False, axis="y")
    figure.tight_layout()
    return figure
