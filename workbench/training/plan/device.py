"""Settings that depend on the machine: precision, vLLM and the optimiser, each kept, or changed with a line."""

from __future__ import annotations

from typing import Any, NamedTuple

from workbench.errors import RecipeError
from workbench.recipe import Recipe
from workbench.training.fast_inference import COST, NOT_INSTALLED, missing, why_not
from workbench.training.precision import choose_dtype, unsloths_choice

CPU_OPTIMISER = "adamw_torch_fused"
# bitsandbytes' 8-bit and paged optimisers, and Apex's, have no CPU kernels.
_GPU_ONLY = ("8bit", "paged", "bnb", "apex")
# Of the engine that TRL would start; Unsloth's is started when the model is loaded, and knows nothing of them.
_TRLS_ENGINE = (
    "vllm_mode", "vllm_model_impl", "vllm_gpu_memory_utilization", "vllm_max_model_length", "vllm_tensor_parallel_size",
    "vllm_enable_sleep_mode", "vllm_server_base_url", "vllm_server_host", "vllm_server_port", "vllm_server_timeout",
)  # fmt: skip


class Device(NamedTuple):
    """What settings depend on."""

    cuda: bool
    native_bf16: bool
    vllm: bool  # whether it can be imported
    no_vllm: str = NOT_INSTALLED  # the reason, where it cannot

    @classmethod
    def here(cls, *, for_vllm: bool = False) -> Device:
        """This machine. Imports torch, so it is asked only when a setting depends on it; and `for_vllm` vLLM."""
        from workbench.training.policy import native_bf16

        bf16 = native_bf16()
        import torch

        cuda = torch.cuda.is_available()
        reason = missing(imports=for_vllm and cuda)
        return cls(cuda, bf16, not reason, reason)


def asks_for_vllm(settings: dict[str, Any], recipe: Recipe) -> bool:
    """Whether vLLM is to generate, by either of its names."""
    return bool(settings.get("use_vllm") or recipe.policy.fast_inference)


def depends(settings: dict[str, Any], recipe: Recipe) -> bool:
    """Whether any of these settings can be other than asked on some machine."""
    return bool(
        recipe.policy.dtype
        or settings.get("bf16")
        or settings.get("fp16")
        or asks_for_vllm(settings, recipe)
        or _gpu_optimiser(settings)
    )


def fitted(settings: dict[str, Any], recipe: Recipe, device: Device) -> tuple[dict[str, Any], list[str]]:
    """Settings that this device can train with.

    Returns:
        (new settings, a line for each that is not what was asked).

    Raises:
        RecipeError: if bf16 and fp16 are both asked for, or vLLM by one name and not by the other.
    """
    found, notes = dict(settings), []
    for fit in (_precision, _vllm, _optimiser):
        notes += fit(found, recipe, device)
    return found, notes


def _precision(found: dict[str, Any], recipe: Recipe, device: Device) -> list[str]:
    if found.get("bf16") and found.get("fp16"):
        raise RecipeError(
            "grpo.bf16 = True and grpo.fp16 = True",
            rule="activations are computed in one of them",
            remedy="keep one, or neither: it is chosen for the device",
        )
    policy = recipe.policy
    chosen, notes = choose_dtype(policy.dtype, policy.backend, cuda=device.cuda, bf16=device.native_bf16)
    dtype = chosen if policy.dtype else None
    word = next((word for word in ("bf16", "fp16") if found.get(word)), None)
    why = word and _unfit(word, dtype, policy.backend, device)
    if why:
        del found[word]
        if word == "bf16" and device.cuda and policy.backend == "transformers":
            # TRL defaults to bf16 where neither is set, and this GPU only emulates it.
            found["fp16"] = True
            return [*notes, f"bf16 = True becomes fp16 = True: {why}"]
        notes.append(
            f"{word} = True is left out: {why}; computed in: {_computed_in(dtype, found, policy.backend, device)}"
        )
    elif policy.dtype == "float32" and not word and _computed_in(dtype, found, policy.backend, device) == "bfloat16":
        notes.append(
            "policy.dtype = 'float32' is how the weights are kept: on this GPU Unsloth's trainer puts bf16 = True in force and "
            "computes in bfloat16; backend: transformers computes in float32"
        )
    return notes


