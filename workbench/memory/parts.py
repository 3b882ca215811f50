"""The parts of a recipe's memory: what follows from shapes to the byte, and the rest as one range.

What is materialised was read in the sources of TRL 1.14.2, Unsloth 2026.10.9, PEFT 0.21.2 and
transformers 5.17.0, and each part's formula says it in words. The functions that end in `_bytes`
load nothing, and all but the activations' are exact: tests/train/test_memory.py compares them with
what bitsandbytes, PEFT, torch and transformers make.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
# Of a process that trains on a CPU, before it has loaded a model: Python, torch, transformers, TRL
# and what they import. Measured: 1.0 GB, and 0.3 GB more with Unsloth (benchmarks/resident.py).
_LIBRARIES = (GB, 8 * GB // 10, 15 * GB // 10)
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


def _counted(name: str, phase: Phase, size: int, formula: str, more: int = 0) -> Part:
    # `more`: bytes that a library may add, at the high end alone; with them, the part is not exact.
    return Part(name, phase, size, size, size + more, not more, formula)


def _rough(name: str, phase: Phase, size: float, formula: str, more: int = 0) -> Part:
    low, high = round(LOW * size), round(HIGH * size) + more
    return Part(name, phase, round(size), low, high, False, formula)


class Inputs:
    """What the parts of a recipe are computed from; lengths in tokens, sizes in bytes.

    The settings are those that `prepare` has checked. RecipeError if no room is left for a prompt,
    or the card has no memory.
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
        self.recipe = recipe
        self.settings = settings
        self.shape = shape
        self.cpu = device == "cpu"
        self.completion: int = settings["max_completion_length"]
        room = policy.max_seq_length - self.completion
        if room < 1:
            lengths = f"max_completion_length = {self.completion}, policy.max_seq_length ="
            rule = "max_seq_length holds prompt and completion together"
            remedy = "lower the first or raise the second"
            raise RecipeError(f"{lengths} {policy.max_seq_length}", rule=rule, remedy=remedy)
        if vram_gb is not None and not vram_gb > 0:
            remedy = "give its memory, or leave it out"
            raise RecipeError(
                f"vram_gb = {vram_gb}", rule="a card has more than 0 GB", remedy=remedy
            )
        self.vram_bytes = None if vram_gb is None else round(vram_gb * GB)
        self.prompt: int = longest_prompt_tokens or min(recipe.max_prompt_length or room, room)
        self.rows: int = settings["per_device_train_batch_size"]  # of one forward pass
        steps = settings.get("steps_per_generation") or settings["gradient_accumulation_steps"]
        whole = settings.get("generation_batch_size") or self.rows * steps * count()
        self.sequences: int = whole // count()  # generated at once by each process
        self.tokens = self.rows * (self.prompt + self.completion)
        self.four_bit = policy.load_in_4bit or shape.quantised
        self.unsloth = policy.backend == "unsloth"
        self.kernels = "unsloth" if self.unsloth and device == "cuda" else "torch"
        # Of a weight that is not quantised, and of an activation. On a CPU the plain backend's
        # default is float32.
        wide = policy.dtype is None and not self.unsloth and device == "cpu"
        self.element = 4 if wide or policy.dtype == "float32" else 2
        # On a GPU, Unsloth also trains stacked experts that PEFT leaves out for these target
        # modules; seen on no GPU.
        self.experts = self.kernels == "unsloth" and shape.stacked > 0
        # elements of each of the adapter's tensors
        self.adapter = adapter_on(shape, recipe.lora, experts=self.experts).sizes
        self.lora = sum(self.adapter)
        # The largest matrix that is kept in NF4, in 16 bits while it is used.
        sizes = [matrix.weights for matrix in shape.matrices] if self.four_bit else []
        largest = max(sizes, default=0)
        self.unpacked = largest * self.element + 4 * math.ceil(largest / _NF4_BLOCK)


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
    settings, size = inputs.settings, inputs.lora * ADAPTER_BYTES
    weights = _weights(inputs)
    parts = [weights, _adapter("LoRA", "always", inputs)]
    if settings.get("beta") and inputs.kernels == "torch":
        parts.append(_counted("reference adapter", "always", size, "TRL's frozen copy for the KL"))
    parts.append(_optimiser(inputs))
    if settings.get("use_vllm") and (
        inputs.unsloth or settings.get("vllm_mode", "colocate") == "colocate"
    ):
        parts.append(_vllm(inputs, weights))
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
        formula += "; Unsloth may load its own repository instead, which keeps more at 16 bits"
        more = round(0.3 * size)
    if inputs.four_bit and shape.stacked:
        formula += f"; {unquantised(shape.stacked, shape.parameters)}"
    return _counted("weights", "always", size, formula, more)


