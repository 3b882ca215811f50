"""Can these rewards pay, and what do reward hacks earn? All that is known of a task's rewards
before any training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas

from workbench.audit import of_task
from workbench.audit.causes import cause_of
from workbench.audit.completions import AS_ASKED, builders
from workbench.audit.findings import (
    REFERENCE,
    UNPAID,
    Finding,
    Findings,
    ProbeResult,
    ScoreTable,
    finding,
    leaderboard,
    paying,
    spelling,
)
from workbench.audit.lengths import length_findings, token_findings
from workbench.audit.regression_cases import load_cases
from workbench.audit.starts import start_findings
from workbench.audit.trial import (
    Scoring,
    Trial,
    adopt_style,
    completions_of,
    refusal,
    score_all,
    spread,
    table_of,
)
from workbench.base.errors import RewardError, TaskError
from workbench.base.kinds import Fields, Tokenizer
from workbench.data.rendering import check_embedded
from workbench.rewards.code import has_state, judge_of
from workbench.rewards.execution import OWN
from workbench.rewards.library import max_score_of
from workbench.rewards.suite import RewardSuite
from workbench.rewards.tracing import Unreached, broad_handlers, calls_of, unreached
from workbench.task import Task
from workbench.tasks.loading import load_task

SLOW_S = 0.05  # per completion, from which a function is worth a word
_SEVERITIES = ("error", "warning", "note")


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
        trial = Trial(task, suite, tried, builders(task, tried), max_completion_length)
        audit = _audit(trial, tokenizer, cases, progress or (lambda done, of: None))
    return replace(audit, seconds=time.monotonic() - started)


def _audit(
    trial: Trial,
    tokenizer: Tokenizer | None,
    cases: str | None,
    progress: Callable[[int, int], None],
) -> RewardAudit:
    suite, first, files = trial.suite, trial.first, set(os.listdir())
    refused = _not_callable(trial)
    given = suite.given_by_environments
    judged = [name for name in suite.names if judge_of(suite.functions[name])]
    usable = [name for name in suite.names if name not in {*refused, *given, *judged}]
    # starts the worker, whose imports are no function's seconds
    formats = suite.input_formats(trial.rows)
    findings = [*of_task.answer_column(trial), *refused.values(), *adopt_style(trial, usable)]
    findings += of_task.labels(trial, usable)
    findings += [finding("environment", name) for name in given]
    findings += [finding("judge", name) for name in judged]
    findings += [finding("turns")] if trial.task.for_turns and usable else []
    texts = [text for row in range(len(trial.rows)) for text in completions_of(trial, row)]
    measured: dict[str, Scoring] = dict.fromkeys(suite.names, Scoring())
    for done, name in enumerate(usable):
        progress(done, len(usable))
        measured[name] = score_all(trial, name, texts)
    progress(len(usable), len(usable))
    findings += [each.failure for each in measured.values() if each.failure]
    table = table_of(trial, texts, measured)
    names, units = [*table.scores], dict.fromkeys(suite.names, "")
    for name in names:
        units[name], about_length = _length(trial, table, name, measured[name].late)
        findings += about_length
        findings += _of_function(trial, table, name, measured[name], bool(units[name]))
    findings += of_task.of_all(trial, table, formats)
    findings += _decoded(trial, names, tokenizer)
    findings = [*of_task.of_weights(trial, table), *of_task.one_cause(trial, findings)]
    findings += start_findings(trial.task, trial.rows, suite.deadline_s)
    known = load_cases(trial.task, cases)
    if names == [name for name in suite.names if name not in {*given, *judged}]:
        findings += of_task.of_cases(trial, known)
    if new := sorted(set(os.listdir()) - files):
        findings.append(finding("writes", files=", ".join(map(repr, new[:3]))))
    return RewardAudit(
        trial.task.name,
        str(first.format),
        len(trial.rows),
        len(texts),
        table.texts.text[table.at(REFERENCE, AS_ASKED)].iloc[0],
        table.reference_total if names else 0.0,
        not table.confirmed,
        [_report(suite, table, name, measured[name], units[name]) for name in suite.names],
        leaderboard(table) if names else [],
        sorted(findings, key=lambda each: _SEVERITIES.index(each.severity)),
        len(known),
        seconds=0.0,
    )


def _not_callable(trial: Trial) -> dict[str, Finding]:
    refused = {}
    for name in trial.suite.names:
        try:
            trial.suite.check_signatures(trial.task.rows, [name])
        except TaskError as error:
            rule = "signature" if "does not accept" in error.value else "needs_column"
            refused[name] = refusal(rule, name, error)
    return refused


def _length(trial: Trial, table: ScoreTable, name: str, late: bool) -> tuple[str, list[Finding]]:
    # The unit in which a function counts lengths, and what is wrong with that.
    of_first = table.texts.row == 0
    texts = [*table.texts.text[of_first]]
    with contextlib.suppress(RewardError):
        if not late:
            again = trial.scored(name, trial.rows[:1] * len(texts), texts).scores
            if not np.array_equal(table.scores[name][of_first], again, equal_nan=True):
                return "", [finding("random", name)]
            return length_findings(trial, name)
    return "", []


def _decoded(trial: Trial, names: list[str], tokenizer: Tokenizer | None) -> Findings:
    try:
        if tokenizer is not None and names:
            yield from token_findings(trial, names, tokenizer)
    except RewardError as error:
        yield refusal("returns", "", error)


def _of_function(
    trial: Trial, table: ScoreTable, name: str, measured: Scoring, varies: bool
) -> Findings:
    def never_reached(names: Sequence[str] = (AS_ASKED,)) -> list[Unreached]:
        tried = table.texts[(table.texts.kind == REFERENCE) & table.texts.name.isin(names)]
        rows = [trial.rows[row] for row in tried.row]
        trace = None if measured.late else trial.suite.trace(name, rows, [*tried.text])
        return unreached(trial.suite.functions[name], trace) if trace is not None else []

    payment = list(paying(table, name, never_reached, varies, failed=measured.failure is not None))
    unpaid = next((each for each in payment if each.kind in UNPAID), None)
    if unpaid and not measured.late and (cause := cause_of(trial, table, name, unpaid)):
        text = f"{unpaid.text}; {cause.text}"
        payment = [replace(unpaid, severity=cause.severity, text=text, remedy=cause.remedy)]
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
    yield from _of_code(trial.suite, name)
    if (each := measured.seconds / len(table.texts)) > SLOW_S:
        yield finding("slow", name, each=each, step=64 * each)


def _of_code(suite: RewardSuite, name: str) -> Findings:
    function, place = suite.functions[name], suite.functions.places[name]
    for line in calls_of(function, ("eval", "exec")):
        yield finding("evaluates", name, place=line)
    for line in broad_handlers(function):
        yield finding("swallows", name, place=line)
    if place != OWN and place.startswith("here: "):
        yield finding("no_deadline", name, reason=place.removeprefix("here: "))
    for method in vars(type(function)) if has_state(function) else ():
        if not method.startswith("_") and callable(getattr(function, method)):
            yield finding("state", name, method=method)


def _report(
    suite: RewardSuite, table: ScoreTable, name: str, measured: Scoring, unit: str
) -> FunctionReport:
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
