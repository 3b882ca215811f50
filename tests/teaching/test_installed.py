"""Exercises, lessons and broken runs of an installed package, which carries the notebooks' folder inside itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json
import workbench as wb
from workbench.base import notebook
from workbench.teaching import gallery, lessons
from workbench.teaching.exercises import EXERCISES

case = gallery.Case("run_02")
said = {
    "package": wb.__file__,
    "notebooks": str(notebook.notebooks_folder()),
    "exercise": wb.rewards.exercise("format").asks,
    "exercises": len(EXERCISES),
    "lessons": list(lessons.shipped()),
    "case": [case.task.source, case.illness],
}
print(json.dumps(said))
"""


@pytest.fixture
def installed(tmp_path) -> Path:
    """A site folder with what the wheel is built of, by pyproject.toml."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    site = tmp_path / "site"
    pairs = {name: name for name in wheel["packages"]} | wheel["force-include"]
    for source, target in pairs.items():
        shutil.copytree(ROOT / source, site / target, ignore=shutil.ignore_patterns("__pycache__", "_notebooks"))
    return site


def test_an_installed_package_has_them_all(installed, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(installed), "WORKBENCH_HOME": str(tmp_path)}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    carried = installed / "workbench" / "_notebooks"
    assert Path(said["package"]).parent == installed / "workbench"
    assert said["notebooks"] == str(carried)
    assert said["exercise"] == "What is the shortest completion that earns everything?"
    assert said["exercises"] == 16
    assert said["lessons"][-3:] == ["biased_judge", "ladder", "play_it"]
    assert said["case"] == [str(carried / "teaching" / "broken" / "run_02" / "task.py"), "cannot pay"]
