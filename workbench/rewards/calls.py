"""Calling reward functions: each where it can be stopped, with copies of its inputs, and with its errors told apart.

A function that anyone wrote runs in a worker process with a deadline. The workbench's own run here: they are linear in
the text, and ask a worker of their own where mathematics could hang. So do those that cannot travel or must not be
copied: coroutines (which are awaited with the deadline), objects with a state of their own, and models.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import io
import math
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from workbench.errors import RewardError, fault_line
from workbench.rewards.answers import completion_text
from workbench.rewards.compare import watched
from workbench.rewards.tracing import Trace, code_objects, traced
from workbench.rewards.worker import DeadlineError, RemoteError, Worker, WorkerDied, packed

Call = dict[str, Any]
DEADLINE_S = 60.0
# TRL computes advantages in 32 bits, where the square of 1.8e19 is infinite; a batch adds up the squares of thousands.
LARGEST = 1e15
TOO_LARGE = f"a score is at most {LARGEST:g} in size: TRL computes advantages in 32 bits"
HOLDS_MODEL, OWN = "here: it holds a model", "here: the workbench's own"
# What TRL passes beside the dataset's columns.
FROM_TRL = frozenset({"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"})
_OF_TRAINER = ("trainer_state", "log_extra", "log_metric")
_MODELS = ("torch", "transformers", "peft", "unsloth", "vllm")
_NO_LIST = (dict, str, bytes, set, frozenset)  # what can be gone through, and is not one score a completion in order
_BATCH_SHARE = 0.4  # of the deadline: a batch that is not back by then is gone through one by one
_SHORTEST_SLICE_S = 0.02
_SLICE_SHARE = 0.1  # of the time for all, for one completion; half as much after each that was late
_FIRST_SHARE = 0.5  # of what is left, for asking each completion once; then those that were late are asked again
UNJUDGED = "its formula was not judged in time, or math-verify failed on it (not a 0; the run goes on)"
_BLOCKS = "it blocks instead of awaiting"
_GRACE_S = 0.5  # after the deadline, in which the last completions of a batch still get the shortest slice


class Failed(Exception):
    """A function that gave no scores. `text` says what it did: "raised ValueError: ...", "was not back after 60 s"."""

    def __init__(self, text: str, in_time: bool = True) -> None:
        super().__init__(text)
        self.text, self.in_time = text, in_time


class _Answer(NamedTuple):
    result: Any
    changed: str  # the input that the function changed; empty: none
    logged: list[tuple[str, tuple, dict]]  # its calls of log_extra and log_metric


class Functions:
    """A suite's functions by name, and where each runs (`places`: "here: why", "worker" or "awaited").

    Args:
        keep_state: objects with a state of their own run here, where it can be reached, and so without a deadline; False:
            they run in the worker if they can.
    """

    def __init__(self, functions: dict[str, Callable[..., Any]], keep_state: bool = True) -> None:
        self._functions = functions
        self.unjudged: dict[str, set[int]] = {}  # of the latest call, by name: formulas that were not judged in time
        self.places = {name: _place(function, keep_state) for name, function in functions.items()}
        travelling = {name: function for name, function in functions.items() if self.places[name] == "worker"}
        self._worker = Worker(functools.partial(_call_one, travelling)) if travelling else None

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return self._functions[name]

    def is_async(self, name: str) -> bool:
        """Whether the function is a coroutine function."""
        return self.places[name] == "awaited"

    def call(self, name: str, call: Call, deadline_s: float | None, quiet: bool = False) -> Any:
        """What the function returns, tensors and generators as lists.

        Raises:
            Failed: if it raised, or was not back in time.
            RewardError: if it changed its inputs.
        """
        if self.is_async(name):
            return run_coroutine(self.acall(name, call, deadline_s))
        if self.places[name] != "worker":
            with contextlib.redirect_stdout(io.StringIO()) if quiet else contextlib.nullcontext():
                # Those of the workbench change nothing, and copies of a million completions take their time.
                own = self.places[name] == OWN
                with watched(deadline_s) as late:
                    answer = _here(self._functions[name], call, copied=not own)
                if own:
                    self.unjudged[name] = late
        else:
            try:
                answer = self._worker(name, _travelling(call), deadline_s=deadline_s, quiet=quiet)
            except DeadlineError as error:
                raise Failed(f"was {error}", in_time=False) from None
            except WorkerDied as error:
                raise Failed(f"ended its worker: {error}") from None
            except RemoteError as error:
                raise Failed(f"raised {error}") from None
            for logger, args, kwargs in answer.logged:
                call[logger](*args, **kwargs)
        return _result(name, answer)

    def trace(self, name: str, call: Call, deadline_s: float | None) -> Trace | None:
        """Which parts of the function a call reaches; None if it cannot be followed (a coroutine, a model) or fails."""
        if self.is_async(name) or self.places[name] == HOLDS_MODEL:
            return None
        try:
            if self.places[name] == "worker":
                return self._worker(name, _travelling(call), True, deadline_s=deadline_s, quiet=True).result
            with contextlib.redirect_stdout(io.StringIO()):
                return _followed(self._functions[name], _copies(call))
        except (Failed, DeadlineError, RemoteError, WorkerDied):
            return None

    async def acall(self, name: str, call: Call, deadline_s: float | None) -> Any:
        """`call` for a coroutine function, which is cancelled at its deadline."""
        own = _copies(call)
        limit, started = asyncio.timeout(deadline_s), time.monotonic()
        try:
            async with limit:
                result = plain_result(await self._functions[name](**own))
            if deadline_s is not None and (took := time.monotonic() - started) > deadline_s + _GRACE_S:
                raise Failed(f"was back after {took:.1f} s of {deadline_s:g}: {_BLOCKS}", in_time=False)
        except Failed:
            raise
        except Exception as error:
            if limit.expired() and isinstance(error, TimeoutError):
                raise Failed(f"was not back after {deadline_s:g} s", in_time=False) from None
            raise _raised(error) from error
        return _result(name, _Answer(result, _changed(call, own), []))

    def close(self) -> None:
        """End the worker process, if there is one."""
        if self._worker is not None:
            self._worker.close()


def _place(function: Callable[..., Any], keep_state: bool) -> str:
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        return "awaited"
    beneath = function
    while isinstance(beneath, functools.partial):
        beneath = beneath.func
    if getattr(beneath, "runs_in_process", False):
        return HOLDS_MODEL
    own = (getattr(beneath, "__module__", "") or "").startswith("workbench.")
    if own and not getattr(beneath, "runs_in_worker", False):
        return OWN
    if keep_state and not inspect.isfunction(beneath) and not inspect.isbuiltin(beneath):
        return "here: an object with a state of its own, which stays where you can reach it"
    if held := _model_in(beneath):
        return f"here: it holds {held}"
    try:
        packed(function)
    except TypeError as error:
        return f"here: it cannot travel to another process ({error})"
    return "worker"


def _model_in(function: Callable[..., Any]) -> str:
    # A model must not be copied to another process; one on a GPU cannot even be.
    names = {name for code in code_objects(function) for name in code.co_names}  # of comprehensions and helpers, too
    held = [getattr(function, "__globals__", {}).get(name) for name in sorted(names)]
    with contextlib.suppress(ValueError):
        held += [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    for value in held:
        kind = type(value)
        of_library = kind.__module__.partition(".")[0] in _MODELS
        if of_library and any(hasattr(value, part) for part in ("parameters", "device", "model", "vocab")):
            return f"a {kind.__name__}"
    return ""


def _call_one(functions: dict[str, Callable[..., Any]], name: str, call: Call, follow: bool = False) -> _Answer:
    # In the worker. What the function logs is collected, and logged where the trainer is.
    logged: list[tuple[str, tuple, dict]] = []
    loggers = {
        key: lambda *args, _key=key, **kwargs: logged.append((_key, args, kwargs))
        for key in ("log_extra", "log_metric")
    }
    given = {**call, **{key: logger for key, logger in loggers.items() if key in call}}
    own = _copies(given)
    if follow:
        return _Answer(_followed(functions[name], own), "", [])
    return _Answer(plain_result(functions[name](**own)), _changed(given, own), logged)


def _followed(function: Callable[..., Any], call: Call) -> Trace:
    texts = [completion_text(completion) for completion in call["completions"]]
    return traced(function, texts, **call)


def _here(function: Callable[..., Any], call: Call, copied: bool) -> _Answer:
    own = _copies(call) if copied else call
    try:
        return _Answer(plain_result(function(**own)), _changed(call, own) if copied else "", [])
    except Exception as error:
        raise _raised(error) from error


def _raised(error: Exception) -> Failed:
    return Failed(f"raised {type(error).__name__}: {error}{fault_line(error)}")


def _result(name: str, answer: _Answer) -> Any:
    if answer.changed:
        raise RewardError(
            f"{name} changed its input {answer.changed!r}",
            rule="every function and the trainer's log are handed the same lists",
            remedy=f"work on a copy, messages and all: {answer.changed} = copy.deepcopy({answer.changed})",
        )
    return answer.result


def plain_result(result: Any) -> Any:
    """What a function returned, with tensors, arrays and generators as lists of Python values."""
    if hasattr(result, "tolist"):
        return (
            result.reshape(-1).tolist() if getattr(result, "ndim", 1) == 2 and result.shape[1] == 1 else result.tolist()
        )
    if isinstance(result, _NO_LIST) or not hasattr(result, "__iter__"):
        return result
    return [value.item() if hasattr(value, "item") else value for value in result]


def _copies(call: Call) -> Call:
    return {key: value if key in _OF_TRAINER else _copy(value) for key, value in call.items()}


def _copy(value: Any) -> Any:
    if isinstance(value, list):
        deep = any(isinstance(item, (list, dict)) for item in value)
        return [_copy(item) for item in value] if deep else list(value)
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, dict) else value


def _changed(given: Call, own: Call) -> str:
    for key, value in given.items():
        if isinstance(value, list):
            try:
                same = value == own.get(key)
            except ValueError:  # arrays
                continue
            if not same and _differs(value, own.get(key)):
                return key
    return ""


def _differs(first: Any, second: Any) -> bool:
    # NaN is not equal to itself, and no change.
    return repr(first) != repr(second)


def _travelling(call: Call) -> Call:
    found = {key: None if key.startswith("log_") else value for key, value in call.items()}
    if (state := call.get("trainer_state")) is not None:
        simple = {key: value for key, value in vars(state).items() if isinstance(value, (int, float, str, bool))}
        found["trainer_state"] = SimpleNamespace(**simple)
    return found


def one_by_one(
    functions: Functions, name: str, call: Call, deadline_s: float | None, first_only: bool
) -> dict[int, Any]:
    """Each completion of a batch alone: index -> what the function returned for it, or `Failed`.

    Args:
        deadline_s: for all of them together; what is not scored by then is `Failed`.
        first_only: stop at the first that fails.
    """
    until = None if deadline_s is None else time.monotonic() + deadline_s
    found: dict[int, Any] = {}
    late = list(range(len(call["completions"])))
    # Twice, so that a few which hang do not take the time of all the others.
    for share in (_FIRST_SHARE, 1.0):
        asked, late = late, []
        for place, index in enumerate(asked):
            left = None if until is None else until - time.monotonic()
            if left is not None and left < -_GRACE_S:
                over = f"was not asked: the batch's {round(deadline_s, 2):g} s were over"
                found.setdefault(index, Failed(over, in_time=False))
                continue
            if left is None:
                slice_s = None
            else:
                most = _SLICE_SHARE * 0.5 ** len(late) if share < 1 else 0.0
                slice_s = max(_SHORTEST_SLICE_S, min(deadline_s * most, left), left * share / (len(asked) - place))
            try:
                found[index] = functions.call(name, _single(call, index), slice_s, quiet=True)
            except Failed as error:
                found[index] = error
                if not error.in_time:
                    share_of = f", its share of the batch's {round(deadline_s, 2):g} s"
                    found[index] = Failed(error.text + share_of, in_time=False)
                    late.append(index)
                elif first_only:
                    return found
    return found


def _single(call: Call, index: int) -> Call:
    count = len(call["completions"])
    single = {
        key: [value[index]] if isinstance(value, list) and len(value) == count else value for key, value in call.items()
    }
    if "log_extra" in single:
        single["log_extra"] = lambda *_, **__: None  # the trainer's log takes whole batches only
    return single


class Scored(NamedTuple):
    """One function's scores of a batch."""

    scores: list[float]  # NaN: did not apply, or failed
    errors: dict[int, str]  # index of the completion -> what the function did


