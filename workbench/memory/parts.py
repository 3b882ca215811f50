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
from workbench.training import plan

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
class Facts:
    """What the parts are computed from. Lengths in tokens, `element` sizes in bytes."""

    recipe: Recipe
    settings: dict[str, Any]
    shape: ModelShape
    prompt: int
    completion: int
    sequences: int
    rows: int
    four_bit: bool
    kernels: str
    element: int  # bytes of a weight that is not quantised, and of an activation
    lora_element: int
    sizes: list[int]
    vram_bytes: int | None

    @property
    def tokens(self) -> int:
        return self.rows * (self.prompt + self.completion)


def facts_of(
    recipe: Recipe,
    settings: dict[str, Any],
    shape: ModelShape,
    prompt: int | None,
    completion: int | None,
    vram_gb: float | None,
    device: str,
    adapter_bytes: int,
) -> Facts:
    """What the parts of a recipe are computed from; the arguments are `estimate`'s.

    Raises:
        RecipeError: if the batch is impossible, or no room is left for a prompt.
    """
    completion = completion or settings["max_completion_length"]
    room = recipe.policy.max_seq_length - settings["max_completion_length"]
    prompt = prompt or min(recipe.max_prompt_length or room, max(room, 1))
    if room < 1:
        raise RecipeError(
            f"max_completion_length = {settings['max_completion_length']}, "
            f"policy.max_seq_length = {recipe.policy.max_seq_length}",
            rule="max_seq_length holds the prompt and the completion together",
            remedy="lower max_completion_length or raise max_seq_length",
        )
    if vram_gb is not None and not vram_gb > 0:
        raise RecipeError(
            f"vram_gb = {vram_gb}", rule="a card has more than 0 GB", remedy="give what it has, or nothing"
        )
    four_bit = recipe.policy.load_in_4bit or shape.quantised
    kernels = "unsloth" if recipe.policy.backend == "unsloth" and device == "cuda" else "torch"
    # The plain backend computes in float32 on a CPU, unless it is told otherwise.
    wide = recipe.policy.dtype is None and recipe.policy.backend == "transformers" and device == "cpu"
    return Facts(
        recipe=recipe,
        settings=settings,
        shape=shape,
        prompt=prompt,
        completion=completion,
        sequences=plan.batch(settings).completions,
        rows=settings["per_device_train_batch_size"],
        four_bit=four_bit,
        kernels=kernels,
        element=4 if wide or recipe.policy.dtype == "float32" else 2,
        lora_element=adapter_bytes,
        sizes=lora_sizes(shape, recipe.lora.r, recipe.lora.target_modules),
        vram_bytes=None if vram_gb is None else round(vram_gb * GB),
    )


def _exact(name: str, phase: Phase, size: int, formula: str) -> Part:
    return Part(name, phase, size, size, size, True, formula)


def _rough(name: str, phase: Phase, size: float, low: float, high: float, formula: str, allocated: bool = True) -> Part:
    """`low` and `high` as factors of `size`."""
    return Part(name, phase, round(size), round(size * low), round(size * high), False, formula, allocated)


def lasting(facts: Facts) -> list[Part]:
    """What is there in both phases. Raises RecipeError if vLLM takes a share of an unknown card, or one too small."""
    shape, sizes, settings = facts.shape, facts.sizes, facts.settings
    weights = weight_bytes(shape, facts.four_bit, facts.element)
    if not facts.four_bit:
        parts = [_exact("weights", "always", weights, f"{shape.parameters:,} parameters x {facts.element} bytes")]
    elif facts.kernels == "unsloth" and not shape.quantised and shape.source != LOCAL:
        # On a GPU, Unsloth may load its own repository instead, in which some layers were left at 16 bits.
        formula = "NF4, and 16 bits for the rest; Unsloth may put its own repository in place, which keeps more at 16"
        parts = [_rough("weights", "always", weights, 1, 1.3, formula)]
    else:
        formula = f"NF4 with nested scales in {len(shape.matrices)} layers, {facts.element} bytes for each of the rest"
        parts = [_exact("weights", "always", weights, formula)]
    lora, per = sum(sizes), facts.lora_element
    whole = not {"lm_head", "embed_tokens"} & set(facts.recipe.lora.target_modules)
    if whole:
        parts.append(_exact("LoRA", "always", lora * per, f"{lora:,} parameters x {per} bytes"))
    else:
        # Unsloth trains these two whole, in float32, instead of putting an adapter on them.
        full = 4 * shape.vocab_size * shape.hidden_size * (1 if shape.tied else 2)
        formula = "adapters, and the embedding or output layer trained whole"
        parts.append(Part("LoRA", "always", lora * per, lora * per, lora * per + full, False, formula))
    if settings.get("beta") and facts.kernels == "torch":
        parts.append(
            _exact("reference adapter", "always", lora * 4, f"TRL's frozen copy for the KL: {lora:,} x 4 bytes")
        )
    optim = str(getattr(settings.get("optim"), "value", settings.get("optim") or "adamw_torch"))
    if facts.kernels == "torch" and facts.recipe.policy.backend == "unsloth" and "8bit" in optim:
        optim = "adamw_torch"  # Unsloth's CPU backend puts it in place
    states = optimizer_bytes(sizes, optim, per)
    if states is None:
        parts.append(_rough("optimiser", "always", 8 * lora, 0, 1.2, f"{optim} is not counted here: at most as Adam's"))
    elif optim.startswith("paged"):
        parts.append(_rough("optimiser", "always", states, 0, 1, f"{optim}: states that may move to the host's memory"))
    else:
        parts.append(_exact("optimiser", "always", states, f"{optim}: two moments of {lora:,} parameters"))
    return [*parts, *_vllm(facts, parts[0])]


