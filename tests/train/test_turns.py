"""Rollouts of several turns on trainers as strangers write them: the record says who wrote what, and the numbers are theirs.

What the policy writes is drawn from a script, so that it calls tools, rightly and wrongly; loop, tools and loss are TRL's.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_tokenizers import made_tokenizer
from small_models import PARSED, TEMPLATE, make_speaking

from workbench.base.errors import DataError, RecipeError, RewardError, RunError, TaskError
from workbench.data.rendering import prompt_text, with_tools
from workbench.health import examine_run
from workbench.inspection.replaying import replay
from workbench.inspection.tokens import token_view
from workbench.recipe import Recipe
from workbench.rewards.groups import batch_of
from workbench.rewards.scoring import score
from workbench.run.parts import parts
from workbench.run.rollouts import query, read_batches, read_part
from workbench.run.turns import (
    ENVIRONMENT,
    POLICY,
    TOOL,
    ToolCall,
    Turn,
    as_messages,
    own_words,
    turns_of,
    turns_to_text,
)
from workbench.task import Task
from workbench.tiny import MODEL_DIR
from workbench.tiny.task import task as arithmetic
from workbench.training.attach import attach
from workbench.training.features.turns import NO_MASK, UNMASKED, Generated, Turns
from workbench.training.plan.prepare import prepare
from workbench.training.policy import load_policy, trainer_classes
from workbench.training.sampling import preview, prompt_lengths, sample
from workbench.training.trainer import make_trainer, train
from workbench.training.transcribing import NOT_CALLED, NOT_READ, turns_from
from workbench.views.groups import score_table
from workbench.views.turns import transcript

trainer_classes()  # unsloth first


def call(name, **arguments):
    return f"<tool>{json.dumps({'name': name, 'arguments': arguments})}</tool>"


def add(a: int, b: int) -> int:
    """Adds.

    Args:
        a: a number.
        b: another.
    """
    return a + b


async def later(a: int) -> str:
    """Answers later.

    Args:
        a: a number.
    """
    await asyncio.sleep(0.01)
    if a == 3:
        raise ValueError("three")
    return f"later {a}"


class Counter:
    """Counts; its reward is how far."""

    def reset(self, **row) -> str:
        self.count = 0
        return " From 0."

    def more(self, by: int) -> str:
        """Count on.

        Args:
            by: how far.
        """
        self.count += by
        return str(self.count)

    def get_reward(self) -> float:
        return float(self.count)


class Silent:
    """Says nothing when it begins, and has no reward."""

    def reset(self, **row) -> None:
        self.said = 0

    def ask(self) -> str:
        """Ask."""
        self.said += 1
        return "no"


SCRIPTS = {
    "tools": [call("add", a=1, b=2), call("add", a=1), call("sub", a=1), call("add", a=2, b=2) + call("add", a=0, b=0), "3"],
    "async": [call("later", a=1) + call("add", a=1, b=1), call("later", a=3), call("later"), "done"],
    "environment": [call("more", by=1), call("more", by=2) + call("more", by=3), call("less", by=1), "stop", ""],
    "two": [call("more", by=1), call("ask"), "stop"],
}  # fmt: skip


def length_reward(completions, **columns):
    return [float(len(str(each)) % 7) for each in completions]


def rollouts_of(prompts, trainer):
    """A game by hand: the policy's word, the environment's, the policy's."""
    tokenizer, own = trainer.processing_class, {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": []}
    drawn = trainer.script
    for prompt in prompts:
        parts_ = [
            tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("go " * drawn.randint(1, 4), " wall", " stop")
        ]
        ids = [*parts_[0], *parts_[1], *parts_[2], tokenizer.eos_token_id]
        own["prompt_ids"].append(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False))
        own["completion_ids"].append(ids)
        own["logprobs"].append([0.0] * len(ids))
        own["env_mask"].append([1] * len(parts_[0]) + [0] * len(parts_[1]) + [1] * (len(parts_[2]) + 1))
    return own


