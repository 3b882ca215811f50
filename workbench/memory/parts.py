"""The parts of a recipe's memory: how many bytes each use takes in each phase, exactly or with a low and a high end.

What is materialised was read in the sources of TRL 1.14.2, Unsloth 2026.10.9, PEFT 0.21.2 and transformers 5.17.0, and
each part's formula says it in words. The functions that end in `_bytes` or `_sizes` load nothing, and all but the activations'
are exact: tests/train/test_memory.py compares them with what bitsandbytes, PEFT, torch and transformers make.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from workbench.errors import RecipeError
from workbench.memory.shapes import ModelShape, adapter_on, unquantised
from workbench.processes import count
from workbench.recipe import Recipe

GB = 10**9
ADAPTER_BYTES = 4  # of a trained parameter, and so of its gradient and moments: float32, as Unsloth and PEFT make them

_NF4_BLOCK, _NESTED_BLOCK = 64, 256  # weights that share a scale of 8 bits, and scales that share one of 32
_CODES = 16 * 4 + 256 * 4 + 4  # of each layer: both code tables and the offset, float32
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
        ends = "" if self.low == self.high else f" ({self.low / GB:.1f} to {self.high / GB:.1f})"
        return in_gb(self.bytes) + ends


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


class Inputs:
    """What the parts of a recipe are computed from; lengths in tokens, sizes in bytes. `how`: the rest of `estimate`'s arguments.

    Raises RecipeError if the batch is impossible, or no room is left for a prompt.
    """

    def __init__(self, recipe: Recipe, settings: dict[str, Any], how: dict[str, Any]) -> None:
        policy, most, vram_gb = recipe.policy, settings["max_completion_length"], how["vram_gb"]
        room = policy.max_seq_length - most
        if room < 1:
            value = f"max_completion_length = {most}, policy.max_seq_length = {policy.max_seq_length}"
            rule, remedy = "max_seq_length holds prompt and completion together", "lower the first or raise the second"
            raise RecipeError(value, rule=rule, remedy=remedy)
        if vram_gb is not None and not vram_gb > 0:
            raise RecipeError(f"vram_gb = {vram_gb}", rule="a card has more than 0 GB", remedy="give what it has, or nothing")
        rows, group = settings["per_device_train_batch_size"], settings["num_generations"]
        steps = settings.get("steps_per_generation") or settings["gradient_accumulation_steps"]
        sequences = (settings.get("generation_batch_size") or rows * steps * count()) // count()  # of each process
        if rows < 1 or group < 2 or sequences * count() % group or sequences % rows:
            value = f"per_device_train_batch_size = {rows}, num_generations = {group}, {sequences} completions generated at once"
            rule = "both divide the generation batch, and a group has at least 2 completions"
            raise RecipeError(value, rule=rule, remedy="let `workbench plan` correct the batch")
        self.recipe, self.settings, self.shape = recipe, settings, how["shape"]
        self.prompt: int = how["longest_prompt_tokens"] or min(recipe.max_prompt_length or room, room)
        self.completion: int = most
        # Generated at once: whole groups; of a forward pass.
        self.sequences, self.rows = sequences, rows
        self.four_bit = policy.load_in_4bit or self.shape.quantised
        self.kernels = "unsloth" if policy.backend == "unsloth" and how["device"] == "cuda" else "torch"
        # Of a weight that is not quantised, and of an activation. On a CPU the plain backend's default is float32.
        wide = policy.dtype is None and policy.backend == "transformers" and how["device"] == "cpu"
        self.element = 4 if wide or policy.dtype == "float32" else 2
        self.lora_tensors = adapter_on(self.shape, recipe.lora).sizes  # elements of each
        self.lora = sum(self.lora_tensors)
        # On a GPU, Unsloth also trains stacked experts that PEFT leaves out for these target modules; seen on no GPU.
        most = adapter_on(self.shape, recipe.lora, experts=self.kernels == "unsloth" and self.shape.stacked > 0).sizes
        self.lora_more = sum(most) - self.lora
        self.tokens = rows * (self.prompt + self.completion)
        self.vram_bytes = None if vram_gb is None else round(vram_gb * GB)
        # Weights of the largest matrix that is kept in NF4.
        self.largest = max((matrix.weights for matrix in self.shape.matrices), default=0) if self.four_bit else 0


def nf4_bytes(weights: int) -> int:
    """Bytes of one `Linear4bit` weight with double quantisation, as bitsandbytes stores it."""
    scales = math.ceil(weights / _NF4_BLOCK)
    return math.ceil(weights / 2) + scales + 4 * math.ceil(scales / _NESTED_BLOCK) + _CODES


def weight_bytes(shape: ModelShape, load_in_4bit: bool, element_bytes: int = 2) -> int:
    """Bytes of the frozen weights. In 4 bits, embedding, output layer, norms and biases stay at `element_bytes` each."""
    packed = [matrix.weights for matrix in shape.matrices if load_in_4bit and shape.is_quantised(matrix)]
    return (shape.parameters - sum(packed)) * element_bytes + sum(map(nf4_bytes, packed))


def optimizer_bytes(sizes: Sequence[int], optim: str) -> int | None:
    """Bytes of the optimiser's states for tensors of these sizes; None for an optimiser that is not counted here."""
    total = sum(sizes)
    if optim in ("adamw_torch", "adamw_torch_fused"):
        return 2 * total * ADAPTER_BYTES + 4 * len(sizes)  # and a step count each
    if optim in ("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"):
        large = [size for size in sizes if size >= 4096]  # of smaller tensors bitsandbytes keeps the states in 32 bits
        maps = 2 * 256 * 4 if large else 0  # shared by all tensors
        return 8 * (total - sum(large)) + 2 * sum(large) + 8 * sum(math.ceil(size / 256) for size in large) + maps
    return {"paged_adamw_32bit": 8 * total, "sgd": 0}.get(optim)


