"""Merging: exactly base + s B A, rounded once, whatever PEFT was asked for; and exactly the live 4-bit policy, dequantised."""

from __future__ import annotations

import json
import shutil

import pytest
from made_runs import changed_model, made_run, off_the_grid, saved_adapter, tied

from workbench.base.errors import ExportError, PolicyError
from workbench.exporting import merging
from workbench.exporting.merging import copy_adapter, sixteen_bit_base, with_defaults, write_merged
from workbench.tiny import MODEL_DIR
from workbench.training.plan.loading import linear4bit_layers, load_tokenizer
from workbench.training.policy import load_policy

PATTERNS = {"rank_pattern": {"q_proj": 4}, "alpha_pattern": {r"layers\.1\..*k_proj": 3}, "use_rslora": True}


def tensors(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module", params=[{}, PATTERNS], ids=["plain", "rslora and patterns"])
def merged(request, tmp_path_factory):
    """(adapter, merged folder)"""
    adapter = saved_adapter(**request.param)
    return adapter, write_merged(MODEL_DIR, adapter, tmp_path_factory.mktemp("export") / "merged_16bit")


def test_the_merged_weights_are_base_plus_s_b_a_rounded_once(merged):
    import torch

    adapter, folder = merged
    base, result, added = tensors(MODEL_DIR), tensors(folder), merging.deltas(adapter)
    assert len(added) == 21
    assert base.keys() == result.keys()
    for name, weight in base.items():
        delta = added.pop(name.removesuffix(".weight"), None)
        exact = weight if delta is None else (weight.float() + delta()).bfloat16()
        assert delta is None or delta().abs().max() > 0.01
        torch.testing.assert_close(result[name], exact, rtol=0, atol=0)
    assert not added


def test_deltas_are_those_that_peft_adds_and_in_the_order_of_the_layers():
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    adapter = saved_adapter(**PATTERNS)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(MODEL_DIR), adapter).get_base_model()
    found = merging.deltas(adapter)
    scales = set()
    for layer, delta in found.items():
        lora = model.get_submodule(layer)
        scales.add(lora.scaling["default"])
        assert (delta() - lora.get_delta_weight("default")).abs().max() < 1e-6
    assert len(scales) >= 3  # the patterns were met
    assert [name.split(".")[2] for name in found] == ["0"] * 7 + ["1"] * 7 + ["2"] * 7


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["transformers", "unsloth"])
@pytest.mark.parametrize("ready_made", [False, True], ids=["quantised in loading", "a folder of 4-bit weights"])
@pytest.mark.parametrize("targets", [["q_proj", "down_proj"], "all-linear"], ids=["two kinds of layers", "all layers"])
def test_dequantised_is_the_live_policy(home, backend, ready_made, targets):
    """Layer by layer, those without an adapter, too, on a policy that NF4 rounds."""
    from bitsandbytes.functional import dequantize_4bit

    source = changed_model(home / "model", off_the_grid)
    adapter = saved_adapter(source=source, target_modules=targets)
    if ready_made:
        source = four_bit_folder(source, home / "model-bnb-4bit")
    policy = load_policy(str(source), backend=backend, load_in_4bit=True, adapter=adapter)
    # Which type a backend computes in is the machine's: Unsloth takes bfloat16 where the CPU multiplies in it.
    run = made_run(adapter=adapter, source=source, compute_dtype=policy.compute_dtype)
    held = merging.four_bit(run)
    merged = tensors(write_merged(merging.base_of(run), run.adapter, home / "merged", held=held))
    assert len(linear4bit_layers(policy.model)) == 21
    plain = tensors(home / "model")
    for name, layer in policy.model.get_base_model().named_modules():
        under = getattr(layer, "base_layer", layer)
        state = getattr(getattr(under, "weight", None), "quant_state", None)
        if state is None or name.endswith("base_layer"):
            continue
        live = dequantize_4bit(under.weight.data, state).float()
        assert (live - plain[f"{name}.weight"].float()).norm() > 0.01 * live.norm()  # NF4 did round it
        if hasattr(layer, "lora_A"):
            live += layer.scaling["default"] * (layer.lora_B["default"].weight.float() @ layer.lora_A["default"].weight.float())
        assert live.bfloat16().equal(merged.pop(f"{name}.weight")), name
    assert len(merged) == len(plain) - 21
    for name, weight in merged.items():
        assert weight.equal(plain[name]), name


