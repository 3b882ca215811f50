"""What is wrong with a task's rewards, read off one table of the scores of its reference
completions and its probes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from workbench.audit.completions import AROUND, AS_ASKED
from workbench.kinds import Fields
from workbench.rewards.tracing import Unreached

REFERENCE, PROBE, SPELLING = "reference", "probe", "spelling"
RIGHT, WRONG = "right", "wrong"  # among the spellings
_CLOSE = 1e-6
_ALIKE = 0.8  # rank correlation over the probes, from which two functions pay for one thing
_POOR = 0.5  # of the way to the highest score of all
# of the way from the lowest score to the reference's highest, where a function declares no maximum
_PAID = 0.9

_SHOW = (
    "say what a reference completion looks like: Task(ideal=lambda row: ...), and answer_column= if"
    " there are answers"
)
_FIRST = "; the first is {name!r}: {text!r}"
_EARNS = (
    "cannot pay: a reference completion in the format that the prompt asks for earns {earned:g} of"
    " {most:g}{only}{also}{never}"
)
_COMPARE = (
    "compare the pattern with that completion, character by character: line breaks (re.DOTALL),"
    " white space around the answer, numbers against text"
)

# Rule -> (severity, text, remedy). A rule is the finding's kind, then a dot and which of that
# kind's texts it is. An error is what a run would die of or learn the wrong thing from; a warning
# is probably not intended; a note is to know.
TEXTS: dict[str, tuple[str, str, str]] = {
    # the task
    "answer_column": ("warning", "the answers were taken from the column {column!r}: no row has "
                                 "answer_column {named!r}",
        "Task(answer_column={column!r})"),
    "answer_column.constant": ("warning", "every row has the same answer, which cannot be one: the "
                                          "reference was guessed",
        "Task(answer_column=...), or Task(ideal=lambda row: ...) for what a reference completion "
        "looks like"),
    "case": ("error", "regression case, {case}", "correct the function, or the case"),
    "case.fails": ("error", "{value}", "{remedy}"),
    "constant.none": ("error", "on {silent} of {rows} prompts no function applies (each returns "
                               "None), for example {row:.200}",
        "return a number where it applies; does it look for a value that the rows do not have?"),
    "cut": ("error", "a reference completion takes {longest} tokens, and {limit} fit ({format})",
    "raise max_completion_length"),
    "writes": ("note", "{files} appeared in the working directory: the functions were called, and "
                       "wrote it",
        "delete it, or let them write elsewhere"),
    "other_rewards": ("note", "{advice}", ""),
    # can it be called?
    "signature": ("error", "{value}", "{remedy}"),
    "signature.style": ("warning", "is written as {style}", "TRL itself calls by keyword"),
    "needs_column": ("error", "{value}", "{remedy}"),
    "chat_plain": ("note", "{note}", ""),
    "chat_plain.wrong": ("warning", "{note}", "the workbench gives it what it reads; TRL itself "
                                              "does not"),
    # does it fail?
    "returns": ("error", "{value}", "{remedy}"),
    "returns.value": ("error", "{error}, on {failed} of {tried} completions" + _FIRST,
        "return a finite number, or None where the function does not apply"),
    "raises": ("error", "{error}, on {failed} of {tried} completions" + _FIRST,
        "return a low score, or None, where there is nothing to read; an exception ends the run"),
    "late": ("error", "{failed} of {tried} completions were not scored in time ({deadline:g} s for "
                      "all of them)" + _FIRST,
        "if it hangs (a pattern that backtracks), restrict the pattern, or cut the text first; if "
        "it is only slow (a judge), "
        "allow more time: --deadline"),
    "slow": ("note", "takes {each:.2g} s per completion: a step of 64 waits {step:.0f} s for it",
        "make it faster, or a coroutine"),
    "no_deadline": ("note", "runs without a deadline, in this process: {reason}", ""),
    # can it pay?
    "constant": ("error", "cannot pay: {score:g} for each of {tried} completions, right, wrong or "
                          "empty: no signal{never}",
        "score what differs between completions; give a function that only prints the weight 0"),
    "constant.penalty": ("warning", "never strikes: {score:g} for each of {tried} "
                                    "completions{never}",
        "add a completion that triggers it to the task's probes"),
    "constant.guessed": ("warning", "{score:g} for each of {tried} completions; the reference was "
                                    "guessed ({reference!r}){never}",
        _SHOW),
    "cannot_pay": ("error", _EARNS, _COMPARE),
    "cannot_pay.layout": ("warning", _EARNS, _COMPARE),
    "cannot_pay.penalty": ("error",
        "a penalty that strikes what the prompt asks for: the reference completion is charged "
        "{earned:g}",
        "let it spare what a completion needs, or ask for something else in the prompt"),
    "cannot_pay.guessed": ("warning",
        "the reference was guessed ({reference!r}), and it earns {earned:g} of "
        "{most:g}{also}{never}", _SHOW),
    # Why it cannot: added to the finding that it cannot pay, in place of that one's remedy.
    "cause.number": ("error", "the answer is of type {type} here ({answer}), and a completion "
                              "gives text: "
        "with str(answer) it pays {paid:g}", "compare with str(answer), or write the answers as "
                                             "text"),
    "cause.form": ("error", "it reads {reads}, but gets {given}: with {reads} it pays {paid:g}",
        "read workbench.rewards.completion_text(completion), which takes both"),
    "cause.batch": ("error", "alone a reference completion earns {paid:g}, an empty one {empty:g}; "
                             "in a batch all earn the same",
        "give each completion its own score, not the batch's mean, sum or maximum"),
    "sometimes": ("warning", "pays the reference completion in full on {paid} of {rows} prompts; "
                             "{earned:g} on prompt {row}",
        "look at that prompt and its answer: can the score be earned there?"),
    "sometimes.never": ("note", "does not apply to the prompts that were tried (None for each)",
    ""),
    "unreached": ("note", "no reference completion that was tried reaches {branch}", ""),
    "tokenizer": ("error", "cannot pay with this tokenizer: a reference completion earns {paid:g}, "
                           "decoded {left}: {reason}",
        "use tags that are plain text to the tokenizer, and do not ask for what the template "
        "writes itself"),
    "layout": ("warning", "pays a reference completion only when it is written {style}, and the "
                          "prompt does not say so",
        "show the exact format in the prompt, or let the pattern allow more (\\s*)"),
    "spelling": ("warning", "the right answer earns no more than a wrong one when it is written "
                            "{ways}",
        "compare numbers, not text: workbench.rewards.compare.same_answer"),
    # what else pays?
    "hackable": ("error", "{what} earns {earned:g}, the reference completion {reference:g}: "
                          "{name!r}{others}",
        "pay only for what the reference completion has and this one lacks"),
    "padding": ("warning", "{names} earns as much as the reference completion: no function minds "
                           "the text around it",
        "to enforce the format, pay for it (strict_format_reward) or for brevity"),
    "silence": ("warning", "an empty completion earns {empty:g} from it, the reference completion "
                           "{reference:g}",
        "pay nothing for a completion without an answer, or weigh it far below the right answer"),
    "right_by": ("warning", "calls a wrong answer right: it earns {score:g}, and {counts} counts "
                            "as right ({chosen})",
        "name the function that judges the answer: right_by=NAME, or right_by=(NAME, LEAST) where "
        "it gives partial credit"),
    "overlap": ("note", "ranks the probes much as {other} does (rank correlation {alike:.2f}): one "
                        "thing is paid twice",
        "give one of the two less weight if that is not intended"),
    # how does it score?
    "scale": ("note", "is the only function: multiplying its scores, or its weight, changes no "
                      "advantage",
        "GRPO divides by the group's std anyway, unless scale_rewards is none"),
    "state": ("note", "nothing calls its method {method!r} during a run", ""),
    "random": ("warning", "does not repeat: the same completions score differently when scored "
                          "again, or beside others",
        "a score that depends on chance or on earlier calls teaches chance; the findings below may "
        "also be chance"),
    "unit": ("note", "counts characters{best}{but}",
        "count completion_ids for tokens, or say characters in its name or docstring"),
    "unbounded": ("warning", "its score {moves} without a bound as text is added: one long "
                             "completion decides its whole group",
        "cap it: max(-1.0, ...) or min(1.0, ...)"),
    "evaluates": ("warning", "{place}: runs what a model wrote as Python, with all the rights of "
                             "this process",
        "use a parser (workbench.rewards.verifiers.evaluate_expression), or a sandbox"),
    "swallows": ("warning", "{place}: an exception becomes a score there, unnoticed",
        "catch only what you expect of a completion, such as ValueError from float(...)"),
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing."""

    kind: str  # a word for scripts: the part before the dot of a key of `TEXTS`
    severity: str  # "error", "warning" or "note"
    function: str  # the reward function; empty: the task as a whole
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        name = f"{self.function}: " if self.function else ""
        return f"{self.severity}: {name}{self.text}" + (
            f"\n  -> {self.remedy}" if self.remedy else ""
        )


def finding(
    rule: str, function: str = "", severity: str | None = None, **values: object
) -> Finding:
    """The finding of a rule of `TEXTS`, its text filled with these values; `severity`: another than
    the table's.
    """
    usual, text, remedy = TEXTS[rule]
    return Finding(
        rule.partition(".")[0],
        severity or usual,
        function,
        text.format(**values),
        remedy.format(**values),
    )


class Text(NamedTuple):
    """One completion of the table."""

    row: int
    kind: str  # REFERENCE, PROBE or SPELLING
    name: str
    text: str
    right: bool = True
    own: bool = False


@dataclass(frozen=True)
class ScoreTable:
    """Completions of several rows and their scores."""

    texts: list[Text]
    names: list[str]  # functions
    scores: np.ndarray  # [N, F], NaN where a function did not apply or failed
    weights: np.ndarray  # [F]
    maxima: list[float | None]  # [F], as declared
    guessed: bool = False  # the reference completions are a guess, on which no error can rest
    shown: bool = True  # the prompt shows where the lines of the format break

    @property
    def totals(self) -> np.ndarray:
        """[N] weighted sums; NaN where no function applied."""
        silent = np.isnan(self.scores).all(axis=1)
        return np.where(silent, np.nan, np.nansum(self.scores * self.weights, axis=1))

    @property
    def reference_total(self) -> float:
        """Mean total of the reference completions; NaN if nothing applied to them."""
        return mean_of_known(self.totals[self.at(REFERENCE, AS_ASKED)])

    def at(self, kind: str, name: str | None = None) -> np.ndarray:
        """[N] which texts are of a kind (and name)."""
        return np.array(
            [text.kind == kind and (name is None or text.name == name) for text in self.texts]
        )

    @property
    def confirmed(self) -> bool:
        """Whether the reference is not a guess, or earns more than the same completion with a wrong
        answer.
        """
        wrong = mean_of_known(self.totals[self.at(PROBE, "a wrong answer")])
        return not self.guessed or self.reference_total > wrong + _CLOSE

    def column(self, function: str) -> np.ndarray:
        """[N] scores of one function."""
        return self.scores[:, self.names.index(function)]


