"""LoRA layers reduced to what sampling needs: the same sums on the same numbers, in fewer steps.

While completions are sampled no weight changes and no gradient is asked for. So a layer's adapter
need not be looked up at every token, and on a CPU a frozen weight in NF4 need not be unpacked at
every token: it is unpacked once. On a GPU it stays packed, because what is free there will be
needed for the gradients, and bitsandbytes has kernels that read it as it is.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator
from typing import Any

from workbench.base.kinds import Tensor

_SHARE_OF_FREE = 0.5  # of free memory, for unpacked weights


@contextlib.contextmanager
def lean_adapters(model: Any) -> Generator[tuple[int, int]]:
    """Replace the forward of every plain LoRA layer; it is put back afterwards.

    What a layer computes stays the same to the last bit: base layer, adapter, scaling and
    conversions in PEFT's order. Other layers (DoRA, several adapters, hooks, another base layer,
    autocast) keep their own. Yields how many layers were replaced, and how many of their base
    layers were unpacked.
    """
    import torch
    from peft.tuners.lora import LoraLayer

    lean = not torch.is_autocast_enabled(next(model.parameters()).device.type)
    layers = [
        module
        for module in model.modules()
        if lean and isinstance(module, LoraLayer) and _is_plain(module)
    ]
    packed = [layer.base_layer for layer in layers if _unpacks_as_stored(layer.base_layer)]
    unpacked_bytes = sum(
        base.in_features * base.out_features * base.compute_dtype.itemsize for base in packed
    )
    if packed and unpacked_bytes > _SHARE_OF_FREE * _free_bytes():
        packed = []
    bases = {
        id(layer): _base(layer.base_layer, unpack=layer.base_layer in packed) for layer in layers
    }
    try:
        for layer in layers:
            layer.forward = _forward(layer, bases[id(layer)])
        yield len(layers), len(packed)
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)


def _is_plain(layer: Any) -> bool:
    import torch
    from peft.tuners.lora import layer as of_peft

    # The two whose arithmetic `_forward` repeats; a library may have put its own in their place.
    kind, base = type(layer), layer.base_layer
    of_bnb = sys.modules.get("peft.tuners.lora.bnb")
    known = [(of_peft, "Linear"), *([(of_bnb, "Linear4bit")] if of_bnb is not None else [])]
    if not any(
        kind is getattr(module, name, None) and kind.forward.__module__ == module.__name__
        for module, name in known
    ):
        return False
    if layer.merged or not (type(base) is torch.nn.Linear or _is_linear4bit(base)):
        return False
    modules = [layer, base]
    if not layer.disable_adapters:
        active = [name for name in layer.active_adapters if name in layer.lora_A]
        if (
            len(active) != 1
            or active[0] in layer.lora_variant
            or not getattr(layer, "cast_input_dtype_enabled", True)
        ):
            return False
        a, b, dropout = (
            part[active[0]] for part in (layer.lora_A, layer.lora_B, layer.lora_dropout)
        )
        if any(type(part) is not torch.nn.Linear or part.bias is not None for part in (a, b)):
            return False
        if dropout.training and getattr(dropout, "p", 0):
            return False
        modules += [a, b]
    return not any(
        "forward" in vars(one) or one._forward_hooks or one._forward_pre_hooks for one in modules
    )


def _is_linear4bit(base: object) -> bool:
    bitsandbytes = sys.modules.get("bitsandbytes")
    return bitsandbytes is not None and type(base) is bitsandbytes.nn.Linear4bit


def _unpacks_as_stored(base: Any) -> bool:
    state = getattr(base.weight, "quant_state", None) if _is_linear4bit(base) else None
    if state is None or base.weight.device.type != "cpu":
        return False
    # bitsandbytes has a second kernel for CPUs, with a separate layout, which rounds differently.
    second = getattr(base, "support_avx512bf16_for_cpu", False) and not base.training
    second = second or getattr(state, "packing_format_for_cpu", False)
    return not second and base.compute_type_is_set and base.compute_dtype == state.dtype


def _free_bytes() -> int:
    import psutil

    return psutil.virtual_memory().available


def _forward(layer: Any, base: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    import torch

    if layer.disable_adapters:
        return base
    linear = torch.nn.functional.linear
    [name] = [name for name in layer.active_adapters if name in layer.lora_A]
    a, b, scaling = layer.lora_A[name].weight, layer.lora_B[name].weight, layer.scaling[name]
    # PEFT's layer over NF4 converts the adapter's output before it is added, the other one after.
    before = _is_linear4bit(layer.base_layer)

    def forward(x: Tensor) -> Tensor:
        result = base(x)
        output = linear(linear(x.to(a.dtype), a), b) * scaling
        return result + output.to(result.dtype) if before else (result + output).to(result.dtype)

    return forward


def _base(base: Any, *, unpack: bool) -> Callable[[Tensor], Tensor]:
    import torch

    linear, weight, bias = torch.nn.functional.linear, base.weight, base.bias
    if not unpack:
        return base if _is_linear4bit(base) else lambda x: linear(x, weight, bias)
    from bitsandbytes.functional import dequantize_4bit

    weight = dequantize_4bit(weight.data, weight.quant_state)
    bias = None if bias is None else bias.to(weight.dtype)
    return lambda x: linear(x.to(weight.dtype), weight, bias).to(x.dtype)
