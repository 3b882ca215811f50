"""Which rung: from counts by prompt, with hand-computed numbers."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest

from workbench.base.errors import DataError
from workbench.data.difficulty import Profile, Solved
from workbench.health.rung import RIGHT, which_rung
from workbench.inspection.measured import Evaluation, Measured


def counts(*right: int, of: int = 8) -> list[Solved]:
    return [Solved(each, of, of) for each in right]


@pytest.mark.parametrize(
    ("solved", "advised"),
    [
        (counts(*[0] * 32), "demonstrations"),
        (counts(4, *[0] * 31), "demonstrations"),  # one easy prompt
        (counts(1, 1, *[0] * 30), "warm start"),  # 6 % of the groups
        (counts(*[1] * 3, *[0] * 29), "warm start"),  # 9 %
        (counts(*[1] * 4, *[0] * 28), "GRPO"),  # 12.5 %
        (counts(*[3] * 32), "GRPO"),
        (counts(*[7] * 12, *[8] * 20), "stop"),  # right 95.3 % of the time
        (counts(*[7] * 13, *[8] * 19), "GRPO"),  # 94.9 %, and four groups in ten teach
        (counts(*[8] * 16, *[0] * 16), "stop"),  # solved always or never
        (counts(*[8] * 2, *[0] * 30), "stop"),  # likewise: no rare right one to train on
        (counts(7, 0, 0, 0), "demonstrations"),  # one prompt of few
    ],
)
def test_the_rung_is_the_first_that_the_rate_pays_for(solved, advised):
    rung = which_rung(solved)
    assert rung.name == advised
    assert rung.alive == pytest.approx(sum(0 < one.right < one.of for one in solved) / len(solved))
    assert rung.words.startswith(f"next rung: {advised};")
    assert ("warm_start" in rung.sets) == (advised not in ("GRPO", "stop"))
    assert str(rung) == rung.words


def test_groups_are_counted_for_the_size_that_is_trained():
    rung = which_rung([Solved(2, 100, 100)], num_generations=4)
    assert rung.alive == pytest.approx(1 - comb(98, 4) / comb(100, 4))


def test_a_budget_and_a_warm_start_before_change_the_advice():
    rare = counts(1, 1, *[0] * 30)  # of 256: 32 right ones take 4,096
    assert which_rung(rare, budget=4_000).name == "demonstrations"
    assert which_rung(rare, budget=4_100).name == "warm start"
    assert which_rung(rare, warmed=True).name == "expert iteration"
    assert f"samples: {RIGHT}, rounds" in which_rung(rare, warmed=True).sets
    assert "ideal=lambda" in which_rung(counts(0)).sets
    assert "ideal=lambda" not in which_rung(counts(0), ideal=True).sets


def test_a_profile_and_an_evaluation_are_read_as_what_they_measured():
    solved = {"a": Solved(1, 100, 100), "b": Solved(0, 100, 90)}
    assert which_rung(Profile({}, solved)) == which_rung([*solved.values()])
    played = which_rung(Profile({"played": True}, solved))
    assert (played.name, played.sets) == ("stop", "")
    flags = np.array([[True, False], [True, False]])
    after = Measured([["x", "y"]] * 2, flags, np.array([[True, True], [True, False]]), flags, flags * 1.0)
    evaluation = Evaluation(["p", "q"], after, after)
    assert evaluation.solved == [Solved(1, 2, 1)] * 2
    assert "of 4 completions 50.0 %" in which_rung(evaluation, num_generations=2).words


@pytest.mark.parametrize("of", [1, 2, 4])
@pytest.mark.parametrize("size", [8, 16])
def test_fewer_completions_than_a_group_do_not_make_rare_right_ones_common(of, size):
    """One of 256: even where all prompts are alike, 1 - (255/256)^G of the groups hold one at most, and a little more is the
    prior's."""
    solved = counts(1, *[0] * (256 // of - 1), of=of)
    assert which_rung(solved, num_generations=size).alive < 1.5 * (1 - (255 / 256) ** size)


def test_fewer_completions_than_a_group_tell_alike_prompts_from_unlike_ones():
    # half of 128 completions are right: each prompt half of the time, or half of the prompts always
    alike, unlike = counts(*[2] * 32, of=4), counts(*[4] * 16, *[0] * 16, of=4)
    assert which_rung(alike).alive > 0.9
    assert which_rung(unlike).alive < 0.1


def test_turns_have_no_warm_start():
    rung = which_rung(counts(1, 1, *[0] * 30), turns=True)
    assert (rung.name, rung.sets) == ("stop", "")


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (Profile({}, {}), "no completions"),
        ([Solved(0, 0, 0)], "no completions"),
        ("latest", "a str"),
        (None, "a NoneType"),
        ([Solved(1, 2, 2), "x"], "a list"),
    ],
)
def test_what_is_no_measurement_is_refused(measured, said):
    with pytest.raises(DataError, match=said):
        which_rung(measured)


def test_a_group_of_one_is_refused():
    with pytest.raises(DataError, match="num_generations = 1"):
        which_rung(counts(1), num_generations=1)
