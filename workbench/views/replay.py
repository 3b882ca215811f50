"""A `Replay` for people: dead groups by step and deciders as pictures, then what changed as tables
and text.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.replaying import DEAD, Replay
from workbench.views.chart import MAX_POINTS
from workbench.views.figure import BLUE, GREY, ORANGE, inline_image, lying, new_figure, with_legend
from workbench.views.tables import Table, Verbatim, View, number, one_line, pre, short_name

_NONE = "none (zero std)"
MOST_ALIVE = 10  # groups that are listed
_FUNCTIONS = [
    "function",
    "code",
    "reward hash",
    "weight",
    "mean score",
    "share of the advantages",
    "completions rescored",
]
_FUNCTIONS += ["groups it decides"]
_EXAMPLES = [
    "step/group/generation",
    "prompt",
    "completion",
    "total",
    "advantage",
    "scores that differ",
]


def replay_view(replay: Replay, charts: bool = True) -> View:
    """The two pictures and the text in a notebook, tables and text in a terminal."""
    text = "\n\n".join(map(str, [*replay_tables(replay), replay]))
    if not charts:
        return View(pre(text), text)
    dead = inline_image(replay_chart(replay), "dead groups by step, as trained and replayed")
    deciders = inline_image(
        decider_bars(replay), "which function decides a group, as trained and replayed"
    )
    return View(f"{dead}<br>{deciders}<br>{pre(str(replay))}", text)


def replay_tables(replay: Replay) -> list[Table]:
    """The functions, who decides, the groups that come alive, and the completions whose advantage
    changes most.
    """
    functions = []
    examples = []
    for row in replay.functions:
        hashes = f"{row['old_hash'] or '-'} -> {row['new_hash'] or '-'}"
        decided = f"{row['old_decided']} -> {row['new_decided']}"
        changed = [_pair(row[f"old_{of}"], row[f"new_{of}"]) for of in ("weight", "mean")]
        shares = " -> ".join(
            "-" if (of := row[f"{side}_share"]) is None else f"{of:.0%}" for side in ("old", "new")
        )
        functions.append(
            [row["name"], row["change"], hashes, *changed, shares, row["rescored"], decided]
        )
    named = {
        pair: [_NONE if name == DEAD else name for name in pair]
        for pair in replay.deciders
        if pair[0] != pair[1]
    }
    deciders = [
        [*names, replay.deciders[pair], f"{replay.deciders[pair] / replay.groups:.0%}"]
        for pair, names in named.items()
    ]
    for row in replay.examples:
        place = f"{row['step']}/{row['group']}/{row['generation']}"
        texts = [Verbatim(one_line(row[of], 60)) for of in ("prompt", "completion")]
        changed = [_pair(row[f"old_{of}"], row[f"new_{of}"]) for of in ("total", "advantage")]
        examples.append(
            [place, *texts, *changed, _changed_scores(row["old_scores"], row["new_scores"])]
        )
    alive = [list(row.values()) for row in replay.alive[:MOST_ALIVE]]
    shown = (
        f"the first {len(alive)} of {replay.came_alive}"
        if replay.came_alive > len(alive)
        else str(len(alive))
    )
    tables = {  # caption -> (columns, rows)
        "reward functions, old -> new": (_FUNCTIONS, functions),
        "groups in which another function decides": (
            ["decided by", "now decided by", "groups", "share"],
            deciders,
        ),
        f"groups that come alive: {shown}": (
            ["step", "group", "prompt_id", "was dead", "now decided by"],
            alive,
        ),
        "the largest changes of advantage, old -> new, one per group": (_EXAMPLES, examples),
    }
    return [Table(columns, rows, caption) for caption, (columns, rows) in tables.items() if rows]


def _changed_scores(old: dict[str, float], new: dict[str, float]) -> str:
    pairs = [
        (short_name(name), _pair(old.get(name), new.get(name)))
        for name in dict.fromkeys([*new, *old])
    ]
    return ", ".join(f"{name} {pair}" for name, pair in pairs if len(set(pair.split(" -> "))) > 1)


def _pair(old: float | None, new: float | None) -> str:
    return f"{number(old)} -> {number(new)}"


def replay_chart(replay: Replay) -> Any:
    """Share of dead groups by step, old against new; several steps per point where there are
    many.
    """
    from matplotlib.ticker import PercentFormatter

    figure, axis = new_figure(8, 2.6)
    steps = np.array([list(row.values()) for row in replay.steps], dtype=float)
    size = max(1, -(-len(steps) // MAX_POINTS))
    chunks = [steps[start : start + size] for start in range(0, len(steps), size)]
    places = [chunk[:, 0].mean() for chunk in chunks]
    for column, label, colour in ((2, "as trained", GREY), (3, "with the new rewards", BLUE)):
        shares = [chunk[:, column].sum() / chunk[:, 1].sum() for chunk in chunks]
        style = {"marker": "o", "markersize": 3} if len(chunks) < 30 else {}
        axis.plot(places, shares, color=colour, label=label, linewidth=1.6, **style)
    axis.set_ylim(-0.02, 1.02)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    axis.locator_params("x", integer=True)
    steps_label = "step" if size == 1 else f"step, means of {size}"
    return with_legend(
        figure, axis, x=steps_label, title="share of dead groups, on the same completions"
    )


def decider_bars(replay: Replay) -> Any:
    """How many groups each function decides, old against new."""
    figure, axis = new_figure(8, 0.5 * (len(replay.functions) + 1) + 0.9)
    rows = [
        (short_name(row["name"]), row["old_decided"], row["new_decided"])
        for row in replay.functions
    ]
    rows.append((_NONE, sum(replay.old_dead.values()), sum(replay.new_dead.values())))
    places = np.arange(len(rows))
    for offset, column, label, colour in (
        (-0.2, 1, "as trained", GREY),
        (0.2, 2, "with the new rewards", ORANGE),
    ):
        axis.barh(
            places + offset, [row[column] for row in rows], height=0.36, color=colour, label=label
        )
    lying(axis, places, [row[0] for row in rows])
    return with_legend(figure, axis, x="groups whose advantages it decides")
