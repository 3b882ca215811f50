"""Luck of the start: the split of the variance by hand, environments told apart by their rewards, and rollouts played."""

from __future__ import annotations

import json
import math
import random

import commanding
import numpy as np
import pytest
from playing_models import Game, make_player, row_of
from starting import TASK, Drawn, Fixed, Locked, Seeded, task_of

from workbench.base.environments import copies, pinned_random, started
from workbench.base.errors import TaskError
from workbench.inspection.statistics import UNTOLD
from workbench.instruments.games.starts import FAIR, UNEQUAL, luck_finding, measure_starts, start_luck
from workbench.task import Task
from workbench.training.playing import play
from workbench.training.policy import load_policy

# --- the split, by hand -----------------------------------------------------------------------------------------
LUCK = [[1.0, 1.0], [0.0, 0.0]]  # MSB 1, MSW 0: 1/2 between, 0 within
NONE = [[1.0, 0.0], [1.0, 0.0]]  # MSB 0, MSW 1/2: -1/4 between, 1/2 within
SOME = [[3.0, 1.0], [0.0, 0.0]]  # MSB 4, MSW 1: 3/2 between, 1 within
GAPS = [[2.0, 0.0], [4.0, math.nan], [math.nan, math.nan]]  # MSB 6, MSW 2, n0 4/3: 3 between, 2 within


@pytest.mark.parametrize(
    ("prompts", "share"),
    [
        ([LUCK], 1.0), ([NONE], 0.0), ([SOME], 0.6), ([GAPS], 0.6), ([LUCK, NONE], 1 / 3), ([LUCK, NONE, NONE], 0.0),
        ([SOME, NONE], 5 / 11),
    ],
    ids=["all", "none", "some", "gaps", "pooled unclipped", "clipped at the end", "two"],
)  # fmt: skip
def test_the_share_is_that_of_the_pooled_variances(prompts, share):
    found = start_luck([np.array(own) for own in prompts])
    assert found.share == pytest.approx(share)
    assert (found.verdict, found.low, found.high, found.prompts) == (UNTOLD, 0.0, 1.0, len(prompts))


def test_a_prompt_whose_rewards_are_equal_says_nothing():
    silent = [np.full((2, 2), 0.3), np.full((2, 2), math.nan), np.array([[1.0, 0.0], [math.nan, math.nan]]), np.eye(2)[:1]]
    some = [np.array(SOME), np.array(NONE)] * 5
    assert start_luck(some + silent) == start_luck(some)
    found = start_luck(silent)
    assert (found.verdict, found.prompts) == (UNTOLD, 0)
    assert math.isnan(found.share)
    assert start_luck([]).verdict == UNTOLD


def test_verdicts_need_prompts_and_intervals_on_one_side_of_a_tenth():
    assert start_luck([np.array(LUCK)] * 7).verdict == UNTOLD
    assert start_luck([np.array(LUCK)] * 8) == (UNEQUAL, 1.0, 1.0, 1.0, 8)
    assert start_luck([np.array(NONE)] * 8) == (FAIR, 0.0, 0.0, 0.0, 8)
    mixed = start_luck([np.array(LUCK), np.array(NONE)] * 6)
    assert mixed.verdict == UNTOLD
    assert mixed.low < 0.1 < mixed.high
    assert start_luck([np.array(LUCK), np.array(NONE)] * 6) == mixed  # the seed is fixed


@pytest.mark.parametrize("bad", [np.ones(4), np.ones((2, 2, 2)), np.array([[1.0, math.inf], [0.0, 1.0]])])
def test_what_is_no_table_of_rewards_is_refused(bad):
    with pytest.raises(ValueError, match="finite"):
        start_luck([bad])


@pytest.mark.parametrize(("kind", "verdict"), [(Fixed, FAIR), (Seeded, FAIR), (Drawn, UNEQUAL)])
def test_three_kinds_are_told_apart_by_their_rewards_in_20_of_20(kind, verdict):
    """16 prompts, 8 starts of each as a run makes them, 8 rollouts from each, each in a copy."""
    task = task_of(kind)
    for repeat in range(20):
        with pinned_random(repeat):
            groups = [[started(kind, row, 100 * repeat + n) for _ in range(8)] for n, row in enumerate(task.rows)]
            rewards = [[[own.get_reward() for own in copies(each, 8, "game")] for each in group] for group in groups]
        found = start_luck([np.array(own) for own in rewards])
        assert found.verdict == verdict, (repeat, found)


# --- played -----------------------------------------------------------------------------------------------------
class Lucky(Game):
    """The secret is drawn, and the first guess of the policy is always 2."""

    def reset(self, **row):
        return super().reset(random.randint(1, 2))

    def get_reward(self) -> float:
        return float(self.guesses[:1] == [self.secret])


SAMPLED = {"temperature": 1.0, "max_completion_length": 48}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_player(tmp_path_factory.mktemp("starter") / "player")


@pytest.fixture(scope="module")
def policy(folder):
    return load_policy(str(folder), load_in_4bit=False, max_seq_length=128)


@pytest.mark.slow
def test_several_rollouts_go_on_from_one_start(policy):
    task = task_of(Lucky, rows=4)
    groups = play(policy, task, task.rows, num_generations=6, per_start=3, batch_size=12, **SAMPLED)
    secrets = [[own.environment.secret for own in group] for group in groups]
    assert all(len({*group[:3]}) == len({*group[3:]}) == 1 for group in secrets)
    assert len({group[0] for group in secrets} | {group[3] for group in secrets}) == 2
    assert len({id(own.environment) for group in groups for own in group}) == 24
    again = play(policy, task, task.rows, num_generations=6, per_start=3, batch_size=12, **SAMPLED)
    assert [[own.environment.secret for own in group] for group in again] == secrets
    with pytest.raises(TaskError, match="no environment to copy"):
        play(policy, Task("t", [row_of(1)], [lambda completions, **_: [1.0]], tools=[Game().guess]), [row_of(1)], per_start=2)
    with pytest.raises(TaskError, match="Locked cannot be split"):
        measure_starts(policy, task_of(Locked), prompts=1, **SAMPLED)
    assert measure_starts(policy, task, starts=2, per_start=1, **SAMPLED).verdict == UNTOLD


@pytest.mark.slow
def test_luck_is_measured_by_play(policy):
    found = measure_starts(policy, task_of(Lucky), starts=4, per_start=2, **SAMPLED)
    assert found.verdict == UNEQUAL
    assert found.share > 0.7  # the policy does not always guess 2
    said = luck_finding(policy, task_of(Lucky), prompts=12, starts=4, per_start=2, **SAMPLED)
    assert said.severity == "warning"
    assert said.text.startswith("unequal: luck of the start is ")
    assert "12 prompts, " in said.text
    alike = luck_finding(policy, task_of(Game), prompts=3, starts=2, per_start=2, **{**SAMPLED, "temperature": 0.0})
    assert (alike.severity, alike.text.partition(":")[0]) == ("note", UNTOLD)
    assert "an unknown part" in alike.text


@pytest.mark.slow
def test_probe_measures_luck(home, folder):
    (home / "guess.py").write_text(TASK)
    told = commanding.workbench(
        "probe", "guess.py", "--policy", str(folder), "--rollouts", "2", "--max-completion-length", "48", "--json", home=home
    )
    assert told.returncode == 0, told.stderr
    first = json.loads(told.stdout)["findings"][0]
    assert "4 prompts, 0 of them with rewards that differ, 8 starts of each" in first["text"]
