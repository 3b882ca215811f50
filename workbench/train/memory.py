"""Will it fit? GPU memory of a recipe, estimated from its configuration alone, before anything is loaded.

A step has two phases. Generation holds the keys and values of the whole generation batch; training holds activations,
log-probabilities and gradients of one `per_device_train_batch_size`. Weights, LoRA and optimiser are there in both, so
the peak is the larger of the two, not their sum. (Scoring the reference sits between them, without gradients, a step's
rows at a time in TRL, and in Unsloth as many as fit: it never decides.)

What is counted exactly, and compared with real objects in tests/train/test_memory.py: weights as bitsandbytes packs
them, LoRA parameters, their gradients, the optimiser's states, keys and values. The rest (activations, log-probabilities,
scratch, the CUDA context, what the allocator cannot use) is an estimate with a low and a high end. The activations of
TRL's own path are compared with what autograd keeps on a CPU. **No part has been compared with any GPU yet**: measure one
step with `measured_peak()` and give it to `calibrate`.

Bytes are bytes; GB is 10^9 of them, as on a card's box. Nothing heavy is imported before a GPU is asked for.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from workbench.run.errors import RecipeError, WorkbenchError
from workbench.run.recipe import Recipe
from workbench.train.parts import (
    PHASES,
    Part,
    Phase,
    Span,
    add,
    around,
    facts_of,
    generation,
    in_gb,
    lasting,
    training,
)
from workbench.train.shapes import ModelShape, shape_of

UNCALIBRATED = "what is not counted exactly is not calibrated against any GPU yet"


class OutOfMemory(WorkbenchError, MemoryError):
    """The GPU's memory did not suffice: with what needed it, and the changes that cost least."""


@dataclass(frozen=True)
class Calibration:
    """What one measured step says about the parts of its phase that are not exact. JSON: `dataclasses.asdict`."""

    phase: Phase
    factor: float  # measured / estimated
    measured_bytes: int
    card: str = ""


@dataclass(frozen=True)
class Change:
    """A change to the recipe that needs less memory."""

    sets: dict[str, Any]  # recipe field -> value: {"grpo.gradient_checkpointing": True}
    cost: str
    rank: int  # 1: costs time only; 2: changes the weights' precision; 3: changes what can be learnt
    saving_bytes: int  # of the peak
    peak: Span
    fits: bool | None

    def __str__(self) -> str:
        asked = ", ".join(f"{name}: {_yaml(value)}" for name, value in self.sets.items())
        return f"{asked} saves about {in_gb(self.saving_bytes)}: {self.cost}"


