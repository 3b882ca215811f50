"""The suite: a task's reward functions as the trainer calls them, one by one, checked before any
gradient sees their scores.

When the last function has returned, it passes on the batch with its totals and advantages.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from workbench.base.door import DEADLINE_S
from workbench.base.errors import RecipeError, RewardError, nearest
from workbench.base.kinds import Fields, Function
from workbench.base.shipped import loader
from workbench.rewards.answers import completion_text
from workbench.rewards.calls import (
    FROM_TRL,
    Call,
    before_training,
    call_of,
    check_signature,
    missing_columns,
    single,
    takes_environments,
)
from workbench.rewards.chat_or_text import (
    InputFormat,
    convert_call,
    detect_input_format,
    positional_reward,
    responses_parameter,
)
from workbench.rewards.code import Trace
from workbench.rewards.execution import AWAITED, RewardExecutor
from workbench.rewards.groups import batch_advantages, batch_of
from workbench.rewards.hashing import reward_hash
from workbench.rewards.models import as_function
from workbench.rewards.results import PartOfBatch, Scored, quote, whole_batch
from workbench.rewards.right import right_under
from workbench.run.batch import LARGEST_WEIGHT, ScoredBatch
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
            raise RecipeError(
                f"on_error = {on_error!r}",
                rule="a reward error stops the run or is skipped",
                remedy="stop or skip",
            )
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
        self._pending = PartOfBatch({}, {}, {})  # of the functions of a batch that have answered
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
            self._pending = PartOfBatch({}, {}, {})
            if self.gather is not None:
                lists = {key: value for key, value in call.items() if isinstance(value, list)}
                part = whole_batch(self.gather(part._replace(columns=lists)))
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
            one = single(call, 0) | before_training()
            reads = self._formats[name] = detect_input_format(self.functions, name, one)
            given = "text" if isinstance(call["prompts"][0], str) else "chat"
            if reads.note and reads.format != given:
                handed = "" if reads.format == "either" else "; it gets what it reads"
                self.notes.append(f"{name}: {reads.note}{handed}")
        return self._formats.get(name) or InputFormat()

    def input_formats(self, rows: Sequence[Row]) -> dict[str, InputFormat]:
        """How each function reads messages and plain text, tried on the first row."""
        call = call_of(rows[:1], [""], None)
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

    def score_call(self, call: Call) -> ScoredBatch:
        """What the trainer would make of TRL's call."""
        return self._join(call, {name: self._score(name, call) for name in self.names}, {})

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
        call = call_of(rows, completions, completion_ids) | (given or {})
        names = self.names if names is None else names
        return {name: self._score(name, call, quiet) for name in names}

    def trace(self, name: str, rows: Sequence[Row], completions: Sequence[str]) -> Trace | None:
        """Which parts of a function these completions reach, and what it matched in them; None if
        that cannot be said.
        """
        return self.functions.trace(name, self._converted(name, call_of(rows, completions, None)))

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
            if not (known.needs_run(name) or missing_columns(known[name], rows[0]))
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
            # what else a rollout_func returns is handed over, too
            if not (self.task.rollout_func and missing_columns(self.functions[name], rows[0])):
                check_signature(name, self.functions[name], rows)


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
