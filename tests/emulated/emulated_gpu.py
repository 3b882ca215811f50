"""Unsloth's CUDA branch, with the trainer that it compiles, on a machine that has no GPU.

`pretend(card)`, called before anything else is imported, makes torch say that there is a GPU, and gives the CPU to whoever
asks for it. `import unsloth` then takes its CUDA branch by itself: it loads with `FastLlamaModel`, puts
`UnslothGRPOTrainer` in the place of TRL's, and trains with its own forward passes, adapters and loss.

Every stub says what stops, or goes wrong, without it. A stub whose target is gone raises `Gone` with its name.

float16 with a gradient scaler, as on a T4, runs here too: torch's own `autocast` and `GradScaler` on the CPU. What differs
is the list of operations that autocast computes in 16 bits (it is the CPU's), and how 16 bits are rounded inside a
matrix product.

Norms, rotations and gates are plain torch, as Triton's interpreter takes half a minute of a CPU for one step of eight
short completions; a scenario compares them with Unsloth's own in that interpreter.

What nothing here can show: CUDA's and Triton's kernels on a card, torch.compile, decoding with CUDA graphs, gradient
checkpointing with Unsloth's offloading (it needs CUDA streams), vLLM, a GPU's own random numbers (the CPU's are drawn),
training on two GPUs at once, memory, speed.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import importlib
import importlib.metadata
import os
import sys
import types
from typing import Any, NamedTuple


class Card(NamedTuple):
    """What torch says of a machine's GPUs."""

    name: str
    capability: tuple[int, int]
    gib: float
    processors: int
    count: int = 1

    @property
    def native_bf16(self) -> bool:
        """Whether it computes in bfloat16: from Ampere on."""
        return self.capability >= (8, 0)

    @property
    def dtype(self) -> str:
        """What a policy should compute in."""
        return "bfloat16" if self.native_bf16 else "float16"


CARDS = {
    "T4": Card("Tesla T4", (7, 5), 14.74, 40),
    "2xT4": Card("Tesla T4", (7, 5), 14.74, 40, count=2),
    "L4": Card("NVIDIA L4", (8, 9), 22.03, 58),
    "A100": Card("NVIDIA A100-SXM4-40GB", (8, 0), 39.56, 108),
}
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",  # a GPU that is there would be used beside the one that is not
    "TRITON_INTERPRET": "1",  # without it a Triton kernel is compiled for a card, and cannot be launched
    "TORCHDYNAMO_DISABLE": "1",  # without it torch.compile compiles, for minutes, what no GPU would run
    "UNSLOTH_COMPILE_DISABLE": "1",  # as above, for what Unsloth compiles by itself
    "UNSLOTH_DECODE_CUDA_GRAPHS": "0",  # without it decoding is captured into CUDA graphs
    "UNSLOTH_BNB_TRITON": "0",  # without it 4-bit weights are unpacked by Triton, in its interpreter
    "HF_DEACTIVATE_ASYNC_LOAD": "1",  # weights are put on the card by threads, and the CPU is given to this one only
    "UNSLOTH_AUTO_INSTALL": "0",
    "TORCHAO_LOG_LEVEL": "ERROR",
}


CALLS: collections.Counter[str] = collections.Counter()  # of what stands in for kernels, by name


class Gone(Exception):
    """A name that the emulation stands in for is not there any more."""


def put(path: str, value: Any) -> Any:
    """Put `value` where the dotted `path` leads, and return what was there.

    Raises:
        Gone: if nothing was there. An upgrade has renamed it, and whatever asks for it by its new name gets the truth.
    """
    *before, name = path.split(".")
    owner, walked = None, ""
    for part in before:
        walked = f"{walked}.{part}".lstrip(".")
        if isinstance(owner, types.ModuleType) or owner is None:
            try:
                owner = importlib.import_module(walked)
                continue
            except ImportError:
                pass
        owner = getattr(owner, part, None)
    if owner is None or not hasattr(owner, name):
        package = before[0]
        raise Gone(
            f"{path} is gone from {package} {importlib.metadata.version(package)}. The emulated GPU stands in for it: see "
            "in tests/emulated/emulated_gpu.py what for, what it is called now, and whether anything still asks for it"
        )
    was = getattr(owner, name)
    setattr(owner, name, value)
    return was


def wrap(path: str, around: Any) -> None:
    """Put `around(what is there)` in the place of what is there. Raises `Gone`, as `put`."""
    put(path, around(put(path, None)))


def pretend(card: Card) -> None:
    """From here on this process has the card. Call it before transformers, trl, peft or unsloth is imported.

    Raises:
        Gone: as `put`.
    """
    os.environ.update(ENVIRONMENT)
    # First, while the CPU is all there is: it chooses its native library when it is imported.
    import bitsandbytes  # noqa: F401

    _facts(card)
    _generators()
    _devices()
    _sixteen_bits()
    _native_nf4()
    _triton()


