"""Training that begins from an adapter one already has: in its own shape, or merged into its base.

What SFT by another program leaves is read as PEFT reads it, so all that PEFT's LoraConfig can say
of a layer is kept.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from workbench.base.cache import cache_folder
from workbench.base.errors import PolicyError, RecipeError
from workbench.base.kinds import Fields
from workbench.base.workspace import resolve, shown
from workbench.recipe import LoraPart, Recipe
from workbench.tiny.named import folder_of, named_at, origin_of
from workbench.training.once import made_once
from workbench.training.plan.loading import (
    adapter_file,
    adapter_named,
    adapter_sum,
    base_files,
    find_adapter,
    find_model,
    reading,
    without_bits,
)

# Of PEFT's LoraConfig, beside what a recipe's `lora` says.
_MORE_THAN_LORA = (
    "use_rslora", "use_dora", "modules_to_save", "rank_pattern", "alpha_pattern", "fan_in_fan_out",
    "layers_to_transform", "layers_pattern", "exclude_modules", "ensure_weight_tying",
)  # fmt: skip
_NOT_TRAINED = (
    "target_parameters", "trainable_token_indices", "layer_replication", "alora_invocation_tokens",
    "lora_bias", "use_qalora", "use_bdlora",
)  # fmt: skip
_STARTS = ("gaussian", "orthogonal")  # of A alone
_STARTS_OF_BASE = ("pissa", "olora")  # which PEFT repeats when it loads one
_MERGER = "workbench.exporting.merging"  # a program: what trains imports nothing that exports


def fitted_to_adapter(recipe: Recipe) -> tuple[Recipe, list[str]]:
    """(the recipe with the `lora` of the adapter that it begins from, or with that adapter merged
    into its policy; lines on it).

    RecipeError if it names none; PolicyError if it asks for another shape, or this adapter cannot
    be trained.
    """
    policy, asked = recipe.policy, recipe.policy.adapter
    if asked is None:
        raise RecipeError(
            f"policy.reference = {policy.reference!r}, merge_adapter = {policy.merge_adapter}",
            rule="both are about policy.adapter, and the recipe names none",
            remedy="name the adapter's folder, or leave them out",
        )
    folder = find_adapter(asked)
    config = _config_of(folder)
    if policy.merge_adapter:
        name = str(_merged(policy.name, folder))
        part = {"name": name, "adapter": None, "merge_adapter": False, "reference": "base"}
        merged = recipe.model_copy(update={"policy": policy.model_copy(update=part)})
        return merged, [f"policy.merge_adapter: {clause}" for clause in origin_of(name)]
    shape = _shape_of(folder, config)
    for name in recipe.lora.model_fields_set:
        value = getattr(recipe.lora, name)
        if (sorted(value) if isinstance(value, list) else value) != getattr(shape, name):
            made = f"{name} = {getattr(shape, name)!r}"
            raise PolicyError(
                f"lora.{name} = {value!r} with policy.adapter",
                rule=f"training continues with the adapter as it was made: {made}",
                remedy=f"leave out lora.{name}",
            )
    part = {"adapter": folder}  # of several checkpoints, the one that was the newest
    fitted = recipe.model_copy(update={"lora": shape, "policy": policy.model_copy(update=part)})
    return fitted, _notes(fitted, config, asked)


def peft_settings(recipe: Recipe) -> Fields:
    """What PEFT's LoraConfig is made from: all that the adapter which training continues from
    says.
    """
    own = recipe.lora.model_dump()
    if recipe.policy.adapter is None:  # it was merged
        return own
    config = _config_of(find_adapter(recipe.policy.adapter))
    more = ("target_modules", *_MORE_THAN_LORA)
    return own | {name: config[name] for name in more if config.get(name)}


def _notes(recipe: Recipe, config: Fields, asked: str) -> list[str]:
    policy, folder = recipe.policy, str(recipe.policy.adapter)
    shape = [f"r {recipe.lora.r}", *(name for name in _MORE_THAN_LORA if config.get(name))]
    begins = f"training continues from the adapter {adapter_named(folder)}, in its shape"
    begins += f" ({', '.join(shape)}); reference: {policy.reference}; `base`, wherever a gain is"
    notes = [f"{begins} measured, is the model without it"]
    if policy.reference == "base":
        notes[0] += ", to which KL pulls back where beta > 0 (or set policy.reference: adapter)"
    if folder != str(resolve(asked)):
        notes.append(f"{asked} holds no adapter itself: its newest, {Path(folder).name}, is taken")
    if config.get("modules_to_save"):
        notes.append("the memory estimate leaves out modules_to_save, which are trained whole")
    source = find_model(policy.name, ask_hub=False)
    saved, used = _template_in(folder), _template_in(source)
    if saved and used and saved != used:
        notes.append(
            "WARNING: beside that adapter lies another chat template; prompts are rendered with"
            f" that of {policy.name}"
        )
    own = named_at(source)
    names = {policy.name, source, own.public if own else source}
    trained_on = str(config.get("base_model_name_or_path") or policy.name)
    if _last_part(trained_on) not in set(map(_last_part, names)):
        notes.append(f"WARNING: that adapter was trained on {trained_on}, not on {policy.name}")
    return notes


def _template_in(folder: str) -> str | None:
    file, config = Path(folder, "chat_template.jinja"), Path(folder, "tokenizer_config.json")
    if file.is_file():
        return file.read_text(encoding="utf-8").strip()
    if not config.is_file():
        return None
    with reading(shown(config)):
        template = json.loads(config.read_text(encoding="utf-8")).get("chat_template")
    return template.strip() if isinstance(template, str) else None


def _last_part(name: str) -> str:
    return without_bits(name.rstrip("/").rpartition("/")[2]).lower()


def _config_of(folder: str) -> Fields:
    with reading(f"adapter {shown(folder)}"):
        config = json.loads((Path(folder) / "adapter_config.json").read_text(encoding="utf-8"))
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start not in (*_STARTS, *_STARTS_OF_BASE):
        raise PolicyError(
            f"adapter {shown(folder)}: init_lora_weights = {start!r}",
            rule="an adapter is loaded onto the base that it was trained on, and this start changed"
            " the base in a way that cannot be repeated",
            remedy="convert it to a plain LoRA, with the program that made it",
        )
    return config


def _shape_of(folder: str, config: Fields) -> LoraPart:
    plain = {"peft_type": "LORA", "bias": "none"}
    unlike = [name for name, value in plain.items() if config.get(name) != value]
    unlike += [name for name in _NOT_TRAINED if config.get(name)]
    if config.get("init_lora_weights") in _STARTS_OF_BASE:
        unlike.append("init_lora_weights")
    fields = {name: config.get(name) for name in LoraPart.model_fields}
    if not unlike and not isinstance(fields["target_modules"], list):
        fields["target_modules"] = _adapted(folder)
    try:
        shape = LoraPart.model_validate(fields)
    except ValidationError as error:
        unlike.append(str(error.errors()[0]["loc"][0]))
    if unlike:
        raise PolicyError(
            f"adapter {shown(folder)}: {unlike[0]} = {config.get(unlike[0])!r}",
            rule="training continues from a LoRA adapter which, switched off, leaves the base",
            remedy="policy.merge_adapter: true merges it into its base, and trains a new one",
        )
    return shape.model_copy(update={"target_modules": sorted(shape.target_modules)})


def _adapted(folder: str) -> list[str]:
    # The last names of the layers that it holds weights for, where target_modules is a pattern.
    file = adapter_file(folder)
    with reading(f"adapter {shown(folder)}"):
        if file.suffix == ".bin":
            import torch

            names = [*torch.load(file, map_location="cpu", weights_only=True)]
        else:
            from safetensors import safe_open

            with safe_open(file, "np") as saved:
                names = [*saved.keys()]
    layers = {name.partition(".lora_")[0] for name in names if ".lora_" in name}
    return sorted({layer.rpartition(".")[2] for layer in layers})


def _merged(name: str, adapter: str) -> Path:
    # The folder of a policy with an adapter merged into its 16-bit base: made once, in the user's
    # cache, by a separate process, out of reach of Unsloth's patches.
    base = name if folder_of(name) else without_bits(find_model(name))
    if not (folder_of(base) or Path(base).is_dir()):
        from huggingface_hub import snapshot_download

        patterns = ["*.safetensors*", "*.json", "*.jinja", "*.model", "*.txt"]
        with reading(f"policy {name!r}"):
            snapshot_download(base, allow_patterns=patterns)
    about = [base_files(base), adapter_sum(adapter), _config_of(adapter)]
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]
    return made_once(
        cache_folder() / f"merged-{key}",
        f"policy {name!r} with the adapter {shown(adapter)}",
        "it is merged into its base once, in 16 bits, in the user's cache",
        [_MERGER, base, adapter],
    )


def put_on(model: Any, adapter: str | Path) -> None:
    """Replace the weights of a model's adapter with others of the same shapes; PolicyError if they
    cannot be read.
    """
    from peft import set_peft_model_state_dict
    from peft.utils import load_peft_weights

    folder = find_adapter(adapter)
    with reading(f"adapter {shown(folder)}"):
        weights = load_peft_weights(folder, device="cpu")
    if bad := [name for name, weight in weights.items() if not weight.isfinite().all()]:
        raise PolicyError(
            f"adapter {shown(folder)}: {bad[0]} holds NaN or infinity",
            rule="a policy whose weights are not numbers writes nothing",
            remedy="take an earlier checkpoint, or train it again at a lower learning rate",
        )
    rule = "an adapter goes onto the model that it was trained for, and holds weights for each"
    rule += " adapted layer"
    remedy = "name the base model that adapter_config.json names as policy.name"
    whole = model.peft_config["default"].modules_to_save or []
    # PEFT would write what belongs to neither into the base itself.
    unfit = [
        name
        for name in weights
        if "lora_" not in name and not any(f".{each}." in name for each in whole)
    ]
    if not unfit:
        with reading(f"adapter {shown(folder)}", rule, remedy):  # another shape, by its layer
            keys = set_peft_model_state_dict(model, weights)
        own = ("lora_", ".modules_to_save.")
        missing = [key for key in keys.missing_keys if any(part in key for part in own)]
        unfit = [*keys.unexpected_keys, *missing]
    if unfit:
        raise PolicyError(
            f"adapter {shown(folder)}: {unfit[0]} does not fit this model", rule=rule, remedy=remedy
        )
