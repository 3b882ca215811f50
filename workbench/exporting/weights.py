"""Tensors: each must be the base's, with the run's change added once and rounded once.

The sum is made here, from the stored tensors, without PEFT. A step is often smaller than what the
16-bit type can resolve, so what is compared is the rounded sum, not merged - base. A GGUF file is
compared with another one, converted from the merged_16bit beside it, whose tensors are looked at
too. What tensors cannot tell, the artefact's behaviour decides.
"""

from __future__ import annotations

import functools
import json
import re
import tempfile
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError
from workbench.exporting import gguf, merging, serving
from workbench.exporting.artefacts import Artefact
from workbench.exporting.checks import Check
from workbench.kinds import Fields, Tensor
from workbench.training.loading import quiet_imports, reading

_HEAD = "lm_head.weight"
_EMBEDDINGS = re.compile(r"(embed_tokens|wte|embed_in|word_embeddings)\.weight$")
_TELLING = 8  # weights that a step must move, before it is believed to be there or not
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
    merged = replace(artefact, path=artefact.path.with_name("merged_16bit"), format="merged_16bit")
    try:
        if artefact.format == "adapter":
            return _same_adapter(artefact)
        if not artefact.format.startswith("gguf"):
            return _merged(artefact)
        if (merged.path / "config.json").is_file():
            return [*_merged(merged), _converted(artefact, merged.path)]
        why = "the merged_16bit that it was converted from is not beside it"
    except WorkbenchError as error:
        why = f"they cannot be compared: {error.value}"
    return [Check("weights", "its tensors", None, why)]


def _same_adapter(artefact: Artefact) -> list[Check]:
    assert artefact.run is not None
    folders = artefact.path, artefact.run.adapter
    with reading(f"adapter {artefact.path.name}"):
        own, run = (merging.tensors_in([each / "adapter_model.safetensors"]) for each in folders)
        files = ((each / "adapter_config.json").read_text(encoding="utf-8") for each in folders)
        configs = [{**json.loads(text), "base_model_name_or_path": ""} for text in files]
    names = own.keys() | run
    both = own.keys() & run
    other = (names - both) | {name for name in both if not own[name]().equal(run[name]())}
    settings = sorted({*configs[0], *configs[1]})
    return [_compared("its tensors", names, other), _settings("its settings", *configs, settings)]


def _model(source: str | Path) -> tuple[Any, merging.Tensors, set[str]]:
    # (config, tensors by name, those that are stored in NF4): a tied head is its embeddings.
    with quiet_imports():
        from transformers import AutoConfig

    stored = merging.tensors_of(source)
    with reading(f"config of {Path(source).name}"):
        config = AutoConfig.from_pretrained(str(source), trust_remote_code=False).get_text_config()
    tensors = {name: read for name, read in stored.items() if ".weight." not in name}
    coarse = {name for name in tensors if f"{name}.absmax" in stored}
    tensors |= {name: functools.partial(merging.dequantised, stored, name) for name in coarse}
    embeddings = next(filter(_EMBEDDINGS.search, sorted(tensors)), "")
    if embeddings and config.tie_word_embeddings:
        tensors.setdefault(_HEAD, tensors[embeddings])
    return config, tensors, coarse


def _merged(artefact: Artefact) -> list[Check]:
    import torch
    from transformers import AutoModelForCausalLM

    run = artefact.run
    assert run is not None
    (config, own, coarse), (base_config, base, _) = map(
        _model, (artefact.path, merging.base_of(run))
    )
    steps = {} if merging.rescales(run.adapter) else merging.deltas(run.adapter)
    steps, whole = {f"{layer}.weight": step for layer, step in steps.items()}, {}
    strange = steps.keys() - base.keys()
    for key, read in merging.tensors_in([run.adapter / "adapter_model.safetensors"]).items():
        name = key.removeprefix("base_model.model.").replace(".base_layer.", ".")
        layer, kind, _ = re.split(r"\.((?:lora_|token_adapter).*)|$", name, maxsplit=1)
        if not kind:
            whole[layer] = read
        elif f"{layer}.weight" not in steps or kind not in ("lora_A.weight", "lora_B.weight"):
            strange.add(layer)  # DoRA's magnitudes, LoRA of embeddings, of stacked experts
    if strange:
        why = f"the adapter does more than add s B A to layers of the base{_some(strange)}"
        return [Check("weights", "its tensors", None, why)]
    held = merging.four_bit(run) if artefact.into == "dequantised" else None
    names, lost, other = base.keys() | whole, 0, set()
    for name in names & own.keys():
        before = base[name]() if name in base else whole[name]()
        four = held(name.removesuffix(".weight"), before) if held else None
        step = steps[name]() if name in steps else None
        right = _right(
            own[name](),
            whole[name]() if name in whole else before if four is None else four,
            step if step is None or step.shape == before.shape else step.T,
            name in coarse,
        )
        lost += right is None
        other |= set() if right in (True, None) else {name}
    if odd := names ^ own.keys():
        with torch.device("meta"):  # a model stores more than it loads
            wanted = AutoModelForCausalLM.from_config(config, trust_remote_code=False).state_dict()
        other |= odd & wanted.keys()
    tensors = _compared("base + the adapter's change", names, other)
    if tensors.passed and steps and lost == len(steps):
        why = "the adapter's change is lost in rounding in all its layers"
        tensors = replace(tensors, passed=None, found=why, rounding=True)
    settings = (each.to_dict() for each in (config, base_config))
    return [tensors, _settings("config.json", *settings, _DECIDING)]


