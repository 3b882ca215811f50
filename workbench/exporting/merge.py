"""A run's policy as files that others can load: the adapter, and the 16-bit base model with the adapter merged in.

The adapter was trained beside 4-bit weights, but it is merged into the 16-bit ones: merging into 4-bit weights would
round the sum back to 4 bits, and is refused on a CPU. Plain transformers and PEFT do it, with no unsloth, so the result
depends on nothing that the reader of the file needs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.errors import ExportError
from workbench.run.directory import RunDirectory
from workbench.training.loading import bars_for, find_model, quiet_imports
from workbench.workspace import resolve, shown

_PREQUANTISED = re.compile(r"-(unsloth-)?bnb-4bit$", re.IGNORECASE)


@dataclass(frozen=True, repr=False)
class Exported:
    """An adapter and the 16-bit model that it was merged into; its text lists the files."""

    base: str  # folder or hub name of the 16-bit model
    adapter: Path
    merged: Path
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    run: RunDirectory | None = None

    def __str__(self) -> str:
        sizes = [
            (folder, [f"  {file.name}  {file.stat().st_size / 1024:.0f} KiB" for file in sorted(folder.iterdir())])
            for folder in (self.adapter, self.merged)
        ]
        return "\n".join(line for folder, files in sizes for line in [shown(folder), *files])

    __repr__ = __str__


def export(run: RunDirectory) -> Exported:
    """Copy a run's adapter into its `export/` folder, and merge it into the 16-bit base model there.

    >>> exported = wb.export(wb.open_run())  # doctest: +SKIP

    Raises:
        RunError: if the run trains, or has no adapter.
        ExportError: if it was exported before, or its base is a folder of 4-bit weights.
    """
    base = sixteen_bit_base(run.check_ended().manifest()["policy"]["source"])
    adapter = copy_adapter(run.adapter, run.export / "adapter")
    merged = merge_16bit(base, adapter, run.export / "merged_16bit")
    return Exported(base, adapter, merged, run.recipe().chat_template_kwargs, run)


def copy_adapter(adapter: str | Path, out: str | Path) -> Path:
    """Copy a saved adapter, weights and tokenizer, into an export folder; pickles stay behind.

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


def sixteen_bit_base(source: str | Path) -> str:
    """The 16-bit model that belongs to a policy's source: the same, without the hub's `-bnb-4bit`.

    Raises:
        ExportError: if a local folder holds 4-bit weights only.
    """
    text = str(source)
    folder = Path(text)
    if folder.is_dir():
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if config.get("quantization_config"):
            raise ExportError(
                f"{shown(folder)}: the weights are quantised",
                rule="an adapter is merged into 16-bit weights",
                remedy="give the folder or hub name of the 16-bit model as `base`",
            )
        return text
    return _PREQUANTISED.sub("", text)


def load_base(base: str | Path, dtype: str = "auto") -> tuple[Any, Any]:
    """(model, tokenizer) of the 16-bit base, through plain transformers."""
    with quiet_imports():
        from transformers import AutoModelForCausalLM, AutoTokenizer

    source = find_model(base)
    with bars_for(source):
        return AutoModelForCausalLM.from_pretrained(source, dtype=dtype).eval(), AutoTokenizer.from_pretrained(source)


def merge_16bit(base: str | Path, adapter: str | Path, out: str | Path) -> Path:
    """Merge an adapter into its 16-bit base and save the whole model, tokenizer included.

    The sum is made in 32 bits and rounded once, to the base's own 16-bit type.

    Args:
        base: folder or hub name of the 16-bit model.
        adapter: folder that PEFT saved.
        out: new folder for the merged model; made whole, or not at all.

    Raises:
        ExportError: if `out` already holds something.
    """
    with quiet_imports():
        import torch
        from peft import PeftModel

    out = resolve(out)
    if out.exists() and any(out.iterdir()):
        raise ExportError(
            f"{shown(out)}: not empty",
            rule="an export never writes over another",
            remedy="choose another folder, or delete it",
        )
    stored, tokenizer = load_base(base)
    dtype = stored.dtype if stored.dtype in (torch.float16, torch.bfloat16) else torch.bfloat16
    merged = PeftModel.from_pretrained(stored.float(), str(resolve(adapter))).merge_and_unload()
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    with bars_for(str(base)):
        merged.to(dtype).save_pretrained(beside)
    tokenizer.save_pretrained(beside)
    # transformers saves its own form of the tokenizer only; converters to other formats ask for the original.
    original = Path(find_model(base)) / "tokenizer.model"
    if original.is_file():
        shutil.copyfile(original, beside / original.name)
    if out.exists():
        out.rmdir()
    beside.chmod(0o755)
    os.replace(beside, out)
    return out
