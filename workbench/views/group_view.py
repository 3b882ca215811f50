"""One group of a run's latest step: its prompt, its completions and what they earned, as text in a bounded space."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass
from pathlib import Path

from workbench.errors import RunError
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import read_part
from workbench.views.tables import number, one_line, pre, short_name

MOST_COMPLETIONS = 8  # of a group that are shown; the best and the worst are among them
MOST_FUNCTIONS = 10
_LONGEST_COMPLETION, _LONGEST_PROMPT, _LONGEST_BEFORE = (600, 14), (800, 14), (240, 4)  # characters, lines
_CELL = "padding:2px 8px;vertical-align:top;text-align:right;white-space:nowrap"
_GOOD, _BAD = "color:#1e8449", "color:#c0392b"


@dataclass(frozen=True)
class ShownGroup:
    """A group of a run's record or memory."""

    batch: ScoredBatch  # P = 1
    number: int  # of the group within its batch, from 0
    groups: int  # in that batch

    @property
    def step(self) -> int:
        return self.batch.step

    @property
    def best_first(self) -> list[int]:
        """Numbers of the completions, by advantage."""
        advantages = self.batch.groups.advantages
        return sorted(range(len(advantages)), key=lambda n: -advantages[n] if advantages[n] == advantages[n] else 0.0)

    @property
    def title(self) -> str:
        return f"step {self.step}, group {self.number + 1} of {self.groups}"

    @property
    def messages(self) -> list[tuple[str, str]]:
        """(role, text) of the prompt, in order; a prompt that is plain text has the role ""."""
        prompt = self.batch.prompts[0]
        if isinstance(prompt, str):
            return [("", prompt)]
        return [(str(message["role"]), str(message.get("content"))) for message in prompt]


def group_of(batch: ScoredBatch, turn: int) -> ShownGroup:
    """One group of a batch: another one with each turn, so that all kinds are seen."""
    chosen = turn % batch.group_count
    return ShownGroup(batch.group(chosen), chosen, batch.group_count)


def newest_part(run: RunDirectory) -> tuple[int, Path] | None:
    """(step, file) of the newest part of a run's rollouts; None as long as there is none."""
    try:
        with os.scandir(run.rollouts) as entries:
            # Names are padded with zeros, so the greatest is the newest.
            name = max((entry.name for entry in entries if entry.name.startswith("step-")), default=None)
    except OSError:
        return None
    return (int(name.split("-")[1]), run.rollouts / name) if name is not None else None


def read_batch(part: Path) -> ScoredBatch | None:
    """A part's batch; None if it is not (or no longer) there, or is no whole Parquet file."""
    try:
        return next(read_part(part), None)
    except (RunError, OSError):
        return None


def group_html(group: ShownGroup) -> str:
    """The group for a notebook. What a model wrote is escaped, in `<pre>`, and cut in the middle where it is long."""
    batch, shown = group.batch, group.best_first
    left_out = max(0, len(shown) - MOST_COMPLETIONS)
    if left_out:
        best = MOST_COMPLETIONS // 2
        shown = [*shown[:best], *shown[best - MOST_COMPLETIONS :]]
    weighted = zip(batch.names[:MOST_FUNCTIONS], batch.weights, strict=False)
    heads = [*(_function_head(name, weight) for name, weight in weighted), "total", "advantage", "tokens, end"]
    head = "".join(f"<th style='{_CELL}'>{text}</th>" for text in heads)
    body = "".join(f"<tr>{_row(batch, index)}</tr>" for index in shown)
    omitted = f"; {left_out} between the best and the worst omitted" if left_out else ""
    if (more := len(batch.names) - MOST_FUNCTIONS) > 0:
        omitted += f"; {more} functions omitted"
    return (
        f"<details open><summary><b>{group.title}</b>: {len(batch.completions)} completions, best first{omitted}</summary>"
        f"{pre(_prompt_text(group.messages), 'margin:4px 0')}"
        f"<div style='overflow-x:auto'><table style='border-collapse:collapse;table-layout:auto;width:100%'>"
        f"<thead><tr><th style='text-align:left;padding:2px 8px;width:65%;min-width:280px'>completion</th>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div></details>"
    )


def group_text(group: ShownGroup, most: int = 3) -> str:
    """The group in a few lines, for a terminal."""
    batch, order = group.batch, group.best_first
    shown = order if len(order) <= most else [*order[: most - 1], order[-1]]
    lines = [f"{group.title}: {one_line(group.messages[-1][1], 100)}"]
    for index in shown:
        advantage, total = batch.groups.advantages[index], batch.groups.totals[index]
        text = one_line(batch.completions[index], 100)
        lines.append(f"  {number(advantage, '+.2f'):>6}  total {number(total):>5}  {text}")
    return "\n".join(lines)


def _row(batch: ScoredBatch, index: int) -> str:
    text = middle_cut(batch.completions[index] or "", *_LONGEST_COMPLETION)
    cells = [f"<td style='padding:2px 8px;text-align:left'>{pre(text)}</td>"]
    for place, name in enumerate(batch.names[:MOST_FUNCTIONS]):
        error = batch.errors.get(name, {}).get(index)
        if error:
            cells.append(_cell(html.escape(one_line(str(error), 60)), f"{_BAD};white-space:normal"))
        else:
            cells.append(_cell(number(batch.scores[index, place])))
    advantage = batch.groups.advantages[index]
    colour = _GOOD if advantage > 0 else _BAD if advantage < 0 else ""
    cells += [_cell(number(batch.groups.totals[index])), _cell(f"<b>{number(advantage, '+.2f')}</b>", colour)]
    cut_short = batch.finished is not None and not batch.finished[index]
    end = f"<span style='{_BAD}'>length</span>" if cut_short else "-" if batch.finished is None else "stop"
    return "".join([*cells, _cell(f"{batch.lengths[index]}, {end}")])


def _cell(text: str, style: str = "") -> str:
    return f"<td style='{_CELL};{style}'>{text}</td>"


def _function_head(function: str, weight: float) -> str:
    name = html.escape(one_line(short_name(function), 24))
    return name if weight == 1 else f"{name}<br>x {number(weight)}"


def middle_cut(text: str, most: int, most_lines: int | None = None) -> str:
    """`text` in at most about `most` characters (and lines): its beginning, and its end, where the answer stands."""
    lines = text.split("\n")
    if most_lines is not None and len(lines) > most_lines:
        end = most_lines // 3
        hidden = len(lines) - most_lines
        text = "\n".join([*lines[: most_lines - end], f"… ({hidden} line{'s' * (hidden > 1)}) …", *lines[-end:]])
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end]}\n… ({len(text) - most} characters) …\n{text[-end:]}"


def _prompt_text(messages: list[tuple[str, str]]) -> str:
    # What stands before the question is the same for every group, and is not worth much room.
    if len(messages) == 1:
        return middle_cut(messages[0][1], *_LONGEST_PROMPT)
    *before, last = messages
    told = [f"[{role}]\n{middle_cut(text, *_LONGEST_BEFORE)}" for role, text in before[-3:]]
    left_out = [f"… ({len(before) - 3} messages) …"] if len(before) > 3 else []
    return "\n".join([*left_out, *told, f"[{last[0]}]\n{middle_cut(last[1], *_LONGEST_PROMPT)}"])
