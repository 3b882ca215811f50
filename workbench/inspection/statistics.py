"""Statistics of a gain: intervals, tests, pass@k, and how many prompts it takes. Numbers in,
numbers out.

Prompts are the sample everywhere: completions of one prompt are not independent of one another. [P,
G]: P prompts, G completions.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Sequence

import numpy as np

from workbench.health.trends import paired_difference, paired_gain, t_interval, t_value

TRIES = 16  # completions a prompt below which "base never solves it" says little
MARGIN = 0.1  # of pass@n: a difference surely below it is none
# prompts that trained solves and base never, for each that base solved once: with fewer, more tries
# may do it, too
RISING = 6
# half widths of an interval: the gain that lies outside of it four times in five
POWER = (1.96 + 0.84) / 1.96
_SPREAD = 1 / 6  # mean of p (1 - p), pass rates spread evenly over 0 to 1
UNTOLD = "cannot be told"


def share_interval(values: np.ndarray) -> tuple[float, float, float]:
    """(share, low, high) of a [P, G] array of bools: the mean over prompts with its 95 % t
    interval, within 0 and 1.
    """
    if len(values) < 2:
        return float(values.mean()), 0.0, 1.0
    mean, half = t_interval(values.mean(axis=1))
    return mean, max(0.0, mean - half), min(1.0, mean + half)


def ratio_interval(counted: np.ndarray, among: np.ndarray) -> tuple[float, float, float] | None:
    """(share, low, high) of the completions `counted` among those that are `among`, [P, G] bools:
    a ratio of sums with its 95 % interval; None where there are none.

    Linearised over the prompts that have some: t of each prompt's residual, counted - share x
    among. Where no prompt differs, what P of them leave open: 3 / P; a single prompt leaves
    everything open.
    """
    own, of = (flags.sum(axis=1) for flags in (counted & among, among))
    own, of = own[of > 0], of[of > 0]
    if not len(of):
        return None
    share = float(own.sum() / of.sum())
    if len(of) < 2:
        return share, 0.0, 1.0
    _, half = t_interval((own - share * of) / of.mean())
    half = half if half > 1e-9 else 3 / len(of)  # what rounding leaves
    return share, max(0.0, share - half), min(1.0, share + half)


def bootstrap_interval(values: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """(low, high) of the mean over prompts, the last axis: BCa bootstrap, 95 %; where all are
    alike, that value.
    """
    from scipy import stats

    mean = values.mean(axis=-1)
    if values.shape[-1] < 2:
        return mean, mean
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        interval = stats.bootstrap(
            (values,),
            np.mean,
            vectorized=True,
            n_resamples=1999,
            batch=max(1, 4_000_000 // values.size),
            axis=-1,
            rng=np.random.default_rng(seed),
        ).confidence_interval
    return tuple(np.where(np.isnan(end), mean, end) for end in interval)


def share_gain(before: np.ndarray, after: np.ndarray) -> tuple[float, float, float]:
    """`paired_difference` of shares; where every prompt differs alike, which has no spread, what P
    prompts leave open: 3 / P.
    """
    mean, low, high = paired_difference(before, after)
    if high - low > 1e-9:  # what rounding leaves
        return mean, low, high
    least = paired_gain(before, after)
    return least.value, least.low, least.high


def mcnemar(before: np.ndarray, after: np.ndarray) -> tuple[int, int, float]:
    """(fixed, broken, p) for one answer per prompt, [P] bools: McNemar's exact test, two-sided."""
    from scipy import stats

    fixed, broken = int((after & ~before).sum()), int((before & ~after).sum())
    changed = fixed + broken
    return fixed, broken, float(stats.binomtest(fixed, changed).pvalue) if changed else 1.0


def pass_at_k(right: np.ndarray, n: int) -> np.ndarray:
    """[P, n]: pass@k for k = 1 to n, of prompts with `right` ([P]) of n completions right: 1 - C(n
    - right, k) / C(n, k).

    The unbiased estimate of Chen et al. (2021): the chance that k of the n, drawn without
    replacement, hold a right one.
    """
    drawn = np.arange(n)
    return 1 - np.cumprod(np.clip(n - right[:, None] - drawn, 0, None) / (n - drawn), axis=1)


