"""How a policy generates outside a trainer: as in training, from its own distribution."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator
from typing import Any

from workbench.base.instruments import plugged
from workbench.base.kinds import Fields, Tensor
from workbench.training.plan.loading import eos_ids
from workbench.training.policy import Policy


@contextlib.contextmanager
def drawing(
    policy: Policy,
    *,
    max_completion_length: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    base: bool = False,
) -> Generator[Callable[[Any, int], Tensor]]:
    """Inside, a function generates as `sample` does: (padded inputs, how many for each) -> ids that
    were drawn [N, T].
    """
    import torch

    shape: Fields = {"do_sample": False}
    if temperature:
        shape = {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p}
        shape["min_p"] = min_p
    sampling: Fields = {
        # What the model's own generation_config asks for besides is not what it is trained under.
        "min_p": None,
        **shape,
        "repetition_penalty": repetition_penalty,
        "no_repeat_ngram_size": 0,
        "max_new_tokens": max_completion_length,
        "pad_token_id": policy.tokenizer.pad_token_id,
        "eos_token_id": eos_ids(policy) or None,
    }

    cuda = policy.model.device.type == "cuda"
    by_unsloth = _by_unsloths_kernels(policy)
    with (
        policy.generating(base=base) as model,
        torch.random.fork_rng(devices=[policy.model.device] if cuda else []),
        torch.inference_mode(),
        contextlib.ExitStack() as entered,
    ):
        for faster in plugged("drawing").values():
            entered.enter_context(faster(model, by_unsloth))
        torch.manual_seed(seed)

        def draw(inputs: Any, count: int) -> Tensor:
            # Seen on an H100: for one row alone Unsloth's 4-bit decoding takes tokens that the same
            # weights find up to e^4.6 times less likely than those that it takes among eight rows.
            alone = by_unsloth and len(inputs["input_ids"]) * count == 1
            inputs = {
                name: rows.to(model.device).repeat(1 + alone, 1) for name, rows in inputs.items()
            }
            drawn = model.generate(**inputs, **sampling, num_return_sequences=count)
            return drawn[: len(drawn) - alone, inputs["input_ids"].shape[1] :]

        yield draw


def _by_unsloths_kernels(policy: Policy) -> bool:
    return policy.model.device.type == "cuda" and policy.backend_name == "unsloth"


def until_eos(ids: list[int], ends: Collection[int]) -> tuple[list[int], bool]:
    """A completion's ids up to and including the first token that ends it; and whether there is
    one.
    """
    for place, token in enumerate(ids):
        if token in ends:
            return ids[: place + 1], True
    return ids, False
