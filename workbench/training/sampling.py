"""Sampling completions outside the trainer: the preview before training, and the held-out measurement after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from workbench.data.lengths import prompt_text
from workbench.training.generation import UNSLOTH_ON_A_GPU, Generation
from workbench.training.policy import Policy


class Completion(NamedTuple):
    """One sampled completion."""

    text: str
    ids: list[int]
    finished: bool  # the policy ended its turn, rather than being cut at the limit


def sample(
    policy: Policy,
    prompts: Sequence[Any],
    *,
    num_generations: int = 1,
    max_completion_length: int = 96,
    temperature: float = 1.0,
    seed: int = 0,
    base: bool = False,
    batch_size: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> list[list[Completion]]:
    """Sample `num_generations` completions for each prompt, from the policy's own distribution: [P][G].

    >>> [group] = wb.sample(policy, ["What is 1 + 1?"], num_generations=4)
    >>> len(group), group[0].text  # and .finished: it ended before the limit
    (4, '...')

    Nothing but the temperature shapes it (no top-k, no top-p), which is what TRL's defaults do. Generated as in training with
    `generation: auto`, whatever a recipe says of its training.

    Args:
        policy: loaded policy.
        prompts: chat messages or text.
        temperature: 0 takes the likeliest token every time.
        seed: the same seed gives the same completions; the caller's random state is left as it was.
        base: sample from the base model, without the adapter.
        batch_size: prompts at a time are chosen so that at most this many completions are generated together.
        progress: called with (prompts done, prompts in all) after each batch.
    """
    import torch

    per_batch = max(1, batch_size // num_generations)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {"do_sample": False}
    # What the model's own generation_config asks for besides is not what it is trained under.
    sampling |= {"min_p": None, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
    found: list[list[Completion]] = []
    cuda = policy.model.device.type == "cuda"
    devices = [policy.model.device] if cuda else []
    why_not = UNSLOTH_ON_A_GPU if cuda and policy.backend_name == "unsloth" else None
    with (
        policy.generating(base=base) as model,
        torch.random.fork_rng(devices=devices),
        torch.inference_mode(),
        Generation(model, why_not, lambda reason: print(f"transformers' own path generates: {reason}", flush=True)),
    ):
        torch.manual_seed(seed)
        for start in range(0, len(prompts), per_batch):
            chunk = prompts[start : start + per_batch]
            inputs = _left_padded(policy.tokenizer, chunk).to(model.device)
            output = model.generate(
                **inputs,
                **sampling,
                num_return_sequences=num_generations,
                max_new_tokens=max_completion_length,
                pad_token_id=policy.tokenizer.pad_token_id,
                eos_token_id=policy.tokenizer.eos_token_id,
            )
            tokens = output[:, inputs["input_ids"].shape[1] :].tolist()
            completions = [_completion(ids, policy.tokenizer) for ids in tokens]
            found += [completions[i : i + num_generations] for i in range(0, len(completions), num_generations)]
            if progress is not None:
                progress(len(found), len(prompts))
    return found


def _left_padded(tokenizer: Any, prompts: Sequence[Any]) -> Any:
    chat = not isinstance(prompts[0], str)
    return tokenizer(
        [prompt_text(prompt, tokenizer) for prompt in prompts],
        return_tensors="pt",
        padding=True,
        padding_side="left",
        add_special_tokens=not chat,
        return_token_type_ids=False,
    )


def _completion(ids: list[int], tokenizer: Any) -> Completion:
    finished = tokenizer.eos_token_id in ids
    if finished:
        ids = ids[: ids.index(tokenizer.eos_token_id) + 1]
    return Completion(tokenizer.decode(ids, skip_special_tokens=True), ids, finished)