def trainer_of(folder, kind="tools", **settings):
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, PARSED
    asked = {
        "tools": {"tools": [add]},
        "async": {"tools": [add, later]},
        "environment": {"environment_factory": Counter},
        "two": {"environment_factory": {"counter": Counter, "silent": Silent}},
        "rollout_func": {"rollout_func": rollouts_of},
    }[kind]
    names = ["counter", "silent"] * 8
    rows = [
        {"prompt": [{"role": "user", "content": f"Question {number}."}], "environment": name} for number, name in enumerate(names)
    ]
    own = {
        "max_steps": 4, "per_device_train_batch_size": 16, "num_generations": 4, "max_completion_length": 160, "beta": 0.01,
        "learning_rate": 1e-3, "report_to": "none", "logging_steps": 1, "seed": 3, "save_strategy": "no",
        "max_tool_calling_iterations": 3,
    }  # fmt: skip
    torch.manual_seed(0)
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(MODEL_DIR), processing_class=tokenizer, reward_funcs=[length_reward],
        args=GRPOConfig(output_dir=str(folder / "out"), **{**own, **settings}), train_dataset=Dataset.from_list(rows), **asked,
    )  # fmt: skip
    trainer.script, trainer.made = random.Random(7), []
    if kind != "rollout_func":
        trainer._generate_single_turn = lambda prompt_ids, *_, **__: drawn_for(trainer, SCRIPTS[kind], prompt_ids)
    scored = trainer._generate_and_score_completions

    def noted(inputs):
        made = scored(inputs)
        trainer.made.append(made)
        return made

    trainer._generate_and_score_completions = noted
    return trainer


