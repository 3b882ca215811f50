"""The shape of a policy, from its config.json alone: transformers builds it on the meta device,
where weights take no memory.

Where unsloth will be used, it must have been imported before (planning a run does that).
"""

from __future__ import annotations

import functools
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from workbench.base.cache import kept
from workbench.base.errors import PolicyError, RecipeError
from workbench.base.hub import check_hub
from workbench.base.kinds import Fields
from workbench.base.workspace import find
from workbench.recipe import LoraPart
from workbench.tiny import named as policies

# configurations of models on the hub, for use without it
KNOWN_FILE = Path(__file__).with_name("shapes.json")


@dataclass(frozen=True)
class ModelShape:
    """The properties of a policy that decide its memory. Sizes are numbers of elements, not
    bytes.
    """

    name: str
    parameters: int  # all of them, unpacked; a tied output layer counts once
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tied: bool  # the output layer is the embedding
    # weights of each linear layer that is in NF4 when the model is loaded in 4 bits: all in the
    # blocks are, but those that a quantised repository left alone
    packed: tuple[int, ...]
    norms_per_layer: int
    qk_norm: bool
    windows: tuple[int | None, ...]  # per layer: tokens that its attention reaches back; None: all
    caches: tuple[str, ...]  # the classes of transformers that keep its layers' keys and values
    # weights of experts that are kept as one parameter a layer, which bitsandbytes does not
    # quantise
    stacked: int
    quantised: bool  # the stored weights are NF4 already
    local: bool  # read from a folder
    config: str = field(repr=False, compare=False)  # JSON of the config.json


def shape_of(name: str | Path = "tiny") -> ModelShape:
    """The shape of a policy by the name that a recipe gives it; PolicyError as `from_config`, or if
    nothing has it.

    Looked for in this order: the embedded policy, a local folder, the hub's cache, the
    configurations that ship, the hub.
    """
    text = str(name)
    folder = policies.folder_of(text) or find(text)
    if local := folder.is_dir():
        file = folder / "config.json"
    elif text.startswith((".", "/", "~")) or text.count("/") != 1:
        raise PolicyError(
            f"policy {text!r}: no such folder",
            rule=f"a policy is {policies.CHOICES}",
            remedy="check the path, or write the hub name with its owner",
        )
    elif (file := _cached(text)) is None:
        if known := _known(text):
            return from_config(known, text)
        file = _downloaded(text)
    return from_config(_read(file, text), text, local=local)


def from_config(
    config: Mapping[str, object], name: str = "model", *, local: bool = False
) -> ModelShape:
    """The shape of the model that the content of a config.json describes; PolicyError if
    transformers builds none from it.
    """
    return _built(json.dumps(dict(config), sort_keys=True), name, local)


def routes(shape: ModelShape) -> bool:
    """Whether the model is a mixture of experts whose router's logits TRL can ask for."""
    return hasattr(_on_meta(shape.config)[0].get_text_config(), "output_router_logits")


@kept
@functools.lru_cache(maxsize=64)
def _built(config: str, name: str, local: bool) -> ModelShape:
    import torch
    from transformers import DynamicCache

    content = json.loads(config)
    try:
        full, model = _on_meta(config)
        sizes = _sizes(full.get_text_config())
        cache = DynamicCache(config=full).layers
    except Exception as error:
        kind = content.get("model_type")
        raise PolicyError(
            f"policy {name!r}: model_type = {kind!r}: {_first_line(error)[:200]}",
            rule="memory is estimated of models that the installed transformers builds from their"
            " config.json",
            remedy="check config.json, or measure one step instead",
        ) from error
    output = model.get_output_embeddings()
    norms = [
        path
        for path, module in model.named_modules()
        if "layers.0." in path and "Norm" in type(module).__name__
    ]
    of_heads = [path for path in norms if path.endswith(("q_norm", "k_norm"))]
    quantised = content.get("quantization_config") or {}
    in_4bit = bool(quantised.get("load_in_4bit") or quantised.get("_load_in_4bit"))
    left_alone = (quantised.get("llm_int8_skip_modules") or ()) if in_4bit else ()
    return ModelShape(
        name=name,
        parameters=sum(one.numel() for one in model.parameters()),
        **sizes,
        tied=bool(full.tie_word_embeddings),
        packed=tuple(
            module.weight.numel()
            for path, module in model.named_modules()
            if isinstance(module, torch.nn.Linear)
            and module is not output
            # transformers' own rule: the name, as a pattern at the start, or as an ending
            and not any(re.match(key, path) or path.endswith(key) for key in left_alone)
        ),
        norms_per_layer=len(norms) - len(of_heads),
        qk_norm=bool(of_heads),
        windows=tuple(getattr(layer, "sliding_window", None) for layer in cache),
        caches=tuple(dict.fromkeys(type(layer).__name__ for layer in cache)),
        stacked=sum(one.numel() for one in model.parameters() if one.dim() == 3),
        quantised=in_4bit,
        local=local,
        config=config,
    )