def _adapter(name: str, phase: Phase, inputs: Inputs) -> Part:
    # The adapter, or its gradients.
    shape, size = inputs.shape, inputs.lora * ADAPTER_BYTES
    formula = f"{inputs.lora:,} parameters of LoRA x {ADAPTER_BYTES} bytes"
    if inputs.experts:
        return _rough(name, phase, size, f"{formula}, if Unsloth trains all experts")
    more = 0
    if {"lm_head", "embed_tokens"} & set(inputs.recipe.lora.target_modules):
        formula += "; Unsloth trains the embedding or output layer whole, in float32"
        more = 4 * shape.vocab_size * shape.hidden_size * (1 if shape.tied else 2)
    return _counted(name, phase, size, formula, more)


def _optimiser(inputs: Inputs) -> Part:
    requested = inputs.settings.get("optim") or "adamw_torch"
    optim = str(getattr(requested, "value", requested))
    if inputs.kernels == "torch" and inputs.unsloth and "8bit" in optim:
        optim = "adamw_torch"  # Unsloth's CPU backend puts it in place
    states = optimizer_bytes(inputs.adapter, optim)
    formula = f"{optim}: two moments of {inputs.lora:,} parameters"
    if states is None:
        states, formula = 8 * inputs.lora, f"{optim} is not counted here: taken as Adam's"
    elif not inputs.experts and not optim.startswith("paged"):
        return _counted("optimiser", "always", states, formula)
    return _rough("optimiser", "always", states, formula)


def _vllm(inputs: Inputs, weights: Part) -> Part:
    settings, card = inputs.settings, inputs.vram_bytes
    share = settings.get("vllm_gpu_memory_utilization", 0.3)
    if inputs.unsloth:
        share = inputs.recipe.policy.gpu_memory_utilization
    if card is None:
        rule = f"vLLM takes a share of the card ({share:.0%}) for its own weights and cache"
        remedy = "give vram_gb, what the card has in GB"
        raise RecipeError("use_vllm = True, and the card is not known", rule=rule, remedy=remedy)
    size = round(share * card)
    high = size + round(0.1 * share * card)
    if not inputs.unsloth:
        phase = "generation" if settings.get("vllm_enable_sleep_mode") else "always"
        formula = f"{share:.0%} of the card: vllm_gpu_memory_utilization"
        return Part("vLLM", phase, size, size, high, False, formula, allocated=False)
    # Unsloth trains on the very weights that vLLM holds in its share, so what is left of it is
    # vLLM's own. Taken as if the whole card were free when the model is loaded, and as if vLLM
    # kept its share while the policy trains.
    if weights.low > size:
        value = f"policy.gpu_memory_utilization = {share:g}, {in_gb(size)} of the card"
        held = f"vLLM's share holds the weights ({in_gb(weights.low)})"
        remedy = "raise it, or set policy.fast_inference: false"
        raise RecipeError(value, rule=f"{held}, and keys and values beside them", remedy=remedy)
    formula = f"{share:.0%} of the card (policy.gpu_memory_utilization), less the shared weights"
    own = max(size - weights.bytes, 0)
    high += own - size
    return Part("vLLM", "always", own, own, high, False, formula, allocated=False)


