"""The panel of an idle kernel, without a browser: it reads what is new, says how a run stands, and only ever asks."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from driving import waited_for
from running import Running
from test_live_plot import Handle

from workbench.base.errors import RunError
from workbench.health import ALARM, Verdict, examine_run, summary
from workbench.run.control_file import send
from workbench.run.directory import RunDirectory, open_run
from workbench.views import live
from workbench.views.controls import Controls, buttons_work
from workbench.views.live import RunPanel
from workbench.views.run_view import OLDEST_S, FollowedRun
from workbench.views.widgets import WIDGETS


@pytest.fixture
def running(home):
    opened = Running("r", 40)
    yield opened
    opened.suite.close()


@pytest.fixture
def shown(monkeypatch):
    """Shows a panel as a notebook does; returns its places by name."""
    monkeypatch.setattr(live, "_OPEN", {})

    def show(panel: RunPanel) -> dict[str, Handle]:
        places: list = []

        def display(bundle, **options):
            places.append(Handle(bundle))
            return places[-1]

        monkeypatch.setattr("IPython.display.display", display)
        panel._ipython_display_()
        names = ["status", "controls", "picture", "below"]
        return dict(zip(names if len(places) == 4 else [name for name in names if name != "controls"], places))

    return show


def requests(run: RunDirectory) -> list[dict]:
    file = run.path / "control.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


# -- reading -----------------------------------------------------------------------------------------------------------


def test_how_a_run_stands(running):
    followed = FollowedRun(running.run)
    assert followed.status == "running"
    running.step()
    followed.look()
    assert list(followed.history.steps) == [1]
    lock = running.run.path / "lock"
    mine = lock.read_bytes()
    lock.write_text(json.dumps({"pid": 2**22 + 1, "host": socket.gethostname()}))
    for status, change in (
        ("killed", None),
        ("stopped", lambda: (lock.write_bytes(mine), running.finish("stopped"))),
        ("gone", running.run.discard),
    ):
        if change is not None:
            change()
        followed.look()
        assert followed.status == status


@pytest.mark.timing
def test_a_look_at_a_long_run_reads_only_what_is_new(running):
    row = json.dumps({"step": 0, **{f"metric/{n}": 0.123456789 for n in range(45)}})
    with (running.run.path / "metrics.jsonl").open("w") as lines:
        for step in range(1, 10_001):
            lines.write(row.replace('"step": 0', f'"step": {step}') + "\n")
    followed = FollowedRun(running.run)
    assert followed.history.step == 10_000
    running.run.log_metrics(10_001, {"reward": 1.0})
    started = time.process_time()
    followed.look()
    assert time.process_time() - started < 0.05
    assert followed.history.step == 10_001


# -- the panel ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_panel_shows_the_run_and_follows_it_to_its_end(running, shown):
    panel = RunPanel("latest")
    places = shown(panel)
    assert places["status"].html.count("waiting for the first step")
    for _ in range(3):
        running.step()
    panel.look()
    assert "step 3 of 40" in places["status"].html
    assert "image/png" in places["picture"].shown[-1]
    assert "step 3, group" in places["below"].html
    pictures = len(places["picture"].shown)
    panel.look()
    assert len(places["picture"].shown) == pictures  # nothing new, nothing drawn
    running.step()
    running.finish()
    panel.look()
    assert panel.over
    assert "finished after 4 steps; notebook 04" in places["status"].html
    assert "step 4, group" in places["below"].html
    assert "too early to say: " in places["below"].html
    controls = panel.controls
    assert list(controls.widget.children) == [controls.parts["answers"], controls.parts["sentence"]]


def test_words_and_group_move_with_each_look_and_a_picture_that_is_old_is_drawn_whatever_it_costs(running, shown):
    running.step()
    panel = RunPanel("r", every_s=0.0)
    places = shown(panel)
    draws = panel.draws
    panel.cost_s = 1000.0  # no share pays for another picture
    running.step()
    panel.look()
    assert panel.draws == draws
    assert "step 2 of 40" in places["status"].html
    assert "step 2, group 3 of 4" in places["below"].html
    panel.drawn_at -= OLDEST_S
    panel.look()
    assert panel.draws == draws + 1
    assert places["picture"].shown[-1]["text/plain"] == "r: picture of step 2 of 40"


def test_an_alarm_of_the_trainer_is_shown_at_once(running, shown, monkeypatch):
    running.step()
    panel = RunPanel("r")
    places = shown(panel)
    monkeypatch.setattr("workbench.health.examine_run", lambda *_, **__: [Verdict("non_finite", ALARM, "it is ill")])
    panel.cost_s = 1000.0
    running.step()
    panel.look()
    assert "it is ill" not in places["below"].html
    running.run.log_event("health", 2, name="non_finite", state="alarm", line="it is ill")
    panel.look()
    assert re.search("alarm: NaN or infinite values.*it is ill", places["below"].html)
    assert panel.draws == 2


def test_health_is_read_from_the_parts_that_are_new(running, monkeypatch):
    for _ in range(4):
        running.step()
    followed, read = FollowedRun(running.run), []
    original = summary.read_part
    monkeypatch.setattr(summary, "read_part", lambda file, *a, **k: read.append(file.name) or original(file, *a, **k))
    first = followed.examine()
    running.step()
    assert [verdict.name for verdict in followed.examine()] == [verdict.name for verdict in first]
    assert sorted(read) == [f"step-{step:07d}-00.parquet" for step in range(1, 6)]
    assert examine_run(running.run) == followed.verdicts  # and says the same as read anew


def test_a_killed_run_says_how_to_go_on(running, shown, monkeypatch):
    running.step()
    panel = RunPanel(running.run)
    places = shown(panel)
    monkeypatch.setattr(RunDirectory, "live", property(lambda run: False))
    panel.look()
    assert panel.status == "killed"
    assert "workbench continue r" in places["status"].html


def test_a_panel_that_is_opened_after_the_end_has_nothing_to_click(running, shown):
    running.step()
    running.finish()
    places = shown(RunPanel("r"))
    assert "controls" not in places
    assert "finished after 1 step;" in places["status"].html
    assert "image/png" in places["picture"].shown[-1]


def test_a_run_that_kept_nothing(running, shown):
    panel = RunPanel("r")
    places = shown(panel)
    running.run.discard()
    panel.look()
    assert "ended before its first step" in places["status"].html


def test_no_such_run_is_an_error(home):
    with pytest.raises(RunError, match="no run 'nonesuch'"):
        RunPanel("nonesuch")


class Started:
    """What `workbench.training.background.start` returns."""

    run: RunDirectory | None = None
    error = ""
    code: int | None = None
    said = ""

    def poll(self) -> int | None:
        return self.code

    def log_tail(self) -> str:
        return self.said


def test_a_run_that_is_being_started(home, shown):
    started = Started()
    started.said = "reading weights\n\nquantising <b>\n"
    panel = RunPanel(started)
    places = shown(panel)
    assert "loading the policy ... 0:0" in places["status"].html
    assert "quantising &lt;b&gt;" in places["status"].html
    assert panel.box is not None
    assert panel.controls is None
    running = Running("r", 40)
    started.run = running.run
    panel.look()
    panel.look()
    assert "waiting for the first step" in places["status"].html
    assert panel.box.children == (panel.controls.widget,)
    running.step()
    panel.look()
    assert "step 1 of 40" in places["status"].html
    running.suite.close()


def test_a_run_that_could_not_be_started(home, shown):
    started = Started()
    panel = RunPanel(started)
    places = shown(panel)
    started.code, started.error = 2, "RecipeError: beta = -1"
    panel.look()
    assert panel.status == "not begun"
    assert "RecipeError: beta = -1" in places["status"].html
    assert panel.wait(1) == "not begun"


@pytest.mark.slow
def test_waiting_follows_a_run_of_another_process(home, shown):
    script = Path(__file__).parents[1] / "running.py"
    process = subprocess.Popen([sys.executable, str(script), "other", "4000", "0.3"])
    try:
        waited_for(lambda: (home / "runs" / "other" / "recipe.yaml").is_file())
        panel = RunPanel("other", every_s=0.1)
        places = shown(panel)
        waited_for(lambda: panel.wait(0.2) == "running" and panel.draws)
        send(open_run("other"), "stop", by="test")
        assert panel.wait(120) == "stopped"
        assert "stopped after" in places["status"].html
        assert panel.draws >= 2
    finally:
        process.kill()
        process.wait()


def test_a_panel_that_is_shown_again_replaces_the_one_before(running, shown):
    first, second = RunPanel("r"), RunPanel("r")
    shown(first)
    closed = []
    first.close = lambda: closed.append(1)
    shown(second)
    assert closed == [1]


def test_where_nobody_clicks_there_is_a_sentence(running, shown, monkeypatch):
    monkeypatch.setenv(WIDGETS, "0")
    panel = RunPanel("r")
    places = shown(panel)
    assert panel.controls is None
    assert "WORKBENCH_WIDGETS=0" in places["controls"].shown[0]["text/plain"]
    running.step()
    running.finish()
    panel.look()
    assert places["controls"].shown[-1] == {"text/plain": ""}  # nothing is left to steer
    assert f"workbench control {running.run.path} stop" in repr(Controls(running.run))


# -- controls ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def controls(running):
    return Controls(running.run)


def tell(controls: Controls, *events: dict) -> None:
    """What the view does with the run's events."""
    for event in events:
        controls.state.apply(event)
        controls.answered(event)


