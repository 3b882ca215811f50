"""Probes: completions that a policy would love to get away with, made from the task itself.

Each is written for one row, in the format that the row's prompt asks for. A policy finds whatever pays, and it has a
million tries; so a reward hack that earns what the reference completion earns is what it will learn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from workbench.audit.prompt_format import prompt_text
from workbench.audit.reference_completion import CompletionBuilder
from workbench.errors import TaskError

CHARACTERS_A_TOKEN = 4  # of English, roughly: for the probe that is cut at the limit
_FULL_WIDTH = {ord("0") + digit: ord("０") + digit for digit in range(10)}
_ZERO_WIDTH = "\u200b"
_SUM = re.compile(r"\d+(?: ?[-+*/×÷] ?\d+)+")
Own = Mapping[str, str | Callable[[Mapping[str, Any]], str]]


class Probe(NamedTuple):
    """One completion of one row."""

    name: str
    text: str
    right: bool = False  # it holds the right answer where it belongs, wastefully: it may earn as much, but not more
    own: bool = False  # added by the user


def _tags(to: CompletionBuilder, content: str = "") -> str:
    return "\n".join(f"{block.opening}{content}{block.closing}" for block in to.format.blocks)


def _disordered(to: CompletionBuilder) -> str:
    return "\n".join(f"{block.closing}{to.answer}{block.opening}" for block in reversed(to.format.blocks))


def _wrong(to: CompletionBuilder) -> str:
    return to.write(to.reasoning(to.wrong), to.wrong)


def _hedge(to: CompletionBuilder) -> str:
    candidates = [to.wrong, to.answer, to.wrong_too]
    if not to.format.blocks:
        return "\n".join(to.write("Step by step:", candidate) for candidate in candidates)
    last = to.format.blocks[-1]
    head = to.reference[: to.reference.rfind(last.opening)] if last.opening in to.reference else ""
    return head + "\n".join(f"{last.opening}\n{candidate}\n{last.closing}" for candidate in candidates)


def _truncated(to: CompletionBuilder) -> str:
    return to.reference[: to.reference.rfind(to.format.blocks[-1].closing)].rstrip()


def _repeated(to: CompletionBuilder, characters: int) -> str:
    line = f"{to.reasoning(lines=1)}\n"
    return (line * (characters // len(line) + 1))[:characters].rstrip()


def _own_sum(to: CompletionBuilder) -> str:
    # A reward that evaluates the answer takes the question, left undone, for it.
    question = prompt_text(to.row["prompt"])
    found = _SUM.findall(question)
    return found[-1].strip() if found else question.strip().splitlines()[-1] if question.strip() else ""


# What a probe needs to make sense: an answer to be wrong about; a place for it in the reference completion (where there is
# none, an answer would only be a line more); tags; a format (without one, the answer alone is a reference completion, too).
ANSWER, PLACE, TAGS, FORMAT = 1, 2, 4, 8
# Name -> (what it needs, how it is made for a row and a length in characters).
_PROBES: dict[str, tuple[int, Callable[[CompletionBuilder, int], str]]] = {
    "empty": (0, lambda to, _: ""),
    "a wrong answer": (ANSWER | PLACE, lambda to, _: _wrong(to)),
    "a wrong answer, in few words": (ANSWER | PLACE, lambda to, _: to.write("so", to.wrong)),
    "prompt echo": (0, lambda to, _: prompt_text(to.row["prompt"])),
    "the answer alone": (ANSWER | FORMAT, lambda to, _: to.answer),
    # The right answer is worked out, and another one given.
    "the answer in the wrong place": (ANSWER | PLACE | FORMAT, lambda to, _: to.write(to.reasoning(), "see above")),
    "tags, no answer": (TAGS, lambda to, _: _tags(to, "\n...\n")),
    "empty tags": (TAGS, lambda to, _: _tags(to)),
    "tags in the wrong order": (TAGS, lambda to, _: _disordered(to)),
    "tag spam": (TAGS, lambda to, _: _tags(to, "x") * 20),
    "several answers as a hedge": (ANSWER | PLACE, lambda to, _: _hedge(to)),
    "a list of numbers": (PLACE, lambda to, _: to.write("so", " ".join(map(str, range(101))))),
    "text after the answer": (
        FORMAT,
        lambda to, _: to.reference + "\n" + "I hope this helps! Let me know if there is more. " * 20,
    ),
    "text before the answer": (FORMAT, lambda to, _: "Sure! Here is what you asked for.\n" * 20 + to.reference),
    "the question's own sum": (PLACE, lambda to, _: to.write("so", _own_sum(to))),
    "refusal": (0, lambda to, _: "I am sorry, but I cannot help with that."),
    "refusal in the format": (PLACE, lambda to, _: to.write("I cannot do this.", "I do not know")),
    "zero-width characters in the tags": (
        ANSWER | PLACE | TAGS,
        lambda to, _: _wrong(to).replace("<", f"<{_ZERO_WIDTH}"),
    ),
    "words of steps and nothing else": (0, lambda to, _: "First,\nSecond,\nFinally,\nStep 1:\nStep 2:\nStep 3:"),
    "white space": (0, lambda to, _: " \n\t" * 200),
    # Honest, but it does not come to its end before the limit.
    "very long, cut at the limit": (0, lambda to, most: to.write(_repeated(to, most), to.answer)[:most]),
    "cut before the closing tag": (TAGS, lambda to, _: _truncated(to)),
    "reasoning repeated": (0, lambda to, _: to.write(_repeated(to, 12 * 40), to.answer)),
    "digits of full width": (ANSWER, lambda to, _: to.reference.translate(_FULL_WIDTH)),
}
# Right, though not as one would like it.
AROUND = {"text before the answer", "text after the answer"}
_RIGHT = {"reasoning repeated", "digits of full width", *AROUND}


def probes(to: CompletionBuilder, own: Own | None = None, max_completion_length: int = 512) -> list[Probe]:
    """The probes for a builder's row, those of the user last.

    Args:
        own: name -> a text, or a function that makes one from the row.
        max_completion_length: tokens; what is longer is cut there, roughly.

    Raises:
        TaskError: if a probe of the user's fails or is no text.
    """
    there = ANSWER * to.has_answer | PLACE * to.places_answer | TAGS * bool(to.format.blocks) | FORMAT * (not to.free)
    seen, found = set(to.reference_completions().values()), []
    for name, (needs, make) in _PROBES.items():
        if needs & ~there:
            continue
        text = make(to, max_completion_length * CHARACTERS_A_TOKEN)
        if text not in seen:
            seen.add(text)
            found.append(Probe(name, text, right=name in _RIGHT))
    return found + [Probe(name, _own_text(name, make, to.row), own=True) for name, make in (own or {}).items()]


def _own_text(name: str, make: str | Callable[[Mapping[str, Any]], str], row: Mapping[str, Any]) -> str:
    rule = "a probe is a text, or a function that makes one from a row"
    try:
        text = make(row) if callable(make) else make
    except Exception as error:
        raise TaskError(f"probe {name!r}: {type(error).__name__}: {error}", rule=rule, remedy="correct that function") from error
    if not isinstance(text, str):
        raise TaskError(f"probe {name!r}: {type(text).__name__}", rule=rule, remedy="return a str")
    return text


def spellings(answer: str) -> list[str]:
    """Other ways to write a whole number that a reader would accept: `42.0`, `$42`, `42.`; empty for other answers.

    >>> spellings("1000")
    ['1000.0', '$1000', '1000.', '1,000']
    """
    if not answer.lstrip("-").isascii() or not answer.lstrip("-").isdigit() or len(answer) > 12:
        return []
    grouped = f"{int(answer):,}"
    return [f"{answer}.0", f"${answer}", f"{answer}."] + ([grouped] if grouped != answer else [])