def score_batch(
    functions: Functions, name: str, call: Call, deadline_s: float | None, skip: bool, quiet: bool = False
) -> Scored:
    """One function's scores of a batch. If it fails, it is asked again for each completion alone, to find the culprits.

    Args:
        skip: leave the culprits without a score and go on; False: the first one is an error.

    Raises:
        RewardError: naming function, prompt and completion.
    """
    started = time.monotonic()
    # The whole deadline for one completion; of a batch's, most is kept for finding out which completion it was.
    share = 1.0 if deadline_s is None or len(call["completions"]) == 1 else _BATCH_SHARE
    try:
        result = functions.call(name, call, deadline_s and deadline_s * share, quiet)
        late = functions.unjudged.get(name, ())
    except Failed as error:
        left = None if deadline_s is None else deadline_s - (time.monotonic() - started)
        return _salvaged(functions, name, call, error, left, skip, deadline_s)
    found = check_scores(name, result, call["prompts"], call["completions"], skip)
    found.errors.update({index: UNJUDGED for index in late if math.isnan(found.scores[index])})
    return found


def _salvaged(
    functions: Functions,
    name: str,
    call: Call,
    error: Failed,
    deadline_s: float | None,
    skip: bool,
    started_with: float | None,
) -> Scored:
    prompts, completions = call["prompts"], call["completions"]
    if len(completions) == 1:
        singles: dict[int, Any] = {0: error}
    elif functions.is_async(name):  # a judge's calls may cost: it is not asked again
        singles = dict.fromkeys(range(len(completions)), error)
    else:
        singles = one_by_one(functions, name, call, deadline_s, first_only=not skip)
    failed = {index: value.text for index, value in singles.items() if isinstance(value, Failed)}
    if not failed and not error.in_time and len(singles) == len(completions):
        skip = True  # slow as a batch, and every completion was scored alone
    elif not failed:
        raise _reward_error(name, error, f"a batch of {len(completions)} completions") from error.__cause__
    if (
        not skip
        and not error.in_time
        and not any(value.in_time for value in singles.values() if isinstance(value, Failed))
    ):
        raise _late_error(name, error, singles, call, started_with)
    if not skip:
        index = min(
            failed, key=lambda each: (not singles[each].in_time, each)
        )  # one that raised, rather than a late one
        cause = singles[index]
        raise _reward_error(name, cause, quote(prompts[index], completions[index])) from cause.__cause__
    scores = [math.nan] * len(completions)
    for index, value in singles.items():
        if not isinstance(value, Failed):
            one = check_scores(name, value, [prompts[index]], [completions[index]], skip)
            [scores[index]] = one.scores
            if one.errors:
                failed[index] = one.errors[0]
    return Scored(scores, failed)


