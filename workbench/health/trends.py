"""Intervals for a run's numbers: shares, differences of shares, slopes.

At 99 % unless they say 95: verdicts are repeated at every step, so one in twenty would soon be
wrong. The formulas are scipy.stats' (a test compares them); written out, they are three hundred
times faster than `binomtest`, as a check at every step requires.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_Z, Z_95 = 2.5758, 1.9600  # of the normal distribution, 99 % and 95 %, two-sided
GAINED = 0.10  # of held-out prompts: where a gain of so many can be ruled out, there was none


class Interval(NamedTuple):
    """An estimate and its bounds."""

    value: float
    low: float
    high: float


def share(count: float, of: float, z: float = _Z) -> Interval:
    """A share with Wilson's interval; 0 to 1 where there is nothing to count."""
    if not of:
        return Interval(math.nan, 0.0, 1.0)
    value = count / of
    centre = (value + z**2 / (2 * of)) / (1 + z**2 / of)
    half = z * math.sqrt(value * (1 - value) / of + z**2 / (4 * of**2)) / (1 + z**2 / of)
    return Interval(value, max(0.0, centre - half), min(1.0, centre + half))


def change_of_share(before: tuple[float, float], after: tuple[float, float]) -> Interval:
    """How much a share rose, (count, of) each, with Newcombe's interval."""
    first, second = share(*before), share(*after)
    value = second.value - first.value
    below = math.hypot(second.value - second.low, first.high - first.value)
    above = math.hypot(second.high - second.value, first.value - first.low)
    return Interval(value, value - below, value + above)


def paired_difference(before: np.ndarray, after: np.ndarray) -> tuple[float, float, float]:
    """(mean, low, high) of after - before, [P, G] on the same prompts in the same order, with
    Student's 95 % t interval.

    Each prompt counts once, with the mean of its completions. ValueError if the prompts differ in
    number, or there are fewer than 2.
    """
    if len(before) != len(after) or len(before) < 2:
        raise ValueError(
            f"{len(before)} and {len(after)} prompts: give the same prompts to both, at least 2"
        )
    mean, half = t_interval(after.mean(axis=1) - before.mean(axis=1))
    return mean, mean - half, mean + half


def paired_gain(before: np.ndarray, after: np.ndarray) -> Interval:
    """`paired_difference`, never narrower than what P prompts leave open: 3 / P for something that
    none of them does.
    """
    mean, low, high = paired_difference(before, after)
    least = 3 / len(before)
    return Interval(mean, max(-1.0, min(low, mean - least)), min(1.0, max(high, mean + least)))


def paired_trend(measured: np.ndarray) -> Interval:
    """What P prompts gained from the first of M measurements [M, P] to the last, by least squares;
    as wide as `paired_gain`.
    """
    count, prompts = measured.shape
    places = np.arange(count) - (count - 1) / 2
    gained = places @ measured / (places**2).sum() * (count - 1)
    return paired_gain(np.zeros((prompts, 1)), gained[:, None])


def t_interval(values: np.ndarray) -> tuple[float, float]:
    """(mean, half the width of its 95 % t interval)."""
    return float(values.mean()), t_value(len(values)) * float(values.std(ddof=1)) / math.sqrt(
        len(values)
    )


def t_value(count: int) -> float:
    """Student's t for a mean of this many values, 95 %, two-sided."""
    from scipy.special import stdtrit

    return float(stdtrit(count - 1.0, 0.975))


def slope(values: Sequence[float]) -> Interval:
    """Change from one value to the next, by least squares; without bounds where there are fewer
    than three values.
    """
    from scipy.special import stdtrit

    count = len(values)
    if count < 3:
        return Interval(math.nan, -math.inf, math.inf)
    places, numbers = np.arange(count) - (count - 1) / 2, np.asarray(values, dtype=np.float64)
    spread = float((places**2).sum())
    value = float((places * numbers).sum()) / spread
    left = numbers - numbers.mean() - value * places
    half = float(stdtrit(count - 2.0, 0.995)) * math.sqrt(
        float((left**2).sum()) / (count - 2) / spread
    )
    return Interval(value, value - half, value + half)


def percent(share: float) -> str:
    """A share in words."""
    return f"{share:.0%}".replace("%", " %")


def two_digits(number: float) -> str:
    """An estimate, of which no more digits mean anything: 1,300."""
    return f"{float(f'{number:.2g}'):,g}"


def of_groups(count: int, groups: int) -> str:
    """A share of groups with its interval: `41 of 48 groups (68 to 94 %)`."""
    _, low, high = share(count, groups)
    return f"{count} of {groups} groups ({100 * low:.0f} to {percent(high)})"
