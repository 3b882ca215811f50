"""The shape of a policy, from its config.json alone: which matrices it has, and how many parameters that makes.

No weights are read and nothing heavy is imported, so that memory can be estimated before anything is downloaded. The
architectures written out here are counted exactly (tests/train/test_shapes.py builds each with transformers and compares);
any other is counted from the headers of its safetensors files, if they are there.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import PolicyError
from workbench.tiny import MODEL_DIR
from workbench.workspace import resolve

KNOWN_FILE = Path(__file__).with_name("shapes.json")
LOCAL = "its config.json"  # the source of a shape that was read from a folder

# Architectures that are Llama's blocks with small differences: what a config.json leaves out, and what is always so.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "granite": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"head_dim": 128, "qk_norm": True},
    "smollm3": {"tie_word_embeddings": True},
    "gemma": {"head_dim": 256, "tie_word_embeddings": True},
    "gemma2": {"head_dim": 256, "tie_word_embeddings": True, "norms_per_layer": 4},
    "gemma3_text": {"head_dim": 256, "tie_word_embeddings": True, "norms_per_layer": 4, "qk_norm": True},
    "phi3": {"fused": True},
}
# In these, attention_bias and mlp_bias of the config are read; in the others they do not exist.
_ATTENTION_BIAS = {"llama", "granite", "qwen3", "smollm3", "gemma", "gemma2", "gemma3_text"}
_MLP_BIAS = {"llama", "granite", "smollm3"}
KNOWN_TYPES = tuple(_DEFAULTS)


@dataclass(frozen=True)
class Matrix:
    """One linear layer: weights [outputs, inputs], and `outputs` biases if it has any."""

    path: str  # "layers.0.self_attn.q_proj"
    outputs: int
    inputs: int
    bias: bool = False

    @property
    def name(self) -> str:
        """Its last word, which LoRA's target_modules name: "q_proj"."""
        return self.path.rsplit(".", 1)[-1]

    @property
    def weights(self) -> int:
        return self.outputs * self.inputs


@dataclass(frozen=True)
class ModelShape:
    """What of a policy decides its memory. Sizes are numbers of elements, not bytes."""

    name: str
    model_type: str
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tied: bool  # the output layer is the embedding
    matrices: tuple[Matrix, ...]  # of all blocks; the embedding and the output layer are not among them
    other: int  # parameters that are in no matrix above: embedding, output layer, norms
    norms_per_layer: int = 2
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()  # per layer: tokens that its attention reaches back; None: all
    quantised: bool = False  # the stored weights are NF4 already
    kept_16bit: tuple[str, ...] = ()  # modules that a quantised repository left alone, as it names them
    source: str = ""  # where this was read

    @property
    def parameters(self) -> int:
        """All parameters, counted unpacked; a tied output layer counts once."""
        return self.other + sum(matrix.weights + matrix.outputs * matrix.bias for matrix in self.matrices)

    def is_quantised(self, matrix: Matrix) -> bool:
        """Whether `matrix` is kept in NF4 when the model is loaded in 4 bits: all are, but those left alone by name."""
        full = f"model.{matrix.path}"
        # transformers' own rule: the name, as a pattern at the start, or as an ending.
        return not any(re.match(key, full) or full.endswith(key) for key in self.kept_16bit)

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.model_type}, {self.parameters:,} parameters, {self.layers} layers of width "
            f"{self.hidden_size}, {self.heads} heads and {self.kv_heads} for keys and values of {self.head_dim}, "
            f"vocabulary {self.vocab_size:,}{' (tied)' if self.tied else ''}; from {self.source}"
        )


def shape_of(name: str | Path = "tiny") -> ModelShape:
    """The shape of a policy by the name that a recipe gives it.

    Looked for in this order: the embedded policy, a local folder, the hub's cache on this machine, the configurations
    that come with the workbench, the hub.

    Raises:
        PolicyError: if the configuration is nowhere to be had, or describes a model that cannot be counted.
    """
    text = str(name)
    if text == "tiny":
        return _from_folder(MODEL_DIR, "tiny")
    folder = resolve(text)
    if folder.is_dir():
        return _from_folder(folder, text)
    if text.startswith((".", "/", "~")) or text.count("/") != 1:
        raise PolicyError(
            f"policy {text!r}: no such folder",
            rule='a policy is "tiny", a hub name (owner/model) or a folder with a config.json',
            remedy="check the path, or write the hub name with its owner",
        )
    cached = _cached(text)
    if cached is not None:
        return from_config(_read(cached, text), text, source="the hub's cache")
    known = _known(text)
    if known is not None:
        return known
    return from_config(_read(_download(text), text), text, source="the hub")


