"""Loading a policy: real 4-bit layers, one line that says so, and an error with a remedy for every wrong name.

With both backends alike; what only one of them does is in test_backends.py.
"""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys

import pytest

from workbench.base.errors import PolicyError, RecipeError
from workbench.recipe import Recipe
from workbench.tiny import MODEL_DIR
from workbench.training.plan.loading import bars_for, find_model, linear4bit_layers, load_tokenizer
from workbench.training.policy import load_policy, trainer_classes
from workbench.training.resuming import save_adapter
from workbench.training.sampling import sample

PROMPT = [{"role": "user", "content": "What is 15 + 27?"}]


@pytest.fixture(scope="module", params=["unsloth", "transformers"])
def backend(request):
    return request.param


@pytest.fixture(scope="module")
def tiny_policy(backend):
    return load_policy("tiny", backend=backend)


def test_no_red_line_about_an_optional_package_on_a_cpu_with_bfloat16():
    code = "import logging, workbench.training.plan.loading; logging.getLogger('bitsandbytes.backends.cpu.ops').warning('in red')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr == ""


def test_what_unsloth_says_of_a_folder_that_is_being_written_is_left_out_and_nothing_else():
    trainer_classes("unsloth")
    logger = logging.getLogger("transformers.models.llama.modeling_llama")

    def shown(text):
        return bool(logger.filter(logging.LogRecord(logger.name, logging.WARNING, "", 0, text, (), None)))

    assert not shown("Unsloth: Restored added_tokens_decoder metadata in runs/.final.1-5b.part/tokenizer_config.json.")
    assert not shown("Unsloth: Preserved sentencepiece asset `tokenizer.model` in runs/.final.1-5b.part.")
    assert shown("Unsloth: something that a reader can act on")


def test_the_frozen_layers_are_linear4bit(tiny_policy):
    import bitsandbytes

    layers = tiny_policy.model.config.num_hidden_layers
    assert tiny_policy.linear4bit == len(linear4bit_layers(tiny_policy.model)) == 7 * layers
    quantised = linear4bit_layers(tiny_policy.model)
    assert all(isinstance(module, bitsandbytes.nn.Linear4bit) for module in quantised)
    assert all(module.weight.quant_state.quant_type == "nf4" for module in quantised)


def test_lora_is_on_the_seven_projections_and_only_it_trains(tiny_policy):
    trained = [name for name, parameter in tiny_policy.model.named_parameters() if parameter.requires_grad]
    assert all("lora_" in name for name in trained)
    projections = {name.split(".lora_")[0].rsplit(".", 1)[1] for name in trained}
    assert projections == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def test_parameters_are_counted_unpacked(tiny_policy):
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(find_model("tiny"))
    assert tiny_policy.parameters == plain.num_parameters()
    assert tiny_policy.trainable == sum(p.numel() for p in tiny_policy.model.parameters() if p.requires_grad)


def test_the_line_says_what_where_how_and_how_many(tiny_policy, backend):
    line = str(tiny_policy)
    through = {"unsloth": "through Unsloth 20", "transformers": "through transformers 5."}[backend]
    for part in ("tiny:", " parameters", "NF4", "Linear4bit", through, "LoRA trains"):
        assert part in line
    assert len(line.splitlines()) == 1


def test_a_recipes_policy_is_loaded_on_the_recipes_backend(backend, tmp_path):
    recipe = Recipe.of({"policy": {"backend": backend, "load_in_4bit": False, "max_seq_length": 128}, "seed": 3})
    made = load_policy(recipe)
    assert (made.backend_name, made.linear4bit, made.max_seq_length) == (backend, 0, 128)
    trained = load_policy(recipe, adapter=save_adapter(made.model, made.tokenizer, tmp_path / "final"))
    assert (trained.backend_name, trained.trainable) == (backend, 0)


def test_a_type_is_named_as_in_a_recipe_or_by_torch_and_any_other_is_refused(backend):
    import torch

    for dtype in ("float32", torch.float32):
        policy = load_policy("tiny", backend=backend, load_in_4bit=False, dtype=dtype)
        assert policy.compute_dtype == policy.precision == "float32"
    for call in (lambda: load_policy("tiny", dtype="float8"), lambda: Recipe.of({"policy": {"dtype": "float8"}})):
        with pytest.raises(RecipeError, match=r"(?s)policy.dtype = 'float8'.*'float16', 'bfloat16' or 'float32'.*remedy"):
            call()


