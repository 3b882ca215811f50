"""The types that a policy computes and trains in on this device, and the settings that the trainer
needs for them.

Unsloth handles most of this itself. With the plain backend nothing does: TRL's default of
`bf16=True` is an error on a CPU and slow emulation on an old GPU. `cuda`: there is a GPU; `bf16`:
the device computes in bfloat16 natively.
"""

from __future__ import annotations

from typing import Any

from workbench.base.kinds import Fields, Model, Tensor


def native_bf16() -> bool:
    """Whether this device computes in bfloat16 natively, without emulation."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    found = torch.cpu.get_capabilities()
    return any(found.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))


def fast_bf16() -> bool:
    """Whether this processor multiplies matrices in bfloat16 faster than in float32: with AMX. Its
    AVX-512 instructions alone took twice as long for a step of SmolLM2 (PyTorch 2.14).
    """
    import torch

    return bool(torch.cpu.get_capabilities().get("amx_bf16"))


def choose_dtype(
    asked: str | None, backend: str, *, cuda: bool, bf16: bool
) -> tuple[str | None, list[str]]:
    """(the type to load the policy in, a note if it differs from the requested one).

    For None, Unsloth chooses (None); the plain backend takes bfloat16 on a GPU that has it, float16
    on an older one (a T4), float32 on a CPU.
    """
    if cuda and asked == "bfloat16" and not bf16:
        return "float16", [
            "policy.dtype = 'bfloat16' becomes 'float16': this GPU only emulates bfloat16"
        ]
    if backend == "unsloth":
        return asked, []
    if asked == "float16" and not cuda:
        # Gradients of float16 need a scaler, and accelerate has none for a CPU: it would train in
        # float32 unasked.
        return "float32", ["policy.dtype = 'float16' becomes 'float32': float16 is for GPUs"]
    return asked or ("float32" if not cuda else "bfloat16" if bf16 else "float16"), []


def unsloths_choice(dtype: str | None, settings: Fields, *, bf16: bool) -> dict[str, bool]:
    """`bf16` and `fp16` as Unsloth's trainer sets them on a GPU: as `settings` ask where one is
    True, else by the type that the policy is loaded in (None: Unsloth's choice).
    """
    asked = {name: bool(settings.get(name)) for name in ("bf16", "fp16")}
    in_bf16 = bf16 and dtype != "float16"
    return (
        asked
        if any(asked.values())
        else {"bf16": in_bf16, "fp16": not in_bf16 and dtype != "float32"}
    )


def config_overrides(
    backend: str, compute_dtype: str | None, settings: Fields, *, cuda: bool
) -> Fields:
    """Settings of GRPOConfig that the plain backend and a device need, and that `settings` lack."""
    # Mixed precision in the type that the frozen weights compute in; TRL's own default is bf16
    # everywhere.
    needed = {
        "bf16": compute_dtype == "bfloat16" and not settings.get("fp16"),
        "fp16": compute_dtype == "float16" and not settings.get("bf16"),
    } | ({} if cuda else {"use_cpu": True, "dataloader_pin_memory": False})
    return {
        name: value
        for name, value in needed.items()
        if name not in settings and backend == "transformers"
    }


def adapter_in_float32(model: Model) -> int:
    """Keep trained weights in 32 bits; returns the number of tensors converted. Call it once the
    trainer is built.

    TRL turns the adapter of a 4-bit model into bfloat16. There a weight of 0.05 cannot move by less
    than 0.0001, so steps of a usual learning rate are lost to rounding, and the gradient scaler of
    float16 refuses it altogether.
    """
    import torch
    from peft.utils import ModulesToSaveWrapper

    wrappers = [each for each in model.modules() if isinstance(each, ModulesToSaveWrapper)]
    for wrapper in (each for each in wrappers if hasattr(each.original_module, "weight")):
        dtype = wrapper.original_module.weight.dtype
        for copy in wrapper.modules_to_save.values():  # what is trained, and the reference's
            copy.float()
            if not copy._forward_hooks:  # of the stage before
                # LoRA's layers convert what goes in and out; a layer that is trained whole does not
                copy.register_forward_pre_hook(lambda own, args: (_as_weight(own, args[0]),))
                copy.register_forward_hook(lambda own, args, out, dtype=dtype: out.to(dtype))
    changed = [
        parameter
        for parameter in model.parameters()
        if parameter.requires_grad and parameter.dtype != torch.float32
    ]
    for parameter in changed:
        parameter.data = parameter.data.float()
    return len(changed)


def _as_weight(module: Any, given: Tensor) -> Tensor:
    return given.to(module.weight.dtype) if given.is_floating_point() else given
