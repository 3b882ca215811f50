"""GGUF files spoiled on purpose, written by llama.cpp's own Python library."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from workbench.exporting.gguf import check_tools


def spoil(file: Path, out: Path, without: str = "", **changed: Any) -> Path:
    """A copy of a GGUF file with other metadata.

    Args:
        without: a field that is left out: "tokenizer.chat_template".
        changed: `add_bos_token=True`, `eos_token_id=3` (of `tokenizer.ggml`), `chat_template="…"`.
    """
    sys.path.insert(0, str(check_tools() / "gguf-py"))
    try:
        import gguf
        from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata
    finally:
        sys.path.pop(0)
    kinds = {bool: gguf.GGUFValueType.BOOL, int: gguf.GGUFValueType.UINT32, str: gguf.GGUFValueType.STRING}
    names = {name: f"tokenizer.{'' if name == 'chat_template' else 'ggml.'}{name}" for name in changed}
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(out, reader.get_field("general.architecture").contents())
    new = {names[name]: MetadataDetails(kinds[type(value)], value) for name, value in changed.items()}
    copy_with_new_metadata(reader, writer, new, [without])
    return out
