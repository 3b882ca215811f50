"""The memory estimate of a run on a GPU: what it decides beforehand, what it reports, what the
first step measured, and what to do when memory runs out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from workbench import memory
from workbench.base.errors import WorkbenchError
from workbench.training.feature import Asked, Feature, Planned
from workbench.training.plan import Memory, Part, Stage
from workbench.training.plan import settings as settings_of
from workbench.training.plan.settings.device import Machine
from workbench.training.policy import grpo_config

_OF_A_CARD = "memory and gradient checkpointing are a card's; the rest is as here, without a GPU"


class MemoryFit(Feature):
    """GPU memory a stage should need, and after its first step what it did need; it decides on
    memory when a plan is made.

    On a machine without a GPU a run reports and measures nothing.
    """

    key = "memory"
    of_recipe = True

    @classmethod
    def plan(cls, asked: Asked) -> Planned:
        return Planned(memory=memory_on(asked.vram_gb, estimates=asked.estimates))

    def begin_stage(self, stage: Stage) -> None:
        self.stage, self.measured = stage, False
        self.estimate: memory.MemoryEstimate | None = None
        part = stage.recipe, stage.settings, max(stage.lengths_tokens, default=None)
        if (room := Machine.here().card_gb) is None:
            return
        # Where the shape of this model is not known, the run is the measurement.
        with contextlib.suppress(WorkbenchError):
            [self.estimate] = _estimates([part], stage.settings["gradient_checkpointing"], room)
            print(self.estimate.verdict)

    def on_step_end(self, *_: object, **__: object) -> None:
        """Record what the first whole step needed, beside the estimate."""
        if self.estimate is not None and not self.measured:
            peak = memory.measured_peak()
            report = {"estimate": self.estimate.found(), "measured_peak_bytes": peak}
            self.session.run.update_manifest(memory=report)
        self.measured = True

    def explained(self, error: Exception) -> Exception:
        if not memory.is_oom(error):
            return error
        return memory.explain_oom(error, self.stage.recipe, self.stage.settings, self.estimate)


def memory_on(vram_gb: float | None = None, *, estimates: bool = True) -> Memory:
    """The memory callback of a plan, for a card of `vram_gb`, or for this machine's.

    On a machine without a GPU the estimate is still for a card, with the settings as the card would
    run them. Without `estimates`, only gradient checkpointing is chosen, and nothing without a
    card.
    """

    def look(
        parts: Sequence[Part], machine: Machine, on: bool | None
    ) -> tuple[bool, list[str], Any]:
        room, lines = vram_gb or machine.card_gb, []
        there = parts
        if not machine.cuda and (room or estimates):
            there = [_on_a_gpu(part, vllm=room is not None) for part in parts]
        if room is not None and on is None:
            on, lines = choose_checkpointing(there, room)
        on = bool(on)
        if not estimates:
            return on, lines, None
        if not machine.cuda and vram_gb:
            lines.append(_OF_A_CARD)
        return on, lines, max(_estimates(there, on, room), key=lambda each: each.peak.high)

    return look


def choose_checkpointing(parts: Sequence[Part], vram_gb: float) -> tuple[bool, list[str]]:
    """Whether to checkpoint a run on a card of `vram_gb`, with a line if so: a run that is a little
    slower is better than one that dies in its third hour, when the completions have grown long.

    By the high end of the training phase alone; on if one of the stages needs it, off also where
    no estimate can be made.
    """
    try:
        phases = [
            [each.total("training") for each in _estimates(parts, on, vram_gb)]
            for on in (False, True)
        ]
    except (WorkbenchError, ValueError):
        return False, []
    without, checkpointed = max(zip(*phases, strict=True), key=lambda pair: pair[0].high)
    room = round(vram_gb * 1e9)
    if without.high <= room or checkpointed.high >= without.high:
        return False, []
    return True, [
        f"gradient_checkpointing = True, by the memory estimate: training takes {without} without"
        f" it, and the card has {memory.in_gb(room)}; with it {checkpointed}. It is slower;"
        " grpo.gradient_checkpointing overrides this"
    ]


def _estimates(
    parts: Sequence[Part], on: bool, vram_gb: float | None
) -> list[memory.MemoryEstimate]:
    return [
        memory.estimate(
            recipe,
            {**settings, "gradient_checkpointing": on},
            longest_prompt_tokens=longest,
            vram_gb=vram_gb,
        )
        for recipe, settings, longest in parts
    ]


def _on_a_gpu(part: Part, *, vllm: bool) -> Part:
    recipe, _, longest = part
    fields = settings_of.field_names(grpo_config(recipe.policy.backend))
    # How much vLLM takes is a share of the card, so without one it is left out.
    machine = Machine(cuda=True, bf16=True, vllm=vllm)
    return recipe, settings_of.normalised(recipe, fields, machine)[1], longest
