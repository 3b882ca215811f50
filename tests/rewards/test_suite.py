"""What the suite lets through, what it refuses and in which words, and the batch that it joins."""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import inspect
import math
import re
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import workbench as wb
from workbench.base.errors import RecipeError, RewardError, TaskError
from workbench.rewards import library
from workbench.rewards.library import max_score_of
from workbench.rewards.suite import RewardSuite, reward_hash
from workbench.task import Task

ROWS = [{"prompt": [{"role": "user", "content": "What is 1 + 1?"}], "answer": "2"}]
TEXT_ROWS = [{"prompt": "What is 1 + 1?", "answer": "2"}]


def length_reward(completions, **kwargs):
    return [float(len(completion[0]["content"])) for completion in completions]


def right_reward(completions, answer, **kwargs):
    return [float(right in completion[0]["content"]) for completion, right in zip(completions, answer, strict=True)]


def suite(*funcs, rows=ROWS, **kwargs) -> RewardSuite:
    return RewardSuite(Task("t", rows=rows, reward_funcs=funcs), kwargs.pop("num_generations", 2), **kwargs)


def trl_call(texts) -> dict:
    """What TRL hands to each function."""
    return {
        "prompts": [ROWS[0]["prompt"]] * len(texts),
        "completions": [[{"role": "assistant", "content": text}] for text in texts],
        "completion_ids": [[1, 2]] * len(texts),
        "answer": ["2"] * len(texts),
        "trainer_state": None,
        "log_extra": print,
        "log_metric": print,
    }


def as_trl(suite, texts):
    """Call the wrapped functions as TRL does."""
    return [func(**trl_call(texts)) for func in suite.funcs]


def test_scores_pass_through_and_the_batch_is_joined():
    seen = []
    tested = suite(right_reward, length_reward, weights={"length_reward": 0.5}, on_batch=seen.append)
    assert as_trl(tested, ["2", "1234"]) == [[1.0, 1.0], [1.0, 4.0]]
    [batch] = seen
    assert batch.scores.tolist() == [[1, 1], [1, 4]]
    assert batch.groups.totals.tolist() == [1.5, 3.0]
    assert batch.right.tolist() == [True, True]
    assert batch.columns == {"answer": ["2", "2"]}
    as_trl(tested, ["2", "1234"])
    assert len(seen) == 2


def test_names_survive_wrapping_as_trl_reads_them():
    assert [func.__name__ for func in suite(right_reward, functools.partial(length_reward)).funcs] == [
        "right_reward",
        "length_reward",
    ]


def test_score_by_hand_for_chat_and_text():
    def plain_reward(completions, **kwargs):
        return [float(len(completion)) for completion in completions]

    assert suite(length_reward).score(ROWS * 2, ["a", "bc"]).tolist() == [[1.0], [2.0]]
    assert suite(plain_reward, rows=TEXT_ROWS).score(TEXT_ROWS * 2, ["a", "bc"]).tolist() == [[1.0], [2.0]]


def test_none_means_does_not_apply():
    def some_reward(completions, **kwargs):
        return [None, 1.0]

    assert np.isnan(suite(some_reward).score(ROWS * 2, ["a", "b"])[0, 0])


def test_async_functions_are_awaited():
    async def slow_reward(completions, **kwargs):
        return [1.0] * len(completions)

    assert suite(slow_reward).score(ROWS * 2, ["a", "b"]).tolist() == [[1.0], [1.0]]


def returning(value):
    def bad_reward(completions, **kwargs):
        return value

    return bad_reward


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "returned NoneType"),
        (1.0, "returned float"),
        ("ab", "returned str"),
        ({0: 1.0, 1: 2.0}, "returned dict"),
        ([1.0], "returned 1 scores for 2 completions"),
        ([1.0] * 3, "returned 3 scores for 2 completions"),
        ([1.0, math.nan], "returned nan for the completion 'second' to the prompt 'What is 1 \\+ 1\\?'"),
        ([math.inf, 1.0], "returned inf for the completion 'first'"),
        ([1.0, "x"], "returned 'x' for the completion 'second'"),
        ([1.0, [2.0]], "returned \\[2.0\\]"),
        ([10**400, 1.0], "returned 1000"),
    ],
)
def test_what_is_not_one_finite_number_a_completion_is_refused_by_name(value, said):
    with pytest.raises(RewardError, match=f"bad_reward {said}"):
        as_trl(suite(returning(value)), ["first", "second"])