def paying(
    table: ScoreTable, function: str, unreached: Callable[[str], Sequence[Unreached]], varies: bool
) -> Iterator[Finding]:
    """Whether a reference completion earns all that the function can pay.

    `unreached` names the branches that none reaches; where a score `varies` with the length, their
    differences say nothing.
    """
    scores, declared, at = (
        table.column(function),
        table.maxima[table.names.index(function)],
        table.at(REFERENCE, AS_ASKED),
    )
    known, earned, reference = scores[~np.isnan(scores)], scores[at], table.texts[0].text[:80]
    if np.isnan(earned).all():
        yield finding("sometimes.never", function)
        return
    if known.max() - known.min() < _CLOSE:
        branches = unreached(function)
        could_pay = any(branch.pays > 0 for branch in branches)
        penalty = not could_pay and any(branch.takes < 0 for branch in branches)
        rule = (
            "constant.penalty"
            if penalty
            else (
                "constant.guessed" if table.guessed and (could_pay or known[0] <= 0) else "constant"
            )
        )
        yield finding(
            rule,
            function,
            score=known[0],
            tried=known.size,
            reference=reference,
            never=_never(branches),
        )
        return
    rows = [table.texts[index].row for index in np.flatnonzero(at)]
    targets = [_target(table, scores, row, declared, known.min(), varies) for row in rows]
    paid, mean = (
        [not score < target for score, target in zip(earned, targets, strict=True)],
        float(np.nanmean(earned)),
    )
    if not any(paid):
        most = declared if declared is not None else known.max()
        of_first = [
            each
            for each in zip(table.texts, scores, strict=True)
            if each[0].row == table.texts[0].row
        ]
        would = [
            t.name
            for t, score in of_first
            if t.kind == REFERENCE and t.name != AS_ASKED and score >= targets[0]
        ]
        hacks = [
            t.name
            for t, score in of_first
            if t.kind == PROBE and not t.right and score >= most - _CLOSE
        ]
        only = (
            f"; it pays only {' or '.join(would)}"
            if would
            else "; it pays no reference completion that was tried"
        )
        also = f"; {hacks[0]!r} earns {most:g}" if hacks else ""
        layout = would and not table.shown  # which of its layouts a policy writes is open
        rule = (
            "cannot_pay.layout"
            if layout
            else "cannot_pay.guessed"
            if table.guessed
            else "cannot_pay"
        )
        if rule == "cannot_pay" and most <= 0:
            rule = "cannot_pay.penalty"
        values: Fields = {
            "earned": mean,
            "most": most,
            "only": only,
            "also": also,
            "never": _never(unreached(function)),
        }
        yield finding(rule, function, reference=reference, **values)
        return
    if not all(paid):
        index = paid.index(False)
        yield finding(
            "sometimes",
            function,
            paid=sum(paid),
            rows=len(paid),
            row=rows[index],
            earned=earned[index],
        )
    empty = mean_of_known(scores[table.at(PROBE, "empty")])
    if empty > mean + _CLOSE:
        yield finding("silence", function, empty=empty, reference=mean)


