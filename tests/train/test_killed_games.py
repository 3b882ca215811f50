"""A run that is killed (SIGKILL) in the middle of a game and then goes on, against one that nobody killed."""

from __future__ import annotations

import os
import random
import signal

import pytest
from playing_models import Game, make_player, row_of, said_done

from workbench.recipe import Recipe
from workbench.run.directory import open_run
from workbench.run.rollouts import query, read_batches
from workbench.run.turns import turns_of
from workbench.task import Task
from workbench.training.policy import trainer_classes
from workbench.training.trainer import continue_run, train

pytestmark = pytest.mark.slow
trainer_classes()  # unsloth first


class Dealt(Game):
    """Its number follows from the seed of its group."""

    calls, fatal = 0, 0  # of this process; the call that kills it

    def reset(self, seed: int = 0, **row: object) -> str:
        super().reset(secret=1 + seed % 2, seed=seed)
        return " Go."

    def guess(self, number: int) -> str:
        """
        Guess the number.

        Args:
            number: the guess.
        """
        Dealt.calls += 1
        if Dealt.calls == Dealt.fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().guess(number)


class Drawn(Dealt):
    """Its number is drawn from Python's random numbers."""

    def reset(self, **row: object) -> str:
        return super().reset(seed=random.randrange(2))


class Own(Dealt):
    """Its number is drawn from a generator of its own, which goes on from rollout to rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random(7)

    def reset(self, **row: object) -> str:
        return super().reset(seed=self.random.randrange(2))


def task_of(environment) -> Task:
    rows = [{"prompt": row_of(1)["prompt"], "number": number} for number in range(8)]
    return Task("game", rows, [said_done], environment=environment)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_player(tmp_path_factory.mktemp("player") / "player")


def trained(folder, environment, name, fatal=0) -> int:
    """Train in a process of its own; its exit code."""
    asked = {"name": str(folder), "backend": "transformers", "load_in_4bit": False, "max_seq_length": 128}
    grpo = {"max_steps": 5, "save_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8}
    grpo |= {"max_completion_length": 48, "temperature": 1.3, "learning_rate": 1e-4, "beta": 0.01}
    recipe = Recipe.of({"run_name": name, "policy": asked, "grpo": grpo, "seed": 3})
    if not (child := os.fork()):
        code = 1
        try:
            Dealt.calls, Dealt.fatal = 0, fatal
            random.seed(5)
            train(recipe, task=task_of(environment))
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def left_of(run) -> tuple:
    """What a run leaves, but for times: rows of metrics, every column of every rollout, its turns, the adapter."""
    rows = [{k: v for k, v in row.items() if k != "step_time" and not k.startswith("time/")} for row in run.metrics()]
    table = query(run.rollouts, 'select * from rollouts order by step, "group", generation')
    turns = [[turn._replace(calls=tuple(map(untimed, turn.calls))) for turn in turns_of(own)] for own in table.pop("turns")]
    return rows, table.to_csv(), turns, (run.final / "adapter_model.safetensors").read_bytes()


def untimed(call):
    return call._replace(seconds=None)


def calls_by_step(run) -> list[int]:
    return [
        sum(made.seconds is not None for own in batch.turns for turn in own for made in turn.calls) for batch in read_batches(run)
    ]


@pytest.mark.parametrize("environment", [Dealt, Drawn, Own])
def test_it_goes_on_to_the_last_bit_or_says_that_it_does_not(home, folder, environment):
    assert trained(folder, environment, "whole") == 0
    whole = open_run("whole")
    first, second, third, *_ = calls_by_step(whole)
    assert third > 2
    fatal = first + second + third // 2 + 1
    assert trained(folder, environment, "killed", fatal) == -signal.SIGKILL
    run = open_run("killed")
    assert [row["step"] for row in run.metrics()] == [1, 2]  # it was killed in the third, in the middle of a game
    Dealt.fatal = 0
    continue_run(run, task=task_of(environment))
    [continued] = [event for event in run.events() if event["event"] == "continued"]
    if environment is Own:
        assert left_of(run) != left_of(whole)
        assert continued["inexact"].startswith("Own.random starts afresh")
    else:
        assert left_of(run) == left_of(whole)
        assert "inexact" not in continued
