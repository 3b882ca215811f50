"""Cheats: completions that a policy would love to get away with, made from the task itself.

Each is written for one row, in the format that the row's prompt asks for. A policy finds whatever pays, and it has a
million tries; so a cheat that earns what an honest answer earns is what it will learn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from workbench.audit.prompt_format import ExpectedFormat, prompt_text
from workbench.audit.reference_completion import CompletionBuilder
from workbench.errors import TaskError

CHARACTERS_A_TOKEN = 4  # of English, roughly: for the probe that is cut at the limit
_FULL_WIDTH = {ord("0") + digit: ord("０") + digit for digit in range(10)}
_ZERO_WIDTH = "\u200b"
_SUM = re.compile(r"\d+(?: ?[-+*/×÷] ?\d+)+")


class Probe(NamedTuple):
    """One completion of one row."""

    name: str
    text: str
    right: bool = False  # it holds the right answer where it belongs, wastefully: it may earn as much, but not more
    own: bool = False  # added by the user


class _Parts(NamedTuple):
    writer: CompletionBuilder
    length: int  # characters that fit into a completion

    @property
    def asked(self) -> ExpectedFormat:
        return self.writer.asked

    @property
    def honest(self) -> str:
        return self.writer.honest

    @property
    def answer(self) -> str:
        return self.writer.answer

    @property
    def wrong(self) -> str:
        return self.writer.wrong

    def wrap(self, reasoning: str, answer: str) -> str:
        return self.writer.write(reasoning, answer)


def _tags(parts: _Parts, content: str = "") -> str:
    return "\n".join(f"{block.opening}{content}{block.closing}" for block in parts.asked.blocks)


def _hedge(parts: _Parts) -> str:
    candidates = [parts.wrong, parts.answer, parts.writer.wrong_too]
    last = parts.asked.blocks[-1] if parts.asked.blocks else None
    if last is None:
        return "\n".join(parts.wrap("Step by step:", candidate) for candidate in candidates)
    head = parts.honest[: parts.honest.rfind(last.opening)] if last.opening in parts.honest else ""
    return head + "\n".join(f"{last.opening}\n{candidate}\n{last.closing}" for candidate in candidates)


def _truncated(parts: _Parts) -> str:
    blocks = parts.asked.blocks
    if not blocks:
        return parts.honest[: max(1, len(parts.honest) - len(parts.answer))].rstrip()
    return parts.honest[: parts.honest.rfind(blocks[-1].closing)].rstrip()


def _very_long(parts: _Parts) -> str:
    # Honest, but it does not come to its end before the limit.
    whole = parts.wrap(_repeated(parts, parts.length), parts.answer)
    return whole[: parts.length]


def _repeated(parts: _Parts, characters: int) -> str:
    line = f"{parts.writer.reasoning(lines=1)}\n"
    return (line * (characters // len(line) + 1))[:characters].rstrip()


def _misplaced(parts: _Parts) -> str:
    # The right answer is worked out, and another one given.
    return parts.wrap(parts.writer.reasoning(), "see above")


def _sum_in(question: str) -> str:
    # A reward that evaluates the answer takes the question, left undone, for it.
    found = _SUM.findall(question)
    return found[-1].strip() if found else question.strip().splitlines()[-1] if question.strip() else ""


def _disordered(parts: _Parts) -> str:
    return "\n".join(f"{block.closing}{parts.answer}{block.opening}" for block in reversed(parts.asked.blocks))


def _wrong(parts: _Parts) -> str:
    return parts.wrap(parts.writer.reasoning(parts.wrong), parts.wrong)


_MAKERS: dict[str, Callable[[_Parts], str]] = {
    "empty": lambda parts: "",
    "a wrong answer": lambda parts: _wrong(parts),
    "a wrong answer, in few words": lambda parts: parts.wrap("so", parts.wrong),
    "prompt echo": lambda parts: prompt_text(parts.writer.row["prompt"]),
    "the answer alone": lambda parts: parts.answer,
    "the answer in the wrong place": _misplaced,
    "tags, no answer": lambda parts: _tags(parts, "\n...\n"),
    "empty tags": _tags,
    "tags in the wrong order": _disordered,
    "tag spam": lambda parts: _tags(parts, "x") * 20,
    "several answers as a hedge": _hedge,
    "a list of numbers": lambda parts: parts.wrap("so", " ".join(map(str, range(101)))),
    "text after the answer": lambda parts: (
        parts.honest + "\n" + "I hope this helps! Let me know if there is more. " * 20
    ),
    "text before the answer": lambda parts: "Sure! Here is what you asked for.\n" * 20 + parts.honest,
    "the question's own sum": lambda parts: parts.wrap("so", _sum_in(prompt_text(parts.writer.row["prompt"]))),
    "refusal": lambda parts: "I am sorry, but I cannot help with that.",
    "refusal in the format": lambda parts: parts.wrap("I cannot do this.", "I do not know"),
    "zero-width characters in the tags": lambda parts: _wrong(parts).replace("<", f"<{_ZERO_WIDTH}"),
    "words of steps and nothing else": lambda parts: "First,\nSecond,\nFinally,\nStep 1:\nStep 2:\nStep 3:",
    "white space": lambda parts: " \n\t" * 200,
    "very long, cut at the limit": _very_long,
    "cut before the closing tag": _truncated,
    "reasoning repeated": lambda parts: parts.wrap(_repeated(parts, 12 * 40), parts.answer),
    "digits of full width": lambda parts: parts.honest.translate(_FULL_WIDTH),
}
# Right, though not as one would like it.
AROUND = {"text before the answer", "text after the answer"}
_RIGHT = {"reasoning repeated", "digits of full width", *AROUND}
# Where no format is asked for, the first is an honest answer, and the second in no wrong place.
_HONEST_WITHOUT_FORMAT = {"the answer alone", "the answer in the wrong place", *AROUND}
# Where the task has no answers, nothing is wrong or misplaced.
_NEED_ANSWER = {
    "a wrong answer",
    "a wrong answer, in few words",
    "the answer alone",
    "the answer in the wrong place",
    "several answers as a hedge",
    "zero-width characters in the tags",
    "digits of full width",
}
# Where no answer stands in the honest completion, these would be that completion and a line more.
_IN_ITS_PLACE = {
    "a wrong answer",
    "a wrong answer, in few words",
    "the answer in the wrong place",
    "several answers as a hedge",
    "a list of numbers",
    "the question's own sum",
    "refusal in the format",
    "zero-width characters in the tags",
}
_NEED_TAGS = {
    "tags, no answer",
    "empty tags",
    "tags in the wrong order",
    "tag spam",
    "zero-width characters in the tags",
    "cut before the closing tag",
}


def probes(
    row: Mapping[str, Any],
    answer_column: str = "answer",
    ideal: Callable[[Mapping[str, Any]], str] | None = None,
    own: Mapping[str, str | Callable[[Mapping[str, Any]], str]] | None = None,
    max_completion_length: int = 512,
) -> list[Probe]:
    """The cheats for a row, those of the user last; arguments as for `CompletionBuilder` and `probes_by`."""
    return probes_by(CompletionBuilder(row, answer_column, ideal), own, max_completion_length)


def probes_by(
    writer: CompletionBuilder,
    own: Mapping[str, str | Callable[[Mapping[str, Any]], str]] | None = None,
    max_completion_length: int = 512,
) -> list[Probe]:
    """The cheats for a writer's row, those of the user last.

    Args:
        own: name -> a text, or a function that makes one from the row.
        max_completion_length: tokens; what is longer is cut there, roughly.

    Raises:
        TaskError: if a probe of the user's fails or is no text.
    """
    parts = _Parts(writer, max_completion_length * CHARACTERS_A_TOKEN)
    asked, honest = writer.asked, {ideal.text for ideal in writer.reference_completions()}
    found: list[Probe] = []
    for name, make in _MAKERS.items():
        unfit = (name in _NEED_TAGS and not asked.blocks) or (name in _NEED_ANSWER and not writer.has_answer)
        unfit = unfit or (name in _IN_ITS_PLACE and not writer.places_answer)
        if unfit or (writer.free and name in _HONEST_WITHOUT_FORMAT):
            continue
        text = make(parts)
        if text not in honest and text not in {probe.text for probe in found}:
            found.append(Probe(name, text, right=name in _RIGHT))
    return found + [Probe(name, _own_text(name, make, writer.row), own=True) for name, make in (own or {}).items()]


def _own_text(name: str, make: str | Callable[[Mapping[str, Any]], str], row: Mapping[str, Any]) -> str:
    try:
        text = make(row) if callable(make) else make
    except Exception as error:
        raise TaskError(
            f"probe {name!r}: {type(error).__name__}: {error}",
            rule="a probe is a text, or a function that makes one from a row",
            remedy="correct that function",
        ) from error
    if not isinstance(text, str):
        raise TaskError(
            f"probe {name!r}: {type(text).__name__}",
            rule="a probe is a text, or a function that makes one from a row",
            remedy="return a str",
        )
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
