"""In a separate process: the checkpoint that transformers reads out of SmolLM2's GGUF file."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from workbench.instruments.policies.smollm2 import SMOLLM2

_CONTROL = 3  # GGUF's type of a special token
_LENGTH = 8192  # tokens
_CARD = f"""---
base_model: {SMOLLM2.public}
library_name: transformers
license: apache-2.0
---

# SmolLM2-135M-Instruct, as the workbench made it

It comes out of a GGUF file: {SMOLLM2.origin}.
The tokenizer and the chat template are the model's own.
"""


def write_checkpoint(source: Path, folder: Path) -> None:
    """Write the checkpoint, in bfloat16, with the tokenizer of the same file."""
    import torch
    from transformers import AutoModelForCausalLM

    how: Any = {"gguf_file": source.name, "dtype": torch.bfloat16}
    read = AutoModelForCausalLM.from_pretrained(source.parent, **how)
    config = read.config
    # A model that was quantised is not saved: its plain weights go into one that never was.
    for name in ("quantization_config", "_model_name_or_path"):
        vars(config).pop(name, None)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)
    fields = importlib.import_module("gguf").GGUFReader(source).fields  # of an extra
    own = {
        name.removeprefix("tokenizer."): field.contents()
        for name, field in fields.items()
        if name.startswith("tokenizer.")
    }
    _tokenizer(own).save_pretrained(folder)
    (folder / "README.md").write_text(_CARD, encoding="utf-8")


def _tokenizer(own: dict[str, Any]) -> Any:
    # transformers makes another one of GGUF: turns do not end it, digits are not split, and a text
    # with U+2581 comes back with a space in its place.
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if own["ggml.pre"] != "smollm":
        raise ValueError(f"tokenizer.ggml.pre = {own['ggml.pre']!r}")
    tokens, merges = own["ggml.tokens"], [tuple(each.split(" ")) for each in own["ggml.merges"]]
    inner = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.pre_tokenizer = pre_tokenizers.Sequence([digits, by_bytes])
    inner.decoder = decoders.ByteLevel()
    kinds = zip(tokens, own["ggml.token_type"], strict=True)
    inner.add_special_tokens(
        [AddedToken(token, normalized=False) for token, kind in kinds if kind == _CONTROL]
    )
    named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_max_length=_LENGTH,
        clean_up_tokenization_spaces=False,
        chat_template=own["chat_template"],
        **{f"{ours}_token": tokens[own[f"ggml.{its}_token_id"]] for ours, its in named.items()},
    )


if __name__ == "__main__":
    write_checkpoint(*map(Path, sys.argv[1:]))
