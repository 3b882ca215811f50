"""Calling reward functions: each where it can be stopped, on copies of its inputs, with its kinds
of error distinguished.

A user's function runs in a worker process with a deadline. The workbench's own run here: they are
linear in the text. So do those that cannot be pickled or must not be copied: coroutines (awaited),
objects with a state, and models.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import math
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

from workbench.base.door import Late, door, said
from workbench.base.errors import BudgetError, RewardError
from workbench.base.kinds import Function
from workbench.rewards.answers import completion_text
from workbench.rewards.as_data import OTHER_ORDER, plain_result
from workbench.rewards.beside import ProcessState, answer_of, run_alone
from workbench.rewards.calls import (
    Call,
    changed_input,
    copied_call,
    picklable,
    single,
    takes_environments,
    with_own_metrics,
)
from workbench.rewards.code import Trace, beneath, held_by, is_ours, judge_of
from workbench.rewards.compare import watched
from workbench.rewards.results import Scored, check_scores, quote
from workbench.rewards.worker import DeadlineError, RemoteError, Worker, WorkerDied, packed

HOLDS_MODEL, OWN = "here: it holds a model", "here: the workbench's own"
AWAITED, WORKER = "awaited", "worker"
_MODELS = ("torch", "transformers", "peft", "unsloth", "vllm")
_PARTS_OF_MODEL = ("parameters", "device", "model", "vocab")
_BATCH_SHARE = 0.4  # of the deadline: a batch that is not back by then is gone through one by one
_SHORTEST_S = 0.02  # for one completion
# after the deadline, in which the last completions of a batch still get the shortest time
_GRACE_S = 0.5
UNJUDGED = (
    "its formula was not judged in time, or math-verify failed on it (left unscored; training"
    " continues)"
)
# What is found in the value of a failure -> the remedy; the first counts.
_REMEDIES = {
    "^was not": (
        "if it hangs (a pattern, a number that explodes), fix it; if it is slow, raise deadline_s"
    ),
    "an('|no)t (pickle|get local object|get attribute)|BrokenProcessPool": (
        "processes import what they are handed by its name: define it at the top of a file; a"
        ' script that spawns some begins its work under `if __name__ == "__main__":`'
    ),
    OTHER_ORDER: "return a list, or the Series after sort_index()",
    "": "handle it in the function, return None where it does not apply, or let on_error be skip",
}
_DID: dict[type[Exception], str] = {
    DeadlineError: "was",
    WorkerDied: "ended its worker:",
    RemoteError: "raised",
}


class RewardFailure(Exception):
    """A function that gave no scores. `value` says why: "raised ValueError: ...", "was not back
    after 60 s".
    """

    def __init__(self, value: str, in_time: bool = True) -> None:
        super().__init__(value)
        self.value, self.in_time = value, in_time

    def error(self, name: str, where: str) -> RewardError:
        """The error to raise where it may not be skipped."""
        rule = "a reward function scores every completion in time; an exception never becomes 0"
        remedies = (own for words, own in _REMEDIES.items() if re.search(words, self.value))
        error = RewardError(f"{name} {self.value} {where}", rule=rule, remedy=next(remedies))
        error.__cause__ = self.__cause__
        return error


class RewardExecutor:
    """A suite's functions by name, and where each runs (`places`: "here: why", "worker" or
    "awaited").

    Args:
        deadline_s: for one function and one batch; None: none. A judge has its own.
        skip: leave completions on which a function fails without a score and continue; False: the
            first one is an error.
        keep_state: objects that keep state run here, within reach and without a deadline; else in
            the worker.
        modules: the task files, whose functions are sent as they are.
    """

    def __init__(
        self,
        functions: dict[str, Function],
        deadline_s: float | None,
        skip: bool,
        keep_state: bool,
        modules: Sequence[ModuleType] = (),
    ) -> None:
        self.functions, self.deadline_s, self.skip = functions, deadline_s, skip
        # of the latest call: formulas that were not judged in time
        self._unjudged: set[int] = set()
        self.places = {name: _place(own, keep_state, modules) for name, own in functions.items()}
        sent = {name: functions[name] for name, place in self.places.items() if place == WORKER}
        call = functools.partial(_call_one, sent)
        self._worker = Worker(call, modules=modules) if sent else None
        self._kept = ProcessState()

    def __getitem__(self, name: str) -> Function:
        return self.functions[name]

    def needs_run(self, name: str) -> bool:
        """Whether it is called in a run alone: it holds a model, asks a judge, or is handed
        environments.
        """
        own = self.functions[name]
        asks = judge_of(own) is not None
        return asks or self.places[name] == HOLDS_MODEL or takes_environments(own)

    def close(self) -> None:
        """End the worker process, if there is one."""
        if self._worker is not None:
            self._worker.close()

    def score(self, name: str, call: Call, quiet: bool = False) -> Scored:
        """One function's scores of a batch. If it fails, it is called again for each completion
        alone, to find the culprits.

        RewardError names function, prompt and completion.
        """
        if takes_environments(self.functions[name]) and "environments" not in call:
            return Scored([math.nan] * len(call["completions"]), {})  # outside of a rollout
        if self.places[name] == AWAITED:
            # A notebook's own event loop is running and cannot be entered again: use a thread's.
            with ThreadPoolExecutor(max_workers=1) as pool:
                return pool.submit(run_alone, self.ascore(name, call)).result()
        started = time.monotonic()
        # The whole deadline for one completion; of a batch's, most is kept for finding out which
        # completion it was.
        share = 1.0 if len(call["completions"]) == 1 else _BATCH_SHARE
        try:
            result = self.call(name, call, self.deadline_s and self.deadline_s * share, quiet)
        except RewardFailure as error:
            return self._one_by_one(name, call, error, started)
        scored = check_scores(name, result, call, self.skip)
        unjudged = {index for index in self._unjudged if math.isnan(scored.scores[index])}
        scored.errors.update(dict.fromkeys(unjudged, UNJUDGED))
        return scored

    async def ascore(self, name: str, call: Call) -> Scored:
        """`score` for a coroutine function. A judge's calls may cost: it is not called again, and
        the error names the batch.
        """
        prompts, completions = call["prompts"], call["completions"]
        own = copied_call(with_own_metrics(name, call))
        function = self.functions[name]
        # A judge has a deadline for each call; the batch's would cut its retries short.
        deadline_s = None if hasattr(beneath(function), "judge") else self.deadline_s
        try:
            with self._kept:
                result = await answer_of(function, own, deadline_s)
        except BudgetError:
            raise  # skipped, it would come back at every step
        except Exception as error:
            late = isinstance(error.__cause__, Late)
            failure = RewardFailure(str(error), in_time=False) if late else _raised(error)
        else:
            result = _unchanged(name, result, changed_input(call, own))
            return check_scores(name, result, call, self.skip)
        count = len(completions)
        if self.skip:
            return Scored([math.nan] * count, dict.fromkeys(range(count), failure.value))
        first = quote(prompts[0], completions[0])
        raise failure.error(name, f"on a batch of {count} completions; the first was {first}")

    def call(
        self,
        name: str,
        call: Call,
        deadline_s: float | None,
        quiet: bool = False,
        follow: bool = False,
    ) -> Any:
        """What a function (not a coroutine) returns, tensors and generators as lists; or with
        `follow` its trace.

        RewardFailure if it raised or was not back in time, RewardError if it changed its inputs.
        """
        self._unjudged, call = set(), with_own_metrics(name, call)
        if self._worker is not None and self.places[name] == WORKER:
            try:
                result, changed, logged = self._worker(
                    name, picklable(call), follow, deadline_s=deadline_s, quiet=quiet
                )
            except tuple(_DID) as error:
                in_time = not isinstance(error, DeadlineError)
                raise RewardFailure(f"{_DID[type(error)]} {error}", in_time) from None
            for logger, args, kwargs in logged:
                try:
                    call[logger](*args, **kwargs)
                except Exception as error:  # a column that is no list, too
                    raise _raised(error) from error
            return _unchanged(name, result, changed)
        own = self.places[name] == OWN
        silence = contextlib.redirect_stdout(io.StringIO()) if quiet else contextlib.nullcontext()
        with silence, watched(deadline_s) as late:
            try:
                # Those of the workbench change nothing, and copies of a million completions take
                # their time.
                with door(contextlib.nullcontext() if own else self._kept):
                    function = self.functions[name]
                    result, changed = _run(function, call, follow, copied=not own)
            except Exception as error:
                raise _raised(error) from error
        self._unjudged = late if own else set()
        return _unchanged(name, result, changed)

    def trace(self, name: str, call: Call) -> Trace | None:
        """Which parts of the function a call reaches; None if it cannot be followed (a coroutine, a
        model) or fails.
        """
        if self.places[name] == AWAITED or self.needs_run(name):
            return None
        try:
            return Trace(*self.call(name, call, self.deadline_s, quiet=True, follow=True))
        except RewardFailure:
            return None

    def _one_by_one(self, name: str, call: Call, whole: RewardFailure, started: float) -> Scored:
        """Scores of the completions one by one, after their batch failed as a `whole`."""
        count = len(call["completions"])
        alone = self._alone(name, call, started) if count > 1 else [whole]
        failures = {at: own for at, own in enumerate(alone) if isinstance(own, RewardFailure)}
        if not failures and whole.in_time:
            raise whole.error(name, f"on a batch of {count} completions")
        # Without failures it was late as a batch, and no completion is to blame.
        if failures and not self.skip:
            raise self._blame(name, call, whole, failures)
        scored = Scored([], {})
        for index, own in enumerate(alone):
            if index in failures:
                one = Scored([math.nan], {0: failures[index].value})
            else:
                one = check_scores(name, own, single(call, index), skip=True)
            scored.scores.extend(one.scores)
            if one.errors:
                scored.errors[index] = one.errors[0]
        return scored

    def _blame(
        self, name: str, call: Call, whole: RewardFailure, failures: dict[int, RewardFailure]
    ) -> RewardError:
        # one that raised goes before one that was late
        index = min(failures, key=lambda index: (not failures[index].in_time, index))
        where = quote(call["prompts"][index], call["completions"][index])
        if whole.in_time or failures[index].in_time:
            return failures[index].error(name, f"on {where}")
        if (count := len(call["completions"])) > 1:
            late = f"called one by one, {len(failures)} timed out; the first was"
            where = f"{count} completions; {late} {where}"
        value = f"was not back after {self.deadline_s:g} s"
        return RewardFailure(value, in_time=False).error(name, f"for {where}")

    def _alone(self, name: str, call: Call, started: float) -> list[object]:
        """What the function returned for each completion alone, or its `RewardFailure`."""
        found: list[object] = []
        count = len(call["completions"])
        until = math.inf if self.deadline_s is None else started + self.deadline_s
        for index in range(count):
            left_s = until - time.monotonic()
            if left_s < -_GRACE_S:
                found.append(RewardFailure("was not called: the batch's time was over", False))
                continue
            # Each may take twice its share of the time that is left, so that half of them may hang.
            share_s = max(_SHORTEST_S, 2 * left_s / (count - index))
            try:
                own = None if self.deadline_s is None else share_s
                found.append(self.call(name, single(call, index), own, quiet=True))
            except RewardFailure as error:
                if not error.in_time:
                    error = RewardFailure(f"{error.value}, its share of the batch's time", False)
                found.append(error)
                if error.in_time and not self.skip:
                    break
        return found


def _place(function: Function, keep_state: bool, modules: Sequence[ModuleType]) -> str:
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    ):
        return AWAITED
    own = beneath(function)
    if getattr(own, "runs_in_process", False):
        return HOLDS_MODEL
    if takes_environments(function):
        return "here: it is handed the environments"
    if is_ours(own) and not getattr(own, "runs_in_worker", False):
        return OWN
    if keep_state and not inspect.isfunction(own) and not inspect.isbuiltin(own):
        return "here: an object that keeps state, which stays where you can reach it"
    # A model must not be copied to another process; one on a GPU cannot even be.
    for value in held_by(own):
        of_library = type(value).__module__.partition(".")[0] in _MODELS
        if of_library and any(hasattr(value, part) for part in _PARTS_OF_MODEL):
            return f"here: it holds a {type(value).__name__}"
    try:
        packed(function, modules)
    except TypeError as error:
        return f"here: it cannot be pickled for another process ({error})"
    return WORKER


def _call_one(functions: dict[str, Function], name: str, call: Call, follow: bool) -> tuple:
    # In the worker. What the function logs is collected, and logged where the trainer is.
    logged: list[tuple[str, Sequence[object], dict]] = []
    for key in call.keys() & {"log_extra", "log_metric"}:
        call[key] = lambda *args, _key=key, **kwargs: logged.append(
            (_key, [*map(plain_result, args)], kwargs)
        )
    return *_run(functions[name], call, follow), logged


def _run(function: Function, call: Call, follow: bool, copied: bool = True) -> tuple[Any, str]:
    """(What the function returned, or with `follow` its trace; the input that it changed, "" if it
    changed none).
    """
    own = copied_call(call) if copied else call
    if follow:
        from workbench.rewards.tracing import traced

        return tuple(traced(function, map(completion_text, call["completions"]), **own)), ""
    return plain_result(function(**own)), changed_input(call, own) if copied else ""


def _raised(error: Exception) -> RewardFailure:
    failure = RewardFailure(f"raised {said(error)}")
    failure.__cause__ = error
    return failure


def _unchanged(name: str, result: object, changed: str) -> object:
    if changed:
        raise RewardError(
            f"{name} changed its input {changed!r}",
            rule="every function and the trainer's log share the same lists",
            remedy=f"work on a copy, messages and all: {changed} = copy.deepcopy({changed})",
        )
    return result
