"""What share of the most that can be earned does the best completion without a right answer
earn?
"""

from workbench.data.prompts import SYSTEM_PROMPT
from workbench.teaching.exercises.correctness import correctness_reward
from workbench.teaching.exercises.format import format_reward
from workbench.teaching.exercises.incremental_format import incremental_format_reward

prompt = SYSTEM_PROMPT

functions = [incremental_format_reward, format_reward, correctness_reward]
