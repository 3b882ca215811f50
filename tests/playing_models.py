"""A small policy that plays a game with a tool: two transcripts learned by heart, nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from made_tokenizers import made_tokenizer

from workbench.rewards.answers import completion_text

TEMPLATE = (
    "{%- if tools %}<|tools|>{% for tool in tools %}{{ tool.function.name }} {% endfor %}{{ eos_token }}{% endif %}"
    "{%- for message in messages %}{{- '<|' + message.role + '|>' + (message.content or '') }}"
    "{%- for call in message.tool_calls or [] %}{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}"
    "{{- eos_token }}{% endfor %}{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}"
)
MARKS = ["<|tools|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>", "close_pattern": r"</tool_call>\s*", "repeats": True, "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": "</s>", "content": "text"},
    },
}  # fmt: skip


class Game:
    """The number is 1 or 2, and the policy's first guess is 2."""

    made = 0

    def __init__(self) -> None:
        Game.made += 1
        self.secret, self.seed, self.guesses = 0, None, []

    def reset(self, secret: int = 1, seed: int | None = None, **row: object) -> str:
        """Begin."""
        self.secret, self.seed, self.guesses = secret, seed, []
        return " Go."

    def guess(self, number: int) -> str:
        """
        Guess the number.

        Args:
            number: the guess.
        """
        self.guesses.append(number)
        if self.secret > 9:
            raise ValueError("no such game")
        return "yes" if number == self.secret else "lower"

    def get_reward(self) -> float:
        """1 for a number that was guessed."""
        return float(self.secret in self.guesses)


def said_done(completions, **columns):
    """1 where the last word is `done`."""
    return [float(completion_text(completion[-1:]) == "done") for completion in completions]


def guessed(completions, environments, **columns):
    """1 where the environment knows that the number was guessed."""
    return [environment.get_reward() for environment in environments]


def row_of(secret: int) -> dict[str, Any]:
    """A row of the game."""
    return {"prompt": [{"role": "user", "content": "Guess."}], "secret": secret}


def transcript(secret: int) -> list[dict[str, Any]]:
    """What the policy knows by heart."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Guess. Go."}]
    for number in (2, 1)[: 3 - secret]:
        call = {"type": "function", "function": {"name": "guess", "arguments": {"number": number}}}
        said = "yes" if number == secret else "lower"
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "guess", "content": said},
        ]
    return [*messages, {"role": "assistant", "content": "done"}]


def make_player(folder: Path) -> Path:
    """The policy, 2 layers, 64 wide, saved in a folder."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    tokenizer = made_tokenizer(TEMPLATE)
    tokenizer.add_special_tokens({"extra_special_tokens": MARKS})
    tokenizer.add_tokens(['<tool_call>{"name": "guess", "arguments": {"number": ', "}}</tool_call>"])  # short to learn
    tokenizer.response_template = RESPONSE
    ids = [tokenizer.apply_chat_template(transcript(secret), tools=[Game().guess], return_dict=False) for secret in (1, 2)]
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": len(tokenizer)}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    special = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**sizes, **special))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(60):
            batch = [torch.tensor([own]) for own in ids]
            loss = sum(model(input_ids=own, labels=own).loss for own in batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.generation_config = GenerationConfig(**special)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
