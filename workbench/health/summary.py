"""One generation batch in a few dozen numbers, from which the verdicts on a run are read."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from workbench.data.prompts import question
from workbench.environments import where_they_part
from workbench.errors import RunError
from workbench.printable import printable
from workbench.rewards.groups import (
    CANCELLED,
    DEAD_KINDS,
    IDENTICAL,
    attribution,
    cancelling,
    dead_kinds,
)
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.run.metrics import ALL_RIGHT, ALL_WRONG, DEAD, GROUP_STD, MIXED
from workbench.run.parts import parts
from workbench.run.rollouts import read_part
from workbench.run.turns import Turn

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


class Starts(NamedTuple):
    """Whether the members of a group began alike, in one batch."""

    groups: int = 0  # that have two to compare
    unlike: int = 0  # of those
    example: tuple[str, ...] = ()  # what was compared, and how two differ


class CallSummary(NamedTuple):
    """The tool calls of one batch."""

    calls: int
    failed: int
    error: str  # the commonest of those
    unparsed: int  # completions with what looks like a call and is none
    why: str  # the commonest reason
    example: str  # a turn of that reason
    prompts: Starts = Starts()  # by what `reset` returned, which ends the prompt
    answers: Starts = Starts()  # by what the same first call returned


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
    # of total and length, within groups; None where one of them does not vary
    length_correlation: float | None
    groups: tuple[GroupSummary, ...]  # the first MOST_GROUPS
    calls: CallSummary | None = None  # None: every completion is of one turn

    @property
    def group_count(self) -> int:
        """P."""
        return self.completions // self.group_size

    @property
    def dead_count(self) -> int:
        """Groups that teach nothing."""
        return sum(self.dead.values())


# part, and when it was written -> its summaries
Known = dict[tuple[str, int], list[StepSummary]]


def summarise(batch: ScoredBatch) -> StepSummary:
    """The summary of a batch, in memory or read from the record, in less than a millisecond."""
    texts, size = batch.completions, batch.num_generations
    right, lengths = batch.right.astype(bool), np.nan_to_num(batch.lengths)
    unended = ~(np.ones_like(right) if batch.finished is None else batch.finished)
    # Older records know the tokenizer's EOS alone, and stop strings end completions, too; what is
    # cut is cut at one length.
    clipped = unended & (lengths == lengths.max())
    right_P, clipped_P = (flags.reshape(-1, size).sum(axis=1) for flags in (right, clipped))
    kinds, stds = dead_kinds(batch), batch.groups.stds[::size]
    group_std = None if np.isnan(stds).all() else float(np.nanmean(stds))
    commonest, commonest_count = Counter(texts).most_common(1)[0]
    formatted = None
    if batch.format_by in batch.names:
        formatted = np.nan_to_num(batch.scores[:, batch.names.index(batch.format_by)]) > 0
    groups = zip(
        batch.prompt_ids[::size],
        kinds,
        right_P.tolist(),
        clipped_P.tolist(),
        [cancelling(batch, place) if kind == CANCELLED else () for place, kind in enumerate(kinds)],
        strict=True,
    )
    dead = {kind: kinds.count(kind) for kind in DEAD_KINDS}
    metrics = {GROUP_STD: math.nan if group_std is None else group_std}
    metrics |= zip((MIXED, ALL_RIGHT, ALL_WRONG), batch.shares.values())
    metrics[DEAD] = sum(dead.values()) / len(kinds)
    return StepSummary(
        step=batch.step,
        stage=batch.stage,
        completions=len(texts),
        group_size=size,
        functions=_functions(batch),
        group_std=group_std,
        nonfinite=int((np.isinf(batch.totals) | ~np.isfinite(batch.advantages)).sum()),
        metrics=metrics,
        dead=dead,
        identical_right=sum(
            kind == IDENTICAL and count == size for kind, count in zip(kinds, right_P.tolist())
        ),
        distinct_in_groups=sum(
            len(set(texts[start : start + size])) for start in range(0, len(texts), size)
        )
        / len(texts),
        commonest=commonest[:LONGEST_TEXT],
        commonest_count=commonest_count,
        commonest_right=sum(flag for text, flag in zip(texts, right.tolist()) if text == commonest),
        length=float(lengths.mean()),
        longest=int(lengths.max()),
        unended=int(unended.sum()),
        clipped=int(clipped.sum()),
        clipped_right=int((clipped & right).sum()),
        right=int(right.sum()),
        formatted=None if formatted is None else int(formatted.sum()),
        length_correlation=_correlation(batch.totals, lengths, size),
        groups=tuple(map(GroupSummary._make, itertools.islice(groups, MOST_GROUPS))),
        calls=_calls(batch) if batch.turns else None,
    )


def summaries_of(
    run: RunDirectory,
    last: int | None = None,
    known: Known | None = None,
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
    manifest, count = run.manifest(), 0
    read: Known = {}
    for file in reversed(files):
        if last is not None and count >= last:
            break
        # A run that is continued writes its steps again.
        key = file.name, file.stat().st_mtime_ns if file.exists() else 0
        try:
            read[key] = (known or {}).get(key) or [
                summarise(batch) for batch in read_part(file, manifest, bare=True)
            ]
            count += len(read[key])
        except RunError as error:
            warnings.warn(f"{error.value}: skipped", stacklevel=2)
    if known is not None:
        known.clear()
        known.update(read)
    return [summary for part in reversed(read.values()) for summary in part][-(last or 0) :]


def _functions(batch: ScoredBatch) -> tuple[FunctionSummary, ...]:
    scores_BF = batch.scores
    scores_PGF = scores_BF.reshape(-1, batch.num_generations, len(batch.names))
    highest_PF, lowest_PF = (of.reduce(scores_PGF, axis=1) for of in (np.fmax, np.fmin))
    with warnings.catch_warnings():
        # a column without a number has no mean; it becomes None below
        warnings.simplefilter("ignore", RuntimeWarning)
        numbers_F4 = np.stack(
            [
                np.nanmean(scores_BF, axis=0),
                np.fmin.reduce(lowest_PF),
                np.fmax.reduce(highest_PF),
                # Within a group shares do not depend on what the advantages are divided by, so
                # each counts the same.
                np.nanmean(attribution(batch, "none").shares, axis=0),
            ],
            axis=1,
        )
    by_function = zip(
        batch.names,
        batch.weights,
        np.where(np.isfinite(numbers_F4), numbers_F4, np.array(None)).tolist(),
        (highest_PF > lowest_PF).sum(axis=0).tolist(),
        np.isnan(scores_BF).sum(axis=0).tolist(),
        strict=True,
    )
    return tuple(
        FunctionSummary(name, float(weight), mean, low, high, varies, share, unscored)
        for name, weight, (mean, low, high, share), varies, unscored in by_function
    )


def _calls(batch: ScoredBatch) -> CallSummary:
    calls = [call for own in batch.turns for turn in own for call in turn.calls]
    errors = Counter(call.error for call in calls if call.error is not None)
    missed = [[turn for turn in own if turn.unparsed] for own in batch.turns]
    reasons = Counter(turn.unparsed for own in missed for turn in own)
    why = next((reason for reason, _ in reasons.most_common(1)), "")
    return CallSummary(
        len(calls),
        errors.total(),
        printable(next((error for error, _ in errors.most_common(1)), ""))[:LONGEST_TEXT],
        sum(map(bool, missed)),
        why,
        printable(next((t.text for own in missed for t in own if t.unparsed == why), ""))[-120:],
        _starts(batch, [("", question(prompt)) for prompt in batch.prompts]),
        _starts(batch, list(map(_first_answer, batch.turns))),
    )


def _starts(batch: ScoredBatch, said: list[tuple[str, str] | None]) -> Starts:
    # `said`: of each rollout what is compared, and its text; None: nothing
    groups, examples, size = 0, [], batch.num_generations
    for place in range(0, len(said), size):
        own = list(filter(None, said[place : place + size]))
        first = dict(reversed(own))
        groups += len(first) < len(own)
        unlike = (pair for pair in own if first[pair[0]] != pair[1])
        for key, text in itertools.islice(unlike, 1):
            examples.append((key[:LONGEST_TEXT], *where_they_part(first[key], text)))
    return Starts(groups, len(examples), tuple(map(printable, next(iter(examples), ()))))


def _first_answer(turns: list[Turn]) -> tuple[str, str] | None:
    # One that failed may only have been cut off.
    call = next((call for turn in turns[:1] for call in turn.calls), None)
    if call is None or call.result is None:
        return None
    return f"{call.name}({json.dumps(call.arguments, default=str)})", call.result


def _correlation(totals: np.ndarray, lengths: np.ndarray, size: int) -> float | None:
    groups = (np.reshape(values, (-1, size)) for values in (np.nan_to_num(totals), lengths))
    reward, length = (values - values.mean(axis=1, keepdims=True) for values in groups)
    scale = float((reward**2).sum()) * float((length**2).sum())
    return float((reward * length).sum()) / scale**0.5 if 1e-12 < scale < math.inf else None
