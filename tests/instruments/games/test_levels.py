"""Finding a level and moving it: the search over made policies, the curriculum's rule, and what they refuse."""

from __future__ import annotations

import contextlib
import io
import random
import time
from types import SimpleNamespace

import numpy as np
import pytest

from workbench.base.errors import RecipeError, TaskError
from workbench.instruments.games import gym
from workbench.instruments.games.curriculum import BATCHES, Curriculum, moved
from workbench.instruments.games.levels import BAND, MOST, find_level, search
from workbench.recipe import Recipe
from workbench.tasks.loading import load_task
from workbench.training.plan.prepare import plan
from workbench.training.sampling import scored_groups


class Made:
    """A policy that solves each level so often, and counts what it is asked for."""

    def __init__(self, rates, seed=0, broken=()):
        self.rates, self.broken, self.random, self.asked = rates, broken, random.Random(seed), []

    def __call__(self, level, start, count):
        if level in self.broken:
            raise TaskError(f"level {level}: 0 questions", rule="it makes some", remedy="another")
        self.asked.append((level, start, count))
        return sum(self.random.random() < self.rates[level] for _ in range(count)), count


def searched(rates, seed=0, broken=()):
    made = Made(rates, seed, broken)
    return search(range(len(rates)), made), made


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("place", range(11))
def test_the_level_in_the_band_is_found_wherever_it_is(place, seed):
    rates = [1.0] * place + [0.5] + [0.0] * (10 - place)
    found, made = searched(rates, seed)
    assert (found.chosen, found.in_band) == (place, True)
    assert found.completions == sum(count for _, _, count in made.asked) <= MOST
    assert f"level {place} chosen" in str(found)


def test_no_question_is_asked_twice():
    _, made = searched([1.0, 0.95, 0.4, 0.1, 0.0])
    drawn = [(level, number) for level, start, count in made.asked for number in range(start, start + count)]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize(
    ("rates", "level", "why"),
    [
        ([0.0, 0.0, 0.0], 0, "level 0 is nearest, solved 0 %: it is the easiest"),
        ([1.0, 1.0, 1.0], 2, "level 2 is nearest, solved 100 %: it is the hardest"),
        ([1.0, 0.0], 0, "the next harder one lies on the other side"),
    ],
)
def test_where_no_level_is_in_the_band_the_nearest_is_named_and_why(rates, level, why):
    found, _ = searched(rates)
    assert (found.chosen, found.in_band) == (level, False)
    assert f"no level is solved 20 % to 80 % of the time; {why}".split("; ")[0] in str(found)
    assert why in str(found)
    assert ("warm_start" in str(found)) is (0 < rates[level] < BAND[0])


def test_one_difficulty_is_measured_and_chosen():
    found = search((None,), Made({None: 0.0}))
    assert (found.chosen, found.completions) == (None, 32)
    assert "its one difficulty is nearest, solved 0 %: the task has one difficulty" in str(found)


def test_a_level_that_makes_no_questions_is_passed_over_and_told():
    found, _ = searched([1.0, 0.5, 0.5, 0.0], broken=(2,))
    assert (found.chosen, found.in_band) == (1, True)
    found, _ = searched([0.5], broken=(0,))
    assert "level 0: level 0: 0 questions" in str(found)
    assert "no level could be measured" in str(found)
    found, _ = searched([1.0, 0.5, 0.5], broken=(1, 2))
    assert found.verdict.endswith("solved 100 %: the next harder one could not be measured")


def test_a_rate_at_an_end_of_the_band_is_measured_further():
    found, made = searched([0.15], seed=3)
    assert [count for _, _, count in made.asked] == [32, 64]
    right, of = found.solved[0]
    assert of == 96
    assert found.in_band == (right / of >= BAND[0])


def test_a_level_near_an_end_of_the_band_is_left_for_one_nearer_to_its_middle():
    found, made = searched([1.0, 0.95, 0.5, 0.35, 0.24, 0.1, 0.02])
    levels = list(dict.fromkeys(level for level, _, _ in made.asked))
    assert levels[:2] == [0, 3]
    assert (found.chosen, found.in_band) == (3, True)  # certain: none is looked at behind it
    found, made = searched([1.0, 0.6, 0.6, 0.24], seed=2)
    assert found.certain(found.chosen)
    assert found.chosen in (1, 2)


def test_a_level_certain_after_its_first_completions_takes_no_more():
    found, made = searched([0.5])
    assert found.certain(0)
    assert made.asked == [(0, 0, 32)]


def test_an_easiest_level_without_questions_does_not_end_the_search():
    found, _ = searched([1.0, 0.9, 0.5, 0.1], broken=(0,))
    assert (found.chosen, found.in_band) == (2, True)
    assert list(found.failures) == [0]


