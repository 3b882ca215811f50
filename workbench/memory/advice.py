"""What to do about memory: gradient checkpointing before a run, and five hints when it ran out.

Checkpointing (less memory, the same gradients, more time) is chosen by the high end of the training
phase alone: a run that is a little slower is better than one that dies in its third hour, when the
completions have grown long.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from workbench.errors import WorkbenchError
from workbench.kinds import Fields
from workbench.memory.estimate import MemoryEstimate, estimate
from workbench.memory.parts import GB, Span, in_gb
from workbench.recipe import Recipe

_OOM = re.compile("(cuda|hip|cuda error:) out of memory|cublas_status_alloc_failed", re.I)


class OutOfMemory(WorkbenchError, MemoryError):
    """The GPU ran out of memory: what helps."""


def hints(recipe: Recipe, settings: Fields) -> list[str]:
    """What saves memory, cheapest first: at the cost of time, then of precision, then of learning;
    only what is left to do.
    """
    lines = []
    if not settings.get("gradient_checkpointing"):
        lines.append("grpo.gradient_checkpointing: true (slower; the same gradients)")
    if settings["per_device_train_batch_size"] % 2 == 0:
        lines.append(
            "half of grpo.per_device_train_batch_size with twice grpo.gradient_accumulation_steps"
            " (and twice grpo.steps_per_generation, if you set it): the same batch in smaller"
            " steps; slower"
        )
    if settings.get("use_vllm") and recipe.policy.backend == "unsloth":
        lines.append(
            "a lower policy.gpu_memory_utilization: vLLM generates fewer completions at a time"
        )
    if not recipe.policy.load_in_4bit:
        lines.append("policy.load_in_4bit: true (a slightly different base, and slower steps)")
    return [
        *lines,
        "a lower grpo.max_completion_length (longer completions are cut off and earn nothing) or"
        " grpo.num_generations (noisier advantages, more dead groups)",
    ]


def is_oom(error: BaseException | None) -> bool:
    """Whether an error, or its cause, says that the GPU ran out of memory."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OutOfMemory) or type(error).__name__ == "OutOfMemoryError":
            return True
        if isinstance(error, RuntimeError) and _OOM.search(str(error)):
            return True
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
    lines = ["one or more of these, cheapest first:"]
    lines += [f"- {hint}" for hint in hints(recipe, settings)]
    if estimated is not None:
        rule += f"; by the estimate it {estimated.verdict}"
        if estimated.fits:
            lines.append("another process may hold memory on this card (nvidia-smi)")
    remedy = "\n    ".join(lines)
    return OutOfMemory(first.split(". GPU ")[0].rstrip("."), rule=rule, remedy=remedy)


class Trained(NamedTuple):
    """The unit of training: a run, or one stage of it."""

    recipe: Recipe
    settings: Fields  # as GRPOConfig would get them
    longest_prompt_tokens: int | None  # None: as long as the recipe lets them be


def choose_checkpointing(trained: Sequence[Trained], vram_gb: float) -> tuple[bool, str]:
    """Whether to checkpoint a run on a card of `vram_gb`, and the line that says so; empty where
    there is nothing to say.

    On if one of its stages needs it. Off also where no estimate can be made.
    """
    room = round(vram_gb * GB)
    without, checkpointed = _largest(trained, vram_gb)
    if without.high > room and checkpointed.high < without.high:
        both = "" if checkpointed.high <= room else ", which may be too much all the same"
        return True, (
            f"gradient_checkpointing = True, by the memory estimate: training takes {without}"
            f" without it, and the card has {in_gb(room)}; with it {checkpointed}{both}. It is"
            " slower; grpo.gradient_checkpointing overrides this"
        )
    if without.high <= 0.9 * room:  # nearer to the card's limit, the choice comes with a warning
        return False, ""
    return False, (
        f"gradient_checkpointing stays off: training takes {without} of the card's {in_gb(room)} by"
        " the estimate, which leaves little room; if memory runs out,"
        " grpo.gradient_checkpointing: true"
    )


def idle_checkpointing(trained: Sequence[Trained], vram_gb: float) -> str:
    """One line where the recipe asks for checkpointing and training fits on the card without it;
    else empty.
    """
    room = round(vram_gb * GB)
    without, _ = _largest(trained, vram_gb)
    wanted = all(one.recipe.grpo.get("gradient_checkpointing") is True for one in trained)
    if not wanted or not 0 < without.high <= room:
        return ""
    return (
        f"gradient_checkpointing = True, and by the estimate training fits without it ({without} of"
        f" {in_gb(room)}); off is faster (benchmarks/README.md says by how much on a CPU; it was"
        " measured on no GPU)"
    )


def _largest(trained: Sequence[Trained], vram_gb: float) -> tuple[Span, Span]:
    """The training phase (without, with) of the stage that needs most; of no bytes if one cannot be
    estimated.
    """

    def training(one: Trained, on: bool) -> Span:
        settings = {**one.settings, "gradient_checkpointing": on}
        prompt = one.longest_prompt_tokens
        made = estimate(one.recipe, settings, longest_prompt_tokens=prompt, vram_gb=vram_gb)
        return made.total("training")

    try:
        both = [(training(one, False), training(one, True)) for one in trained]
    except (WorkbenchError, ValueError):
        both = [(Span(0, 0, 0), Span(0, 0, 0))]
    return max(both, key=lambda spans: spans[0].high)
