"""Reading a run: its groups, its steps, and whether the task is still the one that it was trained on."""

from __future__ import annotations

import dataclasses
import html

import pytest

from workbench.base.errors import RunError
from workbench.data.prompts import question
from workbench.inspection.reading import (
    Listing,
    best_first,
    by_step,
    changed_since,
    explain_group,
    told_apart,
)
from workbench.recipe import Recipe
from workbench.rewards.groups import batch_of, explain_in
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import write_part
from workbench.task import Task, fingerprint
from workbench.views.display import view_of

ROW = {
    "stage": "1", "prompt_id": "p", "prompt": "x", "length_tokens": 4, "finish_reason": "stop", "columns": '{"answer": "4"}',
    "group_mean": 1.0, "reward_hash": "h", "weight.a_reward": 1.0,
}  # fmt: skip


def a_reward(completions, **kwargs):
    return [0.0] * len(completions)


TASK = Task("t", [{"prompt": "x"}, {"prompt": "y"}], [a_reward], held_out=[{"prompt": "z"}])


@pytest.fixture
def run(home):
    manifest = {
        "rewards": {"hash": RewardSuite(TASK, 2).hash},
        "task": {"rows": fingerprint(TASK.rows), "held_out": fingerprint(TASK.held_out)},
    }
    made = RunDirectory.create("r", Recipe(), manifest)
    for index, std in ((0, 0.1), (1, 0.7)):
        rows = [
            {**ROW, "step": 1, "group": index, "generation": g, "completion": f"{index}{g}", "total": float(g),
             "group_std": std, "advantage": float(g), "right": g == 1, "score.a_reward": float(g)}
            for g in range(2)
        ]  # fmt: skip
        write_part(made.rollouts, 1, {key: [row[key] for row in rows] for key in rows[0]}, ["a_reward"])
    return made


def test_the_widest_group_taught_most(run):
    found = explain_group(run)
    assert (found.step, found.prompt, found.answer) == (1, "x", "4")
    assert found.explained.texts == ["11", "10"]
    assert found.title == "step 1: x (right answer: 4)"
    assert explain_group(run, 1, 0, answer_column="other").title == "step 1: x"
    page = view_of(found)._repr_html_()
    assert page.index("11") < page.index("10")
    assert "step 1: x (right answer: 4)" in page
    assert found.explained.verdict in html.unescape(page)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([{"role": "system", "content": "s"}, {"role": "user", "content": "What is 2 + 2?"}], "What is 2 + 2?"),
        ("What is 2 + 2?", "What is 2 + 2?"),
        ("12", "12"),
    ],
)
def test_what_a_prompt_asks(prompt, said):
    assert question(prompt) == said


def test_best_first_moves_every_part_of_a_group():
    # Totals 1, 3, 2 of one function: mean 2, std 1, so the order is 1, 2, 0.
    found = best_first(explain_in(batch_of(["a"], [1.0], [[1.0], [3.0], [2.0]], ["b", "c", "d"], [False] * 3, 3)))
    assert found.texts == ["c", "d", "b"]
    assert found.totals.tolist() == found.scores[:, 0].tolist() == [3.0, 2.0, 1.0]
    assert found.advantages == pytest.approx([1, 0, -1], abs=1e-3)
    assert found.contributions[:, 0] == pytest.approx(found.advantages)
    assert [*found.by_scale] == ["as trained"]
    assert found.by_scale["as trained"].tolist() == found.advantages.tolist()


@pytest.mark.parametrize(
    ("step", "index", "said"),
    [
        (9, 0, "step 9, group 0.*last step on record is 1"),
        (9, None, "step 9: .*last step on record is 1"),
        (1, 2, "step 1, group 2.*2 groups.*0 to 1"),
        (1, -1, "group -1"),
    ],
)
def test_what_is_not_recorded_is_an_error_that_says_what_is(run, step, index, said):
    with pytest.raises(RunError, match=f"(?s){said}"):
        explain_group(run, step, index)


def test_by_step(run):
    found = by_step(run)
    [row] = found.frame.to_dict("records")
    assert row == {
        "step": 1,
        "reward": 0.5,
        "share_right": 0.5,
        "length_tokens": 4.0,
        "clipped": 0.0,
        "distinct_texts": 4,
    }
    assert view_of(found).header == [name.replace("_", " ") for name in row]


def test_a_long_run_is_shown_by_some_of_its_steps(run):
    frame = by_step(run).frame
    many = Listing("45 steps", frame.loc[[0] * 45].assign(step=range(1, 46)), spread=True)
    assert many.some["step"].tolist() == [1, 8, 15, 22, 29, 36, 43, 45]


def test_an_unchanged_task_raises_no_warning(run):
    assert changed_since(run, TASK) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reward_weights": [2.0]}, "reward functions or their weights"),
        ({"held_out": [{"prompt": "x"}]}, "held-out prompts"),
        ({"rows": [{"prompt": "q"}]}, "training prompts"),
    ],
)
def test_a_changed_task_is_named(run, change, said):
    [line] = changed_since(run, dataclasses.replace(TASK, **change))
    assert said in line


ASK = "Is this review positive or negative? Answer with one word.\n\nReview: "


@pytest.mark.parametrize(
    ("prompts", "shown"),
    [
        ([f"{ASK}The soup was cold.", f"{ASK}The soap was old."], ["… soup was cold.", "… soap was old."]),
        ([f"{ASK}Good.", f"{ASK}Good."], [f"{ASK}Good."] * 2),  # nothing tells them apart
        ([f"{ASK}Good.", ASK], [f"{ASK}Good.".replace(ASK, "… "), "… "]),
        (["What is 15 + 27?", "What is 15 + 28?"], ["What is 15 + 27?", "What is 15 + 28?"]),  # short enough
        ([], []),
    ],
)
def test_prompts_that_begin_alike_are_shown_from_where_they_differ(prompts, shown):
    assert told_apart(prompts) == shown
    import pandas

    listing = Listing("", pandas.DataFrame({"prompt": prompts}))
    assert listing.some["prompt"].tolist() == shown
    assert listing.frame["prompt"].tolist() == prompts  # which through_time looks for