@dataclass(frozen=True)
class MemoryEstimate:
    """What a recipe needs, by part and phase, against the card."""

    shape: ModelShape
    parts: tuple[Part, ...]
    vram_bytes: int | None  # of the card; None: not known
    sequences: int  # of the generation batch
    rows: int  # that the training phase holds at once
    prompt_tokens: int
    completion_tokens: int
    kernels: str
    calibrated: Calibration | None
    asked: tuple[Recipe, dict[str, Any], dict[str, Any]] = field(repr=False)

    def of(self, phase: Phase) -> tuple[Part, ...]:
        """The parts that are there in a phase, the lasting ones first."""
        return tuple(part for part in self.parts if part.phase in ("always", phase))

    def total(self, phase: Phase) -> Span:
        """Bytes of a phase. Low and high are sums too: every part at its end at once."""
        return add(self.of(phase))

    @property
    def peak_phase(self) -> Phase:
        """The phase that decides."""
        return max(PHASES, key=lambda phase: self.total(phase).bytes)

    @property
    def peak(self) -> Span:
        spans = [self.total(phase) for phase in PHASES]
        return Span(*(max(ends) for ends in zip(*spans, strict=True)))

    @property
    def fits(self) -> bool | None:
        """True or False where both ends agree; None where they do not, or no card is known."""
        if self.vram_bytes is None:
            return None
        if self.peak.high <= self.vram_bytes:
            return True
        return False if self.peak.low > self.vram_bytes else None

    @property
    def verdict(self) -> str:
        """One line: does it fit, and which phase decides."""
        deciding = f"{self.peak_phase} decides"
        if self.vram_bytes is None:
            return f"peak about {self.peak}; {deciding}; no card to compare with"
        word = {True: "fits", False: "does not fit", None: "may not fit" if self._over else "probably fits"}[self.fits]
        return f"{word}: peak about {self.peak} of {in_gb(self.vram_bytes)}; {deciding}"

    def found(self) -> dict[str, Any]:
        """For a manifest or `--json`."""
        return {
            "policy": self.shape.name,
            "parameters": self.shape.parameters,
            "verdict": self.verdict,
            "fits": self.fits,
            "vram_bytes": self.vram_bytes,
            "peak_phase": self.peak_phase,
            "phases": {phase: self.total(phase)._asdict() for phase in PHASES},
            "parts": [dataclasses.asdict(part) for part in self.parts],
            "sequences": self.sequences,
            "rows": self.rows,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "calibration": dataclasses.asdict(self.calibrated) if self.calibrated else None,
        }

    @property
    def _over(self) -> bool:
        return self.vram_bytes is not None and self.peak.bytes > self.vram_bytes

    def __str__(self) -> str:
        lines = [f"{self.shape.name} ({self.kernels}): {self.verdict}"]
        width = max(len(part.name) for part in self.parts)
        for part in self.parts:
            size = in_gb(part.bytes).rjust(9)
            ends = "exact" if part.exact else f"{in_gb(part.low)} to {in_gb(part.high)}"
            lines.append(f"  {' ' if part.exact else '~'}{size}  {part.name.ljust(width)}  {part.phase}, {ends}")
        for phase in PHASES:
            lines.append(f"  {phase}: {self.total(phase)}")
        said = self.calibrated
        lines.append(
            f"  ~ {UNCALIBRATED}"
            if said is None
            else f"  ~ of the {said.phase} phase: scaled by {said.factor:.2f}, as measured"
            + (f" on {said.card}" if said.card else "")
        )
        return "\n".join(lines)


def estimate(
    recipe: Recipe,
    settings: dict[str, Any],
    *,
    shape: ModelShape | None = None,
    longest_prompt_tokens: int | None = None,
    longest_completion_tokens: int | None = None,
    vram_gb: float | None = None,
    calibration: Calibration | None = None,
    device: Literal["cuda", "cpu"] = "cuda",
    adapter_bytes: Literal[2, 4] = 4,
) -> MemoryEstimate:
    """Memory that a recipe needs on one device, by part and phase.

    Parts that are not exact are not calibrated against any GPU yet, unless `calibration` is given.

    Args:
        settings: what `workbench.train.plan.settings` made of the recipe (of a stage: with the stage's own over it).
        shape: the policy's; None: read from its config.json, which may need the hub.
        longest_prompt_tokens: of the task; None: `max_prompt_length`, or else all that `max_seq_length` leaves.
        longest_completion_tokens: of the step to be compared with a measurement; None: `max_completion_length`.
        vram_gb: of the card, in 10^9 bytes (`card()` knows that of this machine); None: no verdict.
        calibration: from `calibrate`.
        device: "cpu" for a CPU, where Unsloth's kernels do not run and no CUDA context is needed.
        adapter_bytes: of a trained parameter, and so of its gradient and moments: 4, float32, as Unsloth and PEFT make
            them; 2 where TRL alone turns the adapter of a 4-bit model into bfloat16.

    Raises:
        PolicyError: if the policy's configuration is not to be had, or its parameters cannot be counted.
        RecipeError: if the batch is impossible, no room is left for a prompt, or vLLM takes a share of an unknown card.
    """
    how = dict(
        longest_prompt_tokens=longest_prompt_tokens,
        longest_completion_tokens=longest_completion_tokens,
        vram_gb=vram_gb,
        calibration=calibration,
        device=device,
        adapter_bytes=adapter_bytes,
    )
    shape = shape or shape_of(recipe.policy.name)
    facts = facts_of(
        recipe, settings, shape, longest_prompt_tokens, longest_completion_tokens, vram_gb, device, adapter_bytes
    )
    parts = [*lasting(facts), *generation(facts), *training(facts)]
    if calibration is not None:
        parts = [_calibrated(part, calibration) for part in parts]
    if device == "cuda":
        parts += around(parts)
    return MemoryEstimate(
        shape=shape,
        parts=tuple(parts),
        vram_bytes=facts.vram_bytes,
        sequences=facts.sequences,
        rows=facts.rows,
        prompt_tokens=facts.prompt,
        completion_tokens=facts.completion,
        kernels="Unsloth's kernels" if facts.kernels == "unsloth" else "PyTorch's operations",
        calibrated=calibration,
        asked=(recipe, settings, {**how, "shape": shape}),
    )


