"""Why wrong completions are wrong: each text's cause by rule; the unexplained by their commonest
words.
"""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from workbench.audit.prompt_format import ExpectedFormat, parse_format
from workbench.data.prompts import question
from workbench.errors import RunError, nearest
from workbench.inspection.measured import Evaluation
from workbench.inspection.reading import (
    Listing,
    answer_column_of,
    frame_of,
    needs,
    quoted,
    shared_start,
)
from workbench.kinds import Fields
from workbench.rewards.answers import find_answer
from workbench.rewards.compare import quick_same
from workbench.rewards.right import judges_of
from workbench.run.directory import RunDirectory
from workbench.run.parts import parts, span
from workbench.run.rollouts import qualified, query, read_batches, unstated_right
from workbench.run.turns import Turn
from workbench.training.transcribing import NOT_CALLED, NOT_READ

AMONG = "right answer, among other words"
NONE = "names none of the answers"
# of a rollout of several turns
ANSWERED, NO_CALL = "not right, although each call was answered", "no call"
UNEXPLAINED = ("other", "no answer in it", NONE)
_REFUSAL = re.compile(
    r"\b(I (can(no|['’])t|can not|am unable to|must decline)|I['’]m (sorry|unable|not able)|sorry,?"
    r" but|as an AI)",
    re.IGNORECASE,
)
# in which a carry may be lost, and a number of the question copied
_PLAIN_SUM = re.compile(r"\D*\d+\s*[-+−]\s*\d+\D*")
_ALIKE = 3  # texts that share three words, at least, to be a cluster
_FOREIGN = 0.3  # of a completion's letters, in scripts that the prompt does not use
_MARKS = " \n.,:;!?*_`'\""  # around an answer in words
_KEPT = 5000  # texts without a cause that are compared with one another
# of a task that lets one choose: its answers, at most, and each one's characters
_CHOICES, _SHORT = 12, 24


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
        (of an evaluation: the base's and the trained policy's). Where all answers are one of a few
        words, it is read which of them a text names. Texts that no rule explains are grouped by
        words that they share.

    Raises:
        RunError: if nothing was recorded, or no row has that column and the rows have others.
    """
    needs(source, RunDirectory, Evaluation)
    manifest = source.manifest() if isinstance(source, RunDirectory) else {}
    # By the part of the record: "all" that is counted, its "first" quarter and its "last".
    counts: dict[str, Counter[str]] = {part: Counter() for part in ("all", "first", "last")}
    sizes: Counter[str] = Counter()
    examples: dict[str, tuple[str, str]] = {}
    unexplained: list[tuple[str, set[str], str, str, str]] = []  # the right answer last
    answers: dict[str, str] = {}  # casefolded -> as it was first seen

    def count(why: str, of: set[str], asked: str, text: str) -> None:
        for part in of:
            counts[part][why] += 1
        if "all" in of:
            examples.setdefault(why, (asked, text))

    columns, column = (), ""
    for of, row, text, right, ended, kept, turns in _completions(source):
        if columns != (columns := tuple(row)):
            column = _answer_column(row, answer_column, manifest, bool(turns))
        if right is None:  # no function says so
            continue
        sizes.update(of)
        answer = str(row.get(column)).strip()
        if len(answers) <= _CHOICES:
            answers.setdefault(answer.casefold(), answer)
        if right:
            continue
        said = turns[-1].text if turns else text  # calls are no answers
        why = (ended and _of_turns(turns)) or cause(row, said, ended, kept, row.get(column))
        if turns and why in UNEXPLAINED:
            why = ANSWERED if any(turn.calls for turn in turns) else NO_CALL
        wrong = why, of, question(row["prompt"]), text
        if why in (*UNEXPLAINED, AMONG) and len(unexplained) < _KEPT:
            unexplained.append((*wrong, answer))
        else:
            count(*wrong)
    choices = _choices(answers, sizes["all"])
    named = [_named(choices, why, text, right) for why, *_, text, right in unexplained]
    pairs = list(zip(named, unexplained, strict=True))
    clusters = _clusters([text for why, (*_, text, _) in pairs if why in UNEXPLAINED])
    for why, (_, of, asked, text, _) in pairs:
        count(clusters.get(text, why) if why in UNEXPLAINED else why, of, asked, text)
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


def _of_turns(turns: Sequence[Turn]) -> str:
    # What went wrong with a rollout's calls, the first that did; empty: nothing.
    for turn in turns:
        if turn.unparsed:
            return f"a call that nobody parsed: {turn.unparsed}"
        for call in turn.calls:
            if call.error in (NOT_CALLED, NOT_READ):
                return f"a call: {call.error}"
            if call.error:
                return f"a call that failed: {call.error[:80]}"
    return ""


def _answer_column(row: Fields, asked: str | None, manifest: Fields, turns: bool) -> str:
    known = sorted(row.keys() - {"prompt", "prompt_id"})
    column = asked or answer_column_of(known, manifest) or "answer"
    if turns and not asked:
        return column
    if known and column not in known:
        choose = "choose one of them (answer_column=, --answer-column)"
        raise RunError(
            f"no column {column!r}; there are {', '.join(known)}",
            rule="causes are read against the right answer",
            remedy=nearest(column, known, choose),
        )
    return column


def _choices(answers: dict[str, str], completions: int) -> list[str]:
    # The answers of a task that lets one choose between a few words; empty for others.
    few = 1 < len(answers) <= min(_CHOICES, completions / _ALIKE)
    words = all(0 < len(own) <= _SHORT and _number(own) is None for own in answers)
    return list(answers.values()) if few and words else []


def _named(choices: Sequence[str], why: str, text: str, right: str) -> str:
    # A cause by which of the answers a text names.
    named = [own for own in choices if _stands(own, text)]
    if len(named) > 1:
        return "names several of the answers"
    if not named:
        return NONE if choices else why
    if named[0].casefold() != right.casefold():
        return f"another answer, {named[0]!r}"
    return AMONG if why in UNEXPLAINED else why


def _stands(words: str, text: str) -> bool:
    return bool(re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text, re.IGNORECASE))


def _clusters(texts: Sequence[str]) -> dict[str, str]:
    # Text -> the words that it shares with most others, where there are some: three that stand
    # side by side in all of them, and as many more beside these as all of them have.
    words = {text: text.casefold().split() for text in texts}
    grams = {text: {*zip(own, own[1:], own[2:])} for text, own in words.items()}
    shared = Counter(gram for text in texts for gram in grams[text])
    alike: dict[tuple[str, ...], list[str]] = {}
    for text in texts:
        gram = min(grams[text], key=lambda gram: (-shared[gram], gram), default=None)
        if gram:
            alike.setdefault(gram, []).append(text)
    clusters = {}
    for gram, members in alike.items():
        if len(members) < _ALIKE:
            continue
        label = f"like '{_in_common([words[text] for text in members], gram)}'"
        clusters.update(dict.fromkeys(members, label))
    return clusters


def _in_common(texts: Sequence[list[str]], gram: tuple[str, ...]) -> str:
    # The words around `gram` that all texts have, with an ellipsis where some have others.
    sides = []
    for own in texts:
        at = next(at for at in range(len(own)) if (*own[at : at + len(gram)],) == gram)
        sides.append((own[:at][::-1], own[at + len(gram) :]))
    ends = []
    for side in zip(*sides, strict=True):
        common = shared_start(side)
        ends.append([*side[0][:common], *["…"] * any(len(own) > common for own in side)])
    before, after = ends
    return " ".join([*before[::-1], *gram, *after])


def _silence(run: RunDirectory, manifest: Fields) -> str:
    # Of how many completions the function that says what is right says nothing, and what does.
    about = manifest.get("task") or {}
    weights = (manifest.get("rewards") or {}).get("weights") or {}
    if (by := about.get("right_by")) not in weights or manifest.get("stages"):
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
    # says so), whether it ended, whether it keeps the format (None: not measured), and its turns,
    # where it has several.
    if isinstance(source, Evaluation):
        rows = source.rows or [{"prompt": prompt} for prompt in source.prompts]
        columns = dict.fromkeys(itertools.chain.from_iterable(rows))  # not every row may have all
        for of, own in (({"first"}, source.before), ({"all", "last"}, source.after)):
            kept = own.format if own.format is not None else np.full(own.lenient.shape, None)
            arrays = (values.tolist() for values in (own.correct, own.finished, kept))
            turns = own.turns or [[[] for _ in group] for group in own.completions]
            for row, *group in zip(rows, own.completions, *arrays, turns):
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
        kept = np.full(batch.right.shape, None)
        if batch.format_by in batch.names:
            scored = batch.scores[:, batch.names.index(batch.format_by)]
            kept = np.where(np.isnan(scored), None, scored > 0)
        arrays = (values.tolist() for values in (batch.right, np.asarray(batch.finished), kept))
        turns = batch.turns or [[] for _ in batch.completions]
        yield from ((of, *each) for each in zip(batch.rows, batch.completions, *arrays, turns))


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
    if _foreign(plain, asked):
        return "other language"
    if _REFUSAL.search(plain) and (given is None or tags == "no tags"):
        return "refusal"
    if tags and kept is not True:
        return tags
    echoed = len(asked) > 10 and asked in plain
    copied = echoed and not find_answer(text.replace(asked, ""))
    wanted = None
    if answer is not None:
        wanted = str(answer).strip()
        wanted = find_answer(wanted, "mark") or find_answer(wanted, "boxed") or wanted
    if given is None:
        if copied and not form.answer_tag:
            return "copied the question"
        if form.answer_tag or wanted is None or _number(str(answer)) is not None:
            return "no answer in it"
        # An answer in words may stand anywhere; where it does not, no rule tells what was meant for
        # one.
        if plain.strip(_MARKS).casefold() == str(answer).strip(_MARKS).casefold():
            return "right answer, spelt in another way"
        return AMONG if _stands(str(answer).strip(), plain) else "other"
    if wanted is not None and (given == wanted or quick_same(given, wanted)):
        return "right answer, format not kept" if kept is False else "right answer, no reward"
    mine, theirs = _number(given), _number(wanted)
    if copied or (None in (mine, theirs) and len(given) > 10 and given in asked):
        return "copied the question"
    if mine is None or theirs is None:
        return "other"
    if _PLAIN_SUM.fullmatch(asked):
        # A carry that was forgotten, or made up, leaves 10, 100, ...: less than the number itself.
        apart = f"{abs(mine - theirs):.12g}"
        if re.fullmatch("10+", apart) and len(apart) <= len(f"{abs(theirs):.0f}"):
            return "off by a carry"
        number = given.strip("$ ")
        # what stands after an equals sign was worked out: 3 + 0 = 3
        if number in re.findall(r"\d+", asked) and not re.search(rf"=\s*{number}\b", plain):
            return "copied the question"
    return "wrong number"


def _tags(form: ExpectedFormat, text: str) -> str:
    marks = [mark for block in form.blocks for mark in (block.opening, block.closing)]
    if form.boxed:
        marks.append("\\boxed")
    if form.mark:
        marks.append(form.mark)
    there = [mark in text for mark in marks]
    return "" if all(there) else "tags incomplete" if any(there) else "no tags"


def _number(text: str | None) -> float | None:
    try:
        value = float((text or "").replace(",", "").strip().lstrip("$"))
    except ValueError:
        return None
    return value if math.isfinite(value) else None  # float reads "nan" and "1e999", too


def _foreign(text: str, asked: str) -> bool:
    scripts, known = _scripts(text), _scripts(asked).keys() | {"LATIN"}
    foreign = sum(count for script, count in scripts.items() if script not in known)
    return foreign > _FOREIGN * max(1, scripts.total())


def _scripts(text: str) -> Counter[str]:
    letters = filter(str.isalpha, text)
    return Counter(unicodedata.name(letter, "?").split()[0] for letter in letters)
