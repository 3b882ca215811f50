"""The format that a prompt asks for, read as a reader would: tags with their line breaks, `####`,
`\\boxed{}`, JSON.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from workbench.data.answer_column import MARK
from workbench.errors import DataError
from workbench.kinds import Fields
from workbench.rewards import library
from workbench.rewards.answers import TAGS, Column
from workbench.rewards.library import THINK_TAGS, max_score
from workbench.rewards.verifiers import countdown_reward, json_of, json_right_reward
from workbench.task import function_name

# Names of the block that holds the answer; any other block is for working it out.
_ANSWER_TAGS = {
    "answer", "final_answer", "finalanswer", "solution", "result", "output", "final", "response",
    "sql", "code", "答案", "回答",
}  # fmt: skip
_THINK_TAGS = {
    "think", "thinking", "thought", "thoughts", "reasoning", "reason", "scratchpad", "working",
    "working_out", "analysis",
    "思考", "推理",
}  # fmt: skip
_OPENING = re.compile(r"<([^\W\d]\w{0,40})>")
_DEEPEST = 50  # levels of a JSON object in a prompt
_LONGEST = 20_000  # characters of a prompt in which JSON is looked for
# of a JSON Schema's types, and of the words for them in a prompt
_VALUES = {
    "integer": 1, "int": 1, "number": 1, "float": 1, "boolean": True, "bool": True, "array": [],
    "list": [], "object": {}, "string": "text", "str": "text", "null": None,
}  # fmt: skip
# What is written for a value in JSON that a prompt shows: <int>, int, ..., "<int>"; a choice of
# texts; and where an unquoted one stands.
_BLANK = rf"<[^<>{{}}\n]{{1,60}}>|\.\.\.|…|\b(?:{'|'.join(_VALUES)})\b"
_IS_BLANK = re.compile(_BLANK)
_BLANKS = re.compile(rf'("\s*:\s*)({_BLANK})(?=\s*[,}}])')
_GAP = (
    r"""\.\.\.|…|<[^<>\n]+>|\[[^\]\n]+\]|\{[^{}\n]*\}|\$?[A-Z][A-Z_]{3,}\b|_{2,}|\\boxed|[XNx]\b"""
)
_LABEL = re.compile(
    r"(?i:(?:\*\*)?\b(?:the )?(?:final |correct )?answer(?: is)?:(?:\*\*)?)"
    rf"""(?=\s*(?:{_GAP}|["'`]))"""
)
_CHOICE = re.compile(r'(?<=\w)"\s*\|\s*"(?=\w)')


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
            final = self._in_json(answer)
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

    def other_type(self, answer: str) -> ExpectedFormat | None:
        """With a number in the JSON written as text, or the other way round; None: how it is
        written is not open.
        """
        slot = _slot(self.shapes, answer)
        if not (self.guessed and slot.only and slot.open):
            return None
        value = 1 if self.has_text(answer) else "text"
        return self._replace(shapes=({**slot.shape, slot.key: value},))

    def has_text(self, answer: str) -> bool:
        """Whether the JSON has this answer as text, and not as a number, a list or an object."""
        slot = _slot(self.shapes, answer)
        return isinstance(slot.shape.get(slot.key), str)

    def _in_json(self, answer: str) -> str:
        (shape, key, *_), value = _slot(self.shapes, answer), _parsed(answer)
        if not shape or isinstance(value, dict):
            return answer
        filled = {**shape, key: answer if isinstance(shape[key], str) else value}
        return json.dumps(filled, ensure_ascii=False)


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
    marks = _marks(text)
    blocks, place, shown, apart, inner = [], 0, False, len(marks) == 1, ""
    names = [name for name, _, _ in marks]
    answer_tag = next((name for name in names[::-1] if name.casefold() in _ANSWER_TAGS), None)
    if names and not answer_tag and names[-1].casefold() not in _THINK_TAGS:
        answer_tag = names[-1]
    for (name, opening, closing), following in itertools.zip_longest(marks, marks[1:]):
        # After the block before, if it stands there: a prompt may name the tags first and show them
        # afterwards.
        start = text.find(opening, place if opening in text[place:] else 0)
        end = text.find(closing, start)
        place, content = end + len(closing), text[start + len(opening) : end]
        inner = content if name == answer_tag else inner
        gap, found, _ = text[place:].partition(following[1] if following else opening)
        gap = gap if found and following else ""
        before, after = _spaces(content)
        shown, apart = shown or "\n" in content, apart or bool(gap.strip())
        between = gap if gap and not gap.strip() else before
        blocks.append(TagBlock(name, opening, closing, before, after, between))
    if not shown:  # named in words, in whatever order: one thinks first
        blocks.sort(key=lambda block: block.name == answer_tag)
    mark = MARK if MARK in text else _label(text)
    schema, other = row.get("schema") is not None, "\\boxed" in text or mark
    shown_in = inner if blocks else text
    shapes, asked_by_user = [] if schema or other else _objects(shown_in), False
    # What a question shows may be data, unless its values are left blank.
    if text == asking_text(row["prompt"]) and _filled(shown_in) == shown_in:
        asked_by_user = True
        shapes = [shape for shape in shapes if answer in map(str, shape.values())]
    shapes += _objects("", schemas)
    whole = not (blocks or other) and isinstance(_parsed(answer), dict)
    slot = _slot(shapes, answer)
    says_so = bool(shapes) and ("json" in text.casefold() or (slot.only and not asked_by_user))
    as_json = bool(schema or whole or schemas or says_so)
    return ExpectedFormat(
        tuple(blocks),
        answer_tag,
        not as_json and "\\boxed" in text,
        "" if as_json else mark,
        as_json,
        shown or not apart,
        tuple(shapes),
        as_json and not (schema or whole or (slot.only and not slot.open)),
    )


def _parsed(text: str) -> Any:
    # The value of a text that is JSON; another text as it is.
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


class _Slot(NamedTuple):
    # Where an answer belongs: the field of an object.
    shape: Fields
    key: str
    only: bool  # one of several fields may hold it by chance: a tool's name
    open: bool  # whether a number is written there as a number or as text


def _slot(shapes: Sequence[Fields], answer: str) -> _Slot:
    # Where it stands in one of them, in a field of that name, in the last of its type, in the last.
    fields, value = [(shape, key) for shape in shapes for key in shape], _parsed(answer)
    same = [(shape, key) for shape, key in fields if shape[key] in (answer, value)]
    # "positive|negative" stands for one of them.
    likely = [
        (shape, key)
        for shape, key in fields
        if key in _ANSWER_TAGS or answer in re.split(r"\W+", str(shape[key]))
    ]
    typed = [(shape, key) for shape, key in fields if type(shape[key]) is type(value)]
    shape, key = next(iter(same or likely or typed[::-1] or fields[::-1]), ({}, ""))
    shown = str(shape.get(key, ""))
    is_open = not isinstance(value, str) and (shown == "None" or _IS_BLANK.fullmatch(shown))
    return _Slot(shape, key, len(shape) == 1 or key in _ANSWER_TAGS, bool(is_open))


def _depth(value: object) -> int:
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, inner), default=0)


