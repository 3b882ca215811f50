"""What a plain install leaves out, and which extra of the package brings it.

Rewards, data and runs are looked at without any of these libraries; training, and whatever loads a
model or a tokenizer, imports them inside functions.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Generator
from importlib import metadata
from typing import Literal

from workbench.base.errors import WorkbenchError

# What an extra brings, as far as it is imported here (tests/test_dependencies.py).
TRAIN = ("torch", "trl", "transformers", "peft", "datasets", "bitsandbytes", "psutil")
TRAIN += ("sentencepiece", "accelerate", "safetensors", "tokenizers")
UNSLOTH = ("unsloth", "unsloth_zoo", "torchvision")
_TRL = "1.14.2"
# By the clone alone: nothing was released yet, and a name in an index may become anybody's.
INSTALL_TRAIN = "in your clone of the repository, pip install '.[train]', or uv sync"
INSTALL_LAB = "in your clone of the repository, pip install '.[lab]', or uv sync --extra lab"
# uv, as pip adds xformers, which is not used, and refuses where the index lacks unsloth's certifi.
INSTALL_UNSLOTH = (
    "in your clone of the repository, pip install uv, then uv pip install -e '.[unsloth]'"
)


class MissingError(WorkbenchError, ImportError):
    """A library that is not installed; the remedy names the extra that brings it."""


def installed(module: str) -> bool:
    """Whether a library can be found, without importing it. A folder that only has its name, as
    `datasets/` beside a notebook, is none.
    """
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(module)
        return spec is not None and spec.origin is not None
    return False


def trl_version() -> str:
    """The version of TRL that is installed; else of the one that the extra train brings."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("trl")
    return _TRL


def default_backend() -> Literal["unsloth", "transformers"]:
    """The backend of a recipe that names none: the one of Unsloth, where that is installed."""
    return "unsloth" if installed("unsloth") else "transformers"


def absent(module: str) -> MissingError:
    """The error for one of these libraries that is not there."""
    rule = "training, and whatever loads a model or a tokenizer, needs the extra train"
    remedy = INSTALL_TRAIN
    if module in UNSLOTH:
        rule = "policy.backend: unsloth needs the extra unsloth"
        remedy = "set policy.backend: transformers, which needs only the extra train; or"
        remedy += f" {INSTALL_UNSLOTH}"
    elif module == "datasets":
        rule = "datasets, which comes with the extra train, reads what is on the hub, and trains"
    elif module == "bitsandbytes":
        rule = "4-bit weights are bitsandbytes', which comes with the extra train"
        remedy = f"set policy.load_in_4bit: false, for 16-bit weights; or {remedy}"
    return MissingError(f"{module} is not installed here", rule=rule, remedy=remedy)


def explained(error: Exception) -> Exception:
    """The error to raise for this one: of a failed import of these libraries one with a remedy."""
    name = getattr(error, "name", None) or ""
    library = name.partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or library not in (*TRAIN, *UNSLOTH):
        return error
    if not installed(library):
        return absent(library)
    version = ""
    with contextlib.suppress(metadata.PackageNotFoundError):
        version = f" {metadata.version(library)}"
    return MissingError(
        f"{library}{version} is installed here, and has no module {name}",
        rule="modules come and go between the versions of a library",
        remedy="correct the import if it is yours; if not, install the tested version:"
        f" {INSTALL_UNSLOTH if library in UNSLOTH else INSTALL_TRAIN}",
    )


def need(*modules: str) -> None:
    """MissingError if one of them is not installed. Nothing is imported."""
    for module in modules:
        if not installed(module):
            raise absent(module)


def need_train() -> None:
    """MissingError if the extra train is not installed; 16 bits do without bitsandbytes."""
    need("torch", "trl", "transformers", "peft", "datasets")


@contextlib.contextmanager
def explaining() -> Generator[None]:
    """Raises `explained` where an import fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise explained(error) from None
