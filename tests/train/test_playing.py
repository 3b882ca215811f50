"""Rollouts with turns outside a trainer: the same as the trainer's own, scored with their environments."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from playing_models import Game, guessed, make_player, row_of, said_done

from workbench.base.errors import DataError, TaskError
from workbench.exporting.reference import suite_of_run
from workbench.inspection.evaluation import evaluate, measure_policy
from workbench.recipe import Recipe
from workbench.rewards.suite import RewardSuite
from workbench.run.held_out import held_out
from workbench.run.turns import POLICY, TOOL, turns_of
from workbench.task import Task
from workbench.training.playing import marks_of, play
from workbench.training.policy import load_policy, trainer_classes
from workbench.training.profiling import profile_difficulty
from workbench.training.sampling import scored_groups
from workbench.training.trainer import train

pytestmark = pytest.mark.slow
ROWS = [row_of(1), row_of(2)]
GREEDY = {"temperature": 0.0, "max_completion_length": 64}
SAMPLED = {"temperature": 3.0, "max_completion_length": 48, "seed": 5}
# What the policy does by heart: it guesses 2, then 1, and says that it is done. 4 tokens each.
BY_HEART = [[{"number": 2}, {"number": 1}, None], [{"number": 2}, None]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_player(tmp_path_factory.mktemp("player") / "player")


@pytest.fixture(scope="module")
def policy(folder):
    return load_policy(str(folder), load_in_4bit=False, max_seq_length=128)


def task_of(**parts) -> Task:
    return Task(**{"name": "game", "rows": ROWS, "held_out": ROWS, "reward_funcs": [said_done], "environment": Game, **parts})


def of_trl(policy, task, rows, size, *, temperature, max_completion_length, seed=0, rounds=None):
    """(ids, mask, messages) of TRL's own trainer: [B] each."""
    from datasets import Dataset

    config_class, trainer_class = trainer_classes(policy.backend_name)
    own = {"do_sample": False} if temperature == 0 else {}
    config = config_class(
        output_dir="unused", num_generations=2, per_device_train_batch_size=2, max_completion_length=max_completion_length,
        temperature=temperature or 1.0, generation_kwargs=own, max_tool_calling_iterations=rounds, report_to=[], use_cpu=True,
        bf16=False, beta=0.0,
    )  # fmt: skip
    trainer = trainer_class(
        model=policy.model, args=config, train_dataset=Dataset.from_list(rows), processing_class=policy.tokenizer,
        reward_funcs=[said_done], **task.for_turns,
    )  # fmt: skip
    seen, generate = [], trainer._generate

    def watched(prompts):
        torch.manual_seed(seed)
        seen.append(generate(prompts))
        return seen[-1]

    trainer._generate = watched
    with torch.random.fork_rng():
        trainer._generate_and_score_completions([row for row in rows for _ in range(size)])
    _, ids, mask, messages, *_ = seen[0]
    return ids, mask, messages


@pytest.mark.parametrize("way", [GREEDY, SAMPLED, {**GREEDY, "max_completion_length": 12}], ids=["greedy", "sampled", "short"])
@pytest.mark.parametrize("environment", [Game, {"a": Game, "b": Game}], ids=["one", "two"])
def test_it_plays_what_the_trainer_would(policy, way, environment):
    rows = [{**row, "environment": name} for row, name in zip(ROWS, "ab", strict=True)]
    task = task_of(rows=rows, environment=environment)
    ids, mask, messages = of_trl(policy, task, rows, 3, **way)
    own = [each for group in play(policy, task, rows, num_generations=3, **way) for each in group]
    assert [each.ids for each in own] == ids
    assert [each.messages for each in own] == messages
    assert [[turn.in_loss for turn in each.turns for _ in range(turn.tokens)] for each in own] == [
        [bool(one) for one in each] for each in mask
    ]


def test_a_game_turn_by_turn(policy):
    groups = play(policy, task_of(), ROWS, num_generations=2, **GREEDY)
    assert [len(group) for group in groups] == [2, 2]
    for group, wanted in zip(groups, BY_HEART, strict=True):
        for own in group:
            policys = [turn for turn in own.turns if turn.author == POLICY]
            calls = [call for turn in policys for call in turn.calls]
            assert [call.arguments for call in calls] == wanted[:-1]
            assert [call.result for call in calls] == ["lower", "yes"][-len(calls) :]
            assert [turn.author for turn in own.turns[:-1:2]] == [POLICY] * len(calls)
            assert {turn.author for turn in own.turns[1::2]} == {TOOL}
            assert own.text == "\n".join(turn.text for turn in policys)
            assert (own.length_tokens, own.finished) == (4 * len(wanted), True)
            assert own.environment.guesses == [call.arguments["number"] for call in calls]