def from_config(
    config: Mapping[str, Any], name: str = "model", *, folder: Path | None = None, source: str = "config.json"
) -> ModelShape:
    """The shape that a configuration describes.

    Args:
        config: the content of a config.json; of a model with pictures, its `text_config` is not enough and is refused.
        name: what errors and the estimate call it.
        folder: where its safetensors files are, for an architecture that is not known here.
        source: where the configuration came from, in words.

    Raises:
        PolicyError: if a size is missing or not a positive whole number, or the architecture is unknown and `folder`
            holds no safetensors files.
    """
    kind = str(config.get("model_type", ""))
    if kind not in _DEFAULTS:
        return _from_headers(config, name, folder, source)
    had = {**_DEFAULTS[kind], **{key: value for key, value in config.items() if value is not None}}
    hidden, layers, heads = (
        _size(had, key, name) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")
    )
    inner, vocab = _size(had, "intermediate_size", name), _size(had, "vocab_size", name)
    kv_heads = _size({"num_key_value_heads": heads, **had}, "num_key_value_heads", name)
    head_dim = _size({"head_dim": hidden // heads, **had}, "head_dim", name)
    block = list(_block(had, kind, hidden, heads * head_dim, kv_heads * head_dim, inner))
    norms, qk_norm, tied = (
        had.get("norms_per_layer", 2),
        had.get("qk_norm", False),
        bool(had.get("tie_word_embeddings")),
    )
    in_norms = layers * (norms * hidden + (2 * head_dim if qk_norm else 0)) + hidden
    quantised, kept = _quantisation(config)
    return ModelShape(
        name=name,
        model_type=kind,
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=inner,
        vocab_size=vocab,
        tied=tied,
        matrices=tuple(
            Matrix(f"layers.{layer}.{path}", outputs, inputs, bias)
            for layer in range(layers)
            for path, outputs, inputs, bias in block
        ),
        other=vocab * hidden * (1 if tied else 2) + in_norms,
        norms_per_layer=norms,
        qk_norm=qk_norm,
        windows=_windows(had, kind, layers),
        quantised=quantised,
        kept_16bit=kept,
        source=source,
    )


def _block(
    had: Mapping[str, Any], kind: str, hidden: int, queries: int, keys: int, inner: int
) -> Iterator[tuple[str, int, int, bool]]:
    every = kind in _ATTENTION_BIAS and bool(had.get("attention_bias"))
    some = every or bool(had.get("qkv_bias"))
    mlp = kind in _MLP_BIAS and bool(had.get("mlp_bias"))
    if had.get("fused"):
        yield "self_attn.qkv_proj", queries + 2 * keys, hidden, some
        yield "self_attn.o_proj", hidden, queries, every
        yield "mlp.gate_up_proj", 2 * inner, hidden, mlp
    else:
        yield "self_attn.q_proj", queries, hidden, some
        yield "self_attn.k_proj", keys, hidden, some
        yield "self_attn.v_proj", keys, hidden, some
        yield "self_attn.o_proj", hidden, queries, every
        yield "mlp.gate_proj", inner, hidden, mlp
        yield "mlp.up_proj", inner, hidden, mlp
    yield "mlp.down_proj", hidden, inner, mlp


def _windows(had: Mapping[str, Any], kind: str, layers: int) -> tuple[int | None, ...]:
    window = had.get("sliding_window")
    if not window:
        return (None,) * layers
    if had.get("layer_types"):
        sliding = [which == "sliding_attention" for which in had["layer_types"]]
    elif kind == "gemma2":
        sliding = [layer % 2 == 0 for layer in range(layers)]
    elif kind == "gemma3_text":
        pattern = int(had.get("sliding_window_pattern", 6))
        sliding = [(layer + 1) % pattern != 0 for layer in range(layers)]
    elif kind in ("qwen2", "qwen3"):
        first = int(had.get("max_window_layers", layers))
        sliding = [bool(had.get("use_sliding_window")) and layer >= first for layer in range(layers)]
    else:
        sliding = [kind in ("mistral", "phi3")] * layers
    return tuple(int(window) if here else None for here in sliding)


def _quantisation(config: Mapping[str, Any]) -> tuple[bool, tuple[str, ...]]:
    said = config.get("quantization_config") or {}
    if not said.get("load_in_4bit") and not said.get("_load_in_4bit"):
        return False, ()
    return True, tuple(said.get("llm_int8_skip_modules") or ())


def _from_headers(config: Mapping[str, Any], name: str, folder: Path | None, source: str) -> ModelShape:
    files = sorted(folder.glob("*.safetensors")) if folder is not None else []
    if not files:
        raise PolicyError(
            f"policy {name!r}: model_type = {config.get('model_type')!r}",
            rule=f"parameters are counted for {', '.join(KNOWN_TYPES)}; of others, from the headers of safetensors files",
            remedy="download the model and give its folder, or leave the estimate out and measure one step",
        )
    text = config.get("text_config") or config
    hidden, layers, heads = (
        _size(text, key, name) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")
    )
    tensors: dict[str, tuple[int, ...]] = {}
    for file in files:
        for tensor, (kind, dims) in safetensors_header(file).items():
            if kind in ("U8", "I8"):
                raise PolicyError(
                    f"policy {name!r}: {tensor} is stored as {kind}",
                    rule="the weights of an unknown architecture can be counted only where they are not packed",
                    remedy="give the folder of the 16-bit model",
                )
            tensors[tensor] = dims
    pattern = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.(.+)\.weight$")
    matrices = []
    for tensor, dims in tensors.items():
        found = pattern.search(tensor)
        if found and len(dims) == 2:
            bias = tensor.removesuffix("weight") + "bias" in tensors
            matrices.append(Matrix(f"layers.{found[1]}.{found[2]}", dims[0], dims[1], bias))
    total = sum(_product(dims) for dims in tensors.values())
    inside = sum(matrix.weights + matrix.outputs * matrix.bias for matrix in matrices)
    return ModelShape(
        name=name,
        model_type=str(config.get("model_type", "unknown")),
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=_size({"num_key_value_heads": heads, **_set(text)}, "num_key_value_heads", name),
        head_dim=_size({"head_dim": hidden // heads, **_set(text)}, "head_dim", name),
        intermediate_size=_size({"intermediate_size": 4 * hidden, **_set(text)}, "intermediate_size", name),
        vocab_size=_size(text, "vocab_size", name),
        tied=not any("lm_head" in tensor for tensor in tensors),
        matrices=tuple(matrices),
        other=total - inside,
        windows=(None,) * layers,
        source=f"{source} and the headers of {len(files)} safetensors file{'s' * (len(files) > 1)}",
    )


def safetensors_header(file: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """{tensor: (type, dimensions)} of a safetensors file, without reading a weight.

    Raises:
        PolicyError: if it is not such a file.
    """
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > 100_000_000:
                raise ValueError(f"a header of {length} bytes")
            content = json.loads(opened.read(length))
        return {
            tensor: (said["dtype"], tuple(said["shape"]))
            for tensor, said in content.items()
            if tensor != "__metadata__"
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise PolicyError(
            f"{file.name}: {type(error).__name__}: {error}",
            rule="a safetensors file begins with its header: eight bytes of length, then JSON",
            remedy="download it again; a pointer of Git LFS in its place looks like this too",
        ) from error


def _from_folder(folder: Path, name: str) -> ModelShape:
    file = folder / "config.json"
    if not file.is_file():
        raise PolicyError(
            f"policy {name!r}: the folder has no config.json",
            rule="a local policy is a folder that transformers' save_pretrained wrote",
            remedy="point at the folder that holds config.json and the weights",
        )
    return from_config(_read(file, name), name, folder=folder, source=LOCAL)


def _known(name: str) -> ModelShape | None:
    owner, model = name.split("/")
    # A repository of NF4 weights has the shape of the model that it was made from.
    plain = re.sub(r"(-unsloth)?-bnb-4bit$", "", model)
    for entry in json.loads(KNOWN_FILE.read_text(encoding="utf-8")):
        if plain in entry["models"] and owner in (entry["owner"], "unsloth"):
            return from_config(entry["config"], name, source="the configurations that come with the workbench")
    return None


def _cached(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json")
    return Path(found) if isinstance(found, str) else None


def _download(name: str) -> Path:
    from huggingface_hub import hf_hub_download

    from workbench.training.loading import HUB_TIMEOUT_S, check_hub

    check_hub(name)  # a download tries five times over half a minute, and writes a line each time
    try:
        return Path(hf_hub_download(name, "config.json", etag_timeout=HUB_TIMEOUT_S))
    except Exception as error:
        raise PolicyError(
            f"policy {name!r}: its config.json cannot be downloaded ({type(error).__name__})",
            rule="memory is estimated from config.json: from a local folder, the hub's cache, or the hub",
            remedy="check that the model's page has one, or give a local folder (a gated model needs HF_TOKEN)",
        ) from error


def _read(file: Path, name: str) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}")
    except (OSError, ValueError) as error:
        raise PolicyError(
            f"policy {name!r}: config.json: {error}",
            rule="a config.json is a JSON object that transformers wrote",
            remedy="download or save the model again",
        ) from error
    return content


def _size(config: Mapping[str, Any], key: str, name: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise PolicyError(
            f"policy {name!r}: {key} = {value!r}",
            rule=f"{key} in config.json is a whole number, at least 1",
            remedy="check that the file is that of a causal language model, whole and unchanged",
        )
    return value


def _set(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if value is not None}


def _product(dims: tuple[int, ...]) -> int:
    total = 1
    for dim in dims:
        total *= dim
    return total
