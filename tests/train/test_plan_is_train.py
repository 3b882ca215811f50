"""What `plan` accepts, `train` trains, and both refuse in the same words: 51 recipes, most of them broken."""

from __future__ import annotations

import pytest

import workbench as wb
from workbench.base.errors import WorkbenchError
from workbench.recipe import Recipe
from workbench.task import Task
from workbench.tiny.task import task as arithmetic

GRPO = {"max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 8}


def fine_reward(completions, **kwargs):
    return [float(len(completion[0]["content"])) for completion in completions]


def raising_reward(completions, **kwargs):
    return [float(completion[0]["content"]) for completion in completions]


def short_reward(completions, **kwargs):
    return [1.0]


def nan_reward(completions, **kwargs):
    return [float("nan")] * len(completions)


def silent_reward(completions, **kwargs):
    return [None] * len(completions)


def column_reward(completions, solution, **kwargs):
    return [0.0] * len(completions)


ROWS = arithmetic(16, 4).rows  # once: the rewards' worker imports this module, too, and 30 tasks took it 14 s
LONG = [{"prompt": [{"role": "user", "content": "1 + " * 400 + str(n)}], "answer": "2"} for n in range(8)]


def own(*funcs, rows=None) -> Task:
    return Task("own", ROWS if rows is None else rows, list(funcs))


def asked(grpo=None, **parts) -> dict:
    return {"policy": {"load_in_4bit": False}, "grpo": {**GRPO, **(grpo or {})}, **parts}


def staged(**second) -> dict:
    return asked(stages=[{"name": "first", "steps": 1}, {"name": "second", "steps": 1, **second}])


# name -> (recipe, its task; None: the recipe names it).
BROKEN = {
    "a name of GRPOConfig": (asked({"learning_rat": 1e-3}), own(fine_reward)),
    "two names that disagree": (asked({"kl_coef": 0.05, "beta": 0.1}), own(fine_reward)),
    "a value of the wrong type": (asked({"learning_rate": "fast"}), own(fine_reward)),
    "a value out of range": (asked({"temperature": 0}), own(fine_reward)),
    "an unknown loss": (asked({"loss_type": "foo"}), own(fine_reward)),
    "groups that are not whole": (asked({"num_generations": 5}), own(fine_reward)),
    "too few prompts": (asked(), own(fine_reward, rows=ROWS[:1])),
    "no prompts": (asked(), own(fine_reward, rows=[])),
    "completions longer than the context": (asked({"max_completion_length": 300}), own(fine_reward)),
    "prompts longer than the context": (asked(), own(fine_reward, rows=LONG)),
    "prompts that are all left out": (asked(max_prompt_length=4), own(fine_reward)),
    "a tracker": (asked({"report_to": "wandbb"}), own(fine_reward)),
    "both precisions": (asked({"bf16": True, "fp16": True}), own(fine_reward)),
    "an evaluation": (asked({"eval_strategy": "steps"}), own(fine_reward)),
    "what GRPOConfig refuses": (asked({"save_strategy": "sometimes"}), own(fine_reward)),
    "arguments of the template": (asked({"chat_template_kwargs": {"tokenize": False}}), own(fine_reward)),
    "an adaptive weight of no function": (asked(adaptive_weights={"nope": {}}), own(fine_reward)),
    "an adaptive weight of 0": (
        asked(adaptive_weights={"fine_reward": {}}, reward_weights={"fine_reward": 0}),
        own(fine_reward, silent_reward),
    ),
    "a weight of no function": (asked(reward_weights={"nope": 1}), own(fine_reward)),
    "a reward that raises": (asked(), own(raising_reward)),
    "a reward that is short": (asked(), own(short_reward)),
    "a reward that is NaN": (asked(), own(nan_reward)),
    "rewards that never apply": (asked(), own(silent_reward)),
    "a reward without its column": (asked(), own(column_reward)),
    "an unknown policy": (asked(policy={"name": "tinny"}), own(fine_reward)),
    "an unknown task": (asked(task="arithmetics"), None),
    "a task file that is not there": (asked(task="nowhere/task.py"), None),
    "vLLM by one name only": (asked({"use_vllm": False}, policy={"fast_inference": True}), own(fine_reward)),
    "the name of a run": (asked(run_name="a/b"), own(fine_reward)),
    "a seed in a stage": (staged(grpo={"seed": 1}), own(fine_reward)),
    "a stage without prompts": (staged(prompts={"answer": "none of them"}), own(fine_reward)),
    "a rank that no model has": (asked(lora={"r": 10**9}), own(fine_reward)),
    "an adapter on nothing": (asked(lora={"target_modules": []}), own(fine_reward)),
    "an adapter on layers that are not there": (asked(lora={"target_modules": ["nope"]}), own(fine_reward)),
    "betas of Adam": (asked({"adam_beta1": 2}), own(fine_reward)),
    "strings that end a completion": (asked({"generation_kwargs": {"stop_strings": ["x"]}}), own(fine_reward)),
    "code of a model's": (asked({"generation_kwargs": {"custom_generate": "me/code"}}), own(fine_reward)),
    "a group without bounds": (asked({"num_generations": 10**9}), own(fine_reward)),
    "a batch without bounds": (asked({"per_device_train_batch_size": 10**9}), own(fine_reward)),
    "more workers than a machine has": (asked({"dataloader_num_workers": 300}), own(fine_reward)),
    "what GRPOConfig refuses in a stage": (staged(grpo={"optim": "adamw_nope"}), own(fine_reward)),
}
FINE = {
    "as it comes": (asked(), own(fine_reward)),
    "a task by name": (asked(task="arithmetic"), None),
    "old names": (asked({"kl_coef": 0.01, "warmup_ratio": 0.1}), own(fine_reward)),
    "a batch that is raised to whole groups": (asked({"per_device_train_batch_size": 6}), own(fine_reward)),
    "a paper's loss": (asked({"loss_type": "dr_grpo"}), own(fine_reward)),
    "weights that adapt": (asked(adaptive_weights={"fine_reward": {}}), own(fine_reward)),
    "vLLM that is not here": (asked(policy={"load_in_4bit": False, "fast_inference": True}), own(fine_reward)),
    "the plain backend": (asked({"bf16": True}, policy={"load_in_4bit": False, "backend": "transformers"}), own(fine_reward)),
    "stages": (staged(grpo={"temperature": 0.7}), own(fine_reward, silent_reward)),
    "a tracker that is not installed": (asked({"report_to": "comet_ml"}), own(fine_reward)),
}  # fmt: skip


def said(call) -> tuple[str, str] | None:
    try:
        call()
    except WorkbenchError as error:
        return type(error).__name__, str(error)
    return None


@pytest.mark.parametrize("name", BROKEN)
def test_both_refuse_it_in_the_same_words_and_nothing_is_left(home, name):
    content, task = BROKEN[name]
    recipe = Recipe(**content)
    planned = said(lambda: wb.plan(recipe, task))
    assert planned is not None
    assert "remedy:" in planned[1]
    assert said(lambda: wb.train(recipe, task=task)) == planned
    assert not (home / "runs").exists()


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "stages" else pytest.mark.slow) for name in FINE])
def test_both_accept_it_and_the_plan_is_what_is_trained(home, name):
    content, task = FINE[name]
    recipe = Recipe(**content)
    plan = wb.plan(recipe, task)
    run = wb.train(recipe, task=task)
    manifest = run.manifest()
    assert run.result()["status"] == "finished"
    assert run.result()["steps"] == plan.settings["max_steps"]
    assert set(plan.notes) <= set(manifest["settings"]["translated"])
    trained = {row["name"]: row["in_force"] for row in manifest["settings_table"]}
    planned = {row.name: row.in_force for row in plan.rows if row.name not in ("max_steps", "report_to")}
    assert {name: trained[name] for name in planned} == planned
