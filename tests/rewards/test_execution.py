"""Where reward functions run, what they may return, and who is blamed when one raises or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import math
import os
import re
import sys
import threading
import time
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from driving import waited_for

from workbench.base.errors import RecipeError, RewardError
from workbench.rewards.as_data import plain_result
from workbench.rewards.library import correctness_reward
from workbench.rewards.results import check_scores
from workbench.rewards.suite import RewardSuite
from workbench.task import Task
from workbench.teaching.exercises import EXERCISES

ROWS = [{"prompt": [{"role": "user", "content": "What is 1 + 1?"}], "answer": "2"}]


@pytest.fixture
def suite():
    """Makes suites, and ends their processes."""
    made = []

    def make(*funcs, rows=ROWS, **kwargs) -> RewardSuite:
        made.append(RewardSuite(Task("t", rows=rows, reward_funcs=funcs), 1, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


def text_of(completion) -> str:
    return completion if isinstance(completion, str) else completion[0]["content"]


# --- where ------------------------------------------------------------------------------------------------------


def plain_reward(completions, **kwargs):
    return [1.0] * len(completions)


async def awaited_reward(completions, **kwargs):
    return [1.0] * len(completions)


class Scorer:
    def __call__(self, completions, **kwargs):
        return [1.0] * len(completions)


class AwaitedScorer:
    async def __call__(self, completions, **kwargs):
        return [1.0] * len(completions)


# A model, once a test has put one here. A worker imports this file, so torch is imported only where it is needed.
MODEL = None


def with_model(completions, **kwargs):
    return MODEL(MODEL.weight[:1].repeat(len(completions), 1))[:, 0]


def with_model_in_a_comprehension(completions, **kwargs):
    return [MODEL(MODEL.weight[0]) for _ in completions]


def with_model_in_a_helper(completions, **kwargs):
    return with_model(completions)


def closing_over(value):
    def closing_reward(completions, **kwargs):
        return [float(value is not None)] * len(completions)

    return closing_reward


def marked_reward(completions, **kwargs):
    return [1.0] * len(completions)


marked_reward.runs_in_process = True


@pytest.mark.parametrize(
    ("func", "place"),
    [
        (plain_reward, "worker"),
        (functools.partial(plain_reward), "worker"),
        (lambda completions, **kwargs: [1.0] * len(completions), "worker"),
        (closing_over(3), "worker"),
        (EXERCISES["format"].functions[0], "worker"),
        (correctness_reward, "here: the workbench's own"),
        (awaited_reward, "awaited"),
        (functools.partial(awaited_reward), "awaited"),
        (AwaitedScorer(), "awaited"),
        (Scorer(), "here: an object that keeps state, which stays where you can reach it"),
        (marked_reward, "here: it holds a model"),
        (closing_over(threading.Lock()), "here: it cannot be pickled for another process (cannot pickle"),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__) if callable(value) else "",
)
def test_where_a_function_runs(suite, func, place):
    made = suite(func)
    assert made.functions.places[made.names[0]].startswith(place)
    assert np.isfinite(made.score(ROWS * 2, ["a", "b"])).all()


def test_a_model_stays_where_it_is(suite, monkeypatch):
    import torch

    model = torch.nn.Linear(2, 1)
    monkeypatch.setitem(globals(), "MODEL", model)
    for func in (with_model, with_model_in_a_comprehension, with_model_in_a_helper, closing_over(model)):
        made = suite(func)
        assert made.functions.places == {func.__name__: "here: it holds a Linear"}
        assert np.isfinite(made.score(ROWS * 2, ["a", "b"])).all()
    # A function of its libraries is no model.
    made = suite(closing_over(torch.nn.functional.relu))
    assert made.functions.places == {"closing_reward": "worker"}


# --- what it returns --------------------------------------------------------------------------------------------


def tensor(*values, **options):
    import torch

    return torch.tensor(values, **options)


SHAPES = {
    "a list": (lambda: [1, 0.5], [1.0, 0.5]),
    "a tuple": (lambda: (1, 0.5), [1.0, 0.5]),
    "booleans": (lambda: [True, False], [1.0, 0.0]),
    "None": (lambda: [None, 2.0], [None, 2.0]),
    "a generator": (lambda: (each / 2 for each in (1, 3)), [0.5, 1.5]),
    "a map": (lambda: map(float, ("1", "0")), [1.0, 0.0]),
    "tensor (B,)": (lambda: tensor(1.0, 0.5), [1.0, 0.5]),
    "tensor (B, 1)": (lambda: tensor([1.0], [0.5]), [1.0, 0.5]),
    "tensor with a gradient": (lambda: tensor(1.0, 0.5, requires_grad=True), [1.0, 0.5]),
    "tensor in 16 bits": (lambda: tensor(1.0, 0.5).bfloat16(), [1.0, 0.5]),
    "tensor of booleans": (lambda: tensor(True, False), [1.0, 0.0]),
    "tensors in a list": (lambda: [tensor(1.0), tensor(0.5)[0]], [1.0, 0.5]),
    "array": (lambda: np.array([1.0, 0.5]), [1.0, 0.5]),
    "array (B, 1)": (lambda: np.array([[1], [0]]), [1.0, 0.0]),
    "array of booleans": (lambda: np.array([True, False]), [1.0, 0.0]),
    "numpy's numbers": (lambda: [np.float32(0.25), np.int64(2)], [0.25, 2.0]),
    "exact numbers": (lambda: [Fraction(1, 4), Decimal("0.5")], [0.25, 0.5]),
}
REFUSED = {
    "no return": (lambda: None, "returned NoneType.*is a `return` missing"),
    "a number": (lambda: 1.0, "returned float 1.0"),
    "a tensor ()": (lambda: tensor(1.0)[0], "returned float 1.0"),
    "numpy's number": (lambda: np.float64(0.5), "returned float 0.5"),
    "nothing": (list, "returned 0 scores for 2 completions"),
    "too few": (lambda: [1.0], "returned 1 scores for 2 completions"),
    "too many": (lambda: np.zeros(3), "returned 3 scores for 2 completions"),
    "a dict": (lambda: {"a": 1.0, "b": 2.0}, "returned dict"),
    "a set": (lambda: {1.0, 2.0}, "returned set"),
    "a text": (lambda: "ab", "returned str 'ab'"),
    "bytes": (lambda: b"ab", "returned bytes"),
    "numbers as text": (lambda: ["1.0", "2.0"], "returned '1.0' for the completion 'first'"),
    "text among numbers": (lambda: [1.0, "x"], "returned 'x' for the completion 'second'"),
    "nested": (lambda: [[1.0], [2.0]], r"returned \[1.0\] for the completion 'first'"),
    "array (B, 2)": (lambda: np.zeros((2, 2)), r"returned \[0.0, 0.0\] for the completion 'first'"),
    "tensor (1, B)": (lambda: tensor([1.0, 0.5]), "returned 1 scores for 2 completions"),
    "complex": (lambda: [1.0, 1j], "returned 1j for the completion 'second'"),
    "complex array": (lambda: np.array([1j, 0]), "returned 1j for the completion 'first'"),
    "a huge whole number": (lambda: [1.0, 10**400], "returned 1000"),
    "inf": (lambda: [math.inf, 1.0], "returned inf for the completion 'first'"),
    "-inf": (lambda: [1.0, -math.inf], "returned -inf for the completion 'second'"),
    "nan": (lambda: [1.0, math.nan], r"returned nan for the completion 'second' to the prompt 'What is 1 \+ 1\?'"),
    "nan in a tensor": (lambda: tensor(1.0, math.nan), "returned nan for the completion 'second'"),
    "dicts": (lambda: [{}, 1.0], r"returned \{\} for the completion 'first'"),
}


def any_reward(completions, shape, **kwargs):
    return {**SHAPES, **REFUSED}[shape[0]][0]()


@pytest.fixture(scope="module")
def any_suite(by_value):
    rows = [{**ROWS[0], "shape": "booleans"}]
    with contextlib.closing(RewardSuite(Task("t", rows=rows, reward_funcs=[any_reward]), 1)) as made:
        made.score(rows * 2, ["", ""])
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_one_number_a_completion_is_read_with_the_right_numbers(any_suite, shape):
    make, expected = SHAPES[shape]
    there = any_suite.score([{**ROWS[0], "shape": shape}] * 2, ["first", "second"])[:, 0].tolist()
    here = check_scores("any_reward", plain_result(make()), {"prompts": ["p"] * 2, "completions": ["first", "second"]}).scores
    for scores in (there, here):
        assert [None if math.isnan(score) else score for score in scores] == expected


@pytest.mark.parametrize("shape", REFUSED)
def test_everything_else_is_refused_by_name(any_suite, shape):
    with pytest.raises(RewardError, match=f"(?s)any_reward {REFUSED[shape][1]}") as caught:
        any_suite.score([{**ROWS[0], "shape": shape}] * 2, ["first", "second"])
    assert "rule:" in str(caught.value)
    assert "remedy:" in str(caught.value)


# --- what it may not do -----------------------------------------------------------------------------------------


def clearing(completions, **kwargs):
    scores = [1.0] * len(completions)
    completions.clear()
    return scores


def rewriting(completions, **kwargs):
    for completion in completions:
        completion[0]["content"] = "mine"
    return [1.0] * len(completions)


def sorting(completions, answer, **kwargs):
    answer.sort()
    return [1.0] * len(completions)


def extending(prompts, completions, **kwargs):
    prompts[0].append({"role": "user", "content": "and now?"})
    return [1.0] * len(completions)


@pytest.mark.parametrize(
    ("func", "changed"),
    [(clearing, "completions"), (rewriting, "completions"), (sorting, "answer"), (extending, "prompts")],
)
@pytest.mark.parametrize("where", ["worker", "here"])
def test_a_changed_input_is_refused_by_name_and_nobody_elses_is_changed(suite, func, changed, where):
    if where == "here":
        func = functools.update_wrapper(functools.partial(func), func)
        func.func.runs_in_process = True
    rows = [{**ROWS[0], "answer": "3"}, {**ROWS[0], "answer": "2"}]
    try:
        with pytest.raises(RewardError, match=f"{func.__name__} changed its input '{changed}'"):
            suite(func, plain_reward).score(rows, ["a", "b"])
    finally:
        getattr(func, "func", func).__dict__.pop("runs_in_process", None)
    assert [len(row["prompt"]) for row in rows] == [1, 1]


def test_a_nan_in_a_column_is_no_change(suite):
    rows = [{"prompt": "x", "answer": math.nan}, {"prompt": "y", "answer": None}]
    assert suite(plain_reward, rows=rows).score(rows, ["a", "b"]).tolist() == [[1.0], [1.0]]


# --- who is to blame --------------------------------------------------------------------------------------------


def fragile_reward(completions, **kwargs):
    return [1 / len(text_of(completion)) for completion in completions]


def test_stop_names_function_line_prompt_and_completion(suite):
    with pytest.raises(RewardError) as caught:
        suite(fragile_reward).score(ROWS * 3, ["ab", "", "abcd"])
    first = str(caught.value).splitlines()[0]
    assert first.startswith("fragile_reward raised ZeroDivisionError: division by zero (test_execution.py:")
    assert "return [1 / len(text_of(completion)) for completion in completions]" in first
    assert first.endswith("on the completion '' to the prompt 'What is 1 + 1?'")


def test_skip_leaves_exactly_the_culprits_without_a_score(suite):
    texts = ["ab", "", "abcd", "", "a"]
    scored = suite(fragile_reward, on_error="skip").score_each(ROWS * 5, texts)["fragile_reward"]
    assert [None if math.isnan(score) else score for score in scored.scores] == [0.5, None, 0.25, None, 1.0]
    assert set(scored.errors) == {1, 3}
    assert all("raised ZeroDivisionError" in error for error in scored.errors.values())


@pytest.mark.parametrize("place", range(8))
def test_every_place_in_a_batch_is_found(suite, place):
    texts = ["ab"] * place + [""] + ["ab"] * (7 - place)
    with pytest.raises(RewardError, match="on the completion ''"):
        suite(fragile_reward).score(ROWS * 8, texts)


def test_a_function_that_fails_only_on_the_whole_batch_is_said_to(suite):
    def picky_reward(completions, **kwargs):
        if len(completions) == 3:
            raise RuntimeError("too many")
        return [1.0] * len(completions)

    for on_error in ("stop", "skip"):
        with pytest.raises(RewardError, match="picky_reward raised RuntimeError: too many.*on a batch of 3 completions"):
            suite(picky_reward, on_error=on_error).score(ROWS * 3, ["a", "b", "c"])


def squeezed_reward(completions, **kwargs):
    scores = np.array([[1 / len(text_of(completion))] for completion in completions])
    return scores.squeeze()  # of one completion a bare number


def test_what_it_raised_is_said_though_of_one_completion_it_returns_no_list(suite):
    with pytest.raises(RewardError, match="squeezed_reward raised ZeroDivisionError.* on the completion ''"):
        suite(squeezed_reward).score(ROWS * 3, ["a", "", "b"])


def ending_reward(completions, **kwargs):
    import os

    for completion in completions:
        if text_of(completion) == "die":
            os._exit(1)
    return [1.0] * len(completions)


def test_a_process_that_dies_is_blamed_on_its_completion(suite):
    scored = suite(ending_reward, on_error="skip").score_each(ROWS * 3, ["a", "die", "b"])["ending_reward"]
    assert scored.scores[0] == scored.scores[2] == 1.0
    assert "ended its worker: the process ended during the call" in scored.errors[1]


def hostile_reward(completions, **kwargs):
    scores = []
    for text in map(text_of, completions):
        if text == "tower":
            scores.append(9**9**9)
        elif text == "pattern":
            re.match(r"(a+)+$", "a" * 60 + "b")
        elif text == "sleep":
            time.sleep(3600)
        while text == "loop":
            pass
        scores.append(float(len(text)))
    return scores


@pytest.mark.parametrize("hang", ["tower", "sleep"])
def test_one_that_hangs_has_no_score_and_the_next_are_scored(suite, hang):
    scored = suite(hostile_reward, deadline_s=0.6, on_error="skip").score_each(ROWS, [hang])["hostile_reward"]
    assert list(scored.errors) == [0]
    assert "was not back after" in scored.errors[0]
    assert suite(hostile_reward).score(ROWS * 2, ["a", "bc"]).tolist() == [[1.0], [2.0]]


@pytest.mark.timing
@pytest.mark.parametrize("hang", ["tower", "pattern", "sleep", "loop"])
def test_one_that_hangs_costs_the_deadline_and_no_other_its_score(suite, hang):
    made = suite(hostile_reward, deadline_s=0.6, on_error="skip")
    made.score(ROWS, ["warm"])
    started = time.monotonic()
    texts = ["a", "bc", "def", hang, "a", "bc", "def", "a"]
    scored = made.score_each(ROWS * 8, texts)["hostile_reward"]
    assert time.monotonic() - started < 1.6
    assert list(scored.errors) == [3]
    assert "was not back after" in scored.errors[3]
    assert [score for score in scored.scores if not math.isnan(score)] == [1, 2, 3, 1, 2, 3, 1]


@pytest.mark.timing
def test_stop_names_the_one_that_hangs_and_what_it_may_be(suite):
    made = suite(hostile_reward, deadline_s=0.6)
    with pytest.raises(
        RewardError,
        match="(?s)hostile_reward was not back after .* for 3 completions; called one by one, 1 timed out.*"
        "the completion 'loop'.*explodes",
    ):
        made.score(ROWS * 3, ["a", "loop", "b"])


@pytest.mark.timing
def test_stop_names_one_that_raises_before_one_that_was_late(suite):
    def both_reward(completions, **kwargs):
        for text in map(text_of, completions):
            while text == "loop":
                pass
            if text == "":
                raise ValueError("nothing there")
        return [1.0] * len(completions)

    with pytest.raises(RewardError, match="raised ValueError: nothing there.*the completion ''"):
        suite(both_reward, deadline_s=1.0).score(ROWS * 4, ["a", "loop", "b", ""])


@pytest.mark.timing
def test_slow_as_a_batch_and_in_time_alone_is_scored(suite):
    def slow_reward(completions, **kwargs):
        time.sleep(0.05 * len(completions))
        return [1.0] * len(completions)

    scored = suite(slow_reward, deadline_s=1.4).score_each(ROWS * 12, ["a"] * 12)["slow_reward"]
    assert scored.scores == [1.0] * 12
    assert scored.errors == {}


@pytest.mark.timing
def test_64_hostile_completions_among_64_good_ones(suite):
    kinds = ["tower", "pattern", "sleep", "loop"]
    texts = [text for number in range(64) for text in (f"good {number}", kinds[number % 4])]
    made = suite(hostile_reward, deadline_s=5.0, on_error="skip")
    for last in (False, True):  # a shared machine may hold a good one up, too; not twice
        made.score(ROWS, ["warm"])
        started = time.monotonic()
        scored = made.score_each(ROWS * 128, texts)["hostile_reward"]
        assert time.monotonic() - started < 6.0
        assert {texts[index] for index in range(128) if index not in scored.errors} <= set(texts[::2])
        if set(scored.errors) == set(range(1, 128, 2)) or last:
            break
    assert [score for score in scored.scores if not math.isnan(score)] == [len(text) for text in texts[::2]]


# --- coroutines -------------------------------------------------------------------------------------------------


async def judging_reward(completions, **kwargs):
    for text in map(text_of, completions):
        await asyncio.sleep(60 if text == "slow" else 0)
        if text == "bad":
            raise ConnectionError("no judge")
        if text == "timeout":
            raise TimeoutError("the judge's own")
    return (float(len(text_of(completion))) for completion in completions)


def test_a_coroutine_is_awaited(suite):
    assert suite(judging_reward).score(ROWS * 2, ["a", "bc"]).tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize(
    ("text", "deadline_s", "said"),
    [
        ("slow", 0.2, "was not back after 0.2 s"),
        ("bad", 60.0, "raised ConnectionError: no judge"),
        ("timeout", 60.0, "raised TimeoutError: the judge's own"),
        ("timeout", None, "raised TimeoutError: the judge's own"),
    ],
)
def test_a_coroutines_errors_in_training_name_the_batch_and_no_judge_is_asked_twice(suite, text, deadline_s, said):
    [func] = suite(judging_reward, deadline_s=deadline_s).funcs
    with pytest.raises(RewardError, match=f"judging_reward {said}.*on a batch of 2 completions; the first was"):
        asyncio.run(func(**trl_call(["a", text], [])))
    [func] = suite(judging_reward, deadline_s=deadline_s, on_error="skip").funcs
    assert all(map(math.isnan, asyncio.run(func(**trl_call(["a", text], [])))))


def test_by_hand_no_judge_is_asked_twice_either(suite):
    scored = suite(judging_reward, on_error="skip").score_each(ROWS * 3, ["a", "bad", "bc"])["judging_reward"]
    assert all(map(math.isnan, scored.scores))
    assert list(scored.errors) == [0, 1, 2]


# --- what it logs -----------------------------------------------------------------------------------------------


def logging_reward(completions, trainer_state, log_extra, log_metric, **kwargs):
    log_extra("words", [len(text_of(completion).split()) for completion in completions])
    log_metric("seen/step", trainer_state.global_step)
    return [1 / len(text_of(completion)) for completion in completions]


def test_a_mean_of_nothing_is_not_logged_and_ends_nothing(suite):
    def empty_reward(completions, log_metric, **kwargs):
        log_metric("mine", math.nan)
        return [1.0] * len(completions)

    logged = []
    assert suite(empty_reward).funcs[0](**trl_call(["a"], logged)) == [1.0]
    assert logged == []


@pytest.mark.parametrize(("name", "value"), [("step", 999.0), ("loss", 0.0), ("rewards/x/mean", 1.0), ("mine", "many")])
def test_what_is_logged_cannot_take_the_place_of_the_trainers_own(suite, name, value):
    def spoiling_reward(completions, log_metric, **kwargs):
        log_metric(name, value)
        return [1.0] * len(completions)

    async def spoiling_judge(completions, log_metric, **kwargs):
        return spoiling_reward(completions, log_metric)

    for function in (spoiling_reward, spoiling_judge):
        logged = []
        [func] = suite(function).funcs
        with pytest.raises(RewardError, match=f"{function.__name__}.* logs '{name}' = "):
            asyncio.run(func(**trl_call(["a"], logged))) if asyncio.iscoroutinefunction(func) else func(**trl_call(["a"], logged))
        assert logged == []


class State:
    """A trainer's state holds more than numbers, and some of it cannot travel."""

    def __init__(self) -> None:
        self.global_step, self.lock = 7, threading.Lock()


