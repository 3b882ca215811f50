"""Names of settings: those of the installed `GRPOConfig`, the old ones, and those that belong elsewhere in the recipe.

Unsloth prints "ignored" for a name that it does not know, and trains with a default. So every name is looked at before a
config is built: it is right, or translated with a visible line, or an error that names the right one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from workbench.errors import RecipeError
from workbench.recipe import Recipe

# Name in older libraries, courses and blogs -> name in trl 1.14 / transformers 5.
ALIASES = {
    "kl_coef": "beta",
    "max_new_tokens": "max_completion_length",
    "num_generation": "num_generations",
    "warmup_ratio": "warmup_steps",  # in transformers 5 a warmup_steps below 1 is a share of all steps
    "use_gradient_checkpointing": "gradient_checkpointing",  # Unsloth's word, at the loader
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
    "push_to_hub_token": "hub_token",
    "use_liger_loss": "use_liger_kernel",
    "vllm_guided_decoding_regex": "vllm_structured_outputs_regex",
    "wandb_log_unique_prompts": "log_unique_prompts",
}

# What belongs to another part of the recipe and goes there, with a line -> where.
MOVED = {
    "max_prompt_length": "max_prompt_length",
    "seed": "seed",
    "random_state": "seed",
    "run_name": "run_name",
    "model_name": "policy.name",
    "model_name_or_path": "policy.name",
    "max_seq_length": "policy.max_seq_length",
    "load_in_4bit": "policy.load_in_4bit",
    "dtype": "policy.dtype",
    "torch_dtype": "policy.dtype",
    "fast_inference": "policy.fast_inference",
    "gpu_memory_utilization": "policy.gpu_memory_utilization",
    "r": "lora.r",
    "lora_r": "lora.r",
    "lora_rank": "lora.r",
    "lora_alpha": "lora.lora_alpha",
    "lora_dropout": "lora.lora_dropout",
    "target_modules": "lora.target_modules",
}

_WHY_MOVED = {
    "max_prompt_length": "TRL no longer cuts prompts, so longer ones are left out and counted",
    "torch_dtype": "torch_dtype is called dtype in this version",
}

# What the workbench or a library does by itself -> the reason why it can be left out.
LEFT_OUT = {
    "output_dir": "checkpoints lie in runs/<run_name>/checkpoints",
    "disable_tqdm": "the progress bar is the workbench's own",
    "save_safetensors": "weights are saved as safetensors and nothing else",
    "overwrite_output_dir": "a run never writes over another one",
    "device_map": "a policy is loaded whole on the one device",
    "attn_implementation": "the library chooses the attention that this device has",
    "max_lora_rank": "vLLM is told lora.r",
    "log_completions": "the run's rollouts/ holds every completion, and the live panel shows a group of each step",
    "num_completions_to_print": "the run's rollouts/ holds every completion",
    "log_completions_hub_repo": "nothing is uploaded while it trains; the run's rollouts/ holds every completion",
    "push_to_hub": "nothing is uploaded while it trains; notebook 05 exports what to upload",
    "max_tool_calling_iterations": "a completion is one answer, without tools",
}

_OFF = ("log_completions", "log_completions_hub_repo", "num_completions_to_print", "push_to_hub")  # unless asked for

# What belongs elsewhere and cannot be moved -> where.
ELSEWHERE = {
    "reward_weights": "recipe field reward_weights (by function name)",
    "reward_funcs": "reward_funcs of the task (recipe field task)",
    "reward_function": "reward_funcs of the task (recipe field task)",
    "reward_functions": "reward_funcs of the task (recipe field task)",
    "train_dataset": "rows of the task (recipe field task)",
    "dataset": "rows of the task (recipe field task)",
    "query": "the column prompt of the task's rows (recipe field task)",
    "ground_truth": "the column answer of the task's rows (recipe field task)",
    "tokenizer": "processing_class of GRPOTrainer, which is the policy's own tokenizer: leave it out",
    "processing_class": "nowhere: the policy's own tokenizer is used",
    "peft_config": "recipe field lora",
}

# Gone from transformers or TRL, with a value that cannot be carried over -> what to do.
_GONE = {
    "logging_dir": "set the environment variable TENSORBOARD_LOGGING_DIR",
    "include_tokens_per_second": 'include_num_input_tokens_seen = "all"',
    "group_by_length": 'train_sampling_strategy = "group_by_length"',
    "adafactor": 'optim = "adafactor"',
    "fp16_opt_level": "fp16 or bf16, or neither: it is chosen for the device",
    "fp16_backend": "fp16 or bf16, or neither: it is chosen for the device",
    "half_precision_backend": "fp16 or bf16, or neither: it is chosen for the device",
    "load_in_8bit": "policy.load_in_4bit",
    "vllm_device": "leave it out: vLLM shares the GPU that trains",
}

# Words that are too far from the right one to be found by likeness.
_MEANT = {
    "lr": "learning_rate",
    "batch_size": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size",
    "epochs": "num_train_epochs",
    "num_epochs": "num_train_epochs",
    "steps": "max_steps",
    "group_size": "num_generations",
    "max_tokens": "max_completion_length",
    "max_length": "max_completion_length",
    "kl_coeff": "beta",
    "kl_beta": "beta",
    "kl_penalty": "beta",
    "init_kl_coef": "beta",
    "clip_range": "epsilon",
    "cliprange": "epsilon",
    "warmup": "warmup_steps",
}


def renamed(recipe: Recipe, fields: set[str]) -> tuple[Recipe, list[str]]:
    """The recipe with every name of `grpo`, and of its stages' `grpo`, as the installed libraries have it.

    Args:
        recipe: what was asked; it is not changed.
        fields: names of the installed GRPOConfig's fields.

    Returns:
        (a new recipe, one line for each name that was translated, moved or left out).

    Raises:
        RecipeError: for a name that nothing has, with the nearest right one, and for two names of one setting that
            disagree.
    """
    notes: list[str] = []
    content, fresh = recipe.model_dump(), Recipe().model_dump()
    content["grpo"] = {}
    for name, value in translated(recipe.grpo, fields, notes).items():
        where = "reward_weights" if name == "reward_weights" and isinstance(value, dict) else MOVED.get(name)
        if name in LEFT_OUT:
            if value or name not in _OFF:
                notes.append(f"{name} = {value!r} is left out: {LEFT_OUT[name]}")
        elif not where:
            content["grpo"][name] = value
        elif value is None:
            notes.append(f"{name} = None is left out: it asks for nothing")
        else:
            value = _as_dtype(value) if "dtype" in name else value
            part, _, leaf = where.rpartition(".")
            target, default = (content[part], fresh[part]) if part else (content, fresh)
            if target[leaf] not in (default[leaf], value):
                raise RecipeError(
                    f"grpo.{name} = {value!r} and {where} = {target[leaf]!r}",
                    rule=f"{name} is the recipe's {where}",
                    remedy=f"keep {where}, with one of the two values",
                )
            target[leaf] = value
            why = f" ({_WHY_MOVED[name]})" if name in _WHY_MOVED else ""
            notes.append(f"{name} belongs to the recipe, not to grpo: {where} = {value!r}{why}")
    for stage in content["stages"]:
        lines: list[str] = []
        stage["grpo"] = translated(stage["grpo"], fields, lines)
        for name, value in stage["grpo"].items():
            if name in MOVED or name in LEFT_OUT or name in ELSEWHERE:
                raise RecipeError(
                    f"stage {stage['name']!r}: grpo.{name} = {value!r}",
                    rule="a stage changes settings of GRPOConfig; policy, adapter and seed are the whole run's",
                    remedy=f"set it once, outside the stages ({MOVED.get(name) or ELSEWHERE.get(name) or 'or not at all'})",
                )
        _check_known(stage["grpo"], fields)
        notes += [f"stage {stage['name']!r}: {line}" for line in lines]
    _check_known(content["grpo"], fields)
    # What was not asked stays so: a table tells "you" from "workbench default" by it.
    asked = {name: value for name, value in content.items() if name in recipe.model_fields_set or value != fresh[name]}
    return Recipe.of(asked), notes


def translated(grpo: dict[str, Any], fields: set[str], notes: list[str]) -> dict[str, Any]:
    """Settings under today's names; names that are not aliases are left as they are. Lines are added to `notes`."""
    asked = dict(grpo)
    for old, new in ALIASES.items():
        if old not in asked or old in fields:
            continue
        # Unsloth's loader takes the word "unsloth" for its own way of checkpointing; GRPOConfig takes yes or no.
        value = bool(asked[old]) if old == "use_gradient_checkpointing" else asked[old]
        if new in asked and asked[new] != value:
            raise RecipeError(
                f"grpo.{old} = {asked[old]!r} and grpo.{new} = {asked[new]!r}",
                rule=f"{old} is the old name of {new}",
                remedy="keep one of them",
            )
        del asked[old]
        asked[new] = value
        notes.append(f"{old} is called {new} in this version: {new} = {value!r}")
    if asked.get("max_steps", 0) is None:
        asked["max_steps"] = -1
        notes.append("max_steps = None is written -1 in this version: train for num_train_epochs")
    return asked


