"""Evaluating a run: every completion kept, nothing measured twice, checkpoints and greedy beside base and trained."""

from __future__ import annotations

import json
import re
import shutil

import pyarrow.parquet as pq
import pytest
import torch
from hostile import run_command
from safetensors.torch import load_file, save_file

from workbench.base.errors import DataError, RunError
from workbench.base.workspace import size_and_sum
from workbench.inspection.evaluation import FILE, evaluate, last_measured, measure_policy, read_evaluation
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory
from workbench.run.sealed import saved_with
from workbench.tiny import MODEL_DIR
from workbench.tiny.task import task as arithmetic
from workbench.training.policy import load_policy
from workbench.training.trainer import train

PROMPTS = 70  # three batches of 128 completions, at 4 a prompt
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> RunDirectory:
    """A run of two steps, each with a checkpoint, at a learning rate that shows."""
    grpo = {
        "max_steps": 2, "save_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8, "learning_rate": 1e-2,
        "max_completion_length": 48,
    }  # fmt: skip
    recipe = Recipe.of({"run_name": "r", "task": "arithmetic", "grpo": grpo})
    return train(recipe, runs=tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(trained, tmp_path) -> RunDirectory:
    """A copy of it."""
    return RunDirectory(shutil.copytree(trained.path, tmp_path / "runs" / "r"))


@pytest.fixture(scope="module")
def whole(trained, tmp_path_factory) -> RunDirectory:
    """Another, evaluated in one go."""
    run = RunDirectory(shutil.copytree(trained.path, tmp_path_factory.mktemp("whole") / "r"))
    evaluate(run, held_out=PROMPTS, samples=4)
    return run


def batches(run: RunDirectory, **asked) -> tuple[list[int], dict]:
    """(prompts done after each batch that was measured, what was found)."""
    done = []
    found = evaluate(run, progress=lambda own, total: done.append(own), **{"held_out": PROMPTS, "samples": 4, **asked}).found
    return done, found


def completions(run: RunDirectory, who: str) -> list[str]:
    return [row["completion"] for row in pq.read_table(run.path / FILE).to_pylist() if row["who"] == who]


def test_every_completion_is_kept(whole):
    rows = pq.read_table(whole.path / FILE).to_pylist()
    assert len(rows) == 2 * PROMPTS * 4
    row = rows[0]
    assert {name: row[name] for name in ("who", "how", "generation")} == {"who": "base", "how": "sampled", "generation": 0}
    task = arithmetic()
    [asked] = [own for own in task.with_ids(task.held_out) if own["prompt_id"] == row["prompt_id"]]
    assert json.loads(row["prompt"]) == asked["prompt"]
    assert 0 < row["length_tokens"] <= 48
    for row in rows:
        scores = {name: row[f"score.{name}"] for name in task.function_names}
        assert row["total"] == pytest.approx(sum(scores.values()))
        assert row["right"] == (scores["correctness_reward"] > 0)
        assert row["format"] == (scores["strict_format_reward"] > 0)
    found = whole.read_json("evaluation.json")
    assert found["before"]["finished"] == pytest.approx(sum(row["finished"] for row in rows[: PROMPTS * 4]) / (PROMPTS * 4))
    assert read_evaluation(whole).found == found
    assert 0 < found["before"]["correct"] < 1


def test_what_a_kill_leaves_is_not_measured_again(run, whole):
    def killed(done: int, total: int) -> None:
        if done >= 64:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(run, held_out=PROMPTS, samples=4, progress=killed)
    with pytest.raises(RunError, match="not whole"):
        read_evaluation(run)
    kept = completions(run, "base")
    assert len(kept) == 64 * 4
    done, found = batches(run)
    assert done == [70, 102, 134, 140]
    assert completions(run, "base")[: 64 * 4] == kept
    assert found == read_evaluation(whole).found
    assert completions(run, "trained") == completions(whole, "trained")


def test_only_what_changed_is_measured_again(whole, tmp_path, trained):
    run = RunDirectory(shutil.copytree(whole.path, tmp_path / "r"))
    assert batches(run)[0] == []
    done, found = batches(run, held_out=40)
    assert (done, found["prompts"]) == ([], 40)
    assert read_evaluation(run).found == found
    assert last_measured(run) == found
    shutil.copy(trained.checkpoints / "checkpoint-1" / "adapter_model.safetensors", run.final)
    run.update_manifest(saved=saved_with(run, run.final))
    assert last_measured(run) is None  # no card and no comparison calls it this adapter's gain
    with pytest.raises(RunError, match="(?s)measured on an older adapter.*workbench eval r"):
        read_evaluation(run)
    assert batches(run)[0] == [102, 134, 140], "another adapter: the base is what it was"
    assert batches(run, seed=1)[0] == [32, 64, 70, 102, 134, 140]
    for file in run.path.glob("evaluation*.parquet"):
        file.write_bytes(b"torn")
    assert len(batches(run)[0]) == 6


def test_a_smaller_evaluation_does_not_cost_the_larger(whole, tmp_path, capsys):
    run = RunDirectory(shutil.copytree(whole.path, tmp_path / "r"))
    larger = read_evaluation(run).found
    done, found = batches(run, held_out=8, samples=2)
    assert (done, found["prompts"]) == ([8, 16], 8)
    assert "under other settings, 70 prompts x 4 completions: kept in evaluation-" in capsys.readouterr().out
    assert read_evaluation(run).found == found  # the last is the one that is read
    assert batches(run) == ([], larger)
    assert batches(run, held_out=8, samples=2) == ([], found)
    assert len([*run.path.glob("evaluation*.parquet")]) == 3


def test_another_base_is_said_and_nothing_of_the_old_one_is_kept(whole, tmp_path, capsys):
    run = RunDirectory(shutil.copytree(whole.path, tmp_path / "r"))
    folder = shutil.copytree(MODEL_DIR, tmp_path / "model")
    policy = run.manifest()["policy"]
    run.update_manifest(policy=policy | {"source": str(folder)})
    assert batches(run)[0] == []  # the same files elsewhere
    assert "the base is not" not in capsys.readouterr().out
    config = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(config | {"top_k": 7}))
    assert len(batches(run)[0]) == 6
    assert "the base is not the one that was trained (generation_config.json)" in capsys.readouterr().out


