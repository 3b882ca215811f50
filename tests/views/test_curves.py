"""The run figure: bounded in points, bytes and time; weighted and raw; and it says so when KL is not measured."""

from __future__ import annotations

import io
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from workbench.health.verdicts import NAMES, Verdict
from workbench.run.metrics import (
    ALL_RIGHT,
    ALL_WRONG,
    CLIPPED,
    DEAD,
    ENTROPY,
    GENERATE_S,
    GROUP_STD,
    KL,
    MEAN_LENGTH,
    MIXED,
    REWARD,
    REWARD_S,
    REWARD_STD,
    STEP_S,
    TRAIN_S,
    per_function,
    weight_of,
)
from workbench.views import curves
from workbench.views.chart import MAX_POINTS, tick_label
from workbench.views.curves import KL_UNMEASURED, MOST_MARKS, MOST_NAMED, MOST_NUMBERS, NO_ENTROPY, RunFigure
from workbench.views.history import (
    ADAPTIVE,
    ALARMED,
    CHANGE,
    CHECKPOINT,
    KL_PER_COMPLETION,
    STAGE,
    History,
    Mark,
    add_mark,
    envelope,
    weighted,
)
from workbench.views.look import settings

LENGTHS = ("completions/min_length", "completions/max_length")  # logged by TRL
FIVE = [f"{letter}_reward" for letter in "abcde"]
NUMBERS = (
    REWARD, REWARD_STD, GROUP_STD, KL, ENTROPY, MEAN_LENGTH, *LENGTHS, CLIPPED, STEP_S, GENERATE_S, REWARD_S,
    TRAIN_S,
)  # fmt: skip


def history(steps: int, functions: list[str] = FIVE) -> History:
    rng = np.random.default_rng(0)
    filled = History(dict.fromkeys(functions, 1.0))
    for step in range(1, steps + 1):
        values = dict(zip(NUMBERS, map(float, rng.random(len(NUMBERS))), strict=True))
        shares = {MIXED: 0.5, ALL_RIGHT: 0.2, ALL_WRONG: 0.3, DEAD: 0.1}
        means = {per_function(name): float(rng.random()) for name in functions[1:]}
        filled.add(step, {**values, **shares, **means, per_function(functions[0]): 0.4})
    return filled


def drawn(filled: History) -> RunFigure:
    figure = RunFigure("r", 0.01)
    figure.draw(filled)
    return figure


def line_of(chart, key: str) -> list[float]:
    [line] = [line for line in chart.lines if line.key == key]
    return line.artist.get_ydata().tolist()


# -- the history -------------------------------------------------------------------------------------------------------


def test_an_envelope_keeps_every_peak_and_is_bounded():
    x = np.arange(10_000.0)
    y = np.sin(x / 50)
    y[1234], y[7777] = 9.0, -9.0
    found = envelope(x, y, 120)
    assert len(found.x) <= 120
    assert (found.high.max(), found.low.min()) == (9.0, -9.0)
    assert abs(found.x[found.high.argmax()] - 1234) < 10_000 / 120
    assert np.all(np.diff(found.x) > 0)


def test_short_histories_are_untouched():
    x = np.arange(5.0)
    assert all(part is x for part in envelope(x, x, 5))


def test_an_envelope_survives_gaps():
    y = np.full(5000, np.nan)
    y[17] = 1.0
    found = envelope(np.arange(5000.0), y, 100)
    for part in (found.low, found.mean, found.high):
        assert np.nansum(part) == 1.0
        assert np.isnan(part).sum() == 99


def test_an_envelope_is_that_of_each_bucket():
    rng = np.random.default_rng(0)
    x, y = np.arange(1.0, 1004.0), rng.normal(size=1003)
    y[rng.random(1003) < 0.3] = np.nan
    found = envelope(x, y, 100)
    for bucket, start in enumerate(range(0, 1003, 11)):
        steps, values = x[start : start + 11], y[start : start + 11]
        wanted = (steps.mean(), np.nanmin(values), np.nanmean(values), np.nanmax(values))
        assert [part[bucket] for part in found] == pytest.approx(wanted)
    assert len(found.x) == bucket + 1


def test_buckets_have_their_means_in_the_middle_of_their_steps():
    x = np.arange(1000.0)
    found = envelope(x, x % 2, 10)
    assert found.mean.tolist() == [0.5] * 10
    assert found.x.tolist() == [49.5 + 100 * bucket for bucket in range(10)]
    assert envelope(np.arange(15.0), np.ones(15), 10).x[-1] == 14.0


