"""Requests to a running run: lines in its `control.jsonl`, answered in its `events.jsonl`; and the
settings effective after them.

Everything that steers a run (a button, `workbench control`, an Interrupt, a recipe's adaptive
weights) only writes one of these lines. The trainer reads new lines at each step boundary, applies
or refuses them, and answers each with one event: `{"event": "control", "id", "action", "by",
"applied", "step", "from_step", "before", "after", "why"}`; `from_step` is the first step that is
generated under the change.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NamedTuple

from workbench.base.errors import RequestError, WorkbenchError, nearest
from workbench.base.kinds import Fields
from workbench.base.tail import Tail
from workbench.base.workspace import append_line, object_in
from workbench.recipe import packaged
from workbench.run.batch import LARGEST_WEIGHT
from workbench.run.directory import RunDirectory, now

# Action -> (what it does, the details that it needs).
ACTIONS: dict[str, tuple[str, list[str]]] = packaged(Path(__file__).with_name("actions.yaml"))
# Action -> the least and the greatest value that it takes, and what it takes in words.
_LARGEST = sys.float_info.max
_RANGES = {
    "beta": (0.0, _LARGEST, "a number from 0 on"),
    "learning_rate": (1e-12, _LARGEST, "a number above 0"),
    "weight": (
        -LARGEST_WEIGHT, LARGEST_WEIGHT, f"a number of at most {LARGEST_WEIGHT:,.0f} in size",
    ),
}  # fmt: skip
_SLIP = 100  # a factor above this needs confirmation
# actions that change what is trained
CHANGES = ("weight", "mute", "unmute", "reload", "beta", "learning_rate")
_SETTINGS = ("beta", "learning_rate", "temperature")
_OVER = ("finished", "stopped", "aborted", "failed", "continued")


class Request(NamedTuple):
    """One line of `control.jsonl`."""

    action: str
    by: str
    id: str
    details: Fields


def check_request(action: str, details: Fields) -> Fields:
    """A request's details, numbers as numbers. RequestError: an unknown action, a missing or extra
    detail, a wrong value.
    """
    if action not in ACTIONS:
        rule = f"a run can be asked to {', '.join(ACTIONS)}"
        remedy = nearest(action, ACTIONS, "choose one of them")
        raise RequestError(f"action {action!r}", rule=rule, remedy=remedy)
    wanted = ACTIONS[action][1]
    if set(details) != set(wanted):
        given = ", ".join(f"{key} = {value!r}" for key, value in details.items()) or "nothing"
        remedy = " ".join(["write", action, *map(str.upper, wanted)])
        rule = f"{action} takes {' and '.join(wanted) or 'no details'}"
        raise RequestError(f"{action}: {given} given", rule=rule, remedy=remedy)
    if "value" not in wanted:
        return dict(details)
    value = details["value"]
    least, most, words = _RANGES[action]
    with contextlib.suppress(TypeError, ValueError):
        if least <= float(value) <= most and not isinstance(value, bool):
            return {**details, "value": float(value)}
    value = f"{action} = {value!r}"
    raise RequestError(value, rule=f"{action} is {words}", remedy=f"give {words}")


def send(
    run: RunDirectory, action: str, by: str = "python", force: bool = False, **details: object
) -> str:
    """Send a request to a run that is training, in this process or another; its trainer answers at
    the next step boundary.

    Returns the request's id, by which `answer` finds the result. Raises RequestError if the request
    cannot be right, looks like a slip, or the run is not training.

    Args:
        action: a key of `ACTIONS`.
        by: who sends it, for the record.
        force: also accept a learning rate or beta of more than 100 times the effective one, which
            looks like a slip.
        details: `function` and `value`, where the action takes them.
    """
    checked = check_request(action, details)
    steers = "only a run that is training can be steered"
    if not run.live:
        status = run.result()["status"]
        remedy = f"resume it first: `workbench continue {run.name}`"
        if status == "finished":
            remedy = f"train more steps: `workbench continue {run.name} --steps 20`"
        value = f"{action}: {run.name} is not training ({status})"
        raise RequestError(value, rule=steers, remedy=remedy)
    if action in ("beta", "learning_rate") and not force:
        _check_slip(run, action, checked["value"])
    identity, over = write_request(run, action, by, checked), True
    with contextlib.suppress(WorkbenchError):
        over = run.result()["status"] != "running"
    # its result comes before its last look at the requests
    if over and answer_to(run, identity) is None:
        value = f"{action}: {run.name} ended before it read this"
        remedy = f"`workbench watch {run.name} --once` shows how it ended"
        raise RequestError(value, rule=steers, remedy=remedy)
    return identity


def _check_slip(run: RunDirectory, action: str, value: float) -> None:
    before = getattr(RunState.of(run), action)
    if before and value > _SLIP * before:
        raise RequestError(
            f"{action} = {value:g}: {value / before:.3g} times the effective {before:g}",
            rule=f"a factor above {_SLIP} needs confirmation: what one step does to the weights"
            " cannot be undone",
            remedy=f"to confirm: `workbench control {run.name} {action} {value:g} --force`,"
            " send(..., force=True)",
        )


def write_request(run: RunDirectory, action: str, by: str, details: Fields) -> str:
    """Append a checked request, without checking whether anybody reads it."""
    identity = secrets.token_hex(4)
    line = {"id": identity, "time": now(), "action": action, "by": by, **details}
    append_line(run.path / "control.jsonl", line)
    return identity


def answer_to(run: RunDirectory, identity: str) -> Fields | None:
    """The event that answers a request; None while there is none."""
    return next((event for event in reversed(run.events()) if event.get("id") == identity), None)


class ControlReader:
    """The trainer's side: new lines of `control.jsonl`, each returned once.

    A line that was there before the run was opened is not for this session: a request is for a run
    that is training.
    """

    def __init__(self, run: RunDirectory) -> None:
        file, start = run.path / "control.jsonl", run.requests_from
        if start is None:
            start = file.stat().st_size if file.is_file() else 0
        self._tail = Tail(file, start)

    def take(self) -> list[Request]:
        """The requests since the last call. A line that is not a request is returned with the
        action "" and its text.
        """
        requests = []
        for line in self._tail.lines():
            content = object_in(line) or {}
            if "action" not in content:
                content = {"action": "", "line": line.decode("utf-8", "replace")[:200]}
            action, by, identity, _ = (
                content.pop(name, "") for name in ("action", "by", "id", "time")
            )
            requests.append(Request(str(action), str(by or "?"), str(identity), content))
        return requests


@dataclass
class RunState:
    """A run's effective settings: apply the run's events in order, as `RunState.of(run)` does.

    The trainer, the panel and the terminal each keep one. Events that change nothing may be applied
    also. A run that resumes from a checkpoint (`continued`) undoes what was changed after that
    checkpoint was saved, and nothing else.
    """

    weights: dict[str, float] = field(default_factory=dict)
    # function -> the weight that it will get back
    muted: dict[str, float] = field(default_factory=dict)
    beta: float | None = None
    learning_rate: float | None = None
    temperature: float | None = None
    paused: bool = False
    stage: str = ""
    _past: list[Fields] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._begun = {each.name: getattr(self, each.name) for each in fields(self) if each.compare}

    @classmethod
    def begun(cls, manifest: Fields) -> RunState:
        """What a run begins with, from its manifest."""
        settings: Fields = (manifest.get("settings") or {}).get("in_force") or {}
        found: Fields = {name: settings.get(name) for name in _SETTINGS}
        return cls(dict((manifest.get("rewards") or {}).get("weights") or {}), **found)

    @classmethod
    def of(cls, run: RunDirectory) -> RunState:
        """A run's effective settings now, from its manifest and its events."""
        found = cls.begun(run.manifest())
        for event in run.events():
            found.apply(event)
        return found

    @property
    def in_force(self) -> Fields:
        """The settings that decide numbers, by name."""
        return {name: getattr(self, name) for name in ("weights", "muted", *_SETTINGS)}

    @property
    def changes(self) -> list[Fields]:
        """The changes applied and not undone, in order: they mark the curves, and a replay applies
        them again.
        """
        # Of the events kept, those of control alone have an action.
        return [event for event in self._past if event.get("action") in CHANGES]

    def apply(self, event: Fields) -> None:
        """Bring the state up to date with one event of the run."""
        kind = event.get("event")
        if kind == "continued":
            self._go_back_to(event.get("step") or 0)
        if kind in ("stage", "checkpoint", "continued") or (
            kind == "control" and event.get("applied")
        ):
            self._past.append(event)
        self._take(event)

    def _go_back_to(self, step: int) -> None:
        # What was in force when the checkpoint was saved stands before it; a stage may begin at the
        # same step, after it. The checkpoint's own line may have been torn by a kill: then that of
        # the first who went on from it stands for it.
        past = self._past
        self._past = [event for event in past if (event.get("step") or 0) <= step]
        for number, event in enumerate(past):
            if event["event"] in ("checkpoint", "continued") and event.get("step") == step:
                self._past = past[: number + 1]
        vars(self).update(self._begun)  # its dicts are replaced, never changed
        for event in self._past:
            self._take(event)

    def _take(self, event: Fields) -> None:
        kind, action, after = event.get("event"), event.get("action"), event.get("after")
        if kind == "stage":
            self.stage, self.weights, self.muted = event["stage"], dict(event["weights"]), {}
            vars(self).update({name: event.get(name) for name in _SETTINGS})
        elif kind in _OVER:
            self.paused = False
        elif kind != "control" or not event.get("applied"):
            return
        elif action in ("pause", "resume"):
            self.paused = action == "pause"
        elif action in ("beta", "learning_rate"):
            setattr(self, action, after)
        elif action in CHANGES:  # of the rewards
            name = event.get("function", "")
            self.muted = {other: self.muted[other] for other in self.muted if other != name}
            if action == "mute":
                self.muted[name] = self.weights.get(name, 0.0)
            self.weights = dict(after or {})
