"""Groups of completions: where advantages come from, as tables and pictures; and one group of a
run's latest step, as text in a bounded space.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.base.kinds import Figure, Prompt
from workbench.data.prompts import question
from workbench.rewards.groups import ExplainedGroup
from workbench.run.batch import ScoredBatch
from workbench.views.figure import inline_image, lying, new_figure, stacked_bars, with_legend
from workbench.views.look import BAD, BLUE, GREY, INK, ORANGE, SKY, SMALL, TITLE, WARNING
from workbench.views.tables import (
    CellMark,
    Table,
    Verbatim,
    View,
    joined,
    middle_cut,
    no_formulas,
    number,
    one_line,
    short_name,
    signed,
    typed,
)
from workbench.views.turns import transcript, transcript_lines

MOST_COMPLETIONS = 8  # of a group that are shown; the best and the worst are among them
MOST_FUNCTIONS = 10
_ENDS = {None: "-", True: "stop", False: "length"}  # by whether it was finished
# characters, lines
_LONGEST_COMPLETION, _LONGEST_PROMPT, _LONGEST_BEFORE = (600, 14), (800, 14), (240, 4)
_IN_TABLE = (300, 7)  # below the bars, which are what one came for


def explained_view(group: ExplainedGroup) -> View:
    """Rewards and advantages, and what each function adds to them, as bars; and the tables behind
    them.
    """
    tables = joined(group_tables(group))
    totals = np.nan_to_num(group.totals).tolist()
    bars = advantage_bars(_labels(group), totals, group.advantages.tolist())
    images = inline_image(bars, "rewards and advantages of the group")
    images += inline_image(contribution_bars(group), group.verdict)
    return View(images + tables.html, tables.text)


def group_tables(group: ExplainedGroup, completions: bool = True) -> list[Table]:
    """Three tables: scores (and texts) with advantages under every scaling, what each function
    adds, the functions' shares.
    """
    import pandas

    short = list(map(short_name, group.names))
    places = list(group.labels) or list(range(len(group.texts)))
    numbers = np.column_stack([group.scores, group.totals, *group.by_scale.values()]).tolist()
    rows = [
        [place, Verbatim(middle_cut(text, *_IN_TABLE)), *own] if completions else [place, *own]
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


def contribution_bars(group: ExplainedGroup) -> Figure:
    """Each completion's advantage as the sum of what the functions add: to the right of 0 up, to
    the left down.
    """
    count = len(group.texts)
    figure, axis = new_figure(9, 0.42 * count + 1.3)
    parts = zip(map(short_name, group.names), group.contributions.T, strict=True)
    stacked_bars(axis, _labels(group), parts)
    look = {"color": INK, "markersize": 5, "label": "advantage", "clip_on": False}
    axis.plot(group.advantages, range(count), "D", **look)
    axis.axvline(0, color=GREY, linewidth=0.8)
    return with_legend(figure, axis, x="advantage", title=textwrap.fill(group.verdict, 110))


def score_table(scored: ScoredBatch) -> Table:
    """The completions of a `ScoredBatch`, or their transcripts, beside each function's score, their
    weighted total and their advantage.
    """
    numbers = np.column_stack([scored.scores, scored.totals, scored.advantages]).tolist()
    texts = [*map(transcript, scored.turns)] or [*map(Verbatim, scored.completions)]
    rows = [[text, *own] for text, own in zip(texts, numbers, strict=True)]
    return Table(["completion", *map(short_name, scored.names), "total", "advantage"], rows)


def _labels(group: ExplainedGroup) -> list[str]:
    return list(group.labels) or [f"completion {index}" for index in range(len(group.texts))]


def advantage_bars(
    labels: Sequence[str], totals: Sequence[float], advantages: Sequence[float]
) -> Any:
    """A group: each completion's reward with the group's mean, and the resulting advantage."""
    figure, (left, right) = new_figure(9, 0.42 * len(labels) + 1.1, 1, 2)
    places = range(len(labels))
    mean = np.mean(totals)
    left.barh(places, totals, color=SKY)
    left.axvline(mean, color=INK, linestyle="--", label=f"group mean {mean:.2f}")
    left.set_title("reward (weighted total)", fontsize=TITLE, loc="left")
    left.legend(fontsize=SMALL, frameon=False, loc="lower right")
    right.barh(places, advantages, color=[BLUE if value > 0 else ORANGE for value in advantages])
    right.axvline(0, color=GREY, linewidth=0.8)
    right.set_title("advantage: above 0 reinforced, below 0 suppressed", fontsize=TITLE, loc="left")
    left.set_xlabel("reward")
    right.set_xlabel("advantage")
    lying(left, places, labels)
    lying(right, places, [""] * len(labels))
    figure.tight_layout()
    return figure


@dataclass(frozen=True)
class ShownGroup:
    """A group of a run's record or memory."""

    batch: ScoredBatch  # P = 1
    number: int  # of the group within its batch, from 0
    groups: int  # in that batch

    @property
    def best_first(self) -> list[int]:
        """Numbers of the completions, by advantage."""
        return np.argsort(-np.nan_to_num(self.batch.advantages), kind="stable").tolist()

    @property
    def title(self) -> str:
        return f"step {self.batch.step}, group {self.number + 1} of {self.groups}"


