"""Batches that are read as one give the summaries, and the verdicts, that each by itself gives: byte for byte."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from workbench.health import examine_run
from workbench.health.diagnosis import config_of, diagnose
from workbench.health.summary import summaries_of, summarise
from workbench.recipe import Recipe
from workbench.rewards.groups import batch_of
from workbench.run.directory import RunDirectory
from workbench.run.parts import merge, parts
from workbench.run.rollouts import columns_of, read_part, write_part

STEPS = 45


def made(
    seed: int, groups: int, size: int, functions: int, *, aggregation: str = "sum_then_normalize", scale: str = "group"
) -> RunDirectory:
    """A run whose scores are of every kind: rounded ones, long fractions, none, equal ones, such that cancel.

    After a third of it the weights change; after two thirds its stage, and how many groups a batch has.
    """
    draw = np.random.default_rng(seed)
    names = [f"f{number}_reward" for number in range(functions)]
    manifest = {
        "task": {"format_by": names[-1], "right_by": names[0]},
        "rewards": {"weights": dict.fromkeys(names, 1.0)},
        "settings": {"in_force": {"num_generations": size, "scale_rewards": scale, "multi_objective_aggregation": aggregation}},
    }
    run = RunDirectory.create("r", Recipe(), manifest)
    with (run.path / "metrics.jsonl").open("w") as lines:
        lines.writelines(f'{{"step": {step}, "reward": {draw.random()}}}\n' for step in range(1, STEPS + 1))
    for step in range(1, STEPS + 1):
        late = 3 * step > 2 * STEPS
        count = size * (groups + late)
        scores = draw.choice([0.0, 1.0, 0.1, -0.0, 2 / 3, np.nan], (count, functions))
        some = draw.random(count // size).repeat(size)
        scores[some < 0.5] = draw.normal(size=(int((some < 0.5).sum()), functions))
        scores[some < 0.2] = 1.0
        scores[some > 0.95] = np.nan
        if functions > 1:
            cancel = (some > 0.8) & (some < 0.9)
            scores[cancel, 1] = -np.nan_to_num(scores[cancel, 0])
            scores[cancel, 2:] = 0.5
        scores[draw.random(scores.shape) < 0.002] = np.inf
        weights = [1.0] * functions if 3 * step < STEPS else [1.0, 0.3, 1 / 3, 1.0, 0.0, 2.0][:functions]
        with np.errstate(all="ignore"):
            batch = batch_of(
                names, weights, scores, [f"text {word}" for word in draw.integers(0, 3 + size, count)],
                scores[:, 0] > 0.5, size, scale, aggregation, step=step, stage="late" if late else "1",
                lengths=draw.integers(0, 40, count), finished=draw.random(count) < 0.7,
                columns={"prompt_id": [f"p{prompt}" for prompt in draw.integers(0, 5, count // size) for _ in range(size)]},
            )  # fmt: skip
        columns = columns_of(batch)
        if step == 7:  # a group that lost a row, as of a kill in an older version
            columns = {name: values if values is None else values[:-1] for name, values in columns.items()}
        write_part(run.rollouts, step, columns, names)
    return run


def alone(run: RunDirectory) -> list:
    manifest = run.manifest()
    return [summarise(batch) for part in parts(run.rollouts) for batch in read_part(part, manifest, bare=True)]


def written(values: list) -> list[str]:
    return [repr(dataclasses.asdict(value)) for value in values]


@pytest.mark.parametrize(
    ("groups", "size", "functions"),
    [(1, 8, 2), (3, 8, 1), (2, 7, 4), (1, 13, 6), (9, 4, 3), (40, 8, 5), (5, 2, 2), (1, 9, 1)],
)
def test_batches_read_as_one_have_the_summaries_and_verdicts_of_each(home, groups, size, functions):
    run = made(groups, groups, size, functions)
    before = alone(run)
    expected = written(diagnose(before, run.metrics(), config_of(run, "late"), []))
    assert written(summaries_of(run)) == written(before)
    merge(run.rollouts, STEPS)
    [part] = parts(run.rollouts)
    joined = [1 + len(batch.later) for batch in read_part(part, run.manifest(), bare=True, joined=True)]
    assert sum(joined) == len(before) == STEPS
    assert max(joined) > 1
    assert 1 in joined or groups * size > 256  # that of step 7
    assert written(summaries_of(run)) == written(alone(run)) == written(before)
    assert written(examine_run(run)) == expected
    assert any(own.dead["functions cancel"] for own in before) == (functions > 1)
    assert any(own.group_std is None for own in before) == (groups == 1)


@pytest.mark.parametrize("scale", ["batch", "none"])
def test_so_do_those_of_another_scale(home, scale):
    run = made(1, 2, 6, 3, scale=scale)
    before = written(alone(run))
    merge(run.rollouts, STEPS)
    assert written(summaries_of(run)) == before


def test_batches_that_are_normalised_as_a_whole_are_so_one_by_one(home):
    run = made(2, 2, 6, 3, aggregation="normalize_then_sum")
    before = written(alone(run))
    merge(run.rollouts, STEPS)
    [part] = parts(run.rollouts)
    read = list(read_part(part, run.manifest(), bare=True, joined=True))
    assert [1 + len(batch.later) for batch in read] == [6, 1, 7, 16, 15]
    assert written(summaries_of(run)) == before


def test_weights_that_change_at_each_step_are_kept_apart(home):
    run = RunDirectory.create("r", Recipe(), {"settings": {"in_force": {"num_generations": 2}}})
    for step, weight in enumerate([1.0, 0.5, 0.5, 0.25], start=1):
        batch = batch_of(["a"], [weight], np.array([[0.0], [1.0]]), ["x", "y"], [False, True], 2, step=step)
        write_part(run.rollouts, step, columns_of(batch), ["a"])
    merge(run.rollouts, STEPS)
    [part] = parts(run.rollouts)
    read = list(read_part(part, run.manifest(), bare=True, joined=True))
    assert [(batch.step, batch.later, batch.weights) for batch in read] == [(1, [], [1.0]), (2, [3], [0.5]), (4, [], [0.25])]
    assert [own.functions[0].weight for own in summaries_of(run)] == [1.0, 0.5, 0.5, 0.25]
    assert list(itertools.chain(*([own.step] for own in summaries_of(run, last=2)))) == [3, 4]


def test_a_function_with_an_infinite_score_in_every_batch_is_examined(home):
    run = RunDirectory.create("r", Recipe(), {"settings": {"in_force": {"num_generations": 4}}})
    for step in range(1, 21):
        scores = np.array([[0.0], [1.0], [np.inf], [2.0]])
        with np.errstate(all="ignore"):
            batch = batch_of(["a"], [1.0], scores, list("wxyz"), [True, False] * 2, 4, step=step)
        write_part(run.rollouts, step, columns_of(batch), ["a"])
    states = {verdict.name: verdict.state for verdict in examine_run(run)}
    assert states["reward_cannot_pay"] == "ok"
