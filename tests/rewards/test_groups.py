"""Group statistics and advantages, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from workbench.rewards.groups import (
    advantages,
    attribution,
    batch_advantages,
    batch_of,
    cancel_words,
    cancelling,
    dead_kinds,
    explain_in,
)  # fmt: skip


def batched(scores, weights, size, texts=None, right=None, **settings):
    count, functions = np.shape(scores)
    right = [False] * count if right is None else right
    return batch_of(list("abc")[:functions], weights, scores, texts or ["text"] * count, right, size, **settings)


def one(rewards, **kwargs):
    return batch_advantages(np.array(rewards, dtype=float)[:, None], [1.0], len(rewards), **kwargs)


def test_the_blog_example():
    # Rewards 0.5 0.9 0.6 0.4: mean 0.6; deviations -0.1 0.3 0 -0.2; sum of squares 0.14; /3 = 0.046667; root 0.216025.
    groups = one([0.5, 0.9, 0.6, 0.4])
    assert groups.means == pytest.approx([0.6] * 4)
    assert groups.stds == pytest.approx([0.2160247] * 4)
    # Divided by 0.216025 + 0.0001.
    assert groups.advantages == pytest.approx([-0.462695, 1.388085, 0.0, -0.925390], abs=1e-5)


REWARDS = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([0.0, 1.0, 0.1, math.nan]))


@example([-0.0], "group")
@given(st.lists(REWARDS, min_size=1, max_size=300), st.sampled_from(["group", "batch", "none", True, False]))
def test_the_plain_formula_is_the_trainers_bit_for_bit(rewards, scale_rewards):
    """`wb.advantages`, which is written to be read, against the one that trains, records and replays; 0 has one sign here."""
    trained = one(rewards, scale_rewards=scale_rewards).advantages
    assert (advantages(rewards, scale_rewards) + 0.0).tobytes() == (trained + 0.0).tobytes()


@pytest.mark.parametrize("how", ["groups", "", None])
def test_an_unknown_scaling_is_refused_by_both(how):
    for compute in (advantages, one):
        with pytest.raises(ValueError, match="scale_rewards = "):
            compute([1.0, 0.0], scale_rewards=how)


def test_without_scaling_it_is_the_plain_difference():
    assert one([0.5, 0.9, 0.6, 0.4], scale_rewards="none").advantages == pytest.approx([-0.1, 0.3, 0.0, -0.2])
    assert one([0.5, 0.9, 0.6, 0.4], scale_rewards=False).advantages == pytest.approx([-0.1, 0.3, 0.0, -0.2])


@pytest.mark.parametrize("rewards", [[0.0] * 4, [1.0] * 4])
def test_a_dead_group_has_no_advantage(rewards):
    assert one(rewards).advantages.tolist() == [0.0] * 4


def test_scaling_all_rewards_changes_nothing_but_the_epsilon():
    assert one([0, 0, 10, 0]).advantages == pytest.approx(one([0, 0, 1, 0]).advantages, abs=1e-3)


def test_weights_and_two_groups():
    # Weights 2 and 1; totals 2 1 | 3 0: means 1.5 | 1.5; stds 0.70711 | 2.12132.
    scores = np.array([[1, 0], [0, 1], [1, 1], [0, 0]], dtype=float)
    groups = batch_advantages(scores, [2.0, 1.0], 2)
    assert groups.totals.tolist() == [2, 1, 3, 0]
    assert groups.advantages == pytest.approx([0.5 / 0.7072068, -0.5 / 0.7072068, 1.5 / 2.1214203, -1.5 / 2.1214203])


def test_batch_scaling_divides_by_the_std_of_all():
    scores = np.array([[2.0], [1.0], [3.0], [0.0]])
    groups = batch_advantages(scores, [1.0], 2, scale_rewards="batch")
    batch_std = math.sqrt((0.25 + 0.25 + 2.25 + 2.25) / 3)
    assert groups.advantages == pytest.approx(np.array([0.5, -0.5, 1.5, -1.5]) / (batch_std + 1e-4))


def test_a_completion_that_no_function_scored_is_left_out():
    nan = math.nan
    groups = batch_advantages(np.array([[1.0], [nan], [3.0], [2.0]]), [1.0], 4)
    assert groups.means == pytest.approx([2.0] * 4)
    assert groups.advantages[1] == 0.0
    assert groups.advantages[0] == pytest.approx(-1 / 1.0001)


def test_a_function_that_does_not_apply_adds_nothing():
    groups = batch_advantages(np.array([[1.0, math.nan], [1.0, 2.0]]), [1.0, 1.0], 2)
    assert groups.totals.tolist() == [1.0, 3.0]


def test_normalize_then_sum():
    # Each function is normalised within the group, then summed, then normalised over the batch.
    scores = np.array([[0.0, 10.0], [1.0, 30.0]])
    groups = batch_advantages(scores, [1.0, 1.0], 2, aggregation="normalize_then_sum")
    first = 0.5 / (math.sqrt(0.5) + 1e-4) + 10 / (math.sqrt(200) + 1e-4)
    assert groups.advantages == pytest.approx(np.array([-first, first]) / (math.sqrt(2) * first + 1e-4))


@pytest.mark.parametrize(
    "bad",
    [{"scale_rewards": "twice"}, {"aggregation": "product"}, {"num_generations": 3}],
    ids=["scale", "aggregation", "size"],
)
def test_bad_settings_are_named(bad):
    with pytest.raises(ValueError, match=str(next(iter(bad.values())))):
        batch_advantages(np.zeros((4, 1)), [1.0], **{"num_generations": 2, **bad})


def test_dead_groups():
    scores = np.array([0, 0, 1, 1, 0, 1, 3, 1], dtype=float)[:, None]  # groups 00 11 01 31
    assert batched(scores, [1.0], 2).dead.tolist() == [True, True, False, False]
    right = [False, False, True, True, False, True, True, True]
    shares = batch_of(["a"], [1.0], scores, ["text"] * 8, right, 2).shares
    assert shares == {"mixed": 0.25, "all right": 0.5, "all wrong": 0.25, "dead": 0.5}


SETTINGS = [
    {"scale_rewards": "group"},
    {"scale_rewards": "batch"},
    {"scale_rewards": "none"},
    {"aggregation": "normalize_then_sum"},
]


def drawn(seed, prompts=6, generations=4, functions=3):
    """Scores with dead groups, functions that do not apply, and completions that nobody scored."""
    draw = np.random.default_rng(seed)
    scores = draw.choice([0.0, 0.25, 1.0, 2.0], size=(prompts * generations, functions))
    scores[draw.random(scores.shape) < 0.15] = math.nan
    scores[draw.random(len(scores)) < 0.1] = math.nan
    scores[:generations] = 0.3
    return scores


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("seed", range(20))
def test_contributions_add_up_to_the_advantage(seed, settings):
    scores, weights = drawn(seed), [1.0, 0.5, -2.0]
    expected = batch_advantages(scores, weights, 4, **settings).advantages
    assert attribution(batched(scores, weights, 4, **settings)).contributions.sum(axis=1) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_shares_add_up_to_one_and_dead_groups_have_none(settings):
    scores = drawn(3)
    found = attribution(batched(scores, [1.0, 0.5, -2.0], 4, **settings))
    assert np.isnan(found.shares[0]).all()
    assert found.deciders[0] == -1
    alive = found.deciders >= 0
    assert alive.any()
    assert found.shares[alive].sum(axis=1) == pytest.approx(1.0)


def test_the_function_that_decides_by_hand():
    # Weighted deviations: first -1 1, second 0.25 -0.25; sums -0.75 0.75. Shares 1/0.75 and -0.25/0.75.
    scores = np.array([[0.0, 0.5], [2.0, 0.0]])
    found = attribution(batched(scores, [1.0, 1.0], 2, scale_rewards="none"))
    assert found.contributions.tolist() == [[-1.0, 0.25], [1.0, -0.25]]
    assert found.shares[0] == pytest.approx([4 / 3, -1 / 3])
    assert found.deciders.tolist() == [0]


def test_rounding_does_not_choose_between_functions_that_say_the_same():
    scores = np.array([[0.1, 0.3, 0.0], [0.7, 0.9, 0.0], [0.2, 0.4, 0.1]])
    both = [attribution(batched(scores[:, order], [1.0, 1.0, 1.0], 3)).deciders.tolist() for order in ([0, 1, 2], [1, 0, 2])]
    assert both == [[0], [0]]


def test_why_a_group_is_dead():
    nan = math.nan
    scores = np.array([1, 1, 1, 1, 0, 0, 0.5, 0.5, nan, nan, 0, 1])[:, None]
    right = [True] * 4 + [False] * 2 + [True, False] + [False] * 4
    texts = ["same", "same", *"abcdefghij"]
    assert dead_kinds(batched(scores, [1.0], 2, texts, right)) == [
        "identical texts", "all right", "all wrong", "same score", "not scored", None,
    ]  # fmt: skip


def test_functions_that_cancel_are_named_with_what_they_give_and_take():
    """trl#3857: each function tells the completions apart, and their totals do not."""
    names, weights = ["format_reward", "length_reward", "right_reward"], [1.0, 2.0, 1.0]
    scores = np.array([[2, -1, 1], [0, 0, 1], [2, -1, 1], [0, 0, 1], [2, 0, 1], [0, 0, 1], [2, 0, 1], [0, 0, 1]])
    batch = batch_of(names, weights, scores, list("abcdefgh"), [True] * 8, 4)
    assert dead_kinds(batch) == ["functions cancel", None]
    assert cancelling(batch, 0) == (("format_reward", 2.0), ("length_reward", -2.0))
    found = explain_in(batch, 0)
    assert found.verdict == "dead: format_reward +2 and length_reward -2 cancel, so nothing is learnt from this group"
    assert (explain_in(batch, 1).cancels, explain_in(batch, 1).decider) == ((), "format_reward")
    # One function alone cannot, whatever its weight; nor can one that gave no score; three can.
    alone = batch_of(names, [0.0, 2.0, 0.0], np.array([[2, 1, 0], [0, 1, 1.0]]), ["x", "y"], [True, True], 2)
    assert dead_kinds(alone) == ["all right"]
    three = batch_of(names, [1.0] * 3, np.array([[3, math.nan, 0], [0, 1, 2]]), ["x", "y"], [True, False], 2)
    assert dead_kinds(three) == ["functions cancel"]
    assert cancel_words(cancelling(three, 0)) == "format_reward +3, length_reward -1 and right_reward -2"


