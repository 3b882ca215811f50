"""Replay: a recorded run under other rewards, against numbers worked out by hand; and a record that is not whole."""

from __future__ import annotations

import json
import math
import tracemalloc

import numpy as np
import pyarrow.parquet as pq
import pytest
from recording import record

from workbench.base.errors import RecipeError, RunError, TaskError
from workbench.inspection.replaying import DEAD, MEANING, replay
from workbench.rewards.groups import explain_in
from workbench.run.rollouts import batch_and_place, parts, prompt_of
from workbench.task import Task
from workbench.views.replay import replay_tables

CHAT = {"prompt": [{"role": "user", "content": "2 + 2?"}], "prompt_id": "p1", "answer": "4"}
TEXT = {"prompt": "3 + 3?", "prompt_id": "p2", "answer": "6"}


def text_of(completion):
    return completion if isinstance(completion, str) else completion[0]["content"]


def right_reward(completions, answer, **kwargs):
    return [1.0 if right in text_of(c).split() else 0.0 for c, right in zip(completions, answer)]


def short_reward(completions, **kwargs):
    return [1.0 - len(text_of(c)) / 100 for c in completions]


def kind_reward(completions, **kwargs):
    return [1.0 if "please" in text_of(c) else None for c in completions]


TASK = Task("sums", [CHAT, TEXT], [right_reward])
GROUPS = [(CHAT, ["4", "it is surely 4", "5", "perhaps 6"]), (TEXT, ["7", "eight", "9", "none"])]


@pytest.fixture
def run(home):
    return record(TASK, [GROUPS, GROUPS])


def edited(*functions, weights=None, **kwargs):
    return Task("edited", [CHAT], list(functions), weights, right_by="right_reward", **kwargs)


def test_the_same_rewards_change_nothing(run):
    found = replay(run, TASK)
    assert (found.completions, found.groups, found.recorded) == (16, 4, 16)
    assert (found.turned_up, found.turned_down, found.came_alive, found.died) == (0, 0, 0, 0)
    assert found.rank_correlation == pytest.approx(1.0)
    assert found.old_hash == found.new_hash
    assert found.notes == ["the functions and weights are those of the run"]
    assert found.examples == []
    assert [row["change"] for row in found.functions] == ["same"]
    assert found.functions[0]["rescored"] == 0


def test_a_dead_group_comes_alive_and_the_sign_changes(run):
    def right_reward(completions, answer, **kwargs):
        return [-1.0 if right in text_of(c).split() else 0.0 for c, right in zip(completions, answer)]

    found = replay(run, edited(right_reward, short_reward))
    # In both steps: the first group turns over (two up, two down), the second was all wrong and is now told apart by length.
    assert (found.turned_up, found.turned_down) == (4, 4)
    assert found.signs.sum() == 16
    assert found.signs[1].tolist() == [4, 0, 4]  # 7 and 9 up, eight and none down
    assert (found.old_dead, found.new_dead) == ({"all wrong": 2}, {})
    assert (found.came_alive, found.died) == (2, 0)
    assert [tuple(group.values())[:4] for group in found.alive] == [
        (1, 1, "p2", "all wrong"),
        (2, 1, "p2", "all wrong"),
    ]
    assert found.alive[0]["new_decider"] == "short_reward"
    assert found.deciders == {("right_reward", "right_reward"): 2, (DEAD, "short_reward"): 2}
    assert [tuple(step.values()) for step in found.steps] == [(1, 2, 1, 0), (2, 2, 1, 0)]
    assert found.ranked == 2
    assert [tuple(row[key] for key in ("name", "change", "old_decided", "new_decided")) for row in found.functions] == [
        ("right_reward", "changed", 2, 2),
        ("short_reward", "added", 0, 2),
    ]
    assert (found.functions[0]["old_mean"], found.functions[0]["new_mean"]) == (0.25, -0.25)


def test_rank_correlation_with_ties_by_hand(run):
    # Old totals of the first group 1 1 0 0; new, by length, 0.99 0.86 0.99 0.91: ranks 3.5 3.5 1.5 1.5 against 3.5 1 3.5 2.
    found = replay(run, Task("t", [CHAT], [short_reward]))
    first, second = np.array([3.5, 3.5, 1.5, 1.5]) - 2.5, np.array([3.5, 1, 3.5, 2]) - 2.5
    expected = (first @ second) / math.sqrt((first @ first) * (second @ second))
    assert found.rank_correlation == pytest.approx(expected)
    assert [row["change"] for row in found.functions] == ["added", "removed"]


