"""The format that a prompt asks for, read as a reader would: tags with their line breaks, `####`,
`\\boxed{}`, JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from workbench.data.answer_column import MARK
from workbench.errors import DataError
from workbench.kinds import Fields
from workbench.rewards import library
from workbench.rewards.answers import TAGS
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
# of a JSON Schema's types
_VALUES = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}, "null": None}


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
    mark: bool
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
        parts += [
            name
            for name, there in ((MARK, self.mark), ("\\boxed{}", self.boxed), ("JSON", self.json))
            if there
        ]
        return " ".join(parts) or "no format"

    def write(self, reasoning: str, answer: str, *, compact: bool = False) -> str:
        """A completion in this format; `compact`: without the line breaks inside and between the
        blocks.
        """
        final = (
            self._in_json(answer) if self.json else f"\\boxed{{{answer}}}" if self.boxed else answer
        )
        final = f"{MARK} {final}" if self.mark else final
        if not self.blocks:
            return final if self.json else f"{reasoning}\n{final}"
        text = ""
        for block in self.blocks:
            content = final if block.name == self.answer_tag else reasoning
            before, after, between = ("", "", "") if compact else block[3:]
            text += f"{block.opening}{before}{content}{after}{block.closing}{between}"
        return text.rstrip() if self.answer_tag else f"{text.rstrip()}\n{final}"

    def _in_json(self, answer: str) -> str:
        (shape, key, _), value = _slot(self.shapes, answer), _parsed(answer)
        if not shape or isinstance(value, dict):
            return answer
        return json.dumps(
            {**shape, key: answer if isinstance(shape[key], str) else value}, ensure_ascii=False
        )


def asking_text(prompt: Any) -> str:
    """The words of a prompt that the assistant did not write."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return "\n".join(
        str(message["content"]) for message in messages if message["role"] != "assistant"
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
    blocks, place, shown, apart = [], 0, False, len(marks) == 1
    named = [name for name, _, _ in marks if name.casefold() in _ANSWER_TAGS]
    last = [name for name, _, _ in marks[-1:] if name.casefold() not in _THINK_TAGS]
    answer_tag, inner = next(iter(named[-1:] + last), None), ""
    for index, (name, opening, closing) in enumerate(marks):
        # After the block before, if it stands there: a prompt may name the tags first and show them
        # afterwards.
        start = text.find(opening, place if opening in text[place:] else 0)
        end = text.find(closing, start)
        place, content = end + len(closing), text[start + len(opening) : end]
        inner = content if name == answer_tag else inner
        following = text.find(marks[index + 1][1], place) if index + 1 < len(marks) else -1
        gap = text[place:following] if following >= 0 else ""
        inside, shown, apart = (
            _spaces(content),
            shown or "\n" in content,
            apart or bool(gap.strip()),
        )
        blocks.append(
            TagBlock(name, opening, closing, *inside, gap if gap and not gap.strip() else inside[0])
        )
    if not shown:  # named in words, in whatever order: one thinks first
        blocks.sort(key=lambda block: block.name == answer_tag)
    schema, other = row.get("schema") is not None, "\\boxed" in text or MARK in text
    shapes = [] if schema or other else _objects(inner if blocks else text)
    if asked_by_user := text == asking_text(row["prompt"]):  # what a question shows may be data
        shapes = [shape for shape in shapes if answer in map(str, shape.values())]
    shapes += _objects("", schemas)
    whole, certain = (
        not (blocks or other) and isinstance(_parsed(answer), dict),
        _slot(shapes, answer)[2],
    )
    says_so = bool(shapes) and ("json" in text.casefold() or (certain and not asked_by_user))
    as_json, sure = bool(schema or whole or schemas or says_so), schema or whole or certain
    boxed, mark = not as_json and "\\boxed" in text, not as_json and MARK in text
    drawn = shown or not apart, tuple(shapes), as_json and not sure
    return ExpectedFormat(tuple(blocks), answer_tag, boxed, mark, as_json, *drawn)


def _parsed(text: str) -> Any:
    # The value of a text that is JSON; another text as it is.
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _slot(shapes: Sequence[Fields], answer: str) -> tuple[Fields, str, bool]:
    # (object, field, certain): where an answer belongs: where it stands in one of them, in a field
    # of that name, in the last.
    fields = [(shape, key) for shape in shapes for key in shape]
    same = [(shape, key) for shape, key in fields if shape[key] in (answer, _parsed(answer))]
    # "positive|negative" stands for one of them.
    likely = [
        (shape, key)
        for shape, key in fields
        if key in _ANSWER_TAGS or answer in re.split(r"\W+", str(shape[key]))
    ]
    shape, key = next(iter(same or likely or fields[::-1]), ({}, ""))
    # one of several fields may hold it by chance: a tool's name
    return shape, key, len(shape) == 1 or key in _ANSWER_TAGS


def _is_deep(value: Any) -> bool:
    # Deeper values can be read, but not written everywhere: Python's own limit depends on who
    # calls.
    level = [value]
    for _ in range(_DEEPEST):
        containers = [
            each.values() if isinstance(each, dict) else each
            for each in level
            if isinstance(each, dict | list)
        ]
        level = [inner for container in containers for inner in container]
    return bool(level)


