"""The sequential test of a duel: its boundaries, p-values and error rate, by hand and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from workbench.instruments.duel.sequential import ERROR, FIRST, boundaries, compared


def solved(rate: float, prompts: int = 1000) -> np.ndarray:
    """[P]: so many more held-out prompts solved by the second arm."""
    return (np.arange(prompts) < round(rate * prompts)).astype(float)


def two_sided(t: float) -> float:
    """p of Student's t with 2 degrees of freedom, in closed form."""
    return 1 - t / math.sqrt(t**2 + 2)


def test_the_first_boundary_is_students_t():
    assert boundaries(3) == pytest.approx((4.3027,), abs=1e-4)  # the table's t, 2 degrees of freedom
    # with 6 pairs the first look, at 3 of 6, may spend 0.05 (1/2)^1.5 = 0.017678
    assert two_sided(boundaries(6)[0]) == pytest.approx(0.05 * 0.5**1.5)


@pytest.mark.parametrize("pairs", [4, 6, 10])
def test_each_look_spends_its_part_of_the_error_rate(pairs):
    values = np.random.default_rng(99).standard_normal((100_000, pairs))  # other sequences than the boundaries'
    open_ = np.ones(len(values), dtype=bool)
    for count, bound in zip(range(FIRST, pairs + 1), boundaries(pairs), strict=True):
        t = np.abs(stats.ttest_1samp(values[:, :count], 0.0, axis=1).statistic)
        open_ &= t < bound
        spent = ERROR * (count / pairs) ** 1.5
        assert 1 - open_.mean() == pytest.approx(spent, abs=4 * math.sqrt(spent / len(values)))


def test_a_look_by_hand():
    """Differences of 10, 20 and 30 points: mean 0.2, standard deviation 0.1, t = 0.2 / (0.1 / sqrt 3) = 3.464."""
    [look] = compared([np.array([solved(0.1), solved(0.2), solved(0.3)])], 3)
    assert look.p == pytest.approx(two_sided(2 * math.sqrt(3)))
    assert look.level == pytest.approx(0.05)
    assert (look.mean, look.low, look.high) == pytest.approx((0.2, 0.2 - 0.24842, 0.2 + 0.24842), abs=1e-4)
    assert not look.called
    [look] = compared([np.array([solved(0.18), solved(0.2), solved(0.22)])], 3)
    assert (look.called, look.pairs, look.needed) == (True, 3, None)
    assert look.low > 0


def test_before_the_third_pair_nothing_is_called():
    [look] = compared([np.ones((2, 50))], 6)
    assert not look.called
    assert math.isnan(look.low)


def test_pairs_that_agree_by_luck_spread_by_a_prompt_all_the_same():
    # One prompt of 32 more each time: they spread by a prompt, 1/32, though no two of them differ.
    [look] = compared([np.tile(solved(1 / 32, 32), (3, 1))], 3)
    assert look.p == pytest.approx(two_sided(math.sqrt(3)))
    assert not look.called
    [none] = compared([np.zeros((6, 32))], 6)
    assert (none.p, none.called, none.needed) == (1.0, False, None)


def test_what_is_called_stays_called():
    differences = [np.array([*(solved(each) for each in (0.3, 0.31, 0.3, 0.31)), -solved(0.9)])]
    [look] = compared(differences, 6)
    assert (look.called, look.pairs) == (True, 3)


def spread_around(mean: float) -> np.ndarray:
    """Six pairs of that mean difference, 10 points apart."""
    steps = (mean - 0.1, mean, mean + 0.1)
    return np.array([solved(own) if own >= 0 else -solved(-own) for own in steps] * 2)


def test_how_many_would_tell():
    """A difference of 0.8 of its spread: 15 pairs have 80 % power, by the noncentral t distribution."""
    differences = spread_around(0.07)
    [look] = compared([differences], 6)
    spread = differences.mean(axis=1).std(ddof=1)
    far = 0.07 / spread * math.sqrt(look.needed)
    power = stats.nct.sf(stats.t.ppf(0.975, look.needed - 1), look.needed - 1, far)
    assert power == pytest.approx(0.8, abs=0.03)


def test_a_difference_that_no_duel_would_tell_is_said_to_be_one():
    assert compared([spread_around(0.05)], 6)[0].needed is None  # half its spread: 34 pairs


def test_several_comparisons_share_the_error_rate_and_pass_it_on():
    """Holm: what is not called at a third of 5 % may be called once the others are."""
    clear, modest = (np.array([solved(each) for each in own]) for own in ((0.39, 0.4, 0.41), (0.14, 0.2, 0.26)))
    assert 0.05 / 3 < compared([modest], 3)[0].p < 0.05
    alone = compared([modest, modest, modest], 3)
    assert not any(look.called for look in alone)
    assert alone[0].level == pytest.approx(0.05 / 3)
    assert [look.called for look in compared([clear, modest, clear], 3)] == [True, True, True]


def duels_called(count: int, gain: float, prompts: int, spread: float, seed: int) -> float:
    """The share of so many duels of 6 pairs that were called: seeds differ, and prompts are solved by chance."""
    chance, called = np.random.default_rng(seed), 0
    for _ in range(count):
        rates = np.clip(chance.normal((0.5, 0.5 + gain), spread, (6, 2)), 0, 1)
        one, other = (chance.random((6, prompts)) < rates[:, [arm]] for arm in (0, 1))
        called += compared([other.astype(float) - one], 6)[0].called
    return called / count


@pytest.mark.parametrize(("prompts", "spread"), [(32, 0.1), (8, 0.0)], ids=["seeds differ", "ties"])
def test_equal_recipes_are_called_in_at_most_5_percent(prompts, spread):
    assert duels_called(1000, 0.0, prompts, spread, seed=1) <= ERROR + 3 * math.sqrt(ERROR / 1000)


def test_a_better_recipe_is_called():
    assert duels_called(300, 0.4, 32, 0.05, seed=2) >= 0.9