def test_a_function_that_does_not_apply_and_groups_that_nobody_scores(run):
    found = replay(run, Task("t", [CHAT], [kind_reward]))
    assert found.new_dead == {"not scored": 4}
    assert found.died == 2
    assert found.functions[0]["new_mean"] is None
    assert json.dumps(found.found(), allow_nan=False)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"scale": "batch"}, {"scale": "none"}, {"aggregation": "normalize_then_sum"}], ids=str)
def test_the_runs_own_settings_make_the_advantages(home, settings):
    run = record(edited(right_reward, short_reward), [GROUPS, GROUPS], **settings)
    found = replay(run, edited(right_reward, short_reward))
    assert found.turned_up == found.turned_down == 0
    assert found.examples == []
    assert not any("differ" in note for note in found.notes)


def big_reward(completions, **kwargs):
    return [10.0 if "a" in text_of(c).split() else 2.0 if "c" in text_of(c).split() else 0.0 for c in completions]


def small_reward(completions, **kwargs):
    return [1.0 if "b" in text_of(c).split() else 0.0 for c in completions]


def test_what_gdpo_would_have_made_of_the_same_scores_by_hand(home):
    """Totals 12 10 2 0 and 2 2 2 2. Normalised first, each function is z = 0.866 or -z: 3z -z z -3z and -z z -z z.

    The batch's std of those is sqrt(24 z^2 / 7) = 1.6036.
    """
    funcs = Task("two", [CHAT], [big_reward, small_reward], [1.0, 2.0], right_by="big_reward")
    run = record(funcs, [[(CHAT, ["a b", "a", "b", "none"]), (TEXT, ["c", "b", "c c", "b b"])]])
    found = replay(run, funcs, aggregation="normalize_then_sum", out=home / "side.parquet")
    rows = pq.read_table(home / "side.parquet").to_pydict()
    assert rows["old_advantage"] == pytest.approx([1.019, 0.679, -0.679, -1.019, 0, 0, 0, 0], abs=1e-3)
    assert rows["new_advantage"] == pytest.approx([1.620, -0.540, 0.540, -1.620, -0.540, 0.540, -0.540, 0.540], abs=1e-3)
    assert (found.turned_up, found.turned_down, found.came_alive, found.died) == (1, 1, 1, 0)
    assert (found.old_dead, found.new_dead) == ({"functions cancel": 1}, {})
    # Of the first group's variance, before: 100 and 4 of 104; after: 4 and 16 of 20. The second's, after: -1 and 2.
    big, small = found.functions
    assert (big["old_share"], small["old_share"]) == pytest.approx((100 / 104, 4 / 104))
    assert (big["new_share"], small["new_share"]) == pytest.approx(((0.2 - 1) / 2, (0.8 + 2) / 2), abs=1e-3)
    assert found.aggregation == "normalize_then_sum"
    assert "multi_objective_aggregation sum_then_normalize -> normalize_then_sum" in str(found)
    assert "96% -> -40%" in str(replay_tables(found)[0])
    same = replay(run, funcs)
    assert (same.turned_up, same.came_alive, same.aggregation) == (0, 0, "sum_then_normalize")
    with pytest.raises(RecipeError, match=r"aggregation = 'gdpo'[\s\S]*sum_then_normalize, normalize_then_sum"):
        replay(run, funcs, aggregation="gdpo")


@pytest.mark.slow
def test_weights_of_the_recipe_stay_and_given_ones_go_before_them(home):
    run = record(edited(right_reward, short_reward), [GROUPS], weights={"short_reward": 0.5})
    assert [row["new_weight"] for row in replay(run, edited(right_reward, short_reward)).functions] == [1.0, 0.5]
    found = replay(run, edited(right_reward, short_reward), weights={"short_reward": 3.0})
    assert [(row["old_weight"], row["new_weight"]) for row in found.functions] == [(1.0, 1.0), (0.5, 3.0)]
    assert replay(run, edited(right_reward)).completions == 8  # the recipe's weight has no function any more
    with pytest.raises(RecipeError, match="nobody"):
        replay(run, edited(right_reward), weights={"nobody": 1.0})


