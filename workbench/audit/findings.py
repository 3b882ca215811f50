"""What is wrong with a task's rewards, read off one table of the scores of its reference
completions and its probes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas

from workbench.audit.completions import AS_ASKED
from workbench.audit.probes import AROUND
from workbench.recipe import packaged
from workbench.rewards.tracing import Unreached

REFERENCE, PROBE, SPELLING = "reference", "probe", "spelling"
# the reference after short reasoning, for which its format has no place: tells dear words from a
# form that is broken
REASONED = "reasoned"
RIGHT, WRONG = "right", "wrong"  # among the spellings
UNPAID = ("cannot_pay", "constant")  # kinds of findings
_CLOSE = 1e-6
_POOR = 0.5  # of the way to the highest score of all
# of the way from the lowest score to the reference's highest, where a function declares no maximum
_PAID = 0.9


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing."""

    kind: str  # a word for scripts: the part before the dot of a rule in findings.yaml
    severity: str  # "error", "warning" or "note"
    function: str  # the reward function; empty: the task as a whole
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        name = f"{self.function}: " if self.function else ""
        remedy = f"\n  -> {self.remedy}" if self.remedy else ""
        return f"{self.severity}: {name}{self.text}{remedy}"


Findings = Iterator[Finding]


@functools.cache
def _rules() -> dict[str, dict[str, str]]:
    """Rule -> severity, text and remedy of its findings, as findings.yaml has them."""
    return packaged(Path(__file__).with_name("findings.yaml"))


def finding(rule: str, function: str = "", severity: str = "", **values: object) -> Finding:
    """The finding of a rule of findings.yaml, its text filled with these values; `severity`:
    another than the rule's.
    """
    known = _rules()[rule]
    filled = [known[part].format(**values) for part in ("text", "remedy")]
    return Finding(rule.partition(".")[0], severity or known["severity"], function, *filled)


class Text(NamedTuple):
    """One completion of the table."""

    row: int
    kind: str  # REFERENCE, PROBE, SPELLING or REASONED
    name: str
    text: str
    right: bool = True
    own: bool = False
    answer: str = ""  # of a SPELLING


@dataclass(frozen=True)
class ScoreTable:
    """Completions of several rows and their scores."""

    texts: pandas.DataFrame  # [N] the fields of `Text`
    scores: pandas.DataFrame  # [N, F] by function; NaN where it did not apply or failed
    weights: pandas.Series  # [F]
    maxima: dict[str, float | None]  # as the functions declare them
    guessed: bool = False  # the reference completions are a guess, on which no error can rest
    shown: bool = True  # the prompt shows where the lines of the format break
    rows: Sequence[str] = ()  # each row in words: its number in the task, and its answer
    of: int = 0  # rows of the task
    unread: Sequence[str] = ()  # functions whose code looks at no completion

    @functools.cached_property
    def totals(self) -> pandas.Series:
        """[N] weighted sums; NaN where no function applied."""
        return (self.scores * self.weights).sum(axis=1, min_count=1)

    @property
    def reference_total(self) -> float:
        """Mean total of the reference completions; NaN if nothing applied to them."""
        return self.totals[self.at(REFERENCE, AS_ASKED)].mean()

    def at(self, kind: str, name: str) -> pandas.Series:
        """[N] which texts are of a kind and name."""
        return (self.texts.kind == kind) & (self.texts.name == name)

    @property
    def confirmed(self) -> bool:
        """Whether the reference is not a guess, or earns more than the same completion with a wrong
        answer.
        """
        wrong = self.totals[self.at(PROBE, "a wrong answer")].mean()
        return not self.guessed or self.reference_total > wrong + _CLOSE

    def flat(self, scores: pandas.Series) -> bool:
        """Whether all completions of a row score the same, whichever row it is."""
        by_row = scores.groupby(self.texts.row)
        return (by_row.max() - by_row.min()).max() < _CLOSE

    def by_row(self, scores: pandas.Series, kind: str, name: str) -> pandas.Series:
        """[R] scores of the completions of a kind and name, by their rows."""
        at = self.at(kind, name)
        return scores[at].set_axis(self.texts.row[at])

    def listed(self, rows: Iterable[int]) -> str:
        """Some rows in words, for a finding, and how many were tried, where not all were."""
        tried = f"; {len(self.rows)} of {self.of} rows were tried" * (len(self.rows) < self.of)
        return _listed([self.rows[row] for row in rows], 3, str) + tried