def trl_call(texts, logged):
    return {
        "prompts": [ROWS[0]["prompt"]] * len(texts),
        "completions": [[{"role": "assistant", "content": text}] for text in texts],
        "completion_ids": [[1, 2]] * len(texts),
        "answer": ["2"] * len(texts),
        "trainer_state": State(),
        "log_extra": lambda *args: logged.append(("extra", *args)),
        "log_metric": lambda *args: logged.append(("metric", *args)),
    }


def as_trl(made, texts, logged):
    return [func(**trl_call(texts, logged)) for func in made.funcs]


def test_what_a_function_logs_in_the_worker_reaches_the_trainer(suite):
    logged = []
    made = suite(logging_reward)
    assert made.functions.places == {"logging_reward": "worker"}
    assert as_trl(made, ["a b", "c"], logged) == [[1 / 3, 1.0]]
    assert logged == [("extra", "words", [2, 1]), ("metric", "seen/step", 7)]


def test_a_batch_that_is_gone_through_one_by_one_logs_no_half_columns(suite):
    logged = []
    [scores] = as_trl(suite(logging_reward, on_error="skip"), ["a b", "", "c"], logged)
    assert scores[0] == 1 / 3
    assert math.isnan(scores[1])
    assert not [entry for entry in logged if entry[0] == "extra"]