def generation(inputs: Inputs) -> list[Part]:
    """What generating the whole generation batch adds; nothing if vLLM generates."""
    shape, element, sequences = inputs.shape, inputs.element, inputs.sequences
    if inputs.settings.get("use_vllm"):
        return []
    tokens = inputs.prompt + inputs.completion - 1  # the last token is not fed back
    cache = kv_bytes(shape, sequences, tokens, element)
    heads = f"{shape.layers} layers x {shape.kv_heads} heads x {shape.head_dim}"
    formula = f"{sequences} sequences x {tokens} tokens x {heads} x 2 x {element} bytes"
    # A layer's keys or values, copied to add a token.
    growth, more = cache // (2 * shape.layers), 0
    if inputs.kernels == "unsloth":
        rows = (max(inputs.completion - 2, 0) // _UNSLOTH_ROWS + 1) * _UNSLOTH_ROWS
        buffer = kv_bytes(shape, sequences, inputs.prompt + 1 + rows, element)
        # The prompts' own are copied into the buffer.
        growth, more = (
            max(buffer - cache, 0),
            kv_bytes(shape, sequences, inputs.prompt, element),
        )
    per_token = element * 3 * shape.intermediate_size + (8 + element) * shape.hidden_size
    reading = sequences * inputs.prompt * per_token
    # In 32 bits, with what is computed of them; on a CPU also the draw, in 64 bits.
    logits = sequences * shape.vocab_size * (14 + 8 * inputs.cpu)
    said = "the growing cache, one layer's values of every prompt, logits of one token per sequence"
    return [
        _counted("keys and values", "generation", cache, formula),
        _rough("scratch", "generation", growth + reading + logits + inputs.unpacked, said, more),
    ]


def training(inputs: Inputs) -> list[Part]:
    """What the forward and backward pass of one `per_device_train_batch_size` adds."""
    shape = inputs.shape
    back = inputs.tokens * inputs.element * (3 * shape.intermediate_size + 4 * shape.hidden_size)
    said = "gradients of one layer's values, the largest layer unpacked"
    return [
        _adapter("gradients", "training", inputs),
        _activations(inputs),
        _logprobs(inputs),
        _rough("scratch", "training", back + inputs.unpacked, said),
    ]


def _activations(inputs: Inputs) -> Part:
    shape, element = inputs.shape, inputs.element
    layer = inputs.tokens * activation_bytes_per_token(
        shape, kernels=inputs.kernels, r=inputs.recipe.lora.r, element_bytes=element
    )
    if inputs.cpu and shape.heads > shape.kv_heads:
        # With padding, attention on a CPU takes keys and values repeated for every head, and keeps
        # these, too.
        layer += inputs.tokens * 2 * shape.heads * shape.head_dim * element
    ends = inputs.tokens * shape.hidden_size * 8  # the embedding's output and the last norm
    one_input = inputs.tokens * shape.hidden_size * element
    more = 0
    if not inputs.settings.get("gradient_checkpointing"):
        size, said = shape.layers * layer, "every layer's values"
    elif inputs.kernels == "unsloth":
        size = layer + 2 * one_input
        said = "one layer's values; Unsloth keeps the layers' inputs in the host's memory"
        more = shape.layers * one_input
    else:
        size = layer + shape.layers * one_input
        said = "every layer's input, one layer's values"
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
        each, kinds = 10, "float32, 16-bit gradients"
        if inputs.cpu:
            # Measured in TRL's function: autocast's logits are copied to float32, whose gradients
            # are there several times.
            each, kinds = (26, "16 bit and float32") if inputs.element == 2 else (14, "float32")
            kinds += ", and gradients"
        size = scored * vocab * each
        formula = f"{scored:,} tokens x vocabulary {vocab:,} x {each} bytes ({kinds})"
    return _rough("log-probabilities", "training", size, formula)


def overhead(parts: Sequence[Part]) -> list[Part]:
    """Memory that torch's counter does not see: the CUDA context, and what the allocator holds and
    cannot use.
    """
    formula = (
        "driver and kernels, and 5 % of what is allocated; at the high end, up to 10 % more of it"
    )
    unseen = []
    for phase in PHASES:
        held = add([one for one in parts if one.phase in ("always", phase) and one.allocated]).bytes
        size = GB // 2 + held // 20
        part = _rough("CUDA and its allocator", phase, size, formula, held // 10)
        unseen.append(replace(part, allocated=False))
    return unseen


def process(inputs: Inputs) -> list[Part]:
    """What a process holds besides on a CPU, in resident memory: libraries, and copies of the
    weights.
    """
    shape, (size, low, high) = inputs.shape, _LIBRARIES
    said = "Python, torch, transformers, TRL"
    packed = [one for one in shape.matrices if inputs.four_bit and shape.is_quantised(one)]
    if packed:
        # `lean_adapters`: once for each batch of completions, where there is room for it.
        size += sum(one.weights for one in packed) * inputs.element
        said += "; the weights, unpacked while completions are sampled"
    if packed or inputs.element == 4:
        # Read from a mapped file of 16 bits, whose pages count until somebody needs them.
        high += 2 * shape.parameters
        said += "; at the high end, the file that they are read from"
    high += size - _LIBRARIES[0]
    return [Part("process", "always", size, low, high, False, said, allocated=False)]


def add(parts: Sequence[Part]) -> Span:
    """All parts together, each at the same end."""
    return Span(*(sum(getattr(part, end) for part in parts) for end in Span._fields))


def in_gb(size: float) -> str:
    """Bytes in words: GB, MB, kB of 1000."""
    for unit, scale in (("GB", GB), ("MB", 10**6)):
        if size >= 0.1 * scale:
            return f"{size / scale:.{2 if size < 10 * scale else 1}f} {unit}"
    return f"{size / 1000:.0f} kB"
