"""Useful for looking at completions. What does a policy learn from it?"""

from workbench.data.prompts import SYSTEM_PROMPT

prompt = SYSTEM_PROMPT


def debug_reward(completions, **kwargs):
    """Shows what the policy writes."""
    responses = [comp[0]["content"] for comp in completions]
    for i, r in enumerate(responses[:2]):
        print(f"Response {i}: {r[:200]}...")
    return [1.0] * len(responses)


functions = [debug_reward]
