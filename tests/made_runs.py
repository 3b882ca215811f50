"""Runs to export: an adapter with an effect, as training could have left it, in a run directory that has ended. No training."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory
from workbench.run.sealed import saved_with
from workbench.tiny import MODEL_DIR
from workbench.training.plan.loading import base_files, load_tokenizer, quiet_imports
from workbench.training.resuming import save_adapter

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@functools.cache
def _saved(std: float, seed: int, source: str, config: str) -> Path:
    with quiet_imports():
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    lora = {"r": 8, "lora_alpha": 16, "target_modules": list(LINEAR), "task_type": "CAUSAL_LM"} | json.loads(config)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32), LoraConfig(**lora))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "modules_to_save" in name:
                parameter.add_(torch.randn_like(parameter), alpha=std)
    return save_adapter(model, load_tokenizer(source), Path(tempfile.mkdtemp()) / "final")


def saved_adapter(std: float = 0.02, seed: int = 0, source: str | Path = MODEL_DIR, **lora: Any) -> Path:
    """The folder of an adapter whose B matrices (and modules saved whole) are normal, with this std. Not to be changed."""
    return _saved(std, seed, str(source), json.dumps(lora, sort_keys=True))


def made_run(
    name: str = "r",
    *,
    adapter: Path | None = None,
    source: str | Path = MODEL_DIR,
    precision: str = "nf4",
    compute_dtype: str = "float32",
    **grpo: Any,
) -> RunDirectory:
    """A run that has ended, in the workspace, with this adapter (None: one of seed 0)."""
    recipe = Recipe.of({"run_name": name, "task": "arithmetic", "policy": {"name": str(source)}, "grpo": grpo})
    policy = {"source": str(source), "precision": precision, "compute_dtype": compute_dtype, "parameters": 803_712}
    policy["base"] = base_files(source)
    run = RunDirectory.create(name, recipe, {"id": f"id-of-{name}", "policy": policy})
    shutil.copytree(adapter or saved_adapter(), run.final)
    sealed(run).release()
    return run


def sealed(run: RunDirectory) -> RunDirectory:
    """The run, as if training had just saved its final adapter, recipe and task as they are."""
    run.update_manifest(saved=saved_with(run, run.final))
    return run


def changed_model(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Path:
    """The embedded policy in another folder, its tensors and config changed by `change(tensors, config)`."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(MODEL_DIR, folder)
    tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    change(tensors, config)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def off_the_grid(tensors: dict[str, Any], config: dict[str, Any]) -> None:
    """Weights that NF4 rounds: 5 % of each matrix's size is added as noise."""
    import torch

    torch.manual_seed(1)
    for name, tensor in tensors.items():
        if "_proj" in name:
            tensors[name] = (tensor.float() + 0.05 * tensor.float().std() * torch.randn(tensor.shape)).to(tensor.dtype)


def tied(tensors: dict[str, Any], config: dict[str, Any]) -> None:
    """The output head is the embedding."""
    del tensors["lm_head.weight"]
    config["tie_word_embeddings"] = True
