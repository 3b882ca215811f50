"""A `Replay` for people: dead groups by step and deciders as pictures, then what changed as tables
and text.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.base.kinds import Figure
from workbench.inspection.replaying import DEAD, Replay
from workbench.views.chart import MAX_POINTS
from workbench.views.figure import inline_image, new_figure, twin_bars, with_legend
from workbench.views.history import envelope
from workbench.views.look import BLUE, GREY, ORANGE
from workbench.views.tables import Table, Verbatim, View, number, one_line, pre, short_name, typed

_NONE = "none (zero std)"
MOST_ALIVE = 10  # groups that are listed


def replay_view(replay: Replay, charts: bool = True) -> View:
    """The two pictures and the text in a notebook, tables and text in a terminal."""
    text = "\n\n".join(map(str, [*replay_tables(replay), replay]))
    if not charts:
        return View(typed(text), text)
    dead = inline_image(replay_chart(replay), "dead groups by step, as trained and replayed")
    deciders = inline_image(
        decider_bars(replay), "which function decides a group, as trained and replayed"
    )
    return View(f"{dead}<br>{deciders}<br>{pre(str(replay))}", text)


def replay_tables(replay: Replay) -> list[Table]:
    """The functions, who decides, the groups that come alive, and the completions whose advantage
    changes most.
    """

    def pair(row: Any, of: str, form: str = ".3g") -> str:
        return f"{number(row[f'old_{of}'], form)} -> {number(row[f'new_{of}'], form)}"

    functions = [
        {
            "function": row["name"],
            "code": row["change"],
            "reward hash": f"{row['old_hash'] or '-'} -> {row['new_hash'] or '-'}",
            "weight": pair(row, "weight"),
            "mean score": pair(row, "mean"),
            "share of the advantages": pair(row, "share", ".0%"),
            "scores that changed": row["rescored"],
            "groups it decides": pair(row, "decided", ""),
        }
        for row in replay.functions
    ]
    deciders = [
        {
            "decided by": _NONE if old == DEAD else old,
            "now decided by": _NONE if new == DEAD else new,
            "groups": count,
            "share": f"{count / replay.groups:.0%}",
        }
        for (old, new), count in replay.deciders.items()
        if old != new
    ]
    alive = [
        dict(zip(("step", "group", "prompt_id", "was dead", "now decided by"), row.values()))
        for row in replay.alive[:MOST_ALIVE]
    ]
    examples = [
        {
            "step/group/generation": f"{row['step']}/{row['group']}/{row['generation']}",
            **{of: Verbatim(one_line(row[of], 60)) for of in ("prompt", "completion")},
            **{of: pair(row, of) for of in ("total", "advantage")},
            "scores that differ": _changed_scores(row["old_scores"], row["new_scores"]),
        }
        for row in replay.examples
    ]
    shown = str(len(alive))
    if replay.came_alive > len(alive):
        shown = f"the first {shown} of {replay.came_alive}"
    tables = {
        "reward functions, old -> new": functions,
        "what decides a group, old -> new": deciders,
        f"groups that come alive: {shown}": alive,
        "the largest changes of advantage, old -> new, one per group": examples,
    }
    return [
        Table(rows[0], [row.values() for row in rows], caption)
        for caption, rows in tables.items()
        if rows
    ]


def _changed_scores(old: dict[str, float], new: dict[str, float]) -> str:
    sides = [
        (name, number(old.get(name)), number(new.get(name))) for name in dict.fromkeys([*new, *old])
    ]
    return ", ".join(f"{short_name(name)} {was} -> {now}" for name, was, now in sides if was != now)


def replay_chart(replay: Replay) -> Figure:
    """Share of dead groups by step, old against new; several steps per point where there are
    many.
    """
    figure, axis = new_figure(8, 2.6)
    step, groups, *dead = np.array([list(row.values()) for row in replay.steps], dtype=float).T
    size = max(1, -(-len(step) // MAX_POINTS))
    style = {"marker": "o", "markersize": 3} if len(step) < 30 else {}
    for counts, label, colour in zip(dead, ("as trained", "with the new rewards"), (GREY, BLUE)):
        shares = envelope(step, counts / groups, MAX_POINTS)
        axis.plot(shares.x, shares.mean, color=colour, label=label, linewidth=1.6, **style)
    axis.set_ylim(-0.02, 1.02)
    axis.yaxis.set_major_formatter("{x:.0%}")
    axis.locator_params("x", integer=True)
    steps = "step" if size == 1 else f"step, means of {size}"
    title = "share of dead groups, on the same completions"
    return with_legend(figure, axis, x=steps, title=title)


def decider_bars(replay: Replay) -> Figure:
    """How many groups each function decides, old against new."""
    figure, axis = new_figure(8, 0.5 * (len(replay.functions) + 1) + 0.9)
    old = [row["old_decided"] for row in replay.functions] + [sum(replay.old_dead.values())]
    new = [row["new_decided"] for row in replay.functions] + [sum(replay.new_dead.values())]
    labels = [short_name(row["name"]) for row in replay.functions] + [_NONE]
    twins = {"as trained": (GREY, old, None), "with the new rewards": (ORANGE, new, None)}
    twin_bars(axis, labels, twins)
    return with_legend(figure, axis, x="groups whose advantages it decides")