def test_checkpoints_and_greedy_beside_them(run):
    # Two steps change no likeliest token: the first checkpoint is given an effect of its own.
    spoilt = run.checkpoints / "checkpoint-1"
    tensors = load_file(spoilt / "adapter_model.safetensors")
    torch.manual_seed(0)
    changed = {name: own + 0.5 * torch.randn_like(own) if "lora_B" in name else own for name, own in tensors.items()}
    save_file(changed, weights := spoilt / "adapter_model.safetensors", {"format": "pt"})
    state = json.loads((spoilt / "state.json").read_text())
    state["files"][weights.name] = size_and_sum(weights)
    (spoilt / "state.json").write_text(json.dumps(state))
    done, found = batches(run, held_out=20, greedy=True, checkpoints="all")
    assert done == [20 * number for number in range(1, 9)]  # base, trained and two checkpoints, sampled and greedy
    assert [point["step"] for point in found["curve"]] == [0, 1, 2]
    assert set(found["mcnemar"]) == {"fixed", "broken", "p"}
    rows = pq.read_table(run.path / FILE).to_pylist()
    greedy = [row for row in rows if row["how"] == "greedy"]
    assert len(greedy) == 4 * 20
    # A checkpoint's weights were those that wrote its rows.
    task = arithmetic()
    policy = load_policy(run.recipe(), adapter=spoilt)
    asked = {"samples": 1, "temperature": 0.0, "max_completion_length": 48}
    alone = measure_policy(policy, task, task.held_out[:20], **asked).completions
    assert [[row["completion"]] for row in greedy if row["who"] == "checkpoint-1"] == alone
    assert [[row["completion"]] for row in greedy if row["who"] == "trained"] != alone
    assert [row["completion"] for row in greedy if row["who"] == "checkpoint-2"] == [
        row["completion"] for row in greedy if row["who"] == "trained"
    ]
    with pytest.raises(RunError, match="no checkpoint of step '7'(?s:.*)choose from 1, 2"):
        evaluate(run, checkpoints=[1, 7])
    with pytest.raises(RunError, match="no checkpoint of step 'bset'(?s:.*)'best'"):
        evaluate(run, checkpoints="bset")


def test_one_held_out_prompt_is_refused_before_anything_is_sampled(run):
    with pytest.raises(DataError, match="(?s)1 held-out prompt\n.*at least 2.*raise held_out"):
        evaluate(run, held_out=1)
    assert not (run.path / FILE).exists()


def test_an_evaluation_of_an_older_version_is_not_whole(whole, tmp_path):
    run = RunDirectory(shutil.copytree(whole.path, tmp_path / "r"))
    pq.write_table(pq.read_table(run.path / FILE).drop_columns(["columns"]), run.path / FILE)
    with pytest.raises(RunError, match="(?s)not there, or not whole.*workbench eval r"):
        read_evaluation(run)


def test_what_was_not_measured_cannot_be_read(run):
    with pytest.raises(RunError, match="(?s)evaluation.parquet: not there.*workbench eval r"):
        read_evaluation(run)


def test_the_command_says_what_can_be_told_and_its_code_is_the_answer(run, monkeypatch, capfd):
    monkeypatch.setenv("WORKBENCH_HOME", str(run.path.parents[1]))
    code, out, err = run_command(
        monkeypatch, capfd, "eval", "r", "--held-out", "12", "--samples", "2", "--checkpoints", "1", "--json"
    )
    found = json.loads(out)
    assert code == int(not found["gain"]["low"] > 0)
    assert (found["prompts"], found["samples"], [point["step"] for point in found["curve"]]) == (12, 2, [0, 1, 2])
    # t(11 degrees of freedom) 2.200985 * sqrt(2 / 6 / 24) = 0.2594, times 2.80 / 1.96: 0.3706.
    assert "12 prompts x 2 completions detect a gain of about 37 points with 80 % power" in err
    assert re.search(r"eval: \d+ of \d+ prompts sampled", err)  # into a file, too, where no bar is drawn
    code, out, err = run_command(monkeypatch, capfd, "eval", "r", "--checkpoints", "one")
    assert code == 2
    assert "Traceback" not in err
