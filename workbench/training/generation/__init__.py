"""Completions for GRPO, faster than `generate` and the same: each prompt is read once for all its completions.

`decoding.py` is the loop and what it leaves to transformers' own path, `adapters.py` what makes it quick, `hook.py` puts it
where a trainer generates. It enters through `generate(custom_generate=...)`, transformers' own opening for another loop, so
settings, processors of logits and stopping criteria are the ones that `generate` prepares.
"""

# The hook alone: the others import transformers, which must not come before unsloth.
from workbench.training.generation.hook import Generation, expected, in_words

__all__ = ["Generation", "expected", "in_words"]