def four_bit_folder(source, folder):
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    how = {"quantization_config": BitsAndBytesConfig(**merging.NF4), "dtype": torch.bfloat16, "device_map": "cpu"}
    AutoModelForCausalLM.from_pretrained(source, **how).save_pretrained(folder)
    load_tokenizer(source).save_pretrained(folder)
    return folder


def test_dequantised_is_the_plain_backends_policy(home):
    """The quick form of the test above."""
    from bitsandbytes.functional import dequantize_4bit

    source = changed_model(home / "model", off_the_grid)
    run = made_run(source=source)
    held = merging.four_bit(run)
    merged = tensors(write_merged(source, run.adapter, home / "merged", held=held))
    policy = load_policy(str(source), backend="transformers", load_in_4bit=True, adapter=run.adapter)
    for name, layer in policy.model.get_base_model().named_modules():
        if hasattr(layer, "lora_A"):
            delta = layer.lora_B["default"].weight.float() @ layer.lora_A["default"].weight.float()
            live = dequantize_4bit(layer.base_layer.weight.data, layer.base_layer.weight.quant_state).float()
            assert held(name, tensors(source)[f"{name}.weight"]).equal(live)  # from the stored 16 bits, too
            assert (live + layer.scaling["default"] * delta).bfloat16().equal(merged[f"{name}.weight"])


def test_16_bit_weights_have_nothing_to_dequantise(home):
    with pytest.raises(ExportError, match="float32"):
        merging.four_bit(made_run(precision="float32"))


