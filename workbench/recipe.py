"""The recipe: everything requested of a run, as one small YAML file."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from workbench.base.errors import RecipeError, WorkbenchError, nearest
from workbench.base.extras import default_backend, installed
from workbench.base.instruments import places_in
from workbench.base.kinds import Fields
from workbench.base.secret import is_secret, setting
from workbench.base.workspace import find, looked_in, replace_file
from workbench.base.yaml_text import MOST_CHARACTERS, MOST_SHOWN, check_size, read_yaml
from workbench.base.yaml_text import packaged as packaged

_EXPONENT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+")
# What TRL says itself where it renders a prompt; a second word on it would end the run.
_TRLS_OWN = {
    "conversation", "messages", "tools", "documents", "chat_template", "add_generation_prompt",
    "continue_final_message",
    "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs", "self",
}  # fmt: skip
# Policies that are no path, and need no hub.
NAMED_POLICIES = {"tiny", "tiny_turns", *places_in("policies")}
SEVEN_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def _settings(grpo: Fields) -> Fields:
    # YAML 1.1 reads 1e-5 as text, because it lacks a dot or a sign, and `no` as false; everyone
    # means the number, the word.
    numbers = {
        name: float(value)
        for name, value in grpo.items()
        if isinstance(value, str) and _EXPONENT.fullmatch(value)
    }
    words = {
        name: "no" for name, value in grpo.items() if value is False and name.endswith("_strategy")
    }
    return grpo | numbers | words


def template_kwargs(value: object, said: str = "grpo.chat_template_kwargs") -> Fields:
    """Arguments for a chat template: a mapping, or one as JSON text, or None; RecipeError for
    others, and for TRL's own.
    """
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(value) if isinstance(value, str) else value
    check_size(value, said)
    value = {} if value is None else value
    if not isinstance(value, dict) or not all(
        isinstance(key, str) and key.isidentifier() for key in value
    ):
        raise RecipeError(
            f"{said} = {repr(value)[:MOST_SHOWN]}",
            rule="a chat template takes arguments by name",
            remedy='write a mapping, such as {"enable_thinking": false}',
        )
    if own := sorted(_TRLS_OWN.intersection(value)):
        raise RecipeError(
            f"{said} = {value!r}",
            rule=f"TRL passes {own[0]!r} to the template itself",
            remedy="leave it out",
        )
    for key in value:
        if is_secret(key, value[key]):
            raise RecipeError(
                f"{said}: {key} holds a key or a password",
                rule="a chat template's arguments appear in every prompt, in the exported template"
                " and in its passport",
                remedy="leave it out",
            )
    return dict(value)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, defer_build=True)


class PolicyPart(_Part):
    """Which model to load, and how."""

    name: str = "tiny"  # or "smollm2", a hub name, or a local folder
    # folder of a trained LoRA adapter of this model to continue from; None: a new one
    adapter: str | None = None
    # what KL is measured from: the model without that adapter, or with it as the run began
    reference: Literal["base", "adapter"] = "base"
    merge_adapter: bool = False  # train a new adapter on the model with that one merged into it
    # transformers: plain transformers + PEFT, the default where Unsloth is not installed
    backend: Literal["unsloth", "transformers"] = Field(default_factory=default_backend)
    load_in_4bit: bool = Field(default_factory=lambda: installed("bitsandbytes"))
    max_seq_length: int = Field(256, ge=16)  # tokens of prompt + completion
    dtype: Literal["float16", "bfloat16", "float32"] | None = None  # None: chosen for the device
    fast_inference: bool = False  # vLLM generates (backend unsloth, on a GPU, if vLLM is installed)
    # With fast_inference: vLLM's share of the GPU's free memory, the weights included.
    gpu_memory_utilization: float = Field(0.5, gt=0, le=1)


class LoraPart(_Part):
    """The adapter that is trained."""

    r: int = Field(16, ge=1)
    lora_alpha: int = Field(16, ge=1)
    lora_dropout: float = Field(0.0, ge=0, lt=1)
    target_modules: list[str] = list(SEVEN_PROJECTIONS)


class RewardsPart(_Part):
    """What a failing reward function, tool or environment does to the run."""

    # For one function and one batch of completions, and for each call of a tool or of an
    # environment; None: they may take as long as they like.
    deadline_s: float | None = Field(60.0, gt=0)
    # stop: save a checkpoint and end; skip: that completion gets no score from this function, and
    # is counted.
    on_error: Literal["stop", "skip"] = "stop"


class AdaptivePart(_Part):
    """How a reward function's weight follows its success: its average score as a share of its best
    score.
    """

    below: float = Field(0.3, ge=0, le=1)  # success below this: the weight grows
    above: float = Field(0.8, ge=0, le=1)  # success above this: the weight shrinks
    up: float = Field(1.2, gt=1, le=1000)
    down: float = Field(0.9, gt=0, lt=1)
    # Bounds, as factors of the weight that the stage began with.
    least: float = Field(0.25, gt=0, le=1)
    most: float = Field(4.0, ge=1, le=1000)
    every: int = Field(5, ge=1)  # steps over which success is taken, and between two changes
    best_score: float | None = Field(None, gt=0)  # None: what the function states, or the most seen


class StagePart(_Part):
    """One stage of a run: what differs from the recipe while it lasts. Stages follow one another on
    the same adapter.
    """

    name: str
    steps: int = Field(ge=1)
    task: str | None = None  # another task: its prompts and its rewards; None: the recipe's
    prompts: Fields = {}  # column -> value, or list of values: only rows that have it are used
    # Over the recipe's, the first two by function.
    reward_weights: dict[str, float] = {}
    adaptive_weights: dict[str, AdaptivePart] = {}
    grpo: Fields = {}

    _grpo_numbers = field_validator("grpo")(_settings)


class WarmStartPart(_Part):
    """Fine-tuning on right completions before the first step, for a task that the policy never
    solves.
    """

    samples: int = Field(ge=1)  # right completions to train on
    tries: int = Field(1000, ge=1)  # for each of them, completions sampled at most
    epochs: int = Field(2, ge=1)
    rounds: int = Field(1, ge=1)  # of it; 2 or more are expert iteration
    # None: 2e-4, or grpo.learning_rate if that is higher
    learning_rate: float | None = Field(None, gt=0)
    # reference: what the task's `ideal` makes of a row
    source: Literal["policy", "reference"] = "policy"


def _named(value: object) -> object:
    # `policy: tiny`, as everywhere else
    return {"name": value} if isinstance(value, str) else value


def _counted(value: object) -> object:  # `warm_start: 32`
    if isinstance(value, int) and not isinstance(value, bool):
        return {"samples": value}
    if value is not None and not isinstance(value, (dict, WarmStartPart)):
        raise ValueError(
            "a number of right completions, or a mapping of samples, tries, epochs, rounds,"
            " learning_rate, source"
        )
    return value


def _worded(value: object) -> object:
    # GSPO, Dr. GRPO's dr-grpo
    return value.lower().replace("-", "_").replace(".", "") if isinstance(value, str) else value


class Recipe(_Part):
    """Everything requested. `grpo` takes any field of the installed `trl.GRPOConfig` under its own
    name.

    >>> recipe = wb.Recipe.of({"run_name": "first", "task": "arithmetic", "grpo": {"max_steps": 20, "learning_rate": "1e-4"}})
    >>> recipe.grpo["learning_rate"], recipe.policy.name
    (0.0001, 'tiny')
    """  # noqa: E501

    run_name: str = "run"
    task: str = "arithmetic"  # an embedded task's name, or the path of a task file
    # auto: the level of a task `reasoning_gym/NAME` that the policy solves 20 to 80 % of the time
    difficulty: Literal["auto"] | None = None
    # the level of such a task moves as the policy learns
    curriculum: bool = False
    policy: Annotated[PolicyPart, BeforeValidator(_named)] = PolicyPart()
    lora: LoraPart = LoraPart()
    # What its paper sets in `grpo`, unless `grpo` says it by name; None: as `grpo` and the defaults
    # say.
    algorithm: Annotated[
        Literal["grpo", "dr_grpo", "dapo", "gspo", "gdpo", "cispo"] | None, BeforeValidator(_worded)
    ] = None
    grpo: Fields = {}
    rewards: RewardsPart = RewardsPart()
    reward_weights: dict[str, float] = {}  # by reward function; others keep the task's
    judge: Literal["accept"] | None = None  # accept: a judge trains without having passed a trial
    adaptive_weights: dict[str, AdaptivePart] = {}  # by reward function
    stages: list[StagePart] = Field([], max_length=100)  # none: one stage of grpo.max_steps steps
    # before the first stage
    warm_start: Annotated[WarmStartPart | None, BeforeValidator(_counted)] = None
    # auto: each prompt is read once for all its completions, where that is covered; trl: TRL's own
    # path.
    generation: Literal["auto", "trl"] = "auto"
    max_prompt_length: int | None = Field(None, ge=1)  # tokens; longer ones are left out, counted
    # Steps between two measurements of held-out prompts while it trains; base and the end are
    # measured, too. None: nothing is.
    eval_every: int | None = Field(None, ge=1, strict=True)
    eval_prompts: int = Field(32, ge=2)  # the same ones each time, one completion each
    eval_temperature: float | None = Field(None, ge=0)  # None: training's; 0: the likeliest token
    seed: int = Field(0, ge=0, lt=2**32)  # as numpy takes it

    @field_validator("stages")
    @classmethod
    def _distinct(cls, stages: list[StagePart]) -> list[StagePart]:
        if len({stage.name for stage in stages}) < len(stages):
            raise ValueError(
                "every stage has its own name, and these are"
                f" {', '.join(stage.name for stage in stages)}"
            )
        return stages

    _grpo_numbers = field_validator("grpo")(_settings)

    @property
    def requested_steps(self) -> int:
        """Steps over all stages; 0 where it asks for none, or for epochs."""
        return max(0, sum(stage.steps for stage in self.stages) or self.grpo.get("max_steps") or 0)

    @property
    def chat_template_kwargs(self) -> Fields:
        """What every prompt is rendered with, in training and everywhere else:
        `grpo.chat_template_kwargs`.
        """
        return template_kwargs(self.grpo.get("chat_template_kwargs"))

    @classmethod
    def load(cls, path: str | Path) -> Recipe:
        """Read a recipe file.

        Raises RecipeError if it is missing, not YAML, or has an unknown or wrongly typed field.
        """
        named, path = str(path), find(path)
        if not path.is_file():
            raise RecipeError(
                f"{named}: no such file",
                rule="a recipe is one YAML file",
                remedy="give the path of a recipe; `workbench demo` leaves one in"
                f" runs/demo/recipe.yaml; {looked_in()}",
            )
        with path.open("rb") as file:
            content = read_yaml(file.read(4 * MOST_CHARACTERS), named)
        if not isinstance(content, dict):
            what = "empty" if content is None else f"holds a {type(content).__name__}"
            raise RecipeError(
                f"{named}: {what}",
                rule="a recipe is a mapping of field to value",
                remedy=f"write `field: value` lines; the fields are {', '.join(cls.model_fields)}",
            )
        return cls.of(_beside(content, path.parent), named)

    def __init__(self, **fields: object) -> None:
        check_size(fields, "recipe")
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise _explain(error, "recipe") from None

    # pydantic validates without it, so that `of` can name its source
    __init__.__dict__["__pydantic_base_init__"] = True

    @classmethod
    def of(cls, content: Fields | Recipe, source: str = "recipe") -> Recipe:
        """Build a recipe from a mapping, with an error that names the field and the nearest right
        one.
        """
        check_size(content, source)
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise _explain(error, source) from None

    def save(self, path: str | Path, *, portable: bool = False) -> None:
        """Write the recipe as YAML, fields in their declared order, atomically; `portable`: without
        a backend and 4 bits that nobody asked for, on which another machine decides.
        """
        left = {"backend", "load_in_4bit"} - self.policy.model_fields_set if portable else set()
        content = self.model_dump(mode="json", exclude={"policy": left})
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        with replace_file(path) as beside:
            beside.write_text(text, encoding="utf-8")


def _paths(content: Fields) -> Iterator[tuple[Fields, str, str]]:
    # (part, key, value) of each task file, policy and adapter that a recipe's content names
    policy, stages = content.get("policy"), content.get("stages")
    places: list[tuple[Any, str]] = [(content, "task"), (content, "policy")]
    places += [(policy, "name"), (policy, "adapter")]
    places += [(stage, "task") for stage in (stages if isinstance(stages, list) else ())]
    for part, key in places:
        name = part.get(key) if isinstance(part, dict) else None
        if not isinstance(name, str) or name in NAMED_POLICIES:
            continue
        if key != "task" or name[-3:] == ".py":
            yield part, key, name


def _beside(content: Fields, folder: Path) -> Fields:
    # Paths start from the recipe's folder, and are then looked for in the current folder and the
    # workspace. A run's folder holds copies, which are not what its recipe names.
    for part, key, name in () if (folder / "manifest.json").is_file() else _paths(content):
        own = (folder / name).resolve()
        with contextlib.suppress(OSError, WorkbenchError):  # it is no path
            if own.exists() and own != find(name).resolve():
                part[key] = str(own)
    return content


def looked_for_elsewhere(recipe: Recipe, folder: Path) -> list[str]:
    """A line for each path of a recipe in `folder` that is not there, but where `find` looks."""
    names = dict.fromkeys(name for _, _, name in _paths(recipe.model_dump()))
    return [
        f"{name} is not beside the recipe: {find(name)} is taken"
        for name in names
        if not (folder / name).exists() and find(name).exists()
    ]


_PARTS: dict[Any, type[BaseModel]] = {
    "policy": PolicyPart, "lora": LoraPart, "rewards": RewardsPart,
    "adaptive_weights": AdaptivePart, "stages": StagePart,
    "warm_start": WarmStartPart,
}  # fmt: skip


def _explain(error: ValidationError, source: str) -> RecipeError:
    first = error.errors()[0]
    kind, given, place = first["type"], first["input"], first["loc"]
    where = ".".join(map(str, place)) or "content"
    rule, remedy = first["msg"], f"correct {where}"
    if kind == "model_type" and not place:
        rule = "a recipe is a Recipe, or a mapping of field to value"
        remedy = "wb.Recipe(...), or wb.Recipe.load(file)"
    elif kind in ("greater_than_equal", "greater_than") and given == 0:
        if where in Recipe.model_fields and Recipe.model_fields[where].default is None:
            remedy = f"leave {where} out, which turns it off"
    elif kind == "literal_error" and isinstance(given, str):
        remedy = nearest(given, re.findall(r"'([^']+)'", rule), remedy)
    elif kind == "extra_forbidden":
        part = next((_PARTS[name] for name in reversed(place[:-1]) if name in _PARTS), Recipe)
        fields = f"the fields are {', '.join(part.model_fields)}"
        if part is Recipe:
            fields += "; settings of trl.GRPOConfig go under `grpo:`"
        rule = "a recipe holds known fields only"
        remedy = nearest(str(place[-1]), part.model_fields, fields)
    value = setting(where, given)
    if len(value) > MOST_SHOWN:
        value = f"{value[:MOST_SHOWN]}…"
    return RecipeError(f"{source}: {value}", rule=rule, remedy=remedy)
