"""What a run's numbers depend on beside its recipe: versions, the machine, the environment."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from workbench.base.kinds import Fields
from workbench.base.secret import may_be_shown

_LIBRARIES = (
    "unsloth", "unsloth_zoo", "trl", "transformers", "peft", "datasets", "bitsandbytes", "torch",
    "vllm", "ipykernel", "grpo-workbench",
)  # fmt: skip
_DECIDING = ("UNSLOTH_", "TRL_", "VLLM_", "PYTORCH_", "CUBLAS_")
# What Unsloth leaves in the environment of a process about itself and the model that it loaded.
_LEFT_THERE = ("_IS_PRESENT", "UNSLOTH_PATCHED", "UNSLOTH_MODEL_NAME")


def versions() -> Fields:
    """Python, the libraries (None where one is absent), the machine, and the workbench's own commit
    if it has one.
    """
    report: Fields = {"python": platform.python_version(), **dict.fromkeys(_LIBRARIES)}
    for library in _LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            report[library] = metadata.version(library)
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return report | {"machine": machine, "cpu": _cpu(), "commit": _commit()}


def environment() -> dict[str, str]:
    """The set variables by which libraries decide how to compute; for secrets and paths only that
    they are set.
    """
    return {
        name: value if may_be_shown(name, value) else "set, not shown"
        for name, value in sorted(os.environ.items())
        if name.startswith(_DECIDING) and not name.endswith(_LEFT_THERE)
    }


def _commit() -> str | None:
    root = Path(__file__).parents[2]
    if (root / ".git").exists():
        describe = ["git", "-C", str(root), "describe", "--always", "--dirty"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            return subprocess.check_output(
                describe, text=True, stderr=subprocess.DEVNULL, timeout=10
            ).strip()
    return None


def _cpu() -> str | None:
    # Its model decides which kernels run, and so the last bits of what is trained.
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None
