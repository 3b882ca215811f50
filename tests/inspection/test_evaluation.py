"""Measuring: intervals worked out by hand, and a real policy measured on held-out prompts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from workbench.base.errors import DataError, TaskError
from workbench.inspection.evaluation import _task_of, measure_policy
from workbench.inspection.measured import Evaluation, Measured, form_and_content, gain_in_words
from workbench.inspection.statistics import paired_difference, share_interval
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory
from workbench.task import Task
from workbench.tiny.task import task as arithmetic
from workbench.views.display import view_of


def test_paired_difference_by_hand():
    # Differences 1 0 1 0 of four prompts: mean 0.5, std sqrt(1/3) = 0.57735, standard error 0.288675;
    # Student's t with 3 degrees of freedom at 97.5 %: 3.182446. Half width 0.918693.
    before = np.array([[0], [0], [0], [1]])
    after = np.array([[1], [0], [1], [1]])
    mean, low, high = paired_difference(before, after)
    assert mean == 0.5
    assert (low, high) == pytest.approx((0.5 - 0.918693, 0.5 + 0.918693), abs=1e-5)


def test_a_prompt_counts_once_however_many_completions_it_has():
    before, after = np.array([[0], [0], [1]]), np.array([[1], [0], [1]])
    once = paired_difference(before, after)
    assert paired_difference(np.repeat(before, 10, axis=1), np.repeat(after, 10, axis=1)) == once


@pytest.mark.parametrize("shapes", [((3, 2), (4, 2)), ((1, 2), (1, 2))])
def test_unpaired_or_too_few_prompts_are_refused(shapes):
    with pytest.raises(ValueError, match="the same prompts to both, at least 2"):
        paired_difference(np.zeros(shapes[0]), np.zeros(shapes[1]))


def test_share_interval_stays_a_share():
    assert share_interval(np.ones((10, 4))) == (1.0, 1.0, 1.0)
    share, low, high = share_interval(np.array([[1, 1], [1, 0], [1, 1]]))
    assert share == pytest.approx(5 / 6)
    assert 0 <= low < share < high == 1.0


def measured(lenient, form) -> Measured:
    lenient, form = np.array(lenient, dtype=bool), np.array(form, dtype=bool)
    texts = [[str(place)] * lenient.shape[1] for place in range(len(lenient))]
    return Measured(texts, lenient, form, np.ones_like(lenient), np.zeros(lenient.shape))


def test_correct_needs_the_format_and_lenient_does_not():
    before = measured([[1, 1], [0, 0]], [[1, 0], [1, 1]])
    after = measured([[1, 1], [1, 0]], [[1, 1], [1, 1]])
    found = Evaluation([], before, after).found
    assert found["before"] == {"correct": 0.25, "correct_lenient": 0.5, "format": 0.75, "finished": 1.0, "reward": 0.0}
    assert found["after"]["correct"] == 0.75
    assert found["gain"]["correct"] == pytest.approx(0.5)
    assert found["prompts"] == found["samples"] == 2


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        # Differences of two prompts 0.5 and 1: mean 0.75, std sqrt(1/8), t(1 degree of freedom) 12.7062: half width 3.18.
        (([[0, 0], [0, 0]], 1), ([[1, 0], [1, 1]], 1), "gain +75 points, 95 % interval -100 to +100"),
        (
            ([[0, 0], [0, 0]], 1),
            ([[0, 0], [0, 0]], 1),
            "no completion was right, before or after: right_number paid nothing",
        ),
        (([[1, 0], [0, 0]], 0), ([[1, 0], [0, 1]], 0), "no completion was both right and in the strict format"),
        (
            ([[1, 1], [1, 1]], 1),
            ([[1, 1], [1, 1]], 1),
            "every completion was right, before and after: there is nothing left to gain",
        ),
    ],
)
def test_a_gain_in_words_and_what_is_none(before, after, words):
    made = [measured(lenient, np.full((2, 2), form)) for lenient, form in (before, after)]
    assert gain_in_words(Evaluation([], *made, "right_number").found).startswith(words)


def test_a_policy_that_is_surely_worse_is_called_so():
    made = [measured([[share] * 2] * 10, np.ones((10, 2))) for share in (1, 0)]
    # ten prompts that all lost everything leave 3 / 10 open
    assert gain_in_words(Evaluation([], *made, "right").found) == "WORSE by 100 points, 95 % interval -100 to -70"


def test_what_else_is_found_by_hand():
    # Answers 4, 4, 5, 6, the fours right; 7 in the trained policy's completions, right, one of them in another format: a vote
    # is on the answer, whatever the format.
    flags = [[1, 1, 0, 0]] * 2
    before, after = measured(flags, [[1] * 4] * 2), measured([[1] * 4] * 2, [[1, 1, 1, 0]] * 2)
    before.completions[:] = [["<answer>4</answer>", "so #### 4", "\\\\boxed{5}", "6"]] * 2
    after.completions[:] = [["7"] * 4] * 2
    before.total[:] = [0, 1, 2, 2]
    found = Evaluation([], before, after).found
    # Before, 2 of 4 are right: 1/2, 1 - 2/4 * 1/3, then a draw cannot miss; after, 3 of 4.
    assert found["pass_at_k"]["before"] == pytest.approx([1 / 2, 5 / 6, 1, 1])
    assert found["pass_at_k"]["after"] == pytest.approx([3 / 4, 1, 1, 1])
    assert found["majority"] == {"before": 1.0, "after": 1.0}
    assert found["best_of"] == {"before": 0.0, "after": 0.75}
    assert found["verdict"]["word"] == "cannot be told"
    assert (found["needed"], found["bootstrap"]) == (0, {"low": 0.25, "high": 0.25})
    assert "greedy" not in found


def test_a_vote_is_strict_like_the_gain():
    # The most frequent answer is right, and stands in the format once, beside two wrong ones that keep it.
    made = measured([[1, 1, 1, 0, 0]] * 2, [[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]])
    made.completions[:] = [["7", "7", "7", "6", "6"]] * 2
    assert made.majority() == 0.0
    assert replace(made, format=None).majority() == 1.0
    assert replace(made, format=np.array([[0, 0, 1, 1, 0]] * 2, dtype=bool)).majority() == 0.5  # a tie


def test_form_and_content_are_told_apart():
    # Before, 1 of 4 prompts keeps the format at all, in both completions, one right; after all do, and 6 of 8 are right: by
    # prompt 1, 1, 1/2, 1/2, std 0.288675, t(3) 3.182446: half width 0.459.
    before = measured([[1, 0], [1, 1], [1, 1], [0, 0]], [[1, 1], [0, 0], [0, 0], [0, 0]])
    after = measured([[1, 1], [1, 1], [1, 0], [1, 0]], [[1, 1]] * 4)
    made = Evaluation(["p"] * 4, before, after)
    found = made.found
    assert found["content"]["before"] == {"correct": 0.5, "low": 0.0, "high": 1.0}
    assert found["content"]["after"] == pytest.approx({"correct": 0.75, "low": 0.75 - 0.459346, "high": 1.0}, abs=1e-5)
    line = "in the strict format 25% -> 100%; of those, right 50% (0% to 100%) -> 75% (29% to 100%)"
    assert form_and_content(found) == line
    assert line in str(made).splitlines()
    never = replace(before, format=np.zeros((4, 2), dtype=bool))
    assert "0% -> 100%; of those, right none -> 75%" in str(Evaluation(["p"] * 4, never, after))
    page = view_of(Evaluation(["p"] * 4, never, after))._repr_html_()
    assert "of those, right none" in page


def test_where_no_format_is_measured_or_kept_nothing_is_told_of_it():
    made = measured([[1, 0], [0, 0]], [[0, 0], [0, 0]])
    free = replace(made, format=None)
    assert "content" not in Evaluation([], free, free).found
    for policy in (made, free):
        assert "of those" not in str(Evaluation([], policy, policy))
        assert form_and_content(Evaluation([], policy, policy).found) == ""
    assert form_and_content({"before": {"format": 0.5}, "after": {"format": 1.0}}) == ""  # of an earlier version


def test_a_vote_reads_the_tasks_own_tag():
    made = measured([[1, 1, 0]] * 2, [[1] * 3] * 2)
    made.completions[:] = [[f"<solution>{4 + (other == 'c')}</solution> <answer>{other}</answer>" for other in "abc"]] * 2
    votes = {tag: replace(made, answer_tag=tag).majority() for tag in ("answer", "solution")}
    assert votes == {"answer": pytest.approx(2 / 3), "solution": 1.0}  # a, b and c are one each; 4 stands twice


def test_the_tasks_own_tag_is_found_in_its_prompt(tiny_policy):
    asked = [{"prompt": "Answer as <think>why</think> <solution>what</solution>"}] * 2
    task = Task("t", asked, [lambda completions, **kwargs: [1.0] * len(completions)], held_out=asked)
    assert measure_policy(tiny_policy, task, samples=2, max_completion_length=2).answer_tag == "solution"


def test_an_interval_that_contains_0_says_how_many_prompts_it_would_take():
    # Differences 1 0 0 0, as in test_statistics: 79 more.
    nothing, one = (measured(own, [[1]] * 4) for own in ([[0]] * 4, [[1], [0], [0], [0]]))
    words = "the interval contains 0: about 79 more prompts detect such a gain with 80 % power\n"
    assert words in str(Evaluation([], nothing, one))
    assert "more prompts" not in str(Evaluation([], nothing, measured([[1]] * 4, [[1]] * 4)))


def test_an_evaluation_with_everything_shows_it():
    flags = np.arange(16) < 4
    before, after = (measured([own] * 40, [np.ones(16)] * 40) for own in (flags, ~flags))
    greedy = measured([[0]] * 40, [[1]] * 40), measured([[1]] * 40, [[1]] * 40)
    made = Evaluation(["p"] * 40, before, after, greedy=greedy, curve={0: before, 20: before, 45: after})
    text = str(made)
    assert "sharpened: in 16 tries base solves 100% of the prompts, trained 100%" in text
    assert "pass@1, 2, 4, 8, 16: 25%, " in text
    assert "greedy 0% -> 100%: 40 prompts fixed, 0 broken, exact McNemar p = 1.8e-12" in text  # 2 / 2^40
    assert "step 20: 25% (25% to 25%)\nstep 45: 75%" in text
    page = view_of(made)._repr_html_()
    assert page.count("<img ") == 3
    assert "alt='sharpened: pass@16 100% -&gt; 100%'" in page


def test_an_evaluation_shows_itself():
    prompts = [[{"role": "user", "content": "2 + <b>2</b>?"}], "plain"]
    made = Evaluation(prompts, measured([[1, 0], [0, 0]], [[1, 1], [1, 1]]), measured([[1, 1], [1, 1]], [[1, 1], [1, 1]]))
    assert str(made).startswith("gain +75 points")
    assert "2 held-out prompts, 2 completions each" in str(made)
    page = view_of(made)._repr_html_()
    assert "<img src='data:image/png;base64," in page
    assert "gain +75 points" in page


def test_the_embedded_policy_before_training(tiny_policy):
    seen = []
    told = {"progress": lambda done, total: seen.append((done, total))}
    found = measure_policy(tiny_policy, arithmetic(8, 24), samples=2, base=True, **told)
    assert found.correct.shape == (24, 2)
    assert 0 < found.correct.mean() < 0.7
    assert found.lenient.mean() >= found.correct.mean()
    assert found.shares()["finished"] > 0.8
    assert seen[-1] == (24, 24)


def test_no_held_out_prompts_is_an_error(tiny_policy):
    task = Task("t", [{"prompt": "x"}], [lambda completions, **kwargs: [0.0]])
    with pytest.raises(DataError, match="0 held-out prompts"):
        measure_policy(tiny_policy, task)


def test_a_run_whose_task_file_is_gone_is_measured_on_its_copy(home):
    written = "import workbench as wb\ntask = wb.Task('{}', [{{'prompt': 'a', 'answer': 'b'}}], [len])\n"
    run = RunDirectory(home / "runs" / "r")
    run.path.mkdir(parents=True)
    Recipe(run_name="r", task="mine.py").save(run.path / "recipe.yaml")
    began = {"name": "begun", "source": str(home / "mine.py")}
    run.write_json("manifest.json", {"task": began, "rewards": {"functions": {}}})
    (run.path / "task.py").write_text(written.format("begun"))
    (home / "mine.py").write_text(written.format("edited"))
    assert _task_of(run).name == "edited"
    (home / "mine.py").unlink()
    assert _task_of(run).name == "begun"
    (home / "mine.py").write_text("task = None")
    with pytest.raises(TaskError, match="not bound"):
        _task_of(run)
    (home / "mine.py").unlink()
    (run.path / "task.py").unlink()
    with pytest.raises(TaskError, match=r"no such file"):
        _task_of(run)
