"""Memory of a recipe: exact where it says so, counted against real objects; and what to do when it does not fit."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from workbench import memory
from workbench.base.errors import RecipeError, WorkbenchError
from workbench.memory import (
    OutOfMemory,
    estimate,
    explain_oom,
    hints,
    is_oom,
    measured_peak,
)
from workbench.memory.parts import (
    HIGH,
    LOW,
    activation_bytes_per_token,
    kv_bytes,
    nf4_bytes,
    optimizer_bytes,
    weight_bytes,
)
from workbench.memory.shapes import adapter_on, from_config, shape_of
from workbench.recipe import SEVEN_PROJECTIONS, LoraPart, Recipe
from workbench.training.plan.settings.values import DEFAULTS

ROOT = Path(__file__).parents[2]
SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 128,
}


def recipe_of(name="Qwen/Qwen2.5-1.5B-Instruct", *, seq=1024, lora=None, **policy) -> Recipe:
    return Recipe(policy={"name": name, "max_seq_length": seq, **policy}, lora=lora or {})


def made(name="Qwen/Qwen2.5-1.5B-Instruct", *, policy=None, how=None, **grpo):
    settings = {**DEFAULTS, "max_completion_length": 512, **grpo}
    return estimate(recipe_of(name, **(policy or {})), settings, **{"vram_gb": 16.0, **(how or {})})


def part(estimated, name, phase=None):
    [found] = [p for p in estimated.parts if p.name == name and phase in (None, p.phase)]
    return found


def test_unsloth_copies_the_prompts_keys_and_values_into_its_buffer():
    def above(*given, **changes):
        """Bytes above the range of the scratch that generation needs."""
        scratch = part(made(*given, **changes), "scratch", "generation")
        return scratch.high - round(HIGH * scratch.bytes)

    qwen = "Qwen/Qwen2.5-1.5B-Instruct"
    assert abs(above(qwen) - kv_bytes(shape_of(qwen), 8, 512)) <= 1
    assert abs(above(qwen, policy={"backend": "transformers"})) <= 1
    assert "generation" not in {one.phase for one in made(qwen, use_vllm=True).parts if one.name == "scratch"}


def test_unsloths_buffer_grows_when_its_last_row_but_one_is_reached():
    def scratch(completion):
        found = made("Qwen/Qwen2.5-1.5B-Instruct", how={"longest_prompt_tokens": 100}, max_completion_length=completion)
        return part(found, "scratch", "generation").bytes

    one_row = kv_bytes(shape_of("Qwen/Qwen2.5-1.5B-Instruct"), 8, 1)
    # prompt + 1 + 512 rows hold prompt + 512 tokens, and the last token of a completion is not fed back.
    assert scratch(513) - scratch(512) == -one_row
    assert scratch(514) - scratch(513) == 511 * one_row


def test_the_one_peak_that_a_gpu_has_measured_is_met():
    results = json.loads((ROOT / "benchmarks/gpu/results/h100.json").read_text())["files"]
    unit = results["arms/unsloth-nf4-auto-512-r0.json"]
    asked = {name: unit["settings"][name] for name in ("num_generations", "per_device_train_batch_size",
        "gradient_accumulation_steps", "max_completion_length", "beta", "gradient_checkpointing")}  # fmt: skip
    how = {"longest_prompt_tokens": unit["prompt"]}
    found = made("Qwen/Qwen2.5-1.5B-Instruct", policy={"seq": 2248}, how=how, **asked)
    seen = {
        phase: sum(each.bytes for each in found.parts if each.allocated and each.phase in ("always", phase))
        for phase in ("generation", "training")
    }
    assert max(seen, key=seen.get) == "generation"
    assert 0.95 < seen["generation"] / unit["allocated_bytes"] < 1.1


# -------------------------------------------------------------------------------------------- exact, against real objects


@pytest.mark.parametrize("dims", [(64, 64), (96, 64), (128, 384), (100, 65), (640, 640), (1, 1), (256, 65)])
def test_nf4_weights_are_counted_as_bitsandbytes_packs_them(dims):
    import bitsandbytes as bnb
    import torch

    packed = bnb.nn.Params4bit(torch.randn(dims), requires_grad=False, compress_statistics=True, quant_type="nf4")
    packed = packed._quantize(torch.device("cpu"))
    assert nf4_bytes(math.prod(dims)) == packed.nbytes + quant_state_bytes(packed.quant_state)


def quant_state_bytes(state) -> int:
    tensors = [state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code]
    return sum(tensor.nbytes for tensor in tensors)


def test_nf4_by_hand():
    # 64 x 64 = 4096 weights: 2048 bytes, 64 scales, one scale of scales, 16 + 256 codes and the offset in float32.
    assert nf4_bytes(4096) == 2048 + 64 + 4 + 4 * (16 + 256 + 1)


def base_bytes(model) -> int:
    total = 0
    for name, parameter in model.named_parameters():
        if "lora_" not in name:
            state = getattr(parameter, "quant_state", None)
            total += parameter.nbytes + (quant_state_bytes(state) if state is not None else 0)
    return total


def test_weights_and_adapter_of_the_embedded_policy_in_4_bits(tiny_policy):
    element = tiny_policy.model.get_input_embeddings().weight.element_size()
    assert weight_bytes(shape_of("tiny"), True, element) == base_bytes(tiny_policy.model)
    lora = [p.numel() for p in tiny_policy.model.parameters() if p.requires_grad]
    assert sorted(adapter_on(shape_of("tiny"), LoraPart()).sizes) == sorted(lora)
    assert {p.element_size() for p in tiny_policy.model.parameters() if p.requires_grad} == {4}


def test_weights_of_the_embedded_policy_in_16_bits():
    import torch
    from transformers import AutoModelForCausalLM

    from workbench.tiny import MODEL_DIR

    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.bfloat16)
    assert weight_bytes(shape_of("tiny"), False) == base_bytes(model) == 2 * 803_712


@pytest.mark.parametrize("kind", ["qwen2", "phi3", "gemma3_text"])
def test_an_adapter_is_counted_as_peft_makes_it(kind):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **SMALL}
    targets = ["q_proj", "v_proj", "down_proj", "o_proj"]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes))
        model = get_peft_model(model, LoraConfig(r=6, target_modules=targets))
    real = sorted(p.numel() for p in model.parameters() if p.requires_grad)
    assert sorted(adapter_on(from_config({"model_type": kind, **sizes}), LoraPart(r=6, target_modules=targets)).sizes) == real


@pytest.fixture(scope="module")
def trained():
    """What a real training step of the embedded policy leaves: the trainer, and the bytes of its gradients."""
    from transformers import TrainerCallback

    from workbench.training.policy import load_policy, trainer_classes

    policy = load_policy("tiny", lora=LoraPart(r=8))
    config_class, trainer_class = trainer_classes()
    import tempfile

    from datasets import Dataset

    class Gradients(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **_):
            self.bytes = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)

    seen = Gradients()
    with tempfile.TemporaryDirectory() as folder:
        config = config_class(
            output_dir=folder, max_steps=1, per_device_train_batch_size=4, num_generations=4, max_completion_length=6,
            optim="adamw_torch", beta=0.01, report_to="none", disable_tqdm=True, gradient_checkpointing=False,
            save_strategy="no",
        )  # fmt: skip
        trainer = trainer_class(
            model=policy.model,
            processing_class=policy.tokenizer,
            reward_funcs=[lambda completions, **_: [float(len(set(text))) for text in completions]],
            args=config,
            train_dataset=Dataset.from_list([{"prompt": "What is 1 + 2?"}] * 4),
            callbacks=[seen],
        )
        trainer.train()
    return trainer, seen.bytes


def test_gradients_optimiser_and_reference_of_a_real_step(trained):
    import torch

    trainer, gradient_bytes = trained
    parameters = [p for p in trainer.model.parameters() if p.requires_grad]
    optimizer = trainer.optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    states = sum(v.nbytes for state in optimizer.state.values() for v in state.values() if torch.is_tensor(v))
    reference = sum(p.nbytes for name, p in trainer.model.named_parameters() if ".ref." in name)

    recipe = Recipe(policy={"name": "tiny", "backend": "transformers"}, lora={"r": 8})
    settings = {**DEFAULTS, "beta": 0.01, "per_device_train_batch_size": 4, "num_generations": 4}
    counted = estimate(recipe, settings)
    # TRL alone turns the adapter of a 4-bit model into bfloat16; float32, as Unsloth and PEFT make it, is what is counted.
    wider, step_counts = 4 // parameters[0].element_size(), 4 * len(parameters)
    assert part(counted, "LoRA").bytes == wider * sum(p.nbytes for p in parameters)
    assert part(counted, "gradients").bytes == wider * gradient_bytes
    assert part(counted, "optimiser").bytes == wider * (states - step_counts) + step_counts
    assert part(counted, "reference adapter").bytes == reference
    assert all(part(counted, name).exact for name in ("LoRA", "gradients", "optimiser", "reference adapter", "weights"))


def test_8_bit_states_are_counted_as_bitsandbytes_makes_them():
    import bitsandbytes as bnb
    import torch

    sizes = [4095, 4096, 4097, 16, 70_000]  # below 4096 elements the states stay in 32 bits
    parameters = [torch.nn.Parameter(torch.randn(size)) for size in sizes]
    optimizer = bnb.optim.AdamW8bit(parameters)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    tensors = {v.data_ptr(): v.nbytes for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)}
    assert optimizer_bytes(sizes, "adamw_8bit") == sum(tensors.values())
    assert optimizer_bytes([100], "adamw_8bit") == 800
    assert optimizer_bytes([100, 50], "adamw_torch") == 2 * 150 * 4 + 2 * 4
    assert optimizer_bytes([100], "sgd") == 0
    assert optimizer_bytes([100], "adafactor") is None


def test_keys_and_values_of_a_real_generation():
    import torch
    from transformers import AutoModelForCausalLM

    from workbench.tiny import MODEL_DIR

    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.bfloat16)
    prompts = torch.randint(5, 600, (3, 11))
    out = model.generate(
        prompts, attention_mask=torch.ones_like(prompts), min_new_tokens=7, max_new_tokens=7, use_cache=True,
        return_dict_in_generate=True,
    )  # fmt: skip
    assert out.sequences.shape == (3, 18)
    real = cache_bytes(out.past_key_values)
    assert kv_bytes(shape_of("tiny"), 3, 17) == real == 3 * 17 * 3 * 4 * 32 * 2 * 2
    settings = {**DEFAULTS, "per_device_train_batch_size": 3, "num_generations": 3, "max_completion_length": 7}
    counted = estimate(Recipe(policy={"name": "tiny"}), settings, longest_prompt_tokens=11)
    assert part(counted, "keys and values").bytes == real
    assert part(counted, "keys and values").exact


def cache_bytes(cache) -> int:
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


@pytest.mark.parametrize(("kind", "more"), [("gemma2", {"sliding_window": 8}), ("mistral", {"sliding_window": 6}), ("qwen3", {})])
def test_keys_and_values_of_windows_and_shared_heads(kind, more):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

    sizes = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **SMALL, **more}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes), dtype=torch.bfloat16)
    shape = from_config({"model_type": kind, **SMALL, **more})
    for tokens in (5, 8, 21):
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(torch.randint(3, 100, (2, tokens)), past_key_values=cache, use_cache=True)
        assert kv_bytes(shape, 2, tokens) == cache_bytes(cache)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma2"])
def test_activations_are_near_what_autograd_keeps(kind):
    """A layer's, within 3 %. The part's ends are wider: on a GPU, other attention kernels keep other things."""
    more = {"hidden_size": 128, "intermediate_size": 320, "head_dim": 32, "num_key_value_heads": 2}
    kept = {layers: kept_bytes(kind, {**SMALL, **more, "num_hidden_layers": layers}) for layers in (2, 4)}
    real = (kept[4] - kept[2]) / 2
    shape = from_config({"model_type": kind, **SMALL, **more})
    counted = activation_bytes_per_token(shape, unsloth=False, r=8)
    assert real == pytest.approx(counted, rel=0.03)


def kept_bytes(kind: str, sizes: dict) -> float:
    """Bytes a token that a forward pass leaves for the backward pass, parameters and their copies not counted."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    model = get_peft_model(model, LoraConfig(r=8, target_modules=list(SEVEN_PROJECTIONS)))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.float32)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found = {}
    for tokens in (48, 112):
        storages, alive = {}, []

        def keep(tensor, storages=storages, alive=alive):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                storages[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
            return tensor

        ids = torch.randint(3, 100, (2, tokens))
        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16),
        ):
            model.base_model.model.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
        found[tokens] = sum(storages.values())
    return (found[112] - found[48]) / (2 * 64)