def after_import(backend: str) -> None:
    """What can be put in place only once the backend's library, which has to be imported first, has been.

    Raises:
        Gone: as `put`.
    """
    import torch

    # Without it a model says "cpu", and whoever decides by that, the workbench among them, decides as without a GPU.
    put("transformers.modeling_utils.PreTrainedModel.device", property(lambda model: torch.device("cuda", 0)))
    if backend == "unsloth":
        # Asks CUDA for its default stream, to know whether a buffer may be used again.
        put("unsloth.kernels.utils._can_use_scratch", lambda device: False)
        _all_native_nf4()


# --- what torch says of the card --------------------------------------------------------------------------------------


def _facts(card: Card) -> None:
    total = int(card.gib * 2**30)
    properties = types.SimpleNamespace(
        name=card.name, total_memory=total, major=card.capability[0], minor=card.capability[1], gcnArchName="",
        multi_processor_count=card.processors, L2_cache_size=4 * 2**20, warp_size=32, uuid="emulated",
        shared_memory_per_block_optin=64 * 2**10,
    )  # fmt: skip
    answers = {
        # Everything begins with it: without it `import unsloth` takes its CPU branch, and TRL's trainer stays.
        "is_available": True,
        # RoPE's tables are one a GPU: an index of an empty list in the first forward pass.
        "device_count": card.count,
        "current_device": 0,
        # "Found no NVIDIA driver", from Unsloth's banner on.
        "get_device_properties": properties,
        "get_device_capability": card.capability,
        "get_device_name": card.name,
        # Room for the weights when they are loaded, and for the chunks that the loss is computed in.
        "mem_get_info": (int(0.95 * total), total),
        # Asked beside it, and by the workbench after the first step; nothing is measured here.
        "memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_allocated": 0,
        "max_memory_reserved": 0,
        "memory_stats": {},
        # These ask the driver, which is not there.
        "_lazy_init": None,
        "set_device": None,
        "synchronize": None,
        "empty_cache": None,
        "ipc_collect": None,
        "reset_peak_memory_stats": None,
        "reset_max_memory_allocated": None,
        # Asked before a 4-bit weight is unpacked into a buffer that is kept.
        "is_current_stream_capturing": False,
    }
    for name, answer in answers.items():
        put(f"torch.cuda.{name}", functools.partial(_same, answer))
    put("torch.cuda.device", Chosen)
    # Of another signature: torch counts an emulated bfloat16 as support unless it is told not to.
    put("torch.cuda.is_bf16_supported", lambda including_emulation=True: including_emulation or card.native_bf16)
    # AdamW asks it whether its step is being captured.
    put("torch.accelerator.current_stream", lambda *_: types.SimpleNamespace(is_capturing=lambda: False))
    import torch

    if hasattr(torch._C, "_cuda_getCurrentRawStream"):  # a build for the CPU has none, and Unsloth asks
        torch._C._cuda_getCurrentRawStream = functools.partial(_same, 0)


def _same(answer: Any, *_: Any, **__: Any) -> Any:
    return answer


class Chosen:
    """`torch.cuda.device`: without it Unsloth's kernels refuse the CPU where there are two GPUs to choose from."""

    def __init__(self, device: Any) -> None:
        self.idx = device if isinstance(device, int) else 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass


class Generator:
    """Of a GPU's random numbers. Nothing is drawn from it; what is saved can be told from what is put back."""

    state: Any = None
    put_back: list[int] = []  # noqa: RUF012 - of the process


def _generators() -> None:
    # TRL seeds them, a checkpoint saves and restores their state, and so does whoever samples in between.
    import torch

    def read(*_: Any) -> Any:
        Generator.state = Generator.state + 1 if Generator.state is not None else torch.zeros(2, dtype=torch.uint8)
        return Generator.state.clone()

    put("torch.cuda.get_rng_state", read)
    put("torch.cuda.get_rng_state_all", lambda: [read()])
    put("torch.cuda.set_rng_state", lambda state, *_: Generator.put_back.append(int(state[0])))
    for name in ("manual_seed", "manual_seed_all"):
        put(f"torch.cuda.{name}", functools.partial(_same, None))


# --- the CPU for whoever asks for a GPU -------------------------------------------------------------------------------


def on_the_cpu(asked: Any) -> Any:
    """A device, or a word for one, with the CPU in the place of CUDA; anything else as it is."""
    import torch

    if isinstance(asked, torch.device):
        return torch.device("cpu") if asked.type == "cuda" else asked
    return "cpu" if isinstance(asked, str) and (asked == "cuda" or asked.startswith("cuda:")) else asked