# ----------------------------------------------------------------------------------------------------------- calibration


def measured_peak() -> int | None:
    """Most bytes that torch has had allocated on this GPU since its counter was reset; None without a GPU.

    Reset with `torch.cuda.reset_peak_memory_stats()` before the step that is measured.
    """
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
    """How far the parts that are not exact were off, from the measured peak of one step.

    The factor is for the phase that decides: the peak is its peak. Parts that last, and those that torch's counter does
    not see, are left as they are. For a step whose completions ended early, first make the estimate with that step's
    `longest_prompt_tokens` and `longest_completion_tokens`.

    Args:
        made: an uncalibrated estimate of the measured step.
        measured_peak_bytes: from `measured_peak()`, after at least one whole step.

    Raises:
        RecipeError: if less was measured than the exact parts alone hold.
    """
    if made.calibrated is not None:
        raise RecipeError(
            f"an estimate that is already scaled by {made.calibrated.factor:.2f}",
            rule="a measurement is compared with the uncalibrated estimate",
            remedy="call estimate(...) without calibration, and calibrate that",
        )
    phase = made.peak_phase
    counted = [part for part in made.of(phase) if part.allocated]
    scaled = sum(part.bytes for part in counted if _is_scaled(part, phase))
    fixed = sum(part.bytes for part in counted) - scaled
    if measured_peak_bytes <= fixed or not scaled:
        raise RecipeError(
            f"measured peak {in_gb(measured_peak_bytes)}",
            rule=f"the parts of the {phase} phase that are counted exactly hold {in_gb(fixed)} alone",
            remedy="give the estimate the measured step's longest_prompt_tokens and longest_completion_tokens, "
            "and measure after a whole step",
        )
    return Calibration(phase, (measured_peak_bytes - fixed) / scaled, measured_peak_bytes, card)


def _is_scaled(part: Part, phase: Phase) -> bool:
    return part.phase == phase and part.allocated and not part.exact


def _calibrated(part: Part, said: Calibration) -> Part:
    if not _is_scaled(part, said.phase):
        return part
    size = part.bytes * said.factor
    # One step of one recipe: what it says of another is still a tenth off either way.
    return dataclasses.replace(part, bytes=round(size), low=round(0.9 * size), high=round(1.1 * size))


# --------------------------------------------------------------------------------------------------------------- changes


_Asked = tuple[Recipe, dict[str, Any]]


def _checkpointing(recipe: Recipe, settings: dict[str, Any]) -> dict[str, Any] | None:
    return None if settings.get("gradient_checkpointing") else {"grpo.gradient_checkpointing": True}


def _smaller_steps(recipe: Recipe, settings: dict[str, Any]) -> dict[str, Any] | None:
    rows = settings["per_device_train_batch_size"]
    if rows % 2:
        return None
    sets = {
        "grpo.per_device_train_batch_size": rows // 2,
        "grpo.gradient_accumulation_steps": 2 * settings["gradient_accumulation_steps"],
    }
    if settings.get("steps_per_generation"):
        sets["grpo.steps_per_generation"] = 2 * settings["steps_per_generation"]
    return sets


