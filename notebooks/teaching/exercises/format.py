"""What is the shortest completion that earns everything?"""

import re

from workbench.data.prompts import SYSTEM_PROMPT

prompt = SYSTEM_PROMPT


def format_reward(completions, **kwargs):
    """1.0 for reasoning and answer in their tags."""
    pattern = r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>"
    responses = [comp[0]["content"] for comp in completions]
    return [1.0 if re.search(pattern, r, re.DOTALL) else 0.0 for r in responses]


functions = [format_reward]
