"""The memory estimate of a run on a GPU: what it decides beforehand, what it reports, what the
first step measured, and what to do when memory runs out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench import memory
from workbench.errors import WorkbenchError
from workbench.kinds import Fields
from workbench.training import settings as settings_of
from workbench.training.feature import Feature
from workbench.training.plan import Memory, Part, Stage
from workbench.training.policy import grpo_config
from workbench.training.settings.device import Machine


class MemoryFit(Feature):
    """GPU memory a stage should need, and after its first step what it did need; it decides on
    memory when a plan is made.

    On a machine without a GPU a run reports and measures nothing.
    """

    key = "memory"
    of_recipe = True

    @classmethod
    def memory(cls, vram_gb: float | None, estimates: bool) -> Memory | None:
        return memory_on(vram_gb, estimates=estimates)

    def begin_stage(self, stage: Stage) -> None:
        card = memory.card()
        self.stage, self.measured = stage, False
        self.estimate: memory.MemoryEstimate | None = None
        if card:
            how: Fields = {
                "longest_prompt_tokens": max(stage.lengths_tokens, default=None),
                "vram_gb": card[1] / 1e9,
            }
            # Where the shape of this model is not known, the run is the measurement.
            with contextlib.suppress(WorkbenchError):
                self.estimate = memory.estimate(stage.recipe, stage.settings, **how)
        if self.estimate and self.estimate.verdict:
            print(self.estimate.verdict)

    def on_step_end(self, *_: object, **__: object) -> None:
        """Record what the first whole step needed, beside the estimate."""
        peak = None if self.measured else memory.measured_peak()
        self.measured = True
        if peak is not None and self.estimate is not None:
            report = {"estimate": self.estimate.found(), "measured_peak_bytes": peak}
            self.session.run.update_manifest(memory=report)

    def explained(self, error: Exception) -> Exception:
        if not memory.is_oom(error):
            return error
        return memory.explain_oom(error, self.stage.recipe, self.stage.settings, self.estimate)


def memory_on(vram_gb: float | None = None, *, estimates: bool = True) -> Memory:
    """The memory callback of `prepare(memory=...)`, for a card of `vram_gb`, or for this machine's.

    On a machine without a GPU the estimate is still for a card, with the settings as the card would
    run them. Without `estimates`, only gradient checkpointing is chosen, and nothing without a
    card.
    """

    def look(
        parts: Sequence[Part], machine: Machine, on: bool | None
    ) -> tuple[bool, list[str], Any]:
        room, lines, made = vram_gb or machine.card_gb, [], []
        if room is None and not estimates:
            return bool(on), [], None
        there = parts
        if not machine.cuda:
            there = [_on_a_gpu(part, vllm=room is not None) for part in parts]
        trained = [memory.Trained(*part) for part in there]
        if room is not None and any("gradient_checkpointing" in one.recipe.grpo for one in trained):
            lines.append(memory.idle_checkpointing(trained, room))
        elif room is not None and on is None:
            on, line = memory.choose_checkpointing(trained, room)
            lines.append(line)
        for recipe, settings, longest in there if estimates else ():
            settings = {**settings, "gradient_checkpointing": bool(on)}
            how: Fields = {"longest_prompt_tokens": longest, "vram_gb": room}
            made.append(memory.estimate(recipe, settings, **how))
        vllm = [any(settings.get("use_vllm") for _, settings, _ in some) for some in (parts, there)]
        if estimates and vllm == [False, True]:
            lines.append(
                "memory is estimated as on a GPU where vLLM is installed, since the recipe asks"
                " for it"
            )
        if estimates and not machine.cuda:
            only = (
                "memory and gradient checkpointing are a card's; the rest is as here, without a GPU"
            )
            lines.append(_on_this_cpu(parts, bool(on)) if vram_gb is None else only)
        most = max(made, key=lambda one: one.peak.high, default=None)
        return bool(on), [line for line in lines if line], most

    return look


LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of a container: cgroup 2, cgroup 1


def _ram_bytes(cgroup: str = "/sys/fs/cgroup") -> int:
    """This machine's memory, or what a container leaves of it."""
    import psutil

    ram = psutil.virtual_memory().total
    for name in LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            ram = min(ram, int(Path(cgroup, name).read_text()))
    return ram


def _on_this_cpu(parts: Sequence[Part], on: bool) -> str:
    """A line where the process may need more resident memory than this machine has; else empty."""
    ram = _ram_bytes()
    how: Fields = {"vram_gb": ram / 1e9, "device": "cpu"}
    made = [
        memory.estimate(
            recipe,
            {**settings, "gradient_checkpointing": on},
            longest_prompt_tokens=longest,
            **how,
        )
        for recipe, settings, longest in parts
    ]
    most = max(made, key=lambda one: one.peak.high)
    if most.fits:
        return ""
    part = parts[made.index(most)]
    word = "may not" if most.fits is None else "does not"
    return (
        f"the run {word} fit into this machine's memory: the process needs about {most.peak}"
        f" resident, of {memory.in_gb(ram)}; {most.peak_phase} decides. What saves memory:"
        f" {memory.hints(part[0], {**part[1], 'gradient_checkpointing': on})[0]}"
    )


def _on_a_gpu(part: Part, *, vllm: bool) -> Part:
    recipe, _, longest = part
    fields = settings_of.field_names(grpo_config(recipe.policy.backend))
    # How much vLLM takes is a share of the card, so without one it is left out.
    machine = Machine(cuda=True, bf16=True, vllm=vllm)
    return recipe, settings_of.normalised(recipe, fields, machine)[1], longest
