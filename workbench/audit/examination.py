"""Can these rewards pay, and what do reward hacks earn? All that is known of a task's rewards
before any training.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas

from workbench.audit.completions import (
    AS_ASKED,
    WORDS_ONCE,
    CompletionBuilder,
    answer_of,
    as_numbers,
    builders,
    probes,
    spellings,
)
from workbench.audit.findings import (
    PROBE,
    REASONED,
    REFERENCE,
    RIGHT,
    SPELLING,
    WRONG,
    Finding,
    Findings,
    ProbeResult,
    ScoreTable,
    Text,
    finding,
    hackable,
    leaderboard,
    paying,
    spelling,
)
from workbench.audit.lengths import length_findings, token_findings
from workbench.audit.prompt_format import asking_text, format_advice
from workbench.audit.regression_cases import RegressionCase, failed_cases, load_cases
from workbench.audit.starts import start_findings
from workbench.data.answer_column import LABELS, folded, is_number
from workbench.data.prompts import to_messages
from workbench.data.rendering import check_embedded
from workbench.errors import RewardError, TaskError, WorkbenchError
from workbench.kinds import Fields, Function, Tokenizer
from workbench.rewards import library
from workbench.rewards.chat_or_text import InputFormat
from workbench.rewards.code import judge_of
from workbench.rewards.execution import OWN, UNJUDGED, Scored, takes_environments
from workbench.rewards.library import max_score_of
from workbench.rewards.suite import RewardSuite
from workbench.rewards.tracing import (
    Unreached,
    broad_handlers,
    calls_of,
    keywords_of,
    overlooks,
    unreached,
)
from workbench.task import Row, Task
from workbench.tasks.loading import load_task
from workbench.workspace import encodable

_UNPAID = {"cannot_pay", "constant"}  # kinds of findings
SLOW_S = 0.05  # per completion, from which a function is worth a word


@dataclass(frozen=True)
class FunctionReport:
    """One reward function in numbers."""

    name: str
    weight: float
    maximum: float | None  # as it declares; None: it declares none
    # mean over the rows of what a reference completion earns; None: does not apply, or failed
    reference: float | None
    lowest: float | None
    highest: float | None
    unit: str  # that it counts lengths in
    hash: str
    seconds: float  # for all completions of the audit


@dataclass(frozen=True)
class RewardAudit:
    """The result of an audit of a task's rewards. A cell shows it as a chart, the findings and two
    tables.
    """

    task: str
    format: str  # that the first prompt asks for
    rows: int
    completions: int
    reference: str  # the reference completion of the first row
    reference_total: float
    guessed: bool  # nothing confirms that an honest completion looks like that
    functions: list[FunctionReport]
    probes: list[ProbeResult]  # best paid first
    findings: list[Finding]  # errors first
    cases: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether there is no error: every function can pay, no reward hack earns as much as the
        reference, every case holds.
        """
        return not any(finding.severity == "error" for finding in self.findings)

    @property
    def best_hack(self) -> ProbeResult | None:
        """The best paid completion that does not do what the prompt asks."""
        return next((probe for probe in self.probes if not probe.right), None)

    @property
    def verdict(self) -> str:
        """One line: what the best reward hack earns, and what is wrong."""
        best, waste = self.best_hack, next((probe for probe in self.probes if probe.right), None)
        if best is None:
            earned = "no reward hack could be tried"
        elif best.share is None:
            reference = f"the reference completion earns {self.reference_total:g}"
            earned = f"{reference}, the best reward hack {best.total:g} ({best.name})"
        else:
            share = f"{best.share:.0%} of the reference completion"
            earned = f"the best reward hack ({best.name}) earns {share}"
        more = max(self.reference_total + 1e-6, best.total if best else -np.inf)
        if waste and waste.total > more:
            padded = f"{waste.share:.0%}" if waste.share else f"{waste.total:g}"
            earned += f", a padded one ({waste.name}) {padded}"
        severities = [finding.severity for finding in self.findings]
        counts = [(severities.count(each), each) for each in ("error", "warning")]
        shown = [f"{n} {word}{'s' * (n != 1)}" for n, word in counts if n or word == "error"]
        found = ", ".join(shown)
        if found == "0 errors" and best and not self.guessed:
            found = "nothing is wrong"
        guess = ", and the reference was guessed" if self.guessed and self.ok else ""
        return f"{earned}; {found}{guess}"

    def __str__(self) -> str:
        return "\n".join([f"{self.task}: {self.verdict}", *map(str, self.findings)])

    def found(self) -> Fields:
        """For `--json`: plain values."""
        return {"ok": self.ok, "verdict": self.verdict, **dataclasses.asdict(self)}


