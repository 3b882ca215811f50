"""What does one more character after the answer cost, and what the last line break?"""

from workbench.data.prompts import SYSTEM_PROMPT

prompt = SYSTEM_PROMPT


def count_xml(text):
    """0.125 for each tag alone on its line; text after the answer costs a little."""
    count = 0.0
    if text.count("<reasoning>\n") == 1:
        count += 0.125
    if text.count("\n</reasoning>\n") == 1:
        count += 0.125
    if text.count("\n<answer>\n") == 1:
        count += 0.125
        count -= len(text.split("\n</answer>\n")[-1]) * 0.001
    if text.count("\n</answer>") == 1:
        count += 0.125
        count -= (len(text.split("\n</answer>")[-1]) - 1) * 0.001
    return count


def xmlcount_reward_func(completions, **kwargs):
    """Up to 0.5 for the four tags."""
    return [count_xml(completion[0]["content"]) for completion in completions]


functions = [xmlcount_reward_func]
