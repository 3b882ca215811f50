"""Functions that make reward functions: for tags, a pattern, a place of the answer, a JSON schema, a weight.

What they return has TRL's signature, a name of its own, a docstring that says what it pays, and the most that it pays
(`maximum`). Lengths, repetition and nearness to a number are made in `shaping`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from workbench.errors import TaskError
from workbench.rewards.answers import PLACES, completion_text, find_answer
from workbench.rewards.formats import THINK_TAGS, format_share, keeps_strict_format
from workbench.rewards.library import answer_scores
from workbench.rewards.stated import maximum_of, named, pays
from workbench.rewards.structured import json_of
from workbench.task import function_name


def make_tags_reward(
    tags: Sequence[str] = THINK_TAGS,
    maximum: float = 1.0,
    strict: bool = True,
    opened: bool = False,
    name: str | None = None,
) -> Callable[..., list[float]]:
    """A reward for one non-empty block of each tag, in their order.

    Args:
        strict: `maximum` for exactly that and nothing else, or 0; otherwise an equal share for each opening and each
            closing tag in its place, and up to one share off for text after the last.
        opened: whether the chat template writes the first tag itself, so that a completion begins inside its block.
        name: of the function; None: one with the tags in it.

    Raises:
        TaskError: if a tag is no word, or stands twice.
    """
    tags = tuple(tags)
    unfit = [tag for tag in tags if not re.fullmatch(r"[\w-]+", tag)] or [t for t in tags if tags.count(t) > 1]
    if unfit or not tags:
        raise TaskError(
            f"tags = {tags!r}",
            rule="tags are words without brackets, each of them once",
            remedy='give their names, for example ("think", "answer")',
        )

    @pays(maximum)
    def tags_reward(completions: Sequence[Any], **kwargs: Any) -> list[float]:
        before = f"<{tags[0]}>" if opened else ""
        kept = keeps_strict_format if strict else format_share
        return [maximum * kept(before + completion_text(completion), tags) for completion in completions]

    blocks = " and ".join(f"<{tag}>" for tag in tags)
    return named(
        tags_reward,
        name or f"{'_'.join(tags)}_{'strict' if strict else 'tags'}_reward",
        f"{maximum:g} for one block each of {blocks}, not empty and in order"
        + (", and nothing else; otherwise 0." if strict else "; a share of it for each tag in its place."),
    )


def make_pattern_reward(
    pattern: str,
    score: float = 1.0,
    whole: bool = False,
    flags: int = re.DOTALL,
    name: str = "pattern_reward",
) -> Callable[..., list[float]]:
    """A reward of `score` for completions in which a regular expression is found; a negative score is a penalty.

    A pattern with nested or neighbouring repeats, `(a+)+` or `.*?x.*?y.*?z`, can take hours over one long completion,
    and nothing inside Python can stop it. So the suite runs this function in its worker process, with a deadline.

    Args:
        whole: whether the pattern has to match the completion from its first to its last character.
        flags: of `re`; with re.DOTALL a dot is also a line break, without which no text of several lines matches `.*`.

    Raises:
        TaskError: if the pattern does not compile.
    """
    try:
        if not isinstance(pattern, str):
            raise TypeError(f"{type(pattern).__name__}, not text")
        re.compile(pattern, flags)
    except (re.error, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TaskError(
            f"pattern = {pattern!r}: {error}",
            rule="a pattern is a regular expression of Python's `re`, as text",
            remedy="correct it; `re.escape` makes a pattern of a text that is meant literally",
        ) from error

    @pays(max(0.0, score))
    def pattern_reward(completions: Sequence[Any], **kwargs: Any) -> list[float]:
        # `re` keeps what it has compiled; the text of the pattern is what a hash of this function can see.
        found = re.fullmatch if whole else re.search
        return [score if found(pattern, completion_text(each), flags) else 0.0 for each in completions]

    pattern_reward.runs_in_worker = True
    return named(pattern_reward, name, f"{score:g} where {'all of it matches' if whole else 'there is'} {pattern!r}.")


def make_answer_reward(where: str = "any", maximum: float = 2.0, name: str | None = None) -> Callable[..., Any]:
    """A reward of `maximum` for the right answer in one place, else 0; None where a formula was not judged in time.

    Args:
        where: "tag", "mark", "boxed", "number", "plain" or "any", as in `find_answer`. Of several the last one counts.
        name: of the function; None: one with the place in it.

    Raises:
        TaskError: if there is no such place.
    """
    if where not in PLACES:
        raise TaskError(
            f"where = {where!r}",
            rule="an answer is looked for in one of the places that are known",
            remedy=f"use one of {', '.join(map(repr, PLACES))}",
        )

    @pays(maximum)
    def answer_reward(completions: Sequence[Any], answer: Sequence[Any], **kwargs: Any) -> list[float | None]:
        return answer_scores([find_answer(completion_text(each), where) for each in completions], answer, maximum)

    return named(
        answer_reward, name or f"{where}_answer_reward", f"{maximum:g} for the right answer ({where}), else 0."
    )


def make_json_reward(
    schema: dict[str, Any] | str, maximum: float = 1.0, name: str = "json_reward"
) -> Callable[..., list[float]]:
    """A reward of `maximum` for JSON that keeps to one schema, else 0, without a `schema` column.

    Args:
        schema: JSON Schema, as an object or as text.

    Raises:
        TaskError: if it is no JSON Schema.
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

    @pays(maximum)
    def json_reward(completions: Sequence[Any], **kwargs: Any) -> list[float]:
        validator = Draft202012Validator(json.loads(text))
        found = [json_of(completion_text(completion)) for completion in completions]
        return [maximum if value is not None and validator.is_valid(value) else 0.0 for value in found]

    # A schema may hold regular expressions, which can hang as any pattern can.
    json_reward.runs_in_worker = '"pattern' in text
    return named(json_reward, name, f"{maximum:g} for JSON that keeps to the schema, else 0.")


def make_weighted_reward(func: Callable[..., Any], weight: float, name: str | None = None) -> Callable[..., Any]:
    """`func` with each of its scores times `weight`; None stays None. Works for async functions too.

    A weight in the recipe does the same and leaves the scores in the record as they are; this is for a function that is
    to be one part of another, or twice in a task.

    Args:
        name: of the function; None: `func`'s with the weight in front.
    """
    if inspect.iscoroutinefunction(func):

        async def weighted_reward(*args: Any, **kwargs: Any) -> list[float | None]:
            return _times(weight, await func(*args, **kwargs))

    else:

        def weighted_reward(*args: Any, **kwargs: Any) -> list[float | None]:
            return _times(weight, func(*args, **kwargs))

    own = function_name(func)
    # The suite looks at these to see which columns it needs and where it may run.
    weighted_reward.__signature__ = inspect.signature(func)
    weighted_reward.__module__ = getattr(func, "__module__", None) or __name__
    for mark in ("runs_in_worker", "runs_in_process"):
        if hasattr(func, mark):
            setattr(weighted_reward, mark, getattr(func, mark))
    stated = maximum_of(func)
    # With a negative weight the most is what the function's least is worth, which it does not state.
    if stated is not None and weight >= 0:
        pays(weight * stated)(weighted_reward)
    return named(weighted_reward, name or f"{weight:g}_{own}", f"{weight:g} times what {own} pays.")


def _times(weight: float, scores: Sequence[float | None]) -> list[float | None]:
    return [None if score is None else weight * score for score in scores]
