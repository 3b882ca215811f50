"""A training script (TRL, with Unsloth or plain transformers) read into a recipe. The script is
parsed and never run.

Read are the keywords of GRPOConfig, of the model's loader and of the adapter, where their values
are literals, or names that the script binds once, at its top level, to a literal. Everything else
is left out, with a note that names it. Reward functions and data are code: they belong in a task
file. `settings/names.yaml` holds the calls and keywords that are known.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from typing import NamedTuple

from workbench.base.errors import RecipeError
from workbench.base.extras import default_backend, installed
from workbench.base.kinds import Fields
from workbench.recipe import SEVEN_PROJECTIONS, Recipe
from workbench.training.plan import settings as settings_of
from workbench.training.plan.script_source import PASTE, Call, ScriptSource, syntax_of
from workbench.training.plan.settings.names import (
    ALIASES,
    ELSEWHERE,
    LEFT_OUT,
    MOVED,
    TABLE,
    TURNS,
    as_dtype,
    nearest_setting,
)
from workbench.training.plan.settings.values import lacks

_NOT_READ = "not read: only literals are, and names bound once, at the top level, to one"
_TABLE = TABLE["script"]
_READ = ("config", "trainer", "unsloth", "transformers", "lora", "unsloths_lora", "quantised")
# Keywords of loaders, adapters and BitsAndBytesConfig -> recipe field.
_FIELDS: dict[str, str] = MOVED | _TABLE["fields"]
# Those without a field -> why they are left out.
_WHY = LEFT_OUT | _TABLE["left_out"] | dict.fromkeys(TURNS, _TABLE["turns"])
_NOTHING = (None, [], {}, [None, None])


class Pasted(NamedTuple):
    """What a script asks for."""

    recipe: Recipe
    notes: list[str]  # one line for each thing that is not in the recipe as it stands in the script
    named: bool = True  # policy.name comes from the script
    tasked: bool = True  # so does task


def read_script(
    text: str, source: str = "script", fields: set[str] | None = None, backend: str | None = None
) -> Pasted:
    """Read a training script into a recipe, without running it. What cannot be read is left out,
    with a note.

    A notebook's `!pip` and `%cd`, Markdown fences and `...` among arguments are skipped. `fields`
    are names of the installed GRPOConfig's (None: look them up, which imports the libraries).
    `backend` goes before the script's, and one that is not installed is left out. RecipeError if
    it is not Python, or calls nothing known.
    """
    try:
        tree, notes = syntax_of(text, source)
        reader = _Reader(ScriptSource(tree), notes)
        reader.read()
    except (RecursionError, MemoryError) as error:
        raise RecipeError(
            f"{source}: nested too deeply", rule="a person wrote the script", remedy=PASTE
        ) from error
    if not reader.source.calls(*_READ):
        calls = reader.source.calls("")
        others = [f", line {call.line}: {call.name}" for call in calls if "GRPO" in call.name]
        raise RecipeError(
            "".join([source, *others[:1]]),
            rule="a script is read by its calls of TRL's GRPOConfig and GRPOTrainer, and of a"
            " model's loader",
            remedy=f"{PASTE}; a task file is named in a recipe, as its `task:`",
        )
    if backend is None:
        backend = reader.usable_backend()
    if fields is None:
        from workbench.training.policy import trainer_classes

        # Only now: the backend is known, and importing Unsloth cannot be undone.
        fields = settings_of.field_names(trainer_classes(backend or default_backend())[0])
    reader.leave_out_unknown(fields)
    recipe, renamed = settings_of.with_new_names(Recipe.of(reader.content, source), fields)
    notes = [*reader.notes, *renamed, *reader.fill_in(recipe)]
    return Pasted(recipe, notes, "policy.name" in reader.stated, "task" in reader.content)


class _Reader:
    """What a script's calls ask for goes into `content`, what cannot be read into `notes`."""

    def __init__(self, source: ScriptSource, notes: list[str]) -> None:
        self.source, self.notes = source, notes
        self.content: Fields = {"policy": {}, "lora": {}, "grpo": {}}
        self.stated: dict[str, tuple[object, int]] = {}  # recipe field -> (value, line)
        self.trainers = source.calls("trainer")
        self.last = self.trainers[-1].line if self.trainers else sys.maxsize
        # names that stand for the result of a call that is read
        self.results = {name for call in source.calls(*_READ) for name in call.bound_to}

    def read(self) -> None:
        """Read the trainer, its config, its model's loader, and the adapter."""
        adapters = self.source.calls("lora", "unsloths_lora")
        for call in [*self.trainers, *self._used("args", "config")]:
            self._read(call)
        loader = self._used("model", "unsloth", "transformers")
        for call in loader:
            self._put("policy.backend", call.role, call.line)
        for call in [*loader, *self.source.calls("quantised"), *adapters]:
            self._read(call)
        if self.trainers and not adapters:
            text = "no adapter in the script that is read; here one is trained (recipe field lora)"
            self._note(self.trainers[0].line, text)
        for call in [*self.trainers[1:], *self.source.calls("sft")]:
            text = "is left out: a recipe's `stages:` and `warm_start:` train one adapter further"
            self._note(call.line, f"this {call.name} {text}")
        self._choose_backend()
        for node in self.source.set_attributes:
            of = ast.unparse(node.value)
            if of in self.results or of.endswith(".args"):
                text = f"{ast.unparse(node)} = ... is left out: only keywords of calls are read"
                self._note(node.lineno, text)
        self._read_name()
        self._read_task()

    def _used(self, argument: str, *roles: str) -> list[Call]:
        # At most one of these: whose result the trainer gets as this argument; of the loaders,
        # before it trains.
        calls = self.source.calls(*roles)
        arguments = [pair for call in self.trainers for pair in call.arguments]
        given = {ast.unparse(node) for name, node in arguments if name == argument}
        used = [call for call in calls if not given or call.bound_to & given]
        used = [call for call in used if call.line <= self.last]
        if argument == "args" and len(calls) == 1:
            used = calls
        for call in calls:
            if call not in used[:1]:
                text = "is left out: the script does not show that the run uses it"
                self._note(call.line, f"this {call.name} {text}")
        return used[:1]

    def _read(self, call: Call) -> None:
        config = call.role == "config"
        for name, value in self._settings(call):
            where = f"grpo.{name}" if config else _FIELDS.get(name)
            new = value if config else _as_recipe(name, value)
            if isinstance(value, ast.AST) or new is ... or not where:
                self._leave_out(call.line, name, value)
            elif new is None and not config:
                continue  # it asks for nothing
            elif self._put(where, new, call.line, name) and new != value:
                self._note(call.line, f"{name} = {value!r} becomes {where} = {new!r}")
            if name == "model" and isinstance(value, str):
                self._put("policy.backend", "transformers", call.line)

    def _settings(self, call: Call) -> list[tuple[str, object]]:
        # (keyword, value or expression), without what is read where it is made
        pairs: list[tuple[str, object]] = []
        for name, node in call.arguments:
            value = self.source.value(node)
            if name == "**" and isinstance(value, dict):
                pairs += value.items()
            elif ast.unparse(node) not in self.results:
                pairs.append((name, value))
            elif name == "quantization_config":
                self._note(call.line, f"{name} = {ast.unparse(node)} is read where it is made")
        return pairs

    def _put(self, where: str, value: object, line: int, name: str = "") -> bool:
        # The first value stays; whether it is this one.
        part, _, leaf = where.rpartition(".")
        today = MOVED.get(leaf, f"grpo.{ALIASES.get(leaf, leaf)}") if part == "grpo" else where
        first, at = self.stated.setdefault(today, (value, line))
        if first != value:
            text = f"{name or where} = {value!r} is left out: {today} is {first!r} in line {at}"
            self._note(line, text)
            return False
        (self.content[part] if part else self.content).setdefault(leaf, value)
        return True

    def _choose_backend(self) -> None:
        libraries = {name.partition(".")[0] for name in self.source.modules.values()}
        plain = libraries & {"trl", "transformers"} and "unsloth" not in libraries
        if plain and "policy.backend" not in self.stated:
            self._put("policy.backend", "transformers", 1)
        policy = self.content["policy"]
        if policy.get("backend") == "transformers":
            bits = 4 if policy.setdefault("load_in_4bit", False) else 16
            self.notes.append(
                f"Unsloth loads no model here: policy.backend = 'transformers', {bits}-bit weights"
            )

    def _read_name(self) -> None:
        # A name in a loader of which nothing else is read is better than another model's.
        for call in self.source.calls("sees"):
            self._note(call.line, f"{call.name} is left out: only loaders of text models are read")
        named: dict[str, Call] = {}
        for call in self.source.calls("unsloth", "transformers", "sees", "beside"):
            other = re.search(_TABLE["other_models"], " ".join(call.bound_to))
            for name, node in call.arguments if call.line <= self.last and not other else ():
                value = self.source.value(node)
                if _FIELDS.get(name) != "policy.name" or not isinstance(value, str):
                    continue
                if value[:1] not in "./~":  # a folder
                    named.setdefault(value, call)
        if "policy.name" not in self.stated and named:
            (value, call), *others = named.items()
            self._put("policy.name", value, call.line)
            also = f"; the script also names {', '.join(dict(others))}" if others else ""
            self._note(call.line, f"policy.name = {value!r}, from {call.name}{also}")
        elif "policy.name" not in self.stated:
            text = "no model name could be read in the script: policy.name stays"
            self.notes.append(f"{text} {Recipe().policy.name!r}")

    def _read_task(self) -> None:
        # The task, where the dataset is one that ships; a note on reward functions and data.
        loads = self.source.calls("data")
        paths = [self.source.value(node) for call in loads for _, node in call.arguments[:1]]
        if "gsm8k" in paths or "openai/gsm8k" in paths:
            self.content["task"] = "gsm8k"
            self.notes.append("dataset gsm8k: task = 'gsm8k', with its own prompts and rewards")
        elif self.trainers or loads:
            names = ", ".join(repr(path) for path in paths if isinstance(path, str))
            self.notes.append(
                f"reward functions and data{names and f' ({names})'} are left out: they are code;"
                " put them into a task file (notebook 02 writes one), and name it in `task:`, now"
                f" {Recipe().task!r}"
            )

    def usable_backend(self) -> str | None:
        """The script's backend; None, with a note, where it is not installed."""
        asked = self.content["policy"].get("backend")
        if asked != "unsloth" or installed("unsloth"):
            return asked
        del self.content["policy"]["backend"]
        text = "policy.backend = 'unsloth' is left out: Unsloth is not installed here"
        self._note(self.stated["policy.backend"][1], text)
        return None

    def leave_out_unknown(self, fields: set[str]) -> None:
        """Leave out settings that no field or old name stands for, or that lack their library."""
        for name, value in [*self.content["grpo"].items()]:
            known = name in {*fields, *ALIASES, *MOVED, *LEFT_OUT}
            if (library := lacks(ALIASES.get(name, name))) and value:
                text = (
                    f"{name} is left out: {library} is not installed here; where it is, put it back"
                )
            elif name in ELSEWHERE:
                text = f"{name} = {value!r} is left out: {ELSEWHERE[name]}"
            elif not known:
                near = nearest_setting(name, fields)
                text = f"{name} = {value!r} is left out: the installed GRPOConfig has no field of"
                text += f" that name; the nearest is {near!r}" if near else " that name"
            else:
                continue
            self._note(self.stated.get(f"grpo.{ALIASES.get(name, name)}", (None, 0))[1], text)
            del self.content["grpo"][name]

    def fill_in(self, recipe: Recipe) -> list[str]:
        """Give the recipe a context that fits its lengths; a line for that, and for each default
        that matters.
        """
        ours, notes = settings_of.DEFAULTS, []
        configured = bool(self.source.calls("config"))
        if configured and "max_completion_length" not in recipe.grpo:
            recipe.grpo["max_completion_length"] = 512
            notes.append(
                "max_completion_length is not in the script: the recipe asks for 512, TRL's default"
            )
        completion = recipe.grpo.get("max_completion_length", ours["max_completion_length"])
        if "policy.max_seq_length" not in self.stated and isinstance(completion, int):
            prompt = recipe.max_prompt_length or 512
            whole = prompt + completion
            recipe.policy = recipe.policy.model_copy(update={"max_seq_length": whole})
            notes.append(f"policy.max_seq_length = {whole}: {prompt} for the prompt + {completion}")
        known = {*recipe.grpo, "max_steps" if "num_train_epochs" in recipe.grpo else ""}
        for name, trls in _TABLE["trls"].items() if configured else ():
            if name not in known:
                text = f"{name} is not taken from the script: {ours[name]}, the workbench's default"
                notes.append(f"{text} (TRL: {trls})")
        return notes

    def _leave_out(self, line: int, name: str, value: object) -> None:
        if value in _NOTHING or _TABLE["as_it_is"].get(name, ...) == value:
            if name == "task_type":
                self._note(line, f"{name} = {value!r} is what a run trains anyway")
            return
        if re.fullmatch(_TABLE["code"], name):
            return
        unknown = isinstance(value, ast.AST)
        text = textwrap.shorten(ast.unparse(value) if unknown else repr(value), 60)
        text = "..." if name.endswith("token") else text  # a secret
        why = _WHY.get(name, _NOT_READ if unknown else "a recipe has no field for it")
        self._note(line, f"{name}{'' if name == '**' else ' = '}{text} is left out: {why}")

    def _note(self, line: int, text: str) -> None:
        self.notes.append(f"line {line}: {text}")


def _as_recipe(name: str, value: object) -> object:
    # A library's value as the recipe's field has it; None: it asks for nothing; `...`: there is no
    # such value.
    if name == "load_in_16bit":
        return False if value else None
    if name == "use_gradient_checkpointing":
        return bool(value)
    if name.endswith("dtype"):
        return as_dtype(value)
    if name == "target_modules" and isinstance(value, str):
        return list(SEVEN_PROJECTIONS) if value == "all-linear" else ...
    return value
