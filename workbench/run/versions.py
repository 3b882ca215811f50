"""What a run was made with: versions of the libraries, the machine, the state of the source."""

from __future__ import annotations

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
    found: dict[str, Any] = {"python": platform.python_version()}
    for library in (*LIBRARIES, "grpo-workbench"):
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            found[library] = None
    found["machine"] = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    found["commit"] = _commit()
    return found


def _commit() -> str | None:
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        describe = ["git", "-C", str(root), "describe", "--always", "--dirty"]
        return subprocess.run(describe, capture_output=True, text=True, timeout=10, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
