"""What is wrong with a task as a whole: its answers, its weights, what judges, its cases."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from workbench.audit.completions import answer_of, builders
from workbench.audit.findings import PROBE, UNPAID, Finding, Findings, ScoreTable, finding, hackable
from workbench.audit.prompt_format import asking_text, format_advice
from workbench.audit.regression_cases import RegressionCase, failed_cases
from workbench.audit.trial import Trial, refusal
from workbench.base.errors import RewardError
from workbench.data.answer_column import LABELS, folded, is_number
from workbench.rewards import library, shaping
from workbench.rewards.calls import takes_environments
from workbench.rewards.chat_or_text import InputFormat
from workbench.rewards.code import has_state

_LIBRARY = (library.__name__, shaping.__name__)


def answer_column(trial: Trial) -> Findings:
    """Whether the answers are where the task says, and are answers."""
    first, stated = trial.first, trial.task.answer_column
    if not first.column and first.guessed:
        yield finding("answer_column.constant")
    elif first.column not in ("", stated):
        yield finding("answer_column", column=first.column, named=stated)


def labels(trial: Trial, names: Sequence[str]) -> Findings:
    """Answers that are not among those that a schema allows or the prompt lists."""
    task, first = trial.task, trial.first
    answers = [answer_of(row, first.column) for row in task.rows]
    counts = Counter(answers)
    if is_number(answers[0]) or len(counts) * 2 > len(answers) or len(trial.rows) < 2:
        return
    for where, listed in _lists(trial, counts):
        plain = {folded(each): each for each in listed}
        meant = [plain.get(folded(each), "") for each in answers]
        if len(listed) < 2 or meant.count("") * 2 > len(answers):
            continue  # it lists something else, or examples
        odd = [place for place, each in enumerate(answers) if each not in listed]
        spelt, paid = next((place for place in odd if meant[place]), None), ""
        # One who answers by the list: where that is paid, the difference does no harm.
        with contextlib.suppress(RewardError):  # it is named when all texts are scored
            if spelt is not None and _pays_less(trial, names, spelt, meant[spelt]):
                paid = f"; {meant[spelt]!r} is paid less on row {spelt}"
            elif spelt is not None:
                odd = [place for place in odd if not meant[place]]
        if odd:
            shown = ", ".join(f"{answers[place]!r} (row {place})" for place in odd[:3])
            values = {"count": len(odd), "rows": len(answers), "where": where}
            yield finding("labels", "", "", shown=shown, paid=paid, **values)
        return


def _lists(trial: Trial, answers: Counter[str]) -> list[tuple[str, Sequence[str] | set[str]]]:
    # Where the answers that are allowed may be listed, and which stand there.
    asked = [_words(asking_text(row["prompt"])) for row in trial.rows]
    plain = [each for each in answers if each == each.strip()]
    said = [each for each in plain if all(_words(each) in text for text in asked)]
    shapes = trial.first.format.shapes
    fields = [{str(shape.get(key)) for shape in shapes} for key in {**shapes[0]}] if shapes else []
    lists = [("the JSON that is asked for", each) for each in fields if len(each) < LABELS]
    return [*lists, ("the prompt's list", said)]


def _pays_less(trial: Trial, names: Sequence[str], row: int, listed: str) -> bool:
    # Whether an answer as it is listed earns anything else than the row's own.
    to = builders(trial.task, [trial.task.rows[row], *trial.rows])[0]
    texts = [to.write(to.reasoning(each), each) for each in (listed, to.answer)]
    scores = [trial.scored(name, [to.row] * 2, texts).scores for name in names]
    return any(np.ptp(np.nan_to_num(own)) for own in scores)


def _words(text: str) -> str:
    words = re.sub(r"[^\w&/-]+", " ", text)
    return f" {words.strip()} "


def of_all(trial: Trial, table: ScoreTable, formats: dict[str, InputFormat]) -> Findings:
    """What the functions read, what reward hacks earn from all, and rows that none scores."""
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


def one_cause(trial: Trial, findings: list[Finding]) -> Findings:
    """The findings; shipped functions that look for another format than the prompt's cannot pay for
    one reason, which is one finding.
    """
    first, functions = trial.first, trial.suite.functions
    row = {**first.row, "answer": first.answer} if first.has_answer else first.row
    of_library = [
        each
        for each in findings
        if each.severity == "error"
        and each.kind in (*UNPAID, "needs_column")
        and each.function
        and getattr(functions[each.function], "__module__", "") in _LIBRARY
    ]
    if trial.task.ideal is None and of_library and (advice := format_advice(row)):
        asked, _, fits = advice.partition("; ")
        names = ", ".join(dict.fromkeys(each.function for each in of_library))
        yield finding("other_rewards", advice=asked, names=names, fits=fits)
        findings = [each for each in findings if each not in of_library]
    yield from findings


def of_weights(trial: Trial, table: ScoreTable) -> Findings:
    """Whether the only function's weight does anything; whether wrong answers count as right."""
    task, suite = trial.task, trial.suite
    paid = [name for name, weight in zip(suite.names, suite.weights) if weight]
    if len(paid) == 1 and (sum(suite.weights) != 1 or has_state(suite.functions[paid[0]])):
        yield finding("scale", paid[0])
    # the groups panel and the measurement afterwards take its word for what is right
    right = task.right_function
    if right in table.scores and not table.flat(table.scores[right]):
        wrong = table.scores[right][table.at(PROBE, "a wrong answer")]
        if task.is_right(wrong).any():
            chosen = "right_by" if task.right_by else "no right_by, so the first function"
            values = {"score": wrong.max(), "counts": task.right_words}
            yield finding("right_by", right, chosen=chosen, **values)


def of_cases(trial: Trial, cases: list[RegressionCase]) -> Findings:
    """Regression cases that do not hold."""
    try:
        for _, failure in failed_cases(trial.suite, cases, quiet=True):
            yield finding("case", case=failure)
    except RewardError as error:
        yield refusal("case.fails", "", error)
