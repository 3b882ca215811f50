"""A policy out of a wheel: SmolLM2."""
