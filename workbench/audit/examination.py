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
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.audit import findings as rules
from workbench.audit.completions import AS_ASKED, CompletionBuilder, builders, probes, spellings
from workbench.audit.findings import (
    REFERENCE,
    Finding,
    ProbeResult,
    ScoreTable,
    Text,
    finding,
    mean_of_known,
)
from workbench.audit.lengths import length_findings, token_findings
from workbench.audit.prompt_format import asking_text, format_advice
from workbench.audit.regression_cases import failed_cases, load_cases
from workbench.data.prompts import to_messages
from workbench.errors import RewardError, TaskError, WorkbenchError
from workbench.kinds import Fields, Function
from workbench.rewards.chat_or_text import InputFormat
from workbench.rewards.execution import OWN, UNJUDGED
from workbench.rewards.library import max_score_of
from workbench.rewards.suite import RewardSuite
from workbench.rewards.tracing import Unreached, broad_handlers, calls_of, unreached
from workbench.task import Row, Task, load_task

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
        """Whether nothing is wrong: every function can pay, no reward hack earns as much as the
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
            earned = (
                f"the reference completion earns {self.reference_total:g}, the best reward hack"
                f" {best.total:g} ({best.name})"
            )
        else:
            earned = (
                f"the best reward hack ({best.name}) earns {best.share:.0%} of the reference"
                " completion"
            )
        if (
            waste
            and waste.total > self.reference_total + 1e-6
            and (best is None or waste.total > best.total)
        ):
            earned += f", a padded one ({waste.name}) " + (
                f"{waste.share:.0%}" if waste.share else f"{waste.total:g}"
            )
        errors = sum(finding.severity == "error" for finding in self.findings)
        known = "no error, but the reference was guessed" if self.guessed else "nothing is wrong"
        return f"{earned}; " + (
            known if not errors else f"{errors} error{'s' if errors > 1 else ''}"
        )

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
    tokenizer: object = None,
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
    suite = RewardSuite(task, 1, weights, deadline_s=deadline_s, on_error="skip", keep_state=False)
    count = min(rows, len(task.rows))
    # From the first to the last, so that a part of the data which differs is met.
    tried = [
        task.rows[round(index * (len(task.rows) - 1) / max(1, count - 1))] for index in range(count)
    ]
    with contextlib.closing(suite):
        audit = _Audit(task, suite, tried, builders(task, tried), tokenizer, max_completion_length)
        return audit.run(cases, progress or (lambda done, of: None), started)


@dataclass
class _Audit:
    task: Task
    suite: RewardSuite
    rows: list[Row]
    builders: list[CompletionBuilder]
    tokenizer: Any
    limit: int
    findings: list[Finding] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  # by function
    late: set[str] = field(default_factory=set)

    def _add(
        self, rule: str, function: str = "", severity: str | None = None, **values: object
    ) -> None:
        self.findings.append(finding(rule, function, severity, **values))

    def _refused(self, rule: str, name: str, error: WorkbenchError) -> None:
        self._add(rule, name, value=error.value.removeprefix(f"{name} "), remedy=error.remedy)

    def run(
        self, cases: str | None, progress: Callable[[int, int], None], started: float
    ) -> RewardAudit:
        suite, first = self.suite, self.builders[0]
        if not first.column and first.guessed:
            self._add("answer_column.constant")
        elif first.column not in ("", self.task.answer_column):
            self._add("answer_column", column=first.column, named=self.task.answer_column)
        usable = []
        for name in suite.names:
            try:
                suite.check_signatures(self.task.rows, [name])
                usable.append(name)
            except TaskError as error:
                self._refused(
                    "signature" if "does not accept" in error.value else "needs_column", name, error
                )
        there = set(os.listdir())
        # starts the worker, whose imports are no function's seconds
        readings = suite.input_formats(self.rows)
        self._choose_style(usable)
        self.texts = [
            text
            for number, builder in enumerate(self.builders)
            for text in self._texts(number, builder)
        ]
        by_name = {}
        for done, name in enumerate(usable):
            progress(done, len(usable))
            if (scored := self._scored(name)) is not None:
                by_name[name] = scored
        progress(len(usable), len(usable))
        weights, names = dict(zip(suite.names, suite.weights, strict=True)), [*by_name]
        scores = np.array([*by_name.values()], dtype=float).T.reshape(len(self.texts), len(names))
        name_weights = np.array([weights[name] for name in names], dtype=float)
        maxima = [max_score_of(suite.functions[name]) for name in names]
        self.table = ScoreTable(
            self.texts, names, scores, name_weights, maxima, first.guessed, first.format.shown
        )
        if first.free and names:
            self._choose_reference(self.table)
        self.reference = next(
            text.text for text in self.texts if text.kind == REFERENCE and text.name == AS_ASKED
        )
        units = {name: self._look(name) for name in names}
        self._look_at_all(names, readings)
        paid = [name for name, weight in weights.items() if weight]
        if len(paid) == 1 and (weights[paid[0]] != 1 or _has_state(suite.functions[paid[0]])):
            self._add("scale", paid[0])
        wrong_kinds = {each.kind for each in self.findings if each.severity == "error"}
        row = {**first.row, "answer": first.answer} if first.has_answer else first.row
        if wrong_kinds & {*_UNPAID, "needs_column"} and (line := format_advice(row)):
            self._add("other_rewards", advice=line)
        # the groups panel and the measurement afterwards take its word for what is right
        right = self.task.right_function
        wrong = (
            self.table.column(right)[self.table.at(rules.PROBE, "a wrong answer")]
            if right in names
            else np.zeros(0)
        )
        if self.task.is_right(wrong).any():
            chosen = "right_by" if self.task.right_by else "no right_by, so the first function"
            self._add(
                "right_by",
                right,
                score=np.nanmax(wrong),
                chosen=chosen,
                counts=self.task.right_words,
            )
        known = load_cases(self.task, cases)
        if len(usable) == len(suite.names) == len(names):
            try:  # totals are expected for the task's own weights
                own = suite if suite.weights == self.task.weights else None
                for _, said in failed_cases(self.task, known, own, quiet=True):
                    self._add("case", case=said)
            except RewardError as error:
                self._refused("case.fails", "", error)
        if new := sorted(set(os.listdir()) - there):
            self._add("writes", files=", ".join(map(repr, new[:3])))
        return RewardAudit(
            task=self.task.name,
            format=str(first.format),
            rows=len(self.rows),
            completions=len(self.texts),
            reference=self.reference,
            reference_total=self.table.reference_total if names else 0.0,
            guessed=not self.table.confirmed if names else first.guessed,
            functions=[
                self._report(name, weights[name], units.get(name, "")) for name in suite.names
            ],
            probes=rules.leaderboard(self.table) if names else [],
            findings=sorted(
                self.findings,
                key=lambda finding: ("error", "warning", "note").index(finding.severity),
            ),
            cases=len(known),
            seconds=time.monotonic() - started,
        )

    def _texts(self, number: int, builder: CompletionBuilder) -> list[Text]:
        found = [Text(number, REFERENCE, *each) for each in builder.reference_completions().items()]
        found += [
            Text(number, rules.PROBE, *probe)
            for probe in probes(builder, self.task.probes, self.limit)
        ]
        answer = builder.answer
        others = [(each, each) for each in spellings(answer)] if self.task.ideal is None else []
        # In the layouts of two reference completions, so that nothing but the answer differs.
        for compact in (False, True) if others else ():
            reasoning = builder.reasoning(answer, 1 if compact else 2)
            for name, other in ((rules.RIGHT, answer), (rules.WRONG, builder.wrong), *others):
                found.append(
                    Text(
                        number,
                        rules.SPELLING,
                        name,
                        builder.write(reasoning, other, compact=compact),
                    )
                )
        return found

    def _choose_style(self, names: list[str]) -> None:
        # What a prompt leaves open (line breaks around tags that are only named, numbered steps) is
        # written as it pays.
        styles = self.builders[0].styles()
        texts, woken = [copy.copy(self.builders[0]).adopt(style) for style in styles], {}
        for name in names if len(texts) > 1 else ():
            with contextlib.suppress(RewardError):  # it is named when all texts are scored
                scored = self.suite.score_each(
                    [self.rows[0]] * len(texts), texts, names=[name], quiet=True
                )
                scores = np.nan_to_num(np.array(scored[name].scores, dtype=float))
                if scores[0] <= 0 < scores.max():
                    woken[name] = scores > 0
        if not woken:
            return
        # of equals the first, which is nearest to the prompt
        chosen = int(np.argmax(sum(woken.values())))
        for builder in self.builders:
            builder.adopt(styles[chosen])
        for name, paid in woken.items():
            if paid[chosen]:
                self._add("layout", name, style=styles[chosen].name)

    def _choose_reference(self, table: ScoreTable) -> None:
        # Where no format is asked for, the way of answering that is paid best stands for the
        # reference.
        names = self.builders[0].reference_completions()
        totals = {name: mean_of_known(table.totals[table.at(REFERENCE, name)]) for name in names}
        best = max(
            totals, key=lambda name: (np.nan_to_num(totals[name], nan=-np.inf), name == AS_ASKED)
        )
        other = {best: AS_ASKED, AS_ASKED: "after its reasoning"} if best != AS_ASKED else {}
        for index, text in enumerate(table.texts):
            if text.kind == REFERENCE:
                table.texts[index] = text._replace(name=other.get(text.name, text.name))

    def _scored(self, name: str) -> list[float] | None:
        rows, began = [self.rows[text.row] for text in self.texts], time.perf_counter()
        try:
            scored = self.suite.score_each(
                rows, [text.text for text in self.texts], names=[name], quiet=True
            )[name]
        except RewardError as error:
            self._refused("returns", name, error)
            return None
        self.seconds[name] = time.perf_counter() - began
        if not scored.errors:
            return scored.scores
        first, error = min(scored.errors.items())
        rule, text = (
            "returns.value" if error.startswith("returned ") else "raises",
            self.texts[first],
        )
        if any(words in error for words in ("not back", "not asked", "in time", "blocks")):
            rule = "late"
            self.late.add(name)
        values = {
            "failed": len(scored.errors),
            "tried": len(self.texts),
            "deadline": self.suite.deadline_s,
        }
        severity = "warning" if error == UNJUDGED else None
        self._add(rule, name, severity, error=error, name=text.name, text=text.text[:80], **values)
        return scored.scores if len(scored.errors) < len(self.texts) else None

    def _look(self, name: str) -> str:
        # Everything about one function; the unit in which it counts lengths.
        first, function, unit = self.builders[0], self.suite.functions[name], ""
        with contextlib.suppress(RewardError):
            if name not in self.late:
                texts = [text.text for text in self.texts if text.row == 0]
                again = self.suite.score_each(
                    self.rows[:1] * len(texts), texts, names=[name], quiet=True
                )[name].scores
                before = self.table.column(name)[[text.row == 0 for text in self.texts]]
                if np.array_equal(before, np.array(again, dtype=float), equal_nan=True):
                    unit, found = length_findings(self.suite, name, first)
                    self.findings += found
                else:
                    self._add("random", name)
        found = list(rules.paying(self.table, name, self._unreached, bool(unit)))
        kinds = {each.kind for each in found}
        if kinds & _UNPAID and name not in self.late and (cause := self._cause(name)):
            unpaid = next(each for each in found if each.kind in _UNPAID)
            found = [
                replace(
                    unpaid,
                    text=f"{unpaid.text}; {cause.text}",
                    severity=cause.severity,
                    remedy=cause.remedy,
                )
            ]
        # it decides nothing, so it need not pay
        if not self.table.weights[self.table.names.index(name)]:
            found = [replace(each, severity="note") for each in found]
        self.findings += found
        if not kinds & _UNPAID and max_score_of(function) is None:
            for branch in self._unreached(name):
                if branch.pays > 0:
                    self._add("unreached", name, branch=branch)
        self.findings += rules.spelling(self.table, name)
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

    def _cause(self, name: str) -> Finding | None:
        # Why it does not pay: what it is handed is changed, one thing at a time, until it pays the
        # reference.
        first, rows, texts = (
            self.builders[0],
            self.rows,
            [builder.reference for builder in self.builders],
        )
        right, reads = first.row.get(first.column), ("chat messages", "plain text")
        if plain := isinstance(first.row["prompt"], str):
            reads = reads[::-1]
        prompts = [
            to_messages(row["prompt"]) if plain else asking_text(row["prompt"]) for row in rows
        ]
        changed = [("cause.form", "prompt", prompts)]
        if isinstance(right, (int, float)):
            changed.append(("cause.number", first.column, [each.answer for each in self.builders]))

        def earned(rows: Sequence[Row], texts: Sequence[str]) -> float:
            scores = self.suite.score_each(rows, texts, names=[name], quiet=True)[name].scores
            return float(np.nan_to_num(scores, nan=-np.inf).max())

        with contextlib.suppress(RewardError):
            now = earned(rows, texts)
            for rule, column, values in changed:
                others = [{**row, column: value} for row, value in zip(rows, values, strict=True)]
                if (paid := earned(others, texts)) > max(now, earned(others, [""] * len(texts))):
                    return finding(
                        rule,
                        name,
                        paid=paid,
                        answer=right,
                        type=type(right).__name__,
                        given=reads[0],
                        reads=reads[1],
                    )
            alone, empty = (earned(rows[:1], [text]) for text in (texts[0], ""))
            if alone > empty and earned([rows[0]] * 2, [texts[0], ""]) < alone:
                return finding("cause.batch", name, paid=alone, empty=empty)
        return None

    def _unreached(self, name: str) -> list[Unreached]:
        trace = (
            None if name in self.late else self.suite.trace(name, self.rows[:1], [self.reference])
        )
        return unreached(self.suite.functions[name], trace) if trace is not None else []

    def _report(self, name: str, weight: float, unit: str) -> FunctionReport:
        scores = (
            self.table.column(name)
            if name in self.table.names
            else np.full(len(self.texts), np.nan)
        )
        reference, known = (
            mean_of_known(scores[self.table.at(REFERENCE, AS_ASKED)]),
            scores[~np.isnan(scores)],
        )
        lowest, highest = (float(known.min()), float(known.max())) if known.size else (None, None)
        pays = (
            max_score_of(self.suite.functions[name]),
            reference if np.isfinite(reference) else None,
            lowest,
            highest,
        )
        return FunctionReport(
            name, weight, *pays, unit, self.suite.hashes[name], self.seconds.get(name, 0.0)
        )

    def _look_at_all(self, names: Sequence[str], readings: dict[str, InputFormat]) -> None:
        fitting = "text" if isinstance(self.rows[0]["prompt"], str) else "chat"
        for name in names:
            found = readings[name]
            # Messages for messages: there is nothing to do. One that reads text alone fails once
            # the prompts are chat.
            if found.note and not fitting == found.format == "chat":
                self._add(
                    "chat_plain" if found.format in ("either", fitting) else "chat_plain.wrong",
                    name,
                    note=found.note,
                )
        for note in self.suite.notes:
            name, _, style = note.partition(" is written as ")
            if style:
                self._add("signature.style", name, style=style)
        if not names:
            return
        self.findings += [*rules.hackable(self.table), *rules.overlaps(self.table)]
        applied = np.asarray(~np.isnan(self.table.scores[:, self.table.weights != 0]).all(axis=1))
        served = {text.row for text, applies in zip(self.texts, applied, strict=True) if applies}
        if silent := [number for number in range(len(self.rows)) if number not in served]:
            row = {key: value for key, value in self.rows[silent[0]].items() if key != "prompt"}
            severity = "warning" if self.table.guessed else None
            self._add(
                "constant.none",
                "",
                severity,
                silent=len(silent),
                rows=len(self.rows),
                row=repr(row),
            )
        if self.tokenizer is not None:
            try:
                self.findings += token_findings(
                    self.suite, self.builders, names, self.tokenizer, self.limit
                )
            except RewardError as error:
                self._refused("returns", "", error)


def _has_state(function: Function) -> bool:
    return not inspect.isroutine(function) and not isinstance(function, functools.partial)
