"""One generation batch in a few dozen numbers, from which the verdicts on a run are read."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from workbench.base.environments import where_they_part
from workbench.base.errors import RunError
from workbench.base.kinds import Fields, Prompt
from workbench.base.printable import printable
from workbench.data.prompts import question
from workbench.rewards.groups import (
    CANCELLED,
    DEAD_KINDS,
    IDENTICAL,
    attribution,
    cancelling,
    dead_kinds,
    nan_mean,
)
from workbench.run.batch import NO_SPREAD, ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.run.metrics import ALL_RIGHT, ALL_WRONG, DEAD, GROUP_STD, MIXED
from workbench.run.parts import parts
from workbench.run.rollouts import read_part
from workbench.run.turns import ENVIRONMENT, Turn

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
    levels: int = 1  # different scores, each a group's lowest
    groups: int = 0  # in which it scored two completions or more


class GroupSummary(NamedTuple):
    """One group: G completions of one prompt."""

    prompt_id: str
    dead: str | None  # one of DEAD_KINDS; None if something is learnt from it
    right: float  # completions; NaN: nothing says so
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
    # what its groups were like, by the run's names: their mean std, and shares of the groups (NaN:
    # nothing says which are right)
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
    # of total and length, within groups; None where one of them does not vary
    length_correlation: float | None
    groups: tuple[GroupSummary, ...]  # the first MOST_GROUPS
    # that keep the format, by the task's `format_by`; None if it names none
    formatted: int | None = None
    calls: CallSummary | None = None  # None: every completion is of one turn
    told: int | None = None  # of which something says whether they are right; None: of all

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
    return summaries(batch)[0]


@np.errstate(all="ignore")  # of what comes of infinite scores
def summaries(batch: ScoredBatch) -> list[StepSummary]:
    """Those of a batch and of the `later` ones in its arrays: many small ones take a tenth of the
    time that they take one by one.
    """
    steps, size, lengths = [batch.step, *batch.later], batch.num_generations, batch.lengths
    count = len(lengths) // len(steps)

    def by_batch(values_B: np.ndarray) -> np.ndarray:  # or [P], of all the batches
        return values_B.reshape(len(steps), -1)

    told = ~np.ma.getmaskarray(batch.right)
    right, lengths = np.ma.filled(batch.right, False).astype(bool), np.nan_to_num(lengths)
    longest = by_batch(lengths).max(axis=1)
    unended = ~(np.ones_like(right) if batch.finished is None else batch.finished)
    if batch.turns:  # a `rollout_func` that had the last word ended the rollout itself
        unended &= [not own or own[-1].author != ENVIRONMENT for own in batch.turns]
    # Older records know the tokenizer's EOS alone, and stop strings end completions, too; what is
    # cut is cut at one length.
    clipped = unended & (lengths == longest.repeat(count))
    flags = {
        "nonfinite": np.isinf(batch.totals) | ~np.isfinite(batch.advantages),
        "unended": unended,
        "clipped": clipped,
        "clipped_right": clipped & right,
        "right": right,
        "told": told,
    }
    if batch.format_by in batch.names:
        scores = batch.scores[:, batch.names.index(batch.format_by)]
        flags["formatted"] = np.nan_to_num(scores) > 0
    columns: Fields = {name: by_batch(own).sum(axis=1) for name, own in flags.items()}
    columns |= {"length": by_batch(lengths).mean(axis=1), "longest": longest}
    columns = {name: numbers.tolist() for name, numbers in columns.items()} | {
        "step": steps,
        "functions": _functions(batch, len(steps)),
        "length_correlation": _correlations(batch.totals, lengths, size, len(steps)),
    }
    kinds, right_each = dead_kinds(batch), right.tolist()
    known = np.where(told, right, np.nan)
    right_P, clipped_P = (of.reshape(-1, size).sum(axis=1).tolist() for of in (known, clipped))
    cancels = [cancelling(batch, at) if kind == CANCELLED else () for at, kind in enumerate(kinds)]
    groups_P = [*zip(batch.prompt_ids[::size], kinds, right_P, clipped_P, cancels, strict=True)]
    stds, made = nan_mean(by_batch(batch.groups.stds[::size])).tolist(), []
    for place, (std, *numbers) in enumerate(zip(stds, *columns.values(), strict=True)):
        own, groups = (slice(place * of, (place + 1) * of) for of in (count, count // size))
        texts, dead_as, right_in = batch.completions[own], kinds[groups], right_P[groups]
        commonest, commonest_count = Counter(texts).most_common(1)[0]
        dead = {kind: dead_as.count(kind) for kind in DEAD_KINDS}
        said = sum(number == number for number in right_in) or math.nan
        metrics = {
            GROUP_STD: std,
            MIXED: sum(0 < number < size for number in right_in) / said,
            ALL_RIGHT: right_in.count(size) / said,
            ALL_WRONG: right_in.count(0) / said,
            DEAD: sum(dead.values()) / len(dead_as),
        }
        summary = StepSummary(
            stage=batch.stage,
            completions=count,
            group_size=size,
            group_std=None if std != std else std,
            metrics=metrics,
            dead=dead,
            identical_right=[*zip(dead_as, right_in)].count((IDENTICAL, size)),
            distinct_in_groups=sum(
                len(set(texts[start : start + size])) for start in range(0, count, size)
            )
            / count,
            commonest=commonest[:LONGEST_TEXT],
            commonest_count=commonest_count,
            commonest_right=[*zip(texts, right_each[own])].count((commonest, True)),
            groups=tuple(map(GroupSummary._make, groups_P[groups][:MOST_GROUPS])),
            calls=_calls(batch.turns[own], batch.prompts[own], size) if batch.turns else None,
            **dict(zip(columns, numbers)),
        )
        made.append(summary)
    return made


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
                summary
                for batch in read_part(file, manifest, bare=True, joined=True)
                for summary in summaries(batch)
            ]
            count += len(read[key])
        except RunError as error:
            warnings.warn(f"{error.value}: skipped", stacklevel=2)
    if known is not None:
        known.clear()
        known.update(read)
    return [summary for part in reversed(read.values()) for summary in part][-(last or 0) :]


def _functions(batch: ScoredBatch, batches: int) -> list[tuple[FunctionSummary, ...]]:
    scores_PGF = batch.scores.reshape(-1, batch.num_generations, len(batch.names))
    high_PF, low_PF = (of.reduce(scores_PGF, axis=1) for of in (np.fmax, np.fmin))
    # Within a group shares do not depend on what the advantages are divided by, so each counts the
    # same.
    shares_PF = attribution(batch, "none").shares

    def by_batch(values: np.ndarray, of: Callable[..., np.ndarray]) -> list[list[Any]]:
        numbers_NF = of(values.reshape(batches, -1, len(batch.names)), axis=1)
        return np.where(np.isfinite(numbers_NF), numbers_NF, np.array(None)).tolist()

    columns = (
        by_batch(batch.scores, nan_mean),
        by_batch(low_PF, np.fmin.reduce),
        by_batch(high_PF, np.fmax.reduce),
        by_batch(high_PF - low_PF > NO_SPREAD, np.sum),
        by_batch(shares_PF, nan_mean),
        by_batch(np.isnan(batch.scores), np.sum),
        by_batch(low_PF, _levels),
        by_batch((~np.isnan(scores_PGF)).sum(axis=1) > 1, np.sum),
    )
    weights = [float(weight) for weight in batch.weights]
    return [
        tuple(map(FunctionSummary, batch.names, weights, *numbers))
        for numbers in zip(*columns, strict=True)
    ]


def _levels(values: np.ndarray, axis: int) -> np.ndarray:
    return 1 + (np.diff(np.sort(values, axis), axis=axis) > NO_SPREAD).sum(axis)


def _calls(turns: list[list[Turn]], prompts: list[Prompt], size: int) -> CallSummary:
    calls = [call for own in turns for turn in own for call in turn.calls]
    errors = Counter(call.error for call in calls if call.error is not None)
    missed = [[turn for turn in own if turn.unparsed] for own in turns]
    reasons = Counter(turn.unparsed for own in missed for turn in own)
    why = next((reason for reason, _ in reasons.most_common(1)), "")
    return CallSummary(
        len(calls),
        errors.total(),
        printable(next((error for error, _ in errors.most_common(1)), ""))[:LONGEST_TEXT],
        sum(map(bool, missed)),
        why,
        printable(next((t.text for own in missed for t in own if t.unparsed == why), ""))[-120:],
        _starts(size, [("", question(prompt)) for prompt in prompts]),
        _starts(size, list(map(_first_answer, turns))),
    )


def _starts(size: int, said: list[tuple[str, str] | None]) -> Starts:
    # `said`: of each rollout what is compared, and its text; None: nothing
    groups, examples = 0, []
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


def _correlations(
    totals: np.ndarray, lengths: np.ndarray, size: int, batches: int
) -> list[float | None]:
    groups = (np.reshape(values, (-1, size)) for values in (np.nan_to_num(totals), lengths))
    reward, length = (values - values.mean(axis=1, keepdims=True) for values in groups)
    products = (reward**2, length**2, reward * length)
    sums = zip(*(own.reshape(batches, -1).sum(axis=1).tolist() for own in products))
    return [
        both / scale**0.5 if 1e-12 < (scale := first * second) < math.inf else None
        for first, second, both in sums
    ]
