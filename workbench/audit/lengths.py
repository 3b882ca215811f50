"""How a score changes as a completion grows, and what survives the way through the tokenizer and
back.
"""

from __future__ import annotations

import inspect
import itertools
import re
import tokenize
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from workbench.audit.completions import CompletionBuilder
from workbench.audit.findings import Finding, finding, mean_of_known
from workbench.data.template import template_card
from workbench.rewards.suite import RewardSuite

_LENGTHS = (1, 5, 10, 15, 20, 25, 30, 40, 50, 80, 120, 200, 400)  # characters
_TOKENS = (1, 8, 64, 256, 512, 1024, 4096)
# No word twice, so that what counts repetitions counts none.
_WORDS_ONCE = " ".join(
    map(
        "".join,
        itertools.product(("lo", "ra", "mi", "tu", "ne", "sa", "ko", "vi", "pe", "du"), repeat=2),
    )
)


def length_findings(
    suite: RewardSuite, name: str, to: CompletionBuilder
) -> tuple[str, list[Finding]]:
    """The unit in which a function counts lengths, "characters", "tokens" or "" for neither, and
    what is wrong with it.

    Completions of growing length are scored, and the same completion with growing numbers of
    tokens.
    """

    def scores(texts: Sequence[str], ids: Sequence[Sequence[int]]) -> np.ndarray | None:
        scored = suite.score_each(
            [to.row] * len(texts), texts, list(map(list, ids)), names=[name], quiet=True
        )[name]
        return None if scored.errors else np.array(scored.scores, dtype=float)

    words = [" ".join(f"w{number}" for number in range(count)) for count in (0, 8, 16, 32, 64, 128)]
    inside = [to.format.write(f"Step by step: {more}".strip(), to.answer) for more in words]
    texts, same = inside + [_WORDS_ONCE[:count] for count in _LENGTHS], range(16)
    found = scores(
        texts + [inside[1]] * len(_TOKENS),
        [same] * len(texts) + [range(count) for count in _TOKENS],
    )
    # Each alone: a function that scales its scores over the batch would lay these on one line.
    start = to.format.write("Step by step", to.answer)
    tail = [scores([start + "x" * count], [same]) for count in (0, 1_000, 4_000, 16_000)]
    measured = [each for each in tail if each is not None]
    if found is None or len(measured) < len(tail):
        return "", []
    inside_scores, plain, by_token = np.split(found, [len(inside), len(texts)])
    unit = "characters" if max(_distinct(inside_scores), _distinct(plain)) > 2 else ""
    unit, findings, function = (
        "tokens" if _distinct(by_token) > 1 else unit,
        [],
        suite.functions[name],
    )
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        source = ""
    own_words = f"{name} {source} {inspect.getdoc(function) or ''}".casefold()
    if unit == "characters" and "character" not in own_words:
        peak = _LENGTHS[int(np.nanargmax(plain))] if _distinct(plain) > 2 else _LENGTHS[-1]
        best = (
            f", best at {peak} of those tried (about {max(1, peak // 4)} tokens)"
            if peak < _LENGTHS[-1]
            else ""
        )
        wrong = "token" in own_words
        but = ", and speaks of tokens" if wrong else "; GRPO's own lengths are in tokens"
        worse = wrong or re.search(r"len|length|short|long|brief|concise", name)
        findings.append(finding("unit", name, "warning" if worse else None, best=best, but=but))
    values = np.concatenate(measured)
    steps = np.abs(np.diff(values))
    # Ten times the text, about ten times the change: there is no limit to it.
    if not np.isnan(values).any() and steps[1] >= 1e-9 and steps[2] >= 2 * steps[1]:
        findings.append(
            finding("unbounded", name, moves="rises" if values[-1] > values[0] else "falls")
        )
    return unit, findings


def _distinct(values: np.ndarray) -> int:
    return len({round(value, 9) for value in values if value == value})


def token_findings(
    suite: RewardSuite,
    builders: Sequence[CompletionBuilder],
    names: Sequence[str],
    tokenizer: Any,
    max_completion_length: int,
) -> Iterator[Finding]:
    """Score reference completions as the trainer decodes them: without special tokens, and without
    what the template wrote.
    """
    rows, texts = (
        [dict(builder.row) for builder in builders],
        [builder.reference for builder in builders],
    )
    card = template_card(tokenizer, rows[0]["prompt"])
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    decoded = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in ids]
    opened = f"<{card.prefilled}>" if card.prefilled else ""
    before = suite.score_each(rows, texts, ids, names, quiet=True)
    after = suite.score_each(
        rows, [text.removeprefix(opened) for text in decoded], ids, names, quiet=True
    )
    for name in names:
        paid, left = (
            mean_of_known(np.array(scored[name].scores, dtype=float)) for scored in (before, after)
        )
        if left < paid - 1e-6 or (np.isfinite(paid) and not np.isfinite(left)):
            lost = [tag for tag, survives in card.survives.items() if not survives]
            if lost:
                reason = f"{' '.join(lost)} are special tokens, which vanish when it is decoded"
            elif opened:
                reason = f"the template writes {opened} itself, so the completion begins after it"
            else:
                pairs = zip(texts[0], decoded[0], strict=False)
                place = next(
                    (index for index, (a, b) in enumerate(pairs) if a != b), len(decoded[0])
                )
                reason = (
                    f"{texts[0][place : place + 12]!r} becomes {decoded[0][place : place + 12]!r}"
                )
            yield finding(
                "tokenizer",
                name,
                paid=paid,
                left=f"{left:g}" if np.isfinite(left) else "nothing",
                reason=reason,
            )
    longest = max(map(len, ids))
    if longest > max_completion_length:
        severity = "warning" if builders[0].guessed else None
        yield finding(
            "cut",
            "",
            severity,
            longest=longest,
            limit=max_completion_length,
            format=builders[0].format,
        )