def test_what_it_prints_is_shown_once(suite, capsys):
    def talking_reward(completions, **kwargs):
        print(f"{len(completions)} to score")
        return [1.0] * len(completions)

    suite(talking_reward).score(ROWS * 3, ["a", "b", "c"])
    assert capsys.readouterr().out == "3 to score\n"


# --- what the workbench's own could not judge -------------------------------------------------------------------


@pytest.mark.timing
def test_a_formula_that_was_not_judged_in_time_is_recorded_and_no_0(suite):
    from workbench.rewards.library import boxed_correctness_reward

    tower = "\\boxed{9^{9^{9^{9^9}}}}"
    tested = suite(boxed_correctness_reward, deadline_s=1.0)
    started = time.monotonic()
    scored = tested.score_each([{**ROWS[0], "answer": "x+1"}] * 2, [tower, "\\boxed{1+x}"])["boxed_correctness_reward"]
    assert time.monotonic() - started < 6  # of which the worker's start may take some
    assert math.isnan(scored.scores[0])
    assert scored.scores[1] == 2.0
    assert list(scored.errors) == [0]
    assert "not judged in time" in scored.errors[0]


async def stubborn_reward(completions, **kwargs):
    while True:
        try:
            await asyncio.sleep(60)
        except BaseException:  # as a loop that tries again after every error
            continue


