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
from typing import Any, NamedTuple

from workbench.errors import RecipeError
from workbench.kinds import Fields
from workbench.recipe import SEVEN_PROJECTIONS, Recipe
from workbench.training import settings as settings_of
from workbench.training.settings.names import (
    ALIASES,
    ELSEWHERE,
    LEFT_OUT,
    MOVED,
    TURNS,
    as_dtype,
    nearest_setting,
)
from workbench.training.settings.values import lacks

_LONGEST = 200_000  # characters of a script
_DOTS = r",\s*\.\.\.\s*(?=[,)])|(?<=\()\s*\.\.\.\s*,"  # `...` among arguments
_PASTE = "paste the part that builds the config and loads the model"
_RUN = "not read: only literals are, and names bound once, at the top level, to one"

# Keywords of loaders, adapters and BitsAndBytesConfig -> recipe field.
_FIELDS = MOVED | {
    "pretrained_model_name_or_path": "policy.name",
    "bnb_4bit_compute_dtype": "policy.dtype",
    "load_in_16bit": "policy.load_in_4bit",
    "use_gradient_checkpointing": "grpo.gradient_checkpointing",
}
# Those without a field -> why they are left out.
_WHY = LEFT_OUT | {
    "token": "set HF_TOKEN, which keeps it out of recipes",
    **dict.fromkeys(
        ("load_in_8bit", "load_in_fp8"), "frozen weights have 4 or 16 bits (policy.load_in_4bit)"
    ),
    "full_finetuning": "an adapter is trained (recipe field lora)",
    "eval_dataset": "a run only trains; notebook 04 evaluates",
    **dict.fromkeys(
        TURNS,
        "completions of several turns are not recorded yet; unlike the script, this run trains"
        " without them",
    ),
    "callbacks": "they are code; a run records, checks its health and saves without them",
}
# Values that ask for what is done anyway.
_AS_IT_IS = {
    "bias": "none", "task_type": "CAUSAL_LM", "inference_mode": False, "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True, "load_in_8bit": False, "load_in_fp8": False,
    "full_finetuning": False,
    "trust_remote_code": False, "use_rslora": False, "use_dora": False,
}  # fmt: skip
_TRAINER = ("model", "reward_funcs", "args", "train_dataset")  # in order
_CODE = re.compile(
    r"model|args|reward_func\w*|(train_)?dataset|processing_class|tokenizer|\w+_config"
)
_UNSLOTH = r"Fast(?:Language|Vision|Text)?Model"
_SEES = r"FastVisionModel|AutoModelFor(?:ImageTextToText|Vision2Seq|MultimodalLM)|\w+ForConditionalGeneration"  # noqa: E501
_LOADER = rf"(?:{_UNSLOTH}|AutoModelForCausalLM|\w+ForCausalLM|{_SEES})\.from_pretrained"
_TASKS = {"gsm8k": "gsm8k", "openai/gsm8k": "gsm8k"}
# Names of constants that are a model's or a dataset's.
_MODEL_WORDS = ("model_name", "model_id", "base_model", "model_name_or_path", "model_path")
_DATA_WORDS = ("dataset_name", "dataset_id", "dataset")


class Pasted(NamedTuple):
    """What a script asks for."""

    recipe: Recipe
    notes: list[str]  # one line for each thing that is not in the recipe as it stands in the script
    named: bool = True  # policy.name comes from the script
    tasked: bool = True  # so does task


