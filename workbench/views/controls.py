"""Buttons and fields that steer a run. Each only appends a line to the run's `control.jsonl`; the
trainer answers.

Nothing here touches a figure or a model: a click may arrive on another thread than that of the cell
that trains.
"""

from __future__ import annotations

import os
import shlex
import threading
from collections import deque
from functools import partial
from typing import Any

from packaging.version import Version

from workbench.base.errors import WorkbenchError
from workbench.base.kinds import Fields
from workbench.run.control_file import ACTIONS, RunState, send
from workbench.run.directory import RunDirectory
from workbench.views.history import change_text
from workbench.views.look import BAD, GOOD, MUTED
from workbench.views.tables import coloured
from workbench.views.widgets import Parts, no_widgets, widget_view

BY = "panel"
MOST_ANSWERS = 6  # that are shown, the newest first
_LONGEST_ANSWER = 400  # characters
_NUMBERS = ("beta", "learning_rate")
_BUTTONS = {
    "stop": "Stop",
    "pause": "Pause",
    "checkpoint": "Checkpoint",
    "sample": "Sample",
    "reload": "Reload rewards",
}


_WRAPPED = {"flex_flow": "row wrap"}
_ACTION = {"width": "auto", "min_width": "84px"}
_APPLY = {"width": "auto", "margin": "2px 16px 2px 2px"}
_SEPARATE = (
    "The run has its own process, so buttons work in every front end while this kernel is idle."
)
_BUSY = (
    "In JupyterLab these buttons work while the cell trains; elsewhere, interrupt the cell to stop."
)
_WAITS = (
    "a click waits until the cell is done. Interrupt the cell instead: once stops after the step"
    " and saves, twice aborts. For everything else, run `workbench control` in a terminal, or train"
    " in a separate process: wb.RunPanel(wb.start(recipe))."
)


def buttons_work(in_cell: bool) -> tuple[bool, str]:
    """(whether a click is seen while the run trains, a sentence that says how that is here).

    It depends on the front end, the kernel, and on whether the run trains in a cell of this kernel,
    which is busy then.
    """
    if reason := no_widgets():
        return False, f"There are no buttons: {reason}."
    if not in_cell:
        return True, _SEPARATE
    import ipykernel

    major, minor = Version(ipykernel.__version__).release[:2]
    # Kaggle's image is Colab's, variables included.
    if "COLAB_RELEASE_TAG" in os.environ and "KAGGLE_KERNEL_RUN_TYPE" not in os.environ:
        return False, f"In Colab {_WAITS}"
    if {"VSCODE_PID", "VSCODE_CWD"} & os.environ.keys():
        return False, f"In VS Code {_WAITS}"
    # Measured: 7.0 to 7.3 handle a click on a thread beside the cell; 7.4 sends it to the busy one
    # again.
    if (7, 0) <= (major, minor) < (7, 4):
        return True, _BUSY
    return False, f"With ipykernel {major}.{minor} {_WAITS}"


