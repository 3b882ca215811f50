"""vLLM through `fast_inference`: probed, explained, handed to the loader. Neither a GPU nor vLLM is here to run it on."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import workbench as wb
from workbench.base.errors import PolicyError, RecipeError
from workbench.commands import doctor
from workbench.recipe import LoraPart, Recipe
from workbench.tiny.task import task as arithmetic
from workbench.training import policy as policies
from workbench.training.plan import settings as settings_of
from workbench.training.plan.prepare import prepare
from workbench.training.plan.settings.device import COST, NOT_INSTALLED, missing, why_not
from workbench.training.plan.stages import settled_vllm
from workbench.training.policy import load_policy, trainer_classes
from workbench.training.trainer import train

GPU = settings_of.Machine(cuda=True, bf16=True, vllm=True)
BARE_GPU = settings_of.Machine(cuda=True, bf16=True, vllm=False)
CPU = settings_of.Machine(cuda=False, bf16=True, vllm=True)
ENGINE = ("fast_inference", "max_lora_rank", "gpu_memory_utilization")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Puts a package named vllm, with this source, where it is found."""

    def put(source: str | None, version: str = "0.29.0") -> None:
        if source is not None:
            (tmp_path / "vllm").mkdir()
            (tmp_path / "vllm" / "__init__.py").write_text(source)
        (tmp_path / "vllm-0.dist-info").mkdir()
        (tmp_path / "vllm-0.dist-info" / "METADATA").write_text(f"Name: vllm\nVersion: {version}\n")
        monkeypatch.syspath_prepend(tmp_path)

    yield put
    sys.modules.pop("vllm", None)


# Is it there?


def test_it_is_not_here():
    assert missing() == missing(imports=True) == NOT_INSTALLED


def test_it_is_imported_only_when_asked(installed):
    installed("raise ImportError('libcudart.so.13: cannot open shared object file\\nand more')")
    assert missing() == ""
    said = "vLLM is installed, and its import fails (ImportError: libcudart.so.13: cannot open shared object file)"
    assert missing(imports=True) == said
    assert "vllm" not in sys.modules


def test_one_that_can_be_imported(installed):
    installed("__version__ = '0.29.0'")
    assert missing(imports=True) == ""
    found = doctor._vllm()
    assert found[:2] == (False, "0.29.0 imports, and there is no GPU for it")


def test_one_that_unsloth_has_hidden_is_not_called_absent(installed, monkeypatch):
    installed(None)
    hidden = SimpleNamespace(VLLM_DISABLED_REASON="Unsloth: built for CUDA 12\nreinstall it")
    monkeypatch.setitem(sys.modules, "unsloth.import_fixes", hidden)
    assert missing() == "vLLM 0.29.0 is installed, and cannot be imported (Unsloth: built for CUDA 12)"
    monkeypatch.delitem(sys.modules, "unsloth.import_fixes")
    assert missing() == "vLLM 0.29.0 is installed, and cannot be imported"


def test_the_doctor_says_what_it_would_bring():
    found = doctor._vllm()
    assert found[:2] == (False, NOT_INSTALLED)
    assert re.search(r"policy.fast_inference: true.*published, and not measured by the workbench: about twice", found[2])


# What is asked for, and what comes of it.


def planned(device, fast=None, backend="unsloth", **grpo):
    """(use_vllm, lines about it) on a device."""
    policy = {"backend": backend} | ({} if fast is None else {"fast_inference": fast})
    recipe = Recipe.of({"policy": policy, "grpo": grpo})
    fields = settings_of.field_names(trainer_classes()[0])
    again, settings, notes = settings_of.normalised(recipe, fields, device)
    assert again == recipe, "another machine may have it"
    return settings.get("use_vllm"), notes