def kv_bytes(shape: ModelShape, sequences: int, tokens: int, element_bytes: int = 2) -> int:
    """Bytes of the keys and values of `sequences` texts of `tokens` tokens, as transformers' DynamicCache keeps them.

    A layer with a sliding window keeps the window less one: the next token makes it whole.
    """
    kept = sum(tokens if window is None else min(tokens, window - 1) for window in shape.windows)
    return sequences * kept * shape.kv_heads * shape.head_dim * 2 * element_bytes


def activation_bytes_per_token(shape: ModelShape, *, kernels: str, r: int, element_bytes: int = 2) -> int:
    """Bytes that one layer keeps of one token for the backward pass, without gradient checkpointing; near autograd's on a CPU.

    With PyTorch's own operations: each norm a float32 copy; the inputs of attention and MLP (also in the adapter's type
    where that is float32); queries, keys, values and output of attention; gate, its activation, up and their product;
    what is between the two matrices of each adapter. Unsloth's kernels keep one copy of each input, gate and up, and
    compute the rest again.
    """
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = 2 * (queries + keys)
    if kernels == "unsloth":
        return element_bytes * (hidden * (shape.norms_per_layer + 2) + attention + 2 * inner)
    norms = 4 * hidden * shape.norms_per_layer + (4 * (queries + keys) if shape.qk_norm else 0)
    # Seen in what autograd keeps: residuals that a float32 adapter has touched are float32 too.
    residuals = 6 * hidden + 2 * queries if element_bytes == 2 else 0
    adapters = r * len(shape.matrices) // shape.layers
    return norms + residuals + element_bytes * (2 * hidden + attention + 4 * inner + adapters)


def _part(
    name: str, phase: Phase, size: float, formula: str, low: float = 1, high: float = 1, *, more: int = 0, allocated: bool = True
) -> Part:
    """`low` and `high` as factors of `size`, `more` bytes on top of the high end; without any of these, it is exact."""
    exact = low == high == 1 and not more
    return Part(name, phase, round(size), round(size * low), round(size * high) + more, exact, formula, allocated)


