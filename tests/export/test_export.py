"""Exports: merged equals base + adapter and differs from base, and the proof can tell when it does not."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest

from workbench.display import view_of
from workbench.errors import ExportError, RunError
from workbench.exporting import Exported, Proof, ask, copy_adapter, export, merge_16bit, prove, sixteen_bit_base
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory
from workbench.tiny import MODEL_DIR
from workbench.tiny.task import task as arithmetic
from workbench.training.policy import load_policy
from workbench.training.resuming import save_adapter

PROMPTS = [row["prompt"] for row in arithmetic(8, 8).held_out[:4]]


@pytest.fixture(scope="module", params=["unsloth", "transformers"])
def adapter(request, tmp_path_factory):
    """An adapter with an effect: its B matrices are filled with numbers that training could have left."""
    import torch

    policy = load_policy("tiny", backend=request.param)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.02)
    return save_adapter(policy.model, policy.tokenizer, tmp_path_factory.mktemp("run") / "final")


@pytest.fixture(scope="module")
def merged(adapter, tmp_path_factory):
    return merge_16bit(MODEL_DIR, adapter, tmp_path_factory.mktemp("export") / "merged_16bit")


def test_the_merged_weights_are_base_plus_ba(adapter, merged):
    from safetensors.torch import load_file

    config = json.loads((adapter / "adapter_config.json").read_text())
    base, lora, result = (load_file(folder / name) for folder, name in (
        (MODEL_DIR, "model.safetensors"), (adapter, "adapter_model.safetensors"), (merged, "model.safetensors"),
    ))  # fmt: skip
    scale = config["lora_alpha"] / config["r"]
    for name, weight in base.items():
        key = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{key}.lora_A.weight" in lora:
            delta = scale * lora[f"{key}.lora_B.weight"].float() @ lora[f"{key}.lora_A.weight"].float()
            assert delta.abs().max() > 0.01
            expected = (weight.float() + delta).to(result[name].dtype)
            assert result[name].dtype.itemsize == 2
            assert (result[name].float() - expected.float()).abs().max() <= 0.01
        else:
            assert result[name].float().equal(weight.float())


def test_the_proof_agrees(adapter, merged):
    proof = prove(Exported(MODEL_DIR, adapter, merged), PROMPTS)
    assert proof.agrees
    assert proof.same_greedy == proof.prompts == 4
    assert proof.largest_difference_to_base > 10 * proof.largest_logit_difference
    proof.require()


def test_a_run_is_exported_and_leaves_its_proof(home, adapter):
    run = RunDirectory.create("r", Recipe(), {"policy": {"source": str(MODEL_DIR)}})
    with pytest.raises(RunError, match="r: "):
        export(run)  # it trains
    run.release()
    shutil.copytree(adapter, run.final)
    exported = export(run)
    assert {line.split()[0] for line in str(exported).splitlines()} >= {
        "runs/r/export/adapter", "runs/r/export/merged_16bit", "adapter_model.safetensors", "model.safetensors",
    }  # fmt: skip
    proof = prove(exported, PROMPTS[:2])
    assert view_of(proof).rows[-1] == ["merged is base + adapter, and not base", True]
    assert list(run.read_json("export/proof.json")) == [
        "prompts", "largest_logit_difference", "logit_spread", "same_greedy", "largest_difference_to_base", "answers", "agrees",
    ]  # fmt: skip


def test_what_one_backend_trained_the_other_loads(adapter):
    import torch

    ids = torch.arange(5, 29).reshape(2, 12)
    logits = []
    for backend in ("transformers", "unsloth"):
        policy = load_policy("tiny", backend=backend, dtype="float32", adapter=adapter)
        with policy.generating() as model, torch.inference_mode():
            logits.append(model(input_ids=ids).logits)
        with policy.generating(base=True) as model, torch.inference_mode():
            assert (model(input_ids=ids).logits - logits[-1]).abs().max() > 0.1
    torch.testing.assert_close(*logits)


def test_a_merge_that_merged_nothing_is_found_out(adapter):
    proof = prove(Exported(MODEL_DIR, adapter, MODEL_DIR), PROMPTS)
    assert not proof.agrees
    with pytest.raises(ExportError, match="merged and adapter differ by up to"):
        proof.require()


def test_an_adapter_without_effect_does_not_count_as_proof():
    proof = Proof(4, 0.01, 2.0, 4, 20.0, [])
    assert proof.agrees
    assert not dataclasses.replace(proof, largest_difference_to_base=proof.largest_logit_difference).agrees
    assert not dataclasses.replace(proof, same_greedy=3).agrees


@pytest.mark.parametrize(
    ("proof", "remedy"),
    [
        (Proof(4, 0.269, 2.08, 4, 23.4, []), "weights are so large"),  # 13 % of the spread, 1 % of the adapter's effect
        (Proof(4, 0.269, 2.08, 3, 23.4, []), "belong together"),
        (Proof(4, 9.0, 2.08, 4, 23.4, []), "belong together"),
        (Proof(4, 0.0, 2.08, 4, 0.0, []), "belong together"),
    ],
)
def test_very_large_weights_are_told_from_another_base(proof, remedy):
    assert not proof.agrees
    with pytest.raises(ExportError, match=remedy):
        proof.require()


def test_the_merged_model_answers_through_plain_transformers(merged):
    answer = ask(merged, "What is 15 + 27?")
    assert isinstance(answer, str)
    assert answer


def test_the_original_tokenizer_travels_with_the_merged_model(merged):
    assert (merged / "tokenizer.model").read_bytes() == (MODEL_DIR / "tokenizer.model").read_bytes()


def test_an_export_never_writes_over_another(adapter, merged):
    with pytest.raises(ExportError, match="not empty"):
        merge_16bit(MODEL_DIR, adapter, merged)


def test_an_adapter_copy_leaves_pickles_behind(adapter, tmp_path):
    shutil.copytree(adapter, tmp_path / "in")
    (tmp_path / "in" / "training_args.bin").write_bytes(b"pickle")
    out = copy_adapter(tmp_path / "in", tmp_path / "out")
    names = {file.name for file in out.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
    assert "training_args.bin" not in names


def test_no_adapter_is_an_error(tmp_path):
    with pytest.raises(ExportError, match="no adapter_config.json"):
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
