"""What one generation batch looked like, in a few dozen numbers: what the verdicts on a run are read off."""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from workbench.errors import RunError
from workbench.rewards.groups import DEAD_KINDS, IDENTICAL, attribution, dead_kinds
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.run.metrics import ALL_RIGHT, ALL_WRONG, DEAD, GROUP_STD, MIXED
from workbench.run.rollouts import parts, read_part

MOST_GROUPS = 64  # of a batch that are kept one by one, so that a summary stays small
LONGEST_TEXT = 80  # characters of the commonest completion


class FunctionSummary(NamedTuple):
    """One reward function in one batch. Scores are unweighted; None where no completion has one."""

    name: str
    weight: float
    mean: float | None
    low: float | None
    high: float | None
    varies: int  # groups within which its scores differ
    share: float | None  # of the advantages' variance, mean over the groups that are not dead; None if all are
    unscored: int  # completions that it gave no score


class GroupSummary(NamedTuple):
    """One group: G completions of one prompt."""

    prompt_id: str
    dead: str | None  # one of DEAD_KINDS; None if something is learnt from it
    right: int  # completions
    clipped: int  # completions


@dataclass(frozen=True)
class StepSummary:
    """One generation batch of B completions in P groups of G. Counts are of completions unless they say groups."""

    step: int
    stage: str
    completions: int  # B
    group_size: int  # G
    functions: tuple[FunctionSummary, ...]
    group_std: float | None  # mean over the groups of the std of the totals
    nonfinite: int  # totals or advantages that are infinite, or advantages that are no number
    metrics: dict[str, float]  # what its groups were like, by the run's names: their mean std, and shares of the groups
    dead: dict[str, int]  # groups by kind, all DEAD_KINDS
    identical_right: int  # groups of identical texts that are right
    distinct: int  # texts in the batch
    distinct_in_groups: float  # mean share of a group's texts that are distinct; 1 / G when they are all the same
    commonest: str  # the text that was written most often, cut
    commonest_count: int
    commonest_right: int
    length: float  # mean, tokens
    longest: int  # tokens
    unended: int  # that do not end with the tokenizer's eos token
    clipped: int  # of those, as long as the longest of the batch: cut at the limit
    clipped_right: int
    right: int
    formatted: int | None  # that keep the format, by the task's `format_by`; None if it names none
    formatted_right: int | None  # that keep it and are right
    length_correlation: float | None  # of total and length, within groups; None where one of them does not vary
    groups: tuple[GroupSummary, ...]  # the first MOST_GROUPS

    @property
    def group_count(self) -> int:
        """P."""
        return self.completions // self.group_size

    @property
    def dead_count(self) -> int:
        """Groups from which nothing is learnt."""
        return sum(self.dead.values())


