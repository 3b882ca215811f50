"""Sums and differences below 100. Reasoning is worth something, too."""

import workbench as wb
from workbench.tiny.task import rows


@wb.rewards.max_score(10.0)
def thorough_reward(completions, **columns):
    """Up to 10.0 for reasoning that goes into detail."""
    return [min(10.0, len(completion[0]["content"]) / 20) for completion in completions]


task = wb.Task(
    "thorough sums",
    rows=rows("train", 200),
    held_out=rows("held_out", 64),
    reward_funcs=[wb.rewards.correctness_reward, wb.rewards.strict_format_reward, thorough_reward],
    right_by="correctness_reward",
    format_by="strict_format_reward",
)
