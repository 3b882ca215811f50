"""The suite: a task's reward functions as the trainer calls them, checked, and joined into one record a batch.

TRL calls each function in turn; the suite passes each call through unchanged, checks what comes back before any
gradient sees it, and, when the last function has answered, hands over the batch with its totals and advantages.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np

from workbench.dataset.task import Row, Task
from workbench.rewards.answers import completion_text
from workbench.rewards.groups import Groups, advantages
from workbench.run.errors import RecipeError, RewardError, TaskError, fault_line

_FROM_TRL = frozenset({"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"})


@dataclass(frozen=True)
class ScoredBatch:
    """One generation batch of B = P * G completions, scored. Arrays are [B] or [B, F], a prompt's completions together."""

    prompts: list[Any]
    completions: list[str]
    completion_ids: list[list[int]]
    columns: dict[str, list[Any]]
    scores: np.ndarray  # [B, F], NaN where a function did not apply
    groups: Groups
    right: list[bool]
    step: int
    seconds: float  # time inside the reward functions


class RewardSuite:
    """A task's functions, ready for the trainer (`funcs`, `weights`) or for scoring by hand (`score`).

    Args:
        task: whose functions, weights and `right_by`.
        num_generations: G, the size of a group.
        weights: by function name, where they differ from the task's.
        scale_rewards: TRL's setting, needed for the advantages.
        aggregation: TRL's `multi_objective_aggregation`.
        on_batch: called with each complete `ScoredBatch`.

    Raises:
        RecipeError: if `weights` names a function that the task does not have.
    """

    def __init__(
        self,
        task: Task,
        num_generations: int,
        weights: dict[str, float] | None = None,
        scale_rewards: str | bool = "group",
        aggregation: str = "sum_then_normalize",
        on_batch: Callable[[ScoredBatch], None] | None = None,
    ) -> None:
        self.task, self.names = task, task.function_names
        unknown = sorted(set(weights or {}) - set(self.names))
        if unknown:
            raise RecipeError(
                f"reward_weights: {unknown[0]!r}",
                rule="a weight names one of the task's reward functions",
                remedy=f"choose from {', '.join(self.names)}",
            )
        self.weights = [
            float((weights or {}).get(name, own)) for name, own in zip(self.names, task.weights, strict=True)
        ]
        if not any(self.weights):
            raise RecipeError(
                f"reward_weights: all {len(self.weights)} are 0",
                rule="the reward is the weighted sum of the functions",
                remedy="give at least one function a weight",
            )
        self.num_generations, self.scale_rewards, self.aggregation = num_generations, scale_rewards, aggregation
        self.on_batch = on_batch
        self.hashes = {name: reward_hash(func) for name, func in zip(self.names, task.reward_funcs, strict=True)}
        self._pending: dict[str, list[float]] = {}
        self._seconds = 0.0

    @property
    def hash(self) -> str:
        """One hash over all functions and weights, 12 hex digits: which rewards a rollout was scored under."""
        text = "".join(
            f"{name}={self.hashes[name]}*{weight};" for name, weight in zip(self.names, self.weights, strict=True)
        )
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def funcs(self) -> list[Callable[..., Any]]:
        """The functions for `GRPOTrainer(reward_funcs=...)`, under their own names."""
        return [self._wrap(name, func) for name, func in zip(self.names, self.task.reward_funcs, strict=True)]

    def _wrap(self, name: str, func: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(func):

            async def scored(**call: Any) -> list[float]:
                started = time.perf_counter()
                result = await _attempt_async(name, func, call)
                return self._take(name, result, call, started)

        else:

            def scored(**call: Any) -> list[float]:
                started = time.perf_counter()
                result = _attempt(name, func, call)
                return self._take(name, result, call, started)

        functools.update_wrapper(scored, func, assigned=("__doc__",), updated=())
        del scored.__wrapped__  # or TRL would look through to the function beneath
        scored.__name__ = name
        return scored

    def _take(self, name: str, result: Any, call: dict[str, Any], started: float) -> list[float]:
        scores = check_scores(name, result, call["prompts"], call["completions"])
        self._seconds += time.perf_counter() - started
        self._pending[name] = scores
        if len(self._pending) == len(self.names):
            batch = self._join(call)
            self._pending, self._seconds = {}, 0.0
            if self.on_batch is not None:
                self.on_batch(batch)
        return scores

    def _join(self, call: dict[str, Any]) -> ScoredBatch:
        scores = np.array([self._pending[name] for name in self.names], dtype=np.float64).T
        groups = advantages(scores, self.weights, self.num_generations, self.scale_rewards, self.aggregation)
        state = call.get("trainer_state")
        return ScoredBatch(
            prompts=list(call["prompts"]),
            completions=[completion_text(completion) for completion in call["completions"]],
            completion_ids=call.get("completion_ids") or [[] for _ in call["completions"]],
            columns={key: value for key, value in call.items() if key not in _FROM_TRL},
            scores=scores,
            groups=groups,
            right=[bool(score > 0) for score in self._pending[self.task.right_function]],
            step=state.global_step + 1 if state is not None else 0,
            seconds=self._seconds,
        )

    def score(
        self, rows: Sequence[Row], completions: Sequence[str], completion_ids: Sequence[list[int]] | None = None
    ) -> np.ndarray:
        """Score completions by hand, one a row, as the trainer would: [B, F], NaN where a function did not apply.

        Args:
            rows: the prompts' rows, one a completion.
            completions: texts; turned into chat messages where the prompt is chat.
            completion_ids: their tokens; without them a function that counts tokens is given the text's bytes.
        """
        call = _call(rows, completions, completion_ids)
        columns = []
        for name, func in zip(self.names, self.task.reward_funcs, strict=True):
            result = (
                _run(_attempt_async(name, func, call))
                if inspect.iscoroutinefunction(func)
                else _attempt(name, func, call)
            )
            columns.append(check_scores(name, result, call["prompts"], call["completions"]))
        return np.array(columns, dtype=np.float64).T.reshape(len(rows), len(self.names))

    def rehearse(self, rows: Sequence[Row]) -> None:
        """Call every function once, as the trainer will, before anything is loaded: what would fail later fails now.

        The completions are a handful of texts of every kind: silence, words, and the answer in the asked-for format.

        Raises:
            TaskError: if a function needs a column that the rows lack.
            RewardError: if a function raises or returns something other than one finite number a completion, or if
                none of them returns a number at all.
        """
        self.check_signatures(rows)
        sample = [row for row in rows[:2] for _ in range(4)]
        texts = []
        for row in rows[:2]:
            answer = row.get(self.task.answer_column, "")
            texts += [
                "",
                str(answer),
                f"<reasoning>\nthe working\n</reasoning>\n<answer>\n{answer}\n</answer>",
                "The quick brown fox jumps over the lazy dog, 3 times.",
            ]
        scores = self.score(sample, texts)
        if np.isnan(scores).all():
            raise RewardError(
                f"{' and '.join(self.names)} returned None for {len(texts)} completions of {len(rows[:2])} prompts",
                rule="None means that a function does not apply; a completion to which none applies is not rewarded",
                remedy="return a number where the function has something to say",
            )

    def check_signatures(self, rows: Sequence[Row]) -> None:
        """Check that every function accepts TRL's keyword call and finds its columns in every row."""
        row = rows[0]
        for name, func in zip(self.names, self.task.reward_funcs, strict=True):
            parameters = inspect.signature(func).parameters.values()
            keywords = (_FROM_TRL | set(row)) - {"prompt"}
            open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
            named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
            needed = [
                p.name
                for p in parameters
                if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.default is p.empty
            ]
            missing = [parameter for parameter in needed if parameter not in keywords]
            if missing:
                raise TaskError(
                    f"{name} needs {missing[0]!r}; the rows have the columns {', '.join(map(str, row))}",
                    rule="a reward function gets `prompts`, `completions` and the dataset's columns, by keyword",
                    remedy=f"add a column {missing[0]!r} to the rows, or rename the parameter to one that is there",
                )
            for column in sorted(set(needed) - _FROM_TRL):
                empty = [number for number, other in enumerate(rows) if other.get(column) is None]
                if empty:
                    raise TaskError(
                        f"{name} needs {column!r}, and {len(empty)} rows have none (the first is row {empty[0]})",
                        rule="a column that a reward function reads holds a value in every row",
                        remedy="fill it in or leave those rows out; check_rows in notebook 01 lists them",
                    )
            if not open_ended and (extra := sorted(keywords - named)):
                raise TaskError(
                    f"{name} does not accept {extra[0]!r}",
                    rule="TRL passes every column and a few objects of its own by keyword",
                    remedy=f"end its signature with **kwargs: def {name}(completions, **kwargs)",
                )


def reward_hash(func: Callable[..., Any]) -> str:
    """12 hex digits that change when what a reward function does changes, and are the same in every process.

    They cover its source, its defaults, the values that it closes over or was made with (factories, partials,
    instances), and the functions that it calls by name.
    """
    return hashlib.sha256("\n".join(_parts_of(func, set())).encode("utf-8", "backslashreplace")).hexdigest()[:12]


def _parts_of(value: Any, seen: set[int]) -> list[str]:
    if id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, functools.partial):
        arguments = [value.func, *value.args, *(part for item in sorted(value.keywords.items()) for part in item)]
        return [part for argument in arguments for part in _parts_of(argument, seen)]
    if inspect.ismethod(value):
        return _parts_of(value.__self__, seen) + _parts_of(value.__func__, seen)
    if inspect.isfunction(value):
        code = value.__code__
        own = _source(value) or code.co_code.hex() + repr(code.co_consts)
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        called = [value.__globals__.get(name) for name in sorted(_names_in(code))]
        called = [other for other in called if inspect.isfunction(other) or isinstance(other, (str, int, float, tuple))]
        others = [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *called]
        return [own] + [part for other in others for part in _parts_of(other, seen)]
    if callable(value) and not isinstance(value, type) and hasattr(value, "__dict__"):
        state = [part for item in sorted(vars(value).items()) for part in item]
        return [_source(type(value)) or type(value).__qualname__] + [p for part in state for p in _parts_of(part, seen)]
    return [re.sub(r" at 0x[0-9a-f]+", "", repr(value))]


