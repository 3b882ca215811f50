"""Why wrong completions are wrong: each text's cause, by rule."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any

from workbench.audit.prompt_format import ExpectedFormat, parse_format
from workbench.base.errors import RunError, nearest
from workbench.base.kinds import Fields
from workbench.data.prompts import question
from workbench.inspection.measured import Evaluation
from workbench.inspection.reading import Listing, answer_column_of, frame_of, needs, quoted
from workbench.rewards.answers import find_answer
from workbench.rewards.compare import quick_same
from workbench.rewards.right import judges_of
from workbench.run.directory import RunDirectory
from workbench.run.parts import parts, span
from workbench.run.rollouts import qualified, query, read_batches, unstated_right
from workbench.run.turns import Turn

# of a rollout of several turns
ANSWERED, NO_CALL = "not right, although each call was answered", "no call"
UNEXPLAINED = ("other", "no answer in it")
_REFUSAL = re.compile(
    r"\b(I (can(no|['’])t|can not|am unable to|must decline)|I['’]m (sorry|unable|not able)|sorry,?"
    r" but|as an AI)",
    re.IGNORECASE,
)
# in which a carry may be lost
_PLAIN_SUM = re.compile(r"\D*\d+\s*[-+−]\s*\d+\D*")


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
            recognised by its name. Rollouts of several turns need none.

    Returns:
        `frame`, the commonest cause first: `share` of the wrong completions; `first` and `last`:
        the share of all completions that failed so in the first and the last quarter of the steps
        (of an evaluation: the base's and the trained policy's).

    Raises:
        RunError: if nothing was recorded, or no row has that column and the rows have others.
    """
    needs(source, RunDirectory, Evaluation)
    manifest = source.manifest() if isinstance(source, RunDirectory) else {}
    # By the part of the record: "all" that is counted, its "first" quarter and its "last"; those
    # that are right have the cause "".
    counts: dict[str, Counter[str]] = {part: Counter() for part in ("all", "first", "last")}
    examples: dict[str, tuple[str, str]] = {}
    columns, column = (), ""
    for of, row, text, right, ended, turns, kept in _completions(source):
        if columns != (columns := tuple(row)):
            column = _column(row, answer_column, manifest, bool(turns))
        if right is None:  # no function says so
            continue
        why = "" if right else _of_turns(turns, ended)
        if not right and not why:
            said = turns[-1].text if turns else text  # calls are no answers
            why = cause(row, said, ended, kept, row.get(column))
        if turns and why in UNEXPLAINED:
            why = ANSWERED if any(turn.calls for turn in turns) else NO_CALL
        for part in of:
            counts[part][why] += 1
        if "all" in of:
            examples.setdefault(why, (question(row["prompt"]), text))
    sizes = {part: own.total() for part, own in counts.items()}
    del counts["all"][""]
    wrong = counts["all"].total()
    rows = []
    for why, number in counts["all"].most_common():
        ends = (counts[end][why] / max(1, sizes[end]) for end in ("first", "last"))
        rows.append((why, number, number / wrong, *ends, *examples[why]))
    verdict = f"{wrong:,} of {sizes['all']:,} completions are wrong"
    if rows:
        verdict += ": " + ", ".join(f"{why} {share:.0%}" for why, _, share, *_ in rows[:4])
    if isinstance(source, RunDirectory):
        verdict += _silence(source, manifest)
    return Listing(
        qualified(verdict, unstated_right(manifest)),
        frame_of(rows, ["cause", "count", "share", "first", "last", "prompt", "example"]),
        {"wrong": wrong, "completions": sizes["all"], "causes": dict(counts["all"])},
    )


def _column(row: Fields, asked: str | None, manifest: Fields, turns: bool) -> str:
    # The column with the right answer, which rollouts of several turns need not have.
    known = sorted(row.keys() - {"prompt", "prompt_id"})
    column = asked or answer_column_of(known, manifest) or "answer"
    if known and column not in known and (asked or not turns):
        raise RunError(
            f"no column {column!r}; there are {', '.join(known)}",
            rule="causes are read against the right answer",
            remedy=nearest(column, known, "choose one of them (answer_column=, --answer-column)"),
        )
    return column


def _of_turns(turns: Sequence[Turn], ended: bool) -> str:
    # What went wrong with a rollout's calls, the first that did; empty: nothing, or it was cut.
    for turn in turns if ended else ():
        if turn.unparsed:
            return f"a call that nobody parsed: {turn.unparsed}"
        for call in turn.calls:
            if call.error:
                return f"a call that failed: {call.error[:90]}"
    return ""


