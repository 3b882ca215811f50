"""A run of another process, followed and steered from a terminal: `workbench watch` and `workbench
control`.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence

from workbench.base.kinds import Fields
from workbench.base.progress import clock
from workbench.health.verdicts import OK, SKIPPED, Verdict
from workbench.run.control_file import ACTIONS, answer_to, send
from workbench.run.directory import RunDirectory
from workbench.views.controls import answer_line
from workbench.views.groups import group_text
from workbench.views.health import verdict_lines
from workbench.views.history import Mark
from workbench.views.run_view import GAP, FollowedRun
from workbench.views.tables import plain_text
from workbench.views.terminal import TerminalProgress

_BY = "command line"


def snapshot(run: FollowedRun) -> Fields:
    """A run's current state, as one JSON object."""
    running = run.status == "running"
    keys = ("name", "state", "function", "line", "remedy")
    verdicts = run.examine() if len(run.history) else []
    state = run.state
    return {
        "run": str(run.run.path),
        "status": "paused" if running and state.paused else run.status,
        "step": run.history.step,
        "steps": run.total or None,
        "stage": state.stage or None,
        "to_go_s": run.left_s() if running else None,
        "metrics": _latest(run),
        "muted": sorted(state.muted),
        **{key: getattr(state, key) for key in ("weights", "beta", "learning_rate")},
        "changes": [mark._asdict() for mark in run.marks],
        "verdicts": [{key: getattr(each, key) for key in keys} for each in verdicts],
    }


def _latest(run: FollowedRun) -> dict[str, float]:
    # products are for the figure
    latest = {key: run.history.last(key) for key in run.history.columns if " x " not in key}
    return {key: value for key, value in latest.items() if value is not None}


def snapshot_text(run: FollowedRun) -> str:
    """A run's current state, for people: status, health, and one group of its newest step."""
    parts = [run.line().replace(GAP, "\n  ", 1)]
    if len(run.history) and (verdicts := run.examine()):
        parts.append(verdict_lines(verdicts))
    run.read_group()
    if run.group is not None:
        parts.append(group_text(run.group))
    lines = [plain_text(line) for part in parts for line in part.splitlines()]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    how: Fields = {"subsequent_indent": "    ", "break_on_hyphens": False}
    # a table's lines keep their blanks, unless they are too long
    return "\n".join(
        line if len(line) <= width else textwrap.fill(line, width, **how) for line in lines
    )


def follow(run: FollowedRun, every_s: float = 1.0) -> str:
    """Show a run in the terminal until it ends; returns its status. An Interrupt stops watching,
    not the run.
    """
    terminal = TerminalProgress(remaining=False, every=1)
    marked = len(run.marks)
    states: dict[tuple[str, str], str] = {}  # of the verdicts that were shown
    terminal.begin(run, run.total, {})
    with terminal.bar:
        while True:
            terminal.update(run.history.step, _latest(run), _times(run))
            for line in _changed(run.examine(), states) if run.time_to_examine() else ():
                terminal.say(line)
            if run.over:
                break
            time.sleep(every_s)
            events = run.look()
            # A run that was resumed has its marks again.
            new = 0 if any(event.get("event") == "continued" for event in events) else marked
            marked = len(run.marks)
            _report(terminal, run.marks[new:], events)
    terminal.say(run.line().partition(GAP)[0])
    return run.status


def _report(terminal: TerminalProgress, marks: Sequence[Mark], events: Iterable[Fields]) -> None:
    for mark in marks:
        terminal.say(f"step {mark.step}: {mark.text}")
    for event in events:
        terminal.event(event)
        if event.get("event") == "control" and not event.get("applied"):
            terminal.say(f"step {event.get('step')}: {answer_line(event)}")


def _times(run: FollowedRun) -> str:
    # The time left is from the latest steps, not from the mean of all, which rich's own would be.
    if run.over or not len(run.history):
        return ""
    elapsed, left = run.elapsed_s(), run.left_s()
    then = "  paused" if run.state.paused else f"  about {clock(left)} left" if left else ""
    return ("" if elapsed is None else f"  {clock(elapsed)} elapsed") + then


def _changed(verdicts: Iterable[Verdict], states: dict[tuple[str, str], str]) -> list[str]:
    """The verdicts whose state differs from what was shown before, in lines; `states` is
    updated.
    """
    lines = []
    for verdict in verdicts:
        before, states[verdict.key] = states.get(verdict.key), verdict.state
        if verdict.state not in (OK, SKIPPED, before):
            lines.append(verdict_lines([verdict]))
        elif verdict.state == OK and before not in (None, OK, SKIPPED):
            of = f" ({verdict.function})" if verdict.function else ""
            lines.append(f"no longer: {verdict.title}{of}")
    return lines


def control(
    run: RunDirectory,
    action: str,
    words: Sequence[str] = (),
    timeout_s: float = 60.0,
    force: bool = False,
) -> Fields:
    """Send a request to a run, and wait for its trainer's answer; a step in flight is finished
    first.

    `words` are FUNCTION and VALUE, where the action takes them. Returns the event that answers it;
    without one in time, `{"applied": None, "id": …}`. A request that cannot be right, or a run that
    is not training, is a RequestError.
    """
    # `send` says what is missing, unknown or too much
    _, wanted = ACTIONS.get(action, ("", []))
    details = dict(zip((*wanted, "more"), words))
    identity = send(run, action, by=_BY, force=force, **details)
    until = time.monotonic() + timeout_s
    while answer_to(run, identity) is None:
        if not run.live or time.monotonic() >= until:
            break
        time.sleep(0.2)
    # It may have been answered just before the run ended.
    return answer_to(run, identity) or {"id": identity, "action": action, "applied": None}


def answered(reply: Fields, timeout_s: float) -> str:
    """The result of a request, in a line."""
    if reply["applied"]:
        return answer_line(reply, own=_BY)
    if reply["applied"] is not None:  # value, rule and remedy, on separate lines
        return f"{answer_line({**reply, 'why': ''}, own=_BY)}{reply.get('why', '')}"
    late = f"{reply['action']}: requested, not answered after {timeout_s:g} s"
    return f"{late}; the answer comes at the end of the step in flight (see events.jsonl)"