def drawn_for(trainer, texts, prompt_ids):
    tokenizer = trainer.processing_class
    texts = [trainer.script.choice(texts) for _ in prompt_ids]
    return [[*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for text in texts], None


def masks_of(made):
    """TRL's own, without the padding: one list for each rollout."""
    lengths = made["completion_mask"].sum(dim=1).tolist()
    return [row[:length].tolist() for row, length in zip(made["tool_mask"], lengths, strict=True)]


@pytest.mark.parametrize("kind", ["tools", "async", "environment", "two", "rollout_func"])
def test_the_record_has_trls_mask_and_lengths_and_changes_no_number(home, tmp_path, kind):
    alone = trainer_of(tmp_path / "alone", kind)
    alone.train()
    trainer = trainer_of(tmp_path / "attached", kind)
    run = attach(trainer)
    trainer.train()
    batches = [*read_batches(run)]
    recorded = [[int(turn.in_loss) for turn in own for _ in range(turn.tokens)] for batch in batches for own in batch.turns]
    assert recorded == [mask for made in trainer.made for mask in masks_of(made)]
    assert len(recorded) == 64
    assert {0, 1} == {one for mask in recorded for one in mask}
    rows = run.metrics()
    assert [batch.lengths.mean() for batch in batches] == pytest.approx([row["completions/mean_length"] for row in rows])
    for batch in batches:
        assert [own_words(own) for own in batch.turns] == batch.completions
        assert [sum(turn.tokens for turn in own if turn.author == POLICY) for own in batch.turns] == batch.lengths.tolist()
    for own, theirs in zip(trainer.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(own, theirs)
    told = {"loss", "grad_norm", "kl", "reward", "completions/mean_length", "tools/call_frequency", "tools/failure_frequency"}
    for row, theirs in zip(rows, alone.state.log_history, strict=False):
        assert {key: row[key] for key in told & row.keys()} == {key: theirs[key] for key in told & row.keys()}
    assert trainer._generate.__func__ is alone._generate.__func__  # put back


def calls_of(run):
    return [made for batch in read_batches(run) for own in batch.turns for turn in own for made in turn.calls]


def test_calls_have_their_results_errors_and_seconds(home, tmp_path):
    trainer = trainer_of(tmp_path, "async")
    run = attach(trainer)
    trainer.train()
    calls = calls_of(run)
    answered = [made for made in calls if made.error not in (NOT_CALLED, NOT_READ)]
    by = {(made.name, made.result, (made.error or "").partition(":")[0]) for made in answered}
    assert ("add", "2", "") in by
    assert ("later", "later 1", "") in by
    assert ("later", None, "ValueError") in by
    assert ("later", None, "TypeError") in by  # without its argument
    assert all(made.seconds >= 0.009 for made in calls if made.result == "later 1")
    logged = run.metrics()
    failed = sum(made.error is not None for made in answered)
    asked = sum(row["tools/call_frequency"] * 16 for row in logged)
    assert failed == pytest.approx(sum(row["tools/failure_frequency"] * row["tools/call_frequency"] * 16 for row in logged))
    assert len([made for made in calls if made.error != NOT_CALLED]) == pytest.approx(asked)


def test_a_call_of_an_unknown_tool_reaches_no_function(home, tmp_path):
    trainer = trainer_of(tmp_path, "tools")
    run = attach(trainer)
    trainer.train()
    unknown = [made for made in calls_of(run) if made.name == "sub" and made.error != NOT_CALLED]
    assert unknown
    assert all(made.seconds is None and "Tool sub not found." in made.error and made.arguments == {"a": 1} for made in unknown)


def test_what_does_not_fit_is_said(home, tmp_path):
    trainer = trainer_of(tmp_path, "environment", max_completion_length=60)
    run = attach(trainer)
    trainer.train()
    errors = {made.error for made in calls_of(run)}
    assert NOT_READ in errors
    for batch in read_batches(run):
        for own in batch.turns:
            assert own[0].author == POLICY
            assert sum(turn.tokens for turn in own) <= 60 + len(SCRIPTS["environment"][1])


def test_an_environments_observation_is_in_the_prompt_and_its_reward_in_the_scores(home, tmp_path):
    trainer = trainer_of(tmp_path, "environment", reward_weights=[0.5])
    run = attach(trainer)
    trainer.train()
    for batch in read_batches(run):
        assert batch.weights == [0.5, 1.0]  # TRL's for the environment's own
        assert all(prompt[-1]["content"].endswith(" From 0.") for prompt in batch.prompts)
        assert batch.names == ["length_reward", "Counter"]
        for own, paid in zip(batch.turns, batch.scores[:, 1], strict=True):
            done = [made for turn in own for made in turn.calls if made.name == "more" and made.seconds is not None]
            assert paid == sum(made.arguments["by"] for made in done)


def test_a_rollout_func_without_a_mask_is_told_once(home, tmp_path, capsys):
    trainer = trainer_of(tmp_path, "rollout_func")
    made = trainer.rollout_func
    trainer.rollout_func = lambda *asked: {key: value for key, value in made(*asked).items() if key != "env_mask"}
    run = attach(trainer)
    trainer.train()
    assert capsys.readouterr().out.count(NO_MASK) == 1
    for batch in read_batches(run):
        assert [[turn.author for turn in own] for own in batch.turns] == [[POLICY]] * 16
        assert all("wall" in text for text in batch.completions)  # which is why it is told


def test_tools_whose_words_no_mask_takes_out_of_the_loss_are_told_once(home, tmp_path, capsys):
    """As of a trainer that drops TRL's mask: the loss is on all tokens, and the record knows no author of them."""
    trainer = trainer_of(tmp_path, "tools")
    generate = trainer._generate
    trainer._generate = lambda prompts: (*(made := generate(prompts))[:2], [[1] * len(ids) for ids in made[1]], *made[3:])
    run = attach(trainer)
    trainer.train()
    assert capsys.readouterr().out.count(UNMASKED) == 1
    assert [event["why"] for event in run.events() if event["event"] == "unmasked"] == [UNMASKED]
    healthy = trainer_of(tmp_path / "other", "tools")
    run = attach(healthy)
    healthy.train()
    assert not [event for event in run.events() if event["event"] == "unmasked"]


def test_the_authors_of_a_rollout_func_are_the_masks(home, tmp_path):
    trainer = trainer_of(tmp_path, "rollout_func")
    run = attach(trainer)
    trainer.train()
    for batch in read_batches(run):
        assert [[turn.author for turn in own] for own in batch.turns] == [[POLICY, ENVIRONMENT, POLICY]] * 16
        assert not any("wall" in text for text in batch.completions)
        assert {own[1].text.strip() for own in batch.turns} == {"wall"}


def test_a_run_with_turns_is_examined_and_asked_like_any_other(home, tmp_path):
    trainer = trainer_of(tmp_path, "tools")
    run = attach(trainer)
    trainer.train()
    assert {verdict.name for verdict in examine_run(run)} >= {"collapse"}
    table = query(run.rollouts)
    assert len(table) == 64
    assert all(turns_of(text) for text in table["turns"])
    part = parts(run.rollouts)[0]
    [bare] = read_part(part, run.manifest(), bare=True)
    [whole] = read_part(part, run.manifest())
    assert bare.turns == whole.turns
    group = whole.group(1)
    assert group.turns == whole.turns[4:8]


def test_a_record_without_turns_has_no_column_for_them(home, tiny_policy):
    run = train(
        Recipe.of({"grpo": {"max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8}}), task=arithmetic(16, 2)
    )
    assert "turns" not in query(run.rollouts).columns
    assert all(batch.turns == [] for batch in read_batches(run))


def test_turns_survive_the_record():
    turns = [
        Turn(POLICY, "so <tool>", 3, True, (ToolCall("add", {"a": [1, "é"]}, "2", None, 0.5), ToolCall("sub", {}, None, "no"))),
        Turn(TOOL, "2", 4, False),
        Turn(POLICY, "", 0, True, (), "single quotes"),
        Turn(POLICY, "a", 1, True, (), "", ""),
        Turn(POLICY, "a", 1, True, (), "", "b"),
    ]
    assert turns_of(turns_to_text(turns)) == turns
    assert turns_of(None) == []
    assert own_words(turns) == "so <tool>\n\na\na"


# -- of a recipe -------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def speaks(tmp_path_factory):
    return make_speaking(tmp_path_factory.mktemp("policies") / "speaks")


class Drawn(Counter):
    """Begins where its seed says."""

    def reset(self, seed: int = 0, **row) -> str:
        self.count = self.start = seed % 100
        return f" From {self.start}."


class Lucky(Counter):
    """Begins where it likes."""

    def reset(self, **row) -> str:
        self.count = random.randrange(10**6)
        return f" From {self.count}."


def game(environment=None, **more):
    rows = [{"prompt": [{"role": "user", "content": f"Question {number}."}]} for number in range(16)]
    return Task("game", rows, [length_reward], environment=environment, **more)


def recipe_of(policy, **grpo):
    own = {"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 16, "max_completion_length": 160}
    own |= {"max_tool_calling_iterations": 3}
    return Recipe.of({"policy": {"name": policy, "backend": "transformers", "load_in_4bit": False}, "grpo": own | grpo})


def played(recipe, task, script, runs=1):
    plan = prepare(recipe, task)
    trainer = make_trainer(plan, load_policy(plan))
    trainer.script = random.Random(7)
    trainer._generate_single_turn = lambda prompt_ids, *_, **__: drawn_for(trainer, SCRIPTS[script], prompt_ids)
    run = attach(trainer, plan)
    trainer.train()
    return plan, run


def test_a_recipes_environment_is_planned_trained_and_recorded(home, speaks):
    plan, run = played(recipe_of(speaks), game(Drawn), "environment")
    [line, seeded] = [note for note in plan.notes if note.startswith("turns: ")]
    assert "more(by: integer)" in line
    assert seeded == "turns: Drawn.reset gets a seed, the same for each member of a group"
    assert "3 rounds" in line
    batches = [*read_batches(run)]
    assert [batch.names for batch in batches] == [["length_reward", "Drawn"]] * 2
    starts = set()
    for batch in batches:
        for place in range(batch.group_count):
            group = batch.group(place)
            [seed] = set(group.columns["seed"])  # every member of a group begins alike
            assert {prompt[-1]["content"].partition(" From ")[2] for prompt in group.prompts} == {f"{seed % 100}."}
            starts.add(seed)
        for own, seed, paid in zip(batch.turns, batch.columns["seed"], batch.scores[:, 1], strict=True):
            done = [made for turn in own for made in turn.calls if made.name == "more" and made.seconds is not None]
            assert paid == seed % 100 + sum(made.arguments["by"] for made in done)
    assert len(starts) == 8  # and each group, in each step, elsewhere
    told = run.manifest()["turns"]
    assert [tool["function"]["name"] for tool in told["tools"]] == ["more"]
    assert told["environments"] == ["Drawn"]
    assert told["max_tool_calling_iterations"] == 3
    assert [*run.manifest()["rewards"]["functions"]] == ["length_reward", "Drawn"]


def test_a_seed_of_the_rows_own_stays(home, speaks):
    task = game(Drawn)
    task = replace(task, rows=[{**row, "seed": 7} for row in task.rows])
    plan, run = played(recipe_of(speaks, max_steps=1), task, "environment")
    [batch] = read_batches(run)
    assert set(batch.columns["seed"]) == {7}
    assert "turns: Drawn.reset gets the seed of its row" in plan.notes


def test_starts_that_are_drawn_anew_are_planned_and_found_in_the_record(home, speaks):
    plan, run = played(recipe_of(speaks, max_steps=4), game(Lucky), "environment")
    assert "turns: Lucky.reset takes no seed: what it draws differs within a group" in plan.notes
    [found] = [verdict for verdict in examine_run(run) if verdict.name == "unequal_starts"]
    assert (found.state, found.evidence["share"], found.evidence["groups"]) == ("warning", 1.0, 16)
    _, *example = found.evidence["example"]
    assert all(text.startswith("Question ") and " From " in text for text in example)
    told = [event["name"] for event in run.events() if event["event"] == "health"]
    assert "unequal_starts" in told  # while it trained, too


def test_starts_that_are_the_same_are_no_issue(home, speaks):
    _, run = played(recipe_of(speaks, max_steps=4), game(Drawn), "environment")
    [found] = [verdict for verdict in examine_run(run) if verdict.name == "unequal_starts"]
    assert (found.state, found.evidence) == ("ok", {"groups": 16, "compared": 5})


def test_a_recipes_tools_are_called_by_the_sampling_policy(home, speaks):
    """Nothing is scripted: the embedded policy writes no call, and each rollout is one turn of its own."""
    run = train(recipe_of(speaks, max_steps=1, max_completion_length=24), task=game(tools=[add]))
    [batch] = read_batches(run)
    assert [[turn.author for turn in own] for own in batch.turns] == [[POLICY]] * 16
    assert run.result()["status"] == "finished"
    assert [own[0].text for own in batch.turns] == batch.completions


def test_a_template_without_tools_is_refused_by_name(home):
    with pytest.raises(RecipeError, match="policy 'tiny'.*drops tool calls"):
        prepare(recipe_of("tiny"), game(tools=[add]))


def test_a_tool_that_cannot_be_described_is_refused_by_name(home, speaks):
    def bare(a, b):
        return a + b

    with pytest.raises(TaskError, match="the tool bare: "):
        prepare(recipe_of(speaks), game(tools=[bare]))


def test_a_prompt_is_measured_and_shown_with_its_tools(home, speaks):
    """As long as what TRL hands the model, but for what `reset` says."""
    both = {"counter": Counter, "silent": Silent}
    rows = [{"prompt": [{"role": "user", "content": f"Question {name}."}], "environment": name} for name in both]
    task, read = replace(game(both), rows=rows), []
    plan = prepare(recipe_of(speaks, max_steps=1, per_device_train_batch_size=8), task)
    trainer = make_trainer(plan, load_policy(plan))
    trainer.script = random.Random(7)

    def drawn(prompt_ids, *_, **__):
        read.extend(prompt_ids)
        return drawn_for(trainer, ["stop"], prompt_ids)

    trainer._generate_single_turn = drawn
    attach(trainer, plan)
    trainer.train()
    said = trainer.processing_class(" From 0.", add_special_tokens=False)["input_ids"]
    counter, silent = prompt_lengths(rows, speaks, task=task).lengths
    assert sorted({*map(len, read)}) == sorted([counter + len(said), silent])
    assert [*plan.stages[0].lengths_tokens] == [counter, silent]
    with_them, without = preview(rows[1], speaks, task=task), preview(rows[1], speaks)
    assert [token.id for token in with_them.tokens] in read
    assert len(with_them.tokens) == len(without.tokens) + with_them.tools_tokens
    assert "ask" in with_them.text
    assert "ask" not in without.text + with_them.adds
    asked = recipe_of(speaks, per_device_train_batch_size=8).model_dump()
    asked["policy"]["max_seq_length"] = max(counter, silent) + 159
    with pytest.raises(DataError, match="the longest prompt has"):
        prepare(Recipe.of(asked), task)


@pytest.mark.parametrize("family", ["qwen3", "qwen2_5"])
def test_the_training_template_renders_a_prompt_as_the_policys_own(family):
    import trl
    from trl.chat_template_utils import get_training_chat_template

    template = Path(trl.__file__).parent / "chat_templates" / f"{family}.jinja"
    tokenizer = made_tokenizer(template.read_text(encoding="utf-8"), eos="<|im_end|>")
    tokenizer = with_tools(tokenizer, game(tools=[add]).tool_schemas, {})
    asked = [{"role": "user", "content": "Question."}]
    own = prompt_text(asked, tokenizer)
    tokenizer.chat_template = get_training_chat_template(tokenizer)
    assert prompt_text(asked, tokenizer) == own
    assert '"name": "add"' in own


def test_a_sample_of_a_task_with_turns_is_played_and_scored(home, speaks):
    task = Task("game", game().rows[:2], [length_reward], environment=Counter)
    policy = load_policy(speaks, load_in_4bit=False, backend="transformers")
    groups = sample(policy, task.rows, task=task, num_generations=2, max_completion_length=24)
    batch = score(task, task.rows, groups)
    flat = [each for group in groups for each in group]
    assert batch.scores[:, 1].tolist() == [float(each.environment.count) for each in flat]
    assert batch.lengths.tolist() == [each.length_tokens for each in flat]
    assert batch.completions == [own_words(each.turns) for each in flat]
    assert score_table(batch).rows[0][0].page == transcript(flat[0].turns).page


@pytest.mark.parametrize("name", ["eval_every", "warm_start"])
def test_what_samples_one_turn_is_refused_by_name(home, speaks, name):
    recipe = recipe_of(speaks)
    asked = {"eval_every": 1, "warm_start": {"samples": 2}}[name]
    own = {"rollout_func": rollouts_of} if name == "eval_every" else {"tools": [add]}
    task = replace(game(**own), held_out=game().rows[:4])
    with pytest.raises(RecipeError, match=f"{name} = .*"):
        prepare(recipe.model_copy(update={name: asked}), task)


def test_an_environment_that_cannot_be_made_is_the_tasks_error(home):
    def broken():
        raise OSError("no server")

    with pytest.raises(TaskError, match="environment: OSError: no server"):
        game(broken)


class Fails(Counter):
    def reset(self, **row):
        raise KeyError("level")


class Bytes(Counter):
    def reset(self, **row):
        return b"0"


@pytest.mark.parametrize(("environment", "said"), [(Fails, "KeyError: 'level'"), (Bytes, "TypeError: it returned bytes")])
def test_a_reset_that_fails_names_the_prompt(home, speaks, environment, said):
    with pytest.raises(RunError, match="reset raised") as failed:
        played(recipe_of(speaks), game(environment), "environment")
    assert said in failed.value.value
    assert "Question " in failed.value.value


class Odd(Counter):
    def get_reward(self):
        return "much"


def test_a_reward_of_another_type_is_an_error_and_no_zero(home, speaks):
    with pytest.raises(RewardError, match="Odd"):
        played(recipe_of(speaks), game(Odd), "environment")


class Unsure(Counter):
    async def get_reward(self):
        return None if self.count == 0 else float(self.count)


def test_an_environments_reward_may_be_a_coroutine_and_may_not_apply(home, speaks):
    _, run = played(recipe_of(speaks, max_steps=1), game(Unsure), "environment")
    [batch] = read_batches(run)
    scores = batch.scores[:, 1]
    assert ((scores > 0) | (scores != scores)).all()
    assert (scores != scores).any()


def test_a_replay_hands_rewards_the_messages_that_they_read(home, speaks):
    def said_reward(completions, **columns):
        said = [[own for own in each if own["role"] == "assistant"] for each in completions]
        return [float(sum(len(own["content"]) + 100 * len(own.get("tool_calls", ())) for own in each)) for each in said]

    task = Task("tools", game(tools=[add]).rows, [said_reward], tools=[add])
    _, run = played(recipe_of(speaks), task, "tools")
    again = replay(run, task)
    assert [(own["change"], own["rescored"]) for own in again.functions] == [("same", 0)]
    [batch, _] = read_batches(run)
    assert len(set(batch.scores[:, 0])) > 2


def test_the_token_view_of_several_turns_is_refused_by_name(home, speaks):
    _, run = played(recipe_of(speaks, max_steps=1), game(tools=[add]), "tools")
    with pytest.raises(RunError, match="several turns"):
        token_view(run)


def test_several_processes_are_refused_by_name(home, speaks, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(RecipeError, match="2 processes"):
        prepare(recipe_of(speaks), game(tools=[add]))


def test_completions_that_were_not_generated_here_are_not_recorded_as_one_turn():
    from types import SimpleNamespace

    feature = Turns(SimpleNamespace(trainer=SimpleNamespace(tools=[add]), run=SimpleNamespace(name="mine")))
    batch = batch_of(["one"], [1.0], np.ones((2, 1)), ["a", "b"], [True, True], 2, completion_ids=[[1], [2]], step=3)
    own = [Turn(POLICY, "a", 1, True)]
    feature._made += [Generated([[9], [9]], [own, own]), Generated([[1], [2]], [own, [Turn(POLICY, "c", 2, True)]])]
    made = feature.on_batch(batch)  # the first was never scored
    assert (made.completions, made.lengths.tolist()) == (["a", "c"], [1, 2])
    with pytest.raises(RunError, match="step 3: no turns"):
        feature.on_batch(batch)


def test_a_replay_keeps_what_the_environment_said(home, speaks):
    task = game(Drawn)
    _, run = played(recipe_of(speaks, max_steps=1), task, "environment")
    [batch] = read_batches(run)
    again = replay(run, task)
    assert [(own["name"], own["change"], own["rescored"]) for own in again.functions][1][0] == "Drawn"
    assert any("the environment's own" in note for note in again.notes)
    doubled = replay(run, replace(task, reward_weights=[1.0, 2.0]))
    assert doubled.functions
    assert np.isfinite(batch.scores).all()


# -- templates as they are shipped ------------------------------------------------------------------------------------
ASKED_QWEN = '{"name": "add", "arguments": {"a": 1, "b": 2}}'
ASKED_XML = "<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n</function>"
# family -> what the policy writes -> (the results of its calls, why what it wrote is none, what rewards read)
FAMILIES = {
    "qwen3": {
        f"<tool_call>\n{ASKED_QWEN}\n</tool_call>": (["3"], "", ""),
        "<think>\nhm\n</think>\n\nIt is 3.": ([], "", "It is 3."),
        ASKED_QWEN: ([], "without <tool_call>", None),
        "<tool_call>\n{'name': 'add'}\n</tool_call>": ([], "single quotes: JSON has double ones", None),
    },
    "qwen2_5": {
        f"So.\n<tool_call>\n{ASKED_QWEN}\n</tool_call>": (["3"], "", "So."),
        f"```json\n{ASKED_QWEN}\n```": ([], "in a code fence, without <tool_call>", None),
        '<tool_call>\n{"name": "add", "argum': ([], "cut off: no </tool_call> follows", None),
    },
    "qwen3_5_nothink": {
        f"<tool_call>\n{ASKED_XML}\n</tool_call>": (["3"], "", ""),
        ASKED_QWEN: ([], "without <tool_call>", None),
        "It is 3.": ([], "", None),
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_familys_own_template_is_read(home, family):
    import trl
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    template = Path(trl.__file__).parent / "chat_templates" / f"{family}.jinja"
    tokenizer = made_tokenizer(template.read_text(encoding="utf-8"), eos="<|im_end|>")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=len(tokenizer), max_position_embeddings=4096))
    asked = {"max_steps": 2, "per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 400}
    asked |= {"max_tool_calling_iterations": 1, "report_to": "none", "save_strategy": "no"}
    rows = [{"prompt": [{"role": "user", "content": f"Question {number}."}]} for number in range(8)]
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=[length_reward], tools=[add],
        args=GRPOConfig(output_dir=str(home / "out"), **asked), train_dataset=Dataset.from_list(rows),
    )  # fmt: skip
    trainer.script = random.Random(1)
    trainer._generate_single_turn = lambda prompt_ids, *_, **__: drawn_for(trainer, [*FAMILIES[family]], prompt_ids)
    run = attach(trainer)
    trainer.train()
    seen = {own[0].text: own[0] for batch in read_batches(run) for own in batch.turns}
    assert seen.keys() == FAMILIES[family].keys()
    for text, (results, unparsed, content) in FAMILIES[family].items():
        assert ([made.result for made in seen[text].calls], seen[text].unparsed, seen[text].content) == (
            results,
            unparsed,
            content,
        )


class Letters:
    def decode(self, ids, skip_special_tokens=True):
        return "".join(ids)


def test_turns_are_cut_where_the_mask_changes():
    messages = [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]
    messages += [{"role": "tool", "name": "f", "content": "R"}, {"role": "assistant", "content": "de"}]
    turns = turns_from(Letters(), "abcde", [1, 0, 0, 1, 1], messages)
    assert [(turn.author, turn.text, turn.tokens, turn.in_loss) for turn in turns] == [
        (POLICY, "a", 1, True), (TOOL, "R", 2, False), (POLICY, "de", 2, True),
    ]  # fmt: skip
    assert turns[0].calls == (ToolCall("f", {}, error="R"),)
    assert (turns[0].content, turns[2].content) == ("", None)  # its message says nothing besides the call
    handed = [dict(message) for message in messages]
    handed[0]["tool_calls"] = [{"type": "function", **handed[0]["tool_calls"][0]}]
    del handed[1]["name"]
    assert as_messages(turns) == handed
    whole = turns_from(Letters(), "abc", [1, 0, 1], [{"role": "assistant", "content": "abc"}])
    assert [(turn.author, turn.content) for turn in whole] == [(POLICY, None), (ENVIRONMENT, None), (POLICY, None)]
    assert as_messages(whole) == [{"role": "assistant", "content": "abc"}]
    assert [turn.author for turn in turns_from(Letters(), "ab", [], "ab")] == [POLICY]
    assert turns_from(Letters(), "", [], "") == []


@pytest.mark.parametrize("name", ["tools", "environment_factory", "rollout_func"])
def test_a_recipe_is_told_that_they_belong_to_the_task(home, name):
    with pytest.raises(RecipeError, match=f"grpo.{name} = ") as refused:
        prepare(Recipe.of({"grpo": {name: "mine"}}), arithmetic(16, 2))
    assert "Task(" in refused.value.remedy


def test_rewards_of_text_are_not_handed_the_tools_words():
    from workbench.rewards.answers import completion_text

    said = [{"role": "assistant", "content": "a"}, {"role": "tool", "content": "42"}, {"role": "assistant", "content": "b"}]
    assert completion_text(said) == "ab"


def test_an_environment_in_the_place_of_another_brings_its_own_reward():
    """As when a task is changed by dataclasses.replace: the weights follow their functions."""
    rows = [{"prompt": [{"role": "user", "content": "Go."}]}]

    class Again(Counter):
        pass

    Again.__name__ = "Counter"
    first = Task("t", rows, [length_reward], reward_weights=[2.0], environment=Counter)
    assert (first.function_names, first.weights) == (["length_reward", "Counter"], [2.0, 1.0])
    same = replace(first, environment=Again, reward_weights=[2.0, 3.0])
    assert (same.function_names, same.weights) == (["length_reward", "Counter"], [2.0, 3.0])
    for task, kind in ((first, Counter), (same, Again)):
        own = kind()
        own.reset()
        own.more(by=4)
        assert task.reward_funcs[1](environments=[own]) == [4.0]
    none = replace(first, environment=Silent)
    assert (none.function_names, none.weights) == (["length_reward"], [2.0])
    with pytest.raises(TaskError, match="1 reward_weights for 2"):
        replace(first, reward_weights=[1.0])


def test_two_environments_of_one_name_are_refused():
    def make(pays):
        class Game(Counter):
            def get_reward(self):
                return pays

        return Game

    rows = [{"prompt": [{"role": "user", "content": "Go."}], "environment": "easy"}]
    with pytest.raises(TaskError, match="two reward functions are called 'Game'"):
        Task("t", rows, [], environment={"easy": make(1.0), "hard": make(2.0)})


def test_an_environment_without_a_dict_is_refused():
    class Slotted:
        __slots__ = ("number",)

        def reset(self, **row):
            self.number = 1

        def get_reward(self):
            return 1.0

    task = Task("t", [{"prompt": [{"role": "user", "content": "Go."}]}], [], environment=Slotted)
    with pytest.raises(TaskError, match="__slots__"):
        _ = task.tool_schemas
