"""Base and adapter become one model: in 32 bits, rounded once, through plain transformers and PEFT.

The adapter was trained beside 4-bit weights. "base" is the sum with the 16-bit weights that these
were rounded from, which is better where the two lie close together; "dequantised" is the sum with
the 4-bit weights themselves, written in 16 bits, which is what was trained. (Written in 4 bits, the
sum would be rounded to them again.)
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from workbench.base.errors import ExportError, PolicyError
from workbench.base.kinds import Fields, Model, Tensor, Tokenizer
from workbench.base.workspace import resolve, shown
from workbench.run.directory import RunDirectory
from workbench.tiny.named import ORIGIN
from workbench.training.plan import loading
from workbench.training.plan.loading import (
    NF4_BLOCK,
    adapter_named,
    bars_for,
    find_adapter,
    find_model,
    linear4bit_layers,
    load_tokenizer,
    quiet_imports,
    reading,
    with_adapter,
    with_eos,
    without_bits,
)

# as a policy is loaded
NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
Tensors = dict[str, Callable[[], Tensor]]  # name -> a function that reads it
PUT_BACK = "restore its files, or its revision; or train on the base as it is now"
# (layer, its 16-bit weight or None) -> what the live policy computes with, float32; or None
FourBit = Callable[[str, Tensor], Tensor | None]


def copy_adapter(adapter: str | Path, out: str | Path) -> Path:
    """Copy a saved adapter (weights and tokenizer) without pickles, optimiser and state;
    PolicyError if there is none.
    """
    adapter, out = Path(find_adapter(adapter)), resolve(out)
    out.mkdir(parents=True, exist_ok=True)
    for file in adapter.iterdir():
        state = file.stem in ("state", "trainer_state", "optimizer", "README")
        if file.is_file() and not state and file.suffix not in (".bin", ".pt", ".pth", ".pkl"):
            shutil.copyfile(file, out / file.name)
    return out


def is_quantised(source: str | Path) -> bool:
    """Whether a folder holds already quantised weights; a hub name is not looked up."""
    config = Path(source) / "config.json"
    return config.is_file() and "quantization_config" in json.loads(
        config.read_text(encoding="utf-8")
    )


def sixteen_bit_base(source: str | Path) -> str:
    """The 16-bit model behind a policy's source: its name without `-bnb-4bit`; ExportError for a
    4-bit folder.
    """
    if is_quantised(source):
        raise ExportError(
            f"{shown(source)}: the weights are quantised",
            rule="the 16-bit base is a model whose weights are not quantised",
            remedy='merge into the 4-bit weights themselves: into="dequantised"',
        )
    return str(source) if Path(source).is_dir() else without_bits(str(source))


def source_of(run: RunDirectory) -> str:
    """Folder or hub name that a run's policy was loaded from; by its recipe's name if the run is
    from another machine.
    """
    source = run.manifest()["policy"]["source"]
    elsewhere = Path(source).is_absolute() and not Path(source).is_dir()
    return find_model(run.recipe().policy.name, ask_hub=False) if elsewhere else source


def merge_base_differs(run: RunDirectory) -> str | None:
    """How a run's base has changed since training loaded it, in words; None: its state then or now
    is not known.
    """
    then = run.manifest()["policy"].get("base") or {}
    with contextlib.suppress(PolicyError):  # it is not here
        return loading.base_differs(then, loading.base_files(then.get("name") or source_of(run)))
    return None


def base_of(run: RunDirectory) -> str:
    """Folder or hub name of the 16-bit model behind a run's policy; the 4-bit folder itself if it
    was trained from one.
    """
    source = source_of(run)
    return source if Path(source).is_dir() else without_bits(source)


def tensors_in(files: Iterable[Path]) -> Tensors:
    """The tensors of safetensors files, each read when its function is called."""
    from safetensors import safe_open

    opened = [safe_open(file, "pt") for file in files]
    return {
        name: functools.partial(file.get_tensor, name)
        for file in opened
        for name in file.keys()  # noqa: SIM118 - a safe_open file is no dict
    }


def tensors_of(source: str | Path) -> Tensors:
    """The stored tensors of a model, a folder or a hub name; PolicyError if they cannot be read."""
    with quiet_imports():
        from huggingface_hub import snapshot_download

    folder = find_model(source)
    with reading(f"weights of {str(source)!r}"):
        if not Path(folder).is_dir():
            folder = snapshot_download(folder, allow_patterns=["model*.safetensors", "*.json"])
        # Beside them a repository may hold the same in another layout (consolidated.safetensors).
        index, shards = Path(folder, "model.safetensors.index.json"), ["model.safetensors"]
        if index.is_file():
            shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return tensors_in(Path(folder, name) for name in sorted(set(shards)))


def rescales(adapter: str | Path) -> bool:
    """Whether a saved adapter is DoRA's, which does more to a layer than add s B A."""
    config = Path(adapter) / "adapter_config.json"
    return bool(json.loads(config.read_text(encoding="utf-8")).get("use_dora"))