def test_of_made_policies_with_a_level_in_the_band_auto_lands_in_nearly_all():
    # sure: solved 27 to 73 %; landed: 60 fresh completions are solved 19 to 81 %
    drawn, landed, of = random.Random(0), 0, 0
    for seed in range(1000):
        levels, slope = drawn.randint(3, 11), drawn.uniform(0.3, 3)
        middle = drawn.uniform(-1, levels)
        rates = [1 / (1 + np.exp(slope * (level - middle))) for level in range(levels)]
        if any(0.27 <= rate <= 0.73 for rate in rates):
            found, _ = searched(rates, seed)
            fresh = sum(drawn.random() < rates[found.chosen] for _ in range(60)) / 60
            landed, of = landed + (found.in_band and 0.19 <= fresh <= 0.81), of + 1
    assert of > 500
    assert landed / of > 0.96  # 98 %; 94 % where any share in the band ended the search


# --- the curriculum's rule --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "level"),
    [
        ([1.0] * (BATCHES - 1), 3),  # too few
        ([1.0] * BATCHES, 4),
        ([0.8] * BATCHES, 3),  # not more than 80 %
        ([0.0] * BATCHES, 2),
        ([0.0, 0.0, 0.0, 0.0, 1.0], 3),  # 20 %: not fewer
        ([0.0] * 9 + [1.0] * BATCHES, 4),  # the last ones count
    ],
)
def test_the_level_moves_by_the_last_batches(shares, level):
    assert moved(3, shares) == level


def test_what_a_curriculum_remembers_comes_back():
    first, second = Curriculum(None), Curriculum(None)
    first.level, first.highest, first.shares = 3, 4, [0.5, 0.25]
    second.restore(first.state())
    assert second.state() == first.state() == {"curriculum": {"level": 3, "highest": 4, "shares": [0.5, 0.25]}}
    second.restore({})  # of a checkpoint from before it was there
    assert second.level == 3


def test_a_level_that_makes_no_questions_is_not_moved_to(monkeypatch, capsys):
    def none(name, questions):
        raise TaskError(f"task {name!r}: 0 questions", rule="it makes some", remedy="another")

    monkeypatch.setattr("workbench.instruments.games.gym.task", none)
    made = Curriculum(None)
    made.stage = SimpleNamespace(scored_by=[SimpleNamespace(name="reasoning_gym/chain_sum@1")])
    made.level, made.highest, made.levels, made.shares, made.rows = 1, 1, range(3), [1.0] * BATCHES, {}
    for _ in range(2):
        made.on_batch(SimpleNamespace(right=np.ma.ones(8), step=9))
    assert (made.level, made.highest) == (1, 1)
    assert capsys.readouterr().out == "curriculum: stays at level 1: task 'reasoning_gym/chain_sum@2': 0 questions\n"


def test_a_step_that_waits_for_questions_says_so_and_asks_for_few(monkeypatch, capsys):
    asked = []

    def slow(name, questions):
        asked.append(questions)
        with contextlib.redirect_stdout(io.StringIO()):  # as while the library makes them
            time.sleep(0.5)
        raise TaskError(f"task {name!r}: too slow", rule="it is quick", remedy="another")

    monkeypatch.setattr("workbench.instruments.games.gym.task", slow)
    made = Curriculum(None)
    made.stage = SimpleNamespace(scored_by=[SimpleNamespace(name="reasoning_gym/chain_sum@1")])
    made.level, made.rows = 1, {}
    for quiet_s, lines in ((0.05, 2), (60.0, 1)):
        monkeypatch.setattr("workbench.instruments.games.curriculum._QUIET_S", quiet_s)
        made.rows.clear()
        assert made._rows(2) == []
        told = capsys.readouterr().out.splitlines()
        assert len(told) == lines
        assert told[0].startswith("curriculum: the step waits for the questions of level 2") is (lines == 2)
    # the docstring's 210 s
    assert asked == [300, 300]
    assert max(asked) * gym._LONGEST_S == pytest.approx(210)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ({"difficulty": "auto"}, "finds a level of a task `reasoning_gym/NAME`"),
        ({"curriculum": True}, "begins at a level of a task `reasoning_gym/NAME`"),
        ({"difficulty": "auto", "task": "reasoning_gym/chain_sum@1"}, "written without one"),
        ({"difficulty": "hard"}, "Input should be 'auto'"),
    ],
)
def test_what_is_asked_of_a_task_without_levels_is_refused(content, rule):
    with pytest.raises(RecipeError, match=rule):
        plan(Recipe.of(content))


def test_auto_beside_a_task_object_is_refused():
    with pytest.raises(RecipeError, match="beside a task object, 'arithmetic'"):
        plan(Recipe.of({"difficulty": "auto"}), load_task("arithmetic"))


def test_auto_in_several_processes_is_refused(monkeypatch):
    pytest.importorskip("reasoning_gym")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RecipeError, match="difficulty = 'auto' in 2 processes") as refused:
        find_level(Recipe.of({"task": "reasoning_gym/chain_sum", "difficulty": "auto"}))
    assert "workbench plan" in refused.value.remedy


# --- with the library -------------------------------------------------------------------------------------------------