def test_fields_beside_a_recipe_and_unknown_ones_are_refused_before_anything_is_loaded():
    with pytest.raises(PolicyError, match=r"(?s)no_such = 3 beside a recipe.*rule:.*remedy: +change the recipe"):
        load_policy(Recipe(), load_in_4bit=False, no_such=3)
    with pytest.raises(RecipeError, match="(?s)load_in_4bits = False.*did you mean 'load_in_4bit'"):
        load_policy("tiny", load_in_4bits=False)


def test_unsloths_cpu_backend_is_named_where_it_is_the_one_in_use(monkeypatch):
    from unsloth import device_type

    if device_type.DEVICE_TYPE == "cpu":
        assert load_policy("tiny", load_in_4bit=False).backend.endswith(" (CPU backend)")
    monkeypatch.setattr(device_type, "DEVICE_TYPE", "cuda")
    assert re.fullmatch(r"Unsloth [\d.]+", load_policy("tiny", load_in_4bit=False).backend)


def test_16_bit_loads_no_4bit_layer(backend):
    policy = load_policy("tiny", backend=backend, load_in_4bit=False)
    assert policy.linear4bit == 0
    assert policy.precision in ("float32", "bfloat16", "float16")


def test_the_same_seed_samples_the_same_and_the_callers_random_state_is_kept(tiny_policy):
    import torch

    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    first = sample(tiny_policy, [PROMPT] * 3, num_generations=2, seed=1, max_completion_length=24)
    assert torch.equal(torch.rand(1), expected)
    assert first == sample(tiny_policy, [PROMPT] * 3, num_generations=2, seed=1, max_completion_length=24)
    assert first != sample(tiny_policy, [PROMPT] * 3, num_generations=2, seed=2, max_completion_length=24)
    assert [len(group) for group in first] == [2, 2, 2]


