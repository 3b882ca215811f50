"""Can this reward pay, and what do cheats earn? Everything that can be said about a task's rewards before any training."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.audit.findings import (
    HONEST,
    PROBE,
    RIGHT,
    SPELLING,
    WRONG,
    Finding,
    ProbeResult,
    ScoreTable,
    Text,
    hackable,
    leaderboard,
    mean_of_known,
    overlaps,
    paying,
    spelling,
)
from workbench.audit.lengths import growth, length_findings
from workbench.audit.probes import probes_by, spellings
from workbench.audit.prompt_format import parse_format
from workbench.audit.reference_completion import AS_ASKED, CompletionBuilder, answer_of
from workbench.audit.regression_cases import Case, load_cases, missed_cases
from workbench.audit.tokens import token_findings
from workbench.data.columns import ANSWER_ALIASES
from workbench.errors import RewardError, TaskError
from workbench.rewards.calls import OWN, UNJUDGED
from workbench.rewards.shapes import is_chat
from workbench.rewards.stated import maximum_of
from workbench.rewards.suite import RewardSuite
from workbench.rewards.tracing import Trace, Unreached, broad_handlers, calls_of, unreached
from workbench.task import Row, Task

DEADLINE_S = 10.0
SLOW_S = 0.05  # a completion, from which a function is worth a word
ROWS = 6
_ORDER = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True)
class FunctionReport:
    """One reward function in numbers."""

    name: str
    weight: float
    maximum: float | None  # as it states; None: it states none
    honest: float | None  # mean over the rows of what an honest completion earns; None: does not apply, or failed
    lowest: float | None
    highest: float | None
    unit: str  # that it counts lengths in
    hash: str
    seconds: float  # for all completions of the examination


@dataclass(frozen=True)
class RewardAudit:
    """What was found out about a task's rewards."""

    task: str
    asked: str  # the format that the first prompt asks for
    rows: int
    completions: int
    honest: str  # the honest completion of the first row
    honest_total: float
    functions: list[FunctionReport]
    probes: list[ProbeResult]  # cheats, best paid first
    findings: list[Finding]  # errors first
    cases: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong: every function can pay, no cheat earns as much as an honest answer, every case holds."""
        return not any(finding.severity == "error" for finding in self.findings)

    @property
    def best_cheat(self) -> ProbeResult | None:
        """The best paid completion that does not do what is asked."""
        return next((cheat for cheat in self.probes if not cheat.right), None)

    @property
    def verdict(self) -> str:
        """One line: what the best cheat earns, and what is wrong."""
        best = self.best_cheat
        if best is None:
            cheats = "no cheat could be tried"
        elif best.share is None:
            cheats = f"an honest answer earns {self.honest_total:g}, the best cheat {best.total:g} ({best.name})"
        else:
            cheats = f"the best cheat ({best.name}) earns {best.share:.0%} of an honest answer"
        waste = next((each for each in self.probes if each.right), None)
        if waste is not None and waste.total > self.honest_total + 1e-6 and (best is None or waste.total > best.total):
            cheats += f", a padded one ({waste.name}) " + (f"{waste.share:.0%}" if waste.share else f"{waste.total:g}")
        errors = sum(finding.severity == "error" for finding in self.findings)
        return f"{cheats}; " + ("nothing is wrong" if not errors else f"{errors} error{'s' if errors > 1 else ''}")

    def found(self) -> dict[str, Any]:
        """For `--json`: plain values, NaN as None."""
        return {
            "task": self.task,
            "ok": self.ok,
            "verdict": self.verdict,
            "parse_format": self.asked,
            "rows": self.rows,
            "completions": self.completions,
            "honest": {"completion": self.honest, "total": _plain(self.honest_total)},
            "functions": [_plain(vars(function)) for function in self.functions],
            "cheats": [_plain(cheat._asdict()) for cheat in self.probes],
            "findings": [vars(finding) for finding in self.findings],
            "cases": self.cases,
            "seconds": self.seconds,
        }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def audit_rewards(
    task: Task,
    *,
    rows: int = ROWS,
    weights: dict[str, float] | None = None,
    tokenizer: Any = None,
    max_completion_length: int = 512,
    cases: str | None = None,
    deadline_s: float = DEADLINE_S,
    progress: Callable[[int, int], None] | None = None,
) -> RewardAudit:
    """Score honest completions and cheats of a task's prompts, and say what is wrong.

    Args:
        rows: prompts to try, spread over the task's.
        weights: by function, where they differ from the task's.
        tokenizer: the policy's; None: what it makes of a completion is not looked at.
        max_completion_length: tokens; the probe that never comes to an end is cut there.
        cases: file of golden cases; None: where the task says.
        deadline_s: for one function and one batch of completions.
        progress: called with (functions done, functions).

    Raises:
        TaskError: if the task has no rows, or one of its probes or cases cannot be read.
    """
    started = time.monotonic()
    if not len(task.rows):
        raise TaskError(
            f"task {task.name!r}: 0 prompts", rule="probes are made from prompts", remedy="give the task rows"
        )
    suite = RewardSuite(task, 1, weights, deadline_s=deadline_s, on_error="skip", keep_state=False)
    try:
        return _Examiner(task, suite, rows, tokenizer, max_completion_length, cases, progress).run(started)
    finally:
        suite.close()


class _Examiner:
    def __init__(
        self,
        task: Task,
        suite: RewardSuite,
        rows: int,
        tokenizer: Any,
        max_completion_length: int,
        cases: str | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.task, self.suite, self.tokenizer, self.limit, self.cases = (
            task,
            suite,
            tokenizer,
            max_completion_length,
            cases,
        )
        self.progress = progress or (lambda done, total: None)
        self.findings: list[Finding] = []
        self.seconds: dict[str, float] = {}
        self.late: set[str] = set()
        self.rows = _spread(task.rows, rows)
        self.writers = writers(task, self.rows)
        if (column := self.writers[0].column) != task.answer_column:
            text = f"the answers were taken from the column {column!r}; the task says {task.answer_column!r}, and no row has it"
            self.findings.append(Finding("answer_column", "warning", "", text, f"Task(answer_column={column!r})"))
        self.texts: list[Text] = []

    def _texts(self, number: int, writer: CompletionBuilder) -> list[Text]:
        found = [Text(number, HONEST, ideal.name, ideal.text) for ideal in writer.reference_completions()]
        for probe in probes_by(writer, self.task.probes, self.limit):
            found.append(Text(number, PROBE, probe.name, probe.text, probe.right, probe.own))
        if self.task.ideal is None:
            answer = writer.answer
            for compact in (False, True) if spellings(answer) else ():
                # In the layouts of two honest completions, so that nothing but the answer differs.
                both = ((RIGHT, answer), (WRONG, writer.wrong))
                for name, other in (*both, *((each, each) for each in spellings(answer))):
                    reasoning = writer.reasoning(answer, 1 if compact else 2)
                    found.append(Text(number, SPELLING, name, writer.write(reasoning, other, compact=compact)))
        return found

    def run(self, started: float) -> RewardAudit:
        usable = [name for name in self.suite.names if self._fits(name)]
        there = _files_here()
        self.suite.readings(self.rows)  # starts the worker, whose imports are no function's seconds
        self._choose_manner(usable)
        self.texts = [text for number, writer in enumerate(self.writers) for text in self._texts(number, writer)]
        columns = {}
        for done, name in enumerate(usable):
            self.progress(done, len(usable))
            scored = self._scored(name)
            if scored is not None:
                columns[name] = scored
        self.progress(len(usable), len(usable))
        names = list(columns)
        weight = dict(zip(self.suite.names, self.suite.weights, strict=True))
        sheet = ScoreTable(
            self.texts,
            names,
            np.array([columns[name] for name in names], dtype=float).T.reshape(len(self.texts), len(names)),
            np.array([weight[name] for name in names], dtype=float),
            [maximum_of(self.suite.functions[name]) for name in names],
            guessed=self.writers[0].guessed,
            shown=self.writers[0].asked.shown,
        )
        if self.writers[0].free and names:
            sheet = self._best_guess(sheet)
        units = {name: self._look(name, sheet) for name in names}
        self._shapes(names)
        if names:
            self.findings += hackable(sheet) + overlaps(sheet)
            self._silent(sheet)
            if self.tokenizer is not None:
                self.findings += self._tokens(names)
        self._one_function(weight)
        if names:
            self._right(sheet)
        known = load_cases(self.task, self.cases)
        if len(usable) == len(self.suite.names) == len(names):
            self.findings += self._cases(known)
        if new := sorted(_files_here() - there):
            text = f"{', '.join(map(repr, new[:3]))} appeared in the working directory: the functions were called, and wrote it"
            self.findings.append(Finding("writes", "note", "", text, "delete it, or let them write elsewhere"))
        honest = next(text.text for text in self.texts if text.kind == HONEST and text.name == AS_ASKED)
        return RewardAudit(
            task=self.task.name,
            asked=str(parse_format(self.rows[0])),
            rows=len(self.rows),
            completions=len(self.texts),
            honest=honest,
            honest_total=sheet.honest_total if names else 0.0,
            functions=[self._report(name, weight[name], sheet, units.get(name, "")) for name in self.suite.names],
            probes=leaderboard(sheet) if names else [],
            findings=sorted(self.findings, key=lambda finding: _ORDER[finding.severity]),
            cases=len(known),
            seconds=time.monotonic() - started,
        )

    def _choose_manner(self, names: list[str]) -> None:
        # What a prompt leaves open (line breaks around tags that are only named, numbered steps) is written as it pays.
        writer = self.writers[0]
        manners = writer.manners()
        texts = [writer.in_manner(manner) for manner in manners]
        scores = {}
        for name in names if len(texts) > 1 else ():
            with contextlib.suppress(RewardError):  # it is named when all texts are scored
                scored = self.suite.score_each([self.rows[0]] * len(texts), texts, names=[name], quiet=True)
                scores[name] = np.nan_to_num(np.array(scored[name].scores, dtype=float))
        woken = {name: each > 0 for name, each in scores.items() if each[0] <= 0 < each.max()}
        if not woken:
            return
        chosen = int(np.argmax(sum(woken.values())))  # of equals the first, which is nearest to the prompt
        for each in self.writers:
            each.adopt(manners[chosen])
        for name in (name for name, paid in woken.items() if paid[chosen]):
            text = f"pays an honest completion only when it is written {manners[chosen].name}, and the prompt does not say so"
            remedy = "show the format in the prompt just as it has to be written, or let the pattern allow more (\\s*)"
            self.findings.append(Finding("layout", "warning", name, text, remedy))

    def _best_guess(self, sheet: ScoreTable) -> ScoreTable:
        # Where no format is asked for, the way of answering that is paid best stands for the honest one.
        totals = {
            ideal.name: mean_of_known(sheet.totals[sheet.at(HONEST, ideal.name)])
            for ideal in self.writers[0].reference_completions()
        }
        best = max(totals, key=lambda name: (np.nan_to_num(totals[name], nan=-np.inf), name == AS_ASKED))
        names = {best: AS_ASKED, AS_ASKED: "after its reasoning"} if best != AS_ASKED else {}
        self.texts = [
            text._replace(name=names.get(text.name, text.name)) if text.kind == HONEST else text for text in self.texts
        ]
        return replace(sheet, texts=self.texts)

    def _silent(self, sheet: ScoreTable) -> None:
        said = ~np.isnan(sheet.scores[:, sheet.weights != 0]).all(axis=1)
        rows = np.array([text.row for text in self.texts])
        silent = [number for number in range(len(self.rows)) if not said[rows == number].any()]
        if silent:
            row = {key: value for key, value in self.rows[silent[0]].items() if key != "prompt"}
            text = f"on {len(silent)} of {len(self.rows)} prompts no function says anything (None for each), as for {row!r:.200}"
            remedy = "return a number where it has something to say; does it look for another value than the rows have?"
            self.findings.append(Finding("constant", "error", "", text, remedy))

    def _right(self, sheet: ScoreTable) -> None:
        # The groups panel and the measurement afterwards take this function's word for what is right.
        name = self.task.right_function
        if name not in sheet.names:
            return
        wrong = sheet.column(name)[sheet.at(PROBE, "a wrong answer")]
        chosen = "right_by" if self.task.right_by else "no right_by, so the first function"
        if wrong.size and np.nan_to_num(wrong, nan=0.0).max() > 0:
            text = f"says that a wrong answer is right: it earns {np.nanmax(wrong):g}, and above 0 counts as right ({chosen})"
            self.findings.append(
                Finding("right_by", "warning", name, text, "name the function that judges the answer: right_by=")
            )

    def _tokens(self, names: list[str]) -> list[Finding]:
        try:
            return token_findings(self.suite, self.writers, names, self.tokenizer, self.limit)
        except RewardError as error:
            return [Finding("returns", "error", "", error.value, error.remedy)]

    def _cases(self, known: list[Case]) -> list[Finding]:
        try:
            # Totals are stated for the task's own weights.
            suite = self.suite if self.suite.weights == self.task.weights else None
            missed = missed_cases(self.task, known, suite, quiet=True)
        except RewardError as error:
            return [Finding("case", "error", "", error.value, error.remedy)]
        return [
            Finding("case", "error", "", f"golden case, {each}", "mend the function, or the case") for each in missed
        ]

    def _fits(self, name: str) -> bool:
        try:
            self.suite.check_signature(name, self.task.rows)
        except TaskError as error:
            kind = "signature" if "does not accept" in error.value else "needs_column"
            self.findings.append(Finding(kind, "error", name, error.value.removeprefix(f"{name} "), error.remedy))
            return False
        return True

    def _scored(self, name: str) -> list[float] | None:
        rows = [self.rows[text.row] for text in self.texts]
        began = time.perf_counter()
        try:
            scored = self.suite.score_each(rows, [text.text for text in self.texts], names=[name], quiet=True)[name]
        except RewardError as error:
            self.findings.append(Finding("returns", "error", name, error.value.removeprefix(f"{name} "), error.remedy))
            return None
        self.seconds[name] = time.perf_counter() - began
        if scored.errors:
            first = min(scored.errors)
            returned = scored.errors[first].startswith("returned ")
            late = any(said in scored.errors[first] for said in ("not back", "not asked", "in time", "blocks"))
            text = self.texts[first]
            if late:
                self.late.add(name)
            self.findings.append(
                Finding(
                    "late" if late else "returns" if returned else "raises",
                    "warning" if scored.errors[first] == UNJUDGED else "error",
                    name,
                    (
                        f"{len(scored.errors)} of {len(self.texts)} completions were not scored in time "
                        f"({self.suite.deadline_s:g} s for all of them)"
                        if late
                        else f"{scored.errors[first]}, on {len(scored.errors)} of {len(self.texts)} completions"
                    )
                    + f"; the first is {text.name!r}: {text.text[:80]!r}",
                    "does it hang (a pattern that backtracks)? give it less freedom, or cut the text first; is it only slow "
                    "(a judge)? give it longer: --deadline"
                    if late
                    else "return a finite number, or None where the function does not apply"
                    if returned
                    else "return a low score or None where there is nothing to read; an exception ends the run",
                )
            )
            if len(scored.errors) == len(self.texts):
                return None
        return scored.scores

    def _look(self, name: str, sheet: ScoreTable) -> str:
        writer, function = self.writers[0], self.suite.functions[name]
        row, unit = writer.row, ""
        try:
            if name not in self.late and self._repeats(name, sheet):
                grown = growth(self.suite, name, row, writer.asked, writer.answer)
                self.findings += length_findings(name, function, grown)
                unit = grown.unit
        except RewardError:
            pass
        found = paying(sheet, name, self._unreached, bool(unit))
        if any(finding.kind == "cannot_pay" for finding in found) and not isinstance(row.get(writer.column, ""), str):
            kind = type(row[writer.column]).__name__
            found.append(
                Finding("cannot_pay", "note", name, f"the answers are of type {kind}, and what a policy writes is text")
            )
        if not sheet.weights[sheet.names.index(name)]:  # it decides nothing, so it need not pay
            found = [replace(finding, severity="note") for finding in found]
        self.findings += found
        if not any(finding.kind in ("cannot_pay", "constant") for finding in found) and maximum_of(function) is None:
            for branch in self._unreached(name):
                if branch.pays > 0:
                    self.findings.append(
                        Finding("unreached", "note", name, f"no honest completion that was tried reaches {branch}")
                    )
        self.findings += spelling(sheet, name) + self._hidden(name) + self._endless(name)
        for method in vars(type(function)) if _has_state(function) else ():
            if not method.startswith("_") and callable(getattr(function, method)):
                self.findings.append(
                    Finding("state", "note", name, f"nothing calls its method {method!r} during a run")
                )
        if (each := self.seconds[name] / len(self.texts)) > SLOW_S:
            text = f"takes {each:.2g} s a completion: a step of 64 waits {64 * each:.0f} s for it"
            self.findings.append(Finding("slow", "note", name, text, "make it faster, or a coroutine"))
        return unit

    def _repeats(self, name: str, sheet: ScoreTable) -> bool:
        first = [number for number, text in enumerate(self.texts) if text.row == 0]
        texts = [self.texts[number].text for number in first]
        again = self.suite.score_each([self.rows[0]] * len(texts), texts, names=[name], quiet=True)[name].scores
        if np.array_equal(sheet.column(name)[first], np.array(again, dtype=float), equal_nan=True):
            return True
        text = "does not repeat: the same completions score differently when they are scored again, or among others"
        remedy = "a score that depends on chance or on what came before teaches chance; what is said below may be chance, too"
        self.findings.append(Finding("random", "warning", name, text, remedy))
        return False

    def _endless(self, name: str) -> list[Finding]:
        place = self.suite.functions.places[name]
        if place == OWN or not place.startswith("here: "):
            return []
        reason = place.removeprefix("here: ")
        return [Finding("no_deadline", "note", name, f"runs without a deadline, in this process: {reason}")]

    def _hidden(self, name: str) -> list[Finding]:
        evaluates = [
            Finding(
                "evaluates",
                "warning",
                name,
                f"{place}: runs what a model wrote as Python, with all the rights of this process",
                "read it with a parser (workbench.rewards.countdown.evaluate), or in a sandbox",
            )
            for place in calls_of(self.suite.functions[name], ("eval", "exec"))
        ]
        return evaluates + [
            Finding(
                "swallows",
                "warning",
                name,
                f"{place}: an exception becomes a score there, and nobody sees it",
                "catch only what you expect of a completion, such as ValueError from float(...)",
            )
            for place in broad_handlers(self.suite.functions[name])
        ]

    def _unreached(self, name: str) -> list[Unreached]:
        if name in self.late:
            return []
        texts = [text for text in self.texts if text.kind == HONEST and text.row == 0 and text.name == AS_ASKED]
        trace: Trace | None = self.suite.trace(name, [self.rows[0]] * len(texts), [text.text for text in texts])
        return unreached(self.suite.functions[name], trace) if trace is not None else []

    def _shapes(self, names: Sequence[str]) -> None:
        chat, readings = is_chat(self.rows[0]["prompt"]), self.suite.readings(self.rows)
        fitting = "chat" if chat else "text"
        for name in names:
            found = readings[name]
            # Messages for messages: there is nothing to do. One that reads text alone fails once the prompts are chat.
            if found.note and not (chat and found.shape == fitting):
                wrong = found.shape not in ("either", fitting)
                remedy = "the workbench hands it what it reads; TRL itself does not" if wrong else ""
                self.findings.append(Finding("chat_plain", "warning" if wrong else "note", name, found.note, remedy))
        for note in self.suite.notes:
            name, _, rest = note.partition(" is written as ")
            if rest:
                self.findings.append(
                    Finding("signature", "warning", name, f"is written as {rest}", "TRL itself calls by keyword")
                )

    def _one_function(self, weight: dict[str, float]) -> None:
        paid = [name for name, value in weight.items() if value]
        if len(paid) == 1 and (weight[paid[0]] != 1 or _has_state(self.suite.functions[paid[0]])):
            self.findings.append(
                Finding(
                    "scale",
                    "note",
                    paid[0],
                    "is the only function: multiplying its scores, or its weight, changes no advantage (they are divided by "
                    "the group's std unless scale_rewards is none)",
                )
            )

    def _report(self, name: str, weight: float, sheet: ScoreTable, unit: str) -> FunctionReport:
        scored = name in sheet.names and not np.isnan(sheet.column(name)).all()
        scores = sheet.column(name) if scored else np.array([np.nan])
        honest = scores[sheet.at(HONEST, AS_ASKED)] if scored else scores
        return FunctionReport(
            name,
            weight,
            maximum_of(self.suite.functions[name]),
            float(np.nanmean(honest)) if np.isfinite(honest).any() else None,
            float(np.nanmin(scores)) if scored else None,
            float(np.nanmax(scores)) if scored else None,
            unit,
            self.suite.hashes[name],
            self.seconds.get(name, 0.0),
        )


def _files_here() -> set[str]:
    try:
        return set(os.listdir())
    except OSError:
        return set()


def _has_state(function: Callable[..., Any]) -> bool:
    return not inspect.isroutine(function) and not isinstance(function, functools.partial)


def writers(task: Task, rows: Sequence[Row]) -> list[CompletionBuilder]:
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
