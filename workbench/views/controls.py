"""Buttons and fields that steer a run. Each only appends a line to the run's `control.jsonl`; the trainer answers.

Nothing here touches a figure or a model: in some front ends a click arrives on a thread of its own, beside the cell that
trains.
"""

from __future__ import annotations

import html
import threading
from collections import deque
from typing import Any

from workbench.errors import WorkbenchError
from workbench.run.control_file import send
from workbench.run.directory import RunDirectory
from workbench.run.state import RunState
from workbench.views.marks import change_text
from workbench.views.tables import PRE, plain
from workbench.views.widgets import buttons_work, view_of

BY = "panel"
MOST_SAID = 6  # answers that are shown, the newest first
MOST_FUNCTIONS = 24  # that have a line of their own
_LONGEST_ANSWER = 400  # characters
_GREEN, _RED, _GREY = "#1e8449", "#c0392b", "#7f8c8d"
_BUTTONS = (
    ("stop", "Stop", "ends after the step in flight, with a checkpoint"),
    ("pause", "Pause", "waits at the step boundary, holding the GPU memory"),
    ("checkpoint", "Checkpoint", "saves a checkpoint now"),
    ("sample", "Sample", "writes completions of a few prompts to samples.jsonl"),
    ("reload", "Reload rewards", "loads the edited task file's reward functions"),
)


