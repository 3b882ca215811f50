"""Why wrong completions are wrong: a cause read off each text by rule; what no rule explains, by its commonest words."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from workbench.audit.prompt_format import ExpectedFormat, parse_format
from workbench.inspection.evaluation import Evaluation
from workbench.inspection.listing import Listing, frame_of
from workbench.inspection.reading import question
from workbench.rewards.answers import find_answer
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import read_batches

_REFUSAL = re.compile(
    r"\b(I (can(no|')t|can not|am unable|won't)|I'm (sorry|unable|not able)|as an AI|cannot (help|assist|answer))\b",
    re.IGNORECASE,
)
_WORDS = 3  # of an n-gram
_FOREIGN = 0.3  # of a completion's letters, in scripts that the prompt does not use


def failures(source: RunDirectory | Evaluation, answer_column: str = "answer") -> Listing:
    """What is wrong with the wrong completions: each cause with its count, its share, an example and its trend.

    >>> found = wb.inspection.failures(wb.open_run())
    >>> list(found.frame.columns)
    ['cause', 'count', 'share', 'first', 'last', 'prompt', 'example']

    Args:
        source: a run's record, or an evaluation, of which the trained policy's completions are read beside the base's.
        answer_column: the dataset column that holds the right answer.

    Returns:
        `frame`, the commonest cause first: `share` of the wrong completions; `first` and `last`: the share of all completions
        that failed so in the first and the last quarter of the steps (of an evaluation: the base's and the trained policy's).
    """
    counts, spread, example = Counter(), (Counter(), Counter()), {}
    sizes, total = [0, 0], 0
    for part, counted, rows, texts, right, ended, kept in _read(source):
        total += counted * len(texts)
        if part is not None:
            sizes[part] += len(texts)
        for place in np.flatnonzero(~np.asarray(right)):
            form = None if kept is None else bool(kept[place])
            why = cause(rows[place], texts[place], bool(ended[place]), form, rows[place].get(answer_column))
            if part is not None:
                spread[part][why] += 1
            if counted:
                counts[why] += 1
                example.setdefault(why, (question(rows[place]["prompt"]), texts[place]))
    wrong = counts.total()
    rows = [
        (why, count, count / wrong, *(own[why] / max(1, size) for own, size in zip(spread, sizes, strict=True)), *example[why])
        for why, count in counts.most_common()
    ]
    names = ["cause", "count", "share", "first", "last", "prompt", "example"]
    verdict = f"{wrong:,} of {total:,} completions are wrong"
    if rows:
        verdict += ": " + ", ".join(f"{why} {share:.0%}" for why, _, share, *_ in rows[:4])
    return Listing(verdict, frame_of(rows, names), {"wrong": wrong, "completions": total, "causes": dict(counts)})


def _read(source: RunDirectory | Evaluation) -> Iterator[tuple[Any, ...]]:
    # (0: what is before, 1: after, None: between; whether it is counted; rows, texts, right, ended, format kept), [B] each.
    if isinstance(source, Evaluation):
        size = source.after.correct.shape[1]
        rows = [row for row in source.rows or [{"prompt": prompt} for prompt in source.prompts] for _ in range(size)]
        for part, own in enumerate((source.before, source.after)):
            texts = [text for group in own.completions for text in group]
            kept = None if own.format is None else own.format.ravel()
            yield part, part == 1, rows, texts, own.correct.ravel(), own.finished.ravel(), kept
        return
    early, late = np.quantile([row["step"] for row in source.metrics()] or [0], [0.25, 0.75])
    for batch in read_batches(source):
        part = 0 if batch.step <= early else 1 if batch.step >= late else None
        ended = np.ones(len(batch.completions), bool) if batch.finished is None else batch.finished
        kept = batch.scores[:, batch.names.index(batch.format_by)] > 0 if batch.format_by in batch.names else None
        yield part, True, batch.rows, batch.completions, batch.right, ended, kept


def cause(row: dict[str, Any], text: str, finished: bool, kept: bool | None = None, answer: Any = None) -> str:
    """Why a completion that is not right is wrong, by the first rule that fits.

    >>> cause({"prompt": "What is 15 + 27?"}, "<answer>32</answer>", True, True, "42")
    'off by a carry'

    Args:
        finished: it ended before the limit.
        kept: whether it keeps the strict format; None: not measured.
        answer: the right one; None: not known.
    """
    asked = parse_format(row)
    plain = text.strip()
    if not finished:
        return "cut at the limit"
    if not plain:
        return "empty"
    if _REFUSAL.search(plain):
        return "refusal"
    if _foreign(plain, question(row["prompt"])):
        return "other language"
    if (wrong := _tags(asked, plain)) and kept is not True:
        return wrong
    given = find_answer(text, "tag", asked.answer_tag) if asked.answer_tag else find_answer(text)
    if given is None:
        return "no answer in it"
    if answer is not None:
        if given == str(answer).strip():
            return "right answer, not paid" if kept is not False else "right answer, format not kept"
        if (off := _off(given, answer)) is not None:
            return off
    if _copied(given, plain, question(row["prompt"]), answer):
        return "copied the question"
    if answer is not None and _number(given) is not None and _number(answer) is not None:
        return "wrong number"
    grams = Counter(zip(*(given.casefold().split()[start:] for start in range(_WORDS)), strict=False))
    return f"other: '{' '.join(min(grams, key=lambda own: (-grams[own], own)))}'" if grams else "other"


def _tags(asked: ExpectedFormat, text: str) -> str:
    marks = [mark for block in asked.blocks for mark in (block.opening, block.closing)]
    if asked.boxed:
        marks.append("\\boxed")
    if asked.mark:
        marks.append("####")
    there = [mark in text for mark in marks]
    return "" if all(there) else "tags incomplete" if any(there) else "no tags"


def _number(text: Any) -> float | None:
    try:
        return float(str(text).replace(",", "").strip().lstrip("$"))
    except ValueError:
        return None


def _off(given: str, answer: Any) -> str | None:
    mine, theirs = _number(given), _number(answer)
    if mine is None or theirs is None or mine != int(mine) or theirs != int(theirs) or mine == theirs:
        return None
    if mine == -theirs:
        return "wrong sign"
    apart = str(abs(int(mine - theirs)))
    # A carry that was forgotten, or made up, leaves 10, 100, ...: 1 followed by zeros.
    return "off by one" if apart == "1" else "off by a carry" if apart.strip("0") == "1" else None


def _copied(given: str, text: str, asked: str, answer: Any) -> bool:
    if len(asked) > 10 and asked.strip() in text and find_answer(text.replace(asked.strip(), "")) is None:
        return True
    return (
        given in re.findall(r"[-+]?\d+(?:\.\d+)?", asked) if _number(given) is not None and answer is not None else given in asked
    )


def _foreign(text: str, asked: str) -> bool:
    def scripts(words: str) -> Counter[str]:
        return Counter(unicodedata.name(letter, "?").split()[0] for letter in words if letter.isalpha())

    own, known = scripts(text), scripts(asked).keys() | {"LATIN"}
    return sum(count for script, count in own.items() if script not in known) > _FOREIGN * max(1, own.total())
