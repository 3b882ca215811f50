"""What every way of loading a policy needs: where the weights are, and what was really loaded."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import re
import sys
import warnings
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from workbench.base.cache import cache_folder
from workbench.base.errors import PolicyError, WorkbenchError
from workbench.base.extras import explaining
from workbench.base.hub import check_hub
from workbench.base.kinds import Fields, Model, Tokenizer
from workbench.base.workspace import find, looked_in, shown, sum_of

TOKENIZER_FILES = [
    "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json",
    "*.tiktoken",
]  # fmt: skip
# on a model
_DECIDING = [
    "*.safetensors*", "pytorch_model*", "*config.json", "*tokens*.json", "chat_template*",
    "merges.txt",
]  # fmt: skip
NF4_BLOCK = 64
_HUB_NAME = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)
SMALL_BYTES = 400 * 2**20
# On a CPU that multiplies in bfloat16, bitsandbytes warns that an optional package is absent: in
# red, in every notebook, and at whichever import of many comes first.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
# Nothing to act on: transformers leaves a harmful setting of many published tokenizers out of
# force, which is right; and says on a CPU, at every GRPOConfig, that torch_compile pays on GPUs.
_NOT_NEWS = {
    "tokenization_utils_tokenizers": "Ignoring clean_up_tokenization_spaces",
    "training_args": "The speedups for torchdynamo",
}
for _module, _words in _NOT_NEWS.items():
    logging.getLogger(f"transformers.{_module}").addFilter(
        lambda record, words=_words: not record.getMessage().startswith(words)
    )
_READABLE = (
    "models and adapters are files that transformers and PEFT can read without running code that"
    " comes with them"
)
_CHECK = "check the folder or the hub name; `workbench doctor` shows what works on this machine"


def find_model(name: str | Path, *, ask_hub: bool = True) -> str:
    """Where the weights of a policy are: a folder, or a hub name, which is not looked up without
    `ask_hub`.

    PolicyError for an unknown name, a folder without a model or tokenizer, or a hub that cannot be
    reached.
    """
    from workbench.tiny.named import CHOICES, NAMES, folder_of

    if (own := folder_of(name)) is not None:
        return str(own)
    text, folder = str(name), find(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise PolicyError(
                f"policy {text!r}: the folder has no config.json",
                rule="a local policy is a folder that transformers' save_pretrained wrote",
                remedy="point at the folder that holds config.json and the weights",
            )
        # transformers would make up an empty one
        if not any(any(folder.glob(file)) for file in TOKENIZER_FILES):
            raise PolicyError(
                f"policy {text!r}: no tokenizer in {shown(folder)}",
                rule="a model's folder also holds its tokenizer: one of"
                f" {', '.join(TOKENIZER_FILES)}",
                remedy="copy the tokenizer's files into it, or save it there:"
                " tokenizer.save_pretrained(folder)",
            )
        return str(folder)
    local = text.startswith((".", "/", "~")) or text.count("/") > 1
    if local or not _HUB_NAME.fullmatch(text):
        problem, remedy = "unknown", f"write the hub name with its owner, or use {NAMES}"
        if local:
            problem, remedy = "no such folder", "check the path"
            if folder.parent.name == cache_folder().name:  # of this machine, or of another
                remedy = "it was in the workbench's cache: `merge_adapter: true` makes it again"
        remedy += "" if Path(text).is_absolute() else f"; {looked_in()}"
        raise PolicyError(
            f"policy {text!r}: {problem}", rule=f"a policy is {CHOICES}", remedy=remedy
        )
    if ask_hub:
        check_hub(text)
    return text


def find_adapter(adapter: str | Path) -> str:
    """The folder of a trained adapter: this one, or the newest checkpoint-N in it.

    Raises:
        PolicyError: PEFT saved nothing there.
        RunError: it is a run's, and not as the run saved it.
    """
    from workbench.run.sealed import as_saved

    folder = find(adapter)
    saved = {
        int(step): file.parent
        for file in folder.glob("checkpoint-*/adapter_config.json")
        if (step := file.parent.name.rpartition("-")[2]).isdecimal()
    }
    if not (folder / "adapter_config.json").is_file():
        if not saved:
            raise PolicyError(
                f"adapter {shown(folder)}: no adapter_config.json",
                rule="an adapter is a folder that PEFT saved, or holds one as checkpoint-N",
                remedy="give a run's checkpoints/final, or train one",
            )
        folder = saved[max(saved)]
    return str(as_saved(folder))


def without_bits(name: str) -> str:
    """A hub name without `-bnb-4bit`."""
    return re.sub(r"-(unsloth-)?bnb-4bit$", "", name, flags=re.IGNORECASE)


def base_files(source: str | Path) -> Fields:
    """What identifies a base: a folder's files -> [bytes, SHA-256]; a hub name and revision, if it
    is here; or nothing.
    """
    from workbench.base.cache import summed
    from workbench.tiny.named import folder_of

    # a file that cannot be read; a name that is none
    with contextlib.suppress(OSError, ValueError):
        folder = folder_of(source) or Path(source)
        if folder.is_dir():
            patterns = (*_DECIDING, *TOKENIZER_FILES)
            files = {file for each in patterns for file in folder.glob(each) if file.is_file()}
            return {file.name: summed(file) for file in sorted(files)}
        from huggingface_hub import try_to_load_from_cache

        if isinstance(there := try_to_load_from_cache(str(source), "config.json"), str):
            return {"name": str(source), "revision": Path(there).parent.name}
    return {}


def base_summed(source: str | Path) -> Callable[[], Fields]:
    """Begin `base_files` in a thread: SHA-256 takes 0.5 to 3 s per GB. The function returned waits
    for it.
    """
    return ThreadPoolExecutor(1).submit(base_files, source).result


def base_differs(then: Fields | None, now: Fields) -> str | None:
    """How the base changed, in words; None: one of the two is not known, or they are of different
    kinds.
    """
    if not then or not now or then.get("name") != now.get("name"):
        return None
    # a file that came later decides nothing
    other = [name for name in sorted(then) if then[name] != now.get(name)]
    if other == ["revision"]:
        return f"revision {now['revision']}, then {then['revision']}"
    return ", ".join(other)


def load_tokenizer(
    name: str | Path = "tiny", chat_template_kwargs: Fields | None = None
) -> Tokenizer:
    """A policy's tokenizer alone; it carries its template's arguments, and in `eos_ids` the tokens
    that end a completion.
    """
    source = find_model(name)
    with quiet_imports():
        from transformers import AutoTokenizer

    with reading(f"tokenizer of {str(name)!r}"):
        tokenizer: Any = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    tokenizer.chat_template_kwargs = dict(chat_template_kwargs or {})
    tokenizer.eos_ids = with_eos(_eos_of_files(source), tokenizer)
    size = _said(content_of(source, "config.json") or {}, "vocab_size")
    tokenizer.embedded = size if isinstance(size, int) else None
    return tokenizer


def eos_ids(owner: Any) -> list[int]:
    """Every token that ends a completion in training, as in TRL: the model's `generation_config`
    and the tokenizer name them.

    `owner`: a policy, or another pair of `model` and `tokenizer`; or a trainer, which names its
    own.
    """
    if (ids := getattr(owner, "eos_token_ids", None)) is not None:
        return list(ids)
    tokenizer = owner.processing_class if hasattr(owner, "processing_class") else owner.tokenizer
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # a processor of images holds one
    return with_eos(owner.model.generation_config.eos_token_id, tokenizer)


def with_eos(ids: int | Sequence[int] | None, tokenizer: Tokenizer) -> list[int]:
    """The EOS tokens of a `generation_config`, as a list; the tokenizer's own comes first if it is
    another one.
    """
    # transformers' trainer may write one twice
    ids = [ids] if isinstance(ids, int) else list(dict.fromkeys(ids or []))
    own = tokenizer.eos_token_id
    return ids if own is None or own in ids else [own, *ids]


def _eos_of_files(source: str) -> list[int] | None:
    # What the model's generation_config would say if it were loaded: where there is no such file,
    # its config decides.
    for name in ("generation_config.json", "config.json"):
        if (content := content_of(source, name)) is not None:
            ids = _said(content, "eos_token_id")
            ids = ids if isinstance(ids, list) else [ids]
            return [each for each in ids if isinstance(each, int)]
    return None


def _said(config: Fields, name: str) -> Any:
    # A model that also sees keeps what is about text apart.
    own = config.get("text_config")
    return config.get(name, own.get(name) if isinstance(own, dict) else None)


def content_of(source: str, name: str, **how: object) -> Fields | None:
    """A JSON file of a policy; None: there is none, or a damaged one, which says so when the model
    is loaded.
    """
    with contextlib.suppress(OSError, ValueError, RecursionError):
        file = Path(source, name)
        if not file.parent.is_dir():
            from transformers.utils import cached_file

            file = Path(str(cached_file(source, name, **how)))
        content = json.loads(file.read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else None
    return None


def with_adapter(model: Model, adapter: str | Path) -> Any:
    """The model with a trained adapter on it, frozen; PolicyError if the folder holds none that
    PEFT can read.
    """
    from peft import PeftModel

    folder = find_adapter(adapter)
    with reading(f"adapter {shown(folder)}"):
        return PeftModel.from_pretrained(model, folder)


@contextlib.contextmanager
def reading(what: str, rule: str = _READABLE, remedy: str = _CHECK) -> Generator[None]:
    """Turn any library error about files that it cannot read, or will not run, into a
    PolicyError.
    """
    try:
        yield
    except WorkbenchError:
        raise
    except Exception as error:  # damaged and foreign files: of every kind
        raise PolicyError(
            f"{what}: {type(error).__name__}: {str(error)[:400]}", rule=rule, remedy=remedy
        ) from error


def adapter_sum(adapter: str | Path) -> str:
    """The SHA-256 of a saved adapter's weights, in hex."""
    return sum_of(adapter_file(adapter))