def test_an_exception_names_function_line_prompt_and_completion():
    def fragile_reward(completions, **kwargs):
        return [1 / len(completion[0]["content"]) for completion in completions]

    with pytest.raises(RewardError) as caught:
        as_trl(suite(fragile_reward), ["fine", ""])
    message = str(caught.value)
    assert "fragile_reward raised ZeroDivisionError: division by zero (test_suite.py:" in message
    assert "on the completion '' to the prompt 'What is 1 + 1?'" in message
    assert "remedy" in message


class Fragile:
    def __call__(self, completions, **kwargs):
        return [1 / len(completion[0]["content"]) for completion in completions]


def test_an_exception_in_this_process_is_the_cause():
    with pytest.raises(RewardError, match="Fragile raised ZeroDivisionError") as caught:
        as_trl(suite(Fragile()), ["fine", ""])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_function_that_changes_its_lists_is_refused_and_those_of_the_next_are_whole():
    def greedy_reward(completions, **kwargs):
        scores = [1.0] * len(completions)
        completions.clear()
        return scores

    greedy, length = suite(greedy_reward, length_reward).funcs
    call = trl_call(["a", "bc"])
    with pytest.raises(RewardError, match=r"(?s)greedy_reward changed its input 'completions'.*work on a copy"):
        greedy(**call)
    assert length(**call) == [1.0, 2.0]


def test_what_was_adapted_is_noted():
    def positional(prompts, responses):
        return [float(len(response)) for response in responses]

    def plain_reward(completions, **kwargs):
        return [float(len(completion.strip())) for completion in completions]

    tested = suite(positional, plain_reward, length_reward)
    assert tested.notes == ["positional is written as (prompts, responses): it gets both as plain text"]
    assert as_trl(tested, ["a", "bc"]) == [[1.0, 2.0]] * 3
    assert tested.notes[1].startswith("plain_reward: it reads plain text only: with the other it raised AttributeError")
    assert tested.notes[1].endswith("; it gets what it reads")
    as_trl(tested, ["a", "bc"])
    assert len(tested.notes) == 2


def test_each_functions_time_and_errors_are_in_the_batch():
    def fragile_reward(completions, **kwargs):
        return [1 / len(completion[0]["content"]) for completion in completions]

    seen = []
    as_trl(suite(fragile_reward, length_reward, on_batch=seen.append, on_error="skip"), ["ab", ""])
    [batch] = seen
    assert set(batch.seconds) == {"fragile_reward", "length_reward"}
    assert all(seconds > 0 for seconds in batch.seconds.values())
    assert batch.scores[0].tolist() == [0.5, 2.0]
    assert np.isnan(batch.scores[1, 0])
    assert batch.groups.totals.tolist() == [2.5, 0.0]
    assert set(batch.errors) == {"fragile_reward"}
    assert "raised ZeroDivisionError" in batch.errors["fragile_reward"][1]


def test_an_unknown_policy_for_errors_is_named():
    with pytest.raises(RecipeError, match=r"(?s)on_error = 'ignore'.*stop or skip"):
        suite(length_reward, on_error="ignore")


def test_closed_and_used_again():
    tested = suite(length_reward)
    assert tested.score(ROWS, ["a"]).tolist() == [[1.0]]
    tested.close()
    assert tested.score(ROWS, ["ab"]).tolist() == [[2.0]]


def test_a_missing_column_is_named():
    def needs_reward(completions, solution, **kwargs):
        return [1.0] * len(completions)

    with pytest.raises(TaskError, match="needs_reward needs 'solution'; the rows have the columns prompt, answer"):
        suite(needs_reward).rehearse(ROWS)


def test_a_function_without_kwargs_is_named():
    def closed_reward(completions):
        return [1.0] * len(completions)

    with pytest.raises(TaskError, match=r"closed_reward does not accept .*\n.*\n.*\*\*kwargs"):
        suite(closed_reward).rehearse(ROWS)


def test_rehearsal_finds_a_function_that_fails_on_silence():
    def first_word_reward(completions, **kwargs):
        return [float(len(completion[0]["content"].split()[0])) for completion in completions]

    with pytest.raises(RewardError, match="first_word_reward raised IndexError.*the completion ''"):
        suite(first_word_reward).rehearse(ROWS)


