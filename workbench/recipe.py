"""The recipe: everything requested of a run, as one small YAML file."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from workbench.errors import RecipeError, nearest
from workbench.kinds import Fields
from workbench.secret import is_secret, setting
from workbench.workspace import encodable, find, replace_file

_MOST_CHARACTERS, _MOST_VALUES, _MOST_LEVELS, _MOST_SHOWN = 2**20, 20_000, 40, 200
_EXPONENT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+")
# What TRL says itself where it renders a prompt; a second word on it would end the run.
_TRLS_OWN = {
    "conversation", "messages", "tools", "documents", "chat_template", "add_generation_prompt",
    "continue_final_message",
    "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs", "self",
}  # fmt: skip
# Parts that recipes had: a run may be recorded with one. What each said where it did nothing.
REMOVED: Fields = {"rescue": {"exclude_zero_variance": False, "curriculum": False, "oversample": 1}}
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
    _check_size(value, said)
    if not (
        value is None
        or (
            isinstance(value, dict)
            and all(isinstance(key, str) and key.isidentifier() for key in value)
        )
    ):
        rule, remedy = (
            "a chat template takes arguments by name",
            'write a mapping, such as {"enable_thinking": false}',
        )
        raise RecipeError(f"{said} = {repr(value)[:_MOST_SHOWN]}", rule=rule, remedy=remedy)
    if own := sorted(_TRLS_OWN.intersection(value or {})):
        raise RecipeError(
            f"{said} = {value!r}",
            rule=f"TRL passes {own[0]!r} to the template itself",
            remedy="leave it out",
        )
    if secret := next((key for key, own in (value or {}).items() if is_secret(key, own)), None):
        rule = (
            "a chat template's arguments appear in every prompt, in the exported template and in"
            " its passport"
        )
        raise RecipeError(
            f"{said}: {secret} holds a key or a password", rule=rule, remedy="leave it out"
        )
    return dict(value or {})


def read_yaml(text: str, source: str) -> Any:
    """What a YAML text holds, read in bounded time and memory; RecipeError if it is not YAML, or
    too large.
    """
    if len(text) > _MOST_CHARACTERS:
        # of a file only its beginning was read
        value, rule = f"{source}: over 1 MB", "a recipe is at most 1 MB of YAML"
        raise RecipeError(value, rule=rule, remedy="rows belong in the task's files")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # without C it takes a minute
    try:
        # The loader calls itself, and in C nothing stops it.
        content = (
            yaml.load(text, loader) if (small := _is_small(yaml.parse(text, loader))) else None
        )
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(
            f"{source}: {error}", rule="a recipe is valid YAML", remedy="correct that line"
        ) from error
    if not small:
        raise _too_large(source)
    return content


def _is_small(events: Iterator[Any]) -> bool:
    """Whether a text has few values, levels and characters once its aliases are written out."""
    values = characters = 0
    # the anchor of each, and what came before it
    open_parts: list[tuple[str | None, int, int]] = []
    sizes: dict[str | None, tuple[int, int]] = {}  # of what has an anchor
    for event in events:
        if getattr(event, "tag", None) not in (None, "!", "tag:yaml.org,2002:str"):
            # The loader trips over `!!int x`.
            raise ValueError(
                f"line {event.start_mark.line + 1}: the tag {event.tag}, and a recipe has none"
            )
        before = values, characters
        if isinstance(event, yaml.AliasEvent):
            more_values, more_characters = sizes.get(event.anchor, (1, 0))
            values, characters = values + more_values, characters + more_characters
        elif isinstance(event, yaml.ScalarEvent):
            values, characters = values + 1, characters + len(event.value)
            sizes[event.anchor] = 1, len(event.value)
        elif isinstance(event, yaml.CollectionStartEvent):
            values += 1
            open_parts.append((event.anchor, *before))
            sizes[event.anchor] = _MOST_VALUES + 1, 0  # an alias within would have no end
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, values_before, characters_before = open_parts.pop()
            sizes[anchor] = values - values_before, characters - characters_before
        if values > _MOST_VALUES or characters > _MOST_CHARACTERS or len(open_parts) > _MOST_LEVELS:
            return False
    return True


def _too_large(source: str) -> RecipeError:
    value = f"{source}: over {_MOST_VALUES:,} values, {_MOST_LEVELS} levels, or 1 MB of text"
    rule = "a recipe is small, even with its aliases (*name) written out"
    return RecipeError(
        value, rule=rule, remedy="rows belong in the task's files; write out what an alias repeats"
    )


def _check_size(content: object, source: str) -> None:
    # An alias in YAML repeats what it stands for, and may stand in itself.
    level, values = [content], 0
    for _ in range(_MOST_LEVELS):
        items = (
            item
            for each in level
            if isinstance(each, (dict, list, tuple))
            for item in (*each, *_values(each))
        )
        if huge := next(
            (each for each in level if isinstance(each, int) and each.bit_length() > 63), None
        ):
            value, rule = (
                f"{source}: a number of {huge.bit_length()} bits",
                "a number in a recipe has at most 63 bits",
            )
            raise RecipeError(value, rule=rule, remedy="write a smaller one")
        if half := next(
            (each for each in level if isinstance(each, str) and encodable(each) != each), None
        ):
            value, rule = (
                f"{source}: {half[:_MOST_SHOWN]!r}",
                "a recipe is text in UTF-8, which holds no lone surrogate",
            )
            raise RecipeError(value, rule=rule, remedy="leave it out")
        level = list(itertools.islice(items, _MOST_VALUES))
        values += len(level)
        if not level or values >= _MOST_VALUES:
            break
    if level:
        raise _too_large(source)


def _values(part: object) -> Any:
    return part.values() if isinstance(part, dict) else ()


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class PolicyPart(_Part):
    """Which model to load, and how."""

    name: str = "tiny"  # or a hub name, or a local folder
    # folder of a trained LoRA adapter of this model to continue from; None: a new one
    adapter: str | None = None
    # transformers: plain transformers + PEFT, without Unsloth
    backend: Literal["unsloth", "transformers"] = "unsloth"
    load_in_4bit: bool = True
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
    """What a failing reward function does to the run."""

    # For one function and one batch of completions; None: it may take as long as it likes.
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
    # for each of them: completions sampled to find them all, at most
    tries: int = Field(1000, ge=1)
    epochs: int = Field(2, ge=1)
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
            "a number of right completions, or a mapping of samples, tries, epochs, learning_rate,"
            " source"
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
    adaptive_weights: dict[str, AdaptivePart] = {}  # by reward function
    stages: list[StagePart] = Field([], max_length=100)  # none: one stage of grpo.max_steps steps
    # before the first stage
    warm_start: Annotated[WarmStartPart | None, BeforeValidator(_counted)] = None
    # auto: each prompt is read once for all its completions, where that is covered; trl: TRL's own
    # path.
    generation: Literal["auto", "trl"] = "auto"
    # tokens; longer prompts are left out and counted
    max_prompt_length: int | None = Field(None, ge=1)
    # Steps between two measurements of held-out prompts while it trains; base and the end are
    # measured, too. None: nothing is.
    eval_every: int | None = Field(None, ge=1, strict=True)
    # so many of them, the same ones each time, one completion each
    eval_prompts: int = Field(32, ge=2)
    # None: that of training; 0: the likeliest token every time
    eval_temperature: float | None = Field(None, ge=0)
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
    def chat_template_kwargs(self) -> Fields:
        """What every prompt is rendered with, in training and everywhere else:
        `grpo.chat_template_kwargs`.
        """
        return template_kwargs(self.grpo.get("chat_template_kwargs"))

    @classmethod
    def load(cls, path: str | Path, *, recorded: bool = False) -> Recipe:
        """Read a recipe file; `recorded` as for `of`.

        Raises RecipeError if it is missing, not YAML, or has an unknown or wrongly typed field.
        """
        path = Path(path)
        if not path.is_file():
            remedy = (
                "give the path of a recipe; `workbench demo` leaves one in runs/demo/recipe.yaml"
            )
            raise RecipeError(
                f"{path}: no such file", rule="a recipe is one YAML file", remedy=remedy
            )
        with path.open("rb") as file:
            text = file.read(4 * _MOST_CHARACTERS)
        try:
            content = read_yaml(text.decode("utf-8"), str(path))
        except UnicodeDecodeError as error:
            raise RecipeError(
                f"{path}: {error}", rule="a recipe is valid YAML", remedy="correct that line"
            ) from error
        if not isinstance(content, dict):
            value = f"{path}: " + (
                "empty" if content is None else f"holds a {type(content).__name__}"
            )
            remedy = f"write `field: value` lines; the fields are {', '.join(cls.model_fields)}"
            raise RecipeError(value, rule="a recipe is a mapping of field to value", remedy=remedy)
        return cls.of(_beside(content, path.parent), str(path), recorded=recorded)

    def __init__(self, **fields: object) -> None:
        _check_size(fields, "recipe")
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise _explain(error, "recipe") from None

    # pydantic validates without it, so that `of` can name its source
    __init__.__dict__["__pydantic_base_init__"] = True

    @classmethod
    def of(
        cls, content: Fields | Recipe, source: str = "recipe", *, recorded: bool = False
    ) -> Recipe:
        """Build a recipe from a mapping, with an error that names the field and the nearest right
        one.

        `recorded`: it belongs to a run, so it stays readable when recipes lose a part; that part is
        left out.
        """
        _check_size(content, source)
        if recorded and isinstance(content, dict):
            content = {name: value for name, value in content.items() if name not in REMOVED}
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise _explain(error, source) from None

    def save(self, path: str | Path) -> None:
        """Write the recipe as YAML, fields in their declared order, atomically."""
        text = yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        with replace_file(path) as beside:
            beside.write_text(text, encoding="utf-8")


def _beside(content: Fields, folder: Path) -> Fields:
    # A task file is looked for in the current folder and the workspace first; one that lies beside
    # the recipe is found, too.
    def own(part: Any) -> Any:
        name = part.get("task") if isinstance(part, dict) else None
        beside = (
            isinstance(name, str)
            and name.endswith(".py")
            and not find(name).is_file()
            and (folder / name).is_file()
        )
        return {**part, "task": str((folder / name).resolve())} if beside else part

    stages = content.get("stages")
    return own(content) | ({"stages": list(map(own, stages))} if isinstance(stages, list) else {})


_PARTS: dict[Any, type[BaseModel]] = {
    "policy": PolicyPart, "lora": LoraPart, "rewards": RewardsPart,
    "adaptive_weights": AdaptivePart, "stages": StagePart,
    "warm_start": WarmStartPart,
}  # fmt: skip


def _explain(error: ValidationError, source: str) -> RecipeError:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or "content"
    rule, remedy = first["msg"], f"correct {where}"
    if first["type"] == "model_type" and not first["loc"]:
        rule, remedy = (
            "a recipe is a Recipe, or a mapping of field to value",
            "wb.Recipe(...), or wb.Recipe.load(file)",
        )
    if (
        first["type"] in ("greater_than_equal", "greater_than")
        and first["input"] == 0
        and where in Recipe.model_fields
    ):
        remedy = (
            f"leave {where} out, which turns it off"
            if Recipe.model_fields[where].default is None
            else remedy
        )
    if first["type"] == "literal_error" and isinstance(first["input"], str):
        remedy = nearest(first["input"], re.findall(r"'([^']+)'", first["msg"]), remedy)
    if first["type"] == "extra_forbidden":
        part = next(
            (_PARTS[place] for place in reversed(first["loc"][:-1]) if place in _PARTS), Recipe
        )
        fields = f"the fields are {', '.join(part.model_fields)}"
        fields += "; settings of trl.GRPOConfig go under `grpo:`" if part is Recipe else ""
        rule, remedy = (
            "a recipe holds known fields only",
            nearest(str(first["loc"][-1]), part.model_fields, fields),
        )
    said = setting(where, first["input"])
    return RecipeError(
        f"{source}: {said[:_MOST_SHOWN]}{'…' * (len(said) > _MOST_SHOWN)}", rule=rule, remedy=remedy
    )
