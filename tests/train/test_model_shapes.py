"""A policy's shape from its config.json: counted as transformers builds it, refused where it cannot be."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from workbench.errors import PolicyError
from workbench.memory import shapes
from workbench.memory.shapes import KNOWN_FILE, from_config, safetensors_header, shape_of

SMALL = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "vocab_size": 112,
}
# What a config may say beside the sizes -> parameters that only that architecture, or only that word, has.
CONFIGS = [
    ("llama", {}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("llama", {"head_dim": 20, "num_key_value_heads": 6}),
    ("mistral", {}),
    ("mistral", {"head_dim": 12, "sliding_window": None}),
    ("granite", {"attention_bias": True}),
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    ("qwen3", {}),
    ("qwen3", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
    ("smollm3", {}),
    ("smollm3", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
    ("gemma", {"head_dim": 24}),
    ("gemma2", {}),
    ("gemma2", {"head_dim": 8, "attention_bias": True, "sliding_window": 16}),
    ("gemma3_text", {"head_dim": 8, "sliding_window": 16}),
    ("gemma3_text", {"attention_bias": True}),
    ("phi3", {}),
    ("phi3", {"tie_word_embeddings": True, "sliding_window": 10}),
]


def built(kind: str, sizes: dict):
    """(configuration, model on the meta device) as transformers makes them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, **sizes, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    with torch.device("meta"):
        return config, AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(("kind", "more"), CONFIGS)
def test_every_parameter_is_counted_as_transformers_builds_it(kind, more):
    import torch

    config, model = built(kind, {**SMALL, **more})
    # As it is saved, and as a person writes it, with what has a default left out.
    for said in (json.loads(config.to_json_string()), {"model_type": kind, **SMALL, **more}):
        shape = from_config(said)
        assert shape.parameters == model.num_parameters()
        linear = {
            name.removeprefix("model."): tuple(module.weight.shape)
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and name != "lm_head"
        }
        assert {matrix.path: (matrix.outputs, matrix.inputs) for matrix in shape.matrices} == linear


@pytest.mark.parametrize(("kind", "more"), CONFIGS)
def test_windows_are_those_of_the_cache(kind, more):
    from transformers import DynamicCache

    config, _ = built(kind, {**SMALL, **more})
    cache = DynamicCache(config=config)
    shape = from_config(json.loads(config.to_json_string()))
    assert list(shape.windows) == [getattr(layer, "sliding_window", None) for layer in cache.layers]


KNOWN = json.loads(KNOWN_FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("entry", KNOWN, ids=lambda entry: entry["models"][-1])
def test_known_configurations_have_the_published_number_of_parameters(entry):
    shape = from_config(entry["config"])
    assert shape.parameters == entry["parameters"]
    sizes = {key: value for key, value in entry["config"].items() if key != "model_type"}
    _, model = built(shape.model_type, {**sizes, "num_hidden_layers": 2})
    two = from_config({**entry["config"], "num_hidden_layers": 2})
    assert two.parameters == model.num_parameters()


def test_published_numbers():
    published = {
        "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
        "Qwen/Qwen2-0.5B-Instruct": 494_032_768,
        "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
        "Qwen/Qwen2.5-3B-Instruct": 3_085_938_688,
        "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
        "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
        "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    }
    assert {name: shape_of(name).parameters for name in published} == published


@pytest.mark.parametrize(
    "name",
    [
        "unsloth/Qwen2.5-1.5B-Instruct-bnb-4bit",
        "unsloth/Qwen2.5-1.5B-Instruct-unsloth-bnb-4bit",
        "unsloth/Qwen2.5-1.5B-Instruct",
        "unsloth/Llama-3.2-1B-Instruct-bnb-4bit",
        "google/gemma-3-1b-it",
        "Qwen/Qwen3-8B",
    ],
)
def test_names_of_repositories_made_from_a_known_model(name):
    shape = shape_of(name)
    assert shape.name == name
    assert shape.parameters > 9e8


def test_the_presets_policies_are_known_offline():
    import yaml

    names = set()
    for file in (KNOWN_FILE.parent / "presets").glob("*.yaml"):
        names.add(yaml.safe_load(file.read_text(encoding="utf-8")).get("policy", {}).get("name", "tiny"))
    for name in names:
        assert shape_of(name).parameters


def test_the_embedded_policy(tiny_policy):
    shape = shape_of("tiny")
    assert shape.parameters == tiny_policy.parameters
    assert "803,712 parameters" in str(shape)


def test_a_quantised_configuration_says_which_modules_were_left_alone():
    said = {"load_in_4bit": True, "llm_int8_skip_modules": ["lm_head", "model.layers.1.mlp", "v_proj"]}
    shape = from_config({"model_type": "llama", **SMALL, "quantization_config": said})
    assert shape.quantised
    kept = [matrix.path for matrix in shape.matrices if not shape.is_quantised(matrix)]
    assert kept == [
        "layers.0.self_attn.v_proj",
        "layers.1.self_attn.v_proj",
        "layers.1.mlp.gate_proj",
        "layers.1.mlp.up_proj",
        "layers.1.mlp.down_proj",
        "layers.2.self_attn.v_proj",
    ]


def test_an_unknown_architecture_is_counted_from_its_files(tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model("olmo2", **SMALL, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    shape = shape_of(tmp_path)
    assert shape.parameters == model.num_parameters()
    assert len(shape.matrices) == 7 * 3
    assert (shape.kv_heads, shape.head_dim, shape.tied) == (2, 8, False)
    assert "headers of 1 safetensors file" in shape.source


def folder(tmp_path, text: str):
    (tmp_path / "config.json").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "config.json"),
        ("[1]", "it holds a list"),
        ("{}", "model_type = None"),
        ('{"model_type": "rwkv"}', "model_type = 'rwkv'"),
        ('{"model_type": "llama"}', "hidden_size = None"),
        (json.dumps({"model_type": "llama", **SMALL, "num_hidden_layers": 0}), "num_hidden_layers = 0"),
        (json.dumps({"model_type": "qwen2", **SMALL, "vocab_size": "many"}), "vocab_size = 'many'"),
    ],
)
def test_a_broken_configuration_is_an_error_that_names_it(tmp_path, text, said):
    with pytest.raises(PolicyError) as caught:
        shape_of(folder(tmp_path, text))
    assert said in caught.value.value
    assert caught.value.remedy


def test_a_broken_safetensors_file(tmp_path):
    folder(tmp_path, json.dumps({"model_type": "rwkv", **SMALL}))
    file = tmp_path / "model.safetensors"
    for content in (b"", b"version https://git-lfs.github.com/spec/v1", b"\x02\0\0\0\0\0\0\0[]"):
        file.write_bytes(content)
        with pytest.raises(PolicyError, match="model.safetensors"):
            safetensors_header(file)
        with pytest.raises(PolicyError):
            shape_of(tmp_path)


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


def test_nothing_heavy_is_imported():
    script = "import sys\nfrom workbench.memory.shapes import shape_of\nshape_of('tiny')\nprint(sorted(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert not {"'torch'", "'transformers'"} & set(modules.strip("[]\n").split(", "))
