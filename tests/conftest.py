"""Shared fixtures. Nothing here mocks a library: the embedded policy is small enough to be used for real."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# A kernel or subprocess that a test starts must not go looking for a hub that is not there.
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """GPU tests are skipped without a GPU; with WORKBENCH_GPU=1 they run, and so fail, whatever the machine is."""
    if os.environ.get("WORKBENCH_GPU") == "1" or not any("gpu" in item.keywords for item in items):
        return
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A workspace of its own for everything that is written under relative paths."""
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="session")
def tiny_policy():
    """The embedded policy in 4 bits. Shared: a test that trains it loads its own."""
    from workbench.train.policy import load_policy

    return load_policy("tiny")
