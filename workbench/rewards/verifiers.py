"""Rewards for answers that a program can check: JSON that follows a schema, and the expressions of
Countdown.
"""

from __future__ import annotations

import ast
import functools
import json
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

from workbench.base.errors import TaskError
from workbench.base.kinds import Fields
from workbench.rewards.answers import Column, completion_text, extract_answer
from workbench.rewards.library import Scorer, max_score, named

LONGEST_JSON, LONGEST_EXPRESSION = 20_000, 200  # characters
_FENCE = "```"
_EXPRESSION = re.compile(r"(?:\d{1,9}(?!\d)|[-+*/() ])+", re.ASCII)
_SAME = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")"})
_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def json_of(completion: object) -> Any:
    """The JSON value of a completion, or of its answer block if it has one, without a code fence;
    None: no JSON, or `null`.
    """
    text = completion_text(completion)
    body = ((extract_answer(text) if "<answer>" in text else text) or "").strip()
    if body.startswith(_FENCE) and body.endswith(_FENCE) and "\n" in body:
        body = body[body.index("\n") : -len(_FENCE)].strip()
    if not body or len(body) > LONGEST_JSON:
        return None
    try:
        return json.loads(body, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None


@functools.lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(schema))


def _json_scores(completions: Column, schemas: Iterable[str], maximum: float) -> list[float]:
    pairs = zip(map(json_of, completions), schemas, strict=True)
    return [
        maximum if value is not None and _validator(schema).is_valid(value) else 0.0
        for value, schema in pairs
    ]


@max_score(1.0)
def json_schema_reward(completions: Column, schema: Sequence[str], **kwargs: object) -> list[float]:
    """1.0 if the answer is JSON and keeps to the row's `schema` (JSON Schema, as text), else 0.0.

    >>> from workbench.rewards import json_schema_reward
    >>> json_schema_reward(['{"age": 7}', '{"age": "seven"}'], schema=['{"properties": {"age": {"type": "integer"}}}'] * 2)
    [1.0, 0.0]
    """  # noqa: E501
    return _json_scores(completions, schema, 1.0)


@max_score(2.0)
def json_values_reward(completions: Column, answer: Sequence[str], **kwargs: object) -> list[float]:
    """2.0 times the share of the right object's fields that the answer has with the right value;
    extra fields count against.

    >>> from workbench.rewards import json_values_reward
    >>> json_values_reward(['{"name": "Ada", "age": 7}', '{"name": "Ada"}', "Ada"], answer=['{"name": "Ada", "age": 7}'] * 3)
    [2.0, 1.0, 0.0]
    """  # noqa: E501
    scores = []
    for found, wanted in zip(map(json_of, completions), map(json.loads, answer), strict=True):
        if isinstance(found, dict):
            same = sum(name in found and found[name] == value for name, value in wanted.items())
            scores.append(2.0 * same / len({*wanted, *found}) if wanted or found else 2.0)
        else:
            scores.append(0.0)
    return scores


@max_score(1.0)
def json_right_reward(completions: Column, answer: Sequence[str], **kwargs: object) -> list[float]:
    """1.0 if the answer is exactly the right object, which the row's `answer` holds as text; else
    0.0.

    >>> from workbench.rewards import json_right_reward
    >>> json_right_reward(['{"age": 7}', '{"age": 8}'], answer=['{"age": 7}'] * 2)
    [1.0, 0.0]
    """
    return [
        float(found == wanted)
        for found, wanted in zip(map(json_of, completions), map(json.loads, answer), strict=True)
    ]


# Columns that hold JSON text, and of what type: they are checked before the function is called.
vars(json_schema_reward)["json_columns"] = {"schema": dict}
vars(json_values_reward)["json_columns"] = {"answer": dict}
vars(json_right_reward)["json_columns"] = {"answer": object}