def majority(answers: Sequence[Sequence[Hashable]], right: np.ndarray) -> np.ndarray:
    """[P]: whether each prompt's most frequent answer is right, in any completion; of several, the
    share that are. None is no answer, and has no vote.
    """
    counts = [[own.count(answer) * (answer is not None) for answer in own] for own in answers]
    paid = [
        [(answer, True) in {*zip(own, flags)} for answer in own]
        for own, flags in zip(answers, right.tolist())
    ]
    return best_of_n(np.array(counts), np.array(paid))


def best_of_n(total: np.ndarray, right: np.ndarray) -> np.ndarray:
    """[P]: whether the completion with the highest reward is right; of several with that reward,
    the share that are.
    """
    best = total == total.max(axis=1, keepdims=True)
    return (best & right).sum(axis=1) / best.sum(axis=1)


def detectable(prompts: int, samples: int) -> float:
    """The gain that is detected with 80 % power, at most 1: for pass rates spread evenly over 0 to
    1.
    """
    if prompts < 2:
        return 1.0
    return min(1.0, POWER * t_value(prompts) * math.sqrt(2 * _SPREAD / (prompts * samples)))


def needed(before: np.ndarray, after: np.ndarray) -> int | None:
    """About how many more prompts detect the observed gain, [P, G], with 80 % power; 0: these do;
    None: no gain observed.
    """
    mean, low, high = paired_difference(before, after)
    if abs(mean) < 1e-9:  # what rounding leaves
        return None
    if low * high > 0:
        return 0
    # The interval's half width falls with the square root of the number of prompts.
    return math.ceil(len(before) * ((POWER * (mean - low) / mean) ** 2 - 1))


def in_points(low: float, high: float) -> str:
    """The interval of a difference of shares in words, within -100 to +100 points: "+3 to +12"."""
    return " to ".join(f"{100 * min(1.0, max(-1.0, end)):+.0f}" for end in (low, high))


def taught_or_sharpened(before: np.ndarray, after: np.ndarray) -> tuple[str, str]:
    """(verdict, why) of [P, n] bools, from the 95 % t intervals of the paired differences of pass@1
    and pass@n.

    "cannot be told" unless pass@1 rose (its interval lies above 0), with at least 16 completions
    per prompt, and 2 prompts. "sharpened": base's pass@n is as good: the difference's upper end,
    taken as at least 3 / P (what P prompts without one difference leave open), is at most 10
    points, and half the gain of pass@1. With "and lost prompts" where it lies below 0. "taught":
    trained's pass@n is above base's (the interval lies above 0), by more than 6 prompts for each
    that base solved just once. A base that solves prompts once in 6 n tries would leave as many
    unsolved: its curve still rises.
    """
    prompts, n = before.shape
    if n < TRIES or prompts < 2:
        return (
            UNTOLD,
            f"that takes {TRIES} completions per prompt or more",
        )
    gain, rose, _ = paired_difference(before, after)
    old, new = (np.asarray(right.any(axis=1, keepdims=True)) for right in (before, after))
    more, low, high = paired_difference(old, new)
    why = f"in {n} tries base solves {old.mean():.0%} of the prompts, trained {new.mean():.0%}"
    why += f" ({100 * more:+.0f} points, {in_points(low, high)})"
    if rose > 0 and max(high, 3 / prompts) <= min(MARGIN, gain / 2):
        return "sharpened, and lost prompts" if high < 0 else "sharpened", why
    if rose <= 0 or low <= 0:
        return UNTOLD, why
    once = int((before.sum(axis=1) == 1).sum())
    if more * prompts <= RISING * once:
        why += f"; base's curve still rises: it solved {once} of them just once"
        return UNTOLD, why
    return "taught", why
