"""A task's rewards tried on completions of its prompts: which ones, written how, and how each
function scored them.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas

from workbench.audit.completions import AS_ASKED, CompletionBuilder, spellings
from workbench.audit.findings import (
    PROBE,
    REASONED,
    REFERENCE,
    RIGHT,
    SPELLING,
    WRONG,
    Finding,
    ScoreTable,
    Text,
    finding,
)
from workbench.audit.probes import probes
from workbench.base.errors import RewardError, WorkbenchError
from workbench.base.workspace import encodable
from workbench.rewards.execution import UNJUDGED
from workbench.rewards.library import max_score_of
from workbench.rewards.results import Scored
from workbench.rewards.suite import RewardSuite
from workbench.rewards.tracing import overlooks
from workbench.task import Row, Task

_LATE = ("not back", "not asked", "in time", "blocks")  # in the error of one that ran out of time


@dataclass(frozen=True)
class Trial:
    """A task's rewards, the prompts that they are tried on, and how an honest policy answers."""

    task: Task
    suite: RewardSuite
    rows: list[Row]
    builders: list[CompletionBuilder]
    limit: int  # tokens of a completion

    @property
    def first(self) -> CompletionBuilder:
        """Of the first row."""
        return self.builders[0]

    def scored(
        self,
        name: str,
        rows: Sequence[Row],
        texts: Sequence[str],
        ids: Sequence[list[int]] | None = None,
    ) -> Scored:
        """How one function scores these texts."""
        return self.suite.score_each(rows, texts, ids, [name], quiet=True)[name]


class Scoring(NamedTuple):
    """How one function scored all completions."""

    scores: list[float] | None = None  # None: it scored none of them
    seconds: float = 0.0
    late: bool = False
    failure: Finding | None = None


def spread(rows: Sequence[Any], count: int) -> list[Any]:
    """At most `count` rows, from the first to the last, so that a part which differs is met."""
    count = min(count, len(rows))
    return [rows[round(index * (len(rows) - 1) / max(1, count - 1))] for index in range(count)]


def refusal(rule: str, name: str, error: WorkbenchError) -> Finding:
    """The finding of an error that names the function first."""
    return finding(rule, name, value=error.value.removeprefix(f"{name} "), remedy=error.remedy)


def adopt_style(trial: Trial, names: Sequence[str]) -> list[Finding]:
    """Write from now on as it pays, where a prompt leaves it open (line breaks around tags that are
    only named, numbered steps); a finding for each function that pays nothing else.
    """
    first = trial.first
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
    style = styles[chosen]
    for builder in trial.builders:
        builder.adopt(style)
    rule = "layout.type" if style.other_type else "layout"
    return [finding(rule, name, style=style.name) for name, pays in woken.items() if pays[chosen]]


def completions_of(trial: Trial, row: int) -> Iterator[Text]:
    """All completions of a row."""
    builder = trial.builders[row]
    for name, text in builder.reference_completions().items():
        yield Text(row, REFERENCE, name, text)
    for probe in probes(builder, trial.task.probes, trial.limit):
        yield Text(row, PROBE, *probe)
    if (short := builder.reasoned(builder.reasoning())) != builder.reference:
        yield Text(row, REASONED, AS_ASKED, short)
    form = builder.format
    # a number in JSON is written in one way
    in_words = not form.json or (form.slot(builder.answer).has_text and not form.guessed)
    varied = trial.task.ideal is None and in_words
    others = spellings(builder.answer, builder.free) if varied else {}
    answers = {RIGHT: builder.answer, WRONG: builder.wrong, **others}
    # In the layouts of two reference completions, so that nothing but the answer differs.
    for compact in (False, True) if others else ():
        reasoning = builder.reasoning(lines=1 if compact else 2)
        for name, answer in answers.items():
            text = builder.write(reasoning, answer, compact=compact)
            yield Text(row, SPELLING, name, text, answer=answer)


def score_all(trial: Trial, name: str, texts: Sequence[Text]) -> Scoring:
    """Score all completions with one function."""
    rows, began = [trial.rows[text.row] for text in texts], time.perf_counter()
    try:
        scored = trial.scored(name, rows, [text.text for text in texts])
    except RewardError as error:
        return Scoring(failure=refusal("returns", name, error))
    seconds, failed = time.perf_counter() - began, len(scored.errors)
    if not failed:
        return Scoring(scored.scores, seconds)
    index, error = min(scored.errors.items())
    late = any(words in error for words in _LATE)
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
    return Scoring(scored.scores if failed < len(texts) else None, seconds, late, failure)


def table_of(trial: Trial, texts: list[Text], measured: dict[str, Scoring]) -> ScoreTable:
    """The scores of all functions that scored something."""
    suite, first = trial.suite, trial.first
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
