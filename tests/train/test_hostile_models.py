"""A model or an adapter that somebody else made is read, and never run: not even where "y" is typed at every question."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hostile_models import ADAPTERS, MODELS

SCRIPT = Path(__file__).parents[1] / "hostile_models.py"
LOADED = {"auto_map_of_a_known_type", "a_pickle_beside_the_weights", "adapter_pickle_beside", "adapter_of_another_base"}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["unsloth", "transformers"])
def test_no_folder_runs_its_code_and_what_cannot_be_loaded_says_so(backend, tmp_path):
    script = [sys.executable, str(SCRIPT), str(tmp_path), backend]
    done = subprocess.run(script, capture_output=True, text=True, input="y\n" * 500_000, cwd=tmp_path, timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["ran"] == ["trusted", "unpickled"]  # where it was asked to: the folders do carry code
    found = {each["name"]: each for each in told["found"]}
    assert len(found) == len(told["found"]) == 2 * len(MODELS) + len(ADAPTERS) * (3 if backend == "transformers" else 1)
    assert [each for each in found.values() if each["ended"].startswith("raw")] == []
    said = [each for each in found.values() if each["ended"] != "loaded"]
    assert all("\n  rule: " in each["said"] and "\n  remedy: " in each["said"] for each in said)
    assert {each["name"].split()[1] for each in said}.isdisjoint(LOADED)
    assert all(found[f"model {make.__name__}"]["ended"] == "PolicyError" for make in MODELS if "of_an_own_type" in make.__name__)
