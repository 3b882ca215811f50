"""Differences below 10; users write answers in many ways."""

import workbench as wb
from workbench.data.prompts import to_messages
from workbench.tiny.task import rows

PAIRS = [(a, b) for a in range(10, 60) for b in range(a - 9, a)][:200]


@wb.rewards.max_score(2.0)
def mentions_answer_reward(completions, answer, **columns):
    """2.0 if the right answer is there."""
    return [
        2.0 if right in completion[0]["content"] else 0.0
        for completion, right in zip(completions, answer)
    ]


task = wb.Task(
    "small differences",
    rows=[{"prompt": to_messages(f"What is {a} - {b}?"), "answer": str(a - b)} for a, b in PAIRS],
    held_out=rows("held_out", 64),
    reward_funcs=[
        mentions_answer_reward,
        wb.rewards.correctness_reward,
        wb.rewards.strict_format_reward,
    ],
    reward_weights=[1.0, 0.0, 0.0],  # the others are only watched
    right_by="mentions_answer_reward",
)