@pytest.mark.parametrize(
    ("device", "asked", "found", "lines"),
    [
        (GPU, {}, None, []),
        (GPU, {"fast": True}, True, []),
        (GPU, {"fast": True, "use_vllm": True}, True, []),
        (GPU, {"use_vllm": True}, True, ["use_vllm = True is policy.fast_inference = True with Unsloth: vLLM starts"]),
        (BARE_GPU, {"fast": True}, False, [f"policy.fast_inference = True becomes False: {NOT_INSTALLED}; {COST}"]),
        (
            BARE_GPU._replace(no_vllm="vLLM is installed, and its import fails (OSError: no)"),
            {"fast": True},
            False,
            ["policy.fast_inference = True becomes False: vLLM is installed, and its import fails (OSError: no); "],
        ),
        (
            BARE_GPU,
            {"fast": True, "use_vllm": True},
            False,
            [f"policy.fast_inference and use_vllm = True become False: {NOT_INSTALLED}; "],
        ),
        (CPU, {"fast": True}, False, [f"policy.fast_inference = True becomes False: this machine has no GPU; {COST}"]),
        (CPU, {"use_vllm": True}, False, ["use_vllm = True becomes False: this machine has no GPU; "]),
        (
            GPU,
            {"fast": True, "backend": "transformers"},
            None,
            ["policy.fast_inference = True is left out: it is Unsloth's, and the backend is transformers"],
        ),
        (
            GPU,
            {"fast": True, "backend": "transformers", "use_vllm": True},
            True,
            ["policy.fast_inference = True is left out: it is Unsloth's, and the backend is transformers"],
        ),
        (GPU, {"backend": "transformers", "use_vllm": True}, True, []),
        (
            GPU,
            {"use_vllm": True, "fast": True, "vllm_gpu_memory_utilization": 0.4, "vllm_mode": "server"},
            True,
            ["vllm_mode = 'server', vllm_gpu_memory_utilization = 0.4 left out: of an engine that TRL would start; "],
        ),
    ],
)
def test_it_is_used_where_it_can_be_and_else_one_line_says_why_and_what_that_costs(device, asked, found, lines):
    value, notes = planned(device, **asked)
    assert value is found
    assert len(notes) == len(lines)
    assert all(note.startswith(line) for note, line in zip(notes, lines, strict=True))


def test_asked_for_and_refused_at_once_is_an_error():
    with pytest.raises(RecipeError, match="policy.fast_inference = True and grpo.use_vllm = False"):
        planned(GPU, fast=True, use_vllm=False)


def test_a_share_without_vllm_is_said():
    fields = settings_of.field_names(trainer_classes()[0])
    _, _, [line] = settings_of.normalised(Recipe.of({"policy": {"gpu_memory_utilization": 0.7}}), fields, GPU)
    assert line.startswith("policy.gpu_memory_utilization = 0.7 has an effect only with fast_inference, which is off (")


def test_vllm_is_imported_for_a_plan_only_if_it_is_asked_for(monkeypatch):
    seen = []
    monkeypatch.setattr(settings_of.Machine, "here", classmethod(lambda cls, for_vllm=False: seen.append(for_vllm) or BARE_GPU))
    planned(None, bf16=True)
    planned(None, fast=True)
    assert seen == [False, True]


def test_why_it_cannot_be():
    assert why_not("unsloth", cuda=True, missing="") == ""
    assert why_not("unsloth", cuda=True, missing="no") == "no"
    assert why_not("unsloth", cuda=False, missing="") == "this machine has no GPU"
    assert "grpo.use_vllm: true is TRL's own" in why_not("transformers", cuda=True, missing="")


def test_it_is_the_whole_runs():
    recipe = Recipe.of({"stages": [{"name": "late", "steps": 1, "grpo": {"use_vllm": True}}]})
    with pytest.raises(RecipeError, match="(?s)late.grpo.use_vllm = True.*vLLM and trackers belong to the whole run"):
        wb.plan(recipe, task=arithmetic(16, 4))


# Handed to the loader.


@pytest.fixture
def loader(monkeypatch):
    """Unsloth's loader, recorded, as if there were a GPU with vLLM: `starts` is what becomes of the engine."""
    real = policies._unsloth()
    made = SimpleNamespace(calls=[], starts=lambda model: setattr(model, "vllm_engine", object()))

    def from_pretrained(**arguments):
        made.calls.append(arguments)
        engine = [arguments.pop(name) for name in ENGINE if name in (arguments := dict(arguments))]
        model, tokenizer = real.FastLanguageModel.from_pretrained(**arguments)
        if engine:
            made.starts(model)
        return model, tokenizer

    fast = SimpleNamespace(from_pretrained=from_pretrained, get_peft_model=real.FastLanguageModel.get_peft_model)
    monkeypatch.setattr(policies, "_unsloth", lambda: SimpleNamespace(FastLanguageModel=fast, __version__=real.__version__))
    monkeypatch.setattr(policies, "why_not", lambda backend, **_: "")
    return made


def fast_policy(**more):
    return load_policy("tiny", load_in_4bit=False, lora=LoraPart(r=8), fast_inference=True, gpu_memory_utilization=0.6, **more)


def test_the_loader_is_told_the_rank_and_the_share(loader):
    policy = fast_policy()
    [call] = loader.calls
    assert {name: call[name] for name in ENGINE} == {
        "fast_inference": True,
        "max_lora_rank": 8,
        "gpu_memory_utilization": 0.6,
    }
    assert policy.fast_inference is True
    assert policy.found()["fast_inference"] is True
    assert policy.notes == []
    assert "; vLLM generates" in str(policy)