def _objects(text: str, schemas: Sequence[Fields] = ()) -> list[Fields]:
    # The JSON objects in a text; instead of a schema, objects that fit it, with each value that a
    # field may have.
    decoder, values, place = json.JSONDecoder(), [*schemas], text.find("{")
    while 0 <= place < _LONGEST:
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            value, end = {}, place + 1
        values.append({} if _is_deep(value) else value)
        place = text.find("{", end)
    shapes = []
    for value in values:
        properties = value.get("properties")
        fields = properties if isinstance(properties, dict) else {}
        choices = {name: _choices(each) for name, each in fields.items()}
        first = {name: some[0] for name, some in choices.items()} or value
        shapes += [
            first,
            *({**first, name: other} for name, some in choices.items() for other in some[1:20]),
        ]
    return [shape for shape in shapes if shape]


def _choices(schema: object) -> list[Any]:
    known, kind = (
        (schema.get("enum"), schema.get("type")) if isinstance(schema, dict) else (None, None)
    )
    return known if known and isinstance(known, list) else [_VALUES.get(str(kind), "text")]


def _asking(prompt: Any) -> str:
    # A question may hold tags of its own (HTML, code): where the system message asks for a format,
    # that is the format.
    first = prompt[0] if not isinstance(prompt, str) and prompt else {}
    system = str(first["content"]) if first.get("role") == "system" else ""
    whole = asking_text(prompt)
    tagged, shows = (_marks(system) or "\\boxed" in system or MARK in system), _objects(system)
    return (
        system
        if tagged or (shows and not (_marks(whole) or "\\boxed" in whole or MARK in whole))
        else whole
    )


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
    completions: Sequence[object],
    prompts: Sequence[object],
    answer: Sequence[object],
    **kwargs: object,
) -> list[float]:
    """1.0 if the completion is the JSON object that its prompt shows, with the right answer in it;
    else 0.0.
    """
    texts = [
        parse_format({"prompt": each}, str(right)).write("", str(right))
        for each, right in zip(prompts, answer)
    ]
    pairs = zip(map(json_of, completions), map(json_of, texts), strict=True)
    return [float(given == wanted is not None) for given, wanted in pairs]


def grader_for(
    row: Mapping[str, Any], constant: bool = False
) -> Callable[..., Sequence[float | None]]:
    """The function that decides whether a completion of this row is right, for the profile of 01;
    DataError if none can.

    `constant`: every row has the same answer, so that it is none.
    """
    if "answer" not in row:
        remedy = "measure without one (profile_prompts = 0), or with your own reward function"
        raise DataError(
            "the rows have no answer", rule="a pass rate needs a right answer", remedy=remedy
        )
    if "numbers" in row and "target" in row:
        return countdown_reward
    answer, asked = str(row["answer"]), asking_text(row["prompt"])
    expected = parse_format(row, answer)
    grader: Callable[..., Sequence[float | None]] = library.last_line_reward
    if expected.json:
        grader = (
            shown_json_reward
            if expected.shapes and not isinstance(_parsed(answer), dict)
            else json_right_reward
        )
    elif "<answer>" in asked:
        grader = library.correctness_reward
    elif expected.boxed or expected.mark:
        grader = (
            library.boxed_correctness_reward if expected.boxed else library.mark_correctness_reward
        )
    columns = {name: [value] for name, value in row.items() if name != "prompt"}
    honest = expected.write("Step by step:", answer)
    if (
        constant
        or expected.guessed
        or not grader(prompts=[row["prompt"]], completions=[honest], **columns)[0]
    ):
        why = f"no shipped function decides what is right where the prompts ask for {expected}"
        value = f"no ruler yet: {'every row has the same answer' if constant else why}"
        remedy = "pass a task whose right_by does: task= (notebook 02 writes one)"
        raise DataError(
            value, rule="a pass rate needs a function that pays right answers", remedy=remedy
        )
    return grader


def format_advice(row: Mapping[str, object]) -> str:
    """Which reward functions fit the row, where the five of notebook 02 do not; empty where they
    do.
    """
    if "answer" not in row:
        return (
            "these rows have no answer: leave correctness_reward out and write reward functions"
            " that need none"
        )
    expected = parse_format(row, str(row["answer"]))
    try:
        grader = grader_for(row)
    except DataError:
        grader = None
    shipped = {countdown_reward: "countdown", json_right_reward: "json"}.get(grader)
    if grader is not None and shipped:
        return (
            f"these rows need other rewards: `task: {shipped}` in a recipe, or"
            f" workbench.rewards.{function_name(grader)}"
        )
    tags, own = tuple(block.name for block in expected.blocks), grader in (None, shown_json_reward)
    fits = [] if own or grader is None else [function_name(grader)]
    fits += ["make_json_reward(SCHEMA)"] if expected.json else []
    if tags:
        fits.append(
            "think_answer_format_reward" if tags == THINK_TAGS else f"make_tags_reward({tags})"
        )
    others = (
        f"these prompts ask for {expected}, and 02's reward functions look for <reasoning> and"
        " <answer>"
    )
    fit = f"{others}; what fits, in workbench.rewards: {', '.join(fits)}"
    if own:
        fit += "; and one of your own for what is right"
    return "" if tags == TAGS and not own else fit
