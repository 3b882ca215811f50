"""What a reward function returned, as scores, or why it is none."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from workbench.base.errors import RewardError
from workbench.base.kinds import Fields
from workbench.rewards.answers import completion_text
from workbench.rewards.as_data import NO_LIST, Foreign

# TRL computes advantages in 32 bits, where the square of 1.8e19 is infinite; a batch adds up the
# squares of thousands.
LARGEST = 1e15


class Scored(NamedTuple):
    """One function's scores of a batch."""

    scores: list[float]  # NaN: did not apply, or failed
    errors: dict[int, str]  # index of the completion -> what the function did


def check_scores(
    name: str,
    result: Any,
    call: Fields,
    skip: bool = False,
) -> Scored:
    """What a reward function returned, as floats (None becomes NaN: "does not apply").

    Raises RewardError, naming function, prompt and completion, unless there is one score or None
    per completion that TRL can compute with; with `skip` that is the completion's failure instead.
    A RewardError in a score's place is one, too.
    """
    prompts, completions = call["prompts"], call["completions"]
    rule = "a reward function returns a list with one score (or None) per completion, in order"
    if result is None or isinstance(result, NO_LIST) or not hasattr(result, "__iter__"):
        shown = f" {result!r}" if isinstance(result, (int, float, str)) else ""
        kind = result.kind if isinstance(result, Foreign) else type(result).__name__
        missing = "; is a `return` missing?" if result is None else ""
        remedy = f"return [score for completion in completions]{missing}"
        raise RewardError(f"{name} returned {kind}{shown}", rule=rule, remedy=remedy)
    values = list(result)
    if len(values) != len(completions):
        value = f"{name} returned {len(values)} scores for {len(completions)} completions"
        remedy = "score every completion, and use None where the function does not apply"
        raise RewardError(value, rule=rule, remedy=remedy)
    scored = Scored([], {})
    for index, value in enumerate(values):
        failed = value if isinstance(value, RewardError) else _unfit(value)
        scored.scores.append(math.nan if failed or value is None else float(value))
        if failed is None:
            continue
        scored.errors[index] = failed.value
        if not skip:
            value = f"{name} {failed.value} for {quote(prompts[index], completions[index])}"
            raise RewardError(value, rule=failed.rule, remedy=failed.remedy) from failed
    return scored


def _unfit(value: Any) -> RewardError | None:
    with contextlib.suppress(Exception):  # of whatever it is
        number = not isinstance(value, (str, bytes))
        if value is None or (number and abs(float(value)) <= LARGEST):
            return None
    try:
        text = repr(value)
    except ValueError:
        text = f"a {type(value).__name__} of more than 4,300 digits"
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return RewardError(
        f"returned {text}",
        rule=f"a score is None or a finite number, at most {LARGEST:g} in size: TRL computes"
        " advantages in 32 bits",
        remedy="correct the function for this completion, or bound its scores with min() and max()",
    )


def quote(prompt: Any, completion: object, limit: int = 200) -> str:
    """A completion and its prompt, shortened for an error message."""
    question = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    text = completion_text(completion)
    more = "…" if len(text) > limit else ""
    return f"the completion {text[:limit]!r}{more} to the prompt {question[:limit]!r}"


class PartOfBatch(NamedTuple):
    """What one process has of a batch."""

    columns: Fields  # lists with one value per completion
    scored: dict[str, Scored]  # by function
    seconds: dict[str, float]  # by function


def whole_batch(parts: Sequence[PartOfBatch]) -> PartOfBatch:
    """One batch of the equally large parts of all processes: a group may lie across two. A step
    waits for the slowest.
    """
    size = len(parts[0].columns["completions"])
    columns = {
        key: [value for part in parts for value in part.columns[key]] for key in parts[0].columns
    }
    joined = PartOfBatch(columns, {}, {})
    for name in parts[0].scored:
        own = [part.scored[name] for part in parts]
        errors = {
            number * size + index: why
            for number, each in enumerate(own)
            for index, why in each.errors.items()
        }
        joined.scored[name] = Scored([score for each in own for score in each.scores], errors)
        joined.seconds[name] = max(part.seconds[name] for part in parts)
    return joined