def make_json_reward(
    schema: Fields | str, maximum: float = 1.0, name: str = "json_reward"
) -> Scorer:
    """A reward of `maximum` for JSON that keeps to one JSON Schema, an object or text, else 0.
    TaskError if it is none.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        wanted = json.loads(schema) if isinstance(schema, str) else schema
        Draft202012Validator.check_schema(wanted)
    except (ValueError, SchemaError) as error:
        raise TaskError(
            f"schema = {str(schema)[:80]!r}: {str(error).splitlines()[0]}",
            rule="a schema keeps to JSON Schema, draft 2020-12",
            remedy="correct it, or write it as a Python dict",
        ) from error
    text = json.dumps(wanted, sort_keys=True)

    def json_reward(completions: Column, **kwargs: object) -> list[float]:
        return _json_scores(completions, [text] * len(completions), maximum)

    # A schema may hold regular expressions, which can hang as any pattern can.
    vars(json_reward).update(schema=wanted, runs_in_worker='"pattern' in text)
    return named(
        json_reward, name, f"{maximum:g} for JSON that keeps to the schema, else 0.", maximum
    )


def evaluate_expression(expression: str) -> tuple[Fraction, list[int]] | None:
    """(value, the numbers in it) of an expression of whole numbers, `+ - * /` and parentheses; None
    if it is none.

    Exact, and read as text: nothing is ever executed.

    >>> evaluate_expression("(3 + 5) / 2")
    (Fraction(4, 1), [3, 5, 2])
    >>> evaluate_expression("7 / (3 - 3)"), evaluate_expression("2 ** 9"), evaluate_expression("__import__('os')")
    (None, None, None)
    """  # noqa: E501
    text = " ".join(expression.translate(_SAME).split())
    if len(text) > LONGEST_EXPRESSION or not _EXPRESSION.fullmatch(text):
        return None
    numbers: list[int] = []

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp):
            return _OPERATIONS[type(node.op)](value(node.left), value(node.right))
        number: Any = node
        numbers.append(number.value)
        return Fraction(number.value)

    try:
        return value(ast.parse(re.sub(r"\b0+(?=\d)", "", text), mode="eval").body), numbers
    # No expression, or one too deep; a power, a sign, nothing in parentheses.
    except (
        SyntaxError,
        MemoryError,
        RecursionError,
        KeyError,
        AttributeError,
        TypeError,
        ZeroDivisionError,
    ):
        return None


def solves(answer: str, numbers: Sequence[int], target: int) -> bool:
    """Whether an answer (`(55 - 7) + 36 - 19`, with or without `= 65`) reaches the target with each
    number used once.
    """
    left, equals, right = answer.partition("=")
    if equals and right.strip() != str(target):
        return False
    result = evaluate_expression(left)
    return result is not None and result[0] == target and Counter(result[1]) == Counter(numbers)


@max_score(2.0)
def countdown_reward(
    completions: Column,
    numbers: Sequence[Sequence[int]],
    target: Sequence[int],
    **kwargs: object,
) -> list[float]:
    """2.0 if the one answer block holds an expression that uses each number once and reaches the
    target, else 0.0.

    >>> from workbench.rewards import countdown_reward
    >>> countdown_reward(["<answer>(2 + 5) * 6</answer>", "<answer>6 * 7</answer>"], numbers=[[2, 5, 6]] * 2, target=[42, 42])
    [2.0, 0.0]
    """  # noqa: E501
    answers = [extract_answer(completion_text(completion)) or "" for completion in completions]
    return [2.0 if solves(*each) else 0.0 for each in zip(answers, numbers, target, strict=True)]


@max_score(0.5)
def numbers_used_reward(
    completions: Column, numbers: Sequence[Sequence[int]], **kwargs: object
) -> list[float]:
    """0.5 if the answer block holds an expression that uses each number once, with any result; else
    0.0.

    >>> from workbench.rewards import numbers_used_reward
    >>> numbers_used_reward(["<answer>2 + 5 + 6</answer>", "<answer>6 * 7</answer>"], numbers=[[2, 5, 6]] * 2)
    [0.5, 0.0]
    """  # noqa: E501
    answers = [
        (extract_answer(completion_text(each)) or "").partition("=")[0] for each in completions
    ]
    results = zip(map(evaluate_expression, answers), numbers, strict=True)
    return [
        0.5 if result and Counter(result[1]) == Counter(given) else 0.0 for result, given in results
    ]
