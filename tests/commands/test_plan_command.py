"""`workbench plan`, `train`, `control`, `watch` and `continue` as a terminal sees them: output, files, exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys

import pytest
import yaml
from commanding import workbench_process as workbench
from driving import waited_for
from hostile import HOSTILE, obeyed, run_command

from workbench.recipe import Recipe
from workbench.run.directory import open_run

SCRIPT = """
from trl import GRPOConfig, GRPOTrainer
raise SystemExit("this script is read and never run")
args = GRPOConfig(output_dir="out", kl_coef=0.05, max_new_tokens=64, num_generation=4, per_device_train_batch_size=2,
                  gradient_accumulation_steps=2, warmup_ratio=0.1, max_steps=20, learning_rate=1e-5)
trainer = GRPOTrainer("tiny", args=args)
"""


def test_a_script_is_read_translated_and_written_as_a_recipe(home, monkeypatch, capfd):
    monkeypatch.chdir(home)
    (home / "train.py").write_text(SCRIPT)
    code, out, err = run_command(monkeypatch, capfd, "plan", "train.py", "--vram", "16", "--out", "mine.yaml", "--json")
    assert code == 0, err
    found = json.loads(out)
    told = "\n".join([found["words"], *found["notes"], found["memory"]["verdict"]])
    for said in (
        "kl_coef is called beta",
        "max_new_tokens is called max_completion_length",
        "num_generation is called num_generations",
        "warmup_ratio is called warmup_steps",
        "each learns from 4 completions (1 prompt x 4)",
        "of 16.0 GB",
    ):
        assert said in told
    written = Recipe.load(home / "mine.yaml")
    assert (written.grpo["beta"], written.grpo["num_generations"]) == (0.05, 4)
    assert found["recipe"]["grpo"] == written.grpo
    assert {row["name"]: row["in_force"] for row in found["in_force"]}["beta"] == 0.05


def test_a_script_on_standard_input_and_what_is_wrong_with_it(home, monkeypatch, capfd):
    wrong = SCRIPT.replace("max_steps=20", f"max_steps=20, report_to={HOSTILE!r}")
    monkeypatch.setattr(sys, "stdin", io.StringIO(wrong))
    code, out, err = run_command(monkeypatch, capfd, "plan", "-")
    assert obeyed(out + err) == []
    assert code == 2
    assert "grpo.report_to" in err
    assert out == ""
    slip = SCRIPT.replace("max_steps=20", "max_stepz=20")
    monkeypatch.setattr(sys, "stdin", io.StringIO(slip))
    code, out, err = run_command(monkeypatch, capfd, "plan", "-")
    assert code == 0
    assert re.search("max_stepz.* left out.*max_steps", out)


@pytest.mark.slow
def test_a_run_in_one_terminal_is_steered_from_another_and_goes_on(home):
    grpo = {"max_steps": 3000, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 24}
    asked = {"run_name": "term", "task": "arithmetic", "policy": {"load_in_4bit": False}, "grpo": grpo}
    (home / "r.yaml").write_text(yaml.safe_dump(asked))
    environment = {**os.environ, "WORKBENCH_HOME": str(home)}
    command = [sys.executable, "-m", "workbench", "train", "r.yaml", "--json"]
    training = subprocess.Popen(command, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        waited_for(lambda: (home / "runs" / "term" / "metrics.jsonl").is_file() or training.poll() is not None)
        lighter = workbench("control", "term", "weight", "style_reward", "-0.5", "--json", home=home)
        assert lighter.returncode == 0, lighter.stderr
        assert json.loads(lighter.stdout)["after"]["style_reward"] == -0.5
        refused = workbench("control", "latest", "mute", "nope_reward", home=home)
        assert refused.returncode == 1
        assert "choose from correctness_reward" in refused.stdout + refused.stderr
        unknown = workbench("control", "latest", "stopp", home=home)
        assert unknown.returncode == 2
        assert "did you mean 'stop'" in unknown.stderr
        assert workbench("control", "term", "stop", home=home).returncode == 0
        printed, _ = training.communicate(timeout=300)
    finally:
        training.kill()
    found = json.loads(printed)
    assert (found["status"], training.returncode) == ("stopped", 0)
    shown = workbench("watch", "term", "--once", home=home)
    assert f"stopped after {found['steps']} steps" in shown.stdout
    late = workbench("control", "term", "pause", home=home)
    assert late.returncode == 2
    assert "workbench continue" in late.stderr
    run = open_run(home / "runs" / "term")
    recipe = run.recipe()
    recipe.grpo["max_steps"] = found["steps"] + 2
    recipe.save(run.path / "recipe.yaml")
    gone_on = workbench("continue", "term", "--json", home=home)
    assert json.loads(gone_on.stdout)["steps"] == found["steps"] + 2
    assert run.metrics()[-1]["rewards/style_reward/weight"] == -0.5
