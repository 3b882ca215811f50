"""The same function for chat prompts: what is the spread of its scores?"""

from workbench.data.prompts import SYSTEM_PROMPT
from workbench.teaching.exercises.length import reward_length

prompt = SYSTEM_PROMPT

functions = [reward_length]
