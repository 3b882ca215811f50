"""The loop: read each prompt once, then decode one token at a time for the completions that are not
finished.

Same draws, same completions: random numbers are drawn for every row of the batch, finished or not,
in the order in which transformers draws them, so a seed gives the same completions as there.
Reading eight prompts instead of 64 copies, and decoding ten rows instead of 64, may round the last
bit of a logit differently, as it does on an Intel processor with AMX; two tokens that are as good
as equal then change places. And on a GPU, where the host looks only now and then whether all have
finished, up to seven draws more are made, so the next batch is another sample of the same
distribution.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, NamedTuple

import torch
import transformers as hf
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.generation import GenerationMode

from workbench.base.kinds import Fields, Function
from workbench.instruments.cpu.generation.adapters import lean_adapters

# Each judges a row by that row alone, so rows can leave the batch when they are finished.
ROW_BY_ROW = (
    hf.TemperatureLogitsWarper, hf.TopKLogitsWarper, hf.TopPLogitsWarper, hf.MinPLogitsWarper,
    hf.RepetitionPenaltyLogitsProcessor, hf.MaxLengthCriteria, hf.EosTokenCriteria,
)  # fmt: skip
MODEL_KWARGS = {"attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep"}
ATTENTION = ("sdpa", "eager")
_TRIED = 2**17  # numbers: more than PyTorch gives one thread
_LEAVE_AT = 0.75  # finished rows leave when no more than this share of the rows is unfinished
# Asking a GPU whether all are finished makes the host wait for it; between two questions it works
# ahead.
_LOOK_EVERY = {"cpu": 1}
_LOOK_EVERY_ELSEWHERE = 8


class Unsupported(Exception):
    """A case that only transformers' own loop covers; the text names it."""


class NotNumbers(RuntimeError):
    """The model's probabilities are not numbers: nothing can be drawn from them."""


class Optimizations(NamedTuple):
    """What the loop does differently from transformers' own; each can be switched off, to measure
    its gain.
    """

    shared_prefill: bool = True
    lean_adapters: bool = True
    drop_finished: bool = True


ALL = Optimizations()


def decoder(use: Optimizations = ALL) -> Function:
    """A function for `generate(custom_generate=...)`; `Unsupported`, before anything is changed,
    for what it does not cover.
    """

    def decode(
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: object,
        stopping_criteria: hf.StoppingCriteriaList,
        generation_config: hf.GenerationConfig,
        **kwargs: object,
    ) -> torch.Tensor:
        check_asked(generation_config, logits_processor, stopping_criteria, kwargs)
        check_model(model)
        rows = _Rows(
            model, input_ids, logits_processor, stopping_criteria, generation_config, kwargs, use
        )
        with lean_adapters(model) if use.lean_adapters else contextlib.nullcontext():
            return rows.decode()

    return decode


def _none_of(reasons: Fields) -> None:
    for reason, holds in reasons.items():
        if holds:
            raise Unsupported(reason)


def check_asked(
    config: hf.GenerationConfig,
    processors: Any,
    criteria: hf.StoppingCriteriaList,
    kwargs: Fields,
) -> None:
    """Check what `generate` prepared: `Unsupported` for the first thing that the loop does not
    cover.
    """
    mode, cache = config.get_generation_mode(), kwargs.get("past_key_values")
    others = [
        type(each).__name__ for each in [*processors, *criteria] if type(each) not in ROW_BY_ROW
    ]
    inputs = sorted(name for name in kwargs if name not in MODEL_KWARGS)
    usual = (
        kwargs.get("use_cache")
        and type(cache) is DynamicCache
        and not getattr(cache, "offloading", False)
    )
    reasons = {
        f"{mode.value} instead of one token at a time": (
            mode not in (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH)
        ),
        f"the setting behind {''.join(others[:1])}": others,
        "no limit to the length": not any(
            isinstance(each, hf.MaxLengthCriteria) for each in criteria
        ),
        f"inputs other than text: {', '.join(inputs)}": inputs,
        "return_dict_in_generate": config.return_dict_in_generate,
        "prefill_chunk_size": config.prefill_chunk_size is not None,
        "no cache of keys and values, or another kind than the default": not usual,
        "a cache that is filled already": usual and cache.get_seq_length(),
    }
    _none_of(reasons)
    check_cache(cache)
    without = any(kwargs.get(name) is None for name in ("attention_mask", "position_ids"))
    _none_of({"a model without an attention mask or positions": without})


