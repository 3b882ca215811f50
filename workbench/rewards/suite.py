"""The suite: a task's reward functions as the trainer calls them, one by one, checked before any
gradient sees their scores.

When the last function has returned, it passes on the batch with its totals and advantages.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import inspect
import json
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from workbench.door import DEADLINE_S
from workbench.errors import RecipeError, RewardError, TaskError, nearest
from workbench.kinds import Fields, Function
from workbench.rewards.answers import completion_text
from workbench.rewards.chat_or_text import (
    InputFormat,
    convert_call,
    detect_input_format,
    positional_reward,
    responses_parameter,
)
from workbench.rewards.code import Trace
from workbench.rewards.execution import (
    AWAITED,
    FROM_TRL,
    Call,
    RewardExecutor,
    Scored,
    quote,
    single,
    takes_environments,
)
from workbench.rewards.groups import batch_advantages, batch_of
from workbench.rewards.hashing import reward_hash
from workbench.rewards.models import as_function
from workbench.rewards.right import right_under
from workbench.run.batch import LARGEST_WEIGHT, ScoredBatch
from workbench.shipped import loader
from workbench.task import Row, Task

# scores up to here are not tried in 32 bits: what is lost there is smaller than what a group
# differs by
EXACT = 1e6


class RewardSuite:
    """A task's functions, ready for the trainer (`funcs`, `weights`) or for scoring by hand
    (`score`).

    A model among them, or its name, scores as in TRL; a function written as `(prompts, responses)`
    is adapted.

    Args:
        num_generations: G, the size of a group.
        weights: by function name, where they differ from the task's.
        aggregation: TRL's `multi_objective_aggregation`.
        on_batch: called with each complete `ScoredBatch`.
        deadline_s, keep_state: as for `RewardExecutor`.
        on_error: what happens if a function raises or is late: "stop" raises an error that names
            the completion; "skip" leaves that completion without this function's score, and counts
            it.

    Raises:
        RecipeError: if `weights` names a function that the task does not have, all weights are 0,
            or `on_error` is unknown.
    """

    def __init__(
        self,
        task: Task,
        num_generations: int,
        weights: dict[str, float] | None = None,
        scale_rewards: str | bool = "group",
        aggregation: str = "sum_then_normalize",
        on_batch: Callable[[ScoredBatch], None] | None = None,
        deadline_s: float | None = DEADLINE_S,
        on_error: str = "stop",
        keep_state: bool = True,
    ) -> None:
        self.task = task
        self.names = task.function_names
        self.weights = _weights(task, weights or {})
        if on_error not in ("stop", "skip"):
            rule = "a reward error stops the run or is skipped"
            raise RecipeError(f"on_error = {on_error!r}", rule=rule, remedy="stop or skip")
        self.num_generations = num_generations
        self.scale_rewards = scale_rewards
        self.aggregation = aggregation
        self.on_batch = on_batch
        self.deadline_s = deadline_s
        self.on_error = on_error
        self.hashes = dict(zip(self.names, map(reward_hash, task.reward_funcs)))
        self.notes: list[str] = []  # what was adapted, in words
        columns = list(task.rows[0]) if len(task.rows) else []
        functions = dict(zip(self.names, map(as_function, task.reward_funcs)))
        for name, func in functions.items():
            if responses := responses_parameter(func, columns):
                note = f"{name} is written as (prompts, {responses}): it gets both as plain text"
                self.notes.append(note)
                functions[name] = positional_reward(func)
        self.functions = RewardExecutor(
            functions, deadline_s, on_error == "skip", keep_state, loader().modules()
        )
        # Column -> its values by row, where the trainer's dataset holds the row's number instead:
        # what Arrow would change.
        self.aside: dict[str, list[object]] = {}
        self._formats: dict[str, InputFormat] = {}
        self._pending = _Part({}, {}, {})  # of the functions of a batch that have answered
        # Where several processes score one batch: it is handed each one's own part, or error, and
        # returns those of all in order.
        self.gather: Callable[[Any], list[Any]] | None = None

    @property
    def hash(self) -> str:
        """One hash over all functions and weights, 12 hex digits: the rewards that a rollout was
        scored under.
        """
        text = "".join(
            f"{name}={self.hashes[name]}*{weight};"
            for name, weight in zip(self.names, self.weights)
        )
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def funcs(self) -> list[Function]:
        """The functions for `GRPOTrainer(reward_funcs=...)`, under their own names."""
        return [self._wrap(name) for name in self.names]

    @property
    def given_by_environments(self) -> list[str]:
        """Names of the functions that read a rollout's environment: a text alone they give no
        score.
        """
        return [name for name in self.names if takes_environments(self.functions[name])]

    def close(self) -> None:
        """End the worker process, if there is one. Scoring again starts another."""
        self.functions.close()

    def _wrap(self, name: str) -> Function:
        async def awaited(**call: object) -> list[float]:
            started, call = time.perf_counter(), self._whole_values(call)
            with self._failing_together():
                scored = await self.functions.ascore(name, call)
            return self._take(name, scored, call, started)

        def called(**call: object) -> list[float]:
            started, call = time.perf_counter(), self._whole_values(call)
            with self._failing_together():
                scored = self._score(name, call)
            return self._take(name, scored, call, started)

        scored = awaited if self.functions.places[name] == AWAITED else called
        scored.__name__, scored.__doc__ = name, self.functions[name].__doc__
        return scored

    def _whole_values(self, call: Call) -> Call:
        # A copy for each completion, as from a dataset: a function may change what it is handed.
        return call | {
            name: [copy.deepcopy(values[row]) for row in call[name]]
            for name, values in self.aside.items()
            if name in call
        }

    def _take(self, name: str, scored: Scored, call: Call, started: float) -> list[float]:
        part = self._pending
        part.scored[name], part.seconds[name] = scored, time.perf_counter() - started
        if len(part.scored) == len(self.names):
            self._pending = _Part({}, {}, {})
            if self.gather is not None:
                lists = {key: value for key, value in call.items() if isinstance(value, list)}
                part = _whole(self.gather(part._replace(columns=lists)))
            batch = self._join(call | part.columns, part.scored, part.seconds)
            if self.on_batch is not None:
                self.on_batch(batch)
        return scored.scores

    @contextlib.contextmanager
    def _failing_together(self) -> Generator[None, None, None]:
        # The others wait for this process's part of the batch, once: this makes all ranks fail
        # together.
        try:
            yield
        except Exception as error:
            if (gather := self.gather) is not None:
                self.gather = None
                gather(error)
            raise

    def _score(self, name: str, call: Call, quiet: bool = False) -> Scored:
        return self.functions.score(name, self._converted(name, call), quiet)

    def _converted(self, name: str, call: Call) -> Call:
        wanted = self._input_format(name, call).format
        given = "text" if isinstance(call["prompts"][0], str) else "chat"
        return call if wanted in ("either", given) else convert_call(call, to_chat=wanted == "chat")

    def _input_format(self, name: str, call: Call) -> InputFormat:
        if name not in self._formats and call["completions"]:
            one = single(call, 0) | _before_training()
            reads = self._formats[name] = detect_input_format(self.functions, name, one)
            given = "text" if isinstance(call["prompts"][0], str) else "chat"
            if reads.note and reads.format != given:
                handed = "" if reads.format == "either" else "; it gets what it reads"
                self.notes.append(f"{name}: {reads.note}{handed}")
        return self._formats.get(name) or InputFormat()

    def input_formats(self, rows: Sequence[Row]) -> dict[str, InputFormat]:
        """How each function reads messages and plain text, tried on the first row."""
        call = _call(rows[:1], [""], None)
        return {name: self._input_format(name, call) for name in self.names}

    def _join(
        self, call: Call, scored: dict[str, Scored], seconds: dict[str, float]
    ) -> ScoredBatch:
        state = call.get("trainer_state")
        ids = call.get("completion_ids") or [[] for _ in call["completions"]]
        scores = np.array([scored[name].scores for name in self.names], dtype=np.float64).T
        batch = self.batch(
            scores,
            call["completions"],
            ids,
            step=state.global_step + 1 if state is not None else 0,
            prompts=list(call["prompts"]),
            columns={key: value for key, value in call.items() if key not in FROM_TRL},
            format_by=self.task.format_by,
            seconds=seconds,
            errors={name: own.errors for name, own in scored.items() if own.errors},
        )
        self._check_in_32_bits(batch)
        return batch

    def batch(
        self,
        scores: np.ndarray,
        completions: Sequence[object],
        completion_ids: Sequence[Sequence[int]],
        **more: object,
    ) -> ScoredBatch:
        """The batch of these scores, [B, F], under these settings; `more`: of `ScoredBatch`."""
        return batch_of(
            self.names,
            self.weights,
            scores,
            list(map(completion_text, completions)),
            right_under(self, scores, self.num_generations),
            self.num_generations,
            self.scale_rewards,
            self.aggregation,
            reward_hash=self.hash,
            completion_ids=list(map(list, completion_ids)),
            lengths=np.array(list(map(len, completion_ids))),
            **more,
        )

    def _check_in_32_bits(self, batch: ScoredBatch) -> None:
        size = np.nan_to_num(np.abs(batch.scores)) * np.maximum(np.abs(self.weights), 1.0)  # [B, F]
        if size.max() <= EXACT:
            return
        settings = batch.num_generations, self.scale_rewards, self.aggregation
        with np.errstate(all="ignore"):
            in_32_bits = batch_advantages(batch.scores.astype(np.float32), self.weights, *settings)
        if np.allclose(in_32_bits.advantages, batch.advantages, rtol=0.01, atol=0.01):
            return
        index, function = np.unravel_index(size.argmax(), size.shape)
        where = quote(batch.prompts[index], batch.completions[index])
        score, weight = batch.scores[index, function], self.weights[function]
        raise RewardError(
            f"{self.names[function]} scored {score:.10g}, with the weight {weight:g}, {where}",
            rule="TRL computes advantages in 32 bits, some 7 digits; there these scores give wrong"
            " advantages",
            remedy="bring the scores closer to 0: divide them, or subtract what they have in"
            " common",
        )

    def score(
        self,
        rows: Sequence[Row],
        completions: Sequence[str],
        completion_ids: Sequence[list[int]] | None = None,
        given: Fields | None = None,
    ) -> np.ndarray:
        """The scores that the trainer would see: [B, F], NaN where a function did not apply;
        without ids, bytes are tokens. `given`: what else TRL's call has.
        """
        scored = self.score_each(rows, completions, completion_ids, given=given).values()
        return np.column_stack([np.array(each.scores, dtype=float) for each in scored])

    def score_each(
        self,
        rows: Sequence[Row],
        completions: Sequence[str],
        completion_ids: Sequence[list[int]] | None = None,
        names: Sequence[str] | None = None,
        quiet: bool = False,
        given: Fields | None = None,
    ) -> dict[str, Scored]:
        """`score` with each function's errors: function (of `names`; None: all) -> `Scored`."""
        call = _call(rows, completions, completion_ids) | (given or {})
        names = self.names if names is None else names
        return {name: self._score(name, call, quiet) for name in names}

    def trace(self, name: str, rows: Sequence[Row], completions: Sequence[str]) -> Trace | None:
        """Which parts of a function these completions reach, and what it matched in them; None if
        that cannot be said.
        """
        return self.functions.trace(name, self._converted(name, _call(rows, completions, None)))

    def rehearse(self, rows: Sequence[Row]) -> None:
        """Call every function once, on silence, words and an answer, before anything is loaded, so
        that failures come early.

        TaskError if a function needs a column that the rows lack; RewardError if it raises or
        returns something other than one finite number per completion, or if none returns a number
        at all.
        """
        self.check_signatures(rows)
        answers = [str(row.get(self.task.answer_column, "")) for row in rows[:2]]
        block = "<reasoning>\nthe working\n</reasoning>\n<answer>\n{}\n</answer>"
        words = "The quick brown fox jumps over the lazy dog, 3 times."
        texts = [text for answer in answers for text in ("", answer, block.format(answer), words)]
        # A model is not asked: loading it here would bring in libraries that the policy has to
        # bring in first.
        known = self.functions
        names = [
            name
            for name in self.names
            if not (known.needs_run(name) or _lacks(known[name], rows[0]))
        ]
        scored = self.score_each([row for row in rows[:2] for _ in range(4)], texts, names=names)
        if names == self.names and np.isnan([each.scores for each in scored.values()]).all():
            raise RewardError(
                f"{' and '.join(names)} returned None for {len(texts)} completions of"
                f" {len(answers)} prompts",
                rule="None means that a function does not apply; a completion to which none applies"
                " gets no reward",
                remedy="return a number where the function applies",
            )

    def check_signatures(self, rows: Sequence[Row], names: Sequence[str] | None = None) -> None:
        """Check that every function (or these) accepts TRL's keyword call and finds its columns in
        every row.
        """
        for name in self.names if names is None else names:
            function = self.functions[name]
            if self.task.rollout_func and _lacks(function, rows[0]):
                continue  # what else the rollout_func returns is handed over, too
            for value, rule, remedy in _misfits(name, function, rows):
                raise TaskError(f"{name} {value}", rule=rule, remedy=remedy)


