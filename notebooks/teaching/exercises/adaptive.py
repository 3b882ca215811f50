"""What are the two called in the log, who calls adjust_weight, and where does the weight end?"""

from workbench.data.prompts import SYSTEM_PROMPT
from workbench.teaching.exercises.correctness import correctness_reward
from workbench.teaching.exercises.format import format_reward

prompt = SYSTEM_PROMPT


class AdaptiveReward:
    """A reward whose weight follows how often the policy succeeds."""

    def __init__(self, base_reward_func, initial_weight=1.0):
        self.func = base_reward_func
        self.weight = initial_weight

    def __call__(self, *args, **kwargs):
        return [r * self.weight for r in self.func(*args, **kwargs)]

    def adjust_weight(self, success_rate):
        """More weight to what is rarely reached, less to what nearly always is."""
        if success_rate < 0.3:
            self.weight *= 1.2
        elif success_rate > 0.8:
            self.weight *= 0.9


functions = [AdaptiveReward(correctness_reward), AdaptiveReward(format_reward)]
