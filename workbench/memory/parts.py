"""The parts of a recipe's memory: what follows from shapes to the byte, and the rest as one range.

What is materialised was read in the sources of TRL 1.14.2, Unsloth 2026.10.9, PEFT 0.21.2 and
transformers 5.17.0. The functions that end in `_bytes` load nothing, and all but the activations'
are exact: tests/train/test_memory.py compares them with what bitsandbytes, PEFT, torch and
transformers make.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from workbench.base.errors import RecipeError
from workbench.base.kinds import Fields
from workbench.base.processes import count
from workbench.memory.shapes import ModelShape, adapter_on
from workbench.recipe import Recipe

GB = 10**9
# of a trained parameter, and so of its gradient and moments: float32, as Unsloth and PEFT make them
ADAPTER_BYTES = 4
# the one range: of every part that is not counted exactly; confirmed by no GPU
LOW, HIGH = 0.4, 1.6

# weights that share a scale of 8 bits, and scales that share one of 32
_NF4_BLOCK, _NESTED_BLOCK = 64, 256
_CODES = 16 * 4 + 256 * 4 + 4  # of each layer: both code tables and the offset, float32
_UNSLOTH_ROWS = 512  # Unsloth's decoding buffer grows by this many tokens
# Unsloth's chunk of log-probabilities: least rows, most bytes
_LOGPROB_ROWS, _LOGPROB_BYTES = 512, 2 * 2**30

Phase = Literal["always", "generation", "training"]
PHASES: tuple[Phase, Phase] = ("generation", "training")


class Span(NamedTuple):
    """Bytes: the estimate, and its low and high end."""

    bytes: int
    low: int
    high: int

    def __str__(self) -> str:
        return f"{in_gb(self.bytes)} ({self.low / GB:.1f} to {self.high / GB:.1f})"


class Part(NamedTuple):
    """One use of memory. What is counted to the byte has low = bytes = high."""

    name: str
    phase: Phase
    bytes: int
    low: int
    high: int
    allocated: bool = True  # torch.cuda.max_memory_allocated() sees it

    @property
    def exact(self) -> bool:
        return self.low == self.high


def _counted(name: str, phase: Phase, size: int, more: int = 0) -> Part:
    # `more`: bytes that a library may add, at the high end alone; with them, the part is not exact.
    return Part(name, phase, size, size, size + more)


def _rough(name: str, phase: Phase, size: float, more: int = 0, allocated: bool = True) -> Part:
    return Part(name, phase, round(size), round(LOW * size), round(HIGH * size) + more, allocated)


@dataclass
class Inputs:
    """What the parts of a recipe are computed from; lengths in tokens, sizes in bytes.

    The settings are those that `prepare` has checked. RecipeError if the card has no memory.
    """

    recipe: Recipe
    settings: Fields
    shape: ModelShape
    longest_prompt_tokens: int | None
    vram_gb: float | None

    def __post_init__(self) -> None:
        policy, settings, shape = self.recipe.policy, self.settings, self.shape
        self.completion: int = settings["max_completion_length"]
        room = policy.max_seq_length - self.completion
        if self.vram_gb is not None and not self.vram_gb > 0:
            raise RecipeError(
                f"vram_gb = {self.vram_gb}",
                rule="a card has more than 0 GB",
                remedy="give its memory, or leave it out",
            )
        self.vram_bytes = None if self.vram_gb is None else round(self.vram_gb * GB)
        shorter = min(self.recipe.max_prompt_length or room, room)
        self.prompt: int = self.longest_prompt_tokens or shorter
        self.rows: int = settings["per_device_train_batch_size"]  # of one forward pass
        steps = settings.get("steps_per_generation") or settings["gradient_accumulation_steps"]
        whole = settings.get("generation_batch_size") or self.rows * steps * count()
        self.sequences: int = whole // count()  # generated at once by each process
        self.tokens = self.rows * (self.prompt + self.completion)
        self.four_bit = policy.load_in_4bit or shape.quantised
        self.unsloth = policy.backend == "unsloth"
        # of a weight that is not quantised, and of an activation
        self.element = 4 if policy.dtype == "float32" else 2
        # On a GPU, Unsloth also trains stacked experts that PEFT leaves out for these target
        # modules; seen on no GPU.
        self.experts = self.unsloth and shape.stacked > 0
        # elements of each of the adapter's tensors
        self.adapter = adapter_on(shape, self.recipe.lora, experts=self.experts).sizes
        self.lora = sum(self.adapter)
        # The largest matrix that is kept in NF4, in 16 bits while it is used.
        largest = max(shape.packed if self.four_bit else (), default=0)
        self.unpacked = largest * self.element + 4 * math.ceil(largest / _NF4_BLOCK)


def nf4_bytes(weights: int) -> int:
    """Bytes of one `Linear4bit` weight with double quantisation, as bitsandbytes stores it."""
    scales = math.ceil(weights / _NF4_BLOCK)
    return math.ceil(weights / 2) + scales + 4 * math.ceil(scales / _NESTED_BLOCK) + _CODES


def weight_bytes(shape: ModelShape, load_in_4bit: bool, element_bytes: int = 2) -> int:
    """Bytes of the frozen weights. In 4 bits, embedding, output layer, norms and biases stay at
    `element_bytes` each.
    """
    packed = shape.packed if load_in_4bit else ()
    return (shape.parameters - sum(packed)) * element_bytes + sum(map(nf4_bytes, packed))


def optimizer_bytes(sizes: Sequence[int], optim: str) -> int | None:
    """Bytes of the optimiser's states for tensors of these sizes; None for an optimiser that is not
    counted here.
    """
    total = sum(sizes)
    if optim in ("adamw_torch", "adamw_torch_fused"):
        return 2 * total * ADAPTER_BYTES + 4 * len(sizes)  # and a step count each
    if optim in ("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"):
        # of smaller tensors bitsandbytes keeps the states in 32 bits
        large = [size for size in sizes if size >= 4096]
        scales = 8 * sum(math.ceil(size / 256) for size in large)
        maps = 2 * 256 * 4 if large else 0  # shared by all tensors
        return 8 * total - 6 * sum(large) + scales + maps
    return 0 if optim == "sgd" else None


def kv_bytes(shape: ModelShape, sequences: int, tokens: int, element_bytes: int = 2) -> int:
    """Bytes of the keys and values of `sequences` texts of `tokens` tokens, as transformers'
    DynamicCache keeps them.

    A layer with a sliding window keeps the window less one: the next token makes it whole.
    """
    kept = sum(tokens if window is None else min(tokens, window - 1) for window in shape.windows)
    return sequences * kept * shape.kv_heads * shape.head_dim * 2 * element_bytes


def activation_bytes_per_token(
    shape: ModelShape, *, unsloth: bool, r: int, element_bytes: int = 2
) -> int:
    """Bytes that one layer keeps of one token for the backward pass, without gradient
    checkpointing; near autograd's on a CPU.

    With PyTorch's own operations: each norm a float32 copy; the inputs of attention and MLP (also
    in the adapter's type where that is float32); queries, keys, values and output of attention;
    gate, its activation, up and their product; what is between the two matrices of each adapter.
    Unsloth's kernels keep one copy of each input, gate and up, and compute the rest again.
    """
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = 2 * (queries + keys)
    if unsloth:
        return element_bytes * (hidden * (shape.norms_per_layer + 2) + attention + 2 * inner)
    norms = 4 * hidden * shape.norms_per_layer + (4 * (queries + keys) if shape.qk_norm else 0)
    # Seen in what autograd keeps: residuals that a float32 adapter has touched are float32 too.
    residuals = 6 * hidden + 2 * queries if element_bytes == 2 else 0
    adapters = r * len(shape.packed) // shape.layers
    return norms + residuals + element_bytes * (2 * hidden + attention + 4 * inner + adapters)


def always(inputs: Inputs) -> list[Part]:
    """The parts of both phases. Raises RecipeError if vLLM takes a share of an unknown card, or one
    too small.
    """
    shape, settings, unsloth = inputs.shape, inputs.settings, inputs.unsloth
    size = weight_bytes(shape, inputs.four_bit, inputs.element)
    own = unsloth and inputs.four_bit and not shape.quantised and not shape.local
    # Unsloth may load its own repository instead, which keeps more at 16 bits.
    weights = _counted("weights", "always", size, round(0.3 * size) if own else 0)
    parts = [weights, _adapter("LoRA", "always", inputs)]
    if settings.get("beta") and not unsloth:  # TRL's frozen copy for the KL
        parts.append(_counted("reference adapter", "always", inputs.lora * ADAPTER_BYTES))
    parts.append(_optimiser(inputs))
    if settings.get("use_vllm") and (
        inputs.unsloth or settings.get("vllm_mode", "colocate") == "colocate"
    ):
        parts.append(_vllm(inputs, weights))
    return parts


def _adapter(name: str, phase: Phase, inputs: Inputs) -> Part:
    # The adapter, or its gradients.
    shape, size, more = inputs.shape, inputs.lora * ADAPTER_BYTES, 0
    if inputs.experts:
        return _rough(name, phase, size)
    if {"lm_head", "embed_tokens"} & set(inputs.recipe.lora.target_modules):
        # Unsloth trains the embedding or output layer whole, in float32.
        more = 4 * shape.vocab_size * shape.hidden_size * (1 if shape.tied else 2)
    return _counted(name, phase, size, more)


def _optimiser(inputs: Inputs) -> Part:
    requested = inputs.settings.get("optim") or "adamw_torch"
    optim = str(getattr(requested, "value", requested))
    states = optimizer_bytes(inputs.adapter, optim)
    if states is None or inputs.experts or optim.startswith("paged"):
        # what is not counted is taken as Adam's
        return _rough("optimiser", "always", 8 * inputs.lora if states is None else states)
    return _counted("optimiser", "always", states)


def _vllm(inputs: Inputs, weights: Part) -> Part:
    settings, card = inputs.settings, inputs.vram_bytes
    share = settings.get("vllm_gpu_memory_utilization", 0.3)
    if inputs.unsloth:
        share = inputs.recipe.policy.gpu_memory_utilization
    if card is None:
        rule = f"vLLM takes a share of the card ({share:.0%}) for its own weights and cache"
        remedy = "give vram_gb, what the card has in GB"
        raise RecipeError("use_vllm = True, and the card is not known", rule=rule, remedy=remedy)
    size, more = round(share * card), round(0.1 * share * card)
    if inputs.unsloth and weights.low > size:
        value = f"policy.gpu_memory_utilization = {share:g}, {in_gb(size)} of the card"
        held = f"vLLM's share holds the weights ({in_gb(weights.low)})"
        remedy = "raise it, or set policy.fast_inference: false"
        raise RecipeError(value, rule=f"{held}, and keys and values beside them", remedy=remedy)
    # Unsloth trains on the very weights that vLLM holds in its share, so what is left of it is
    # vLLM's own. Taken as if the whole card were free when the model is loaded, and as if vLLM kept
    # its share while the policy trains, unless it sleeps.
    sleeps = not inputs.unsloth and settings.get("vllm_enable_sleep_mode")
    size -= weights.bytes if inputs.unsloth else 0
    part = _counted("vLLM", "generation" if sleeps else "always", size, more)
    return part._replace(allocated=False)


def generation(inputs: Inputs) -> list[Part]:
    """What generating the whole generation batch adds; nothing if vLLM generates."""
    shape, element, sequences = inputs.shape, inputs.element, inputs.sequences
    if inputs.settings.get("use_vllm"):
        return []
    tokens = inputs.prompt + inputs.completion - 1  # the last token is not fed back
    cache = kv_bytes(shape, sequences, tokens, element)
    # A layer's keys or values, copied to add a token.
    growth, more = cache // (2 * shape.layers), 0
    if inputs.unsloth:
        rows = (max(inputs.completion - 2, 0) // _UNSLOTH_ROWS + 1) * _UNSLOTH_ROWS
        buffer = kv_bytes(shape, sequences, inputs.prompt + 1 + rows, element)
        growth = max(buffer - cache, 0)
        # The prompts' own are copied into the buffer.
        more = kv_bytes(shape, sequences, inputs.prompt, element)
    # one layer's values of every prompt
    per_token = element * 3 * shape.intermediate_size + (8 + element) * shape.hidden_size
    reading = sequences * inputs.prompt * per_token
    # of one token per sequence, in 32 bits, with what is computed of them
    logits = sequences * shape.vocab_size * 14
    scratch = growth + reading + logits + inputs.unpacked
    return [
        _counted("keys and values", "generation", cache),
        _rough("scratch", "generation", scratch, more),
    ]


def training(inputs: Inputs) -> list[Part]:
    """What the forward and backward pass of one `per_device_train_batch_size` adds."""
    shape = inputs.shape
    # gradients of one layer's values, and the largest layer unpacked
    back = inputs.tokens * inputs.element * (3 * shape.intermediate_size + 4 * shape.hidden_size)
    return [
        _adapter("gradients", "training", inputs),
        _activations(inputs),
        _rough("log-probabilities", "training", _logprobs(inputs)),
        _rough("scratch", "training", back + inputs.unpacked),
    ]


def _activations(inputs: Inputs) -> Part:
    shape, element, more = inputs.shape, inputs.element, 0
    layer = inputs.tokens * activation_bytes_per_token(
        shape, unsloth=inputs.unsloth, r=inputs.recipe.lora.r, element_bytes=element
    )
    ends = inputs.tokens * shape.hidden_size * 8  # the embedding's output and the last norm
    one_input = inputs.tokens * shape.hidden_size * element
    if not inputs.settings.get("gradient_checkpointing"):
        size = shape.layers * layer
    elif inputs.unsloth:  # keeps the layers' inputs in the host's memory
        size, more = layer + 2 * one_input, shape.layers * one_input
    else:
        size = layer + shape.layers * one_input
    return _rough("activations", "training", size + ends, more)


def _logprobs(inputs: Inputs) -> int:
    vocab = inputs.shape.vocab_size
    scored = inputs.rows * (inputs.completion + 1)
    if inputs.unsloth:
        most = max(_LOGPROB_BYTES // (8 * vocab), 2)
        return (
            min(most, max(_LOGPROB_ROWS, math.ceil(inputs.tokens / 8)), inputs.tokens) * vocab * 8
        )
    return scored * vocab * 10  # float32, and its gradients in 16 bits


def overhead(parts: Sequence[Part]) -> list[Part]:
    """Memory that torch's counter does not see: the CUDA context, and what the allocator holds and
    cannot use (5 % of what is allocated; at the high end up to 10 % more).
    """
    unseen = []
    for phase in PHASES:
        held = add([one for one in parts if one.phase in ("always", phase) and one.allocated]).bytes
        size = GB // 2 + held // 20
        unseen.append(_rough("CUDA and its allocator", phase, size, held // 10, allocated=False))
    return unseen


def add(parts: Sequence[Part]) -> Span:
    """All parts together, each at the same end."""
    return Span(*(sum(getattr(part, end) for part in parts) for end in Span._fields))


def in_gb(size: float) -> str:
    """Bytes in words: GB, MB, kB of 1000."""
    for unit, scale in (("GB", GB), ("MB", 10**6)):
        if size >= 0.1 * scale:
            return f"{size / scale:.{2 if size < 10 * scale else 1}f} {unit}"
    return f"{size / 1000:.0f} kB"
