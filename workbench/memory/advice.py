"""What to do about memory: gradient checkpointing before a run, and five hints when it ran out.

Checkpointing (less memory, the same gradients, more time) is chosen by the high end of the training
phase alone: a run that is a little slower is better than one that dies in its third hour, when the
completions have grown long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from workbench.errors import WorkbenchError
from workbench.kinds import Fields
from workbench.memory.estimate import estimate
from workbench.memory.parts import GB, Span, in_gb
from workbench.recipe import Recipe

_OOM_TEXTS = (
    "cuda out of memory",
    "cuda error: out of memory",
    "hip out of memory",
    "cublas_status_alloc_failed",
)


class OutOfMemory(WorkbenchError, MemoryError):
    """The GPU ran out of memory: what needed it, and what helps."""


def hints(recipe: Recipe, settings: Fields) -> list[str]:
    """What saves memory, cheapest first: at the cost of time, then of precision, then of learning;
    only what is left to do.
    """
    every = [
        (
            not settings.get("gradient_checkpointing"),
            "grpo.gradient_checkpointing: true (slower; the same gradients)",
        ),
        (
            settings["per_device_train_batch_size"] % 2 == 0,
            (
                "half of grpo.per_device_train_batch_size with twice"
                " grpo.gradient_accumulation_steps (and twice grpo.steps_per_generation, if you set"
                " it): the same batch in smaller steps; slower"
            ),
        ),
        (
            bool(settings.get("use_vllm")) and recipe.policy.backend == "unsloth",
            "a lower policy.gpu_memory_utilization: vLLM generates fewer completions at a time",
        ),
        (
            not recipe.policy.load_in_4bit,
            "policy.load_in_4bit: true (a slightly different base, and slower steps)",
        ),
        (
            True,
            (
                "a lower grpo.max_completion_length (longer completions are cut off and earn"
                " nothing) or grpo.num_generations (noisier advantages, more dead groups)"
            ),
        ),
    ]
    return [hint for helps, hint in every if helps]


def is_oom(error: BaseException | None) -> bool:
    """Whether an error, or its cause, says that the GPU ran out of memory."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        names = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
        said = isinstance(error, RuntimeError) and any(
            text in str(error).lower() for text in _OOM_TEXTS
        )
        if said or isinstance(error, OutOfMemory) or "torch.OutOfMemoryError" in names:
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def explain_oom(error: BaseException, recipe: Recipe, settings: Fields, **how: Any) -> OutOfMemory:
    """The error to raise (`raise explain_oom(...) from error`): what did not fit, and what helps,
    cheapest first.

    Never raises: where no estimate can be made, the rule names no sizes. `how`: the other arguments
    of `estimate`.
    """
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    lines = [f"- {hint}" for hint in hints(recipe, settings)]
    rule = "weights, optimiser and the larger of generation and training fit into the card's memory"
    try:
        estimated = estimate(recipe, settings, **how)
    except WorkbenchError:
        estimated = None
    if estimated is not None:
        parts = sorted(estimated.of(estimated.peak_phase), key=lambda part: -part.bytes)[:3]
        largest = ", ".join(f"{part.name} {in_gb(part.bytes)}" for part in parts)
        room = (
            "" if estimated.vram_bytes is None else f" of the card's {in_gb(estimated.vram_bytes)}"
        )
        rule = (
            f"estimated need about {estimated.peak}{room}; {estimated.peak_phase} decides:"
            f" {largest}"
        )
        if estimated.fits:
            lines.append(
                "by the estimate it fits: another process may hold memory on this card (nvidia-smi)"
            )
    remedy = "\n    ".join(["one or more of these, cheapest first:", *lines])
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
    needs = _largest(trained, vram_gb)
    if needs is None:
        return False, ""
    without, checkpointed = needs
    room = round(vram_gb * GB)
    if without.high > room and checkpointed.high < without.high:
        both = "" if checkpointed.high <= room else ", which may be too much all the same"
        return (
            True,
            (
                f"gradient_checkpointing = True, by the memory estimate: training takes {without}"
                f" without it, and the card has {in_gb(room)}; with it {checkpointed}{both}. It is"
                " slower; grpo.gradient_checkpointing overrides this"
            ),
        )
    if without.high <= 0.9 * room:  # nearer to the card's limit, the choice comes with a warning
        return False, ""
    return (
        False,
        (
            f"gradient_checkpointing stays off: training takes {without} of the card's"
            f" {in_gb(room)} by the estimate, which leaves little room; if memory runs out,"
            " grpo.gradient_checkpointing: true"
        ),
    )


def idle_checkpointing(trained: Sequence[Trained], vram_gb: float) -> str:
    """One line where the recipe asks for checkpointing and training fits on the card without it;
    else empty.
    """
    asked = all(one.recipe.grpo.get("gradient_checkpointing") is True for one in trained)
    needs = _largest(trained, vram_gb) if asked else None
    room = round(vram_gb * GB)
    if needs is None or needs[0].high > room:
        return ""
    return (
        f"gradient_checkpointing = True, and by the estimate training fits without it ({needs[0]}"
        f" of {in_gb(room)}); off is faster (benchmarks/README.md says by how much on a CPU; it was"
        " measured on no GPU)"
    )


def _largest(trained: Sequence[Trained], vram_gb: float) -> tuple[Span, Span] | None:
    """The training phase (without, with) of the stage that needs most; None if one cannot be
    estimated.
    """

    def training(one: Trained, on: bool) -> Span:
        settings = {**one.settings, "gradient_checkpointing": on}
        made = estimate(
            one.recipe, settings, longest_prompt_tokens=one.longest_prompt_tokens, vram_gb=vram_gb
        )
        return made.total("training")

    try:
        return max(
            [(training(one, False), training(one, True)) for one in trained],
            key=lambda spans: spans[0].high,
        )
    except (WorkbenchError, ValueError):
        return None
