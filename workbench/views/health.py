"""A run's health in a few lines: what is wrong first, what is well in one line, what could not be examined by name."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.health.verdicts import ALARM, NOTE, OK, SKIPPED, STATES, WARNING, Verdict
from workbench.views import tables
from workbench.views.tables import BAD, MUTED, View, pre

_COLOURS = {ALARM: BAD, WARNING: tables.WARNING, NOTE: MUTED}
_SHOWN = (ALARM, WARNING, NOTE)
_MOST_PROMPTS = 3


def verdict_lines(verdicts: Sequence[Verdict], causes: bool = True) -> str:
    """The verdicts as text for a terminal: alarms, warnings and notes with cause and remedy, the others in a line each.

    Args:
        causes: with the cause, the remedy and the prompts of what is wrong; without, one line each.
    """
    lines = []
    for verdict in _in_order(verdicts):
        lines.append(f"{verdict.state}: {_headline(verdict)}")
        if causes:
            lines += [f"  {word} {text}" for word, text in _reasons(verdict)]
    return "\n".join(lines + _rest(verdicts))


def health_view(verdicts: Sequence[Verdict]) -> View:
    """The verdicts as a compact list, made to stand under a live plot."""
    items = "".join(_item(verdict) for verdict in _in_order(verdicts))
    listed = f"<ul style='margin:2px 0;padding-left:18px'>{items}</ul>" if items else ""
    rest = "".join(pre(_flat(line), f"color:{MUTED}") for line in _rest(verdicts))
    return View(f"<div style='font-size:90%'>{listed}{rest}</div>", verdict_lines(verdicts))


def _in_order(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return sorted((each for each in verdicts if each.state in _SHOWN), key=lambda each: STATES.index(each.state))


def _headline(verdict: Verdict) -> str:
    return f"{verdict.title}: {_flat(verdict.line)}{_when(verdict)}"


def _when(verdict: Verdict) -> str:
    if verdict.last_step is None:
        return ""
    same = verdict.first_step in (None, verdict.last_step)
    return f" (step {verdict.last_step})" if same else f" (steps {verdict.first_step} to {verdict.last_step})"


def _reasons(verdict: Verdict) -> list[tuple[str, str]]:
    found = []
    if verdict.cause:
        found.append(("cause:", _flat(verdict.cause)))
    if verdict.prompts:
        more = len(verdict.prompts) - _MOST_PROMPTS
        ids = ", ".join(map(_flat, verdict.prompts[:_MOST_PROMPTS])) + (f" and {more} more" if more > 0 else "")
        found.append(("prompts:", ids))
    if verdict.remedy:
        found.append(("->", _flat(verdict.remedy)))
    return found


def _rest(verdicts: Sequence[Verdict]) -> list[str]:
    well = [verdict.title for verdict in verdicts if verdict.state == OK]
    skipped = [verdict for verdict in verdicts if verdict.state == SKIPPED]
    early = [verdict.title for verdict in skipped if "missing" not in verdict.evidence]
    blind = [f"{each.title} ({_key(each)})" for each in skipped if "missing" in each.evidence]
    said = (("no sign of", well), ("too early to say", early), ("not checked", blind))
    return [f"{word}: {', '.join(dict.fromkeys(names))}" for word, names in said if names]


def _key(verdict: Verdict) -> str:
    return f"no {_flat(str(verdict.evidence['missing']))}: {_flat(verdict.line.removeprefix('not examined: '))}"


def _item(verdict: Verdict) -> str:
    # What is worth a look is open; a note's reasons are not worth the room.
    reasons = "" if verdict.state == NOTE else "".join(pre(f"{word} {text}") for word, text in _reasons(verdict))
    colour = _COLOURS[verdict.state]
    return f"<li><b style='color:{colour}'>{verdict.state}</b> {pre(_headline(verdict))}{reasons}</li>"


def _flat(text: str) -> str:
    # One line each, in a terminal too: a completion may hold line breaks and escape sequences.
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
