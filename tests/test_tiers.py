"""The README's test command, the slow tests and the timed ones: what runs them, and that only the timed ones read a clock."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CI = ROOT / ".ci" / "run"
LINT = ("uv run ruff check", "uv run ruff format --check", "uv run ty check", "uv run python tools/lines.py")
TIERS = (*LINT, "uv run pytest", "uv run --extra gguf --extra inspect pytest -m slow", "uv run pytest -m timing -n 0")
CLOCKS = {"time", "monotonic", "perf_counter", "process_time", "thread_time", "getrusage"}
CLOCKS |= {f"{name}_ns" for name in CLOCKS}
# A limit on waiting for what never comes, and the time that a benchmark is given: nothing is asserted of either.
LIMITS = {"driving.py: waited_for", "benchmarks/test_gpu_suite.py: setting"}


# --- pyproject, .ci/run and the README agree --------------------------------------------------------------------------


def test_what_the_readmes_command_leaves_out_has_a_tier_of_its_own():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert {"slow", "timing"} <= {marker.partition(":")[0] for marker in settings["markers"]}
    assert '-m "not slow and not timing"' in settings["addopts"]
    assert "--strict-markers" in settings["addopts"]
    assert "pip install uv && uv run pytest " in (ROOT / "README.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^tier (.*)$", CI.read_text(), re.M)) == TIERS


@pytest.mark.parametrize(
    ("codes", "code"), [((0, 0, 0), 0), ((1, 0, 0), 1), ((0, 5, 0), 1), ((0, 0, 2), 1)], ids=str
)  # 5: no test was found
def test_every_tier_runs_and_one_that_fails_or_is_empty_is_told(tmp_path, codes, code):
    codes = (*(0 for _ in LINT), *codes)
    for name in ("pip", "chromium", "c++"):
        (tmp_path / name).write_text("#!/bin/sh\n")
    (tmp_path / "uv").write_text(
        f'#!/bin/sh\necho uv "$@" >> {tmp_path}/ran\nset -- {" ".join(map(str, codes))}\n'
        f"shift $(($(wc -l < {tmp_path}/ran) - 1))\nexit $1\n"
    )
    for name in ("pip", "chromium", "c++", "uv"):
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([CI], env=environment, capture_output=True, text=True, check=False)
    assert tuple((tmp_path / "ran").read_text().splitlines()) == TIERS
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines() == [f"0 min, exit code {own}: {tier}" for own, tier in zip(codes, TIERS)]


# --- marks ------------------------------------------------------------------------------------------------------------


def functions() -> Iterator[tuple[str, ast.AST, set[str]]]:
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
    assert [name for name, marks in timing.items() if "slow" in marks] == []