def summarise(batch: ScoredBatch) -> StepSummary:
    """The summary of a batch, in memory or read from the record, in a fraction of a millisecond."""
    size, right, lengths, texts = batch.num_generations, np.asarray(batch.right, bool), batch.lengths, batch.completions
    unended = np.zeros(len(texts), dtype=bool) if batch.finished is None else ~batch.finished
    # A policy with several end tokens may stop by one that is not the tokenizer's; what is cut is cut at one length.
    clipped = unended & (lengths == lengths.max())
    totals, stds = batch.groups.totals, batch.groups.stds[::size]
    std = float(np.nanmean(stds)) if not np.isnan(stds).all() else None
    right_in, clipped_in = (flags.reshape(-1, size).sum(axis=1) for flags in (right, clipped))
    kinds = dead_kinds(batch)
    by_group = zip(batch.prompt_ids[::size], kinds, right_in.tolist(), clipped_in.tolist(), strict=True)
    all_right, all_wrong = right_in == size, right_in == 0
    dead = np.array([kind is not None for kind in kinds])
    counted = {MIXED: ~(all_right | all_wrong), ALL_RIGHT: all_right, ALL_WRONG: all_wrong, DEAD: dead}
    shares = {name: int(groups.sum()) / len(kinds) for name, groups in counted.items()}
    commonest, commonest_count = Counter(texts).most_common(1)[0]
    formatted = None
    if batch.format_by in batch.names:
        formatted = np.nan_to_num(batch.scores[:, batch.names.index(batch.format_by)]) > 0
    return StepSummary(
        step=batch.step,
        stage=batch.stage,
        completions=len(texts),
        group_size=size,
        functions=_functions(batch, None in kinds),
        group_std=std,
        nonfinite=int((np.isinf(totals) | ~np.isfinite(batch.groups.advantages)).sum()),
        metrics={GROUP_STD: np.nan if std is None else std, **shares},
        dead={kind: kinds.count(kind) for kind in DEAD_KINDS},
        identical_right=sum(kind == IDENTICAL and bool(own == size) for kind, own in zip(kinds, right_in, strict=True)),
        distinct=len(set(texts)),
        distinct_in_groups=sum(len(set(texts[start : start + size])) for start in range(0, len(texts), size)) / len(texts),
        commonest=commonest[:LONGEST_TEXT],
        commonest_count=commonest_count,
        commonest_right=sum(bool(own) for text, own in zip(texts, right, strict=True) if text == commonest),
        length=float(lengths.mean()),
        longest=int(lengths.max()),
        unended=int(unended.sum()),
        clipped=int(clipped.sum()),
        clipped_right=int((clipped & right).sum()),
        right=int(right.sum()),
        formatted=None if formatted is None else int(formatted.sum()),
        formatted_right=None if formatted is None else int((formatted & right).sum()),
        length_correlation=_correlation(totals, lengths, size),
        groups=tuple(map(GroupSummary._make, itertools.islice(by_group, MOST_GROUPS))),
    )


def summaries_of(
    run: RunDirectory, last: int | None = None, known: dict[Any, list[StepSummary]] | None = None
) -> list[StepSummary]:
    """A summary of each batch in a run's record, in order; a part that cannot be read is skipped, with a warning that names it.

    Args:
        last: only this many of the latest parts; None: all. A part takes about 5 ms.
        known: those of the parts that were read before, brought up to date here; None: read all.
    """
    try:
        files = parts(run.rollouts)[-(last or 0) :]
    except RunError:
        return []
    manifest, before = run.manifest(), dict(known or {})
    found: dict[Any, list[StepSummary]] = {}
    for file in files:
        try:
            key = file.name, file.stat().st_mtime_ns  # a run that is continued writes its steps anew
            found[key] = before[key] if key in before else list(map(summarise, read_part(file, manifest, bare=True)))
        except RunError as error:
            warnings.warn(f"{error.value}: skipped", stacklevel=2)
    if known is not None:
        known.clear()
        known.update(found)
    return [summary for part in found.values() for summary in part]


def _functions(batch: ScoredBatch, some_alive: bool) -> tuple[FunctionSummary, ...]:
    scores, size = batch.scores, batch.num_generations
    grouped = scores.reshape(-1, size, scores.shape[1])
    absent = np.isnan(grouped)
    low, high = np.where(absent, np.inf, grouped), np.where(absent, -np.inf, grouped)
    varies = (high.max(axis=1) > low.min(axis=1)).sum(axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column without a number has no mean; it becomes None below
        # Within a group shares do not depend on what the advantages are divided by, so each counts the same.
        shares = np.nanmean(attribution(batch, "none").shares, axis=0)
        numbers = np.stack([np.nanmean(scores, axis=0), low.min(axis=(0, 1)), high.max(axis=(0, 1)), shares], axis=1)
    known = [[float(value) if np.isfinite(value) else None for value in own] for own in numbers]
    counts = zip(batch.names, batch.weights, varies.tolist(), absent.sum(axis=(0, 1)).tolist(), known, strict=True)
    return tuple(
        FunctionSummary(name, float(weight), mean, least, most, differs, share if some_alive else None, unscored)
        for name, weight, differs, unscored, (mean, least, most, share) in counts
    )


def _correlation(totals: np.ndarray, lengths: np.ndarray, size: int) -> float | None:
    both = [values.reshape(-1, size) for values in (np.nan_to_num(totals), lengths.astype(np.float64))]
    reward, length = (values - values.mean(axis=1, keepdims=True) for values in both)
    scale = float((reward**2).sum() * (length**2).sum())
    return float((reward * length).sum()) / scale**0.5 if 1e-12 < scale < float("inf") else None
