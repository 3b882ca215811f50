"""The recipe: everything that a run was asked to do, as one small YAML file."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from workbench.run.errors import RecipeError

_EXPONENT = re.compile(r"[+-]?\d+[eE][+-]?\d+")
SEVEN_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PolicyPart(_Part):
    """Which model to load, and how."""

    name: str = Field("tiny", description='"tiny", a hub name, or a local folder')
    load_in_4bit: bool = True
    max_seq_length: int = Field(256, ge=16, description="tokens of prompt + completion")
    dtype: Literal["float16", "bfloat16", "float32"] | None = Field(None, description="None: chosen for the device")


class LoraPart(_Part):
    """The adapter that is trained."""

    r: int = Field(16, ge=1)
    lora_alpha: int = Field(16, ge=1)
    lora_dropout: float = Field(0.0, ge=0, lt=1)
    target_modules: list[str] = list(SEVEN_PROJECTIONS)


class RewardsPart(_Part):
    """What a reward function that fails does to the run."""

    deadline_s: float | None = Field(
        60.0, gt=0, description="for one function and one batch of completions; None: it may take as long as it likes"
    )
    on_error: Literal["stop", "skip"] = Field(
        "stop",
        description="stop: save a checkpoint and end; skip: that completion gets no score from this function, and is counted",
    )


class Recipe(_Part):
    """Everything asked for. `grpo` takes any field of the installed `trl.GRPOConfig` under its own name."""

    run_name: str = "run"
    task: str = Field("arithmetic", description="an embedded task's name, or the path of a task file")
    policy: PolicyPart = PolicyPart()
    lora: LoraPart = LoraPart()
    grpo: dict[str, Any] = Field(default_factory=dict)
    rewards: RewardsPart = RewardsPart()
    reward_weights: dict[str, float] = Field(
        default_factory=dict, description="by reward function; others keep the task's"
    )
    max_prompt_length: int | None = Field(None, ge=1, description="tokens; longer prompts are left out and counted")
    seed: int = Field(0, ge=0)

    @field_validator("grpo")
    @classmethod
    def _numbers(cls, grpo: dict[str, Any]) -> dict[str, Any]:
        # YAML 1.1 reads 1e-5 as text, because it has no dot; everyone who writes it means the number.
        return {
            key: float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value
            for key, value in grpo.items()
        }

    @classmethod
    def load(cls, path: str | Path) -> Recipe:
        """Read a recipe file.

        Raises:
            RecipeError: if the file is missing, is not YAML, or has an unknown or wrongly typed field.
        """
        path = Path(path)
        if not path.is_file():
            raise RecipeError(
                f"{path}: no such file",
                rule="a recipe is one YAML file",
                remedy="give the path of a recipe; `workbench demo` leaves one in runs/demo/recipe.yaml",
            )
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise RecipeError(f"{path}: {error}", rule="a recipe is valid YAML", remedy="correct that line") from error
        if not isinstance(content, dict):
            raise RecipeError(
                f"{path}: " + ("empty" if content is None else f"holds a {type(content).__name__}"),
                rule="a recipe is a mapping of field to value",
                remedy=f"write `field: value` lines; the fields are {', '.join(cls.model_fields)}",
            )
        return cls.of(content, source=str(path))

    @classmethod
    def of(cls, content: dict[str, Any], source: str = "recipe") -> Recipe:
        """Build a recipe from a mapping, with an error that names the field and the nearest right one."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise _explain(error, source) from None

    def save(self, path: str | Path) -> None:
        """Write the recipe as YAML, fields in their declared order."""
        text = yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        Path(path).write_text(text, encoding="utf-8")


def _explain(error: ValidationError, source: str) -> RecipeError:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] != "extra_forbidden":
        return RecipeError(f"{source}: {where} = {first['input']!r}", rule=first["msg"], remedy=f"correct {where}")
    part = {"policy": PolicyPart, "lora": LoraPart, "rewards": RewardsPart}.get(
        str(first["loc"][0]) if len(first["loc"]) > 1 else "", Recipe
    )
    word = str(first["loc"][-1])
    near = difflib.get_close_matches(word, part.model_fields, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"the fields are {', '.join(part.model_fields)}"
    if part is Recipe and not near:
        hint += "; settings of trl.GRPOConfig go under `grpo:`"
    return RecipeError(f"{source}: {where} = {first['input']!r}", rule="a recipe holds known fields only", remedy=hint)
