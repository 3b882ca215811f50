"""Where a group's advantages come from, and what other rewards would have made of them: tables and pictures."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.replaying.comparing import DEAD, Example, Replay
from workbench.rewards.groups import ExplainedGroup
from workbench.views.curves import MAX_POINTS
from workbench.views.figure import BLACK, BLUE, GREY, ORANGE, SERIES, inline_image, new_figure
from workbench.views.tables import Table, Verbatim, short_name


class ExplainedView:
    """An `ExplainedGroup`: what each function adds to the advantages as bars, and the tables that they come from."""

    def __init__(self, found: ExplainedGroup) -> None:
        self.found, self.tables = found, group_tables(found)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables))

    def _repr_html_(self) -> str:
        bars = inline_image(contribution_bars(self.found), self.found.verdict)
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


def replay_tables(found: Replay) -> list[Table]:
    """The functions, who decides, the groups that come alive, and the completions whose advantage changes most."""
    return [table for table in (_functions(found), _deciders(found), _alive(found), _examples(found)) if table.rows]


def _functions(found: Replay) -> Table:
    rows = [
        [
            row.name,
            row.change,
            f"{row.old_hash or '-'} -> {row.new_hash or '-'}",
            _pair(row.old_weight, row.new_weight),
            _pair(row.old_mean, row.new_mean),
            row.rescored,
            f"{row.old_decided} -> {row.new_decided}",
        ]
        for row in found.functions
    ]
    header = ["function", "code", "reward hash", "weight", "mean score", "completions rescored", "groups it decides"]
    return Table(header, rows, "reward functions, old -> new")


def _deciders(found: Replay) -> Table:
    said = {DEAD: "none (zero std)"}
    rows = [
        [said.get(old, old), said.get(new, new), count, _percent(count / found.groups)]
        for (old, new), count in found.deciders.items()
        if old != new
    ]
    return Table(["decided by", "now decided by", "groups", "share"], rows, "groups in which another function decides")


def _alive(found: Replay, most: int = 10) -> Table:
    rows = [[row.step, row.group, row.prompt_id, row.old_dead, row.new_decider] for row in found.alive[:most]]
    shown = f"the first {len(rows)} of {found.came_alive}" if found.came_alive > len(rows) else str(len(rows))
    return Table(["step", "group", "prompt_id", "was dead", "now decided by"], rows, f"groups that come alive: {shown}")


def _examples(found: Replay) -> Table:
    rows = [
        [
            f"{row.step}/{row.group}/{row.generation}",
            Verbatim(_line(row.prompt)),
            Verbatim(_line(row.completion)),
            _pair(row.old_total, row.new_total),
            _pair(row.old_advantage, row.new_advantage),
            _changed_scores(row),
        ]
        for row in found.examples
    ]
    header = ["step/group/generation", "prompt", "completion", "total", "advantage", "scores that differ"]
    return Table(header, rows, "the largest changes of advantage, old -> new, one a group")


def _line(text: str, most: int = 60) -> str:
    text = text.replace("\n", "⏎")
    return text if len(text) <= most else f"{text[:most]}…"


def _changed_scores(row: Example) -> str:
    names = [*row.new_scores, *(name for name in row.old_scores if name not in row.new_scores)]
    pairs = [(short_name(name), _pair(row.old_scores.get(name), row.new_scores.get(name))) for name in names]
    return ", ".join(f"{name} {pair}" for name, pair in pairs if len(set(pair.split(" -> "))) > 1)


def replay_chart(found: Replay) -> Any:
    """Share of dead groups a step, old against new; several steps a point where there are many."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figure, axis = new_figure(8, 2.6)
    steps = np.array(found.steps, dtype=float)
    size = max(1, -(-len(steps) // MAX_POINTS))
    chunks = [steps[start : start + size] for start in range(0, len(steps), size)]
    places = [chunk[:, 0].mean() for chunk in chunks]
    for column, label, colour in ((2, "as trained", GREY), (3, "with the new rewards", BLUE)):
        shares = [chunk[:, column].sum() / chunk[:, 1].sum() for chunk in chunks]
        style = {"marker": "o", "markersize": 3} if len(chunks) < 30 else {}
        axis.plot(places, shares, color=colour, label=label, linewidth=1.6, **style)
    axis.set_ylim(-0.02, 1.02)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("step" if size == 1 else f"step, means of {size}", fontsize=8)
    axis.set_title("share of dead groups, on the same completions", fontsize=9, loc="left")
    axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    return figure


def decider_bars(found: Replay) -> Any:
    """How many groups each function decides, old against new."""
    figure, axis = new_figure(8, 0.5 * (len(found.functions) + 1) + 0.9)
    rows = [(short_name(row.name), row.old_decided, row.new_decided) for row in found.functions]
    rows.append(("none (zero std)", sum(found.old_dead.values()), sum(found.new_dead.values())))
    places = np.arange(len(rows))
    for offset, column, label, colour in ((-0.2, 1, "as trained", GREY), (0.2, 2, "with the new rewards", ORANGE)):
        axis.barh(places + offset, [row[column] for row in rows], height=0.36, color=colour, label=label)
    axis.set_yticks(places, [row[0] for row in rows], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("groups whose advantages it decides", fontsize=8)
    axis.grid(axis="x", color="#dddddd", linewidth=0.6)
    axis.grid(visible=False, axis="y")
    axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    return figure


def _percent(share: float) -> str:
    return "-" if share != share else f"{share:.0%}"


def _pair(old: float | None, new: float | None) -> str:
    return " -> ".join("-" if value is None or value != value else f"{value:.3g}" for value in (old, new))
