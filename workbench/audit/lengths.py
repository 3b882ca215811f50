"""How a score changes as a completion grows, and what survives the way through the tokenizer and
back.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Sequence

import numpy as np
import pandas

from workbench.audit.completions import WORDS_ONCE
from workbench.audit.findings import Finding, Findings, finding
from workbench.audit.trial import Trial
from workbench.base.kinds import Tokenizer
from workbench.data.template import template_card
from workbench.rewards.hashing import source_code

_LENGTHS = (1, 5, 10, 15, 20, 25, 30, 40, 50, 80, 120, 200, 400)  # characters
_TOKENS = (1, 8, 64, 256, 512, 1024, 4096)
_WORDS = (0, 8, 16, 32, 64, 128)
_ADDED = (0, 1_000, 4_000, 16_000)  # characters


def length_findings(trial: Trial, name: str) -> tuple[str, list[Finding]]:
    """The unit in which a function counts lengths, "characters", "tokens" or "" for neither, and
    what is wrong with it.

    Completions of growing length are scored, and the same completion with growing numbers of
    tokens.
    """
    to = trial.first
    words = [" ".join(f"w{number}" for number in range(count)) for count in _WORDS]
    inside = [to.format.write(f"Step by step: {more}".strip(), to.answer) for more in words]
    texts = inside + [WORDS_ONCE[:count] for count in _LENGTHS]
    ids = [[*range(count)] for count in (*[16] * len(texts), *_TOKENS)]
    batches = [(texts + [inside[1]] * len(_TOKENS), ids)]
    # Each alone: a function that scales its scores over the batch would lay these on one line.
    start = to.format.write("Step by step", to.answer)
    batches += [([start + "x" * count], ids[:1]) for count in _ADDED]
    scored = [trial.scored(name, [to.row] * len(batch), batch, own) for batch, own in batches]
    if any(each.errors for each in scored):
        return "", []
    together, *alone = [np.array(each.scores, dtype=float) for each in scored]
    inside_scores, plain, by_token = np.split(together, [len(inside), len(texts)])
    unit, findings = "", []
    if _distinct(by_token) > 1:
        unit = "tokens"
    elif max(_distinct(inside_scores), _distinct(plain)) > 2:
        unit = "characters"
        findings += _of_characters(trial, name, plain)
    values = np.concatenate(alone)
    steps = np.abs(np.diff(values))
    # Ten times the text, about ten times the change: there is no limit to it.
    if not np.isnan(values).any() and steps[1] >= 1e-9 and steps[2] >= 2 * steps[1]:
        moves = "rises" if values[-1] > values[0] else "falls"
        findings.append(finding("unbounded", name, moves=moves))
    return unit, findings


def _of_characters(trial: Trial, name: str, plain: np.ndarray) -> Findings:
    function = trial.suite.functions[name]
    words = f"{name} {source_code(function)} {inspect.getdoc(function)}".casefold()
    if "character" in words:
        return
    peak, best = _LENGTHS[-1], ""
    if _distinct(plain) > 2:
        peak = _LENGTHS[int(np.nanargmax(plain))]
    if peak < _LENGTHS[-1]:
        best = f", best at {peak} of those tried (about {max(1, peak // 4)} tokens)"
    wrong = "token" in words
    but = ", and speaks of tokens" if wrong else "; GRPO's own lengths are in tokens"
    worse = wrong or re.search(r"len|length|short|long|brief|concise", name)
    yield finding("unit", name, "warning" if worse else "", best=best, but=but)


def _distinct(values: np.ndarray) -> int:
    return pandas.Series(values).round(9).nunique()


def token_findings(trial: Trial, names: Sequence[str], tokenizer: Tokenizer) -> Findings:
    """Score reference completions as the trainer decodes them: without special tokens, and without
    what the template wrote.
    """
    texts = [builder.reference for builder in trial.builders]
    card = template_card(tokenizer, trial.rows[0]["prompt"])
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    decoded = [str(tokenizer.decode(tokens, skip_special_tokens=True)) for tokens in ids]
    opened = f"<{card.prefilled}>" if card.prefilled else ""
    begun = [text.removeprefix(opened) for text in decoded]
    if lost := [tag for tag, survives in card.survives.items() if not survives]:
        reason = f"{' '.join(lost)} are special tokens, which vanish when it is decoded"
    elif opened:
        reason = f"the template writes {opened} itself, so the completion begins after it"
    else:
        place = len(os.path.commonprefix([texts[0], decoded[0]]))  # noqa: RUF071  of texts
        was, becomes = (text[place : place + 12] for text in (texts[0], decoded[0]))
        reason = f"{was!r} becomes {becomes!r}"
    for name in names:
        paid, left = (
            pandas.Series(trial.scored(name, trial.rows, each, ids).scores).mean()
            for each in (texts, begun)
        )
        if left < paid - 1e-6 or np.isnan(left) > np.isnan(paid):
            left = "nothing" if np.isnan(left) else f"{left:g}"
            yield finding("tokenizer", name, paid=paid, left=left, reason=reason)
    longest = max(map(len, ids))
    if longest > trial.limit:
        severity = "warning" if trial.first.guessed else ""
        values = {"limit": trial.limit, "format": trial.first.format}
        yield finding("cut", "", severity, longest=longest, **values)
