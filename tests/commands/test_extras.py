"""Which library counts as installed, and what is said of one that is not."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest

from workbench.base.extras import MissingError, absent, default_backend, explained, installed


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """A folder `unsloth/` with a file in it, beside a notebook, where Unsloth is not installed."""
    (tmp_path / "unsloth").mkdir()
    (tmp_path / "unsloth" / "notes.txt").write_text("how to set it up\n")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "unsloth", raising=False)
    importlib.invalidate_caches()
    return tmp_path


def test_a_folder_that_has_a_librarys_name_is_not_the_library(beside):
    assert importlib.util.find_spec("unsloth") is not None, "as a namespace package it is found"
    assert not installed("unsloth")
    assert default_backend() == "transformers"
    (beside / "unsloth" / "__init__.py").write_text("")
    importlib.invalidate_caches()
    assert installed("unsloth")


def met(module):
    try:
        importlib.import_module(module)
    except ImportError as error:
        return error
    raise AssertionError(f"{module} was imported")


def test_a_module_that_an_installed_library_lacks_is_named_with_its_version():
    from importlib.metadata import version

    error = explained(met("transformers.models.qwen9"))
    assert isinstance(error, MissingError)
    assert "transformers.models.qwen9" in error.value
    assert version("transformers") in error.value
    assert "not installed" not in error.value


def test_a_missing_library_is_called_so_and_a_missing_module_of_others_is_left_alone(beside):
    assert explained(met("unsloth.models")).value == "unsloth is not installed here"
    own = met("nobodys_module")
    assert explained(own) is own


@pytest.mark.parametrize("module", ["torch", "datasets", "bitsandbytes", "unsloth"])
def test_a_remedy_installs_from_the_clone_as_nothing_was_released(module):
    error = absent(module)
    assert ".[unsloth]" in error.remedy if module == "unsloth" else "pip install '.[train]'" in error.remedy
    assert "grpo-workbench" not in error.remedy
    assert "check, probe" not in error.rule, "both need it for what is on the hub"
