"""Will it fit? GPU memory of a recipe, estimated from its configuration alone, before anything is
loaded.

A step has two phases. Generation holds the keys and values of the whole generation batch; training
holds activations, log-probabilities and gradients of one `per_device_train_batch_size`. Weights,
LoRA and optimiser are there in both, so the peak is the larger of the two, not their sum. (Scoring
the reference, between them and without gradients, never decides.)

Counted exactly: weights, LoRA, its gradients, the optimiser's states, keys and values. The rest
(activations, log-probabilities, scratch, the CUDA context, what the allocator cannot use) is an
estimate with one range for all of it, **compared with one run on one GPU** (benchmarks/gpu): a
run's manifest keeps what its first step measured beside it. GB is 10^9 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from workbench.base.kinds import Fields
from workbench.memory.parts import (
    PHASES,
    Inputs,
    Part,
    Phase,
    Span,
    add,
    always,
    generation,
    in_gb,
    overhead,
    training,
)
from workbench.memory.shapes import ModelShape, shape_of
from workbench.recipe import Recipe

UNCALIBRATED = (
    "not counted exactly; the one run that it was compared with, on an H100, took 9 % less"
)


class MemoryEstimate:
    """What a recipe needs, by part and phase, against the card.

    `peak_phase` decides. `fits` is None where the two ends of the `peak` do not agree, or no card
    is known.
    """

    def __init__(self, inputs: Inputs, parts: Sequence[Part]) -> None:
        self.inputs = inputs
        self.parts = parts
        self.shape = inputs.shape
        self.vram_bytes = card = inputs.vram_bytes  # of the card; None: not known
        self.peak_phase: Phase = max(PHASES, key=lambda phase: self.total(phase).bytes)
        self.peak = Span(*map(max, zip(*map(self.total, PHASES), strict=True)))
        doubtful = card is None or self.peak.low <= card < self.peak.high
        self.fits: bool | None = None if doubtful else self.peak.high <= card

    def of(self, phase: Phase) -> list[Part]:
        """The parts present in a phase, the lasting ones first."""
        return [part for part in self.parts if part.phase in ("always", phase)]

    def total(self, phase: Phase) -> Span:
        """Bytes of a phase, every part at the same end at once."""
        return add(self.of(phase))

    @property
    def verdict(self) -> str:
        """One line: does it fit, and which phase decides."""
        card = self.vram_bytes
        if card is None:
            return f"peak about {self.peak}; {self.peak_phase} decides; no card to compare with"
        doubtful = "may not fit" if self.peak.bytes > card else "probably fits"
        word = {True: "fits", False: "does not fit", None: doubtful}[self.fits]
        return f"{word}: peak about {self.peak} of {in_gb(card)}; {self.peak_phase} decides"

    def found(self) -> Fields:
        """For a manifest or `--json`."""
        inputs = self.inputs
        return {
            "policy": self.shape.name,
            "parameters": self.shape.parameters,
            "verdict": self.verdict,
            "fits": self.fits,
            "vram_bytes": self.vram_bytes,
            "peak_phase": self.peak_phase,
            "phases": {phase: self.total(phase)._asdict() for phase in PHASES},
            "parts": [{**part._asdict(), "exact": part.exact} for part in self.parts],
            "sequences": inputs.sequences,
            "rows": inputs.rows,
            "prompt_tokens": inputs.prompt,
            "completion_tokens": inputs.completion,
        }

    def __str__(self) -> str:
        kernels = "Unsloth's kernels" if self.inputs.unsloth else "PyTorch's operations"
        lines = [f"{self.shape.name} ({kernels}): {self.verdict}"]
        width = max(len(part.name) for part in self.parts)
        for part in self.parts:
            ends = "exact" if part.exact else f"{in_gb(part.low)} to {in_gb(part.high)}"
            size = f"{' ' if part.exact else '~'}{in_gb(part.bytes):>9}"
            lines.append(f"  {size}  {part.name:{width}}  {part.phase}, {ends}")
        lines += [f"  {phase}: {self.total(phase)}" for phase in PHASES]
        return "\n".join([*lines, f"  ~ {UNCALIBRATED}"])


def estimate(
    recipe: Recipe,
    settings: Fields,
    *,
    shape: ModelShape | None = None,
    longest_prompt_tokens: int | None = None,
    vram_gb: float | None = None,
) -> MemoryEstimate:
    """Memory that a recipe needs on one GPU, by part and phase; compared with one run on one GPU.

    Args:
        settings: what GRPOConfig is built from (of a stage: with the stage's own over it).
        shape: the policy's; None: read from its config.json, which may need the hub.
        longest_prompt_tokens: of the task; None: `max_prompt_length`, or else all that
            `max_seq_length` leaves.
        vram_gb: of the card, in 10^9 bytes (a `Machine` has this one's); None: no verdict.

    Raises:
        PolicyError: if the policy's configuration cannot be found, or its parameters cannot be
            counted.
        RecipeError: if vLLM takes a share of an unknown card, or the card has no memory.
    """
    shape = shape or shape_of(recipe.policy.name)
    inputs = Inputs(recipe, settings, shape, longest_prompt_tokens, vram_gb)
    parts = [*always(inputs), *generation(inputs), *training(inputs)]
    return MemoryEstimate(inputs, [*parts, *overhead(parts)])


def measured_peak() -> int | None:
    """Peak bytes that torch has allocated on this GPU since `torch.cuda.reset_peak_memory_stats()`;
    None without a GPU.
    """
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
