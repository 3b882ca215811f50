"""A run of another process, followed and steered from a terminal: `workbench watch` and `workbench control`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from workbench.errors import RequestError
from workbench.run.control_file import ACTIONS, answer, check_request, send
from workbench.run.directory import open_run
from workbench.views.controls import answer_line
from workbench.views.followed import FollowedRun
from workbench.views.health import verdict_lines
from workbench.views.latest import group_text
from workbench.views.screen import Screen
from workbench.views.tables import plain
from workbench.views.terminal import TerminalWatch, numbers
from workbench.workspace import replace_file

EVERY_S = 1.0
_BY = "command line"
_TOLD = ("ok", "skipped")  # states of verdicts that are not worth a line


def followed(run: str | Path = "latest", root: str | Path = "runs") -> FollowedRun:
    """A run, read up to now.

    Raises:
        RunError: if there is no such run.
    """
    return FollowedRun(open_run(run, root, latest="training"))


def snapshot(found: FollowedRun) -> dict[str, Any]:
    """A run as it stands, as one JSON object."""
    screen = found.screen
    verdicts = found.examine() if len(screen.history) else []
    step_s, running = screen.history.recent_step_s(), found.status == "running"
    to_go = max(0, screen.total - screen.history.step) if screen.total and running else None
    return {
        "run": str(found.run.path),
        "status": "paused" if running and screen.state.paused else found.status,
        "step": screen.history.step,
        "steps": screen.total or None,
        "stage": screen.state.stage or None,
        "to_go_s": step_s * to_go if step_s is not None and to_go is not None else None,
        "metrics": _latest(screen),
        "weights": screen.state.weights,
        "muted": sorted(screen.state.muted),
        "beta": screen.state.beta,
        "learning_rate": screen.state.learning_rate,
        "changes": [mark._asdict() for mark in screen.marks],
        "verdicts": [
            {
                "name": each.name,
                "state": each.state,
                "function": each.function,
                "line": each.line,
                "remedy": each.remedy,
            }
            for each in verdicts
        ],
    }


def _latest(screen: Screen) -> dict[str, float]:
    # Columns that are products of two others are for the figure.
    columns = [key for key in screen.history.columns if " x " not in key]
    return {key: value for key in columns if (value := screen.history.last(key)) is not None}


def snapshot_text(found: FollowedRun) -> str:
    """A run as it stands, for people: status, what ails it, and one group of its newest step."""
    verdicts = found.examine() if len(found.screen.history) else []
    parts = [found.line().replace("   ", "\n  ", 1), *([verdict_lines(verdicts)] if verdicts else [])]
    if found.read_group():
        parts.append(group_text(found.screen.group))
    return "\n".join(plain(line) for part in parts for line in part.splitlines())


def write_picture(found: FollowedRun, file: Path) -> Path:
    """Write the run's curves as a PNG, whole or not at all."""
    with replace_file(file) as beside:
        beside.write_bytes(found.screen.picture(found.line())[0])
    return file


def follow(found: FollowedRun, every_s: float = EVERY_S) -> str:
    """Show a run in the terminal until it ends. An Interrupt ends the watching, not the run.

    Returns:
        The run's status.
    """
    seen: dict[Any, str] = {}
    screen = found.screen
    told = len(screen.marks)
    with TerminalWatch(found.run.name, screen.total) as terminal:
        while True:
            terminal.show(screen.history.step, numbers(_latest(screen)) + _times(found), screen.total)
            if found.time_to_examine():
                for line in _changed(found.examine(), seen):
                    terminal.say(line)
            if found.over:
                break
            time.sleep(every_s)
            news = found.look()
            if any(event.get("event") == "continued" for event in news.events):
                told = 0
            for mark in screen.marks[told:]:
                terminal.say(f"step {mark.step}: {mark.text}")
            told = len(screen.marks)
            for event in news.events:
                if event.get("event") == "control" and not event.get("applied"):
                    terminal.say(f"step {event.get('step')}: {answer_line(event)}")
    terminal.say(found.line().partition("   ")[0])
    return found.status


def _times(found: FollowedRun) -> str:
    # The same words as under the curves: the estimate is from the latest steps, not from the mean of all.
    words = found.line().split("   ")
    said = "".join(f"  {word}" for word in words if word.endswith((" elapsed", " left")))
    return said + ("  paused" if found.screen.state.paused else "")


def _changed(verdicts: Iterable[Any], seen: dict[Any, str]) -> list[str]:
    """The verdicts whose state differs from what was said before, in lines; `seen` is brought up to date."""
    lines = []
    for verdict in verdicts:
        key = (verdict.name, verdict.function)
        before = seen.get(key)
        seen[key] = verdict.state
        if verdict.state not in _TOLD and verdict.state != before:
            lines.append(verdict_lines([verdict]))
        elif verdict.state == "ok" and before not in (None, *_TOLD):
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
        raise RequestError(
            f"{action}: {' '.join(words)}",
            rule=f"{action} takes " + (" and ".join(word.upper() for word in wanted) or "nothing more"),
            remedy=f"write: workbench control {opened.name} {' '.join([action, *(word.upper() for word in wanted)])}",
        )
    identity = send(opened, action, by=_BY, force=force, **dict(zip(wanted, words, strict=False)))
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if (found := answer(opened, identity)) is not None:
            return found
        if not opened.live:
            break
        time.sleep(0.2)
    found = answer(opened, identity)
    return found if found is not None else {"id": identity, "action": action, "applied": None}


def answered(found: dict[str, Any], timeout_s: float) -> str:
    """What came of a request, in a line."""
    if found["applied"] is None:
        return (
            f"{found['action']} was asked for and is not answered after {timeout_s:g} s; it will be at the end of the step "
            "in flight (events.jsonl has the answer)"
        )
    if not found["applied"]:  # value, rule and remedy, in lines of their own
        return f"{answer_line({**found, 'why': ''}, own=_BY)}{found.get('why', '')}"
    return answer_line(found, own=_BY)
