"""02: completions -> numbers.

Every reward function and every factory is here by its name, `workbench.rewards.correctness_reward`,
and is imported when it is first used. `dir(workbench.rewards)` lists them; `help(...)` on one says
what it pays. A factory makes your own function, `make_length_reward(200, unit="tokens")`; the
helpers that functions need (find an answer, compare two) are beside them.
"""

import importlib
from typing import Any

from workbench.base.instruments import places_in

_LIBRARY = {
    "rewards.library": (
        "correctness_reward", "lenient_correctness_reward", "mark_correctness_reward",
        "boxed_correctness_reward", "last_line_reward", "closeness_reward", "strict_format_reward",
        "incremental_format_reward", "think_answer_format_reward", "make_answer_reward",
        "make_closeness_reward", "make_tags_reward", "max_score",
    ),
    "rewards.shaping": (
        "length_reward", "style_reward", "repetition_reward", "make_length_reward",
        "make_repetition_reward", "make_overlong_reward", "make_pattern_reward",
    ),
    "rewards.verifiers": (
        "json_schema_reward", "json_values_reward", "json_right_reward", "countdown_reward",
        "numbers_used_reward",
        "make_json_reward",
    ),
    "rewards.answers": ("completion_text", "extract_answer", "find_answer"),
    "rewards.compare": ("same_answer",),
    "teaching.exercises": ("exercise",),
}  # fmt: skip
_MODULE = {name: f"workbench.{module}" for module, names in _LIBRARY.items() for name in names}
_MODULE |= places_in("rewards")
__all__ = [*_MODULE]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'workbench.rewards' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_MODULE)
