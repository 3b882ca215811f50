"""One group of a run's latest step: its prompt, its completions and their scores, as text in a
bounded space.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workbench.errors import RunError
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.run.parts import parts, span
from workbench.run.rollouts import read_part
from workbench.views.tables import (
    BAD,
    CellMark,
    Table,
    Verbatim,
    no_formulas,
    number,
    one_line,
    pre,
    short_name,
    signed,
)

MOST_COMPLETIONS = 8  # of a group that are shown; the best and the worst are among them
MOST_FUNCTIONS = 10
_ENDS = {None: "-", True: "stop", False: "length"}  # by whether it was finished
# characters, lines
_LONGEST_COMPLETION, _LONGEST_PROMPT, _LONGEST_BEFORE = (600, 14), (800, 14), (240, 4)


@dataclass(frozen=True)
class ShownGroup:
    """A group of a run's record or memory."""

    batch: ScoredBatch  # P = 1
    number: int  # of the group within its batch, from 0
    groups: int  # in that batch

    @property
    def best_first(self) -> list[int]:
        """Numbers of the completions, by advantage."""
        return np.argsort(-np.nan_to_num(self.batch.groups.advantages), kind="stable").tolist()

    @property
    def title(self) -> str:
        return f"step {self.batch.step}, group {self.number + 1} of {self.groups}"

    @property
    def messages(self) -> list[tuple[str, str]]:
        """(role, text) of the prompt, in order; a prompt that is plain text has the role ""."""
        prompt = self.batch.prompts[0]
        if isinstance(prompt, str):
            return [("", prompt)]
        return [(str(message["role"]), str(message.get("content"))) for message in prompt]


def group_of(batch: ScoredBatch, turn: int) -> ShownGroup:
    """One group of a batch: another one with each turn, so that all kinds are seen."""
    number = turn % batch.group_count
    return ShownGroup(batch.group(number), number, batch.group_count)


def newest_part(run: RunDirectory) -> tuple[int, Path] | None:
    """(step, file) of the newest part of a run's rollouts; None while there is none."""
    try:
        part = parts(run.rollouts)[-1]
    except (RunError, OSError):  # there is no folder, or nothing in it
        return None
    return span(part)[1], part


def read_batch(part: Path) -> ScoredBatch | None:
    """A part's last batch; None if it is not (or no longer) there, or is not a whole Parquet
    file.
    """
    try:
        return [None, *read_part(part, steps=[span(part)[1]])][-1]
    except (RunError, OSError):
        return None


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
    table = Table(header, [_row(batch, index) for index in shown])
    return no_formulas(
        f"<details open><summary><b>{group.title}</b>: {title}</summary>"
        f"{pre(_prompt_text(group.messages), 'margin:4px 0')}{table._repr_html_()}</details>"
    )


def group_text(group: ShownGroup, most: int = 3) -> str:
    """The group in a few lines, for a terminal."""
    batch, order = group.batch, group.best_first
    lines = [f"{group.title}: {one_line(group.messages[-1][1], 100)}"]
    for index in order if len(order) <= most else [*order[: most - 1], order[-1]]:
        advantage = number(batch.groups.advantages[index], "+.2f")
        total = number(batch.groups.totals[index])
        text = one_line(batch.completions[index], 100)
        lines.append(f"  {advantage:>6}  total {total:>5}  {text}")
    return "\n".join(lines)


def _row(batch: ScoredBatch, index: int) -> list[Any]:
    cells: list[Any] = [Verbatim(middle_cut(batch.completions[index] or "", *_LONGEST_COMPLETION))]
    for name, score in zip(batch.names[:MOST_FUNCTIONS], batch.scores[index].tolist()):
        error = batch.errors.get(name, {}).get(index)
        cells.append(CellMark(one_line(str(error), 60), BAD) if error else score)
    advantage = batch.groups.advantages[index]
    cells.append(float(batch.groups.totals[index]))
    cells.append(CellMark(number(advantage, "+.2f"), signed(advantage)))
    finished = None if batch.finished is None else bool(batch.finished[index])
    ending = f"{batch.lengths[index]}, {_ENDS[finished]}"
    return [*cells, CellMark(ending, BAD) if finished is False else ending]


def middle_cut(text: str, most: int, most_lines: int) -> str:
    """`text` in at most about `most` characters and lines: its beginning, and its end, where the
    answer is.
    """
    lines = text.split("\n")
    if (hidden := len(lines) - most_lines) > 0:
        end = most_lines // 3
        lines[most_lines - end : -end] = [f"… ({hidden} line{'s' * (hidden > 1)}) …"]
        text = "\n".join(lines)
    if (hidden := len(text) - most) <= 0:
        return text
    end = most // 3
    return f"{text[: most - end]}\n… ({hidden} characters) …\n{text[-end:]}"


def _prompt_text(messages: list[tuple[str, str]]) -> str:
    # What stands before the question is the same for every group, and is not worth much room.
    *before, (role, question) = messages
    asked = middle_cut(question, *_LONGEST_PROMPT)
    if not before:
        return asked
    parts = [f"[{role}]\n{middle_cut(text, *_LONGEST_BEFORE)}" for role, text in before[-3:]]
    if len(before) > 3:
        parts.insert(0, f"… ({len(before) - 3} messages) …")
    return "\n".join([*parts, f"[{role}]\n{asked}"])