def test_what_was_not_recorded_is_named(run):
    def right_reward(completions, difficulty, **kwargs):
        return [0.0] * len(completions)

    with pytest.raises(TaskError, match=r"(?s)right_reward needs 'difficulty'.*answer.*recorded"):
        replay(run, edited(right_reward))


def test_a_column_may_be_empty_in_some_of_the_recorded_rows(home):
    def right_reward(completions, hint, **kwargs):
        return [1.0 if text_of(c) == (wanted or "4") else 0.0 for c, wanted in zip(completions, hint)]

    steps = [[({**CHAT, "hint": hint}, ["4", "5"])] for hint in ("5", None)]
    found = replay(record(TASK, steps), edited(right_reward))
    assert (found.completions, found.turned_up, found.turned_down) == (4, 1, 1)


def test_functions_see_the_columns_the_prompts_and_the_number_of_tokens(run):
    seen = []

    class Spy:
        __name__ = "right_reward"

        def __call__(self, prompts, completions, completion_ids, answer, prompt_id, trainer_state, **kwargs):
            seen.append((prompts, completions, [len(ids) for ids in completion_ids], answer, prompt_id))
            return [0.0] * len(completions)

    found = replay(run, edited(Spy()))
    prompts, completions, lengths, answer, ids = seen[-1]
    assert prompts == [CHAT["prompt"]] * 4 + [TEXT["prompt"]] * 4
    assert completions[1] == [{"role": "assistant", "content": "it is surely 4"}]
    assert completions[4:6] == ["7", "eight"]
    assert lengths == [1, 4, 1, 2, 1, 1, 1, 1]
    assert (answer, ids) == (["4"] * 4 + ["6"] * 4, ["p1"] * 4 + ["p2"] * 4)
    assert any("reads completion_ids" in note for note in found.notes)
    assert any("reads trainer_state" in note for note in found.notes)


@pytest.mark.parametrize("prompt", ['["not", "messages"]', '[{"a": 1}]', "[{broken", '[{"role": "user", "content": "x"}]'])
def test_a_prompt_that_is_text_stays_text_unless_it_is_messages(prompt):
    expected = [{"role": "user", "content": "x"}] if "role" in prompt else prompt
    assert prompt_of(prompt) == expected


def test_a_function_that_draws_at_random_is_told(home):
    count = iter(range(1000))

    class Drawn:
        __name__ = "right_reward"

        def __call__(self, completions, **kwargs):
            return [next(count) / 100 for _ in completions]

    task = Task("t", [CHAT], [Drawn()])
    found = replay(record(task, [GROUPS]), task)
    assert found.functions[0]["rescored"] > 0
    assert any("is unchanged and scores" in note for note in found.notes)


def test_side_by_side(run, home):
    out = home / "new" / "changed.parquet"
    found = replay(run, edited(right_reward, short_reward), out=out)
    table = pq.read_table(out).to_pandas()
    assert len(table) == found.completions
    assert table["step"].tolist() == [1] * 8 + [2] * 8
    assert table["old_dead"].dropna().unique().tolist() == ["all wrong"]
    assert table["new_dead"].isna().all()
    assert table["new_decider"].iloc[4] == "short_reward"
    assert table["new_total"].iloc[0] == pytest.approx(1.99)
    changed = np.sign(table["old_advantage"].round(6)) * np.sign(table["new_advantage"].round(6)) < 0
    assert changed.sum() == found.turned_up + found.turned_down
    assert [file.name for file in out.parent.iterdir()] == ["changed.parquet"]


def test_a_failing_function_leaves_no_half_file(run, home):
    calls = iter([False, True])

    class Fails:
        __name__ = "right_reward"

        def __call__(self, completions, **kwargs):
            if len(completions) == 8 and next(calls):
                raise ValueError("no")
            return [float(len(text_of(c))) for c in completions]

    with pytest.raises(Exception, match="ValueError: no"):
        replay(run, edited(Fails()), out=home / "new" / "out.parquet")
    assert list((home / "new").iterdir()) == []


def test_out_is_never_a_part_of_the_record(run):
    (run.path / "file").write_text("")
    for out in (run.path, run.rollouts / "step-0000009-00.parquet", run.path / "file" / "out.parquet"):
        with pytest.raises(RunError, match="out = "):
            replay(run, TASK, out=out)


