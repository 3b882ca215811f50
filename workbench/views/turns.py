"""Rollouts of several turns as transcripts."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.run.turns import POLICY, TOOL, ToolCall, Turn
from workbench.views.look import BAD, MUTED, OWN_LINE, READ_LINE, WARNING
from workbench.views.tables import Html, as_html, middle_cut, one_line

MOST_TURNS = 12  # of a rollout that are shown: the first and the last
_MOST_LINES = 6  # of it in a terminal
_MOST_OPEN = 6  # of a longer one one sees a summary first


def transcript(turns: Sequence[Turn], folded: bool = True) -> Html:
    """A rollout, turn by turn: what trains has a solid blue line beside it, what does not a dashed
    grey one. A long one is `folded`.
    """
    blocks, half = [_block(number, turn) for number, turn in enumerate(turns, 1)], MOST_TURNS // 2
    if (left_out := len(blocks) - MOST_TURNS) > 0:
        blocks[half:-half] = [f"<div>… ({left_out} turns) …</div>"]
    text = " | ".join(line for _, line in _numbered(turns))
    page = "".join(blocks)
    if folded and len(turns) > _MOST_OPEN:
        counts, marks = _counts(turns)
        marks = [_coloured(mark, BAD) for mark in marks]
        page = f"<details><summary>{', '.join([counts, *marks])}</summary>{page}</details>"
    return Html(page, text)


def transcript_lines(turns: Sequence[Turn]) -> list[str]:
    """A rollout for a terminal: what it consists of, then a line for each turn. Of a long one the
    first and the last turns.
    """
    counts, marks = _counts(turns)
    numbered, half = _numbered(turns), _MOST_LINES // 2
    lines = [f"{number} {one_line(line, 150)}" for number, line in numbered]
    if len(lines) > _MOST_LINES:
        lines[half:-half] = [f"… (turns {numbered[half][0]} to {numbered[-half - 1][0]}) …"]
    return [", ".join([counts, *marks]), *lines]


def _numbered(turns: Sequence[Turn]) -> list[tuple[int, str]]:
    # what a tool answered stands with its call
    return [
        (number, turn_text(turn)) for number, turn in enumerate(turns, 1) if turn.author != TOOL
    ]


def _counts(turns: Sequence[Turn]) -> tuple[str, list[str]]:
    calls = [call for turn in turns for call in turn.calls]
    bad = {
        "failed": sum(call.error is not None for call in calls),
        "not parsed": sum(bool(turn.unparsed) for turn in turns),
    }
    marks = [f"{count} {what}" for what, count in bad.items() if count]
    sizes = {"turn": len(turns), "call": len(calls)}
    counts = [f"{count} {what}{'s' * (count != 1)}" for what, count in sizes.items()]
    return ", ".join(counts), marks


def _block(number: int, turn: Turn) -> str:
    side = OWN_LINE if turn.in_loss else READ_LINE
    trains = "" if turn.in_loss == (turn.author == POLICY) else _WRONG[turn.in_loss]
    head = f"{number} {turn.author}" + (f", {turn.tokens} tokens" if turn.tokens else "")
    parts = [f"<span style='color:{MUTED}'>{head}</span>", _coloured(trains, BAD)]
    parts += [as_html(middle_cut(turn.text, 400, 10))] if turn.text.strip() else []
    for call in turn.calls:
        parts.append(_coloured(call_text(call), BAD if call.error else ""))
    if turn.unparsed:
        parts.append(_coloured(f"no call: {turn.unparsed}", WARNING))
    inside = "\n".join(filter(None, parts))
    return f"<div style='border-left:{side};padding-left:6px;margin:3px 0'>{inside}</div>"


# by whether it trains: an author's words that are on the wrong side of the loss
_WRONG = {True: "in the loss, although the policy did not write it", False: "not in the loss"}


def _coloured(text: str, colour: str) -> str:
    return f"<b style='color:{colour or 'inherit'}'>{as_html(text)}</b>" if text else ""


def call_text(call: ToolCall) -> str:
    """A call with what came of it, in a line: "add(a=1, b=2) -> 3"."""
    inside = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
    came = f"failed: {call.error}" if call.error else f"-> {call.result}"
    took = f" ({call.seconds:.1f} s)" if (call.seconds or 0) >= 0.1 else ""
    return one_line(f"{call.name}({inside}) {came}{took}", 200)


def turn_text(turn: Turn) -> str:
    """A turn in a line, for a terminal."""
    said = [one_line(turn.text.strip(), 60)] if turn.text.strip() and not turn.calls else []
    said += map(call_text, turn.calls)
    said += [f"[no call: {turn.unparsed}]"] if turn.unparsed else []
    return f"{turn.author}: {'; '.join(said)}"