def test_each_has_an_environment_of_its_own_that_begins_as_its_group(policy):
    Game.made = 0
    rows = [*ROWS, {**row_of(2), "seed": 7}]
    # two batches: the first one's environments are not used again
    groups = play(policy, task_of(), rows, num_generations=2, batch_size=4, **GREEDY)
    own = [[each.environment for each in group] for group in groups]
    assert len({id(each) for group in own for each in group}) == 6
    seeds = [{each.seed for each in group} for group in own]
    assert [len(each) for each in seeds] == [1, 1, 1]
    assert seeds[2] == {7}
    assert len(set.union(*seeds)) == 3
    again = play(policy, task_of(), rows[1:2], base=True, seed=3, **GREEDY)
    assert {again[0][0].environment.seed} == seeds[1]


def test_a_tool_that_fails_and_rounds_that_are_limited(policy):
    [[failed]] = play(policy, task_of(), [row_of(10)], **GREEDY)
    assert failed.turns[0].calls[0].error == "ValueError: no such game"
    [[cut]] = play(policy, task_of(), ROWS[:1], max_tool_calling_iterations=1, **GREEDY)
    assert [turn.author for turn in cut.turns] == [POLICY, TOOL, POLICY]
    assert cut.environment.guesses == [2]
    assert cut.turns[-1].calls[0].error  # asked for, and not called


async def guess(number: int) -> str:
    """
    Guess the number.

    Args:
        number: the guess.
    """
    return "yes" if number == 1 else "lower"


def test_a_tool_may_be_a_coroutine_and_there_may_be_no_environment(policy):
    rows = [{"prompt": [{"role": "user", "content": "Guess. Go."}]}]
    task = task_of(rows=rows, environment=None, tools=[guess])
    [[own]] = play(policy, task, rows, **GREEDY)
    assert [call.result for turn in own.turns for call in turn.calls] == ["lower", "yes"]
    assert own.environment is None


def test_scores_are_those_of_the_messages_and_the_environments(policy):
    task = task_of(reward_funcs=[said_done, guessed], right_by="guessed")
    assert task.function_names == ["said_done", "guessed", "Game"]
    rows = [row_of(1), row_of(3)]  # 3 is never guessed
    groups = scored_groups(policy, task, rows, RewardSuite(task, 2), 2, **GREEDY)
    names = ["score.said_done", "score.guessed", "score.Game", "right"]
    assert [[own[name] for name in names] for own in groups[0]] == [[1.0, 1.0, 1.0, True]] * 2
    assert [[own[name] for name in names[1:]] for own in groups[1]] == [[0.0, 0.0, False]] * 2
    assert groups[0][0]["length_tokens"] == 12
    assert [turn.tokens for turn in turns_of(groups[0][0]["turns"]) if turn.author == POLICY] == [4, 4, 4]


def test_measured_on_held_out_starts(policy, tmp_path):
    task = task_of(right_by="Game", held_out=[row_of(1), row_of(2), row_of(3)])
    measured = measure_policy(policy, task, samples=2, **GREEDY)
    assert measured.correct.tolist() == [[True, True], [True, True], [False, False]]
    profile = profile_difficulty(policy, task.held_out, tmp_path / "d.jsonl", task=task, num_generations=2, **GREEDY)
    assert sorted(own.right for own in profile.solved.values()) == [0, 2, 2]


def test_what_cannot_be_played_is_refused_by_name(policy):
    with pytest.raises(TaskError) as caught:
        play(policy, task_of(environment=None, rollout_func=lambda prompts, trainer: {}), ROWS)
    assert "rollout_func" in caught.value.value
    with pytest.raises(TaskError) as caught:
        play(policy, task_of(), [{"prompt": "Guess."}])
    assert "'Guess.'" in caught.value.value


def test_a_run_measures_its_held_out_starts_and_is_evaluated(home, folder):
    grpo = {"max_steps": 2, "num_generations": 2, "per_device_train_batch_size": 4, "max_completion_length": 40}
    asked = {"run_name": "g", "policy": {"name": str(folder), "load_in_4bit": False}, "eval_every": 2, "eval_prompts": 3}
    task = task_of(right_by="Game", held_out=[row_of(1), row_of(2), row_of(3)])
    run = train(Recipe.of({**asked, "eval_temperature": 0.0, "grpo": grpo}), task=task)
    base, last = held_out(run.events())
    assert (base["step"], last["step"], sorted(base["right"])) == (0, 2, ["0", "1", "1"])
    import pyarrow.parquet as pq

    files = sorted((run.path / "held_out").glob("*.parquet"))
    assert sorted(len(turns_of(own)) for own in pq.read_table(files[0])["turns"].to_pylist()) == [3, 5, 5]
    asked, done = {"samples": 2, "greedy": True}, []
    found = evaluate(run, task=task, **asked).found
    assert json.dumps(found)
    assert evaluate(run, task=task, **asked, progress=lambda own, total: done.append(own)).found == found
    assert done == []
    with pytest.raises(DataError):  # a proof compares one turn
        suite_of_run(run, task)
    assert marks_of(task) != marks_of(replace(task, tools=[guess]))