def _right(own: Tensor, before: Tensor, step: Tensor | None, coarse: bool) -> bool | None:
    """Whether a tensor is `before` + `step`, rounded as it is stored; None: rounding leaves no step
    that could be seen.
    """
    import torch

    if own.shape != before.shape:
        return False
    total = before.float() if step is None else before.float() + step
    rounded = (tensor.to(own.dtype) for tensor in (before, total))
    never, once = (merging.in_nf4(each).float() if coarse else each.float() for each in rounded)
    apart = (own.float() - once).abs()
    # A quantiser takes the nearest of a few numbers: another version rounds some otherwise.
    few = coarse and bool(apart.sum() <= _CLOSE * (once - total).norm(1))
    if step is None:
        return few or own.float().equal(once)
    moved = (once - never).abs()
    like = bool((apart > 0).sum() < _TELLING or apart.sum() <= _CLOSE * moved.sum())
    # one unit of its type, and what sums in 32 bits leave
    room = torch.finfo(own.dtype).eps * own.float().abs() + 2**-24
    room += 2**-18 * (before.float().abs() + 2 * step.abs().max())
    within = like and (coarse or bool(((own.float() - total).abs() <= room).all()))
    right = within or (few and bool(apart.sum() < (own.float() - never).norm(1)))
    return None if right and (moved > 0).sum() < _TELLING else right


def _converted(artefact: Artefact, merged: Path) -> Check:
    # Converted again, and compared tensor by tensor; a few weights may be quantised otherwise.
    run, kind = artefact.run, artefact.format.removeprefix("gguf_")
    assert run is not None
    with tempfile.TemporaryDirectory(prefix="workbench-") as folder:
        again = f16 = Path(folder, "f16.gguf")
        gguf.convert(merged, f16, chat=serving.system_prompt(run) is not None, name=run.name)
        if kind != "f16":
            gguf.quantise(f16, again := Path(folder, "again.gguf"), kind)
        own, new, whole = map(gguf.gguf_tensors, (artefact.gguf, again, f16))

        def differs(name: str) -> bool:
            if not (name in own and name in new) or own[name]().shape != new[name]().shape:
                return True
            apart, lost = abs(own[name]() - new[name]()), abs(new[name]() - whole[name]())
            return not apart.sum() <= _CLOSE * lost.sum()

        names = own.keys() | new
        return _compared("its tensors, converted again", names, set(filter(differs, names)))


def _settings(what: str, own: Fields, other: Fields, names: Collection[str]) -> Check:
    changed = [
        f"{name} = {own.get(name)!r}, not {other.get(name)!r}"
        for name in names
        if (own.get(name) or None) != (other.get(name) or None)
    ]
    return _judged(what, "; ".join(changed) or "as they were", bool(changed))


def _compared(what: str, names: Collection[str], other: Collection[str]) -> Check:
    found = f"{len(other)} of {len(names)} differ{_some(other)}"
    return _judged(what, found if other else f"all {len(names)} are as trained", bool(other))


def _some(names: Collection[str]) -> str:
    # `layer 7, down_proj` for `model.layers.7.mlp.down_proj.weight`.
    short = (re.sub(r"\.(lora_.*|weight)$", "", name).replace(".bias", " bias") for name in names)
    parts = ((re.search(r"\.(\d+)\.(?:.+\.)?([\w ]+)$", name), name) for name in short)
    listed = sorted({f"layer {own[1]}, {own[2]}" if own else name for own, name in parts})
    return f": {'; '.join(listed[:3])}" + (f"; and {len(listed) - 3} more" if listed[3:] else "")


def _judged(name: str, found: str, wrong: bool) -> Check:
    cause, remedy = ("other_weights", _REMEDY) if wrong else ("", "")
    return Check("weights", name, not wrong, found, cause, remedy)