def _as_dtype(value: Any) -> Any:
    text = str(value).removeprefix("torch.")
    return {"half": "float16", "float": "float32", "auto": None}.get(text, text)


def _check_known(asked: dict[str, Any], fields: set[str]) -> None:
    for name, value in asked.items():
        if name in ELSEWHERE:
            raise RecipeError(f"grpo.{name} = {value!r}", rule=f"{name} is set elsewhere", remedy=ELSEWHERE[name])
        if name in fields:
            continue
        if name in _GONE:
            rule, remedy = "grpo holds fields of the installed trl.GRPOConfig, and this one is gone", _GONE[name]
        else:
            rule, near = "grpo holds fields of the installed trl.GRPOConfig", nearest(name, fields)
            remedy = f"did you mean {near!r}?" if near else "see the fields of GRPOConfig in TRL's documentation"
        raise RecipeError(f"grpo.{name} = {value!r}", rule=rule, remedy=remedy)


def nearest(name: str, fields: Iterable[str]) -> str | None:
    """The right name that `name` was most likely meant to be: a field, or where its old name went."""
    if name.lower() in _MEANT:
        return _MEANT[name.lower()]
    known = {field: field for field in fields} | MOVED | ALIASES
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return known[near[0]] if near else None


def overridden(recipe: Recipe, said: Sequence[str] = (), steps: int | None = None) -> Recipe:
    """The recipe with other values.

    Args:
        recipe: it is not changed.
        said: `key=value`; the key is a dotted field (`policy.load_in_4bit`, `stages.NAME.steps`), or a bare name: a field of
            the recipe, or else a setting of GRPOConfig; the value is YAML.
        steps: train so many; None: as the recipe says.

    Raises:
        RecipeError: for what is no `key=value`, an unknown field, a wrong value, or `steps` of a recipe with stages. Names of
            GRPOConfig are checked with the rest of the recipe's.
    """
    # A field that nobody said stays unsaid: the plan tells "you" from "workbench default" by it.
    content, whole = (recipe.model_dump(mode="json", exclude_unset=unset) for unset in (True, False))
    for text in said:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not all(name.split(".")):
            raise _not_set(text, "key=value", "for example --set grpo.learning_rate=1e-5")
        bare = "." not in name and name not in Recipe.model_fields
        where = MOVED.get(name, f"grpo.{name}") if bare else name
        try:
            for target in (whole, content):  # the whole one knows what is no field
                _set(target, where.split("."), yaml.safe_load(value))
        except yaml.YAMLError as error:
            raise _not_set(text, "a value in YAML", "quote it: --set 'key=\"value\"'") from error
        except (TypeError, LookupError) as error:
            raise _not_set(text, "a field of the recipe, or of a stage by its name", "see recipe.yaml") from error
    if steps is not None and recipe.stages:
        raise RecipeError(
            f"--steps {steps}: the recipe has stages",
            rule="each stage says its own number of steps",
            remedy=f"--set stages.{recipe.stages[0].name}.steps={steps}",
        )
    if steps is not None:
        content.setdefault("grpo", {})["max_steps"] = steps
    return Recipe.of(content, "--set") if said or steps is not None else recipe


def _set(target: Any, path: Sequence[str], value: Any) -> None:
    for part in path[:-1]:
        if isinstance(target, list):
            target = {stage["name"]: stage for stage in target}[part]
        else:
            target = target.setdefault(part, {}) if isinstance(target, dict) else target[part]
    target[path[-1]] = value


def _not_set(text: str, rule: str, remedy: str) -> RecipeError:
    return RecipeError(f"--set {text}", rule=f"--set takes {rule}", remedy=remedy)
