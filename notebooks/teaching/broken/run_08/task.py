"""Sums of three digits. Those with a carry in the ones are worth a little more."""

import workbench as wb
from workbench.data.prompts import SYSTEM_PROMPT, to_messages
from workbench.tiny.task import rows

SUMS = [(200 + 7 * n, 345 + 3 * n) for n in range(100)]


@wb.rewards.max_score(0.5)
def carry_reward(completions, carry, **columns):
    """0.5 for a sum with a carry."""
    return [0.5 * each for each in carry]


task = wb.Task(
    "long sums",
    rows=[
        {
            "prompt": to_messages(f"What is {a} + {b}?", SYSTEM_PROMPT),
            "answer": str(a + b),
            "carry": a % 10 + b % 10 > 9,
        }
        for a, b in SUMS
    ],
    held_out=rows("held_out", 64),
    reward_funcs=[wb.rewards.correctness_reward, carry_reward],
    right_by="correctness_reward",
)
