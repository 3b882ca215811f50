"""Why wrong completions are wrong: each text's cause by rule; the unexplained by their commonest
words.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from workbench.audit.prompt_format import ExpectedFormat, parse_format
from workbench.errors import RunError, nearest
from workbench.inspection.listing import Listing, frame_of
from workbench.inspection.measured import Evaluation
from workbench.inspection.reading import answer_column_of, needs, question
from workbench.kinds import Fields
from workbench.rewards.answers import find_answer
from workbench.rewards.compare import quick_same
from workbench.run.directory import RunDirectory
from workbench.run.parts import parts, span
from workbench.run.rollouts import qualified, read_batches, unstated_right

UNEXPLAINED = ("other", "no answer in it")
_REFUSAL = re.compile(
    r"\b(I (can(no|['’])t|can not|am unable to|must decline)|I['’]m (sorry|unable|not able)|sorry,?"
    r" but|as an AI|lo siento"
    r"|je suis désolé)",
    re.IGNORECASE,
)
# in which a carry may be lost, and a number of the question copied
_PLAIN_SUM = re.compile(r"\D*\d+\s*[-+−]\s*\d+\D*")
_WORDS, _ALIKE = 3, 3  # words of an n-gram; texts that share one, at least, to be a cluster
_FOREIGN = 0.3  # of a completion's letters, in scripts that the prompt does not use
_KEPT = 5000  # texts without a cause that are compared with one another


def failures(source: RunDirectory | Evaluation, answer_column: str | None = None) -> Listing:
    """What is wrong with the wrong completions: each cause with its count, its share, an example
    and its trend.

    >>> found = wb.inspection.failures(wb.open_run())
    >>> list(found.frame.columns)
    ['cause', 'count', 'share', 'first', 'last', 'prompt', 'example']

    Args:
        source: a run's record, or an evaluation, of which the trained policy's completions are read
            beside the base's.
        answer_column: the dataset column that holds the right answer; None: the task's, or
            recognised by its name.

    Returns:
        `frame`, the commonest cause first: `share` of the wrong completions; `first` and `last`:
        the share of all completions that failed so in the first and the last quarter of the steps
        (of an evaluation: the base's and the trained policy's). Texts that no rule explains are
        grouped by three words that they share.

    Raises:
        RunError: if nothing was recorded, or no row has that column and the rows have others.
    """
    needs(source, RunDirectory, Evaluation)
    manifest = source.manifest() if isinstance(source, RunDirectory) else {}
    counts, spread, example, sizes, total = Counter(), (Counter(), Counter()), {}, [0, 0], 0
    unexplained: list[tuple[str, bool, set[int], str, str]] = []

    def count(why: str, counted: bool, ends: set[int], asked: str, text: str) -> None:
        for end in ends:
            spread[end][why] += 1
        if counted:
            counts[why] += 1
            example.setdefault(why, (asked, text))

    for ends, counted, rows, texts, right, ended, kept in _read(source):
        total += counted * len(texts)
        for end in ends:
            sizes[end] += len(texts)
        known = sorted(rows[0].keys() - {"prompt", "prompt_id"})
        column = answer_column or answer_column_of(known, manifest) or "answer"
        if known and not any(column in row for row in rows):
            rule, choose = (
                "causes are read against the right answer",
                "choose one of them (answer_column=, --answer-column)",
            )
            remedy = nearest(column, known, choose)
            raise RunError(
                f"no column {column!r}; there are {', '.join(known)}", rule=rule, remedy=remedy
            )
        for place in np.flatnonzero(~np.asarray(right)):
            form = None if kept is None else bool(kept[place])
            why = cause(
                rows[place], texts[place], bool(ended[place]), form, rows[place].get(column)
            )
            own = why, counted, ends, question(rows[place]["prompt"]), texts[place]
            if why in UNEXPLAINED and len(unexplained) < _KEPT:
                unexplained.append(own)
            else:
                count(*own)
    named = _clusters([text for *_, text in unexplained])
    for why, counted, ends, asked, text in unexplained:
        count(named.get(text, why), counted, ends, asked, text)
    wrong = counts.total()
    rows = [
        (
            why,
            count,
            count / wrong,
            *(own[why] / max(1, size) for own, size in zip(spread, sizes, strict=True)),
            *example[why],
        )
        for why, count in counts.most_common()
    ]
    names = ["cause", "count", "share", "first", "last", "prompt", "example"]
    verdict = f"{wrong:,} of {total:,} completions are wrong"
    if rows:
        verdict += ": " + ", ".join(f"{why} {share:.0%}" for why, _, share, *_ in rows[:4])
    verdict = qualified(verdict, unstated_right(manifest))
    return Listing(
        verdict,
        frame_of(rows, names),
        {"wrong": wrong, "completions": total, "causes": dict(counts)},
    )


def _clusters(texts: Sequence[str]) -> dict[str, str]:
    # Text -> the words that most of these texts share with it, where some others do.
    grams = {
        text: {*zip(*(text.casefold().split()[start:] for start in range(_WORDS)), strict=False)}
        for text in texts
    }
    shared = Counter(gram for text in texts for gram in grams[text])
    best = {
        text: min(own, key=lambda gram: (-shared[gram], gram)) for text, own in grams.items() if own
    }
    return {
        text: f"like '{' '.join(gram)}'" for text, gram in best.items() if shared[gram] >= _ALIKE
    }


def _read(source: RunDirectory | Evaluation) -> Iterator[tuple[Any, ...]]:
    # ({0} of what is before, {1} after, both or none; whether it is counted; rows, texts, right,
    # ended, format kept), [B] each.
    if isinstance(source, Evaluation):
        size = source.after.correct.shape[1]
        rows = [
            row
            for row in source.rows or [{"prompt": prompt} for prompt in source.prompts]
            for _ in range(size)
        ]
        for end, own in enumerate((source.before, source.after)):
            texts = [text for group in own.completions for text in group]
            kept = None if own.format is None else own.format.ravel()
            yield {end}, end == 1, rows, texts, own.correct.ravel(), own.finished.ravel(), kept
        return
    there = parts(source.rollouts)
    early, late = np.quantile([span(there[0])[0], span(there[-1])[1]], [0.25, 0.75])
    for batch in read_batches(source):
        ends = {
            end
            for end, is_there in enumerate((batch.step <= early, batch.step >= late))
            if is_there
        }
        ended = np.ones(len(batch.completions), bool) if batch.finished is None else batch.finished
        kept = (
            batch.scores[:, batch.names.index(batch.format_by)] > 0
            if batch.format_by in batch.names
            else None
        )
        yield ends, True, batch.rows, batch.completions, batch.right, ended, kept


def cause(
    row: Fields, text: str, finished: bool, kept: bool | None = None, answer: object = None
) -> str:
    """Why a completion that is not right is wrong, by the first rule that fits.

    >>> cause({"prompt": "What is 15 + 27?"}, "<answer>32</answer>", True, True, "42")
    'off by a carry'

    Args:
        finished: it ended before the limit.
        kept: whether it keeps the strict format; None: not measured.
        answer: the right one; None: not known.
    """
    asked, said, plain = parse_format(row), question(row["prompt"]), text.strip()
    if not finished:
        return "cut at the limit"
    if not plain:
        return "empty"
    given, wrong = (
        (find_answer(text, "tag", asked.answer_tag) if asked.answer_tag else find_answer(text)),
        _tags(asked, plain),
    )
    if _foreign(plain, said):
        return "other language"
    if _REFUSAL.search(plain) and (given is None or wrong == "no tags"):
        return "refusal"
    if wrong and kept is not True:
        return wrong
    copied = (
        said.strip() in plain
        and len(said) > 10
        and find_answer(text.replace(said.strip(), "")) in (None, "")
    )
    if given is None:
        if asked.answer_tag or copied or answer is None or _number(str(answer)) is not None:
            return "copied the question" if copied and not asked.answer_tag else "no answer in it"
        # An answer in words may stand anywhere; where it does not, no rule tells what was meant for
        # one.
        there = re.search(rf"(?<!\w){re.escape(str(answer).strip())}(?!\w)", plain, re.IGNORECASE)
        return "right answer, among other words" if there else "other"
    wanted = (
        None
        if answer is None
        else find_answer(str(answer), "mark")
        or find_answer(str(answer), "boxed")
        or str(answer).strip()
    )
    if wanted is not None and (given == wanted or quick_same(given, wanted)):
        return "right answer, no reward" if kept is not False else "right answer, format not kept"
    if copied:
        return "copied the question"
    mine, theirs = _number(given), _number(wanted)
    if mine is None or theirs is None:
        return "copied the question" if len(given) > 10 and given in said else "other"
    if _PLAIN_SUM.fullmatch(said):
        if (off := _off(mine, theirs)) is not None:
            return off
        if given.strip("$ ") in re.findall(r"\d+", said):
            return "copied the question"
    return "wrong number"


def _tags(asked: ExpectedFormat, text: str) -> str:
    marks = [mark for block in asked.blocks for mark in (block.opening, block.closing)]
    if asked.boxed:
        marks.append("\\boxed")
    if asked.mark:
        marks.append("####")
    there = [mark in text for mark in marks]
    return "" if all(there) else "tags incomplete" if any(there) else "no tags"


def _number(text: str | None) -> float | None:
    try:
        value = float((text or "").replace(",", "").strip().lstrip("$"))
    except ValueError:
        return None
    return value if math.isfinite(value) else None  # float reads "nan" and "1e999", too


def _off(mine: float, theirs: float) -> str | None:
    if mine != int(mine) or theirs != int(theirs):
        return None
    if mine == -theirs:
        return "wrong sign"
    apart = str(abs(int(mine - theirs)))
    # A carry that was forgotten, or made up, leaves 10, 100, ...: 1 followed by zeros, less than
    # the number itself.
    carry = apart.strip("0") == "1" and len(apart) <= len(str(abs(int(theirs))))
    return "off by one" if apart == "1" else "off by a carry" if carry else None


def _foreign(text: str, asked: str) -> bool:
    def scripts(words: str) -> Counter[str]:
        return Counter(
            unicodedata.name(letter, "?").split()[0] for letter in words if letter.isalpha()
        )

    own, known = scripts(text), scripts(asked).keys() | {"LATIN"}
    return sum(count for script, count in own.items() if script not in known) > _FOREIGN * max(
        1, own.total()
    )
