"""One group of a run's latest step: its prompt, its completions and what they earned, as text in a bounded space."""

from __future__ import annotations

import html
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import RunError
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import read_part
from workbench.views.tables import PRE, plain, short_name

MOST_COMPLETIONS = 8  # of a group that are shown; the best and the worst are among them
MOST_FUNCTIONS = 10
_LONGEST_COMPLETION, _LONGEST_PROMPT, _LONGEST_BEFORE = (600, 14), (800, 14), (240, 4)  # characters, lines
_CELL = "padding:2px 8px;vertical-align:top;text-align:right;white-space:nowrap"


@dataclass(frozen=True)
class LatestGroup:
    """A recorded group: (row of the record) for each completion."""

    step: int
    number: int  # of the group within its step, from 0
    groups: int  # in that step's part of the record
    functions: list[str]
    rows: list[dict[str, Any]]

    @property
    def messages(self) -> list[tuple[str, str]]:
        """(role, text) of the prompt, in order; a prompt that is plain text has the role ""."""
        prompt = self.rows[0]["prompt"]
        # A chat may still be the record's JSON; a text may look like JSON and stays what it is.
        try:
            messages = json.loads(prompt) if isinstance(prompt, str) else prompt
            return [(str(message["role"]), str(message["content"])) for message in messages] or [("", prompt)]
        except (ValueError, TypeError, KeyError):
            return [("", str(prompt))]


def newest_part(run: RunDirectory) -> Path | None:
    """The newest part of a run's rollouts; None as long as there is none."""
    try:
        with os.scandir(run.rollouts) as entries:
            # Names are padded with zeros, so the greatest is the newest.
            name = max((entry.name for entry in entries if entry.name.startswith("step-")), default=None)
    except OSError:
        return None
    return run.rollouts / name if name is not None else None


def part_of(run: RunDirectory, step: int) -> Path:
    """The part that holds a step's first generation batch."""
    return run.rollouts / f"step-{step:07d}-00.parquet"


def read_group(part: Path, number: int | None = None) -> LatestGroup | None:
    """One group of a part of the record.

    Args:
        number: which one (modulo their count); None: another one with each step, so that all kinds are seen.

    Returns:
        The group; None if the part is not (or no longer) there, or is no whole Parquet file.
    """
    try:
        batch = next(read_part(part), None)
    except RunError:
        return None
    if batch is None:
        return None
    chosen = (batch.step if number is None else number) % batch.group_count
    return LatestGroup(batch.step, chosen, batch.group_count, batch.names, _rows_of(batch.group(chosen)))


def _rows_of(batch: ScoredBatch) -> list[dict[str, Any]]:
    rows = []
    for index, completion in enumerate(batch.completions):
        row = {
            "prompt": batch.prompts[index],
            "completion": completion,
            "finish_reason": "stop" if batch.finished[index] else "length",
            "total": float(batch.groups.totals[index]),
            "advantage": float(batch.groups.advantages[index]),
            "length_tokens": int(batch.lengths[index]),
        }
        for number, name in enumerate(batch.names):
            row[f"score.{name}"], row[f"weight.{name}"] = float(batch.scores[index, number]), batch.weights[number]
            row[f"error.{name}"] = batch.errors.get(name, {}).get(index)
        rows.append(row)
    return rows


def group_html(group: LatestGroup) -> str:
    """The group for a notebook. What a model wrote is escaped, in `<pre>`, and cut in the middle where it is long."""
    functions = group.functions[:MOST_FUNCTIONS]
    shown = sorted(group.rows, key=lambda row: -_value(row["advantage"]))
    left_out = max(0, len(shown) - MOST_COMPLETIONS)
    if left_out:
        best = MOST_COMPLETIONS // 2
        shown = [*shown[:best], *shown[best - MOST_COMPLETIONS :]]
    heads = [*(_function_head(name, group.rows[0]) for name in functions), "total", "advantage", "tokens, end"]
    head = "".join(f"<th style='{_CELL}'>{text}</th>" for text in heads)
    body = "".join(f"<tr>{_row(row, functions)}</tr>" for row in shown)
    told = f", {left_out} between the best and the worst left out" if left_out else ""
    if len(group.functions) > len(functions):
        told += f", {len(group.functions) - len(functions)} functions left out"
    return (
        f"<details open><summary><b>step {group.step}, group {group.number + 1} of {group.groups}</b>: "
        f"{len(group.rows)} completions, best first{told}</summary>"
        f"<pre style='{PRE};margin:4px 0'>{html.escape(plain(_prompt_text(group.messages)))}</pre>"
        f"<div style='overflow-x:auto'><table style='border-collapse:collapse;table-layout:auto;width:100%'>"
        f"<thead><tr><th style='text-align:left;padding:2px 8px;width:65%;min-width:280px'>completion</th>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div></details>"
    )


def group_text(group: LatestGroup, most: int = 3) -> str:
    """The group in a few lines, for a terminal."""
    lines = [f"step {group.step}, group {group.number + 1} of {group.groups}: {_one_line(group.messages[-1][1], 100)}"]
    best_first = sorted(group.rows, key=lambda row: -_value(row["advantage"]))
    shown = best_first[:most] if len(best_first) <= most else [*best_first[: most - 1], best_first[-1]]
    for row in shown:
        lines.append(
            f"  {_number(row['advantage'], '+.2f'):>6}  total {_number(row['total']):>5}  {_one_line(row['completion'], 100)}"
        )
    return "\n".join(lines)


def _row(row: dict[str, Any], functions: list[str]) -> str:
    advantage = _value(row["advantage"])
    colour = "#1e8449" if advantage > 0 else "#c0392b" if advantage < 0 else "inherit"
    ended = row["finish_reason"]
    end = (
        f"<span style='color:#c0392b'>{html.escape(str(ended))}</span>"
        if ended == "length"
        else html.escape(str(ended))
    )
    text = html.escape(plain(middle_cut(row["completion"] or "", *_LONGEST_COMPLETION)))
    scores = "".join(_score(row, name) for name in functions)
    return (
        f"<td style='padding:2px 8px;text-align:left'><pre style='{PRE}'>{text}</pre></td>"
        f"{scores}<td style='{_CELL}'>{_number(row['total'])}</td>"
        f"<td style='{_CELL};color:{colour}'><b>{_number(row['advantage'], '+.2f')}</b></td>"
        f"<td style='{_CELL}'>{row['length_tokens']}, {end}</td>"
    )


def _score(row: dict[str, Any], function: str) -> str:
    if error := row.get(f"error.{function}"):
        said = html.escape(plain(_one_line(str(error), 60)))
        return f"<td style='{_CELL};color:#c0392b;white-space:normal'>{said}</td>"
    return f"<td style='{_CELL}'>{_number(row.get(f'score.{function}'))}</td>"


def _function_head(function: str, row: dict[str, Any]) -> str:
    weight = row.get(f"weight.{function}")
    name = html.escape(_one_line(short_name(function), 24))
    return name if weight in (None, 1) else f"{name}<br>x {_number(weight)}"


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


def _one_line(text: str, most: int) -> str:
    text = plain(text.replace("\n", "⏎"))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _value(value: float | None) -> float:
    return 0.0 if value is None or value != value else value


def _number(value: Any, form: str = ".3g") -> str:
    return "-" if value is None or value != value else format(value, form)
