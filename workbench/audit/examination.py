"""Can these rewards pay, and what do reward hacks earn? All that can be said about a task's rewards before any training."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.audit import findings as rules
from workbench.audit.findings import (
    PROBE,
    REFERENCE,
    RIGHT,
    SPELLING,
    WRONG,
    Finding,
    ProbeResult,
    ScoreTable,
    Text,
    finding,
    mean_of_known,
)
from workbench.audit.grading import advice
from workbench.audit.lengths import growth, length_findings
from workbench.audit.probes import probes, spellings
from workbench.audit.reference_completion import AS_ASKED, CompletionBuilder, answer_of
from workbench.audit.regression_cases import Case, failed_cases, load_cases
from workbench.audit.tokens import token_findings
from workbench.data.answer_column import ANSWER_ALIASES
from workbench.errors import RewardError, TaskError
from workbench.rewards.chat_or_text import is_chat
from workbench.rewards.execution import OWN, UNJUDGED
from workbench.rewards.library import max_score_of
from workbench.rewards.suite import RewardSuite
from workbench.rewards.tracing import Unreached, broad_handlers, calls_of, unreached
from workbench.task import Row, Task, load_task

DEADLINE_S = 10.0
SLOW_S = 0.05  # per completion, from which a function is worth a word
ROWS = 6
_ORDER = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True)
class FunctionReport:
    """One reward function in numbers."""

    name: str
    weight: float
    maximum: float | None  # as it declares; None: it declares none
    reference: float | None  # mean over the rows of what a reference completion earns; None: does not apply, or failed
    lowest: float | None
    highest: float | None
    unit: str  # that it counts lengths in
    hash: str
    seconds: float  # for all completions of the audit


@dataclass(frozen=True)
class RewardAudit:
    """What an audit found out about a task's rewards. A cell shows it as a chart, the findings and two tables."""

    task: str
    format: str  # that the first prompt asks for
    rows: int
    completions: int
    reference: str  # the reference completion of the first row
    reference_total: float
    functions: list[FunctionReport]
    probes: list[ProbeResult]  # best paid first
    findings: list[Finding]  # errors first
    cases: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong: every function can pay, no reward hack earns as much as the reference, every case holds."""
        return not any(finding.severity == "error" for finding in self.findings)

    @property
    def best_hack(self) -> ProbeResult | None:
        """The best paid completion that does not do what is asked."""
        return next((probe for probe in self.probes if not probe.right), None)

    @property
    def verdict(self) -> str:
        """One line: what the best reward hack earns, and what is wrong."""
        best = self.best_hack
        if best is None:
            earned = "no reward hack could be tried"
        elif best.share is None:
            earned = f"the reference completion earns {self.reference_total:g}, the best reward hack {best.total:g} ({best.name})"
        else:
            earned = f"the best reward hack ({best.name}) earns {best.share:.0%} of the reference completion"
        waste = next((probe for probe in self.probes if probe.right), None)
        if waste is not None and waste.total > self.reference_total + 1e-6 and (best is None or waste.total > best.total):
            earned += f", a padded one ({waste.name}) " + (f"{waste.share:.0%}" if waste.share else f"{waste.total:g}")
        errors = sum(finding.severity == "error" for finding in self.findings)
        return f"{earned}; " + ("nothing is wrong" if not errors else f"{errors} error{'s' if errors > 1 else ''}")

    def __str__(self) -> str:
        return "\n".join([f"{self.task}: {self.verdict}", *map(str, self.findings)])

    def found(self) -> dict[str, Any]:
        """For `--json`: plain values."""
        return {"ok": self.ok, "verdict": self.verdict, **dataclasses.asdict(self)}


def audit_rewards(
    task: Task | str | Path,
    *,
    rows: int = ROWS,
    weights: dict[str, float] | None = None,
    tokenizer: Any = None,
    max_completion_length: int = 512,
    cases: str | None = None,
    deadline_s: float = DEADLINE_S,
    progress: Callable[[int, int], None] | None = None,
) -> RewardAudit:
    """Score reference completions and reward hacks of a task's prompts, and say what is wrong.

    Args:
        task: a `Task`, a task file, or the name of a task that ships.
        rows: prompts to try, spread over the task's.
        weights: by function, where they differ from the task's.
        tokenizer: the policy's; None: what it makes of a completion is not looked at.
        max_completion_length: tokens; the probe that never ends is cut there.
        cases: file of regression cases; None: where the task says.
        deadline_s: for one function and one batch of completions.
        progress: called with (functions done, functions).

    Raises:
        TaskError: if the task has no rows, or one of its probes or cases cannot be read.

    >>> wb.audit_rewards("arithmetic").verdict
    'the best reward hack (a wrong answer, in few words) earns 58% of the reference completion; nothing is wrong'
    """
    started = time.monotonic()
    task = task if isinstance(task, Task) else load_task(task)
    if not len(task.rows):
        raise TaskError(f"task {task.name!r}: 0 prompts", rule="probes are made from prompts", remedy="give the task rows")
    suite = RewardSuite(task, 1, weights, deadline_s=deadline_s, on_error="skip", keep_state=False)
    try:
        audit = _Audit(task, suite, _spread(task.rows, rows), tokenizer, max_completion_length)
        return audit.run(cases, progress or (lambda done, of: None), started)
    finally:
        suite.close()


@dataclass
class _Audit:
    task: Task
    suite: RewardSuite
    rows: list[Row]
    tokenizer: Any
    limit: int
    findings: list[Finding] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  # by function
    late: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.builders = builders(self.task, self.rows)
        self.first = self.builders[0]
        if self.first.column != self.task.answer_column:
            self._add("answer_column", column=self.first.column, named=self.task.answer_column)

    def _add(self, rule: str, function: str = "", severity: str | None = None, **values: Any) -> None:
        self.findings.append(finding(rule, function, severity, **values))

    def run(self, cases: str | None, progress: Callable[[int, int], None], started: float) -> RewardAudit:
        usable = [name for name in self.suite.names if self._fits(name)]
        there = _files_here()
        self.suite.input_formats(self.rows)  # starts the worker, whose imports are no function's seconds
        self._choose_style(usable)
        self.texts = [text for number, builder in enumerate(self.builders) for text in self._texts(number, builder)]
        columns = {}
        for done, name in enumerate(usable):
            progress(done, len(usable))
            if (scored := self._scored(name)) is not None:
                columns[name] = scored
        progress(len(usable), len(usable))
        weights = dict(zip(self.suite.names, self.suite.weights, strict=True))
        names = list(columns)
        table = ScoreTable(
            self.texts,
            names,
            np.array([columns[name] for name in names], dtype=float).T.reshape(len(self.texts), len(names)),
            np.array([weights[name] for name in names], dtype=float),
            [max_score_of(self.suite.functions[name]) for name in names],
            guessed=self.first.guessed,
            shown=self.first.format.shown,
        )
        if self.first.free and names:
            table = self._best_guess(table)
        units = {name: self._look(name, table) for name in names}
        self._input_formats(names)
        if names:
            self.findings += [*rules.hackable(table), *rules.overlaps(table)]
            self._unscored_prompts(table)
            self._through_the_tokenizer(names)
        self._only_function(weights)
        if {"cannot_pay", "constant", "needs_column"} & {each.kind for each in self.findings if each.severity == "error"}:
            row = {**self.first.row, **({"answer": self.first.answer} if self.first.has_answer else {})}
            if line := advice(row):
                self._add("other_rewards", advice=line)
        self._right_by(table)
        known = load_cases(self.task, cases)
        if len(usable) == len(self.suite.names) == len(names):
            self._regression_cases(known)
        if new := sorted(_files_here() - there):
            self._add("writes", files=", ".join(map(repr, new[:3])))
        return RewardAudit(
            task=self.task.name,
            format=str(self.first.format),
            rows=len(self.rows),
            completions=len(self.texts),
            reference=next(t.text for t in self.texts if t.kind == REFERENCE and t.name == AS_ASKED),
            reference_total=table.reference_total if names else 0.0,
            functions=[self._report(name, weights[name], table, units.get(name, "")) for name in self.suite.names],
            probes=rules.leaderboard(table) if names else [],
            findings=sorted(self.findings, key=lambda finding: _ORDER[finding.severity]),
            cases=len(known),
            seconds=time.monotonic() - started,
        )

    # --- the completions and their scores ---

    def _texts(self, number: int, builder: CompletionBuilder) -> list[Text]:
        found = [Text(number, REFERENCE, *each) for each in builder.reference_completions().items()]
        for probe in probes(builder, self.task.probes, self.limit):
            found.append(Text(number, PROBE, probe.name, probe.text, probe.right, probe.own))
        if self.task.ideal is None:
            answer = builder.answer
            others = [(each, each) for each in spellings(answer)]
            for compact in (False, True) if others else ():
                # In the layouts of two reference completions, so that nothing but the answer differs.
                for name, other in ((RIGHT, answer), (WRONG, builder.wrong), *others):
                    reasoning = builder.reasoning(answer, 1 if compact else 2)
                    found.append(Text(number, SPELLING, name, builder.write(reasoning, other, compact=compact)))
        return found

    def _choose_style(self, names: list[str]) -> None:
        # What a prompt leaves open (line breaks around tags that are only named, numbered steps) is written as it pays.
        styles = self.first.styles()
        texts = [self.first.in_style(style) for style in styles]
        scores = {}
        for name in names if len(texts) > 1 else ():
            with contextlib.suppress(RewardError):  # it is named when all texts are scored
                scored = self.suite.score_each([self.rows[0]] * len(texts), texts, names=[name], quiet=True)
                scores[name] = np.nan_to_num(np.array(scored[name].scores, dtype=float))
        woken = {name: each > 0 for name, each in scores.items() if each[0] <= 0 < each.max()}
        if not woken:
            return
        chosen = int(np.argmax(sum(woken.values())))  # of equals the first, which is nearest to the prompt
        for builder in self.builders:
            builder.adopt(styles[chosen])
        for name in (name for name, paid in woken.items() if paid[chosen]):
            self._add("layout", name, style=styles[chosen].name)

    def _best_guess(self, table: ScoreTable) -> ScoreTable:
        # Where no format is asked for, the way of answering that is paid best stands for the reference.
        names = list(self.first.reference_completions())
        totals = {name: mean_of_known(table.totals[table.at(REFERENCE, name)]) for name in names}
        best = max(totals, key=lambda name: (np.nan_to_num(totals[name], nan=-np.inf), name == AS_ASKED))
        other = {best: AS_ASKED, AS_ASKED: "after its reasoning"} if best != AS_ASKED else {}
        self.texts = [
            text._replace(name=other.get(text.name, text.name)) if text.kind == REFERENCE else text for text in self.texts
        ]
        return replace(table, texts=self.texts)

    def _fits(self, name: str) -> bool:
        try:
            self.suite.check_signatures(self.task.rows, [name])
        except TaskError as error:
            rule = "signature" if "does not accept" in error.value else "needs_column"
            self._add(rule, name, value=error.value.removeprefix(f"{name} "), remedy=error.remedy)
            return False
        return True

    def _scored(self, name: str) -> list[float] | None:
        rows = [self.rows[text.row] for text in self.texts]
        began = time.perf_counter()
        try:
            scored = self.suite.score_each(rows, [text.text for text in self.texts], names=[name], quiet=True)[name]
        except RewardError as error:
            self._add("returns", name, value=error.value.removeprefix(f"{name} "), remedy=error.remedy)
            return None
        self.seconds[name] = time.perf_counter() - began
        if scored.errors:
            first = min(scored.errors)
            error, text = scored.errors[first], self.texts[first]
            rule = "returns.value" if error.startswith("returned ") else "raises"
            if any(words in error for words in ("not back", "not asked", "in time", "blocks")):
                rule = "late"
                self.late.add(name)
            self._add(
                rule,
                name,
                "warning" if error == UNJUDGED else None,
                error=error,
                failed=len(scored.errors),
                tried=len(self.texts),
                deadline=self.suite.deadline_s,
                name=text.name,
                text=text.text[:80],
            )
            if len(scored.errors) == len(self.texts):
                return None
        return scored.scores

    # --- one function ---

    def _look(self, name: str, table: ScoreTable) -> str:
        first, function, unit = self.first, self.suite.functions[name], ""
        try:
            if name not in self.late and self._repeats(name, table):
                grown = growth(self.suite, name, first.row, first.format, first.answer)
                self.findings += length_findings(name, function, grown)
                unit = grown.unit
        except RewardError:
            pass
        found = list(rules.paying(table, name, self._unreached, bool(unit)))
        kinds, right = {each.kind for each in found}, first.row.get(first.column, "")
        if "cannot_pay" in kinds and not isinstance(right, str):
            found.append(finding("cannot_pay.type", name, type=type(right).__name__))
        if not table.weights[table.names.index(name)]:  # it decides nothing, so it need not pay
            found = [replace(each, severity="note") for each in found]
        self.findings += found
        if not kinds & {"cannot_pay", "constant"} and max_score_of(function) is None:
            for branch in self._unreached(name):
                if branch.pays > 0:
                    self._add("unreached", name, branch=branch)
        self.findings += rules.spelling(table, name)
        for place in calls_of(function, ("eval", "exec")):
            self._add("evaluates", name, place=place)
        for place in broad_handlers(function):
            self._add("swallows", name, place=place)
        place = self.suite.functions.places[name]
        if place != OWN and place.startswith("here: "):
            self._add("no_deadline", name, reason=place.removeprefix("here: "))
        for method in vars(type(function)) if _has_state(function) else ():
            if not method.startswith("_") and callable(getattr(function, method)):
                self._add("state", name, method=method)
        if (each := self.seconds[name] / len(self.texts)) > SLOW_S:
            self._add("slow", name, each=each, step=64 * each)
        return unit

    def _repeats(self, name: str, table: ScoreTable) -> bool:
        first = [number for number, text in enumerate(self.texts) if text.row == 0]
        texts = [self.texts[number].text for number in first]
        again = self.suite.score_each([self.rows[0]] * len(texts), texts, names=[name], quiet=True)[name].scores
        same = np.array_equal(table.column(name)[first], np.array(again, dtype=float), equal_nan=True)
        if not same:
            self._add("random", name)
        return same

    def _unreached(self, name: str) -> list[Unreached]:
        if name in self.late:
            return []
        texts = [t.text for t in self.texts if t.kind == REFERENCE and t.row == 0 and t.name == AS_ASKED]
        trace = self.suite.trace(name, [self.rows[0]] * len(texts), texts)
        return unreached(self.suite.functions[name], trace) if trace is not None else []

    def _report(self, name: str, weight: float, table: ScoreTable, unit: str) -> FunctionReport:
        scored = name in table.names and not np.isnan(table.column(name)).all()
        scores = table.column(name) if scored else np.array([np.nan])
        reference = mean_of_known(scores[table.at(REFERENCE, AS_ASKED)] if scored else scores)
        return FunctionReport(
            name,
            weight,
            max_score_of(self.suite.functions[name]),
            reference if np.isfinite(reference) else None,
            float(np.nanmin(scores)) if scored else None,
            float(np.nanmax(scores)) if scored else None,
            unit,
            self.suite.hashes[name],
            self.seconds.get(name, 0.0),
        )

    # --- all functions ---

    def _input_formats(self, names: Sequence[str]) -> None:
        chat, readings = is_chat(self.rows[0]["prompt"]), self.suite.input_formats(self.rows)
        fitting = "chat" if chat else "text"
        for name in names:
            found = readings[name]
            # Messages for messages: there is nothing to do. One that reads text alone fails once the prompts are chat.
            if found.note and not (chat and found.format == fitting):
                fits = found.format in ("either", fitting)
                self._add("chat_plain" if fits else "chat_plain.wrong", name, note=found.note)
        for note in self.suite.notes:
            name, _, style = note.partition(" is written as ")
            if style:
                self._add("signature.style", name, style=style)

    def _unscored_prompts(self, table: ScoreTable) -> None:
        applied = ~np.isnan(table.scores[:, table.weights != 0]).all(axis=1)
        rows = np.array([text.row for text in self.texts])
        silent = [number for number in range(len(self.rows)) if not applied[rows == number].any()]
        if silent:
            row = {key: value for key, value in self.rows[silent[0]].items() if key != "prompt"}
            self._add("constant.none", silent=len(silent), rows=len(self.rows), row=repr(row))

    def _through_the_tokenizer(self, names: list[str]) -> None:
        if self.tokenizer is None:
            return
        try:
            self.findings += token_findings(self.suite, self.builders, names, self.tokenizer, self.limit)
        except RewardError as error:
            self._add("returns", value=error.value, remedy=error.remedy)

    def _only_function(self, weights: dict[str, float]) -> None:
        paid = [name for name, weight in weights.items() if weight]
        if len(paid) == 1 and (weights[paid[0]] != 1 or _has_state(self.suite.functions[paid[0]])):
            self._add("scale", paid[0])

    def _right_by(self, table: ScoreTable) -> None:
        # The groups panel and the measurement afterwards take this function's word for what is right.
        name = self.task.right_function
        wrong = table.column(name)[table.at(PROBE, "a wrong answer")] if name in table.names else np.zeros(0)
        if wrong.size and np.nan_to_num(wrong, nan=0.0).max() > 0:
            chosen = "right_by" if self.task.right_by else "no right_by, so the first function"
            self._add("right_by", name, score=np.nanmax(wrong), chosen=chosen)

    def _regression_cases(self, known: list[Case]) -> None:
        try:
            # Totals are expected for the task's own weights.
            suite = self.suite if self.suite.weights == self.task.weights else None
            for failure in failed_cases(self.task, known, suite, quiet=True):
                self._add("case", case=failure)
        except RewardError as error:
            self._add("case.fails", value=error.value, remedy=error.remedy)


def builders(task: Task, rows: Sequence[Row]) -> list[CompletionBuilder]:
    """How an honest policy writes for each of these rows of a task; each takes its wrong answers from the other rows.

    Raises:
        TaskError: if the task's `ideal` fails.
    """
    column = task.answer_column
    if all(row.get(column) is None for row in rows):
        column = next((name for name in ANSWER_ALIASES if all(row.get(name) is not None for row in rows)), column)
    answers = [answer_of(row, column) for row in rows]
    return [
        CompletionBuilder(row, column, task.ideal, [other for other in answers if other != answers[number]])
        for number, row in enumerate(rows)
    ]


def _spread(rows: Sequence[Row], count: int) -> list[Row]:
    # From the first to the last, so that a part of the data which differs is met.
    if len(rows) <= count:
        return list(rows)
    return [rows[round(index * (len(rows) - 1) / max(1, count - 1))] for index in range(count)]


def _files_here() -> set[str]:
    try:
        return set(os.listdir())
    except OSError:
        return set()


def _has_state(function: Callable[..., Any]) -> bool:
    return not inspect.isroutine(function) and not isinstance(function, functools.partial)
