"""Settings that depend on the machine: precision, vLLM and the optimiser, each kept, or changed
with a line.

vLLM through Unsloth (`policy.fast_inference: true`) is switched on when the model is loaded: it
takes its share of the GPU, holds the frozen weights in it, and Unsloth trains on the very same
ones. The workbench has not run any of this yet: there was no GPU with vLLM to run it on.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from importlib import metadata
from typing import NamedTuple

from workbench.base.cache import kept
from workbench.base.errors import RecipeError
from workbench.base.kinds import Fields
from workbench.recipe import Recipe
from workbench.training.plan.precision import choose_dtype, native_bf16, unsloths_choice

NOT_INSTALLED = "vLLM is not installed here"
# trl#3162; other published figures go from 14 times as fast (unsloth#5108) to 40 % slower
# (unsloth#3457).
PUBLISHED = (
    "published, and not measured by the workbench: about twice as fast with vLLM beside the trainer"
    " (trl#3162)"
)
COST = f"the trainer's own model generates, slower as a rule ({PUBLISHED})"
NOT_IN_FORCE = "fast_inference = True becomes False: "  # how a loaded policy's note begins
CPU_OPTIMISER = "adamw_torch_fused"
# bitsandbytes' 8-bit and paged optimisers, and Apex's, have no CPU kernels.
_GPU_ONLY = ("8bit", "paged", "bnb", "apex")
# Of the engine that TRL would start; Unsloth's is started when the model is loaded, and knows
# nothing of them.
_TRLS_ENGINE = (
    "vllm_mode", "vllm_model_impl", "vllm_gpu_memory_utilization", "vllm_max_model_length",
    "vllm_tensor_parallel_size",
    "vllm_enable_sleep_mode", "vllm_server_base_url", "vllm_server_host", "vllm_server_port",
    "vllm_server_timeout",
)  # fmt: skip


class Machine(NamedTuple):
    """What settings depend on: looked up once, or given for another machine."""

    cuda: bool
    bf16: bool  # computed natively, without emulation
    vllm: bool = False  # whether it can be imported
    no_vllm: str = NOT_INSTALLED  # the reason, where it cannot
    card_gb: float | None = None  # memory of the GPU, in 10^9 bytes
    gpus: int = 0

    @classmethod
    def here(cls, *, for_vllm: bool = False) -> Machine:
        """This machine. Imports torch, and with `for_vllm` vLLM where there is a GPU for it."""
        return _machine(for_vllm)


@kept
def _machine(for_vllm: bool) -> Machine:
    import torch

    cuda = torch.cuda.is_available()
    reason = missing(imports=for_vllm and cuda)
    card_gb = torch.cuda.get_device_properties(0).total_memory / 1e9 if cuda else None
    return Machine(cuda, native_bf16(), not reason, reason, card_gb, torch.cuda.device_count())


def asks_for_vllm(settings: Fields, recipe: Recipe) -> bool:
    """Whether vLLM should generate, under either of its names."""
    return bool(settings.get("use_vllm") or recipe.policy.fast_inference)


def fitted(settings: Fields, recipe: Recipe, machine: Machine) -> tuple[Fields, list[str]]:
    """(settings that this device can train with, a line for each that differs from the request);
    RecipeError where they clash.
    """
    settings = dict(settings)
    notes = _precision(settings, recipe, machine) + _vllm(settings, recipe, machine)
    if not machine.cuda and settings.pop("tf32", False):
        notes.append("tf32 = True is left out: it is for GPUs")
    asked = str(settings.get("optim"))
    if not machine.cuda and any(part in asked for part in _GPU_ONLY):
        settings["optim"] = CPU_OPTIMISER
        notes.append(
            f"optim = {asked!r} becomes {CPU_OPTIMISER!r}: it has no CPU kernels, and an adapter's"
            " states are small"
        )
    return settings, notes


def _precision(settings: Fields, recipe: Recipe, machine: Machine) -> list[str]:
    if settings.get("bf16") and settings.get("fp16"):
        raise RecipeError(
            "grpo.bf16 = True and grpo.fp16 = True",
            rule="activations are computed in one of them",
            remedy="keep one, or neither: it is chosen for the device",
        )
    policy, cuda, bf16 = recipe.policy, machine.cuda, machine.bf16
    chosen, notes = choose_dtype(policy.dtype, policy.backend, cuda=cuda, bf16=bf16)
    dtype = chosen if policy.dtype else None
    word = next((word for word in ("bf16", "fp16") if settings.get(word)), "")
    why = _refusal(word, policy.backend, dtype, machine)
    if why:
        del settings[word]
    computed = chosen if cuda else "bfloat16 or float32, as the CPU has it" if bf16 else "float32"
    sets: Fields = {}
    if cuda and policy.backend == "unsloth":
        sets = unsloths_choice(dtype, settings, bf16=bf16)
        computed = "bfloat16" if sets["bf16"] else "float16" if sets["fp16"] else "float32"
    if why and word == "bf16" and cuda and not sets:
        # TRL defaults to bf16 where neither is set, and this GPU only emulates it.
        settings["fp16"] = True
        notes.append(f"bf16 = True becomes fp16 = True: {why}")
    elif why:
        notes.append(f"{word} = True is left out: {why}; computed in: {computed}")
    elif policy.dtype == "float32" and not word and sets.get("bf16"):
        notes.append(
            "policy.dtype = 'float32' is how the weights are kept: on this GPU Unsloth's trainer"
            " sets bf16 = True and computes in bfloat16; backend: transformers computes in float32"
        )
    return notes


def _refusal(word: str, backend: str, dtype: str | None, machine: Machine) -> str:
    # Why `word` ("bf16", "fp16", or neither) cannot be set here; empty if it can.
    if word == "bf16" and not machine.bf16:
        device = "GPU (a T4, for one, computes in float16)" if machine.cuda else "CPU"
        return f"this {device} only emulates bfloat16"
    if word and dtype == {"bf16": "float16", "fp16": "bfloat16"}[word]:
        return f"policy.dtype = {dtype!r} says otherwise"
    if word == "fp16" and not machine.cuda:
        return "float16 is for GPUs"
    if word == "fp16" and machine.bf16 and backend == "unsloth" and dtype is None:
        return (
            "Unsloth loads in bfloat16 on this GPU and refuses float16 beside it (policy.dtype ="
            ' "float16" for that)'
        )
    return ""


def _vllm(settings: Fields, recipe: Recipe, machine: Machine) -> list[str]:
    fast, trls = recipe.policy.fast_inference, bool(settings.get("use_vllm"))
    if not (fast or trls):
        return []
    missing = "" if machine.vllm else machine.no_vllm
    why = why_not(recipe.policy.backend, cuda=machine.cuda, missing=missing)
    lines = []
    if recipe.policy.backend == "transformers":
        if fast:
            cost = "" if trls else f"; {COST}"
            lines.append(f"policy.fast_inference = True is left out: {why}{cost}")
        why = why_not("unsloth", cuda=machine.cuda, missing=missing)
        if trls and why:
            settings["use_vllm"] = False
            lines.append(f"use_vllm = True becomes False: {why}; {COST}")
        return lines
    if fast and recipe.grpo.get("use_vllm") is False:
        raise RecipeError(
            "policy.fast_inference = True and grpo.use_vllm = False",
            rule="with Unsloth both say the same: vLLM generates",
            remedy="keep policy.fast_inference, with one of the two values",
        )
    settings["use_vllm"] = not why
    if why:
        asked = " and ".join(["policy.fast_inference"] * fast + ["use_vllm"] * trls)
        return [f"{asked} = True {'become' if fast and trls else 'becomes'} False: {why}; {COST}"]
    if not fast:
        lines.append(
            "use_vllm = True is policy.fast_inference = True with Unsloth: vLLM starts when the"
            " model is loaded"
        )
    idle = [name for name in _TRLS_ENGINE if recipe.grpo.get(name) is not None]
    if idle:
        values = ", ".join(f"{name} = {settings.pop(name)!r}" for name in idle)
        lines.append(
            f"{values} left out: of an engine that TRL would start; Unsloth's has"
            f" policy.gpu_memory_utilization = {recipe.policy.gpu_memory_utilization:g}"
        )
    return lines


def missing(*, imports: bool = False) -> str:
    """Why vLLM cannot be used in this process; empty if it can, as far as was checked.

    It is only looked for, unless `imports` is set: importing it takes seconds and finds what an
    installed one lacks.
    """
    installed = False
    with contextlib.suppress(ImportError, ValueError):
        installed = importlib.util.find_spec("vllm") is not None
    if installed:
        try:
            if imports:
                importlib.import_module("vllm")
        except Exception as error:
            # a library of another CUDA is an ImportError, an OSError or a RuntimeError
            reason = f"{type(error).__name__}: {_first_line(error)}"
            return f"vLLM is installed, and its import fails ({reason})"
        return ""
    # Unsloth hides a vLLM whose compiled parts do not load, so that it looks as if it were not
    # installed.
    try:
        version = metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED
    reason = getattr(sys.modules.get("unsloth.import_fixes"), "VLLM_DISABLED_REASON", None)
    why = f" ({_first_line(reason)})" if reason else ""
    return f"vLLM {version} is installed, and cannot be imported{why}"


def _first_line(said: object) -> str:
    return (str(said).strip().splitlines() or ["no reason given"])[0]


def why_not(backend: str, *, cuda: bool, missing: str) -> str:
    """Why a policy cannot be loaded with `fast_inference`; empty if it can. `missing` is what the
    function `missing` says.
    """
    if backend != "unsloth":
        return (
            "it is Unsloth's, and the backend is transformers (grpo.use_vllm: true is TRL's own"
            " vLLM)"
        )
    return missing if cuda else "this machine has no GPU"
