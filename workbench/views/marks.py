"""What happened to a run, as marks on its curves: changes, stages, checkpoints."""

from __future__ import annotations

from typing import Any, NamedTuple

from workbench.views.tables import short_name

CHANGE, ADAPTIVE, STAGE, CHECKPOINT = "change", "adaptive", "stage", "checkpoint"
_LONGEST = 34  # characters of a mark's words


class Mark(NamedTuple):
    """One event at one step: a change that somebody made, one that the recipe made by itself, a stage, a checkpoint."""

    step: int
    kind: str
    text: str
    after: int = 0  # the event's own step: what is changed after step 5 counts from step 6


def mark_of(event: dict[str, Any]) -> Mark | None:
    """The mark of one event; None if it leaves none."""
    kind, after = event.get("event"), int(event.get("step") or 0)
    step = event.get("from_step") or after
    if kind == "checkpoint":
        return Mark(int(step), CHECKPOINT, "checkpoint", after)
    if kind == "stage":
        # The stage that a run begins with is no change.
        return Mark(int(step) + 1, STAGE, _cut(f"stage {event.get('stage', '')}"), after) if step else None
    if kind == "continued":
        return Mark(int(step) + 1, STAGE, "continued", after)
    if kind != "control" or not event.get("applied"):
        return None
    text = change_text(event)
    if text is None:
        return None
    by_itself = str(event.get("by", "")).startswith("adaptive")
    return Mark(int(step), ADAPTIVE if by_itself else CHANGE, _cut(text), after)


def add_mark(marks: list[Mark], event: dict[str, Any]) -> None:
    """Append the mark of an event. A run that is continued goes back to its checkpoint: later changes are dropped.

    A change that was made after the checkpoint's own step is in the checkpoint, though it counts from the step after.
    """
    mark = mark_of(event)
    if event.get("event") == "continued":
        marks[:] = [before for before in marks if before.after <= (event.get("step") or 0)]
    # A stage that a continued run begins again is one stage.
    if mark is not None and not (mark.kind == STAGE and mark in marks):
        marks.append(mark)


def change_text(event: dict[str, Any]) -> str | None:
    """A change to a run's settings in few words (`correctness x 2 → x 0.5`); None for what changes none of them."""
    action, function = event.get("action"), short_name(str(event.get("function", "")))
    before, after = event.get("before"), event.get("after")
    if action in ("weight", "unmute"):
        pair = [side.get(event.get("function")) if isinstance(side, dict) else side for side in (before, after)]
        return f"{function} x {_value(pair[0])} → x {_value(pair[1])}"
    if action == "mute":
        return f"{function} muted"
    if action == "reload":
        return "rewards reloaded"
    if action in ("beta", "learning_rate"):
        return f"{action} {_value(before)} → {_value(after)}"
    return None


def _value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else "?"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
