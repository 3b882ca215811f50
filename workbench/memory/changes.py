"""What to change when it does not fit: the changes that cost least, each with what it is estimated to save.

And gradient checkpointing (less memory, the same gradients, more time), chosen by the high end of the training phase alone: a
run that is a little slower is better than one that ends in its third hour, when the completions have grown long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from workbench.errors import RecipeError, WorkbenchError
from workbench.memory.estimate import MemoryEstimate, estimate
from workbench.memory.parts import GB, Span, in_gb
from workbench.recipe import Recipe

_LEAST = 0.02  # of the peak: what a change saves at least
_OOM_TEXTS = ("cuda out of memory", "cuda error: out of memory", "hip out of memory", "cublas_status_alloc_failed")


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

    def __str__(self) -> str:
        asked = ", ".join(f"{name}: {str(own).lower() if isinstance(own, bool) else own}" for name, own in self.sets.items())
        return f"{asked} saves about {in_gb(self.saving_bytes)}: {self.cost}"


def _changes(recipe: Recipe, settings: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any], str]]:
    """(rank, what it sets, cost) of each change that this recipe leaves open."""
    policy = recipe.policy
    rows, group, length = (settings[name] for name in ("per_device_train_batch_size", "num_generations", "max_completion_length"))
    batch, steps = settings.get("generation_batch_size"), settings.get("steps_per_generation")
    accumulated = settings.get("gradient_accumulation_steps")
    generated = steps or accumulated
    half = {"grpo.per_device_train_batch_size": rows // 2, "grpo.gradient_accumulation_steps": 2 * accumulated}
    if not settings.get("gradient_checkpointing"):
        yield 1, {"grpo.gradient_checkpointing": True}, "activations are computed a second time: slower, and nothing else changes"
    if rows % 2 == 0:
        more = {"grpo.steps_per_generation": 2 * steps} if steps else {}
        yield 1, half | more, "the same batch in smaller steps; a little slower"
    parts: dict[str, Any] = {}
    if batch:
        parts = {"grpo.generation_batch_size": batch // 2} if batch % (2 * rows) == 0 else {}
    elif generated % 2 == 0:
        parts = {"grpo.steps_per_generation": generated // 2}
    elif generated == 1 and rows % (2 * group) == 0:
        parts = half | {"grpo.steps_per_generation": 1}
    if parts:
        yield 1, parts, "the same batch, generated in two parts; generation is slower"
    if settings.get("optim") in ("adamw_torch", "adamw_torch_fused"):
        yield 1, {"grpo.optim": "adamw_8bit"}, "Adam's moments in 8 bits; the updates are rounded a little"
    if settings.get("use_vllm") and policy.backend == "unsloth":
        cost = "vLLM keeps fewer keys and values, and so generates fewer completions at a time"
        yield 1, {"policy.gpu_memory_utilization": policy.gpu_memory_utilization / 2}, cost
    if not policy.load_in_4bit:
        yield 2, {"policy.load_in_4bit": True}, "frozen weights in NF4: a slightly different base, and slower steps"
    if recipe.lora.r >= 8:
        yield 3, {"lora.r": recipe.lora.r // 2}, "an adapter of half the rank can learn less"
    if group >= 8 and group % 2 == rows % 2 == 0 and not batch:
        sets = {"grpo.num_generations": group // 2, "grpo.per_device_train_batch_size": rows // 2}
        yield 3, sets, "smaller groups: noisier advantages, and more of them dead"
    if length >= 32:
        yield 3, {"grpo.max_completion_length": length // 2}, "completions that need more tokens are cut, and earn nothing"


def cheapest(made: MemoryEstimate, count: int = 3) -> list[Change]:
    """The changes that cost learning and time least, and save at least 2 % of the peak; each estimated anew by itself.

    First those that cost time only, then precision, then learning; within these, the largest saving first. If the
    cheapest `count` would not suffice even all together and others save more, those are given instead.
    """
    least, card, possible = _LEAST * made.peak.bytes, made.vram_bytes, []
    for rank, sets, cost in _changes(made.inputs.recipe, made.inputs.settings):
        after = changed(made, sets)
        if after is not None and (saving := made.peak.bytes - after.peak.bytes) >= least:
            possible.append(Change(sets, cost, rank, saving, after.peak))

    def idle(one: Change) -> bool:  # it asks for all that another does, and more, without saving more
        return any(one.sets.items() > own.sets.items() and one.saving_bytes < own.saving_bytes + least for own in possible)

    found = sorted((one for one in possible if not idle(one)), key=lambda one: (one.rank, -one.saving_bytes))
    if card is not None and len(found) > count and combined(made, found[:count]).peak.bytes > card:
        largest = sorted(found, key=lambda change: -change.saving_bytes)[:count]
        return [change for change in found if change in largest]
    return found[:count]


def combined(made: MemoryEstimate, changes: Sequence[Change]) -> MemoryEstimate:
    """The estimate with several changes made one after another (halving twice is a quarter).

    A change that the ones before it have made impossible is left out.
    """
    for wanted in changes:
        again = {cost: sets for _, sets, cost in _changes(made.inputs.recipe, made.inputs.settings)}
        made = (wanted.cost in again and changed(made, again[wanted.cost])) or made
    return made


def changed(made: MemoryEstimate, sets: dict[str, Any]) -> MemoryEstimate | None:
    """The estimate with recipe fields set otherwise; None for a batch that cannot be."""
    recipe, settings = made.inputs.recipe.model_copy(deep=True), dict(made.inputs.settings)
    for name, value in sets.items():
        part, _, key = name.partition(".")
        if part == "grpo":
            settings[key] = value
        else:
            setattr(getattr(recipe, part), key, value)
    try:
        # Shorter completions must not be answered with longer prompts.
        return estimate(recipe, settings, **{**made.how, "longest_prompt_tokens": made.inputs.prompt})
    except RecipeError:
        return None


def is_oom(error: BaseException | None) -> bool:
    """Whether an error, or one that it came from, says that the GPU's memory did not suffice."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        names = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
        said = isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _OOM_TEXTS)
        if said or isinstance(error, OutOfMemory) or "torch.OutOfMemoryError" in names:
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def explain_oom(error: BaseException, recipe: Recipe, settings: dict[str, Any], **how: Any) -> OutOfMemory:
    """The error to raise (`raise explain_oom(...) from error`): what did not fit, and the three cheapest changes.

    Never raises: where no estimate can be made, the changes are named without savings. `how`: the other arguments of `estimate`.
    """
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    value = first.split(". GPU ")[0].rstrip(".")
    try:
        made = estimate(recipe, settings, **how)
        changes = cheapest(made)
    except WorkbenchError:
        rule = "weights, optimiser and the larger of generation and training fit into the card's memory"
        remedy = (
            "set grpo.gradient_checkpointing: true; halve per_device_train_batch_size and double "
            "gradient_accumulation_steps; shorten max_completion_length"
        )
        return OutOfMemory(value, rule=rule, remedy=remedy)
    parts = sorted(made.of(made.peak_phase), key=lambda part: -part.bytes)[:3]
    largest = ", ".join(f"{part.name} {in_gb(part.bytes)}" for part in parts)
    room = "" if made.vram_bytes is None else f" of the card's {in_gb(made.vram_bytes)}"
    lines = [f"- {change}" for change in changes]
    if len(changes) > 1:
        lines.append(f"all together: about {combined(made, changes).peak}")
    if changes and made.fits:
        lines.append("by the estimate it fits: another process may hold memory on this card (nvidia-smi)")
    remedy = "no setting saves much: take a smaller policy or a larger card, or free this one"
    if changes:
        remedy = "\n    ".join(["one or more of these, cheapest first (estimates):", *lines])
    return OutOfMemory(value, rule=f"estimated need about {made.peak}{room}; {made.peak_phase} decides: {largest}", remedy=remedy)