def deltas(adapter: str | Path) -> Tensors:
    """Layer that a saved LoRA adapter changes -> a function that returns its s B A, float32 `[out,
    in]`.
    """
    with quiet_imports():
        from peft import PeftConfig
        from peft.utils.other import get_pattern_key

    with reading(f"adapter {shown(adapter)}"):
        config = PeftConfig.from_pretrained(str(adapter))
        saved = tensors_in([Path(adapter) / "adapter_model.safetensors"])

    def delta(layer: str) -> Tensor:
        a, b = (saved[f"base_model.model.{layer}.lora_{which}.weight"]().float() for which in "AB")
        pattern = get_pattern_key(list(config.alpha_pattern), layer)
        alpha = config.alpha_pattern.get(pattern, config.lora_alpha)
        return alpha / (len(a) ** 0.5 if config.use_rslora else len(a)) * (b @ a)

    names = re.findall(r"^base_model\.model\.(.*)\.lora_A\.weight$", "\n".join(saved), re.MULTILINE)
    # layer 10 after layer 9
    names.sort(key=lambda name: [part.zfill(6) for part in name.split(".")])
    return {name: functools.partial(delta, name) for name in names}


def four_bit(run: RunDirectory) -> FourBit:
    """What the run's live policy held in 4 bits, layer by layer: its stored weights, or its base
    quantised as in loading.

    ExportError: the run trained beside 16-bit weights.
    """
    import torch

    policy = run.manifest()["policy"]
    if policy["precision"] != "nf4":
        raise ExportError(
            f"{run.name}: its policy was stored in {policy['precision']}",
            rule="only 4-bit weights can be dequantised",
            remedy='merge into "base"',
        )
    if source := _quantised_source(run):
        tensors = tensors_of(source)

        def stored(layer: str, weight: object) -> Tensor | None:
            name = f"{layer}.weight"
            return dequantised(tensors, name).float() if f"{name}.absmax" in tensors else None

        return stored
    layers, computes = _quantised_in_loading(base_of(run)), getattr(torch, policy["compute_dtype"])

    def quantised(layer: str, weight: Tensor) -> Tensor | None:
        return in_nf4(weight.detach().to(computes)).float() if layer in layers else None

    return quantised


def dequantised(tensors: Tensors, name: str) -> Tensor:
    """A stored 4-bit weight, in the 16-bit type that it was quantised from."""
    with quiet_imports():
        import torch
        from bitsandbytes.functional import QuantState, dequantize_4bit

    state = {each: tensors[each]() for each in tensors if each.startswith(f"{name}.")}
    return dequantize_4bit(tensors[name](), QuantState.from_dict(state, torch.device("cpu")))


def in_nf4(weight: Tensor) -> Tensor:
    """A weight quantised by bitsandbytes, as a policy and `merged_4bit` are loaded, and read back
    in its own type.
    """
    with quiet_imports():
        from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    packed = quantize_4bit(
        weight.contiguous(), blocksize=NF4_BLOCK, compress_statistics=True, quant_type="nf4"
    )
    return dequantize_4bit(*packed)


def _quantised_source(run: RunDirectory) -> str:
    # Unsloth loads a ready-made 4-bit repository in the place of a 16-bit name that it knows; PEFT
    # writes down which.
    config = json.loads((run.adapter / "adapter_config.json").read_text(encoding="utf-8"))
    for name in (run.manifest()["policy"]["source"], config.get("base_model_name_or_path")):
        if name and (is_quantised(name) or name.lower().endswith("-bnb-4bit")):
            return name
    return ""


def _quantised_in_loading(base: str) -> set[str]:
    # transformers decides itself, from the shape of the model alone.
    with quiet_imports():
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig
        from transformers.quantizers import AutoHfQuantizer

    config = AutoConfig.from_pretrained(find_model(base), trust_remote_code=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    quantiser = AutoHfQuantizer.from_config(BitsAndBytesConfig(**NF4), pre_quantized=False)
    quantiser.preprocess_model(model, device_map={"": "cpu"})
    layers = linear4bit_layers(model)
    return {name for name, module in model.named_modules() if module in layers}


def write_merged(
    base: str | Path,
    adapter: str | Path,
    folder: Path,
    *,
    held: FourBit | None = None,
    chat_template_kwargs: Fields | None = None,
    eos_ids: Sequence[int] = (),
) -> Path:
    """Merge the adapter that PEFT saved into its 16-bit base (folder or hub name); the whole model
    with its tokenizer.

    The sum is made in 32 bits, one layer at a time, and rounded once, to the base's own 16-bit
    type.

    Args:
        folder: where it is written; existing files are overwritten.
        held: the 4-bit weights to merge into, from `four_bit`; None: the base's own.
        chat_template_kwargs: what the run's prompts were rendered with; they become the saved
            template's defaults.
        eos_ids: tokens that ended completions in training, besides the base's and the tokenizer's.
    """
    with quiet_imports():
        from transformers import AutoModelForCausalLM

    source = find_model(base)
    with reading(f"base {str(base)!r}"), bars_for(source):
        stored: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype="auto", trust_remote_code=False
        ).eval()
    if quantised := getattr(stored.config, "quantization_config", None) is not None:
        if held is None:
            sixteen_bit_base(source)
        stored = stored.dequantize()
    merged = _merged(with_adapter(stored, adapter), stored.dtype, held)
    tokenizer = save_tokenizer(adapter, folder, load_tokenizer(source), chat_template_kwargs)
    _end_as(tokenizer, merged, eos_ids)
    with bars_for(source):
        # which would want to undo the dequantising
        merged.save_pretrained(folder, save_original_format=not quantised)
    # transformers saves its own form of the tokenizer only; converters to other formats ask for the
    # original.
    original = Path(source) / "tokenizer.model"
    if original.is_file():
        shutil.copyfile(original, folder / original.name)
    return folder


