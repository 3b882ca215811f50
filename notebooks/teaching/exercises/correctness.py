"""Which right answers does it not pay for, in the very format that the prompt shows?"""

from workbench.data.prompts import SYSTEM_PROMPT

prompt = SYSTEM_PROMPT


def extract_final_answer(text):
    """What follows the last opening tag of the answer, up to the closing one."""
    return text.split("<answer>")[-1].split("</answer>")[0]


def correctness_reward(prompts, completions, answer, **kwargs):
    """2.0 for the right answer."""
    responses = [comp[0]["content"] for comp in completions]
    extracted = [extract_final_answer(r) for r in responses]
    return [2.0 if ans == gt else 0.0 for ans, gt in zip(extracted, answer)]


functions = [correctness_reward]
