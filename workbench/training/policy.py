"""Loads a policy; the only module that imports unsloth.

Through one of two backends: Unsloth's `FastLanguageModel`, or plain transformers with PEFT
(`plain.py`). unsloth patches trl, transformers and peft when it is imported, so with it every
module that needs one of them in a training process goes through here first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from workbench.base.cache import ANSWERS
from workbench.base.errors import PolicyError, nearest
from workbench.base.kinds import Fields, Model, Tokenizer
from workbench.recipe import Recipe
from workbench.training import plain, randomness
from workbench.training.plan import loading, measuring
from workbench.training.plan.precision import choose_dtype, native_bf16
from workbench.training.plan.settings.device import COST, NOT_IN_FORCE, missing, why_not
from workbench.training.plan.settings.names import as_dtype
from workbench.training.quiet import NOISE, own_patterns, without_noise

if TYPE_CHECKING:
    from workbench.training.plan import Plan


@dataclass
class Policy:
    """A loaded policy: the LoRA model, its tokenizer, and what was found about it."""

    name: str
    source: str  # folder or hub name that the weights came from
    model: Any
    tokenizer: Any
    max_seq_length: int
    device: str
    backend: str  # the library that loaded it, with its version, in words
    backend_name: str  # the recipe's word for it: "unsloth" or "transformers"
    precision: str  # "nf4" or a 16- or 32-bit dtype: how the frozen weights are stored
    compute_dtype: str
    parameters: int  # of the base model, counted unpacked
    trainable: int
    linear4bit: int  # layers that are bitsandbytes.nn.Linear4bit
    load_s: float
    gradient_checkpointing: bool = False  # as it was loaded
    fast_inference: bool = False  # vLLM was started with it, holds its weights and generates
    notes: list[str] = field(default_factory=list)
    trained_in: list[str] = field(default_factory=list)  # before: a folder, and runs, in order
    # what it was loaded from, as `loading.base_files` found it; waits for the sums
    base: Callable[[], Fields] = dict

    def __str__(self) -> str:
        layers, stored = self.linear4bit, self.precision
        if layers:
            stored = f"NF4 in {layers} Linear4bit layers, computing in {self.compute_dtype}"
        trains = "with a trained adapter, frozen"
        if self.trainable:
            share = self.trainable / self.parameters
            trains = f"LoRA trains {_count(self.trainable)} ({share:.1%})"
        where = f"on {self.device} through {self.backend}"
        parts = [f"{self.name}: {_count(self.parameters)} parameters, {stored}, {where}", trains]
        if self.fast_inference:
            parts.append("vLLM generates")
        parts.append(f"loaded in {self.load_s:.0f} s")
        return "\n  note: ".join(["; ".join(parts), *self.notes])

    @property
    def chat_template_kwargs(self) -> Fields:
        """What every prompt is rendered with; the tokenizer carries them. A new stage sets its
        own.
        """
        return getattr(self.tokenizer, "chat_template_kwargs", {})

    def found(self) -> Fields:
        """What the manifest records."""
        left_out = ("model", "tokenizer", "load_s", "gradient_checkpointing")
        kept = {name: value for name, value in vars(self).items() if name not in left_out}
        return kept | {"base": self.base()}

    @contextlib.contextmanager
    def generating(self, *, base: bool = False) -> Generator[Any]:
        """The model ready to generate; with `base`, without its adapter. Training mode and caches
        are put back after.
        """
        backend, model = _BACKENDS[self.backend_name], self.model
        training, use_cache = model.training, model.config.use_cache
        # A backend sets them for all modules alike.
        kept = [
            (each, {name: vars(each)[name] for name in _MODES if name in vars(each)})
            for each in model.modules()
        ]
        backend.for_inference(model)
        model.config.use_cache = True
        try:
            with model.disable_adapter() if base else contextlib.nullcontext():
                yield model
        finally:
            if training:
                backend.for_training(model)
                for module, modes in kept:
                    vars(module).update(modes)
            model.config.use_cache = use_cache


def load_policy(
    source: str | Path | Recipe | Plan = "tiny",
    *,
    adapter: str | Path | None = None,
    gradient_checkpointing: bool = False,
    **fields: Any,
) -> Policy:
    """Load a policy with a LoRA adapter on it, ready for `GRPOTrainer`.

    >>> policy = wb.load_policy("tiny", load_in_4bit=False)
    >>> policy = wb.load_policy(plan)  # as the plan trains it

    A run's recipe with `adapter=run.adapter` loads what the run trained.

    Args:
        source: a plan; a recipe; or a name: "tiny" (embedded), "smollm2", a hub name such as
            "unsloth/Qwen2.5-1.5B-Instruct-bnb-4bit", or a folder.
        adapter: folder of a trained adapter to measure or talk to, frozen. To train one further,
            `policy.adapter` in a recipe names it: wb.Recipe(policy={"adapter": folder}).
        gradient_checkpointing: recompute activations in the backward pass: less memory, slower. A
            plan decides it itself.
        fields: for a name: what a recipe's `policy` says (`backend`, `load_in_4bit`,
            `max_seq_length`, `dtype`, `fast_inference`, `gpu_memory_utilization`), and `lora`,
            `chat_template_kwargs` and `seed`.

    With `fast_inference` vLLM starts on the same frozen weights, to generate with. Where it cannot,
    the policy is loaded without it, and a note says why.

    Raises:
        RecipeError: if a field is unknown or its value does not fit.
        PolicyError: if `fields` are given beside a plan or recipe, the name or backend is unknown,
            the folder holds no model, the hub cannot be reached, 4-bit was requested and not
            loaded, vLLM does not start, or the plain backend is requested where unsloth has patched
            the libraries.
    """
    recipe, fast_inference = _requested(source, fields)
    if not isinstance(source, (str, Path, Recipe)):
        gradient_checkpointing = bool(source.settings["gradient_checkpointing"])
    from workbench.tiny.named import origin_of

    trained = None if adapter is None else loading.find_adapter(adapter)
    lora = recipe.lora.model_dump()
    if trained is None and recipe.policy.adapter is not None:
        from workbench.training.adapters import fitted_to_adapter, peft_settings, put_on

        recipe, _ = fitted_to_adapter(recipe)
        lora = peft_settings(recipe)
    asked = recipe.policy
    name, loads = asked.name, _BACKENDS[asked.backend]
    source = loading.find_model(name)
    # while libraries are imported
    base = loading.base_summed(source) if trained is None else dict
    version = loads.version()  # imports what must come before trl, transformers and peft
    if asked.backend == "transformers":
        _check_not_replaced()
    import torch

    started = time.perf_counter()
    cuda, without = torch.cuda.is_available(), ""
    if fast_inference:
        without = why_not(asked.backend, cuda=cuda, missing=missing(imports=cuda))
    how = asked.model_dump(include={"load_in_4bit", "max_seq_length", "dtype"})
    reads = loading.reading(f"policy {name!r}")
    if fast_inference and not without:
        more, reads = _with_vllm(recipe)
        how |= more
    with reads, loading.bars_for(source):
        model, tokenizer, notes = loads.load_base(source, **how)
    tokenizer.embedded = model.get_input_embeddings().weight.shape[0]
    measuring.check_tokenizer(tokenizer, name)
    # Unsloth may have taken a 4-bit repository in the place of the one that was asked for
    if not Path(source).is_dir():
        base = loading.base_summed(getattr(model.config, "_name_or_path", "") or source)
    tokenizer.chat_template_kwargs = recipe.chat_template_kwargs
    notes += origin_of(source) + loading.check_4bit(model, name, asked.load_in_4bit)
    trained_in = []
    if trained is None:
        how = {"gradient_checkpointing": gradient_checkpointing, "seed": recipe.seed}
        with own_patterns():
            model = loads.add_lora(model, lora, **how)
        notes += measuring.adapter_notes(model, recipe.lora.target_modules)
        if asked.adapter is not None:
            put_on(model, asked.adapter)
            trained_in = [loading.adapter_named(asked.adapter)]
    else:
        model = loading.with_adapter(model, trained)
    tokenizer.eos_ids = loading.with_eos(model.generation_config.eos_token_id, tokenizer)
    generates = getattr(model, "vllm_engine", None) is not None
    if fast_inference and not generates:
        without = without or "Unsloth loads this model, or on this GPU, without it, and prints why"
        notes.append(f"{NOT_IN_FORCE}{without}; {COST}")
    cpu = f"the CPU ({torch.get_num_threads()} threads)"
    if asked.backend != "unsloth" and "unsloth" in sys.modules:
        version += ", beside unsloth"  # imported, it changes a gradient's last bits
    return Policy(
        name=name,
        source=source,
        model=model,
        tokenizer=tokenizer,
        max_seq_length=asked.max_seq_length,
        device=torch.cuda.get_device_name() if cuda else cpu,
        backend=version,
        backend_name=asked.backend,
        **loading.measured(model),
        load_s=time.perf_counter() - started,
        gradient_checkpointing=gradient_checkpointing,
        fast_inference=generates,
        notes=notes,
        trained_in=trained_in,
        base=base,
    )


def _with_vllm(recipe: Recipe) -> tuple[Fields, AbstractContextManager[None]]:
    # (what more is loaded with, what errors become). Its buffers for the adapter are made when it
    # starts, so it has to know the rank before there is an adapter.
    share, rank = recipe.policy.gpu_memory_utilization, recipe.lora.r
    how = {"fast_inference": True, "max_lora_rank": rank, "gpu_memory_utilization": share}
    return how, loading.reading(
        f"policy {recipe.policy.name!r} with fast_inference",
        rule="vLLM starts when the policy is loaded, within its share of the GPU's free memory"
        f" (gpu_memory_utilization = {share:g})",
        remedy="correct what it names, or set policy.fast_inference: false, which generates with"
        " the policy itself",
    )


def _requested(source: str | Path | Recipe | Plan, fields: Fields) -> tuple[Recipe, bool]:
    # (the recipe of what is loaded, whether vLLM should start)
    if isinstance(source, (str, Path)):
        recipe = _recipe_for(str(source), **fields)
        return recipe, recipe.policy.fast_inference
    if fields:
        given = ", ".join(f"{field} = {value!r}" for field, value in fields.items())
        raise PolicyError(
            f"load_policy: {given} beside a {type(source).__name__.lower()}",
            rule="a plan or a recipe alone decides how its policy is loaded",
            remedy="change the recipe, and plan it again; or give a name and these fields",
        )
    if isinstance(source, Recipe):
        return source, False  # vLLM serves training, which a plan is for
    vllm = bool(source.settings.get("use_vllm"))
    return source.recipe, vllm and source.recipe.policy.backend == "unsloth"


def _recipe_for(
    name: str, *, chat_template_kwargs: Fields | None = None, dtype: object = None, **fields: Any
) -> Recipe:
    _check_backend(fields.get("backend", "unsloth"))
    whole = {part: fields.pop(part) for part in ("lora", "seed") if part in fields}
    content: Fields = {part: value for part, value in whole.items() if value is not None}
    content["policy"] = {**fields, "name": name, "dtype": as_dtype(dtype)}
    if chat_template_kwargs:
        content["grpo"] = {"chat_template_kwargs": chat_template_kwargs}
    return Recipe.of(content, "load_policy")


def trainer_classes(backend: str = "unsloth") -> tuple[type, type]:
    """(GRPOConfig, GRPOTrainer): for "unsloth" TRL's own on a CPU, Unsloth's on a GPU; for
    "transformers" always TRL's own.

    PolicyError for an unknown backend, or if unsloth has replaced TRL's trainer in this process.
    """
    _check_backend(backend)
    if backend == "unsloth":
        _unsloth()
    with loading.quiet_imports():
        from trl import GRPOConfig, GRPOTrainer

    if backend == "transformers":
        _check_not_replaced()
    return GRPOConfig, GRPOTrainer


def grpo_config(backend: str) -> type:
    """The first of `trainer_classes`; a stand-in where the libraries have already been asked."""
    answers = ANSWERS.get()
    return answers.config_class(backend) if answers else trainer_classes(backend)[0]


def _check_backend(backend: str) -> None:
    if backend not in _BACKENDS:
        raise PolicyError(
            f"backend {backend!r}: unknown",
            rule="a backend is unsloth or transformers",
            remedy=nearest(str(backend), _BACKENDS, "choose one of them"),
        )


def _check_not_replaced() -> None:
    # On a CPU unsloth leaves TRL's trainer as it is, and both backends can share a process.
    if "unsloth" in sys.modules:
        import trl

        if not trl.GRPOTrainer.__module__.startswith("trl."):
            raise PolicyError(
                f"backend 'transformers': unsloth has put {trl.GRPOTrainer.__name__} in TRL's place"
                " in this process",
                rule="the plain backend trains with TRL's own trainer, and unsloth's patches"
                " cannot be undone",
                remedy="restart the kernel, and choose backend transformers before anything is"
                " loaded",
            )


def _count(number: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return str(number)


_MODES = ("training", "gradient_checkpointing")


def _unsloth() -> ModuleType:
    if "unsloth" not in sys.modules:
        # Unsloth writes code into the current folder, and installs packages, unless told not to.
        from workbench.base.cache import cache_folder
        from workbench.base.workspace import written

        cache = cache_folder() / "unsloth_compiled"
        with written(cache):
            cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.environ.setdefault("UNSLOTH_COMPILE_LOCATION", str(cache))
        os.environ.setdefault("UNSLOTH_AUTO_INSTALL", "0")
        os.environ.setdefault("TORCHAO_LOG_LEVEL", "ERROR")
        with loading.quiet_imports(), without_noise():
            import unsloth
        logging.getLogger("transformers.models.llama.modeling_llama").addFilter(
            lambda record: not NOISE.match(record.getMessage())
        )
        # torch 2.11's own compiler warns of itself, four times a first step
        warnings.filterwarnings("ignore", r"inductor::_alloc_from_pool")
    import unsloth

    return unsloth


def _unsloth_version() -> str:
    unsloth = _unsloth()
    from unsloth.device_type import DEVICE_TYPE

    return f"Unsloth {unsloth.__version__}" + (" (CPU backend)" if DEVICE_TYPE == "cpu" else "")


@randomness.random_kept()
def _unsloth_base(
    source: str, *, dtype: str | None, **how: object
) -> tuple[Model, Tokenizer, list[str]]:
    loader = _unsloth().FastLanguageModel
    import torch

    cuda = torch.cuda.is_available()
    chosen, notes = choose_dtype(dtype, "unsloth", cuda=cuda, bf16=native_bf16())
    # on a GPU it knows two of the three by their names
    torch_dtype = getattr(torch, chosen) if chosen else None
    # On a GPU, where loading can take minutes, all of it is printed as it comes.
    with contextlib.nullcontext() if cuda else without_noise():
        model, tokenizer = loader.from_pretrained(model_name=source, dtype=torch_dtype, **how)
    return model, tokenizer, notes


@randomness.random_kept()  # on a GPU it seeds Python's, numpy's and torch's for the whole process
def _unsloth_lora(model: Model, lora: Fields, *, gradient_checkpointing: bool, seed: int) -> Model:
    return _unsloth().FastLanguageModel.get_peft_model(
        model,
        **lora,
        bias="none",
        use_gradient_checkpointing="unsloth" if gradient_checkpointing else False,
        random_state=seed,
    )


# What a backend offers, by the recipe's word for it; plain.py is the one to read.
_BACKENDS: Fields = {
    "unsloth": SimpleNamespace(
        version=_unsloth_version,
        load_base=_unsloth_base,
        add_lora=_unsloth_lora,
        for_inference=lambda model: _unsloth().FastLanguageModel.for_inference(model),
        for_training=lambda model: _unsloth().FastLanguageModel.for_training(model),
    ),
    "transformers": plain,
}
