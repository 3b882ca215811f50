"""The types that a policy computes and trains in, on the device at hand, and what the trainer has to be told of them.

Unsloth sees to most of this by itself. With the plain backend nobody does: TRL's default of `bf16=True` is an error on a
CPU and slow emulation on an old GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.train.policy import Policy


def device_name() -> str:
    """The GPU's name, or the CPU with its threads."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name(torch.cuda.current_device())
    return f"the CPU ({torch.get_num_threads()} threads)"


def native_bf16() -> bool:
    """Whether this device computes in bfloat16 by itself, without emulation."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    found = torch.cpu.get_capabilities()
    return any(found.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))


def choose_dtype(asked: str | None) -> tuple[str, list[str]]:
    """(the type to compute in, a note if it is not the one that was asked for). For the plain backend.

    None asks for bfloat16 on a GPU that has it, float16 on an older one (a T4), float32 on a CPU.
    """
    import torch

    if torch.cuda.is_available():
        return asked or ("bfloat16" if native_bf16() else "float16"), []
    if asked == "float16":
        # Gradients of float16 need a scaler, and accelerate has none for a CPU: it would train in float32 unasked.
        return "float32", ["dtype = float16 is for a GPU; on the CPU float32 is used"]
    return asked or "float32", []


def config_overrides(policy: Policy, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of GRPOConfig that this policy's backend and device need, and that were not asked otherwise.

    Empty with Unsloth, whose own config sees to it.

    Args:
        settings: what GRPOConfig would be built with. Nothing that is in it is changed.
    """
    import torch

    if policy.backend_name != "transformers":
        return {}
    # Mixed precision in the type that the frozen weights compute in; TRL's own default is bf16 everywhere.
    needed = {
        "bf16": policy.compute_dtype == "bfloat16" and not settings.get("fp16"),
        "fp16": policy.compute_dtype == "float16" and not settings.get("bf16"),
    }
    if not torch.cuda.is_available():
        needed |= {"use_cpu": True, "dataloader_pin_memory": False}
    return {name: value for name, value in needed.items() if name not in settings}


def adapter_in_float32(model: Any) -> int:
    """Keep what is trained in 32 bits; the number of tensors that were not. Call it once the trainer is built.

    TRL turns the adapter of a 4-bit model into bfloat16. There a weight of 0.05 cannot move by less than 0.0001, so steps of
    a usual learning rate are lost to rounding, and the gradient scaler of float16 refuses it altogether.
    """
    import torch

    changed = [
        parameter for parameter in model.parameters() if parameter.requires_grad and parameter.dtype != torch.float32
    ]
    for parameter in changed:
        parameter.data = parameter.data.float()
    return len(changed)