# ------------------------------------------------------------------------------------------------------ phases and verdict


def test_a_known_model_by_hand():
    counted = made(policy={"load_in_4bit": False})
    # Qwen2.5-1.5B: 28 layers, 2 heads for keys and values of 128; 8 sequences of 512 + 512 tokens, the last not fed back.
    assert part(counted, "weights").bytes == 2 * 1_543_714_304
    assert part(counted, "keys and values").bytes == 8 * 1023 * 28 * 2 * 128 * 2 * 2
    lora = 28 * 16 * (2 * (1536 + 1536) + 2 * (1536 + 256) + 3 * (1536 + 8960))
    assert part(counted, "LoRA").bytes == 4 * lora
    assert part(counted, "optimiser").bytes == 8 * lora + 4 * 28 * 14
    assert part(counted, "gradients").bytes == 4 * lora


def test_the_peak_is_the_larger_phase_and_not_the_sum():
    counted = made()
    generation, training = counted.total("generation"), counted.total("training")
    assert counted.peak.bytes == max(generation.bytes, training.bytes)
    assert counted.peak_phase == "training"
    assert "keys and values" not in {p.name for p in counted.of("training")}
    assert not {"activations", "gradients"} & {p.name for p in counted.of("generation")}
    for span in (generation, training, counted.peak):
        assert span.low <= span.bytes <= span.high
    # Accumulation holds more keys and values at once, and no more activations.
    more = made(gradient_accumulation_steps=64, gradient_checkpointing=True)
    assert more.peak_phase == "generation"
    assert part(more, "keys and values").bytes == 64 * part(counted, "keys and values").bytes
    assert part(more, "log-probabilities").bytes == part(counted, "log-probabilities").bytes


