"""Will it fit: GPU memory from a recipe alone, what one step measured, and what to change when it does not."""

from workbench.memory.changes import OutOfMemory, Trained, cheapest, choose_checkpointing, explain_oom, idle_checkpointing, is_oom
from workbench.memory.estimate import UNCALIBRATED, Calibration, MemoryEstimate, calibrate, card, estimate, measured_peak

__all__ = [
    "UNCALIBRATED", "Calibration", "MemoryEstimate", "OutOfMemory", "Trained", "calibrate", "card", "cheapest",
    "choose_checkpointing", "estimate", "explain_oom", "idle_checkpointing", "is_oom", "measured_peak",
]  # fmt: skip