def _late_error(name: str, error: Failed, singles: dict[int, Any], call: Call, deadline_s: float | None) -> RewardError:
    late = [index for index, value in singles.items() if isinstance(value, Failed)]
    count, first = len(call["completions"]), quote(call["prompts"][late[0]], call["completions"][late[0]])
    what = error.text if _BLOCKS in error.text else f"was not back after {deadline_s:g} s"
    alone = f"; asked one by one, {len(late)} were not back in their share of it, the first being {first}"
    where = f"{count} completions{alone}" if count > 1 else first
    return RewardError(
        f"{name} {what} for {where}",
        rule="a reward function scores a batch within its deadline (deadline_s)",
        remedy="does it hang there (a pattern that backtracks, a number that explodes)? mend it; is it only slow? give it longer",
    )


def _reward_error(name: str, failure: Failed, where: str) -> RewardError:
    remedy = (
        "handle this completion in the function, or return None where it does not apply"
        if failure.in_time
        else "a pattern or a number that explodes? mend the function, or give it longer (deadline_s)"
    )
    return RewardError(
        f"{name} {failure.text} on {where}",
        rule="a reward function scores every completion in time; an exception never becomes 0",
        remedy=remedy,
    )


def check_scores(
    name: str, result: Any, prompts: Sequence[Any], completions: Sequence[Any], skip: bool = False
) -> Scored:
    """What a reward function returned, as floats (None becomes NaN: "does not apply").

    Args:
        skip: a score that is no number TRL can compute with is that completion's failure; False: it is an error.

    Raises:
        RewardError: if it is not one score a completion, naming function, prompt and completion.
    """
    if result is None or isinstance(result, _NO_LIST) or not hasattr(result, "__iter__"):
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
    scores, errors = [], {}
    for index, value in enumerate(values):
        try:
            score = math.nan if value is None else math.inf if isinstance(value, (str, bytes)) else float(value)
        except (TypeError, ValueError, OverflowError):
            score = math.inf
        if value is not None and not abs(score) <= LARGEST:
            said = f"returned {_short(value)}"
            if not skip:
                huge = math.isfinite(score)
                raise RewardError(
                    f"{name} {said} for {quote(prompts[index], completions[index])}",
                    rule=TOO_LARGE if huge else "a score is a finite number, or None where the function does not apply",
                    remedy="divide the scores, or bound them with min() and max()"
                    if huge
                    else "correct the function for this completion; a NaN or infinity would destroy the weights or be lost",
                )
            score, errors[index] = math.nan, said
        scores.append(score)
    return Scored(scores, errors)


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an int of more than 4,300 digits
        return f"a {type(value).__name__} of more than 4,300 digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def quote(prompt: Any, completion: Any, limit: int = 200) -> str:
    """A completion and its prompt, cut to a length that an error message can hold."""
    question = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    text = completion_text(completion)
    return f"the completion {text[:limit]!r}{'…' if len(text) > limit else ''} to the prompt {question[:limit]!r}"


def run_coroutine(coroutine: Any) -> Any:
    """Run a coroutine to its end. A notebook's own event loop is running and cannot be entered again: use a thread's."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
