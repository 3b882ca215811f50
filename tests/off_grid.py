"""A policy that can fail: 16-bit weights that NF4 rounds to the very weights of the embedded policy, and that are others.

The embedded policy was trained on the NF4 grid, so merging an adapter into its 16-bit weights or into its 4-bit ones is the
same. Here every weight is pushed within its rounding cell. What is trained in 4 bits is then the same policy, bit for bit, and
so is its adapter; but 16-bit weights + adapter is a sum that nobody trained. A network this small hardly minds rounding in
random directions, so each weight is pushed where right answers become less likely: about the worst that lies in the cells.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from workbench.tiny import MODEL_DIR
from workbench.training.plan.loading import base_files

BLOCK = 64
PUSH = 0.7  # how far to the edge of its cell


def off_grid_base(out: Path, adapter: Path, push: float = PUSH, base: Path = MODEL_DIR) -> Path:
    """The folder of such a base, in 16 bits, made of one on the grid. AssertionError if NF4 would give other weights."""
    import torch
    from bitsandbytes.functional import dequantize_4bit, get_4bit_type, quantize_4bit
    from safetensors.torch import load_file, save_file

    def nf4(weight: Any) -> tuple[Any, ...]:
        codes, state = quantize_4bit(weight, blocksize=BLOCK, compress_statistics=True, quant_type="nf4")
        return codes, state.absmax, state.offset, dequantize_4bit(codes, state)

    shutil.copytree(base, out)
    levels = get_4bit_type("nf4", device="cpu").sort().values
    middles = (levels[1:] + levels[:-1]) / 2
    up, down = torch.cat([middles, levels[-1:]]) - levels, torch.cat([levels[:1], middles]) - levels
    found, uphill = load_file(out / "model.safetensors"), _uphill(base, adapter)
    for name, slope in uphill.items():
        weight = found[name]
        blocks, slopes = weight.float().reshape(-1, BLOCK), slope.reshape(-1, BLOCK)
        largest = blocks.abs().amax(1, keepdim=True)
        place = (blocks / largest)[..., None].sub(levels).abs().argmin(-1)
        pushed = (levels[place] + push * torch.where(slopes > 0, up[place], down[place])) * largest
        # The largest of a block decides on the scale of all its weights, and stays.
        blocks = torch.where(blocks.abs() == largest, blocks, pushed)
        found[name] = blocks.reshape(weight.shape).to(weight.dtype)
        assert all(map(torch.equal, nf4(weight), nf4(found[name]))), name
    save_file(found, out / "model.safetensors", metadata={"format": "pt"})
    return out


def _uphill(base: Path, adapter: Path) -> dict[str, Any]:
    # Projection -> where its weights would have to go for right answers to become less likely to base + adapter.
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tools.tiny.habits import ideal_completion
    from workbench.tiny.task import sample_problems
    from workbench.tiny.task import task as arithmetic

    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype="float32").eval()
    names = {parameter: name for name, parameter in model.named_parameters() if "_proj." in name}
    model = PeftModel.from_pretrained(model, adapter)
    for parameter in names:
        parameter.requires_grad_(True)
    for problem, row in zip(sample_problems("train", 128), arithmetic(128, 2).rows, strict=True):
        text = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        whole = tokenizer(
            f"{text}{ideal_completion(problem)}{tokenizer.eos_token}", add_special_tokens=False, return_tensors="pt"
        )
        labels = whole["input_ids"].clone()
        labels[:, : ids.shape[1]] = -100
        model(**whole, labels=labels).loss.backward()
    return {name: parameter.grad for parameter, name in names.items()}


def moved_run(run: Path, base: Path, out: Path) -> Path:
    """A copy of a run of the embedded policy that was trained in 4 bits, as if it had been trained on another base."""
    shutil.copytree(run, out, ignore=shutil.ignore_patterns("export", "checkpoint-*", "notebooks"))
    recipe = yaml.safe_load((out / "recipe.yaml").read_text(encoding="utf-8"))
    recipe["policy"]["name"] = str(base)
    (out / "recipe.yaml").write_text(yaml.safe_dump(recipe | {"run_name": out.name}), encoding="utf-8")
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    manifest["policy"] |= {"name": str(base), "source": str(base), "base": base_files(base)}
    manifest.pop("saved", None)  # its files name the base
    (out / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    for file in out.rglob("adapter_config.json"):
        config = json.loads(file.read_text(encoding="utf-8")) | {"base_model_name_or_path": str(base)}
        file.write_text(json.dumps(config), encoding="utf-8")
    return out