def audit_rewards(
    task: Task | str | Path,
    *,
    rows: int = 6,
    weights: dict[str, float] | None = None,
    tokenizer: Tokenizer | None = None,
    max_completion_length: int = 512,
    cases: str | None = None,
    deadline_s: float = 10.0,
    progress: Callable[[int, int], None] | None = None,
) -> RewardAudit:
    """Score reference completions and reward hacks of a task's prompts, and report what is wrong.

    Args:
        task: a `Task`, a task file, or the name of a task that ships.
        rows: prompts to try, spread over the task's.
        weights: by function, where they differ from the task's.
        tokenizer: the policy's; None: its effect on a completion is not checked.
        max_completion_length: tokens; the probe that never ends is cut there.
        cases: file of regression cases; None: where the task says.
        deadline_s: for one function and one batch of completions.
        progress: called with (functions done, functions).

    Raises:
        TaskError: if the task has no rows, or one of its probes or cases cannot be read.
        PolicyError: if a prompt has a token that the policy's embedding lacks.

    >>> wb.audit_rewards("arithmetic").verdict
    'the best reward hack (a wrong answer, in few words) earns 58% of the reference completion;
    nothing is wrong'
    """
    started = time.monotonic()
    task = load_task(task)
    if not len(task.rows):
        raise TaskError(
            f"task {task.name!r}: 0 prompts",
            rule="probes are made from prompts",
            remedy="give the task rows",
        )
    if tokenizer is not None:
        check_embedded(tokenizer, task.rows)
    suite = RewardSuite(task, 1, weights, deadline_s=deadline_s, on_error="skip", keep_state=False)
    tried = spread(task.rows, rows)
    with contextlib.closing(suite):
        trial = _Trial(task, suite, tried, builders(task, tried), max_completion_length)
        audit = _audit(trial, tokenizer, cases, progress or (lambda done, of: None))
    return replace(audit, seconds=time.monotonic() - started)


def spread(rows: Sequence[Any], count: int) -> list[Any]:
    """At most `count` rows, from the first to the last, so that a part which differs is met."""
    count = min(count, len(rows))
    return [rows[round(index * (len(rows) - 1) / max(1, count - 1))] for index in range(count)]


@dataclass(frozen=True)
class _Trial:
    """A task's rewards, the prompts that they are tried on, and how an honest policy answers."""

    task: Task
    suite: RewardSuite
    rows: list[Row]
    builders: list[CompletionBuilder]
    limit: int  # tokens of a completion

    def scored(self, name: str, rows: Sequence[Row], texts: Sequence[str]) -> Scored:
        return self.suite.score_each(rows, texts, names=[name], quiet=True)[name]


class _Measured(NamedTuple):
    """How one function scored all completions."""

    scores: list[float] | None = None  # None: it scored none of them
    seconds: float = 0.0
    late: bool = False
    failure: Finding | None = None


