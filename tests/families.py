"""Small random models of known families: TRL's chat templates on a made vocabulary that holds the families' special tokens.

Random weights never end: each token that may end a completion is as likely as `SHARE` says, whatever stands before it.
"""

from __future__ import annotations

import math
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch

from workbench.training.plan.loading import load_tokenizer

SHARE = 0.06


class Family(NamedTuple):
    """`special`: tokens of its vocabulary; `eos` and `pad`: the tokenizer's; `ends`: those of its generation_config."""

    kind: str
    special: str
    eos: str
    pad: str
    ends: str
    sizes: dict[str, Any] = {}  # noqa: RUF012  of a NamedTuple


_GEMMA = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
_GPTOSS = {"num_local_experts": 2, "num_experts_per_tok": 1, **_GEMMA}
FAMILIES = {
    "qwen3": Family("qwen3", "<|endoftext|> <|im_start|> <|im_end|>", "<|im_end|>", "<|endoftext|>", "<|im_end|> <|endoftext|>"),
    "llama3_1": Family(
        "llama",
        "<|begin_of_text|> <|end_of_text|> <|finetune_right_pad_id|> <|start_header_id|> <|end_header_id|> <|eom_id|> <|eot_id|>",
        "<|eot_id|>",
        "<|finetune_right_pad_id|>",
        "<|end_of_text|> <|eom_id|> <|eot_id|>",
    ),
    "gemma3": Family("gemma3_text", "<bos> <eos> <start_of_turn> <end_of_turn>", "<eos>", "<pad>", "<eos> <end_of_turn>", _GEMMA),
    "gptoss": Family(
        "gpt_oss",
        "<|startoftext|> <|endoftext|> <|return|> <|start|> <|end|> <|message|> <|channel|> <|call|>",
        "<|return|>",
        "<|endoftext|>",
        "<|return|> <|endoftext|> <|call|>",
        _GPTOSS,
    ),
}


def make_family(name: str, folder: Path, **changed: str) -> Path:
    """A model of 2 layers, 64 wide, with that family's template and special tokens; `changed`: fields of its `Family`."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    family = FAMILIES[name]._replace(**changed)
    tokenizer = load_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": family.special.split()})
    tokenizer.eos_token, tokenizer.pad_token = family.eos, family.pad
    first = family.special.split()[0]
    tokenizer.bos_token = first if "b" in first else None
    tokenizer.chat_template = files("trl").joinpath("chat_templates", f"{name}.jinja").read_text(encoding="utf-8")
    tokenizer.save_pretrained(folder)
    ends = tokenizer.convert_tokens_to_ids(family.ends.split())
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": len(tokenizer), "head_dim": 16}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": False}
    tokens = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": ends, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family.kind, **sizes, **tokens, **family.sizes)).float()
    with torch.no_grad():
        # All hidden states share a direction, to which the heads of these tokens point.
        shared = torch.ones(64) / 8
        model.get_input_embeddings().weight.add_(shared)
        for each in {*ends, tokenizer.eos_token_id}:
            model.get_output_embeddings().weight[each] = shared * math.log(SHARE * len(tokenizer)) / 8
    model.generation_config = GenerationConfig(**tokens)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder
