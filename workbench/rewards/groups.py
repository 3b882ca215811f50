"""Groups and advantages: what a step learns from. A group is the G completions of one prompt.

The arithmetic is that of trl 1.14.2's `GRPOTrainer` (`_generate_and_score_completions`), in numpy,
so that it can be shown, recorded and replayed without a trainer; a test compares it with the
running trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from workbench.base.errors import RewardError
from workbench.base.kinds import Fields
from workbench.run.batch import NO_SPREAD, Groups, ScoredBatch

EPSILON = 1e-4  # added by TRL to the std before dividing
SCALES = ("group", "batch", "none")
AGGREGATIONS = ("sum_then_normalize", "normalize_then_sum")

IDENTICAL, ALL_RIGHT, ALL_WRONG = "identical texts", "all right", "all wrong"
SAME_SCORE, NOT_SCORED, CANCELLED = "same score", "not scored", "functions cancel"
DEAD_KINDS = (IDENTICAL, ALL_RIGHT, ALL_WRONG, SAME_SCORE, NOT_SCORED, CANCELLED)


def advantages(rewards: Sequence[float], scale_rewards: str | bool = "group") -> np.ndarray:
    """The advantage of each completion of a group: how much better its reward was than the group's
    mean, in units of its std.

    A_i = (r_i - mean(r)) / (std(r) + 1e-4), as TRL computes it, with the Bessel-corrected std.

    Args:
        rewards: [G]; NaN for a completion to which no reward function applied, whose advantage is
            0.
        scale_rewards: "group" (or "batch", the same for one group) divides by the std, "none" by
            nothing.

    >>> wb.advantages([0.5, 0.9, 0.6, 0.4]).round(2).tolist()
    [-0.46, 1.39, 0.0, -0.93]
    >>> wb.advantages([1.0, 1.0, 1.0, 1.0]).tolist()  # a dead group
    [0.0, 0.0, 0.0, 0.0]
    """
    rewards_G = np.asarray(rewards, dtype=float)
    if rewards_G.ndim != 1 or not len(rewards_G):
        raise RewardError(
            f"rewards of shape {list(rewards_G.shape)}",
            rule="the rewards of one group are a list of numbers",
            remedy="call it once for each group, or score(...).advantages",
        )
    applied = np.sum(~np.isnan(rewards_G))
    mean = np.nansum(rewards_G) / max(applied, 1)
    advantages_G = rewards_G - mean
    if _scale(scale_rewards) != "none":
        std = np.sqrt(np.nansum(advantages_G**2) / max(applied - 1, 1))
        advantages_G = advantages_G / (std + EPSILON)
    return np.nan_to_num(advantages_G, nan=0.0)


# Below: the same for a whole batch of several functions, in 32 or 64 bits.
# tests/rewards/test_groups.py holds the one above equal to it, bit for bit.


def batch_advantages(
    scores: np.ndarray,
    weights: Sequence[float],
    num_generations: int,
    scale_rewards: str | bool = "group",
    aggregation: str = "sum_then_normalize",
) -> Groups:
    """Scores [B, F] of B completions, in groups of G, by F functions -> totals, group statistics
    and advantages.

    ValueError if B is not a multiple of G, or a setting is unknown.

    Args:
        scores: NaN where a function did not apply. Given in 32 bits, everything is computed in 32
            bits, as in TRL.
        scale_rewards: "group" (or True) divides by the group's std, "batch" by the batch's, "none"
            (or False) by nothing.
        aggregation: TRL's `multi_objective_aggregation`.
    """
    weighed = _weighed(scores, weights, num_generations, scale_rewards, aggregation)
    sums, size = weighed.sums_B, weighed.size
    nothing = np.isnan(weighed.scores_BF).all(axis=1)
    totals = np.where(nothing, np.nan, np.nansum(weighed.scores_BF * weighed.weights_F, axis=1))
    result = (sums - _by_block(nan_mean, sums, size)) / weighed.spread_B
    means = _by_block(nan_mean, totals, num_generations)
    stds = _by_block(_std, totals, num_generations)
    return Groups(totals, means, stds, np.nan_to_num(result, nan=0.0))


class _Weighed(NamedTuple):
    """What advantages are made of: each sum, less the mean of its block of `size` completions, by
    the spread.
    """

    scores_BF: np.ndarray
    weights_F: np.ndarray
    terms_BF: np.ndarray  # weighted scores, or z-scores
    sums_B: np.ndarray  # of the terms; NaN where no function applied
    size: int
    spread_B: np.ndarray | float


def _scale(scale_rewards: str | bool) -> str:
    scale = {True: "group", False: "none"}.get(scale_rewards, scale_rewards)
    if scale not in SCALES:
        raise ValueError(f"scale_rewards = {scale_rewards!r}: must be 'group', 'batch' or 'none'")
    return scale


def _weighed(
    scores: np.ndarray,
    weights: Sequence[float] | np.ndarray,
    num_generations: int,
    scale_rewards: str | bool,
    aggregation: str,
    batches: int = 1,
) -> _Weighed:
    single = getattr(scores, "dtype", None) == np.float32
    scores = np.asarray(scores, dtype=np.float32 if single else np.float64)
    weights = np.asarray(weights, dtype=scores.dtype)
    scale = _scale(scale_rewards)
    if aggregation not in AGGREGATIONS:
        known = " or ".join(map(repr, AGGREGATIONS))
        raise ValueError(f"multi_objective_aggregation = {aggregation!r}: must be {known}")
    size = num_generations
    if len(scores) % size:
        raise ValueError(
            f"{len(scores)} completions are not a multiple of num_generations = {size}"
        )
    values, whole = scores, max(1, len(scores) // batches)
    # z-scores of each function within the group; their sums, within the batch
    if aggregation == "normalize_then_sum":
        mean, std = _by_block(nan_mean, scores, size), _by_block(_std, scores, size)
        values = (scores - mean) / (std + EPSILON)
        size, scale = whole, "batch"
    terms = values * weights
    sums = np.where(np.isnan(scores).all(axis=1), np.nan, np.nansum(terms, axis=1))
    spread = 1.0
    if scale != "none":
        spread = _by_block(_std, sums, whole if scale == "batch" else size) + EPSILON
    return _Weighed(scores, weights, terms, sums, size, spread)


def _by_block(
    statistic: Callable[[np.ndarray], np.ndarray], values: np.ndarray, size: int
) -> np.ndarray:
    return np.repeat(statistic(values.reshape(-1, size, *values.shape[1:])), size, axis=0)


def nan_mean(values: np.ndarray, axis: int = 1) -> np.ndarray:
    """Mean of the values that are there, in their precision; NaN where none is."""
    count = np.sum(~np.isnan(values), axis=axis, dtype=values.dtype)
    return np.where(count > 0, np.nansum(values, axis=axis) / np.maximum(count, 1), np.nan)


def _std(values: np.ndarray) -> np.ndarray:
    # Bessel-corrected over the values that are there, as in TRL's nanstd.
    count = np.sum(~np.isnan(values), axis=1, dtype=values.dtype)
    total = np.nansum((values - nan_mean(values)[:, None]) ** 2, axis=1)
    return np.where(count > 0, np.sqrt(total / np.maximum(count - 1, 1)), np.nan)


def dead_kinds(batch: ScoredBatch) -> list[str | None]:
    """Why each of the P groups is dead, one of `DEAD_KINDS` (the plainest reason first); None for a
    group that is not.
    """

    size = batch.num_generations
    whole_P = np.isfinite(batch.groups.means[::size])
    cancels_P = whole_P & ((_differ(batch) > NO_SPREAD).sum(axis=1) > 1)

    def kind(index: int) -> str:
        group = slice(index * size, (index + 1) * size)
        if np.isnan(batch.totals[group]).all():
            return NOT_SCORED
        if len(set(batch.completions[group])) == 1:
            return IDENTICAL
        if cancels_P[index]:
            return CANCELLED
        known = np.ma.compressed(batch.right[group])
        if len(known) and known.all():
            return ALL_RIGHT
        return ALL_WRONG if len(known) and not known.any() else SAME_SCORE

    return [kind(index) if dead else None for index, dead in enumerate(batch.dead)]


def _differ(batch: ScoredBatch) -> np.ndarray:
    # [P, F] how far apart a function's weighted scores lie within each group. None counts as 0, as
    # in the sum.
    terms = np.nan_to_num(batch.scores * batch.weights, posinf=0.0, neginf=0.0)
    return np.ptp(terms.reshape(-1, batch.num_generations, len(batch.names)), axis=1)


def cancelling(batch: ScoredBatch, index: int) -> tuple[tuple[str, float], ...]:
    """(function, weighted difference) for those that cancel in a group, gains first: between the
    completions that the first of these functions scores highest and lowest. The differences sum to
    0.
    """
    group = batch.group(index)
    terms_GF = np.nan_to_num(group.scores * group.weights)
    first_G = terms_GF[:, int((_differ(group)[0] > NO_SPREAD).argmax())]
    between_F = terms_GF[first_G.argmax()] - terms_GF[first_G.argmin()]
    pairs = zip(batch.names, between_F)
    cancels = [(name, float(f"{by:.3g}")) for name, by in pairs if abs(by) > NO_SPREAD]
    return tuple(sorted(cancels, key=lambda pair: -pair[1]))


def cancel_words(differences: Sequence[tuple[str, float]]) -> str:
    """Those as text: "format_reward +2 and length_reward -2"."""
    *others, last = [f"{name} {by:+g}" for name, by in differences]
    return f"{', '.join(others)} and {last}"


class Attribution(NamedTuple):
    """Which function made the advantages what they are; B = P * G completions, F functions."""

    contributions: np.ndarray  # [B, F]; rows add up to the advantages
    # [P, F] of the group's advantage variance; rows add up to 1, NaN in a dead group
    shares: np.ndarray
    deciders: np.ndarray  # [P] index of the function with the largest share; -1 in a dead group


def attribution(batch: ScoredBatch, scale_rewards: str | bool | None = None) -> Attribution:
    """Attribute a batch's advantages to the functions, under its own or another scaling.

    Exact, as the advantage is linear in the functions for a given spread. A function that does not
    apply counts as 0, as in TRL's sum. A function's share is the covariance of what it adds with
    the advantage, over the advantage's variance: negative where it pulled against the others and
    lost; another's share is then above 1.
    """
    scale = batch.scale_rewards if scale_rewards is None else scale_rewards
    size = batch.num_generations
    settings = size, scale, batch.aggregation, 1 + len(batch.later)
    weighed = _weighed(batch.scores, batch.weights, *settings)
    terms_BF = np.where(np.isnan(weighed.terms_BF), 0.0, weighed.terms_BF)
    terms_BF[np.isnan(weighed.sums_B)] = np.nan
    centred_BF = terms_BF - _by_block(nan_mean, terms_BF, weighed.size)
    parts_BF = np.nan_to_num(centred_BF / np.reshape(weighed.spread_B, (-1, 1)), nan=0.0)
    parts_PGF = parts_BF.reshape(-1, size, len(batch.names))
    whole_PG = parts_PGF.sum(axis=2)
    whole_PG = whole_PG - whole_PG.mean(axis=1, keepdims=True)
    dead_P = batch.dead
    variance_P = np.where(dead_P, np.nan, (whole_PG**2).sum(axis=1))
    shares_PF = np.einsum("pgf,pg->pf", parts_PGF, whole_PG) / variance_P[:, None]
    # Two functions that say the same share evenly but for rounding, and that must not choose
    # between them.
    deciders_P = np.where(dead_P, -1, np.nan_to_num(shares_PF).round(9).argmax(axis=1))
    return Attribution(parts_BF, shares_PF, deciders_P)


@dataclass(frozen=True)
class ExplainedGroup:
    """One group, with where its advantages come from. G completions, F functions."""

    names: list[str]
    weights: list[float]
    texts: list[str]
    scores: np.ndarray  # [G, F], NaN where a function did not apply
    totals: np.ndarray  # [G]
    mean: float
    std: float
    advantages: np.ndarray  # [G] under the settings that were asked for
    by_scale: dict[str, np.ndarray]  # scale_rewards -> [G]
    contributions: np.ndarray  # [G, F]; rows add up to `advantages`
    shares: np.ndarray  # [F], NaN in a dead group
    decider: str | None  # the function with the largest share; None in a dead group
    dead: str | None  # one of DEAD_KINDS; None if something is learnt from the group
    labels: tuple[str, ...] = ()  # [G] what the views call the completions; empty: their numbers
    # as `cancelling` has them, in a group that is dead by that
    cancels: tuple[tuple[str, float], ...] = ()

    @property
    def verdict(self) -> str:
        """One sentence: which function decided the group, or why it teaches nothing."""
        if self.cancels:
            words = cancel_words(self.cancels)
            return f"dead: {words} cancel, so nothing is learnt from this group"
        if self.decider is None:
            return f"dead ({self.dead}): nothing is learnt from this group"
        order = np.argsort(-self.shares, kind="stable")[1:]
        others = ", ".join(
            f"{self.names[f]} {self.shares[f]:.0%}" for f in order if abs(self.shares[f]) >= 0.005
        )
        rest = f" ({others})" if others else ""
        share = f"{max(self.shares):.0%} of the advantages' variance{rest}"
        return f"{self.decider} decided this group: {share}"

    def __str__(self) -> str:
        return self.verdict


def batch_of(
    names: Sequence[str],
    weights: Sequence[float],
    scores: object,
    completions: Sequence[str],
    right: Sequence[bool] | np.ndarray,  # masked: nothing says
    num_generations: int,
    scale_rewards: str | bool = "group",
    aggregation: str = "sum_then_normalize",
    **more: object,
) -> ScoredBatch:
    """A batch from its scores, [B, F], with its totals and advantages; `more` is for
    `ScoredBatch`.
    """
    scores = np.asarray(scores, dtype=np.float64)
    groups = batch_advantages(scores, weights, num_generations, scale_rewards, aggregation)
    given: Fields = {
        "step": 0,
        "prompts": [""] * len(scores),
        "columns": {},
        "lengths": np.zeros(len(scores), int),
        "names": list(names),
        "weights": [float(weight) for weight in weights],
        "completions": list(completions),
        "right": np.ma.asarray(right, dtype=bool),
        "num_generations": num_generations,
        "scale_rewards": scale_rewards,
        "aggregation": aggregation,
        **more,
    }
    return ScoredBatch(scores=scores, groups=groups, **given)


def explain_in(batch: ScoredBatch, index: int = 0) -> ExplainedGroup:
    """A group's scores, its advantages under every scaling, and the function that decided it;
    IndexError if there is none.
    """
    if not 0 <= index < batch.group_count:
        raise IndexError(f"group {index} of {batch.group_count}")
    size, attributed, group = batch.num_generations, attribution(batch), batch.group(index)
    own = slice(index * size, (index + 1) * size)
    decider = int(attributed.deciders[index])
    dead = dead_kinds(batch)[index]
    return ExplainedGroup(
        names=batch.names,
        weights=batch.weights,
        texts=group.completions,
        scores=group.scores,
        totals=group.totals,
        mean=float(group.groups.means[0]),
        std=float(group.groups.stds[0]),
        advantages=group.advantages,
        by_scale={
            scale: batch_advantages(batch.scores, batch.weights, size, scale).advantages[own]
            for scale in SCALES
        },
        contributions=attributed.contributions[own],
        shares=attributed.shares[index],
        decider=batch.names[decider] if decider >= 0 else None,
        dead=dead,
        cancels=cancelling(batch, index) if dead == CANCELLED else (),
    )
