"""Will it fit: GPU memory from a recipe alone, what one step measured, and what to change when it does not."""

from workbench.memory.changes import Change, OutOfMemory, cheapest, combined, explain_oom, is_oom
from workbench.memory.checkpointing import Choice, Trained, choose_checkpointing, idle_checkpointing
from workbench.memory.estimate import (
    UNCALIBRATED,
    Calibration,
    MemoryEstimate,
    calibrate,
    card,
    estimate,
    measured_peak,
)

__all__ = [
    "UNCALIBRATED", "Calibration", "Change", "Choice", "MemoryEstimate", "OutOfMemory", "Trained", "calibrate", "card",
    "cheapest", "choose_checkpointing", "combined", "estimate", "explain_oom", "idle_checkpointing", "is_oom",
    "measured_peak",
]  # fmt: skip