POLICY = {"load_in_4bit": False}
GRPO = {"num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 24, "learning_rate": 1e-4}


def test_auto_measures_once_and_keeps_what_it_found(home, tiny_policy, capsys):
    pytest.importorskip("reasoning_gym")
    asked = Recipe.of({"task": "reasoning_gym/letter_counting", "difficulty": "auto", "policy": POLICY, "grpo": GRPO})
    found, (said,) = find_level(asked, tiny_policy)
    measured = capsys.readouterr().out
    assert found.task.startswith("reasoning_gym/letter_counting@")
    assert found.difficulty is None
    assert "kept in" in said
    assert list((home / "tasks" / "levels").glob("letter_counting-*.jsonl"))
    assert " of 32 solved" in measured
    again = find_level(asked, tiny_policy)
    assert again == (found, [said])
    assert capsys.readouterr().out == ""
    # under other settings it is another measurement
    find_level(asked.model_copy(update={"seed": 1}), tiny_policy)
    assert " of 32 solved" in capsys.readouterr().out


def test_auto_samples_as_the_run_does(home, tiny_policy, monkeypatch):
    pytest.importorskip("reasoning_gym")
    seen = []

    def spied(*arguments, **how):
        seen.append(how)
        return scored_groups(*arguments, **how)

    monkeypatch.setattr("workbench.instruments.games.levels.scored_groups", spied)
    shapes = [{}, {"top_k": 1}, {"top_p": 0.5, "min_p": 0.1}, {"generation_kwargs": {"repetition_penalty": 1.5}}]
    content = {"task": "reasoning_gym/letter_counting", "difficulty": "auto", "policy": POLICY}
    for shape in shapes:
        before = len(seen)
        find_level(Recipe.of({**content, "grpo": {**GRPO, **shape}}), tiny_policy)
        assert len(seen) > before  # what another sampling found is not taken for this one's
        wanted = shape.get("generation_kwargs", shape)
        names = ("top_p", "top_k", "min_p", "repetition_penalty")
        assert {name: seen[-1][name] for name in names if name in seen[-1]} == wanted
    assert len(list((home / "tasks" / "levels").glob("letter_counting-*.jsonl"))) == len(shapes)


@pytest.mark.slow
def test_a_curriculum_moves_the_prompts_and_survives_a_resume_to_the_bit(home):
    pytest.importorskip("reasoning_gym")
    from workbench.inspection import over_levels
    from workbench.run.control_file import send
    from workbench.run.rollouts import query
    from workbench.training.policy import load_policy
    from workbench.training.trainer import continue_run, train

    class Stops:
        def begin(self, run, total_steps, settings):
            self.run = run

        def update(self, step, values):
            if step == 7:
                send(self.run, "stop", by="test")

        def end(self, message):
            pass

    def made(name, watchers=None):
        content = {"run_name": name, "task": "reasoning_gym/chain_sum@2", "curriculum": True, "policy": POLICY}
        recipe = Recipe.of({**content, "grpo": {**GRPO, "max_steps": 12}, "seed": 1})
        return train(recipe, policy=load_policy("tiny", load_in_4bit=False), watchers=watchers)

    whole = made("whole")
    levels = [row["curriculum/level"] for row in whole.metrics()]
    assert levels == [2] * 5 + [1] * 5 + [0] * 2  # the embedded policy solves none of them
    assert whole.result()["curriculum"] == {"began": 2, "level": 0, "highest": 2}
    events = [(each["step"], each["before"], each["after"]) for each in whole.events() if each["event"] == "curriculum"]
    assert events == [(5, 2, 1), (10, 1, 0)]
    recorded = query(whole.rollouts)[["step", "columns"]].itertuples(index=False)
    assert all(f"reasoning_gym/chain_sum@{levels[step - 1]:.0f}" in columns for step, columns in recorded)

    stopped = made("stopped", [Stops()])
    assert 5 < stopped.result()["steps"] < 10  # between two moves
    resumed = continue_run(stopped, policy=load_policy("tiny", load_in_4bit=False))
    for name in ("loss", "grad_norm", "curriculum/level", "reward"):
        assert [row[name] for row in resumed.metrics()] == [row[name] for row in whole.metrics()]
    assert resumed.result()["curriculum"] == whole.result()["curriculum"]
    over = over_levels(resumed, held_out=4, samples=1)
    assert [point.level for point in over.points] == [0, 1, 2, 3, 4, 5]
    assert over.trained == 2
    assert over_levels(resumed, held_out=4, samples=1).found == over.found

    def all_but_3(name):
        if name.endswith("@3"):
            raise TaskError(f"task {name!r}: 11 different questions", rule="20", remedy="another")
        return load_task(name)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("workbench.instruments.games.over_levels.load_task", all_but_3)
        measured = over_levels(resumed, [2, 3, 4], held_out=4, samples=1)
    for over in (measured, over_levels(resumed, [2, 3, 4], held_out=4, samples=1)):  # the second is read
        assert [point.level for point in over.points] == [2, 4]
        assert over.skipped == {3: "task 'reasoning_gym/chain_sum@3': 11 different questions"}
        assert over.verdict == "not known above level 2: level 3 could not be measured"