def messages_of(prompt: Prompt) -> list[tuple[str, str]]:
    """(role, text) of each message; a prompt that is plain text has the role ""."""
    if isinstance(prompt, str):
        return [("", prompt)]
    return [(str(message["role"]), str(message.get("content"))) for message in prompt]


def group_of(batch: ScoredBatch, turn: int) -> ShownGroup:
    """One group of a batch: another one with each turn, so that all kinds are seen."""
    number = turn % batch.group_count
    return ShownGroup(batch.group(number), number, batch.group_count)


def group_html(group: ShownGroup) -> str:
    """The group for a notebook. Model text is escaped, in `<pre>`, and cut in the middle where it
    is long.
    """
    batch = group.batch
    shown = group.best_first
    title = f"{len(shown)} completions, best first"
    if (left_out := len(shown) - MOST_COMPLETIONS) > 0:
        shown[MOST_COMPLETIONS // 2 : -MOST_COMPLETIONS // 2] = []
        title += f"; {left_out} between the best and the worst omitted"
    if (left_out := len(batch.names) - MOST_FUNCTIONS) > 0:
        title += f"; {left_out} functions omitted"
    heads = []
    for name, weight in zip(batch.names[:MOST_FUNCTIONS], batch.weights):
        short = one_line(short_name(name), 24)
        heads.append(short if weight == 1 else f"{short} x {number(weight)}")
    header = ["completion", *heads, "total", "advantage", "tokens, end"]
    alike: dict[str, list[list[object]]] = {}
    for row in (_row(batch, index) for index in shown):
        alike.setdefault("|".join(map(str, row)), []).append(row)
    for row, *more in alike.values():
        row[-1] = f"{row[-1]} (x {len(more) + 1})" if more else row[-1]
    table = Table(header, [row for row, *_ in alike.values()])
    return no_formulas(
        f"<details open><summary><b>{group.title}</b>: {title}</summary>"
        f"{typed(_prompt_text(batch.prompts[0]), 'margin:4px 0')}{table._repr_html_()}</details>"
    )


def group_text(group: ShownGroup) -> str:
    """The best two of the group and its worst, for a terminal."""
    batch = group.batch
    order = group.best_first
    # Of a long prompt its end, too: what it asks, or asks about, often stands there.
    asked = one_line(middle_cut(question(batch.prompts[0]), 90, 14))
    lines = [f"{group.title}: {asked}"]
    for index in [*order[:-1][:2], order[-1]]:
        advantage = number(batch.advantages[index], "+.2f")
        total = number(batch.totals[index])
        text, turns = one_line(batch.completions[index], 100), []
        if batch.turns:
            text, *turns = transcript_lines(batch.turns[index])
        lines.append(f"  {advantage:>6}  total {total:>5}  {text}")
        lines += [f"{'':10}{turn}" for turn in turns]
    return "\n".join(lines)


def _row(batch: ScoredBatch, index: int) -> list[object]:
    text = middle_cut(batch.completions[index] or "", *_LONGEST_COMPLETION)
    turns = batch.turns[index] if batch.turns else ()
    cells: list[object] = [transcript(turns) if turns else Verbatim(text)]
    for name, score in zip(batch.names[:MOST_FUNCTIONS], batch.scores[index].tolist()):
        error = batch.errors.get(name, {}).get(index)
        cells.append(CellMark(one_line(str(error), 60), BAD) if error else score)
    advantage = batch.advantages[index]
    cells.append(float(batch.totals[index]))
    cells.append(CellMark(number(advantage, "+.2f"), signed(advantage)))
    finished = None if batch.finished is None else bool(batch.finished[index])
    ending = f"{batch.lengths[index]}, {_ENDS[finished]}"
    return [*cells, CellMark(ending, WARNING) if finished is False else ending]


def _prompt_text(prompt: Prompt) -> str:
    # What stands before the question is the same for every group, and is not worth much room.
    *before, (role, last) = messages_of(prompt)
    asked = middle_cut(last, *_LONGEST_PROMPT)
    if not before:
        return asked
    parts = [f"[{role}]\n{middle_cut(text, *_LONGEST_BEFORE)}" for role, text in before[-3:]]
    if len(before) > 3:
        parts.insert(0, f"… ({len(before) - 3} messages) …")
    return "\n".join([*parts, f"[{role}]\n{asked}"])