def test_equal_totals_can_hide_unequal_advantages_where_functions_are_normalised_first():
    scores = np.array([[0.0, 2.0], [1.0, 0.0]])  # totals 2 2; z-scores -+0.7 and +-0.7, of which the first counts twice
    assert batched(scores, [2.0, 1.0], 2).dead.tolist() == [True]
    normalised = batched(scores, [2.0, 1.0], 2, aggregation="normalize_then_sum")
    assert normalised.dead.tolist() == [False]
    assert normalised.shares["dead"] == 0, "notebook 03 prints these"
    assert attribution(normalised).deciders.tolist() == [0]


def test_explain_says_who_decided():
    names = ["right_reward", "length_reward"]
    scores = np.array([[1, 0], [1, 0], [1, 0.5], [1, 0.0]])
    batch = batch_of(names, [2.0, 1.0], scores, list("abcd"), [True] * 4, 2)
    found = explain_in(batch, 1)
    assert (found.decider, found.dead) == ("length_reward", None)
    assert found.verdict == "length_reward decided this group: 100% of the advantages' variance"
    assert found.totals.tolist() == [2.5, 2.0]
    assert found.contributions.sum(axis=1) == pytest.approx(found.advantages)
    assert list(found.by_scale) == ["group", "batch", "none"]
    assert found.by_scale["batch"][0] == pytest.approx(0.25 / (0.25 + 1e-4))
    dead = explain_in(batch)
    assert dead.verdict == "dead (all right): nothing is learnt from this group"
    with pytest.raises(IndexError):
        explain_in(batch, 2)
