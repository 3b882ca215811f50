"""It asks for content, not for tags alone. What is the cheapest content, and must the rest be
empty?
"""

import re

from workbench.data.prompts import THINK_PROMPT

prompt = THINK_PROMPT + "\n\n{question}\n"


def think_format_reward(completions, **kwargs):
    """1.0 for thinking of more than 20 characters and an answer, 0.5 for the bare format."""
    pattern = r"<think>(.*?)</think>\s*<answer>(.*?)</answer>"
    rewards = []
    for completion in completions:
        match = re.search(pattern, completion, re.DOTALL)
        full = match and len(match.group(1).strip()) > 20 and len(match.group(2).strip()) > 0
        rewards.append(1.0 if full else 0.5 if match else 0.0)
    return rewards


functions = [think_format_reward]
