"""Exports spoiled on purpose: a good folder of safetensors in, a copy with one fault out. Each is named by the cause to be found.

    SABOTAGES["layer_skipped"](good, out, base, adapter)

`good` is a merged model or an adapter, `base` the folder of the 16-bit base, `adapter` that of the run's adapter. What spoils
the words (`WORDS`) spoils a merged folder before it is converted to GGUF, too.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"
HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"


def tensors(folder: Path) -> dict[str, Any]:
    """All tensors of a folder, by name, from one file or several."""
    from safetensors.torch import load_file

    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def put_tensors(folder: Path, found: dict[str, Any]) -> None:
    """Write tensors back as one file, in the place of those that are there."""
    from safetensors.torch import save_file

    name = "adapter_model.safetensors" if (folder / "adapter_config.json").is_file() else "model.safetensors"
    for file in [*folder.glob("*.safetensors"), folder / INDEX]:
        file.unlink(missing_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in found.items()}, folder / name, metadata={"format": "pt"})


def edit_json(file: Path, **changed: Any) -> None:
    """Change entries of a JSON file; None takes one out."""
    content = json.loads(file.read_text()) | changed
    file.write_text(json.dumps({name: value for name, value in content.items() if value is not None}, indent=2))


def deltas(adapter: Path) -> dict[str, Any]:
    """Name of the tensor that a LoRA changes -> s B A in 32 bits: of an adapter with one rank for all its layers."""
    config, found = json.loads((adapter / "adapter_config.json").read_text()), tensors(adapter)
    scale = config["lora_alpha"] / (config["r"] ** 0.5 if config.get("use_rslora") else config["r"])
    ends = ".lora_A.weight"
    modules = [name.removesuffix(ends) for name in found if name.endswith(ends)]
    return {
        f"{module.removeprefix('base_model.model.')}.weight": scale
        * (found[f"{module}.lora_B.weight"].float() @ found[f"{module}{ends}"].float())
        for module in modules
    }


def _copied(good: Path, out: Path) -> tuple[Path, bool]:
    # (the copy, whether it is an adapter).
    shutil.copytree(good, out, symlinks=False)
    return out, (out / "adapter_config.json").is_file()


def not_merged(good: Path, out: Path, base: Path, adapter: Path) -> Path:
    """The weights of the base; of an adapter, one whose B is zero."""
    out, is_adapter = _copied(good, out)
    found, bases = tensors(out), tensors(base)
    if is_adapter:
        put_tensors(out, {name: own * 0 if "lora_B" in name else own for name, own in found.items()})
    else:
        put_tensors(out, {name: bases[name].to(own.dtype) if name in bases else own for name, own in found.items()})
    return out


def merged_twice(good: Path, out: Path, base: Path, adapter: Path) -> Path:
    """s B A added once more; of an adapter, its B doubled."""
    out, is_adapter = _copied(good, out)
    found = tensors(out)
    if is_adapter:
        put_tensors(out, {name: own * 2 if "lora_B" in name else own for name, own in found.items()})
    else:
        found |= {name: (found[name].float() + delta).to(found[name].dtype) for name, delta in deltas(adapter).items()}
        put_tensors(out, found)
    return out


def wrong_base(good: Path, out: Path, base: Path, adapter: Path, only: str = "") -> Path:
    """The adapter on another revision of the base: every tensor, or those with `only` in their name, 2 % off."""
    import torch

    out, found, draws = _copied(good, out)[0], tensors(good), torch.Generator().manual_seed(0)
    for name, own in found.items():
        if only in name:
            noise = torch.randn(own.shape, generator=draws) * 0.02 * own.float().square().mean().sqrt()
            found[name] = (own.float() + noise).to(own.dtype)
    put_tensors(out, found)
    return out


def layer_skipped(good: Path, out: Path, base: Path, adapter: Path, layer: str = "") -> Path:
    """One adapted layer, the middle one unless one is named, as it is in the base; of an adapter, its B zero."""
    out, is_adapter = _copied(good, out)
    found, changed = tensors(out), sorted(deltas(adapter))
    layer = layer or changed[len(changed) // 2].removesuffix(".weight")
    if is_adapter:
        put_tensors(out, {name: own * 0 if f"{layer}.lora_B" in name else own for name, own in found.items()})
    else:
        name = f"{layer}.weight"
        put_tensors(out, found | {name: tensors(base)[name].to(found[name].dtype)})
    return out


def other_adapter(good: Path, out: Path, base: Path, adapter: Path) -> Path:
    """The adapter of another run: as large, of the same ranks, in the same layers."""
    import torch

    out, is_adapter = _copied(good, out)
    found, draws = tensors(out), torch.Generator().manual_seed(1)
    if is_adapter:
        shuffled = {name: own.flatten()[torch.randperm(own.numel(), generator=draws)] for name, own in found.items()}
        put_tensors(out, {name: own.reshape(found[name].shape) for name, own in shuffled.items()})
        return out
    bases = tensors(base)
    for name, delta in deltas(adapter).items():
        rows, columns = (torch.randperm(size, generator=draws) for size in delta.shape)
        found[name] = (bases[name].float() + delta[rows][:, columns]).to(found[name].dtype)
    put_tensors(out, found)
    return out


def tied_head_lost(good: Path, out: Path, base: Path, adapter: Path) -> Path:
    """A tied model that is called untied, and whose head nobody stores; an untied one whose head is gone and gets tied."""
    out, found = _copied(good, out)[0], tensors(good)
    tied = json.loads((out / "config.json").read_text())["tie_word_embeddings"]
    found.pop(HEAD, None)
    put_tensors(out, found)
    edit_json(out / "config.json", tie_word_embeddings=not tied)
    return out


def template_lost(good: Path, out: Path, base: Path, adapter: Path) -> Path:
    """No chat template."""
    out = _copied(good, out)[0]
    (out / "chat_template.jinja").unlink(missing_ok=True)
    edit_json(out / "tokenizer_config.json", chat_template=None)
    return out


def double_bos(good: Path, out: Path, base: Path, adapter: Path) -> Path:
    """A template that writes BOS twice, and a tokenizer that is told to add one."""
    out = _copied(good, out)[0]
    template, config = out / "chat_template.jinja", out / "tokenizer_config.json"
    inside = json.loads(config.read_text()).get("chat_template")
    text = "{{ bos_token }}{{ bos_token }}" + (template.read_text() if template.is_file() else inside)
    edit_json(config, add_bos_token=True, chat_template=text if inside else None)
    if template.is_file():
        template.write_text(text)
    return out


def eos_missing(good: Path, out: Path, base: Path, adapter: Path) -> Path:
    """Padding in the place of EOS, wherever a file names it."""
    out = _copied(good, out)[0]
    pad = json.loads((out / "tokenizer_config.json").read_text())["pad_token"]
    pad = pad["content"] if isinstance(pad, dict) else pad
    edit_json(out / "tokenizer_config.json", eos_token=pad)
    added = json.loads((out / "tokenizer.json").read_text())["added_tokens"]
    number = next(token["id"] for token in added if token["content"] == pad)
    for name in ("config.json", "generation_config.json"):
        if (out / name).is_file():
            edit_json(out / name, eos_token_id=number)
    return out


WORDS: dict[str, Callable[..., Path]] = {own.__name__: own for own in (template_lost, double_bos, eos_missing)}
# Cause -> what brings it about. The tenth, off the grid, is no fault of an export but a policy of its own.
SABOTAGES: dict[str, Callable[..., Path]] = {
    own.__name__: own for own in (not_merged, merged_twice, wrong_base, tied_head_lost, layer_skipped, other_adapter)
} | WORDS