def _smaller_generation(recipe: Recipe, settings: dict[str, Any]) -> dict[str, Any] | None:
    rows, count = settings["per_device_train_batch_size"], settings["num_generations"]
    batch = settings.get("generation_batch_size")
    if batch:
        return {"grpo.generation_batch_size": batch // 2} if batch % (2 * rows) == 0 else None
    steps = settings.get("steps_per_generation") or settings["gradient_accumulation_steps"]
    if steps % 2 == 0:
        return {"grpo.steps_per_generation": steps // 2}
    if steps == 1 and rows % (2 * count) == 0:
        return {
            "grpo.per_device_train_batch_size": rows // 2,
            "grpo.gradient_accumulation_steps": 2 * settings["gradient_accumulation_steps"],
            "grpo.steps_per_generation": 1,
        }
    return None


def _small_moments(recipe: Recipe, settings: dict[str, Any]) -> dict[str, Any] | None:
    return {"grpo.optim": "adamw_8bit"} if settings.get("optim") in ("adamw_torch", "adamw_torch_fused") else None


def _four_bits(recipe: Recipe, settings: dict[str, Any]) -> dict[str, Any] | None:
    return None if recipe.policy.load_in_4bit else {"policy.load_in_4bit": True}


def _half_rank(recipe: Recipe, settings: dict[str, Any]) -> dict[str, Any] | None:
    return {"lora.r": recipe.lora.r // 2} if recipe.lora.r >= 8 else None


def _half_group(recipe: Recipe, settings: dict[str, Any]) -> dict[str, Any] | None:
    rows, count = settings["per_device_train_batch_size"], settings["num_generations"]
    if count < 8 or count % 2 or rows % 2 or settings.get("generation_batch_size"):
        return None
    return {"grpo.num_generations": count // 2, "grpo.per_device_train_batch_size": rows // 2}


def _half_completion(recipe: Recipe, settings: dict[str, Any]) -> dict[str, Any] | None:
    length = settings["max_completion_length"]
    return {"grpo.max_completion_length": length // 2} if length >= 32 else None


_CHANGES: tuple[tuple[int, Callable[[Recipe, dict], dict[str, Any] | None], str], ...] = (
    (1, _checkpointing, "activations are computed a second time, so training is slower; nothing else changes"),
    (1, _smaller_steps, "the same batch in smaller steps; a little slower"),
    (1, _smaller_generation, "the same batch, generated in two parts; generation is slower"),
    (1, _small_moments, "Adam's moments in 8 bits; the updates are rounded a little"),
    (2, _four_bits, "frozen weights in NF4: a slightly different base, and slower steps"),
    (3, _half_rank, "an adapter of half the rank can learn less"),
    (3, _half_group, "smaller groups: noisier advantages, and more of them dead"),
    (3, _half_completion, "completions that need more tokens are cut, and earn nothing"),
)


def cheapest(made: MemoryEstimate, count: int = 3) -> list[Change]:
    """The changes that cost learning and time least, and save at least 2 % of the peak; each estimated anew by itself.

    First those that cost time only, then precision, then learning; within these, the largest saving first. If the
    cheapest `count` would not suffice even all together and others save more, those are given instead.
    """
    recipe, settings, how = _asked(made)
    found: list[Change] = []
    for rank, change, cost in _CHANGES:
        sets = change(recipe, settings)
        after = _estimated(*_apply(recipe, settings, sets), how) if sets else None
        if sets is None or after is None:
            continue
        saving = made.peak.bytes - after.peak.bytes
        if saving >= 0.02 * made.peak.bytes:
            fits = None if made.vram_bytes is None else after.peak.bytes <= made.vram_bytes
            found.append(Change(sets, cost, rank, saving, after.peak, fits))
    found = [change for change in found if not _is_idle(change, found, 0.02 * made.peak.bytes)]
    found.sort(key=lambda change: (change.rank, -change.saving_bytes))
    chosen = found[:count]
    if made.vram_bytes is not None and len(found) > count:
        together = combined(made, chosen)
        if together.peak.bytes > made.vram_bytes:
            largest = sorted(found, key=lambda change: -change.saving_bytes)[:count]
            chosen = sorted(largest, key=lambda change: (change.rank, -change.saving_bytes))
    return chosen


def _is_idle(change: Change, others: Sequence[Change], least: float) -> bool:
    """Whether a change asks for all that another one does, and more, without saving more."""
    return any(
        change.sets.items() > other.sets.items() and change.saving_bytes < other.saving_bytes + least
        for other in others
    )


def combined(made: MemoryEstimate, changes: Sequence[Change]) -> MemoryEstimate:
    """The estimate with several changes made one after another (halving twice is a quarter).

    A change that the ones before it have made impossible is left out.
    """
    recipe, settings, how = _asked(made)
    makers = {cost: change for _, change, cost in _CHANGES}
    best = made
    for wanted in changes:
        sets = makers[wanted.cost](recipe, settings)
        after = _estimated(*_apply(recipe, settings, sets), how) if sets else None
        if after is not None:
            (recipe, settings), best = _apply(recipe, settings, sets), after
    return best


def _asked(made: MemoryEstimate) -> tuple[Recipe, dict[str, Any], dict[str, Any]]:
    # Shorter completions must not be answered with longer prompts.
    recipe, settings, how = made.asked
    return recipe, settings, {**how, "longest_prompt_tokens": made.prompt_tokens}


def _apply(recipe: Recipe, settings: dict[str, Any], sets: dict[str, Any]) -> _Asked:
    recipe, settings = recipe.model_copy(deep=True), dict(settings)
    for name, value in sets.items():
        part, _, key = name.partition(".")
        if part == "grpo":
            settings[key] = value
        else:
            setattr(getattr(recipe, part), key, value)
    return recipe, settings


def _estimated(recipe: Recipe, settings: dict[str, Any], how: dict[str, Any]) -> MemoryEstimate | None:
    try:
        return estimate(recipe, settings, **how)
    except RecipeError:
        return None  # a batch that cannot be


# --------------------------------------------------------------------------------------------------------- out of memory


def is_oom(error: BaseException | None) -> bool:
    """Whether an error, or one that it came from, says that the GPU's memory did not suffice."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OutOfMemory):
            return True
        names = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
        text = str(error).lower()
        if "torch.OutOfMemoryError" in names or (
            isinstance(error, RuntimeError) and any(w in text for w in _OOM_TEXTS)
        ):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


_OOM_TEXTS = ("cuda out of memory", "cuda error: out of memory", "hip out of memory", "cublas_status_alloc_failed")


def explain_oom(error: BaseException, recipe: Recipe, settings: dict[str, Any], **how: Any) -> OutOfMemory:
    """The error to raise (`raise explain_oom(...) from error`): what did not fit, and the three cheapest changes.

    Never raises: where no estimate can be made, the changes are named without savings.

    Args:
        how: what `estimate` takes beside recipe and settings (`shape`, `longest_prompt_tokens`, `vram_gb`, ...).
    """
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    value = first.split(". GPU ")[0].rstrip(".")
    try:
        made = estimate(recipe, settings, **how)
        changes = cheapest(made)
    except WorkbenchError:
        return OutOfMemory(
            value,
            rule="weights, optimiser and the larger of generation and training fit into the card's memory",
            remedy="set grpo.gradient_checkpointing: true; halve per_device_train_batch_size and double "
            "gradient_accumulation_steps; shorten max_completion_length",
        )
    parts = sorted(made.of(made.peak_phase), key=lambda part: -part.bytes)[:3]
    largest = ", ".join(f"{part.name} {in_gb(part.bytes)}" for part in parts)
    room = "" if made.vram_bytes is None else f" of the card's {in_gb(made.vram_bytes)}"
    rule = f"estimated need about {made.peak}{room}; {made.peak_phase} decides: {largest}"
    if not changes:
        return OutOfMemory(
            value, rule=rule, remedy="no setting saves much: take a smaller policy or a larger card, or free this one"
        )
    lines = [f"\n    - {change}" for change in changes]
    together = combined(made, changes)
    if len(changes) > 1:
        lines.append(f"\n    all together: about {together.peak}")
    if made.vram_bytes is not None and made.fits:
        lines.append("\n    by the estimate it fits: another process may hold memory on this card (nvidia-smi)")
    return OutOfMemory(value, rule=rule, remedy="one or more of these, cheapest first (estimates):" + "".join(lines))


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
