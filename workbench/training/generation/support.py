"""What the loop leaves to transformers' own, each with the words that say why."""

from __future__ import annotations

from typing import Any

from transformers import (
    EosTokenCriteria,
    GenerationMixin,
    MaxLengthCriteria,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.generation import GenerationMode

# Each judges a row by that row alone, so rows can leave the batch when they are finished.
PROCESSORS = (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
)
CRITERIA = (MaxLengthCriteria, EosTokenCriteria)
MODEL_KWARGS = {"attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep"}
ATTENTION = ("sdpa", "eager")


class Unsupported(Exception):
    """Something that only transformers' own loop does; the text says what."""


class NotNumbers(RuntimeError):
    """The model's probabilities are no numbers: nothing can be drawn from them."""


def check_asked(config: Any, processors: Any, criteria: Any, model_kwargs: dict[str, Any]) -> None:
    """Check what `generate` prepared.

    Raises:
        Unsupported: for the first thing that the loop does not do.
    """
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH):
        raise Unsupported(f"{mode.value} instead of one token at a time")
    for each in processors:
        if type(each) not in PROCESSORS:
            raise Unsupported(f"the setting behind {type(each).__name__}")
    for each in criteria:
        if type(each) not in CRITERIA:
            raise Unsupported(f"the setting behind {type(each).__name__}")
    if not any(isinstance(each, MaxLengthCriteria) for each in criteria):
        raise Unsupported("no limit to the length")
    inputs = sorted(name for name in model_kwargs if name not in MODEL_KWARGS)
    if inputs:
        raise Unsupported(f"inputs other than text: {', '.join(inputs)}")
    if config.return_dict_in_generate:
        raise Unsupported("return_dict_in_generate")
    if config.prefill_chunk_size is not None:
        raise Unsupported("prefill_chunk_size")
    cache = model_kwargs.get("past_key_values")
    if not model_kwargs.get("use_cache") or type(cache) is not DynamicCache or getattr(cache, "offloading", False):
        raise Unsupported("no cache of keys and values, or another kind than the default")
    if cache.get_seq_length():
        raise Unsupported("a cache that is filled already")
    check_cache(cache)
    if model_kwargs.get("attention_mask") is None or model_kwargs.get("position_ids") is None:
        raise Unsupported("a model without an attention mask or positions")


def check_model(model: Any) -> None:
    """Check that the model's tokens depend on nothing but the row they stand in.

    Raises:
        Unsupported: for the first thing that the loop does not do.
    """
    config = model.config
    if config.is_encoder_decoder:
        raise Unsupported("an encoder")
    if type(model).prepare_inputs_for_generation is not GenerationMixin.prepare_inputs_for_generation:
        raise Unsupported(f"{type(model).__name__} prepares its inputs in its own way")
    attention = getattr(config, "_attn_implementation", None)
    if attention not in ATTENTION:
        raise Unsupported(f"attention by {attention}; tried with {' and '.join(ATTENTION)}")
    if model.training:
        # TRL samples in training mode, where every copy of a prompt has a dropout mask of its own.
        dropping = [name for name, module in model.named_modules() if _drops(module)]
        if dropping:
            raise Unsupported(f"dropout while sampling, in {dropping[0]}")
        if getattr(config, "attention_dropout", 0):
            raise Unsupported(f"attention_dropout = {config.attention_dropout} while sampling")
        if getattr(model, "is_gradient_checkpointing", False):
            raise Unsupported("gradient checkpointing that is on while sampling")
    if model.device.type != "cpu" and "grouped_mm" in model.get_experts_implementation().values():
        raise Unsupported("a mixture of experts on a GPU, for whose decoding transformers switches kernels")
    if _sharded(model):
        raise Unsupported("a model whose weights are spread over processes")


def check_cache(cache: Any) -> None:
    """Check the cache's layers: those that the configuration names, and again those that there are after the prompts.

    Raises:
        Unsupported: for layers that do not keep every token (a sliding window, a state instead of keys and values).
    """
    for layer in cache.layers:
        if type(layer) is not DynamicLayer:
            raise Unsupported(f"a cache of {type(layer).__name__}")


def _drops(module: Any) -> bool:
    import torch

    return isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.training and module.p > 0


def _sharded(model: Any) -> bool:
    from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
    from transformers.integrations.fsdp import is_fsdp_managed_module

    return is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model)