def _silence(run: RunDirectory, manifest: Fields) -> str:
    # Of how many completions the function that says what is right says nothing, and what does.
    about = manifest.get("task") or {}
    weights = (manifest.get("rewards") or {}).get("weights") or {}
    if (by := about.get("right_by", "")) not in weights or manifest.get("stages"):
        return ""
    scored = f'select step, "group" from rollouts where {quoted("score." + by)} is not null'
    counted = 'select count("right"), count(*) from rollouts where (step, "group") not in'
    told, silent = query(run.rollouts, f"{counted} ({scored})").iloc[0].tolist()
    _, *others = judges_of(weights, by, not unstated_right(manifest), about.get("format_by"))
    decide = f"; {by} says nothing of {told:,} of them, where {' or '.join(others)} decides"
    more = f"; {by} says nothing of {silent - told:,} more, which do not count"
    return decide * (told > 0) + more * (silent > told)


def _completions(source: RunDirectory | Evaluation) -> Iterator[tuple[Any, ...]]:
    # Of each: the parts that it belongs to, its row, its text, whether it is right (None: nothing
    # says so), whether it ended, its turns, where it has several, and whether it keeps the format
    # (None: not measured).
    if isinstance(source, Evaluation):
        rows = source.rows or [{"prompt": prompt} for prompt in source.prompts]
        columns = dict.fromkeys(chain.from_iterable(rows))  # not every row may have all
        for of, own in (({"first"}, source.before), ({"all", "last"}, source.after)):
            kept = repeat(repeat(None)) if own.format is None else own.format.tolist()
            turns = own.turns or repeat(repeat(()))
            arrays = own.completions, own.correct.tolist(), own.finished, turns, kept
            for row, *group in zip(rows, *arrays):
                yield from ((of, columns | row, *each) for each in zip(*group))
        return
    recorded = parts(source.rollouts)
    first, last = span(recorded[0])[0], span(recorded[-1])[1]
    for batch in read_batches(source):
        of = {"all"}
        if batch.step <= first + 0.25 * (last - first):
            of.add("first")
        if batch.step >= first + 0.75 * (last - first):
            of.add("last")
        arrays: Any = batch.completions, batch.right.tolist(), batch.finished
        own = zip(batch.rows, *arrays, batch.turns or repeat(()))
        yield from ((of, *each, None) for each in own)


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
    form, asked, plain = parse_format(row), question(row["prompt"]).strip(), text.strip()
    if not finished:
        return "cut at the limit"
    if not plain:
        return "empty"
    given = find_answer(text, "tag", form.answer_tag) if form.answer_tag else find_answer(text)
    tags = _tags(form, plain)
    if _REFUSAL.search(plain) and (given is None or tags == "no tags"):
        return "refusal"
    if tags and kept is not True:
        return tags
    wanted = "" if answer is None else str(answer).strip()
    wanted = find_answer(wanted, "mark") or find_answer(wanted, "boxed") or wanted
    if given is not None and wanted and quick_same(given, wanted):
        return "right answer, format not kept" if kept is False else "right answer, no reward"
    if len(asked) > 10 and asked in plain and not find_answer(text.replace(asked, "")):
        return "copied the question"
    if given is None:
        # An answer in words may stand anywhere; a number is looked for where it belongs.
        words = not form.answer_tag and wanted and _number(wanted) is None
        if words and re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", plain, re.IGNORECASE):
            return "names the right answer"
        return "other" if words else "no answer in it"
    mine, theirs = _number(given), _number(wanted)
    if mine is None or theirs is None:
        return "other"
    # A carry that was forgotten, or made up, leaves 10, 100, ...: less than the number itself.
    apart = f"{abs(mine - theirs):.12g}"
    if not _PLAIN_SUM.fullmatch(asked) or not re.fullmatch("10+", apart):
        return "wrong number"
    return "off by a carry" if len(apart) <= len(f"{abs(theirs):.0f}") else "wrong number"


def _tags(form: ExpectedFormat, text: str) -> str:
    marks = [mark for block in form.blocks for mark in (block.opening, block.closing)]
    if form.boxed:
        marks.append("\\boxed")
    if form.mark:
        marks.append(form.mark)
    there = [mark in text for mark in marks]
    return "" if all(there) else "tags incomplete" if any(there) else "no tags"


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", "").strip().lstrip("$"))
    except ValueError:
        return None
    return value if math.isfinite(value) else None  # float reads "nan" and "1e999", too
