"""A run's health in a few lines: what is wrong first, what is well in one line, what could not be examined by name."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.health.verdicts import ALARM, NOTE, OK, SKIPPED, STATES, WARNING, Verdict
from workbench.views.tables import MUTED, View, coloured, item, one_line

_MOST_PROMPTS = 3


def verdict_lines(verdicts: Sequence[Verdict], causes: bool = True) -> str:
    """The verdicts as text for a terminal: alarms, warnings and notes (with `causes` what is known of each), then the rest."""
    lines = []
    for verdict in _wrong(verdicts):
        lines += [f"{verdict.state}: {_headline(verdict)}", *(f"  {why}" for why in _reasons(verdict) if causes)]
    return "\n".join(lines + _rest(verdicts))


def health_view(verdicts: Sequence[Verdict]) -> View:
    """The verdicts as a compact list, made to stand under a live plot."""
    # What is worth a look is open; a note's reasons are not worth the room.
    items = [item(own.state, _headline(own), *(_reasons(own) if own.state != NOTE else ())) for own in _wrong(verdicts)]
    listed = f"<ul style='margin:2px 0;padding-left:18px'>{''.join(items)}</ul>" if items else ""
    rest = "".join(coloured(one_line(line), MUTED) for line in _rest(verdicts))
    return View(f"<div style='font-size:90%'>{listed}{rest}</div>", verdict_lines(verdicts))


def _wrong(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return sorted((own for own in verdicts if own.state in (ALARM, WARNING, NOTE)), key=lambda own: STATES.index(own.state))


def _headline(verdict: Verdict) -> str:
    first, last = verdict.first_step, verdict.last_step
    when = "" if last is None else f" (step {last})" if first in (None, last) else f" (steps {first} to {last})"
    return f"{verdict.title}: {one_line(verdict.line)}{when}"


def _reasons(verdict: Verdict) -> list[str]:
    more = len(verdict.prompts) - _MOST_PROMPTS
    prompts = ", ".join(verdict.prompts[:_MOST_PROMPTS]) + (f" and {more} more" if more > 0 else "")
    told = (("cause:", verdict.cause), ("prompts:", prompts), ("->", verdict.remedy))
    return [f"{word} {one_line(text)}" for word, text in told if text]


def _rest(verdicts: Sequence[Verdict]) -> list[str]:
    said: dict[str, list[str]] = {"no sign of": [], "too early to say": [], "not checked": []}
    for own in verdicts:
        if own.state == OK:
            said["no sign of"].append(own.title)
        elif own.state == SKIPPED and (missing := own.evidence.get("missing")):
            said["not checked"].append(one_line(f"{own.title} (no {missing}: {own.line.removeprefix('not examined: ')})"))
        elif own.state == SKIPPED:
            said["too early to say"].append(own.title)
    return [f"{word}: {', '.join(dict.fromkeys(names))}" for word, names in said.items() if names]
