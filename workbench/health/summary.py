"""What one generation batch looked like, in a few dozen numbers: what the verdicts on a run are read off.

There are two makers. `summarise` works on the arrays that the trainer has at hand, in a fraction of a millisecond;
`summaries_of` reads the same from a run's record. Both give the same summary of the same batch.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from workbench.errors import RunError
from workbench.rewards.groups import DEAD_KINDS, IDENTICAL, Groups, contributions, dead_kinds
from workbench.rewards.suite import RewardSuite
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import group_starts, parts, whole_groups

MOST_GROUPS = 64  # of a batch that are kept one by one, so that a summary stays small
LONGEST_TEXT = 80  # characters of the commonest completion
_COLUMNS = (
    "stage", "prompt_id", "completion", "length_tokens", "finish_reason", "total", "group_mean", "group_std", "advantage",
    "right",
)  # fmt: skip


class FunctionSummary(NamedTuple):
    """One reward function in one batch. Scores are unweighted; None where no completion has one."""

    name: str
    weight: float
    mean: float | None
    low: float | None
    high: float | None
    std: float | None  # mean over the groups of its std within the group
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
    reward: float | None  # mean of the totals
    group_std: float | None  # mean over the groups of the std of the totals
    nonfinite: int  # totals or advantages that are infinite, or advantages that are no number
    unscored: int  # to which no function applied
    mixed: int  # groups with right and wrong completions
    all_right: int  # groups
    all_wrong: int  # groups
    dead: dict[str, int]  # groups by kind, all DEAD_KINDS
    identical_right: int  # groups of identical texts that are right
    distinct: int  # texts in the batch
    distinct_in_groups: float  # mean share of a group's texts that are distinct; 1 / G when they are all the same
    commonest: str  # the text that was written most often, cut
    commonest_count: int
    commonest_right: int
    length: float  # mean, tokens
    length_right: float | None  # mean of the right ones, tokens; None if there are none
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

    def function(self, name: str) -> FunctionSummary | None:
        """One function's numbers; None if the batch was scored without it."""
        return next((function for function in self.functions if function.name == name), None)


class _Batch(NamedTuple):
    # What both makers have: B = P * G completions, F functions, a prompt's completions together.
    step: int
    stage: str
    names: Sequence[str]
    weights: Sequence[float]
    group_size: int
    aggregation: str
    format_by: str | None
    scores: np.ndarray  # [B, F], NaN where a function did not apply
    groups: Groups
    right: np.ndarray  # [B] bool
    texts: Sequence[str]
    lengths: np.ndarray  # [B] tokens
    unended: np.ndarray  # [B] bool
    prompt_ids: Sequence[str]  # [B]


def summarise(scored: ScoredBatch, suite: RewardSuite, eos_token_id: int, stage: str = "1") -> StepSummary:
    """The summary of a batch that has just been scored.

    Args:
        scored: as the suite hands it to `on_batch`.
        suite: whose functions, weights and settings it was scored under.
        eos_token_id: what a completion ends with when it was not cut.
        stage: the name that its rows get in the record.
    """
    ids = scored.completion_ids
    return _summary(
        _Batch(
            step=scored.step,
            stage=stage,
            names=suite.names,
            weights=suite.weights,
            group_size=suite.num_generations,
            aggregation=suite.aggregation,
            format_by=suite.task.format_by,
            scores=scored.scores,
            groups=scored.groups,
            right=np.array(scored.right, dtype=bool),
            texts=scored.completions,
            lengths=np.array([len(tokens) for tokens in ids]),
            unended=np.array([not len(tokens) or tokens[-1] != eos_token_id for tokens in ids]),
            prompt_ids=[str(each) for each in scored.columns.get("prompt_id") or [""] * len(ids)],
        )
    )


