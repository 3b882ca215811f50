"""One generation batch in a few dozen numbers, from which the verdicts on a run are read."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from workbench.errors import RunError
from workbench.kinds import Fields
from workbench.rewards.groups import (
    CANCELLED,
    DEAD_KINDS,
    IDENTICAL,
    attribution,
    cancelling,
    dead_kinds,
)
from workbench.run.batch import Groups, ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.run.metrics import ALL_RIGHT, ALL_WRONG, DEAD, GROUP_STD, MIXED
from workbench.run.parts import parts
from workbench.run.rollouts import read_part

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
    # of the advantages' variance, mean over the groups that are not dead; None if all are
    share: float | None
    unscored: int  # completions that it gave no score


class GroupSummary(NamedTuple):
    """One group: G completions of one prompt."""

    prompt_id: str
    dead: str | None  # one of DEAD_KINDS; None if something is learnt from it
    right: int  # completions
    clipped: int  # completions
    # function -> weighted difference, where that is why it is dead
    cancels: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class StepSummary:
    """One generation batch of B completions in P groups of G. Counts are of completions unless they
    say groups.
    """

    step: int
    stage: str
    completions: int  # B
    group_size: int  # G
    functions: tuple[FunctionSummary, ...]
    group_std: float | None  # mean over the groups of the std of the totals
    nonfinite: int  # totals or advantages that are infinite, or advantages that are no number
    # what its groups were like, by the run's names: their mean std, and shares of the groups
    metrics: dict[str, float]
    dead: dict[str, int]  # groups by kind, all DEAD_KINDS
    identical_right: int  # groups of identical texts that are right
    distinct: int  # texts in the batch
    # mean share of a group's texts that are distinct; 1 / G when they are all the same
    distinct_in_groups: float
    commonest: str  # the text that was written most often, cut
    commonest_count: int
    commonest_right: int
    length: float  # mean, tokens
    longest: int  # tokens
    unended: int  # that do not end with a token that ends completions
    clipped: int  # of those, as long as the longest of the batch: cut at the limit
    clipped_right: int
    right: int
    formatted: int | None  # that keep the format, by the task's `format_by`; None if it names none
    formatted_right: int | None  # that keep it and are right
    # of total and length, within groups; None where one of them does not vary
    length_correlation: float | None
    groups: tuple[GroupSummary, ...]  # the first MOST_GROUPS

    @property
    def group_count(self) -> int:
        """P."""
        return self.completions // self.group_size

    @property
    def dead_count(self) -> int:
        """Groups that teach nothing."""
        return sum(self.dead.values())


def summarise(batch: ScoredBatch) -> StepSummary:
    """The summary of a batch, in memory or read from the record, in about a millisecond."""
    return _summaries([batch])[0]


def _summaries(batches: Iterable[ScoredBatch]) -> list[StepSummary]:
    # Those that are alike, together: for many small batches that takes a fraction of the time.
    def kind(batch: ScoredBatch) -> tuple[Any, ...]:
        # which knows no groups
        alone = id(batch) if batch.aggregation == "normalize_then_sum" else 0
        sizes = batch.num_generations, len(batch.completions), batch.finished is None
        return alone, batch.names, batch.weights, sizes, batch.format_by

    return [
        summary
        for _, alike in itertools.groupby(batches, key=kind)
        for summary in _summarised(list(alike))
    ]


def _summarised(batches: list[ScoredBatch]) -> Iterator[StepSummary]:
    one, size = batches[0], batches[0].num_generations
    arrays: Fields = {
        name: np.concatenate([getattr(each, name) for each in batches])
        for name in ("scores", "lengths", "right")
    }
    arrays["finished"] = (
        None if one.finished is None else np.concatenate([each.finished for each in batches])
    )
    arrays["groups"] = Groups(
        *map(np.concatenate, zip(*(each.groups for each in batches), strict=True))
    )
    whole = dataclasses.replace(
        one, completions=[text for each in batches for text in each.completions], **arrays
    )

    def by_batch(values: np.ndarray) -> np.ndarray:
        return np.reshape(values, (len(batches), -1))

    right, lengths, totals, stds = map(
        by_batch,
        (
            whole.right.astype(bool),
            np.nan_to_num(whole.lengths),
            whole.totals,
            whole.groups.stds[::size],
        ),
    )
    unended = (
        np.zeros(right.shape, dtype=bool) if whole.finished is None else by_batch(~whole.finished)
    )
    # Older records know the tokenizer's EOS alone, and stop strings end completions, too; what is
    # cut is cut at one length.
    clipped = unended & (lengths == lengths.max(axis=1, keepdims=True))
    right_in, clipped_in = (
        flags.reshape(*stds.shape, size).sum(axis=2) for flags in (right, clipped)
    )
    kinds = dead_kinds(whole)
    dead, all_right, all_wrong = (
        by_batch(np.array([kind is not None for kind in kinds])),
        right_in == size,
        right_in == 0,
    )
    counted = {
        MIXED: ~(all_right | all_wrong),
        ALL_RIGHT: all_right,
        ALL_WRONG: all_wrong,
        DEAD: dead,
    }
    infinite = np.isinf(totals) | ~np.isfinite(by_batch(whole.advantages))
    flags = {
        "right": right,
        "nonfinite": infinite,
        "unended": unended,
        "clipped": clipped,
        "clipped_right": clipped & right,
    }
    if one.format_by in one.names:
        formatted = by_batch(np.nan_to_num(whole.scores[:, one.names.index(one.format_by)]) > 0)
        flags |= {"formatted": formatted, "formatted_right": formatted & right}
    numbers: Fields = {name: own.sum(axis=1).tolist() for name, own in flags.items()}
    numbers |= {
        "length": lengths.mean(axis=1).tolist(),
        "longest": lengths.max(axis=1).astype(int).tolist(),
    }
    numbers |= {
        "functions": _functions(whole, ~dead),
        "length_correlation": _correlations(totals, lengths, size),
    }
    shares = {
        name: (groups.sum(axis=1) / stds.shape[1]).tolist() for name, groups in counted.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a batch that nothing has scored
        shares = {GROUP_STD: np.nanmean(stds, axis=1).tolist(), **shares}
    for n, batch in enumerate(batches):
        texts, own = batch.completions, kinds[n * stds.shape[1] : (n + 1) * stds.shape[1]]
        commonest, commonest_count = Counter(texts).most_common(1)[0]
        cancels = [
            cancelling(batch, place) if kind == CANCELLED else () for place, kind in enumerate(own)
        ]
        by_group = zip(
            batch.prompt_ids[::size],
            own,
            right_in[n].tolist(),
            clipped_in[n].tolist(),
            cancels,
            strict=True,
        )
        metrics = {name: values[n] for name, values in shares.items()}
        more: Fields = {
            "formatted": None,
            "formatted_right": None,
            **{name: own[n] for name, own in numbers.items()},
        }
        yield StepSummary(
            step=batch.step,
            stage=batch.stage,
            completions=len(texts),
            group_size=size,
            group_std=None if np.isnan(metrics[GROUP_STD]) else metrics[GROUP_STD],
            metrics=metrics,
            dead={kind: own.count(kind) for kind in DEAD_KINDS},
            identical_right=sum(
                kind == IDENTICAL and bool(every)
                for kind, every in zip(own, all_right[n], strict=True)
            ),
            distinct=len(set(texts)),
            distinct_in_groups=sum(
                len(set(texts[start : start + size])) for start in range(0, len(texts), size)
            )
            / len(texts),
            commonest=commonest[:LONGEST_TEXT],
            commonest_count=commonest_count,
            commonest_right=sum(
                bool(own) for text, own in zip(texts, right[n], strict=True) if text == commonest
            ),
            groups=tuple(map(GroupSummary._make, itertools.islice(by_group, MOST_GROUPS))),
            **more,
        )


def summaries_of(
    run: RunDirectory, last: int | None = None, known: dict[Any, list[StepSummary]] | None = None
) -> list[StepSummary]:
    """A summary of each batch in a run's record, in order; a part that cannot be read is skipped,
    with a warning that names it.

    Args:
        last: only this many of the latest; None: all.
        known: summaries of the parts read before, updated here; None: read all.
    """
    try:
        files = parts(run.rollouts)
    except RunError:
        return []
    manifest, before, count = run.manifest(), dict(known or {}), 0
    found: dict[Any, list[StepSummary]] = {}
    for file in reversed(files):
        if last is not None and count >= last:
            break
        try:
            # A run that is continued writes its steps anew.
            key = file.name, file.stat().st_mtime_ns if file.exists() else 0
            found[key] = (
                before[key] if key in before else _summaries(read_part(file, manifest, bare=True))
            )
            count += len(found[key])
        except RunError as error:
            warnings.warn(f"{error.value}: skipped", stacklevel=2)
    if known is not None:
        known.clear()
        known.update(found)
    return [summary for part in reversed(found.values()) for summary in part][-(last or 0) :]


def _functions(batch: ScoredBatch, alive: np.ndarray) -> list[tuple[FunctionSummary, ...]]:
    # Of each of N batches that lie together; `alive`: [N, P].
    grouped = batch.scores.reshape(*alive.shape, batch.num_generations, len(batch.names))
    scores, absent = grouped.reshape(len(alive), -1, len(batch.names)), np.isnan(grouped)
    low, high = np.where(absent, np.inf, grouped), np.where(absent, -np.inf, grouped)
    varies = (high.max(axis=2) > low.min(axis=2)).sum(axis=1).tolist()
    with warnings.catch_warnings():
        # a column without a number has no mean; it becomes None below
        warnings.simplefilter("ignore", RuntimeWarning)
        # Within a group shares do not depend on what the advantages are divided by, so each counts
        # the same.
        shares = np.nanmean(attribution(batch, "none").shares.reshape(*alive.shape, -1), axis=1)
        numbers = np.stack(
            [np.nanmean(scores, axis=1), low.min(axis=(1, 2)), high.max(axis=(1, 2)), shares],
            axis=2,
        )
    known = np.where(np.isfinite(numbers), numbers, np.array(None)).tolist()
    found = []
    for some_alive, *of_batch in zip(
        np.asarray(alive.any(axis=1)), varies, absent.sum(axis=(1, 2)).tolist(), known, strict=True
    ):
        own = zip(batch.names, map(float, batch.weights), *of_batch, strict=True)
        found.append(
            tuple(
                FunctionSummary(
                    name,
                    weight,
                    mean,
                    least,
                    most,
                    differs,
                    share if some_alive else None,
                    unscored,
                )
                for name, weight, differs, unscored, (mean, least, most, share) in own
            )
        )
    return found


def _correlations(totals: np.ndarray, lengths: np.ndarray, size: int) -> list[float | None]:
    # Of N batches: [N, B].
    grouped = [
        values.reshape(len(totals), -1, size)
        for values in (np.nan_to_num(totals), lengths.astype(np.float64))
    ]
    reward, length = (
        (values - values.mean(axis=2, keepdims=True)).reshape(totals.shape) for values in grouped
    )
    scales = (reward**2).sum(axis=1) * (length**2).sum(axis=1)
    both = zip((reward * length).sum(axis=1).tolist(), scales.tolist(), strict=True)
    return [
        together / scale**0.5 if 1e-12 < scale < float("inf") else None for together, scale in both
    ]