def _sizes(text: Any) -> dict[str, int]:
    hidden, heads = text.hidden_size, text.num_attention_heads
    sizes = {
        "hidden_size": hidden,
        "layers": text.num_hidden_layers,
        "heads": heads,
        "vocab_size": text.vocab_size,
        "kv_heads": getattr(text, "num_key_value_heads", None) or heads,
        "head_dim": getattr(text, "head_dim", None) or hidden // heads,
        "intermediate_size": getattr(text, "intermediate_size", None) or 4 * hidden,
    }
    for key, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{key} = {size!r}")
    return sizes


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def unquantised(stacked: int, parameters: int) -> str:
    """How much of a 4-bit model is not in 4 bits, besides what never is, in words."""
    return (
        f"{stacked / parameters:.0%} of the weights are not in 4 bits: experts in stacked"
        " parameters, which stay as they are"
    )


class Adapter(NamedTuple):
    """What a new LoRA adapter is on a model."""

    sizes: tuple[int, ...]  # elements of each of its tensors
    unmatched: tuple[str, ...]  # target modules that match no layer


def adapter_on(shape: ModelShape, lora: LoraPart, *, experts: bool = False) -> Adapter:
    """The adapter as PEFT itself puts it on, without memory; RecipeError for what it refuses of
    this model.

    Args:
        experts: also on all stacked parameters.
    """
    return _adapter(shape.config, lora.r, tuple(lora.target_modules), lora.lora_dropout, experts)


@kept
@functools.lru_cache(maxsize=64)
def _adapter(
    config: str, r: int, targets: tuple[str, ...], dropout: float, experts: bool
) -> Adapter:
    from peft import LoraConfig, get_peft_model

    model = _on_meta(config)[1]
    stacked = {name.rpartition(".")[2] for name, one in model.named_parameters() if one.dim() == 3}
    try:
        with warnings.catch_warnings(action="ignore"):
            how = LoraConfig(
                r=r,
                task_type="CAUSAL_LM",
                target_modules=list(targets),
                lora_dropout=dropout,
                target_parameters=sorted(stacked) if experts else None,
            )
            model = get_peft_model(model, how, low_cpu_mem_usage=True)
    except ValueError as error:
        raise RecipeError(
            f"lora: {error}",
            rule="PEFT can put the adapter on this model",
            remedy="change lora.target_modules, or the setting that it names",
        ) from error
    sizes = tuple(one.numel() for one in model.parameters() if one.requires_grad)
    return Adapter(sizes, unmatched(model, targets))


def unmatched(model: Any, target_modules: Sequence[str]) -> tuple[str, ...]:
    """The target modules that match no layer of a model with a new adapter on it."""
    # Those that PEFT has moved to parameters of stacked experts are no longer among its own
    # targets.
    own = model.peft_config["default"].target_modules
    ends = [f".{name}" for name in model.base_model.targeted_module_names]
    left = [each for each in target_modules if isinstance(own, set) and each in own]
    return tuple(each for each in left if not any(end.endswith(f".{each}") for end in ends))


def _on_meta(config: str) -> tuple[Any, Any]:
    # (config, model) of transformers; the weights take no memory.
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    content = json.loads(config)
    content.pop("quantization_config", None)
    full = AutoConfig.for_model(content.pop("model_type", None), **content)
    with torch.device("meta"):
        return full, AutoModelForCausalLM.from_config(full)


def _known(name: str) -> Fields | None:
    owner, model = name.split("/")
    # A repository of NF4 weights has the shape of the model that it was made from.
    plain = re.sub(r"(-unsloth)?-bnb-4bit$", "", model)
    for known in json.loads(KNOWN_FILE.read_text(encoding="utf-8")):
        if plain in known["models"] and owner in (known["owner"], "unsloth"):
            return known["config"]
    return None


def _cached(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(name, "config.json")
    return Path(file) if isinstance(file, str) else None


def _downloaded(name: str) -> Path:
    from huggingface_hub import hf_hub_download

    # a download tries five times over half a minute, and writes a line each time
    check_hub(name)
    try:
        return Path(hf_hub_download(name, "config.json"))
    except Exception as error:  # of the hub, or of the network on the way to it
        raise _unread(name, error) from error


def _read(file: Path, name: str) -> Fields:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise _unread(name, error) from error


def _unread(name: str, error: Exception) -> PolicyError:
    return PolicyError(
        f"policy {name!r}: config.json: {_first_line(error)}",
        rule="memory is estimated from the config.json that transformers' save_pretrained wrote",
        remedy="check the folder, or the model's page on the hub (a gated model needs HF_TOKEN)",
    )
