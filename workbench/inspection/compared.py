"""Two policies on the same held-out prompts, prompt by prompt: which were fixed, which broke, and
in which words.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.errors import DataError
from workbench.inspection.listing import Listing, frame_of
from workbench.inspection.measured import Evaluation, Measured
from workbench.inspection.reading import needs, question
from workbench.inspection.statistics import in_points, mcnemar, share_gain
from workbench.kinds import Fields


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
            parts += [
                (mark, "".join(own)) for mark, own in (("-", words[a:b]), ("+", new[c:d])) if own
            ]
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
    for own in (evaluation, other) if other is not None else (evaluation,):
        needs(own, Evaluation)
    before, after, prompts = evaluation.before, evaluation.after, evaluation.prompts
    if steps is not None:
        if missing := [step for step in steps if step not in evaluation.curve]:
            rule, remedy = (
                "a checkpoint is evaluated before it is compared",
                "evaluate with checkpoints=[...], including 0 and the last",
            )
            raise DataError(f"step {missing[0]}: not in the evaluation", rule=rule, remedy=remedy)
        before, after = (evaluation.curve[step] for step in steps)
    if other is not None:
        before, after, prompts = _aligned(evaluation, other)
    first, second = before.correct.mean(axis=1), after.correct.mean(axis=1)
    change = second - first
    numbers: Fields = dict(
        zip(("fixed", "broken", "p"), mcnemar(first > 0.5, second > 0.5), strict=True)
    )
    numbers["neither"] = len(change) - numbers["fixed"] - numbers["broken"]
    numbers["lost"] = int(((first > 0) & (second == 0)).sum())
    numbers |= dict(
        zip(("change", "low", "high"), share_gain(before.correct, after.correct), strict=True)
    )
    order = np.lexsort((np.arange(len(change)), change, (first <= 0.5) | (second > 0.5)))
    rows = []
    for place in order:
        old, new = (
            _telling(before, place, change[place] < 0),
            _telling(after, place, change[place] >= 0),
        )
        row = (question(prompts[place]), first[place], second[place], change[place], old, new)
        rows.append(row)
    names = ["prompt", "before", "after", "change", "text_before", "text_after"]
    verdict = (
        f"fixed {numbers['fixed']}, broken {numbers['broken']}, neither {numbers['neither']} of"
        f" {len(change)} prompts (by most of a prompt's completions; exact McNemar p ="
        f" {numbers['p']:.2g}), {numbers['lost']} never right any more; change"
        f" {100 * numbers['change']:+.0f} points, 95 % interval"
        f" {in_points(numbers['low'], numbers['high'])}"
    )
    return Listing(verdict, frame_of(rows, names), numbers)


def diff_as_text(before: str, after: str) -> str:
    """A word diff as text: `15 + 27 = [-32-]{+42+}`."""
    marked = {" ": "{}", "-": "[-{}-]", "+": "{{+{}+}}"}
    return "".join(marked[mark].format(words) for mark, words in word_diff(before, after))


def _telling(measured: Measured, place: int, right: bool) -> str:
    # The first completion that shows the side that a change is about, or the first of all.
    flags = measured.correct[place]
    return measured.completions[place][
        int(np.argmax(flags == right)) if (flags == right).any() else 0
    ]


def _aligned(one: Evaluation, other: Evaluation) -> tuple[Measured, Measured, Sequence[Any]]:
    from workbench.task import prompt_key

    places = [
        {prompt_key(prompt): place for place, prompt in enumerate(each.prompts)}
        for each in (one, other)
    ]
    both = [key for key in places[0] if key in places[1]]
    if len(both) < 2:
        value = f"{len(both)} prompts in common"
        raise DataError(
            value,
            rule="two policies are compared on the same held-out prompts",
            remedy="evaluate both on one task",
        )
    first, second = (
        each.after.some([place[key] for key in both])
        for each, place in zip((one, other), places, strict=True)
    )
    return first, second, [one.prompts[places[0][key]] for key in both]
