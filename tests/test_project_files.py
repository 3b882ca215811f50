"""What a repository has beside its package: each file is read as those read it whom it is for, and is true of the package."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest
import typer
import yaml
from commanding import workbench
from running import Running

from tools.release import wrong
from workbench.commands.cli import app

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMMANDS = typer.main.get_command(app).commands


def read_yaml(path: str):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


# -- a release -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path) -> Path:
    """A tree that may be released as 0.1.0."""
    address = PROJECT["urls"]["Repository"]
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8").replace(address, "https://example.org/them/theirs")
    (tmp_path / "pyproject.toml").write_text(re.sub(r'(?m)^version = ".*"', 'version = "0.1.0"', text))
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0 (2026-12-01)\n\n- all\n")
    return tmp_path


def test_a_tag_that_agrees_with_its_tree_may_be_published(tree):
    assert wrong("v0.1.0", tree) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("pyproject.toml", 'version = "0.1.0"', 'version = "0.2.0"', "version"),
        ("CHANGELOG.md", "(2026-12-01)", "(unreleased)", "0.1.0 (unreleased)"),
        ("CHANGELOG.md", "## 0.1.0", "## 0.0.9", "0.0.9"),
        ("CHANGELOG.md", "## ", "", "no section"),
        ("pyproject.toml", "example.org/them/", "github.com/OWNER/", "OWNER"),
    ],
)
def test_what_stands_against_a_release_is_named(tree, file, old, new, named):
    text = (tree / file).read_text()
    assert old in text
    (tree / file).write_text(text.replace(old, new, 1))
    assert any(named in reason for reason in wrong("v0.1.0", tree))


def test_the_workflow_publishes_what_was_checked_and_keeps_no_token():
    text = (ROOT / ".github/workflows/publish.yml").read_text(encoding="utf-8")
    jobs = read_yaml(".github/workflows/publish.yml")["jobs"]
    assert "never run" in text.splitlines()[0]
    assert "secrets." not in text
    steps = [step.get("run", "") for step in jobs["build"]["steps"]]
    [checked] = [place for place, run in enumerate(steps) if "tools/release.py" in run]
    [built] = [place for place, run in enumerate(steps) if "uv build" in run]
    assert checked < built
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"] == "pypi"


def test_release_md_names_what_is_there():
    text = (ROOT / "RELEASE.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(((?!https:)[^)]+)\)", text):
        assert (ROOT / target).is_file()
    for tool in re.findall(r"`python (tools/\w+\.py)", text):
        assert (ROOT / tool).is_file()


@pytest.mark.slow
def test_the_wheel_says_that_it_has_types_and_carries_the_notebooks(tmp_path):
    subprocess.run(["uv", "build", "--wheel", "--quiet", "--out-dir", str(tmp_path), str(ROOT)], check=True)
    [wheel] = tmp_path.glob("*.whl")
    assert {"workbench/py.typed", "workbench/_notebooks/01_dataset.ipynb"} <= set(zipfile.ZipFile(wheel).namelist())


# -- for people ------------------------------------------------------------------------------------------------------------


def test_the_citation_is_of_this_version():
    citation = read_yaml("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation), "what the format requires"
    assert str(citation["version"]) == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["abstract"].rstrip(".") == PROJECT["description"]


@pytest.mark.parametrize("name", ["bug", "run"])
def test_an_issue_form_asks_for_what_answers_it(name):
    form = read_yaml(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert form["name"]
    assert form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    ids = [field["id"] for field in fields]
    assert len(set(ids)) == len(ids)
    required = {field["id"] for field in fields if field.get("validations", {}).get("required")}
    assert "doctor" in required
    assert all(field["attributes"]["label"] for field in fields)


def test_the_devcontainer_is_set_up_as_contributing_says():
    text = (ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8")
    container = json.loads(re.sub(r"(?m)^\s*//.*$", "", text))
    assert container["postCreateCommand"] == "pip install uv && uv sync"
    assert container["hostRequirements"]["cpus"] == 2
    python = re.search(r"python:(\d\.\d+)$", container["image"])[1]
    assert python in read_yaml(".github/workflows/ci.yml")["jobs"]["tests"]["strategy"]["matrix"]["include"][0]["python"]


# -- for agents, and wherever a command is named ---------------------------------------------------------------------------

TEXTS = ["AGENTS.md", "RELEASE.md", *(f".github/ISSUE_TEMPLATE/{name}.yml" for name in ("bug", "run"))]


@pytest.mark.parametrize("path", TEXTS)
def test_every_command_and_option_that_is_named_exists(path):
    text = (ROOT / path).read_text(encoding="utf-8")
    named = re.findall(r"(?<!import )\bworkbench ([a-z]+)([^#`\n|]*)", text)
    assert named
    for name, rest in named:
        assert name in COMMANDS, f"workbench {name}"
        options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
        assert set(re.findall(r"--[a-z][a-z-]+", rest)) <= options, f"workbench {name}{rest}"


def test_agents_are_told_of_every_command_that_answers_in_json():
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    told = set(re.findall(r"\bworkbench ([a-z]+)[^`\n]* --json", text))
    json_too = {name for name, each in COMMANDS.items() if "--json" in {o for p in each.params for o in p.opts}}
    assert told == json_too - {"demo", "notebook", "lesson", "ask"}, "all but what is for people"


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (("check", "rows.jsonl"), "workbench check ROWS"),
        (("probe", "bad.py"), "workbench probe TASK"),
        (("explain", "kl"), "workbench explain TERM"),
        (("watch", "r"), "workbench watch RUN"),
        (("replay", "r", "--task", "arithmetic"), "workbench replay RUN"),
        (("report", "r", "--markdown"), "workbench report RUN"),
    ],
)
def test_the_keys_that_agents_are_told_to_read_are_there(home, arguments, command):
    (home / "rows.jsonl").write_text(json.dumps({"prompt": "1 + 1?", "answer": "2"}) + "\n")
    bad = "import workbench as wb\n\n\ndef no_reward(completions, **columns):\n    return [0.0 for _ in completions]\n\n\n"
    (home / "bad.py").write_text(bad + "task = wb.Task('bad', [{'prompt': '1 + 1?', 'answer': '2'}] * 4, [no_reward])\n")
    run = Running("r", steps=1)
    run.step()
    run.finish()
    [line] = [line for line in (ROOT / "AGENTS.md").read_text().splitlines() if f"`{command}" in line and line.startswith("| ")]
    outer, _, inner = line.split("|")[3].partition(":")
    found = json.loads(workbench(*arguments, "--json", home=home).stdout)
    keys = re.findall(r"`(\w+)`", outer)
    assert set(keys) <= found.keys()
    if inner:
        assert set(re.findall(r"`(\w+)`", inner)) <= found[keys[-1]][0].keys()


def test_files_that_agents_are_sent_to_exist():
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(((?!https:)[^)#]+)\)", text)
    assert len(targets) >= 3
    assert [target for target in targets if not (ROOT / target).exists()] == []