def test_a_function_adds_its_mean_times_the_weight_of_that_step():
    filled = History({"a_reward": 3.0})
    filled.add(1, {per_function("a_reward"): 0.5})  # an older run: the weight is the manifest's
    filled.add(2, {per_function("a_reward"): 0.5, weight_of("a_reward"): 2.0})
    filled.add(3, {per_function("a_reward"): 0.5, weight_of("a_reward"): 0.0})
    assert filled[weighted("a_reward")].tolist() == [1.5, 1.0, 0.0]
    assert filled[per_function("a_reward")].tolist() == [0.5] * 3
    assert filled.weights == {"a_reward": 0.0}


def test_a_function_that_appears_in_the_middle_of_a_run_has_a_gap_before():
    filled = history(3, ["a_reward"])
    filled.add(4, {per_function("late_reward"): 1.0, weight_of("late_reward"): 0.5})
    assert filled.functions == ["a_reward", "late_reward"]
    assert np.isnan(filled[per_function("late_reward")][:3]).all()
    assert filled[weighted("late_reward")][3] == 0.5
    assert np.isnan(filled[per_function("a_reward")][3])


def test_a_run_that_was_continued_goes_back_to_its_checkpoint():
    filled = history(10)
    filled.add(7, {REWARD: 5.0})
    assert list(filled.steps) == [1, 2, 3, 4, 5, 6, 7]
    assert filled.last(REWARD) == 5.0
    assert all(len(column) == 7 for column in filled.columns.values())


def test_kl_of_a_completion_is_that_of_its_tokens_together():
    filled = History()
    filled.add(1, {KL: 0.02, MEAN_LENGTH: 50.0})
    filled.add(2, {MEAN_LENGTH: 50.0})
    assert filled[KL_PER_COMPLETION][0] == 1.0
    assert filled.last(KL_PER_COMPLETION) is None


def test_the_latest_steps_say_how_long_the_next_ones_take():
    filled = History()
    assert filled.recent_step_s() is None
    for step in range(1, 60):
        filled.add(step, {STEP_S: 600.0 if step < 10 else 2.0})
    assert filled.recent_step_s() == 2.0


# -- marks -------------------------------------------------------------------------------------------------------------


def marks_of(*events: dict) -> list[Mark]:
    marks: list[Mark] = []
    for event in events:
        add_mark(marks, event)
    return marks


def changed(step: int, before: float, after: float) -> dict:
    """A change that was made after this step, as the record has it."""
    return {
        "event": "control", "step": step, "from_step": step + 1, "action": "beta", "by": "you", "applied": True,
        "before": before, "after": after,
    }  # fmt: skip


def test_a_change_at_the_boundary_where_a_run_stopped_stays_marked():
    """Made after step 5, in the checkpoint of step 5: in force when the run goes on from there."""
    stop = {"event": "control", "step": 5, "from_step": 6, "action": "stop", "by": "you", "applied": True}
    saved = {"event": "checkpoint", "step": 5}
    events = (changed(5, 0.0, 0.1), stop, saved, changed(6, 0.1, 0.2), {"event": "continued", "step": 5})
    assert [mark[:3] for mark in marks_of(*events)] == [
        (6, CHANGE, "beta 0 → 0.1"), (5, CHECKPOINT, "checkpoint"), (6, STAGE, "continued"),
    ]  # fmt: skip
    assert [mark.text for mark in marks_of(*events, {"event": "continued", "step": 4})] == ["continued"]


def test_a_stage_that_a_continued_run_begins_again_is_marked_once():
    stage = {"event": "stage", "step": 5, "stage": "b"}
    assert [mark.text for mark in marks_of(stage, {"event": "continued", "step": 5}, stage)] == ["stage b", "continued"]


def test_the_charts_draw_metrics_and_watch_verdicts_that_are_known():
    """charts.yaml is data: a key that nothing logs would be an empty curve, and nobody would see it."""
    spec = settings(Path(curves.__file__).with_name("charts.yaml"))
    known = {*NUMBERS, MIXED, ALL_RIGHT, ALL_WRONG, DEAD, KL_PER_COMPLETION}
    drawn = set()
    for chart in spec["charts"].values():
        drawn |= {key for line in chart.get("lines", ()) for key in (line["key"], *line.get("shaded", ()))}
        drawn |= {key for key, *_ in chart.get("stack", ())}
    assert drawn == known
    assert {issue for chart in spec["charts"].values() for issue in chart.get("alarms", ())} <= set(NAMES)


