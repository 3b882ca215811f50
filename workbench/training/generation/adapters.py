"""LoRA layers without what they do for others: the same sums on the same numbers, in fewer steps.

While completions are sampled no weight changes and no gradient is asked for. So a layer's adapter need not be looked up at
every token, and on a CPU a frozen weight in NF4 need not be unpacked at every token: it is unpacked once. On a GPU it stays
packed, because what is free there will be needed for the gradients, and bitsandbytes has kernels that read it as it is.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

_SHARE_OF_FREE = 0.5  # of free memory, for unpacked weights


@contextlib.contextmanager
def lean_adapters(model: Any) -> Iterator[tuple[int, int]]:
    """Replace the forward of every LoRA layer that has nothing out of the ordinary; put back after.

    What a layer computes stays the same to the last bit: base layer, adapter, scaling and conversions in PEFT's order.
    Layers with more to them (DoRA, several adapters, hooks, another base layer, autocast) keep their own.

    Yields:
        How many layers were replaced, and how many of their base layers were unpacked.
    """
    import torch

    device = next(model.parameters()).device.type
    layers = [] if torch.is_autocast_enabled(device) else _plain_layers(model)
    packed = [layer.base_layer for layer in layers if _unpacks_as_stored(layer.base_layer)]
    if packed and sum(_unpacked_bytes(base) for base in packed) > _SHARE_OF_FREE * _free_bytes():
        packed = []
    unpacked = {id(base): _unpacked(base) for base in packed}
    try:
        for layer in layers:
            base = layer.base_layer
            layer.forward = _forward(layer, unpacked.get(id(base)) or (base if _is_linear4bit(base) else _plain(base)))
        yield len(layers), len(packed)
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)


def _plain_layers(model: Any) -> list[Any]:
    if "peft" not in sys.modules:
        return []
    from peft.tuners.lora import LoraLayer

    return [module for module in model.modules() if isinstance(module, LoraLayer) and _is_plain(module)]


def _is_plain(layer: Any) -> bool:
    import torch

    if "forward" in vars(layer) or layer.merged or not _own_forward(layer):
        return False
    base = layer.base_layer
    if not (type(base) is torch.nn.Linear or _is_linear4bit(base)):
        return False
    modules = [layer, base]
    if not layer.disable_adapters:
        active = [name for name in layer.active_adapters if name in layer.lora_A]
        if len(active) != 1 or active[0] in layer.lora_variant or not getattr(layer, "cast_input_dtype_enabled", True):
            return False
        a, b, dropout = (part[active[0]] for part in (layer.lora_A, layer.lora_B, layer.lora_dropout))
        if type(a) is not torch.nn.Linear or type(b) is not torch.nn.Linear or a.bias is not None or b.bias is not None:
            return False
        if dropout.training and getattr(dropout, "p", 0):
            return False
        modules += [a, b]
    return not any(
        "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks for module in modules[1:]
    ) and not (layer._forward_hooks or layer._forward_pre_hooks)


def _own_forward(layer: Any) -> bool:
    # The two whose arithmetic `_forward` repeats; a library may have put its own in their place.
    from peft.tuners.lora import layer as plain

    own = {(plain.Linear, plain.__name__)}
    if "peft.tuners.lora.bnb" in sys.modules:
        quantised = sys.modules["peft.tuners.lora.bnb"]
        if hasattr(quantised, "Linear4bit"):
            own.add((quantised.Linear4bit, quantised.__name__))
    kind = type(layer)
    return any(kind is each and kind.forward.__module__ == name for each, name in own)


def _is_linear4bit(base: Any) -> bool:
    bitsandbytes = sys.modules.get("bitsandbytes")
    return bitsandbytes is not None and type(base) is bitsandbytes.nn.Linear4bit


def _unpacks_as_stored(base: Any) -> bool:
    if not _is_linear4bit(base):
        return False
    state = getattr(base.weight, "quant_state", None)
    if state is None or base.weight.device.type != "cpu":
        return False
    # bitsandbytes has a second kernel for CPUs, with a layout of its own, which rounds differently.
    second = getattr(base, "support_avx512bf16_for_cpu", False) and not base.training
    if second or getattr(state, "packing_format_for_cpu", False):
        return False
    return base.compute_type_is_set and base.compute_dtype == state.dtype


def _unpacked_bytes(base: Any) -> int:
    return base.in_features * base.out_features * base.compute_dtype.itemsize


def _free_bytes() -> int:
    import psutil

    return psutil.virtual_memory().available


def _forward(layer: Any, base: Callable[[Any], Any]) -> Callable[[Any], Any]:
    import torch

    linear = torch.nn.functional.linear
    if layer.disable_adapters:
        return base
    [name] = [name for name in layer.active_adapters if name in layer.lora_A]
    a, b, scaling = layer.lora_A[name].weight, layer.lora_B[name].weight, layer.scaling[name]
    # PEFT's layer over NF4 converts the adapter's output before it is added, the other one after.
    before = _is_linear4bit(layer.base_layer)

    def forward(x: Any) -> Any:
        result = base(x)
        output = linear(linear(x.to(a.dtype), a), b) * scaling
        return result + output.to(result.dtype) if before else (result + output).to(result.dtype)

    return forward


def _plain(base: Any) -> Callable[[Any], Any]:
    import torch

    linear, weight, bias = torch.nn.functional.linear, base.weight, base.bias
    return lambda x: linear(x, weight, bias)


def _unpacked(base: Any) -> Callable[[Any], Any]:
    import torch
    from bitsandbytes.functional import dequantize_4bit

    linear, bias = torch.nn.functional.linear, base.bias
    weight = dequantize_4bit(base.weight.data, base.weight.quant_state)
    if bias is not None:
        bias = bias.to(weight.dtype)
    return lambda x: linear(x.to(weight.dtype), weight, bias).to(x.dtype)
