"""Structured output: JSON that keeps to a schema, and whose values are right.

Each row brings its `schema` (JSON Schema, as text) and its `answer` (the right object, as text).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

from workbench.rewards.answers import completion_text, extract_answer
from workbench.rewards.stated import pays

LONGEST = 20_000  # characters of one JSON answer
_FENCE = "```"


def json_of(text: str) -> Any:
    """The JSON value of a completion: its answer block if there is one, else all of it; a code fence around it is taken off.

    Returns None if it is not JSON, and for a bare `null`, which no schema here asks for.
    """
    body = (extract_answer(text) if "<answer>" in text else text) or ""
    body = body.strip()
    if body.startswith(_FENCE) and body.endswith(_FENCE) and "\n" in body:
        body = body[body.index("\n") : -len(_FENCE)].strip()
    if not body or len(body) > LONGEST:
        return None
    try:
        return json.loads(body, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None


@functools.lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(schema))


@pays(1.0)
def json_schema_reward(completions: Sequence[Any], schema: Sequence[str], **kwargs: Any) -> list[float]:
    """1.0 if the answer is JSON and keeps to the row's schema, else 0.0."""
    found = [json_of(completion_text(completion)) for completion in completions]
    return [
        1.0 if value is not None and _validator(wanted).is_valid(value) else 0.0
        for value, wanted in zip(found, schema, strict=True)
    ]


@pays(2.0)
def json_values_reward(completions: Sequence[Any], answer: Sequence[str], **kwargs: Any) -> list[float]:
    """2.0 times the share of the right object's fields that the answer has with the right value; extra fields count against."""
    scores = []
    for completion, right in zip(completions, answer, strict=True):
        found, wanted = json_of(completion_text(completion)), json.loads(right)
        if not isinstance(found, dict):
            scores.append(0.0)
            continue
        same = sum(name in found and found[name] == value for name, value in wanted.items())
        scores.append(2.0 * same / len({*wanted, *found}) if wanted or found else 2.0)
    return scores


@pays(1.0)
def json_right_reward(completions: Sequence[Any], answer: Sequence[str], **kwargs: Any) -> list[float]:
    """1.0 if the answer is exactly the right object, else 0.0."""
    return [
        1.0 if json_of(completion_text(completion)) == json.loads(right) else 0.0
        for completion, right in zip(completions, answer, strict=True)
    ]
