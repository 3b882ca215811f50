"""The format that a prompt asks for, read as a reader would: tags with their line breaks, `####`,
`\\boxed{}`, JSON.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from workbench.audit.json_shapes import (
    ANSWER_NAMES,
    WORDING,
    Slot,
    filled,
    objects_fitting,
    objects_in,
    parsed_json,
    slot_of,
)
from workbench.base.errors import DataError
from workbench.base.kinds import Fields
from workbench.data.answer_column import MARK
from workbench.rewards import library
from workbench.rewards.answers import TAGS, Column
from workbench.rewards.library import THINK_TAGS, max_score
from workbench.rewards.verifiers import countdown_reward, json_of, json_right_reward
from workbench.task import function_name

_OPENING = re.compile(r"<([^\W\d]\w{0,40})>")
_GAP = (
    r"""\.\.\.|…|<[^<>\n]+>|\[[^\]\n]+\]|\{[^{}\n]*\}|\$?[A-Z][A-Z_]{3,}\b|_{2,}|\\boxed|[XNx]\b"""
)
_LABEL = re.compile(
    r"(?i:(?:\*\*)?\b(?:the )?(?:final |correct )?answer(?: is)?:(?:\*\*)?)"
    rf"""(?=\s*(?:{_GAP}|["'`]))"""
)


class TagBlock(NamedTuple):
    """One expected block: opening, white space, content, white space, closing; and the white space
    that follows it.
    """

    name: str
    opening: str
    closing: str
    before: str
    after: str
    between: str


class ExpectedFormat(NamedTuple):
    """The format that a prompt asks for."""

    blocks: tuple[TagBlock, ...]
    answer_tag: str | None  # None: the answer stands outside of the blocks
    boxed: bool
    mark: str  # that the answer's line begins with: "####", "Answer:"; empty: none
    json: bool
    # as it is to be written; False: the tags are only named, and where lines break is a guess
    shown: bool = True
    shapes: tuple[Fields, ...] = ()  # JSON objects that the prompt shows, or that fit a schema
    guessed: bool = False  # where in the JSON the answer belongs is a guess

    @property
    def asks(self) -> bool:
        """Whether any format is asked for."""
        return bool(self.blocks or self.boxed or self.mark or self.json)

    def __str__(self) -> str:
        parts = [block.opening for block in self.blocks]
        parts += [self.mark, "\\boxed{}" * self.boxed, "JSON" * self.json]
        return " ".join(filter(None, parts)) or "no format"

    def write(self, reasoning: str, answer: str, *, compact: bool = False) -> str:
        """A completion in this format; `compact`: without the line breaks inside and between the
        blocks.
        """
        final = answer
        if self.json:
            final = self.slot(answer).filled(answer)
        elif self.boxed:
            final = f"\\boxed{{{answer}}}"
        if self.mark:
            final = f"{self.mark} {final}"
        if not self.blocks:
            return final if self.json else f"{reasoning}\n{final}"
        text = ""
        for block in self.blocks:
            content = final if block.name == self.answer_tag else reasoning
            before, after, between = ("", "", "") if compact else block[3:]
            text += f"{block.opening}{before}{content}{after}{block.closing}{between}"
        return text.rstrip() if self.answer_tag else f"{text.rstrip()}\n{final}"

    def slot(self, answer: str) -> Slot:
        """Where an answer belongs in the JSON."""
        return slot_of(self.shapes, answer)

    def other_type(self, answer: str) -> ExpectedFormat | None:
        """With a number in the JSON written as text, or the other way round; None: how it is
        written is not open.
        """
        slot = self.slot(answer)
        if not (self.guessed and slot.only and slot.open):
            return None
        value = 1 if slot.has_text else "text"
        return self._replace(shapes=({**slot.shape, slot.key: value},))


def asking_text(prompt: Any) -> str:
    """The words of a prompt that the assistant did not write."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(
        str(message["content"]) for message in prompt if message["role"] != "assistant"
    )


def parse_format(
    row: Mapping[str, object], answer: str = "", schemas: Sequence[Fields] = ()
) -> ExpectedFormat:
    """The format that a row's prompt asks for; `schemas`: JSON Schemas that the task's rewards hold
    completions to.

    >>> str(parse_format({"prompt": "Answer as <think>why</think> <answer>what</answer>"}))
    '<think> <answer>'
    """
    text = _asking(row["prompt"])
    tags = _tags(text)
    mark = MARK if MARK in text else _label(text)
    schema, other = row.get("schema") is not None, "\\boxed" in text or mark
    shown_in = tags.inside if tags.blocks else text
    shapes = [] if schema or other else objects_in(shown_in)
    # What a question shows may be data, unless its values are left blank.
    asked_by_user = text == asking_text(row["prompt"]) and filled(shown_in) == shown_in
    if asked_by_user:
        shapes = [shape for shape in shapes if answer in map(str, shape.values())]
    shapes += objects_fitting(schemas)
    whole = not (tags.blocks or other) and isinstance(parsed_json(answer), dict)
    slot = slot_of(shapes, answer)
    says_so = bool(shapes) and ("json" in text.casefold() or (slot.only and not asked_by_user))
    as_json = bool(schema or whole or schemas or says_so)
    return ExpectedFormat(
        tags.blocks,
        tags.answer_tag,
        not as_json and "\\boxed" in text,
        "" if as_json else mark,
        as_json,
        tags.shown,
        tuple(shapes),
        as_json and not (schema or whole or (slot.only and not slot.open)),
    )


class _Tags(NamedTuple):
    # What a prompt says of the tags that it asks for.
    blocks: tuple[TagBlock, ...]
    answer_tag: str | None
    shown: bool
    inside: str  # what stands in the answer's block


def _tags(text: str) -> _Tags:
    marks = _marks(text)
    names = [name for name, _, _ in marks]
    answer_tag = next((name for name in names[::-1] if name.casefold() in ANSWER_NAMES), None)
    if names and not answer_tag and names[-1].casefold() not in WORDING["thoughts"]:
        answer_tag = names[-1]
    blocks, place, shown, apart, inside = [], 0, False, len(marks) == 1, ""
    for (name, opening, closing), following in itertools.zip_longest(marks, marks[1:]):
        # After the block before, if it stands there: a prompt may name the tags first and show them
        # afterwards.
        start = text.find(opening, place if opening in text[place:] else 0)
        end = text.find(closing, start)
        place, content = end + len(closing), text[start + len(opening) : end]
        inside = content if name == answer_tag else inside
        gap, found, _ = text[place:].partition(following[1] if following else opening)
        gap = gap if found and following else ""
        before, after = _spaces(content)
        shown, apart = shown or "\n" in content, apart or bool(gap.strip())
        between = gap if gap and not gap.strip() else before
        blocks.append(TagBlock(name, opening, closing, before, after, between))
    if not shown:  # named in words, in whatever order: one thinks first
        blocks.sort(key=lambda block: block.name == answer_tag)
    return _Tags(tuple(blocks), answer_tag, shown or not apart, inside)


def _asking(prompt: Any) -> str:
    # A question may hold tags of its own (HTML, code): where the system message asks for a format,
    # that is the format.
    first = prompt[0] if not isinstance(prompt, str) and prompt else {}
    system = str(first["content"]) if first.get("role") == "system" else ""
    whole = asking_text(prompt)
    tagged, shown = (
        _marks(each) or "\\boxed" in each or MARK in each or _label(each)
        for each in (system, whole)
    )
    return system if tagged or (objects_in(system) and not shown) else whole


def _label(text: str) -> str:
    # "Answer:", where the prompt shows it with a gap to fill, or in quotes; empty: nowhere. In a
    # question, or at the prompt's end, it is no more than a heading.
    found = _LABEL.findall(text)
    return found[-1].strip() if found and not any(_marks(text)) else ""


def _marks(text: str) -> list[tuple[str, str, str]]:
    # (name, opening, closing) of <x>...</x> and of <start_x>...<end_x>, in the order in which they
    # are opened.
    found = {}
    for name in _OPENING.findall(text):
        bare = name.removeprefix("start_")
        for closing in (f"</{name}>", f"<end_{bare}>") if bare != name else (f"</{name}>",):
            if closing in text:
                found.setdefault(bare, (bare, f"<{name}>", closing))
    return list(found.values())


def _spaces(content: str) -> tuple[str, str]:
    if not content.strip() or content.strip(" \n").startswith(("and", "tags")):
        return ("\n", "\n") if "\n" in content else ("", "")
    return content[: len(content) - len(content.lstrip())], content[len(content.rstrip()) :]


@max_score(1.0)
def shown_json_reward(
    completions: Column,
    prompts: Column,
    answer: Column,
    **kwargs: object,
) -> list[float]:
    """1.0 if the completion is the JSON object that its prompt shows, with the right answer in it;
    else 0.0.
    """
    pairs = zip(prompts, map(str, answer))
    texts = [parse_format({"prompt": each}, right).write("", right) for each, right in pairs]
    pairs = zip(map(json_of, completions), map(json_of, texts))
    return [float(given == wanted is not None) for given, wanted in pairs]


def grader_for(
    row: Mapping[str, Any], constant: bool = False
) -> Callable[..., Sequence[float | None]]:
    """The function that decides whether a completion of this row is right, for the profile of 01;
    DataError if none can.

    `constant`: every row has the same answer, so that it is none.
    """
    if "answer" not in row:
        raise DataError(
            "the rows have no answer",
            rule="a pass rate needs a right answer",
            remedy="measure without one (profile_prompts = 0), or with your own reward function",
        )
    if "numbers" in row and "target" in row:
        return countdown_reward
    answer, asked = str(row["answer"]), asking_text(row["prompt"])
    expected = parse_format(row, answer)
    grader: Callable[..., Sequence[float | None]] = library.last_line_reward
    if expected.json and expected.shapes and not isinstance(parsed_json(answer), dict):
        grader = shown_json_reward
    elif expected.json:
        grader = json_right_reward
    elif "<answer>" in asked:
        grader = library.correctness_reward
    elif expected.boxed:
        grader = library.boxed_correctness_reward
    elif expected.mark == MARK:
        grader = library.mark_correctness_reward
    columns = {name: [value] for name, value in row.items() if name != "prompt"}
    honest = expected.write("Step by step:", answer)
    paid = grader(prompts=[row["prompt"]], completions=[honest], **columns)[0]
    if constant or expected.guessed or not paid:
        why = f"no shipped function decides what is right where the prompts ask for {expected}"
        raise DataError(
            f"no ruler yet: {'every row has the same answer' if constant else why}",
            rule="a pass rate needs a function that pays right answers",
            remedy="pass a task whose right_by does: task= (notebook 02 writes one)",
        )
    return grader


def format_advice(row: Mapping[str, object]) -> str:
    """Which reward functions fit the row, where the five of notebook 02 do not; empty where they
    do.
    """
    if "answer" not in row:
        return (
            "these rows have no answer: correctness_reward and its like cannot pay; write reward"
            " functions that need none"
        )
    expected, grader = parse_format(row, str(row["answer"])), None
    with contextlib.suppress(DataError):
        grader = grader_for(row)
    shipped = {countdown_reward: "countdown", json_right_reward: "json"}.get(grader)
    name = function_name(grader) if grader else ""
    if shipped:
        rewards = f"`task: {shipped}` in a recipe, or workbench.rewards.{name}"
        return f"these rows need other rewards: {rewards}"
    tags = tuple(block.name for block in expected.blocks)
    own = grader in (None, shown_json_reward)
    if tags == TAGS and not own:
        return ""
    fits = [] if own else [name]
    fits += ["make_json_reward(SCHEMA)"] if expected.json else []
    if tags == THINK_TAGS:
        fits.append("think_answer_format_reward")
    elif tags:
        fits.append(f"make_tags_reward({tags})")
    return (
        f"these prompts ask for {expected}, and 02's reward functions look for <reasoning> and"
        f" <answer>; what fits, in workbench.rewards: {', '.join(fits)}"
        f"{'; and one of your own for what is right' if own else ''}"
    )
