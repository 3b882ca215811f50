"""`workbench verify`: artefacts against their passports."""

from __future__ import annotations

import json
import shutil

import pytest
from commanding import workbench
from made_artefacts import made_artefact, made_run

from workbench.base.errors import ExportError
from workbench.exporting.passport import verify
from workbench.recipe import Recipe


def test_an_artefact_its_passport_or_all_of_a_run(home):
    run = made_run()
    first, second = made_artefact(run, "adapter"), made_artefact(run, "gguf_q8_0")
    found = verify(run.path)
    assert [each.artefact for each in found] == ["runs/r/export/adapter", "runs/r/export/gguf_q8_0"]
    assert all(each.passed for each in found)
    assert found[0].holds == (
        "5 files, byte by byte, and the passport itself",
        "the recipe is the run's",
        "the adapter is the run's",
    )
    assert str(found[0]).startswith("runs/r/export/adapter: verified\n  holds    5 files")
    assert verify(first.path / "passport.json") == found[:1]
    assert verify("r") == verify("latest") == found
    (second.path / "model.gguf").write_bytes(bytes(range(255, -1, -1)))
    assert [each.passed for each in verify("runs/r")] == [True, False]
    assert "DIFFERS  model.gguf was changed" in str(verify("runs/r")[1])
    # What is still being written is none yet.
    shutil.copytree(first.path, first.path.with_name(".merged_16bit.part"))
    assert len(verify("runs/r")) == 2


def test_the_run_that_it_lies_in_is_held_against_it(home):
    run = made_run()
    artefact = made_artefact(run)
    recipe = run.recipe()
    Recipe.of({**recipe.model_dump(), "seed": 9}).save(run.path / "recipe.yaml")
    assert verify(artefact.path)[0].differs == ("the recipe is no longer the run's",)
    recipe.save(run.path / "recipe.yaml")
    (run.final / "adapter_model.safetensors").write_bytes(b"gone on")
    assert verify(artefact.path)[0].differs == ("the adapter is not the run's, which may have been trained further since",)
    shutil.rmtree(run.final)
    assert verify(artefact.path)[0].passed
    run.update_manifest(id="another")
    assert verify(artefact.path)[0].differs == ("it was made from another run than r, in whose folder it is",)
    alone = shutil.copytree(artefact.path, home / "sent")
    assert verify(alone)[0].holds == ("4 files, byte by byte, and the passport itself",)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere", "no run or artefact of that name; looked in"),
        ("rr", "did you mean 'r'"),
        ("runs/r", "r: no artefact in runs/r/export"),
        ("runs/r/export", "r: no artefact in runs/r/export"),
        ("runs/r/rollouts", r"neither an artefact \(no passport.json\) nor a run"),
    ],
)
def test_where_there_is_no_artefact(home, path, said):
    made_run()
    with pytest.raises(ExportError, match=said):
        verify(path)


def test_exit_codes_and_json(home):
    artefact = made_artefact(made_run())
    good = workbench("verify", "runs/r", "--json", home=home)
    assert (good.returncode, json.loads(good.stdout)["passed"]) == (0, True)
    (artefact.path / "model.safetensors").write_bytes(b"")
    bad = workbench("verify", "runs/r/export/merged_16bit", home=home)
    assert (bad.returncode, "DIFFERS  model.safetensors was changed: 256 bytes then, 0 now" in bad.stdout) == (1, True)
    (artefact.path / "passport.json").write_bytes(b"{}")
    none = workbench("verify", "runs/r/export/merged_16bit", home=home)
    assert (none.returncode, none.stderr.startswith("ExportError: runs/r/export/merged_16bit/passport.json")) == (2, True)
