"""The plot in the training cell: words that move with every step, a picture that never grows old, at a bounded price."""

from __future__ import annotations

import html
from types import SimpleNamespace

import numpy as np
import pytest
from running import HOSTILE, Running

from workbench.health.verdicts import Verdict
from workbench.rewards.groups import batch_of
from workbench.run.metrics import GROUP_STD, REWARD, STEP_S
from workbench.views import live
from workbench.views.curves import RunFigure
from workbench.views.groups import ShownGroup, group_html, group_of, group_text
from workbench.views.run_view import RunView


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
def buttons(monkeypatch):
    """A kernel in which they work while a cell is busy, whichever this machine has."""
    monkeypatch.setattr("ipykernel.__version__", "7.3.0")
    for name in ("VSCODE_PID", "VSCODE_CWD"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def running(home):
    opened = Running("r", 40)
    yield opened
    opened.suite.close()


def on_a_clock(monkeypatch, now) -> None:
    """Every picture and word is timed by `now`."""
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=now, perf_counter=now))


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


def test_a_cell_shows_status_picture_verdicts_group_and_controls(running, cell, buttons, monkeypatch):
    # However long a step really takes here: a first one that takes long is drawn.
    on_a_clock(monkeypatch, lambda: 0.0)
    plot = live.LivePlot()
    watched(running, plot)
    running.step()
    running.step()
    assert plot.draws == 1  # the first picture does not wait for its share of the time
    status, controls, picture, below = cell
    assert "image/png" in picture.shown[-1]
    # One status line: the picture beneath it, which may be older, says no more than which step it is of.
    assert picture.shown[-1]["text/plain"] == "r: picture of step 2 of 40"
    assert "step 2, group 3 of 4" in below.html
    plot.verdicts([Verdict("dead_groups", "alarm", "all <b>dead</b>")])
    for _ in range(8):
        running.step()
    plot.end("stopped after 10 steps: and then some")
    assert "stopped after 10 steps: and then some" in status.html
    assert picture.shown[-1]["text/plain"] == "r: picture of step 10 of 40"
    assert "step 10, group 3 of 4" in below.html
    assert "all &lt;b&gt;dead&lt;/b&gt;" in below.html
    assert list(controls.widget.children) == [controls.parts["answers"], controls.parts["sentence"]]
    size = sum(len(str(place.shown[-1])) for place in (status, picture, below))
    assert size < 300_000


def test_numbers_health_and_the_group_move_at_every_step_whatever_a_picture_costs(running, cell, monkeypatch):
    monkeypatch.setattr(live, "SHORTEST_WORDS_S", 0.0, raising=False)
    plot = live.LivePlot()
    watched(running, plot)
    plot.cost_s = 1000.0  # no share of this run pays for another picture
    running.step()
    status, *_, below = cell
    for step in range(2, 9):
        plot.verdicts([Verdict("truncation", "note", f"seen in step {step}")])
        running.step()
        assert f"step {step} of 40" in status.html
        assert f"seen in step {step}" in below.html
        assert f"step {step}, group {step % 4 + 1} of 4" in below.html
    assert plot.draws < 8


def test_each_step_shows_its_own_group(running, cell, monkeypatch):
    monkeypatch.setattr(live, "SHORTEST_WORDS_S", 0.0)
    plot = live.LivePlot()
    watched(running, plot)
    seen = []
    for _ in range(4):
        running.step()
        seen.append((plot.view.group.batch.step, plot.view.group.number))
    assert seen == [(1, 1), (2, 2), (3, 3), (4, 0)]


@pytest.mark.slow
def test_hostile_completions_are_text(running, cell):
    plot = live.LivePlot()
    watched(running, plot)
    for _ in range(3):
        running.step()
    plot.end("finished")
    page = cell[-1].html
    shown = plot.view.group.batch.completions
    assert any(HOSTILE in text for text in shown)
    assert "<img" not in page
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "\u202e" not in page


def group(prompt, completions: list[str], totals: list[float], names: tuple[str, ...] = (), **more) -> ShownGroup:
    count = len(completions)
    scores = np.tile(np.array(totals, dtype=float)[:, None], (1, max(1, len(names))))
    names = list(names) or ["a_reward"]
    right = [total > 0 for total in totals]
    options = {"step": 7, "prompts": [prompt] * count, **more}
    return group_of(batch_of(names, [2.0] * len(names), scores, completions, right, count, "none", **options), 0)


