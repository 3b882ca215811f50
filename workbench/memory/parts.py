"""The parts of a recipe's memory: what follows from shapes to the byte, and the rest as one range.

What is materialised was read in the sources of TRL 1.14.2, Unsloth 2026.10.9, PEFT 0.21.2 and
transformers 5.17.0, and each part's formula says it in words. The functions that end in `_bytes`
load nothing, and all but the activations' are exact: tests/train/test_memory.py compares them with
what bitsandbytes, PEFT, torch and transformers make.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from workbench.errors import RecipeError
from workbench.kinds import Fields
from workbench.memory.shapes import ModelShape, adapter_on, unquantised
from workbench.processes import count
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
# Models whose decoding step Unsloth captures in CUDA graphs, and the driver's share of a graph, a
# guess.
GRAPHED = {"llama", "qwen3"}
_GRAPH = 4 * 2**20
# Unsloth's chunk of log-probabilities: least rows, most bytes
_LOGPROB_ROWS, _LOGPROB_BYTES = 512, 2 * 2**30
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


def _exact(name: str, phase: Phase, size: int, formula: str, more: int = 0) -> Part:
    # `more`: bytes that a library may add, at the high end alone; with them, the part is not exact.
    return Part(name, phase, size, size, size + more, not more, formula)


def _rough(
    name: str, phase: Phase, size: float, formula: str, more: int = 0, *, allocated: bool = True
) -> Part:
    return Part(
        name,
        phase,
        round(size),
        round(LOW * size),
        round(HIGH * size) + more,
        False,
        formula,
        allocated,
    )


class Inputs:
    """What the parts of a recipe are computed from; lengths in tokens, sizes in bytes.

    Raises RecipeError if the batch is impossible, or no room is left for a prompt.
    """

    def __init__(
        self,
        recipe: Recipe,
        settings: Fields,
        shape: ModelShape,
        longest_prompt_tokens: int | None,
        vram_gb: float | None,
        device: str,
    ) -> None:
        policy = recipe.policy
        completion = settings["max_completion_length"]
        room = policy.max_seq_length - completion
        if room < 1:
            value = (
                f"max_completion_length = {completion}, policy.max_seq_length ="
                f" {policy.max_seq_length}"
            )
            rule = "max_seq_length holds prompt and completion together"
            raise RecipeError(value, rule=rule, remedy="lower the first or raise the second")
        if vram_gb is not None and not vram_gb > 0:
            rule = "a card has more than 0 GB"
            raise RecipeError(
                f"vram_gb = {vram_gb}", rule=rule, remedy="give its memory, or leave it out"
            )
        rows = settings["per_device_train_batch_size"]
        group = settings["num_generations"]
        steps = settings.get("steps_per_generation") or settings["gradient_accumulation_steps"]
        sequences = (settings.get("generation_batch_size") or rows * steps * count()) // count()
        if rows < 1 or group < 2 or sequences * count() % group or sequences % rows:
            value = (
                f"per_device_train_batch_size = {rows}, num_generations = {group}, {sequences}"
                " completions generated at once"
            )
            rule = "both divide the generation batch, and a group has at least 2 completions"
            raise RecipeError(value, rule=rule, remedy="let `workbench plan` correct the batch")
        self.recipe = recipe
        self.settings = settings
        self.shape = shape
        self.vram_bytes = None if vram_gb is None else round(vram_gb * GB)
        self.prompt: int = longest_prompt_tokens or min(recipe.max_prompt_length or room, room)
        self.completion: int = completion
        self.rows = rows  # of one forward pass
        self.sequences = sequences  # generated at once by each process
        self.tokens = rows * (self.prompt + completion)
        self.four_bit = policy.load_in_4bit or shape.quantised
        self.unsloth = policy.backend == "unsloth"
        self.kernels = "unsloth" if self.unsloth and device == "cuda" else "torch"
        # Of a weight that is not quantised, and of an activation. On a CPU the plain backend's
        # default is float32.
        wide = policy.dtype is None and not self.unsloth and device == "cpu"
        self.element = 4 if wide or policy.dtype == "float32" else 2
        self.lora_tensors = adapter_on(shape, recipe.lora).sizes  # elements of each
        self.lora = sum(self.lora_tensors)
        # On a GPU, Unsloth also trains stacked experts that PEFT leaves out for these target
        # modules; seen on no GPU.
        experts = self.kernels == "unsloth" and shape.stacked > 0
        self.lora_more = sum(adapter_on(shape, recipe.lora, experts=experts).sizes) - self.lora
        # Weights of the largest matrix that is kept in NF4.
        self.largest = (
            max((matrix.weights for matrix in shape.matrices), default=0) if self.four_bit else 0
        )


def nf4_bytes(weights: int) -> int:
    """Bytes of one `Linear4bit` weight with double quantisation, as bitsandbytes stores it."""
    scales = math.ceil(weights / _NF4_BLOCK)
    return math.ceil(weights / 2) + scales + 4 * math.ceil(scales / _NESTED_BLOCK) + _CODES


def weight_bytes(shape: ModelShape, load_in_4bit: bool, element_bytes: int = 2) -> int:
    """Bytes of the frozen weights. In 4 bits, embedding, output layer, norms and biases stay at
    `element_bytes` each.
    """
    packed = [
        matrix.weights for matrix in shape.matrices if load_in_4bit and shape.is_quantised(matrix)
    ]
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
        maps = 2 * 256 * 4 if large else 0  # shared by all tensors
        return (
            8 * (total - sum(large))
            + 2 * sum(large)
            + 8 * sum(math.ceil(size / 256) for size in large)
            + maps
        )
    return {"paged_adamw_32bit": 8 * total, "sgd": 0}.get(optim)


def kv_bytes(shape: ModelShape, sequences: int, tokens: int, element_bytes: int = 2) -> int:
    """Bytes of the keys and values of `sequences` texts of `tokens` tokens, as transformers'
    DynamicCache keeps them.

    A layer with a sliding window keeps the window less one: the next token makes it whole.
    """
    kept = sum(tokens if window is None else min(tokens, window - 1) for window in shape.windows)
    return sequences * kept * shape.kv_heads * shape.head_dim * 2 * element_bytes


def activation_bytes_per_token(
    shape: ModelShape, *, kernels: str, r: int, element_bytes: int = 2
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
    if kernels == "unsloth":
        return element_bytes * (hidden * (shape.norms_per_layer + 2) + attention + 2 * inner)
    norms = 4 * hidden * shape.norms_per_layer + (4 * (queries + keys) if shape.qk_norm else 0)
    # Seen in what autograd keeps: residuals that a float32 adapter has touched are float32 too.
    residuals = 6 * hidden + 2 * queries if element_bytes == 2 else 0
    adapters = r * len(shape.matrices) // shape.layers
    return norms + residuals + element_bytes * (2 * hidden + attention + 4 * inner + adapters)


def static_parts(inputs: Inputs) -> list[Part]:
    """The parts of both phases. Raises RecipeError if vLLM takes a share of an unknown card, or one
    too small.
    """
    settings, lora = inputs.settings, inputs.lora
    parts = [_weights(inputs), _lora(inputs)]
    if settings.get("beta") and inputs.kernels == "torch":
        formula = f"TRL's frozen copy for the KL: {lora:,} x {ADAPTER_BYTES} bytes"
        parts.append(_exact("reference adapter", "always", lora * ADAPTER_BYTES, formula))
    parts.append(_optimiser(inputs))
    if settings.get("use_vllm") and (
        inputs.unsloth or settings.get("vllm_mode", "colocate") == "colocate"
    ):
        parts.append(_vllm(inputs, parts[0]))
    return parts


def _weights(inputs: Inputs) -> Part:
    shape = inputs.shape
    size, more = weight_bytes(shape, inputs.four_bit, inputs.element), 0
    formula = (
        f"NF4 with nested scales in {len(shape.matrices)} layers, {inputs.element} bytes for each"
        " of the rest"
    )
    if not inputs.four_bit:
        formula = f"{shape.parameters:,} parameters x {inputs.element} bytes"
    elif inputs.kernels == "unsloth" and not shape.quantised and not shape.local:
        # On a GPU, Unsloth may load its own repository instead, in which some layers were left at
        # 16 bits.
        formula = (
            "NF4, and 16 bits for the rest; Unsloth may load its own repository instead, which"
            " keeps more at 16"
        )
        more = round(0.3 * size)
    if inputs.four_bit and shape.stacked:
        formula += f"; {unquantised(shape.stacked, shape.parameters)}"
    return _exact("weights", "always", size, formula, more)


def _lora(inputs: Inputs) -> Part:
    shape, more = inputs.shape, inputs.lora_more * ADAPTER_BYTES
    formula = f"{inputs.lora:,} parameters x {ADAPTER_BYTES} bytes"
    if more:
        formula += f"; {inputs.lora_more:,} more if Unsloth also trains the other experts"
    if {"lm_head", "embed_tokens"} & set(inputs.recipe.lora.target_modules):
        # Unsloth trains these two whole, in float32, instead of putting an adapter on them.
        formula = "adapters, and the embedding or output layer trained whole"
        more += 4 * shape.vocab_size * shape.hidden_size * (1 if shape.tied else 2)
    return _exact("LoRA", "always", inputs.lora * ADAPTER_BYTES, formula, more)


def _optimiser(inputs: Inputs) -> Part:
    asked = inputs.settings.get("optim") or "adamw_torch"
    optim = str(getattr(asked, "value", asked))
    if inputs.kernels == "torch" and inputs.unsloth and "8bit" in optim:
        optim = "adamw_torch"  # Unsloth's CPU backend puts it in place
    states = optimizer_bytes(inputs.lora_tensors, optim)
    if states is None:
        return _rough(
            "optimiser", "always", 8 * inputs.lora, f"{optim} is not counted here: taken as Adam's"
        )
    if optim.startswith("paged"):
        return _rough(
            "optimiser", "always", states, f"{optim}: states that may move to the host's memory"
        )
    formula = f"{optim}: two moments of {inputs.lora:,} parameters"
    return _exact("optimiser", "always", states, formula, 2 * inputs.lora_more * ADAPTER_BYTES)


def _vllm(inputs: Inputs, weights: Part) -> Part:
    settings, policy, card = inputs.settings, inputs.recipe.policy, inputs.vram_bytes
    share = (
        policy.gpu_memory_utilization
        if inputs.unsloth
        else settings.get("vllm_gpu_memory_utilization", 0.3)
    )
    if card is None:
        rule = f"vLLM takes a share of the card ({share:.0%}) for its own weights and cache"
        raise RecipeError(
            "use_vllm = True, and the card is not known",
            rule=rule,
            remedy="give vram_gb, what the card has in GB",
        )
    size, phase = round(share * card), "always"
    if not inputs.unsloth:
        formula = f"{share:.0%} of the card: vllm_gpu_memory_utilization"
        if settings.get("vllm_enable_sleep_mode"):
            phase = "generation"
    else:
        # Unsloth trains on the very weights that vLLM holds in its share, so what is left of it is
        # vLLM's own. Taken as if the whole card were free when the model is loaded, and as if vLLM
        # kept its share while the policy trains.
        if weights.low > size:
            value = f"policy.gpu_memory_utilization = {share:g}, {in_gb(size)} of the card"
            rule = (
                f"vLLM's share holds the weights ({in_gb(weights.low)}), and keys and values beside"
                " them"
            )
            raise RecipeError(
                value, rule=rule, remedy="raise it, or set policy.fast_inference: false"
            )
        formula = (
            f"{share:.0%} of the card (policy.gpu_memory_utilization), less the weights, which it"
            " shares with Unsloth"
        )
        size = max(size - weights.bytes, 0)
    return Part(
        "vLLM", phase, size, size, size + round(0.1 * share * card), False, formula, allocated=False
    )


def generation(inputs: Inputs) -> list[Part]:
    """What generating the whole generation batch adds; nothing if vLLM generates."""
    shape, element, sequences = inputs.shape, inputs.element, inputs.sequences
    if inputs.settings.get("use_vllm"):
        return []
    tokens = inputs.prompt + inputs.completion - 1  # the last token is not fed back
    cache = kv_bytes(shape, sequences, tokens, element)
    heads = f"{shape.layers} layers x {shape.kv_heads} heads x {shape.head_dim}"
    formula = f"{sequences} sequences x {tokens} tokens x {heads} x 2 x {element} bytes"
    reading = (
        sequences
        * inputs.prompt
        * (element * 3 * shape.intermediate_size + (8 + element) * shape.hidden_size)
    )
    logits = sequences * shape.vocab_size * 14
    growth, more = _growth(inputs, cache)
    said = "the growing cache, one layer's values of every prompt, logits of one token per sequence"
    scratch = growth + reading + logits + _unpacked(inputs)
    return [
        _exact("keys and values", "generation", cache, formula),
        _rough("scratch", "generation", scratch, said, more),
    ]


def _growth(inputs: Inputs, cache: int) -> tuple[int, int]:
    """Bytes beside the cache while it grows, and possible extra."""
    shape, element, sequences = inputs.shape, inputs.element, inputs.sequences
    if inputs.kernels == "torch":
        return cache // (2 * shape.layers), 0  # a layer's keys or values, copied to add a token
    rows = inputs.prompt + 1 + _UNSLOTH_ROWS * math.ceil((inputs.completion + 1) / _UNSLOTH_ROWS)
    # the prompts' own, copied into the buffer
    more = kv_bytes(shape, sequences, inputs.prompt, element)
    if shape.model_type in GRAPHED:
        # A captured decoding step keeps every layer's attention output, and an unpacked layer, in a
        # separate pool.
        outputs = sequences * shape.layers * shape.heads * shape.head_dim * element
        more += 2 * outputs + inputs.largest * element + (shape.layers + 1) * _GRAPH
    return max(kv_bytes(shape, sequences, rows, element) - cache, 0), more


def training(inputs: Inputs) -> list[Part]:
    """What the forward and backward pass of one `per_device_train_batch_size` adds."""
    shape, lora = inputs.shape, inputs.lora
    formula = f"of LoRA: {lora:,} x {ADAPTER_BYTES} bytes"
    back = inputs.tokens * inputs.element * (3 * shape.intermediate_size + 4 * shape.hidden_size)
    said = "gradients of one layer's values, the largest layer unpacked"
    return [
        _exact(
            "gradients", "training", lora * ADAPTER_BYTES, formula, inputs.lora_more * ADAPTER_BYTES
        ),
        _activations(inputs),
        _logprobs(inputs),
        _rough("scratch", "training", back + _unpacked(inputs), said),
    ]


def _activations(inputs: Inputs) -> Part:
    shape, r, element = inputs.shape, inputs.recipe.lora.r, inputs.element
    per_token = activation_bytes_per_token(
        shape, kernels=inputs.kernels, r=r, element_bytes=element
    )
    layer = inputs.tokens * per_token
    ends = inputs.tokens * shape.hidden_size * 8  # the embedding's output and the last norm
    inputs_of_layers = shape.layers * inputs.tokens * shape.hidden_size * element
    more = 0
    if not inputs.settings.get("gradient_checkpointing"):
        size, said = shape.layers * layer, "every layer's values"
    elif inputs.kernels == "unsloth":
        size = layer + 2 * inputs_of_layers // shape.layers
        said = "one layer's values; Unsloth keeps the layers' inputs in the host's memory"
        more = inputs_of_layers
    else:
        size, said = layer + inputs_of_layers, "every layer's input, one layer's values"
    formula = f"{inputs.rows} x {inputs.prompt + inputs.completion} tokens: {said}"
    return _rough("activations", "training", size + ends, formula, more)


def _logprobs(inputs: Inputs) -> Part:
    shape, vocab = inputs.shape, inputs.shape.vocab_size
    scored = inputs.rows * (inputs.completion + 1)
    if inputs.kernels == "unsloth":
        most = max(_LOGPROB_BYTES // (8 * vocab), 2)
        rows = min(most, max(_LOGPROB_ROWS, math.ceil(inputs.tokens / 8)), inputs.tokens)
        size = rows * vocab * 8
        formula = f"Unsloth's chunk: {rows:,} tokens x vocabulary {vocab:,} x 8 bytes"
    elif inputs.settings.get("use_liger_kernel"):
        rows, columns = min(scored, _LIGER_TILE[0]), min(vocab, _LIGER_TILE[1])
        size = rows * columns * 18 + shape.hidden_size * 4 * (columns + scored)
        formula = f"tiles of {rows:,} x {columns:,} logits"
    else:
        size = scored * vocab * 10
        formula = (
            f"TRL's logits: {inputs.rows} x {inputs.completion + 1} x vocabulary {vocab:,} x 10"
            " bytes "
        )
        formula += "(float32, their gradient, and it in 16 bits)"
    return _rough("log-probabilities", "training", size, formula)


def _unpacked(inputs: Inputs) -> int:
    # The largest NF4 layer in 16 bits, while it is used.
    return inputs.largest * inputs.element + 4 * math.ceil(inputs.largest / _NF4_BLOCK)


def overhead(parts: Sequence[Part]) -> list[Part]:
    """Memory that torch's counter does not see: the CUDA context, and what the allocator holds and
    cannot use.
    """
    formula = (
        "driver and kernels, and 5 % of what is allocated; at the high end, up to 10 % more of it"
    )
    unseen = []
    for phase in PHASES:
        held = add(
            [part for part in parts if part.phase in ("always", phase) and part.allocated]
        ).bytes
        part = _rough(
            "CUDA and its allocator",
            phase,
            GB // 2 + held // 20,
            formula,
            held // 10,
            allocated=False,
        )
        unseen.append(part)
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
            return (
                f"{size / scale:.2f} {unit}" if size < 10 * scale else f"{size / scale:.1f} {unit}"
            )
    return f"{size / 1000:.0f} kB"
