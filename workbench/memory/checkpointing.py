"""Gradient checkpointing by the memory estimate: off where training fits without it, on where it may fit only with it.

With it a layer's values are computed a second time in the backward pass instead of being kept: less memory, the same
gradients, and more time. It changes the training phase alone, so what generation needs does not count here. What is compared
with the card is the high end of the estimate: a run that is a little slower is better than one that ends in its third hour,
when the completions have grown long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from workbench.errors import WorkbenchError
from workbench.memory.estimate import estimate
from workbench.memory.parts import GB, Span, in_gb
from workbench.recipe import Recipe

NEAR = 0.9  # of the card: from here on the choice comes with a warning
_MEASURED = "benchmarks/README.md says by how much on a CPU; it was measured on no GPU"


class Trained(NamedTuple):
    """What is trained at a time: a run, or one stage of it."""

    recipe: Recipe
    settings: dict[str, Any]  # as GRPOConfig would get them
    longest_prompt_tokens: int | None  # None: as long as the recipe lets them be


class Choice(NamedTuple):
    """Whether to checkpoint, and the line that says so; empty where there is nothing to say."""

    on: bool
    line: str = ""

    @property
    def clear(self) -> bool:
        """Off, with room to spare: shorter prompts would change nothing."""
        return not self.on and not self.line


def choose_checkpointing(trained: Sequence[Trained], vram_gb: float) -> Choice:
    """The choice for a whole run: on if one of its stages needs it. Off also where no estimate can be made.

    Args:
        vram_gb: of the card, in 10^9 bytes.
    """
    without, checkpointed = _largest(trained, vram_gb) or (Span(0, 0, 0), Span(0, 0, 0))
    room = round(vram_gb * GB)
    if without.high > room and checkpointed.high < without.high:
        both = "" if checkpointed.high <= room else ", which may be too much all the same"
        line = (
            f"gradient_checkpointing = True, by the memory estimate: training takes {without} without it, and the card has "
            f"{in_gb(room)}; with it {checkpointed}{both}. It is slower; grpo.gradient_checkpointing overrides this"
        )
        return Choice(True, line)
    if without.high > NEAR * room:
        line = (
            f"gradient_checkpointing stays off: training takes {without} of the card's {in_gb(room)} by the estimate, which "
            "leaves little room; if memory runs out, grpo.gradient_checkpointing: true"
        )
        return Choice(False, line)
    return Choice(False)


def idle_checkpointing(trained: Sequence[Trained], vram_gb: float) -> str:
    """One line where the recipe asks for checkpointing and training fits without it on a card of so many GB; else empty."""
    asked = all(one.recipe.grpo.get("gradient_checkpointing") is True for one in trained)
    found, room = _largest(trained, vram_gb) if asked else None, round(vram_gb * GB)
    if found is None or found[0].high > room:
        return ""
    return (
        f"gradient_checkpointing = True, and by the estimate training fits without it ({found[0]} of {in_gb(room)}); off is "
        f"faster ({_MEASURED})"
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