class Controls:
    """Buttons, weights, beta and learning rate of a run that trains, and the trainer's answers.

    Show it by leaving it as the last line of a cell. Without widgets it is a line that says what to do instead.

    Args:
        run: to steer.
        in_cell: it trains in a cell of this kernel.
        state: what is in force, kept up to date by whoever calls `answered`; None: read here, and kept by `event`.
    """

    def __init__(self, run: RunDirectory, in_cell: bool = False, state: RunState | None = None) -> None:
        self.run = run
        self.state: RunState = RunState.of(run) if state is None else state
        self._put_before: dict[str, Any] = {}
        self.works, self.sentence = buttons_work(in_cell)
        self.asked: dict[str, str] = {}  # id of a request without an answer -> what was asked
        self.said: deque[str] = deque(maxlen=MOST_SAID)
        self._lock = threading.Lock()
        self._over = ""
        self._functions: dict[str, tuple[Any, Any]] = {}  # function -> (weight field, mute box)
        self._quiet = False  # a field that is set by an answer asks for nothing
        self.widget = self._build()

    # -- widgets -----------------------------------------------------------------------------------------------------
    def _build(self) -> Any:
        # A button that cannot work is worse than none.
        if not self.works:
            return None
        import ipywidgets

        self._kit = kit = ipywidgets
        self.buttons: dict[str, Any] = {}
        for action, label, tooltip in _BUTTONS:
            button = kit.Button(
                description=label, tooltip=tooltip, button_style="danger" if action == "stop" else "",
                layout=kit.Layout(width="auto", min_width="84px"),
            )  # fmt: skip
            button.add_class(f"workbench-{action}")
            button.on_click(lambda _, action=action: self._clicked(action))
            self.buttons[action] = button
        self._rows = kit.VBox([])
        self._numbers = {
            "beta": self._number_field("beta", self.state.beta),
            "learning_rate": self._number_field("learning_rate", self.state.learning_rate),
        }
        self._said_widget, self._sentence_widget = kit.HTML(), kit.HTML()
        self._said_widget.add_class("workbench-answers")
        self._sentence_widget.value = _line(self.sentence, _GREY)
        self._fill_functions()
        self._show_state()
        return kit.VBox(
            [
                kit.HBox(list(self.buttons.values()), layout=kit.Layout(flex_flow="row wrap")),
                self._rows,
                kit.HBox(
                    [part for pair in self._numbers.values() for part in pair], layout=kit.Layout(flex_flow="row wrap")
                ),
                self._said_widget,
                self._sentence_widget,
            ]
        )

    def _number_field(self, action: str, value: float | None) -> tuple[Any, Any]:
        # A text, so that 1e-5 can be typed, and what is no number is answered and not swallowed.
        kit = self._kit
        field = kit.Text(
            value=_written(value), description=action, continuous_update=False,
            style={"description_width": "initial"}, layout=kit.Layout(width="190px"),
        )  # fmt: skip
        field.add_class(f"workbench-{action}")
        button = kit.Button(description="Apply", layout=kit.Layout(width="auto", margin="2px 16px 2px 2px"))
        button.add_class(f"workbench-apply-{action}")
        button.on_click(lambda _: self.ask(action, value=field.value))
        return field, button

    def _fill_functions(self) -> None:
        kit = self._kit
        self._functions, self._put_before, lines = {}, {}, []
        for name in list(self.state.weights)[:MOST_FUNCTIONS]:
            label = kit.HTML(_line(name), layout=kit.Layout(width="240px", overflow="hidden"))
            field = kit.FloatText(value=self._weight(name), step=0.1, layout=kit.Layout(width="100px"))
            apply = kit.Button(description="Apply", layout=kit.Layout(width="auto"))
            mute = kit.Checkbox(
                value=name in self.state.muted, description="mute", indent=False, layout=kit.Layout(width="90px")
            )
            for widget, part in ((field, "weight"), (apply, "apply"), (mute, "mute")):
                widget.add_class(f"workbench-{part}-{_class(name)}")
            apply.on_click(lambda _, name=name, field=field: self.ask("weight", function=name, value=field.value))
            mute.observe(lambda change, name=name: self._muted(name, change["new"]), "value")
            self._functions[name] = (field, mute)
            lines.append(kit.HBox([label, field, apply, mute]))
        head = kit.HTML(_line("weight of each reward function; a muted one is still scored and drawn", _GREY))
        more = len(self.state.weights) - len(lines)
        tail = [kit.HTML(_line(f"{more} more: `workbench control`", _GREY))] if more > 0 else []
        self._rows.children = [head, *lines, *tail]

    def _weight(self, name: str) -> float:
        # Of a muted function, the weight that it will get back.
        return float(self.state.muted.get(name, self.state.weights[name]))

    def _clicked(self, action: str) -> None:
        self.ask("resume" if action == "pause" and self.state.paused else action)

    def _muted(self, name: str, muted: bool) -> None:
        if not self._quiet:
            self.ask("mute" if muted else "unmute", function=name)

    # -- asking and answers ------------------------------------------------------------------------------------------
    def ask(self, action: str, **details: Any) -> str | None:
        """Ask the run for something. What is wrong with it is said in the panel; nothing is raised.

        Returns:
            The request's id; None if it was not sent.
        """
        words = " ".join([action, *(_written(value) for value in details.values())])
        try:
            identity = send(self.run, action, by=BY, **details)
        except WorkbenchError as error:
            self._say(f"not sent: {words}: {error.value}; {error.remedy}", _RED)
        except Exception as error:  # a full disk, a folder that is gone: said, and the panel stays
            self._say(f"not sent: {words}: {type(error).__name__}: {error}", _RED)
        else:
            with self._lock:
                self.asked[identity] = words
            self._show_said()
            return identity
        self._show_fields()
        return None

    def event(self, event: dict[str, Any]) -> None:
        """Take note of one event of the run."""
        self.state.apply(event)
        self.answered(event)

    def answered(self, event: dict[str, Any], state: RunState | None = None) -> None:
        """Show one event that is in the state already: an answer, a change that somebody else made, a stage.

        Args:
            state: what is in force, if it is another object than before.
        """
        self.state = state or self.state
        if event.get("event") == "control":
            with self._lock:
                self.asked.pop(event.get("id", ""), None)
            if event.get("by") != "adaptive":  # these are marked in the picture, and would push out the answers
                self._say(answer_line(event), _GREEN if event.get("applied") else _RED)
        if event.get("event") in ("control", "stage", "continued"):
            self._show_state()

    def ended(self, message: str) -> None:
        """The run is over: there is nobody left to ask."""
        self._over = message
        self._show_state()

    def _say(self, text: str, colour: str) -> None:
        with self._lock:
            self.said.appendleft(_line(text[:_LONGEST_ANSWER], colour))
        self._show_said()

    def _show_said(self) -> None:
        if self.works:
            with self._lock:
                waiting = [_line(f"asked: {words} …", _GREY) for words in list(self.asked.values())[-MOST_SAID:]]
                self._said_widget.value = "".join([*waiting, *self.said])

    def _show_state(self) -> None:
        if not self.works:
            return
        if list(self._functions) != list(self.state.weights)[:MOST_FUNCTIONS]:
            self._fill_functions()
        self.buttons["pause"].description = "Resume" if self.state.paused else "Pause"
        self._show_fields()
        if self._over:
            with self._lock:
                self.asked.clear()
            for widget in _parts(self.widget):
                if hasattr(widget, "disabled"):
                    widget.disabled = True
            self._sentence_widget.value = _line(f"{self._over}: nothing is left to steer.", _GREY)
        self._show_said()

    def _show_fields(self) -> None:
        # What is in force; a field that somebody is writing in would lose what was typed, so only changes are written.
        self._quiet = True
        try:
            for name, (field, mute) in self._functions.items():
                if name in self.state.weights:
                    self._put(field, self._weight(name), f"weight {name}")
                    mute.value = name in self.state.muted
            for action, (field, _) in self._numbers.items():
                self._put(field, _written(getattr(self.state, action)), action)
        finally:
            self._quiet = False

    def _put(self, field: Any, value: Any, what: str) -> None:
        if self._put_before.get(what) != value:
            self._put_before[what] = field.value = value

    # -- shown -------------------------------------------------------------------------------------------------------
    def __repr__(self) -> str:
        return f"{self.sentence} {instead_line(self.run)}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        bundle = {"text/plain": repr(self), "text/html": _line(repr(self), _GREY)}
        if self.widget is None:
            return bundle
        return {**bundle, **view_of(self.widget)}

    def close(self) -> None:
        """Take the widgets away."""
        if self.widget is not None:
            self.widget.close()


