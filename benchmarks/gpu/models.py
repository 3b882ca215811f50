"""A model of random weights, its tokenizer and its task, made on the machine: speed and memory do
not ask what is said.

A prompt is letters, each of which is one token, so it is exactly as long as was asked for. What
random weights choose is about any token as likely as any other: with a vocabulary of 151,936, one
completion in three hundred of 512 tokens ends by itself. That is left as it is, and the tokens are
counted.
"""

from __future__ import annotations

import os
import random
import shutil
import string
import tempfile
from pathlib import Path
from typing import Any

from workbench.task import Task

# The numbers of Qwen2.5-1.5B's config.json.
QWEN2_5_1_5B = {
    "hidden_size": 1536,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "intermediate_size": 8960,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
    "tie_word_embeddings": True,
}
TOY_CONFIG = {
    **QWEN2_5_1_5B,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "vocab_size": 2048,
    "max_position_embeddings": 512,
}
UNK, PAD, EOS = "<unk>", "<pad>", "<eos>"
SPACE = "\u0120"  # how byte-level vocabularies write the space before a word


def random_model(folder: Path, config: dict[str, Any], device: str, seed: int = 0) -> Path:
    """A folder with a Qwen2 of random bfloat16 weights and its tokenizer; made once, whole or not
    at all.
    """
    if (folder / "config.json").is_file():
        return folder
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = word_tokenizer(config["vocab_size"])
    torch.manual_seed(seed)
    made = Qwen2Config(
        **config,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.device(device):
        model = Qwen2ForCausalLM(made).to(torch.bfloat16)
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    model.save_pretrained(beside)
    tokenizer.save_pretrained(beside)
    del model
    if device == "cuda":
        torch.cuda.empty_cache()
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(beside, folder)
    return folder


def word_tokenizer(size: int) -> Any:
    """Qwen2's kind of tokenizer with `size` tokens and no merges: what is read is one token a byte.

    All others are words with a number, which only the model can choose.
    """
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    known = [UNK, PAD, EOS, *sorted(ByteLevel.alphabet())]
    words = [*known, *(f"{SPACE}w{number}" for number in range(len(known), size))]
    return Qwen2Tokenizer(
        vocab={word: number for number, word in enumerate(words)},
        merges=[],
        unk_token=UNK,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        model_max_length=32768,
        # No prompt here is a chat, but loaders ask for one.
        chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}",
    )


def word_task(prompts: int, tokens: int, seed: int = 0) -> Task:
    """`prompts` different prompts of exactly `tokens` tokens, and a reward that differs between
    random completions.
    """
    rng = random.Random(seed)
    rows = [
        {"prompt": "".join(rng.choices(string.ascii_letters, k=tokens)), "answer": str(number)}
        for number in range(prompts)
    ]
    return Task(
        name="words",
        rows=rows,
        held_out=rows[:1],
        reward_funcs=(even_words_reward,),
        right_by="even_words_reward",
    )


def even_words_reward(completions: list[Any], **_: Any) -> list[float]:
    """The share of a completion's words that have an even number: another one for each, so that
    there is a gradient.
    """
    scores = []
    for completion in completions:
        words = (completion if isinstance(completion, str) else completion[0]["content"]).split()
        scores.append(sum(word[-1] in "02468" for word in words) / max(1, len(words)))
    return scores