def read_script(text: str, source: str = "script", fields: set[str] | None = None) -> Pasted:
    """Read a training script into a recipe, without running it. What cannot be read is left out,
    with a note.

    A notebook's `!pip` and `%cd`, Markdown fences and `...` among arguments are skipped. `fields`
    are names of the installed GRPOConfig's (None: look them up, which imports the libraries).
    RecipeError if it is not Python, or calls nothing known.
    """
    try:
        reader = _Reader(_parsed(text, source))
        reader.read_calls()
    except (RecursionError, MemoryError) as error:
        raise RecipeError(
            f"{source}: nested too deeply", rule="a person wrote the script", remedy=_PASTE
        ) from error
    if fields is None:
        from workbench.training.policy import trainer_classes

        # Only now: the backend is known, and importing Unsloth cannot be undone.
        fields = settings_of.field_names(
            trainer_classes(reader.content["policy"].get("backend", "unsloth"))[0]
        )
    reader.read_constants(fields)
    if not (
        reader.configs or reader.trainers or reader.loaders or {*reader.stated} - {"policy.backend"}
    ):
        others = [
            f", line {one.line}: {one.full_name}" for one in reader.all_calls if "GRPO" in one.name
        ]
        rule = (
            "a script is read by its calls of TRL's GRPOConfig and GRPOTrainer, and of a model's"
            " loader"
        )
        remedy = f"{_PASTE}; a task file is named in a recipe, as its `task:`"
        raise RecipeError("".join([source, *others[:1]]), rule=rule, remedy=remedy)
    reader.read_rest(fields)
    recipe, renamed = settings_of.with_new_names(Recipe.of(reader.content, source), fields)
    notes = [*reader.notes, *renamed, *reader.fill_in(recipe)]
    return Pasted(recipe, notes, "policy.name" in reader.stated, "task" in reader.content)


def _parsed(text: str, source: str) -> ast.Module:
    # A notebook's own lines become `pass`, for the `if` that one may stand in; continued lines go
    # with them.
    plain = re.sub(
        r"(?m)^([ \t]*)[!%](?:.*\\\n)*.*$", r"\1pass", re.sub(r"(?m)^[ \t]*```.*$", "", text)
    )
    plain = textwrap.dedent(plain)
    last: Exception = ValueError(f"{len(text):,} characters; at most {_LONGEST:,} are read")
    for attempt in (text, plain, re.sub(_DOTS, "", plain)) if len(text) <= _LONGEST else ():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the script's style
                return ast.parse(attempt)
        except (SyntaxError, ValueError) as error:
            last = error
    at = (
        f", line {last.lineno}: {(last.text or '').strip()}"
        if isinstance(last, SyntaxError)
        else ""
    )
    rule = (
        f"a script is Python {sys.version_info[0]}.{sys.version_info[1]}"
        f" ({getattr(last, 'msg', last)})"
    )
    raise RecipeError(source + at, rule=rule, remedy=_PASTE) from None


class Call(NamedTuple):
    """One call in the source."""

    name: str  # as its library has it: GRPOConfig, FastLanguageModel.from_pretrained
    full_name: str  # with the module that it is imported from
    line: int
    positional: list[ast.expr]
    keywords: dict[str, ast.expr]
    unpacked: list[ast.expr]  # what stands behind `**`
    bound_to: set[str]  # names that its result goes into


class _Names:
    """What each name stands for, where that is certain without running the script."""

    def __init__(self, tree: ast.Module, nodes: list[ast.AST]) -> None:
        bound = Counter(name for node in nodes for name in _binds(node))
        self.uses = Counter(
            node.id
            for node in nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        )
        # `from x import *` may bind any name again.
        star = max(
            (node.lineno for node in nodes if isinstance(node, ast.alias) and node.name == "*"),
            default=0,
        )
        top = [one for one in tree.body if isinstance(one, ast.Assign) and one.lineno > star]
        targets = [(target, one.value) for one in top for target in one.targets]
        self.once = {
            target.id: node
            for target, node in targets
            if isinstance(target, ast.Name) and bound[target.id] == 1
        }

    def value(self, node: ast.AST) -> Any:
        """The literal that an expression is or stands for; otherwise the expression itself."""
        literal = node
        if isinstance(node, ast.Name):
            literal = self.once.get(node.id, node)
            changeable = isinstance(literal, ast.List | ast.Tuple | ast.Dict)
            if changeable and self.uses[node.id] > 1:  # another use may change it
                return node
        match literal:
            case ast.Attribute(value=ast.Name(id="torch" | "TaskType"), attr=name):
                return name
        try:
            value = ast.literal_eval(literal)
            json.dumps(value)  # no bytes, sets or complex numbers
        except (ValueError, TypeError):
            return node
        return list(value) if isinstance(value, tuple) else value


