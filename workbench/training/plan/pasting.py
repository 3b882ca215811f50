"""A training script read without being run: what it asks for, as a recipe.

The script is parsed and never executed. Values are read where they stand: numbers, words, lists, names that are bound to
such, `torch.bfloat16`. What only running it could tell is said, and left out. Reward functions and data are code, and stay
in the script: they belong into a task file.
"""

from __future__ import annotations

import ast
import difflib
import re
from typing import Any, NamedTuple

from workbench.errors import RecipeError
from workbench.recipe import SEVEN_PROJECTIONS, Recipe
from workbench.training import plan
from workbench.training.plan.assigning import Assigned
from workbench.training.plan.names import ALIASES, LEFT_OUT, MOVED
from workbench.training.plan.parameters import (
    ADAPTER,
    AS_IT_IS,
    LOADER,
    PLACES,
    QUANTIZATION,
    TRAINER,
    TRAINER_ALIASES,
    UNSLOTH_ADAPTER,
    UNSLOTH_LOADER,
    installed,
)
from workbench.training.plan.reading import Call, Script, Unknown, read

# Names of a script's constants that are a model's or a dataset's.
_MODEL_WORDS = ("model_name", "model_id", "base_model", "model_name_or_path", "model_path")
_DATASET_WORDS = ("dataset_name", "dataset_id", "dataset")
_TASKS = {"gsm8k": "gsm8k", "openai/gsm8k": "gsm8k"}
_UNSLOTH = tuple(f"Fast{kind}Model" for kind in ("Language", "", "Vision", "Text"))
_UNSLOTH_ADAPTERS = tuple(f"{name}.get_peft_model" for name in _UNSLOTH)
_SEES = re.compile(r"FastVisionModel|AutoModelFor(ImageTextToText|Vision2Seq|MultimodalLM)|\w+ForConditionalGeneration")
_TRANSFORMERS = re.compile(r"AutoModelForCausalLM|\w+ForCausalLM|" + _SEES.pattern)
_RUN = "which only running it tells"


class Pasted(NamedTuple):
    """What a script asks for."""

    recipe: Recipe
    notes: list[str]  # one line for each thing that is not in the recipe as it stood in the script
    named: bool = True  # whether policy.name is the script's
    tasked: bool = True  # whether task is

    def __str__(self) -> str:
        return "\n".join(f"note: {line}" for line in self.notes)


def read_script(text: str, source: str = "script", fields: set[str] | None = None) -> Pasted:
    """Read a training script (TRL, with Unsloth or plain transformers) into a recipe, without running it.

    Args:
        text: Python source; `...` among a call's arguments, as in a shortened example, is skipped.
        source: what errors call it.
        fields: names of the installed GRPOConfig's fields; None: they are looked up, which imports the libraries.

    Raises:
        RecipeError: if it is not Python, asks for nothing that is known here, contradicts itself, or has a keyword that no
            library has, with the nearest right one.
    """
    script = read(text, source)
    reading = _Reading(script)
    for found in (
        reading.images,
        reading.configs,
        reading.loaders,
        reading.adapters,
        reading.trainers,
        reading.backend,
    ):
        found()
    if fields is None:
        from workbench.training.policy import trainer_classes

        # Not before the backend is known: importing Unsloth cannot be undone.
        fields = plan.field_names(trainer_classes(reading.content["policy"].get("backend", "unsloth"))[0])
    reading.constants(fields)
    reading.rest()
    if not reading.understood:
        raise reading.nothing()
    recipe, renamed = plan.renamed(Recipe.of(reading.content, source), fields)
    recipe, lengths = reading.lengths(recipe)
    named = "policy.name" in reading.stated
    notes = [*reading.notes, *renamed, *lengths, *reading.defaults(recipe)]
    return Pasted(recipe, notes, named, "task" in reading.content)


