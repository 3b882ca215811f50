"""A policy's shape from its config.json: as transformers builds it, and refused where it cannot."""

from __future__ import annotations

import json

import pytest

from workbench.errors import PolicyError
from workbench.memory import shapes
from workbench.memory.shapes import KNOWN_FILE, from_config, shape_of
from workbench.training.presets import FOLDER

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
    found = [(one.path.rsplit(".", 1)[-1], (one.outputs, one.inputs)) for one in shape.matrices]
    assert sorted(found) == sorted([*block.items()] * config["num_hidden_layers"])


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
    shapes._built.cache_clear()
    shape = shape_of("tiny")
    assert torch.equal(before, torch.get_rng_state())
    assert shape.parameters == tiny_policy.parameters == 803_712


def test_a_quantised_configuration_says_which_modules_were_left_alone():
    said = {"load_in_4bit": True, "llm_int8_skip_modules": ["lm_head", "model.layers.1.mlp", "v_proj"]}
    shape = from_config({"model_type": "llama", **SMALL, "quantization_config": said})
    assert shape.quantised
    kept = [matrix.path for matrix in shape.matrices if not shape.is_quantised(matrix)]
    assert [path for path in kept if "layers.1" not in path] == [f"layers.{n}.self_attn.v_proj" for n in (0, 2)]
    assert len([path for path in kept if path.startswith("layers.1.mlp.")]) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not a valid JSON"),
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
