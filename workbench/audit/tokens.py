"""What becomes of a reference completion on its way through the tokenizer and back, as the trainer sends it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from workbench.audit.findings import Finding, finding, mean_of_known
from workbench.audit.reference_completion import CompletionBuilder
from workbench.data.template import template_card
from workbench.rewards.suite import RewardSuite


def token_findings(
    suite: RewardSuite,
    builders: Sequence[CompletionBuilder],
    names: Sequence[str],
    tokenizer: Any,
    max_completion_length: int,
) -> Iterator[Finding]:
    """Score reference completions as the trainer decodes them: tokenised, decoded without special tokens, and without what
    the template has already written.

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
    lost = [tag for tag, survives in card.survives.items() if not survives]
    before = suite.score_each(rows, texts, ids, names, quiet=True)
    after = suite.score_each(rows, [text.removeprefix(opened) for text in decoded], ids, names, quiet=True)
    for name in names:
        paid, left = (mean_of_known(np.array(scored[name].scores, dtype=float)) for scored in (before, after))
        if left < paid - 1e-6 or (np.isfinite(paid) and not np.isfinite(left)):
            reason = _reason(card.prefilled, lost, texts[0], decoded[0])
            yield finding("tokenizer", name, paid=paid, left=f"{left:g}" if np.isfinite(left) else "nothing", reason=reason)
    longest = max(len(tokens) for tokens in ids)
    if longest > max_completion_length:
        yield finding("cut", longest=longest, limit=max_completion_length, format=builders[0].format)


def _reason(prefilled: str | None, lost: list[str], text: str, decoded: str) -> str:
    if lost:
        return f"{' '.join(lost)} are special tokens, which vanish when it is decoded"
    if prefilled:
        return f"the template writes <{prefilled}> itself, so the completion begins after it"
    place = next((index for index, (a, b) in enumerate(zip(text, decoded, strict=False)) if a != b), len(decoded))
    return f"{text[place : place + 12]!r} becomes {decoded[place : place + 12]!r}"
