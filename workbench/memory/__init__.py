"""Will it fit: GPU memory from a recipe alone, what one step measured, and what helps when it does
not fit.
"""

from workbench.memory.advice import OutOfMemory, explain_oom, hints, is_oom
from workbench.memory.estimate import UNCALIBRATED, MemoryEstimate, estimate, measured_peak
from workbench.memory.parts import in_gb

__all__ = [
    "UNCALIBRATED", "MemoryEstimate", "OutOfMemory", "estimate", "explain_oom", "hints", "in_gb",
    "is_oom", "measured_peak",
]  # fmt: skip