def texts(widget) -> list[str]:
    """The HTML of all words in a widget."""
    own = [widget.value] if type(widget).__name__ == "HTML" else []
    return own + [text for part in getattr(widget, "children", ()) for text in texts(part)]


def test_a_click_is_a_line_and_the_answer_is_shown(running, controls):
    controls.parts["stop"].click()
    [request] = requests(running.run)
    assert (request["action"], request["by"]) == ("stop", "panel")
    assert "requested: stop …" in controls.parts["answers"].value
    running.step()
    tell(controls, *running.run.events())
    assert "after step 1: stop" in controls.parts["answers"].value
    assert "requested" not in controls.parts["answers"].value


def test_a_weight_is_applied_with_its_button(running, controls):
    field, mute = controls.parts["weight correctness_reward"], controls.parts["mute correctness_reward"]
    field.value = 0.25
    assert requests(running.run) == []  # arrows and half a number are no request
    controls.parts["apply weight correctness_reward"].click()
    mute.value = True
    mute.value = False
    assert [(r["action"], r["function"], r.get("value")) for r in requests(running.run)] == [
        ("weight", "correctness_reward", 0.25),
        ("mute", "correctness_reward", None),
        ("unmute", "correctness_reward", None),
    ]


def test_answers_set_the_fields_and_ask_for_nothing(running, controls):
    Controls(running.run).ask("mute", function="format_reward")
    Controls(running.run).ask("learning_rate", value="2e-6")
    running.step()
    before = len(requests(running.run))
    tell(controls, *running.run.events())
    field, mute = controls.parts["weight format_reward"], controls.parts["mute format_reward"]
    assert mute.value
    assert field.value == 1.0  # the weight that it will get back
    assert controls.parts["learning_rate"].value == "2e-06"
    assert len(requests(running.run)) == before


