"""Write the completion that the prompt asks for. What does it earn?"""

import re

from workbench.data.prompts import THINK_PROMPT

prompt = THINK_PROMPT + "\n\n{question}\n"


def reward_format(completions, **kwargs):
    """1.0 for thinking and answer in their tags."""
    pattern = r"^<think>.*?</think><answer>.*?</answer>$"
    return [1.0 if re.match(pattern, c) else 0.0 for c in completions]


functions = [reward_format]
