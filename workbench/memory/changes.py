"""What to change when it does not fit: the changes that cost least, each with what it is estimated to save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.errors import RecipeError, WorkbenchError
from workbench.memory.estimate import MemoryEstimate, estimate
from workbench.memory.parts import Span, in_gb
from workbench.recipe import Recipe


class OutOfMemory(WorkbenchError, MemoryError):
    """The GPU's memory did not suffice: with what needed it, and the changes that cost least."""


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


def _less_vllm(recipe: Recipe, settings: dict[str, Any]) -> dict[str, Any] | None:
    unsloths = settings.get("use_vllm") and recipe.policy.backend == "unsloth"
    return {"policy.gpu_memory_utilization": recipe.policy.gpu_memory_utilization / 2} if unsloths else None


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
    (1, _less_vllm, "vLLM keeps fewer keys and values, and so generates fewer completions at a time"),
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
