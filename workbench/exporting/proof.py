"""The proof of an export: the merged model, loaded from its files, against base + adapter.

Exports that equal the base model are a known failure in this field, so the proof measures both distances: merged to
adapter, which must be rounding, and merged to base, which must not be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.data.template import prompt_text
from workbench.errors import ExportError
from workbench.exporting.merge import Exported, load_base
from workbench.workspace import resolve

# A 16-bit weight is rounded at 1 part in 256 (bfloat16), so logits of size 10 move by a few hundredths over the layers.
LARGEST_ROUNDING = 0.05  # share of the logits' own spread that rounding may move them by
_OTHER_BASE = "check that base and adapter belong together; `base` must be the 16-bit model of the run's policy"
_TOO_LARGE = (
    "it is the trained policy, and its adapter's weights are so large that 16 bits round them this far, as after a learning "
    "rate that was too high; train with a lower one, or serve base + adapter (export/adapter), which rounds nothing"
)


@dataclass(frozen=True)
class Proof:
    """Merged model against base + adapter, on the same prompts."""

    prompts: int
    largest_logit_difference: float  # over every position of every prompt and its completion
    logit_spread: float  # std of the adapter's logits: what the difference is to be compared with
    same_greedy: int  # prompts whose greedy completions are equal, token for token
    largest_difference_to_base: float  # what the adapter changed
    answers: list[str]  # the merged model's greedy completions
    agrees: bool = field(init=False)  # merged and adapter are one model up to 16-bit rounding, and not the base

    def __post_init__(self) -> None:
        near = self.largest_logit_difference <= LARGEST_ROUNDING * self.logit_spread
        moved = self.largest_difference_to_base > 4 * self.largest_logit_difference
        object.__setattr__(self, "agrees", bool(near and moved and self.same_greedy == self.prompts))

    def require(self) -> None:
        """Pass in silence if the merged model is the trained policy.

        Raises:
            ExportError: if it is not, with the numbers.
        """
        if not self.agrees:
            raise ExportError(
                f"merged and adapter differ by up to {self.largest_logit_difference:.3g} (the logits' spread is "
                f"{self.logit_spread:.3g}, the adapter's own effect {self.largest_difference_to_base:.3g}); "
                f"{self.same_greedy} of {self.prompts} greedy completions are the same",
                rule="a merged model is base + adapter up to 16-bit rounding, which moves logits by at most "
                f"{LARGEST_ROUNDING:.0%} of their spread",
                remedy=_TOO_LARGE if self._only_rounded else _OTHER_BASE,
            )

    @property
    def _only_rounded(self) -> bool:
        # Another base would write other completions. Rounding is a share of a weight, so it moves large ones far.
        far = self.largest_logit_difference / self.largest_difference_to_base if self.largest_difference_to_base else 1.0
        return self.same_greedy == self.prompts and far <= LARGEST_ROUNDING


def prove(exported: Exported, prompts: Sequence[Any], max_completion_length: int = 96) -> Proof:
    """Load the merged model with plain transformers and hold it against base + adapter, in 32-bit arithmetic.

    >>> proof = wb.prove(exported, [row["prompt"] for row in wb.load_task("arithmetic").held_out[:2]])
    >>> proof.prompts, proof.largest_logit_difference < 0.01
    (2, True)

    Leaves `export/proof.json` in the folder of the run that was exported.

    Args:
        prompts: chat messages or text; a dozen will do.

    Raises:
        ExportError: if there are no prompts.
    """
    import torch
    from peft import PeftModel

    if not len(prompts):
        raise ExportError("0 prompts", rule="a proof compares answers", remedy="give a few held-out prompts")
    base_model, tokenizer = load_base(exported.base, dtype="float32")
    merged_model, merged_tokenizer = load_base(exported.merged, dtype="float32")
    tokenizer.chat_template_kwargs = merged_tokenizer.chat_template_kwargs = dict(exported.chat_template_kwargs)
    with_adapter = PeftModel.from_pretrained(base_model, str(exported.adapter)).eval()
    largest = to_base = 0.0
    spreads, answers, same = [], [], 0
    with torch.inference_mode():
        for prompt in prompts:
            ids = _ids(tokenizer, prompt)
            expected = _greedy(with_adapter, tokenizer, ids, max_completion_length)
            got = _greedy(merged_model, merged_tokenizer, _ids(merged_tokenizer, prompt), max_completion_length)
            same += bool(torch.equal(expected, got))
            answers.append(merged_tokenizer.decode(got[0, ids.shape[1] :], skip_special_tokens=True))
            # Both read the adapter's own completion, so that every position is compared, not only the prompt's.
            logits = with_adapter(expected).logits
            largest = max(largest, float((merged_model(expected).logits - logits).abs().max()))
            spreads.append(float(logits.std()))
            with with_adapter.disable_adapter():
                to_base = max(to_base, float((with_adapter(expected).logits - logits).abs().max()))
    proof = Proof(len(prompts), largest, sum(spreads) / len(spreads), same, to_base, answers)
    if exported.run is not None:
        exported.run.write_json("export/proof.json", proof)
    return proof


def ask(exported: Exported | str | Path, question: str, system_prompt: str | None = None, max_completion_length: int = 96) -> str:
    """Ask the merged model one question, greedily, through plain transformers.

    >>> wb.ask(exported, "What is 15 + 27?")
    '...'

    Args:
        exported: an export, whose run's `chat_template_kwargs` are used, or the folder of any saved model.
        system_prompt: the one that it was trained under; None: none.
    """
    import torch

    known = isinstance(exported, Exported)
    model, tokenizer = load_base(exported.merged if known else resolve(exported), dtype="float32")
    tokenizer.chat_template_kwargs = dict(exported.chat_template_kwargs) if known else {}
    prompt = [{"role": "system", "content": system_prompt}] if system_prompt else []
    ids = _ids(tokenizer, [*prompt, {"role": "user", "content": question}])
    with torch.inference_mode():
        output = _greedy(model, tokenizer, ids, max_completion_length)
    return tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)


def _ids(tokenizer: Any, prompt: Any) -> Any:
    chat = not isinstance(prompt, str)
    return tokenizer(prompt_text(prompt, tokenizer), return_tensors="pt", add_special_tokens=not chat)["input_ids"]


def _greedy(model: Any, tokenizer: Any, ids: Any, max_completion_length: int) -> Any:
    return model.generate(
        input_ids=ids,
        attention_mask=ids.new_ones(ids.shape),
        do_sample=False,
        max_new_tokens=max_completion_length,
        pad_token_id=tokenizer.pad_token_id,
    )