def paying(
    table: ScoreTable,
    function: str,
    unreached: Callable[[], Sequence[Unreached]],
    varies: bool,
    failed: bool = False,
) -> Findings:
    """Whether a reference completion earns all that the function can pay.

    `unreached` names the branches that none reaches; where a score `varies` with the length, their
    differences say nothing; where one is missing as the function `failed`, it may well apply.
    """
    scores = table.scores[function]
    earned = table.by_row(scores, REFERENCE, AS_ASKED)
    if earned.isna().all():
        if not failed:
            yield finding("sometimes.never", function)
        return
    if table.flat(scores):
        yield _constant(table, function, unreached)
        return
    targets = [_target(table, function, row, varies) for row in earned.index]
    unpaid = earned < targets
    if unpaid.all():
        yield _cannot_pay(table, function, targets[0], unreached())
        return
    if unpaid.any():
        yield finding(
            "sometimes",
            function,
            paid=(earned >= targets).sum(),
            rows=earned.count(),
            which=table.listed(earned.index[unpaid]),
            earned=earned[unpaid].iloc[0],
        )
    empty = table.by_row(scores, PROBE, "empty")
    if empty.mean() > earned.mean() + _CLOSE:
        yield finding("silence", function, empty=empty.mean(), reference=earned.mean())
        return
    if not varies:
        yield from _on_some_rows(table, function, earned)


def _on_some_rows(table: ScoreTable, function: str, earned: pandas.Series) -> Findings:
    # Probes that some rows pay: in the mean over the rows it would not be seen.
    scores = table.scores[function]
    for name in ("empty", "a wrong answer", "the answer in the wrong place"):
        less = (earned - table.by_row(scores, PROBE, name)).dropna()
        leaks = (less <= _CLOSE) & (earned[less.index] > scores.min() + _CLOSE)
        if leaks.any() and not leaks.all():
            paid = leaks.index[leaks]
            values = {"leaks": len(paid), "rows": len(leaks), "which": table.listed(paid)}
            values |= {"name": name, "earned": earned[paid[0]]}
            yield finding("silence.row", function, "", **values)
            return


def _constant(
    table: ScoreTable, function: str, unreached: Callable[[], Sequence[Unreached]]
) -> Finding:
    known, unread = table.scores[function].dropna(), function in table.unread
    score, branches = known.iloc[0], [] if unread else unreached()
    could_pay = any(branch.pays > 0 for branch in branches)
    strikes = any(branch.takes < 0 for branch in branches)
    rules = {
        "constant.penalty": strikes and not could_pay,
        "constant.guessed": table.guessed and not unread and (could_pay or score <= 0),
        "constant.prompt": known.max() - known.min() >= _CLOSE and not could_pay,
        "constant": True,
    }
    rule = next(rule for rule, holds in rules.items() if holds)
    reference = table.texts.text[0][:80]
    never = "; it does not look at the completions" if unread else _never(branches)
    some = known.groupby(table.texts.row).first().round(6).drop_duplicates()[:2]
    score = " or ".join(f"{each:g}" for each in some)
    return finding(rule, function, score=score, tried=len(known), reference=reference, never=never)


def _cannot_pay(
    table: ScoreTable, function: str, target: float, branches: Sequence[Unreached]
) -> Finding:
    scores, declared = table.scores[function], table.maxima[function]
    most = scores.max() if declared is None else declared
    first = table.texts.assign(score=scores)[table.texts.row == 0]
    paid = first[(first.kind == REFERENCE) & (first.name != AS_ASKED) & (first.score >= target)]
    hacks = first[(first.kind == PROBE) & ~first.right & (first.score >= most - _CLOSE)]
    rules = {
        # which of its layouts a policy writes is open
        "cannot_pay.layout": len(paid) and not table.shown,
        "cannot_pay.guessed": table.guessed,
        "cannot_pay.penalty": most <= 0,
        "cannot_pay": True,
    }
    rule = next(rule for rule, holds in rules.items() if holds)
    pays = "it pays only" if len(paid) else "it pays"
    only = " or ".join(paid.name) or "no reference completion that was tried"
    return finding(
        rule,
        function,
        earned=scores[table.at(REFERENCE, AS_ASKED)].mean(),
        most=most,
        only=f"; {pays} {only}",
        also=f"; {hacks.name.iloc[0]!r} earns {most:g}" if len(hacks) else "",
        never=_never(branches),
        reference=table.texts.text[0][:80],
    )


def _target(table: ScoreTable, function: str, row: int, varies: bool) -> float:
    # What a reference completion of this row has to earn.
    declared, lowest = table.maxima[function], table.scores[function].min()
    if declared is not None:
        return declared - ((1 - _PAID) * (declared - lowest) if varies else _CLOSE)
    scores = table.scores[function][table.texts.row == row]
    best = scores[table.texts.kind.isin((REFERENCE, SPELLING))].max()
    if varies or np.isnan(best):
        return -np.inf  # nothing can be said, or it does not apply to this prompt
    # what pays may not be what an honest policy writes
    if best < lowest + _POOR * (scores.max() - lowest):
        best = scores.max()
    return lowest + _PAID * (best - lowest) if best > lowest else lowest + _CLOSE


def _never(branches: Iterable[Unreached]) -> str:
    return next((f"; never reached: {branch}" for branch in branches if branch.pays > 0), "")


