"""Sums and differences below 100, in the format that the system prompt shows, and briefly."""

import workbench as wb
from workbench.tiny.task import rows

format_reward = wb.rewards.make_tags_reward(
    ("reasoning", "answer"), maximum=2.0, name="format_reward"
)


@wb.rewards.max_score(0.0)
def brief_reward(completions, **columns):
    """-2.0 for more than five lines."""
    return [
        -2.0 if len(completion[0]["content"].splitlines()) > 5 else 0.0
        for completion in completions
    ]


task = wb.Task(
    "brief sums",
    rows=rows("train", 200),
    held_out=rows("held_out", 64),
    reward_funcs=[format_reward, brief_reward],
    right_by="format_reward",
)