def instead_line(run: RunDirectory) -> str:
    """How a run is steered without buttons."""
    return f"In a terminal: workbench control {run.name} stop, pause, weight FUNCTION VALUE, ..."


def answer_line(event: dict[str, Any], own: str = BY) -> str:
    """One answer of the trainer, in a line.

    Args:
        own: who reads it; what others asked for is said to be theirs.
    """
    words = [str(event.get("action", "")), *(_written(event[key]) for key in ("function", "value") if key in event)]
    change = change_text(event) if event.get("applied") else None
    by = "" if event.get("by") == own else f" (asked by {event.get('by', '?')})"
    why = " ".join(str(event.get("why", "")).split())
    if not event.get("applied"):
        return f"refused: {' '.join(words)}{by}: {why}"
    found = f" to {event['file']}" if event.get("file") and event.get("action") == "sample" else ""
    when = f"from step {event.get('from_step', '?')}" if change else f"after step {event.get('step', '?')}"
    return f"{when}: {change or ' '.join(words)}{found}{by}" + (f" ({why})" if why else "")


def _written(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value)
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def _parts(widget: Any) -> list[Any]:
    return [widget, *(part for child in getattr(widget, "children", ()) for part in _parts(child))]


def _class(name: str) -> str:
    # A name of a function as a part of a CSS class.
    return "".join(letter if letter.isalnum() or letter in "_-" else "-" for letter in name)


def _line(text: str, colour: str = "inherit") -> str:
    return f"<pre style='{PRE};color:{colour};line-height:1.4'>{html.escape(plain(text))}</pre>"
