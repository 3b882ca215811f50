"""The plot in the training cell: within its share of the time, with the last picture and the last group kept."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from running import HOSTILE, Running

from workbench.run.metrics import GROUP_STD, REWARD, STEP_S
from workbench.train.health.verdicts import Verdict
from workbench.views import live
from workbench.views.curves import RunFigure
from workbench.views.history import History
from workbench.views.screen import status_line


class Handle:
    """A place in a notebook: what it shows now."""

    def __init__(self, bundle: dict[str, str]) -> None:
        self.shown = [bundle]

    def update(self, bundle: dict[str, str], raw: bool) -> None:
        assert raw
        self.shown.append(bundle)

    @property
    def html(self) -> str:
        return self.shown[-1].get("text/html", "")


@pytest.fixture
def cell(monkeypatch) -> list:
    """A notebook's cell: everything that is displayed in it."""
    places: list = []

    def display(shown, **options):
        places.append(Handle(shown) if options.get("display_id") else shown)
        return places[-1] if options.get("display_id") else None

    monkeypatch.setattr("IPython.display.display", display)
    return places


@pytest.fixture
def running(home):
    opened = Running("r", 40)
    yield opened
    opened.suite.close()


def watched(running: Running, plot: live.LivePlot) -> None:
    plot.begin(running.run, 40, {"beta": 0.01})
    running.recorder.watchers.append(plot)


def test_outside_a_notebook_there_is_nowhere_to_draw(running):
    plot = live.LivePlot()
    watched(running, plot)
    running.step()
    plot.end("finished")
    assert plot.draws == 0
    assert running.recorder.watchers == [plot]  # it did not fail


def test_a_cell_shows_status_picture_verdicts_group_and_controls(running, cell):
    plot = live.LivePlot()
    watched(running, plot)
    running.step()
    assert plot.draws == 0
    running.step()
    assert plot.draws == 1  # the first picture does not wait for its share of the time
    status, picture, controls, below = cell
    assert "image/png" in picture.shown[-1]
    assert "step 2 of 40" in picture.shown[-1]["text/plain"]
    assert "step 2, group 1 of 4" in below.html
    plot.verdicts([Verdict("dead_groups", "alarm", "all <b>dead</b>")])
    for _ in range(8):
        running.step()
    plot.end("stopped after 10 steps: and then some")
    assert "stopped after 10 steps: and then some" in status.html
    assert "step 10, group 3 of 4" in below.html
    assert "all &lt;b&gt;dead&lt;/b&gt;" in below.html
    assert controls.buttons["stop"].disabled
    size = sum(len(str(place.shown[-1])) for place in (status, picture, below))
    assert size < 300_000


def test_the_group_changes_every_so_many_steps(running, cell, monkeypatch):
    plot = live.LivePlot(group_every=3)
    monkeypatch.setattr(plot, "_may_draw", lambda step: True)
    watched(running, plot)
    seen = []
    for _ in range(7):
        running.step()
        seen.append(plot.screen.group.step)
    assert seen == [1, 1, 1, 4, 4, 4, 7]


def test_hostile_completions_are_text(running, cell):
    plot = live.LivePlot()
    watched(running, plot)
    for _ in range(3):
        running.step()
    plot.end("finished")
    html = cell[-1].html
    shown = {row["completion"] for row in plot.screen.group.rows}
    assert any(HOSTILE in text for text in shown)
    assert "<img" not in html
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "\u202e" not in html


def test_long_completions_are_cut_in_the_middle_and_many_are_left_out():
    from workbench.views.latest import LatestGroup, group_html

    rows = [
        {
            "prompt": "p" * 5000, "completion": f"<first {n}>" + "&" * 100_000 + "<last>", "finish_reason": "length",
            "length_tokens": 9, "total": n, "advantage": n, "score.a_reward": n, "weight.a_reward": 2.0, "error.a_reward": None,
        }
        for n in range(64)
    ]  # fmt: skip
    html = group_html(LatestGroup(7, 0, 1, ["a_reward"], rows))
    assert len(html) < 60_000
    assert "&lt;first 63&gt;" in html
    assert "&lt;first 0&gt;" in html
    assert "&lt;last&gt;" in html
    assert "56 between the best and the worst left out" in html
    assert "a<br>x 2" in html


