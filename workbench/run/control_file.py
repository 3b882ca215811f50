"""Requests to a running run: lines in its `control.jsonl`, answered in its `events.jsonl`.

Everything that steers a run (a button, `workbench control`, an Interrupt, a recipe's adaptive weights) only writes such
a line. The trainer reads the new ones at each step boundary, applies or refuses them, and answers each with one event:
`{"event": "control", "id", "action", "by", "applied", "step", "from_step", "before", "after", "why"}`; `from_step` is the
first step that is generated under the change.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from workbench.errors import RequestError, nearest
from workbench.run.directory import RunDirectory, now
from workbench.run.lines import Tail, append_line
from workbench.run.state import RunState

# Action -> (what it does, the details that it needs).
ACTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "stop": ("end after the step in flight, with a checkpoint; the run can be continued", ()),
    "pause": ("wait at the step boundary, holding the GPU memory, until it is resumed or stopped", ()),
    "resume": ("go on after a pause", ()),
    "checkpoint": ("save a checkpoint now", ()),
    "sample": ("write completions of a few prompts to samples.jsonl", ()),
    "weight": ("give a reward function another weight", ("function", "value")),
    "mute": ("give a reward function the weight 0; it is still scored and drawn", ("function",)),
    "unmute": ("give a muted reward function its weight back", ("function",)),
    "reload": ("load the edited task file's reward functions", ()),
    "beta": ("change the weight of the KL term", ("value",)),
    "learning_rate": ("change the learning rate; its schedule keeps its shape", ("value",)),
}
# Action -> the least value that it takes, and what it takes in words.
_LEAST = {"beta": (0.0, "a number from 0 on"), "learning_rate": (1e-12, "a number above 0")}
_SLIP = 100  # a factor above this needs confirmation


@dataclass(frozen=True)
class Request:
    """One line of `control.jsonl`."""

    action: str
    by: str
    id: str
    details: dict[str, Any] = field(default_factory=dict)


def check_request(action: str, details: dict[str, Any]) -> dict[str, Any]:
    """The details of a request, with numbers as numbers.

    Raises:
        RequestError: for an unknown action, a detail that is missing or too much, or a value that cannot be.
    """
    if action not in ACTIONS:
        remedy = nearest(action, ACTIONS, "choose one of them")
        raise RequestError(f"action {action!r}", rule=f"a run can be asked to {', '.join(ACTIONS)}", remedy=remedy)
    wanted = ACTIONS[action][1]
    if set(details) != set(wanted):
        raise RequestError(
            f"{action}: {', '.join(f'{key} = {value!r}' for key, value in details.items()) or 'nothing'} given",
            rule=f"{action} takes {' and '.join(wanted) or 'no details'}",
            remedy=f"write {' '.join([action, *map(str.upper, wanted)])}",
        )
    if "value" not in wanted:
        return dict(details)
    value, (least, words) = details["value"], _LEAST.get(action, (float("-inf"), "a finite number"))
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not least <= number < float("inf") or isinstance(value, bool):
        raise RequestError(f"{action} = {value!r}", rule=f"{action} is {words}", remedy=f"give {words}")
    return {**details, "value": number}


def send(run: RunDirectory, action: str, by: str = "python", force: bool = False, **details: Any) -> str:
    """Ask a run for something; its trainer answers at the next step boundary.

    Args:
        run: a run that trains, in this process or another one.
        action: a key of `ACTIONS`.
        by: who asks, for the record.
        force: also a learning rate or beta of more than 100 times what is in force, which looks like a slip: one step under
            it can end a policy, and nothing brings it back.
        details: `function` and `value`, where the action takes them.

    Returns:
        The request's id, by which `answer` finds what came of it.

    Raises:
        RequestError: if the request cannot be right, looks like a slip, or the run does not train.
    """
    checked = check_request(action, details)
    if not run.live:
        status = run.result()["status"]
        remedy = "train more steps" if status == "finished" else "go on with it first"
        raise RequestError(
            f"{action}: {run.name} does not train ({status})",
            rule="only a run that trains can be steered",
            remedy=f"{remedy}: `workbench continue {run.name}" + (" --steps 20`" if status == "finished" else "`"),
        )
    before = getattr(RunState.of(run), action) if action in _LEAST and not force else None
    if before and (value := checked["value"]) > _SLIP * before:
        raise RequestError(
            f"{action} = {value:g}: {value / before:.3g} times the effective {before:g}",
            rule=f"a factor above {_SLIP} needs confirmation: what one step does to the weights cannot be undone",
            remedy=f"to confirm: `workbench control {run.name} {action} {value:g} --force`, send(..., force=True)",
        )
    return write_request(run, action, by, checked)


def write_request(run: RunDirectory, action: str, by: str, details: dict[str, Any]) -> str:
    """Append a checked request, without asking whether anybody reads it."""
    identity = secrets.token_hex(4)
    append_line(run.path / "control.jsonl", {"id": identity, "time": now(), "action": action, "by": by, **details})
    return identity


def answer(run: RunDirectory, identity: str) -> dict[str, Any] | None:
    """The event that answers a request; None as long as there is none."""
    return next((event for event in reversed(run.events()) if event.get("id") == identity), None)


class ControlReader:
    """The trainer's side: new lines of `control.jsonl`, each handed out once.

    A line that was there before a run was opened is not for this session: a request is about a run that trains.
    """

    def __init__(self, run: RunDirectory) -> None:
        file, start = run.path / "control.jsonl", run.requests_from
        if start is None:
            start = file.stat().st_size if file.is_file() else 0
        self._tail = Tail(file, start)

    def take(self) -> list[Request]:
        """The requests since the last call. A line that is no request is handed out with the action "" and its text."""
        return [_request(line) for line in self._tail.lines()]


def _request(line: bytes) -> Request:
    try:
        content = json.loads(line)
        action, by, identity = str(content.pop("action")), str(content.pop("by", "?")), str(content.pop("id", ""))
        content.pop("time", None)
        return Request(action, by, identity, content)
    except (ValueError, KeyError, AttributeError, TypeError):
        return Request("", "?", "", {"line": line.decode("utf-8", "replace")[:200]})