def _merged(wrapped: Any, dtype: Any, held: FourBit | None) -> Any:
    import torch
    from peft.tuners.tuners_utils import BaseTunerLayer

    if dtype not in (torch.float16, torch.bfloat16):
        dtype = torch.bfloat16
    for name, layer in wrapped.get_base_model().named_modules():
        adapted = isinstance(layer, BaseTunerLayer)
        under: Any = layer.get_base_layer().float() if adapted else layer
        if held is not None and (adapted or isinstance(layer, torch.nn.Linear)):
            weight = held(name, under.weight)
            if weight is not None:
                under.weight.data = weight if adapted else weight.to(dtype)
        if adapted:
            layer.merge()
            under.to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the layers are merged already
        return wrapped.merge_and_unload().to(dtype)


def save_tokenizer(
    adapter: str | Path, folder: Path, base: Any = None, kwargs: Fields | None = None
) -> Any:
    """The tokenizer of training, with `chat_template_kwargs` baked into its template; the base's if
    it was not saved.
    """
    with quiet_imports():
        import transformers

    tokenizer, auto = base, cast("Any", transformers.AutoTokenizer)
    if any(Path(adapter).glob("tokenizer*")):
        with reading(f"tokenizer of {shown(adapter)}"):
            tokenizer = auto.from_pretrained(str(adapter), trust_remote_code=False)
        # Training sets these to its own ends: the length of its context, the side that its batches
        # are padded on.
        if base is not None:
            tokenizer.model_max_length = base.model_max_length
            tokenizer.padding_side = base.padding_side
    if kwargs and isinstance(tokenizer.chat_template, str):
        tokenizer.chat_template = with_defaults(tokenizer.chat_template, kwargs)
    for how in ("is_local", "local_files_only"):  # it was read on this machine
        tokenizer.init_kwargs.pop(how, None)
    tokenizer.save_pretrained(folder)
    return tokenizer


def with_defaults(template: str, kwargs: Fields) -> str:
    """A chat template in which these arguments have these values, unless its caller gives
    others.
    """
    said = "".join(
        f"{{% if {key} is not defined %}}{{% set {key} = {value!r} %}}{{% endif %}}"
        for key, value in kwargs.items()
    )
    # chat templates are rendered with trim_blocks: this line end is not in the text
    return f"{said}\n{template}"


def ended_with(run: RunDirectory, tokenizer: Tokenizer) -> list[int]:
    """The tokens that ended completions in a run's training; for a run of an older version, without
    them, the tokenizer's EOS.
    """
    return run.manifest().get("eos_ids") or with_eos(None, tokenizer)


def one_or_list(ids: list[int]) -> int | list[int] | None:
    """EOS tokens as configs hold them: one alone without a list."""
    return ids[0] if len(ids) == 1 else ids or None


def _end_as(tokenizer: Tokenizer, model: Model, trained: Sequence[int] = ()) -> None:
    # Whoever generates stops where training did: at the base's EOS tokens, and at the tokenizer's.
    settings = model.generation_config
    if ids := list(dict.fromkeys([*with_eos(settings.eos_token_id, tokenizer), *trained])):
        settings.eos_token_id = model.config.eos_token_id = one_or_list(ids)
    if tokenizer.pad_token_id is not None:
        settings.pad_token_id = model.config.pad_token_id = tokenizer.pad_token_id
    # Old bases say "temperature" and "greedy" at once, which transformers refuses to save.
    if settings.temperature not in (None, 1.0) or settings.top_p not in (None, 1.0):
        settings.do_sample = True


if __name__ == "__main__":  # for `policy.merge_adapter`
    base, adapter, new = sys.argv[1:]
    write_merged(base, adapter, Path(new))
    origin = f"its weights are those of {base} with the adapter {adapter_named(adapter)} merged in"
    Path(new, ORIGIN).write_text(origin, encoding="utf-8")