def check_model(model: Any) -> None:
    """Check that the model's tokens depend only on their own row: `Unsupported` for anything that
    speaks against it.
    """
    from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
    from transformers.integrations.fsdp import is_fsdp_managed_module

    config, kind, training = model.config, type(model), model.training
    attention = getattr(config, "_attn_implementation", None)
    dropout = getattr(config, "attention_dropout", None)
    # TRL samples in training mode, where every copy of a prompt has a separate dropout mask.
    drops = torch.nn.modules.dropout._DropoutNd
    dropping = [
        name
        for name, module in model.named_modules()
        if training and isinstance(module, drops) and module.training and module.p > 0
    ]
    experts = model.get_experts_implementation().values() if model.device.type != "cpu" else ()
    usual = hf.GenerationMixin.prepare_inputs_for_generation
    own_inputs = kind.prepare_inputs_for_generation is not usual
    reasons = {
        "an encoder": config.is_encoder_decoder,
        f"{kind.__name__} prepares its inputs in its own way": own_inputs,
        f"attention by {attention}; tried with {' and '.join(ATTENTION)}": (
            attention not in ATTENTION
        ),
        f"dropout while sampling, in {''.join(dropping[:1])}": dropping,
        f"attention_dropout = {dropout} while sampling": training and dropout,
        "gradient checkpointing that is on while sampling": (
            training and getattr(model, "is_gradient_checkpointing", False)
        ),
        "a mixture of experts on a GPU, for whose decoding transformers switches kernels": (
            "grouped_mm" in experts
        ),
        "a model whose weights are spread over processes": (
            is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model)
        ),
    }
    _none_of(reasons)


def check_cache(cache: Any) -> None:
    """Check the cache's layers, as configured and after the prompts: `Unsupported` where one does
    not keep every token.
    """
    for layer in cache.layers:
        if type(layer) is not DynamicLayer:
            raise Unsupported(f"a cache of {type(layer).__name__}")