def test_an_unknown_weight_is_named():
    with pytest.raises(RecipeError, match="'lenght_reward'"):
        suite(length_reward, weights={"lenght_reward": 1.0})


def test_rehearsal_offers_what_the_trainer_offers():
    def asking_reward(completions, trainer_state, log_extra, log_metric, **kwargs):
        log_extra("column", [""] * len(completions))
        log_metric(name="x", value=1.0)
        return [float(trainer_state.global_step)] * len(completions)

    suite(asking_reward).rehearse(ROWS)


def test_a_column_that_one_row_lacks_is_named_with_the_row():
    with pytest.raises(TaskError, match="right_reward needs 'answer', and 1 rows have none \\(the first is row 2\\)"):
        suite(right_reward).rehearse([*ROWS, *ROWS, {"prompt": ROWS[0]["prompt"]}])


def make_reward(bonus):
    def made_reward(completions, **kwargs):
        return [bonus] * len(completions)

    return made_reward


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, completions, **kwargs):
        return [self.factor] * len(completions)


def weighed(completions, factor=1.0, **kwargs):
    return [factor] * len(completions)


@pytest.mark.parametrize(
    "make",
    [make_reward, Scale, lambda factor: functools.partial(weighed, factor=factor)],
    ids=["factory", "instance", "partial"],
)
def test_the_hash_sees_what_a_function_was_made_with_and_no_address(make):
    assert reward_hash(make(1.0)) == reward_hash(make(1.0))
    assert reward_hash(make(1.0)) != reward_hash(make(2.0))


def test_a_name_that_is_assigned_later_is_hashed_as_not_there():
    def make():
        def reward(completions, **columns):
            return [most for _ in completions]

        found = reward_hash(reward)
        most = 1.0
        return found, reward_hash(reward)

    before, after = make()
    assert len(before) == len(after) == 12
    assert before != after


def test_the_hash_sees_the_functions_beneath(monkeypatch):
    from workbench.rewards import library

    before = reward_hash(library.correctness_reward)
    monkeypatch.setattr(library, "answer_scores", lambda given, right, maximum, bare=False: [maximum] * len(given))
    assert reward_hash(library.correctness_reward) != before


def test_the_hash_sees_a_function_beneath_that_keeps_what_it_returned(monkeypatch):
    from workbench.rewards import compare

    before = reward_hash(library.correctness_reward)
    assert compare.quick_same("7", "7.0")  # use does not change it
    assert reward_hash(library.correctness_reward) == before
    monkeypatch.setattr(compare, "_short_number", functools.lru_cache(lambda text: None))
    assert reward_hash(library.correctness_reward) != before


def test_the_hash_does_not_go_by_whether_two_equal_values_are_one_object():
    once = 1.25
    same, equal = (functools.partial(weighed, factor=once, bonus=other) for other in (once, float("1.25")))
    assert reward_hash(same) == reward_hash(equal)
    assert reward_hash(same) != reward_hash(functools.partial(weighed, factor=once, bonus=1.5))


def test_the_hash_is_the_same_in_another_process():
    import subprocess
    import sys

    source = (
        "from workbench.teaching.exercises.adaptive import AdaptiveReward, format_reward\n"
        "from workbench.rewards.library import correctness_reward\n"
        "from workbench.rewards.suite import reward_hash\n"
        "print([reward_hash(func) for func in (correctness_reward, format_reward, AdaptiveReward(format_reward))])"
    )
    outputs = {subprocess.run([sys.executable, "-c", source], capture_output=True, check=True).stdout for _ in range(2)}
    assert len(outputs) == 1


def test_the_hash_does_not_change_with_use():
    before = reward_hash(library.boxed_correctness_reward)
    assert library.boxed_correctness_reward(["\\boxed{x + 1}"], ["1 + x"]) == [2.0]  # judged in a worker, and remembered
    assert reward_hash(library.boxed_correctness_reward) == before


DOCUMENTED = """
class Scorer:
    DOC
    def __call__(self, completions, **kwargs):
        DOC
        return [SCORE for _ in completions]

def a_reward(completions, **kwargs):
    DOC
    return [SCORE for _ in completions]
"""