def adapter_file(adapter: str | Path) -> Path:
    """The file that holds a saved adapter's weights."""
    file = Path(adapter) / "adapter_model.safetensors"
    return file if file.is_file() else file.with_suffix(".bin")  # PEFT's before 0.6


def adapter_named(adapter: str | Path) -> str:
    """A trained adapter as a record names it: its folder, and the start of its weights' SHA-256."""
    folder = find_adapter(adapter)
    return f"{shown(folder)} ({adapter_sum(folder)[:12]})"


def linear4bit_layers(model: Model) -> list[Any]:
    """The layers of a model that are `bitsandbytes.nn.Linear4bit`: none where bitsandbytes cannot
    be imported.
    """
    try:
        import bitsandbytes
    except ImportError:
        return []

    return [module for module in model.modules() if isinstance(module, bitsandbytes.nn.Linear4bit)]


def check_4bit(model: Model, name: str, asked: bool) -> list[str]:
    """Notes on how the weights are stored; PolicyError if 4-bit was requested and not loaded, or a
    layer is too narrow.
    """
    layers = linear4bit_layers(model)
    if asked and not layers:
        raise PolicyError(
            f"policy {name!r}: load_in_4bit = True, but no layer was quantised",
            rule="4-bit needs bitsandbytes to work on this device, and layers at least"
            f" {NF4_BLOCK} wide",
            remedy="set load_in_4bit = False, or see what `workbench doctor` says about"
            " bitsandbytes",
        )
    if narrow := [layer.in_features for layer in layers if layer.in_features < NF4_BLOCK]:
        raise PolicyError(
            f"policy {name!r}: a 4-bit layer with {narrow[0]} inputs",
            rule=f"NF4 stores blocks of {NF4_BLOCK} weights, and bitsandbytes' kernels need a row"
            " to hold at least one",
            remedy="set load_in_4bit = False for a model this narrow",
        )
    if layers and not asked:
        stored = f"the stored weights are 4-bit already ({len(layers)} layers)"
        return [f"load_in_4bit = False, but {stored}"]
    stacked = sum(one.numel() for one in model.parameters() if one.dim() == 3) if layers else 0
    if not stacked:
        return []
    from workbench.memory.shapes import unquantised

    return [f"load_in_4bit = True: {unquantised(stacked, measured(model)['parameters'])}"]


