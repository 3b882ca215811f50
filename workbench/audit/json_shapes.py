"""The JSON objects that a prompt shows or a schema describes, and where an answer belongs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from workbench.base.kinds import Fields
from workbench.recipe import packaged

WORDING: Fields = packaged(Path(__file__).with_name("wording.yaml"))
ANSWER_NAMES, _VALUES = WORDING["answers"], WORDING["values"]
_DEEPEST = 50  # levels of a JSON object in a prompt
_LONGEST = 20_000  # characters of a prompt in which JSON is looked for
# What is written for a value in JSON that a prompt shows: <int>, int, ..., "<int>"; a choice of
# texts; and where an unquoted one stands.
_BLANK = rf"<[^<>{{}}\n]{{1,60}}>|\.\.\.|…|\b(?:{'|'.join(_VALUES)})\b"
_IS_BLANK = re.compile(_BLANK)
_BLANKS = re.compile(rf'("\s*:\s*)({_BLANK})(?=\s*[,}}])')
_CHOICE = re.compile(r'(?<=\w)"\s*\|\s*"(?=\w)')


def parsed_json(text: str) -> Any:
    """The value of a text that is JSON; another text as it is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


class Slot(NamedTuple):
    """Where an answer belongs: a field of an object."""

    shape: Fields
    key: str
    only: bool  # one of several fields may hold it by chance: a tool's name
    open: bool  # whether a number is written there as a number or as text

    @property
    def has_text(self) -> bool:
        """Whether the answer is text there, and not a number, a list or an object."""
        return isinstance(self.shape.get(self.key), str)

    def filled(self, answer: str) -> str:
        """The object with this answer in it; an answer that is a whole object as it is."""
        value = parsed_json(answer)
        if not self.shape or isinstance(value, dict):
            return answer
        own = answer if self.has_text else value
        return json.dumps({**self.shape, self.key: own}, ensure_ascii=False)


def slot_of(shapes: Sequence[Fields], answer: str) -> Slot:
    """Where it stands in one of them; else a field of that name, the last of its type, the last."""
    value = parsed_json(answer)
    fields = [(shape, key) for shape in shapes for key in shape]
    same = [(shape, key) for shape, key in fields if shape[key] in (answer, value)]
    # "positive|negative" stands for one of them.
    likely = [
        (shape, key)
        for shape, key in fields
        if key in ANSWER_NAMES or answer in re.split(r"\W+", str(shape[key]))
    ]
    typed = [(shape, key) for shape, key in fields if type(shape[key]) is type(value)]
    shape, key = next(iter(same or likely or typed[::-1] or fields[::-1]), ({}, ""))
    shown = str(shape.get(key, ""))
    is_open = not isinstance(value, str) and (shown == "None" or _IS_BLANK.fullmatch(shown))
    return Slot(shape, key, len(shape) == 1 or key in ANSWER_NAMES, bool(is_open))


def _depth(value: object) -> int:
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, inner), default=0)


def objects_in(text: str) -> list[Fields]:
    """The JSON objects that a text shows, each word for a value with one in its place."""
    text = filled(text)
    decoder, values, place = json.JSONDecoder(), list[Fields](), text.find("{")
    while 0 <= place < _LONGEST:
        try:
            value, end = decoder.raw_decode(text, place)
            # Deeper ones can be read, but not written everywhere: Python's own limit depends on who
            # calls.
            values.append(value if _depth(value) <= _DEEPEST else {})
        except (ValueError, RecursionError):
            end = place + 1
        place = text.find("{", end)
    return objects_fitting(values)


def objects_fitting(schemas: Sequence[Fields]) -> list[Fields]:
    """Objects that fit these JSON Schemas, one for each value that a field may have; another object
    as it is.
    """
    shapes = []
    for value in schemas:
        properties = value.get("properties")
        fields = properties if isinstance(properties, dict) else {}
        choices = {name: _choices(each) for name, each in fields.items()}
        first = {name: some[0] for name, some in choices.items()} or value
        shapes.append(first)
        shapes += [{**first, name: other} for name, some in choices.items() for other in some[1:20]]
    return [shape for shape in shapes if shape]


def filled(text: str) -> str:
    """The text with a value where its JSON has a word for one; null: it does not say which."""

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
