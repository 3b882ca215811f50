"""The proof of an artefact: what passes, what is found, what is looked at once, and what happens to its processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from made_runs import changed_model, saved_adapter
from proven_runs import IN_FORCE, here, proven_run, restamp
from sabotage import put_tensors, tensors

from workbench.base.errors import DataError, ExportError, PolicyError, RunError
from workbench.exporting import apart, passport, proving, reference
from workbench.exporting.apart import run_apart
from workbench.exporting.checks import CAUSES, Proofs
from workbench.exporting.making import export
from workbench.exporting.proving import prove
from workbench.exporting.reading import open_reader
from workbench.run.directory import RunDirectory
from workbench.task import Task
from workbench.tiny import MODEL_DIR
from workbench.training import plain
from workbench.views.display import view_of

PROMPTS = 12
pytestmark = pytest.mark.slow  # a run is exported and proven for them


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A workspace with a run, exported as adapter and merged; its reference is measured. Not to be changed."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_HOME", str(home))
        here(patch)
        run = proven_run()
        export(run, into="base")
        proofs = prove(run.path, prompts=PROMPTS)
    return home, proofs


@pytest.fixture
def run(made, tmp_path, monkeypatch) -> RunDirectory:
    """A copy of that run, proven in this process."""
    shutil.copytree(made[0] / "runs", tmp_path / "runs")
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    here(monkeypatch)
    return RunDirectory(tmp_path / "runs" / "r")


def kept_proof(run, format):
    return (run.export / format / "proof.json").read_text()


def test_good_exports_pass_and_leave_their_proof(made):
    home, proofs = made
    assert isinstance(proofs, Proofs)
    assert [proof.format for proof in proofs] == ["adapter", "merged_16bit"]
    assert proofs.passed, str(proofs)
    proofs.require()
    for proof in proofs:
        left = json.loads((home / "runs/r/export" / proof.format / "proof.json").read_text())
        assert left["passed"] is True
        assert {check["level"] for check in left["checks"]} == {"files", "weights", "tokens", "behaviour"}
        assert proof.measured["prompts"] == PROMPTS
        assert proof.measured["of_the_run"]["share"] == pytest.approx(1, abs=0.05)
        assert proof.unproven
        assert proof.verdict in str(view_of(proof))
    assert not any("live" in file.name or file.suffix == ".pkl" for file in (home / "runs").rglob("*"))


def test_the_live_policy_is_measured_once_for_all_that_is_proven_together(run, monkeypatch):
    measured, measure = [], reference.measure
    monkeypatch.setattr(reference, "measure", lambda *asked: measured.append(1) or measure(*asked))
    run.update_manifest(settings={"in_force": IN_FORCE | {"temperature": 0.2}})  # completions are sampled at 1 all the same
    assert prove(run.path, prompts=4).passed
    assert measured == [1]
    assert prove(run.export / "merged_16bit", prompts=4).passed
    assert measured == [1, 1]  # what is compared with is never read from a file
    assert not (run.export / "reference.json").exists()


@pytest.mark.parametrize("prompts", [-1, 0, 1])
def test_one_prompt_proves_nothing(prompts):
    with pytest.raises(ExportError, match=rf"prompts = {prompts}\n"):
        prove("anything", prompts=prompts)


def test_a_weaker_proof_takes_the_place_of_no_stronger_one(run, monkeypatch):
    folder = run.export / "merged_16bit"
    files = [folder / name for name in ("proof.json", "passport.json", "README.md")]
    before = [file.read_bytes() for file in files]
    few = prove(folder, prompts=4)
    assert (few.passed, few.measured["prompts"]) == (True, 4)
    assert few.verdict.endswith("; the proof on record, over 12 prompts, was kept")
    assert before == [file.read_bytes() for file in files]
    assert "on record" not in str(prove(folder, prompts=PROMPTS + 1))  # more: the newer one counts
    assert json.loads(kept_proof(run, "merged_16bit"))["measured"]["prompts"] == 13
    record = passport.read_passport(folder)
    record["proof"] |= {"passed": False, "checks": [{"passed": True, "cause": ""}, {"passed": False, "cause": "worse"}]}
    passport._write(folder, record)
    few = prove(folder, prompts=4)  # sees less in the same files
    assert (few.passed, few.cause, few.failed[0].name) == (False, "worse", "the proof on record, over 13 prompts")
    put_tensors(folder, tensors(MODEL_DIR))
    restamp(folder, run)
    assert not prove(folder, prompts=4).passed
    assert json.loads(kept_proof(run, "merged_16bit"))["passed"] is False


def test_what_a_cheap_level_finds_needs_no_dear_one(run):
    folder = run.export / "merged_16bit"
    put_tensors(folder, tensors(MODEL_DIR))
    proof = prove(restamp(folder, run), prompts=PROMPTS)
    assert not proof.passed
    assert proof.cause == "other_weights"
    assert proof.unproven[0].startswith("behaviour: not checked")
    with pytest.raises(ExportError, match=CAUSES["other_weights"]):
        proof.require()
    assert json.loads((folder / "proof.json").read_text())["passed"] is False


def test_a_changed_file_is_named_beside_what_it_means(run):
    folder = run.export / "adapter"
    put_tensors(folder, {name: 2 * own if "lora_B" in name else own for name, own in tensors(folder).items()})
    proof = prove(folder, prompts=PROMPTS)
    assert [check.cause for check in proof.failed] == ["changed_file", "other_weights"]
    assert "adapter_model.safetensors" in proof.failed[0].found


def test_a_gguf_file_is_proven_and_a_spoiled_one_named(run):
    pytest.importorskip("llama_cpp")
    from spoiled_gguf import spoil

    from workbench.exporting.gguf import Gguf

    artefact = export(run, ["gguf_f16"], into="base")["gguf_f16"]
    proof = prove(artefact, prompts=PROMPTS)
    assert proof.passed, str(proof)
    assert proof.measured["of_the_run"]["share"] == pytest.approx(1, abs=0.05)
    good = shutil.move(artefact.gguf, run.path / "good.gguf")
    twice = {"add_bos_token": True, "chat_template": "{{ bos_token }}" + str(Gguf(good).template)}
    ways = {"double_bos": twice, "template_lost": {"without": "tokenizer.chat_template"}, "eos_missing": {"eos_token_id": 3}}
    for cause, how in ways.items():
        spoil(good, artefact.path / "r-F16.gguf", **how)
        assert prove(restamp(artefact.path, run), prompts=PROMPTS).cause == cause
        artefact.gguf.unlink()


def test_weights_that_nobody_can_read_are_unreadable(run):
    folder = run.export / "merged_16bit"
    (folder / "config.json").write_text("{}")
    assert "unreadable" in [check.cause for check in prove(restamp(folder, run), prompts=PROMPTS).failed]


def test_a_process_that_dies_writes_no_proof(run, monkeypatch):
    before = kept_proof(run, "adapter")
    monkeypatch.setattr(apart, "run_apart", run_apart)
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(ExportError, match="exit code 1"):
        prove(run.export / "adapter", prompts=PROMPTS)
    assert kept_proof(run, "adapter") == before


def reading_with(monkeypatch, load_base):
    """From now on an artefact is loaded by this; the live policy as ever."""

    def opened(artefact):
        with monkeypatch.context() as patched:
            patched.setattr(plain, "load_base", load_base)
            return open_reader(artefact)

    monkeypatch.setattr(proving, "open_reader", opened)


@pytest.mark.parametrize("format", ["adapter", "merged_16bit"])
def test_no_memory_is_no_fault_of_the_artefact(run, monkeypatch, format):
    before = kept_proof(run, format)
    reading_with(monkeypatch, lambda *_, **__: bytearray(2**62))
    with pytest.raises(ExportError, match="where it has room"):
        prove(run.export / format, prompts=PROMPTS)
    assert kept_proof(run, format) == before


def test_a_run_of_another_machine_is_proven_on_the_base_of_its_recipe(run):
    manifest = run.manifest()["policy"]
    run.update_manifest(policy=manifest | {"source": "/content/workbench/tiny/model"})
    recipe = run.recipe()
    recipe.model_copy(update={"policy": recipe.policy.model_copy(update={"name": "tiny"})}).save(run.path / "recipe.yaml")
    export(run, ["adapter"], overwrite=True)
    proof = prove(run.export / "adapter", prompts=PROMPTS)
    assert proof.passed, str(proof)
    assert proof.measured["of_the_run"]["share"] == pytest.approx(1, abs=0.05)


def test_a_base_that_is_not_here_cannot_be_told(run, monkeypatch):
    def gone(*_, **__):
        raise PolicyError("no such folder", rule="r", remedy="m")

    reading_with(monkeypatch, gone)
    proof = prove(run.export / "adapter", prompts=PROMPTS)
    assert proof.failed == []
    assert next(check for check in proof.checks if check.name == "loads").passed is None
    assert proof.verdict.endswith("cannot be told: loads, behaviour; the proof on record, over 12 prompts, was kept")
    assert prove(run.export / "merged_16bit", prompts=PROMPTS).cause == "unreadable"


def test_the_sum_with_the_16_bit_base_is_proven_only_as_a_model_of_its_own(home, monkeypatch):
    here(monkeypatch)
    proof = prove(export(proven_run(precision="nf4"), ["adapter"])["adapter"], prompts=PROMPTS)
    line = next(line for line in proof.unproven if "vLLM loads it" in line)
    assert line.endswith("`merged_16bit`, made with `--into base`, is that sum")


@pytest.mark.parametrize("eos", [None, 3])
def test_a_base_that_ends_otherwise_is_no_fault_of_the_adapter(home, monkeypatch, eos):
    here(monkeypatch)
    base = changed_model(home / "base", lambda tensors, config: config.update(eos_token_id=eos))
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    run = proven_run(source=base)
    proof = prove(export(run, ["adapter"])["adapter"], prompts=PROMPTS)
    assert proof.passed, str(proof)
    assert any("generate with eos_token_id=2" in line for line in proof.unproven)


def test_a_run_that_learnt_nothing_gets_one_verdict_in_all_formats(home, monkeypatch):
    here(monkeypatch)
    run = proven_run(adapter=saved_adapter(0.0))
    for proof in prove(export(run, into="base"), prompts=PROMPTS):
        assert proof.failed == [], str(proof)
        assert "the run changed nothing" in str(proof)


def test_what_cannot_be_proven_is_an_error_with_a_remedy(run, tmp_path):
    def nothing_reward(completions, **columns):
        return [0.0] * len(completions)

    with pytest.raises(DataError, match="0 held-out prompts"):
        prove(run.export / "adapter", task=Task("t", [{"prompt": "?"}], [nothing_reward]))
    run.update_manifest(attached=True)
    with pytest.raises(RunError, match=r"wb\.prove\(artefact, task="):
        prove(run.export / "adapter")
    shutil.rmtree(run.export)
    with pytest.raises(ExportError, match="no artefact in"):
        prove("r")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ExportError, match=r"no passport\.json"):
        prove(tmp_path / "empty")


def test_an_artefact_far_from_its_run_needs_it_named(run, tmp_path):
    away = shutil.copytree(run.export / "adapter", tmp_path / "downloads" / "mine")
    with pytest.raises(ExportError, match="give the run"):
        prove(away)
    assert prove(away, run=run, prompts=PROMPTS).passed


def test_the_command_proves_in_processes_of_its_own(run):
    def command(*words):
        line = [sys.executable, "-m", "workbench", "prove", *words, "--prompts", str(PROMPTS)]
        return subprocess.run(line, capture_output=True, text=True)

    done = command(str(run.export / "merged_16bit"), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["passed"] is True
    assert found["proofs"][0]["format"] == "merged_16bit"
    assert "proving merged_16bit" in done.stderr  # into a file, too, where no bar is drawn
    put_tensors(run.export / "merged_16bit", tensors(MODEL_DIR))
    restamp(run.export / "merged_16bit", run)
    done = command(str(run.path))
    assert done.returncode == 1
    assert CAUSES["other_weights"] in done.stdout
    assert command("nowhere").returncode == 2


def test_off_the_grid_the_sum_is_another_policy(home, monkeypatch):
    """Only behaviour can tell: the tensors are base + adapter exactly, and the live policy was never that."""
    from off_grid import moved_run, off_grid_base

    from workbench.exporting.risk import merge_risk

    here(monkeypatch)
    first = proven_run("first", precision="nf4", adapter=saved_adapter(0.005))
    base = off_grid_base(home / "base", first.final)
    run = RunDirectory(moved_run(first.path, base, home / "runs" / "moved"))
    assert merge_risk(run).into == "dequantised"
    proof = prove(export(run, ["merged_16bit"], into="base")["merged_16bit"], prompts=24)
    assert (proof.cause, next(check.passed for check in proof.checks if check.level == "weights")) == ("worse", True)
    assert "--into dequantised --overwrite" in proof.failed[0].remedy
    assert "merged_16bit, merged into the 16-bit base: FAILED" in proof.verdict
    proofs = prove(export(run, ["adapter", "merged_16bit"], into="dequantised", overwrite=True), prompts=24)
    assert proofs.passed, str(proofs)
    assert ["dequantised 4-bit weights: passed" in proof.verdict for proof in proofs] == [False, True]
    assert proofs[1].measured["reward"]["artefact"] == pytest.approx(proofs[1].measured["reward"]["policy"], abs=0.1)