def measured(model: Model) -> Fields:
    """What a `Policy` reports of a model: how it is stored, what it computes in, and its parameters
    (a 4-bit weight is one).
    """
    layers = linear4bit_layers(model)
    dtypes = [layer.compute_dtype for layer in layers if layer.compute_dtype is not None]
    stored, computes = (
        str(dtype).removeprefix("torch.") for dtype in (model.dtype, [*dtypes, model.dtype][0])
    )
    # Two NF4 weights are packed into a byte, so numel() of a packed weight is half of what it
    # stands for.
    unpacked = [
        getattr(getattr(weight, "quant_state", None), "shape", weight.shape).numel()
        for name, weight in model.named_parameters()
        if "lora_" not in name and ".modules_to_save." not in name
    ]
    return {
        "precision": "nf4" if layers else stored,
        "compute_dtype": computes,
        "parameters": sum(unpacked),
        "trainable": sum(one.numel() for one in model.parameters() if one.requires_grad),
        "linear4bit": len(layers),
    }


@contextlib.contextmanager
def bars_for(source: str) -> Generator[None]:
    """Progress bars while weights are read or written, but not for a model that loads at once, and
    not in a file or a pipe, which would hold every state of a bar.

    In a notebook such a bar is a widget, and a widget in a saved notebook is an empty space.
    """
    from transformers.utils import logging as transformers_logging

    sizes = [file.stat().st_size for file in Path(source).glob("*.safetensors")]
    small = Path(source).is_dir() and sum(sizes) < SMALL_BYTES
    drawn = sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")
    shown_before = transformers_logging.is_progress_bar_enabled()
    if small or not drawn:
        transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown_before:
            transformers_logging.enable_progress_bar()


@contextlib.contextmanager
def quiet_imports() -> Generator[None]:
    """Silence what other libraries print about one another on import: nothing that a reader could
    act on. MissingError: one of them comes with an extra.
    """
    if "transformers" not in sys.modules and sys.stderr.isatty():
        # which can take a minute
        print("importing the libraries ...", file=sys.stderr, flush=True)
    # for good: transformers imports what a model needs when it is loaded, after the block
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
    collects = gc.isenabled()
    gc.disable()  # modules are no garbage, and looking for it takes a fifth of the time
    try:
        with warnings.catch_warnings(), explaining():
            warnings.simplefilter("ignore")
            yield
    finally:
        if collects:
            gc.enable()