@pytest.mark.parametrize("has_source", [True, False])
@pytest.mark.parametrize("name", ["a_reward", "Scorer"])
def test_the_hash_does_not_read_docstrings(tmp_path, monkeypatch, name, has_source):
    def hash_of(docstring: str, score: str = "1.0") -> str:
        source = re.sub(r" *DOC\n", "", DOCUMENTED) if not docstring else DOCUMENTED.replace("DOC", docstring)
        source = source.replace("SCORE", score)
        module = ModuleType(f"documented_{len(list(tmp_path.iterdir()))}")
        module.__file__ = str(tmp_path / f"{module.__name__}.py")
        (tmp_path / f"{module.__name__}.py").write_text(source if has_source else "")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(source, module.__file__, "exec"), vars(module))
        made = getattr(module, name)
        return reward_hash(made() if isinstance(made, type) else made)

    first = hash_of("'Pays one.'")
    assert hash_of('"""Pays a point.\n\n    For any text.\n    """') == first
    assert hash_of("") == first
    if has_source or name == "a_reward":  # of a class without source nothing but its name is known
        assert hash_of("'Pays one.'", score="2.0") != first


def test_the_hash_of_a_lambda_sees_its_source():
    one = lambda completions, **kwargs: [1.0]  # noqa: E731
    two = lambda completions, **kwargs: [2.0]  # noqa: E731
    assert reward_hash(one) != reward_hash(two)


def test_the_hash_changes_with_source_and_weight():
    def a_reward(completions, **kwargs):
        return [1.0]

    first = reward_hash(a_reward)

    def a_reward(completions, **kwargs):
        return [2.0]

    assert reward_hash(a_reward) != first
    assert suite(a_reward).hash != suite(a_reward, weights={"a_reward": 2.0}).hash


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("re.compile('a')", "re.compile('b')"),
        ("['a']", "['a', 'b']"),
        ("{'a': 1}", "{'a': 2}"),
        ("{'a', 'b'}", "{'a', 'c'}"),
        ("True", "None"),
    ],
)
def test_the_hash_sees_the_values_that_a_function_uses_by_name(before, after):
    def made(value):
        space = {}
        exec(
            f"import re\nUSED = {value}\ndef a_reward(completions, **kwargs):\n    return [USED for _ in completions]",
            space,
        )
        return reward_hash(space["a_reward"])

    assert made(before) == made(before)
    assert made(before) != made(after)


def test_the_hash_sees_a_function_of_another_module(home, monkeypatch):
    monkeypatch.syspath_prepend(home)
    (home / "graded_elsewhere.py").write_text("def grade(text):\n    return 1.0\n")
    import graded_elsewhere

    space = {"graded_elsewhere": graded_elsewhere}
    exec("def a_reward(completions, **kwargs):\n    return [graded_elsewhere.grade(text) for text in completions]", space)
    before = reward_hash(space["a_reward"])
    monkeypatch.setattr(graded_elsewhere, "grade", lambda text: 2.0)
    assert reward_hash(space["a_reward"]) != before


@pytest.mark.parametrize("score", [1e30, -3e38, 1.1e15])
def test_a_score_that_32_bits_cannot_square_is_refused(score):
    def huge_reward(completions, **kwargs):
        return [score] + [0.0] * (len(completions) - 1)

    with pytest.raises(RewardError, match="huge_reward returned .* for the completion 'a'") as refused:
        as_trl(suite(huge_reward), ["a", "b"])
    assert "at most 1e+15" in refused.value.rule


@pytest.mark.parametrize(
    ("scores", "weight", "refused"),
    [
        ([1e9, 1e9 + 1], 1, True),  # 1e9 + 1 is 1e9 in 32 bits: advantages of 0, and not of 0.71
        ([1e14, 0.0], 1e6, True),  # the squares of 1e20 are infinite there
        ([1e9, 0.0], 1, False),
        ([1e9, 1e9 + 64], 1, True),  # neighbours in 32 bits, without a number between them for their mean
        ([1e14, -1e14], 1, False),
        ([3.0, 3.0], 1e6, False),
    ],
)
def test_scores_whose_advantages_are_others_in_32_bits_are_refused(scores, weight, refused):
    def far_reward(completions, **kwargs):
        return scores

    seen = []
    tested = suite(far_reward, weights={"far_reward": weight}, on_batch=seen.append)
    if not refused:
        as_trl(tested, ["a", "b"])
        expected = 0.0 if scores[0] == scores[1] else 1 / math.sqrt(2)  # half the distance over its std of two
        assert abs(seen[0].groups.advantages) == pytest.approx(expected)
        return
    with pytest.raises(RewardError, match="far_reward scored .*, with the weight .*, the completion") as error:
        as_trl(tested, ["a", "b"])
    assert "32 bits" in error.value.rule
    assert not seen


