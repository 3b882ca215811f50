"""Two policies on the same held-out prompts, prompt by prompt: which were fixed, which broke, and
in which words.
"""

from __future__ import annotations

import difflib
import re

import numpy as np

from workbench.base.errors import DataError
from workbench.base.kinds import Fields
from workbench.data.prompts import question
from workbench.inspection.measured import Evaluation, Measured
from workbench.inspection.reading import Listing, frame_of, needs
from workbench.inspection.statistics import in_points, mcnemar, share_gain
from workbench.task import fingerprint, prompt_key


def word_diff(before: str, after: str) -> list[tuple[str, str]]:
    """How `before` became `after`, word by word: (" " kept, "-" removed or "+" added; the words).

    >>> word_diff("15 + 27 = 32", "15 + 27 = 42")
    [(' ', '15 + 27 = '), ('-', '32'), ('+', '42')]
    """
    words, new = (re.findall(r"\s+|\w+|[^\w\s]", text) for text in (before, after))
    parts: list[tuple[str, str]] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, words, new, autojunk=False).get_opcodes():
        if kind == "equal":
            parts.append((" ", "".join(words[a:b])))
        else:
            changed = ("-", words[a:b]), ("+", new[c:d])
            parts += [(mark, "".join(own)) for mark, own in changed if own]
    return parts


def regressions(
    evaluation: Evaluation, other: Evaluation | None = None, *, steps: tuple[int, int] | None = None
) -> Listing:
    """Held-out prompts, base compared with trained, the worsened first: shares of right
    completions, both texts, a word diff.

    >>> found = wb.inspection.regressions(wb.evaluate(wb.open_run(), held_out=8, samples=2))
    >>> sum(found.numbers[kind] for kind in ("fixed", "broken", "neither"))
    8

    A prompt is fixed where most of its completions are right after, and were not before; broken the
    other way round; lost where some were right before and none is after. The exact McNemar test is
    on fixed and broken; the interval is of the mean change over the prompts, paired.

    Args:
        other: the trained policies of two evaluations are compared instead, of two runs.
        steps: two of the steps that the evaluation has a curve of (`checkpoints=`) are compared
            instead; 0 is the base.

    Returns:
        `frame`, a row per prompt: prompt, before and after (shares), change, text_before,
        text_after. A cell shows the words that changed also.

    Raises:
        DataError: if the two evaluations share fewer than 2 prompts, or a step was not evaluated.
    """
    for own in filter(None, (evaluation, other)):
        needs(own, Evaluation)
    before, after, prompts = evaluation.before, evaluation.after, evaluation.prompts
    if steps is not None:
        if missing := [step for step in steps if step not in evaluation.curve]:
            raise DataError(
                f"step {missing[0]}: not in the evaluation",
                rule="a checkpoint is evaluated before it is compared",
                remedy="evaluate with checkpoints=[...], including 0 and the last",
            )
        before, after = (evaluation.curve[step] for step in steps)
    if other is not None:
        before, after, prompts = _aligned(evaluation, other)
    first, second = before.correct.mean(axis=1), after.correct.mean(axis=1)
    change = second - first
    fixed, broken, p = mcnemar(first > 0.5, second > 0.5)
    gain, low, high = share_gain(before.correct, after.correct)
    neither, lost = len(change) - fixed - broken, int(((first > 0) & (second == 0)).sum())
    order = np.lexsort((change, (first <= 0.5) | (second > 0.5)))
    frame = frame_of(
        [
            (
                question(prompts[place]),
                first[place],
                second[place],
                change[place],
                _telling(before, place, change[place] < 0),
                _telling(after, place, change[place] >= 0),
            )
            for place in order
        ],
        ["prompt", "before", "after", "change", "text_before", "text_after"],
    )
    worse, gone = f"broken {broken}", f", {lost} never right any more"
    if unbroken := not (broken or lost):
        worse, gone = "nothing broke", ""
    changed = f"{100 * gain:+.0f} points, 95 % interval {in_points(low, high)}"
    verdict = (
        f"fixed {fixed}, {worse}, neither {neither} of {len(change)} prompts (by most of a"
        f" prompt's completions; exact McNemar p = {p:.2g}){gone}; change {changed}"
    )
    numbers: Fields = {"fixed": fixed, "broken": broken, "p": p, "neither": neither, "lost": lost}
    numbers |= {"change": gain, "low": low, "high": high}
    return Listing(verdict, frame, numbers, folded=unbroken)


def diff_as_text(before: str, after: str) -> str:
    """A word diff as text: `15 + 27 = [-32-]{+42+}`."""
    marked = {" ": "{}", "-": "[-{}-]", "+": "{{+{}+}}"}
    return "".join(marked[mark].format(words) for mark, words in word_diff(before, after))


def _telling(measured: Measured, place: int, right: bool) -> str:
    # The first completion that shows the side that a change is about, or the first of all.
    return measured.completions[place][int(np.argmax(measured.correct[place] == right))]


def _keys(evaluation: Evaluation) -> list[str]:
    # Many starts of an environment share one prompt.
    if evaluation.after.turns and evaluation.rows:
        return [fingerprint([row]) for row in evaluation.rows]
    return [prompt_key(prompt) for prompt in evaluation.prompts]


def _aligned(one: Evaluation, other: Evaluation) -> tuple[Measured, Measured, list[object]]:
    first, second = ({key: place for place, key in enumerate(_keys(each))} for each in (one, other))
    both = [key for key in first if key in second]
    if len(both) < 2:
        raise DataError(
            f"{len(both)} prompts in common",
            rule="two policies are compared on the same held-out prompts",
            remedy="evaluate both on one task",
        )
    places = [first[key] for key in both]
    after = other.after.some([second[key] for key in both])
    return one.after.some(places), after, [one.prompts[place] for place in places]