def _names_in(code: CodeType) -> set[str]:
    # A comprehension or an inner function is a code object among the constants.
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {*code.co_names, *(name for other in inner for name in _names_in(other))}


def _source(thing: Any) -> str | None:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return None


def check_scores(name: str, result: Any, prompts: Sequence[Any], completions: Sequence[Any]) -> list[float]:
    """What a reward function returned, as floats (None becomes NaN: "does not apply").

    Raises:
        RewardError: if it is not one finite number (or None) a completion, naming function, prompt and completion.
    """
    if result is None or isinstance(result, (dict, str, bytes)) or not hasattr(result, "__iter__"):
        raise RewardError(
            f"{name} returned {type(result).__name__}"
            + (f" {result!r}" if isinstance(result, (int, float, str)) else ""),
            rule="a reward function returns a list with one number (or None) a completion",
            remedy="return [score for completion in completions]"
            + ("; is a `return` missing?" if result is None else ""),
        )
    values = list(result)
    if len(values) != len(completions):
        raise RewardError(
            f"{name} returned {len(values)} scores for {len(completions)} completions",
            rule="a reward function returns one score a completion, in order",
            remedy="score every completion, and use None where the function does not apply",
        )
    scores = []
    for value, prompt, completion in zip(values, prompts, completions, strict=True):
        try:
            score = math.nan if value is None else float(value)
        except (TypeError, ValueError, OverflowError):
            score = math.inf
        if value is not None and not math.isfinite(score):
            raise RewardError(
                f"{name} returned {value!r} for {_quote(prompt, completion)}",
                rule="a score is a finite number, or None where the function does not apply",
                remedy="correct the function for this completion; a NaN or infinity would destroy the weights or be lost",
            )
        scores.append(score)
    return scores


