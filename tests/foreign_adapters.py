"""Adapters in the layouts that five programs leave behind, made by PEFT itself on a small base.

What differs between them was read in their sources: Unsloth writes target_modules as one pattern and names a 4-bit twin as the
base; TRL's trainer leaves checkpoint-N beside the optimiser's state; Axolotl passes on rank_pattern, alpha_pattern and the
layers; LLaMA-Factory's additional_target becomes modules_to_save, beside rsLoRA and DoRA; PEFT before 0.6 wrote a pickle of
tensors and fewer settings.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from workbench.tiny.named import folder_of


class Layout(NamedTuple):
    """How one program's adapter is made and left on the disk."""

    settings: dict[str, Any]  # of PEFT's LoraConfig
    base: str = ""  # base_model_name_or_path; "": the base's own folder
    within: str = ""  # the folder inside the one that the user names


_ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LAYOUTS = {
    "unsloth": Layout(
        {"r": 8, "lora_alpha": 16, "target_modules": r"(?:.*?(?:self_attn|mlp).*?\.(?:q_proj|v_proj|down_proj))"},
        base="unsloth/model-unsloth-bnb-4bit",
    ),
    "trl": Layout({"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}, within="checkpoint-20"),
    "axolotl": Layout(
        {
            "r": 4,
            "lora_alpha": 4,
            "target_modules": _ALL,
            "rank_pattern": {"down_proj": 6},
            "alpha_pattern": {"down_proj": 24},
            "layers_to_transform": [0, 2],
            "use_rslora": True,
        }
    ),
    "llama_factory": Layout(
        {
            "r": 4,
            "lora_alpha": 8,
            "target_modules": ["q_proj", "v_proj"],
            "use_rslora": True,
            "use_dora": True,
            "modules_to_save": ["lm_head"],
        }
    ),
    "older_peft": Layout({"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "o_proj"]}),
}


def leave(layout: str, folder: Path, base: str = "tiny") -> Path:
    """Make an adapter that changes its base, and leave it in `folder` as that program does; returns the folder to name."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    settings, named, within = LAYOUTS[layout]
    torch.manual_seed(7)
    plain: Any = AutoModelForCausalLM.from_pretrained(folder_of(base), dtype=torch.float32)
    model = get_peft_model(plain, LoraConfig(task_type="CAUSAL_LM", **settings))
    for name, weight in model.named_parameters():
        if weight.requires_grad and "lora_A" not in name:
            weight.data += 0.02 * torch.randn_like(weight)
    target = folder / within
    if within:  # an older one beside it, which is not the one to take
        model.save_pretrained(str(folder / "checkpoint-9"))
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.data *= 1.5
    model.save_pretrained(str(target))
    file = target / "adapter_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = named or str(folder_of(base))
    if layout == "trl":
        torch.save({"state": {}}, target / "optimizer.pt")
        (target / "trainer_state.json").write_text("{}", encoding="utf-8")
    if layout == "older_peft":
        from safetensors.torch import load_file

        weights = target / "adapter_model.safetensors"
        torch.save(load_file(weights), weights.with_suffix(".bin"))
        weights.unlink()
        known = ("base_model_name_or_path", "bias", "fan_in_fan_out", "inference_mode", "init_lora_weights", "lora_alpha")
        known += ("lora_dropout", "modules_to_save", "peft_type", "r", "target_modules", "task_type")
        config = {name: config[name] for name in known}
    file.write_text(json.dumps(config), encoding="utf-8")
    return folder
