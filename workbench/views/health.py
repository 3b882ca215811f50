"""A run's health in a few lines: problems first, what is well in one line, what could not be
examined by name.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.health.trends import of_groups
from workbench.health.verdicts import ALARM, NOTE, OK, SKIPPED, WARNING, Verdict, worst_first
from workbench.views.look import GOOD, MUTED, WELL
from workbench.views.tables import View, coloured, item, one_line

_MOST_PROMPTS = 3


def verdict_lines(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as text for a terminal: alarms, warnings and notes with what is known of each,
    then the rest.
    """
    lines = []
    for verdict in _wrong(verdicts):
        lines.append(f"{verdict.state}: {verdict.title}: {_line(verdict)}")
        lines += [f"  {why}" for why in _reasons(verdict)]
    return "\n".join(lines + _rest(verdicts))


def health_view(verdicts: Sequence[Verdict]) -> View:
    """The verdicts as a compact list, made to stand under a live plot."""
    # What is worth a look is open; a note's reasons are not worth the room.
    items = []
    for verdict in _wrong(verdicts):
        reasons = [] if verdict.state == NOTE else _reasons(verdict)
        items.append(item(verdict.state, verdict.title, _line(verdict), *reasons))
    listed = (
        f"<ul style='margin:2px 0;padding-left:4px;list-style:none'>{''.join(items)}</ul>"
        if items
        else ""
    )
    if verdicts and all(verdict.state not in (ALARM, WARNING) for verdict in verdicts):
        listed = coloured(f"{WELL} no alarm, no warning", GOOD) + listed
    rest = "".join(coloured(one_line(line), MUTED) for line in _rest(verdicts))
    return View(f"<div>{listed}{rest}</div>", verdict_lines(verdicts))


def _wrong(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return worst_first(each for each in verdicts if each.state in (ALARM, WARNING, NOTE))


def _line(verdict: Verdict) -> str:
    first, last = verdict.first_step, verdict.last_step
    when = f" (steps {first} to {last})" if first not in (None, last) else f" (step {last})"
    when = "" if last is None else when
    return f"{one_line(verdict.line)}{when}"


def _reasons(verdict: Verdict) -> list[str]:
    more = len(verdict.prompts) - _MOST_PROMPTS
    prompts = ", ".join(verdict.prompts[:_MOST_PROMPTS]) + (f" and {more} more" if more > 0 else "")
    reasons = (("cause:", verdict.cause), ("prompts:", prompts), ("->", verdict.remedy))
    return [f"{word} {one_line(text)}" for word, text in reasons if text]


def _rest(verdicts: Sequence[Verdict]) -> list[str]:
    absent, early, unchecked, differs = [], [], [], []
    for verdict in verdicts:
        for name, own in verdict.evidence.get("differs_within", {}).items():
            differs.append(one_line(f"{name} {of_groups(*own)}"))
        if verdict.state == OK and verdict.name == "dead_groups" and verdict.evidence.get("share"):
            # some there are: which, beside the share of the latest step?
            absent.append(f"{verdict.title} ({one_line(verdict.line)})")
        elif verdict.state == OK and not verdict.evidence.get("inert"):
            absent.append(verdict.title)
        elif verdict.state == SKIPPED and (missing := verdict.evidence.get("missing")):
            why = verdict.line.removeprefix("not examined: ")
            unchecked.append(one_line(f"{verdict.title} (no {missing}: {why})"))
        elif verdict.state == SKIPPED:
            early.append(verdict.title)
    rest = {
        "scores differ within": differs,
        "no sign of": absent,
        "too early to say": early,
        "not checked": unchecked,
    }
    return [f"{word}: {', '.join(dict.fromkeys(names))}" for word, names in rest.items() if names]
