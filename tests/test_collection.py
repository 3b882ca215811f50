"""A module of tests loads no model, no cache and no network while it is imported: on another machine there is none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
AT_IMPORT = {
    "nothing": ("import workbench as wb\nwb.Task", ""),
    "a file": ("from pathlib import Path\nPath(__file__).read_text()", ""),
    "a model": ("from workbench.training.plan.loading import load_tokenizer\nload_tokenizer('tiny')", "opens a model's"),
    "weights": ("from workbench.tiny import MODEL_DIR\nnext(MODEL_DIR.glob('*.safetensors')).open('rb')", "opens a model's"),
    "a cache": ("from workbench.base.cache import cache_folder\ncache_folder().joinpath('sums').read_text()", "of a cache"),
    "a cache, though what it raises is caught": (
        "import contextlib\nwith contextlib.suppress(OSError):\n    open(__import__('os').environ['HF_HOME'] + '/token')",
        "of a cache",
    ),
    "the network": ("import socket\nsocket.create_connection(('127.0.0.1', 9), timeout=1)", "127.0.0.1"),
    "another process": ("import subprocess, sys\nsubprocess.run([sys.executable, '-c', ''])", "starts Python"),
}  # fmt: skip


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> dict[str, str]:
    """What the collection of these modules says of each, under the hooks of tests/conftest.py."""
    folder = tmp_path_factory.mktemp("made")
    for number, (code, _) in enumerate(AT_IMPORT.values()):
        (folder / f"test_made_{number}.py").write_text(f"{code}\n\n\ndef test_nothing():\n    pass\n")
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder), "HF_HOME": str(folder / "hub")}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (TESTS, TESTS.parent)))
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-c", os.devnull, "--rootdir", ".", "--collect-only", "-q"]
    found = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert found.returncode == 2, found.stdout + found.stderr
    collected, *failed = re.split(r"(?m)^_+ ERROR collecting (?=test_made)", found.stdout)
    return {what: reported(f"test_made_{number}.py", collected, failed) for number, what in enumerate(AT_IMPORT)}


def reported(name: str, collected: str, failed: list[str]) -> str:
    [report] = [text for text in failed if text.startswith(name)] or [""]
    assert (f"{name}::test_nothing" in collected) is not bool(report)
    return report


@pytest.mark.parametrize("what", AT_IMPORT)
def test_what_a_module_loads_while_it_is_imported_fails_its_collection(what, reports):
    why = AT_IMPORT[what][1]
    assert why in reports[what]
    assert bool(reports[what]) is bool(why)
