"""Runs of TRL's own trainer: what it left becomes a run that the views read."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas
import pytest
from planted import healthy, planted

import workbench as wb
from workbench import inspection
from workbench.base.errors import RunError
from workbench.run.rollouts import read_batches
from workbench.tiny import MODEL_DIR
from workbench.training import plain


def left_by_trl(folder, steps=(1, 2)):
    """Two prompts x 2 completions a step, as TRL writes them; `source` is a number that is no reward."""
    (folder / "completions").mkdir(parents=True)
    for step in steps:
        columns = {
            "step": [step] * 4, "prompt": ["a?", "a?", "b?", "b?"], "completion": ["1", "2", "3", "4"],
            "right_reward": [1.0, 0.0, 0.0, float(step == 2)], "short_reward": [0.5, 0.5, None, 0.25], "source": [7, 7, 7, 7],
            "advantage": [0.7, -0.7, 0.0, float(step)],
        }  # fmt: skip
        pandas.DataFrame(columns).to_parquet(folder / "completions" / f"completions_{step:05d}.parquet")
    (folder / "checkpoint-2").mkdir()
    log = [{"step": step, "reward": 0.5, "rewards/right_reward/mean": 0.25, "rewards/short_reward/mean": 0.4} for step in steps]
    (folder / "checkpoint-2" / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    return folder


def test_a_run_of_trls_is_read_in_one_call(home):
    run = inspection.read_record(left_by_trl(home / "theirs"), weights={"short_reward": 2.0})
    assert (run.name, run.result()["status"], len(run.metrics())) == ("theirs", "finished", 2)
    [first, second] = read_batches(run)
    assert first.names == ["right_reward", "short_reward"]
    assert first.num_generations == 2
    assert first.totals.tolist() == [2.0, 1.0, 0.0, 0.5]
    assert second.advantages.tolist() == [0.7, -0.7, 0.0, 2.0]  # theirs, not computed anew
    assert second.right.tolist() == [True, False, False, True]
    frame = wb.by_step(run).frame
    assert frame["share of right_reward > 0"].tolist() == [0.25, 0.5]  # nobody has said that it is this one
    said = inspection.read_record(home / "theirs", "said", right_by=("short_reward", 0.5))
    assert wb.by_step(said).frame["share_right"].tolist() == [0.5, 0.5]
    assert np.isnan(frame["length_tokens"]).all()  # TRL does not keep it
    assert inspection.browse(run, "total > 1").frame["completion"].tolist() == ["1", "1", "4"]
    assert inspection.never_mixed(run).frame["prompt"].tolist() == []
    assert "not evaluated" in inspection.write_report(run).read_text()


def test_what_is_not_there_is_an_error_that_says_what_is(home):
    with pytest.raises(RunError, match=r"no completions/completions_\*.parquet"):
        inspection.read_record(home)
    folder = left_by_trl(home / "theirs")
    with pytest.raises(RunError, match="'source': no function of this run"):
        inspection.read_record(folder, right_by="source")
    assert not (home / "runs").exists()


def test_parts_without_their_run_are_read(home):
    theirs = planted("theirs", healthy, steps=3)
    folder = shutil.copytree(theirs.rollouts, home / "downloaded")
    with pytest.raises(RunError, match="runs/theirs: a run of the workbench"):
        inspection.read_record(theirs.path)
    with pytest.raises(RunError, match="parts of a record hold their weights"):
        inspection.read_record(folder, right_by="correctness_reward")
    run = inspection.read_record(folder)
    assert (run.name, run.result()["steps"]) == ("downloaded", 3)
    assert wb.by_step(run).frame.equals(wb.by_step(theirs).frame)
    assert [row["reward"] for row in run.metrics()] == pytest.approx(wb.by_step(run).frame["reward"].tolist())
    assert inspection.failures(run).frame.equals(inspection.failures(theirs).frame)
    assert "<img" in inspection.write_report(run).read_text()
    (folder / "step-0000002-00.parquet").write_bytes(b"no Parquet")
    with pytest.raises(RunError, match="step-0000002-00"):
        inspection.read_record(folder, "again")
    assert not (home / "runs" / "again").exists()


@pytest.mark.slow
def test_a_real_run_of_trls_trainer_is_read(home):
    plain.version()  # imports what must come first
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def number_reward(completions, answer, **kwargs):
        return [1.0 if right in text else 0.0 for text, right in zip(completions, answer)]

    rows = Dataset.from_list([{"prompt": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(16)])
    config = GRPOConfig(
        output_dir=str(home / "theirs"), max_steps=2, num_generations=4, per_device_train_batch_size=8,
        max_completion_length=16, logging_steps=1, log_completions=True, report_to="none", bf16=False, save_steps=2,
    )  # fmt: skip
    trainer = GRPOTrainer(model=str(MODEL_DIR), reward_funcs=[number_reward], args=config, train_dataset=rows)
    trainer.train()
    run = inspection.read_record(home / "theirs", "mine")
    batches = list(read_batches(run))
    assert [batch.step for batch in batches] == [1, 2]
    assert {batch.num_generations for batch in batches} == {4}
    assert [len(batch.completions) for batch in batches] == [8, 8]
    logged = [row["rewards/number_reward/mean"] for row in run.metrics() if "reward" in row]
    assert [float(batch.scores.mean()) for batch in batches] == pytest.approx(logged)
    assert wb.explain_group(run).step == 2