def test_exact_parts_have_no_range_and_the_rest_has_one():
    for p in made(policy={"backend": "transformers"}).parts:
        assert (p.low == p.bytes == p.high) == p.exact
        if not p.exact and p.allocated:
            assert (p.low, p.high) == pytest.approx((LOW * p.bytes, HIGH * p.bytes), abs=1)
        assert p.low <= p.bytes <= p.high


@pytest.mark.parametrize(("vram_gb", "fits", "word"), [(80, True, "fits"), (4, False, "does not fit"), (16, None, "may")])
def test_the_verdict(vram_gb, fits, word):
    counted = made(how={"vram_gb": vram_gb})
    assert counted.fits is fits
    assert counted.verdict.startswith(word)


def test_without_a_card_there_is_no_verdict():
    counted = made(how={"vram_gb": None})
    assert counted.fits is None
    assert "no card to compare with" in str(counted)


def test_the_printed_estimate_says_what_is_exact_and_that_the_rest_is_uncalibrated():
    text = str(made())
    assert memory.UNCALIBRATED in text
    assert "H100" in memory.UNCALIBRATED  # the only one that has measured a peak: benchmarks/gpu/results
    lines = {line[14:].split("  ")[0].strip(): line for line in text.splitlines()[1:-3]}
    assert "exact" in lines["LoRA"]
    assert "~" not in lines["LoRA"]
    assert "~" in lines["activations"]
    assert "one run" in " ".join(memory.estimate.__doc__.split())


