"""What is in force in a run after the changes that were made to it while it trained."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from workbench.run.directory import RunDirectory
from workbench.run.lines import read_lines

CHANGES = ("weight", "mute", "unmute", "reload", "beta", "learning_rate")  # actions that change what is trained
_SETTINGS = ("beta", "learning_rate", "temperature")
_OVER = ("finished", "stopped", "aborted", "failed", "continued")


@dataclass
class RunState:
    """What is in force in a run. Hand it the run's events, in order; it is then what they made of it.

        state = RunState.begun(run.manifest())     # as the run began
        for event in run.events():
            state.apply(event)                     # `RunState.of(run)` does both
        state.weights, state.muted, state.paused

    The trainer, the panel and the terminal each keep one. An event that changes nothing may be applied, too. A run that
    goes on from a checkpoint (`continued`) undoes what was changed after that checkpoint was saved, and nothing else.
    """

    weights: dict[str, float] = field(default_factory=dict)
    muted: dict[str, float] = field(default_factory=dict)  # function -> the weight that it will get back
    beta: float | None = None
    learning_rate: float | None = None
    temperature: float | None = None
    paused: bool = False
    stage: str = ""
    _past: list[dict[str, Any]] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._begun = {each.name: getattr(self, each.name) for each in fields(self) if each.compare}

    @classmethod
    def begun(cls, manifest: dict[str, Any]) -> RunState:
        """What a run begins with, from its manifest."""
        settings: dict[str, Any] = (manifest.get("settings") or {}).get("in_force") or {}
        found: dict[str, Any] = {name: settings.get(name) for name in _SETTINGS}
        return cls(dict((manifest.get("rewards") or {}).get("weights") or {}), **found)

    @classmethod
    def of(cls, run: RunDirectory) -> RunState:
        """What is in force in a run now, from its manifest and its events."""
        found = cls.begun(run.manifest())
        for event in read_lines(run.path / "events.jsonl", being_written=run.live):
            found.apply(event)
        return found

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The changes that were applied and not undone, in order: what marks the curves, and what a replay applies again."""
        return [event for event in self._past if event["event"] == "control" and event["action"] in CHANGES]

    def apply(self, event: dict[str, Any]) -> None:
        """Bring the state up to date with one event of the run."""
        kind = event.get("event")
        if kind == "continued":
            self._go_back_to(event.get("step") or 0)
        if kind in ("stage", "checkpoint") or (kind == "control" and event.get("applied")):
            self._past.append(event)
        self._take(event)

    def _go_back_to(self, step: int) -> None:
        # What was in force when the checkpoint was saved stands before it; a stage may begin at the same step, after it.
        past = self._past
        saved = [n for n, event in enumerate(past) if event["event"] == "checkpoint" and event.get("step") == step]
        self._past = past[: saved[-1] + 1] if saved else [each for each in past if (each.get("step") or 0) <= step]
        vars(self).update(self._begun)  # its dicts are replaced, never changed
        for event in self._past:
            self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
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
        elif action in ("weight", "mute", "unmute", "reload"):
            if action == "mute":
                self.muted = {**self.muted, event["function"]: self.weights.get(event["function"], 0.0)}
            elif action != "reload":
                self.muted = {name: weight for name, weight in self.muted.items() if name != event["function"]}
            self.weights = dict(after or {})
