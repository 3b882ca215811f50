"""What becomes of an honest completion on its way through the tokenizer and back, as the trainer sends it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.audit.findings import Finding, mean_of_known
from workbench.audit.reference_completion import CompletionBuilder
from workbench.data.template import template_card
from workbench.rewards.suite import RewardSuite


def token_findings(
    suite: RewardSuite,
    writers: Sequence[CompletionBuilder],
    names: Sequence[str],
    tokenizer: Any,
    max_completion_length: int,
) -> list[Finding]:
    """Score honest completions as the trainer decodes them: tokenised, decoded without special tokens, and without what the
    template has already written.

    Args:
        writers: of the rows that are tried.
        names: the functions to ask.
        tokenizer: the policy's.
        max_completion_length: tokens.
    """
    rows, honest = [dict(writer.row) for writer in writers], [writer.honest for writer in writers]
    card = template_card(tokenizer, rows[0]["prompt"])
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in honest]
    decoded = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in ids]
    seen = [_after(text, f"<{card.prefilled}>") if card.prefilled else text for text in decoded]
    found = []
    lost = [tag for tag, survives in card.survives.items() if not survives]
    before = suite.score_each(rows, honest, ids, names, quiet=True)
    after = suite.score_each(rows, seen, ids, names, quiet=True)
    for name in names:
        was, now = (np.array(scored[name].scores, dtype=float) for scored in (before, after))
        paid, left = mean_of_known(was), mean_of_known(now)
        if left < paid - 1e-6 or (np.isfinite(paid) and not np.isfinite(left)):
            again = f"{left:g}" if np.isfinite(left) else "nothing"
            found.append(
                Finding(
                    "tokenizer",
                    "error",
                    name,
                    f"cannot pay with this tokenizer: an honest completion earns {paid:g}, and "
                    f"{again} when it comes back from it: {_reason(card.prefilled, lost, honest[0], decoded[0])}",
                    "use tags that are plain text to the tokenizer, and do not ask for what the template writes by itself",
                )
            )
    longest = max(len(tokens) for tokens in ids)
    if longest > max_completion_length:
        found.append(
            Finding(
                "cut",
                "error",
                "",
                f"an honest completion takes {longest} tokens, and {max_completion_length} fit ({writers[0].asked})",
                "raise max_completion_length",
            )
        )
    return found


def _after(text: str, tag: str) -> str:
    return text[len(tag) :] if text.startswith(tag) else text


def _reason(prefilled: str | None, lost: list[str], honest: str, decoded: str) -> str:
    if lost:
        return f"{' '.join(lost)} are special tokens, which vanish when it is decoded"
    if prefilled:
        return f"the template writes <{prefilled}> itself, so the completion begins after it"
    place = next((index for index, (a, b) in enumerate(zip(honest, decoded, strict=False)) if a != b), len(decoded))
    return f"{honest[place : place + 12]!r} becomes {decoded[place : place + 12]!r}"