def test_a_prompt_is_shown_in_its_order_and_says_what_it_leaves_out():
    chat = [
        {"role": "system", "content": "\n".join(f"rule {n}" for n in range(1, 8))},
        {"role": "user", "content": "2 + 2?"},
    ]
    shown = html.unescape(group_html(group(chat, ["4"], [1.0])))
    assert "[system]\nrule 1\nrule 2\nrule 3\n… (3 lines) …\nrule 7\n[user]\n2 + 2?</pre>" in shown
    assert "overflow-y" not in shown  # nothing is hidden without a sign
    assert group_text(group(chat, ["4"], [1.0])).startswith("step 7, group 1 of 1: 2 + 2?")
    review = "Is this review positive or negative? " + "Answer with one word. " * 9 + "\n\nReview: The soup was cold."
    shown = group_text(group(review, ["4"], [1.0])).splitlines()[0]  # what it is about stands at its end
    assert shown.endswith("The soup was cold.")
    assert len(shown) < 150
    assert "'>[1, 2]</pre>" in html.unescape(group_html(group("[1, 2]", ["4"], [1.0])))


def test_long_completions_are_cut_in_the_middle_and_many_are_left_out():
    texts = [f"<first {n}>" + "&" * 100_000 + "<last>" for n in range(64)]
    page = group_html(group("p" * 5000, texts, list(range(64)), finished=np.zeros(64, bool)))
    assert len(page) < 60_000
    for words in (
        "&lt;first 63&gt;",
        "&lt;first 0&gt;",
        "&lt;last&gt;",
        "56 between the best and the worst",
        "a x 2",
        ", length<",
    ):
        assert words in page


def test_what_a_function_did_instead_of_scoring_stands_in_its_place():
    page = group_html(group("p", ["x", "y"], [1.0, np.nan], errors={"a_reward": {1: "raised <b>KeyError</b>"}}))
    assert "raised &lt;b&gt;KeyError" in page
    assert ">1</td>" in page


class Clocked:
    """A plot on a clock of our own: a step takes 1 s, and a picture so many. All of them are exact in binary."""

    def __init__(self, monkeypatch, running: Running, picture_s: float) -> None:
        self.now, self.drawn = 0.0, []

        def draw(figure, history, *_, **__):
            self.now += picture_s
            self.drawn.append(history.step)
            return b"png"

        self.plot = live.LivePlot()
        on_a_clock(monkeypatch, lambda: self.now)
        monkeypatch.setattr(RunFigure, "draw", draw)
        self.plot.cost_s = picture_s
        self.plot.begin(running.run, 10_000, {"beta": 0.01})

    def steps(self, count: int) -> list[int]:
        """Take so many steps; returns those at whose end a picture was drawn."""
        before = len(self.drawn)
        for _ in range(count):
            self.now += 1.0
            self.plot.update(1 + len(self.plot.view.history), {REWARD: 1.0})
        return self.drawn[before:]


def test_a_picture_is_never_older_than_ten_seconds_or_two_percent_of_the_run(monkeypatch, running, cell):
    # A busy machine: 0.8 % of the time pays for a picture of 0.25 s every 31 steps only.
    clocked = Clocked(monkeypatch, running, 0.25)
    # From the second step on, as one point is no curve; each one is 10 s old at the end of the tenth step after it.
    assert clocked.steps(200) == [2, *range(12, 201, 10)]
    # At 1,000 s it is 2 %: of 1001.25 + n from n = 21 on, of 1022.5 + n, too, of 1043.75 + n from n = 22 on.
    clocked.now = 1000.0
    assert clocked.steps(65) == [201, 222, 243, 265]


def test_a_first_step_that_takes_long_is_drawn(monkeypatch, running, cell):
    clocked = Clocked(monkeypatch, running, 0.25)
    clocked.now += 9.0
    assert clocked.steps(1) == [1]


