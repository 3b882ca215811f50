"""Will it fit? GPU memory of a recipe, estimated from its configuration alone, before anything is loaded.

A step has two phases. Generation holds the keys and values of the whole generation batch; training holds activations,
log-probabilities and gradients of one `per_device_train_batch_size`. Weights, LoRA and optimiser are there in both, so
the peak is the larger of the two, not their sum. (Scoring the reference, between them and without gradients, never decides.)

Counted exactly: weights, LoRA, its gradients, the optimiser's states, keys and values. The rest (activations,
log-probabilities, scratch, the CUDA context, what the allocator cannot use) is an estimate with a low and a high end. **No
part has been compared with any GPU yet**: measure one step with `measured_peak()` and give it to `calibrate`. GB is 10^9 bytes.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.errors import RecipeError
from workbench.memory.parts import PHASES, Inputs, Part, Phase, Span, add, generation, in_gb, overhead, static_parts, training
from workbench.memory.shapes import ModelShape, shape_of
from workbench.recipe import Recipe

UNCALIBRATED = "what is not counted exactly is not calibrated against any GPU yet"


@dataclass(frozen=True)
class Calibration:
    """What one measured step says about the parts of its phase that are not exact."""

    phase: Phase
    factor: float  # measured / estimated
    measured_bytes: int
    card: str = ""


class MemoryEstimate:
    """What a recipe needs, by part and phase, against the card; `how` holds the other arguments of `estimate`.

    `peak_phase` decides. `fits` is None where the two ends of the `peak` do not agree, or no card is known.
    """

    def __init__(self, inputs: Inputs, parts: Sequence[Part], how: dict[str, Any]) -> None:
        self.inputs, self.parts, self.how = inputs, parts, how
        self.shape, self.vram_bytes = inputs.shape, inputs.vram_bytes  # of the card; None: not known
        self.peak_phase: Phase = max(PHASES, key=lambda phase: self.total(phase).bytes)
        self.peak = Span(*map(max, zip(*map(self.total, PHASES), strict=True)))
        certain = self.vram_bytes is not None and not self.peak.low <= self.vram_bytes < self.peak.high
        self.fits: bool | None = self.peak.high <= self.vram_bytes if certain else None

    def of(self, phase: Phase) -> list[Part]:
        """The parts that are there in a phase, the lasting ones first."""
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

    def found(self) -> dict[str, Any]:
        """For a manifest or `--json`."""
        inputs, calibration = self.inputs, self.how["calibration"]
        return {
            "policy": self.shape.name,
            "parameters": self.shape.parameters,
            **{name: getattr(self, name) for name in ("verdict", "fits", "vram_bytes", "peak_phase")},
            "phases": {phase: self.total(phase)._asdict() for phase in PHASES},
            "parts": [dataclasses.asdict(part) for part in self.parts],
            "sequences": inputs.sequences,
            "rows": inputs.rows,
            "prompt_tokens": inputs.prompt,
            "completion_tokens": inputs.completion,
            "calibration": calibration and dataclasses.asdict(calibration),
        }

    def __str__(self) -> str:
        kernels = "Unsloth's kernels" if self.inputs.kernels == "unsloth" else "PyTorch's operations"
        lines = [f"{self.shape.name} ({kernels}): {self.verdict}"]
        width = max(len(part.name) for part in self.parts)
        for part in self.parts:
            mark, ends = (" ", "exact") if part.exact else ("~", f"{in_gb(part.low)} to {in_gb(part.high)}")
            lines.append(f"  {mark}{in_gb(part.bytes).rjust(9)}  {part.name.ljust(width)}  {part.phase}, {ends}")
        lines += [f"  {phase}: {self.total(phase)}" for phase in PHASES]
        note = UNCALIBRATED
        if (measured := self.how["calibration"]) is not None:
            on = f" on {measured.card}" if measured.card else ""
            note = f"of the {measured.phase} phase: scaled by {measured.factor:.2f}, as measured{on}"
        return "\n".join([*lines, f"  ~ {note}"])


def estimate(
    recipe: Recipe,
    settings: dict[str, Any],
    *,
    shape: ModelShape | None = None,
    longest_prompt_tokens: int | None = None,
    vram_gb: float | None = None,
    calibration: Calibration | None = None,
    device: str = "cuda",
) -> MemoryEstimate:
    """Memory that a recipe needs on one device, by part and phase.

    Args:
        settings: what GRPOConfig is built from (of a stage: with the stage's own over it).
        shape: the policy's; None: read from its config.json, which may need the hub.
        longest_prompt_tokens: of the task; None: `max_prompt_length`, or else all that `max_seq_length` leaves.
        vram_gb: of the card, in 10^9 bytes (`card()` knows that of this machine); None: no verdict.
        calibration: from `calibrate`; None: what is not counted exactly is not calibrated against any GPU yet.
        device: "cuda", or "cpu", where Unsloth's kernels do not run and no CUDA context is needed.

    Raises:
        PolicyError: if the policy's configuration cannot be had, or its parameters cannot be counted.
        RecipeError: if the batch is impossible, no room is left for a prompt, or vLLM takes a share of an unknown card.
    """
    shape = shape or shape_of(recipe.policy.name)
    how = dict(shape=shape, longest_prompt_tokens=longest_prompt_tokens, vram_gb=vram_gb, calibration=calibration, device=device)
    inputs = Inputs(recipe, settings, how)
    parts = [*static_parts(inputs), *generation(inputs), *training(inputs)]
    if calibration is not None:
        for place, part in enumerate(parts):
            if _is_scaled(part, calibration.phase):
                # One step of one recipe: what it says of another is still a tenth off either way.
                size = part.bytes * calibration.factor
                parts[place] = dataclasses.replace(part, bytes=round(size), low=round(size * 0.9), high=round(size * 1.1))
    return MemoryEstimate(inputs, parts + overhead(parts) if device == "cuda" else parts, how)


def measured_peak() -> int | None:
    """Most bytes that torch has had allocated on this GPU since `torch.cuda.reset_peak_memory_stats()`; None without a GPU."""
    torch = sys.modules.get("torch")  # what has not been imported has allocated nothing
    return torch.cuda.max_memory_allocated() if torch is not None and torch.cuda.is_available() else None


def card() -> tuple[str, int] | None:
    """(name, total bytes) of this machine's GPU; None without one. Imports torch."""
    import torch

    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return found.name, found.total_memory


def calibrate(made: MemoryEstimate, measured_peak_bytes: int, card: str = "") -> Calibration:
    """How far the parts that are not exact were off, from the `measured_peak()` of one whole step and its uncalibrated estimate.

    The factor is for the phase that decides: the peak is its peak. Parts that last, and those that torch's counter does not
    see, are left as they are. A step whose completions ended early says nothing of whole ones.

    Raises:
        RecipeError: if less was measured than the exact parts alone hold.
    """
    if (before := made.how["calibration"]) is not None:
        value, rule = f"an estimate that is already scaled by {before.factor:.2f}", "only the uncalibrated estimate is calibrated"
        raise RecipeError(value, rule=rule, remedy="call estimate(...) without calibration")
    phase = made.peak_phase
    scaled = sum(part.bytes for part in made.of(phase) if _is_scaled(part, phase))
    fixed = sum(part.bytes for part in made.of(phase) if part.allocated) - scaled
    if measured_peak_bytes <= fixed or not scaled:
        rule = f"the parts of the {phase} phase that are counted exactly hold {in_gb(fixed)} alone"
        remedy = "measure a whole step whose completions are long, and give the estimate its longest_prompt_tokens"
        raise RecipeError(f"measured peak {in_gb(measured_peak_bytes)}", rule=rule, remedy=remedy)
    return Calibration(phase, (measured_peak_bytes - fixed) / scaled, measured_peak_bytes, card)


def _is_scaled(part: Part, phase: Phase) -> bool:
    return part.phase == phase and part.allocated and not part.exact