def test_settings_move_what_they_should():
    base = made()
    checkpointed = made(gradient_checkpointing=True)
    assert part(checkpointed, "activations").bytes < part(base, "activations").bytes / 5
    eight = made(optim="adamw_8bit")
    assert 3 < part(base, "optimiser").bytes / part(eight, "optimiser").bytes < 4
    wide = made(policy={"load_in_4bit": False})
    assert 2 < part(wide, "weights").bytes / part(base, "weights").bytes < 4
    plain = made(policy={"backend": "transformers"})
    assert part(plain, "activations").bytes > part(base, "activations").bytes
    assert part(plain, "log-probabilities").bytes == 8 * 513 * 151_936 * 10
    assert not part(made(optim="adafactor"), "optimiser").exact
    assert not part(made(optim="paged_adamw_8bit"), "optimiser").exact
    assert not part(made(policy={}, how={}), "weights").exact  # Unsloth may load its own repository of this model
    assert part(made("tiny"), "weights").exact


def test_prompts_are_as_long_as_the_recipe_lets_them_be():
    assert made().inputs.prompt == 512
    settings = {**DEFAULTS, "max_completion_length": 512}
    short = recipe_of().model_copy(update={"max_prompt_length": 100})
    assert estimate(short, settings).inputs.prompt == 100
    assert estimate(short, settings, longest_prompt_tokens=64).inputs.prompt == 64