class _Reading:
    """One pass over a script's calls: what they say goes into `content`, and what cannot, into `notes`."""

    def __init__(self, script: Script) -> None:
        self.script = script
        for call in script.all_calls:
            # A library of that name beside TRL, which is not read: `vf.GRPOTrainer`, `from verifiers import GRPOTrainer`.
            module = script.origins.get(call.name, "trl")
            if call.name in ("GRPOTrainer", "GRPOConfig") and module.split(".")[0] not in ("trl", "unsloth"):
                call.name = f"{module}.{call.name}"
        self.trained_by = script.calls("GRPOTrainer")
        for call in self.trained_by:
            _by_name(call, tuple(installed(PLACES["GRPOTrainer"])))
        self.content: dict[str, Any] = {"policy": {}, "lora": {}, "grpo": {}}
        self.notes: list[str] = []
        self.stated: dict[str, str] = {}  # place in the recipe -> where the script says it
        self.unread: dict[str, Unknown] = {}  # settings of the config that only running it tells
        self.understood = False
        self.unsloth = False

    def nothing(self) -> RecipeError:
        """Why there is no recipe in the script, with what stands there instead."""
        others = [one for one in self.script.all_calls if re.search(r"GRPO\w*(Trainer|Config)$", one.name)]
        if others:
            name = others[0].name
            module = self.script.origins.get(name.partition(".")[0], "")
            whose = f" of {module}" if module else ""
            return RecipeError(
                f"{self.script.source}, line {others[0].line}: {name}{whose}",
                rule="a script asks for a run by calling TRL's GRPOConfig and GRPOTrainer; this is another trainer",
                remedy="paste a script that calls those two, or write its settings into a recipe, under `grpo:`",
            )
        return RecipeError(
            f"{self.script.source}: no GRPOConfig, GRPOTrainer or model loader is called in it",
            rule="a script asks for a run by calling them",
            remedy="name it in a recipe, as its `task:`"
            if self.script.calls("Task")
            else "paste the part that builds the config and loads the model",
        )

    def images(self) -> None:
        """Refuse a script whose prompts hold images; where that is not certain, say it."""
        found = self.script.image(sees=any(_SEES.match(call.name) for call in self.script.all_calls))
        if found and found[1]:
            raise RecipeError(
                f"{self.script.source}, line {found[0]}: an image",
                rule="images are not trained here: prompts and completions are text",
                remedy="train on text alone, or train this script as it stands, with TRL or Unsloth",
            )
        if found:
            self._say(
                found[0], "if this is an image of a prompt, it is left out: prompts and completions are text here"
            )

    def configs(self) -> None:
        calls = self.script.calls("GRPOConfig")
        used = {
            ast.unparse(node)
            for trainer in self.trained_by
            if isinstance(node := trainer.keywords.get("args"), (ast.Name, ast.Attribute))
        }
        chosen = [call for call in calls if used.intersection(call.bound_to)] if len(calls) > 1 else calls
        written = {ast.dump(ast.Module([ast.Expr(call.node)], [])) for call in chosen}
        if len(calls) > 1 and len(written) != 1:
            raise RecipeError(
                f"{self.script.source}: {len(calls)} GRPOConfig calls, in lines "
                + " and ".join(str(call.line) for call in calls),
                rule="a recipe is one run",
                remedy="paste the one to train with; a run of several stages has them as `stages:` of one recipe",
            )
        for call in chosen[:-1]:
            # Written alike, as in a notebook's two cells; what is assigned to the earlier one is not the run's.
            self._assigned(call)
            for one in call.assigned:
                self._say(one.line, f"{one.written} is about the GRPOConfig in line {call.line}: left out")
        for call in chosen[-1:]:
            self.understood = True
            self._assigned(call)
            for name, value in self._values(call, ("output_dir",)):
                if name == "reward_weights" and isinstance(value, list):
                    self._weights(call, value)
                else:
                    self.content["grpo"][name] = value
                    self.stated[f"grpo.{ALIASES.get(name, name)}"] = f"line {call.line}"
                    if name in MOVED:
                        # Moved by `renamed`, which would take another value in the recipe for a contradiction.
                        self.stated[MOVED[name]] = f"line {call.line}"

    def _assigned(self, call: Call) -> None:
        # `args.beta = 0.2` after the call; the trainer's `args` are the same object.
        trainers = self.trained_by
        inside = (
            [f"{name}.args" for trainer in trainers for name in trainer.bound_to] if call.name == "GRPOConfig" else []
        )
        for line, said in self.script.assign(call, tuple(inside)):
            self._say(line, said)
        began = [
            training.line
            for training in self.script.calls(".train")
            if any(training.name == f"{name}.train" for trainer in trainers for name in trainer.bound_to)
        ]
        for one in [one for one in call.assigned if began and one.line > min(began)]:
            call.assigned.remove(one)
            self._say(
                one.line,
                f"{one.written} comes after the training in line {min(began)}: left out; a stage of `stages:` has settings "
                "of its own",
            )

    def _weights(self, call: Call, weights: list[Any]) -> None:
        names = next(iter(self._reward_names()), [])
        pairs = (
            ", ".join(f"{name}: {weight}" for name, weight in zip(names, weights, strict=True))
            if len(names) == len(weights)
            else "<function>: <weight>, ..."
        )
        self._say(call.line, f"reward_weights = {weights} go by function name here; beside your task: {{{pairs}}}")

    def loaders(self) -> None:
        last = self.trained_by[-1].line if self.trained_by else None
        calls = [
            call
            for call in self.script.calls(".from_pretrained")
            if call.name.split(".")[0] in _UNSLOTH or _TRANSFORMERS.fullmatch(call.name.split(".")[0])
        ]
        by_name = any(isinstance(self._known(call, "model"), str) for call in self.trained_by)
        before = [call for call in calls if last is None or call.line <= last] or ([] if by_name else calls)
        self.unsloth = any(call.name.split(".")[0] in _UNSLOTH for call in before)
        for call in calls:
            name = call.name.split(".")[0]
            self.understood = True
            if call not in before:
                self._say(call.line, f"{call.name} is left out: it comes after the training")
            elif name in _UNSLOTH:
                self._put("policy.backend", "unsloth", call.line, "the loader")
                self._keywords(call, LOADER, UNSLOTH_LOADER, ("model_name", "max_seq_length", "dtype", "load_in_4bit"))
                self._ranks(call)
            elif self.unsloth:
                self._say(call.line, f"{name} is left out: the policy is the one that Unsloth loads")
            else:
                self._plain_transformers(call)
                self._keywords(call, LOADER, UNSLOTH_LOADER, ("pretrained_model_name_or_path",))
            if call in before and _SEES.fullmatch(name):
                self._say(
                    call.line,
                    f"{name} also reads images: here only text is trained, and whether this model loads for text alone is "
                    "not known before it is loaded",
                )
        for call in self.script.calls("BitsAndBytesConfig"):
            self.understood = True
            self._assigned(call)
            self._keywords(call, QUANTIZATION, PLACES["BitsAndBytesConfig"], ())
            said = {*call.keywords, *(one.name for one in call.assigned)}
            if "load_in_4bit" not in said and not call.unpacked:
                self._put("policy.load_in_4bit", False, call.line, "BitsAndBytesConfig")

    def _plain_transformers(self, call: Call) -> None:
        self._put("policy.backend", "transformers", call.line, "the loader")
        self._say(call.line, self._stored("plain transformers", call.keywords))

    def _stored(self, why: str, keywords: Any = ()) -> str:
        if self.script.calls("BitsAndBytesConfig") or "load_in_4bit" in keywords:
            return f"{why}: policy.backend = 'transformers'"
        self.content["policy"]["load_in_4bit"] = False
        return f"{why}, weights as they are stored: policy.backend = 'transformers', policy.load_in_4bit = False"

    def backend(self) -> None:
        """Without Unsloth, where the script is whole enough to tell: it imports its libraries, and not that one."""
        libraries = {module.split(".")[0] for module in self.script.origins.values()}
        if "policy.backend" not in self.stated and libraries & {"trl", "transformers"} and "unsloth" not in libraries:
            self.content["policy"]["backend"] = "transformers"
            self.notes.append(self._stored("Unsloth is not imported"))

    def _ranks(self, loader: Call) -> None:
        most = self._known(loader, "max_lora_rank")
        for call in self.script.calls(*_UNSLOTH_ADAPTERS):
            rank = self._known(call, "r")
            if isinstance(most, int) and isinstance(rank, int) and most < rank:
                self._say(
                    loader.line,
                    f"max_lora_rank = {most} is below r = {rank}: vLLM would refuse it; the adapter keeps r, and vLLM is told "
                    "that",
                )

    def adapters(self) -> None:
        for call in self.script.calls(*_UNSLOTH_ADAPTERS, "LoraConfig"):
            self.understood = True
            if call.name == "LoraConfig":
                self._assigned(call)
                self._keywords(call, ADAPTER, PLACES["LoraConfig"], ("r",))
            else:
                self._keywords(call, ADAPTER, UNSLOTH_ADAPTER, ("model", "r"))

    def trainers(self) -> None:
        trainers = self.trained_by
        known = installed(PLACES["GRPOTrainer"])
        for call in trainers:
            self.understood = True
            for name, node in call.keywords.items():
                right = TRAINER_ALIASES.get(name)
                if right:
                    self._say(call.line, f"{name} is called {right} in this version of GRPOTrainer")
                elif name not in known:
                    self._unknown(call, name, {*known, *TRAINER_ALIASES})
                elif name in TRAINER and not _is_nothing(node):
                    self._say(call.line, f"{name} = {Unknown(node)} is left out: {TRAINER[name]}")
            for node in call.unpacked:
                self._say(call.line, f"**{ast.unparse(node)} cannot be known without running it: left out")
            self._model(call)
            if "peft_config" in call.keywords and self.unsloth:
                self._say(
                    call.line,
                    "peft_config is left out: with Unsloth the adapter is made when the policy is loaded (recipe field "
                    "lora), and TRL refuses a second one",
                )
        if len(trainers) > 1:
            self._say(
                trainers[1].line,
                f"{len(trainers)} trainers after one another: `stages:` of one recipe go on with the same adapter",
            )
        adapter = self.script.calls("LoraConfig", "get_peft_model", ".get_peft_model")
        if trainers and not adapter and not any("peft_config" in call.keywords for call in trainers):
            loaded = "policy.name" in self.stated or "policy.backend" in self.stated
            there = "there it would be full fine-tuning; " if loaded else ""
            self._say(
                trainers[0].line,
                f"no adapter in the script: {there}here an adapter is trained (recipe field lora)",
            )

    def _model(self, call: Call) -> None:
        name = self._known(call, "model")
        if not isinstance(name, str):
            return
        if name.startswith(("your_", "your-", "<")):
            self._say(call.line, f"model = {name!r} holds a place: write a model's name into policy.name")
            return
        self._put("policy.name", name, call.line, "GRPOTrainer")
        self._plain_transformers(call)

    def constants(self, fields: set[str]) -> None:
        """Names in capitals that no call uses: scripts keep their settings there, for a call in another file."""
        for name, (line, value) in self.script.constants.items():
            word = name.lower()
            if not name.isupper() or name in self.script.used or isinstance(value, Unknown):
                continue
            if word in _MODEL_WORDS and isinstance(value, str):
                if "policy.name" not in self.stated:
                    self.understood = True
                    self._say(line, f"{name} is taken as policy.name = {value!r}")
                    self._put("policy.name", value, line, name)
                continue
            if word in _DATASET_WORDS or f"grpo.{ALIASES.get(word, word)}" in self.stated:
                continue
            if len(word) > 1 and (word in ALIASES or word in fields or word in MOVED):
                self.understood = True
                self._say(line, f"{name} = {value!r} is taken as the setting {word}")
                self.content["grpo"][word] = value

    def rest(self) -> None:
        if "policy.name" not in self.stated:
            name = self._unnamed()
            why = f"the model's name is {name}, {_RUN}" if name else "no model's name in the script"
            self.notes.append(f"{why}: policy.name stays {Recipe().policy.name!r}")
        self._task()
        if self.script.assumed:
            said = ", ".join(f"{name} = {value!r}" for name, value in self.script.assumed.items())
            self.notes.append(f"options of its command line are taken at their defaults: {said}")
        for one in self.script.attributes:
            line, target = one.line, one.target
            if target.endswith(("pad_token", "pad_token_id")):
                self._say(line, f"{target} is left alone: TRL gives a tokenizer without a padding token its own")
            elif target.endswith("padding_side"):
                self._say(line, f"{target} is left alone: TRL pads prompts on the left by itself")
        for call in self.script.calls(".save_model", ".save_pretrained", ".save_pretrained_merged"):
            self._say(
                call.line,
                f"{call.name.rpartition('.')[2]}: the adapter is saved in runs/<run_name>/checkpoints/final; notebook 05 "
                "exports it",
            )
            break
        for call in self.script.calls(".generate_completions"):
            self._say(
                call.line,
                "generate_completions is no method of GRPOTrainer: `workbench probe` scores completions before training",
            )
            break

    def _unnamed(self) -> Unknown | None:
        # What stands in the place of the model's name, followed as far as names can be.
        places = [
            (call, ("model_name", "pretrained_model_name_or_path")) for call in self.script.calls(".from_pretrained")
        ]
        places = [place for place in places if re.match(rf"Fast|{_TRANSFORMERS.pattern}", place[0].name)]
        for call, names in [*places, *((call, ("model",)) for call in self.trained_by)]:
            node = next(
                (call.keywords[name] for name in names if name in call.keywords), (call.positional or [None])[0]
            )
            for _ in range(9):
                bound = self.script.bound(node) if isinstance(node, ast.Name) else None
                node = bound or node
            if node is not None and not isinstance(node, (ast.Name, ast.Constant)):
                return Unknown(node)
        return None

    def _reward_names(self) -> list[list[str]]:
        found = []
        for call in self.trained_by:
            for keyword in ("reward_funcs", "reward_function", "reward_functions", "reward_func"):
                node = call.keywords.get(keyword)
                if node is not None:
                    nodes = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
                    found.append([ast.unparse(part) for part in nodes])
        return found

    def _task(self) -> None:
        names = list(dict.fromkeys(name for group in self._reward_names() for name in group))
        dataset, line = None, 0
        for call in self.script.calls("load_dataset"):
            dataset, line = (call.positional and self._evaluate(call.positional[0])) or None, call.line
        for name, (at, value) in self.script.constants.items():
            if dataset is None and name.lower() in _DATASET_WORDS and isinstance(value, str):
                dataset, line = value, at
        if isinstance(dataset, str) and dataset in _TASKS:
            self.content["task"] = _TASKS[dataset]
            self._say(
                line, f"dataset {dataset!r}: task = {_TASKS[dataset]!r}, which ships, with its own prompts and rewards"
            )
            if names:
                self.notes.append(
                    f"the script's reward functions ({', '.join(names)}) are not read: a task file of your own has them"
                )
        elif names or dataset is not None:
            what = [f"reward functions ({', '.join(names)})"] if names else []
            what += [f"dataset {dataset!r}" if isinstance(dataset, str) else "data"]
            self.notes.append(
                f"the script's {' and '.join(what)} are code, and not read: put them into a task file (notebook 02 writes "
                f"one) and name it in `task:`; until then the task is {Recipe().task!r}"
            )

    def lengths(self, recipe: Recipe) -> tuple[Recipe, list[str]]:
        """The recipe with a context that holds what was asked for, where the script does not say one."""
        completion = recipe.grpo.get("max_completion_length")
        notes: list[str] = []
        if not isinstance(completion, int):
            # A script without it means TRL's default, not the workbench's.
            from_trl = 512
            if self.script.calls("GRPOConfig") and "max_completion_length" not in self.unread:
                recipe.grpo["max_completion_length"] = completion = from_trl
                notes.append(f"max_completion_length is not said: {from_trl}, as in TRL")
            else:
                completion = plan.DEFAULTS["max_completion_length"]
        if "policy.max_seq_length" in self.stated:
            plan.check_lengths(recipe, {"max_completion_length": completion})
            return recipe, notes
        prompt = recipe.max_prompt_length or 512
        policy = recipe.policy.model_copy(update={"max_seq_length": prompt + completion})
        notes.append(
            f"policy.max_seq_length = {prompt + completion}: "
            + (f"max_prompt_length {prompt}" if recipe.max_prompt_length else f"{prompt} for the prompt")
            + f" + max_completion_length {completion}, as the script does not say it"
        )
        return recipe.model_copy(update={"policy": policy}), notes

    def defaults(self, recipe: Recipe) -> list[str]:
        """A line for settings that decide much, that the script leaves to TRL, and that are others here."""
        if not self.script.calls("GRPOConfig"):
            return []
        lines, asked = [], recipe.grpo
        if "learning_rate" not in asked and "learning_rate" not in self.unread:
            lines.append(f"learning_rate = {plan.DEFAULTS['learning_rate']:g} (TRL: 1e-06, for full fine-tuning)")
        if not {"max_steps", "num_train_epochs"} & {*asked, *self.unread}:
            lines.append(f"max_steps = {plan.DEFAULTS['max_steps']} (TRL: 3 epochs)")
        unread = [
            f"{name} = {plan.DEFAULTS[name]}" for name in self.unread if name in plan.DEFAULTS and name not in asked
        ]
        found = {"not in the script, so": lines, "could not be read, so": unread}
        return [f"{why} the workbench's: {', '.join(said)}" for why, said in found.items() if said]

    def _keywords(self, call: Call, meaning: dict[str, str], places: Any, positional: tuple[str, ...]) -> None:
        for name, value in self._values(call, positional):
            if name == "model" and call.name.endswith("get_peft_model"):
                continue
            if name not in meaning:
                known = installed(places)
                if name not in known:
                    self._unknown(call, name, {**known, **meaning})
                nothing = value in (None, False, "none", {}, []) and known[name] is not True
                if not nothing and value != AS_IT_IS.get(name, known[name]):
                    self._say(call.line, f"{name} = {value!r} is left out: a recipe has no field for it")
                continue
            where = meaning[name]
            if where.startswith("!"):
                if value not in (None, False, []):
                    raise RecipeError(
                        f"{self.script.source}, line {call.line}: {call.name}({name}={value!r})",
                        rule=where[1:],
                        remedy=f"leave {name} out",
                    )
            elif where.startswith("-"):
                if name in AS_IT_IS:
                    if value != AS_IT_IS[name]:
                        self._say(call.line, f"{name} = {value!r} is left out{where[1:]}")
                elif value not in (None, False, "none"):
                    self._say(call.line, f"{name} = {value!r} is left out{where[1:]}")
            else:
                self._place(call, name, where, value)

    def _place(self, call: Call, name: str, where: str, value: Any) -> None:
        if name == "load_in_16bit":
            if not value:
                return
            value = False  # of load_in_4bit
        elif where == "policy.dtype":
            word = str(value).removeprefix("torch.")
            value = {"half": "float16", "auto": None, "None": None}.get(word, word)
            if name == "torch_dtype":
                self._say(call.line, f"torch_dtype is called dtype in this version: policy.dtype = {value!r}")
            if value is None:
                return
            stated = self.content["policy"].get("dtype")
            if name == "bnb_4bit_compute_dtype" and stated not in (None, value):
                self._say(call.line, f"{name} = {value!r} is left out: a policy computes in one type, {stated!r}")
                return
        elif where == "grpo.gradient_checkpointing":
            value = bool(value)
            if value:
                self._say(call.line, f"{name} becomes gradient_checkpointing = {value}")
            if "grpo.gradient_checkpointing" in self.stated:
                return
        elif where == "seed":
            stated = self.content.get("seed", self.content["grpo"].get("seed"))
            if stated is not None:
                if stated != value:
                    self._say(call.line, f"{name} = {value!r} is left out: the run has one seed, {stated}")
                return
            self._say(call.line, f"{name} = {value!r} becomes seed, which every random choice follows")
        elif where == "lora.target_modules" and isinstance(value, str):
            self._say(
                call.line, f"target_modules = {value!r} are the seven projections: {', '.join(SEVEN_PROJECTIONS)}"
            )
            value = list(SEVEN_PROJECTIONS)
        self._put(where, value, call.line, call.name)

    def _put(self, where: str, value: Any, line: int, by: str) -> None:
        part, _, leaf = where.rpartition(".")
        target = self.content[part] if part else self.content
        if where in self.stated and target.get(leaf, value) != value:
            raise RecipeError(
                f"{self.script.source}: {where} is {target[leaf]!r} in {self.stated[where]} and {value!r} in line {line} ({by})",
                rule="a run has one value for it",
                remedy="keep one of them",
            )
        target[leaf] = value
        self.stated[where] = f"line {line}"

    def _values(self, call: Call, positional: tuple[str, ...] = ()) -> list[tuple[str, Any]]:
        found = []
        pairs = [*zip(positional, call.positional, strict=False), *call.keywords.items()]
        for name, node in pairs:
            value = self._evaluate(node)
            if isinstance(value, Unknown):
                read = name == "quantization_config" and self.script.calls("BitsAndBytesConfig")
                if not (read or (name == "model" and call.name.endswith("get_peft_model"))):
                    why = (
                        f"is left out: {LEFT_OUT[name]}"
                        if name in LEFT_OUT
                        else "cannot be known without running it: left out"
                    )
                    self._say(call.line, f"{name} = {value} {why}")
                if call.name == "GRPOConfig":
                    self.unread[ALIASES.get(name, name)] = value
                continue
            found.append((name, value))
        for node in call.unpacked:
            value = self._evaluate(node)
            if isinstance(value, dict) and all(isinstance(key, str) for key in value):
                found += list(value.items())
            else:
                self._say(call.line, f"**{ast.unparse(node)} cannot be known without running it: left out")
                if call.name == "GRPOConfig":  # any of them may be in it
                    self.unread |= dict.fromkeys(("learning_rate", "max_steps", "max_completion_length"), Unknown(node))
        for one in call.assigned:
            found = self._after(call, found, one)
        return found

    def _after(self, call: Call, found: list[tuple[str, Any]], one: Assigned) -> list[tuple[str, Any]]:
        # What the call was given, with one later assignment.
        today = ALIASES.get(one.name, one.name)
        old = [pair for pair in found if ALIASES.get(pair[0], pair[0]) == today]
        node = one.value
        if one.operator is not None:
            node = ast.BinOp(ast.Constant(old[-1][1]), one.operator, node) if old else one.node
        value = self._evaluate(node)
        if isinstance(value, Unknown):
            stays = f", and {old[-1][1]!r} stays" if old else ""
            said = one.written if one.operator is not None else f"{one.name} = {value}"
            self._say(one.line, f"{said} cannot be known without running it: left out{stays}")
            return found
        if old and old[-1][1] != value:
            self._say(one.line, f"{one.written}: {one.name} = {value!r}, instead of {old[-1][1]!r} in {call.name}")
        return [*(pair for pair in found if pair not in old), (one.name, value)]

    def _known(self, call: Call, name: str) -> Any:
        node = call.keywords.get(name)
        value = self._evaluate(node) if node is not None else None
        return None if isinstance(value, Unknown) else value

    def _evaluate(self, node: ast.AST) -> Any:
        return self.script.value(node)

    def _unknown(self, call: Call, name: str, known: Any) -> None:
        near = difflib.get_close_matches(name, list(known), n=1)
        right = TRAINER_ALIASES.get(near[0], near[0]) if near and call.name == "GRPOTrainer" else (near or [None])[0]
        raise RecipeError(
            f"{self.script.source}, line {call.line}: {call.name}({name}=...)",
            rule=f"{call.name} has no parameter {name}",
            remedy=f"did you mean {right!r}?" if right else f"it has {', '.join(sorted(known))}",
        )

    def _say(self, line: int, text: str) -> None:
        said = f"line {line}: {text}"
        if said not in self.notes:
            self.notes.append(said)


def _by_name(call: Call, names: tuple[str, ...]) -> None:
    # Arguments without a name get theirs; `...` stands for what a shortened example leaves away.
    given = [node for node in call.positional if not (isinstance(node, ast.Constant) and node.value is Ellipsis)]
    for name, node in zip(names, given, strict=False):
        call.keywords.setdefault(name, node)


def _is_nothing(node: ast.expr) -> bool:
    # None, [], {} or (None, None)
    if isinstance(node, (ast.List, ast.Tuple)):
        return all(_is_nothing(part) for part in node.elts)
    return (isinstance(node, ast.Constant) and node.value is None) or (isinstance(node, ast.Dict) and not node.keys)
