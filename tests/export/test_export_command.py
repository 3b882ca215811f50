"""`workbench export`: what it writes and prints, and its exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import made_artefacts
import pytest
from made_runs import made_run

from workbench.commands import cli
from workbench.commands import command as frame
from workbench.exporting import merging
from workbench.exporting.artefacts import meant
from workbench.exporting.making import export


@pytest.fixture
def workbench(home, monkeypatch, capsys):
    monkeypatch.setenv("WORKBENCH_HOME", str(home))
    monkeypatch.setattr(frame, "guard_output", lambda: None)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["workbench", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (ended.value.code or 0, *capsys.readouterr())

    return call


def test_exports_are_made_kept_and_refused(workbench, home):
    made_run()
    code, out, _ = workbench("export", "--format", "adapter")
    assert code == 0
    assert out.splitlines()[0] == "runs/r/export/adapter"
    code, out, _ = workbench("export", "r", "--format", "merged_16bit", "--format", "adapter", "--into", "base", "--json")
    found = json.loads(out)
    assert code == 0
    assert {name: each["into"] for name, each in found["artefacts"].items()} == {"adapter": None, "merged_16bit": "base"}
    assert [note.partition(":")[0] for note in found["notes"]] == ["adapter"]
    assert found["pushed"] is None
    (home / "runs/r/export/adapter/README.md").write_text("mine")
    code, out, _ = workbench("export", "r", "--format", "adapter", "--json")
    assert code == 1
    assert "runs/r/export/adapter: another export: README.md was changed" in json.loads(out)["refused"]
    assert json.loads(out)["remedy"] == "--overwrite replaces it; or move it"
    code, out, _ = workbench("export", "r", "--format", "adapter")
    assert code == 1
    assert out.startswith("refused: runs/r/export/adapter: another export")
    assert "--overwrite" in out
    assert workbench("export", "r", "--format", "adapter", "--overwrite")[0] == 0
    code, out, _ = workbench("export", "r", "--format", "adapter", "--push", "me/sums")
    assert code == 1
    assert "not proven" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "no run 'nowhere'"),
        (["r", "--format", "gguf_q4km"], "did you mean 'gguf_q4_k_m'"),
        (["r", "--into", "4bit"], "into is one of auto, base, dequantised"),
        (["r", "--into", "bse"], "did you mean 'base'?"),
        (["r", "--push", "me/sums"], "give one --format"),
        (["r", "--format", "gguf", "--push", "me/sums"], "give one --format"),
    ],
)
def test_a_word_that_is_wrong_is_an_error(workbench, home, words, said):
    made_run()
    code, _, err = workbench("export", *words)
    assert code == 2
    assert said in err
    assert not (home / "runs/r/export").exists()


def test_help_teaches():
    command = [sys.executable, "-m", "workbench", "export", "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"}).stdout
    for word in ("--format", "--into", "--overwrite", "--push", "--json", "gguf_q4_k_m", "Exits with 1", "Examples:"):
        assert word in told


def test_prove_takes_the_folder_of_all_exports_and_another_task(workbench, home):
    made_run()
    (home / "runs/r/export").mkdir()
    code, _, said = workbench("prove", "runs/r/export")
    assert code
    assert "r: no artefact in runs/r/export" in said
    code, _, said = workbench("prove", "runs/r", "--task", "nowhere")
    assert code
    assert "task 'nowhere'" in said


def test_a_name_that_is_wrong_is_told_from_one_that_is_none(workbench, home):
    run = made_run("demo")
    code, _, said = workbench("prove", "demoo")
    assert code == 2
    assert "demoo: no run or artefact of that name" in said
    assert "did you mean 'demo'?" in said
    export(run, ["adapter"])
    assert "did you mean 'runs/demo/export/adapter'?" in workbench("verify", "runs/demo/export/adaptor")[2]
    code, _, said = workbench("export", "runs/demo/export/adapter")
    assert code == 2
    assert "runs/demo/export/adapter: a folder of run demo" in said
    assert "`workbench export demo`; `workbench prove runs/demo/export/adapter` proves" in said
    code, _, said = workbench("export", "runs/demo/export")
    assert code == 2
    assert "runs/demo/export: a folder of run demo" in said
    assert "remedy: `workbench export demo`; `workbench prove runs/demo/export` proves" in said
    (home / "recipe.yaml").write_text("")  # somebody's next recipe: what lies around a run is no run
    assert workbench("export", "runs/demo", "--format", "adapter")[0] == 0
    (home / "mine").mkdir()
    for name in ("prove", "verify"):
        assert "mine: neither an artefact (no passport.json) nor a run (no recipe.yaml)" in workbench(name, "mine")[2]


def test_somebody_else_s_folder_among_the_exports_is_named_and_the_others_come_in_the_order_of_formats(home, capsys):
    run = made_artefacts.made_run()
    for format in ("gguf_q8_0", "gguf_f16", "merged_16bit", "adapter"):
        made_artefacts.made_artefact(run, format)
    shutil.copytree(run.export / "adapter", run.export / "adapter-before")  # the run's own, too
    (run.export / "mine").mkdir()
    (run.export / "mine" / "passport.json").write_text("{}")
    names = [folder.name for folder in meant(run.path)[1]]
    assert names == ["adapter", "merged_16bit", "gguf_f16", "gguf_q8_0", "adapter-before"]
    assert capsys.readouterr().out == "left out: runs/r/export/mine: its passport.json is not a passport\n"
    (run.export / "gguf_f16" / "passport.json").write_text("{}")  # in a format's own place nothing is passed over
    assert "gguf_f16" in [folder.name for folder in meant(run.path)[1]]


def test_ctrl_c_says_what_is_left(workbench, home, monkeypatch):
    made_run()
    assert workbench("export", "r", "--format", "adapter")[0] == 0
    monkeypatch.setattr(merging, "save_tokenizer", lambda *_, **__: os.kill(os.getpid(), signal.SIGINT))
    code, out, said = workbench("export", "r", "--format", "merged_16bit", "--into", "base")
    assert code == 130
    assert said.endswith("aborted: finished formats stay in export/, partial ones are removed; the same command makes the rest\n")
    assert not out
    assert [file.name for file in (home / "runs/r/export").iterdir()] == ["adapter"]


def test_a_question_from_a_terminal(workbench, home):
    made_run()
    assert workbench("export", "r", "--format", "adapter")[0] == 0
    code, out, _ = workbench("ask", "runs/r", "What is 3 + 4?", "--base")
    assert code == 0
    told = re.findall(r"^\[(\w+): (\d+) tokens, (.*)\]$", out, re.MULTILINE)
    assert [who for who, *_ in told] == ["trained", "base"]
    code, out, _ = workbench("ask", "runs/r/export/adapter", "What is 3 + 4?", "--base", "--json")
    found = json.loads(out)
    assert code == 0
    assert [(who, str(own["length_tokens"]), own["ended"]) for who, own in found["answers"].items()] == told
    assert found["artefact"].endswith("runs/r/export/adapter")


@pytest.mark.slow
def test_notebook_05_shows_the_card_of_whatever_was_exported(home):
    import workbench as wb

    cells = json.loads((Path(__file__).parents[2] / "notebooks/05_export.ipynb").read_text(encoding="utf-8"))["cells"]
    shown = {"wb": wb, "run": (run := made_run()), "exported": wb.export(run, ["adapter"])}
    for cell in cells:
        if cell["id"] in ("05-12", "05-14"):
            exec("".join(cell["source"]), shown)
    assert "r, adapter" in shown["card"]
