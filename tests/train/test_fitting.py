"""The memory estimate around a run: said before, measured after the first step, and the remedy when memory runs out."""

from __future__ import annotations

import pytest
import torch

from workbench import memory
from workbench.memory import OutOfMemory
from workbench.recipe import PolicyPart, Recipe
from workbench.run.directory import open_run
from workbench.tiny.task import task as arithmetic
from workbench.training.plan.settings.device import Machine
from workbench.training.plan.settings.values import DEFAULTS
from workbench.training.policy import load_policy
from workbench.training.trainer import train

GRPO = {"max_steps": 3, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 32}


@pytest.fixture(scope="module")
def policy():
    return load_policy("tiny", load_in_4bit=False)


def recipe(**grpo) -> Recipe:
    return Recipe.of({"run_name": "m", "grpo": {**GRPO, **grpo}, "policy": {"load_in_4bit": False}})


def test_running_out_of_memory_names_what_helps(home, policy):
    """The allocator's error, raised in the second step where a GPU would raise it: in the forward pass."""
    calls = []

    def full(*_):
        calls.append(policy.model.training and torch.is_grad_enabled())
        if sum(calls) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14 GiB")

    hook = policy.model.get_input_embeddings().register_forward_pre_hook(full)
    asked = recipe().model_copy(update={"policy": PolicyPart(name="unsloth/Qwen2.5-1.5B-Instruct-bnb-4bit")})
    try:
        with pytest.raises(OutOfMemory) as raised:
            train(asked, policy=policy, task=arithmetic(32, 4))
    finally:
        hook.remove()
    said = str(raised.value)
    assert "Tried to allocate 2.00 GiB" in said
    assert said.count("\n    - ") == len(memory.hints(asked, {**DEFAULTS, **GRPO})) == 3
    assert isinstance(raised.value.__cause__, torch.OutOfMemoryError)
    assert open_run("m").events()[-1]["event"] == "failed"
    assert open_run("m").result()["steps"] == 1


def test_on_a_gpu_the_first_steps_peak_is_kept_beside_the_estimate(home, policy, monkeypatch):
    """No GPU here: what the card and the allocator would say is given, the rest is the run's own."""
    here = Machine.here()
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls, for_vllm=False: here._replace(card_gb=16)))
    monkeypatch.setattr(memory, "measured_peak", lambda: 3 * 10**9)
    run = train(recipe(), policy=policy, task=arithmetic(32, 4))
    found = run.manifest()["memory"]
    assert found["measured_peak_bytes"] == 3 * 10**9
    assert found["estimate"]["peak_phase"] in ("generation", "training")


def test_without_a_gpu_nothing_is_said_or_kept(home, policy, capsys):
    run = train(recipe(max_steps=1), policy=policy, task=arithmetic(32, 4))
    assert "memory" not in run.manifest()
    assert "GB" not in capsys.readouterr().out
