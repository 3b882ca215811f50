"""A first, small data set: four sums of single digits."""

import workbench as wb
from workbench.data.prompts import SYSTEM_PROMPT, to_messages
from workbench.tiny.task import rows

SUMS = [(2, 3), (4, 1), (3, 3), (5, 2)]

task = wb.Task(
    "first sums",
    rows=[
        {"prompt": to_messages(f"What is {a} + {b}?", SYSTEM_PROMPT), "answer": str(a + b)}
        for a, b in SUMS
    ],
    held_out=rows("held_out", 64),
    reward_funcs=[wb.rewards.correctness_reward],
    right_by="correctness_reward",
)
