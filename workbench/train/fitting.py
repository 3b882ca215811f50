"""The memory estimate while a run trains on a GPU: said before, measured on the first step, and used when it is too much."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import Any

from workbench.run.directory import RunDirectory
from workbench.run.errors import WorkbenchError
from workbench.train import memory
from workbench.train.stages import Stage


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
        card = memory.card()
        calibration = memory.calibrate(self.estimate, peak, card[0] if card else "")
        run.update_manifest(
            memory={
                "estimate": self.estimate.found(),
                "measured_peak_bytes": peak,
                "calibration": asdict(calibration),
            }
        )

    def explained(self, error: BaseException) -> BaseException:
        """The error to raise: one that says what would fit, if memory was the trouble; else the same."""
        if not isinstance(error, Exception) or not memory.is_oom(error):
            return error
        return memory.explain_oom(error, self.stage.recipe, self.stage.settings, **self._how(memory.card()))
