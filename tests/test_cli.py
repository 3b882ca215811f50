"""The command line: help that teaches, exit codes that mean something, JSON and nothing else on standard output."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from workbench.run.recipe import Recipe


def workbench(*arguments: str, home=None) -> subprocess.CompletedProcess:
    environment = {**os.environ, **({"WORKBENCH_HOME": str(home)} if home else {})}
    command = [sys.executable, "-m", "workbench.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_help_names_every_command_and_where_to_start():
    text = workbench("--help").stdout
    for word in ("demo", "train", "doctor", "lab", "Start with `workbench demo`"):
        assert word in text


@pytest.mark.parametrize("command", ["demo", "train", "doctor", "lab"])
def test_every_command_explains_itself(command):
    result = workbench(command, "--help")
    assert result.returncode == 0
    assert len(result.stdout.splitlines()) > 8


def test_an_error_is_three_lines_and_exit_code_2(tmp_path):
    result = workbench("train", str(tmp_path / "none.yaml"))
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "RecipeError" in result.stderr
    assert "rule:" in result.stderr
    assert "remedy:" in result.stderr


@pytest.mark.parametrize("name", ["../escape", "my run"])
def test_a_demo_with_a_bad_name_is_refused_before_anything_is_written(tmp_path, name):
    result = workbench("demo", "--name", name, home=tmp_path)
    assert result.returncode == 2
    assert "run_name = " in result.stderr
    assert not list(tmp_path.iterdir())


def test_train_from_a_recipe_prints_one_json_object(tmp_path):
    grpo = {"max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 32}
    Recipe.of({"run_name": "cli", "grpo": grpo}).save(tmp_path / "recipe.yaml")
    result = workbench("train", str(tmp_path / "recipe.yaml"), "--json", "--run-name", "named", home=tmp_path)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["run"] == str(tmp_path / "runs" / "named")
    assert (found["status"], found["steps"]) == ("finished", 1)


def test_doctor_reports_and_its_exit_code_says_whether_training_can_work():
    result = workbench("doctor", "--json")
    found = json.loads(result.stdout)
    by_name = {finding["name"]: finding for finding in found["findings"]}
    assert result.returncode == 0, result.stderr
    assert by_name["4-bit policy"]["works"]
    assert "Linear4bit" in by_name["4-bit policy"]["detail"]
    assert found["versions"]["trl"]
    assert all(finding["remedy"] for finding in found["findings"] if not finding["works"])
