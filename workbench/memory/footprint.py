"""Bytes of what a policy and its training hold, one function a kind; nothing is loaded to count them.

All but the last are exact: tests/train/test_memory.py compares them with the objects that bitsandbytes, PEFT, torch and
transformers make. The last is compared with what autograd keeps on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from workbench.memory.shapes import Matrix, ModelShape

NF4_BLOCK, NESTED_BLOCK = 64, 256  # weights that share a scale, and scales that share one
_CODES = 16 * 4 + 256 * 4 + 4  # of each layer: both code tables and the offset, float32
_SMALL_STATE = 4096  # bitsandbytes keeps the states of smaller tensors in 32 bits
_MAPS = 2 * 256 * 4  # its two 8-bit maps, shared by all tensors


def nf4_bytes(weights: int) -> int:
    """Bytes of one `Linear4bit` weight with double quantisation, as bitsandbytes stores it.

    Two weights a byte; a scale of 8 bits for each 64 weights; a scale of 32 bits for each 256 of those; two code tables
    and an offset.
    """
    scales = math.ceil(weights / NF4_BLOCK)
    return math.ceil(weights / 2) + scales + 4 * math.ceil(scales / NESTED_BLOCK) + _CODES


def weight_bytes(shape: ModelShape, load_in_4bit: bool, element_bytes: int = 2) -> int:
    """Bytes of the frozen weights. In 4 bits, embedding, output layer, norms and biases stay at `element_bytes` each."""
    if not load_in_4bit:
        return shape.parameters * element_bytes
    packed = [matrix for matrix in shape.matrices if shape.is_quantised(matrix)]
    rest = shape.parameters - sum(matrix.weights for matrix in packed)
    return rest * element_bytes + sum(nf4_bytes(matrix.weights) for matrix in packed)


def lora_sizes(shape: ModelShape, r: int, target_modules: Sequence[str]) -> list[int]:
    """Elements of each LoRA tensor: two a matrix, [r, inputs] and [outputs, r]."""
    found = [matrix for matrix in shape.matrices if _is_target(matrix, target_modules)]
    if "lm_head" in target_modules:
        found.append(Matrix("lm_head", shape.vocab_size, shape.hidden_size))
    return [size for matrix in found for size in (r * matrix.inputs, r * matrix.outputs)]


def _is_target(matrix: Matrix, target_modules: Sequence[str]) -> bool:
    return any(matrix.path == target or matrix.path.endswith(f".{target}") for target in target_modules)


def optimizer_bytes(sizes: Sequence[int], optim: str, element_bytes: int) -> int | None:
    """Bytes of the optimiser's states for tensors of these sizes; None for an optimiser that is not counted here.

    Args:
        element_bytes: of the trained parameters; torch's AdamW keeps its two moments in their type.
    """
    total = sum(sizes)
    if optim in ("adamw_torch", "adamw_torch_fused"):
        return 2 * total * element_bytes + 4 * len(sizes)  # and a step count each
    if optim in ("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"):
        small = sum(size for size in sizes if size < _SMALL_STATE)
        large = [size for size in sizes if size >= _SMALL_STATE]
        scales = sum(math.ceil(size / 256) for size in large)
        return 8 * small + 2 * sum(large) + 8 * scales + (_MAPS if large else 0)
    if optim == "paged_adamw_32bit":
        return 8 * total
    return 0 if optim == "sgd" else None


def kv_bytes(shape: ModelShape, sequences: int, tokens: int, element_bytes: int = 2) -> int:
    """Bytes of the keys and values of `sequences` texts of `tokens` tokens, as transformers' DynamicCache keeps them.

    A layer with a sliding window keeps the window less one: the next token makes it whole.
    """
    kept = sum(tokens if window is None else min(tokens, window - 1) for window in shape.windows)
    return sequences * kept * shape.kv_heads * shape.head_dim * 2 * element_bytes


def activation_bytes_per_token(shape: ModelShape, *, kernels: str, lora_bytes: int, r: int, element_bytes: int = 2) -> int:
    """Bytes that one layer keeps of one token for the backward pass, without gradient checkpointing.

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
    residuals = 6 * hidden + 2 * queries if lora_bytes == 4 and element_bytes == 2 else 0
    adapters = r * len(shape.matrices) // shape.layers
    return norms + residuals + element_bytes * (2 * hidden + attention + 4 * inner + adapters)