def test_where_pictures_are_cheap_there_are_more_of_them_within_their_share(monkeypatch, running, cell):
    clocked = Clocked(monkeypatch, running, 1 / 64)
    drawn = len(clocked.steps(300))
    # Every 1.95 s 0.8 % of the time pays for one, which is every second step.
    assert 140 < drawn <= live.BUDGET * clocked.now / (1 / 64) + 1
    assert clocked.plot.drawing_s == drawn / 64


def test_a_new_alarm_draws_at_once(monkeypatch, running, cell):
    clocked = Clocked(monkeypatch, running, 0.25)
    clocked.steps(8)
    alarm = Verdict("non_finite", "alarm", "the loss is NaN")
    clocked.plot.verdicts([alarm])
    assert clocked.steps(1) == [9]  # two steps after the one before
    clocked.plot.verdicts([alarm])
    assert clocked.steps(4) == []  # it is known
    clocked.plot.verdicts([alarm, Verdict("collapse", "alarm", "all the same")])
    assert clocked.steps(1) == [14]


def test_an_alarm_stands_second_in_the_status_line_until_it_has_passed(running, cell, monkeypatch):
    monkeypatch.setattr(live, "SHORTEST_WORDS_S", 0.0)  # however fast the steps are
    plot = live.LivePlot()
    watched(running, plot)
    running.step()
    plot.verdicts([Verdict("non_finite", "alarm", "the loss is NaN"), Verdict("collapse", "warning", "")])
    running.step()
    alarmed = plot.places["status"].shown[-1]["text/plain"]
    assert alarmed.split(live.GAP)[1] == f"▲ alarm: {Verdict('non_finite', 'alarm', '').title}"
    plot.verdicts([])
    running.step()
    assert "alarm" not in plot.places["status"].html


def test_changes_are_marked_and_a_pause_is_said_at_once(running, cell, buttons):
    plot = live.LivePlot()
    watched(running, plot)
    running.step()
    change = {"event": "control", "id": "1", "action": "beta", "by": "x", "applied": True, "step": 1, "from_step": 2}
    plot.event({**change, "value": 0.1, "before": 0.01, "after": 0.1})
    plot.event({**change, "id": "2", "action": "pause"})
    assert [mark.text for mark in plot.view.marks] == ["beta 0.01 → 0.1"]
    assert "paused after step 1 of 40" in cell[0].html
    assert plot.controls.parts["pause"].description == "Resume"
    plot.event({**change, "id": "3", "action": "resume"})
    assert "paused" not in cell[0].html
    drawn = plot.draws
    plot.event({**change, "id": "4", "action": "pause", "step": 2})  # its row of metrics comes later
    assert "paused after step 2 of 40" in cell[0].html
    assert "after step 2: pause" in plot.controls.parts["answers"].value
    assert plot.draws == drawn + 1
    assert "refused" not in plot.controls.parts["answers"].value


def test_a_pause_is_no_time_that_drawing_has_a_share_of(running, cell, monkeypatch):
    clock = [0.0]
    plot = live.LivePlot()
    on_a_clock(monkeypatch, lambda: clock[0])
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
    plot = live.LivePlot()
    plot.begin(running.run, 40, {"beta": 0.01})
    plot.update(4, {REWARD: 9.0})
    assert list(plot.view.history.steps) == [1, 2, 3, 4]
    assert [mark.text for mark in plot.view.marks] == ["continued"]


def test_status_line():
    view = RunView()
    view.name, view.total = "r", 60
    view.row(30, {REWARD: 1.234, GROUP_STD: 0.5})
    assert view.words(90.0) == (
        "r: step 30 of 60   reward 1.23   group std 0.50   kl not measured   1:30 elapsed   about 1:30 left"
    )
    assert view.words(90.0, "finished after 60 steps").startswith("r: finished after 60 steps")
    # What is to come takes as long as the latest steps took, whatever the first ones did.
    for step in range(31, 41):
        view.row(step, {STEP_S: 2.0})
    assert view.words(900.0).endswith("about 0:40 left")
    view.state.stage, view.state.paused, view.stages = "hard", True, True
    assert view.words(9.0).startswith("r: paused after step 40 of 60 (stage hard)")
    view.total = 0
    assert "of" not in view.words(None)