def _computed_in(dtype: str | None, found: dict[str, Any], backend: str, device: Device) -> str:
    if not device.cuda:
        return "bfloat16 or float32, as the CPU has it" if device.native_bf16 else "float32"
    if backend == "transformers":
        return dtype or ("bfloat16" if device.native_bf16 else "float16")
    chosen = unsloths_choice(dtype, found, bf16=device.native_bf16)
    return "bfloat16" if chosen["bf16"] else "float16" if chosen["fp16"] else "float32"


def _unfit(word: str, dtype: str | None, backend: str, device: Device) -> str | None:
    other = {"bf16": "float16", "fp16": "bfloat16"}[word]
    if word == "bf16" and not device.native_bf16:
        return f"this {'GPU (a T4, for one, computes in float16)' if device.cuda else 'CPU'} only emulates bfloat16"
    if dtype == other:
        return f"policy.dtype = {dtype!r} says otherwise"
    if word == "bf16":
        return None
    if not device.cuda:
        return "float16 is for GPUs"
    if device.native_bf16 and backend == "unsloth" and dtype is None:
        return 'Unsloth loads in bfloat16 on this GPU and refuses float16 beside it (policy.dtype = "float16" for that)'
    return None


def _vllm(found: dict[str, Any], recipe: Recipe, device: Device) -> list[str]:
    if not asks_for_vllm(found, recipe):
        return []
    fast, trls = recipe.policy.fast_inference, bool(found.get("use_vllm"))
    missing = "" if device.vllm else device.no_vllm
    if recipe.policy.backend == "unsloth":
        return _unsloths_vllm(found, recipe, why_not("unsloth", cuda=device.cuda, missing=missing))
    lines = []
    if fast:
        why = why_not(recipe.policy.backend, cuda=device.cuda, missing=missing)
        lines.append(f"policy.fast_inference = True is left out: {why}" + ("" if trls else f"; {COST}"))
    why = missing if device.cuda else "this machine has no GPU"
    if trls and why:
        found["use_vllm"] = False
        lines.append(f"use_vllm = True becomes False: {why}; {COST}")
    return lines


def _unsloths_vllm(found: dict[str, Any], recipe: Recipe, why: str) -> list[str]:
    fast, trls = recipe.policy.fast_inference, bool(found.get("use_vllm"))
    if fast and recipe.grpo.get("use_vllm") is False:
        raise RecipeError(
            "policy.fast_inference = True and grpo.use_vllm = False",
            rule="with Unsloth both say the same: vLLM generates",
            remedy="keep policy.fast_inference, with one of the two values",
        )
    found["use_vllm"] = not why
    asked = " and ".join(name for name, is_asked in (("policy.fast_inference", fast), ("use_vllm", trls)) if is_asked)
    if why:
        return [f"{asked} = True {'become' if fast and trls else 'becomes'} False: {why}; {COST}"]
    lines = []
    if not fast:
        lines.append(
            "use_vllm = True is policy.fast_inference = True with Unsloth: vLLM starts when the model is loaded"
        )
    idle = [name for name in _TRLS_ENGINE if recipe.grpo.get(name) is not None]
    if idle:
        for name in idle:
            del found[name]
        lines.append(
            f"{', '.join(f'{name} = {recipe.grpo[name]!r}' for name in idle)} left out: of an engine that TRL would "
            f"start; Unsloth's has policy.gpu_memory_utilization = {recipe.policy.gpu_memory_utilization:g}"
        )
    return lines


def _gpu_optimiser(settings: dict[str, Any]) -> bool:
    return any(part in str(settings.get("optim", "")) for part in _GPU_ONLY)


def _optimiser(found: dict[str, Any], recipe: Recipe, device: Device) -> list[str]:
    if device.cuda or not _gpu_optimiser(found):
        return []
    asked, found["optim"] = found["optim"], CPU_OPTIMISER
    return [f"optim = {asked!r} becomes {CPU_OPTIMISER!r}: it has no CPU kernels, and an adapter's states are small"]