async def leaving_reward(completions, **kwargs):
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("function", "did"), [(stubborn_reward, "was not back after 0.3 s"), (leaving_reward, "raised SystemExit: 3")]
)
def test_a_coroutine_cannot_outlive_its_deadline_nor_end_the_loop(suite, function, did):
    with pytest.raises(RewardError, match=did):
        suite(function, deadline_s=0.3).score(ROWS, ["a"])
    [func] = suite(function, deadline_s=0.3, on_error="skip").funcs

    async def twice():
        return [await func(**trl_call(["a"], [])) for _ in range(2)]

    loop = asyncio.new_event_loop()  # TRL's is one that goes on
    assert all(math.isnan(score) for scores in loop.run_until_complete(twice()) for score in scores)
    loop.close()


async def blocking_reward(completions, **kwargs):
    time.sleep(1.0)
    return [1.0] * len(completions)


def test_a_coroutine_that_blocks_is_named(suite):
    with pytest.raises(RewardError, match="blocks instead of awaiting"):
        suite(blocking_reward, deadline_s=0.2).score(ROWS, ["a"])


BROKEN = {
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "complex": lambda: 1j,
    "huge": lambda: 10**400,
    "too long to print": lambda: 10**5000,
    "text": lambda: "0.5",
    "list": lambda: [1.0],
    "1e30": lambda: 1e30,
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_skip_leaves_out_a_score_that_is_no_number_and_stop_stops(suite, broken):
    def odd_reward(completions, **kwargs):
        return [broken() if text_of(completion) == "odd" else 1.0 for completion in completions]

    async def odd_judge(completions, **kwargs):
        return odd_reward(completions)

    texts = ["a", "odd", "b"]
    for function, name in ((odd_reward, "odd_reward"), (odd_judge, "odd_judge")):
        scored = suite(function, on_error="skip").score_each(ROWS * 3, texts)[name]
        assert [None if math.isnan(score) else score for score in scored.scores] == [1.0, None, 1.0]
        assert list(scored.errors) == [1]
        assert scored.errors[1].startswith("returned ")
        with pytest.raises(RewardError, match=f"{name} returned .* for the completion 'odd'"):
            suite(function).score(ROWS * 3, texts)


# --- beside the trainer -----------------------------------------------------------------------------------------


def changes_of_the_process() -> dict:
    import random

    import torch

    def grad():
        torch.set_grad_enabled(False)

    return {
        "python": lambda: random.seed(5),
        "numpy": lambda: np.random.seed(5),
        "torch": lambda: torch.manual_seed(5),
        "torch draws": lambda: torch.rand(3),
        "a thread draws": lambda: (thread := threading.Thread(target=torch.rand, args=(3,))).start() or thread.join(),
        "folder": lambda: os.chdir("/"),
        "grad": grad,
        "dtype": lambda: torch.set_default_dtype(torch.float64),
    }


def state_of_the_process() -> list:
    import random

    import torch

    drawn = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]
    return [*drawn, os.getcwd(), torch.is_grad_enabled(), torch.get_default_dtype()]


