"""Sums and differences below 100; the answers come from a file of their own, one per line."""

import workbench as wb
from workbench.tiny.task import rows

exported = rows("train", 200)
lines = ["answer", *(row["answer"] for row in exported)]  # as they stand in answers.csv

task = wb.Task(
    "sums from a file",
    rows=[{"prompt": row["prompt"], "answer": line} for row, line in zip(exported[1:], lines[1:])],
    held_out=rows("held_out", 64),
    reward_funcs=[wb.rewards.correctness_reward, wb.rewards.strict_format_reward],
    right_by="correctness_reward",
    format_by="strict_format_reward",
)
