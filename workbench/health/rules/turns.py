"""What can go wrong with tool calls: those that nobody parsed, and those that fail; and whether
the members of a group begin in the same state. A run whose completions are of one turn has no
verdict here.
"""

from __future__ import annotations

from collections import Counter

from workbench.base.kinds import Fields
from workbench.health.summary import Starts
from workbench.health.trends import percent, share
from workbench.health.verdicts import ALARM, NOTE, OK, WARNING, ExaminedRun, Verdict, rule

_LEAST = 16  # calls


@rule()
def unparsed_calls(view: ExaminedRun) -> list[Verdict]:
    """Completions with what looks like a tool call and is none: for sure more than 2 %."""
    if not view.calls:
        return []
    completions = view.total("completions")
    missed = share(sum(own.unparsed for own in view.calls), completions)
    line = f"{percent(missed.value)} of the latest {completions} completions"
    evidence = {"share": missed.value, "at_least": missed.low, "completions": completions}
    if missed.low <= 0.02:
        return [view.verdict(OK, f"{line} have a call that was not parsed", evidence)]
    reasons = Counter(own.why for own in view.calls for _ in range(own.unparsed))
    why = reasons.most_common(1)[0][0]
    example = next(own.example for own in reversed(view.calls) if own.why == why)
    evidence |= {"why": why, "example": example}
    line += f" have a call that nobody parsed; most often: {why}"
    state = ALARM if missed.low > 0.25 else WARNING
    cut = why.startswith("cut off")
    case = "cut calls" if cut else "unparsed"
    return [view.verdict(state, line, evidence, case, shown=" ".join(example.split()))]


@rule()
def failed_calls(view: ExaminedRun) -> list[Verdict]:
    """Tool calls that raised, or reached no tool: in the lower bound more than a quarter."""
    calls = sum(own.calls for own in view.calls)
    if calls < _LEAST:
        return []
    failed = share(sum(own.failed for own in view.calls), calls)
    line = f"{percent(failed.value)} of the latest {calls} tool calls failed"
    evidence = {"share": failed.value, "at_least": failed.low, "calls": calls}
    if failed.low <= 0.25:
        return [view.verdict(OK, line, evidence)]
    errors = Counter(own.error for own in view.calls for _ in range(own.failed))
    error = errors.most_common(1)[0][0]
    line += f"; most often: {error}"
    return [view.verdict(WARNING, line, evidence | {"error": error}, "failed calls")]


@rule()
def unequal_starts(view: ExaminedRun) -> list[Verdict]:
    """Groups whose members begin with different words of the environment, or get different answers
    to the same first call: for sure more than 2 %.
    """
    if not view.calls or not view.config.environment:
        return []
    if unlike := _unlike([own.prompts for own in view.calls], "begin with different words"):
        return [view.verdict(WARNING, *unlike, case="unequal words")]
    if unlike := _unlike([own.answers for own in view.calls], "get different answers to a call"):
        return [view.verdict(NOTE, *unlike, case="unequal answers")]
    groups = view.total("group_count")
    compared = sum(own.answers.groups for own in view.calls)
    line = f"the members of the latest {groups} groups begin with the same words; in {compared} the"
    line += " same first call gets the same answer"
    return [view.verdict(OK, line, {"groups": groups, "compared": compared})]


def _unlike(seen: list[Starts], how: str) -> tuple[str, Fields] | None:
    groups = sum(own.groups for own in seen)
    unlike = share(sum(own.unlike for own in seen), groups)
    if unlike.low <= 0.02:
        return None
    example = next(own.example for own in reversed(seen) if own.example)
    shown = " / ".join(" ".join(text.split()) for text in example if text)
    line = f"{percent(unlike.value)} of the latest {groups} groups {how}: {shown}"
    evidence = {"share": unlike.value, "at_least": unlike.low, "groups": groups}
    return line, {**evidence, "example": [*example]}
