"""Give it a completion that it cannot read. How would you notice in a run?"""

from workbench.data.prompts import THINK_PROMPT
from workbench.teaching.exercises.correctness import extract_final_answer

prompt = THINK_PROMPT + "\n\n{question}\n"


def problem_reward(completions, answers, **kwargs):
    """1.0 for the right answer to a maths problem."""
    rewards = []
    for completion, correct_answer in zip(completions, answers):
        try:
            answer = extract_final_answer(completion)
            reward = 1.0 if answer == correct_answer else 0.0
            rewards.append(reward)
        except:  # noqa: E722
            rewards.append(0.0)
    return rewards


functions = [problem_reward]
columns = ["answers"]  # in which its data have the right answer