def test_a_torn_part_is_left_out_and_told(run):
    first, second = parts(run.rollouts)
    second.write_bytes(second.read_bytes()[:-100])
    found = replay(run, TASK)
    assert (found.completions, found.recorded) == (8, 8)
    assert list(found.left_out) == [second.name]
    assert f"left out: {second.name}" in str(found)
    first.write_bytes(b"")
    with pytest.raises(RunError, match=first.name):
        replay(run, TASK)


def test_groups_that_are_not_whole_are_left_out_and_told(run):
    part = parts(run.rollouts)[1]
    pq.write_table(pq.read_table(part).slice(1), part)
    found = replay(run, TASK)
    assert (found.groups, found.recorded) == (3, 15)
    assert found.left_out == {part.name: "1 groups that are not of 4 completions"}


def test_advantages_that_the_scores_do_not_give_are_told(run):
    run.update_manifest(settings={"in_force": {"num_generations": 4, "scale_rewards": "none"}})
    assert any("the recorded advantages differ" in note for note in replay(run, TASK).notes)


def test_nothing_recorded_and_no_settings_are_errors(run):
    run.update_manifest(settings={"in_force": {}})
    with pytest.raises(RunError, match=r"manifest\.json: no 'num_generations'"):
        replay(run, TASK)
    for part in parts(run.rollouts):
        part.unlink()
    run.update_manifest(settings={"in_force": {"num_generations": 4, "scale_rewards": "none"}})
    with pytest.raises(RunError, match="no rollouts"):
        replay(run, TASK)


def test_the_result_says_what_it_is_not(run):
    found = replay(run, edited(right_reward, short_reward))
    assert MEANING in str(found)
    assert found.found()["meaning"] == MEANING
    assert "not what a new run would reach" in MEANING


@pytest.mark.slow
def test_examples_are_the_largest_changes_one_a_group_and_cut(home):
    batches = [[(CHAT, ["4", "5", "x" * 1000, "6"])], [(CHAT, ["4", "5", "y" * 10, "6"])]]
    found = replay(record(TASK, batches), edited(short_reward, right_reward), examples=1)
    assert len(found.examples) == 1
    found = replay(record(TASK, batches, name="s"), edited(short_reward, right_reward), examples=5)
    assert [example["step"] for example in found.examples] == [1, 2]
    change = [abs(example["new_advantage"] - example["old_advantage"]) for example in found.examples]
    assert change == sorted(change, reverse=True)
    assert all(len(example["completion"]) <= 201 for example in found.examples)


@pytest.mark.parametrize("settings", [{}, {"scale": "batch"}, {"aggregation": "normalize_then_sum"}], ids=str)
def test_a_recorded_group_is_explained_as_it_was_trained_on(home, settings):
    run = record(edited(right_reward, short_reward), [GROUPS, GROUPS], **settings)
    recorded = pq.read_table(parts(run.rollouts)[1]).to_pandas()
    found = explain_in(*batch_and_place(run, 2, 1))
    assert found.texts == GROUPS[1][1]
    assert found.advantages == pytest.approx(recorded["advantage"][4:].to_numpy())
    assert found.contributions.sum(axis=1) == pytest.approx(found.advantages, abs=1e-9)
    assert found.decider == "short_reward"
    assert explain_in(*batch_and_place(run, 1, 0)).decider == "right_reward"
    for step, index in ((2, 2), (2, -1), (9, 0)):
        with pytest.raises(RunError, match=f"step {step}, group {index}"):
            batch_and_place(run, step, index)


def test_parts_are_in_the_order_of_their_numbers(tmp_path):
    names = [
        "step-0000002-00.parquet",
        "step-0000010-02.parquet",
        "step-0000010-100.parquet",
        "step-10000000-00.parquet",
    ]
    for name in reversed(names):
        (tmp_path / name).touch()
    assert [part.name for part in parts(tmp_path)] == names


@pytest.mark.slow
def test_memory_does_not_grow_with_the_record(home):
    import shutil

    def peak(copies):
        batch = [(TEXT, [f"{'w' * 200} {n} {k}" for k in range(8)]) for n in range(250)]
        run = record(TASK, [batch], name=f"n{copies}")
        [first] = parts(run.rollouts)
        for step in range(2, copies + 1):
            shutil.copy(first, first.with_name(f"step-{step:07d}-00.parquet"))
        tracemalloc.start()
        found = replay(run, TASK)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert found.completions == 2000 * copies
        return most

    peak(1)
    few, many = peak(4), peak(20)
    assert many < 1.2 * few
