"""A saved adapter is compared with what training saved, by all that read it: what was damaged since is refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from made_runs import made_run, saved_adapter
from proven_runs import proven_run

import workbench as wb
from workbench.base.errors import RunError
from workbench.exporting.making import export
from workbench.exporting.passport import verify
from workbench.inspection.evaluation import evaluate
from workbench.recipe import Recipe
from workbench.run import sealed
from workbench.training.plan.loading import adapter_sum, find_adapter

WEIGHTS = "adapter_model.safetensors"


def tensors(folder, change):
    from safetensors.torch import load_file, save_file

    found = load_file(folder / WEIGHTS)
    save_file(change(found), folder / WEIGHTS, {"format": "pt"})


def one_bit(folder):
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (folder / WEIGHTS).write_bytes(content)


def an_older_one(folder):
    shutil.copyfile(saved_adapter(seed=1) / WEIGHTS, folder / WEIGHTS)


def half_as_much_again(folder):
    tensors(folder, lambda found: {name: 1.5 * own for name, own in found.items()})


def not_a_number(folder):
    tensors(folder, lambda found: {name: float("nan") * own for name, own in found.items()})


def a_tensor_missing(folder):
    tensors(folder, lambda found: dict(sorted(found.items())[1:]))


def another_scale(folder):  # the same as half as much again, in the other file
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 24}))


def no_weights(folder):
    (folder / WEIGHTS).unlink()


DAMAGES = [one_bit, an_older_one, half_as_much_again, not_a_number, a_tensor_missing, another_scale, no_weights]


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The folder of a sealed run with an exported adapter."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("WORKBENCH_HOME", str(home := tmp_path_factory.mktemp("good")))
        run = proven_run()
        export(run, ["adapter"])
    return home / "runs" / run.name


@pytest.fixture(params=DAMAGES, ids=lambda damage: damage.__name__)
def damaged(request, good, home):
    shutil.copytree(good, home / "runs" / good.name)
    run = wb.open_run(good.name)
    request.param(run.final)
    return run


READERS = {
    "adapter": lambda run: run.adapter,
    "export": lambda run: export(run, ["merged_16bit"]),
    "eval": lambda run: evaluate(run, held_out=2, samples=1),
    "prove": lambda run: wb.prove(run.export / "adapter", prompts=2),
    "ask": lambda run: wb.ask(run.final, "What is 1 + 2?"),
    "begin from it": lambda run: wb.plan(Recipe.of({"task": "arithmetic", "policy": {"adapter": str(run.final)}})),
}


def test_each_damage_is_refused_by_each_reader(damaged):
    changed = "adapter_config.json" if "24" in (damaged.final / "adapter_config.json").read_text() else WEIGHTS
    for name, reads in READERS.items():
        with pytest.raises(RunError) as refused:
            reads(damaged)
        assert refused.value.value.startswith(f"runs/r/checkpoints/final: {changed}"), name
        assert refused.value.rule == "a saved adapter is used as training saved it, to the byte"
        assert refused.value.remedy
    [report] = verify("r")
    assert [line.partition(":")[0] for line in report.differs] == ["runs/r/checkpoints/final"]
    assert "the adapter is the run's" in report.holds  # the export was made before
    assert sealed.unlike_saved(damaged.final) == list(report.differs)  # what `continue` says


def test_what_is_whole_passes_and_so_does_an_export_of_it(good, home):
    shutil.copytree(good, home / "runs" / good.name)
    run = wb.open_run(good.name)
    assert run.adapter == run.final == Path(find_adapter(run.final))
    assert (sealed.unlike_saved(run.final), sealed.unsummed(run), sealed.retold(run)) == ([], "", "")
    assert [report.passed for report in verify("r")] == [True]


def test_the_remedy_names_a_folder_with_the_bytes_that_were_saved(home):
    run = made_run()
    for name in ("checkpoint-3", "checkpoint-5"):
        shutil.copytree(run.final, run.checkpoints / name)
    one_bit(run.checkpoints / "checkpoint-3")
    one_bit(run.final)
    with pytest.raises(RunError) as refused:
        _ = run.adapter
    assert "runs/r/checkpoints/checkpoint-5/adapter_model.safetensors" in refused.value.remedy
    shutil.copyfile(run.checkpoints / "checkpoint-5" / WEIGHTS, run.final / WEIGHTS)  # as it says
    assert run.adapter == run.final


def test_an_export_of_a_damaged_adapter_is_not_the_runs(home):
    # As a version without sums would have made it; the final adapter is put back since.
    run = made_run()
    good = run.manifest()["saved"]
    run.update_manifest(saved={})
    half_as_much_again(run.final)
    export(run, ["adapter"])
    shutil.copyfile(saved_adapter() / WEIGHTS, run.final / WEIGHTS)
    run.update_manifest(saved=good)
    [report] = verify("r")
    assert [line.partition(",")[0] for line in report.differs] == ["the adapter is not the run's"]


def test_a_run_of_an_older_version_is_said_and_not_refused(home):
    run = made_run()
    run.update_manifest(saved={})
    line = "runs/r/checkpoints/final: recorded without a sum, cannot be compared with what training saved"
    assert sealed.unsummed(run) == line
    assert line in export(run, ["adapter"]).notes
    one_bit(run.final)
    assert run.adapter == run.final
    assert verify("r")[0].untold[-1] == line


def test_a_checkpoint_is_compared_with_its_own_state(home):
    run = made_run()
    shutil.rmtree(run.final)
    folders = [Path(shutil.copytree(saved_adapter(), run.checkpoints / f"checkpoint-{step}")) for step in (4, 8)]
    for step, folder in zip((4, 8), folders, strict=True):
        files = {WEIGHTS: [(folder / WEIGHTS).stat().st_size, adapter_sum(folder)], "optimizer.safetensors": [1, "gone"]}
        (folder / "state.json").write_text(json.dumps({"step": step, "files": files}))
    assert run.adapter == folders[1]
    one_bit(folders[1])
    with pytest.raises(RunError, match="checkpoint-8: adapter_model.safetensors was changed"):
        _ = run.adapter
    shutil.rmtree(folders[1])
    shutil.copytree(folders[0], folders[1])  # the older one, whole, under the newer one's name
    with pytest.raises(RunError, match="checkpoint-8: it holds checkpoint-4"):
        _ = run.adapter
    # Somebody's own copy goes by the name that they gave it.
    mine = shutil.copytree(folders[0], home / "checkpoint" / "mine")
    assert find_adapter(mine) == str(mine)


def test_a_recipe_or_a_task_that_was_changed_after_training_is_not_exported_as_trained(good, home):
    shutil.copytree(good, home / "runs" / good.name)
    run = wb.open_run(good.name)
    Recipe.of({**run.recipe().model_dump(), "seed": 9}).save(run.path / "recipe.yaml")
    for reads in (lambda: export(run, ["adapter"]), lambda: wb.prove(run.export / "adapter", prompts=2)):
        with pytest.raises(RunError, match="recipe.yaml changed since it was trained") as refused:
            reads()
        assert refused.value.rule == "a run's recipe and task say what was trained"
    assert any("recipe.yaml changed since" in line for line in verify("r")[0].differs)
    recipe = run.recipe()  # the base may lie elsewhere on another machine: its own sums are on record
    Recipe.of(
        {**recipe.model_dump(), "seed": 0, "run_name": "moved", "policy": {**recipe.policy.model_dump(), "name": "tiny"}}
    ).save(run.path / "recipe.yaml")
    assert sealed.retold(run) == ""
    (run.path / "task.py").write_text("")
    assert sealed.retold(run).startswith("task.py changed")
    (run.path / "recipe.yaml").write_text("seed: none")
    assert sealed.retold(run).startswith("recipe.yaml and task.py changed")
    run.update_manifest(result=None, before={"steps": 1})  # it resumed, which compares them itself
    assert sealed.retold(run) == ""


@pytest.mark.filterwarnings("ignore:manifest.json. saved:UserWarning")
@pytest.mark.parametrize("sums", ["x", {}, None])
def test_an_odd_record_of_one_adapter_s_sums_is_as_none(home, sums):
    run = made_run()
    run.update_manifest(saved={"final": sums})
    assert sealed.recorded_sums(run.final) is None
    assert sealed.unsummed(run)


def test_an_odd_record_of_sums_is_no_traceback(home):
    run = made_run()
    run.update_manifest(saved=[1])
    with pytest.raises(RunError, match="saved = "):
        export(run, ["adapter"])
    run.write_json("manifest.json", {**json.loads((run.path / "manifest.json").read_text()), "saved": {}})
    assert sealed.unsummed(run)


@pytest.mark.slow
def test_every_end_of_training_records_the_sums_of_what_it_saved(home):
    from workbench.training.trainer import continue_run, train

    grpo = {"max_steps": 3, "num_generations": 4, "per_device_train_batch_size": 8, "save_steps": 2}
    grpo["max_completion_length"] = 16
    asked = {"run_name": "t", "grpo": grpo, "policy": {"load_in_4bit": False}, "eval_every": 1}
    run = train(Recipe.of(asked))
    names = {"final", "run", *(folder.name for folder in run.saved("best"))}
    assert run.manifest()["saved"].keys() == names
    assert run.manifest()["saved"]["run"]["recipe.yaml"]  # a task that ships is no file of the run's
    for folder in [run.final, *run.saved("best"), *run.saved()]:
        sums, _ = sealed.recorded_sums(folder)
        assert sums[WEIGHTS][1] == adapter_sum(folder)
    before = sealed.weights(run.final)
    one_bit(run.final)
    with pytest.raises(RunError, match="final: adapter_model.safetensors was changed"):
        evaluate(run, held_out=2, samples=1)
    continue_run(run, steps=2)  # from checkpoint-3 or -2, which are whole: it says so, and mends it
    [said] = [event for event in run.events() if event["event"] == "changed"]
    assert any("checkpoints/final: adapter_model.safetensors was changed" in line for line in said["shown"])
    assert sealed.weights(run.final) == adapter_sum(run.adapter) != before
    assert (sealed.unlike_saved(run.final), sealed.retold(run)) == ([], "")
