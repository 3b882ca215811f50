"""Sums and differences below 100, in the format that the system prompt shows; measured by a harness
of our own.
"""

import workbench as wb
from workbench.tiny.task import rows, sample_problems

HARNESS = "Question: {}\nAnswer:"

task = wb.Task(
    "sums",
    rows=rows("train", 200),
    held_out=[
        {"prompt": HARNESS.format(own.question), "answer": own.answer}
        for own in sample_problems("held_out", 64)
    ],
    reward_funcs=[wb.rewards.correctness_reward, wb.rewards.strict_format_reward],
    right_by="correctness_reward",
    format_by="strict_format_reward",
)
