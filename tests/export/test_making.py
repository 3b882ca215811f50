"""Making artefacts: what lies in each, what is kept, what is refused, and that each is there whole or not at all."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections import namedtuple

import pytest
from killed_exports import killed
from made_runs import changed_model, made_run, off_the_grid, saved_adapter, sealed

import workbench as wb
from workbench.base.errors import ExportError, RunError
from workbench.exporting import gguf, making
from workbench.exporting.artefacts import FORMATS, Artefact, open_artefact
from workbench.exporting.making import export, in_order
from workbench.exporting.passport import changed_files
from workbench.exporting.risk import MergeRisk
from workbench.run.directory import RunDirectory
from workbench.run.lock import Lock
from workbench.tiny import MODEL_DIR
from workbench.training.plan.loading import load_tokenizer


def names_in(folder):
    return {file.name for file in folder.iterdir()}


def inodes(exported):
    return {format: (artefact.path / "passport.json").stat().st_ino for format, artefact in exported.artefacts.items()}


def test_what_is_kept_counts_as_there_and_a_small_file_has_a_size(home):
    run, seen = made_run(), []
    text = str(export(run, ["adapter"], progress=lambda *own: seen.append(own)))
    assert re.search(r"generation_config\.json  1 KiB", text)  # some hundred bytes
    assert " 0 KiB" not in text
    assert seen == [(0, 1), (1, 1)]
    seen.clear()
    export(run, ["adapter"], progress=lambda *own: seen.append(own))
    assert seen == [(1, 1)]
    seen.clear()
    export(run, into="base", progress=lambda *own: seen.append(own))
    assert seen == [(1, 2), (2, 2)]


def test_a_run_is_exported_as_an_adapter_and_a_merged_model(home):
    run = made_run()
    exported = export(run)
    assert {line.split()[0] for line in str(exported).splitlines()} >= {
        "runs/r/export/adapter", "runs/r/export/merged_16bit", "adapter_model.safetensors", "model.safetensors",
    }  # fmt: skip
    shared = {"README.md", "chat_template.jinja", "passport.json", "tokenizer.json", "tokenizer_config.json"}
    assert names_in(exported["adapter"].path) == shared | {
        "adapter_config.json",
        "adapter_model.safetensors",
        "generation_config.json",
    }
    assert json.loads((exported["adapter"].path / "generation_config.json").read_text())["eos_token_id"] == 2
    merged = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.model"}
    assert names_in(exported["merged_16bit"].path) == shared | merged
    assert names_in(run.export) == {"adapter", "merged_16bit"}
    assert "merged into the 16-bit base; merge risk low" in exported.notes[0]  # the embedded policy lies on the grid
    for artefact in exported.artefacts.values():
        assert not changed_files(artefact.path)
        assert len({file.stat().st_mode for file in artefact.path.iterdir()}) == 1
        assert same(open_artefact(artefact.path), artefact)
        for file in artefact.path.iterdir():
            text = "" if file.suffix in (".safetensors", ".model") else file.read_text()
            assert not [word for word in (str(MODEL_DIR), "is_local", "local_files_only") if word in text], file
    config = json.loads((exported["adapter"].path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "tiny"
    # Our own loading is told the base, and what the adapter says of it does not matter.
    logits = [wb_logits(adapter) for adapter in (run.adapter, exported["adapter"].path)]
    assert logits[0].equal(logits[1])


def test_both_forms_end_where_training_ended(home):
    run = made_run()
    run.update_manifest(eos_ids=[2, 5])
    for artefact in export(run, into="base").artefacts.values():
        assert json.loads((artefact.path / "generation_config.json").read_text())["eos_token_id"] == [2, 5]


def same(one, other):
    return [str(value) for value in vars(one).values()] == [str(value) for value in vars(other).values()]


def wb_logits(adapter):
    import torch

    from workbench.training.policy import load_policy

    policy = load_policy("tiny", backend="transformers", load_in_4bit=False, dtype="float32", adapter=adapter)
    with policy.generating() as model, torch.inference_mode():
        return model(input_ids=torch.arange(5, 29).reshape(2, 12)).logits


def test_what_is_there_already_is_kept_and_what_is_not_the_same_is_refused(home):
    run = made_run()
    before = inodes(export(run, ["adapter", "merged_16bit"], into="base"))
    again = export(run, ["adapter", "merged_16bit"], into="base", overwrite=True)
    assert [note.partition(":")[0] for note in again.notes] == ["adapter", "merged_16bit"]
    assert inodes(again) == before
    weights = "merged into the 16-bit base, not into the dequantised 4-bit weights"
    with pytest.raises(ExportError, match=f"(?s)merged_16bit: another export: {weights}.*overwrite=True replaces it"):
        export(run, into="dequantised")
    assert inodes(again) == before
    assert export(run, into="dequantised", overwrite=True)["merged_16bit"].into == "dequantised"
    card = again["adapter"].path / "README.md"
    card.write_text(card.read_text() + "!")
    assert list(changed_files(again["adapter"].path)) == ["README.md"]
    with pytest.raises(ExportError, match="adapter: another export: README.md was changed: .* bytes then, "):
        export(run, ["adapter"])
    export(run, ["adapter"], overwrite=True)
    assert not changed_files(again["adapter"].path)
    # Another adapter, as after `continue`.
    shutil.copytree(saved_adapter(seed=2), run.final, dirs_exist_ok=True)
    sealed(run)
    with pytest.raises(ExportError, match="another export: made from another adapter"):
        export(run, ["adapter"])


def test_an_export_from_before_passports_is_another_export(home):
    run = made_run()
    shutil.copytree(MODEL_DIR, run.export / "merged_16bit")
    with pytest.raises(ExportError, match="merged_16bit: another export: its passport.json: it cannot be read: No such file"):
        export(run, ["merged_16bit"])


def test_two_exports_at_once_are_one_too_many(home):
    run = made_run()
    run.export.mkdir()
    other = Lock(run.path, ".export.lock")
    assert other.take()
    half = run.export / ".adapter.part"
    half.mkdir()
    with pytest.raises(ExportError, match="(?s)r: another process is running export on it.*wait until"):
        export(run, ["adapter"])
    assert half.exists()  # it is the other's
    other.release()
    export(run, ["adapter"])
    assert names_in(run.export) == {"adapter"}


@pytest.mark.parametrize(
    ("asked", "made"),
    [
        (["adapter"], "adapter"),
        ("merged_16bit", "merged_16bit"),
        (["gguf_q8_0", "adapter"], "adapter merged_16bit gguf_q8_0"),
        (["merged_4bit"], "merged_16bit merged_4bit"),
        (["gguf"], "merged_16bit gguf_f16 gguf_q8_0 gguf_q4_k_m"),
        (["gguf", *reversed(FORMATS)], " ".join(FORMATS)),
    ],
)
def test_each_format_comes_after_the_one_that_it_is_made_of(asked, made):
    assert " ".join(in_order(asked)) == made


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"formats": ["merged16"]}, "format = 'merged16'.*did you mean 'merged_16bit'"),
        ({"formats": []}, "format is one of adapter"),
        ({"into": "dequantized"}, "into = 'dequantized'.*did you mean 'dequantised'"),
    ],
)
def test_a_name_that_is_not_one_is_told_before_anything_is_read(call, said):
    with pytest.raises(ExportError, match=f"(?s){said}"):
        export(None, **call)


def test_a_run_that_trains_or_has_no_adapter_is_refused(home):
    run = made_run()
    assert run.lock.take()
    with pytest.raises(RunError, match="r: still training"):
        export(run)
    run.release()
    shutil.rmtree(run.checkpoints)
    with pytest.raises(RunError, match="no adapter"):
        export(run)
    assert not run.export.exists()


def test_the_disk_is_looked_at_before_anything_is_loaded(home, monkeypatch):
    run, usage = made_run(), namedtuple("usage", "total used free")
    export(run, ["adapter"])
    bytes_16 = 2 * 803_712
    monkeypatch.setattr(making.merging, "write_merged", lambda *_, **__: pytest.fail("it was begun"))
    monkeypatch.setattr(gguf, "check_tools", lambda: None)
    # merged 1, f16 1, q8_0 0.53, q4_k_m 0.31, and an f16 beside; the adapter is there already.
    monkeypatch.setattr(making.shutil, "disk_usage", lambda _: usage(0, 0, 3.8 * bytes_16))
    with pytest.raises(ExportError, match="(?s)merged_16bit, gguf_f16, gguf_q8_0, gguf_q4_k_m: about 0.0 GB.*free some space"):
        export(run, ["adapter", "gguf"], into="base")
    assert names_in(run.export) == {"adapter"}
    monkeypatch.setattr(making.shutil, "disk_usage", lambda _: usage(0, 0, 3.9 * bytes_16))
    with pytest.raises(pytest.fail.Exception, match="it was begun"):
        export(run, ["adapter", "gguf"], into="base")
    assert names_in(run.export) == {"adapter"}  # what failed leaves nothing


@pytest.mark.parametrize("format", ["adapter", "merged_16bit"])
def test_every_artefact_renders_what_training_rendered(home, format):
    run = made_run(chat_template_kwargs={"system": "be brief"})
    template = "{% if system %}{{ system }}: {% endif %}{% for message in messages %}{{ message.content }}{% endfor %}"
    (run.final / "chat_template.jinja").write_text(template)
    sealed(run)
    folder = export(run, [format], into="base")[format].path
    said = load_tokenizer_beside(folder).apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert said == "be brief: hi"


def load_tokenizer_beside(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def test_auto_goes_into_the_weights_of_training_where_the_base_lies_far_from_them(home):
    source = changed_model(home / "model", off_the_grid)
    exported = export(made_run(source=source, adapter=saved_adapter(std=0.0005, source=source)), ["merged_16bit"])
    assert exported["merged_16bit"].into == "dequantised"
    assert "merged into the dequantised 4-bit weights; merge risk high" in exported.notes[0]
    assert open_artefact(exported["merged_16bit"].path).into == "dequantised"
    near = export(made_run("near", source=source, adapter=saved_adapter(std=0.05, source=source)), ["merged_16bit"])
    assert near["merged_16bit"].into == "base"


def test_merged_4_bit_is_quantised_again(home):
    import torch
    from transformers import AutoModelForCausalLM

    exported = export(made_run(), ["merged_4bit"], into="base")
    model = AutoModelForCausalLM.from_pretrained(exported["merged_4bit"].path, device_map="cpu")
    from workbench.training.plan.loading import linear4bit_layers

    assert len(linear4bit_layers(model)) == 21
    assert model.config.quantization_config.bnb_4bit_use_double_quant
    tokenizer = load_tokenizer(exported["merged_4bit"].path)
    ids = tokenizer("What is 15 + 27?", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        assert model(ids).logits.isfinite().all()
    assert "merged_16bit" in exported.artefacts
    assert "merged_16bit: needed for merged_4bit" in exported.notes  # which nobody asked for


def test_what_a_kill_left_is_cleaned_up_and_never_counts(home):
    run = made_run()
    for name in (".merged_16bit.part", ".gguf_f16.before"):
        shutil.copytree(MODEL_DIR, run.export / name)
    export(run, ["adapter"])
    assert names_in(run.export) == {"adapter"}


def test_a_disk_that_fails_is_told_and_leaves_nothing(home, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    run = made_run()
    monkeypatch.setattr(making.passport, "write_card", full)
    with pytest.raises(ExportError, match="(?s)runs/r/export/adapter cannot be written: the disk is full.*export again"):
        export(run, ["adapter"])
    assert names_in(run.export) == set()


@pytest.mark.slow
def test_a_disk_that_fills_inside_a_writer_is_told_and_leaves_nothing(home):
    # A file that may grow no further: safetensors says so in an error of its own, without a file name.
    run = made_run()
    script = (
        "import resource\nimport workbench as wb\nfrom workbench.base.errors import ExportError\nrun = wb.open_run('r')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
        "try:\n    wb.export(run, ['merged_16bit'], into='base')\nexcept ExportError as error:\n    print(error)\n"
    )
    environment = {**os.environ, "WORKBENCH_HOME": str(home)}
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True).stdout
    assert "runs/r/export/merged_16bit" in said
    assert "it may not grow so large" in said
    assert "remedy: free some space" in said
    assert names_in(run.export) == set()


def test_a_risk_that_is_known_is_not_measured_again(home, monkeypatch):
    run, risk = made_run(), MergeRisk({}, "as said", "dequantised")
    monkeypatch.setattr(making, "merge_risk", lambda _: pytest.fail("it was measured again"))
    exported = export(run, ["merged_16bit"], into=risk)
    assert exported["merged_16bit"].into == "dequantised"
    assert exported.notes == ("merged into the dequantised 4-bit weights; merge risk as said",)


def test_killed_at_4_random_moments(home):
    assert sum(one["killed"] for one in killed(made_run(), 4)) >= 2


@pytest.mark.slow
def test_killed_at_20_random_moments(home):
    assert sum(one["killed"] for one in killed(made_run(), 20, seed=1, formats=["adapter", "merged_4bit"])) >= 15


@pytest.fixture
def llama_cpp():
    try:
        gguf.check_tools()
    except ExportError as error:
        pytest.skip(error.value)


@pytest.mark.slow
def test_killed_at_6_random_moments_of_a_gguf(home, llama_cpp):
    assert sum(one["killed"] for one in killed(made_run(), 6, seed=2, formats=["gguf_q8_0"])) >= 3


@pytest.mark.slow
@pytest.mark.parametrize(("format", "room"), [("merged_4bit", 300_000), ("gguf_f16", 1_000_000), ("gguf_q8_0", 500_000)])
def test_a_disk_that_fills_while_a_format_is_made_of_the_merged_model(home, request, format, room):
    run = made_run()
    if format.startswith("gguf"):
        request.getfixturevalue("llama_cpp")
    export(run, ["gguf_f16" if format == "gguf_q8_0" else "merged_16bit"], into="base")
    limit, before = resource.getrlimit(resource.RLIMIT_FSIZE), names_in(run.export)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limit[1]))
    try:
        with pytest.raises(ExportError, match=f"(?s)runs/r/export/{format}.*remedy: free some space"):
            export(run, [format], into="base")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert names_in(run.export) == before


@pytest.mark.slow
def test_gguf_files_are_made_of_the_merged_model(home, llama_cpp):
    run = made_run()
    alone = export(run, ["gguf_q8_0"], into="base")
    assert list(alone.artefacts) == ["merged_16bit", "gguf_q8_0"]
    assert {file for file in names_in(alone["gguf_q8_0"].path) if file.endswith(".gguf")} == {"r-Q8_0.gguf"}
    every = export(run, ["gguf"], into="base")
    sizes = {format: artefact.gguf.stat().st_size for format, artefact in every.artefacts.items() if "gguf" in format}
    assert [every[format].gguf.name for format in sizes] == ["r-F16.gguf", "r-Q8_0.gguf", "r-Q4_K_M.gguf"]
    assert sizes["gguf_f16"] > sizes["gguf_q8_0"] > sizes["gguf_q4_k_m"]
    assert (every["gguf_f16"].path / "Modelfile").is_file()
    assert [note.partition(":")[0] for note in every.notes if ": kept" in note] == ["merged_16bit", "gguf_q8_0"]
    # Made from the f16 one that is there, or from one that is made for it and goes away: the same weights.
    before = every["gguf_q8_0"].gguf.read_bytes()
    shutil.rmtree(every["gguf_q8_0"].path)
    after = export(run, ["gguf_q8_0"], into="base")["gguf_q8_0"].gguf.read_bytes()
    assert after[-500_000:] == before[-500_000:]


def test_an_artefact_knows_its_run_from_its_folder_or_is_given_it(home):
    run, other = made_run(), made_run("other")
    there = export(run, ["adapter"])["adapter"].path
    elsewhere = home / "elsewhere"
    shutil.copytree(there, elsewhere)
    assert open_artefact(elsewhere) == Artefact(elsewhere, "adapter", "tiny", "base", None)
    assert open_artefact("elsewhere", run).run is run
    with pytest.raises(ExportError, match="made from run 'r', not from 'other'"):
        open_artefact(elsewhere, other)
    shutil.copytree(there, other.export / "adapter")  # not made by the run whose folder it lies in
    assert open_artefact(other.export / "adapter").run is None
    run.path.rename(run.path.with_name("renamed"))
    assert open_artefact("runs/renamed/export/adapter").run.name == "renamed"
    with pytest.raises(ExportError, match="no passport.json"):
        open_artefact(MODEL_DIR)
    (elsewhere / "passport.json").write_text("[1]")
    with pytest.raises(ExportError, match="elsewhere: its passport.json is not a passport"):
        open_artefact(elsewhere)


def test_a_run_from_another_machine_finds_its_base_by_the_name_in_its_recipe(home):
    run = RunDirectory(made_run(source="tiny").path)
    run.update_manifest(policy={**run.manifest()["policy"], "source": "/elsewhere/site-packages/workbench/tiny/model"})
    assert export(run, ["merged_16bit"], into="base")["merged_16bit"].base == str(MODEL_DIR)


def test_the_face_exports(home):
    made_run()
    assert wb.export(wb.open_run(), ["adapter"])["adapter"].path.name == "adapter"
