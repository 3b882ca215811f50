"""How a score changes as a completion grows, and what survives the way through the tokenizer and
back.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence

import numpy as np
import pandas

from workbench.audit.completions import WORDS_ONCE, CompletionBuilder
from workbench.audit.findings import Finding, Findings, finding
from workbench.data.template import template_card
from workbench.kinds import Tokenizer
from workbench.rewards.hashing import source_code
from workbench.rewards.suite import RewardSuite

_LENGTHS = (1, 5, 10, 15, 20, 25, 30, 40, 50, 80, 120, 200, 400)  # characters
_TOKENS = (1, 8, 64, 256, 512, 1024, 4096)


def length_findings(
    suite: RewardSuite, name: str, to: CompletionBuilder
) -> tuple[str, list[Finding]]:
    """The unit in which a function counts lengths, "characters", "tokens" or "" for neither, and
    what is wrong with it.

    Completions of growing length are scored, and the same completion with growing numbers of
    tokens.
    """
    words = [" ".join(f"w{number}" for number in range(count)) for count in (0, 8, 16, 32, 64, 128)]
    inside = [to.format.write(f"Step by step: {more}".strip(), to.answer) for more in words]
    texts, ids = inside + [WORDS_ONCE[:count] for count in _LENGTHS], [*range(16)]
    by_token = [[*range(count)] for count in _TOKENS]
    batches = [(texts + [inside[1]] * len(_TOKENS), [ids] * len(texts) + by_token)]
    # Each alone: a function that scales its scores over the batch would lay these on one line.
    start = to.format.write("Step by step", to.answer)
    batches += [([start + "x" * count], [ids]) for count in (0, 1_000, 4_000, 16_000)]
    scored = [
        suite.score_each([to.row] * len(texts), texts, ids, [name], quiet=True)[name]
        for texts, ids in batches
    ]
    if any(each.errors for each in scored):
        return "", []
    together, *alone = [np.array(each.scores, dtype=float) for each in scored]
    inside_scores, plain, by_token = np.split(together, [len(inside), len(texts)])
    unit, findings = "", []
    if _distinct(by_token) > 1:
        unit = "tokens"
    elif max(_distinct(inside_scores), _distinct(plain)) > 2:
        unit = "characters"
        findings += _of_characters(name, suite, plain)
    values = np.concatenate(alone)
    steps = np.abs(np.diff(values))
    # Ten times the text, about ten times the change: there is no limit to it.
    if not np.isnan(values).any() and steps[1] >= 1e-9 and steps[2] >= 2 * steps[1]:
        moves = "rises" if values[-1] > values[0] else "falls"
        findings.append(finding("unbounded", name, moves=moves))
    return unit, findings


def _of_characters(name: str, suite: RewardSuite, plain: np.ndarray) -> Findings:
    function = suite.functions[name]
    words = f"{name} {source_code(function)} {inspect.getdoc(function)}".casefold()
    if "character" in words:
        return
    peak = _LENGTHS[int(np.nanargmax(plain))] if _distinct(plain) > 2 else _LENGTHS[-1]
    best = ""
    if peak < _LENGTHS[-1]:
        best = f", best at {peak} of those tried (about {max(1, peak // 4)} tokens)"
    wrong = "token" in words
    but = ", and speaks of tokens" if wrong else "; GRPO's own lengths are in tokens"
    worse = wrong or re.search(r"len|length|short|long|brief|concise", name)
    yield finding("unit", name, "warning" if worse else "", best=best, but=but)


def _distinct(values: np.ndarray) -> int:
    return pandas.Series(values).round(9).nunique()


def token_findings(
    suite: RewardSuite,
    builders: Sequence[CompletionBuilder],
    names: Sequence[str],
    tokenizer: Tokenizer,
    max_completion_length: int,
) -> Findings:
    """Score reference completions as the trainer decodes them: without special tokens, and without
    what the template wrote.
    """
    rows = [dict(builder.row) for builder in builders]
    texts = [builder.reference for builder in builders]
    card = template_card(tokenizer, rows[0]["prompt"])
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    decoded = [str(tokenizer.decode(tokens, skip_special_tokens=True)) for tokens in ids]
    opened = f"<{card.prefilled}>" if card.prefilled else ""
    begun = [text.removeprefix(opened) for text in decoded]
    before, after = (
        suite.score_each(rows, each, ids, names, quiet=True) for each in (texts, begun)
    )
    if lost := [tag for tag, survives in card.survives.items() if not survives]:
        reason = f"{' '.join(lost)} are special tokens, which vanish when it is decoded"
    elif opened:
        reason = f"the template writes {opened} itself, so the completion begins after it"
    else:
        pairs = enumerate(zip(texts[0], decoded[0], strict=False))
        place = next((index for index, (a, b) in pairs if a != b), len(decoded[0]))
        was, becomes = (text[place : place + 12] for text in (texts[0], decoded[0]))
        reason = f"{was!r} becomes {becomes!r}"
    for name in names:
        paid, left = (pandas.Series(each[name].scores).mean() for each in (before, after))
        if left < paid - 1e-6 or np.isnan(left) > np.isnan(paid):
            left = "nothing" if np.isnan(left) else f"{left:g}"
            yield finding("tokenizer", name, paid=paid, left=left, reason=reason)
    longest = max(map(len, ids))
    if longest > max_completion_length:
        severity = "warning" if builders[0].guessed else ""
        values = {"limit": max_completion_length, "format": builders[0].format}
        yield finding("cut", "", severity, longest=longest, **values)