def _needed(function: Function) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    own = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return [p.name for p in own if p.default is p.empty]


def _keywords(row: Row) -> frozenset[str]:
    return (FROM_TRL | set(row)) - {"prompt"}


def _lacks(function: Function, row: Row) -> list[str]:
    return [each for each in _needed(function) if each not in _keywords(row)]


def _misfits(name: str, function: Function, rows: Sequence[Row]) -> Iterator[tuple[str, str, str]]:
    parameters = inspect.signature(function).parameters.values()
    needed = _needed(function)
    if missing := next(iter(_lacks(function, rows[0])), None):
        columns = ", ".join(map(str, rows[0]))
        rule = (
            "a reward function gets `prompts`, `completions` and the dataset's columns, by keyword"
        )
        remedy = (
            f"add a column {missing!r} to the rows, or rename the parameter to one that is there"
        )
        if f"{missing}s" in FROM_TRL:
            remedy = (
                f"rename the parameter to {missing}s: it is a list with one item per completion"
            )
        yield f"needs {missing!r}; the rows have the columns {columns}", rule, remedy
    for column in sorted(set(needed) - FROM_TRL):
        if empty := [number for number, row in enumerate(rows) if row.get(column) is None]:
            value = (
                f"needs {column!r}, and {len(empty)} rows have none (the first is row {empty[0]})"
            )
            remedy = "fill it in or leave those rows out; wb.check lists them"
            yield value, "it reads that column of every row", remedy
    for column, kind in getattr(function, "json_columns", {}).items():
        for number, row in enumerate(rows):
            with contextlib.suppress(TypeError, ValueError, RecursionError):
                if isinstance(json.loads(row[column]), kind):
                    continue
            example = json.dumps({"label": str(row[column])[:40]}, ensure_ascii=False)
            value = f"needs JSON text in {column!r}, and row {number} has {row[column]!r:.80}"
            remedy = (
                f"write an object there, such as {example}, or compare the word in your own"
                " function"
            )
            yield value, "it reads that column of every row as JSON", remedy
    by_keyword = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    extra = sorted(_keywords(rows[0]) - by_keyword)
    if extra and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        rule = "TRL passes every column, and a few objects besides, by keyword"
        remedy = f"end its signature with **kwargs: def {name}(completions, **kwargs)"
        yield f"does not accept {extra[0]!r}", rule, remedy


def score(
    task: Task | str | Path | Function | Sequence[Function],
    row: Row | str | Sequence[Row],
    completions: Sequence[Any],
    weights: dict[str, float] | None = None,
    scale_rewards: str | bool = "group",
) -> ScoredBatch:
    """Score completions by hand, as training would: each function's scores, the totals and the
    advantages.

    Args:
        task: a task, its name or file; or reward functions alone, one or several (models, and names
            of models, in a list).
        row: the prompt's row (`prompt` and the columns that the functions read), or just the
            prompt, as a text or as chat messages; or several of either.
        completions: of the one prompt, which are one group; with several rows a list for each, all
            of one length. Texts, or what `sample` returned, whose tokens, turns and environments
            the functions then see.
        weights: by function name, where they differ from the task's.
        scale_rewards: what an advantage is divided by: "group", "batch" or "none".

    Raises:
        TaskError: if a function lacks a column, or the task cannot be loaded.
        RewardError: if a function fails: the error names it and the completion.

    >>> wb.score(wb.rewards.correctness_reward, {"prompt": "6 * 7?", "answer": "42"}, ["<answer>42</answer>", "42"]).totals
    array([2., 0.])
    """  # noqa: E501
    if isinstance(completions, str):
        rule = "completions are a list: the group of one prompt"
        raise RewardError(f"completions = {completions!r}", rule=rule, remedy="put it in a list")
    # One prompt as chat messages stands where several rows could stand as well.
    chat = len(row) and all(
        isinstance(each, dict) and "role" in each and "prompt" not in each for each in row
    )
    one = chat or isinstance(row, (str, dict))
    groups = [completions] if one else [list(group) for group in completions]
    rows = [
        each if isinstance(each, dict) else {"prompt": each} for each in ([row] if one else row)
    ]
    sizes = sorted({len(group) for group in groups})
    if len(rows) != len(groups) or len(sizes) != 1 or not sizes[0]:
        lengths = " or ".join(map(str, sizes)) or "none"
        raise RewardError(
            f"{len(rows)} rows with completions for {len(groups)}, {lengths} each",
            rule="each row has its list of completions, all equally long and none empty",
            remedy="give as many completions for each prompt",
        )
    if not isinstance(task, (str, Path, Task)):
        functions = list(task) if isinstance(task, Sequence) else [task]
        task = Task("by hand", rows=rows, reward_funcs=functions)
    task = loader().load_task(task)
    suite = RewardSuite(task, sizes[0], weights, scale_rewards)
    suite.check_signatures(rows)
    flat = [each for group in groups for each in group]
    texts = [getattr(each, "text", each) for each in flat]
    ids = [each.ids for each in flat] if all(hasattr(each, "ids") for each in flat) else None
    call = _call([each for each in rows for _ in range(sizes[0])], texts, ids)
    played = all(hasattr(each, "messages") for each in flat)
    call |= call_of_rollouts(flat) if played else {}
    with contextlib.closing(suite):
        scored = {name: suite._score(name, call) for name in suite.names}
    batch = suite._join(call, scored, {})
    if played:
        lengths = np.array([each.length_tokens for each in flat])
        turns = [each.turns for each in flat]
        batch = dataclasses.replace(batch, completions=texts, lengths=lengths, turns=turns)
    return batch