@dataclass(frozen=True)
class ProbeResult:
    """What one probe earns. Scores are means over the rows."""

    name: str
    total: float
    share: float | None  # of the reference completion's total; None where that is not above 0
    scores: dict[str, float]  # by function, unweighted; NaN where none applied
    # it holds the right answer, padded: no reward hack unless it earns more than the reference
    right: bool
    own: bool  # the user's
    example: str


def leaderboard(table: ScoreTable) -> list[ProbeResult]:
    """Every probe, the best paid first, and of equals the shortest."""
    reference, results = table.reference_total, []
    for name, probe in table.texts[table.texts.kind == PROBE].groupby("name", sort=False):
        first, total = probe.iloc[0], float(table.totals[probe.index].mean())
        share = total / reference if reference > _CLOSE else None
        scores = table.scores.loc[probe.index].mean().to_dict()
        result = ProbeResult(
            str(name), total, share, scores, bool(first.right), bool(first.own), first.text
        )
        results.append(result)
    # one to which nothing applied goes last
    return sorted(
        results,
        key=lambda each: (-round(np.nan_to_num(each.total, nan=-np.inf), 9), len(each.example)),
    )


def hackable(table: ScoreTable) -> Findings:
    """The reward hacks that earn as much as the reference completion, and the right but padded
    answers that earn more.
    """
    reference, lowest = table.reference_total, table.totals.min()
    if not np.isfinite(reference) or (table.guessed and reference <= lowest + _CLOSE):
        return  # what a reference completion would be is not known
    earned = table.scores[table.at(REFERENCE, AS_ASKED)].mean()
    pays = earned > table.scores.min() + _CLOSE
    if table.flat(table.totals) or (not table.confirmed and not pays[table.weights != 0].all()):
        return  # nor what it would earn
    probes = leaderboard(table)
    # What the worst earns is no pay, though a reference completion earns no more.
    paid = max(reference, lowest + 2 * _CLOSE)
    hacks = [probe for probe in probes if not probe.right and probe.total >= paid - _CLOSE]
    short = table.totals[table.at(REASONED, AS_ASKED)].mean()
    short = reference if np.isnan(short) else short
    honest = max(reference, short) + _CLOSE
    padded = [probe for probe in probes if probe.right and probe.total > honest]
    for what, best in (("a reward hack", hacks), ("a padded answer", padded)):
        if best:
            first, others = best[0], _listed([probe.name for probe in best[1:]])
            yield finding(
                "hackable",
                _payer(table, first),
                "" if table.confirmed else "warning",
                what=what,
                earned=first.total,
                reference=reference,
                name=first.name,
                others=f" (and no less: {others})" if others else "",
            )
    earns = {probe.name: probe for probe in probes}
    most = max(earns[each].total for each in ("empty", "a wrong answer") if each in earns)
    long = earns.get("long reasoning")
    if long and long.total < most - _CLOSE and short > most + _CLOSE:
        values = {"earned": long.total, "reference": short, "most": most}
        yield finding("long", _payer(table, long), "", **values)
    around = [
        probe.name
        for probe in probes
        if probe.name in AROUND and abs(probe.total - reference) <= _CLOSE
    ]
    if around and not hacks and reference > lowest + _CLOSE:
        yield finding("padding", names=_listed(around))


def _payer(table: ScoreTable, probe: ProbeResult) -> str:
    # The function that pays a reward hack most; where none does, or it is right, the one that pays
    # it most beyond the reference.
    if len(table.weights) == 1:
        return table.weights.index[0]
    weighted = table.scores * table.weights
    paid = weighted[table.at(PROBE, probe.name)].mean().fillna(0.0)
    more = paid - weighted[table.at(REFERENCE, AS_ASKED)].mean().fillna(0.0)
    chosen = more if probe.right or paid.max() <= _CLOSE else paid + _CLOSE * np.sign(more)
    return chosen.idxmax() if chosen.max() > 0 else ""


def _listed(names: Sequence[str], most: int = 4, written: Callable[[str], str] = repr) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(written, names[:most])) + more


def spelling(table: ScoreTable, function: str) -> Findings:
    """Right answers, written in another way, that a function which looks at the answer does not
    pay.
    """
    spelled = table.texts[table.texts.kind == SPELLING].assign(score=table.scores[function])
    best = spelled.groupby(["row", "name"], sort=False).score.max().unstack()
    if best.empty or not best[RIGHT].max() > best[WRONG].max() + _CLOSE:
        return  # it does not look at the answer
    pays = best[RIGHT] > best[WRONG] + _CLOSE
    unpaid = best.le(best[WRONG] + _CLOSE, axis=0).mul(pays, axis=0).drop(columns=WRONG)
    written = spelled.groupby(["name", "row"]).answer.first()
    # one example of each way that is not paid somewhere
    ways = {way: written[way, unpaid[way].idxmax()] for way in unpaid if unpaid[way].any()}
    if ways:
        rule = "spelling.sentence" if any(map(str.isalpha, "".join(ways))) else "spelling"
        yield finding(rule, function, ways=" or ".join(ways.values()))
