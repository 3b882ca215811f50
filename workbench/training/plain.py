"""The plain backend: transformers' AutoModelForCausalLM with PEFT's LoRA, as TRL's documentation
sets it up.

It is slower on a GPU than Unsloth and patches nothing: it computes what the libraries document.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from workbench.base.extras import need
from workbench.base.kinds import Fields, Model, Tokenizer
from workbench.training.plan.loading import linear4bit_layers, quiet_imports
from workbench.training.plan.precision import choose_dtype, native_bf16
from workbench.training.randomness import random_kept


def version() -> str:
    """The library that loads the model, with its version."""
    with quiet_imports():
        # Each of these imports others when it is first used, and they have much to say of one
        # another.
        with contextlib.suppress(ImportError):  # 16-bit weights do not need it
            import bitsandbytes  # noqa: F401
        import peft  # noqa: F401
        import transformers

    return f"transformers {transformers.__version__} + PEFT"


@random_kept()
def load_base(
    source: str, *, load_in_4bit: bool, max_seq_length: int, dtype: str | None
) -> tuple[Model, Tokenizer, list[str]]:
    """(model, tokenizer, notes) without an adapter, on this process's GPU or on the CPU."""
    with quiet_imports():
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

    chosen, notes = choose_dtype(
        dtype, "transformers", cuda=torch.cuda.is_available(), bf16=native_bf16()
    )
    compute = getattr(torch, str(chosen))
    more, safely = {}, {"trust_remote_code": False}  # None would ask, and run it after a "y"
    # A checkpoint that is quantised already says how; a second word on it would only draw a
    # warning.
    if (
        load_in_4bit
        and getattr(AutoConfig.from_pretrained(source, **safely), "quantization_config", None)
        is None
    ):
        need("bitsandbytes")
        nf4 = {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
        }
        more["quantization_config"] = BitsAndBytesConfig(**nf4, bnb_4bit_compute_dtype=compute)
    device = {"": int(os.environ.get("LOCAL_RANK", 0))} if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(
        source, dtype=compute, device_map=device, **safely, **more
    )
    tokenizer: Any = AutoTokenizer.from_pretrained(
        source, model_max_length=max_seq_length, **safely
    )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if model.config.pad_token_id is None:
        model.config.pad_token_id = tokenizer.pad_token_id
    model.config.use_cache = False  # a training forward never reads one; sampling turns it on
    for layer in linear4bit_layers(model):
        # bitsandbytes repacks a weight for its AVX512 kernel when a model is first evaluated on a
        # CPU, and never back: gradients through the packed weight are wrong from then on, without a
        # word.
        layer.support_avx512bf16_for_cpu = False
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions and max_seq_length > positions:
        said = (
            f"WARNING: max_seq_length = {max_seq_length}, and the model was made for {positions}"
            " tokens"
        )
        notes.append(f"{said}; this backend does not stretch it")
    return model, tokenizer, notes


@random_kept()
def add_lora(model: Model, lora: Fields, *, gradient_checkpointing: bool, seed: int) -> Any:
    """The model with a new adapter, of PEFT's settings; the same seed gives the same one."""
    with quiet_imports():
        import torch
        from peft import LoraConfig, get_peft_model

    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        # The embeddings are frozen: without this, nothing that is recomputed would ask for a
        # gradient.
        model.enable_input_require_grads()
    torch.manual_seed(seed)
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", bias="none", **lora))


def for_inference(model: Model) -> None:
    """Ready to generate; `Policy.generating` sees to the cache."""
    model.eval()


def for_training(model: Model) -> None:
    """Ready to train again."""
    model.train()