@pytest.mark.parametrize("shape", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_what_shapes_a_sample_narrows_it_to_the_likeliest(tiny_policy, shape):
    likeliest = sample(tiny_policy, [PROMPT], temperature=0, max_completion_length=12)
    drawn = sample(tiny_policy, [PROMPT], num_generations=4, seed=1, max_completion_length=12, **shape)
    assert drawn[0] == likeliest[0] * 4
    free = sample(tiny_policy, [PROMPT], num_generations=4, seed=1, max_completion_length=12)
    assert free[0] != drawn[0]
    unrepeated = {"repetition_penalty": 3.0, "temperature": 0, "max_completion_length": 12}
    assert sample(tiny_policy, [PROMPT], **unrepeated) != likeliest


def test_finished_means_ended_by_itself(tiny_policy):
    [[cut]] = sample(tiny_policy, [PROMPT], max_completion_length=1)
    assert not cut.finished or cut.ids[-1] == tiny_policy.tokenizer.eos_token_id
    [group] = sample(tiny_policy, [PROMPT], num_generations=16, max_completion_length=120)
    for completion in group:
        assert completion.finished == (completion.ids[-1] == tiny_policy.tokenizer.eos_token_id)
    assert any(completion.finished for completion in group)


def test_the_base_is_the_policy_without_its_adapter(tiny_policy):
    import torch

    state = {name: p.detach().clone() for name, p in tiny_policy.model.named_parameters() if "lora_B" in name}
    greedy = {"temperature": 0, "max_completion_length": 24}
    base = sample(tiny_policy, [PROMPT], base=True, **greedy)
    assert sample(tiny_policy, [PROMPT], **greedy) == base  # a fresh adapter adds nothing
    try:
        for name, parameter in tiny_policy.model.named_parameters():
            if name in state:
                torch.nn.init.normal_(parameter, std=0.5)
        assert sample(tiny_policy, [PROMPT], **greedy) != base
        assert sample(tiny_policy, [PROMPT], base=True, **greedy) == base
    finally:
        for name, parameter in tiny_policy.model.named_parameters():
            if name in state:
                parameter.data.copy_(state[name])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tinny", "policy 'tinny': unknown"),
        ("./no/such/folder", "no such folder"),
        ("/no/such/folder", "no such folder"),
        ("unsloth/Qwen2.5-1.5B-Instruct-bnb-4bit", "the hub cannot be reached"),
    ],
)
def test_wrong_names_say_what_to_do(name, said, backend, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(PolicyError, match=f"(?s){said}.*rule:.*remedy:"):
        load_policy(name, backend=backend)


def test_a_folder_without_a_model(tmp_path, backend):
    with pytest.raises(PolicyError, match=r"no config.json"):
        load_policy(tmp_path, backend=backend)


def test_a_folder_without_a_tokenizer_says_so(tmp_path, backend):
    """transformers makes one of a single token instead."""
    for name in ("config.json", "model.safetensors", "chat_template.jinja", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((MODEL_DIR / name).read_bytes())
    for load in (load_tokenizer, lambda folder: load_policy(folder, backend=backend)):
        with pytest.raises(PolicyError, match=r"(?s)no tokenizer in .*one of tokenizer.json, tokenizer.model.*remedy: copy"):
            load(tmp_path)


def test_a_folder_with_a_broken_model(tmp_path, backend):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(PolicyError, match=r"(?s)policy .*rule:.*remedy:"):
        load_policy(tmp_path, backend=backend)


def test_a_local_folder_loads(tmp_path, backend):
    import shutil

    shutil.copytree(find_model("tiny"), tmp_path / "copy")
    assert load_policy(tmp_path / "copy", backend=backend).linear4bit > 0


def test_a_missing_adapter(tmp_path, backend):
    with pytest.raises(PolicyError, match="no adapter_config.json"):
        load_policy("tiny", backend=backend, adapter=tmp_path)


def test_the_same_seed_makes_the_same_adapter(backend):
    import torch

    def start(seed: int) -> dict:
        policy = load_policy("tiny", backend=backend, load_in_4bit=False, seed=seed)
        return {name: p.detach().clone() for name, p in policy.model.named_parameters() if "lora_A" in name}

    first, again, other = start(1), start(1), start(2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_a_trained_adapter_is_put_on_frozen(tiny_policy, backend, tmp_path):
    tiny_policy.model.save_pretrained(str(tmp_path), selected_adapters=["default"])
    policy = load_policy("tiny", backend=backend, adapter=tmp_path)
    assert policy.trainable == 0
    assert "with a trained adapter, frozen" in str(policy)


def test_gradient_checkpointing_changes_no_gradient(backend):
    import torch

    found = []
    for checkpointing in (False, True):
        policy = load_policy("tiny", backend=backend, dtype="float32", gradient_checkpointing=checkpointing)
        ids = torch.arange(5, 29).reshape(2, 12)
        policy.model.train()
        assert policy.model.base_model.model.is_gradient_checkpointing == checkpointing
        policy.model(input_ids=ids, labels=ids).loss.backward()
        found.append({n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None})
    without, with_it = found
    assert without.keys() == with_it.keys()
    assert max(grad.abs().max() for grad in without.values()) > 0
    for name, grad in without.items():
        torch.testing.assert_close(with_it[name], grad)


def test_generating_leaves_no_trace_on_what_is_learnt(tiny_policy):
    """bitsandbytes repacks weights for a CPU kernel when a model is evaluated, and gradients are wrong after that."""
    import torch

    ids = torch.arange(5, 29).reshape(2, 12)

    def gradients() -> list:
        tiny_policy.model.train()
        tiny_policy.model.zero_grad()
        tiny_policy.model(input_ids=ids, labels=ids).loss.backward()
        return [p.grad.clone() for p in tiny_policy.model.parameters() if p.grad is not None]

    before = gradients()
    sample(tiny_policy, [PROMPT], max_completion_length=4)
    assert tiny_policy.model.training
    assert not tiny_policy.model.config.use_cache
    for first, second in zip(before, gradients(), strict=True):
        assert torch.equal(first, second)
    tiny_policy.model.zero_grad()


def test_layers_that_cannot_be_4_bit_are_not_passed_over_in_silence(tmp_path, backend):
    """A model too narrow for NF4's blocks of 64 is loaded without a word, and fails when it is used."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = load_tokenizer("tiny")
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(PolicyError, match=r"(?s)a 4-bit layer with 32 inputs.*remedy: set load_in_4bit = False"):
        load_policy(tmp_path, backend=backend)


@pytest.mark.parametrize(("terminal", "shown"), [(True, True), (False, False)])
def test_a_file_or_a_pipe_holds_no_bar_of_a_large_model(tmp_path, monkeypatch, terminal, shown):
    from transformers.utils import logging as transformers_logging

    class Stream(io.StringIO):
        def isatty(self):
            return terminal

    monkeypatch.setattr("sys.stderr", Stream())
    before = transformers_logging.is_progress_bar_enabled()
    with bars_for("a/hub-name"):
        assert transformers_logging.is_progress_bar_enabled() == (before and shown)
    assert transformers_logging.is_progress_bar_enabled() == before
