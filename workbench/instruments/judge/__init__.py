"""A model as the reward: asking it, its answers, its trial, its run."""
