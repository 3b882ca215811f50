"""The embedded policy: a small language model that travels with the package, its task, and the script that made it.

``MODEL_DIR`` is a folder that ``AutoModelForCausalLM.from_pretrained`` and Unsloth's ``FastLanguageModel`` both load.
``workbench.tiny.arithmetic`` holds the prompts and answers; ``python -m workbench.tiny.build`` makes the folder again.
Importing this package reads nothing and imports no library.
"""

from pathlib import Path

MODEL_DIR = Path(__file__).parent / "model"
