"""Tokenizers made here: byte-level BPE of a few lines, with whatever special tokens and chat template a family has."""

from __future__ import annotations

import re
from typing import Any

_LINES = ["Respond in this format:\n<reasoning>\n...\n</reasoning>\n<answer>\n...\n</answer>\n", "What is 2 + 3? It is 5."]
# What stands in templates as a special token: <|im_start|>, <|turn>, <turn|>, <start_of_turn>, [INST], <image>.
_MARKS = re.compile(r"<[|｜][^<>\s{}'\"]+>|<[^<>\s{}'\"/]+[|｜]>|<(?:start|end)_of_\w+>|\[/?[A-Z_]+\]|<(?:image|s)>|</s>")


def byte_level(special: list[str]) -> Any:
    """A `tokenizers.Tokenizer`: every byte, some pairs, and these special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(_LINES * 20, trainer)
    return made


def special_tokens(template: str) -> list[str]:
    """The special tokens that a template writes, in its order."""
    return list(dict.fromkeys(_MARKS.findall(template)))


def made_tokenizer(template: str, eos: str = "</s>", bos: str = "<s>") -> Any:
    """A transformers tokenizer on a made vocabulary, with this chat template and the special tokens that it writes."""
    from transformers import PreTrainedTokenizerFast

    special = list(dict.fromkeys([bos, eos, *special_tokens(template)]))
    made = PreTrainedTokenizerFast(tokenizer_object=byte_level(special), bos_token=bos, eos_token=eos, pad_token=eos)
    made.add_special_tokens({"extra_special_tokens": special})
    made.chat_template = template
    return made
