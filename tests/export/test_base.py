"""Another base than the run had: told where it is exported, proven, verified and gone on with."""

from __future__ import annotations

import hashlib
import shutil

import pytest
from made_runs import changed_model
from proven_runs import here, proven_run
from sabotage import edit_json, put_tensors, tensors

from workbench.base.errors import ExportError, RunError
from workbench.exporting import merging
from workbench.exporting.checks import CAUSES
from workbench.exporting.making import export
from workbench.exporting.passport import verify
from workbench.exporting.proving import prove
from workbench.recipe import Recipe
from workbench.tiny import MODEL_DIR
from workbench.training.plan.loading import base_differs, base_files, base_summed
from workbench.training.trainer import continue_run, train

HUB = {"name": "me/base-bnb-4bit", "revision": "a" * 40}


def one_weight(base) -> None:
    """One weight of a base, as its next revision could have it."""
    found = tensors(base)
    found["model.layers.0.mlp.up_proj.weight"][0, 0] += 1
    put_tensors(base, found)


def one_setting(base) -> None:
    edit_json(base / "config.json", rms_norm_eps=2e-6)


CHANGES = {one_weight: "model.safetensors", one_setting: "config.json"}


@pytest.fixture
def base(home):
    return changed_model(home / "base", lambda *_: None)


