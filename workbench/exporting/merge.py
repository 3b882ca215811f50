"""Merging an adapter into the 16-bit base model.

The adapter was trained beside 4-bit weights, but it is merged into the 16-bit ones: merging into 4-bit weights would
round the sum back to 4 bits, and is refused on a CPU. Plain transformers and PEFT do it, with no unsloth, so the result
depends on nothing that the reader of the file needs.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from workbench.errors import ExportError
from workbench.training.loading import bars_for, find_model, quiet_imports
from workbench.workspace import resolve, shown

_PREQUANTISED = re.compile(r"-(unsloth-)?bnb-4bit$", re.IGNORECASE)


def sixteen_bit_base(source: str | Path) -> str:
    """The 16-bit model that belongs to a policy's source: the same, without the hub's `-bnb-4bit`.

    Raises:
        ExportError: if a local folder holds 4-bit weights only.
    """
    text = str(source)
    folder = Path(text)
    if folder.is_dir():
        import json

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
