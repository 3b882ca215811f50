"""The device: its name, driver and memory bandwidth, and the ceiling that the bandwidth sets to
decoding.

To decode one token for each of B sequences, the weights and every key and value are read once, so

    steps/s <= bandwidth / (weight bytes + B * context * bytes of keys and values of a token)

whatever the kernels do. The share of that ceiling says how good a path is, on any GPU.
"""

from __future__ import annotations

import re
import subprocess
import time
from typing import Any

# GB/s (10^9 bytes), as the vendor's data sheets give them, by a word of the name that torch and
# nvidia-smi print; the first that is found counts.
RATED_GB_S = (
    ("H200", 4800),
    ("H100 NVL", 3900),
    ("H100 PCIe", 2000),
    ("H100", 3350),
    ("B200", 8000),
    ("A100-SXM4-80GB", 2039),
    ("A100 80GB PCIe", 1935),
    ("A100", 1555),
    ("L40S", 864),
    ("L40", 864),
    ("L4", 300),
    ("A10G", 600),
    ("A10", 600),
    ("T4", 320),
    ("V100", 900),
    ("RTX 5090", 1792),
    ("RTX 4090", 1008),
    ("RTX 3090", 936),
)


def rated_bytes_per_s(name: str) -> float | None:
    """Memory bandwidth of a GPU by its name, bytes/s; None for one that is not in the table."""
    return next(
        (1e9 * rate for word, rate in RATED_GB_S if re.search(rf"\b{re.escape(word)}\b", name)),
        None,
    )


def copied_bytes_per_s(device: str) -> float:
    """Memory bandwidth as a copy reaches it, bytes/s: best of 8, each byte read once and written
    once.
    """
    import torch

    size = 2**30 if device == "cuda" else 2**26
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(8):
        synchronise()
        started = time.perf_counter()
        target.copy_(source)
        synchronise()
        best = min(best, time.perf_counter() - started)
    del source, target
    if device == "cuda":
        torch.cuda.empty_cache()
    return 2 * size / best


def synchronise() -> None:
    """Wait for what the GPU was given to do; nothing without one."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def device_facts(device: str) -> dict[str, Any]:
    """Kind, name, and on a GPU its driver, CUDA version, compute capability and memory in bytes."""
    if device == "cpu":
        import torch

        return {"kind": "cpu", "name": f"the CPU ({torch.get_num_threads()} threads)"}
    import torch

    found = torch.cuda.get_device_properties(0)
    return {
        "kind": "cuda",
        "name": found.name,
        "driver": _driver(),
        "cuda": torch.version.cuda,
        "capability": f"{found.major}.{found.minor}",
        "memory_bytes": found.total_memory,
        "rated_bytes_per_s": rated_bytes_per_s(found.name),
    }


def _driver() -> str | None:
    try:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def least_generation_s(
    *,
    bandwidth: float,
    weight_bytes: int,
    token_bytes: int,
    sequences: int,
    prompt: int,
    steps: int,
) -> float:
    """Seconds that decoding takes at the very least: the sum of the ceiling's inverse over the
    steps.

    Reading the prompts is left out, so the ceiling is never set too low.

    Args:
        bandwidth: bytes/s.
        weight_bytes: read once a step, whatever the batch.
        token_bytes: keys and values of one token of one sequence.
        sequences: decoded together.
        prompt: tokens of each prompt.
        steps: tokens that the longest completion has.
    """
    cached = sequences * token_bytes * sum(prompt + step for step in range(1, steps + 1))
    return (steps * weight_bytes + cached) / bandwidth
