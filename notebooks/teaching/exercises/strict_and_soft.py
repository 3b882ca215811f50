"""Write the completion that the prompt asks for, with two lines of reasoning. What do the two
pay?
"""

import re

from workbench.data.prompts import SYSTEM_PROMPT

prompt = SYSTEM_PROMPT


def strict_format_reward_func(completions, **kwargs):
    """0.5 for exactly the format that was asked for."""
    pattern = r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$"
    responses = [completion[0]["content"] for completion in completions]
    return [0.5 if re.match(pattern, r) else 0.0 for r in responses]


def soft_format_reward_func(completions, **kwargs):
    """0.5 for about the format that was asked for."""
    pattern = r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>"
    responses = [completion[0]["content"] for completion in completions]
    return [0.5 if re.match(pattern, r) else 0.0 for r in responses]


functions = [strict_format_reward_func, soft_format_reward_func]