def test_what_is_wrong_is_said_and_what_was_typed_stays(running, controls):
    field, apply = controls.parts["beta"], controls.parts["apply beta"]
    field.value = "-1"
    apply.click()
    assert "beta = &#x27;-1&#x27;; give a number from 0 on" in controls.parts["answers"].value
    assert field.value == "-1"
    field, apply = controls.parts["learning_rate"], controls.parts["apply learning_rate"]
    field.value = "10"
    apply.click()
    assert "not sent: learning_rate 10" in controls.parts["answers"].value
    assert "workbench control r learning_rate 10 --force" in controls.parts["answers"].value
    assert requests(running.run) == []
    running.finish()
    controls.parts["checkpoint"].click()
    assert "is not training (finished)" in controls.parts["answers"].value


def test_a_refusal_is_shown_with_its_reason(running, controls):
    controls.ask("weight", function="nonesuch", value=1)
    running.step()
    tell(controls, *running.run.events())
    assert "refused: weight nonesuch 1: function &#x27;nonesuch&#x27;" in controls.parts["answers"].value


def test_pause_becomes_resume(running, controls):
    controls.parts["pause"].click()
    running.step()
    tell(controls, *running.run.events())
    assert controls.parts["pause"].description == "Resume"
    controls.parts["pause"].click()
    assert [request["action"] for request in requests(running.run)] == ["pause", "resume"]


def test_another_set_of_functions_gets_its_own_lines(controls):
    stage = {"event": "stage", "step": 5, "stage": "b", "weights": {"new <b>": 2.0}, "beta": 0, "learning_rate": 1}
    tell(controls, stage)
    assert controls.parts["weight new <b>"].value == 2.0
    [page] = [text for text in texts(controls.widget) if "new" in text]
    assert "new &lt;b&gt;" in page
    assert not any("correctness" in text for text in texts(controls.widget))


def test_adaptive_weights_do_not_push_out_the_answers(controls):
    after = {"correctness_reward": 2.0, "format_reward": 1.0}
    event = {"event": "control", "action": "weight", "function": "correctness_reward", "applied": True, "after": after}
    tell(controls, {**event, "by": "adaptive", "before": after})
    assert not controls.answers
    assert controls.parts["weight correctness_reward"].value == 2.0


@pytest.mark.parametrize(
    ("version", "environment", "works"),
    [
        ("7.3.0", {}, True),
        ("7.0.1", {}, True),
        ("7.4.0", {}, False),
        ("6.31.0", {}, False),
        ("7.3.0", {"VSCODE_PID": "1"}, False),
        ("7.3.0", {"COLAB_RELEASE_TAG": "x"}, False),
        ("7.3.0", {"WORKBENCH_WIDGETS": "0"}, False),
    ],
)
def test_where_buttons_work_in_a_busy_cell(monkeypatch, version, environment, works):
    import ipykernel

    for name in [name for name in os.environ if name.startswith(("VSCODE_", "COLAB_"))]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ipykernel, "__version__", version)
    found, sentence = buttons_work(in_cell=True)
    assert found == works
    assert ("Interrupt the cell" in sentence) == (not works and WIDGETS not in environment)
    assert buttons_work(in_cell=False)[0] == (WIDGETS not in environment)
