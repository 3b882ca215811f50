"""The summary of a batch: its numbers by hand, and the same from the trainer's arrays and from the record."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
from recording import record

from workbench.health import examine_run
from workbench.health.summary import MOST_GROUPS, StepSummary, summaries_of, summarise
from workbench.recipe import Recipe
from workbench.rewards import groups
from workbench.rewards.groups import DEAD_KINDS
from workbench.rewards.library import correctness_reward, strict_format_reward
from workbench.rewards.suite import RewardSuite
from workbench.run.batch import ScoredBatch
from workbench.run.directory import RunDirectory
from workbench.run.rollouts import stage_in
from workbench.run.turns import ENVIRONMENT, POLICY, Turn
from workbench.task import Task
from workbench.tiny.task import task as arithmetic
from workbench.training.recorder import Recorder
from workbench.training.trainer import train

ROWS = [{"prompt": f"What is {n} + 1?", "answer": str(n + 1), "prompt_id": f"p{n}"} for n in range(4)]
RIGHT = "<reasoning>\nw\n</reasoning>\n<answer>\n{}\n</answer>"


def words_reward(completions, **kwargs):
    """One for each word; of an empty completion it has nothing to say."""
    return [float(len(text.split())) if text else None for text in completions]


def silent_reward(completions, **kwargs):
    return [None] * len(completions)


@pytest.fixture
def live(monkeypatch) -> list[StepSummary]:
    """Summaries of every batch that is recorded, made as they are recorded."""
    made = []
    original = Recorder.batch

    def batch(self, scored):
        made.append(summarise(scored.as_trained(self.stage, self.eos_ids)))
        return original(self, scored)

    monkeypatch.setattr(Recorder, "batch", batch)
    return made


def task(*funcs, **more) -> Task:
    return Task("t", ROWS, funcs, **more)


def batch_of(texts_by_row: list[list[str]]) -> list[tuple[dict, list[str]]]:
    return list(zip(ROWS, texts_by_row))


def test_the_numbers_of_a_batch_by_hand(home, live):
    batch = batch_of([[RIGHT.format(1), "a b c", "", "a"], ["x y", "x y", "x y", "x y"]])
    record(task(correctness_reward, words_reward, silent_reward, right_by="correctness_reward"), [batch])
    [found] = live
    assert (found.step, found.stage, found.completions, found.group_size, found.group_count) == (1, "1", 8, 4, 2)
    right, words, silent = found.functions
    assert (right.name, right.mean, right.low, right.high, right.varies, right.unscored) == (
        "correctness_reward", 0.25, 0.0, 2.0, 1, 0,
    )  # fmt: skip
    # 6, 3, 1 and four times 2 words; the empty one has no score.
    assert words.mean == pytest.approx(18 / 7)
    assert (words.low, words.high, words.varies, words.unscored) == (1.0, 6.0, 1, 1)
    assert (silent.mean, silent.low, silent.high, silent.varies, silent.unscored) == (None, None, None, 0, 8)
    assert right.share + words.share + silent.share == pytest.approx(1)
    assert words.share > right.share > silent.share == 0
    assert [found.metrics[f"groups/{kind}"] for kind in ("mixed", "all_right", "all_wrong")] == [0.5, 0.0, 0.5]
    assert found.dead == {**dict.fromkeys(DEAD_KINDS, 0), "identical texts": 1}
    assert (found.dead_count, found.identical_right) == (1, 0)
    assert found.distinct_in_groups == 5 / 8
    assert (found.commonest, found.commonest_count, found.commonest_right) == ("x y", 4, 0)
    # A token a word here, and none ends with the eos token; the longest alone is as long as the longest.
    assert (found.length, found.longest) == ((7 - 1 + 3 + 0 + 1 + 8) / 8, 6)
    assert (found.unended, found.clipped, found.clipped_right) == (8, 1, 1)
    assert (found.right, found.formatted) == (1, None)
    assert found.length_correlation == pytest.approx(np.corrcoef([8, 3, 0, 1], [6, 3, 0, 1])[0, 1])
    assert [(group.prompt_id, group.dead, group.right, group.clipped) for group in found.groups] == [
        ("p0", None, 1, 1), ("p1", "identical texts", 0, 0),
    ]  # fmt: skip


def test_a_rollout_in_which_the_environment_has_the_last_word_was_not_cut():
    batch = groups.batch_of(["a"], [1.0], np.zeros((4, 1)), list("abcd"), [False] * 4, 2)
    mine, theirs = Turn(POLICY, "guess", 3, True), Turn(ENVIRONMENT, "right", 2, False)
    turns = [[mine, theirs], [mine, theirs, mine], [], [mine]]
    finished = np.array([False, False, False, True])
    assert summarise(dataclasses.replace(batch, finished=finished, turns=turns)).unended == 2


def test_the_metrics_of_its_groups_by_hand():
    scores = np.array([[0, 0, 1, 1, 0, 1, 3, 1]], dtype=float).T  # groups 00 11 01 31
    right = [False, False, True, True, False, True, True, True]
    found = summarise(groups.batch_of(["a"], [1.0], scores, list("abcdefgh"), right, 2)).metrics
    std = (0 + 0 + np.sqrt(0.5) + np.sqrt(2)) / 4
    assert found == {
        "group_reward_std": pytest.approx(std), "groups/mixed": 0.25, "groups/all_right": 0.5, "groups/all_wrong": 0.25,
        "groups/dead": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_the_record_gives_the_same_summary(home, live, scale, aggregation):
    first = batch_of([[RIGHT.format(1), "a b c", "", "a"], ["x y", "x y", "x y", "x y"]])
    second = batch_of([[RIGHT.format(1)] * 4, ["", "", "", ""]])
    asked = task(
        correctness_reward, words_reward, strict_format_reward, silent_reward,
        right_by="correctness_reward", format_by="strict_format_reward",
    )  # fmt: skip
    weights = {"words_reward": 0.3, "silent_reward": 0.0}
    run = record(asked, [first, second], weights=weights, scale=scale, aggregation=aggregation)
    run.update_manifest(task={"format_by": "strict_format_reward", "right_by": "correctness_reward"})
    assert summaries_of(run) == live
    assert len(live) == 2
    assert live[1].identical_right == 1
    assert live[1].formatted == 4


def test_a_real_run_gives_the_same_summaries_while_it_trains_and_afterwards(home, live, tiny_policy_of_its_own):
    grpo = {"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 16, "max_completion_length": 40}
    run = train(Recipe.of({"run_name": "t", "grpo": grpo}), policy=tiny_policy_of_its_own, task=arithmetic(64, 8))
    assert summaries_of(run) == live
    assert summaries_of(run, last=1) == live[1:]
    assert {verdict.last_step for verdict in examine_run(run, last=1)} <= {None, 2}
    assert [found.step for found in live] == [1, 2]
    rows = run.metrics()
    for found, row in zip(live, rows, strict=True):
        assert found.group_std == pytest.approx(row["group_reward_std"], abs=1e-5)
        assert found.length == pytest.approx(row["completions/mean_length"])
        assert found.clipped / found.completions == pytest.approx(row["completions/clipped_ratio"])
        assert found.dead_count / found.group_count == pytest.approx(row["groups/dead"])
        for own in found.functions:
            assert own.mean == pytest.approx(row[f"rewards/{own.name}/mean"], abs=1e-5)
        assert sum(own.share for own in found.functions) == pytest.approx(1)


@pytest.fixture
def tiny_policy_of_its_own():
    from workbench.training.policy import load_policy

    return load_policy("tiny", load_in_4bit=False)


def test_a_part_that_is_torn_is_skipped_and_named(home, live):
    run = record(task(words_reward), [batch_of([["a", "b c"]]), batch_of([["a", "b c"]])])
    part = sorted(run.rollouts.glob("*.parquet"))[0]
    part.write_bytes(part.read_bytes()[:50])
    with pytest.warns(UserWarning, match=f"{part.name}.*skipped"):
        found = summaries_of(run)
    assert found == live[1:]


def test_a_run_without_a_record_has_none(home):
    assert summaries_of(RunDirectory.create("r", Recipe(), {})) == []


def test_of_a_run_with_stages_each_has_its_own_settings():
    manifest = {
        "task": {"format_by": "a", "right_by": "b", "source": "x.py"},
        "settings": {"asked": {"beta": 0.1}, "in_force": {"num_generations": 4}},
        "rewards": {"weights": {"b": 1.0}},
        "stages": [{"name": "late", "settings": {"beta": 0.0}, "rewards": {"weights": {"b": 2.0}}, "right_by": "c"}],
    }
    assert stage_in(manifest, "late")["settings"] == {"beta": 0.0, "num_generations": 4}
    assert stage_in(manifest, "late")["rewards"] == {"weights": {"b": 2.0}}
    assert (stage_in(manifest, "late")["right_by"], stage_in(manifest, "late")["format_by"]) == ("c", "a")
    assert stage_in(manifest)["settings"] == {"beta": 0.1, "num_generations": 4}
    assert stage_in({})["settings"] == {}


def scored_batch(suite: RewardSuite, count: int) -> ScoredBatch:
    scores = np.random.default_rng(0).integers(0, 3, (count, len(suite.names))).astype(float)
    return groups.batch_of(
        suite.names,
        suite.weights,
        scores,
        [f"text {index % 20} " * 40 for index in range(count)],
        [bool(own) for own in scores[:, 0] > 0],
        8,
        prompts=["p"] * count,
        completion_ids=[[1] * 40] * count,
        columns={"prompt_id": [str(index // 8) for index in range(count)]},
        step=1,
    )


@pytest.mark.timing
def test_it_costs_little():
    """0.4 ms were measured for 64 completions and 5 functions on two cores; a shared machine may take longer."""
    suite = RewardSuite(arithmetic(64, 8), 8)
    scored = scored_batch(suite, 64)
    costs = []
    for _ in range(30):
        started = time.process_time()
        summarise(scored)
        costs.append(time.process_time() - started)
    assert min(costs) < 3e-3


def test_it_stays_small():
    suite = RewardSuite(arithmetic(64, 8), 8)
    assert len(summarise(scored_batch(suite, 4096)).groups) == MOST_GROUPS