def _audit(
    trial: _Trial,
    tokenizer: Tokenizer | None,
    cases: str | None,
    progress: Callable[[int, int], None],
) -> RewardAudit:
    suite, first, files = trial.suite, trial.builders[0], set(os.listdir())
    refused = _not_callable(trial)
    given = suite.given_by_environments
    judged = [name for name in suite.names if judge_of(suite.functions[name])]
    usable = [name for name in suite.names if name not in {*refused, *given, *judged}]
    # starts the worker, whose imports are no function's seconds
    formats = suite.input_formats(trial.rows)
    findings = [*_answer_column(trial), *refused.values(), *_adopt_style(trial, usable)]
    findings += _labels(trial, usable)
    findings += [finding("environment", name) for name in given]
    findings += [finding("judge", name) for name in judged]
    findings += [finding("turns")] if trial.task.for_turns and usable else []
    texts = [
        text for row, builder in enumerate(trial.builders) for text in _texts(trial, row, builder)
    ]
    measured: dict[str, _Measured] = dict.fromkeys(suite.names, _Measured())
    for done, name in enumerate(usable):
        progress(done, len(usable))
        measured[name] = _measure(trial, name, texts)
    progress(len(usable), len(usable))
    findings += [each.failure for each in measured.values() if each.failure]
    table = _table(trial, texts, measured)
    names, units = [*table.scores], dict.fromkeys(suite.names, "")
    for name in names:
        units[name], about_length = _length(trial, table, name, measured[name].late)
        findings += about_length
        findings += _of_function(trial, table, name, measured[name], bool(units[name]))
    findings += _of_all(trial, table, formats)
    try:
        if tokenizer is not None and names:
            findings += token_findings(suite, trial.builders, names, tokenizer, trial.limit)
    except RewardError as error:
        findings.append(_refusal("returns", "", error))
    findings = [*_of_task(trial, table), *_one_cause(trial, findings)]
    findings += start_findings(trial.task, trial.rows, trial.suite.deadline_s)
    known = load_cases(trial.task, cases)
    if names == [name for name in suite.names if name not in {*given, *judged}]:
        findings += _of_cases(trial, known)
    if new := sorted(set(os.listdir()) - files):
        findings.append(finding("writes", files=", ".join(map(repr, new[:3]))))
    return RewardAudit(
        trial.task.name,
        str(first.format),
        len(trial.rows),
        len(texts),
        _reference(table),
        table.reference_total if names else 0.0,
        not table.confirmed,
        [_report(trial, table, name, measured[name], units[name]) for name in suite.names],
        leaderboard(table) if names else [],
        sorted(findings, key=lambda each: ("error", "warning", "note").index(each.severity)),
        len(known),
        seconds=0.0,
    )


def _refusal(rule: str, name: str, error: WorkbenchError) -> Finding:
    return finding(rule, name, value=error.value.removeprefix(f"{name} "), remedy=error.remedy)


def _answer_column(trial: _Trial) -> Findings:
    first, stated = trial.builders[0], trial.task.answer_column
    if not first.column and first.guessed:
        yield finding("answer_column.constant")
    elif first.column not in ("", stated):
        yield finding("answer_column", column=first.column, named=stated)


def _not_callable(trial: _Trial) -> dict[str, Finding]:
    refused = {}
    for name in trial.suite.names:
        try:
            trial.suite.check_signatures(trial.task.rows, [name])
        except TaskError as error:
            rule = "signature" if "does not accept" in error.value else "needs_column"
            refused[name] = _refusal(rule, name, error)
    return refused


def _adopt_style(trial: _Trial, names: Sequence[str]) -> list[Finding]:
    # What a prompt leaves open (line breaks around tags that are only named, numbered steps) is
    # written as it pays.
    first = trial.builders[0]
    styles = first.styles()
    texts = [copy.copy(first).adopt(style) for style in styles]
    woken: dict[str, np.ndarray] = {}  # function that the first style does not wake -> which do
    for name in names if len(texts) > 1 else ():
        with contextlib.suppress(RewardError):  # it is named when all texts are scored
            scores = np.nan_to_num(trial.scored(name, [first.row] * len(texts), texts).scores)
            if scores[0] <= 0 < scores.max():
                woken[name] = scores > 0
    if not woken:
        return []
    # of equals the first, which is nearest to the prompt
    chosen = int(np.argmax(sum(woken.values())))
    for builder in trial.builders:
        builder.adopt(styles[chosen])
    style = styles[chosen]
    rule = "layout.type" if style.other_type else "layout"
    return [finding(rule, name, style=style.name) for name, pays in woken.items() if pays[chosen]]


