"""Buttons and fields that steer a run. Each only appends a line to the run's `control.jsonl`; the trainer answers.

Nothing here touches a figure or a model: a click may arrive on another thread than that of the cell that trains.
"""

from __future__ import annotations

import os
import re
import shlex
import threading
from collections import deque
from pathlib import Path
from typing import Any

from packaging.version import Version

from workbench.errors import WorkbenchError
from workbench.run.control_file import ACTIONS, RunState, send
from workbench.run.directory import RunDirectory
from workbench.views.history import change_text
from workbench.views.tables import BAD, GOOD, MUTED, coloured
from workbench.workspace import workspace

WIDGETS = "WORKBENCH_WIDGETS"  # "0" where nobody can click: a notebook that is executed and then only read
BY = "panel"
MOST_ANSWERS = 6  # that are shown, the newest first
_LONGEST_ANSWER = 400  # characters
_MUTE = {True: "mute", False: "unmute"}
_BUTTONS = {"stop": "Stop", "pause": "Pause", "checkpoint": "Checkpoint", "sample": "Sample", "reload": "Reload rewards"}


def buttons_work(in_cell: bool) -> tuple[bool, str]:
    """(whether a click is seen while the run trains, a sentence that says how that is here).

    It depends on the front end, the kernel, and on whether the run trains in a cell of this kernel, which is busy then.
    """
    if os.environ.get(WIDGETS) == "0":
        return False, f"There are no buttons ({WIDGETS}=0)."
    try:
        import ipykernel
        import ipywidgets  # noqa: F401
    except ImportError:
        return False, "There are no buttons: ipywidgets is not installed."
    if not in_cell:
        return True, "The run has its own process, so buttons work in every front end while this kernel is idle."
    kernel = Version(ipykernel.__version__).release[:2]
    # Kaggle's image is Colab's, variables included.
    colab = "COLAB_RELEASE_TAG" in os.environ and "KAGGLE_KERNEL_RUN_TYPE" not in os.environ
    where = "In Colab" if colab else "In VS Code" if {"VSCODE_PID", "VSCODE_CWD"} & os.environ.keys() else ""
    # Measured: 7.0 to 7.3 handle a click on a thread beside the cell; 7.4 sends it to the busy one again.
    if not where and (7, 0) <= kernel < (7, 4):
        return True, "In JupyterLab these buttons work while the cell trains; elsewhere, interrupt the cell to stop."
    return False, (
        f"{where or f'With ipykernel {kernel[0]}.{kernel[1]}'} a click waits until the cell is done. Interrupt the cell instead: "
        "once stops after the step and saves, twice aborts. For everything else, run `workbench control` in a terminal, or train "
        "in a separate process: wb.RunPanel(wb.start(recipe))."
    )


def widget_view(widget: Any) -> dict[str, Any]:
    """A widget as a mime bundle. ipywidgets 8 makes it itself, 7 (Colab's) only displays."""
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {"application/vnd.jupyter.widget-view+json": view}