def _target(
    table: ScoreTable,
    scores: np.ndarray,
    row: int,
    declared: float | None,
    lowest: float,
    varies: bool,
) -> float:
    if declared is not None:
        return declared - _CLOSE
    mine = [text.row == row and text.kind in (REFERENCE, SPELLING) for text in table.texts]
    if varies or np.isnan(scores[mine]).all():
        return -np.inf  # nothing can be said, or it does not apply to this prompt
    best, any_text = (
        np.nanmax(scores[mine]),
        np.nanmax(scores[[text.row == row for text in table.texts]]),
    )
    if best < lowest + _POOR * (any_text - lowest):  # what pays is not what an honest policy writes
        best = any_text
    return lowest + _PAID * (best - lowest) if best > lowest else lowest + _CLOSE


def _never(branches: Sequence[Unreached]) -> str:
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
    reference, found = table.reference_total, []
    for name in dict.fromkeys(text.name for text in table.texts if text.kind == PROBE):
        at = table.at(PROBE, name)
        total, first = mean_of_known(table.totals[at]), table.texts[int(at.argmax())]
        scores = {function: mean_of_known(table.column(function)[at]) for function in table.names}
        share = total / reference if reference > _CLOSE else None
        found.append(ProbeResult(name, total, share, scores, first.right, first.own, first.text))
    return sorted(
        found,
        key=lambda probe: (
            -round(probe.total, 9) if probe.total == probe.total else np.inf,
            len(probe.example),
        ),
    )


