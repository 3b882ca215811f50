"""The small pictures of the notebooks: prompt lengths, a group's advantages, before against after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.views.figure import BLUE, GREEN, GREY, ORANGE, RED, new_figure


def length_histogram(lengths: Sequence[int], limits: dict[float, int], max_prompt_length: int | None = None) -> Any:
    """Distribution of prompt lengths (tokens), with the limit that keeps each share of the rows.

    Args:
        limits: share -> tokens, as `covering_lengths` gives them.
        max_prompt_length: the filter in force, shaded from there on; None: there is none.
    """
    from matplotlib.ticker import MaxNLocator

    figure, axis = new_figure(8, 2.6)
    few = max(lengths) - min(lengths) < 60
    axis.hist(lengths, bins=[edge - 0.5 for edge in range(min(lengths), max(lengths) + 2)] if few else 60, color=BLUE)
    by_limit: dict[int, list[str]] = {}
    for share, limit in sorted(limits.items()):
        by_limit.setdefault(limit, []).append(f"{share:.0%}")
    for (limit, shares), style in zip(by_limit.items(), (":", "--", "-"), strict=False):
        label = f"at most {limit} tokens: {' and '.join(shares)} of the prompts"
        axis.axvline(limit, color=ORANGE, linestyle=style, label=label)
    if max_prompt_length is not None and max_prompt_length < max(lengths):
        axis.axvspan(max_prompt_length + 0.5, max(lengths) + 0.5, color=RED, alpha=0.15, label="left out")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("prompt length, tokens", fontsize=8)
    axis.set_ylabel("rows", fontsize=8)
    axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    return figure


def pass_rates(profile: Any, num_generations: int) -> Any:
    """How often each prompt was solved: prompts by number of right completions; never, sometimes and always coloured.

    Args:
        profile: a `workbench.data.difficulty.Profile` that is not empty.
        num_generations: size of the groups that dead ones are estimated for.
    """
    from matplotlib.ticker import MaxNLocator

    rates = [solved.rate for solved in profile.solved.values()]
    most = max(solved.of for solved in profile.solved.values())
    figure, axis = new_figure(8, 2.6)
    counts = [sum(round(rate * most) == right for rate in rates) for right in range(most + 1)]
    shares = profile.shares
    for which, places, colour in (
        ("never", [0], ORANGE),
        ("sometimes", range(1, most), BLUE),
        ("always", [most], GREEN),
    ):
        axis.bar(
            places,
            [counts[place] for place in places],
            color=colour,
            width=0.85,
            label=f"{which} solved: {shares[which]:.0%}",
        )
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel(f"right completions of {most}", fontsize=8)
    axis.set_ylabel("prompts", fontsize=8)
    title = f"about {profile.dead_groups(num_generations):.0%} of groups of {num_generations} would be all right or all wrong"
    axis.set_title(title, fontsize=9, loc="left")
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
    right.set_title("advantage: above 0 reinforced, below 0 suppressed", fontsize=9, loc="left")
    for axis, label in ((left, "reward"), (right, "advantage")):
        axis.set_xlabel(label, fontsize=8)
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
