"""Probes of the rewards: completions that a policy would love to get away with, made from a row."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from workbench.audit.completions import WORDS_ONCE, CompletionBuilder, text_of_author
from workbench.audit.prompt_format import asking_text
from workbench.base.kinds import Fields
from workbench.recipe import packaged

AROUND = {"text before the answer", "text after the answer"}
CHARACTERS_A_TOKEN = 4  # of English, roughly: for the probe that is cut at the limit
_FULL_WIDTH = {ord("0") + digit: ord("０") + digit for digit in range(10)}
_SUM = re.compile(r"\d+(?: ?[-+*/×÷] ?\d+)+")


class Probe(NamedTuple):
    """One completion of one row."""

    name: str
    text: str
    # it holds the right answer where it belongs, wastefully: it may earn as much, but not more
    right: bool = False
    own: bool = False  # added by the user


@functools.cache
def _known_probes() -> dict[str, Fields]:
    return packaged(Path(__file__).with_name("probes.yaml"))


def probes(
    to: CompletionBuilder, own: Mapping[str, Any] | None = None, max_completion_length: int = 512
) -> list[Probe]:
    """The probes of probes.yaml that suit a builder's row, cut at about `max_completion_length`
    tokens; last the user's, name -> text or function.

    TaskError if one of the user's fails or is not text.
    """
    question, known = asking_text(to.row["prompt"]), to.has_answer or not to.guessed
    has = {
        "answer": to.has_answer,
        "known": known,
        "place": to.places_answer and known,
        "tags": to.format.blocks,
        "form": not to.free,
        "free": to.free,
        "plain": to.answer[0] not in "{[",
        "word": to.answer.isalnum(),
        "object": (emptied := to.in_json(_emptied)),
    }
    parts = {
        "answer": to.answer,
        "wrong": to.wrong,
        "working": to.reasoning(),
        "wrong_working": to.reasoning(to.wrong),
        "question": question,
        "sum": (_SUM.findall(question) or question.strip().splitlines() or [""])[-1],
        "inside": f"1{to.answer}1" if to.answer.isdigit() else f"un{to.answer}able",
        "numbers": " ".join(map(str, range(101))),
    }
    made = _made(to, max_completion_length * CHARACTERS_A_TOKEN) | {"empty values": emptied}
    seen, results = set(to.reference_completions().values()), []
    for name, probe in _known_probes().items():
        if "text" in probe:
            text = probe["text"].format(**parts)
        elif "answer" in probe:
            text = to.write(*(probe[part].format(**parts) for part in ("reasoning", "answer")))
        else:
            text = made[name]
        if text not in seen and all(has[need] for need in probe.get("needs", ())):
            seen.add(text)
            results.append(Probe(name, text, right="right" in probe))
    return results + [
        Probe(name, text_of_author(f"probe {name!r}", make, to.row), own=True)
        for name, make in (own or {}).items()
    ]


def _made(to: CompletionBuilder, most: int) -> dict[str, str]:
    # The probes that are more than a text with the answer in it; `most`: characters.
    reference, blocks, line = to.reference, to.format.blocks, f"{to.reasoning(lines=1)}\n"
    candidates, cut = (to.wrong, to.answer, to.wrong_too), ""
    hedge = "\n".join(to.write("Step by step:", candidate) for candidate in candidates)
    if blocks:
        opening, closing = blocks[-1].opening, blocks[-1].closing
        hedge = "\n".join(f"{opening}\n{candidate}\n{closing}" for candidate in candidates)
        hedge = reference[: max(0, reference.rfind(opening))] + hedge
        cut = reference[: reference.rfind(closing)].rstrip()

    def tagged(content: str = "") -> str:
        return "\n".join(f"{block.opening}{content}{block.closing}" for block in blocks)

    def repeated(characters: int) -> str:
        reasoning = (line * (characters // len(line) + 1))[:characters].rstrip()
        return to.write(reasoning, to.answer)

    return {
        "tags, no answer": tagged("\n...\n"),
        "empty tags": tagged(),
        "tags in the wrong order": "\n".join(
            f"{block.closing}{to.answer}{block.opening}" for block in reversed(blocks)
        ),
        "tag spam": tagged("x") * 20,
        "several answers as a hedge": hedge,
        "text after the answer": reference
        + "\n"
        + "I hope this helps! Let me know if there is more. " * 20,
        "text before the answer": "Sure! Here is what you asked for.\n" * 20 + reference,
        "zero-width characters in the tags": to.write(to.reasoning(to.wrong), to.wrong).replace(
            "<", "<\u200b"
        ),
        "white space": " \n\t" * 200,
        "very long, cut at the limit": repeated(most)[:most],
        "cut before the closing tag": cut,
        "reasoning repeated": repeated(12 * 40),
        "long reasoning": to.reasoned(f"{line[:-1]} {WORDS_ONCE[: min(most, 600)]}"),
        "digits of full width": reference.translate(_FULL_WIDTH),
    }


def _emptied(value: Any) -> Any:
    return "" if isinstance(value, str) else value
