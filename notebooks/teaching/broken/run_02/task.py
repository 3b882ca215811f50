"""Sums and differences below 100. One function pays for all that the system prompt asks for."""

import re

import workbench as wb
from workbench.tiny.task import rows

WANTED = re.compile(r"<reasoning>.+</reasoning>\s*<answer>(.+)</answer>")


@wb.rewards.max_score(2.0)
def answer_in_format_reward(completions, answer, **columns):
    """2.0 for the right answer in the format, else 0.0."""
    found = [WANTED.fullmatch(completion[0]["content"].strip()) for completion in completions]
    return [
        2.0 if match and match[1].strip() == right else 0.0 for match, right in zip(found, answer)
    ]


task = wb.Task(
    "sums in format",
    rows=rows("train", 200),
    held_out=rows("held_out", 64),
    reward_funcs=[answer_in_format_reward],
    right_by="answer_in_format_reward",
)