def _vllm(facts: Facts, weights: Part) -> list[Part]:
    settings, policy = facts.settings, facts.recipe.policy
    unsloths = policy.backend == "unsloth"
    if not settings.get("use_vllm") or (not unsloths and settings.get("vllm_mode", "colocate") != "colocate"):
        return []
    share = policy.gpu_memory_utilization if unsloths else settings.get("vllm_gpu_memory_utilization", 0.3)
    if facts.vram_bytes is None:
        raise RecipeError(
            "use_vllm = True, and the card is not known",
            rule=f"vLLM takes a share of the card ({share:.0%}) for its own weights and cache",
            remedy="give vram_gb, what the card has in GB",
        )
    if unsloths:
        # Unsloth trains on the very weights that vLLM holds in its share, so what is left of it is vLLM's own. Taken as if
        # the whole card were free when the model is loaded, and as if vLLM kept its share while the policy trains.
        if weights.low > share * facts.vram_bytes:
            raise RecipeError(
                f"policy.gpu_memory_utilization = {share:g}, {in_gb(share * facts.vram_bytes)} of the card",
                rule=f"vLLM's share holds the weights ({in_gb(weights.low)}), and keys and values beside them",
                remedy="raise it, or set policy.fast_inference: false",
            )
        formula = (
            f"{share:.0%} of the card (policy.gpu_memory_utilization), less the weights, which it shares with Unsloth"
        )
        own = max(round(share * facts.vram_bytes) - weights.bytes, 0)
        return [Part("vLLM", "always", own, own, own + round(0.1 * share * facts.vram_bytes), False, formula, False)]
    phase: Phase = "generation" if settings.get("vllm_enable_sleep_mode") else "always"
    formula = f"{share:.0%} of the card: vllm_gpu_memory_utilization"
    return [_rough("vLLM", phase, share * facts.vram_bytes, 1, 1.1, formula, allocated=False)]


def generation(facts: Facts) -> list[Part]:
    """What generating the whole generation batch adds; nothing if vLLM generates."""
    shape, element = facts.shape, facts.element
    if facts.settings.get("use_vllm"):
        return []
    tokens = facts.prompt + facts.completion - 1  # the last token is not fed back
    cache = kv_bytes(shape, facts.sequences, tokens, element)
    formula = (
        f"{facts.sequences} sequences x {tokens} tokens x {shape.layers} layers x {shape.kv_heads} heads x "
        f"{shape.head_dim} x 2 x {element} bytes"
    )
    parts = [_exact("keys and values", "generation", cache, formula)]
    if facts.kernels == "unsloth":
        rows = facts.prompt + 1 + _UNSLOTH_ROWS * math.ceil((facts.completion + 1) / _UNSLOTH_ROWS)
        more = max(kv_bytes(shape, facts.sequences, rows, element) - cache, 0)
        formula = (
            f"Unsloth's buffer grows by {_UNSLOTH_ROWS} tokens, on some models by half, and the prompt's is copied"
        )
        copied = kv_bytes(shape, facts.sequences, facts.prompt, element)
        parts.append(Part("growing cache", "generation", more, 0, more + copied, False, formula))
        if shape.model_type in GRAPHED:
            parts.append(_decode_graphs(facts, rows))
    else:
        formula = "a layer's keys or values, copied to add a token"
        parts.append(_rough("growing cache", "generation", cache / (2 * shape.layers), 0.5, 3, formula))
    prompt_tokens = facts.sequences * facts.prompt
    wide = element * 3 * shape.intermediate_size + (8 + element) * shape.hidden_size
    parts.append(
        _rough("reading the prompts", "generation", prompt_tokens * wide, 0.5, 1.6, "one layer's values, every prompt")
    )
    sampled = facts.sequences * shape.vocab_size
    parts.append(
        _rough("choosing tokens", "generation", sampled * 14, 0.5, 2.2, "logits of one token a sequence, some copies")
    )
    return [*parts, *_scratch(facts, "generation")]


