"""Sums and differences below 100, in the format that the system prompt shows."""

import workbench as wb
from workbench.tiny.task import rows

task = wb.Task(
    "sums",
    rows=rows("train", 200),
    held_out=rows("held_out", 64),
    reward_funcs=[wb.rewards.correctness_reward, wb.rewards.strict_format_reward],
    right_by="correctness_reward",
    format_by="strict_format_reward",
)