def test_trls_vllm_takes_its_share_of_the_card_and_keeps_the_keys_and_values():
    plain = {"backend": "transformers"}
    counted = made(policy=plain, use_vllm=True, vllm_gpu_memory_utilization=0.4)
    assert part(counted, "vLLM").bytes == round(0.4 * 16 * 10**9)
    assert "keys and values" not in {p.name for p in counted.parts}
    asleep = made(policy=plain, use_vllm=True, vllm_enable_sleep_mode=True)
    assert part(asleep, "vLLM").phase == "generation"
    assert not [p for p in made(policy=plain, use_vllm=True, vllm_mode="server").parts if p.name == "vLLM"]
    with pytest.raises(RecipeError, match="the card is not known"):
        made(use_vllm=True, how={"vram_gb": None})


def test_unsloths_vllm_has_the_weights_in_its_share_and_they_are_counted_once():
    counted = made(use_vllm=True, policy={"gpu_memory_utilization": 0.4})
    weights, vllm = part(counted, "weights"), part(counted, "vLLM")
    assert weights.bytes + vllm.bytes == round(0.4 * 16 * 10**9)
    assert weights.bytes == part(made(), "weights").bytes
    assert vllm.phase == "always"
    assert "keys and values" not in {p.name for p in counted.parts}
    # TRL's own share would stand beside the weights.
    trls = {"vllm_gpu_memory_utilization": 0.9, "vllm_enable_sleep_mode": True}
    assert part(made(use_vllm=True, policy={"gpu_memory_utilization": 0.4}, **trls), "vLLM") == vllm
    with pytest.raises(RecipeError, match=r"(?s)gpu_memory_utilization = 0.05, 0.80 GB.*share holds the weights \(1.1"):
        made(use_vllm=True, policy={"gpu_memory_utilization": 0.05})


@pytest.mark.parametrize(
    ("policy", "how", "grpo", "said"),
    [
        ({}, {"vram_gb": 0}, {}, "vram_gb = 0"),
        ({}, {"vram_gb": float("nan")}, {}, "vram_gb = nan"),
    ],
)
def test_what_cannot_be_is_an_error(policy, how, grpo, said):
    with pytest.raises(RecipeError) as caught:
        made(policy=policy, how=how, **grpo)
    assert said in caught.value.value


def test_found_is_json():
    found = json.loads(json.dumps(made().found()))
    assert found["peak_phase"] == "training"
    assert found["parameters"] == 1_543_714_304
    assert {p["name"] for p in found["parts"]} >= {"weights", "LoRA", "activations"}


# ------------------------------------------------------------------------------------------------------------ measured


def test_without_a_gpu_there_is_nothing_to_measure():
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert measured_peak() is None


@pytest.mark.gpu
def test_on_a_gpu_the_peak_is_read():
    import torch

    torch.cuda.reset_peak_memory_stats()
    held = torch.zeros(10**8, dtype=torch.uint8, device="cuda")
    assert len(held) <= measured_peak() < torch.cuda.get_device_properties(0).total_memory


# ------------------------------------------------------------------------------------------------------------------ hints


def hinted(policy=None, **settings) -> list[str]:
    """The setting that each hint names first."""
    lines = hints(recipe_of(**(policy or {})), {**DEFAULTS, "gradient_checkpointing": False, **settings})
    return [re.search(r"(?:grpo|policy)\.(\w+)", line)[1] for line in lines]


