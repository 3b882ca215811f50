"""`policy.adapter`: training goes on from an adapter that one already has, in its shape, with the base as the reference."""

from __future__ import annotations

import pytest

from workbench.base.errors import PolicyError
from workbench.recipe import Recipe
from workbench.training.plan.loading import adapter_named
from workbench.training.plan.prepare import prepare
from workbench.training.policy import load_policy
from workbench.training.resuming import save_adapter
from workbench.training.trainer import continue_run, train

PLAIN = {"backend": "transformers", "load_in_4bit": False}
GRPO = {"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 8, "save_steps": 1}


def weights_of(policy):
    return {name: one.detach().clone() for name, one in policy.model.named_parameters() if "lora_" in name}


@pytest.fixture(scope="module", params=["transformers", "unsloth"])
def adapter(request, tmp_path_factory):
    """(backend, folder, weights) of a policy whose adapter is not a new one's: rank 4, on two projections."""
    shape = {"r": 4, "lora_alpha": 8, "target_modules": ["v_proj", "q_proj"]}
    policy = load_policy("tiny", backend=request.param, load_in_4bit=False, lora=shape, seed=5)
    for name, weight in policy.model.named_parameters():
        if "lora_B" in name:
            weight.data.fill_(0.01)
    folder = tmp_path_factory.mktemp("mine") / "adapter"
    folder.mkdir()
    save_adapter(policy.model, policy.tokenizer, folder)
    return request.param, folder, weights_of(policy)


def test_it_is_loaded_as_it_is_and_trains(adapter):
    backend, folder, weights = adapter
    policy = load_policy(Recipe(policy={"backend": backend, "load_in_4bit": False, "adapter": str(folder)}))
    loaded = weights_of(policy)
    assert loaded.keys() == weights.keys()
    assert all((loaded[name] == weights[name].to(loaded[name].dtype)).all() for name in weights)
    assert policy.trainable == sum(one.numel() for one in weights.values())
    assert policy.trained_in == [adapter_named(folder)]


def test_a_run_begins_with_it_and_continues_without_its_folder(home, adapter):
    backend, folder, _ = adapter
    if backend == "unsloth":
        pytest.skip("the recipe's way is the same for both")
    recipe = Recipe(policy={**PLAIN, "adapter": str(folder)}, grpo={**GRPO, "beta": 0.1})
    plan = prepare(recipe)
    assert (plan.recipe.lora.r, plan.recipe.lora.target_modules) == (4, ["q_proj", "v_proj"])
    assert any(adapter_named(folder) in note and "base" in note for note in plan.notes)
    run = train(recipe)
    assert run.manifest()["policy"]["trained_in"] == [adapter_named(folder)]
    assert run.recipe().lora.r == 4
    assert run.metrics()[0]["kl"] > 0  # the reference is the base: against the adapter as it was it would be 0
    folder.rename(folder.with_name("elsewhere"))
    try:
        assert continue_run(run, steps=1).result()["steps"] == 3
    finally:
        folder.with_name("elsewhere").rename(folder)


def test_another_shape_is_refused_by_name(adapter):
    _, folder, _ = adapter
    with pytest.raises(PolicyError) as raised:
        prepare(Recipe(policy={**PLAIN, "adapter": str(folder)}, lora={"r": 16}))
    assert raised.value.value.startswith("lora.r = 16")
    assert "r = 4" in raised.value.rule


def test_an_adapter_of_another_model_is_refused(adapter, tmp_path):
    from safetensors.torch import load_file, save_file

    backend, folder, _ = adapter
    (tmp_path / "adapter_config.json").write_bytes((folder / "adapter_config.json").read_bytes())
    weights = load_file(folder / "adapter_model.safetensors")
    save_file(
        {name.replace("layers.0.", "layers.77."): one for name, one in weights.items()}, tmp_path / "adapter_model.safetensors"
    )
    with pytest.raises(PolicyError, match=r"layers\.(77|0)\."):
        load_policy(Recipe(policy={"backend": backend, "load_in_4bit": False, "adapter": str(tmp_path)}))


def test_an_adapter_whose_weights_are_no_numbers_is_refused(adapter, tmp_path):
    from safetensors.torch import load_file, save_file

    backend, folder, _ = adapter
    (tmp_path / "adapter_config.json").write_bytes((folder / "adapter_config.json").read_bytes())
    weights = load_file(folder / "adapter_model.safetensors")
    spoiled = next(reversed(weights))
    weights[spoiled].view(-1)[-1] = float("nan")
    save_file(weights, tmp_path / "adapter_model.safetensors")
    with pytest.raises(PolicyError) as raised:
        load_policy(Recipe(policy={"backend": backend, "load_in_4bit": False, "adapter": str(tmp_path)}))
    assert spoiled in raised.value.value
    assert "lower learning rate" in raised.value.remedy
