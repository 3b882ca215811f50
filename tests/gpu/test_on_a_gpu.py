"""What only a GPU can show of Unsloth's path: loading, training, going on, merging, and what a step needs of memory."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from workbench.data.rendering import prompt_text
from workbench.exporting import passport
from workbench.exporting.artefacts import Artefact
from workbench.exporting.merging import sixteen_bit_base
from workbench.exporting.proving import prove
from workbench.recipe import Recipe
from workbench.run.control_file import send
from workbench.run.rollouts import query
from workbench.tiny.task import task as arithmetic
from workbench.training.policy import load_policy
from workbench.training.sampling import logprobs_of, sample
from workbench.training.trainer import continue_run, train

pytestmark = pytest.mark.gpu
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

STEPS = 4
GRPO = {
    "max_steps": STEPS,
    "num_generations": 8,
    "per_device_train_batch_size": 32,
    "max_completion_length": 48,
    "learning_rate": 5e-3,
    "beta": 0.01,
}
# Not `entropy`: Unsloth's trainer on a GPU has a compute_loss of its own, which logs none.
METRICS = {
    "reward", "reward_std", "group_reward_std", "loss", "kl", "learning_rate", "grad_norm", "step_time",
    "completions/mean_length", "completions/max_length", "completions/clipped_ratio", "time/generate_s", "time/train_s",
    "rewards/correctness_reward/mean",
}  # fmt: skip


class StopsAfter:
    """A watcher that asks for a stop so that `steps` are trained."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def begin(self, run, total_steps, settings):
        self.run = run

    def update(self, step, values):
        if step == self.steps - 1:
            send(self.run, "stop", by="test")

    def end(self, message):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def trained(folder):
    """(a run that was never stopped, the policy that it trained)."""
    import torch

    assert torch.cuda.is_available()  # what holds on a CPU, too, must not pass for a GPU's
    policy = load_policy("tiny")
    run = train(Recipe.of({"run_name": "whole", "grpo": GRPO}), policy=policy, task=arithmetic(64, 8), runs=folder)
    return run, policy


def test_nf4_is_loaded_on_the_gpu(trained):
    _, policy = trained
    assert policy.model.device.type == "cuda"
    assert policy.linear4bit == 7 * policy.model.config.num_hidden_layers
    assert policy.precision == "nf4"
    assert policy.compute_dtype in ("bfloat16", "float16")


def test_it_trains_with_unsloths_trainer_and_in_float32(trained):
    run, policy = trained
    assert "unsloth" in run.manifest()["trainer"].lower()
    assert run.result()["status"] == "finished"
    assert {str(p.dtype) for p in policy.model.parameters() if p.requires_grad} == {"torch.float32"}


def test_the_metrics_have_the_names_that_are_drawn(trained):
    rows = trained[0].metrics()
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    for row in rows:
        assert set(row) >= METRICS
        assert all(math.isfinite(row[name]) for name in METRICS)
    assert any(row["grad_norm"] > 0 for row in rows)
    assert rows[-1]["kl"] > 0


def test_the_adapter_has_moved(trained):
    _, policy = trained
    moved = [p.abs().max().item() for name, p in policy.model.named_parameters() if "lora_B" in name]
    assert moved
    assert min(moved) > 0


def test_what_stands_beside_a_prompt_does_not_change_its_completion(trained):
    """Prompts of different lengths together and one by one: padded on the wrong side, the short ones would differ."""
    _, policy = trained
    prompts = [[{"role": "user", "content": f"What is {3 * n} + {10**n}?"}] for n in range(8)]
    together = [group[0].ids for group in sample(policy, prompts, temperature=0, max_completion_length=32)]
    alone = [sample(policy, [prompt], temperature=0, max_completion_length=32)[0][0].ids for prompt in prompts]
    found = []
    for prompt, one, other in zip(prompts, together, alone, strict=True):
        place = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
        if place is None:
            assert one == other
            continue
        # In 16 bits a near tie may fall the other way in another batch: how near, in nats.
        ids = policy.tokenizer(prompt_text(prompt, policy.tokenizer), add_special_tokens=False).input_ids
        with policy.generating() as model:
            theirs = logprobs_of(model, [(ids, one[: place + 1]), (ids, other[: place + 1])])
        found.append((place, round(theirs[0][-1] - theirs[1][-1], 3)))
    print("differ at (token, nats apart):", found)
    assert all(abs(apart) < 0.25 for _, apart in found), found


