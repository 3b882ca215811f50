"""Artefacts read back as a stranger would: transformers and PEFT for folders of safetensors,
llama.cpp for GGUF.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from workbench.base.errors import ExportError, WorkbenchError
from workbench.data.rendering import prompt_text
from workbench.exporting.artefacts import Artefact
from workbench.exporting.merging import source_of
from workbench.training import plain
from workbench.training.drawing import until_eos
from workbench.training.plan.loading import bars_for, find_model, reading, with_adapter
from workbench.training.sampling import logprobs_of

if TYPE_CHECKING:
    from workbench.exporting.gguf import Gguf

# an artefact in memory; log-probabilities are natural, at temperature 1
Reader: TypeAlias = "HFReader | Gguf"


class BaseUnread(ExportError):
    """The base under an adapter is not here, or cannot be read: the adapter is not at fault."""


def open_reader(artefact: Artefact) -> Reader:
    """Load an artefact; PolicyError or ExportError if it cannot be.

    A merged model is read from its own folder. An adapter goes on the base as in training:
    quantised to NF4 again where the run trained in 4 bits. On a CPU 16-bit weights compute in 32
    bits.
    """
    run, folder = artefact.run, artefact.path
    policy = run.manifest()["policy"] if run else {}
    context = policy.get("max_seq_length")
    if artefact.format.startswith("gguf"):
        from workbench.exporting.gguf import Gguf

        return Gguf(artefact.gguf, n_ctx=context or 4096)
    plain.version()  # imports what must come first
    from transformers import AutoTokenizer

    def loaded(source: str, in_4bit: bool) -> Any:
        with reading(f"model {source!r}"), bars_for(source):
            return plain.load_base(
                source, load_in_4bit=in_4bit, max_seq_length=context or 2**20, dtype=None
            )[0]

    is_adapter, ends = artefact.format == "adapter", None
    if is_adapter:
        try:
            base = find_model(source_of(run) if run else artefact.base)
            model = loaded(base, policy.get("precision") == "nf4")
        except WorkbenchError as error:
            raise BaseUnread(error.value, rule=error.rule, remedy=error.remedy) from error
        model = with_adapter(model, folder)
    else:
        model = loaded(find_model(folder), False)
    with reading(f"tokenizer and generation_config.json in {folder.name}"):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        settings = folder / "generation_config.json"
        if is_adapter and settings.is_file():
            ends = json.loads(settings.read_text(encoding="utf-8")).get("eos_token_id")
    model.config.use_cache = True
    return HFReader(model.eval(), tokenizer, ends)


def _ids(ids: int | list[int] | None) -> list[int]:
    return [ids] if isinstance(ids, int) else list(ids or [])


class HFReader:
    """An artefact in plain transformers. `ends`: an adapter's own EOS tokens; None: the model's."""

    def __init__(self, model: Any, tokenizer: Any, ends: int | list[int] | None = None) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.of_base = _ids(model.generation_config.eos_token_id)
        self.ends = self.of_base if ends is None else _ids(ends)
        config = model.config.get_text_config()
        self.context = getattr(config, "max_position_embeddings", None) or 2**20  # tokens
        self.alone = False  # whether an adapter's base writes, without it

    def render(self, prompt: object) -> str | None:
        """A prompt's text by the artefact's own chat template; None if it has none. Text stays as
        it is.
        """
        if isinstance(prompt, str) or self.tokenizer.chat_template:
            return prompt_text(prompt, self.tokenizer)
        return None

    def prompt_ids(self, prompt: object) -> list[int]:
        """What software that loads this artefact feeds it for a prompt: rendered, tokenised, with
        any BOS that this adds.
        """
        # A template writes the special tokens itself, and those who use one add no others.
        return self.tokenizer(
            prompt_text(prompt, self.tokenizer), add_special_tokens=isinstance(prompt, str)
        )["input_ids"]

    def ids(self, text: str) -> list[int]:
        """The ids of a text, nothing added, special tokens recognised."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def logprobs(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> list[float]:
        return logprobs_of(self.model, [(prompt_ids, completion_ids)])[0]

    def write(self, ids: Sequence[int], most: int, temperature: float = 0.0) -> list[int]:
        """A completion of at most this many tokens, EOS included."""
        with self.model.disable_adapter() if self.alone else contextlib.nullcontext():
            return self.generate([ids], most, temperature)[0]

    def generate(
        self, prompts: Sequence[Sequence[int]], max_completion_length: int, temperature: float = 0.0
    ) -> list[list[int]]:
        """Completions of several prompts, generated together; they end at the EOS tokens of its
        generation_config.
        """
        import torch

        pad, width = self.tokenizer.pad_token_id or 0, max(map(len, prompts))
        ids = [[pad] * (width - len(own)) + list(own) for own in prompts]
        mask = [[0] * (width - len(own)) + [1] * len(own) for own in prompts]
        with torch.inference_mode():
            written = self.model.generate(
                input_ids=torch.tensor(ids, device=self.model.device),
                attention_mask=torch.tensor(mask, device=self.model.device),
                max_new_tokens=max_completion_length,
                pad_token_id=pad,
                eos_token_id=self.ends or None,
                # What its generation_config asks for besides is not what it was trained under.
                do_sample=temperature > 0,
                temperature=temperature or None,
                top_k=0 if temperature else None,
                top_p=1.0 if temperature else None,
                min_p=None,
                repetition_penalty=1.0,
                no_repeat_ngram_size=0,
            )
        return [until_eos(row, self.ends)[0] for row in written[:, width:].tolist()]