# -- the figure --------------------------------------------------------------------------------------------------------


def test_unmeasured_kl_is_said_with_the_way_to_measure_it():
    figure = RunFigure("r", beta=0.0)
    figure.draw(History({"a_reward": 1.0}))
    assert figure.charts["kl"].words.get_text() == KL_UNMEASURED
    assert "grpo.beta = 0.001" in KL_UNMEASURED
    figure.draw(history(3))  # a later stage measures it
    assert figure.charts["kl"].words.get_text() == ""


def test_entropy_that_is_not_logged_is_said():
    """Unsloth's trainer on a GPU logs none."""
    figure, empty = RunFigure("r", beta=0.1), History({"a_reward": 1.0})
    figure.draw(empty)
    words = figure.charts["entropy"].words
    assert words.get_text() == "", "before the first step nothing is known"
    empty.add(1, {REWARD: 1.0})
    figure.draw(empty)
    assert words.get_text() == NO_ENTROPY
    figure.draw(history(3))
    assert words.get_text() == ""


def test_the_figure_shows_the_numbers_that_it_was_given():
    filled = history(3)
    filled.add(4, {REWARD: 1.0, per_function("a_reward"): 0.4, weight_of("a_reward"): 2.0})
    figure = drawn(filled)
    for name, key in (
        ("reward", REWARD), ("std", GROUP_STD), ("std", REWARD_STD), ("groups", DEAD), ("kl", KL), ("kl", KL_PER_COMPLETION),
        ("length", MEAN_LENGTH), ("length", CLIPPED), ("entropy", ENTROPY), ("time", STEP_S), ("raw", per_function("b_reward")),
        ("reward", weighted("b_reward")),
    ):  # fmt: skip
        assert np.array_equal(line_of(figure.charts[name], key), filled[key], equal_nan=True), key
    assert line_of(figure.charts["reward"], weighted("a_reward")) == [0.4, 0.4, 0.4, 0.8]
    assert figure.charts["reward"].shown_legend.get_texts()[1].get_text() == "a x 2"


def test_time_is_split_where_it_was_measured():
    def named(filled: History) -> list[str]:
        return [text.get_text() for text in drawn(filled).charts["time"].shown_legend.get_texts()]

    assert named(history(3)) == ["generate", "reward", "train", "all"]
    whole = History()
    whole.add(1, {STEP_S: 2.0})
    assert named(whole) == ["all"]


def test_a_legend_keeps_no_dot_of_the_first_step():
    figure, filled = RunFigure("r", 0.01), history(1)
    figure.draw(filled)
    assert figure.charts["kl"].lines[0].artist.get_marker() == "."
    figure.beta = 0.1
    figure.draw(history(2))
    assert {handle.get_marker() for handle in figure.charts["kl"].shown_legend.get_lines()} == {""}


def test_legends_that_are_drawn_once_stand_where_they_were_and_follow_what_changes(monkeypatch):
    often = RunFigure("r", 0.01)
    for steps in (1, 3, 8):
        often.draw(history(steps))
    assert often.draw(history(30)) == drawn(history(30)).draw(history(30))
    assert often.draw(history(30), sharp=True) == drawn(history(30)).draw(history(30), sharp=True)
    fewer = drawn(history(30, FIVE[:2]))
    hidden = drawn(history(3)).charts["kl"].shown_legend
    hidden.set_visible(False)
    hidden.figure.canvas.draw()  # nothing to keep, and no error
    hidden.figure.set_dpi(50)
    hidden.figure.canvas.draw()
    monkeypatch.setattr("workbench.views.chart.drawn_once", lambda artist: None)
    for mine, filled in ((often, history(30)), (fewer, history(30, FIVE[:2]))):
        ours, matplotlibs = (Image.open(io.BytesIO(each.draw(filled))) for each in (mine, drawn(filled)))
        apart = np.abs(np.asarray(ours.convert("L"), int) - np.asarray(matplotlibs.convert("L"), int))
        assert np.mean(apart > 16) < 1e-3  # colours are rounded to 128, by what else is in the picture


def test_a_function_that_appears_later_is_drawn():
    figure = drawn(history(3, ["a_reward"]))
    filled = history(3, ["a_reward"])
    filled.add(4, {per_function("late_reward"): 1.0})
    figure.draw(filled)
    assert np.array_equal(line_of(figure.charts["raw"], per_function("late_reward")), [np.nan] * 3 + [1.0], equal_nan=True)
    assert [text.get_text() for text in figure.charts["reward"].shown_legend.get_texts()] == ["total", "a", "late"]