@pytest.mark.parametrize("what", changes_of_the_process())
@pytest.mark.parametrize("kind", ["object", "coroutine"])
def test_what_runs_beside_the_trainer_leaves_its_process_as_it_was(suite, what, kind):
    change = changes_of_the_process()[what]

    class Changes:
        def __call__(self, completions, **kwargs):
            change()
            return [1.0] * len(completions)

    async def changes(completions, **kwargs):
        change()
        return [1.0] * len(completions)

    made = suite(Changes() if kind == "object" else changes)
    before = state_of_the_process()
    assert made.score(ROWS, ["a"]).tolist() == [[1.0]]
    assert state_of_the_process() == before


def test_the_trainers_state_is_a_copy(suite):
    from transformers import TrainerState

    class Counts:
        def __call__(self, completions, trainer_state, **kwargs):
            trainer_state.global_step, trainer_state.max_steps = 99, 3
            trainer_state.log_history.append("mine")
            return [1.0] * len(completions)

    state = TrainerState(global_step=4, max_steps=9)
    [func] = suite(Counts()).funcs
    assert func(**trl_call(["a"], []) | {"trainer_state": state}) == [1.0]
    assert (state.global_step, state.max_steps, state.log_history) == (4, 9, [])


@pytest.mark.parametrize("error", [SystemExit, BaseException])
def test_an_object_that_ends_itself_does_not_end_the_run(suite, error):
    class Leaves:
        def __call__(self, completions, **kwargs):
            raise error("enough")

    with pytest.raises(RewardError, match=f"raised {error.__name__}: enough"):
        suite(Leaves()).score(ROWS, ["a"])
    assert math.isnan(suite(Leaves(), on_error="skip").score(ROWS, ["a"])[0, 0])


