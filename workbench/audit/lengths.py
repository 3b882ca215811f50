"""What a score does as a completion grows, and what is left of it on the way through the tokenizer and back."""

from __future__ import annotations

import inspect
import itertools
import re
import tokenize
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from workbench.audit.findings import Finding, finding, mean_of_known
from workbench.audit.prompt_format import ExpectedFormat
from workbench.audit.reference_completion import CompletionBuilder
from workbench.data.template import template_card
from workbench.rewards.suite import RewardSuite
from workbench.task import Row

_LENGTHS = (1, 5, 10, 15, 20, 25, 30, 40, 50, 80, 120, 200, 400)  # characters
_WORDS = (0, 8, 16, 32, 64, 128)
_TOKENS = (1, 8, 64, 256, 512, 1024, 4096)
# No word twice, so that what counts repetitions counts none.
_WORDS_ONCE = " ".join(map("".join, itertools.product(("lo", "ra", "mi", "tu", "ne", "sa", "ko", "vi", "pe", "du"), repeat=2)))
_TAIL = (0, 1_000, 4_000, 16_000)


class Growth(NamedTuple):
    """How a function's score goes with the length."""

    unit: str = ""  # "characters", "tokens" or "": neither
    best: int | None = None  # of the plain texts that were tried, in that unit
    unbounded: str = ""  # "up" or "down"; empty: it has a bound


def growth(suite: RewardSuite, name: str, row: Row, format: ExpectedFormat, answer: str) -> Growth:
    """Score completions of growing length, and the same completion with growing numbers of tokens."""

    def scores(texts: Sequence[str], ids: Sequence[Sequence[int]]) -> np.ndarray | None:
        scored = suite.score_each([row] * len(texts), texts, list(map(list, ids)), names=[name], quiet=True)[name]
        return None if scored.errors else np.array(scored.scores, dtype=float)

    words = [" ".join(f"w{number}" for number in range(count)) for count in _WORDS]
    inside = [format.write(f"Step by step: {more}".strip(), answer) for more in words]
    texts, same = inside + [_WORDS_ONCE[:count] for count in _LENGTHS], range(16)
    found = scores(texts + [inside[1]] * len(_TOKENS), [same] * len(texts) + [range(count) for count in _TOKENS])
    # Each alone: a function that scales its scores over the batch would lay these on one line.
    tail = [scores([format.write("Step by step", answer) + "x" * count], [same]) for count in _TAIL]
    if found is None or any(each is None for each in tail):
        return Growth()
    inside_scores, plain, by_token = np.split(found, [len(inside), len(texts)])
    unbounded = _unbounded(np.concatenate(tail))
    if _distinct(by_token) > 1:
        return Growth("tokens", _TOKENS[int(np.nanargmax(by_token))], unbounded)
    if max(_distinct(inside_scores), _distinct(plain)) > 2:
        best = int(np.nanargmax(plain)) if _distinct(plain) > 2 else len(_LENGTHS) - 1
        return Growth("characters", _LENGTHS[best] if best < len(_LENGTHS) - 1 else None, unbounded)
    return Growth(unbounded=unbounded)


def _distinct(values: np.ndarray) -> int:
    return len({round(value, 9) for value in values if value == value})


def _unbounded(values: np.ndarray) -> str:
    # Ten times the text, about ten times the change: there is no limit to it.
    steps = np.abs(np.diff(values))
    if np.isnan(values).any() or steps[1] < 1e-9 or steps[2] < 2 * steps[1]:
        return ""
    return "up" if values[-1] > values[0] else "down"


def length_findings(name: str, function: Callable, found: Growth) -> Iterator[Finding]:
    """A unit that the function does not state, and a score without a bound."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        source = ""
    own_words = f"{name} {source} {inspect.getdoc(function) or ''}".casefold()
    if found.unit == "characters" and "character" not in own_words:
        best = f", best at {found.best} of those tried (about {max(1, found.best // 4)} tokens)" if found.best else ""
        wrong = "token" in own_words
        but = ", and speaks of tokens" if wrong else "; GRPO's own lengths are in tokens"
        worse = wrong or re.search(r"len|length|short|long|brief|concise", name)
        yield finding("unit", name, "warning" if worse else None, best=best, but=but)
    if found.unbounded:
        yield finding("unbounded", name, moves="rises" if found.unbounded == "up" else "falls")


def token_findings(
    suite: RewardSuite, builders: Sequence[CompletionBuilder], names: Sequence[str], tokenizer: Any, max_completion_length: int
) -> Iterator[Finding]:
    """Score reference completions as the trainer decodes them: without special tokens, and without what the template wrote.

    Args:
        builders: of the rows that are tried.
        names: the functions to ask.
        tokenizer: the policy's.
        max_completion_length: tokens.
    """
    rows, texts = [dict(builder.row) for builder in builders], [builder.reference for builder in builders]
    card = template_card(tokenizer, rows[0]["prompt"])
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    decoded = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in ids]
    opened = f"<{card.prefilled}>" if card.prefilled else ""
    before = suite.score_each(rows, texts, ids, names, quiet=True)
    after = suite.score_each(rows, [text.removeprefix(opened) for text in decoded], ids, names, quiet=True)
    for name in names:
        paid, left = (mean_of_known(np.array(scored[name].scores, dtype=float)) for scored in (before, after))
        if left < paid - 1e-6 or (np.isfinite(paid) and not np.isfinite(left)):
            lost = [tag for tag, survives in card.survives.items() if not survives]
            if lost:
                reason = f"{' '.join(lost)} are special tokens, which vanish when it is decoded"
            elif opened:
                reason = f"the template writes {opened} itself, so the completion begins after it"
            else:
                pairs = zip(texts[0], decoded[0], strict=False)
                place = next((index for index, (a, b) in enumerate(pairs) if a != b), len(decoded[0]))
                reason = f"{texts[0][place : place + 12]!r} becomes {decoded[0][place : place + 12]!r}"
            yield finding("tokenizer", name, paid=paid, left=f"{left:g}" if np.isfinite(left) else "nothing", reason=reason)
    longest = max(map(len, ids))
    if longest > max_completion_length:
        yield finding("cut", longest=longest, limit=max_completion_length, format=builders[0].format)