def test_many_functions_are_counted_in_the_legend_not_listed():
    many = [f"{'x' * 40}{number}_reward" for number in range(30)]
    figure = drawn(history(3, many))
    texts = [text.get_text() for text in figure.charts["reward"].shown_legend.get_texts()]
    assert len(texts) == MOST_NAMED + 1
    assert texts[-1] == "and 20 more"


def test_a_lone_peak_does_not_flatten_the_rest():
    filled = history(100)
    filled.add(101, {KL: 500.0})
    figure = drawn(filled)
    assert figure.charts["kl"].axis.get_ylim()[1] <= 2
    assert figure.charts["kl"].peak.get_text() == "peak 500 at step 101 (off the scale)"
    assert drawn(history(100)).charts["kl"].peak.get_text() == ""


def test_marks_are_bounded_and_the_latest_are_explained():
    marks = [Mark(step, CHANGE, f"change {step}") for step in range(1, 500)]
    marks += [Mark(step, ADAPTIVE, "weight") for step in range(1, 500)]
    marks += [Mark(step, CHECKPOINT, "checkpoint") for step in range(1, 500)]
    figure = RunFigure("r", 0.01)
    picture = figure.draw(history(500), "r", "", sorted(marks))
    lines = figure.marks.lines[0].get_xdata()
    assert len(lines) == 3 * MOST_MARKS
    assert lines[-2] == 499
    assert len(figure.marks.checkpoints.get_xdata()) == MOST_MARKS
    assert len(figure.marks.adaptive.get_xdata()) == MOST_MARKS
    words = figure.key.get_text()
    assert words.count("(") == MOST_NUMBERS
    assert f"({MOST_NUMBERS}) step 499: change 499" in words.replace("\n", " ")
    assert "lines: means of up to 5 steps" in figure.reduced.get_text()
    assert len(words.splitlines()) <= 2
    assert len(picture) < 200_000


def test_changes_at_one_step_share_a_number():
    figure = RunFigure("r")
    figure.draw(history(20), marks=[Mark(5, CHANGE, "beta"), Mark(5, CHANGE, "length muted"), Mark(7, CHANGE, "x")])
    assert figure.key.get_text() == "(1) step 5: beta, length muted   (2) step 7: x"


def test_long_titles_are_cut():
    figure = RunFigure("r")
    figure.draw(history(3), "long " * 100, "words " * 400)
    assert len(figure.title.get_text()) <= 88
    assert len(figure.note.get_text().splitlines()) == 2


@pytest.mark.timing
def test_a_redraw_costs_the_same_however_long_the_run():
    """Processor time, in turns, the least of several, and measured again: what other programs do counts little."""
    made = []
    for steps in (100, 10_000):
        figure, filled = RunFigure("r", 0.01), history(steps)
        assert len(figure.draw(filled)) < 200_000
        made.append((figure, filled))

    def ratio() -> float:
        best = [float("inf")] * 2
        for _ in range(9):
            for place, (figure, filled) in enumerate(made):
                started = time.process_time()
                figure.draw(filled)
                best[place] = min(best[place], time.process_time() - started)
        return best[1] / best[0]

    ratios = []
    while not ratios or (ratios[-1] > 1.5 and len(ratios) < 3):
        ratios.append(ratio())
    assert ratios[-1] <= 1.5, ratios


def test_points_are_bounded():
    for chart in drawn(history(10_000)).charts.values():
        for line in chart.lines:
            assert len(line.artist.get_xdata()) <= MAX_POINTS


def test_missing_numbers_are_gaps_not_errors():
    figure = RunFigure("r")
    filled = History({"a_reward": 1.0})
    assert figure.draw(filled).startswith(b"\x89PNG")
    filled.add(1, {})
    filled.add(2, {REWARD: None, KL: "inf", ENTROPY: float("inf")})
    assert figure.draw(filled).startswith(b"\x89PNG")


def test_negative_rewards_have_room():
    filled = History({"a_reward": 1.0})
    for step in range(1, 5):
        filled.add(step, {REWARD: -3.0, per_function("a_reward"): -3.0})
    low, high = drawn(filled).charts["reward"].axis.get_ylim()
    assert low <= -3
    assert high > 0


