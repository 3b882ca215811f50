"""Sums and differences below 100, as text for a model that always thinks first."""

import re

import workbench as wb
from workbench.data.prompts import SYSTEM_PROMPT
from workbench.tiny.task import rows, sample_problems

TURN = "<|system|>" + SYSTEM_PROMPT + "</s><|user|>{}</s><|assistant|><reasoning>"
WANTED = re.compile(r"<reasoning>.+</reasoning>\s*<answer>(.+)</answer>", re.DOTALL)


@wb.rewards.max_score(2.0)
def answer_in_format_reward(completions, answer, **columns):
    """2.0 for the right answer in the format, else 0.0."""
    found = [WANTED.fullmatch(completion.strip()) for completion in completions]
    return [
        2.0 if match and match[1].strip() == right else 0.0 for match, right in zip(found, answer)
    ]


task = wb.Task(
    "thinking sums",
    rows=[
        {"prompt": TURN.format(own.question), "answer": own.answer}
        for own in sample_problems("train", 200)
    ],
    held_out=rows("held_out", 64),
    reward_funcs=[answer_in_format_reward],
    right_by="answer_in_format_reward",
)
