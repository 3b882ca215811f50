"""What to do when memory runs out: at most five hints, cheapest first."""

from __future__ import annotations

import re

from workbench.base.errors import WorkbenchError
from workbench.base.kinds import Fields
from workbench.memory.estimate import MemoryEstimate
from workbench.recipe import Recipe

_OOM = re.compile("(cuda|hip|cuda error:) out of memory|cublas_status_alloc_failed", re.I)


class OutOfMemory(WorkbenchError, MemoryError):
    """The GPU ran out of memory: what helps."""


def hints(recipe: Recipe, settings: Fields) -> list[str]:
    """What saves memory, cheapest first: at the cost of time, then of precision, then of learning;
    only what is left to do.
    """
    policy, rows = recipe.policy, settings["per_device_train_batch_size"]
    left = {
        "grpo.gradient_checkpointing: true (slower; the same gradients)": not settings.get(
            "gradient_checkpointing"
        ),
        "half of grpo.per_device_train_batch_size with twice grpo.gradient_accumulation_steps"
        " (and twice grpo.steps_per_generation, if you set it): the same batch in smaller"
        " steps; slower": rows % 2 == 0,
        "a lower policy.gpu_memory_utilization: vLLM generates fewer completions at a"
        " time": settings.get("use_vllm") and policy.backend == "unsloth",
        "policy.load_in_4bit: true (a slightly different base, and slower"
        " steps)": not policy.load_in_4bit,
        "a lower grpo.max_completion_length (longer completions are cut off and earn nothing) or"
        " grpo.num_generations (noisier advantages, more dead groups)": True,
    }
    return [hint for hint, helps in left.items() if helps]


def is_oom(error: BaseException | None) -> bool:
    """Whether an error, or its cause, says that the GPU ran out of memory."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        named = type(error).__name__ in ("OutOfMemory", "OutOfMemoryError")
        if named or (isinstance(error, RuntimeError) and _OOM.search(str(error))):
            return True
        seen.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def explain_oom(
    error: BaseException, recipe: Recipe, settings: Fields, estimated: MemoryEstimate | None = None
) -> OutOfMemory:
    """The error to raise (`raise explain_oom(...) from error`): what did not fit, and what helps,
    cheapest first. `estimated`: what was estimated before.
    """
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    rule = "weights, optimiser and the larger of generation and training fit into the card's memory"
    lines = [f"- {hint}" for hint in hints(recipe, settings)]
    if estimated is not None:
        rule += f"; by the estimate it {estimated.verdict}"
        if estimated.fits:
            lines.append("another process may hold memory on this card (nvidia-smi)")
    return OutOfMemory(
        first.split(". GPU ")[0].rstrip("."),
        rule=rule,
        remedy="\n    ".join(["one or more of these, cheapest first:", *lines]),
    )
