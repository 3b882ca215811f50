"""What the embedded policy does on held-out prompts, in 16 bits or through NF4."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BatchEncoding,
    BitsAndBytesConfig,
    LlamaForCausalLM,
    LlamaTokenizer,
    PreTrainedTokenizerBase,
)

from tools.tiny import habits
from tools.tiny.learning import to_batch
from workbench.data.prompts import SYSTEM_PROMPT, to_messages
from workbench.tiny import task as arithmetic


@torch.no_grad()
def sample_completions(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[dict[str, str]]],
    max_new_tokens: int = 96,
    greedy: bool = False,
    batch_size: int = 100,
) -> list[str]:
    """One completion per prompt, at temperature 1.0 from torch's global generator, or the likeliest
    if ``greedy``.
    """
    model.eval()
    completions = []
    for start in range(0, len(prompts), batch_size):
        asked = prompts[start : start + batch_size]
        how: dict[str, Any] = {"padding": True, "return_tensors": "pt", "return_dict": True}
        encoded = tokenizer.apply_chat_template(asked, add_generation_prompt=True, **how)
        batch = cast(BatchEncoding, encoded)  # typed for all of its flags
        out = cast(Any, model).generate(
            **batch, max_new_tokens=max_new_tokens, do_sample=not greedy,
                temperature=None if greedy else 1.0,
            top_k=None if greedy else 0, top_p=None if greedy else 1.0,
                pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        completions += tokenizer.batch_decode(
            out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
        )
    return completions


def measure(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    prompts: int = 200,
    samples: int = 4,
    seed: int = 0,
) -> dict[str, float]:
    """Shares (0 to 1) over ``samples`` completions of each of ``prompts`` held-out prompts at
    temperature 1.0.

    ``strict_correct`` and ``strict_format``; each habit of ``habits.HABIT_NAMES``; and ``skill``:
    how often a short completion in the strict format is right when it does not show one of the
    errors that were taught. Skill is what GRPO can lift ``strict_correct`` to.
    """
    problems = [
        p for p in arithmetic.sample_problems("held_out", prompts, seed) for _ in range(samples)
    ]
    torch.manual_seed(seed)
    completions = sample_completions(
        model, tokenizer, [to_messages(p.question, SYSTEM_PROMPT) for p in problems]
    )
    pairs = list(zip(completions, problems, strict=True))

    def share(flags: Iterable[bool]) -> float:
        flags = list(flags)
        return sum(flags) / len(flags) if flags else 0.0

    shown = [habits.classify(completion, problem.answer) for completion, problem in pairs]
    meant = [
        habit == "right"
        for habit, (completion, problem) in zip(shown, pairs, strict=True)
        if habit in ("right", "wrong_sum") and not habits.is_deliberate_error(completion, problem)
    ]
    return {
        "strict_correct": share(
            habits.is_strict_correct(completion, p.answer) for completion, p in pairs
        ),
        "strict_format": share(
            habits.strict_blocks(completion) is not None for completion in completions
        ),
        **{name: share(habit == name for habit in shown) for name in habits.HABIT_NAMES},
        "skill": share(meant),
    }


@torch.no_grad()
def digits_foreseen(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, problems: list[arithmetic.Problem]
) -> float:
    """The share (0 to 1) of the digits in the problems' ideal completions that the model finds
    likeliest in place.

    Each digit is foreseen from all that really comes before it, so this rises long before sampled
    answers are right.
    """
    texts = [
        (p, to_messages(p.question, SYSTEM_PROMPT), habits.ideal_completion(p)) for p in problems
    ]
    digits = torch.tensor(tokenizer.convert_tokens_to_ids(list("0123456789")))
    hits = total = 0
    for prefix, ids, labels in to_batch(texts, tokenizer):
        assert prefix is not None  # every text here has the system message
        whole = torch.cat([prefix.expand(len(ids), -1), ids], dim=1)
        foreseen = model(input_ids=whole).logits[:, prefix.shape[1] : -1].argmax(-1)
        wanted = labels[:, 1:]
        is_digit = torch.isin(wanted, digits)
        hits += int((foreseen[is_digit] == wanted[is_digit]).sum())
        total += int(is_digit.sum())
    return hits / total


def load(folder: str | Path, nf4: bool = False) -> tuple[LlamaForCausalLM, LlamaTokenizer]:
    """The model and tokenizer of a built folder, computing in float32; with ``nf4``, quantised by
    bitsandbytes.
    """
    quantised = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    extra = {"quantization_config": quantised, "device_map": "cpu"} if nf4 else {}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **extra)
    return model.eval(), cast(LlamaTokenizer, AutoTokenizer.from_pretrained(folder))
