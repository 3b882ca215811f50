"""Tensors: each must be the base's, with the run's change added once and rounded once.

The sum is made here, from the stored tensors, without PEFT. A step is often smaller than what the
16-bit type can resolve, so what is compared is the rounded sum, not merged - base. In 4 bits, or as
GGUF, it is compared with the merged_16bit beside it, converted again, whose tensors are looked at
too. What tensors cannot tell, the artefact's behaviour decides.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from workbench.base.errors import WorkbenchError
from workbench.base.kinds import Fields, Tensor
from workbench.exporting import gguf, merging, serving
from workbench.exporting.artefacts import PASSPORT, Artefact
from workbench.exporting.checks import Check
from workbench.run.directory import RunDirectory
from workbench.training.plan.loading import adapter_sum, quiet_imports, reading

_HEAD = "lm_head.weight"
_NAME = "base + the adapter's change"
_EMBEDDINGS = re.compile(r"(embed_tokens|wte|embed_in|word_embeddings)\.weight$")
_FEW = 8  # weights that may be rounded otherwise, however small the step
_CLOSE = 0.05  # of the distance that a step moves a layer: what another order of the sums may leave
_DECIDING = (
    "vocab_size", "max_position_embeddings", "rope_parameters", "sliding_window", "rms_norm_eps",
    "hidden_act", "head_dim", "num_attention_heads", "num_key_value_heads", "bos_token_id",
)  # fmt: skip
_REMEDY = (
    "export the run again, with overwrite, beside the exact base and revision that it was"
    " trained on"
)


def check_weights(artefact: Artefact) -> list[Check]:
    """Compare an artefact's tensors with the base's and the run's adapter. No forward pass, no GPU,
    one tensor at a time.
    """
    run, merged = artefact.run, artefact.path.with_name("merged_16bit")
    assert run is not None
    why = "the merged_16bit that it was converted from is not beside it"
    try:
        if artefact.format == "adapter":
            return [_same_adapter(artefact.path, run.adapter)]
        if artefact.format == "merged_16bit":
            return [_merged(artefact.path, artefact.into, run)]
        if (merged / "config.json").is_file():
            if _made_of(merged) in (None, (artefact.into, adapter_sum(run.adapter))):
                return [_merged(merged, artefact.into, run), _converted(artefact, merged, run)]
            why = "the merged_16bit beside it is not the one that it was converted from"
    except WorkbenchError as error:
        why = f"they cannot be compared: {error.value}"
    return [Check("weights", "its tensors", None, why)]


def _made_of(folder: Path) -> tuple[object, object] | None:
    # (what it was merged into, the sum of the adapter), by its passport; None: it says nothing
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        known = json.loads((folder / PASSPORT).read_text(encoding="utf-8"))
        return known["into"], known["adapter"]["sha256"]
    return None


def _same_adapter(*folders: Path) -> Check:
    # copied to the byte, but for the name of its base
    with reading(f"adapter {folders[0].name}"):
        own, run = map(adapter_sum, folders)
        files = ((each / "adapter_config.json").read_text(encoding="utf-8") for each in folders)
        configs = [{**json.loads(text), "base_model_name_or_path": ""} for text in files]
    other = _unequal(*configs) | ({"adapter_model.safetensors"} if own != run else set())
    return _compared("its tensors and settings", configs[0], other)


def _unequal(own: Fields, other: Fields, names: Collection[str] = ()) -> set[str]:
    # the settings that differ, of `names`, or of all
    names = names or own.keys() | other
    return {name for name in names if (own.get(name) or None) != (other.get(name) or None)}


def _model(source: str | Path) -> tuple[Any, merging.Tensors]:
    # (config, tensors by name): a tied head is its embeddings
    with quiet_imports():
        from transformers import AutoConfig

    stored = merging.tensors_of(source)
    with reading(f"config of {Path(source).name}"):
        config = AutoConfig.from_pretrained(str(source), trust_remote_code=False).get_text_config()
    tensors = {name: read for name, read in stored.items() if ".weight." not in name}
    for name in tensors:
        if f"{name}.absmax" in stored:
            tensors[name] = functools.partial(merging.dequantised, stored, name)
    embeddings = next(filter(_EMBEDDINGS.search, sorted(tensors)), "")
    if embeddings and config.tie_word_embeddings:
        tensors.setdefault(_HEAD, tensors[embeddings])
    return config, tensors


def _changes(adapter: Path, base: Collection[str]) -> tuple[merging.Tensors, merging.Tensors, set]:
    # (what is added to tensors of the base, what takes the place of some, what does anything else)
    layers = {} if merging.rescales(adapter) else merging.deltas(adapter)
    steps = {f"{layer}.weight": step for layer, step in layers.items()}
    whole, strange = {}, {name for name in steps if name not in base}
    for key, read in merging.tensors_in([adapter / "adapter_model.safetensors"]).items():
        name = key.removeprefix("base_model.model.").replace(".base_layer.", ".")
        layer, kind, _ = re.split(r"\.((?:lora_|token_adapter).*)|$", name, maxsplit=1)
        if not kind:
            whole[layer] = read
        elif f"{layer}.weight" not in steps or kind not in ("lora_A.weight", "lora_B.weight"):
            strange.add(layer)  # DoRA's magnitudes, LoRA of embeddings, of stacked experts
    return steps, whole, strange


def _merged(folder: Path, into: str, run: RunDirectory) -> Check:
    (config, own), (base_config, base) = _model(folder), _model(merging.base_of(run))
    steps, whole, strange = _changes(run.adapter, base)
    if strange:
        why = f"the adapter does more than add s B A to layers of the base: {_some(strange)}"
        return Check("weights", _NAME, None, why)
    held = merging.four_bit(run) if into == "dequantised" else None
    trained, other = base | whole, set()
    for name in trained.keys() & own:
        before, step = trained[name](), steps[name]() if name in steps else None
        if held and name not in whole:
            four = held(name.removesuffix(".weight"), before)
            before = before if four is None else four
        if step is not None and step.shape != before.shape:
            step = step.T
        if not _right(own[name](), before, step):
            other.add(name)
    if odd := trained.keys() ^ own:
        other |= odd & _loaded(config)
    other |= _unequal(config.to_dict(), base_config.to_dict(), _DECIDING)
    return _compared(_NAME, trained, other)


def _loaded(config: Any) -> set[str]:
    # the tensors that a model has: a folder may hold more than is loaded
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return {*AutoModelForCausalLM.from_config(config, trust_remote_code=False).state_dict()}


def _right(own: Tensor, before: Tensor, step: Tensor | None) -> bool:
    """Whether a tensor is `before` + `step`, rounded as it is stored."""
    import torch

    if own.shape != before.shape:
        return False
    never = before.to(own.dtype).float()
    if step is None:
        return own.float().equal(never)
    total = before.float() + step
    once = total.to(own.dtype).float()
    apart, moved = (own.float() - once).abs(), (once - never).abs()
    like = (apart > 0).sum() < _FEW or apart.sum() <= _CLOSE * moved.sum()
    # one unit of its type, and what sums in 32 bits leave
    room = torch.finfo(own.dtype).eps * own.float().abs() + 2**-24
    room += 2**-18 * (before.float().abs() + 2 * step.abs().max())
    return bool(like and ((own.float() - total).abs() <= room).all())


def _converted(artefact: Artefact, merged: Path, run: RunDirectory) -> Check:
    # made again of the merged_16bit beside it, and compared tensor by tensor
    other: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="workbench-") as folder:
        if artefact.format == "merged_4bit":
            (config, own), (as_trained, whole) = _model(artefact.path), _model(merged)
            other = _unequal(config.to_dict(), as_trained.to_dict(), _DECIDING)
            again = {name: functools.partial(_in_nf4, read) for name, read in whole.items()}
        else:
            file = f16 = Path(folder, "f16.gguf")
            kind = artefact.format.removeprefix("gguf_")
            gguf.convert(merged, f16, chat=serving.system_prompt(run) is not None, name=run.name)
            if kind != "f16":
                gguf.quantise(f16, file := Path(folder, "again.gguf"), kind)
            own, again, whole = map(gguf.gguf_tensors, (artefact.gguf, file, f16))
        equal = {
            name
            for name in own.keys() & again
            if _converts(own[name](), again[name], whole[name]())
        }
        return _compared("its tensors, converted again", own, other | (own.keys() | again) - equal)


def _in_nf4(read: Callable[[], Tensor]) -> Tensor:
    return merging.in_nf4(read())


def _converts(own: Any, again: Callable[[], Any], whole: Any) -> bool:
    """Whether a tensor is the `whole` one, or that `again` in fewer bits: another version of the
    quantiser may round a few weights otherwise.
    """
    if own.shape != whole.shape or (own == whole).all():
        return own.shape == whole.shape
    apart, lost = abs(own - again()), abs(again() - whole)
    return bool(apart.sum() <= _CLOSE * lost.sum())


def _compared(name: str, names: Collection[str], other: Collection[str]) -> Check:
    if other:
        found = f"{len(other)} differ: {_some(other)}"
        return Check("weights", name, False, found, "other_weights", _REMEDY)
    return Check("weights", name, True, f"all {len(names)} are as trained")


def _some(names: Collection[str]) -> str:
    more = f"; and {len(names) - 3} more" if len(names) > 3 else ""
    return "; ".join(sorted(names)[:3]) + more