def test_a_run_of_ready_made_4_bit_weights_is_known_by_what_peft_wrote(home):
    adapter = home / "adapter"
    shutil.copytree(saved_adapter(), adapter)
    config = json.loads((adapter / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "unsloth/qwen3-4b-unsloth-bnb-4bit"
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    assert merging._quantised_source(made_run(adapter=adapter, source="Qwen/Qwen3-4B")) == "unsloth/qwen3-4b-unsloth-bnb-4bit"
    assert merging._quantised_source(made_run("other")) == ""


def test_a_tied_head_stays_tied(home):
    source = changed_model(home / "model", tied)
    merged = write_merged(source, saved_adapter(source=source), home / "merged")
    assert json.loads((merged / "config.json").read_text())["tie_word_embeddings"] is True
    assert tensors(merged).keys() == tensors(source).keys()
    assert tensors(merged)["model.embed_tokens.weight"].equal(tensors(source)["model.embed_tokens.weight"])


def test_a_module_that_was_saved_whole_is_the_trained_one(home):
    from safetensors.torch import load_file

    adapter = saved_adapter(modules_to_save=["lm_head"])
    merged = tensors(write_merged(MODEL_DIR, adapter, home / "merged"))["lm_head.weight"]
    trained = load_file(adapter / "adapter_model.safetensors")["base_model.model.lm_head.weight"]
    assert merged.equal(trained.bfloat16())
    assert not merged.equal(tensors(MODEL_DIR)["lm_head.weight"])


def test_the_template_renders_by_itself_what_training_rendered_and_may_be_told_otherwise(home):
    source = home / "model"
    shutil.copytree(MODEL_DIR, source)
    # Blanks before the first block, and a line end: what trim_blocks and lstrip_blocks would eat in another place.
    template = (
        "  {% if think %}on {{ words }}{% else %}off{% endif %}\n\n{% for message in messages %}{{ message.content }}{% endfor %}"
    )
    tokenizer, kwargs = load_tokenizer(source), {"think": True, "words": 'it\'s "so"\n{{ x }}'}
    tokenizer.chat_template = template
    messages = [{"role": "user", "content": "hi"}]
    for more in ({}, {"think": False}, {"words": "others"}):
        tokenizer.chat_template = template
        expected = tokenizer.apply_chat_template(messages, tokenize=False, **{**kwargs, **more})
        tokenizer.chat_template = with_defaults(template, kwargs)
        assert tokenizer.apply_chat_template(messages, tokenize=False, **more) == expected


def test_generation_ends_as_training_did(home):
    source, adapter = home / "model", home / "adapter"
    shutil.copytree(MODEL_DIR, source)
    shutil.copytree(saved_adapter(), adapter)
    (source / "generation_config.json").write_text('{"eos_token_id": 3, "pad_token_id": 0}')
    for more, eos in (((), [2, 3]), ([3, 7], [2, 3, 7])):  # the base's, though it is not the tokenizer's; and the trainer's
        merged = write_merged(source, adapter, home / "merged", eos_ids=more)
        for name in ("generation_config.json", "config.json"):
            assert json.loads((merged / name).read_text())["eos_token_id"] == eos
        assert load_tokenizer(merged).eos_ids == eos
    (source / "generation_config.json").write_text('{"eos_token_id": [1, 2], "pad_token_id": 0, "temperature": 0.6}')
    tokenizer = load_tokenizer(source)
    tokenizer.eos_token, tokenizer.pad_token, tokenizer.model_max_length = "<|user|>", "</s>", 64
    tokenizer.save_pretrained(adapter)
    merged = write_merged(source, adapter, home / "merged")
    said = json.loads((merged / "generation_config.json").read_text())
    assert said["eos_token_id"] == [tokenizer.eos_token_id, 1, 2]
    assert said["pad_token_id"] == tokenizer.pad_token_id == 2
    assert json.loads((merged / "config.json").read_text())["pad_token_id"] == 2
    assert load_tokenizer(merged).eos_token == "<|user|>"
    assert load_tokenizer(merged).model_max_length == 512  # that of the base: 64 was the length of the run's context


def test_the_original_tokenizer_stands_beside_the_merged_model(merged):
    assert (merged[1] / "tokenizer.model").read_bytes() == (MODEL_DIR / "tokenizer.model").read_bytes()


def test_a_model_is_read_from_the_files_that_its_index_names(home):
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(MODEL_DIR).save_pretrained(home / "shards", max_shard_size="500KB")
    load_tokenizer("tiny").save_pretrained(home / "shards")
    shutil.copytree(MODEL_DIR, home / "one")
    for folder in (home / "shards", home / "one"):
        save_file({"model.norm.weight": torch.zeros(1), "norm.weight": torch.zeros(1)}, folder / "consolidated.safetensors")
        found = merging.tensors_of(folder)
        assert found.keys() == tensors(MODEL_DIR).keys()
        assert found["model.norm.weight"]().equal(tensors(MODEL_DIR)["model.norm.weight"])
    next((home / "shards").glob("model-00002*")).unlink()
    with pytest.raises(PolicyError, match="model-00002"):
        merging.tensors_of(home / "shards")


@pytest.mark.slow
def test_what_one_backend_trained_the_other_loads():
    import torch

    ids = torch.arange(5, 29).reshape(2, 12)
    logits = []
    for backend in ("transformers", "unsloth"):
        policy = load_policy("tiny", backend=backend, dtype="float32", adapter=saved_adapter())
        with policy.generating() as model, torch.inference_mode():
            logits.append(model(input_ids=ids).logits)
        with policy.generating(base=True) as model, torch.inference_mode():
            assert (model(input_ids=ids).logits - logits[-1]).abs().max() > 0.1
    torch.testing.assert_close(*logits)


def test_an_adapter_copy_leaves_pickles_and_state_behind(tmp_path):
    shutil.copytree(saved_adapter(), tmp_path / "in")
    (tmp_path / "in" / "training_args.bin").write_bytes(b"pickle")
    (tmp_path / "in" / "optimizer.safetensors").write_bytes(b"moments")
    (tmp_path / "in" / "trainer_state.json").write_text("{}")
    (tmp_path / "in" / "state.json").write_text("{}")
    out = copy_adapter(tmp_path / "in", tmp_path / "out")
    assert {file.name for file in out.iterdir()} == {file.name for file in saved_adapter().iterdir()}


def test_no_adapter_is_an_error(tmp_path):
    with pytest.raises(PolicyError, match=r"no adapter_config\.json"):
        copy_adapter(tmp_path, tmp_path / "out")


@pytest.mark.parametrize(
    ("source", "base"),
    [
        ("unsloth/Qwen2.5-1.5B-Instruct-bnb-4bit", "unsloth/Qwen2.5-1.5B-Instruct"),
        ("unsloth/Qwen3-4B-unsloth-bnb-4bit", "unsloth/Qwen3-4B"),
        ("Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct"),
        (str(MODEL_DIR), str(MODEL_DIR)),
    ],
)
def test_the_16_bit_base_of_a_policy(source, base):
    assert sixteen_bit_base(source) == base


def test_a_folder_of_4_bit_weights_has_no_16_bit_base(tmp_path):
    (tmp_path / "config.json").write_text('{"quantization_config": {"load_in_4bit": true}}')
    with pytest.raises(ExportError, match="the weights are quantised"):
        sixteen_bit_base(tmp_path)
