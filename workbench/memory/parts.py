"""The parts of a recipe's memory: how many bytes each use takes in each phase, exactly or with a low and a high end.

What is materialised was read in the sources of TRL 1.14.2, Unsloth 2026.10.9, PEFT 0.21.2 and transformers 5.17.0, and
each part's formula says it in words. What is exact is in `footprint`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from workbench.errors import RecipeError
from workbench.memory.footprint import (
    NF4_BLOCK,
    activation_bytes_per_token,
    kv_bytes,
    lora_sizes,
    optimizer_bytes,
    weight_bytes,
)
from workbench.memory.shapes import LOCAL, ModelShape
from workbench.recipe import Recipe

GB = 10**9

_UNSLOTH_ROWS = 512  # by so many tokens Unsloth's decoding buffer grows
# Models whose decoding step Unsloth captures in CUDA graphs, and the rows by which it rounds their buffer up.
GRAPHED, _GRAPH_ROWS = {"llama", "qwen3"}, 256
_WORKSPACE, _A_GRAPH = 32 * 2**20, 4 * 2**20  # cuBLAS's for the capturing stream; the driver's for a graph, a guess
_LOGPROB_ROWS, _LOGPROB_BYTES = 512, 2 * 2**30  # Unsloth's chunk of log-probabilities: least rows, most bytes
_LIGER_TILE = (2048, 8192)  # tokens x vocabulary at a time, with use_liger_kernel

Phase = Literal["always", "generation", "training"]
PHASES: tuple[Phase, Phase] = ("generation", "training")


class Span(NamedTuple):
    """Bytes: the estimate, and its low and high end."""

    bytes: int
    low: int
    high: int

    def __str__(self) -> str:
        if self.low == self.high:
            return in_gb(self.bytes)
        return f"{in_gb(self.bytes)} ({self.low / GB:.1f} to {self.high / GB:.1f})"


@dataclass(frozen=True)
class Part:
    """One use of memory. `exact`: counted to the byte, so low = bytes = high."""

    name: str
    phase: Phase
    bytes: int
    low: int
    high: int
    exact: bool
    formula: str
    allocated: bool = True  # torch.cuda.max_memory_allocated() sees it


@dataclass(frozen=True)
class Inputs:
    """What the parts are computed from. Lengths in tokens, sizes in bytes."""

    recipe: Recipe
    settings: dict[str, Any]
    shape: ModelShape
    prompt: int
    completion: int
    sequences: int  # of the generation batch
    rows: int  # of a forward pass
    four_bit: bool
    kernels: str
    element: int  # of a weight that is not quantised, and of an activation
    lora_element: int
    lora_tensors: list[int]  # elements of each
    vram_bytes: int | None

    @property
    def tokens(self) -> int:
        return self.rows * (self.prompt + self.completion)

    @property
    def lora(self) -> int:
        return sum(self.lora_tensors)


def inputs_of(recipe: Recipe, settings: dict[str, Any], how: dict[str, Any]) -> Inputs:
    """What the parts of a recipe are computed from; `how` are the other arguments of `estimate`.

    Raises:
        RecipeError: if the batch is impossible, or no room is left for a prompt.
    """
    policy, shape, most = recipe.policy, how["shape"], settings["max_completion_length"]
    room, vram_gb = policy.max_seq_length - most, how["vram_gb"]
    if room < 1:
        raise RecipeError(
            f"max_completion_length = {most}, policy.max_seq_length = {policy.max_seq_length}",
            rule="max_seq_length holds the prompt and the completion together",
            remedy="lower max_completion_length or raise max_seq_length",
        )
    if vram_gb is not None and not vram_gb > 0:
        raise RecipeError(f"vram_gb = {vram_gb}", rule="a card has more than 0 GB", remedy="give what it has, or nothing")
    # The plain backend computes in float32 on a CPU, unless it is told otherwise.
    wide = policy.dtype is None and policy.backend == "transformers" and how["device"] == "cpu"
    return Inputs(
        recipe=recipe,
        settings=settings,
        shape=shape,
        prompt=how["longest_prompt_tokens"] or min(recipe.max_prompt_length or room, room),
        completion=how["longest_completion_tokens"] or most,
        sequences=_sequences(settings),
        rows=settings["per_device_train_batch_size"],
        four_bit=policy.load_in_4bit or shape.quantised,
        kernels="unsloth" if policy.backend == "unsloth" and how["device"] == "cuda" else "torch",
        element=4 if wide or policy.dtype == "float32" else 2,
        lora_element=how["adapter_bytes"],
        lora_tensors=lora_sizes(shape, recipe.lora.r, recipe.lora.target_modules),
        vram_bytes=None if vram_gb is None else round(vram_gb * GB),
    )


def _sequences(settings: dict[str, Any]) -> int:
    # Completions of the generation batch: whole groups, cut into whole forward passes. (Planning explains what is not.)
    rows, group = settings["per_device_train_batch_size"], settings["num_generations"]
    steps = settings.get("steps_per_generation") or settings["gradient_accumulation_steps"]
    sequences = settings.get("generation_batch_size") or rows * steps
    if rows < 1 or group < 2 or sequences % group or sequences % rows:
        raise RecipeError(
            f"per_device_train_batch_size = {rows}, num_generations = {group}, {sequences} completions generated at once",
            rule="both divide the generation batch, and a group has at least 2 completions",
            remedy="let `workbench plan` correct the batch",
        )
    return sequences


def _exact(name: str, phase: Phase, size: int, formula: str) -> Part:
    return Part(name, phase, size, size, size, True, formula)


def _rough(name: str, phase: Phase, size: float, low: float, high: float, formula: str, allocated: bool = True) -> Part:
    """`low` and `high` as factors of `size`."""
    return Part(name, phase, round(size), round(size * low), round(size * high), False, formula, allocated)


def static_parts(inputs: Inputs) -> list[Part]:
    """What is there in both phases. Raises RecipeError if vLLM takes a share of an unknown card, or one too small."""
    shape, settings, lora, per = inputs.shape, inputs.settings, inputs.lora, inputs.lora_element
    unsloths = inputs.recipe.policy.backend == "unsloth"
    weights = weight_bytes(shape, inputs.four_bit, inputs.element)
    if not inputs.four_bit:
        parts = [_exact("weights", "always", weights, f"{shape.parameters:,} parameters x {inputs.element} bytes")]
    elif inputs.kernels == "unsloth" and not shape.quantised and shape.source != LOCAL:
        # On a GPU, Unsloth may load its own repository instead, in which some layers were left at 16 bits.
        formula = "NF4, and 16 bits for the rest; Unsloth may put its own repository in place, which keeps more at 16"
        parts = [_rough("weights", "always", weights, 1, 1.3, formula)]
    else:
        formula = f"NF4 with nested scales in {len(shape.matrices)} layers, {inputs.element} bytes for each of the rest"
        parts = [_exact("weights", "always", weights, formula)]
    if {"lm_head", "embed_tokens"} & set(inputs.recipe.lora.target_modules):
        # Unsloth trains these two whole, in float32, instead of putting an adapter on them.
        full = 4 * shape.vocab_size * shape.hidden_size * (1 if shape.tied else 2)
        formula = "adapters, and the embedding or output layer trained whole"
        parts.append(Part("LoRA", "always", lora * per, lora * per, lora * per + full, False, formula))
    else:
        parts.append(_exact("LoRA", "always", lora * per, f"{lora:,} parameters x {per} bytes"))
    if settings.get("beta") and inputs.kernels == "torch":
        formula = f"TRL's frozen copy for the KL: {lora:,} x 4 bytes"
        parts.append(_exact("reference adapter", "always", lora * 4, formula))
    optim = str(getattr(settings.get("optim"), "value", settings.get("optim") or "adamw_torch"))
    if inputs.kernels == "torch" and unsloths and "8bit" in optim:
        optim = "adamw_torch"  # Unsloth's CPU backend puts it in place
    states = optimizer_bytes(inputs.lora_tensors, optim, per)
    if states is None:
        parts.append(_rough("optimiser", "always", 8 * lora, 0, 1.2, f"{optim} is not counted here: at most as Adam's"))
    elif optim.startswith("paged"):
        parts.append(_rough("optimiser", "always", states, 0, 1, f"{optim}: states that may move to the host's memory"))
    else:
        parts.append(_exact("optimiser", "always", states, f"{optim}: two moments of {lora:,} parameters"))
    if settings.get("use_vllm") and (unsloths or settings.get("vllm_mode", "colocate") == "colocate"):
        parts.append(_vllm(inputs, parts[0]))
    return parts


def _vllm(inputs: Inputs, weights: Part) -> Part:
    settings, policy, card = inputs.settings, inputs.recipe.policy, inputs.vram_bytes
    unsloths = policy.backend == "unsloth"
    share = policy.gpu_memory_utilization if unsloths else settings.get("vllm_gpu_memory_utilization", 0.3)
    if card is None:
        raise RecipeError(
            "use_vllm = True, and the card is not known",
            rule=f"vLLM takes a share of the card ({share:.0%}) for its own weights and cache",
            remedy="give vram_gb, what the card has in GB",
        )
    if not unsloths:
        phase: Phase = "generation" if settings.get("vllm_enable_sleep_mode") else "always"
        formula = f"{share:.0%} of the card: vllm_gpu_memory_utilization"
        return _rough("vLLM", phase, share * card, 1, 1.1, formula, allocated=False)
    # Unsloth trains on the very weights that vLLM holds in its share, so what is left of it is vLLM's own. Taken as if
    # the whole card were free when the model is loaded, and as if vLLM kept its share while the policy trains.
    if weights.low > share * card:
        raise RecipeError(
            f"policy.gpu_memory_utilization = {share:g}, {in_gb(share * card)} of the card",
            rule=f"vLLM's share holds the weights ({in_gb(weights.low)}), and keys and values beside them",
            remedy="raise it, or set policy.fast_inference: false",
        )
    formula = f"{share:.0%} of the card (policy.gpu_memory_utilization), less the weights, which it shares with Unsloth"
    own = max(round(share * card) - weights.bytes, 0)
    return Part("vLLM", "always", own, own, own + round(0.1 * share * card), False, formula, False)


def generation(inputs: Inputs) -> list[Part]:
    """What generating the whole generation batch adds; nothing if vLLM generates."""
    shape, element, sequences = inputs.shape, inputs.element, inputs.sequences
    if inputs.settings.get("use_vllm"):
        return []
    tokens = inputs.prompt + inputs.completion - 1  # the last token is not fed back
    cache = kv_bytes(shape, sequences, tokens, element)
    formula = (
        f"{sequences} sequences x {tokens} tokens x {shape.layers} layers x {shape.kv_heads} heads x "
        f"{shape.head_dim} x 2 x {element} bytes"
    )
    parts = [_exact("keys and values", "generation", cache, formula)]
    if inputs.kernels == "unsloth":
        rows = inputs.prompt + 1 + _UNSLOTH_ROWS * math.ceil((inputs.completion + 1) / _UNSLOTH_ROWS)
        more = max(kv_bytes(shape, sequences, rows, element) - cache, 0)
        copied = kv_bytes(shape, sequences, inputs.prompt, element)
        formula = f"Unsloth's buffer grows by {_UNSLOTH_ROWS} tokens, on some models by half; the prompt's is copied"
        parts.append(Part("growing cache", "generation", more, 0, more + copied, False, formula))
        if shape.model_type in GRAPHED:
            parts.append(_decode_graphs(inputs, rows))
    else:
        formula = "a layer's keys or values, copied to add a token"
        parts.append(_rough("growing cache", "generation", cache / (2 * shape.layers), 0.5, 3, formula))
    wide = sequences * inputs.prompt * (element * 3 * shape.intermediate_size + (8 + element) * shape.hidden_size)
    logits = sequences * shape.vocab_size * 14
    return [
        *parts,
        _rough("reading the prompts", "generation", wide, 0.5, 1.6, "one layer's values, every prompt"),
        _rough("choosing tokens", "generation", logits, 0.5, 2.2, "logits of one token per sequence, some copies"),
        *_scratch(inputs, "generation"),
    ]


def _decode_graphs(inputs: Inputs, rows: int) -> Part:
    # unsloth/models/_decode_graphs.py: a step of all sequences is captured once, as a graph before, between and after the
    # layers' attention, in a separate memory pool that is freed before training. UNSLOTH_DECODE_CUDA_GRAPHS=0: none.
    shape, element = inputs.shape, inputs.element
    one = element * (shape.layers * shape.heads * shape.head_dim + shape.vocab_size)  # attention's output, logits
    one += element * (2 * shape.intermediate_size + 4 * shape.hidden_size) + 12 * shape.hidden_size  # a layer's values
    unpacked = max((matrix.weights for matrix in shape.matrices), default=0) * element if inputs.four_bit else 0
    size = inputs.sequences * one + unpacked + _WORKSPACE
    rounded = max(kv_bytes(shape, inputs.sequences, _GRAPH_ROWS * math.ceil(rows / _GRAPH_ROWS) - rows, element), 0)
    high = 2 * size + rounded + (shape.layers + 1) * _A_GRAPH
    formula = (
        f"Unsloth's captured step: attention's output of {shape.layers} layers, one layer's values and logits of "
        f"{inputs.sequences} sequences; high: twice that, its buffer in steps of {_GRAPH_ROWS} tokens, the driver's share; low: "
        "no graphs; confirmed by no GPU"
    )
    return Part("decode graphs", "generation", size, 0, high, False, formula)


def training(inputs: Inputs) -> list[Part]:
    """What the forward and backward pass of one `per_device_train_batch_size` adds."""
    shape, lora, per = inputs.shape, inputs.lora, inputs.lora_element
    back = inputs.tokens * inputs.element * (3 * shape.intermediate_size + 4 * shape.hidden_size)
    return [
        _exact("gradients", "training", lora * per, f"of LoRA: {lora:,} x {per} bytes"),
        _activations(inputs),
        _logprobs(inputs),
        _rough("backward scratch", "training", back, 0.4, 1.8, "gradients of one layer's values"),
        *_scratch(inputs, "training"),
    ]


def _activations(inputs: Inputs) -> Part:
    shape, tokens, unsloth = inputs.shape, inputs.tokens, inputs.kernels == "unsloth"
    layer = tokens * activation_bytes_per_token(
        shape,
        kernels=inputs.kernels,
        lora_bytes=inputs.lora_element,
        r=inputs.recipe.lora.r,
        element_bytes=inputs.element,
    )
    ends = tokens * shape.hidden_size * 8  # the embedding's output and the last norm
    said = f"{inputs.rows} x {inputs.prompt + inputs.completion} tokens"
    if not inputs.settings.get("gradient_checkpointing"):
        # Unsloth leaves out padding, and a group's prompt it may compute once.
        low, high = (0.4, 1.5) if unsloth else (0.85, 1.3)
        size = shape.layers * layer + ends
        return _rough("activations", "training", size, low, high, f"{said}, every layer's values")
    one = tokens * shape.hidden_size * inputs.element
    kept = shape.layers * one  # every layer's input
    if unsloth:
        size = 2 * one + layer + ends
        formula = f"{said}: one layer's values; Unsloth keeps the layers' inputs in the host's memory"
        return Part("activations", "training", size, round(0.4 * size), round(1.5 * size) + kept, False, formula)
    formula = f"{said}: every layer's input, one layer's values"
    return _rough("activations", "training", kept + layer + ends, 0.8, 1.5, formula)


def _logprobs(inputs: Inputs) -> Part:
    shape, vocab = inputs.shape, inputs.shape.vocab_size
    if inputs.kernels == "unsloth":
        most = max(_LOGPROB_BYTES // (8 * vocab), 2)
        rows = min(most, max(_LOGPROB_ROWS, math.ceil(inputs.tokens / 8)), inputs.tokens)
        formula = f"Unsloth's chunk: {rows:,} tokens x vocabulary {vocab:,} x 8 bytes"
        return _rough("log-probabilities", "training", rows * vocab * 8, 0.5, 2, formula)
    scored = inputs.rows * (inputs.completion + 1)
    if inputs.settings.get("use_liger_kernel"):
        rows, columns = min(scored, _LIGER_TILE[0]), min(vocab, _LIGER_TILE[1])
        size = rows * columns * 18 + shape.hidden_size * 4 * (columns + scored)
        return _rough("log-probabilities", "training", size, 0.7, 1.4, f"tiles of {rows:,} x {columns:,} logits")
    formula = (
        f"TRL's logits: {inputs.rows} x {inputs.completion + 1} x vocabulary {vocab:,} x 10 bytes "
        "(float32, their gradient, and it in 16 bits)"
    )
    return _rough("log-probabilities", "training", scored * vocab * 10, 0.6, 1.6, formula)


def _scratch(inputs: Inputs, phase: Phase) -> list[Part]:
    if not inputs.four_bit:
        return []
    largest = max((matrix.weights for matrix in inputs.shape.matrices), default=0)
    size = largest * inputs.element + 4 * math.ceil(largest / NF4_BLOCK)
    return [_rough("unpacked layer", phase, size, 0.5, 2, "the largest NF4 layer in 16 bits, while it is used")]


def overhead(parts: Sequence[Part]) -> list[Part]:
    """What torch's counter does not see: the CUDA context, and memory that the allocator holds and cannot use."""
    unseen = [Part("CUDA context", "always", GB // 2, 3 * GB // 10, 9 * GB // 10, False, "driver and kernels", False)]
    for phase in PHASES:
        held = [part for part in parts if part.phase in ("always", phase) and part.allocated]
        size = 0.05 * add(held).bytes
        unseen.append(_rough("allocator's gaps", phase, size, 0.2, 3, "about 5 % of what is allocated", False))
    return unseen


def add(parts: Sequence[Part]) -> Span:
    """All parts together, each at the same end."""
    return Span(*(sum(getattr(part, end) for part in parts) for end in ("bytes", "low", "high")))


def in_gb(size: float) -> str:
    """Bytes in words: GB, MB, kB of 1000."""
    if size < 1000:
        return f"{size:.0f} B"
    for unit, scale in (("GB", GB), ("MB", 10**6)):
        if size >= 0.1 * scale:
            return f"{size / scale:.2f} {unit}" if size < 10 * scale else f"{size / scale:.1f} {unit}"
    return f"{size / 1000:.0f} kB"
