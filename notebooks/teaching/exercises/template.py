"""What does it take before this one scores anything?"""

from workbench.data.prompts import SYSTEM_PROMPT

prompt = SYSTEM_PROMPT


def reward_function_name(prompts, completions, answer=None, **kwargs):
    """The template that every one of these starts from."""
    responses = [comp[0]["content"] for comp in completions]
    return [compute_score(response) for response in responses]  # noqa: F821


functions = [reward_function_name]