@pytest.mark.parametrize(
    ("value", "top", "text"),
    [(0.0, 1e-5, "0"), (2e-6, 1e-5, "2e-6"), (1.5e-5, 2e-5, "1.5e-5"), (0.0012, 0.0015, "1.2e-3"), (0.0025, 0.01, "0.0025"),
     (1.25, 5, "1.25"), (100_000, 120_000, "100000")],
)  # fmt: skip
def test_ticks_are_short_numbers(value, top, text):
    assert tick_label(value, top) == text


@pytest.mark.parametrize("scale", [1e-5, 1e-3, 1.0])
def test_no_text_leaves_the_figure_or_its_chart(scale):
    filled = History(dict.fromkeys(FIVE, 1.0))
    for step in range(1, 4):
        values = {REWARD: scale, GROUP_STD: scale, REWARD_STD: scale, KL: scale * step, MEAN_LENGTH: 40.0, CLIPPED: 0.1}
        filled.add(step, {**values, STEP_S: 3.0, GENERATE_S: 1.0, REWARD_S: 0.5, TRAIN_S: 1.0})
    figure = drawn(filled)
    whole = figure.figure.bbox
    for chart in figure.charts.values():
        for axis in chart.axes:
            assert axis.yaxis.get_offset_text().get_text() == ""  # "1e-5" would stand over the legend
            for label in axis.yaxis.get_ticklabels(which="both"):
                box = label.get_window_extent()
                assert not label.get_visible() or not label.get_text() or (box.x0 >= 0 and box.x1 <= whole.x1)
        if chart.shown_legend is not None and chart is not figure.charts["reward"]:
            assert chart.shown_legend.get_window_extent().x1 <= chart.axis.get_window_extent().x1 + 20
    assert [figure.charts[key].axis.get_xlabel() for key in ("length", "entropy", "time")] == ["step"] * 3


@pytest.mark.parametrize("scale", [8.8e-6, *(pytest.param(each, marks=pytest.mark.slow) for each in (0.0046, 0.3))])
def test_a_figure_that_was_drawn_before_is_the_one_drawn_at_once(scale):
    # Its artists are given new data; nothing of the old may stay.
    grown, filled = RunFigure("r", 0.001), History({"a": 1.0})
    for step in range(1, 16):
        grows = scale * step**3
        filled.add(step, {REWARD: 1.0, KL: grows, ENTROPY: 10 * grows, STEP_S: 1 + grows, CLIPPED: 0.1, MEAN_LENGTH: 20.0})
        picture = grown.draw(filled)
    assert picture == RunFigure("r", 0.001).draw(filled)


def test_a_redraw_shows_what_changed_and_takes_back_what_is_gone():
    figure, filled = RunFigure("r", 0.01), history(60)
    plain = figure.draw(filled, "t", "n")
    marks = [Mark(5, CHANGE, "beta 0 → 1"), Mark(9, CHECKPOINT, "checkpoint")]
    assert figure.draw(filled, "t", "n", marks) != plain
    assert figure.draw(filled, "t", "n") == plain
    assert figure.draw(filled, "another", "n") != plain


def test_the_number_of_steps_in_a_bucket_is_said():
    figure, filled = RunFigure("r", 0.01), history(360)
    figure.draw(filled)
    assert "means of up to 3 steps" in figure.reduced.get_text()
    filled.add(361, {key: filled.last(key) for key in filled.columns})
    figure.draw(filled)
    assert "means of up to 4 steps" in figure.reduced.get_text()
    figure.draw(history(120))
    assert figure.reduced.get_text() == ""


def test_a_run_that_generates_every_fourth_step_is_drawn_with_lines():
    filled = History({"a_reward": 1.0})
    for step in range(1, 10):
        generated = {REWARD: step / 9, per_function("a_reward"): 1.0, MIXED: 1.0, GENERATE_S: 1.0, TRAIN_S: 1.0}
        filled.add(step, {KL: 0.1, STEP_S: 2.0, **(generated if step % 4 == 1 else {})})
    figure = drawn(filled)
    line = {key: figure.charts[key].lines[0].artist for key in ("reward", "kl")}
    assert list(line["reward"].get_xdata()) == [1, 5, 9]
    assert list(line["reward"].get_ydata()) == pytest.approx([1 / 9, 5 / 9, 1])
    assert list(line["kl"].get_xdata()) == list(range(1, 10))
    filled.add(10, {KL: 0.2})
    assert (filled.last(REWARD), filled.last(KL), filled.last(ENTROPY)) == (1.0, 0.2, None)