def static_parts(inputs: Inputs) -> list[Part]:
    """What is there in both phases. Raises RecipeError if vLLM takes a share of an unknown card, or one too small."""
    shape, settings, lora = inputs.shape, inputs.settings, inputs.lora
    unsloths, high = inputs.recipe.policy.backend == "unsloth", 1.0
    formula = f"NF4 with nested scales in {len(shape.matrices)} layers, {inputs.element} bytes for each of the rest"
    if not inputs.four_bit:
        formula = f"{shape.parameters:,} parameters x {inputs.element} bytes"
    elif inputs.kernels == "unsloth" and not shape.quantised and not shape.local:
        # On a GPU, Unsloth may load its own repository instead, in which some layers were left at 16 bits.
        formula, high = "NF4, and 16 bits for the rest; Unsloth may put its own repository in place, which keeps more at 16", 1.3
    if inputs.four_bit and shape.stacked:
        formula += f"; {unquantised(shape.stacked, shape.parameters)}"
    parts = [_part("weights", "always", weight_bytes(shape, inputs.four_bit, inputs.element), formula, high=high)]
    formula, full = f"{lora:,} parameters x {ADAPTER_BYTES} bytes", inputs.lora_more * ADAPTER_BYTES
    formula += f"; {inputs.lora_more:,} more if Unsloth also trains the other experts" if full else ""
    if {"lm_head", "embed_tokens"} & set(inputs.recipe.lora.target_modules):
        # Unsloth trains these two whole, in float32, instead of putting an adapter on them.
        formula = "adapters, and the embedding or output layer trained whole"
        full += 4 * shape.vocab_size * shape.hidden_size * (1 if shape.tied else 2)
    parts.append(_part("LoRA", "always", lora * ADAPTER_BYTES, formula, more=full))
    if settings.get("beta") and inputs.kernels == "torch":
        parts.append(_part("reference adapter", "always", lora * 4, f"TRL's frozen copy for the KL: {lora:,} x 4 bytes"))
    optim = str(getattr(settings.get("optim"), "value", settings.get("optim") or "adamw_torch"))
    if inputs.kernels == "torch" and unsloths and "8bit" in optim:
        optim = "adamw_torch"  # Unsloth's CPU backend puts it in place
    states = optimizer_bytes(inputs.lora_tensors, optim)
    if states is None:
        parts.append(_part("optimiser", "always", 8 * lora, f"{optim} is not counted here: at most as Adam's", 0, 1.2))
    elif optim.startswith("paged"):
        parts.append(_part("optimiser", "always", states, f"{optim}: states that may move to the host's memory", 0))
    else:
        said, more = f"{optim}: two moments of {lora:,} parameters", 2 * inputs.lora_more * ADAPTER_BYTES
        parts.append(_part("optimiser", "always", states, said, more=more))
    if settings.get("use_vllm") and (unsloths or settings.get("vllm_mode", "colocate") == "colocate"):
        parts.append(_vllm(inputs, parts[0]))
    return parts


def _vllm(inputs: Inputs, weights: Part) -> Part:
    settings, policy, card = inputs.settings, inputs.recipe.policy, inputs.vram_bytes
    unsloths = policy.backend == "unsloth"
    share = policy.gpu_memory_utilization if unsloths else settings.get("vllm_gpu_memory_utilization", 0.3)
    if card is None:
        rule = f"vLLM takes a share of the card ({share:.0%}) for its own weights and cache"
        raise RecipeError("use_vllm = True, and the card is not known", rule=rule, remedy="give vram_gb, what the card has in GB")
    if not unsloths:
        phase: Phase = "generation" if settings.get("vllm_enable_sleep_mode") else "always"
        formula = f"{share:.0%} of the card: vllm_gpu_memory_utilization"
        return _part("vLLM", phase, share * card, formula, 1, 1.1, allocated=False)
    # Unsloth trains on the very weights that vLLM holds in its share, so what is left of it is vLLM's own. Taken as if
    # the whole card were free when the model is loaded, and as if vLLM kept its share while the policy trains.
    if weights.low > share * card:
        value = f"policy.gpu_memory_utilization = {share:g}, {in_gb(share * card)} of the card"
        rule = f"vLLM's share holds the weights ({in_gb(weights.low)}), and keys and values beside them"
        raise RecipeError(value, rule=rule, remedy="raise it, or set policy.fast_inference: false")
    formula = f"{share:.0%} of the card (policy.gpu_memory_utilization), less the weights, which it shares with Unsloth"
    own = max(round(share * card) - weights.bytes, 0)
    return _part("vLLM", "always", own, formula, more=round(0.1 * share * card), allocated=False)


