"""What is said of a gain: numbers worked out by hand, and intervals that hold the truth as often as they say."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from workbench.inspection import statistics
from workbench.inspection.statistics import (
    best_of_n,
    bootstrap_interval,
    detectable,
    majority,
    mcnemar,
    needed,
    pass_at_k,
    taught_or_sharpened,
)


def test_pass_at_k_by_hand():
    # 2 of 4 right: one try 1/2; two tries miss with 2/4 * 1/3 = 1/6; three cannot miss.
    assert pass_at_k(np.array([2, 0, 4]), 4) == pytest.approx(np.array([[1 / 2, 5 / 6, 1, 1], [0] * 4, [1] * 4]))


@pytest.mark.parametrize(("n", "right"), [(5, 2), (6, 1), (7, 6)])
def test_pass_at_k_is_the_share_of_all_draws_that_hold_a_right_one(n, right):
    flags = [place < right for place in range(n)]
    for k in range(1, n + 1):
        draws = list(itertools.combinations(flags, k))
        assert pass_at_k(np.array([right]), n)[0, k - 1] == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_is_unbiased():
    # Of prompts solved with 30 %: three tries hold a right one with 1 - 0.7^3 = 0.657.
    counts = np.random.default_rng(0).binomial(16, 0.3, size=20_000)
    assert pass_at_k(counts, 16)[:, 2].mean() == pytest.approx(1 - 0.7**3, abs=0.005)


def test_mcnemar_by_hand():
    # 8 fixed and 1 broken: 2 * (1 + 9) / 2^9 = 0.0390625. Prompts that did not change say nothing.
    before = np.array([False] * 8 + [True] + [True] * 50)
    after = np.array([True] * 8 + [False] + [True] * 50)
    assert mcnemar(before, after) == (8, 1, pytest.approx(0.0390625))
    assert mcnemar(after, before) == (1, 8, pytest.approx(0.0390625))
    assert mcnemar(before, before) == (0, 0, 1.0)


def test_majority_and_best_of_share_a_tie():
    answers = [["4", "4", "5"], ["4", "5", "6"], ["7", "7", "8"]]
    right = np.array([[True, True, False], [True, False, False], [False, False, True]])
    assert majority(answers, right) == pytest.approx([1, 1 / 3, 0])
    # The 4 is right though a function that asks for a format paid one of its two completions nothing.
    assert majority([["4", "4", "5"]], np.array([[False, True, False]])) == pytest.approx([1])
    assert best_of_n(np.array([[1.0, 2.0, 2.0], [0, 0, 3], [1, 2, 3]]), right) == pytest.approx([1 / 2, 0, 1])


def test_what_can_be_told_before():
    # Half the width of the interval: t(199 degrees of freedom) 1.971957 * sqrt(2 / 6 / 800) = 0.040252; times 2.80 / 1.96.
    assert detectable(200, 4) == pytest.approx(0.057503, abs=1e-6)
    assert detectable(800, 4) == pytest.approx(detectable(200, 4) / 2, rel=0.01)
    assert detectable(1, 4) == 1.0


def test_what_was_foretold_is_found_four_times_in_five():
    rng, found, gain = np.random.default_rng(0), [], detectable(200, 4)
    for _ in range(400):
        rates = rng.random(200)[:, None]
        before, after = (rng.random((200, 4)) < rates for _ in range(2))
        # The gain is laid on top, so that pass rates stay spread evenly.
        found.append(statistics.paired_difference(before, after + gain)[1] > 0)
    assert np.mean(found) == pytest.approx(0.8, abs=0.05)


def test_how_many_more_prompts_it_takes():
    # Differences 1 0 0 0: mean 0.25, std 0.5, t(3) 3.182446, half width 0.795612, times 2.80 / 1.96 1.136588;
    # (1.136588 / 0.25)^2 * 4 = 82.677, 4 are there.
    before, after = np.zeros((4, 1)), np.array([[1], [0], [0], [0]])
    assert needed(before, after) == math.ceil(82.677 - 4) == 79
    assert needed(after, before) == 79, "a loss takes as many"
    assert needed(before, before) is None
    assert needed(np.zeros((4, 1)), np.array([[1], [-1], [1], [-1 + 3e-17]])) is None, "what rounding leaves is no gain"
    assert needed(np.zeros((50, 1)), np.eye(50)[:, :1] + (np.arange(50) > 5)[:, None]) == 0


def solved(prompts: int, share: float, rate: int) -> np.ndarray:
    """[P, 16] bools: of this share of the prompts `rate` completions are right, of the others none."""
    flags = np.zeros((prompts, 16), dtype=bool)
    flags[: round(share * prompts), :rate] = True
    return flags


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (solved(80, 1.0, 4), solved(80, 1.0, 15), "sharpened"),
        (solved(80, 0.95, 4), solved(80, 1.0, 15), "sharpened"),  # +5 points, 0 to 10: not 10 for certain
        (solved(80, 1.0, 4), solved(80, 0.9, 15), "sharpened, and lost prompts"),  # -10 points, -17 to -3
        (solved(80, 1.0, 8), solved(80, 0.8, 15), "sharpened, and lost prompts"),
        (solved(80, 1.0, 4), solved(80, 0.98, 15), "sharpened"),  # -2 points, -6 to +1: chance
        (solved(80, 0.6, 4), solved(80, 0.9, 8), "taught"),
        (solved(400, 0.6, 16), solved(400, 0.65, 16), "taught"),  # all of a small gain is on new prompts
        (solved(80, 1.0, 4), solved(80, 1.0, 4), "cannot be told"),  # nothing rose
        (solved(80, 0.6, 8), solved(80, 0.3, 16), "cannot be told"),
        (solved(20, 1.0, 4), solved(20, 1.0, 15), "cannot be told"),  # 20 prompts alike leave 3/20 open
        (solved(80, 1.0, 4)[:, :8], solved(80, 1.0, 15)[:, :8], "cannot be told"),  # too few tries
        (solved(1, 1.0, 4), solved(1, 1.0, 15), "cannot be told"),
    ],
)
def test_taught_or_sharpened(before, after, verdict):
    found, why = taught_or_sharpened(before, after)
    assert found == verdict, why


def once(prompts: int, share: float, new: int) -> tuple[np.ndarray, np.ndarray]:
    """Base solves this share of the prompts just once; trained those and `new` more, 15 times of 16."""
    before = solved(prompts, share, 1)
    return before, solved(prompts, (before.any(axis=1).sum() + new) / prompts, 15)


def test_a_base_that_solves_prompts_just_once_may_solve_the_others_too():
    assert taught_or_sharpened(*once(100, 0.08, 49))[0] == "taught"  # 49 > 6 * 8
    word, why = taught_or_sharpened(*once(100, 0.08, 48))
    assert word == "cannot be told"
    assert why.endswith("; base's curve still rises: it solved 8 of them just once")


@pytest.mark.parametrize(("base", "trained"), [(0.05, 0.95), (0.02, 0.3), (0.05, 0.05)])
def test_a_base_that_solves_every_prompt_now_and_then_is_never_called_taught(base, trained):
    """With 5 % it solves 56 of 100 prompts in 16 tries and 96 in 64; with 2 %, 28 and 73."""
    rng = np.random.default_rng(0)
    found = [taught_or_sharpened(rng.random((80, 16)) < base, rng.random((80, 16)) < trained)[0] for _ in range(60)]
    assert found.count("taught") <= 1


def test_prompts_that_base_cannot_solve_are_taught():
    rng, found = np.random.default_rng(0), []
    for _ in range(60):
        rates = np.where(rng.random(80) < 0.4, 0, rng.random(80))[:, None]  # of the others, evenly
        found.append(taught_or_sharpened(rng.random((80, 16)) < rates, rng.random((80, 16)) < 0.9)[0])
    assert found.count("taught") >= 50


def test_an_interval_in_words_stays_within_what_can_be():
    assert statistics.in_points(-12.71, 12.71) == "-100 to +100"
    assert statistics.in_points(0.031, 0.118) == "+3 to +12"


def test_why_has_the_numbers():
    # 24 of 80 differ by 1: 0.3, std sqrt(80 / 79 * 0.21), t(79) 1.990450: half width 0.1026.
    _, why = taught_or_sharpened(solved(80, 0.6, 4), solved(80, 0.9, 8))
    assert why == "in 16 tries base solves 60% of the prompts, trained 90% (+30 points, +20 to +40)"


def test_a_bootstrap_of_the_same_values_is_that_value():
    low, high = bootstrap_interval(np.ones((2, 9)))
    assert (low == 1).all()
    assert (high == 1).all()
    assert bootstrap_interval(np.array([0.5])) == (0.5, 0.5)


@pytest.mark.parametrize(("after", "ends"), [(0.0, (0.0, -0.375, 0.375)), (1.0, (1.0, 0.625, 1.0))])
def test_prompts_that_all_differ_alike_leave_3_in_p_open(after, ends):
    assert statistics.share_gain(np.zeros((8, 2)), np.full((8, 2), after)) == pytest.approx(ends)


def test_prompts_that_differ_keep_students_interval():
    before, after = np.array([[0], [0], [0], [1]]), np.array([[1], [0], [1], [1]])
    assert statistics.share_gain(before, after) == statistics.paired_difference(before, after)


def test_the_bootstrap_is_bca():
    """Against the formula: percentiles moved by the bias and the acceleration, from the same resamples."""
    from scipy.stats import norm

    values = np.random.default_rng(1).exponential(size=40)
    rng, count = np.random.default_rng(0), 200_000
    means = np.concatenate([values[rng.integers(0, 40, (count // 20, 40))].mean(axis=1) for _ in range(20)])
    left_out = (values.sum() - values) / 39
    gaps = left_out.mean() - left_out
    acceleration = (gaps**3).sum() / (6 * (gaps**2).sum() ** 1.5)
    bias = norm.ppf((means < values.mean()).mean())
    moved = [norm.cdf(bias + (bias + z) / (1 - acceleration * (bias + z))) for z in norm.ppf([0.025, 0.975])]
    low, high = bootstrap_interval(values)
    assert (float(low), float(high)) == pytest.approx(tuple(np.quantile(means, moved)), abs=0.03)


@pytest.fixture(scope="module")
def experiments() -> tuple[np.ndarray, float]:
    """(2,000 evaluations of 100 prompts: mean differences [2000, 100] of 4 completions, the true gain)."""
    rng = np.random.default_rng(0)
    rates = rng.beta(0.7, 1.5, size=(2000, 100, 1))
    lifted = rates + 0.4 * (1 - rates) * (rng.random((2000, 100, 1)) < 0.5)
    before, after = ((rng.random((2000, 100, 4)) < own).mean(axis=2) for own in (rates, lifted))
    return after - before, 0.4 * 0.5 * (1 - 0.7 / 2.2)


def test_the_t_interval_holds_the_truth_as_often_as_it_says(experiments):
    differences, truth = experiments
    held = []
    for own in differences:
        _, low, high = statistics.paired_difference(np.zeros((100, 1)), own[:, None])
        held.append(low <= truth <= high)
    assert 0.93 <= np.mean(held) <= 0.97


def test_the_bootstrap_holds_the_truth_as_often_as_it_says(experiments):
    differences, truth = experiments
    low, high = bootstrap_interval(differences)
    assert low.shape == (2000,)
    assert 0.93 <= ((low <= truth) & (truth <= high)).mean() <= 0.97


def test_a_ratio_of_sums_by_hand():
    # Of four prompts 2, 1, 1 and 2 completions count, and 2, 0, 1 and 1 of those are right, four times over: 16 of 24.
    # Residuals 2/3, -2/3, 1/3, -1/3 over a mean of 1.5: squares add up to 1.97531, std (n - 1 = 15) 0.362888, standard error
    # 0.090722, t(15) 2.131450: half width 0.193369.
    among = np.array([[1, 1, 0], [0, 1, 0], [1, 0, 0], [1, 0, 1]] * 4, dtype=bool)
    right = np.array([[1, 1, 1], [1, 0, 0], [1, 0, 0], [1, 1, 0]] * 4, dtype=bool)  # outside of those, it does not matter
    expected = 2 / 3, 2 / 3 - 0.193369, 2 / 3 + 0.193369
    assert statistics.ratio_interval(right, among) == pytest.approx(expected, abs=1e-5)
    # a prompt without any of them tells nothing of the ratio
    right, among = (np.vstack([own, np.zeros((5, 3), dtype=bool)]) for own in (right, among))
    assert statistics.ratio_interval(right, among) == pytest.approx(expected, abs=1e-5)


def test_a_ratio_of_a_full_denominator_is_a_share():
    right = np.random.default_rng(0).random((40, 8)) < 0.4
    assert statistics.ratio_interval(right, np.ones_like(right)) == pytest.approx(statistics.share_interval(right))


def test_a_ratio_that_says_little():
    none, one, all_ = (np.zeros((8, 2), dtype=bool) for _ in range(3))
    one[0, 0], all_[:] = True, True
    assert statistics.ratio_interval(all_, none) is None
    assert statistics.ratio_interval(all_, one) == (1.0, 0.0, 1.0)
    assert statistics.ratio_interval(all_, all_) == (1.0, 0.625, 1.0)  # 3 / 8
    assert statistics.ratio_interval(none, all_) == (0.0, 0.0, 0.375)


def test_the_interval_of_a_ratio_holds_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    held = []
    for _ in range(2000):
        kept, right = rng.beta(0.5, 2, (64, 1)), rng.beta(1.5, 1, (64, 1))  # of each prompt, apart: 60 % are right
        _, low, high = statistics.ratio_interval(rng.random((64, 16)) < right, rng.random((64, 16)) < kept)
        held.append(low <= 0.6 <= high)
    assert 0.92 <= np.mean(held) <= 0.97
