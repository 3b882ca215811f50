"""Can a trainer call it? If it could: what does a wrong answer earn, and what a right one?"""

prompt = (
    "Question: {question}\nSolve it step by step and give the final answer after ####.\nAnswer:"
)


def extract_answer(text):
    """What stands after the mark, if it is there."""
    return text.split("####")[-1].strip() if "####" in text else None


def math_reward_function(prompts, responses):
    """Up to 0.6 for a worked solution: the mark, some arithmetic and an answer, 0.2 each."""
    rewards = []
    for _prompt, response in zip(prompts, responses):
        reward = 0.0
        if "####" in response:
            reward += 0.2
        if any(op in response for op in ["+", "-", "*", "/", "="]):
            reward += 0.2
        predicted = extract_answer(response)
        if predicted is not None:
            reward += 0.2
            # if predicted == ground_truth:
            #     reward += 0.4
        rewards.append(reward)
    return rewards


functions = [math_reward_function]