def hackable(table: ScoreTable) -> Iterator[Finding]:
    """The reward hacks that earn as much as the reference completion, and the right but padded
    answers that earn more.
    """
    reference, totals = table.reference_total, table.totals
    lowest = float(np.nanmin(totals)) if np.isfinite(totals).any() else np.nan
    if not np.isfinite(reference) or (table.guessed and reference <= lowest + _CLOSE):
        return  # what a reference completion would be is not known
    if not table.confirmed and not all(
        _pays(table, name) for name, weight in zip(table.names, table.weights) if weight
    ):
        return  # nor what it would earn
    probes = leaderboard(table)
    # What the worst earns is no pay, though a reference completion earns no more.
    paid = max(reference, lowest + 2 * _CLOSE)
    hacks = [probe for probe in probes if not probe.right and probe.total >= paid - _CLOSE]
    padded = [probe for probe in probes if probe.right and probe.total > reference + _CLOSE]
    for what, these in (("a reward hack", hacks), ("a padded answer", padded)):
        if these:
            first, others = these[0], _listed([probe.name for probe in these[1:]])
            values = {
                "what": what,
                "earned": first.total,
                "reference": reference,
                "name": first.name,
            }
            severity = None if table.confirmed else "warning"
            values["others"] = f" (and no less: {others})" if others else ""
            yield finding("hackable", _payer(table, first), severity, **values)
    around = [
        probe.name
        for probe in probes
        if probe.name in AROUND and abs(probe.total - reference) <= _CLOSE
    ]
    if around and not hacks and reference > lowest + _CLOSE:
        yield finding("padding", names=_listed(around))


def _pays(table: ScoreTable, function: str) -> bool:
    scores = table.column(function)
    return mean_of_known(scores[table.at(REFERENCE, AS_ASKED)]) > np.nanmin(scores) + _CLOSE


def _payer(table: ScoreTable, probe: ProbeResult) -> str:
    # The function that pays a reward hack most; where none does, or it is right, the one that pays
    # it most beyond the reference.
    if len(table.names) == 1:
        return table.names[0]
    weighted = table.scores * table.weights
    paid, reference = (
        np.nan_to_num([mean_of_known(column) for column in weighted[which].T], nan=0.0)
        for which in (table.at(PROBE, probe.name), table.at(REFERENCE, AS_ASKED))
    )
    more = paid - reference
    chosen = more if probe.right or paid.max() <= _CLOSE else paid + _CLOSE * np.sign(more)
    return table.names[int(chosen.argmax())] if chosen.max() > 0 else ""


def _listed(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def mean_of_known(values: np.ndarray) -> float:
    """The mean without the NaNs; NaN if there is nothing else."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def spelling(table: ScoreTable, function: str) -> Iterator[Finding]:
    """Right answers, written in another way, that a function which looks at the answer does not
    pay.
    """
    scores = table.column(function)
    right, wrong = scores[table.at(SPELLING, RIGHT)], scores[table.at(SPELLING, WRONG)]
    known = wrong.size and np.isfinite(wrong).any() and np.isfinite(right).any()
    if not known or not np.nanmax(right) > np.nanmax(wrong) + _CLOSE:
        return  # it does not look at the answer
    best: dict[tuple[int, str], float] = {}
    for text, score in zip(table.texts, scores, strict=True):
        if text.kind == SPELLING and score == score:
            best[text.row, text.name] = max(score, best.get((text.row, text.name), -np.inf))
    ways: dict[str, str] = {}  # one example of each way that is not paid somewhere
    for (row, name), score in best.items():
        low = best.get((row, WRONG), np.inf) + _CLOSE
        if name != WRONG and score <= low < best.get((row, RIGHT), -np.inf):
            ways.setdefault(next((mark for mark in (".0", "$", ",") if mark in name), "."), name)
    if ways:
        yield finding("spelling", function, ways=" or ".join(ways.values()))


def overlaps(table: ScoreTable) -> Iterator[Finding]:
    """Functions that rank the probes alike, and so pay twice for one thing."""
    from scipy.stats import spearmanr

    paid, scores = np.flatnonzero(table.weights), table.scores[table.at(PROBE)]
    for first, second in ((first, second) for second in paid for first in paid if first < second):
        both = scores[:, [first, second]][~np.isnan(scores[:, [first, second]]).any(axis=1)]
        if (
            len(both) >= 3
            and np.ptp(both, axis=0).all()
            and (alike := float(spearmanr(*both.T).statistic)) >= _ALIKE
        ):
            yield finding("overlap", table.names[second], other=table.names[first], alike=alike)
