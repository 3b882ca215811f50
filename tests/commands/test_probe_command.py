"""`workbench probe`: what it prints for people and for scripts, and its exit codes."""

from __future__ import annotations

import json

import commanding
import pytest

from workbench.audit.examination import audit_rewards
from workbench.base.errors import TaskError

FLAWED = """
from workbench.data.prompts import SYSTEM_PROMPT, to_messages
from workbench.task import Task

print("loading")

def format_reward(completions, **kwargs):
    print("scoring")
    return [1.0 if "</answer>" in completion[0]["content"] else 0.0 for completion in completions]

rows = [{"prompt": to_messages(f"What is {n} + 1?", SYSTEM_PROMPT), "answer": str(n + 1)} for n in range(9)]
task = Task("flawed", rows, [format_reward])
"""


def workbench(*arguments: str, home, run=commanding.workbench):
    return run("probe", *arguments, home=home)


@pytest.fixture
def flawed(home):
    (home / "flawed.py").write_text(FLAWED)
    return home


def test_help_says_what_it_tries_and_when_it_fails(home):
    text = " ".join(workbench("--help", home=home).stdout.split())
    for word in ("--policy", "--prompts", "--weight", "--cases", "--json", "Exits with 1 if", "Examples:"):
        assert word in text


@pytest.mark.slow
def test_a_sound_task_with_a_policy_exits_with_0(home):
    result = workbench("arithmetic", "--policy", "tiny", home=home)
    assert result.returncode == 0, result.stderr
    assert "nothing is wrong" in result.stdout
    assert "expected format: <reasoning> <answer>; 6 prompts" in result.stdout
    assert "What each function pays" in result.stdout


def test_a_flawed_task_exits_with_1_and_names_function_and_cheat(flawed):
    result = workbench("flawed.py", home=flawed, run=commanding.workbench_process)
    assert result.returncode == 1, result.stderr
    assert "error: format_reward: a reward hack earns 1, the reference completion 1: 'empty tags'" in result.stdout
    assert "loading" not in result.stdout
    assert "scoring" not in result.stdout + result.stderr


def test_json_and_nothing_else(flawed):
    result = workbench("flawed.py", "--json", "--prompts", "2", home=flawed)
    assert result.returncode == 1
    found = json.loads(result.stdout)
    assert (found["task"], found["ok"], found["rows"], found["format"]) == (
        "flawed",
        False,
        2,
        "<reasoning> <answer>",
    )
    [error] = [finding for finding in found["findings"] if finding["severity"] == "error"]
    assert (error["kind"], error["function"]) == ("hackable", "format_reward")
    assert found["probes"][0]["share"] == 1.0
    assert found["probes"][0]["name"] == "empty tags"
    [function] = found["functions"]
    assert (function["reference"], function["lowest"], function["highest"]) == (1.0, 0.0, 1.0)


def test_a_weight_can_make_it_fail(home):
    result = workbench("arithmetic", "--weight", "correctness_reward=0", "--json", home=home)
    assert result.returncode == 1
    assert json.loads(result.stdout)["functions"][0]["weight"] == 0.0


def test_cases_are_checked(home):
    (home / "golden.jsonl").write_text('{"completion": "", "expected": 1}\n')
    result = workbench("arithmetic", "--cases", "golden.jsonl", home=home)
    assert result.returncode == 1
    assert "error: regression case, line 1 ((empty)): total is 0, expected 1" in result.stdout


@pytest.mark.slow
def test_what_cannot_be_probed_is_three_lines_and_exit_code_2(home):
    for arguments in (
        ("none.py",),
        ("arithmetic", "--weight", "lenght=1"),
        ("arithmetic", "--cases", "none.jsonl"),
        ("arithmetic", "--policy", "tinny"),
    ):
        result = workbench(*arguments, home=home)
        assert (result.returncode, result.stdout) == (2, ""), arguments
        assert "rule:" in result.stderr
        assert "remedy:" in result.stderr
        assert "Traceback" not in result.stderr


def test_from_python_by_name_or_file_with_the_same_errors(flawed):
    assert audit_rewards("arithmetic", rows=2).ok
    assert not audit_rewards(flawed / "flawed.py").ok
    with pytest.raises(TaskError, match="no such file"):
        audit_rewards("none.py")