def call_of_rollouts(rollouts: Sequence[Any]) -> Fields:
    """What TRL's call has of rollouts that were played: messages, and environments."""
    return {
        "completions": [each.messages for each in rollouts],
        "environments": [each.environment for each in rollouts],
    }


def _call(
    rows: Sequence[Row], completions: Sequence[str], completion_ids: Sequence[list[int]] | None
) -> Fields:
    prompts = [row["prompt"] for row in rows]
    written = [
        text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        for prompt, text in zip(prompts, completions, strict=True)
    ]
    keys = [key for key in (rows[0] if len(rows) else ()) if key != "prompt"]
    columns = {key: [row.get(key) for row in rows] for key in keys}
    ids = list(completion_ids or [list(text.encode("utf-8", "replace")) for text in completions])
    given = {"prompts": prompts, "completions": written, "completion_ids": ids}
    return given | columns | _before_training()


def _weights(task: Task, given: dict[str, float]) -> list[float]:
    names = task.function_names
    weights = [float(given.get(name, own)) for name, own in zip(names, task.weights)]
    if unknown := sorted(given.keys() - set(names)):
        value, rule = f"{unknown[0]!r}", "a weight names one of the task's functions"
        remedy = nearest(unknown[0], names, f"choose from {', '.join(names)}")
    # not NaN, which TRL takes for a weight of 0
    elif large := [name for name, own in zip(names, weights) if not abs(own) <= LARGEST_WEIGHT]:
        value = f"{large[0]} = {weights[names.index(large[0])]}"
        rule = f"a weight is a number of at most {LARGEST_WEIGHT:,.0f} in size"
        remedy = "give a number; 0 turns a function off"
    elif any(weights):
        return weights
    else:
        value, rule = f"all {len(names)} are 0", "the reward is the weighted sum of the functions"
        remedy = "give a function a weight"
    raise RecipeError(f"reward_weights: {value}", rule=rule, remedy=remedy)


class _Part(NamedTuple):
    """What one process has of a batch."""

    columns: Call  # lists with one value per completion
    scored: dict[str, Scored]  # by function
    seconds: dict[str, float]  # by function


def _whole(parts: Sequence[_Part]) -> _Part:
    # One batch of the equally large parts of all processes: a group may lie across two. A step
    # waits for the slowest.
    size = len(parts[0].columns["completions"])
    columns = {
        key: [value for part in parts for value in part.columns[key]] for key in parts[0].columns
    }
    whole = _Part(columns, {}, {})
    for name in parts[0].scored:
        own = [part.scored[name] for part in parts]
        errors = {
            number * size + index: why
            for number, each in enumerate(own)
            for index, why in each.errors.items()
        }
        whole.scored[name] = Scored([score for each in own for score in each.scores], errors)
        whole.seconds[name] = max(part.seconds[name] for part in parts)
    return whole


def _before_training() -> Call:
    # What a function may ask of these before there is a trainer: the step, and two calls that go
    # nowhere.
    state = SimpleNamespace(global_step=0, max_steps=1, epoch=0.0)
    return {"trainer_state": state, **dict.fromkeys(("log_extra", "log_metric"), _ignore)}


def _ignore(*_: object, **__: object) -> None:
    pass