def test_what_costs_time_comes_before_precision_and_learning():
    plain = {"load_in_4bit": False}
    first, smaller = "gradient_checkpointing", "per_device_train_batch_size"
    assert hinted(plain) == [first, smaller, "load_in_4bit", "max_completion_length"]
    everything = [first, smaller, "gpu_memory_utilization", "load_in_4bit", "max_completion_length"]
    assert hinted(plain, use_vllm=True) == everything


def test_no_hint_asks_for_what_is_done_already():
    done = hinted(gradient_checkpointing=True, per_device_train_batch_size=1)
    assert done == ["max_completion_length"]
    assert "gpu_memory_utilization" not in hinted({"backend": "transformers"}, use_vllm=True)


@pytest.mark.parametrize("steps", [{}, {"steps_per_generation": 2}])
def test_half_the_rows_are_the_same_batch_and_need_less(steps):
    """What the hint says, done: as many sequences and completions per update, and a smaller training phase."""
    before = made(gradient_accumulation_steps=2, **steps)
    twice = {name: 2 * value for name, value in steps.items()}
    after = made(per_device_train_batch_size=4, gradient_accumulation_steps=4, **twice)
    assert after.inputs.sequences == before.inputs.sequences == 16
    assert part(after, "activations").bytes == pytest.approx(part(before, "activations").bytes / 2, rel=1e-6)


# ---------------------------------------------------------------------------------------------------------- out of memory

TORCH_TEXT = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.74 GiB of which 1.06 GiB is free. "
    "Including non-PyTorch memory, this process has 13.67 GiB memory in use."
)


def fail_after(first: Exception, then: Exception, *, hidden: bool) -> None:
    try:
        raise first
    except type(first) as error:
        if hidden:
            raise then from None
        raise then from error


def test_torchs_error_is_recognised_also_as_a_cause():
    import torch

    assert is_oom(torch.OutOfMemoryError(TORCH_TEXT))
    assert is_oom(RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"))
    assert is_oom(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    with pytest.raises(ValueError, match="step 3") as caught:
        fail_after(torch.OutOfMemoryError(TORCH_TEXT), ValueError("step 3 failed"), hidden=False)
    assert is_oom(caught.value)
    with pytest.raises(ValueError, match="another") as caught:
        fail_after(torch.OutOfMemoryError(TORCH_TEXT), ValueError("another matter"), hidden=True)
    assert not is_oom(caught.value)
    for error in (
        None,
        MemoryError(),
        RuntimeError("shape mismatch"),
        ValueError("CUDA out of memory"),
        KeyboardInterrupt(),
    ):
        assert not is_oom(error)


def test_an_error_whose_causes_form_a_ring_ends():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert not is_oom(first)


def test_out_of_memory_says_what_did_not_fit_and_what_helps():
    import torch

    recipe, settings = recipe_of(), {**DEFAULTS, "max_completion_length": 512}
    estimated = estimate(recipe, settings, vram_gb=15.8)
    said = explain_oom(torch.OutOfMemoryError(TORCH_TEXT), recipe, settings, estimated)
    with pytest.raises(OutOfMemory, match="Tried to allocate"):
        fail_after(torch.OutOfMemoryError(TORCH_TEXT), said, hidden=False)
    assert isinstance(said, WorkbenchError)
    assert isinstance(said, MemoryError)
    assert said.value == "CUDA out of memory. Tried to allocate 2.00 GiB"
    assert estimated.verdict in said.rule
    assert said.remedy.splitlines()[1:] == [f"    - {hint}" for hint in hints(recipe, settings)]
    assert is_oom(said)


def test_out_of_memory_where_the_estimate_fits_asks_who_else_is_there():
    estimated = estimate(recipe_of(), DEFAULTS, vram_gb=80)
    said = explain_oom(RuntimeError("CUDA error: out of memory"), recipe_of(), DEFAULTS, estimated)
    assert "another process" in said.remedy


def test_out_of_memory_of_a_policy_that_cannot_be_estimated():
    said = explain_oom(RuntimeError("CUDA error: out of memory"), recipe_of("./nowhere"), DEFAULTS)
    assert "gradient_checkpointing" in said.remedy
    assert "GB" not in said.rule