def _texts(trial: _Trial, row: int, builder: CompletionBuilder) -> Iterator[Text]:
    for name, text in builder.reference_completions().items():
        yield Text(row, REFERENCE, name, text)
    for probe in probes(builder, trial.task.probes, trial.limit):
        yield Text(row, PROBE, *probe)
    if (short := builder.reasoned(builder.reasoning())) != builder.reference:
        yield Text(row, REASONED, AS_ASKED, short)
    form = builder.format
    # a number in JSON is written in one way
    as_text = not form.json or (form.has_text(builder.answer) and not form.guessed)
    varied = trial.task.ideal is None and as_text
    others = spellings(builder.answer, builder.free) if varied else {}
    answers = {RIGHT: builder.answer, WRONG: builder.wrong, **others}
    # In the layouts of two reference completions, so that nothing but the answer differs.
    for compact in (False, True) if others else ():
        reasoning = builder.reasoning(lines=1 if compact else 2)
        for name, answer in answers.items():
            text = builder.write(reasoning, answer, compact=compact)
            yield Text(row, SPELLING, name, text, answer=answer)


def _measure(trial: _Trial, name: str, texts: Sequence[Text]) -> _Measured:
    rows, began = [trial.rows[text.row] for text in texts], time.perf_counter()
    try:
        scored = trial.scored(name, rows, [text.text for text in texts])
    except RewardError as error:
        return _Measured(failure=_refusal("returns", name, error))
    seconds, failed = time.perf_counter() - began, len(scored.errors)
    if not failed:
        return _Measured(scored.scores, seconds)
    index, error = min(scored.errors.items())
    late = any(words in error for words in ("not back", "not asked", "in time", "blocks"))
    rule = "returns.value" if error.startswith("returned ") else "raises"
    failure = finding(
        "late" if late else rule,
        name,
        "warning" if error == UNJUDGED else "",
        error=error,
        name=texts[index].name,
        text=texts[index].text[:80],
        failed=failed,
        tried=len(texts),
        deadline=trial.suite.deadline_s,
    )
    return _Measured(scored.scores if failed < len(texts) else None, seconds, late, failure)


def _table(trial: _Trial, texts: list[Text], measured: dict[str, _Measured]) -> ScoreTable:
    suite, first = trial.suite, trial.builders[0]
    scores = {name: each.scores for name, each in measured.items() if each.scores is not None}
    numbers = spread(range(len(trial.task.rows)), len(trial.rows))
    # A lone surrogate, legal in Python, is no text of Arrow, where pandas keeps what it groups by.
    named = [text._replace(name=encodable(text.name)) for text in texts]
    table = ScoreTable(
        pandas.DataFrame(named, dtype=object),
        pandas.DataFrame(scores, index=range(len(texts)), dtype=float),
        pandas.Series(suite.weights, suite.names)[[*scores]],
        {name: max_score_of(suite.functions[name]) for name in scores},
        first.guessed,
        first.format.shown,
        [f"row {n} (answer {each.answer!r:.60})" for n, each in zip(numbers, trial.builders)],
        len(trial.task.rows),
        [name for name in scores if overlooks(suite.functions[name])],
    )
    # Where no format is asked for, the way of answering that is paid best stands for the
    # reference.
    if first.free and scores:
        names = table.texts.name[table.texts.kind == REFERENCE]
        totals = table.totals.groupby(names).mean().fillna(-np.inf)
        best = max(names.unique(), key=lambda name: (totals[name], name == AS_ASKED))
        renamed = {AS_ASKED: "after its reasoning"} if best != AS_ASKED else {}
        renamed[best] = AS_ASKED
        table.texts.loc[names.index, "name"] = [renamed.get(name, name) for name in names]
    return table