# -- what a base is -------------------------------------------------------------------------------------------------------
def test_a_folder_is_its_weights_config_and_tokenizer_byte_by_byte(base):
    (base / "README.md").write_text("a card decides nothing")
    (base / "optimizer.pt").write_bytes(b"nor does this")
    weights = (base / "model.safetensors").read_bytes()
    found = base_files(base)
    assert found["model.safetensors"] == [len(weights), hashlib.sha256(weights).hexdigest()]
    assert {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"} <= found.keys()
    assert not found.keys() & {"README.md", "optimizer.pt"}
    assert base_summed(base)() == found
    assert base_files("tiny") == base_files(MODEL_DIR)
    # A file of the same size, written a moment later, by the same process.
    (base / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    assert base_differs(found, base_files(base)) == "model.safetensors"
    (base / "model.safetensors").write_bytes(weights)
    assert base_differs(found, base_files(base)) == ""
    (base / "chat_template.jinja").unlink()
    assert base_differs(found, base_files(base)) == "chat_template.jinja"


def test_a_hub_name_is_the_revision_in_the_cache(tmp_path, monkeypatch):
    from huggingface_hub import constants

    folder = tmp_path / "models--me--base-bnb-4bit"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert base_files(HUB["name"]) == base_files("LlamaForCausalLM") == {}
    for letter in "ab":
        (folder / "snapshots" / (letter * 40)).mkdir(parents=True)
        (folder / "snapshots" / (letter * 40) / "config.json").write_text("{}")
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(letter * 40)
        assert base_files(HUB["name"]) == HUB | {"revision": letter * 40}
    assert base_differs(HUB, base_files(HUB["name"])) == f"revision {'b' * 40}, then {'a' * 40}"


@pytest.mark.parametrize(
    ("then", "now"), [(None, HUB), ({}, HUB), (HUB, {}), (HUB, HUB | {"name": "me/base"}), (HUB, {"a": [1]})]
)
def test_what_is_not_known_is_not_compared(then, now):
    assert base_differs(then, now) is None


# -- a run that was trained ----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A workspace with a run of two steps, and its base beside it. Not to be changed."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_HOME", str(home))
        shutil.copytree(MODEL_DIR, home / "base")
        policy = {"name": "base", "backend": "transformers", "load_in_4bit": False}
        grpo = {"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 16}
        train(Recipe.of({"run_name": "r", "policy": policy, "grpo": grpo | {"save_steps": 1}}), watchers=[])
    return home


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    from workbench.run.directory import RunDirectory

    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    here(monkeypatch)
    run = RunDirectory(tmp_path / "runs" / "r")
    run.update_manifest(policy=run.manifest()["policy"] | {"source": str(tmp_path / "base")})
    return run


def test_training_records_what_the_base_was(run, tmp_path):
    assert run.manifest()["policy"]["base"] == base_files(tmp_path / "base")
    assert merging.merge_base_differs(run) == ""


@pytest.mark.parametrize("change", CHANGES)
def test_an_export_from_another_base_is_refused_and_a_forced_one_fails_its_proof(change, run, tmp_path, monkeypatch):
    good = export(run, into="base")
    change(tmp_path / "base")
    with pytest.raises(ExportError) as refused:
        export(run, into="base", overwrite=True)
    assert refused.value.value.endswith(f"base: not as r loaded it: {CHANGES[change]}")
    assert refused.value.remedy.startswith("restore its files, or its revision")
    with monkeypatch.context() as patched:
        patched.setattr(merging, "merge_base_differs", lambda run: "")
        forced = export(run, ["merged_16bit"], into="base", overwrite=True)["merged_16bit"]
    for artefact in (forced, good["adapter"]):
        proof = prove(artefact, prompts=4)
        assert (proof.passed, proof.cause, proof.failed[0].level) == (False, "wrong_base", "files")
        assert proof.failed[0].found.endswith(f"is not as the run loaded it: {CHANGES[change]}")
        assert CAUSES["wrong_base"] in proof.verdict
        assert any(line.startswith("behaviour: not checked") for line in proof.unproven)
    [found] = verify(forced.path)  # without looking at the base
    assert found.differs == (f"the base as the run loaded it: {CHANGES[change]}",)


def test_a_run_goes_on_with_its_own_base_only(run, tmp_path):
    one_weight(tmp_path / "base")
    with pytest.raises(RunError, match=r"the base was changed: model\.safetensors"):
        continue_run(run, steps=1, watchers=[])
    continue_run(run, steps=1, watchers=[], accept_changes=True)
    assert merging.merge_base_differs(run) == ""  # what was accepted is what the run has from here on


def test_somebody_s_own_trainer_is_recorded_with_its_base(home):
    from trl import GRPOConfig, GRPOTrainer

    import workbench as wb
    from workbench.training import plain

    model, tokenizer, _ = plain.load_base(str(MODEL_DIR), load_in_4bit=False, max_seq_length=256, dtype=None)
    config = GRPOConfig(output_dir=str(home / "out"), max_steps=1, num_generations=4, per_device_train_batch_size=4,
                        max_completion_length=8, report_to="none", use_cpu=True)  # fmt: skip
    from datasets import Dataset

    def zero_reward(completions, **columns):
        return [0.0] * len(completions)

    rows = Dataset.from_list([{"prompt": "1 + 1 ="}] * 4)
    trainer = GRPOTrainer(model=model, reward_funcs=[zero_reward], args=config, train_dataset=rows, processing_class=tokenizer)
    run = wb.attach(trainer, run_name="theirs", watchers=None)
    trainer.train()
    assert run.manifest()["policy"]["base"] == base_files(MODEL_DIR)


# -- what cannot be told -----------------------------------------------------------------------------------------------
def test_an_older_run_cannot_be_told_and_does_not_fail(home, monkeypatch):
    here(monkeypatch)
    run = proven_run()
    policy = run.manifest()["policy"]
    run.update_manifest(policy={name: own for name, own in policy.items() if name != "base"})
    proof = prove(export(run, ["adapter"])["adapter"], prompts=4)
    assert proof.passed, str(proof)
    check = next(check for check in proof.checks if check.name == "the base that it was trained on")
    assert (check.mark, "is not on record" in check.found) == ("cannot be told", True)
    assert str(proof).count(check.found) == 1
    [found] = verify(run.path)
    assert found.passed
    assert found.untold == ("the base as the run loaded it",)


def test_the_16_bit_base_of_a_4_bit_source_is_not_vouched_for(home, monkeypatch):
    from workbench.exporting.artefacts import Artefact
    from workbench.exporting.proving import _base

    run = proven_run(precision="nf4")
    monkeypatch.setattr(merging, "merge_base_differs", lambda run: "")
    merged = Artefact(run.export / "merged_16bit", "merged_16bit", "me/base", "base", run)
    assert (_base(merged, run).passed, "its 16-bit base is not on record" in _base(merged, run).found) == (None, True)
