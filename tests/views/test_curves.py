"""The live figure: bounded in points, bytes and time; and it says so when KL is not measured."""

from __future__ import annotations

import time

import numpy as np
import pytest

from workbench.run.metrics import ALL_RIGHT, ALL_WRONG, DEAD, GROUP_STD, KL, MIXED, REWARD, REWARD_STD
from workbench.views import live
from workbench.views.curves import KL_UNMEASURED, MAX_POINTS, History, RunFigure, decimate

FIVE = [f"{letter}_reward" for letter in "abcde"]


def history(steps: int) -> History:
    rng = np.random.default_rng(0)
    filled = History(FIVE)
    for step in range(1, steps + 1):
        values = {
            key: float(value) for key, value in zip((REWARD, REWARD_STD, GROUP_STD, KL), rng.random(4), strict=True)
        }
        shares = {MIXED: 0.5, ALL_RIGHT: 0.2, ALL_WRONG: 0.3, DEAD: 0.1}
        functions = {f"rewards/{name}/mean": float(rng.random()) for name in FIVE[1:]}
        filled.add(step, {**values, **shares, **functions, "rewards/a_reward/mean": 0.4})
    return filled


def test_decimation_keeps_ends_of_the_range_and_is_bounded():
    x = np.arange(10_000.0)
    y = np.sin(x / 50)
    y[1234], y[7777] = 9.0, -9.0
    few_x, few_y = decimate(x, y)
    assert len(few_x) <= MAX_POINTS
    assert (few_y.max(), few_y.min()) == (9.0, -9.0)
    assert few_x[few_y.argmax()] == 1234
    assert np.all(np.diff(few_x) > 0)


def test_short_histories_are_untouched():
    x = np.arange(5.0)
    assert decimate(x, x)[0] is x


def test_decimation_survives_gaps():
    y = np.full(5000, np.nan)
    y[17] = 1.0
    assert 1.0 in decimate(np.arange(5000.0), y)[1]


def lines(figure: RunFigure, axis) -> list[str]:
    return [text.get_text() for text in axis.texts]


def test_unmeasured_kl_is_said_with_the_way_to_measure_it():
    figure = RunFigure("r", ["a_reward"], {"a_reward": 1.0}, beta=0.0)
    assert KL_UNMEASURED in lines(figure, figure.kl)
    assert "grpo.beta = 0.001" in KL_UNMEASURED
    measured = RunFigure("r", ["a_reward"], {"a_reward": 1.0}, beta=0.01)
    assert lines(measured, measured.kl) == []


def test_the_figure_shows_the_numbers_that_it_was_given():
    figure = RunFigure("r", ["a_reward"], {"a_reward": 2.0}, beta=0.01)
    filled = history(3)
    figure.draw(filled)
    drawn = {label: line.get_ydata().tolist() for label, (line, _, _) in figure._lines.items()}
    by_key = {key: line.get_ydata().tolist() for line, key, _ in figure._lines.values()}
    assert by_key[REWARD] == filled[REWARD].tolist()
    assert by_key[GROUP_STD] == filled[GROUP_STD].tolist()
    assert by_key[KL] == filled[KL].tolist()
    assert drawn["rewards/a_reward/mean a_reward x 2"] == [0.8] * 3  # weighted, so that the lines add up to the total


def test_a_redraw_costs_the_same_however_long_the_run():
    def cost(steps: int) -> tuple[float, int]:
        figure, filled = RunFigure("r", FIVE, {}, 0.01), history(steps)
        figure.draw(filled)
        best, size = float("inf"), 0
        for _ in range(5):
            started = time.perf_counter()
            size = len(figure.draw(filled))
            best = min(best, time.perf_counter() - started)
        return best, size

    short, long = cost(100), cost(10_000)
    assert long[0] < 3 * short[0]  # at a hundred times the steps; half of it is room for a busy machine
    assert long[1] < 100_000
    assert max(len(line.get_xdata()) for line, _, _ in _drawn(10_000)._lines.values()) <= MAX_POINTS


def _drawn(steps: int) -> RunFigure:
    figure = RunFigure("r", FIVE, {}, 0.01)
    figure.draw(history(steps))
    return figure


def test_missing_numbers_are_gaps_not_errors():
    figure = RunFigure("r", ["a_reward"], {}, 0.0)
    filled = History(["a_reward"])
    filled.add(1, {})
    filled.add(2, {REWARD: None})
    assert figure.draw(filled).startswith(b"\x89PNG")


class FakeRun:
    name = "r"

    def manifest(self):
        return {"rewards": {"weights": {"a_reward": 1.0}}}


class Handle:
    def update(self, bundle, raw):
        assert "image/png" in bundle


def test_outside_a_notebook_there_is_nowhere_to_draw():
    plot = live.LivePlot()
    plot.begin(FakeRun(), 10, {"beta": 0.0})
    plot.update(1, {REWARD: 1.0})
    plot.end("finished")
    assert plot.draws == 0


@pytest.mark.parametrize("minutes", [0.5, 5])
def test_drawing_stays_within_its_share_of_the_time(monkeypatch, minutes):
    """A clock of our own, on which a step takes 1.5 s and a draw takes 100 ms."""
    clock = [0.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(live.time, "perf_counter", lambda: clock[0])

    spent = []

    def slow_draw(figure, history, title=None):
        clock[0] += 0.1
        spent.append(0.1)
        return b"png"

    monkeypatch.setattr(RunFigure, "draw", slow_draw)
    monkeypatch.setattr("IPython.display.display", lambda *_, **__: Handle())
    plot = live.LivePlot()
    clock[0], before = 0.0, len(spent)
    plot.begin(FakeRun(), 1000, {"beta": 0.01})
    while clock[0] < 60 * minutes:
        clock[0] += 1.5
        plot.update(1 + len(plot.history.steps), {REWARD: 1.0})
    plot.end("finished")
    drawing = sum(spent[before:])
    assert plot.drawing_s == pytest.approx(drawing)
    assert drawing <= live.BUDGET * clock[0] + 1e-9
    assert plot.draws >= 0.5 * live.BUDGET * clock[0] / 0.1


def test_status_line():
    filled = History([])
    filled.add(30, {REWARD: 1.234, GROUP_STD: 0.5})
    assert live.status_line("r", 30, 60, filled, 90.0) == (
        "r: step 30 of 60   reward 1.23   group std 0.50   kl not measured   1:30 gone   about 1:30 to go"
    )
    assert live.status_line("r", 60, 60, filled, 90.0, "finished after 60 steps").startswith(
        "r: finished after 60 steps"
    )