class Controls:
    """Buttons, weights, beta and learning rate of a run that is training, and the trainer's
    answers.

    Show it by leaving it as the last line of a cell. Without widgets it is a line that says what to
    do instead. `state` holds the effective settings, kept current by the caller of `answered`;
    None: it is read here, once. `parts` are the widgets by name: "stop", "beta", "apply beta",
    "weight NAME", "mute NAME", "apply weight NAME", "answers", ...
    """

    def __init__(
        self, run: RunDirectory, in_cell: bool = False, state: RunState | None = None
    ) -> None:
        self.run = run
        self.state = RunState.of(run) if state is None else state
        self.requests: dict[str, str] = {}  # by id, those without an answer, in words
        self.answers: deque[str] = deque(maxlen=MOST_ANSWERS)
        self.parts = Parts()
        self._lock = threading.Lock()
        self._functions: list[str] = []  # that have a row
        self._shown: Fields = {}  # what this class wrote into each field
        self.works, self.sentence = buttons_work(in_cell)
        # a button that cannot work is worse than none
        self.widget = self._build() if self.works else None

    # -- widgets
    # ----------------------------------------------------------------------------------------------
    def _build(self) -> Any:
        import ipywidgets as kit

        add = self.parts.add
        buttons = []
        for action, label in _BUTTONS.items():
            look = {"description": label, "tooltip": ACTIONS[action][0], "layout": _ACTION}
            buttons.append(add(action, "Button", partial(self._click, action), **look))
        self.parts["stop"].button_style = "danger"
        rows = add("functions", "VBox")
        # A text, so that 1e-5 can be typed, and what is no number is answered and not swallowed.
        look: Fields = {"continuous_update": False, "layout": {"width": "190px"}}
        numbers = [
            part
            for action in _NUMBERS
            for part in self._applied(action, "Text", action, description=action, **look)
        ]
        answers = add("answers", "HTML")
        sentence = add("sentence", "HTML", value=coloured(self.sentence, MUTED))
        self._show_state()
        above, below = (kit.HBox(line, layout=_WRAPPED) for line in (buttons, numbers))
        return kit.VBox([above, rows, below, answers, sentence])

    def _click(self, action: str) -> None:
        self.ask("resume" if action == "pause" and self.state.paused else action)

    def _applied(self, name: str, kind: str, action: str, function: str = "", **look: Any) -> list:
        # A field, and the button that asks for what was typed in it.
        of = {"function": function} if function else {}
        field = self.parts.add(name, kind, **look)
        button = {"description": "Apply", "layout": _APPLY}

        def then() -> None:
            self.ask(action, **of, value=field.value)

        return [field, self.parts.add(f"apply {name}", "Button", then, **button)]

    def _fill_functions(self) -> None:
        import ipywidgets as kit

        self._functions = list(self.state.weights)
        self._shown = {}
        head = "Weight of each reward function; a muted one is still scored and plotted."
        rows = [kit.HTML(coloured(head, MUTED))]
        for name in self._functions:
            label = kit.HTML(coloured(name), layout={"width": "240px", "overflow": "hidden"})
            look = {"step": 0.1, "layout": {"width": "100px"}}
            weight = self._applied(f"weight {name}", "FloatText", "weight", name, **look)
            look = {"description": "mute", "indent": False, "layout": {"width": "90px"}}
            mute = self.parts.add(f"mute {name}", "Checkbox", partial(self._mute, name), **look)
            rows.append(kit.HBox([label, *weight, mute]))
        self.parts["functions"].children = rows

    def _mute(self, function: str, mute: bool) -> None:
        self.ask("mute" if mute else "unmute", function=function)

    # -- asking and answers
    # ------------------------------------------------------------------------------------------
    def ask(self, action: str, **details: Any) -> str | None:
        """Send a request to the run; returns its id. Errors in it are shown in the panel, not
        raised.
        """
        words = " ".join([action, *(_written(value) for value in details.values())])
        try:
            identity = send(self.run, action, by=BY, **details)
        except Exception as error:  # a full disk, a folder that is gone: the panel stays
            why = f"{type(error).__name__}: {error}"
            if isinstance(error, WorkbenchError):
                why = f"{error.value}; {error.remedy}"
            self._say(f"not sent: {words}: {why}", BAD)
            self._show_fields()
            return None
        with self._lock:
            self.requests[identity] = words
        self._show_answers()
        return identity

    def answered(self, event: Fields) -> None:
        """Show one event that is already in the state: an answer, somebody else's change, a
        stage.
        """
        if event.get("event") == "control":
            with self._lock:
                self.requests.pop(event.get("id", ""), None)
            # these are marked in the picture, and would push out the answers
            if event.get("by") != "adaptive":
                self._say(answer_line(event), GOOD if event.get("applied") else BAD)
        if event.get("event") in ("control", "stage", "continued"):
            self._show_state()

    def ended(self, message: str) -> None:
        """Take the controls away, but for the answers: the run has ended."""
        with self._lock:
            self.requests.clear()
        self._show_state()
        if self.widget is not None:
            for widget in self.parts.values():
                widget.disabled = True  # one that is still shown elsewhere
            self.widget.children = [self.parts["answers"], self.parts["sentence"]]
            self.parts["sentence"].value = coloured(f"{message}: nothing is left to steer.", MUTED)

    def _say(self, text: str, colour: str) -> None:
        with self._lock:
            self.answers.appendleft(coloured(text[:_LONGEST_ANSWER], colour))
        self._show_answers()

    def _show_answers(self) -> None:
        if self.works:
            with self._lock:
                waiting = list(self.requests.values())[-MOST_ANSWERS:]
                lines = [coloured(f"requested: {words} …", MUTED) for words in waiting]
                self.parts["answers"].value = "".join([*lines, *self.answers])

    def _show_state(self) -> None:
        if self.works:
            if self._functions != list(self.state.weights):
                self._fill_functions()
            self.parts["pause"].description = "Resume" if self.state.paused else "Pause"
            self._show_fields()
        self._show_answers()

    def _show_fields(self) -> None:
        with self.parts.quietly():
            for name in self._functions:
                if name in self.state.weights:
                    # Of a muted function, the weight that it will get back.
                    weight = self.state.muted.get(name, self.state.weights[name])
                    self._put(f"weight {name}", float(weight))
                    self.parts[f"mute {name}"].value = name in self.state.muted
            for action in _NUMBERS:
                self._put(action, _written(getattr(self.state, action)))

    def _put(self, name: str, value: object) -> None:
        # A field that somebody is writing in would lose what was typed, so only changes are
        # written.
        if self._shown.get(name) != value:
            self._shown[name] = value
            self.parts[name].value = value

    def __repr__(self) -> str:
        run = shlex.quote(str(self.run.path))  # a terminal may stand anywhere
        settings = "stop, pause, weight FUNCTION VALUE, ..."
        return f"{self.sentence} In a terminal: workbench control {run} {settings}"

    def _repr_mimebundle_(self, **_: object) -> object:
        bundle = {"text/plain": repr(self), "text/html": coloured(repr(self), MUTED)}
        return bundle if self.widget is None else {**bundle, **widget_view(self.widget)}


def answer_line(event: Fields, own: str = BY) -> str:
    """One answer of the trainer, in a line; requests of others than `own` are marked as theirs."""
    keys = [key for key in ("action", "function", "value") if key in event]
    words = " ".join(_written(event[key]) for key in keys)
    by = "" if event.get("by") == own else f" (requested by {event.get('by', '?')})"
    why = " ".join(str(event.get("why", "")).split())
    if not event.get("applied"):
        return f"refused: {words}{by}: {why}"
    when = f"after step {event.get('step', '?')}"
    if change := change_text(event):
        words = change
        when = f"from step {event.get('from_step', '?')}"
    if event.get("action") == "sample" and event.get("file"):
        words += f" to {event['file']}"
    return f"{when}: {words}{by}" + (f" ({why})" if why else "")


def _written(value: object) -> str:
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)
