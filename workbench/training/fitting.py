"""The memory estimate of a run on a GPU: what it decides before, what it says, what the first step measured, and what
to do when it was too much.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from workbench import memory
from workbench.data.lengths import prompt_lengths_tokens
from workbench.errors import PolicyError, RecipeError, WorkbenchError
from workbench.run.directory import RunDirectory
from workbench.training.policy import Policy, load_tokenizer
from workbench.training.stages import Stage


def settle_checkpointing(
    stages: Sequence[Stage], policy: Policy | None = None, begun_with: bool | None = None
) -> list[str]:
    """Put gradient checkpointing, on or off for the whole run, into every stage's settings, before the policy is loaded.

    What the recipe says wins; then what the run began with; then what a given policy was loaded with; then the estimate for
    this machine's GPU. Without a GPU it stays as it is.

    Args:
        policy: one that is loaded already; None: it is yet to be.
        begun_with: for a run that goes on: what its manifest has.

    Returns:
        At most one line to show.
    """
    if "gradient_checkpointing" in stages[0].recipe.grpo:
        return []
    if begun_with is not None:
        choice = memory.Choice(begun_with)
    elif policy is not None:
        on = policy.gradient_checkpointing
        choice = memory.Choice(on, "gradient_checkpointing = True: the policy was loaded with it" if on else "")
    elif (card := memory.card()) is not None:
        choice = choose_for(stages, card[1] / 1e9)
    else:
        return []
    for stage in stages:
        stage.settings["gradient_checkpointing"] = choice.on
    return [choice.line] if choice.line else []


def choose_for(stages: Sequence[Stage], vram_gb: float) -> memory.Choice:
    """The choice for planned stages on a card of so many GB. Prompts are measured only where their length can matter."""
    choice = memory.choose_checkpointing([memory.Trained(one.recipe, one.settings, None) for one in stages], vram_gb)
    if choice.clear:
        return choice
    measured = [memory.Trained(one.recipe, one.settings, _longest_prompt_tokens(one)) for one in stages]
    return memory.choose_checkpointing(measured, vram_gb)


def _longest_prompt_tokens(stage: Stage) -> int | None:
    # Before the policy is there, and so with the tokenizer as it is stored.
    try:
        tokenizer = load_tokenizer(stage.recipe.policy.name, stage.recipe.chat_template_kwargs)
    except PolicyError:
        return None
    most = stage.recipe.max_prompt_length
    lengths = prompt_lengths_tokens(stage.rows, tokenizer)
    return max((length for length in lengths if most is None or length <= most), default=None)


class Fit:
    """Says what a stage should need, and after its first step what it did need.

    On a machine without a GPU it says and measures nothing.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.estimate: memory.MemoryEstimate | None = None
        self._measured = False
        card = memory.card()
        if card is not None:
            # Where the shape of this model is not known, the run is the measurement.
            with contextlib.suppress(WorkbenchError):
                self.estimate = memory.estimate(stage.recipe, stage.settings, **self._how(card))

    def _how(self, card: tuple[str, int] | None) -> dict[str, Any]:
        return {
            "longest_prompt_tokens": max(self.stage.lengths_tokens, default=None),
            "vram_gb": card[1] / 1e9 if card else None,
        }

    @property
    def note(self) -> str:
        """One line for before the run; empty if there is nothing to say."""
        return self.estimate.verdict if self.estimate else ""

    def first_step_done(self, run: RunDirectory) -> None:
        """Keep what the first whole step needed beside the estimate, for the next estimate on this card."""
        peak = None if self._measured else memory.measured_peak()
        self._measured = True
        if peak is None or self.estimate is None:
            return
        run.update_manifest(
            memory={
                "estimate": self.estimate.found(),
                "measured_peak_bytes": peak,
                "calibration": self._calibration(peak),
            }
        )

    def _calibration(self, peak: int) -> dict[str, Any] | None:
        if self.stage.settings.get("use_vllm"):
            return None  # vLLM's share is in the same counter, and no part of the step
        card = memory.card()
        try:
            return asdict(memory.calibrate(self.estimate, peak, card[0] if card else ""))
        except RecipeError:
            return None  # the first completions were short: they needed less than whole ones, and a run does not end for that

    def explained(self, error: BaseException) -> BaseException:
        """The error to raise: one that says what would fit, if memory was the trouble; else the same."""
        if not isinstance(error, Exception) or not memory.is_oom(error):
            return error
        return memory.explain_oom(error, self.stage.recipe, self.stage.settings, **self._how(memory.card()))
