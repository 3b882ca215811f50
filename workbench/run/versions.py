"""What a run was made with: versions of the libraries, the machine, the state of the source."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

LIBRARIES = (
    "unsloth", "unsloth_zoo", "trl", "transformers", "peft", "datasets", "bitsandbytes", "torch", "vllm", "ipykernel",
)  # fmt: skip


def versions() -> dict[str, Any]:
    """Python, the libraries (None where one is absent), the machine, and the workbench's own commit if it has one."""
    found: dict[str, Any] = {"python": platform.python_version(), **dict.fromkeys((*LIBRARIES, "grpo-workbench"))}
    for library in (*LIBRARIES, "grpo-workbench"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[library] = metadata.version(library)
    root, commit = Path(__file__).parents[2], ""
    if (root / ".git").exists():
        describe = ["git", "-C", str(root), "describe", "--always", "--dirty"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            commit = subprocess.run(describe, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return found | {"machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores", "commit": commit or None}