def test_held_out_points_have_intervals_and_the_line_of_base():
    figure, filled = RunFigure("r"), history(30)
    plain = figure.draw(filled)
    names = [text.get_text() for text in figure.charts["reward"].shown_legend.get_texts()]
    assert not any("held-out" in name for name in names)
    found = [
        {"step": step, "correct": own, "low": own - 0.1, "high": own + 0.1} for step, own in ((0, 0.4), (10, 0.5), (20, 0.7))
    ]
    assert figure.draw(filled, held_out=found) != plain
    reward = figure.charts["reward"]
    base, bars, points = figure.held_out.base, figure.held_out.bars, figure.held_out.points
    assert points.get_xydata().tolist() == [[0, 0.4], [10, 0.5], [20, 0.7]]
    assert list(base.get_ydata()) == [0.4, 0.4]
    assert bars.get_segments()[1].tolist() == [[10, pytest.approx(0.4)], [10, pytest.approx(0.6)]]
    assert "held-out correct" in reward.shown_legend.get_texts()[-1].get_text()
    figure.draw(filled)
    assert not len(points.get_xdata())
    assert figure.held_out.now.get_text() == ""


# -- alarms ------------------------------------------------------------------------------------------------------------


def alarm(name: str, step: int, state: str = "alarm") -> dict:
    return {"event": "health", "name": name, "state": state, "step": step}


def test_an_alarm_is_marked_once_at_the_step_at_which_it_was_raised():
    found = marks_of(alarm("kl_runaway", 3, "warning"), alarm("kl_runaway", 4), alarm("collapse", 6), alarm("kl_runaway", 9))
    assert [(mark.step, mark.kind, mark.issue) for mark in found] == [(4, ALARMED, "kl_runaway"), (6, ALARMED, "collapse")]
    assert marks_of(alarm("kl_runaway", 4), {"event": "continued", "step": 3})[0].kind == STAGE


def test_an_alarm_is_seen_in_the_figure_at_its_step_and_at_what_it_is_about():
    figure, filled = RunFigure("r", 0.01), history(30)
    plain = figure.draw(filled)
    marks = marks_of(alarm("kl_runaway", 4), alarm("truncation", 25))
    assert figure.draw(filled, marks=marks) != plain
    alarmed = {key: list(chart.alarm.get_xdata())[::3] for key, chart in figure.charts.items()}
    assert alarmed == {
        "reward": [4, 25], "raw": [], "std": [], "groups": [], "kl": [4], "length": [25], "entropy": [], "time": []
    }  # fmt: skip
    assert figure.charts["kl"].name.get_color() != figure.charts["std"].name.get_color()
    assert list(figure.alarms.signs.get_xdata()) == [4, 25]
    assert min(figure.alarms.signs.get_ydata()) > 1, "above the axes, where no curve is"
    assert "2 alarms: runaway KL (step 4), clipped completions (step 25)" in figure.alarms.band.get_text()
    box = figure.alarms.band.get_window_extent()
    assert 0 <= box.x0 <= box.x1 <= figure.figure.bbox.x1
    assert figure.draw(filled) == plain, "nothing of it stays"


def test_the_band_says_what_is_over_and_what_is_only_a_warning():
    figure, filled = RunFigure("r", 0.01), history(30)

    def band(marks: list[Mark], *states: tuple[str, str]) -> str:
        figure.draw(filled, marks=marks, verdicts=[Verdict(name, state, "") for name, state in states])
        return figure.alarms.band.get_text()

    raised = marks_of(alarm("kl_runaway", 4), alarm("collapse", 6))
    said = band(raised, ("kl_runaway", "alarm"), ("collapse", "ok"))
    assert "runaway KL (step 4)," in said
    assert "(step 6, now over)" in said
    assert band([], ("kl_runaway", "warning"), ("collapse", "ok")) == "! 1 warning: runaway KL"
    assert band([], ("kl_runaway", "ok")).endswith("no alarm, no warning")
    assert band([]) == "", "nobody has examined it"


def test_a_picture_that_stays_has_twice_the_pixels():
    figure, filled = RunFigure("r", 0.01), history(10)
    small, large = (Image.open(io.BytesIO(figure.draw(filled, sharp=sharp))) for sharp in (False, True))
    assert large.size == tuple(2 * side for side in small.size)
    assert small.size[0] == 900