def _reference(table: ScoreTable) -> str:
    return table.texts.text[table.at(REFERENCE, AS_ASKED)].iloc[0]


def _length(trial: _Trial, table: ScoreTable, name: str, late: bool) -> tuple[str, list[Finding]]:
    # The unit in which a function counts lengths, and what is wrong with that.
    of_first = table.texts.row == 0
    texts = [*table.texts.text[of_first]]
    with contextlib.suppress(RewardError):
        if not late:
            again = trial.scored(name, trial.rows[:1] * len(texts), texts).scores
            if not np.array_equal(table.scores[name][of_first], again, equal_nan=True):
                return "", [finding("random", name)]
            return length_findings(trial.suite, name, trial.builders[0])
    return "", []


def _of_function(
    trial: _Trial, table: ScoreTable, name: str, measured: _Measured, varies: bool
) -> Findings:
    function, place = trial.suite.functions[name], trial.suite.functions.places[name]

    def never_reached(names: Sequence[str] = (AS_ASKED,)) -> list[Unreached]:
        tried = table.texts[(table.texts.kind == REFERENCE) & table.texts.name.isin(names)]
        rows = [trial.rows[row] for row in tried.row]
        trace = None if measured.late else trial.suite.trace(name, rows, [*tried.text])
        return unreached(function, trace) if trace is not None else []

    payment = list(paying(table, name, never_reached, varies, failed=measured.failure is not None))
    unpaid = next((each for each in payment if each.kind in _UNPAID), None)
    if unpaid and not measured.late and (cause := _cause(trial, table, name, unpaid)):
        payment = [replace(cause, kind=unpaid.kind, text=f"{unpaid.text}; {cause.text}")]
    for each in payment:
        # with the weight 0 it decides nothing, so it need not pay
        yield each if table.weights[name] else replace(each, severity="note")
    missed = not unpaid and table.maxima[name] is None
    for branch in never_reached(table.texts.name.unique()) if missed else ():
        earned = table.scores[name][table.texts.kind == REFERENCE].max()
        more = branch.pays > earned and not table.guessed and table.weights[name]
        if branch.pays > 0:
            rule = "unreached.more" if more else "unreached"
            yield finding(rule, name, branch=branch, earned=earned)
    yield from spelling(table, name)
    for line in calls_of(function, ("eval", "exec")):
        yield finding("evaluates", name, place=line)
    for line in broad_handlers(function):
        yield finding("swallows", name, place=line)
    if place != OWN and place.startswith("here: "):
        yield finding("no_deadline", name, reason=place.removeprefix("here: "))
    for method in vars(type(function)) if _has_state(function) else ():
        if not method.startswith("_") and callable(getattr(function, method)):
            yield finding("state", name, method=method)
    if (each := measured.seconds / len(table.texts)) > SLOW_S:
        yield finding("slow", name, each=each, step=64 * each)


def _has_state(function: Function) -> bool:
    return not inspect.isroutine(function) and not isinstance(function, functools.partial)


