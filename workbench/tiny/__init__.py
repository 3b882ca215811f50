"""The embedded policy: a small language model that travels with the package, and its task.

``MODEL_DIR`` is a folder that ``AutoModelForCausalLM.from_pretrained`` and Unsloth's
``FastLanguageModel`` both load. `tools/tiny/` in the repository made it: `python -m
tools.tiny.build` makes the folder again. ``TURNS_DIR`` holds one that calls tools: `python -m
tools.tiny.turns`.
"""

from pathlib import Path

MODEL_DIR = Path(__file__).parent / "model"
TURNS_DIR = Path(__file__).parent / "turns"