class Controls:
    """Buttons, weights, beta and learning rate of a run that trains, and the trainer's answers.

    Show it by leaving it as the last line of a cell. Without widgets it is a line that says what to do instead. `state` is
    what is in force, kept up to date by whoever calls `answered`; None: it is read here, once.
    """

    def __init__(self, run: RunDirectory, in_cell: bool = False, state: RunState | None = None) -> None:
        self.run, self.state = run, RunState.of(run) if state is None else state
        self.asked: dict[str, str] = {}  # id of a request without an answer -> what was asked
        self.answers: deque[str] = deque(maxlen=MOST_ANSWERS)
        self._lock = threading.Lock()
        self._functions: dict[str, tuple[Any, Any]] = {}  # function -> (weight field, mute box)
        self._numbers: dict[str, tuple[Any, Any]] = {}  # action -> (field, its button)
        self.buttons: dict[str, Any] = {}
        self._shown: dict[str, Any] = {}  # what this class wrote into each field
        self._quiet = False  # a field that is set by an answer asks for nothing
        self.works, self.sentence = buttons_work(in_cell)
        self.widget = self._build() if self.works else None  # a button that cannot work is worse than none

    # -- widgets -----------------------------------------------------------------------------------------------------
    def _build(self) -> Any:
        import ipywidgets as kit

        for action, label in _BUTTONS.items():
            look = {"layout": {"width": "auto", "min_width": "84px"}, "button_style": "danger" if action == "stop" else ""}
            button = kit.Button(description=label, tooltip=ACTIONS[action][0], **look)
            button.on_click(lambda _, asked=action: self.ask("resume" if asked == "pause" and self.state.paused else asked))
            self.buttons[action] = _named(action, button)
        for action in ("beta", "learning_rate"):
            # A text, so that 1e-5 can be typed, and what is no number is answered and not swallowed.
            look = {"style": {"description_width": "initial"}, "layout": {"width": "190px"}}
            field = _named(action, kit.Text(description=action, continuous_update=False, **look))
            layout = {"width": "auto", "margin": "2px 16px 2px 2px"}
            apply = _named(f"apply-{action}", kit.Button(description="Apply", layout=layout))
            apply.on_click(lambda _, action=action, field=field: self.ask(action, value=field.value))
            self._numbers[action] = (field, apply)
        self._rows, self._sentence_widget = kit.VBox([]), kit.HTML(coloured(self.sentence, MUTED))
        self._answers_widget = _named("answers", kit.HTML())
        self._fill_functions()
        self._show_state()
        fields = [part for pair in self._numbers.values() for part in pair]
        rows = [kit.HBox(list(each), layout={"flex_flow": "row wrap"}) for each in (self.buttons.values(), fields)]
        return kit.VBox([rows[0], self._rows, rows[1], self._answers_widget, self._sentence_widget])

    def _fill_functions(self) -> None:
        import ipywidgets as kit

        self._functions, self._shown, lines = {}, {}, []
        for name in self.state.weights:
            label = kit.HTML(coloured(name), layout={"width": "240px", "overflow": "hidden"})
            field = _named(f"weight-{name}", kit.FloatText(step=0.1, layout={"width": "100px"}))
            apply = _named(f"apply-{name}", kit.Button(description="Apply", layout={"width": "auto"}))
            mute = _named(f"mute-{name}", kit.Checkbox(description="mute", indent=False, layout={"width": "90px"}))
            apply.on_click(lambda _, name=name, field=field: self.ask("weight", function=name, value=field.value))
            mute.observe(lambda box, name=name: self._quiet or self.ask(_MUTE[box["new"]], function=name), "value")
            self._functions[name] = (field, mute)
            lines.append(kit.HBox([label, field, apply, mute]))
        head = kit.HTML(coloured("Weight of each reward function; a muted one is still scored and plotted.", MUTED))
        self._rows.children = [head, *lines]

    # -- asking and answers ------------------------------------------------------------------------------------------
    def ask(self, action: str, **details: Any) -> str | None:
        """Ask the run for something; returns the request's id. What is wrong with it is shown in the panel, not raised."""
        words = " ".join([action, *(_written(value) for value in details.values())])
        try:
            identity = send(self.run, action, by=BY, **details)
        except Exception as error:  # a full disk, a folder that is gone: the panel stays
            ours = isinstance(error, WorkbenchError)
            why = f"{error.value}; {error.remedy}" if ours else f"{type(error).__name__}: {error}"
            self._say(f"not sent: {words}: {why}", BAD)
            self._show_fields()
            return None
        with self._lock:
            self.asked[identity] = words
        self._show_answers()
        return identity

    def answered(self, event: dict[str, Any]) -> None:
        """Show one event that is in the state already: an answer, a change that somebody else made, a stage."""
        if event.get("event") == "control":
            with self._lock:
                self.asked.pop(event.get("id", ""), None)
            if event.get("by") != "adaptive":  # these are marked in the picture, and would push out the answers
                self._say(answer_line(event), GOOD if event.get("applied") else BAD)
        if event.get("event") in ("control", "stage", "continued"):
            self._show_state()

    def ended(self, message: str) -> None:
        """The run is over: there is nobody left to ask."""
        with self._lock:
            self.asked.clear()
        self._show_state()
        if self.works:
            widgets = [self.widget]
            for widget in widgets:  # grows as it goes
                widgets += getattr(widget, "children", ())
                if hasattr(widget, "disabled"):
                    widget.disabled = True
            self._sentence_widget.value = coloured(f"{message}: nothing is left to steer.", MUTED)

    def _say(self, text: str, colour: str) -> None:
        with self._lock:
            self.answers.appendleft(coloured(text[:_LONGEST_ANSWER], colour))
        self._show_answers()

    def _show_answers(self) -> None:
        if self.works:
            with self._lock:
                waiting = [coloured(f"requested: {words} …", MUTED) for words in list(self.asked.values())[-MOST_ANSWERS:]]
                self._answers_widget.value = "".join([*waiting, *self.answers])

    def _show_state(self) -> None:
        if self.works:
            if list(self._functions) != list(self.state.weights):
                self._fill_functions()
            self.buttons["pause"].description = "Resume" if self.state.paused else "Pause"
            self._show_fields()
        self._show_answers()

    def _show_fields(self) -> None:
        # What is in force; a field that somebody is writing in would lose what was typed, so only changes are written.
        self._quiet = True
        try:
            for name, (field, mute) in self._functions.items():
                if name in self.state.weights:
                    # Of a muted function, the weight that it will get back.
                    self._put(field, float(self.state.muted.get(name, self.state.weights[name])), f"weight {name}")
                    mute.value = name in self.state.muted
            for action, (field, _) in self._numbers.items():
                self._put(field, _written(getattr(self.state, action)), action)
        finally:
            self._quiet = False

    def _put(self, field: Any, value: Any, what: str) -> None:
        if self._shown.get(what) != value:
            self._shown[what] = field.value = value

    def __repr__(self) -> str:
        # A terminal that stands elsewhere knows no run of that name.
        known = Path.cwd() != workspace() == self.run.path.parent.parent
        run = self.run.name if known else shlex.quote(str(self.run.path))
        return f"{self.sentence} In a terminal: workbench control {run} stop, pause, weight FUNCTION VALUE, ..."

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        bundle = {"text/plain": repr(self), "text/html": coloured(repr(self), MUTED)}
        return bundle if self.widget is None else {**bundle, **widget_view(self.widget)}


def answer_line(event: dict[str, Any], own: str = BY) -> str:
    """One answer of the trainer, in a line; requests of others than `own` are marked as theirs."""
    words = [str(event.get("action", "")), *(_written(event[key]) for key in ("function", "value") if key in event)]
    change = change_text(event) if event.get("applied") else None
    by = "" if event.get("by") == own else f" (requested by {event.get('by', '?')})"
    why = " ".join(str(event.get("why", "")).split())
    if not event.get("applied"):
        return f"refused: {' '.join(words)}{by}: {why}"
    found = f" to {event['file']}" if event.get("file") and event.get("action") == "sample" else ""
    when = f"from step {event.get('from_step', '?')}" if change else f"after step {event.get('step', '?')}"
    return f"{when}: {change or ' '.join(words)}{found}{by}" + (f" ({why})" if why else "")


def _written(value: Any) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:g}" if number else "" if value is None else str(value)


def _named(part: str, widget: Any) -> Any:
    widget.add_class("workbench-" + re.sub(r"[^\w-]", "-", part))
    return widget
