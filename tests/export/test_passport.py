"""The passport: what it holds, that a changed byte is seen wherever it is, and that nothing secret leaves the machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from killing import killed_at
from made_artefacts import EVALUATION, leave, made_artefact, made_run

from workbench.base.errors import ExportError
from workbench.exporting.checks import Check, Proof
from workbench.exporting.making import _other
from workbench.exporting.passport import add_proof, changed_files, read_passport, verify
from workbench.exporting.proving import _files
from workbench.exporting.public import clean
from workbench.recipe import Recipe
from workbench.tiny import MODEL_DIR
from workbench.training.plan.loading import adapter_sum

pytestmark = pytest.mark.usefixtures("home")
PROOF = Proof(
    "x",
    "merged_16bit",
    (
        Check(
            "weights",
            "tensors",
            True,
            "equal",
        ),
    ),
    ("Ollama",),
    {"kl": 0.1},
)


def test_it_holds_what_the_artefact_was_made_of():
    run = made_run(recipe={"seed": 5})
    run.write_json("evaluation.json", EVALUATION)
    artefact = made_artefact(run, into="dequantised")
    found = read_passport(artefact.path)
    assert {name: found[name] for name in ("format", "base", "into", "run", "run_id", "created", "template")} == {
        "format": "merged_16bit", "base": "tiny", "into": "dequantised", "run": "r", "run_id": "id of r",
        "created": "2026-11-23T05:24:46+00:00", "template": "t" * 16,
    }  # fmt: skip
    assert Recipe.of(found["recipe"]) == run.recipe()
    assert found["adapter"] == {"from": "final", "sha256": hashlib.sha256(bytes(range(20))).hexdigest()}
    assert found["files"]["model.safetensors"] == [256, hashlib.sha256(bytes(range(256))).hexdigest()]
    assert found["files"].keys() == leave(artefact.path).keys() - {"passport.json"}
    weights = MODEL_DIR / "model.safetensors"
    assert found["base_files"][weights.name] == [weights.stat().st_size, hashlib.sha256(weights.read_bytes()).hexdigest()]
    assert found["rewards"]["functions"] == run.manifest()["rewards"]["functions"]
    assert found["rewards"]["weights"] == {"correctness_reward": 1.0, "format_reward": 1.0}
    assert (found["task"]["rows"], found["task"]["held_out"], found["task"]["sha256"]) == ("a" * 16, "b" * 16, None)
    assert found["environment"]["cpu"] == "A CPU"
    assert found["evaluation"] == EVALUATION
    assert found["prompt"][-1]["content"].startswith("What is")
    assert json.loads((artefact.path / "config.json").read_text())["_name_or_path"] == "tiny"


def test_the_proof_comes_in_and_nothing_else_is_taken_over():
    artefact = made_artefact(made_run())
    before = read_passport(artefact.path)
    (artefact.path / "model.safetensors").write_bytes(b"another one")
    add_proof(artefact, PROOF)
    after = read_passport(artefact.path)
    assert after["proof"]["passed"]
    assert after["proof"]["checks"] == [
        {
            "level": "weights",
            "name": "tensors",
            "passed": True,
            "found": "equal",
            "cause": "",
            "remedy": "",
            "measured": False,
        }
    ]
    proof = json.loads((artefact.path / "proof.json").read_text())
    assert proof["measured"] == {"kl": 0.1}
    assert {name: own for name, own in after.items() if name not in ("files", "proof")} == {
        name: own for name, own in before.items() if name != "files"
    }
    assert after["files"].keys() - before["files"].keys() == {"proof.json"}
    [found] = verify(artefact.path)
    assert found.differs == ("model.safetensors was changed: 256 bytes then, 11 now",)
    (artefact.path / "model.safetensors").write_bytes(bytes(range(256)))
    add_proof(artefact, PROOF)  # again
    assert verify(artefact.path)[0].passed


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)], ids=["a few moments", "all moments"])
def test_a_proof_that_is_killed_at_any_moment_is_whole_or_was_never_there(monkeypatch, every):
    """Neither `verify` nor `export` nor the next proof takes what it left for a changed file."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # a kill is no power cut
    artefact, number, turn, ended = made_artefact(made_run()), 1 - every, 0, []
    add_proof(artefact, Proof("x", "merged_16bit", ()))
    kept = shutil.copytree(artefact.path, artefact.path.parent / "kept")
    killed = True
    while killed:
        number, turn = number + every, turn + 1
        shutil.rmtree(artefact.path)
        shutil.copytree(kept, artefact.path)
        killed = killed_at(number, lambda: add_proof(artefact, PROOF), artefact.path)
        if turn % 2:  # and so is whoever looks at it next
            killed_at(number // 2, lambda: verify(artefact.path), artefact.path)
        assert changed_files(artefact.path) == {}
        assert _other(artefact, adapter_sum(artefact.run.adapter)) == ""
        assert _files(artefact).passed
        [found] = verify(artefact.path)
        assert found.passed, found
        ended.append(len(read_passport(artefact.path)["proof"]["checks"]))
        add_proof(artefact, PROOF)
        assert verify(artefact.path)[0].passed
        assert not [file for file in artefact.path.iterdir() if file.name == ".proof.part"]
    assert sorted(ended) == ended, "first the one before, then the new one"
    assert ended.count(0) > 10 // every
    assert ended.count(1) > 3 // every


@pytest.mark.parametrize("name", [".passport.json.part", ".x.part/y", ".proof.json.1234-ab.part"])
def test_what_a_kill_left_half_written_is_no_file_of_the_artefact(name):
    artefact = made_artefact(made_run())
    (artefact.path / name).parent.mkdir(exist_ok=True)
    (artefact.path / name).write_text("{")
    assert verify(artefact.path)[0].passed
    (artefact.path / name).rename(artefact.path / "x.part")
    assert not verify(artefact.path)[0].passed


@pytest.fixture(scope="module")
def artefact(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("WORKBENCH_HOME", str(tmp_path_factory.mktemp("home")))
        made = made_artefact(made_run())
        add_proof(made, PROOF)
        return made


def refused(artefact) -> list[str]:
    """The files that `verify` names."""
    try:
        [found] = verify(artefact.path)
    except ExportError as error:
        return [Path(error.value.partition(":")[0]).name]
    return [line.partition(" ")[0] for line in found.differs]


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_bit_changed_anywhere_is_seen_and_named(artefact, data):
    files = leave(artefact.path)
    name = data.draw(st.sampled_from(sorted(files)))
    place = data.draw(st.sampled_from([0, len(files[name]) // 2, len(files[name]) - 1]) | st.integers(0, len(files[name]) - 1))
    flipped = bytearray(files[name])
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    (artefact.path / name).write_bytes(flipped)
    try:
        assert refused(artefact) == [name]
    finally:
        (artefact.path / name).write_bytes(files[name])


def test_every_byte_of_the_passport_counts(artefact):
    file = artefact.path / "passport.json"
    whole = file.read_bytes()
    try:
        for place in range(0, len(whole), 29):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(ExportError):
                read_passport(artefact.path)
        for other in (whole[:-1], whole + b" ", whole + b"\n", whole.replace(b'": ', b'" : ', 1), b"", b"[]", b"null", b"\xff"):
            file.write_bytes(other)
            with pytest.raises(ExportError, match="passport"):
                read_passport(artefact.path)
    finally:
        file.write_bytes(whole)


def test_what_is_no_passport_is_said_in_words(tmp_path):
    file = tmp_path / "passport.json"
    for content in ("[1]", "{}", "\x00"):
        file.write_text(content)
        with pytest.raises(ExportError, match="passport.json: it (holds no passport|was changed)"):
            read_passport(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(ExportError, match="passport.json: it cannot be read: Is a directory\n"):
        read_passport(tmp_path)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda folder: (folder / "more.safetensors").write_bytes(b"x"), "more.safetensors is not in the passport"),
        (lambda folder: (folder / ".hidden").write_bytes(b"x"), ".hidden is not in the passport"),
        (lambda folder: (folder / "deep").mkdir() or (folder / "deep" / "er").write_bytes(b""), "deep/er is not in the passport"),
    ],
)
def test_a_file_too_few_or_too_many_is_seen(spoil, said):
    artefact = made_artefact(made_run())
    spoil(artefact.path)
    assert verify(artefact.path)[0].differs == (said,)


# -- nothing secret ----------------------------------------------------------------------------------------------------
KEYS = [
    "hf_abcdefghijklmnopqrstuvwxyz012345", "sk-proj-abcdefghij0123456789", "0123456789abcdef0123456789abcdef01234567",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789", "AKIAABCDEFGHIJKLMNOP", "a-password-that-nothing-tells-from-a-word",
]  # fmt: skip
FORBIDDEN = [*KEYS, "hf_", "sk-", "mallory", "Mallorys", "vault7", "/home", "/srv", "/tmp/pytest", "C:\\", "\\Users", "~/"]


@pytest.mark.filterwarnings("ignore:metrics.jsonl")  # text is no metric: it is left out with a warning
def test_nothing_secret_is_in_any_file_that_an_export_leaves(home, monkeypatch):
    monkeypatch.setenv("HOME", "/home/mallory")
    monkeypatch.setenv("LOGNAME", "mallory")
    monkeypatch.setenv("MY_SECRET", KEYS[-1])
    monkeypatch.setattr(socket, "gethostname", lambda: "vault7.corp.example")
    base = "/home/mallory/Mallorys models/base-1b"
    paths = f"/home/mallory/x/y.txt ~/x/y ~/.cache/z C:\\Users\\mallory\\x mallory@vault7 /srv/data/mallory:9 {home}/a"
    everything = f"{' '.join(KEYS)} {paths}"
    recipe = {
        "run_name": "first", "task": "/home/mallory/tasks/mallory/task.py",
        "policy": {"name": f"/home/mallory/{KEYS[0]}/base-1b-bnb-4bit"},
        "grpo": {"hub_token": KEYS[-1], "run_name": f"mallory@vault7 {KEYS[2]}", "hub_model_id": f"me/{KEYS[1]}",
                 "logging_dir": "C:\\Users\\mallory\\logs", "chat_template_kwargs": {"where": "/home/mallory/x/y"}},
    }  # fmt: skip
    run = made_run("first", recipe, task={
        "name": everything, "source": "/home/mallory/tasks/mallory/task.py", "rows": "a", "held_out": "b",
        "card": {"source": "/home/mallory/data.jsonl", "notes": [everything]},
    }, policy={"source": base, "device": "the CPU (1 threads)", "backend": everything, "trained_in": [everything]},
        versions={"commit": everything, "machine": everything}, result={"status": everything, "steps": 3, "health": [
            {"state": "alarm", "name": everything, "line": everything}]}, rewards={
            "hash": "h", "functions": {everything: "h"}, "weights": {everything: 1.0}})  # fmt: skip
    run.log_event("control", 1, action="reload", applied=True, file=f"{home}/tasks/x.py", by="mallory@vault7")
    spoiled = [row | {"prompt": everything} for row in run.metrics()]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in spoiled))
    artefact = made_artefact(run, "adapter", base)
    assert "mallory" not in (artefact.path / "adapter_config.json").read_text()
    check = Check("files", everything, False, everything, "changed_file", everything)
    add_proof(artefact, Proof(str(artefact.path), "adapter", (check,), (everything,), {"x": everything}, (everything,)))
    for name, content in leave(artefact.path).items():
        text = content.decode("utf-8", "replace")
        for secret in FORBIDDEN:
            assert secret not in text, (name, secret, text[max(0, text.find(secret) - 80) : text.find(secret) + 80])
        assert str(home) not in text
        assert not re.search(r"(?<![\w:/<.`])/[a-z]+/[a-z]", text), name
    assert verify(artefact.path)[0].passed
    found = read_passport(artefact.path)
    assert found["recipe"]["task"] == "task.py"
    assert found["recipe"]["policy"]["name"] == "base-1b-bnb-4bit"
    assert found["base"] == "base-1b"


def as_user(monkeypatch, name):
    monkeypatch.setenv("HOME", f"/home/{name}")
    monkeypatch.setenv("LOGNAME", name)
    monkeypatch.setattr(socket, "gethostname", lambda: f"{name}s-box")


def test_a_users_name_is_a_word_everywhere_but_in_a_path(monkeypatch):
    as_user(monkeypatch, "max")  # as in max_steps and max_seq_length
    artefact = made_artefact(made_run("max-sums"))
    found = read_passport(artefact.path)
    assert found["run"] == "max-sums"
    assert found["recipe"]["policy"]["max_seq_length"] == 256
    assert "| max_steps | 3 |" in (artefact.path / "README.md").read_text()
    assert clean("max@maxs-box /home/max /srv/data/max") == "user@host ~ user"
    as_user(monkeypatch, "sums")
    assert verify(artefact.path)[0].passed


@pytest.mark.parametrize(
    "text",
    [
        "<answer>\n42\n</answer>", "a/b", "1/2/3 + 4/5", "and/or", "/no_think", "What is 6/3? x/y/z", "https://example.org/a/b",
        "openai/gsm8k", "tasks/mine/task.py", "Sketch a sk-etch", "the root of 2", "a user", "C: 5", r"\frac{1}{2}", "// no",
        r"\frac{1}{2} and \sqrt{2}/3", r"\[ 1/2 \cdot 3 \]",
        "0123456789abcdef" * 4,
    ],
)  # fmt: skip
def test_what_is_no_secret_stays_as_it_is(text):
    assert clean({"eos_token": "<|end_of_text|>", "text": [text]}) == {"eos_token": "<|end_of_text|>", "text": [text]}