def generation(inputs: Inputs) -> list[Part]:
    """What generating the whole generation batch adds; nothing if vLLM generates."""
    shape, element, sequences = inputs.shape, inputs.element, inputs.sequences
    if inputs.settings.get("use_vllm"):
        return []
    tokens = inputs.prompt + inputs.completion - 1  # the last token is not fed back
    cache = kv_bytes(shape, sequences, tokens, element)
    heads = f"{shape.layers} layers x {shape.kv_heads} heads x {shape.head_dim}"
    formula = f"{sequences} sequences x {tokens} tokens x {heads} x 2 x {element} bytes"
    parts = [_part("keys and values", "generation", cache, formula)]
    if inputs.kernels == "unsloth":
        rows = inputs.prompt + 1 + _UNSLOTH_ROWS * math.ceil((inputs.completion + 1) / _UNSLOTH_ROWS)
        larger = max(kv_bytes(shape, sequences, rows, element) - cache, 0)
        copied = kv_bytes(shape, sequences, inputs.prompt, element)
        formula = f"Unsloth's buffer grows by {_UNSLOTH_ROWS} tokens, on some models by half; the prompt's is copied"
        parts.append(_part("growing cache", "generation", larger, formula, 0, more=copied))
        if shape.model_type in GRAPHED:
            parts.append(_decode_graphs(inputs, rows))
    else:
        formula = "a layer's keys or values, copied to add a token"
        parts.append(_part("growing cache", "generation", cache / (2 * shape.layers), formula, 0.5, 3))
    wide = sequences * inputs.prompt * (element * 3 * shape.intermediate_size + (8 + element) * shape.hidden_size)
    logits = sequences * shape.vocab_size * 14
    return [
        *parts,
        _part("reading the prompts", "generation", wide, "one layer's values, every prompt", 0.5, 1.6),
        _part("choosing tokens", "generation", logits, "logits of one token per sequence, some copies", 0.5, 2.2),
        *_scratch(inputs, "generation"),
    ]


def _decode_graphs(inputs: Inputs, rows: int) -> Part:
    # unsloth/models/_decode_graphs.py: a step of all sequences is captured once, as a graph before, between and after the
    # layers' attention, in a separate memory pool that is freed before training. UNSLOTH_DECODE_CUDA_GRAPHS=0: none.
    shape, element = inputs.shape, inputs.element
    one = element * (shape.layers * shape.heads * shape.head_dim + shape.vocab_size)  # attention's output, logits
    one += element * (2 * shape.intermediate_size + 4 * shape.hidden_size) + 12 * shape.hidden_size  # a layer's values
    size = inputs.sequences * one + inputs.largest * element + _WORKSPACE
    rounded = kv_bytes(shape, inputs.sequences, -rows % _GRAPH_ROWS, element)
    formula = (
        f"Unsloth's captured step: attention's output of {shape.layers} layers, one layer's values and logits of "
        f"{inputs.sequences} sequences; twice that with its buffer's rounding and the driver; or no graphs; confirmed by no GPU"
    )
    return _part("decode graphs", "generation", size, formula, 0, 2, more=rounded + (shape.layers + 1) * _A_GRAPH)


