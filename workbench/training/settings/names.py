"""Names of settings: those of the installed `GRPOConfig`, the old ones, and those that belong
elsewhere in the recipe.

Unsloth prints "ignored" for a name that it does not know, and trains with a default. So every name
is checked before a config is built: it is right, or translated with a visible line, or it raises an
error that names the right one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from workbench.errors import RecipeError, WorkbenchError
from workbench.kinds import Fields
from workbench.recipe import Recipe, read_yaml
from workbench.secret import setting

# Name in older libraries, courses and blogs -> name in trl 1.14 / transformers 5.
ALIASES = {
    "kl_coef": "beta",
    "max_new_tokens": "max_completion_length",
    "num_generation": "num_generations",
    # in transformers 5 a warmup_steps below 1 is a share of all steps
    "warmup_ratio": "warmup_steps",
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
_OF_POLICY = ("max_seq_length", "load_in_4bit", "dtype", "fast_inference", "gpu_memory_utilization")
_OF_RECIPE = (
    "max_prompt_length", "eval_every", "eval_prompts", "eval_temperature", "seed", "run_name",
    "algorithm", "warm_start",
)  # fmt: skip
MOVED = {
    **{name: name for name in _OF_RECIPE},
    **{name: f"policy.{name}" for name in _OF_POLICY},
    **{name: f"lora.{name}" for name in ("r", "lora_alpha", "lora_dropout", "target_modules")},
    "random_state": "seed",
    **dict.fromkeys(("model_name", "model_name_or_path"), "policy.name"),
    "torch_dtype": "policy.dtype",
    **dict.fromkeys(("lora_r", "lora_rank"), "lora.r"),
}
_WHY_MOVED = {
    "max_prompt_length": " (TRL no longer cuts prompts, so longer ones are left out and counted)",
    "torch_dtype": " (torch_dtype is called dtype in this version)",
}

# What the workbench or a library does by itself -> the reason why it can be left out.
LEFT_OUT = {
    "output_dir": "checkpoints are in runs/<run_name>/checkpoints",
    "disable_tqdm": "the progress bar is the workbench's own",
    "save_safetensors": "weights are saved as safetensors and nothing else",
    "overwrite_output_dir": "a run never writes over another one",
    "device_map": "a policy is loaded whole on the one device",
    "attn_implementation": "the library chooses the attention that this device has",
    "max_lora_rank": "vLLM is told lora.r",
    "log_completions": (
        "the run's rollouts/ holds every completion, and the live panel shows a group of each step"
    ),
    "num_completions_to_print": "the run's rollouts/ holds every completion",
    "log_completions_hub_repo": (
        "nothing is uploaded while it trains; the run's rollouts/ holds every completion"
    ),
    "push_to_hub": "nothing is uploaded while it trains; notebook 05 exports what to upload",
    **dict.fromkeys(
        (
            "hub_strategy",
            "hub_model_id",
            "hub_token",
            "hub_private_repo",
            "hub_always_push",
            "hub_revision",
        ),
        "nothing is uploaded while it trains; `workbench export --push` uploads, with HF_TOKEN",
    ),
    "resume_from_checkpoint": "`workbench continue` resumes a run from its newest whole checkpoint",
    "ignore_data_skip": "`workbench continue` resumes with the prompts that come next",
    "model_init_kwargs": "the recipe's `policy` says how the model is loaded",
    "max_tool_calling_iterations": "a completion is one answer, without tools",
}
# unless asked for
_OFF = ("log_completions", "log_completions_hub_repo", "num_completions_to_print", "push_to_hub")

# What belongs elsewhere and cannot be moved -> where.
_FUNCTIONS = ("reward_funcs", "reward_function", "reward_functions")
ELSEWHERE = {
    "reward_weights": "recipe field reward_weights (by function name)",
    **dict.fromkeys(_FUNCTIONS, "reward_funcs of the task (recipe field task)"),
    **dict.fromkeys(("train_dataset", "dataset"), "rows of the task (recipe field task)"),
    "query": "the column prompt of the task's rows (recipe field task)",
    "ground_truth": "the column answer of the task's rows (recipe field task)",
    "tokenizer": (
        "processing_class of GRPOTrainer, which is the policy's own tokenizer: leave it out"
    ),
    "processing_class": "nowhere: the policy's own tokenizer is used",
    "peft_config": "recipe field lora",
}

# arguments of GRPOTrainer that make a completion of several turns
TURNS = ("environment_factory", "rollout_func", "tools")

# Gone from transformers or TRL, with a value that cannot be carried over -> what to do.
_PRECISION = ("fp16_opt_level", "fp16_backend", "half_precision_backend")
_GONE = {
    "logging_dir": "set the environment variable TENSORBOARD_LOGGING_DIR",
    "include_tokens_per_second": 'include_num_input_tokens_seen = "all"',
    "group_by_length": 'train_sampling_strategy = "group_by_length"',
    "adafactor": 'optim = "adafactor"',
    **dict.fromkeys(_PRECISION, "fp16 or bf16, or neither: it is chosen for the device"),
    "load_in_8bit": "policy.load_in_4bit",
    "vllm_device": "leave it out: vLLM shares the GPU that trains",
}

# Name -> words for it that are too far away to be found by likeness.
_MEANT = {
    "learning_rate": "lr",
    "per_device_train_batch_size": "batch_size train_batch_size",
    "num_train_epochs": "epochs num_epochs",
    "max_steps": "steps",
    "num_generations": "group_size",
    "max_completion_length": "max_tokens max_length",
    "beta": "kl_coeff kl_beta kl_penalty init_kl_coef",
    "epsilon": "clip_range cliprange",
    "warmup_steps": "warmup",
}


def with_new_names(recipe: Recipe, fields: set[str]) -> tuple[Recipe, list[str]]:
    """(the recipe with every name in `grpo`, and in its stages' `grpo`, as the installed libraries
    spell it; a line for each name that was translated, moved or left out); RecipeError for an
    unknown name, and for two that disagree.
    """
    notes: list[str] = []
    content, fresh = recipe.model_dump(), Recipe().model_dump()
    content["grpo"] = {}
    for name, value in _translated(recipe.grpo, fields, notes).items():
        where = (
            "reward_weights"
            if name == "reward_weights" and isinstance(value, dict)
            else MOVED.get(name)
        )
        if name in LEFT_OUT:
            notes += [f"{setting(name, value)} is left out: {LEFT_OUT[name]}"] * bool(
                value or name not in _OFF
            )
        elif not where:
            content["grpo"][name] = value
        elif value is None:
            notes.append(f"{name} = None is left out: it asks for nothing")
        else:
            value = as_dtype(value) if "dtype" in name else value
            part, _, leaf = where.rpartition(".")
            target, default = (content[part], fresh[part]) if part else (content, fresh)
            if target[leaf] not in (default[leaf], value):
                said = f"grpo.{name} = {value!r} and {where} = {target[leaf]!r}"
                raise RecipeError(
                    said,
                    rule=f"{name} is the recipe's {where}",
                    remedy=f"keep {where}, with one of the values",
                )
            target[leaf] = value
            notes.append(
                f"{name} belongs to the recipe, not to grpo: {where} ="
                f" {value!r}{_WHY_MOVED.get(name, '')}"
            )
    _check_known(content["grpo"], fields)
    for stage in content["stages"]:
        lines: list[str] = []
        called, stage["grpo"] = (
            f"stage {stage['name']!r}: ",
            _translated(stage["grpo"], fields, lines),
        )
        for name in (name for name in stage["grpo"] if name in {*MOVED, *LEFT_OUT, *ELSEWHERE}):
            where = MOVED.get(name) or ELSEWHERE.get(name) or "or not at all"
            rule = (
                "a stage changes settings of GRPOConfig; policy, adapter and seed belong to the"
                " whole run"
            )
            remedy = f"set it once, outside the stages ({where})"
            raise RecipeError(
                called + setting(f"grpo.{name}", stage["grpo"][name]), rule=rule, remedy=remedy
            )
        _check_known(stage["grpo"], fields)
        notes += [called + line for line in lines]
    # What was not asked stays so: a table tells "you" from "workbench default" by it.
    asked = {
        name: value
        for name, value in content.items()
        if name in recipe.model_fields_set or value != fresh[name]
    }
    return Recipe.of(asked), notes


def _translated(grpo: Fields, fields: set[str], notes: list[str]) -> Fields:
    asked = dict(grpo)
    for old, new in ALIASES.items():
        if old not in asked or old in fields:
            continue
        # Unsloth's loader takes the word "unsloth" for its own way of checkpointing; GRPOConfig
        # takes yes or no.
        value = bool(asked[old]) if old == "use_gradient_checkpointing" else asked[old]
        if new in asked and asked[new] != value:
            said = f"{setting(f'grpo.{old}', asked[old])} and {setting(f'grpo.{new}', asked[new])}"
            raise RecipeError(
                said, rule=f"{old} is the old name of {new}", remedy="keep one of them"
            )
        del asked[old]
        asked[new] = value
        notes.append(f"{old} is called {new} in this version: {setting(new, value)}")
    if asked.get("max_steps", 0) is None:
        asked["max_steps"] = -1
        notes.append("max_steps = None is written -1 in this version: train for num_train_epochs")
    return asked


def as_dtype(value: object) -> str | None:
    """A library's word for a type, or torch's own, as the recipe has it; None: chosen for the
    device.
    """
    text = str(value).removeprefix("torch.")
    return {"half": "float16", "float": "float32", "auto": None, "None": None}.get(text, text)


def check_turns(used: Mapping[str, object], where: str, error: type[WorkbenchError]) -> None:
    """Raise `error` for settings, of a trainer (value by name) or a recipe, that make completions
    of several turns.
    """
    if name := next((name for name in TURNS if used.get(name)), None):
        rule = (
            "turns are not recorded yet: the words of a tool or an environment would be recorded as"
            " the policy's own"
        )
        remedy = (
            "for now, train without the workbench (TRL's log_completions shows the turns), or with"
            " completions of one turn"
        )
        raise error(f"{where}: {name}", rule=rule, remedy=remedy)


def _check_known(asked: Fields, fields: set[str]) -> None:
    check_turns(asked, "grpo", RecipeError)
    for name, value in asked.items():
        said, rule = (
            setting(f"grpo.{name}", value),
            "grpo holds fields of the installed trl.GRPOConfig",
        )
        if name in ELSEWHERE:
            raise RecipeError(said, rule=f"{name} is set elsewhere", remedy=ELSEWHERE[name])
        if name not in fields and name in _GONE:
            raise RecipeError(said, rule=f"{rule}, and this one is gone", remedy=_GONE[name])
        if name not in fields:
            near = nearest_setting(name, fields)
            raise RecipeError(
                said,
                rule=rule,
                remedy=f"did you mean {near!r}?" if near else "see TRL's page on GRPOConfig",
            )


def nearest_setting(name: str, fields: Iterable[str]) -> str | None:
    """The name that `name` was most likely meant to be: a field, or the new place of an old
    name.
    """
    word = name.lower()
    known = {field: field for field in fields} | MOVED | ALIASES
    meant = [right for right, words in _MEANT.items() if word in words.split()]
    return next(
        iter(meant or [known[near] for near in difflib.get_close_matches(word, known, n=1)]), None
    )


def overridden(recipe: Recipe, said: Sequence[str] = (), steps: int | None = None) -> Recipe:
    """The recipe with other values; RecipeError for what cannot be set. Names of GRPOConfig are
    checked with those of the recipe.

    Args:
        said: `key=value`; the key is a dotted field (`policy.load_in_4bit`, `stages.NAME.steps`),
            or a bare name: a field of the recipe, or else a setting of GRPOConfig; the value is
            YAML.
        steps: train this many; None: as the recipe says.
    """

    def refused(rule: str, remedy: str) -> RecipeError:
        return RecipeError(f"--set {text}", rule=f"--set takes {rule}", remedy=remedy)

    # A field that nobody said stays unsaid: the plan tells "you" from "workbench default" by it.
    content, whole = (
        recipe.model_dump(mode="json", exclude_unset=unset) for unset in (True, False)
    )
    for text in said:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not all(name.split(".")):
            raise refused("key=value", "for example --set grpo.learning_rate=1e-5")
        bare = "." not in name and name not in Recipe.model_fields
        where = MOVED.get(name, f"grpo.{name}") if bare else name
        try:
            for target in (whole, content):  # the whole one knows what is no field
                *parts, leaf = where.split(".")
                for part in parts:
                    stages = isinstance(target, list) and {stage["name"]: stage for stage in target}
                    target = stages[part] if stages else target.setdefault(part, {})
                target[leaf] = read_yaml(value, "--set")
        except RecipeError as error:
            raise refused("a value in YAML", "quote it: --set 'key=\"value\"'") from error
        except (TypeError, LookupError, AttributeError) as error:
            raise refused(
                "a field of the recipe, or of a stage by its name", "see recipe.yaml"
            ) from error
    if steps is not None and recipe.stages:
        remedy = f"--set stages.{recipe.stages[0].name}.steps={steps}"
        raise RecipeError(
            f"--steps {steps}: the recipe has stages",
            rule="each stage sets its own steps",
            remedy=remedy,
        )
    if steps is not None:
        content.setdefault("grpo", {})["max_steps"] = steps
    return Recipe.of(content, "--set") if said or steps is not None else recipe
