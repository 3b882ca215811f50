"""The task: prompts, the answer, the reward functions and their weights, in one place.

A user's task is a Python file that binds `task = Task(...)`; notebook 02 writes one and notebook 03
imports it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.base.errors import TaskError, nearest
from workbench.base.kinds import Fields, Function
from workbench.base.plain import plain_rows

if TYPE_CHECKING:
    import numpy as np

Row = Fields

# Names that TRL hands to a reward function itself or overwrites: a dataset column of that name
# breaks or vanishes.
_OF_TRL = (
    "prompts completions completion completion_ids trainer_state log_extra log_metric environments"
    " image images"  # these two would switch TRL to vision mode
)
RESERVED_COLUMNS = frozenset(_OF_TRL.split())


@dataclass(frozen=True)
class Task:
    """What the policy is asked, and how its completions are scored.

    >>> def short_reward(completions, **columns):
    ...     return [1.0 if len(text) < 20 else 0.0 for text in completions]
    >>> task = wb.Task("short", rows=[{"prompt": "Name a colour."}], reward_funcs=[short_reward])
    >>> task.function_names, task.weights
    (['short_reward'], [1.0])

    Args:
        name: shown in figures and written into the manifest.
        rows: training prompts, a list of dicts or a DataFrame; each row has `prompt` (chat messages
            or text) and any columns that the rewards read. Arrays become lists, NaN None, and dates
            and decimals text: `made_plain` counts them.
        reward_funcs: functions in TRL's signature, `(prompts, completions, **columns) -> list[float
            | None]`.
        reward_weights: one per function, in their order; None means 1.0 each.
        held_out: prompts that are never trained on; notebook 04 measures on them.
        answer_column: the column that holds the right answer.
        right_by: name of the reward function that decides whether a completion is right (a score
            above 0), or `(name, threshold)` where it gives partial credit (a score of at least the
            threshold); None: not stated, so the first is taken.
        format_by: name of the one that decides whether it keeps the strict format (a score above
            0); None: not measured.
        ideal: row -> the reference completion, where it cannot be read off the prompt (`workbench
            probe`).
        probes: your own reward hacks, name -> text or a function of the row, besides those made
            from the prompt.
        cases: file of completions with the scores that they must get; None: `cases.jsonl` beside
            the task file.
        tools: functions that the policy may call, as TRL's trainer takes them: typed, with a
            docstring in Google's style.
        environment: makes the environment of a rollout (`reset(**row)`; its other public methods
            are tools; `get_reward()`, if it has one, is a reward function named after its class).
            A dict: by the name in each row's `environment`.
        rollout_func: TRL's own, `(prompts, trainer) -> dict`; it generates in place of the trainer.

    Raises:
        TaskError: if a part is missing or the parts do not fit together.
    """

    name: str
    rows: Sequence[Row]
    reward_funcs: Sequence[Function]
    reward_weights: Sequence[float] | None = None
    held_out: Sequence[Row] = ()
    answer_column: str = "answer"
    right_by: str | tuple[str, float] | None = None
    format_by: str | None = None
    ideal: Callable[[Row], str] | None = None
    probes: Mapping[str, str | Callable[[Row], str]] = field(default_factory=dict)
    cases: str | Path | None = None
    tools: Sequence[Function] = ()
    environment: Function | Mapping[str, Function] | None = None
    rollout_func: Function | None = None
    source: str = field(default="", compare=False)
    made_plain: Counter[str] = field(default_factory=Counter, init=False, compare=False)

    def __post_init__(self) -> None:
        for part in ("rows", "held_out"):
            where = f"task {self.name!r}: {part}"
            rows = plain_rows(where, getattr(self, part), self.made_plain)
            object.__setattr__(self, part, rows)
        if self.environment:
            from workbench.base.environments import with_own_rewards

            given = self.name, self.environment, self.reward_funcs, self.reward_weights
            for part, value in with_own_rewards(*given).items():
                object.__setattr__(self, part, value)
        for value, rule, remedy in self._misfits():
            raise TaskError(f"task {self.name!r}: {value}", rule=rule, remedy=remedy)

    def _misfits(self) -> Iterator[tuple[str, str, str]]:
        """(value, rule, remedy) of each part that does not fit."""
        names, weights = self.function_names, self.reward_weights
        if not names:
            remedy = "give reward_funcs=[...]; notebook 02 shows how to write one"
            yield "no reward functions", "GRPO learns from one score per completion", remedy
        if twice := [name for name in names if names.count(name) > 1]:
            value = f"two reward functions are called {twice[0]!r}"
            rule = "a function's name is its curve's label and its column in the record"
            yield value, rule, "give each its own __name__"
        numbers = all(isinstance(weight, (int, float)) for weight in weights or ())
        if isinstance(weights, Mapping) or not numbers:
            remedy = f"give {len(names)} weights in a list, in the order {', '.join(names)}"
            yield f"reward_weights = {weights!r}", "weights are numbers, one per function", remedy
        elif weights is not None and len(weights) != len(names):
            value = f"{len(weights)} reward_weights for {len(names)} reward functions"
            remedy = f"give {len(names)} weights, in the order {', '.join(names)}"
            yield value, "one weight per function", remedy
        match self.right_by:
            case None | str():
                pass
            case (str(), int() | float() as least) if math.isfinite(least):
                pass
            case _:
                rule = (
                    "right_by is a function's name, or a tuple of it and the lowest score that"
                    " counts as right"
                )
                yield f"right_by = {self.right_by!r}", rule, f"right_by=({names[0]!r}, 1.0)"
        for part, name in (("right_by", self.right_function), ("format_by", self.format_by)):
            if name is not None and name not in names:
                rule = f"{part} names one of the task's reward functions"
                yield f"{part} = {getattr(self, part)!r}", rule, f"choose from {', '.join(names)}"
        column = self.answer_column
        if column != "answer" and len(self.rows) and not any(column in row for row in self.rows):
            value = f"answer_column = {column!r}, and no row has such a column"
            rule = "it names the column of the right answer"
            yield value, rule, nearest(column, map(str, self.rows[0]), "name one that they have")
        if reserved := RESERVED_COLUMNS.intersection({name for row in self.rows for name in row}):
            rule = "TRL passes its own argument of that name to every reward function"
            yield f"the rows have a column {min(reserved)!r}", rule, "rename the column"

    @property
    def for_turns(self) -> Fields:
        """What TRL's trainer takes of it for rollouts of several turns, by argument; empty: they
        are of one.
        """
        from workbench.base.environments import factories_of

        makers = factories_of(self.environment)
        asked = {
            "tools": [*self.tools],
            "environment_factory": makers.get(None, makers),
            "rollout_func": self.rollout_func,
        }
        return {name: own for name, own in asked.items() if own}

    @property
    def tool_schemas(self) -> dict[str, list[Fields]]:
        """What a rollout may call, as the JSON schemas that a template renders, by the name of its
        environment ("": of a single one, or none). TaskError: a tool cannot be described.
        """
        from workbench.base.environments import schemas_of

        return schemas_of(self.tools, self.environment)

    @property
    def function_names(self) -> list[str]:
        """The reward functions' names, as TRL will report them."""
        return [function_name(function) for function in self.reward_funcs]

    @property
    def weights(self) -> list[float]:
        """One weight per function, in order."""
        return [float(weight) for weight in self.reward_weights or [1.0] * len(self.reward_funcs)]

    @property
    def right_function(self) -> str:
        """Name of the function that decides whether a completion is right."""
        named = self.right_by or self.function_names[0]
        return named if isinstance(named, str) else named[0]

    @property
    def right_at(self) -> float | None:
        """The lowest of its scores that is right; None: any above 0."""
        return self.right_by[1] if isinstance(self.right_by, tuple) else None

    @property
    def right_words(self) -> str:
        """Both in words: "correctness_reward > 0", "score >= 1"."""
        least = "> 0" if self.right_at is None else f">= {self.right_at:g}"
        return f"{self.right_function} {least}"

    @property
    def right_rule(self) -> str:
        """The key of measurements: the function's name alone, or with its threshold."""
        return self.right_function if self.right_at is None else self.right_words

    def is_right(self, scores: object) -> np.ndarray:
        """Which completions are right, by their scores of `right_function`, bool; NaN (no score) is
        not.
        """
        return right_of(scores, self.right_at)

    def with_ids(self, rows: Sequence[Row]) -> list[Row]:
        """`rows`, each with a `prompt_id`: its own, or else a stable short hash of its prompt; of
        the whole row where an environment begins with it: many starts share one prompt.
        """

        def of(row: Row) -> str:
            key = fingerprint([row]) if self.environment else prompt_key(row["prompt"])
            return str(row.get("prompt_id") or key[:12])

        return [{**row, "prompt_id": of(row)} for row in rows]


def right_of(scores: object, least: float | None = None) -> np.ndarray:
    """Which scores are right: above 0, or at least `least`; NaN is not."""
    import numpy as np

    scores = np.asarray(scores, dtype=float)
    return scores > 0 if least is None else scores >= least


def prompt_key(prompt: object) -> str:
    """A stable hash of a prompt, chat messages or text: 64 hex digits."""
    canonical = json.dumps(prompt, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8", "backslashreplace")).hexdigest()


def fingerprint(rows: Iterable[Row]) -> str:
    """A hash of rows and their order, 16 hex digits: what the manifest records as the data."""
    digest = hashlib.sha256()
    for row in rows:
        text = json.dumps(row, sort_keys=True, ensure_ascii=False, default=str)
        digest.update(f"{text}\n".encode("utf-8", "backslashreplace"))
    return digest.hexdigest()[:16]


def function_name(function: Function) -> str:
    """The name that TRL gives a reward function in its metrics."""
    while isinstance(function, functools.partial) and "__name__" not in vars(function):
        function = function.func
    # A reward model goes by its hub name or folder.
    config = None if isinstance(function, type) else getattr(function, "config", None)
    path = function if isinstance(function, str) else getattr(config, "_name_or_path", None)
    if path:
        return str(path).rstrip("/").rpartition("/")[2]
    return getattr(function, "__name__", None) or type(function).__name__
