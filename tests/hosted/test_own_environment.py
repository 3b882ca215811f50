"""An environment of the user's own: what is there stays, and the lowest versions that pyproject.toml takes do work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from runtime import ROOT, name_of, uv, versions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

THERE = {
    "torch": "2.11.0+cu128", "triton": "3.6.0", "numpy": "2.1.3", "pandas": "2.2.3", "ipython": "8.37.0", "ipykernel": "6.30.1",
    "jupyterlab": "4.4.0", "pillow": "11.3.0", "matplotlib": "3.10.0",
}  # fmt: skip
TOOLS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")


def test_what_is_there_stays(tmp_path):
    python = tmp_path / "venv" / "bin" / "python"
    uv("venv", "--quiet", "--no-project", "--python", sys.executable, tmp_path / "venv")
    [site] = (tmp_path / "venv" / "lib").glob("python3.*/site-packages")
    for name, version in THERE.items():  # their names and versions alone: nothing is installed for real
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text("")
    # The command of docs/machines.md, in the clone.
    command = ["uv", "pip", "install", "--dry-run", "--python", python, "-e", ".[unsloth]"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"(?m)^ - (\S+)==", done.stderr) == []
    assert " + torchvision==0.26." in done.stderr, "the one for the torch that is there"
    assert "xformers" not in done.stderr


def test_plain_pip_installs_what_looks_at_rewards_and_nothing_that_trains(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    programs = tmp_path / "venv" / "bin"
    done = subprocess.run([programs / "pip", "install", "--quiet", ROOT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    there = versions(programs / "python").keys()
    assert "grpo-workbench" in there
    assert not there & {"torch", "trl", "transformers", "peft", "datasets", "bitsandbytes", "unsloth", "unsloth-zoo"}
    for words in (["probe", "arithmetic"], ["check", "arithmetic"], ["explain", "reward_std"], ["doctor"]):
        environment = {**os.environ, "WORKBENCH_HOME": str(tmp_path)}
        command = [programs / "workbench", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        # nothing can train there, and doctor's exit code says so
        assert done.returncode == int(words == ["doctor"]), done.stderr


@pytest.fixture(scope="module")
def lowest(tmp_path_factory):
    """Python of an environment in which whatever pyproject.toml asks for is as old as it may be."""
    folder = tmp_path_factory.mktemp("lowest")
    uv("venv", "--quiet", "--no-project", "--python", sys.executable, folder / "venv")
    python = folder / "venv" / "bin" / "python"
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"]
    tools = [each for each in group if isinstance(each, str) and each.partition("==")[0] in TOOLS]
    # Unsloth asks for any diffusers, and the newest for a newer huggingface_hub than our floor.
    tools.append("diffusers>=0.39,<0.40")
    options = ("--quiet", "--resolution", "lowest-direct", "--python", python)
    uv("--directory", ROOT, "pip", "install", *options, "--editable", f"{ROOT}[unsloth]", *tools)
    return python


def test_the_lowest_versions_are_there(lowest):
    found = versions(lowest)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for asked in map(Requirement, [*project["dependencies"], *project["optional-dependencies"]["unsloth"]]):
        [floor] = [each.version for each in asked.specifier if each.operator in (">=", "==")]
        assert Version(found[name_of(asked.name)]).release[: len(Version(floor).release)] == Version(floor).release


def ran(python, *command: str, home) -> str:
    environment = {**os.environ, "WORKBENCH_HOME": str(home), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([python, *command], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def test_a_policy_trains_on_them(lowest, tmp_path):
    said = ran(lowest, "-m", "workbench", "train", "workbench/tiny/recipe.yaml", "--steps", "2", "--json", home=tmp_path)
    assert '"status": "finished"' in said


def test_rows_runs_and_pictures_work_with_them(lowest, tmp_path):
    folders = ("tests/run", "tests/data", "tests/views")
    said = ran(lowest, "-m", "pytest", *folders, "-n", "0", "-q", "-p", "no:cacheprovider", home=tmp_path)
    assert re.search(r"(?m)^\d{3,} passed", said), said[-500:]