def test_where_it_is_not_asked_for_the_loader_hears_nothing_of_it(loader):
    assert load_policy("tiny", load_in_4bit=False).fast_inference is False
    assert not set(ENGINE) & set(loader.calls[0])


def test_a_loader_that_goes_on_without_it_is_seen(loader):
    loader.starts = lambda model: None
    policy = fast_policy()
    assert policy.fast_inference is False
    [note] = policy.notes
    assert note.startswith("fast_inference = True becomes False: Unsloth loads this model, or on this GPU, without it")
    assert COST in note
    [stage] = prepare(Recipe(), arithmetic(16, 4)).stages
    [stage], lines = settled_vllm([replace(stage, settings={"use_vllm": True})], policy)
    assert (lines, stage.settings) == ([note], {"use_vllm": False})


def test_an_engine_that_does_not_start_is_an_error_with_the_remedy(loader):
    def fails(model):
        raise RuntimeError("No available memory for the cache blocks")

    loader.starts = fails
    with pytest.raises(PolicyError, match=r"(?s)No available memory.*gpu_memory_utilization = 0.6.*fast_inference: false"):
        fast_policy()


def test_these_are_parameters_of_unsloths_loaders():
    folder = Path(importlib.util.find_spec("unsloth").origin).parent
    tree = ast.parse((folder / "models" / "loader.py").read_text(encoding="utf-8"))
    [gpu] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "FastLanguageModel"]
    [function] = [node for node in gpu.body if getattr(node, "name", "") == "from_pretrained"]
    defaults = {
        one.arg: ast.literal_eval(value)
        for one, value in zip(function.args.args[::-1], function.args.defaults[::-1], strict=False)
        if one.arg in ENGINE
    }
    assert defaults == {"fast_inference": False, "max_lora_rank": 64, "gpu_memory_utilization": 0.5}
    assert Recipe().policy.gpu_memory_utilization == defaults["gpu_memory_utilization"]
    here = inspect.signature(policies._unsloth().FastLanguageModel.from_pretrained)
    here.bind(model_name="tiny", max_seq_length=64, dtype=None, load_in_4bit=True, **dict.fromkeys(ENGINE))
    # The reason why Unsloth hides a vLLM that does not load stands in a name of its own.
    assert "\nVLLM_DISABLED_REASON = " in (folder / "import_fixes.py").read_text(encoding="utf-8")


# In a run.


@pytest.mark.parametrize(
    ("asked", "has", "found", "line"),
    [
        (None, False, None, None),
        (True, True, True, None),
        (True, False, False, f"use_vllm = True becomes False: the policy was loaded without vLLM; {COST}"),
        (False, True, True, "use_vllm becomes True: the policy was loaded with vLLM (fast_inference), which generates"),
    ],
)
def test_a_given_policy_decides_for_all_stages_with_one_line(asked, has, found, line):
    policy = SimpleNamespace(backend_name="unsloth", fast_inference=has, notes=[])
    [stage] = prepare(Recipe(), arithmetic(16, 4)).stages
    stages = [replace(stage, settings={} if asked is None else {"use_vllm": asked})] * 2
    settled, lines = settled_vllm(stages, policy)
    assert lines == ([line] if line else [])
    assert [one.settings.get("use_vllm") for one in settled] == [found, found]
    plain = SimpleNamespace(backend_name="transformers", fast_inference=False, notes=[])
    own = replace(stage, settings={"use_vllm": True})
    assert settled_vllm([own], plain) == ([own], []), "TRL's own vLLM is its trainer's"


def test_on_a_machine_without_a_gpu_a_run_trains_all_the_same_and_says_so_once(home, capsys):
    grpo = {"max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 4, "max_completion_length": 8}
    policy = {"load_in_4bit": False, "fast_inference": True}
    run = train(Recipe.of({"run_name": "v", "policy": policy, "grpo": grpo}), task=arithmetic(8, 4))
    manifest = run.manifest()
    assert manifest["result"]["status"] == "finished"
    assert manifest["policy"]["fast_inference"] is False
    assert manifest["settings"]["in_force"]["use_vllm"] is False
    said = f"policy.fast_inference = True becomes False: this machine has no GPU; {COST}"
    assert manifest["settings"]["translated"].count(said) == 1
    assert capsys.readouterr().out.count("vLLM") == said.count("vLLM")
    assert run.recipe().policy.fast_inference is True, "it is asked for again where the run goes on"


def test_loaded_by_hand_without_a_gpu_it_is_a_note():
    policy = load_policy("tiny", load_in_4bit=False, fast_inference=True)
    assert policy.notes == [f"fast_inference = True becomes False: this machine has no GPU; {COST}"]
