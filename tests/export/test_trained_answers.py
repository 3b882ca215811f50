"""What a trained policy answers, in each form that others load: beside its run, and away from it."""

from __future__ import annotations

import shutil

import pytest

from workbench.exporting.chat import ask
from workbench.exporting.making import export
from workbench.recipe import Recipe
from workbench.run.directory import open_run
from workbench.training.trainer import train


@pytest.mark.slow
def test_a_trained_policy_adds_up_in_every_form(home, tmp_path):
    pytest.importorskip("llama_cpp")
    grpo = {
        "max_steps": 30, "num_generations": 8, "per_device_train_batch_size": 64, "max_completion_length": 96,
        "learning_rate": 1e-3, "beta": 0.001, "temperature": 1.0,
    }  # fmt: skip
    train(Recipe.of({"run_name": "adds", "task": "arithmetic", "policy": {"backend": "transformers"}, "grpo": grpo}))
    for format, made in export(open_run("adds"), ["adapter", "merged_16bit", "gguf_f16"]).artefacts.items():
        for asked in (made, shutil.copytree(made.path, tmp_path / "away" / format)):
            answer = ask(asked, "What is 15 + 27?")
            assert answer.partition("<answer>")[2].partition("</answer>")[0].strip() == "42", (format, answer)