async def stopping_reward(completions, **kwargs):
    asyncio.get_running_loop().stop()
    await asyncio.sleep(60)


@pytest.mark.parametrize("function", [blocking_reward, stopping_reward, stubborn_reward])
def test_a_coroutine_that_does_not_come_back_takes_no_other_along(suite, function):
    made = suite(function, awaited_reward, deadline_s=0.3, on_error="skip")
    for _ in range(2):
        scores = made.score(ROWS, ["a"])[0]
        assert math.isnan(scores[0])
        assert scores[1] == 1.0


def shares_a_limit(*names):
    """Coroutine functions with one limit between them, as a task file has it at its head."""
    text = "import asyncio\nlimit = asyncio.Semaphore(1)\nasync def once(text):\n    async with limit:\n"
    text += "        await asyncio.sleep(0.001)\n        return 1.0\n"
    for name in names:
        text += f"async def {name}(completions, **kwargs):\n    return await asyncio.gather(*map(once, completions))\n"
    exec(text, space := {})
    return [space[name] for name in names]


def test_a_limit_that_lives_in_a_task_is_used_by_all_that_score_with_it(suite):
    functions = shares_a_limit("first_judge", "second_judge")
    for _ in range(2):  # a plan, then the training
        made = suite(*functions)
        assert made.score(ROWS[:1] * 8, ["a"] * 8).tolist() == [[1.0, 1.0]] * 8

        async def as_the_trainer_does(made=made):
            call = {"prompts": ["a"] * 8, "completions": ["b"] * 8}
            return await asyncio.gather(*(made.functions.ascore(name, call) for name in made.names))

        assert [scored.scores for scored in asyncio.run(as_the_trainer_does())] == [[1.0] * 8] * 2
        made.close()


