"""What the installed libraries say of settings, kept on disk: importing them takes seconds, and
they say the same until something is installed or changed.

`workbench plan` reads it. It counts only under the same Python, packages, variables and device, and
while every file that those libraries were imported from is as it was; what is damaged, or of
another making, counts as nothing. `workbench train` asks the libraries, and says where they
disagree. It lies in the user's cache, one file for each such state, and can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import hashlib
import importlib.util
import json
import operator
import os
import platform
import re
import site
import sys
import time
import typing
from collections.abc import Callable, Generator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from workbench.base.cache import ANSWERS, cache_folder, file_states
from workbench.base.errors import WorkbenchError
from workbench.base.kinds import Fields
from workbench.base.workspace import replace_file
from workbench.run.differences import flat
from workbench.training.building import taken_together
from workbench.training.plan import Plan
from workbench.training.plan import settings as settings_of
from workbench.training.plan.settings.device import Machine
from workbench.training.plan.settings.in_force import defaults_of
from workbench.training.policy import trainer_classes

SCHEMA = 1
OFF = "WORKBENCH_ASK_LIBRARIES"  # set: they are asked each time, and nothing is kept
# The file is read whole: the lengths of a million prompts are not for it.
MOST_STATES, MOST_ANSWERS, MOST_BYTES = 8, 100, 1_000_000
# How the names of modules begin whose files count: torchvision's, and Unsloth's own copies, too.
LIBRARIES = (
    "workbench", "unsloth", "trl", "transformers", "accelerate", "peft", "bitsandbytes", "torch",
    "tokenizers", "huggingface_hub", "datasets", "vllm", "liger_kernel", "triton", "deepspeed",
)  # fmt: skip
# Variables by which these decide.
DECIDING = re.compile(
    "(UNSLOTH|TRL|VLLM|TORCH|PYTORCH|CUDA|CUBLAS|NVIDIA|HIP|ROCR?|HSA|XLA|ACCELERATE|FSDP|HF|PEFT"
    "|TRANSFORMERS|BNB|BITSANDBYTES|TOKENIZERS|USE|DISABLE|KUBEFLOW|WANDB|COMET|MLFLOW|PYTHON|ATEN"
    "|ONEDNN|DNNL|MKL|OMP|LOCAL|WORLD|MASTER)_?.*|RANK"
)
# Where one of these is there may be a GPU, and torch is asked each time.
GPU_DEVICES = ["/dev/nvidia*", "/dev/nvhost*", "/dev/nvmap", "/dev/kfd", "/dev/dxg"]
_TYPES = {kind.__name__: kind for kind in (int, float, bool, str, type(None), object)}


@contextlib.contextmanager
def answering(*, ask: bool = False) -> Generator[Answers]:
    """Within the block, what was kept answers in the place of the libraries, and what they are
    asked is kept; with `ask` they are asked everything, and what was kept is compared.
    """
    answers = Answers(ask)
    token = ANSWERS.set(None if os.environ.get(OFF) else answers)
    try:
        yield answers
    finally:
        ANSWERS.reset(token)
        with contextlib.suppress(OSError, WorkbenchError):  # a cache is no reason to fail
            answers.save()


def asked_anew(planned: Callable[[], Plan]) -> Plan:
    """A plan for which the libraries are asked, with a line for each answer that was kept and is
    another one.
    """
    with answering(ask=True) as answers:
        plan = planned()
    return dataclasses.replace(plan, notes=(*plan.notes, *answers.differed))


class Answers:
    """What was answered in one state of the machine; `differed` has a line for each answer that was
    wrong.
    """

    def __init__(self, ask: bool) -> None:
        self.ask = ask
        self.differed: list[str] = []
        self.backend, self.file, self.new = "", Path(), False
        self.known: Fields = {}
        self.files: Fields = {}
        self.config: Any = None
        self.began_s = time.time()

    def __call__(self, ask: FunctionType, of: tuple) -> Any:
        """What `ask(*of)` returns."""
        asked = _text(of)
        if not self.backend or asked is None:
            return ask(*of)
        kind = TypeAdapter(typing.get_type_hints(ask)["return"])
        name = f"{ask.__qualname__} {_sum(asked)}"
        if name in self.known and not self.ask:
            with contextlib.suppress(ValidationError):
                return kind.validate_python(self.known[name])
        trainer_classes(self.backend)  # imports first what comes before the others
        text = kind.dump_json(ask(*of))
        answer = json.loads(text)
        if len(text) <= MOST_BYTES:
            self.keep(name, answer, self.known.get(name, answer))
        return kind.validate_python(answer)  # as it will be read

    def keep(self, name: str, answer: Any, before: Any) -> None:
        """Keep an answer. If another was kept, all that was kept with that one is removed."""
        then, now = flat(before), flat(answer)
        wrong = [each for each in then | now if then.get(each) != now.get(each)]
        if wrong:
            self.file.unlink(missing_ok=True)
            self.known = {}
        self.differed += [
            f"WARNING: {each or name}: the installed libraries say {now.get(each)!r}, and"
            f" {then.get(each)!r} was kept for `workbench plan`; what was kept is removed"
            for each in wrong[:3]
        ]
        self.known[name], self.new = answer, True

    def save(self) -> None:
        """Write what is new. Of two processes that do, the last one's answers stay."""
        files = {
            # past a lazy module's own way, which would import it
            object.__getattribute__(module, "__dict__").get("__file__")
            for name, module in [*sys.modules.items()]
            if name.lower().startswith(LIBRARIES) and isinstance(module, ModuleType)
        }
        states = self.files | file_states(each for each in files if each and Path(each).is_file())
        last = max((written for _, written in states.values()), default=0)
        if not self.new or last > 1e9 * self.began_s:  # changed while they were imported
            return
        body = json.dumps([dict([*self.known.items()][-MOST_ANSWERS:]), states])
        with replace_file(self.file) as beside:
            beside.write_text(f"{_sum(body)}\n{body}", encoding="utf-8")
        others = sorted(self.file.parent.glob("*.json"), key=os.path.getmtime)
        for other in others[:-MOST_STATES]:
            other.unlink(missing_ok=True)

    def config_class(self, backend: str) -> type:
        """A class that has the fields, defaults and, once built, the values of the backend's
        GRPOConfig.
        """
        if self.backend != backend:
            self.file = cache_folder() / "settings" / f"{_sum(str(_surroundings(backend)))}.json"
            self.known, self.files = _read(self.file)
            self.backend = backend
            facts = self(_facts, (backend,))

            def build(config: object, **given: Any) -> None:
                vars(config).update(self.built(facts["own"], given))

            stock = _stand_in(facts, "stock", "trl.")
            self.config = _stand_in(facts, "own", facts["module"], stock, __init__=build)
        return self.config

    def built(self, defaults: Fields, given: Fields) -> Fields:
        """The values of a GRPOConfig of the `given` settings.

        What the libraries made of others is kept with the settings that they looked at: where those
        are the same, so is what they make of these.
        """
        folder = {"output_dir": given.pop("output_dir")}
        texts = {name: _text(value) for name, value in given.items()}
        passed = {**defaults, **given}
        alike = [
            entry
            for name, entry in self.known.items()
            if name.startswith("built")
            and all(texts.get(each) == text for each, text in entry["looked_at"].items())
        ]
        if alike and not self.ask:
            return {**passed, **alike[0]["made"], **folder}
        config, looked_at = _watched(trainer_classes(self.backend)[0], {**given, **folder})
        values = {name: getattr(value, "value", value) for name, value in vars(config).items()}
        made = {
            name: value
            for name, value in values.items()
            if name not in folder and not (name in passed and _text(passed[name]) == _text(value))
        }
        plain = {name: value for name, value in made.items() if _text(value)}
        if looked_at is None or None in texts.values() or given.keys() & made.keys() - plain.keys():
            return vars(config)  # JSON cannot hold it, or the libraries warned
        entry = {"looked_at": {name: texts.get(name) for name in looked_at}, "made": plain}
        self.keep(f"built {_sum(str(entry['looked_at']))}", entry, [*alike, entry][0])
        return {**passed, **plain, **folder}


