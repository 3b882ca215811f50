"""The adapter as an export: the trained weights and the tokenizer, and nothing that only a trainer needs."""

from __future__ import annotations

import shutil
from pathlib import Path

from workbench.errors import ExportError
from workbench.workspace import resolve, shown


def copy_adapter(adapter: str | Path, out: str | Path) -> Path:
    """Copy a saved adapter into an export folder; pickles stay behind.

    Raises:
        ExportError: if there is no adapter.
    """
    adapter, out = resolve(adapter), resolve(out)
    if not (adapter / "adapter_config.json").is_file():
        raise ExportError(
            f"{shown(adapter)}: no adapter_config.json",
            rule="an adapter is a folder that PEFT saved",
            remedy="give a run's checkpoints/final; a run that was aborted has none",
        )
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(adapter.iterdir()):
        if file.is_file() and file.suffix not in (".bin", ".pt", ".pth"):
            shutil.copyfile(file, out / file.name)
    return out
