"""How much can nonsense earn, and how little an honest completion?"""

from workbench.data.prompts import SYSTEM_PROMPT

prompt = SYSTEM_PROMPT


def incremental_format_reward(completions, **kwargs):
    """0.25 for each tag; text after the last one costs a little."""
    responses = [comp[0]["content"] for comp in completions]
    rewards = []
    for r in responses:
        score = sum(
            0.25 for tag in ["<reasoning>", "</reasoning>", "<answer>", "</answer>"] if tag in r
        )
        if r.count("</answer>") == 1:
            extra_text = r.split("</answer>")[-1].strip()
            score -= len(extra_text) * 0.001
        rewards.append(score)
    return rewards


functions = [incremental_format_reward]