def _binds(node: ast.AST) -> list[str]:
    # Names that a node gives a value, in whichever scope; of an import, also the name that it had.
    if isinstance(node, ast.Name):
        return [] if isinstance(node.ctx, ast.Load) else [node.id]
    if isinstance(node, ast.keyword):
        return []
    words = [getattr(node, key, None) for key in ("name", "asname", "rest", "arg")]
    return [word.split(".")[0] for word in words if isinstance(word, str)]


class _Reader:
    """One pass over a script: what its calls ask for goes into `content`, what cannot be read into
    `notes`.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.content: Fields = {"policy": {}, "lora": {}, "grpo": {}}
        self.notes: list[str] = []
        self.stated: dict[str, tuple[Any, int]] = {}  # recipe field -> (value, line of the script)
        self.unread: set[str] = set()  # settings of GRPOConfig whose values cannot be read
        self.modules: dict[str, str] = {}  # imported name -> its full name
        self.assigned: list[tuple[int, str]] = []  # (line, target) for attributes
        self.texts: set[str] = set()  # names that stand for a text somewhere
        into: dict[int, set[str]] = {}  # id of a value -> its targets
        nodes = sorted(
            ast.walk(tree),
            key=lambda one: (getattr(one, "lineno", 0), getattr(one, "col_offset", 0)),
        )
        for node in nodes:
            match node:
                case ast.Import(names=names) | ast.ImportFrom(names=names):
                    module = (
                        f"{node.module}."
                        if isinstance(node, ast.ImportFrom) and node.module
                        else ""
                    )
                    self.modules |= {one.asname or one.name: module + one.name for one in names}
                case ast.Assign(targets=targets, value=value):
                    into[id(value)] = {
                        ast.unparse(part) for one in targets for part in getattr(one, "elts", [one])
                    }
                    if isinstance(value, ast.Constant) and isinstance(value.value, str):
                        self.texts |= into[id(value)]
                case ast.Attribute(ctx=ast.Store()):
                    self.assigned.append((node.lineno, ast.unparse(node)))
        self.names = _Names(tree, nodes)
        self.all_calls = [
            self._call(node, into.get(id(node), set()))
            for node in nodes
            if isinstance(node, ast.Call)
        ]
        self.configs = self._calls("GRPOConfig")
        self.trainers = self._calls("GRPOTrainer")
        self.loaders = self._calls(_LOADER)
        self.given = [pair for call in self.trainers for pair in call.keywords.items()]

    def _call(self, node: ast.Call, bound_to: set[str]) -> Call:
        written = ast.unparse(node.func) if isinstance(node.func, (ast.Name, ast.Attribute)) else ""
        first, dot, rest = written.partition(".")
        full = self.modules.get(first, first) + dot + rest
        name = re.sub(r"^(?:trl|peft|unsloth|transformers|datasets)\.(?:[a-z_0-9]+\.)*", "", full)
        positional = [
            one
            for one in node.args
            if not (isinstance(one, ast.Constant) and one.value is Ellipsis)
        ]
        keywords = dict(zip(_TRAINER, positional, strict=False)) if name == "GRPOTrainer" else {}
        keywords |= {word.arg: word.value for word in node.keywords if word.arg}
        unpacked = [word.value for word in node.keywords if not word.arg]
        return Call(name, full, node.lineno, positional, keywords, unpacked, bound_to)

    def _calls(self, pattern: str) -> list[Call]:
        return [call for call in self.all_calls if re.fullmatch(pattern, call.name)]

    def read_calls(self) -> None:
        """Read the config, the loader, the adapter and the trainer."""
        models = [node for name, node in self.given if name == "model"]
        for call in self._chosen(
            self.configs, self.configs[::-1], [node for _, node in self.given]
        ):
            self._read(call, "output_dir")
        by_name = any(
            isinstance(self.names.value(node), str) or ast.unparse(node) in self.texts
            for node in models
        )
        last = max((call.line for call in self.trainers), default=sys.maxsize)
        before = (
            [] if by_name else [call for call in self.loaders if call.line <= last] or self.loaders
        )
        for call in self._chosen(self.loaders, before, models):
            unsloth = re.match(rf"{_UNSLOTH}\.", call.name)
            self._put("policy.backend", "unsloth" if unsloth else "transformers", call.line)
            self._read(
                call, "model_name", *("max_seq_length", "dtype", "load_in_4bit") * bool(unsloth)
            )
            if re.match(rf"(?:{_SEES})\.", call.name):
                self._note(
                    call.line,
                    f"images are left out: {call.name} also reads them, and only text is trained",
                )
        for call in self._calls("BitsAndBytesConfig"):
            self._read(call)
        adapters = self._calls(rf"LoraConfig|{_UNSLOTH}\.get_peft_model")
        for call in adapters:
            self._read(call, *["model"] * (call.name != "LoraConfig"), "r")
        for call in self.trainers:
            self._read_trainer(call)
        if (
            self.trainers
            and "peft_config" not in dict(self.given)
            and not self._calls(r"LoraConfig|(.*\.)?get_peft_model")
        ):
            self._note(
                self.trainers[0].line,
                "no adapter in the script; here one is trained (recipe field lora)",
            )
        for call in self.trainers[1:2]:
            self._note(
                call.line,
                "a second trainer: `stages:` of one recipe continue with the same adapter",
            )
        for call in self._calls("SFTTrainer"):
            self._note(
                call.line,
                "SFTTrainer is left out: recipe field warm_start fine-tunes on right completions"
                " first",
            )
        libraries, policy = (
            {name.split(".")[0] for name in self.modules.values()},
            self.content["policy"],
        )
        if (
            "policy.backend" not in self.stated
            and libraries & {"trl", "transformers"}
            and "unsloth" not in libraries
        ):
            self._put("policy.backend", "transformers", 1)
        if policy.get("backend") == "transformers":
            bits = 4 if policy.setdefault("load_in_4bit", "load_in_4bit" in self.unread) else 16
            self.notes.append(
                f"Unsloth loads no model here: policy.backend = 'transformers', {bits}-bit weights"
            )
        for line, target in self.assigned:
            holder = target.rpartition(".")[0]
            if holder.endswith(".args") or any(
                holder in call.bound_to for call in [*self.configs, *adapters]
            ):
                self._note(line, f"{target} = ... is left out: only keywords of the calls are read")

    def _chosen(self, calls: list[Call], eligible: list[Call], used: list[ast.expr]) -> list[Call]:
        # At most one: the one whose result is used here, else the first.
        names = {ast.unparse(node) for node in used}
        chosen = ([call for call in eligible if call.bound_to & names] or eligible)[:1]
        for call in calls:
            if call not in chosen:
                self._note(call.line, f"this {call.name} is left out: the run uses another one")
        return chosen

    def _read_trainer(self, call: Call) -> None:
        for name, node in [*call.keywords.items(), *(("**", node) for node in call.unpacked)]:
            value = self.names.value(node)
            if not _CODE.fullmatch(name) and value not in (None, [], {}, [None, None]):
                self._left_out(call.line, name, value)
        match self.names.value(call.keywords.get("model", ast.Constant(None))):
            case str() as model if model.startswith(("your_", "your-", "<")):
                self._note(
                    call.line,
                    f"model = {model!r} is left out: it is a placeholder; set policy.name",
                )
            case str() as model:
                self._put("policy.name", model, call.line)
                self._put("policy.backend", "transformers", call.line)
            case (ast.Attribute() | ast.Name()) as model if (
                isinstance(model, ast.Attribute) or model.id in self.texts
            ):
                self._left_out(call.line, "model", model)
        if "peft_config" in call.keywords and self.content["policy"].get("backend") == "unsloth":
            self._note(
                call.line,
                "peft_config is left out: Unsloth makes the adapter when the policy is loaded",
            )

    def _read(self, call: Call, *positional: str) -> None:
        given = [*zip(positional, call.positional, strict=False), *call.keywords.items()]
        pairs = [(name, self.names.value(node)) for name, node in given]
        for node in call.unpacked:
            value = self.names.value(node)
            pairs += value.items() if isinstance(value, dict) else [("**", node)]
        for name, value in pairs:
            where = f"grpo.{name}" if call.name == "GRPOConfig" else _FIELDS.get(name)
            if isinstance(value, ast.AST):
                # any of them may be behind `**`
                several = {"learning_rate", "max_steps", "max_completion_length"}
                self.unread |= several if name == "**" else {ALIASES.get(name, name)}
                if name not in ("model", "quantization_config"):
                    self._left_out(call.line, name, value)
            elif call.name == "GRPOConfig":
                self._put(f"grpo.{name}", value, call.line, name)
            elif where is None:
                if value not in (None, [], {}) and (
                    name not in _AS_IT_IS or _AS_IT_IS[name] != value
                ):
                    self._left_out(call.line, name, value)
            elif (new := _as_recipe(name, where, value)) is Ellipsis:
                self._left_out(call.line, name, value)
            elif new is not None and self._put(where, new, call.line, name) and new != value:
                self._note(call.line, f"{name} = {value!r} becomes {where} = {new!r}")

    def _put(self, where: str, value: Any, line: int, name: str = "") -> bool:
        # The first value stays; whether it is this one.
        today = _today(where)
        first, at = self.stated.setdefault(today, (value, line))
        if first != value:
            self._note(
                line, f"{name or where} = {value!r} is left out: {today} is {first!r} in line {at}"
            )
        elif at == line or today == where:
            part, _, leaf = where.rpartition(".")
            (self.content[part] if part else self.content)[leaf] = value
        return first == value

    def read_constants(self, fields: set[str]) -> None:
        """Names in capitals that nothing uses: scripts keep settings there for a call in another
        file.
        """
        settings = {*fields, *ALIASES, *MOVED, *_MODEL_WORDS} - {*_DATA_WORDS, "algorithm"}
        for name, node in self.names.once.items():
            where = "policy.name" if name.lower() in _MODEL_WORDS else f"grpo.{name.lower()}"
            constant = (
                name.isupper()
                and len(name) > 1
                and not self.names.uses[name]
                and name.lower() in settings
            )
            if not constant or _today(where) in self.stated:
                continue
            value = self.names.value(node)
            if isinstance(value, ast.AST):
                self._left_out(node.lineno, name, value)
            else:
                self._note(node.lineno, f"{name} is taken as {where} = {value!r}")
                self._put(where, value, node.lineno)

    def read_rest(self, fields: set[str]) -> None:
        """The task, where the dataset is one that ships; a note for it, and for settings that no
        field or old name stands for.
        """
        if "policy.name" not in self.stated:
            self.notes.append(
                "no model name could be read in the script: policy.name stays"
                f" {Recipe().policy.name!r}"
            )
        funcs = [
            part
            for name, node in self.given
            if name.startswith("reward_func")
            for part in getattr(node, "elts", [node])
        ]
        code = [*dict.fromkeys(map(ast.unparse, funcs))]
        data = [call.positional[0] for call in self._calls("load_dataset") if call.positional]
        data += [node for name, node in self.names.once.items() if name.lower() in _DATA_WORDS]
        dataset = next(
            (value for node in data if isinstance(value := self.names.value(node), str)), "data"
        )
        if dataset in _TASKS:
            self.content["task"] = _TASKS[dataset]
            self.notes.append(
                f"dataset {dataset!r}: task = {_TASKS[dataset]!r}, with its own prompts and rewards"
            )
        elif data:
            code.append(repr(dataset))
        if code:
            self.notes.append(
                f"reward functions and data are left out ({', '.join(code)}): they are code; put"
                " them into a task file (notebook 02 writes one), and name it in `task:`, now"
                f" {self.content.get('task', Recipe().task)!r}"
            )
        for name in [*self.content["grpo"]]:
            if (library := lacks(ALIASES.get(name, name))) and self.content["grpo"][name]:
                self.content["grpo"].pop(name)
                line = self.stated[_today(f"grpo.{name}")][1]
                self._note(
                    line,
                    f"{name} is left out: {library} is not installed here; where it is, put it"
                    " back",
                )
            elif name in ELSEWHERE or name not in {*fields, *ALIASES, *MOVED, *LEFT_OUT}:
                value, near = self.content["grpo"].pop(name), nearest_setting(name, fields)
                likely = f"; the nearest is {near!r}" if near else ""
                why = ELSEWHERE.get(
                    name, f"the installed GRPOConfig has no field of that name{likely}"
                )
                self._note(self.stated[f"grpo.{name}"][1], f"{name} = {value!r} is left out: {why}")

    def fill_in(self, recipe: Recipe) -> list[str]:
        """Give the recipe a context that fits its lengths; a line for that, and for each default
        that matters.
        """
        said, ours, notes = {*recipe.grpo, *self.unread}, settings_of.DEFAULTS, []
        if self.configs and "max_completion_length" not in said:
            recipe.grpo["max_completion_length"] = 512
            notes.append("max_completion_length is not in the script: 512, TRL's default")
        completion = recipe.grpo.get("max_completion_length", ours["max_completion_length"])
        if "policy.max_seq_length" not in self.stated and isinstance(completion, int):
            prompt = recipe.max_prompt_length or 512
            recipe.policy = recipe.policy.model_copy(update={"max_seq_length": prompt + completion})
            notes.append(
                f"policy.max_seq_length = {prompt + completion}: {prompt} for the prompt +"
                f" {completion}"
            )
        said |= {"max_steps"} if "num_train_epochs" in said else set()
        for name, trls in (
            ("learning_rate", "1e-06, for full fine-tuning"),
            ("max_steps", "3 epochs"),
        ):
            if self.configs and name not in said:
                notes.append(
                    f"{name} is not in the script: {ours[name]}, the workbench's default (TRL:"
                    f" {trls})"
                )
        unread = [name for name in ours if name in self.unread - {*recipe.grpo}]
        return notes + [
            f"{name} could not be read: {ours[name]}, the workbench's default" for name in unread
        ]

    def _left_out(self, line: int, name: str, value: object) -> None:
        unknown = isinstance(value, ast.AST)
        text = ast.unparse(value) if unknown else repr(value)
        # a secret
        text = "..." if name.endswith("token") else text if len(text) <= 60 else f"{text[:57]}..."
        why = _WHY.get(name, _RUN if unknown else "a recipe has no field for it")
        self._note(line, f"{name}{'' if name == '**' else ' = '}{text} is left out: {why}")

    def _note(self, line: int, text: str) -> None:
        if f"line {line}: {text}" not in self.notes:
            self.notes.append(f"line {line}: {text}")


def _as_recipe(name: str, where: str, value: object) -> object:
    # A library's value as the recipe's field has it; None: it asks for nothing; `...`: there is no
    # such value.
    if name == "load_in_16bit":
        return False if value else None
    if where == "grpo.gradient_checkpointing":
        return bool(value)
    if where == "policy.dtype":
        return as_dtype(value)
    if where == "lora.target_modules" and isinstance(value, str):
        return list(SEVEN_PROJECTIONS) if value == "all-linear" else ...
    return value


def _today(where: str) -> str:
    # A recipe field under its own name: grpo.kl_coef is grpo.beta, and grpo.max_seq_length
    # policy.max_seq_length.
    part, _, leaf = where.rpartition(".")
    return MOVED.get(leaf, f"grpo.{ALIASES.get(leaf, leaf)}") if part == "grpo" else where