def _cause(trial: _Trial, table: ScoreTable, name: str, unpaid: Finding) -> Finding | None:
    # Why it does not pay: what it is handed is changed, one thing at a time, until it pays the
    # reference.
    function = trial.suite.functions[name]
    first, rows = trial.builders[0], trial.rows
    texts = [builder.reference for builder in trial.builders]
    right, plain = first.row.get(first.column), isinstance(first.row["prompt"], str)
    other_form = to_messages if plain else asking_text
    changes: list[tuple[str, str, Sequence[Any]]] = [
        ("cause.column", column, [row.get(first.column) for row in rows])
        for column in keywords_of(function)
        if column not in first.row
    ]
    changes.append(("cause.form", "prompt", [other_form(row["prompt"]) for row in rows]))
    answers = [each.answer for each in trial.builders]
    if isinstance(right, (int, float)):
        changes.append(("cause.number", first.column, answers))
    elif (values := as_numbers(answers)) and isinstance(right, str):
        changes.append(("cause.text", first.column, values))

    def earned(rows: Sequence[Row], texts: Sequence[str]) -> float:
        return np.nan_to_num(trial.scored(name, rows, texts).scores, nan=-np.inf).max()

    with contextlib.suppress(RewardError):
        now = earned(rows, texts)
        for rule, column, values in changes:
            others = [{**row, column: value} for row, value in zip(rows, values)]
            paid = earned(others, texts)
            if paid > max(now, earned(others, [""] * len(texts))):
                forms = ("plain text", "chat messages")
                return finding(
                    rule,
                    name,
                    paid=paid,
                    column=column,
                    answer=repr(right),
                    type=type(right).__name__,
                    number=type(values[0]).__name__,
                    given=forms[not plain],
                    reads=forms[plain],
                )
        alone, empty = (earned(rows[:1], [text]) for text in (texts[0], ""))
        pair = trial.scored(name, [rows[0]] * 2, [texts[0], ""]).scores
        if alone != empty and np.ptp(np.nan_to_num(pair)) == 0:
            return finding("cause.batch", name, paid=alone, empty=empty)
        scores = table.scores[name]
        paid = table.by_row(scores, REFERENCE, AS_ASKED)
        low, high, more = int(paid.argmin()), int(paid.argmax()), f"{texts[0]} {WORDS_ONCE * 200}"
        rounds = calls_of(function, ("round",))
        # a penalty, or a guess, is no error
        if unpaid.severity != "error" or not table.flat(scores):
            return None
        if rounds and earned(rows[:1], [more]) != paid.iloc[0]:
            return finding("cause.rounding", name, place=rounds[0])
        for column in first.row if paid[low] < paid[high] else ():
            other = {**rows[low], column: rows[high][column]}
            if trial.scored(name, [other], texts[:1]).scores[0] == paid[high]:
                return finding("cause.prompt", name, column=column)
    return None


def _of_all(trial: _Trial, table: ScoreTable, formats: dict[str, InputFormat]) -> Findings:
    fitting = "text" if isinstance(trial.rows[0]["prompt"], str) else "chat"
    for name in table.scores:
        reads = formats[name]
        # Messages for messages: there is nothing to do. One that reads text alone fails once the
        # prompts are chat.
        if reads.note and not fitting == reads.format == "chat":
            rule = "chat_plain" if reads.format in ("either", fitting) else "chat_plain.wrong"
            yield finding(rule, name, note=reads.note)
    for note in trial.suite.notes:
        name, _, style = note.partition(" is written as ")
        if style:
            yield finding("signature.style", name, style=style)
    yield from hackable(table)
    applies = table.scores.loc[:, table.weights != 0].notna().any(axis=1)
    served = applies.groupby(table.texts.row).any()
    of_runs = any(map(takes_environments, trial.task.reward_funcs))
    if len(table.weights) and not served.all() and not of_runs:
        row = {key: value for key, value in trial.rows[served.idxmin()].items() if key != "prompt"}
        values = {"silent": (~served).sum(), "rows": len(served), "row": repr(row)}
        yield finding("constant.none", "", "warning" if table.guessed else "", **values)


def _one_cause(trial: _Trial, findings: list[Finding]) -> Findings:
    # Shipped functions that look for another format than the prompt's cannot pay for one reason.
    first, functions = trial.builders[0], trial.suite.functions
    row = {**first.row, "answer": first.answer} if first.has_answer else first.row
    folded = [
        each
        for each in findings
        if each.severity == "error"
        and each.kind in (*_UNPAID, "needs_column")
        and each.function
        and getattr(functions[each.function], "__module__", "") == library.__name__
    ]
    if trial.task.ideal is None and folded and (advice := format_advice(row)):
        asked, _, fits = advice.partition("; ")
        names = ", ".join(dict.fromkeys(each.function for each in folded))
        yield finding("other_rewards", advice=asked, names=names, fits=fits)
        findings = [each for each in findings if each not in folded]
    yield from findings


