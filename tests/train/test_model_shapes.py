"""A policy's shape from its config.json: as transformers builds it, and refused where it cannot."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from small_models import OF_A_MIXTURE, make_mixture

import workbench as wb
from workbench.base.errors import PolicyError, RecipeError
from workbench.base.instruments import TABLE
from workbench.memory import shapes
from workbench.memory.parts import weight_bytes
from workbench.memory.shapes import KNOWN_FILE, adapter_on, from_config, shape_of
from workbench.recipe import LoraPart
from workbench.training.plan.presets import FOLDER

SMALL = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "vocab_size": 112,
}
KNOWN = json.loads(KNOWN_FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("entry", KNOWN, ids=lambda entry: entry["models"][-1])
def test_known_configurations_have_the_published_number_of_parameters(entry):
    shape, config = from_config(entry["config"]), entry["config"]
    assert shape.parameters == entry["parameters"]
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head = config.get("head_dim", hidden // heads)
    block = {"q_proj": (heads * head, hidden), "k_proj": (kv_heads * head, hidden), "v_proj": (kv_heads * head, hidden)}
    block |= {"o_proj": (hidden, heads * head), "down_proj": (hidden, inner)}
    block |= {"gate_proj": (inner, hidden), "up_proj": (inner, hidden)}
    sizes = [outputs * inputs for outputs, inputs in block.values()]
    assert sorted(shape.packed) == sorted(sizes * config["num_hidden_layers"])


@pytest.mark.parametrize(
    ("kind", "more", "parameters", "windows", "norms", "qk_norm"),
    [
        # By hand: embedding and output 2 x 112 x 48; a block's matrices; norms of 48. Queries are 6 x 8, keys 2 x 8 wide.
        ("llama", {}, 2 * 5376 + 3 * (2 * 2304 + 2 * 768 + 3 * 3840 + 2 * 48) + 48, [None] * 3, 2, False),
        ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
         5376 + 3 * (2 * 2304 + 2 * 768 + 3 * 3840 + 2 * 48 + (48 + 16 + 16 + 48) + (80 + 80 + 48)) + 48,
         [None] * 3, 2, False),
        ("qwen2", {}, 2 * 5376 + 3 * (2 * 2304 + 2 * 768 + 3 * 3840 + 2 * 48 + (48 + 16 + 16)) + 48, [None] * 3, 2, False),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, None, [None, 8, 8], 2, False),
        ("qwen3", {"head_dim": 8}, 2 * 5376 + 3 * (2 * 2304 + 2 * 768 + 3 * 3840 + 2 * 48 + 16) + 48, [None] * 3, 2, True),
        ("gemma2", {"sliding_window": 16}, None, [16, None, 16], 4, False),
        ("gemma3_text", {"sliding_window": 16}, None, [16, 16, 16], 4, True),
        ("mistral", {"sliding_window": 6}, None, [6, 6, 6], 2, False),
        ("olmo2", {}, None, [None] * 3, 2, True),
    ],
)  # fmt: skip
def test_what_a_configuration_describes(kind, more, parameters, windows, norms, qk_norm):
    shape = from_config({"model_type": kind, **SMALL, **more})
    assert parameters in (None, shape.parameters)
    assert (list(shape.windows), shape.norms_per_layer, shape.qk_norm) == (windows, norms, qk_norm)
    assert (shape.layers, shape.heads, shape.kv_heads, shape.vocab_size) == (3, 6, 2, 112)


@pytest.mark.parametrize(
    "name",
    [
        "unsloth/Qwen2.5-1.5B-Instruct-bnb-4bit",
        "unsloth/Qwen2.5-1.5B-Instruct-unsloth-bnb-4bit",
        "unsloth/Llama-3.2-1B-Instruct",
        "google/gemma-3-1b-it",
    ],
)
def test_names_of_repositories_made_from_a_known_model(name):
    shape = shape_of(name)
    assert shape.name == name
    assert shape.parameters > 9e8


def test_the_presets_policies_are_known_offline():
    import yaml

    recipes = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in FOLDER.glob("*.yaml")]
    names = {recipe.get("policy", {}).get("name", "tiny") for recipe in recipes}
    assert all(shape_of(name).parameters for name in names)
    assert len(names) > 2


def test_building_a_shape_moves_no_random_numbers(tiny_policy):
    import torch

    before = torch.get_rng_state()
    shapes._built.__wrapped__.cache_clear()
    shape = shape_of("tiny")
    assert torch.equal(before, torch.get_rng_state())
    assert shape.parameters == tiny_policy.parameters == 803_712


def test_a_quantised_configuration_says_which_modules_were_left_alone():
    said = {"load_in_4bit": True, "llm_int8_skip_modules": ["lm_head", "model.layers.1.mlp", "v_proj"]}
    shape = from_config({"model_type": "llama", **SMALL, "quantization_config": said})
    assert shape.quantised
    whole = from_config({"model_type": "llama", **SMALL})
    # v_proj of every layer, and the three matrices of one layer's MLP
    assert Counter(whole.packed) - Counter(shape.packed) == {16 * 48: 3, 80 * 48: 3}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "config.json"),
        ("[1]", "config.json"),
        ("{}", "model_type = None"),
        ('{"model_type": "no-such-model"}', "model_type = 'no-such-model'"),
        (json.dumps({"model_type": "llama", **SMALL, "num_hidden_layers": 0}), "layers = 0"),
        (json.dumps({"model_type": "qwen2", **SMALL, "vocab_size": "many"}), "vocab_size"),
    ],
)
def test_a_broken_configuration_is_an_error_that_names_it(tmp_path, text, said):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(PolicyError) as caught:
        shape_of(tmp_path)
    assert said in caught.value.value
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["./nowhere", "a/b/c", "gpt2"])
def test_a_name_that_is_none(home, name):
    with pytest.raises(PolicyError, match="no such folder"):
        shape_of(name)


def test_without_the_hub_the_error_says_what_to_do(home, monkeypatch):
    def unreachable(*_, **__):
        raise ConnectionError("no route to host")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    with pytest.raises(PolicyError, match="connect to the network") as raised:
        shape_of("someone/some-model")
    assert raised.value.network


def test_a_cached_configuration_comes_before_a_known_one(home, monkeypatch):
    file = home / "config.json"
    file.write_text(json.dumps({"model_type": "llama", **SMALL}))
    monkeypatch.setattr(shapes, "_cached", lambda name: file)
    assert shape_of("Qwen/Qwen3-8B").layers == 3


# Mixtures of experts: r (in + out) for a matrix; a stacked parameter of E experts has E times that, at twice the rank where
# PEFT finds the gate and up projections fused into one.
_ATTENTION = 16 * (64 + 64 + 2 * (64 + 32) + 64 + 64)  # queries, keys, values, output


@pytest.mark.parametrize(
    ("config", "targets", "elements", "missing"),
    [
        ({"model_type": "qwen3_moe", "hidden_size": 64}, None,
         2 * (_ATTENTION + 4 * (32 * (64 + 64) + 16 * (32 + 64))), ()),
        ({"model_type": "qwen3_moe", "hidden_size": 64}, ["q_proj", "down_proj"], 2 * (16 * 128 + 4 * 16 * (32 + 64)), ()),
        ({"model_type": "qwen3_moe", "hidden_size": 64}, ["q_proj", "w1"], 2 * 16 * 128, ("w1",)),
        ({"model_type": "gpt_oss", "hidden_size": 64}, None, 2 * _ATTENTION, ("gate_proj", "up_proj", "down_proj")),
        ({"model_type": "llama", "hidden_size": 64}, None, 2 * (_ATTENTION + 3 * 16 * (64 + 96)), ()),
        # Qwen3-30B-A3B: 48 layers, 128 experts of 768, 32 and 4 heads of 128.
        ({"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "head_dim": 128,
          "num_key_value_heads": 4, "num_experts": 128, "moe_intermediate_size": 768}, None, 994_836_480, ()),
    ],
)  # fmt: skip
def test_the_adapter_of_a_mixture_by_hand(config, targets, elements, missing):
    sizes = {
        **SMALL,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 16,
        "intermediate_size": 96,
        "pad_token_id": 0,
    }
    shape = from_config({**sizes, **OF_A_MIXTURE.get(config["model_type"], {}), **config})
    lora = LoraPart(target_modules=targets) if targets else LoraPart()
    found = adapter_on(shape, lora)
    assert (sum(found.sizes), found.unmatched) == (elements, missing)
    # On a GPU, Unsloth may put adapters on more experts than PEFT does by itself.
    everywhere = sum(adapter_on(shape, lora, experts=True).sizes)
    assert (everywhere > elements) is (config["model_type"] == "gpt_oss" or targets is not None)


@pytest.mark.parametrize(
    ("lora", "said"),
    [
        ({"target_modules": ["gate_proj"]}, "without also targeting up_proj"),
        ({"target_modules": ["nowhere"]}, "not found"),
        ({"lora_dropout": 0.1}, "lora_dropout"),
    ],
)
def test_an_adapter_that_peft_refuses_is_refused_by_the_plan(tmp_path, lora, said):
    policy = {"name": str(make_mixture(tmp_path / "model", "qwen3_moe")), "backend": "transformers"}
    with pytest.raises(RecipeError, match=said):
        wb.plan(wb.Recipe(policy=policy, lora=lora, grpo={"max_steps": 1}))


@pytest.mark.parametrize(("kind", "missing"), [("qwen3_moe", ""), ("gpt_oss", "gate_proj or up_proj or down_proj")])
def test_plan_and_policy_say_the_same_of_a_mixture(tmp_path, recwarn, kind, missing):
    folder = make_mixture(tmp_path / "model", kind)
    policy = {"name": str(folder), "backend": "transformers"}
    plan = wb.plan(wb.Recipe(policy=policy, grpo={"max_steps": 1, "max_completion_length": 100}), vram_gb=16)
    loaded, shape = wb.load_policy(plan), shape_of(folder)
    [stays] = [note for note in plan.notes if "of the weights are not in 4 bits" in note]
    assert f"{shape.stacked / shape.parameters:.0%}" in stays
    assert stays in loaded.notes
    said = [note for note in plan.notes if "lora.target_modules" in note]
    assert [note for note in loaded.notes if "lora.target_modules" in note] == said
    assert [missing in note for note in said] == [True] * bool(missing)
    assert sum(adapter_on(shape, LoraPart()).sizes) == loaded.trainable
    assert not [each for each in recwarn if "rank_pattern" in str(each.message)]
    [weights] = [part for part in plan.memory.parts if part.name == "weights"]
    assert (weights.bytes, weights.exact) == (weight_bytes(shape, True), True)
    if "cpu" in TABLE:
        assert plan.generation.startswith("TRL's own" if kind == "gpt_oss" else "The workbench's own loop")