class Judge:
    def __init__(self):
        self.limit = asyncio.Semaphore(1)

    async def judged(self, completions, **kwargs):
        async def once(text):
            async with self.limit:
                await asyncio.sleep(0.001)
                return 1.0

        return await asyncio.gather(*map(once, completions))


def test_a_method_keeps_the_loop_of_its_object(suite):
    judge = Judge()
    for _ in range(2):
        assert suite(judge.judged).score(ROWS[:1] * 8, ["a"] * 8).tolist() == [[1.0]] * 8


def test_a_loop_that_was_stopped_goes_on_and_calls_leave_no_threads_behind():
    async def stops_reward(completions, **kwargs):
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        return [1.0] * len(completions)

    made = RewardSuite(Task("t", rows=ROWS, reward_funcs=[awaited_reward, stops_reward]), 1)
    made.score(ROWS, ["a"])
    gc.collect()
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        assert made.score(ROWS, ["a"]).tolist() == [[1.0, 1.0]]
    assert threading.active_count() <= threads
    assert len(os.listdir("/proc/self/fd")) <= files
    made.close()
    del made, stops_reward  # a loop lives as long as its function
    gc.collect()
    waited_for(lambda: threading.active_count() < threads)  # those of earlier tests may end meanwhile, too


def test_an_object_draws_on_from_call_to_call(suite):
    import random

    import torch

    class Draws:
        def __call__(self, completions, **kwargs):
            return [random.random() + np.random.rand() + torch.rand(1).item() for _ in completions]

    before = state_of_the_process()
    made = suite(Draws())
    drawn = [made.score(ROWS, ["a"])[0, 0] for _ in range(5)]
    assert len(set(drawn)) == 5
    assert state_of_the_process() == before
    assert [suite(Draws()).score(ROWS, ["a"])[0, 0]] == drawn[:1]  # the trainer's seed decides


def test_what_an_object_replaces_is_put_back(suite):
    import json

    class Replaces:
        def __call__(self, completions, **kwargs):
            json.dumps = lambda *_, **__: "{}"
            return [1.0] * len(completions)

    suite(Replaces()).score(ROWS, ["a"])
    assert json.dumps([1]) == "[1]"


@pytest.mark.parametrize("kind", ["object", "coroutine"])
@pytest.mark.parametrize("end", ["returns", "raises"])
def test_a_fork_beside_the_trainer_does_not_come_back_as_a_second_trainer(suite, tmp_path, kind, end):
    def forks(completions):
        if os.fork() == 0 and end == "raises":
            sys.exit(2)
        return [1.0] * len(completions)

    class Forks:
        def __call__(self, completions, **kwargs):
            return forks(completions)

    async def forks_awaited(completions, **kwargs):
        return forks(completions)

    made, own = suite(Forks() if kind == "object" else forks_awaited), os.getpid()
    made.score(ROWS, ["a"])
    (tmp_path / str(os.getpid())).touch()
    if os.getpid() != own:
        os._exit(0)
    os.wait()
    assert [file.name for file in tmp_path.iterdir()] == [str(own)]