class _Rows:
    """The rows of one call that are not finished.

    B rows are requested, R are in flight, T is where the longest text may end. `out` [B, T] is what
    is returned, `text` [R, T] the same for the rows in flight, `row` [R]: index into the batch.
    """

    def __init__(
        self,
        model: Any,
        prompts: torch.Tensor,
        processors: Any,
        criteria: hf.StoppingCriteriaList,
        config: hf.GenerationConfig,
        kwargs: Fields,
        use: Optimizations,
    ) -> None:
        self.model, self.processors, self.use = model, processors, use
        self.sampling = config.do_sample
        limits = [each.max_length for each in criteria if isinstance(each, hf.MaxLengthCriteria)]
        self.most = min(limits)
        stops = [each for each in criteria if isinstance(each, hf.EosTokenCriteria)]
        ends = [each.eos_token_id.to(prompts.device) for each in stops]
        self.eos, pad = torch.cat([prompts.new_empty(0), *ends]), config._pad_token_tensor
        self.pad = 0 if pad is None else int(pad)
        self.cache, self.mask, self.position = (
            kwargs[name] for name in ("past_key_values", "attention_mask", "position_ids")
        )
        self.asked = {key: kwargs[key] for key in ("use_cache", "logits_to_keep") if key in kwargs}
        self.count, self.prompt_length = prompts.shape
        self.out = prompts.new_full((self.count, self.most), self.pad)
        self.out[:, : self.prompt_length] = prompts
        # [B, V], kept from token to token: fresh memory makes the draw a half longer.
        self.uniform: torch.Tensor | None = None
        self.every = _LOOK_EVERY.get(prompts.device.type, _LOOK_EVERY_ELSEWHERE)

    @torch.no_grad()
    def decode(self) -> torch.Tensor:
        """[B, prompt + completion]: finished rows are padded, and the longest has no padding after
        it.
        """
        logits = self._read_prompts()
        self.text, self.row = self.out.clone(), torch.arange(self.count, device=self.out.device)
        unfinished = torch.ones_like(self.row, dtype=torch.bool)
        sound = torch.ones((), dtype=torch.bool, device=self.out.device)
        for end in range(self.prompt_length + 1, self.most + 1):
            tokens, fine = self._choose(logits, end - 1)
            sound &= fine
            tokens = torch.where(unfinished, tokens, self.pad)
            unfinished &= ~torch.isin(tokens, self.eos)
            self.text[:, end - 1] = tokens
            if end == self.most:
                break
            if len(self.eos) and (end - self.prompt_length) % self.every == 0:
                left = int(unfinished.sum())
                if left == 0:
                    break
                if self.use.drop_finished and left <= _LEAVE_AT * len(self.row):
                    self.out[self.row] = self.text
                    keep = unfinished.nonzero()[:, 0]
                    kept = (self.text, self.row, self.mask, self.position, tokens, unfinished)
                    self.text, self.row, self.mask, self.position, tokens, unfinished = (
                        each[keep] for each in kept
                    )
                    self.cache.batch_select_indices(keep)
            self.position = self.position + 1
            logits = self._forward(tokens[:, None], self.mask[:, :end], self.position)
        if not sound:
            raise NotNumbers(
                "the probability of a token is not a number: the policy's weights or logits are inf"
                " or nan"
            )
        self.out[self.row] = self.text
        # Between two looks at a GPU every row may have finished: transformers would have stopped
        # there.
        ended = torch.isin(self.out[:, self.prompt_length : end], self.eos)
        lengths = torch.where(ended.any(-1), ended.int().argmax(-1) + 1, end - self.prompt_length)
        return self.out[:, : self.prompt_length + int(lengths.max())]

    def _read_prompts(self) -> torch.Tensor:
        prompts, mask = self.out[:, : self.prompt_length], self.mask
        positions = self.position.expand(self.count, -1)
        first = owner = torch.arange(self.count, device=prompts.device)
        if self.use.shared_prefill:
            # Each run of equal prompts is read once; with the mask, because a padding token may
            # also be a token of a prompt.
            _, owner = torch.unique_consecutive(
                torch.cat([prompts, mask], dim=1), dim=0, return_inverse=True
            )
            new = torch.ones_like(owner, dtype=torch.bool)
            new[1:] = owner[1:] != owner[:-1]
            first = first[new]
        logits = self._forward(prompts[first], mask[first], positions[first])
        check_cache(self.cache)
        if len(first) < self.count:
            self.cache.batch_select_indices(owner)
        self.mask = mask.new_ones((self.count, self.most))
        self.mask[:, : self.prompt_length] = mask
        self.position = positions[:, -1:]
        return logits[owner]

    def _forward(
        self, ids: torch.Tensor, mask: torch.Tensor, position: torch.Tensor
    ) -> torch.Tensor:
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=position,
            past_key_values=self.cache,
            return_dict=True,
            **self.asked,
        )
        return output.logits[:, -1].to(copy=True, dtype=torch.float32, device=self.out.device)

    def _choose(self, logits: torch.Tensor, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.processors(self.text[:, :end], logits)
        if not self.sampling:
            return scores.argmax(-1), torch.ones((), dtype=torch.bool, device=scores.device)
        chances = scores.softmax(-1)
        # What torch.multinomial does for one draw a row.
        return (chances / self._noise(chances)).argmax(-1), chances.sum().isfinite()

    def _noise(self, chances: torch.Tensor) -> torch.Tensor:
        # [R, V] exponential numbers. Numbers are drawn for all B rows, finished or not; their
        # logarithms are taken for the rows in flight.
        every = (self.count, chances.shape[-1])
        by_hand = _exponential_by_hand(chances.dtype, chances.device)
        if not by_hand:
            drawn = chances.new_empty(every).exponential_()
        else:
            if self.uniform is None:
                self.uniform = chances.new_empty(every, dtype=torch.float64)
            drawn = self.uniform.uniform_()
        drawn = drawn[self.row] if len(self.row) < self.count else drawn
        return _exponential(drawn).to(chances.dtype) if by_hand else drawn


def _exponential(uniform: torch.Tensor) -> torch.Tensor:
    return uniform.neg_().log1p_().neg_()


@functools.cache
def _exponential_by_hand(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether PyTorch's exponential numbers are -log(1 - u) here, of its uniform u in 64 bits. On
    CPUs they are, and it takes the logarithm of one number at a time; `log1p` takes it of many.

    The two logarithms may differ in their last bit. In 32 bits that is one number in some 10^10,
    and another token only where two are within a bit of one another.
    """
    if device.type != "cpu":
        return False
    theirs, own = (torch.Generator(device).manual_seed(0) for _ in range(2))
    drawn = torch.empty(_TRIED, dtype=dtype, device=device).exponential_(generator=theirs)
    uniform = torch.empty(_TRIED, dtype=torch.float64, device=device).uniform_(generator=own)
    same = torch.equal(drawn, _exponential(uniform).to(dtype))
    return same and torch.equal(theirs.get_state(), own.get_state())