def _facts(backend: str) -> Fields:
    real: Any = trainer_classes(backend)[0]
    stock = next((one for one in real.__mro__ if one.__module__.startswith("trl.")), real)
    kinds = settings_of.field_kinds(real).items()
    return {
        "names": [each.name for each in dataclasses.fields(real) if each.init],
        "kinds": {name: [kind.__name__ for kind in several] for name, several in kinds},
        "own": defaults_of(real),
        "stock": defaults_of(stock),
        "module": real.__module__,
    }


def _stand_in(facts: Fields, which: str, module: str, *bases: type, **methods: Any) -> Any:
    fields = []
    for name in facts["names"]:
        kinds = facts["kinds"].get(name, ["object"])
        value = facts[which].get(name, object)
        value = tuple(value) if isinstance(value, list) else value
        fields.append((name, functools.reduce(operator.or_, map(_TYPES.__getitem__, kinds)), value))
    made = dataclasses.make_dataclass(
        "GRPOConfig", fields, bases=bases, namespace=methods, init=not methods
    )
    made.__module__ = module
    return made


def _watched(real: Any, given: Fields) -> tuple[Any, list[str] | None]:
    # (a config, the settings that the libraries looked at to make it; None: they warned)
    names = {field.name for field in dataclasses.fields(real)}
    looked_at = set()
    if real.__init__.__code__.co_filename != "<string>":  # not a dataclass's: Unsloth's own
        looked_at |= names

    class Watched(real):
        def __getattribute__(self, name: str) -> Any:
            # for its items, unless a cached property looks for itself
            if name == "__dict__" and sys._getframe(1).f_code.co_name != "__get__":
                looked_at.update(names)
            looked_at.add(name)
            return super().__getattribute__(name)

    config = real(**given)  # whoever listens hears what it says
    with taken_together() as heard:
        Watched(**given)
    return config, None if heard else sorted(looked_at & names - {"output_dir"})


def _surroundings(backend: str) -> list[object]:
    # What decides, beside the libraries' files, what they say.
    variables = {name: value for name, value in os.environ.items() if DECIDING.fullmatch(name)}
    found = []
    for name in LIBRARIES:
        with contextlib.suppress(ImportError, ValueError):
            found.append(getattr(importlib.util.find_spec(name), "origin", None))
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    packages = [sorted(os.listdir(each)) for each in folders if Path(each).is_dir()]
    cpu = ""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as text:
        cpu = re.findall("^(?:model name|flags|Features).*", text.read(8192), re.MULTILINE)[:2]
    maybe_gpu = any(map(glob.glob, GPU_DEVICES))
    device = [cpu, platform.machine(), Machine.here() if maybe_gpu else None]
    return [SCHEMA, backend, sys.version, device, sorted(variables.items()), found, packages]


def _read(file: Path) -> tuple[Fields, Fields]:
    # (answers, states of the libraries' files), where all is as it was.
    with contextlib.suppress(OSError, ValueError, TypeError):
        total, _, body = file.read_text(encoding="utf-8").partition("\n")
        known, states = json.loads(body)
        if total == _sum(body) and file_states(states) == states:
            return known, states
    return {}, {}


def _text(value: object) -> str | None:
    # As JSON; None: it cannot hold it.
    with contextlib.suppress(TypeError, ValueError):
        return json.dumps(value)
    return None


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
