"""What does a policy write after a thousand steps of this?"""

prompt = "{question}\n"


def reward_length(completions, **kwargs):
    """The longer, the better."""
    return [float(len(completion)) for completion in completions]


functions = [reward_length]