def training(inputs: Inputs) -> list[Part]:
    """What the forward and backward pass of one `per_device_train_batch_size` adds."""
    shape, lora = inputs.shape, inputs.lora
    said = f"of LoRA: {lora:,} x {ADAPTER_BYTES} bytes"
    back = inputs.tokens * inputs.element * (3 * shape.intermediate_size + 4 * shape.hidden_size)
    return [
        _part("gradients", "training", lora * ADAPTER_BYTES, said, more=inputs.lora_more * ADAPTER_BYTES),
        _activations(inputs),
        _logprobs(inputs),
        _part("backward scratch", "training", back, "gradients of one layer's values", 0.4, 1.8),
        *_scratch(inputs, "training"),
    ]


def _activations(inputs: Inputs) -> Part:
    shape, tokens, unsloth = inputs.shape, inputs.tokens, inputs.kernels == "unsloth"
    r, element = inputs.recipe.lora.r, inputs.element
    layer = tokens * activation_bytes_per_token(shape, kernels=inputs.kernels, r=r, element_bytes=element)
    ends = tokens * shape.hidden_size * 8  # the embedding's output and the last norm
    one, more = tokens * shape.hidden_size * element, 0  # a layer's input
    if not inputs.settings.get("gradient_checkpointing"):
        size, said = shape.layers * layer + ends, "every layer's values"
        low, high = (0.4, 1.5) if unsloth else (0.85, 1.3)  # Unsloth leaves out padding, and may compute a group's prompt once
    elif unsloth:
        size, said = 2 * one + layer + ends, "one layer's values; Unsloth keeps the layers' inputs in the host's memory"
        low, high, more = 0.4, 1.5, shape.layers * one
    else:
        size, said = shape.layers * one + layer + ends, "every layer's input, one layer's values"
        low, high = 0.8, 1.5
    formula = f"{inputs.rows} x {inputs.prompt + inputs.completion} tokens: {said}"
    return _part("activations", "training", size, formula, low, high, more=more)


def _logprobs(inputs: Inputs) -> Part:
    shape, vocab = inputs.shape, inputs.shape.vocab_size
    scored = inputs.rows * (inputs.completion + 1)
    if inputs.kernels == "unsloth":
        most = max(_LOGPROB_BYTES // (8 * vocab), 2)
        rows = min(most, max(_LOGPROB_ROWS, math.ceil(inputs.tokens / 8)), inputs.tokens)
        size, low, high = rows * vocab * 8, 0.5, 2.0
        formula = f"Unsloth's chunk: {rows:,} tokens x vocabulary {vocab:,} x 8 bytes"
    elif inputs.settings.get("use_liger_kernel"):
        rows, columns = min(scored, _LIGER_TILE[0]), min(vocab, _LIGER_TILE[1])
        size, low, high = rows * columns * 18 + shape.hidden_size * 4 * (columns + scored), 0.7, 1.4
        formula = f"tiles of {rows:,} x {columns:,} logits"
    else:
        size, low, high = scored * vocab * 10, 0.6, 1.6
        formula = f"TRL's logits: {inputs.rows} x {inputs.completion + 1} x vocabulary {vocab:,} x 10 bytes "
        formula += "(float32, their gradient, and it in 16 bits)"
    return _part("log-probabilities", "training", size, formula, low, high)


def _scratch(inputs: Inputs, phase: Phase) -> list[Part]:
    size = inputs.largest * inputs.element + 4 * math.ceil(inputs.largest / _NF4_BLOCK)
    formula = "the largest NF4 layer in 16 bits, while it is used"
    return [_part("unpacked layer", phase, size, formula, 0.5, 2)] if inputs.four_bit else []


def overhead(parts: Sequence[Part]) -> list[Part]:
    """What torch's counter does not see: the CUDA context, and memory that the allocator holds and cannot use."""
    unseen = [_part("CUDA context", "always", GB // 2, "driver and kernels", 0.6, 1.8, allocated=False)]
    for phase in PHASES:
        held = add([part for part in parts if part.phase in ("always", phase) and part.allocated])
        formula = "about 5 % of what is allocated"
        unseen.append(_part("allocator's gaps", phase, 0.05 * held.bytes, formula, 0.2, 3, allocated=False))
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