def test_a_stopped_run_goes_on_with_the_prompts_of_one_that_was_not(trained, folder):
    whole, _ = trained
    recipe = Recipe.of({"run_name": "part", "grpo": GRPO})
    part = train(recipe, policy=load_policy("tiny"), task=arithmetic(64, 8), watchers=[StopsAfter(2)], runs=folder)
    assert (part.result()["status"], part.result()["steps"]) == ("stopped", 2)
    continue_run(part, policy=load_policy("tiny"), task=arithmetic(64, 8))
    assert (part.result()["status"], part.result()["steps"]) == ("finished", STEPS)
    columns = 'select step, "group", prompt_id from rollouts order by all'
    assert query(part.rollouts, columns).equals(query(whole.rollouts, columns))
    for mine, theirs in zip(part.metrics(), whole.metrics(), strict=True):
        assert mine["learning_rate"] == pytest.approx(theirs["learning_rate"])
        assert mine["reward"] == pytest.approx(theirs["reward"], abs=1.0)


def test_unsloths_merge_is_base_plus_adapter(trained, tmp_path):
    run, policy = trained
    merged = Artefact(tmp_path / "merged", "merged_16bit", sixteen_bit_base(policy.source), "base", run)
    policy.model.save_pretrained_merged(str(merged.path), policy.tokenizer, save_method="merged_16bit")
    passport.stamp(merged.path, merged)
    proof = prove(merged, task=arithmetic(64, 8))
    assert proof.passed, proof


def test_the_first_steps_memory_lies_within_the_estimate(tmp_path, monkeypatch):
    """On a model so large that the GPU's own workspaces do not matter."""
    import torch

    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from gpu.clock import Clock
    from gpu.memory import counted_peak
    from gpu.models import TOY_CONFIG, random_model, word_task

    config = {**TOY_CONFIG, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
    config |= {"num_hidden_layers": 12, "vocab_size": 32768, "max_position_embeddings": 1024}
    folder = random_model(tmp_path / "model", config, "cuda")
    grpo = {**GRPO, "max_steps": 2, "max_completion_length": 256, "gradient_checkpointing": False, "beta": 0.0}
    recipe = Recipe.of({"run_name": "m", "grpo": grpo, "policy": {"name": str(folder), "max_seq_length": 512}})
    policy = load_policy(str(folder), max_seq_length=512)
    torch.cuda.empty_cache()
    clock = Clock(600)  # its `begin` resets the counter: loading is another matter
    run = train(recipe, policy=policy, task=word_task(32, 128), watchers=[clock], runs=tmp_path / "runs")
    found = run.manifest()["memory"]
    predicted = counted_peak(found["estimate"])
    workspaces = 200 * 2**20
    assert 0.95 * predicted["low"] <= found["measured_peak_bytes"] <= 1.05 * predicted["high"] + workspaces


def test_the_suite_runs_at_toy_size(tmp_path):
    """Parts and arms in processes of their own, as on a loan."""
    import json
    import subprocess

    command = [sys.executable, str(BENCHMARKS / "gpu" / "run.py"), "--device", "cuda", "--toy", "--out", str(tmp_path)]
    command += ["--part", "arms", "--part", "memory", "--only", "nf4-auto-16", "--minutes", "9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    unit = json.loads((tmp_path / "arms" / "unsloth-nf4-auto-16-r0.json").read_text())
    assert unit["status"] == "measured"
    assert unit["device"]["kind"] == "cuda"
    assert unit["allocated_bytes"] > 0
    rows = json.loads((tmp_path / "all.json").read_text())["files"]["memory.json"]["rows"]
    assert all(row["ratio"] > 0 for row in rows)
    assert {row["unit"] for row in rows} >= {"unsloth-nf4-auto-16-r0", "unsloth-nf4-auto-16-r0-unchecked"}
