"""Small models, adapters and runs made by hand: plain transformers and PEFT, nothing trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from workbench.exporting.artefacts import Artefact
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory
from workbench.tiny import MODEL_DIR

ATTENTION, MLP = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]
WORDS = ("chat_template.jinja", "tokenizer.json", "tokenizer_config.json", "generation_config.json")

# A chat template with tools, and how transformers parses its calls.
TEMPLATE = (
    "{%- for tool in tools or [] %}{{- '<|system|>' + tool.function.name + eos_token }}{%- endfor %}"
    "{%- for message in messages %}{{- '<|' + message.role + '|>' + (message.content or '') }}"
    "{%- for call in message.tool_calls or [] %}{{- '<tool>' + (call.function | tojson) + '</tool>' }}{%- endfor %}"
    "{{- eos_token }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)
CALLS = {
    "open": "<tool>",
    "close_pattern": r"</tool>",
    "repeats": True,
    "content": "json",
    "transform": {"type": "function", "function": "{content}"},
}
PARSED = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {"tool_calls": CALLS, "content": {"close_pattern": r"</s>", "content": "text"}},
}


def make_speaking(folder: Path) -> str:
    """The embedded policy in a folder, with a template that has tools."""
    from transformers import AutoTokenizer

    shutil.copytree(MODEL_DIR, folder)
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, PARSED
    tokenizer.save_pretrained(folder)
    return str(folder)


def make_base(
    folder: Path, kind: str = "llama", *, tied: bool = False, dtype: str = "bfloat16", seed: int = 0, shards: str = "1GB"
) -> Path:
    """A model of 2 layers, 64 wide, with the embedded policy's tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    config, model = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}[kind]
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 640}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    torch.manual_seed(seed)
    made = model(config(**sizes, tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2, pad_token_id=3))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "norm" in name or name.endswith("bias"):  # as after training
                parameter.add_(torch.randn_like(parameter) * 0.1)
    made.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shards)
    for name in WORDS:
        shutil.copyfile(MODEL_DIR / name, folder / name)
    return folder


OF_A_MIXTURE = {
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


def make_mixture(folder: Path, kind: str) -> Path:
    """A mixture of 4 experts: 2 layers, 64 wide, 4 heads of 16 (2 for keys), random bfloat16, the embedded tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 640, "head_dim": 16}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, **OF_A_MIXTURE[kind]}
    config = AutoConfig.for_model(kind, **sizes, bos_token_id=1, eos_token_id=2, pad_token_id=3)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    for name in WORDS[:3]:
        shutil.copyfile(MODEL_DIR / name, folder / name)
    return folder


def load(folder: Path, dtype: str = "float32") -> Any:
    """The model in a folder."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


def make_adapter(base: Path, folder: Path, *, size: float = 0.05, seed: int = 0, **lora: Any) -> Path:
    """An adapter as training could have left it: every s B A has about `size` of its weight's norm."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    asked = {"r": 8, "lora_alpha": 16, "target_modules": ATTENTION + MLP, "task_type": "CAUSAL_LM", **lora}
    model = get_peft_model(load(base), LoraConfig(**asked))
    with torch.no_grad():
        for name, module in model.named_modules():
            if hasattr(module, "lora_A") and "default" in module.lora_A:
                b, weight = module.lora_B["default"].weight, module.get_base_layer().weight
                b.normal_()
                b.mul_(size * weight.norm() / module.get_delta_weight("default").norm())
            elif lora.get("bias") == "all" and getattr(module, "bias", None) is not None:
                module.bias.add_(torch.randn_like(module.bias))
            elif "modules_to_save.default" in name and hasattr(module, "weight"):
                module.weight.add_(torch.randn_like(module.weight) * size * 0.02)
    model.save_pretrained(folder)
    for name in WORDS[:3]:
        shutil.copyfile(base / name, folder / name)
    return folder


def merge(base: Path, adapter: Path, folder: Path, *, shards: str = "1GB", model: Any = None, times: int = 1) -> Path:
    """Base + s B A through PEFT, in 32 bits, rounded once to the base's own type."""
    from peft import PeftModel

    dtype = json.loads((base / "config.json").read_text())["dtype"]
    merged = load(base) if model is None else model
    for _ in range(times):
        merged = PeftModel.from_pretrained(merged, adapter).merge_and_unload()
    merged.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shards)
    for name in WORDS:
        shutil.copyfile(base / name, folder / name)
    return folder


def make_run(base: Path, adapter: Path, name: str = "r", **policy: Any) -> RunDirectory:
    """A run of the workspace that trained this adapter beside this base."""
    found = {"source": str(base), "precision": "bfloat16", "compute_dtype": "float32", **policy}
    recipe = Recipe(run_name=name, policy={"name": str(base), "load_in_4bit": found["precision"] == "nf4"})
    run = RunDirectory.create(name, recipe, {"policy": found, "id": name})
    run.release()
    shutil.copytree(adapter, run.final)
    return run


def artefact(folder: Path, run: RunDirectory, format: str = "merged_16bit", into: str = "base") -> Artefact:
    """A folder as an artefact of a run."""
    return Artefact(folder, format, run.manifest()["policy"]["source"], into, run)


def make_vision(folder: Path, seed: int = 0) -> Path:
    """A random Qwen2.5-VL of 2 + 2 layers, 32 wide, with its processor: TRL's template, the embedded tokenizer and its marks."""
    import trl
    from transformers import (
        AutoTokenizer,
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLProcessor,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
    )

    template = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5_vl.jinja").read_text(encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    marks = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    start, end, image, video, *_ = tokenizer.convert_tokens_to_ids(marks)
    parts = {"tokenizer": tokenizer, "video_processor": Qwen2VLVideoProcessor(patch_size=4), "chat_template": template}
    small = {"patch_size": 4, "merge_size": 2, "temporal_patch_size": 2, "min_pixels": 64, "max_pixels": 1024}
    processor = Qwen2_5_VLProcessor(image_processor=Qwen2VLImageProcessor(**small), **parts)
    sizes = {"hidden_size": 32, "intermediate_size": 64}
    text = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": len(tokenizer), **sizes}
    text |= {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}}
    text |= {"max_position_embeddings": 512, "tie_word_embeddings": False}
    text |= {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    vision = {"depth": 2, "num_heads": 4, "out_hidden_size": 32, "patch_size": 4, "window_size": 16, **sizes}
    ids = {"vision_start_token_id": start, "vision_end_token_id": end, "image_token_id": image, "video_token_id": video}
    config = Qwen2_5_VLConfig(text_config=text, vision_config={**vision, "fullatt_block_indexes": [1]}, **ids)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
