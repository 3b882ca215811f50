"""A run of another process, followed and steered from a terminal: `workbench watch` and `workbench control`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from workbench.errors import RequestError
from workbench.progress import clock
from workbench.run.control_file import ACTIONS, answer, check_request, send
from workbench.run.directory import open_run
from workbench.views.controls import answer_line
from workbench.views.followed import FollowedRun
from workbench.views.group_view import group_text
from workbench.views.health import verdict_lines
from workbench.views.run_view import GAP, RunView
from workbench.views.tables import plain
from workbench.views.terminal import TerminalWatch, numbers
from workbench.workspace import replace_file

EVERY_S = 1.0
_BY = "command line"
_QUIET = ("ok", "skipped")  # states of verdicts that are not worth a line


def followed(run: str | Path = "latest", root: str | Path = "runs") -> FollowedRun:
    """A run, read up to now.

    Raises:
        RunError: if there is no such run.
    """
    return FollowedRun(open_run(run, root, latest="training"))


def snapshot(found: FollowedRun) -> dict[str, Any]:
    """A run as it stands, as one JSON object."""
    view, running = found.view, found.status == "running"
    verdicts = found.examine() if len(view.history) else []
    keys = ("name", "state", "function", "line", "remedy")
    return {
        "run": str(found.run.path),
        "status": "paused" if running and view.state.paused else found.status,
        "step": view.history.step,
        "steps": view.total or None,
        "stage": view.state.stage or None,
        "to_go_s": view.left_s() if running else None,
        "metrics": _latest(view),
        "weights": view.state.weights,
        "muted": sorted(view.state.muted),
        "beta": view.state.beta,
        "learning_rate": view.state.learning_rate,
        "changes": [mark._asdict() for mark in view.marks],
        "verdicts": [{key: getattr(each, key) for key in keys} for each in verdicts],
    }


def _latest(view: RunView) -> dict[str, float]:
    # Columns that are products of two others are for the figure.
    columns = [key for key in view.history.columns if " x " not in key]
    return {key: value for key in columns if (value := view.history.last(key)) is not None}


def snapshot_text(found: FollowedRun) -> str:
    """A run as it stands, for people: status, health, and one group of its newest step."""
    verdicts = found.examine() if len(found.view.history) else []
    parts = [found.line().replace(GAP, "\n  ", 1), *([verdict_lines(verdicts)] if verdicts else [])]
    if found.read_group():
        parts.append(group_text(found.view.group))
    return "\n".join(plain(line) for part in parts for line in part.splitlines())


def write_picture(found: FollowedRun, file: Path) -> Path:
    """Write the run's curves as a PNG, whole or not at all."""
    with replace_file(file) as beside:
        beside.write_bytes(found.view.picture(found.line())[0])
    return file


def follow(found: FollowedRun, every_s: float = EVERY_S) -> str:
    """Show a run in the terminal until it ends. An Interrupt ends the watching, not the run.

    Returns:
        The run's status.
    """
    states: dict[Any, str] = {}  # of the verdicts that were shown
    view = found.view
    marked = len(view.marks)
    with TerminalWatch(found.run.name, view.total) as terminal:
        while True:
            terminal.show(view.history.step, numbers(_latest(view)) + _times(found), view.total)
            if found.time_to_examine():
                for line in _changed(found.examine(), states):
                    terminal.say(line)
            if found.over:
                break
            time.sleep(every_s)
            events = found.look()
            if any(event.get("event") == "continued" for event in events):
                marked = 0
            for mark in view.marks[marked:]:
                terminal.say(f"step {mark.step}: {mark.text}")
            marked = len(view.marks)
            for event in events:
                if event.get("event") == "control" and not event.get("applied"):
                    terminal.say(f"step {event.get('step')}: {answer_line(event)}")
    terminal.say(found.line().partition(GAP)[0])
    return found.status


def _times(found: FollowedRun) -> str:
    # The time left is from the latest steps, not from the mean of all, which rich's own would be.
    if found.over or not len(found.view.history):
        return ""
    elapsed, left, paused = found.elapsed_s(), found.view.left_s(), found.view.state.paused
    words = [f"{clock(elapsed)} elapsed"] if elapsed is not None else []
    words += ["paused"] if paused else [f"about {clock(left)} left"] if left else []
    return "".join(f"  {word}" for word in words)


def _changed(verdicts: Iterable[Any], states: dict[Any, str]) -> list[str]:
    """The verdicts whose state differs from what was shown before, in lines; `states` is brought up to date."""
    lines = []
    for verdict in verdicts:
        before = states.get(verdict.key)
        states[verdict.key] = verdict.state
        if verdict.state not in _QUIET and verdict.state != before:
            lines.append(verdict_lines([verdict]))
        elif verdict.state == "ok" and before not in (None, *_QUIET):
            lines.append(f"no longer: {verdict.title}{f' ({verdict.function})' if verdict.function else ''}")
    return lines


def control(
    run: str | Path,
    action: str,
    words: Iterable[str] = (),
    *,
    timeout_s: float = 60.0,
    force: bool = False,
    root: str | Path = "runs",
) -> dict[str, Any]:
    """Ask a run for something, and wait for its trainer's answer.

    Args:
        action: a key of `workbench.run.control_file.ACTIONS`.
        words: FUNCTION and VALUE, where the action takes them.
        timeout_s: seconds; a step that is in flight is finished first. 0: do not wait.
        force: as for `send`.

    Returns:
        The event that answers it; without one in time, `{"applied": None, "id": …}`.

    Raises:
        RunError: if there is no such run.
        RequestError: if the request cannot be right, or the run does not train.
    """
    opened = open_run(run, root, latest="training")
    words = list(words)
    if action not in ACTIONS:
        check_request(action, {})
    wanted = ACTIONS[action][1]
    if len(words) > len(wanted):
        shape = [word.upper() for word in wanted]
        raise RequestError(
            f"{action}: {' '.join(words)}",
            rule=f"{action} takes {' and '.join(shape) or 'nothing more'}",
            remedy=f"write: workbench control {opened.name} {' '.join([action, *shape])}",
        )
    identity = send(opened, action, by=_BY, force=force, **dict(zip(wanted, words, strict=False)))
    until = time.monotonic() + timeout_s
    while (found := answer(opened, identity)) is None and opened.live and time.monotonic() < until:
        time.sleep(0.2)
    found = found or answer(opened, identity)  # it may have been answered just before the run ended
    return found if found is not None else {"id": identity, "action": action, "applied": None}


def answered(found: dict[str, Any], timeout_s: float) -> str:
    """What came of a request, in a line."""
    if found["applied"] is None:
        return (
            f"{found['action']}: requested, not answered after {timeout_s:g} s; the answer comes at the end of the step in "
            "flight (see events.jsonl)"
        )
    if not found["applied"]:  # value, rule and remedy, in lines of their own
        return f"{answer_line({**found, 'why': ''}, own=_BY)}{found.get('why', '')}"
    return answer_line(found, own=_BY)