def test_score_by_hand_is_what_training_would_score():
    import workbench as wb

    row = {"prompt": "15 + 27?", "answer": "42"}
    task = Task("t", [row], [wb.rewards.correctness_reward, wb.rewards.make_length_reward(5, answer_in=None)], [1.0, 0.5])
    found = wb.score(task, row, ["<answer>42</answer>", "42", ""])
    assert found.scores.tolist() == [[2.0, 0.0], [0.0, 0.5], [0.0, 0.0]]
    assert found.totals.tolist() == [2.0, 0.25, 0.0]
    assert found.advantages == pytest.approx(wb.advantages([2.0, 0.25, 0.0]))
    assert found.right.tolist() == [True, False, False]
    assert "correctness_reward" in str(found)
    assert "'<answer>42</answer>'" in str(found)
    assert wb.score(task, row, ["42", ""], weights={"correctness_reward": 0.0}).totals.tolist() == [0.25, 0.0]


def test_score_takes_functions_several_prompts_and_what_was_sampled():
    import workbench as wb

    def length(completions, **kwargs):
        return [float(len(text)) for text in completions]

    assert wb.score(length, "hello", ["a", "bbb"]).totals.tolist() == [1.0, 3.0]
    sampled = [
        [SimpleNamespace(text="a"), SimpleNamespace(text="bb")],
        [SimpleNamespace(text=""), SimpleNamespace(text="c")],
    ]
    found = wb.score([length], [{"prompt": "p"}, {"prompt": "q"}], sampled)
    assert (found.num_generations, found.prompts, found.totals.tolist()) == (2, ["p", "p", "q", "q"], [1, 2, 0, 1])

    def tokens(completion_ids, **kwargs):
        return [float(len(ids)) for ids in completion_ids]

    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    with_ids = [SimpleNamespace(text="a long text", ids=[1, 2, 3]), SimpleNamespace(text="b", ids=[4])]
    found = wb.score(tokens, messages, with_ids)
    assert (found.prompts, found.totals.tolist(), found.lengths.tolist()) == ([messages] * 2, [3.0, 1.0], [3, 1])
    assert wb.score(tokens, [messages, "q"], [with_ids, with_ids]).prompts == [messages, messages, "q", "q"]
    with pytest.raises(RewardError, match="1 or 2 each"):
        wb.score([length], [{"prompt": "p"}, {"prompt": "q"}], [["a"], ["b", "c"]])
    with pytest.raises(TaskError, match="'answer'"):
        wb.score(wb.rewards.correctness_reward, "no answer column", ["a"])


def test_every_reward_function_and_factory_is_there_by_name():
    assert {"correctness_reward", "make_answer_reward", "countdown_reward"} <= set(dir(wb.rewards))
    assert all(callable(getattr(wb.rewards, name)) and getattr(wb.rewards, name).__doc__ for name in dir(wb.rewards))
    with pytest.raises(AttributeError, match="no_such_reward"):
        wb.rewards.no_such_reward  # noqa: B018


NAMED = [name for name in dir(wb.rewards) if name.endswith("_reward") and not name.startswith("make_")]


@pytest.mark.parametrize("name", NAMED)
def test_every_named_reward_has_an_example_that_runs(name):
    """Three lines: imported, called, and what it pays, once all or more than once and once nothing."""
    reward = getattr(wb.rewards, name)
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(reward), {}, name, None, 0)
    [_, call] = example.examples
    assert 0.0 in (paid := ast.literal_eval(call.want))
    assert max_score_of(reward) in paid
    assert doctest.DocTestRunner(verbose=False).run(example) == (0, 2)


@pytest.mark.parametrize("module", ["library", "verifiers"])
def test_the_examples_of_the_other_functions_run(module):
    results = doctest.testmod(importlib.import_module(f"workbench.rewards.{module}"))
    assert results.failed == 0
    assert results.attempted > 2
