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
from pathlib import Path
from typing import Any

from packaging.version import Version

from workbench.errors import WorkbenchError
from workbench.kinds import Fields
from workbench.run.control_file import ACTIONS, RunState, send
from workbench.run.directory import RunDirectory
from workbench.views.history import change_text
from workbench.views.tables import BAD, GOOD, MUTED, coloured
from workbench.views.widgets import Parts, no_widgets, widget_view
from workbench.workspace import workspace

BY = "panel"
MOST_ANSWERS = 6  # that are shown, the newest first
_LONGEST_ANSWER = 400  # characters
_NUMBERS = ("beta", "learning_rate")
_MUTE = {True: "mute", False: "unmute"}
_BUTTONS = {
    "stop": "Stop",
    "pause": "Pause",
    "checkpoint": "Checkpoint",
    "sample": "Sample",
    "reload": "Reload rewards",
}


def buttons_work(in_cell: bool) -> tuple[bool, str]:
    """(whether a click is seen while the run trains, a sentence that says how that is here).

    It depends on the front end, the kernel, and on whether the run trains in a cell of this kernel,
    which is busy then.
    """
    if reason := no_widgets():
        return False, f"There are no buttons: {reason}."
    if not in_cell:
        return (
            True,
            (
                "The run has its own process, so buttons work in every front end while this kernel"
                " is idle."
            ),
        )
    import ipykernel

    kernel = Version(ipykernel.__version__).release[:2]
    # Kaggle's image is Colab's, variables included.
    colab = "COLAB_RELEASE_TAG" in os.environ and "KAGGLE_KERNEL_RUN_TYPE" not in os.environ
    where = (
        "In Colab"
        if colab
        else "In VS Code"
        if {"VSCODE_PID", "VSCODE_CWD"} & os.environ.keys()
        else ""
    )
    # Measured: 7.0 to 7.3 handle a click on a thread beside the cell; 7.4 sends it to the busy one
    # again.
    if not where and (7, 0) <= kernel < (7, 4):
        return (
            True,
            (
                "In JupyterLab these buttons work while the cell trains; elsewhere, interrupt the"
                " cell to stop."
            ),
        )
    return (
        False,
        (
            f"{where or f'With ipykernel {kernel[0]}.{kernel[1]}'} a click waits until the cell is"
            " done. Interrupt the cell instead: once stops after the step and saves, twice aborts."
            " For everything else, run `workbench control` in a terminal, or train in a separate"
            " process: wb.RunPanel(wb.start(recipe))."
        ),
    )


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
        self._quiet = False  # a field that is set by an answer asks for nothing
        self.works, self.sentence = buttons_work(in_cell)
        # a button that cannot work is worse than none
        self.widget = self._build() if self.works else None

    # -- widgets
    # ----------------------------------------------------------------------------------------------
    def _build(self) -> Any:
        import ipywidgets as kit

        wrapped = {"flex_flow": "row wrap"}
        buttons = [
            self._button(action, label, tooltip=ACTIONS[action][0])
            for action, label in _BUTTONS.items()
        ]
        self.parts["stop"].button_style = "danger"
        fields = []
        for action in _NUMBERS:
            # A text, so that 1e-5 can be typed, and what is no number is answered and not
            # swallowed.
            look = {"style": {"description_width": "initial"}, "layout": {"width": "190px"}}
            fields.append(
                self.parts.add(
                    action, kit.Text(description=action, continuous_update=False, **look)
                )
            )
            fields.append(
                self._button(
                    f"apply {action}", "Apply", min_width="auto", margin="2px 16px 2px 2px"
                )
            )
        self._rows = kit.VBox([])
        answers = self.parts.add("answers", kit.HTML())
        sentence = self.parts.add("sentence", kit.HTML(coloured(self.sentence, MUTED)))
        self._show_state()
        lines = [kit.HBox(buttons, layout=wrapped), self._rows, kit.HBox(fields, layout=wrapped)]
        return kit.VBox([*lines, answers, sentence])

    def _button(self, name: str, label: str, tooltip: str = "", **layout: str) -> object:
        import ipywidgets as kit

        button = kit.Button(
            description=label,
            tooltip=tooltip,
            layout={"width": "auto", "min_width": "84px", **layout},
        )
        button.on_click(lambda _: self._clicked(name))
        return self.parts.add(name, button)

    def _clicked(self, name: str) -> None:
        action, _, function = name.removeprefix("apply ").partition(" ")
        if function:
            self.ask(action, function=function, value=self.parts[f"weight {function}"].value)
        elif action in _NUMBERS:
            self.ask(action, value=self.parts[action].value)
        else:
            self.ask("resume" if action == "pause" and self.state.paused else action)

    def _fill_functions(self) -> None:
        import ipywidgets as kit

        self._functions = list(self.state.weights)
        self._shown = {}
        rows = [
            kit.HTML(
                coloured(
                    "Weight of each reward function; a muted one is still scored and plotted.",
                    MUTED,
                )
            )
        ]
        for name in self._functions:
            label = kit.HTML(coloured(name), layout={"width": "240px", "overflow": "hidden"})
            weight = self.parts.add(
                f"weight {name}", kit.FloatText(step=0.1, layout={"width": "100px"})
            )
            apply = self._button(f"apply weight {name}", "Apply", min_width="auto")
            mute = self.parts.add(
                f"mute {name}",
                kit.Checkbox(description="mute", indent=False, layout={"width": "90px"}),
            )
            mute.observe(
                lambda box, name=name: self._quiet or self.ask(_MUTE[box["new"]], function=name),
                "value",
            )
            rows.append(kit.HBox([label, weight, apply, mute]))
        self._rows.children = rows

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
            ours = isinstance(error, WorkbenchError)
            why = f"{error.value}; {error.remedy}" if ours else f"{type(error).__name__}: {error}"
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
        """Disable the controls: the run has ended."""
        with self._lock:
            self.requests.clear()
        self._show_state()
        if self.works:
            for widget in self.parts.values():
                widget.disabled = True
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
        self._quiet = True
        try:
            for name in self._functions:
                if name in self.state.weights:
                    # Of a muted function, the weight that it will get back.
                    weight = self.state.muted.get(name, self.state.weights[name])
                    self._put(f"weight {name}", float(weight))
                    self.parts[f"mute {name}"].value = name in self.state.muted
            for action in _NUMBERS:
                self._put(action, _written(getattr(self.state, action)))
        finally:
            self._quiet = False

    def _put(self, name: str, value: Any) -> None:
        # A field that somebody is writing in would lose what was typed, so only changes are
        # written.
        if self._shown.get(name) != value:
            self._shown[name] = value
            self.parts[name].value = value

    def __repr__(self) -> str:
        # A terminal that stands elsewhere knows no run of that name.
        known = Path.cwd() != workspace() == self.run.path.parent.parent
        run = self.run.name if known else shlex.quote(str(self.run.path))
        return (
            f"{self.sentence} In a terminal: workbench control {run} stop, pause, weight FUNCTION"
            " VALUE, ..."
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> object:
        bundle = {"text/plain": repr(self), "text/html": coloured(repr(self), MUTED)}
        return bundle if self.widget is None else {**bundle, **widget_view(self.widget)}


def answer_line(event: Fields, own: str = BY) -> str:
    """One answer of the trainer, in a line; requests of others than `own` are marked as theirs."""
    words = [
        str(event.get("action", "")),
        *(_written(event[key]) for key in ("function", "value") if key in event),
    ]
    change = change_text(event) if event.get("applied") else None
    by = "" if event.get("by") == own else f" (requested by {event.get('by', '?')})"
    why = " ".join(str(event.get("why", "")).split())
    if not event.get("applied"):
        return f"refused: {' '.join(words)}{by}: {why}"
    file = f" to {event['file']}" if event.get("file") and event.get("action") == "sample" else ""
    when = (
        f"from step {event.get('from_step', '?')}"
        if change
        else f"after step {event.get('step', '?')}"
    )
    return f"{when}: {change or ' '.join(words)}{file}{by}" + (f" ({why})" if why else "")


def _written(value: object) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:g}" if number else "" if value is None else str(value)
