"""Gradient checkpointing by the memory estimate: before the policy is loaded, the same in a plan, kept when a run goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import pytest

import workbench as wb
from workbench.memory import estimate
from workbench.recipe import Recipe
from workbench.tiny.task import task as arithmetic
from workbench.training.feature import Planned
from workbench.training.features.fitting import MemoryFit, choose_checkpointing, memory_on
from workbench.training.plan.loading import load_tokenizer
from workbench.training.plan.prepare import prepare
from workbench.training.plan.settings.device import Machine
from workbench.training.plan.settings.values import DEFAULTS
from workbench.training.trainer import continue_run, train

SIZES = {"max_completion_length": 512, "per_device_train_batch_size": 8, "num_generations": 8}


class Trained(NamedTuple):
    recipe: Recipe
    settings: dict
    longest_prompt_tokens: int | None


def trained(name="Qwen/Qwen2.5-1.5B-Instruct", longest=None, **grpo) -> Trained:
    recipe = Recipe.of({"policy": {"name": name, "max_seq_length": 768}, "grpo": {**SIZES, **grpo}})
    return Trained(recipe, {**DEFAULTS, **recipe.grpo}, longest)


def training(one: Trained, on: bool):
    settings = {**one.settings, "gradient_checkpointing": on}
    return estimate(one.recipe, settings, longest_prompt_tokens=one.longest_prompt_tokens, vram_gb=1e3).total("training")


def test_it_is_off_where_training_fits_without_it_and_on_where_it_may_not():
    one = trained()
    most = training(one, False).high / 1e9
    assert choose_checkpointing([one], 2 * most) == (False, [])
    assert choose_checkpointing([one], most / 0.95) == (False, [])
    on, [line] = choose_checkpointing([one], 16)
    assert on
    assert line == (
        "gradient_checkpointing = True, by the memory estimate: training takes 13.5 GB (6.3 to 22.3) without it, and the "
        "card has 16.0 GB; with it 3.92 GB (2.4 to 6.6). It is slower; grpo.gradient_checkpointing overrides this"
    )
    assert choose_checkpointing([one], 4)[0]


def test_what_generation_needs_does_not_count():
    """64 completions at once, learnt from one by one: generation would not fit, and checkpointing would change nothing."""
    one = trained(per_device_train_batch_size=1, gradient_accumulation_steps=256, num_generations=256)
    made = estimate(one.recipe, one.settings, vram_gb=8)
    assert made.total("generation").low > 8e9 > made.total("training").high
    assert choose_checkpointing([one], 8) == (False, [])


def test_one_stage_that_needs_it_decides_for_the_run_and_shorter_prompts_may_do_without():
    short, long = trained(max_completion_length=64, longest=32), trained()
    assert not choose_checkpointing([short], 16)[0]
    assert choose_checkpointing([short, long], 16) == choose_checkpointing([long], 16)


def test_where_nothing_can_be_estimated_it_stays_off():
    assert choose_checkpointing([trained("nobody/has-this-model")], 1) == (False, [])


# Who decides.

GPU = Machine(cuda=True, bf16=True, card_gb=16)
choose = memory_on(estimates=False)


def test_the_card_decides_for_all_stages():
    parts = [tuple(trained(max_completion_length=64)), tuple(trained())]
    on, [line], _ = choose(parts, GPU, None)
    assert on
    assert "by the memory estimate" in line
    assert choose(parts, GPU, False) == (False, [], None), "decided already"
    assert choose(parts, GPU._replace(cuda=False, card_gb=None), None) == (False, [], None)


@pytest.mark.parametrize(("asked", "begun_with", "loaded_with", "found"), [
    (True, False, False, True),
    (False, True, True, False),
    (None, False, True, False),
    (None, True, False, True),
    (None, None, True, True),
    (None, None, False, False),
])  # fmt: skip
def test_before_the_card_come_the_recipe_what_the_run_began_with_and_a_given_policy(
    tmp_path, monkeypatch, asked, begun_with, loaded_with, found
):
    """The policy is what `prepare` reads of one; the run, its manifest."""
    recipe = Recipe(grpo={} if asked is None else {"gradient_checkpointing": asked})
    policy = SimpleNamespace(
        gradient_checkpointing=loaded_with, backend_name="unsloth", chat_template_kwargs={}, fast_inference=False,
        tokenizer=load_tokenizer(), max_seq_length=256, name="tiny",
        model=SimpleNamespace(config=SimpleNamespace(to_dict=lambda: {"model_type": "of no known shape"})),
    )  # fmt: skip
    kept = {"settings": {"in_force": {"gradient_checkpointing": begun_with}}}
    run = None if begun_with is None else SimpleNamespace(manifest=lambda: kept, path=tmp_path)
    always = lambda parts, machine, on: (on is None or on, ["looked at"] * (on is None), None)  # noqa: E731
    monkeypatch.setattr(MemoryFit, "plan", classmethod(lambda cls, asked: Planned(memory=always)))
    made = prepare(recipe, arithmetic(16, 4), policy=policy, run=run)
    assert [stage.settings["gradient_checkpointing"] for stage in made.stages] == [found]
    assert "looked at" not in made.notes
    said = asked is None and begun_with is None and loaded_with
    assert ("gradient_checkpointing = True: the policy was loaded with it" in made.notes) == said


# In a run, and in a plan.

GRPO = {"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 16, "max_completion_length": 16}


@pytest.mark.slow
def test_a_run_is_trained_as_it_was_planned_and_goes_on_as_it_began(home, monkeypatch, capsys):
    recipe = Recipe.of({"run_name": "c", "grpo": {**GRPO, "save_steps": 1}, "policy": {"load_in_4bit": False}})
    task = arithmetic(16, 4)
    here = wb.plan(recipe, task=task)
    assert here.settings["gradient_checkpointing"] is False, "there is no card here"
    one = Trained(recipe, here.settings, here.longest_tokens)
    vram = (training(one, False).high + training(one, True).high) / 2e9  # it fits with it, and only with it
    planned = wb.plan(recipe, task=task, vram_gb=vram)
    [line] = [note for note in planned.notes if note.startswith("gradient_checkpointing = True, by the memory estimate")]
    row = next(row for row in planned.rows if row.name == "gradient_checkpointing")
    assert row[1:] == (None, False, True, "changed by the workbench")
    assert planned.settings["gradient_checkpointing"] is True
    assert planned.memory.inputs.settings["gradient_checkpointing"] is True

    here_now = Machine.here()
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls, for_vllm=False: here_now._replace(card_gb=vram)))
    run = train(recipe, task=task)
    assert line in capsys.readouterr().out
    manifest = run.manifest()
    assert line in manifest["settings"]["translated"]
    assert manifest["settings"]["in_force"]["gradient_checkpointing"] is True
    [row] = [row for row in manifest["settings_table"] if row["name"] == "gradient_checkpointing"]
    assert (row["in_force"], row["by"]) == (True, "changed by the workbench")
    assert "gradient_checkpointing" not in run.recipe().grpo

    monkeypatch.setattr(Machine, "here", classmethod(lambda cls, for_vllm=False: here_now._replace(card_gb=1000)))
    gone_on = continue_run(run, task=task, steps=1)
    assert gone_on.result()["steps"] == 3
    assert prepare(gone_on.recipe(), task, run=gone_on).settings["gradient_checkpointing"] is True


def test_a_plan_for_a_card_looks_at_every_stage():
    stages = [{"name": "a", "steps": 1}, {"name": "b", "steps": 1, "grpo": {"max_completion_length": 100}}]
    longer = wb.plan(Recipe.of({"grpo": {**GRPO}, "stages": stages}), task=arithmetic(16, 4), vram_gb=1)
    assert longer.settings["gradient_checkpointing"] is False
    assert longer.memory.inputs.completion == 100
    assert longer.notes[-1] == "memory and gradient checkpointing are a card's; the rest is as here, without a GPU"


def test_memory_is_estimated_with_vllm_where_it_is_asked_for():
    recipe = Recipe.of({"policy": {"fast_inference": True, "gpu_memory_utilization": 0.25}, "grpo": GRPO})
    found = wb.plan(recipe, task=arithmetic(16, 4), vram_gb=16)
    [vllm] = [part for part in found.memory.parts if part.name == "vLLM"]
    assert 0.24 * 16e9 < vllm.bytes < 0.25 * 16e9
    assert found.settings["use_vllm"] is False
    unknown = wb.plan(recipe, task=arithmetic(16, 4))
    assert "vLLM" not in {part.name for part in unknown.memory.parts}, "how much it takes depends on the card"