def _decode_graphs(facts: Facts, rows: int) -> Part:
    # unsloth/models/_decode_graphs.py: a step of all sequences is captured once, as a graph before, between and after the
    # layers' attention, in a separate memory pool that is freed before training. UNSLOTH_DECODE_CUDA_GRAPHS=0: none.
    shape, element = facts.shape, facts.element
    one = element * (shape.layers * shape.heads * shape.head_dim + shape.vocab_size)  # attention's output, logits
    one += element * (2 * shape.intermediate_size + 4 * shape.hidden_size) + 12 * shape.hidden_size  # a layer's values
    unpacked = max((matrix.weights for matrix in shape.matrices), default=0) * element if facts.four_bit else 0
    size = facts.sequences * one + unpacked + _WORKSPACE
    rounded = max(kv_bytes(shape, facts.sequences, _GRAPH_ROWS * math.ceil(rows / _GRAPH_ROWS) - rows, element), 0)
    high = 2 * size + rounded + (shape.layers + 1) * _A_GRAPH
    formula = (
        f"Unsloth's captured step: attention's output of {shape.layers} layers, one layer's values and logits of "
        f"{facts.sequences} sequences; high: twice that, its buffer in steps of {_GRAPH_ROWS} tokens, the driver's share; low: "
        "no graphs; confirmed by no GPU"
    )
    return Part("decode graphs", "generation", size, 0, high, False, formula)


def training(facts: Facts) -> list[Part]:
    """What the forward and backward pass of one `per_device_train_batch_size` adds."""
    shape, lora = facts.shape, sum(facts.sizes)
    parts = [
        _exact("gradients", "training", lora * facts.lora_element, f"of LoRA: {lora:,} x {facts.lora_element} bytes"),
        _activations(facts),
        _logprobs(facts),
    ]
    back = facts.tokens * facts.element * (3 * shape.intermediate_size + 4 * shape.hidden_size)
    parts.append(_rough("backward scratch", "training", back, 0.4, 1.8, "gradients of one layer's values"))
    return [*parts, *_scratch(facts, "training")]


def _activations(facts: Facts) -> Part:
    shape, tokens = facts.shape, facts.tokens
    layer = tokens * activation_bytes_per_token(
        shape,
        kernels=facts.kernels,
        lora_bytes=facts.lora_element,
        r=facts.recipe.lora.r,
        element_bytes=facts.element,
    )
    ends = tokens * shape.hidden_size * 8  # the embedding's output and the last norm
    said = f"{facts.rows} x {facts.prompt + facts.completion} tokens"
    if not facts.settings.get("gradient_checkpointing"):
        # Unsloth leaves out padding, and a group's prompt it may compute once.
        low, high = (0.4, 1.5) if facts.kernels == "unsloth" else (0.85, 1.3)
        return _rough(
            "activations", "training", shape.layers * layer + ends, low, high, f"{said}, every layer's values"
        )
    inputs = tokens * shape.hidden_size * facts.element
    kept = shape.layers * inputs
    if facts.kernels == "unsloth":
        size = 2 * inputs + layer + ends
        formula = f"{said}: one layer's values; Unsloth keeps the layers' inputs in the host's memory"
        return Part("activations", "training", size, round(0.4 * size), round(1.5 * size) + kept, False, formula)
    return _rough(
        "activations", "training", kept + layer + ends, 0.8, 1.5, f"{said}: every layer's input, one layer's values"
    )


def _logprobs(facts: Facts) -> Part:
    shape, vocab = facts.shape, facts.shape.vocab_size
    if facts.kernels == "unsloth":
        most = max(_LOGPROB_BYTES // (8 * vocab), 2)
        rows = min(most, max(_LOGPROB_ROWS, math.ceil(facts.tokens / 8)), facts.tokens)
        formula = f"Unsloth's chunk: {rows:,} tokens x vocabulary {vocab:,} x 8 bytes"
        return _rough("log-probabilities", "training", rows * vocab * 8, 0.5, 2, formula)
    scored = facts.rows * (facts.completion + 1)
    if facts.settings.get("use_liger_kernel"):
        rows, columns = min(scored, _LIGER_TILE[0]), min(vocab, _LIGER_TILE[1])
        size = rows * columns * 18 + shape.hidden_size * 4 * (columns + scored)
        return _rough("log-probabilities", "training", size, 0.7, 1.4, f"tiles of {rows:,} x {columns:,} logits")
    formula = (
        f"TRL's logits: {facts.rows} x {facts.completion + 1} x vocabulary {vocab:,} x 10 bytes "
        "(float32, their gradient, and it in 16 bits)"
    )
    return _rough("log-probabilities", "training", scored * vocab * 10, 0.6, 1.6, formula)


def _scratch(facts: Facts, phase: Phase) -> list[Part]:
    if not facts.four_bit:
        return []
    largest = max((matrix.weights for matrix in facts.shape.matrices), default=0)
    size = largest * facts.element + 4 * math.ceil(largest / NF4_BLOCK)
    return [_rough("unpacked layer", phase, size, 0.5, 2, "the largest NF4 layer in 16 bits, while it is used")]


def around(parts: Sequence[Part]) -> list[Part]:
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