class Trained(NamedTuple):
    """What is trained at a time: a run, or one stage of it."""

    recipe: Recipe
    settings: dict[str, Any]  # as GRPOConfig would get them
    longest_prompt_tokens: int | None  # None: as long as the recipe lets them be


def choose_checkpointing(trained: Sequence[Trained], vram_gb: float) -> tuple[bool, str]:
    """Whether to checkpoint a run on a card of so many GB, and the line that says so; empty where there is nothing to say.

    On if one of its stages needs it. Off also where no estimate can be made.
    """
    without, checkpointed = _largest(trained, vram_gb) or (Span(0, 0, 0), Span(0, 0, 0))
    room = round(vram_gb * GB)
    if without.high > room and checkpointed.high < without.high:
        both = "" if checkpointed.high <= room else ", which may be too much all the same"
        return True, (
            f"gradient_checkpointing = True, by the memory estimate: training takes {without} without it, and the card has "
            f"{in_gb(room)}; with it {checkpointed}{both}. It is slower; grpo.gradient_checkpointing overrides this"
        )
    if without.high <= 0.9 * room:  # nearer to the card's limit, the choice comes with a warning
        return False, ""
    return False, (
        f"gradient_checkpointing stays off: training takes {without} of the card's {in_gb(room)} by the estimate, which "
        "leaves little room; if memory runs out, grpo.gradient_checkpointing: true"
    )


def idle_checkpointing(trained: Sequence[Trained], vram_gb: float) -> str:
    """One line where the recipe asks for checkpointing and training fits without it on a card of so many GB; else empty."""
    asked = all(one.recipe.grpo.get("gradient_checkpointing") is True for one in trained)
    found, room = _largest(trained, vram_gb) if asked else None, round(vram_gb * GB)
    if found is None or found[0].high > room:
        return ""
    return (
        f"gradient_checkpointing = True, and by the estimate training fits without it ({found[0]} of {in_gb(room)}); off is "
        "faster (benchmarks/README.md says by how much on a CPU; it was measured on no GPU)"
    )


def _largest(trained: Sequence[Trained], vram_gb: float) -> tuple[Span, Span] | None:
    """The training phase (without, with) of the stage that needs most; None if one cannot be estimated."""

    def training(one: Trained, on: bool) -> Span:
        settings = {**one.settings, "gradient_checkpointing": on}
        made = estimate(one.recipe, settings, longest_prompt_tokens=one.longest_prompt_tokens, vram_gb=vram_gb)
        return made.total("training")

    try:
        return max([(training(one, False), training(one, True)) for one in trained], key=lambda spans: spans[0].high)
    except (WorkbenchError, ValueError):
        return None
