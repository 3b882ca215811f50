"""The loop: read each prompt once, then one token at a time for the completions that are not finished.

Same draws, same completions: random numbers are drawn for every row of the batch, finished or not, in the order in which
transformers draws them, so a seed gives the same completions as it does there. Two things can make a difference. Reading
eight prompts instead of 64 copies, and decoding ten rows instead of 64, may round the last bit of a logit differently; on
the CPUs that it was tried on it did not. And on a GPU, where the host looks only now and then whether all have finished,
up to seven draws more are made, so the next batch is another sample of the same distribution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from transformers import EosTokenCriteria, MaxLengthCriteria

from workbench.training.generation.adapters import lean_adapters
from workbench.training.generation.support import NotNumbers, check_asked, check_cache, check_model

_LEAVE_AT = 0.75  # finished rows leave when no more than this share of the rows is unfinished
# Asking a GPU whether all are finished makes the host wait for it; between two questions it works ahead.
_LOOK_EVERY = {"cpu": 1}
_LOOK_EVERY_ELSEWHERE = 8


class Optimizations(NamedTuple):
    """What the loop does differently from transformers' own; each can be left out, to see what it brings."""

    shared_prefill: bool = True
    lean_adapters: bool = True
    drop_finished: bool = True


ALL = Optimizations()


def decoder(use: Optimizations = ALL) -> Callable[..., Any]:
    """A function for `generate(custom_generate=...)`.

    It raises `Unsupported` for what it does not do, before a token is drawn or anything is changed.
    """

    def decode(
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        check_asked(generation_config, logits_processor, stopping_criteria, model_kwargs)
        check_model(model)
        rows = _Rows(model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs, use)
        if not use.lean_adapters:
            return rows.decode()
        with lean_adapters(model):
            return rows.decode()

    return decode


class _Rows:
    """The rows of one call that are still in flight.

    B rows are asked for, R are in flight, T is where the longest text may end. `out` [B, T] is what is returned, `text`
    [R, T] the same for the rows in flight, `row` [R] which of the B each is.
    """

    def __init__(
        self,
        model: Any,
        prompts: Any,
        processors: Any,
        criteria: Any,
        config: Any,
        kwargs: dict[str, Any],
        use: Optimizations,
    ) -> None:
        self.model, self.processors, self.use = model, processors, use
        self.sampling = config.do_sample
        self.most = min(each.max_length for each in criteria if isinstance(each, MaxLengthCriteria))
        self.eos = next((each.eos_token_id for each in criteria if isinstance(each, EosTokenCriteria)), None)
        pad = config._pad_token_tensor
        self.pad = 0 if pad is None else int(pad)
        if self.eos is not None:
            self.eos = self.eos.to(prompts.device)
        self.cache, self.mask, self.position = (kwargs[name] for name in ("past_key_values", "attention_mask", "position_ids"))
        self.asked = {key: kwargs[key] for key in ("use_cache", "logits_to_keep") if key in kwargs}
        self.count, self.prompt_length = prompts.shape
        self.out = prompts.new_full((self.count, self.most), self.pad)
        self.out[:, : self.prompt_length] = prompts
        self.every = _LOOK_EVERY.get(prompts.device.type, _LOOK_EVERY_ELSEWHERE)

    @torch.no_grad()
    def decode(self) -> torch.Tensor:
        """[B, prompt + completion]: finished rows are padded, and the longest has no padding after it."""
        logits = self._read_prompts()
        self.text, self.row = self.out.clone(), torch.arange(self.count, device=self.out.device)
        unfinished = torch.ones_like(self.row, dtype=torch.bool)
        sound = torch.ones((), dtype=torch.bool, device=self.out.device)
        end = self.prompt_length
        while True:
            tokens, fine = self._choose(logits, end)
            sound &= fine
            if self.eos is not None:
                tokens = torch.where(unfinished, tokens, self.pad)
                unfinished &= ~torch.isin(tokens, self.eos)
            self.text[:, end] = tokens
            end += 1
            if end == self.most:
                break
            if self.eos is not None and (end - self.prompt_length) % self.every == 0:
                left = int(unfinished.sum())
                if left == 0:
                    break
                if self.use.drop_finished and left <= _LEAVE_AT * len(self.row):
                    tokens, unfinished = self._drop(unfinished, tokens)
            logits = self._read(tokens, end)
        if not sound:
            raise NotNumbers("the probability of a token is no number: the policy's weights or logits are inf or nan")
        self.out[self.row] = self.text
        return self.out[:, : self._longest(end)]

    def _read_prompts(self) -> torch.Tensor:
        first, owner = _distinct(self.out[:, : self.prompt_length], self.mask, self.use.shared_prefill)
        mask = self.mask
        positions = self.position.expand(self.count, -1)
        logits = self._forward(self.out[first, : self.prompt_length], mask[first], positions[first])
        check_cache(self.cache)
        if len(first) < self.count:
            self.cache.batch_select_indices(owner)
        self.mask = mask.new_ones((self.count, self.most))
        self.mask[:, : self.prompt_length] = mask
        self.position = positions[:, -1:]
        return logits[owner]

    def _read(self, tokens: torch.Tensor, end: int) -> torch.Tensor:
        self.position = self.position + 1
        return self._forward(tokens[:, None], self.mask[:, :end], self.position)

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        output = self.model(
            input_ids=ids, attention_mask=mask, position_ids=position, past_key_values=self.cache, return_dict=True,
            **self.asked,
        )  # fmt: skip
        return output.logits[:, -1].to(copy=True, dtype=torch.float32, device=self.out.device)

    def _choose(self, logits: torch.Tensor, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.processors(self.text[:, :end], logits)
        if not self.sampling:
            return scores.argmax(-1), torch.ones((), dtype=torch.bool, device=scores.device)
        chances = scores.softmax(-1)
        # What torch.multinomial does for one draw a row, with numbers for the rows that have left, too.
        noise = chances.new_empty((self.count, chances.shape[-1])).exponential_()
        if len(self.row) < self.count:
            noise = noise[self.row]
        return (chances / noise).argmax(-1), chances.sum().isfinite()

    def _drop(self, unfinished: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.out[self.row] = self.text
        keep = unfinished.nonzero()[:, 0]
        self.text, self.row, self.mask, self.position = (each[keep] for each in (self.text, self.row, self.mask, self.position))
        self.cache.batch_select_indices(keep)
        return tokens[keep], unfinished[keep]

    def _longest(self, end: int) -> int:
        # Between two looks at a GPU every row may have finished: transformers would have stopped there.
        if self.eos is None or self.every == 1:
            return end
        completions = self.out[:, self.prompt_length : end]
        ended = torch.isin(completions, self.eos)
        lengths = torch.where(ended.any(-1), ended.int().argmax(-1) + 1, completions.shape[1])
        return self.prompt_length + int(lengths.max())


def _distinct(prompts: torch.Tensor, mask: torch.Tensor, shared: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(the first row of each run of equal prompts [U], for every row the place of its prompt among those [B])."""
    every = torch.arange(len(prompts), device=prompts.device)
    if not shared:
        return every, every
    # With the mask, because a padding token may also be a token of a prompt.
    _, owner = torch.unique_consecutive(torch.cat([prompts, mask], dim=1), dim=0, return_inverse=True)
    new = torch.ones_like(owner, dtype=torch.bool)
    new[1:] = owner[1:] != owner[:-1]
    return every[new], owner