def sandbox_reward(completions, **kwargs):
    scores = []
    for completion in completions:
        if (pid := os.fork()) == 0:
            exec(text_of(completion))
            os._exit(0)
        scores.append(float(os.waitpid(pid, 0)[1] == 0))
    return scores


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_code_that_fails_in_a_fork_is_not_paid(suite, on_error):
    texts = ["x = 1", "1 / 0", "raise SystemExit(3)", "assert False", "pass"]
    scores = suite(sandbox_reward, length_reward, on_error=on_error).score(ROWS * 5, texts)
    assert scores.tolist() == [[1, 50], [0, 50], [0, 190], [0, 120], [1, 40]]


@pytest.mark.parametrize("where", ["worker", "here"])
@pytest.mark.parametrize("value", [None, [1.0, 2.0], {}, 1j])
def test_what_is_logged_and_no_number_names_the_function(suite, value, where):
    def spoiling_reward(completions, log_metric, **kwargs):
        log_metric("mine", value)
        return [1.0] * len(completions)

    spoiling_reward.runs_in_process = where == "here"
    logged = []
    with pytest.raises(RewardError, match="spoiling_reward logs 'mine' = "):
        suite(spoiling_reward).funcs[0](**trl_call(["a"], logged))
    assert logged == []


def test_columns_that_are_logged_come_as_lists(suite):
    def columns_reward(completions, log_extra, **kwargs):
        log_extra("array", np.array([1.5, 2.5]))
        log_extra("generator", (each for each in "ab"))
        log_extra("odd", [Decimal("0.5"), Scorer])
        return [1.0] * len(completions)

    logged = []
    suite(columns_reward).funcs[0](**trl_call(["a", "b"], logged))
    assert [entry[2] for entry in logged[:2]] == [[1.5, 2.5], ["a", "b"]]
    assert logged[2][2][0] == 0.5
    assert "Scorer" in logged[2][2][1]
    assert isinstance(logged[2][2][1], str)


def test_a_column_that_is_none_names_the_function(suite):
    def column_reward(completions, log_extra, **kwargs):
        log_extra("mine", 5)
        return [1.0] * len(completions)

    call = trl_call(["a"], []) | {"log_extra": lambda column, values: [].extend(values)}  # as TRL does
    with pytest.raises(RewardError, match="column_reward raised TypeError"):
        suite(column_reward).funcs[0](**call)


def forking_reward(completions, **kwargs):
    os.fork()
    return [len(text_of(completion)) for completion in completions]


def length_reward(completions, **kwargs):
    return [10 * len(text_of(completion)) for completion in completions]


def test_a_function_that_forks_shifts_no_other_functions_scores(suite):
    made = suite(length_reward, forking_reward, correctness_reward)
    for number in range(1, 6):
        texts = ["x" * number, "y" * (number + 1)]
        assert made.score(ROWS * 2, texts)[:, :2].tolist() == [[10 * number, number], [10 * number + 10, number + 1]]


@pytest.mark.parametrize("weight", [math.nan, math.inf, -math.inf, 1e308, -2e6])
def test_a_weight_that_trl_cannot_compute_with_is_refused(suite, weight):
    with pytest.raises(RecipeError) as raised:
        suite(plain_reward, weights={"plain_reward": weight})
    assert "plain_reward" in raised.value.value
    assert "1,000,000" in raised.value.rule


@pytest.mark.parametrize(
    "kind", [lambda func: func, lambda func: type("Kept", (), {"__call__": lambda self, **call: func(**call)})()]
)
def test_a_series_in_another_order_than_the_completions_is_refused(suite, kind):
    pandas = pytest.importorskip("pandas")

    def sorted_reward(completions, **kwargs):
        return pandas.Series([float(len(text_of(each))) for each in completions]).sort_values()

    with pytest.raises(RewardError, match=r"index is not 0, 1, 2, \.\.\. but \[1, 2, 0\]") as caught:
        suite(kind(sorted_reward)).score(ROWS * 3, ["aaa", "b", "cc"])
    assert "sort_index" in caught.value.remedy

    def ordered_reward(completions, **kwargs):
        return sorted_reward(completions).sort_index()

    assert suite(kind(ordered_reward)).score(ROWS * 3, ["aaa", "b", "cc"]).tolist() == [[3.0], [1.0], [2.0]]


def test_an_endless_generator_beside_the_trainer_comes_back(suite):
    class Endless:
        def __call__(self, completions, **kwargs):
            while True:
                yield 1.0

    with pytest.raises(RewardError, match="returned 1000000 scores for 1 completions"):
        suite(Endless()).score(ROWS, ["a"])
