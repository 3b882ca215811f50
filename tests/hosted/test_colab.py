"""The five notebooks on Colab's packages, set up by their own first cell.

A venv holds what Google publishes for Colab's runtime; Google's own parts (Drive, the front end) exist only there, and a
folder stands in for Drive. Python is Colab's 3.13 where the machine has one. Minutes long, and 6 GB: `slow`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest
from runtime import errors, make, texts, uv

from workbench.base.notebook import NOTEBOOKS
from workbench.run.directory import open_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

PARAMETERS = {
    "01_dataset": {"rows_wanted": 600, "profile_prompts": 8},
    "03_train": {"max_steps": 8},
    "04_inspect": {"held_out": 24, "samples": 2},
    "05_export": {"prompts_to_prove": 4},
}
REPLACED = {"datasets", "peft", "pyarrow", "tokenizers", "torchao", "transformers"}
STAYS = {
    "torch", "torchvision", "triton", "numpy", "pandas", "scipy", "pillow", "matplotlib", "protobuf", "ipython", "ipykernel",
    "ipywidgets", "traitlets", "tornado", "pyzmq", "jupyter-client", "jupyter-core", "jupyterlab-widgets",
    "widgetsnbextension", "nbclient", "nbconvert", "nbformat",
}  # fmt: skip


@pytest.fixture(scope="module")
def colab(tmp_path_factory):
    try:
        return make(tmp_path_factory.mktemp("colab"))
    except AssertionError as error:
        if os.environ.get("CI") == "true" or not re.search(r"Failed to fetch|dns error|[Cc]onnect", str(error)):
            raise
        pytest.skip(f"no package index: {str(error)[-300:]}")


@pytest.fixture(scope="module")
def ran(colab):
    """The five notebooks in order, each in a fresh kernel: 01 finds nothing set up. name -> the executed notebook."""
    return {stem: colab.run(stem, PARAMETERS.get(stem)) for stem in NOTEBOOKS}


@pytest.mark.parametrize("stem", NOTEBOOKS)
def test_it_runs(ran, stem):
    assert errors(ran[stem]) == []
    assert "ready after" in texts(ran[stem])


def test_what_colab_brings_stays(colab, ran):
    after = colab.versions()
    replaced = {name: (version, after.get(name)) for name, version in colab.before.items() if after.get(name) != version}
    print(f"\nreplaced, of {len(colab.before)}: {json.dumps(replaced, indent=2)}")
    assert not replaced.keys() & STAYS
    assert replaced.keys() == REPLACED  # docs/machines.md names them
    assert colab.before.keys() >= STAYS
    for name, (before, now) in replaced.items():
        assert f"  {name} {before} -> {now}" in texts(ran["01_dataset"])


def test_the_cell_installed_once(ran):
    assert "packages: " in texts(ran["01_dataset"])
    for stem in NOTEBOOKS[1:]:
        assert "packages: " not in texts(ran[stem])


def test_the_run_is_in_drive(colab, ran):
    run = open_run(colab.home / "runs" / "arithmetic")
    assert run.result()["status"] == "finished"
    assert run.manifest()["versions"]["ipykernel"] == colab.before["ipykernel"]
    assert (run.export / "merged_16bit" / "model.safetensors").is_file()
    assert f"tasks and runs: {colab.home} (in your Drive)" in texts(ran["01_dataset"])
    assert not list(colab.content.glob("grpo-workbench/runs"))


WIDGETS = """\
import ipywidgets, time
from pathlib import Path
from IPython.display import display
from workbench.views.controls import Controls
from workbench.views.lab import Lab
from workbench.views.live import RunPanel
from workbench.recipe import Recipe
from workbench.tiny import MODEL_DIR
from workbench.training.background import start

assert ipywidgets.__version__.startswith("7.")
recipe = Recipe.load(MODEL_DIR.parent / "recipe.yaml")
recipe.grpo["max_steps"] = 40
panel = RunPanel(start(recipe.model_copy(update={"run_name": "widgets"})))
display(panel)
while panel.controls is None and not panel.over:
    panel.look()
    time.sleep(0.5)
"""
CLICKS = """\
panel.controls.parts["stop"].click()
panel.wait()
print("status:", panel.status)
display(Controls(panel.run))
"""
LAB = """\
lab = Lab("arithmetic", ["<answer>42</answer>", ""])
display(lab)
lab.type(1, "<reasoning>\\nx\\n</reasoning>\\n<answer>\\n42\\n</answer>")
"""


def test_panel_controls_and_lab_work_in_ipywidgets_7(colab, ran):
    done = colab.run("02_rewards", cells=[WIDGETS, CLICKS, LAB])
    assert errors(done) == []
    assert "status: stopped" in texts(done)
    bundles = [output["data"] for cell in done.cells[1:] for output in cell.outputs if "data" in output]
    views = [data for data in bundles if "application/vnd.jupyter.widget-view+json" in data]
    assert len(views) == 3, "panel, controls, lab"
    # A reader of the saved notebook has no kernel: each view says the same in words.
    assert all(data["text/plain"].strip() for data in views)
    [lab] = [data for data in views if "What reward hacks earn" in data["text/plain"]]
    assert "What reward hacks earn" in lab["text/html"]


def test_a_second_call_asks_nobody(colab, ran):
    done = colab.run("04_inspect", cells=["import workbench; print(workbench.__file__)"])
    assert errors(done) == []
    assert str(colab.content / "grpo-workbench") in texts(done)
    assert "Resolved" not in texts(done)


def test_a_package_in_use_asks_for_one_restart_and_no_more(colab, ran):
    # Somebody's own cell installed an older one and imported it before ours ran.
    uv("pip", "install", "--quiet", "--no-config", "--no-deps", "--python", colab.python, "typer==0.15.4")
    first = colab.run("02_rewards", cells=[], before=["import typer"])
    assert re.search(
        r"HostedError: typer: replaced.*rule:.*restart it once \(Runtime > Restart session\)", *errors(first), re.DOTALL
    )
    assert "  typer 0.15.4 -> " in texts(first)
    again = colab.run("02_rewards", cells=["import typer"])
    assert errors(again) == []
    assert "packages: " not in texts(again)


def test_a_host_without_uv_gets_it_from_pip(colab, tmp_path):
    uv("venv", "--quiet", "--no-project", "--seed", "--python", colab.python, tmp_path / "venv")
    command = "import sys; sys.path.insert(0, sys.argv[1]); from workbench.commands.hosted import _uv; print(*_uv())"
    environment = {**colab.environment, "PATH": str(tmp_path)}
    for _ in range(2):  # the second time it is there
        asked = [tmp_path / "venv" / "bin" / "python", "-c", command, colab.repository]
        done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True)
        found = done.stdout.split()[-3:]
        assert found[1:] == ["-m", "uv"]
        version = subprocess.run([*found, "--version"], env=environment, capture_output=True, text=True, check=True)
        assert version.stdout.startswith("uv ")