def _attempt(name: str, func: Callable[..., Any], call: dict[str, Any]) -> Any:
    try:
        return func(**_own_copy(call))
    except Exception as error:
        raise _raised(name, func, call, error) from error


async def _attempt_async(name: str, func: Callable[..., Any], call: dict[str, Any]) -> Any:
    try:
        return await func(**_own_copy(call))
    except Exception as error:
        raise _raised(name, func, call, error) from error


def _own_copy(call: dict[str, Any]) -> dict[str, Any]:
    # TRL hands the same lists to every function and to its log: one that clears or edits them would harm the others.
    return {key: list(value) if isinstance(value, list) else value for key, value in call.items()}


def _raised(name: str, func: Callable[..., Any], call: dict[str, Any], error: Exception) -> RewardError:
    # A function that fails on a batch usually fails on one completion: find it, so that the message can name it.
    where = f"a batch of {len(call['completions'])} completions"
    if not inspect.iscoroutinefunction(func):
        for index in range(len(call["completions"])):
            single = {
                key: [value[index]] if isinstance(value, list) and len(value) == len(call["completions"]) else value
                for key, value in _own_copy(call).items()
            }
            try:
                func(**single)
            except Exception:
                where = _quote(call["prompts"][index], call["completions"][index])
                break
    return RewardError(
        f"{name} raised {type(error).__name__}: {error}{fault_line(error)} on {where}",
        rule="a reward function scores every completion; an exception never becomes 0",
        remedy="handle this completion in the function, or return None where it does not apply",
    )


def _quote(prompt: Any, completion: Any, limit: int = 200) -> str:
    question = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    text = completion_text(completion)
    return f"the completion {text[:limit]!r}{'…' if len(text) > limit else ''} to the prompt {question[:limit]!r}"


def _call(
    rows: Sequence[Row], completions: Sequence[str], completion_ids: Sequence[list[int]] | None
) -> dict[str, Any]:
    prompts = [row["prompt"] for row in rows]
    chat = [not isinstance(prompt, str) for prompt in prompts]
    shaped = [
        [{"role": "assistant", "content": text}] if is_chat else text
        for text, is_chat in zip(completions, chat, strict=True)
    ]
    columns = {key: [row.get(key) for row in rows] for key in rows[0] if key != "prompt"} if len(rows) else {}
    return {
        "prompts": prompts,
        "completions": shaped,
        "completion_ids": list(completion_ids or [list(text.encode("utf-8", "replace")) for text in completions]),
        **columns,
        # What a function may ask of these before there is a trainer: the step, and two calls that go nowhere.
        "trainer_state": SimpleNamespace(global_step=0, max_steps=1, epoch=0.0),
        "log_extra": lambda *_, **__: None,
        "log_metric": lambda *_, **__: None,
    }


def _run(coroutine: Any) -> Any:
    # A notebook's own event loop is running, and a running loop cannot be entered again: use a thread's.
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
