"""Gains over levels of difficulty: numbers worked out by hand, and what is said of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from running import Running

from workbench.inspection import over_levels
from workbench.instruments.games.over_levels import LevelShares, OverLevels


def right(count: int, of: int = 40) -> np.ndarray:
    """[P, 1]: the first `count` prompts are solved."""
    return (np.arange(of) < count)[:, None]


def point(level: int, before: int, after: int, in_any: tuple[int, int] | None = None) -> LevelShares:
    lenient = in_any or (before, after)
    return LevelShares.of(level, (right(before), right(after)), (right(lenient[0]), right(lenient[1])))


def test_shares_and_gain_are_those_of_the_completions():
    own = point(1, 10, 30, in_any=(20, 30))
    assert (own.before[0], own.after[0], own.gain[0]) == (0.25, 0.75, 0.5)
    assert (own.right, own.right_gain[0]) == ((0.5, 0.75), 0.25)
    assert own.gain[1] > 0.3
    read = LevelShares(**json.loads(json.dumps(own._asdict())))
    assert OverLevels("t", 1, [read]).rows == OverLevels("t", 1, [own]).rows


def test_a_gain_above_the_trained_level_reaches_further_up_to_the_first_gap():
    over = OverLevels("t", 1, [point(0, 20, 39), point(1, 5, 35), point(2, 2, 30), point(3, 4, 4), point(4, 0, 30)])
    assert over.reaches == [2]
    assert over.verdict == "reaches further: a gain at level 2, above the trained level 1"
    assert over.rows[1][0] == "1 (trained)"
    assert over.rows[1][1:3] == ["12%", "88%"]
    assert "levels 2, 3" in OverLevels("t", 1, [point(2, 2, 30), point(3, 4, 34)]).verdict


def test_a_gain_of_the_form_alone_is_called_that():
    over = OverLevels("t", 0, [point(0, 0, 30, in_any=(25, 30)), point(1, 0, 20, in_any=(20, 20))])
    assert over.reaches == [1]
    assert over.verdict.endswith("; by the form alone: right answers in any format do not increase there")


def test_no_gain_above_is_said_with_its_interval():
    over = OverLevels("t", 0, [point(0, 5, 30), point(1, 3, 4)])
    assert over.reaches == []
    assert over.verdict.startswith("no gain shows above level 0: at level 1 +2 points (")
    assert "certain" not in over.verdict
    assert over.verdict != OverLevels("t", 0, [point(0, 5, 5), point(1, 3, 4)]).verdict
    assert OverLevels("t", 0, [point(0, 5, 5), point(1, 3, 4)]).verdict.endswith("at level 0 itself")


def test_where_nothing_lies_above_it_says_so():
    assert OverLevels("t", 3, [point(2, 5, 30), point(3, 3, 20)]).verdict.startswith("level 3 is the hardest")


def test_a_level_that_could_not_be_measured_is_told_and_not_jumped_over():
    why = "task 't@2': 11 different questions"
    points = [point(0, 2, 30), point(1, 2, 30), point(3, 2, 30)]
    over = OverLevels("t", 0, points, skipped={2: why})
    assert over.reaches == [1]
    assert over.verdict == "reaches further: a gain at level 1, above the trained level 0"
    assert str(over).endswith(f"level 2 was not measured: {why}")
    assert over.found["skipped"] == [{"level": 2, "why": why}]
    beyond = OverLevels("t", 1, points, skipped={2: why})
    assert (beyond.reaches, beyond.verdict) == ([], "not known above level 1: level 2 could not be measured")
    assert OverLevels("t", 1, points, skipped={0: why}).reaches == [3]  # below the trained one it is no gap
    alone = OverLevels("t", 1, skipped={1: why, 2: why})
    assert "has no levels" not in alone.verdict
    assert str(alone).count("was not measured") == 2


@pytest.mark.usefixtures("home")
def test_a_task_without_levels_has_nothing_to_measure():
    running = Running("r", 10)
    running.step()
    running.finish()
    over = over_levels(running.run)
    assert over.points == ()
    assert str(over).endswith("has no levels of difficulty: nothing to measure above")
    assert over.found["reaches"] == []