def _labels(trial: _Trial, names: Sequence[str]) -> Findings:
    # Answers that are not among those that a schema allows or the prompt lists.
    task, suite, column = trial.task, trial.suite, trial.builders[0].column
    answers = [answer_of(row, column) for row in task.rows]
    counts, shapes = Counter(answers), trial.builders[0].format.shapes
    if is_number(answers[0]) or len(counts) * 2 > len(answers) or len(trial.rows) < 2:
        return
    asked = [_words(asking_text(row["prompt"])) for row in trial.rows]
    plain = [each for each in counts if each == each.strip()]
    said = [each for each in plain if all(_words(each) in text for text in asked)]
    fields = [{str(shape.get(key)) for shape in shapes} for key in {**shapes[0]}] if shapes else []
    lists = [("the JSON that is asked for", each) for each in fields if len(each) < LABELS]
    for where, listed in [*lists, ("the prompt's list", said)]:
        plain = {folded(each): each for each in listed}
        meant = [plain.get(folded(each), "") for each in answers]
        if len(listed) < 2 or meant.count("") * 2 > len(answers):
            continue  # it lists something else, or examples
        odd = [place for place, each in enumerate(answers) if each not in listed]
        spelt, paid = next((place for place in odd if meant[place]), None), ""
        # One who answers by the list: where that is paid, the difference does no harm.
        with contextlib.suppress(RewardError):  # it is named when all texts are scored
            if spelt is not None:
                to = builders(task, [task.rows[spelt], *trial.rows])[0]
                texts = [to.write(to.reasoning(each), each) for each in (meant[spelt], to.answer)]
                scored = suite.score_each([to.row] * 2, texts, names=names, quiet=True).values()
                if any(np.ptp(np.nan_to_num(each.scores)) for each in scored):
                    paid = f"; {meant[spelt]!r} is paid less on row {spelt}"
                else:
                    odd = [place for place in odd if not meant[place]]
        if odd:
            shown = ", ".join(f"{answers[place]!r} (row {place})" for place in odd[:3])
            values = {"count": len(odd), "rows": len(answers), "where": where}
            yield finding("labels", "", "", shown=shown, paid=paid, **values)
        return


def _words(text: str) -> str:
    words = re.sub(r"[^\w&/-]+", " ", text)
    return f" {words.strip()} "


def _of_task(trial: _Trial, table: ScoreTable) -> Findings:
    task, suite = trial.task, trial.suite
    paid = [name for name, weight in zip(suite.names, suite.weights) if weight]
    if len(paid) == 1 and (sum(suite.weights) != 1 or _has_state(suite.functions[paid[0]])):
        yield finding("scale", paid[0])
    # the groups panel and the measurement afterwards take its word for what is right
    right = task.right_function
    if right in table.scores and not table.flat(table.scores[right]):
        wrong = table.scores[right][table.at(PROBE, "a wrong answer")]
        if task.is_right(wrong).any():
            chosen = "right_by" if task.right_by else "no right_by, so the first function"
            values = {"score": wrong.max(), "counts": task.right_words}
            yield finding("right_by", right, chosen=chosen, **values)


def _of_cases(trial: _Trial, cases: list[RegressionCase]) -> Findings:
    try:
        for _, failure in failed_cases(trial.suite, cases, quiet=True):
            yield finding("case", case=failure)
    except RewardError as error:
        yield _refusal("case.fails", "", error)


def _report(
    trial: _Trial, table: ScoreTable, name: str, measured: _Measured, unit: str
) -> FunctionReport:
    suite = trial.suite
    scores = pandas.Series(measured.scores, table.texts.index, dtype=float)
    reference = scores[table.at(REFERENCE, AS_ASKED)].mean()
    pays = [reference, scores.min(), scores.max()]
    return FunctionReport(
        name,
        suite.weights[suite.names.index(name)],
        max_score_of(suite.functions[name]),
        *(None if np.isnan(value) else float(value) for value in pays),
        unit,
        suite.hashes[name],
        measured.seconds,
    )
