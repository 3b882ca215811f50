"""A training script (TRL, with Unsloth or plain transformers) read into a recipe. The script is
parsed and never run.

Read are the keywords of GRPOConfig, of the model's loader and of the adapter, where their values
are literals, or names that the script binds once, at its top level, to a literal. Everything else
is left out, with a note that names it. Reward functions and data are code: they belong in a task
file.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import textwrap
import warnings
from collections import Counter
from typing import NamedTuple

from workbench.errors import RecipeError
from workbench.extras import default_backend, installed
from workbench.kinds import Fields
from workbench.recipe import SEVEN_PROJECTIONS, Recipe
from workbench.training import settings as settings_of
from workbench.training.settings.names import (
    ALIASES,
    ELSEWHERE,
    LEFT_OUT,
    MOVED,
    TABLE,
    TURNS,
    as_dtype,
    nearest_setting,
)
from workbench.training.settings.values import lacks

_LONGEST, _LONGEST_LINE = 200_000, 400  # characters of a script; of a line with newer syntax
_DOTS = r",\s*\.\.\.\s*(?=[,)])|(?<=\()\s*\.\.\.\s*,"  # `...` among arguments
# Syntax of a newer Python, which holds no setting -> what an older one reads in its place: quotes
# inside those of an f-string (3.12), t-strings (3.14), type parameters, aliases, `except A, B:`.
_NEWER = {
    r"""\b[rR]?[fFtT][rR]?(["'])(?:(?!\1)[^{]|\{\{)*\{[^}\n]*\1.*\1""": 'f""',
    r"""\b[rR]?[tT][rR]?(["'])(?:(?!\1).)*\1""": 'f""',
    r"^(\s*(?:async def|def|class) \w+)\[.*?\](?=[(:])": r"\1",
    r"^(\s*)type \w+.*=.*$": r"\1pass",
    r"^(\s*except) [\w.]+(?:, ?[\w.]+)+(?=:)": r"\1 Exception",
}
_PASTE = "paste the part that builds the config and loads the model"
_NOT_READ = "not read: only literals are, and names bound once, at the top level, to one"

# The calls that are read, and the names of their positional arguments.
_LIBRARIES = r"(?:(?:trl|peft|unsloth|transformers|datasets)\.(?:[a-z_0-9]+\.)*)?"
_CONFIG, _TRAINER, _LORA = "GRPOConfig", "GRPOTrainer", "LoraConfig"
_UNSLOTH = r"Fast(?:Language|Text)?Model\.from_pretrained"
_TRANSFORMERS = r"\w+ForCausalLM\.from_pretrained"
_SEES = r"FastVisionModel\.from_pretrained|\w*(?:ImageText|Conditional|Vision)\w*\.from_pretrained"
_BESIDE = r"\w*(?:Tokenizer|Processor)\w*\.from_pretrained"
# of models beside the policy
_OTHERS = re.compile("(?i)(?<![a-z])(judge|reward|teacher|ref|draft|embed)")
_UNSLOTHS_LORA = r"Fast\w*Model\.get_peft_model"
_QUANTISED = "BitsAndBytesConfig"
_READ = f"{_QUANTISED}|{_CONFIG}|{_TRAINER}|{_UNSLOTH}|{_TRANSFORMERS}|{_LORA}|{_UNSLOTHS_LORA}"
_ARGUMENTS = {
    _CONFIG: ("output_dir",),
    _TRAINER: ("model", "reward_funcs", "args", "train_dataset"),
    _UNSLOTH: ("model_name", "max_seq_length", "dtype", "load_in_4bit"),
    f"{_TRANSFORMERS}|{_SEES}|{_BESIDE}": ("model_name",),
    _LORA: ("r",),
    _UNSLOTHS_LORA: ("model", "r"),
    "load_dataset": ("path",),
}
_TABLE = TABLE["script"]
# Keywords of loaders, adapters and BitsAndBytesConfig -> recipe field.
_FIELDS: dict[str, str] = MOVED | _TABLE["fields"]
# Those without a field -> why they are left out.
_WHY = LEFT_OUT | _TABLE["left_out"] | dict.fromkeys(TURNS, _TABLE["turns"])
_AS_IT_IS: Fields = _TABLE["as_it_is"]
_NOTHING = (None, [], {}, [None, None])
_CODE = re.compile(r"reward_func\w*|(train_)?dataset|processing_class|tokenizer")
_TRLS: Fields = _TABLE["trls"]


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
        reader = _Reader(*_parsed(text, source))
        reader.read()
    except (RecursionError, MemoryError) as error:
        raise RecipeError(
            f"{source}: nested too deeply", rule="a person wrote the script", remedy=_PASTE
        ) from error
    if backend is None and reader.content["policy"].get("backend") == "unsloth":
        reader.leave_out_unsloth()
    backend = backend or reader.content["policy"].get("backend")
    if not reader.calls(_READ):
        others = [f", line {call.line}: {call.name}" for call in reader.all if "GRPO" in call.name]
        raise RecipeError(
            "".join([source, *others[:1]]),
            rule="a script is read by its calls of TRL's GRPOConfig and GRPOTrainer, and of a"
            " model's loader",
            remedy=f"{_PASTE}; a task file is named in a recipe, as its `task:`",
        )
    if fields is None:
        from workbench.training.policy import trainer_classes

        # Only now: the backend is known, and importing Unsloth cannot be undone.
        fields = settings_of.field_names(trainer_classes(backend or default_backend())[0])
    reader.leave_out_unknown(fields)
    recipe, renamed = settings_of.with_new_names(Recipe.of(reader.content, source), fields)
    notes = [*reader.notes, *renamed, *reader.fill_in(recipe)]
    return Pasted(recipe, notes, "policy.name" in reader.stated, "task" in reader.content)


def _parsed(text: str, source: str) -> tuple[ast.Module, list[str]]:
    # (the script, lines on syntax that this Python lacks).
    # A notebook's own lines become `pass`, for the `if` that one may stand in; continued lines go
    # with them.
    plain = re.sub(
        r"(?m)^([ \t]*)[!%](?:.*\\\n)*.*$", r"\1pass", re.sub(r"(?m)^[ \t]*```.*$", "", text)
    )
    plain = textwrap.dedent(plain)
    at, why = "", f"{len(text):,} characters; at most {_LONGEST:,} are read"
    lines = plain.split("\n")
    older = [*map(_older, lines)]
    newer = [
        f"line {number} is read without syntax of a newer Python than this one"
        for number, (line, now) in enumerate(zip(lines, older, strict=True), 1)
        if line != now
    ]
    attempts = [(each, []) for each in (text, plain, re.sub(_DOTS, "", plain))]
    attempts += [(each, newer) for each in ("\n".join(older), re.sub(_DOTS, "", "\n".join(older)))]
    for attempt, notes in attempts if len(text) <= _LONGEST else ():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the script's style
                return ast.parse(attempt), notes
        except SyntaxError as error:
            if notes is not newer:
                at, why = f", line {error.lineno}: {(error.text or '').strip()}", error.msg
        except ValueError as error:
            why = str(error)
    rule = f"a script is Python {sys.version_info[0]}.{sys.version_info[1]} ({why})"
    raise RecipeError(source + at, rule=rule, remedy=_PASTE)


def _older(line: str) -> str:
    for kind, instead in _NEWER.items() if len(line) < _LONGEST_LINE else ():
        line = re.sub(kind, instead, line)
    return line


class Call(NamedTuple):
    """One call in the source."""

    name: str  # with the module that it is imported from
    line: int
    arguments: list[tuple[str, ast.expr]]  # by keyword; "**" for what is unpacked
    bound_to: set[str]  # names that its result goes into


class _Reader:
    """One pass over a script: what its calls ask for goes into `content`, what cannot be read into
    `notes`.
    """

    def __init__(self, tree: ast.Module, notes: list[str]) -> None:
        self.content: Fields = {"policy": {}, "lora": {}, "grpo": {}}
        self.notes = notes
        self.stated: dict[str, tuple[object, int]] = {}  # recipe field -> (value, line)
        self.modules: dict[str, str] = {}  # imported name -> its full name
        self.nodes = sorted(ast.walk(tree), key=lambda node: getattr(node, "lineno", 0))
        targets: dict[ast.expr, set[str]] = {}
        star = 0  # `from x import *` may bind any name again
        for node in self.nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                self.modules |= {one.asname or one.name: module + one.name for one in node.names}
                star = node.lineno if node.names[0].name == "*" else star
            elif isinstance(node, ast.Assign):
                parts = [part for one in node.targets for part in getattr(one, "elts", [one])]
                targets[node.value] = {ast.unparse(part) for part in parts}
        bound = Counter(name for node in self.nodes for name in _binds(node))
        self.once = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and node.lineno > star
            for target in node.targets
            if isinstance(target, ast.Name) and bound[target.id] == 1
        }
        self.all = [
            # one that stands among arguments goes by its own text
            self._call(node, targets.get(node) or {ast.unparse(node)})
            for node in self.nodes
            if isinstance(node, ast.Call)
        ]
        # names that stand for the result of a call that is read
        self.results = {name for call in self.calls(_READ) for name in call.bound_to}

    def _call(self, node: ast.Call, bound_to: set[str]) -> Call:
        first, dot, rest = ast.unparse(node.func).partition(".")
        name = self.modules.get(first, first) + dot + rest
        names = next((words for kind, words in _ARGUMENTS.items() if _is(name, kind)), ())
        given = [*zip(names, node.args, strict=False)]
        given += [(word.arg or "**", word.value) for word in node.keywords]
        return Call(name, node.lineno, given, bound_to)

    def calls(self, kind: str) -> list[Call]:
        """The script's calls of something that TRL, PEFT, Unsloth, transformers or datasets has."""
        return [call for call in self.all if _is(call.name, kind)]

    def value(self, node: ast.expr) -> object:
        """The literal that an expression is or stands for; otherwise the expression itself."""
        literal = node
        if isinstance(node, ast.Name):
            literal = self.once.get(node.id, node)
            uses = [one for one in self.nodes if isinstance(one, ast.Name) and one.id == node.id]
            changeable = isinstance(literal, ast.List | ast.Tuple | ast.Dict)
            if changeable and len(uses) > 2:  # beside this one and the binding
                return node
        match literal:
            case ast.Attribute(value=ast.Name(id="torch" | "TaskType"), attr=name):
                return name
        try:
            # by way of JSON: no bytes, sets or complex numbers; lists for tuples
            return json.loads(json.dumps(ast.literal_eval(literal)))
        except (ValueError, TypeError):
            return node

    def read(self) -> None:
        """Read the trainer, its config, its model's loader, and the adapter."""
        trainers, adapters = self.calls(_TRAINER), self.calls(f"{_LORA}|{_UNSLOTHS_LORA}")
        for call in [*trainers, *self._used(_CONFIG, "args")]:
            self._read(call)
        loader = self._used(f"{_UNSLOTH}|{_TRANSFORMERS}", "model")
        for call in loader:
            unsloth = _is(call.name, _UNSLOTH)
            self._put("policy.backend", "unsloth" if unsloth else "transformers", call.line)
        for call in [*loader, *self.calls(_QUANTISED), *adapters]:
            self._read(call)
        if trainers and not adapters:
            text = "no adapter in the script that is read; here one is trained (recipe field lora)"
            self._note(trainers[0].line, text)
        for call in [*trainers[1:], *self.calls("SFTTrainer")]:
            text = "is left out: a recipe's `stages:` and `warm_start:` train one adapter further"
            self._note(call.line, f"this {call.name} {text}")
        libraries = {name.partition(".")[0] for name in self.modules.values()}
        plain = libraries & {"trl", "transformers"} and "unsloth" not in libraries
        if plain and "policy.backend" not in self.stated:
            self._put("policy.backend", "transformers", 1)
        policy = self.content["policy"]
        if policy.get("backend") == "transformers":
            bits = 4 if policy.setdefault("load_in_4bit", False) else 16
            self.notes.append(
                f"Unsloth loads no model here: policy.backend = 'transformers', {bits}-bit weights"
            )
        for node in self.nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                holder = ast.unparse(node.value)
                if holder in self.results or holder.endswith(".args"):
                    text = f"{ast.unparse(node)} = ... is left out: only keywords of calls are read"
                    self._note(node.lineno, text)
        self._read_task(trainers)

    def _used(self, kind: str, argument: str) -> list[Call]:
        # At most one of these: whose result the trainer gets as this argument; of the loaders,
        # before it trains.
        calls, trainers = self.calls(kind), self.calls(_TRAINER)
        given = [node for call in trainers for name, node in call.arguments if name == argument]
        names = {ast.unparse(node) for node in given}
        used = [call for call in calls if not given or call.bound_to & names]
        if trainers:
            used = [call for call in used if call.line <= trainers[-1].line]
        if kind == _CONFIG and len(calls) == 1:
            used = calls
        for call in calls:
            if call not in used[:1]:
                text = "is left out: the script does not show that the run uses it"
                self._note(call.line, f"this {call.name} {text}")
        return used[:1]

    def _read(self, call: Call) -> None:
        pairs: list[tuple[str, object]] = []
        for name, node in call.arguments:
            value = self.value(node)
            if name == "**" and isinstance(value, dict):
                pairs += value.items()
            elif ast.unparse(node) not in self.results:  # else it is read where it is made
                pairs.append((name, value))
            elif name == "quantization_config":
                self._note(call.line, f"{name} = {ast.unparse(node)} is read where it is made")
        config = _is(call.name, _CONFIG)
        for name, value in pairs:
            where = f"grpo.{name}" if config else _FIELDS.get(name)
            new = value if config else _as_recipe(name, value)
            if isinstance(value, ast.AST) or new is ... or not where:
                usual = value in _NOTHING or _AS_IT_IS.get(name, ...) == value
                if name == "task_type" and usual:
                    self._note(call.line, f"{name} = {value!r} is what a run trains anyway")
                if not usual and not _CODE.fullmatch(name):
                    self._leave_out(call.line, name, value)
            elif new is None and not config:
                continue  # it asks for nothing
            elif self._put(where, new, call.line, name) and new != value:
                self._note(call.line, f"{name} = {value!r} becomes {where} = {new!r}")
            if name == "model" and isinstance(value, str):
                self._put("policy.backend", "transformers", call.line)

    def _put(self, where: str, value: object, line: int, name: str = "") -> bool:
        # The first value stays; whether it is this one.
        part, _, leaf = where.rpartition(".")
        today = MOVED.get(leaf, f"grpo.{ALIASES.get(leaf, leaf)}") if part == "grpo" else where
        if today not in self.stated:
            self.stated[today] = value, line
            (self.content[part] if part else self.content)[leaf] = value
        first, at = self.stated[today]
        if first != value:
            text = f"{name or where} = {value!r} is left out: {today} is {first!r} in line {at}"
            self._note(line, text)
        return first == value

    def _read_task(self, trainers: list[Call]) -> None:
        # The task, where the dataset is one that ships; a note on reward functions and data.
        for call in self.calls(_SEES):
            self._note(call.line, f"{call.name} is left out: only loaders of text models are read")
        self._name_from_others(trainers[-1].line if trainers else sys.maxsize)
        if "policy.name" not in self.stated:
            text = "no model name could be read in the script: policy.name stays"
            self.notes.append(f"{text} {Recipe().policy.name!r}")
        loads = self.calls("load_dataset")
        paths = [self.value(node) for call in loads for _, node in call.arguments[:1]]
        if "gsm8k" in paths or "openai/gsm8k" in paths:
            self.content["task"] = "gsm8k"
            self.notes.append("dataset gsm8k: task = 'gsm8k', with its own prompts and rewards")
        elif trainers or loads:
            names = ", ".join(repr(path) for path in paths if isinstance(path, str))
            self.notes.append(
                f"reward functions and data{names and f' ({names})'} are left out: they are code;"
                " put them into a task file (notebook 02 writes one), and name it in `task:`, now"
                f" {Recipe().task!r}"
            )

    def _name_from_others(self, last: int) -> None:
        # A name in a loader of which nothing else is read is better than another model's.
        named: dict[str, Call] = {}
        for call in [*self.calls(f"{_UNSLOTH}|{_TRANSFORMERS}|{_SEES}"), *self.calls(_BESIDE)]:
            trained = call.line <= last and not _OTHERS.search(" ".join(call.bound_to))
            for name, node in call.arguments if trained else ():
                value = self.value(node)
                hub = isinstance(value, str) and value[:1] not in "./~"
                if hub and _FIELDS.get(name) == "policy.name":
                    named.setdefault(value, call)
        for value, call in [*named.items()][: "policy.name" not in self.stated]:
            self._put("policy.name", value, call.line)
            others = ", ".join(other for other in named if other != value)
            also = f"; the script also names {others}" if others else ""
            self._note(call.line, f"policy.name = {value!r}, from {call.name}{also}")

    def leave_out_unsloth(self) -> None:
        """Leave the script's backend to the machine, where it is not installed."""
        if not installed("unsloth"):
            del self.content["policy"]["backend"]
            text = "policy.backend = 'unsloth' is left out: Unsloth is not installed here"
            self._note(self.stated["policy.backend"][1], text)

    def leave_out_unknown(self, fields: set[str]) -> None:
        """Leave out settings that no field or old name stands for, or that lack their library."""
        for name, value in [*self.content["grpo"].items()]:
            line = self.stated.get(f"grpo.{ALIASES.get(name, name)}", (None, 0))[1]
            if (library := lacks(ALIASES.get(name, name))) and value:
                why = f"{library} is not installed here; where it is, put it back"
                self._note(line, f"{name} is left out: {why}")
            elif name in ELSEWHERE or name not in {*fields, *ALIASES, *MOVED, *LEFT_OUT}:
                near = nearest_setting(name, fields)
                why = "the installed GRPOConfig has no field of that name"
                why += f"; the nearest is {near!r}" if near else ""
                why = ELSEWHERE.get(name, why)
                self._note(line, f"{name} = {value!r} is left out: {why}")
            else:
                continue
            del self.content["grpo"][name]

    def fill_in(self, recipe: Recipe) -> list[str]:
        """Give the recipe a context that fits its lengths; a line for that, and for each default
        that matters.
        """
        ours, notes = settings_of.DEFAULTS, []
        configured = bool(self.calls(_CONFIG))
        if configured and "max_completion_length" not in recipe.grpo:
            recipe.grpo["max_completion_length"] = 512
            notes.append(
                "max_completion_length is not in the script: the recipe asks for 512, TRL's default"
            )
        completion = recipe.grpo.get("max_completion_length", ours["max_completion_length"])
        if "policy.max_seq_length" not in self.stated and isinstance(completion, int):
            prompt = recipe.max_prompt_length or 512
            recipe.policy = recipe.policy.model_copy(update={"max_seq_length": prompt + completion})
            notes.append(
                f"policy.max_seq_length = {prompt + completion}: {prompt} for the prompt +"
                f" {completion}"
            )
        known = {*recipe.grpo, "max_steps" if "num_train_epochs" in recipe.grpo else ""}
        for name in [name for name in _TRLS if configured and name not in known]:
            text = f"{name} is not taken from the script: {ours[name]}, the workbench's default"
            notes.append(f"{text} (TRL: {_TRLS[name]})")
        return notes

    def _leave_out(self, line: int, name: str, value: object) -> None:
        unknown = isinstance(value, ast.AST)
        text = textwrap.shorten(ast.unparse(value) if unknown else repr(value), 60)
        text = "..." if name.endswith("token") else text  # a secret
        why = _WHY.get(name, _NOT_READ if unknown else "a recipe has no field for it")
        self._note(line, f"{name}{'' if name == '**' else ' = '}{text} is left out: {why}")

    def _note(self, line: int, text: str) -> None:
        self.notes.append(f"line {line}: {text}")


def _is(name: str, kind: str) -> bool:
    return re.fullmatch(f"{_LIBRARIES}(?:{kind})", name) is not None


def _binds(node: ast.AST) -> list[str]:
    # Names that a node gives a value, in whichever scope; of an import, also the name that it had.
    if isinstance(node, ast.Name):
        return [] if isinstance(node.ctx, ast.Load) else [node.id]
    if isinstance(node, ast.keyword):
        return []
    words = [getattr(node, key, None) for key in ("name", "asname", "rest", "arg")]
    return [word.split(".")[0] for word in words if isinstance(word, str)]


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