@pytest.mark.parametrize("minutes", [0.5, 5])
def test_drawing_stays_within_its_share_of_the_time(monkeypatch, running, cell, minutes):
    """A clock of our own, on which a step takes 1.5 s and a draw takes 100 ms."""
    clock = [0.0]
    spent = []

    def slow_draw(*_, **__):
        clock[0] += 0.1
        spent.append(0.1)
        return b"png"

    plot = live.LivePlot(controls=False)
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: clock[0], perf_counter=lambda: clock[0]))
    monkeypatch.setattr(RunFigure, "draw", slow_draw)
    plot._cost_s = 0.1
    plot.begin(running.run, 1000, {"beta": 0.01})
    while clock[0] < 60 * minutes:
        clock[0] += 1.5
        plot.update(1 + len(plot.history), {REWARD: 1.0})
    plot.end("finished")
    drawing = sum(spent)
    assert plot.drawing_s == pytest.approx(drawing)
    # Two pictures are not asked for their price: the first and the last.
    assert drawing <= max(live.BUDGET * clock[0], 0.2) + 1e-9
    assert plot.draws >= 0.5 * live.BUDGET * clock[0] / 0.1


def test_changes_are_marked_and_a_pause_is_said_at_once(running, cell):
    plot = live.LivePlot()
    watched(running, plot)
    running.step()
    change = {"event": "control", "id": "1", "action": "beta", "by": "x", "applied": True, "step": 1, "from_step": 2}
    plot.event({**change, "value": 0.1, "before": 0.01, "after": 0.1})
    plot.event({**change, "id": "2", "action": "pause"})
    assert [mark.text for mark in plot.screen.marks] == ["beta 0.01 → 0.1"]
    assert "paused after step 1 of 40" in cell[0].html
    assert plot._controls.buttons["pause"].description == "Resume"
    plot.event({**change, "id": "3", "action": "resume"})
    assert "paused" not in cell[0].html
    assert "refused" not in plot._controls._said_widget.value


def test_a_pause_is_no_time_that_drawing_has_a_share_of(running, cell, monkeypatch):
    clock = [0.0]
    plot = live.LivePlot(controls=False)
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: clock[0], perf_counter=lambda: clock[0]))
    watched(running, plot)
    change = {"event": "control", "applied": True, "step": 0}
    plot.event({**change, "action": "pause"})
    clock[0] += 3600
    plot.event({**change, "action": "resume"})
    assert clock[0] - plot.started == 0


def test_a_run_that_goes_on_shows_what_came_before(running, cell):
    for _ in range(5):
        running.step()
    running.run.log_event("continued", 3)
    plot = live.LivePlot(controls=False)
    plot.begin(running.run, 40, {"beta": 0.01})
    plot.update(4, {REWARD: 9.0})
    assert list(plot.history.steps) == [1, 2, 3, 4]
    assert [mark.text for mark in plot.screen.marks] == ["continued"]


def test_status_line():
    filled = History([])
    filled.add(30, {REWARD: 1.234, GROUP_STD: 0.5})
    assert status_line("r", 30, 60, filled, 90.0) == (
        "r: step 30 of 60   reward 1.23   group std 0.50   kl not measured   1:30 gone   about 1:30 to go"
    )
    assert status_line("r", 60, 60, filled, 90.0, "finished after 60 steps").startswith("r: finished after 60 steps")
    # What is to come takes as long as the latest steps took, whatever the first ones did.
    for step in range(31, 41):
        filled.add(step, {STEP_S: 2.0})
    assert status_line("r", 40, 60, filled, 900.0).endswith("about 0:40 to go")
    assert status_line("r", 40, 60, filled, 9.0, stage="hard", paused=True).startswith(
        "r: paused after step 40 of 60 (stage hard)"
    )
    assert "of" not in status_line("r", 40, 0, filled, None)