def summaries_of(
    run: RunDirectory, last: int | None = None, known: dict[Any, list[StepSummary]] | None = None
) -> list[StepSummary]:
    """A summary of each batch in a run's record, in order, read one part at a time; none if it recorded nothing.

    A part that cannot be read is skipped, with a warning that says which.

    Args:
        last: so many of the latest parts; None: all. A part takes about 5 ms.
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
            found[key] = before[key] if key in before else _of_part(file, manifest)
        except RunError as error:
            warnings.warn(f"{error.value}: skipped", stacklevel=2)
    if known is not None:
        known.clear()
        known.update(found)
    return [summary for part in found.values() for summary in part]


def stage_in(manifest: dict[str, Any], stage: str | None = None) -> dict[str, Any]:
    """What a manifest says of one stage: `settings` in force, `rewards`, `task` (its source), `right_by` and `format_by`.

    Of a run without stages, or where it says nothing of that one: what it says of the run.
    """
    about, settings = manifest.get("task") or {}, manifest.get("settings") or {}
    own = next((each for each in manifest.get("stages") or [] if each.get("name") == stage), {})
    return {
        "settings": {
            **(settings.get("asked") or {}),
            **(settings.get("in_force") or {}),
            **(own.get("settings") or {}),
        },
        "rewards": own.get("rewards") or manifest.get("rewards") or {},
        "task": own.get("task") or about.get("source"),
        "right_by": own.get("right_by", about.get("right_by")),
        "format_by": own.get("format_by", about.get("format_by")),
    }


def _of_part(file: Path, manifest: dict[str, Any]) -> list[StepSummary]:
    names = _functions_in(file)
    columns = [*_COLUMNS, *(f"{kind}.{name}" for name in names for kind in ("score", "weight"))]
    # Whole, as the batch is the unit here: some thousands of rows.
    [table] = whole_groups(file, columns, about=None)
    sizes = np.diff([*group_starts(table), len(table)])
    if not len(sizes):
        return []
    size = int(np.bincount(sizes).argmax())
    if (sizes != size).any():
        table = table.filter(np.repeat(sizes == size, sizes))
    column = {name: table.column(name) for name in columns}
    numbers = {
        name: column[name].to_numpy().astype(np.float64) for name in ("total", "group_mean", "group_std", "advantage")
    }
    stage = column["stage"][0].as_py()
    known = stage_in(manifest, stage)
    return [
        _summary(
            _Batch(
                step=int(table.column("step")[0].as_py()),
                stage=stage,
                names=names,
                weights=[column[f"weight.{name}"][0].as_py() for name in names],
                group_size=size,
                aggregation=known["settings"].get("multi_objective_aggregation") or "sum_then_normalize",
                format_by=known["format_by"],
                scores=np.stack([column[f"score.{name}"].to_numpy().astype(np.float64) for name in names], axis=1),
                groups=Groups(*numbers.values()),
                right=column["right"].to_numpy().astype(bool),
                texts=column["completion"].to_pylist(),
                lengths=column["length_tokens"].to_numpy(),
                unended=np.array([reason == "length" for reason in column["finish_reason"].to_pylist()]),
                prompt_ids=column["prompt_id"].to_pylist(),
            )
        )
    ]


def _functions_in(file: Path) -> list[str]:
    # From the part itself: a later stage may have been scored by other functions.
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(file).names
    except (pa.ArrowException, OSError) as error:
        raise RunError(
            f"{file.name}: {str(error).splitlines()[0]}",
            rule="a part of the record is a whole Parquet file",
            remedy="move that file out of the folder",
        ) from None
    return [name.removeprefix("score.") for name in names if name.startswith("score.")]


def _summary(batch: _Batch) -> StepSummary:
    size, right, lengths = batch.group_size, batch.right, batch.lengths
    # A policy with several end tokens may stop by one that is not the tokenizer's; what is cut is cut at one length.
    clipped = batch.unended & (lengths == lengths.max())
    totals, texts = batch.groups.totals, batch.texts
    count, right_in = len(texts) // size, right.reshape(-1, size).sum(axis=1)
    kinds = dead_kinds(batch.groups, right.tolist(), texts, size, batch.aggregation)
    alive = np.array([kind is None for kind in kinds])
    distinct = [len(set(texts[start : start + size])) for start in range(0, len(texts), size)]
    tally = Counter(kinds)
    commonest, commonest_count = Counter(texts).most_common(1)[0]
    formatted = _formatted(batch)
    stds = batch.groups.stds[::size]
    scored = totals[~np.isnan(totals)]
    right_count = int(right_in.sum())
    return StepSummary(
        step=batch.step,
        stage=batch.stage,
        completions=len(texts),
        group_size=size,
        functions=_functions(batch, alive),
        reward=float(scored.mean()) if len(scored) else None,
        group_std=float(np.nanmean(stds)) if not np.isnan(stds).all() else None,
        nonfinite=int((np.isinf(totals) | ~np.isfinite(batch.groups.advantages)).sum()),
        unscored=len(texts) - len(scored),
        mixed=int(((right_in > 0) & (right_in < size)).sum()),
        all_right=int((right_in == size).sum()),
        all_wrong=int((right_in == 0).sum()),
        dead={kind: tally[kind] for kind in DEAD_KINDS},
        identical_right=sum(kind == IDENTICAL and bool(own == size) for kind, own in zip(kinds, right_in, strict=True)),
        distinct=len(set(texts)),
        distinct_in_groups=sum(distinct) / (count * size),
        commonest=commonest[:LONGEST_TEXT],
        commonest_count=commonest_count,
        commonest_right=sum(bool(own) for text, own in zip(texts, right, strict=True) if text == commonest),
        length=float(lengths.mean()),
        length_right=float(lengths[right].mean()) if right_count else None,
        longest=int(lengths.max()),
        unended=int(batch.unended.sum()),
        clipped=int(clipped.sum()),
        clipped_right=int((clipped & right).sum()),
        right=right_count,
        formatted=None if formatted is None else int(formatted.sum()),
        formatted_right=None if formatted is None else int((formatted & right).sum()),
        length_correlation=_correlation(totals, lengths, size),
        groups=tuple(
            GroupSummary(batch.prompt_ids[index * size], kind, int(own), int(cut))
            for index, (kind, own, cut) in enumerate(
                zip(kinds, right_in, clipped.reshape(-1, size).sum(axis=1), strict=True)
            )
            if index < MOST_GROUPS
        ),
    )


def _formatted(batch: _Batch) -> np.ndarray | None:
    if batch.format_by not in batch.names:
        return None
    return np.nan_to_num(batch.scores[:, list(batch.names).index(batch.format_by)]) > 0


def _functions(batch: _Batch, alive: np.ndarray) -> tuple[FunctionSummary, ...]:
    scores, size = batch.scores, batch.group_size
    grouped = scores.reshape(-1, size, scores.shape[1])
    missing = np.isnan(scores).sum(axis=0)
    if missing.any():
        low, high = np.where(np.isnan(grouped), np.inf, grouped), np.where(np.isnan(grouped), -np.inf, grouped)
        varies = (high.max(axis=1) > low.min(axis=1)).sum(axis=0)
        lows, highs = low.min(axis=(0, 1)), high.max(axis=(0, 1))
        with warnings.catch_warnings():
            # A column without a number has no mean; it becomes None below.
            warnings.simplefilter("ignore", RuntimeWarning)
            means, stds = np.nanmean(scores, axis=0), np.nanmean(np.nanstd(grouped, axis=1, ddof=1), axis=0)
    else:
        varies = (grouped.max(axis=1) > grouped.min(axis=1)).sum(axis=0)
        lows, highs, means = scores.min(axis=0), scores.max(axis=0), scores.mean(axis=0)
        stds = grouped.std(axis=1, ddof=1).mean(axis=0)
    shares = _shares(batch, alive)
    return tuple(
        FunctionSummary(
            name=name,
            weight=float(batch.weights[index]),
            mean=_number(means[index]),
            low=_number(lows[index]),
            high=_number(highs[index]),
            std=_number(stds[index]),
            varies=int(varies[index]),
            share=None if shares is None else float(shares[index]),
            unscored=int(missing[index]),
        )
        for index, name in enumerate(batch.names)
    )


def _shares(batch: _Batch, alive: np.ndarray) -> np.ndarray | None:
    # [F] of the advantages' variance: within a group it does not depend on what the advantages are divided by, so
    # each group that is alive counts the same under every scaling.
    if not alive.any():
        return None
    size = batch.group_size
    added = contributions(batch.scores, batch.weights, size, "none", batch.aggregation)
    grouped = added.reshape(len(alive), size, -1)[alive]
    whole = grouped.sum(axis=2)
    whole = whole - whole.mean(axis=1, keepdims=True)
    shares = np.einsum("pgf,pg->pf", grouped, whole) / (whole**2).sum(axis=1, keepdims=True)
    return shares.mean(axis=0)


def _correlation(totals: np.ndarray, lengths: np.ndarray, size: int) -> float | None:
    both = [values.reshape(-1, size) for values in (np.nan_to_num(totals), lengths.astype(np.float64))]
    reward, length = (values - values.mean(axis=1, keepdims=True) for values in both)
    scale = float((reward**2).sum() * (length**2).sum())
    return float((reward * length).sum()) / scale**0.5 if 1e-12 < scale < float("inf") else None


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
