"""What does a policy learn to write from this one, and how bad can a single score become?"""

prompt = "{question}\n"


def reward_len(completions, **kwargs):
    """Best at a length of 20 tokens."""
    ideal_length = 20
    return [-abs(ideal_length - len(completion)) for completion in completions]


functions = [reward_len]
