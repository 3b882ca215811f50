"""Sums below 100: each pair of numbers once to train on, and once, the other way round, to measure
on.
"""

import workbench as wb
from workbench.data.prompts import SYSTEM_PROMPT, to_messages

PAIRS = [(10 + 7 * n % 80, 15 + 11 * n % 80) for n in range(16)]


def asked(a, b):
    return {"prompt": to_messages(f"What is {a} + {b}?", SYSTEM_PROMPT), "answer": str(a + b)}


task = wb.Task(
    "sums both ways",
    rows=[asked(a, b) for a, b in PAIRS],
    held_out=[asked(b, a) for a, b in PAIRS],
    reward_funcs=[wb.rewards.correctness_reward, wb.rewards.strict_format_reward],
    right_by="correctness_reward",
    format_by="strict_format_reward",
)
