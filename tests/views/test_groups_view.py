"""The tables and pictures of a group and of a replay: the numbers in them, and that hostile text stays text."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from recording import record

from workbench.inspection.replaying import replay
from workbench.rewards.groups import batch_of, explain_in
from workbench.task import Task
from workbench.views.figure import png
from workbench.views.groups import advantage_bars, contribution_bars, group_tables
from workbench.views.replay import decider_bars, replay_chart, replay_tables

NAMES = ["right_reward", "length_reward"]
SCORES = np.array([[1, 0.5], [0, 0.25], [0, math.nan], [1, 0.0]])
ROW = {"prompt": "2 + 2?", "prompt_id": "p", "answer": "4"}
TEXTS = ["4", "<script>alert(1)</script>", "5", "five"]


def right_reward(completions, answer, **kwargs):
    return [1.0 if text == right else 0.0 for text, right in zip(completions, answer)]


def length_reward(completions, **kwargs):
    return [float(len(text)) for text in completions]


def group():
    return explain_in(batch_of(NAMES, [2.0, 1.0], SCORES, TEXTS, [True, False, False, True], 4))


@pytest.fixture
def replayed(home):
    run = record(Task("t", [ROW], [right_reward]), [[(ROW, TEXTS), (ROW, ["a", "bb", "c", "d"])]] * 3)
    return replay(run, Task("new", [ROW], [right_reward, length_reward], [1.0, 2.0]))


def test_group_tables_hold_scores_contributions_and_the_verdict():
    scored, added, functions = group_tables(group())
    assert scored.header == ["", "completion", "right", "length", "total"] + [
        f"advantage, {scale}" for scale in ("group", "batch", "none")
    ]
    assert scored.rows[0][2:5] == [1.0, 0.5, 2.5]
    for row in added.rows:
        assert sum(row[1:3]) == pytest.approx(row[3])
    assert functions.caption.startswith("right_reward decided this group")
    assert functions.rows[1][:3] == ["length_reward", 1.0, 0.25]
    assert "<script" not in scored._repr_html_()


def test_a_dead_group_has_tables_and_a_picture_too():
    dead = explain_in(batch_of(NAMES, [2.0, 1.0], np.full((4, 2), math.nan), TEXTS, [False] * 4, 4))
    assert group_tables(dead)[2].caption == "dead (not scored): nothing is learnt from this group"
    assert [line.split()[2:] for line in str(group_tables(dead)[2]).splitlines()[2:]] == [["-", "-", "-"]] * 2
    assert png(contribution_bars(dead)).startswith(b"\x89PNG")


def test_stacked_contributions_end_at_the_advantage():
    found = group()
    axis = contribution_bars(found).axes[0]
    widths = np.array([[bar.get_width() for bar in bars] for bars in axis.containers])
    assert widths.sum(axis=0) == pytest.approx(found.advantages)
    assert axis.get_xlabel() == "advantage"


def test_a_groups_bars_say_what_they_measure_and_name_no_colour():
    left, right = advantage_bars(["good", "bad"], [1.0, 0.0], [0.7, -0.7]).axes
    assert (left.get_xlabel(), right.get_xlabel()) == ("reward", "advantage")
    assert right.get_title(loc="left") == "advantage: above 0 reinforced, below 0 suppressed"


def test_bars_have_the_labels_of_the_group_or_numbers():
    labels = ("right", "script", "wrong", "word")
    for found, shown in ((group(), [f"completion {n}" for n in range(4)]), (replace(group(), labels=labels), list(labels))):
        axis = contribution_bars(found).axes[0]
        assert [label.get_text() for label in axis.get_yticklabels()] == shown


def test_replay_tables(replayed):
    functions, deciders, alive, examples = replay_tables(replayed)
    assert [row[:2] for row in functions.rows] == [["right_reward", "same"], ["length_reward", "added"]]
    assert functions.rows[1][3] == "- -> 2"
    assert [row[:3] for row in deciders.rows] == [
        ["right_reward", "length_reward", 3],
        ["none (zero std)", "length_reward", 3],
    ]
    assert "3" in alive.caption
    assert len(alive.rows) == 3
    assert len(examples.rows) == 5
    assert "<script" not in examples._repr_html_()
    assert "length - -> " in str(examples)


def test_replay_pictures(replayed):
    lines = replay_chart(replayed).axes[0].get_lines()
    assert [line.get_ydata()[0] for line in lines] == [0.5, 0.0]
    assert png(decider_bars(replayed)).startswith(b"\x89PNG")


def test_a_long_history_is_drawn_with_a_bounded_number_of_points(replayed):
    long = replace(replayed, steps=[{**replayed.steps[0], "step": step} for step in range(10_000)])
    assert len(replay_chart(long).axes[0].get_lines()[0].get_xdata()) <= 300