def _objects(text: str, schemas: Sequence[Fields] = ()) -> list[Fields]:
    # The JSON objects in a text; instead of a schema, objects that fit it, with each value that a
    # field may have.
    text = _filled(text)
    decoder, values, place = json.JSONDecoder(), [*schemas], text.find("{")
    while 0 <= place < _LONGEST:
        try:
            value, end = decoder.raw_decode(text, place)
            # Deeper ones can be read, but not written everywhere: Python's own limit depends on who
            # calls.
            values.append(value if _depth(value) <= _DEEPEST else {})
        except (ValueError, RecursionError):
            end = place + 1
        place = text.find("{", end)
    shapes = []
    for value in values:
        properties = value.get("properties")
        fields = properties if isinstance(properties, dict) else {}
        choices = {name: _choices(each) for name, each in fields.items()}
        first = {name: some[0] for name, some in choices.items()} or value
        shapes.append(first)
        shapes += [{**first, name: other} for name, some in choices.items() for other in some[1:20]]
    return [shape for shape in shapes if shape]


def _filled(text: str) -> str:
    # The text with a value where the JSON in it has a word for one; null: it does not say which.
    def value(blank: re.Match[str]) -> str:
        words = re.findall(r"\w+", blank[2].casefold())
        known = (_VALUES[word] for word in words if word in _VALUES)
        return f"{blank[1]}{json.dumps(next(known, None))}"

    return _CHOICE.sub("|", _BLANKS.sub(value, text[:_LONGEST])) + text[_LONGEST:]


def _choices(schema: object) -> list[Any]:
    if not isinstance(schema, dict):
        return ["text"]
    known = schema.get("enum")
    return (
        known
        if known and isinstance(known, list)
        else [_VALUES.get(str(schema.get("type")), "text")]
    )


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
    return system if tagged or (_objects(system) and not shown) else whole


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
    if expected.json and expected.shapes and not isinstance(_parsed(answer), dict):
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
