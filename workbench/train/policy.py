"""Loading a policy: the only module that imports unsloth.

One call for the embedded policy, a model on the hub and a local folder, on a GPU and on the CPU backend, through the
same `FastLanguageModel.from_pretrained` and `get_peft_model`. unsloth patches trl, transformers and peft when it is
imported, so every module that needs one of them in a training process goes through here first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.run.errors import PolicyError
from workbench.run.recipe import LoraPart
from workbench.run.workspace import resolve, shown
from workbench.tiny import MODEL_DIR

HUB_TIMEOUT_S = 10
NF4_BLOCK = 64
SMALL_BYTES = 100 * 2**20


@dataclass
class Policy:
    """A loaded policy: the LoRA model, its tokenizer, and what was found about it."""

    name: str
    source: str  # folder or hub name that the weights came from
    model: Any
    tokenizer: Any
    max_seq_length: int
    device: str
    backend: str
    precision: str  # "nf4" or a 16- or 32-bit dtype: how the frozen weights are stored
    compute_dtype: str
    parameters: int  # of the base model, counted unpacked
    trainable: int
    linear4bit: int  # layers that are bitsandbytes.nn.Linear4bit
    load_s: float
    notes: list[str] = field(default_factory=list)
    trained_in: list[str] = field(default_factory=list)  # runs that have changed this adapter, in order

    def __str__(self) -> str:
        quantised = f"NF4 in {self.linear4bit} Linear4bit layers, computing in {self.compute_dtype}"
        stored = quantised if self.linear4bit else self.precision
        return (
            f"{self.name}: {_count(self.parameters)} parameters, {stored}, on {self.device} through {self.backend}; "
            + (
                f"LoRA trains {_count(self.trainable)} ({self.trainable / self.parameters:.1%})"
                if self.trainable
                else "with a trained adapter, frozen"
            )
            + f"; loaded in {self.load_s:.0f} s"
            + "".join(f"\n  note: {note}" for note in self.notes)
        )

    def found(self) -> dict[str, Any]:
        """What the manifest records."""
        return {
            key: getattr(self, key)
            for key in (
                "name", "source", "device", "backend", "precision", "compute_dtype", "parameters", "trainable",
                "linear4bit", "max_seq_length", "notes", "trained_in",
            )
        }  # fmt: skip

    @contextlib.contextmanager
    def generating(self, *, base: bool = False) -> Iterator[Any]:
        """The model ready to generate; with `base`, without its adapter. Training mode and caches are put back after."""
        fast, model = _unsloth().FastLanguageModel, self.model
        training, use_cache = model.training, model.config.use_cache
        fast.for_inference(model)
        model.config.use_cache = True
        try:
            with model.disable_adapter() if base else contextlib.nullcontext():
                yield model
        finally:
            model.config.use_cache = use_cache
            if training:
                fast.for_training(model)


def load_policy(
    name: str | Path = "tiny",
    *,
    load_in_4bit: bool = True,
    max_seq_length: int = 256,
    dtype: str | None = None,
    lora: LoraPart | None = None,
    adapter: str | Path | None = None,
    gradient_checkpointing: bool = False,
    seed: int = 0,
) -> Policy:
    """Load a policy with a LoRA adapter on it, ready for `GRPOTrainer`.

    Args:
        name: "tiny" (the embedded policy), a hub name such as "unsloth/Qwen2.5-1.5B-Instruct-bnb-4bit", or a folder.
        load_in_4bit: keep the frozen weights in NF4.
        max_seq_length: tokens of prompt and completion together.
        dtype: compute type; None lets Unsloth choose for the device.
        lora: shape of a new adapter; None: the default one.
        adapter: folder of a trained adapter to put on instead of a new one (then not trainable).
        gradient_checkpointing: recompute activations in the backward pass: less memory, slower.
        seed: initialises the adapter.

    Raises:
        PolicyError: if the name is unknown, the folder holds no model, the hub cannot be reached, or 4-bit was asked
            for and is not what was loaded.
    """
    source = find_model(name)
    if adapter is not None and not (resolve(adapter) / "adapter_config.json").is_file():
        raise PolicyError(
            f"adapter {shown(resolve(adapter))}: no adapter_config.json there",
            rule="an adapter is a folder that PEFT saved",
            remedy="give a run's checkpoints/final, or train one with notebook 03",
        )
    unsloth = _unsloth()
    import torch

    started = time.perf_counter()
    try:
        with bars_for(source):
            model, tokenizer = unsloth.FastLanguageModel.from_pretrained(
                model_name=source, max_seq_length=max_seq_length, dtype=dtype, load_in_4bit=load_in_4bit
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise PolicyError(
            f"policy {str(name)!r}: {type(error).__name__}: {error}",
            rule="a policy is a causal language model that transformers can read",
            remedy="check the folder or the hub name; `workbench doctor` tells what works on this machine",
        ) from error
    notes = _check_4bit(model, name, load_in_4bit)
    if adapter is None:
        lora = lora or LoraPart()
        model = unsloth.FastLanguageModel.get_peft_model(
            model,
            r=lora.r,
            lora_alpha=lora.lora_alpha,
            lora_dropout=lora.lora_dropout,
            target_modules=list(lora.target_modules),
            bias="none",
            use_gradient_checkpointing="unsloth" if gradient_checkpointing else False,
            random_state=seed,
        )
    else:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, str(resolve(adapter)))
    linear4bit = len(linear4bit_layers(model))
    cuda = torch.cuda.is_available()
    return Policy(
        name=str(name),
        source=source,
        model=model,
        tokenizer=tokenizer,
        max_seq_length=max_seq_length,
        device=torch.cuda.get_device_name(0) if cuda else f"the CPU ({torch.get_num_threads()} threads)",
        backend=f"Unsloth {unsloth.__version__}" + ("" if cuda else " (CPU backend)"),
        precision="nf4" if linear4bit else str(model.dtype).removeprefix("torch."),
        compute_dtype=_compute_dtype(model),
        parameters=_base_parameters(model),
        trainable=sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        linear4bit=linear4bit,
        load_s=time.perf_counter() - started,
        notes=notes,
    )


def load_tokenizer(name: str | Path = "tiny") -> Any:
    """Only the tokenizer of a policy, without its weights: enough to measure prompts."""
    with quiet_imports():
        from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(find_model(name))


def trainer_classes() -> tuple[type, type]:
    """(GRPOConfig, GRPOTrainer) as they are once unsloth has been imported: TRL's own on a CPU, Unsloth's on a GPU."""
    _unsloth()
    from trl import GRPOConfig, GRPOTrainer

    return GRPOConfig, GRPOTrainer


def find_model(name: str | Path) -> str:
    """Where the weights of a policy are: a folder, or a hub name that is known to exist.

    Raises:
        PolicyError: for an unknown name, a folder without a model, or a hub that cannot be reached.
    """
    text = str(name)
    if text == "tiny":
        return str(MODEL_DIR)
    folder = resolve(text)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise PolicyError(
                f"policy {text!r}: the folder has no config.json",
                rule="a local policy is a folder that transformers' save_pretrained wrote",
                remedy="point at the folder that holds config.json and the weights",
            )
        return str(folder)
    looks_local = text.startswith((".", "/", "~")) or text.count("/") > 1
    if looks_local or "/" not in text:
        raise PolicyError(
            f"policy {text!r}: " + ("no such folder" if looks_local else "unknown"),
            rule='a policy is "tiny", a hub name like "unsloth/Qwen2.5-1.5B-Instruct-bnb-4bit", or a local folder',
            remedy="check the path" if looks_local else 'write the hub name with its owner, or use "tiny"',
        )
    _check_hub(text)
    return text


def _check_hub(name: str) -> None:
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
    except GatedRepoError as error:
        raise PolicyError(
            f"policy {name!r}: gated",
            rule="a gated model needs its licence accepted and a token",
            remedy="accept it on the model's page, then set HF_TOKEN",
        ) from error
    except RepositoryNotFoundError as error:
        raise PolicyError(
            f"policy {name!r}: the hub knows no such model",
            rule="a hub name is owner/model, exactly as on its page",
            remedy="check the spelling; a private model needs HF_TOKEN",
        ) from error
    except Exception as error:
        raise PolicyError(
            f"policy {name!r}: the hub cannot be reached ({type(error).__name__})",
            rule="a model that is not on this machine is downloaded from the Hugging Face hub",
            remedy='connect to the network, give a local folder, or use "tiny", which needs neither',
        ) from error


def native_bf16() -> bool:
    """Whether this device computes in bfloat16 by itself, without emulation."""
    _unsloth()
    import torch

    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    from unsloth_zoo.cpu import cpu_bf16_supported

    return cpu_bf16_supported()


def linear4bit_layers(model: Any) -> list[Any]:
    """The layers of a model that are `bitsandbytes.nn.Linear4bit`."""
    import bitsandbytes

    return [module for module in model.modules() if isinstance(module, bitsandbytes.nn.Linear4bit)]


def _check_4bit(model: Any, name: Any, asked: bool) -> list[str]:
    found = len(linear4bit_layers(model))
    if asked and not found:
        raise PolicyError(
            f"policy {str(name)!r}: load_in_4bit = True, but no layer was quantised",
            rule="4-bit needs bitsandbytes to work on this device, and layers at least 64 wide",
            remedy="set load_in_4bit = False, or see what `workbench doctor` says of bitsandbytes",
        )
    narrow = [layer.in_features for layer in linear4bit_layers(model) if layer.in_features < NF4_BLOCK]
    if narrow:
        raise PolicyError(
            f"policy {str(name)!r}: a 4-bit layer with {narrow[0]} inputs",
            rule=f"NF4 stores blocks of {NF4_BLOCK} weights, and bitsandbytes' kernels need a row to hold at least one",
            remedy="set load_in_4bit = False for a model this narrow",
        )
    if not asked and found:
        return [f"load_in_4bit = False, but the stored weights are 4-bit already ({found} layers)"]
    return []


def _compute_dtype(model: Any) -> str:
    chosen = [layer.compute_dtype for layer in linear4bit_layers(model) if layer.compute_dtype is not None]
    return str(chosen[0] if chosen else model.dtype).removeprefix("torch.")


def _base_parameters(model: Any) -> int:
    # Two NF4 weights are packed into a byte, so numel() of a packed weight is half of what it stands for.
    total = 0
    for parameter_name, parameter in model.named_parameters():
        if "lora_" not in parameter_name:
            state = getattr(parameter, "quant_state", None)
            total += state.shape.numel() if state is not None else parameter.numel()
    return total


def _count(number: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return str(number)


def _unsloth() -> Any:
    if "unsloth" not in sys.modules:
        # Unsloth writes generated Python into the current folder and installs system packages unless it is told not to.
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "grpo-workbench" / "unsloth_compiled"
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(cache))
        os.environ.setdefault("UNSLOTH_AUTO_INSTALL", "0")
        os.environ.setdefault("TORCHAO_LOG_LEVEL", "ERROR")
        # It warns that an optional package is absent, in red, in every notebook.
        logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
        with quiet_imports():
            import unsloth
    import unsloth

    return unsloth


@contextlib.contextmanager
def bars_for(source: str) -> Iterator[None]:
    """Progress bars while weights are read or written, but not for a model that is there at once.

    In a notebook such a bar is a widget, and a widget in a saved notebook is an empty place.
    """
    from transformers.utils import logging as transformers_logging

    folder = Path(source)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors")) if folder.is_dir() else SMALL_BYTES
    shown_before = transformers_logging.is_progress_bar_enabled()
    if size < SMALL_BYTES:
        transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown_before:
            transformers_logging.enable_progress_bar()


@contextlib.contextmanager
def quiet_imports() -> Iterator[None]:
    """Silence for what other libraries say of one another when they are imported: nothing that a reader could act on."""
    import warnings

    pytree = logging.getLogger("torch.utils._pytree")
    level = pytree.level
    pytree.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        pytree.setLevel(level)