def _devices() -> None:
    """For this thread and for good: Unsloth, TRL and accelerate ask for "cuda", for 0, or for a tensor's `.cuda()`."""
    from torch.overrides import TorchFunctionMode

    class CpuForCuda(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
            if name in ("cuda", "pin_memory"):
                return args[0]
            if "device" in kwargs:
                device = kwargs["device"]
                kwargs["device"] = "cpu" if type(device) is int else on_the_cpu(device)
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
            if name == "to":
                args = tuple(map(on_the_cpu, args))
            return func(*args, **kwargs)

    CpuForCuda().__enter__()


# --- float16 and bfloat16 ---------------------------------------------------------------------------------------------


def _sixteen_bits() -> None:
    """Mixed precision: without it `autocast("cuda")` does nothing to what is computed on the CPU, and all is in 32 bits."""
    import torch

    def for_the_cpu(begin: Any) -> Any:
        @functools.wraps(begin)
        def init(self: Any, device_type: str = "cuda", *args: Any, **kwargs: Any) -> None:
            begin(self, on_the_cpu(kwargs.pop("device", device_type)), *args, **kwargs)

        return init

    for path in ("torch.amp.autocast_mode.autocast", "torch.amp.grad_scaler.GradScaler"):
        wrap(f"{path}.__init__", for_the_cpu)
    # What is asked before a fused backward pass, and latched when a trainer is built.
    for name in ("is_autocast_enabled", "get_autocast_dtype"):
        wrap(f"torch.{name}", lambda tell: lambda device_type="cuda": tell(on_the_cpu(device_type)))
    torch.set_autocast_dtype("cpu", torch.float16)  # CUDA's default


# --- 4-bit weights ----------------------------------------------------------------------------------------------------

_UNPACK = ("cdequantize_blockwise_fp16_nf4", "cdequantize_blockwise_bf16_nf4", "cdequantize_blockwise_fp32_nf4")
_MULTIPLY = ("cgemm_4bit_inference_naive_fp16", "cgemm_4bit_inference_naive_bf16")


class _Native:
    """A function of bitsandbytes' CUDA library, written with torch; called with pointers, as Unsloth calls them."""

    restype = None  # by which Unsloth tells a function from a message that there is none


class _Scales(_Native):
    """The scales of a double-quantised weight, which are 8-bit codes themselves."""

    def __call__(self, code: Any, packed: Any, absmax: Any, out: Any, blocksize: Any, count: Any, stream: Any) -> None:
        import torch

        size, each = _number(count), _number(blocksize)
        codes = _at(code, 256, torch.float32)[_at(packed, size, torch.uint8).long()]
        scales = _at(absmax, -(-size // each), torch.float32).repeat_interleave(each)[:size]
        _at(out, size, torch.float32).copy_(codes * scales)


class _Unpack(_Native):
    """A 4-bit weight into 16 or 32 bits."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype

    def __call__(self, code: Any, packed: Any, absmax: Any, out: Any, blocksize: Any, count: Any, stream: Any) -> None:
        CALLS["unpack"] += 1
        _at(out, _number(count), self.dtype).copy_(_unpacked(packed, absmax, _number(blocksize), _number(count)))


class _Multiply(_Native):
    """A 4-bit weight times one vector: what decodes one token."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype

    def __call__(
        self, m: Any, n: Any, k: Any, vector: Any, packed: Any, absmax: Any, code: Any, out: Any,
        lda: Any, ldb: Any, ldc: Any, blocksize: Any, stream: Any,
    ) -> None:  # fmt: skip
        CALLS["multiply"] += 1
        rows, columns = _number(m), _number(k)
        weight = _unpacked(packed, absmax, _number(blocksize), rows * columns).view(rows, columns)
        product = weight @ _at(vector, columns, self.dtype).float()
        _at(out, rows, self.dtype).copy_(product)


def _number(value: Any) -> int:
    return int(getattr(value, "value", value))


def _at(pointer: Any, count: int, dtype: Any) -> Any:
    """The tensor that lies at an address."""
    import torch

    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(_number(pointer))
    return torch.frombuffer(memory, dtype=dtype, count=count)


def _unpacked(packed: Any, absmax: Any, blocksize: int, count: int) -> Any:
    import torch
    from bitsandbytes.functional import get_4bit_type

    both = _at(packed, count // 2, torch.uint8)  # two weights a byte, the first in its upper half
    codes = torch.stack([both >> 4, both & 15], dim=1).flatten().long()
    scales = _at(absmax, -(-count // blocksize), torch.float32).repeat_interleave(blocksize)[:count]
    return get_4bit_type("nf4", device="cpu")[codes] * scales


def _all_native_nf4() -> None:
    from unsloth.bnb_availability import bitsandbytes_symbols

    names = {"cdequantize_blockwise_fp32", *_UNPACK, *_MULTIPLY}
    if more := set(bitsandbytes_symbols("cuda")) - names:
        raise Gone(
            f"unsloth asks bitsandbytes for {', '.join(sorted(more))}, which tests/emulated/emulated_gpu.py does not provide"
        )


def _native_nf4() -> None:
    """Without all six, Unsloth finds no native library: "disabling 4bit", and 16 bits are loaded instead."""
    import torch
    from bitsandbytes import functional

    kinds = (torch.float16, torch.bfloat16, torch.float32)
    functional.lib.cdequantize_blockwise_fp32 = _Scales()
    for name, dtype in zip(_UNPACK, kinds, strict=True):
        setattr(functional.lib, name, _Unpack(dtype))
    for name, dtype in zip(_MULTIPLY, kinds, strict=False):
        setattr(functional.lib, name, _Multiply(dtype))


# --- Triton -----------------------------------------------------------------------------------------------------------


def _triton() -> None:
    # Without it Unsloth looks for libcuda and, as root, runs ldconfig; then it imports bitsandbytes again, for a GPU.
    put("triton.backends.nvidia.driver.libcuda_dirs", list)
    # Without it Triton builds its launcher with a compiler, for a library that is not there.
    put("triton.backends.nvidia.driver.CudaDriver.is_active", staticmethod(lambda: False))


KERNELS = {  # Unsloth's own, which Triton's interpreter runs, and what stands in for them
    "unsloth.kernels.rms_layernorm.fast_rms_layernorm": "plain_norm",
    "unsloth.kernels.rope_embedding.fast_rope_embedding": "plain_rotation",
    "unsloth.kernels.swiglu.swiglu_fg_kernel": "plain_gate",
    "unsloth.kernels.swiglu.swiglu_DWf_DW_dfg_kernel": "plain_gate_backward",
}


def plain_kernels() -> dict[str, Any]:
    """Norms, rotations and gates in torch: Triton's interpreter takes minutes for a step of them.

    Returns:
        Unsloth's own by name.

    Raises:
        Gone: as `put`.
    """
    theirs = {}
    for path, plain in KERNELS.items():
        name, ours = path.rpartition(".")[2], _counted(globals()[plain])
        theirs[name] = put(path, ours)
        for user in list(sys.modules.values()):  # imported by name, all over Unsloth's models
            if getattr(user, "__name__", "").startswith("unsloth") and vars(user).get(name) is theirs[name]:
                setattr(user, name, ours)
    return theirs


def _counted(function: Any) -> Any:
    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        CALLS[function.__name__] += 1
        return function(*args, **kwargs)

    return counted


def plain_norm(layernorm: Any, X: Any, gemma: bool = False, save_output: bool = False, reuse_grad: bool = False) -> Any:
    """Unsloth's `fast_rms_layernorm`, without gemma's shift. X: [..., hidden]."""
    import torch

    if gemma:
        raise NotImplementedError("the embedded policy is a Llama")
    epsilon = getattr(layernorm, "variance_epsilon", None) or layernorm.eps
    wide = X.float()
    return layernorm.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(X.dtype)


def plain_rotation(Q: Any, K: Any, cos: Any, sin: Any, rope_embedding_indices: Any = None) -> tuple[Any, Any]:
    """Unsloth's `fast_rope_embedding`. Q, K: [batch, heads, tokens, head_dim]; cos, sin: [positions, head_dim]."""
    import torch

    batch, _, tokens, width = Q.shape
    if rope_embedding_indices is None:
        places = torch.arange(tokens).expand(batch, tokens)
    else:
        places = rope_embedding_indices.reshape(batch, tokens).long()

    def table(values: Any) -> Any:
        chosen = values.squeeze()[places].unsqueeze(1)
        return chosen if chosen.shape[-1] == width else torch.cat([chosen, chosen], dim=-1)

    def turned(x: Any) -> Any:
        first, second = x[..., : width // 2], x[..., width // 2 :]
        return (x * table(cos) + torch.cat([-second, first], dim=-1) * table(sin)).to(x.dtype)

    return turned(Q), turned(K)


def plain_gate(e: Any, g: Any) -> Any:
    """Unsloth's `swiglu_fg_kernel`: silu(e) g."""
    import torch

    wide = e.float()
    return (wide * torch.sigmoid(wide)).to(g.dtype) * g


def plain_gate_backward(DW: Any, e: Any, g: Any) -> tuple[Any, Any, Any]:
    """Unsloth's `swiglu_DWf_DW_dfg_kernel`: (silu(e) g, DW silu(e), DW g silu'(e)), where DW, e and g were."""
    import torch

    wide = e.float()
    share = torch.sigmoid(wide)
    gate = (share * wide).to(DW.dtype)
    slope = ((DW * g).float() * share * (1 + wide * (1 - share))).to(DW.dtype)
    product, through = gate * g, DW * gate
    return DW.copy_(product), e.copy_(through), g.copy_(slope)
