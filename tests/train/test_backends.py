"""The plain backend beside Unsloth's: what is trained in, what the trainer is told, and that unsloth stays out of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from workbench.base.errors import PolicyError
from workbench.inspection.evaluation import measure_policy
from workbench.recipe import Recipe
from workbench.run.directory import open_run
from workbench.run.rollouts import query
from workbench.tiny.task import task as arithmetic
from workbench.training.plan import precision
from workbench.training.plan.precision import adapter_in_float32, config_overrides
from workbench.training.plan.prepare import one_gpu
from workbench.training.plan.settings.device import Machine
from workbench.training.policy import Policy, load_policy, trainer_classes
from workbench.training.randomness import random_kept
from workbench.training.trainer import train

GRPO = {"num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 24, "learning_rate": 1e-3}

WITHOUT_UNSLOTH = """
import sys
from datasets import Dataset
from workbench.tiny.task import REWARD_FUNCS, task
from workbench.training.plan.loading import load_tokenizer
from workbench.training.policy import load_policy, trainer_classes
from workbench.training.plan.precision import adapter_in_float32, config_overrides, native_bf16
from workbench.training.sampling import sample
load_tokenizer("tiny"), native_bf16()
policy = load_policy("tiny", backend="transformers", gradient_checkpointing=True)
Config, Trainer = trainer_classes("transformers")
settings = dict(max_steps=2, num_generations=4, per_device_train_batch_size=8, max_completion_length=24,
                learning_rate=1e-3, report_to="none", save_strategy="no", gradient_checkpointing=True, beta=0.01)
more = config_overrides("transformers", policy.compute_dtype, settings, cuda=False)
config = Config(**settings, **more, output_dir=sys.argv[1], disable_tqdm=True)
rows = task(16, 4).rows
trainer = Trainer(model=policy.model, processing_class=policy.tokenizer, reward_funcs=list(REWARD_FUNCS), args=config,
                  train_dataset=Dataset.from_list(list(rows)))
assert adapter_in_float32(policy.model) > 0
before = {name: p.clone() for name, p in policy.model.named_parameters() if p.requires_grad}
trainer.train()
assert all((p != before[name]).any() for name, p in policy.model.named_parameters() if name in before)
sample(policy, [rows[0]["prompt"]], max_completion_length=4)
print(Trainer.__module__, trainer.state.global_step, config.bf16, config.fp16, config.use_cpu)
assert not [name for name in sys.modules if name.split(".")[0] in ("unsloth", "unsloth_zoo")]
print("whole")
"""

WITHOUT_BOTH = """
import importlib.machinery, sys
real = importlib.machinery.PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.split(".")[0] in ("unsloth", "unsloth_zoo", "bitsandbytes") else real(name, path, target)
importlib.machinery.PathFinder.find_spec = staticmethod(find_spec)
import workbench as wb
from workbench.base.extras import MissingError
grpo = dict(max_steps=2, num_generations=4, per_device_train_batch_size=8, max_completion_length=8)
for policy in ({"backend": "transformers", "load_in_4bit": True}, {"backend": "unsloth", "load_in_4bit": False}):
    try:
        wb.load_policy(wb.Recipe(policy=policy, grpo=grpo))
    except MissingError as error:
        print(error.remedy)
run = wb.train(wb.Recipe(policy={"backend": "transformers", "load_in_4bit": False}, grpo=grpo), runs=sys.argv[1])
print(run.result()["status"], wb.load_policy(run.recipe(), adapter=run.adapter).linear4bit)
"""


@pytest.mark.slow
def test_the_plain_backend_does_without_unsloth_and_without_bitsandbytes(tmp_path):
    result = subprocess.run([sys.executable, "-c", WITHOUT_BOTH, str(tmp_path)], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    without_4bit, without_unsloth, *_, trained = result.stdout.splitlines()
    assert "policy.load_in_4bit: false" in without_4bit
    assert "policy.backend: transformers" in without_unsloth
    assert trained == "finished 0"


@pytest.mark.slow
def test_a_run_with_the_plain_backend_never_imports_unsloth(tmp_path):
    result = subprocess.run([sys.executable, "-c", WITHOUT_UNSLOTH, str(tmp_path)], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-2:] == ["trl.trainer.grpo_trainer 2 False False True", "whole"]
    assert "UserWarning" not in result.stderr


def test_a_run_with_the_plain_backend_leaves_the_same_record(home):
    asked = {"run_name": "t", "policy": {"backend": "transformers"}, "grpo": {**GRPO, "max_steps": 2}}
    policy = load_policy("tiny", backend="transformers")
    run = train(Recipe.of(asked), policy=policy, task=arithmetic(64, 8))
    found = run.manifest()["policy"]
    assert found["backend"].startswith("transformers ")
    assert found["precision"] == "nf4"
    assert found["linear4bit"] == 7 * policy.model.config.num_hidden_layers
    assert run.result()["status"] == "finished"
    assert [row["step"] for row in run.metrics()] == [1, 2]
    assert len(query(run.rollouts)) == 2 * 8
    adapter = open_run("t").adapter
    measured = measure_policy(
        load_policy("tiny", backend="transformers", adapter=adapter),
        arithmetic(4, 4),
        samples=2,
        max_completion_length=8,
    )
    assert measured.lenient.shape == (4, 2)


def test_both_backends_start_from_the_same_policy():
    import torch

    plain, unsloth = (
        dict(load_policy("tiny", backend=backend, dtype="float32").model.named_parameters())
        for backend in ("transformers", "unsloth")
    )
    assert plain.keys() == unsloth.keys()
    for name, parameter in plain.items():
        assert torch.equal(parameter, unsloth[name]), name


def test_an_unknown_backend_is_named_with_the_nearest():
    for call in (lambda: load_policy("tiny", backend="transformer"), lambda: trainer_classes("transformer")):
        with pytest.raises(PolicyError, match=r"(?s)backend 'transformer': unknown.*did you mean 'transformers'\?"):
            call()


def test_where_unsloth_has_replaced_the_trainer_the_plain_backend_asks_for_a_restart(monkeypatch):
    import trl

    load_policy("tiny")  # on a CPU unsloth leaves TRL's trainer in place, and both can share a process
    assert trainer_classes("transformers")[1].__module__.startswith("trl.")
    replaced = type("UnslothGRPOTrainer", (), {"__module__": "UnslothGRPOTrainer"})
    monkeypatch.setattr(trl, "GRPOTrainer", replaced)
    for call in (lambda: load_policy("tiny", backend="transformers"), lambda: trainer_classes("transformers")):
        with pytest.raises(PolicyError, match=r"(?s)UnslothGRPOTrainer in TRL's place.*remedy: restart the kernel"):
            call()


def policy_of(backend: str, compute_dtype: str) -> Policy:
    return Policy("tiny", "", None, None, 256, "", backend, backend, "nf4", compute_dtype, 1, 1, 1, 0.0)


CPU = {"use_cpu": True, "dataloader_pin_memory": False}


@pytest.mark.parametrize(
    ("backend", "computes_in", "gpu", "asked", "added"),
    [
        ("unsloth", "bfloat16", False, {}, {}),
        ("unsloth", "bfloat16", True, {}, {}),
        ("transformers", "float32", False, {}, {"bf16": False, "fp16": False, **CPU}),
        ("transformers", "bfloat16", False, {}, {"bf16": True, "fp16": False, **CPU}),
        ("transformers", "float32", False, {"bf16": True}, {"fp16": False, **CPU}),
        ("transformers", "float32", False, {"use_cpu": True}, {"bf16": False, "fp16": False} | {
            "dataloader_pin_memory": False}),
        ("transformers", "bfloat16", True, {}, {"bf16": True, "fp16": False}),
        ("transformers", "float16", True, {}, {"bf16": False, "fp16": True}),
        ("transformers", "bfloat16", True, {"fp16": True}, {"bf16": False}),
        ("transformers", "float32", True, {}, {"bf16": False, "fp16": False}),
    ],
)  # fmt: skip
def test_the_trainer_is_told_what_the_policy_computes_in(backend, computes_in, gpu, asked, added):
    assert config_overrides(backend, computes_in, asked, cuda=gpu) == added


@pytest.mark.parametrize(
    ("backend", "gpu", "native", "asked", "chosen"),
    [
        ("transformers", True, True, None, "bfloat16"),
        ("transformers", True, False, None, "float16"),  # a T4
        ("transformers", True, False, "bfloat16", "float16"),
        ("unsloth", True, False, "bfloat16", "float16"),
        ("unsloth", True, True, "bfloat16", "bfloat16"),
        ("unsloth", True, False, "float32", "float32"),
        ("unsloth", True, False, None, None),  # it chooses
        ("transformers", False, True, None, "float32"),
        ("transformers", False, True, "bfloat16", "bfloat16"),
        ("transformers", False, True, "float16", "float32"),
        ("unsloth", False, False, "bfloat16", "bfloat16"),
    ],
)
def test_the_type_to_compute_in_follows_the_device(backend, gpu, native, asked, chosen):
    dtype, notes = precision.choose_dtype(asked, backend, cuda=gpu, bf16=native)
    assert dtype == chosen
    assert [f"{asked!r} becomes {chosen!r}" in note for note in notes] == [True] * (asked not in (None, chosen))


@pytest.mark.parametrize("backend", ["unsloth", "transformers"])
def test_a_policy_is_loaded_in_the_type_that_was_chosen_and_says_so(monkeypatch, backend):
    """What a GPU without bfloat16 decides, carried out here."""
    from workbench.training import plain, policy

    choose = precision.choose_dtype
    for module in (plain, policy):
        monkeypatch.setattr(module, "choose_dtype", lambda asked, backend, **_: choose(asked, backend, cuda=True, bf16=False))
    loaded = load_policy("tiny", backend=backend, load_in_4bit=False, dtype="bfloat16")
    assert "note: policy.dtype = 'bfloat16' becomes 'float16': this GPU only emulates bfloat16" in str(loaded)
    if backend == "transformers":  # on a CPU Unsloth takes another type for float16
        assert loaded.compute_dtype == "float16"


@pytest.mark.parametrize("backend", ["unsloth", "transformers"])
def test_loading_a_policy_keeps_the_callers_random_state(backend):
    import random

    import numpy as np
    import torch

    load_policy("tiny", backend=backend)  # what only an import draws is not meant
    for seeded in (random.seed, np.random.seed, torch.manual_seed):
        seeded(7)
    expected = random.random(), np.random.random(), torch.rand(1).item()
    for seeded in (random.seed, np.random.seed, torch.manual_seed):
        seeded(7)
    load_policy("tiny", backend=backend, seed=3)
    assert (random.random(), np.random.random(), torch.rand(1).item()) == expected


def test_a_block_that_seeds_everything_leaves_the_callers_random_state():
    """Unsloth's get_peft_model does so on a GPU."""
    import random

    import numpy as np
    import torch
    from transformers import set_seed

    @random_kept()
    def seeds():
        set_seed(1)

    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    seeds()
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_a_run_on_a_machine_with_two_gpus_trains_on_one_with_the_batch_that_was_asked(home, monkeypatch):
    """Without a launcher, transformers counts every GPU into the batch and wraps the model in DataParallel."""
    config_class, _ = trainer_classes("transformers")
    build, seen = config_class.__init__, []

    def with_two_gpus(self, **settings):
        build(self, **settings)
        self._n_gpu = 2  # as it counts them where no launcher has started this process
        seen.append((self, self.train_batch_size))

    monkeypatch.setattr(config_class, "__init__", with_two_gpus)
    grpo = {**GRPO, "max_steps": 1}
    run = train(Recipe.of({"policy": {"backend": "transformers", "load_in_4bit": False}, "grpo": grpo}), task=arithmetic(64, 8))
    config, counted = seen[-1]  # the plan builds one, too
    assert (counted, config.n_gpu, config.train_batch_size) == (16, 1, 8)
    rows = query(run.rollouts)
    assert len(rows) == 8
    assert rows["prompt_id"].nunique() == 2  # each whole: 4 completions
    assert run.metrics()[0]["num_tokens"] > 0


def test_several_gpus_are_said_and_how_to_choose_one(monkeypatch):
    two = Machine(cuda=True, bf16=True, gpus=2)
    [line] = one_gpu("transformers", two)
    assert line.startswith("2 GPUs, and a run trains on one, the first that it sees. CUDA_VISIBLE_DEVICES=1")
    assert "Unsloth spreads over all" in one_gpu("unsloth", two)[0]
    assert one_gpu("unsloth", two._replace(gpus=1)) == []
    monkeypatch.setenv("LOCAL_RANK", "1")  # accelerate launch, torchrun
    assert one_gpu("transformers", two) == []


def test_native_bf16_is_what_unsloth_finds(monkeypatch):
    load_policy("tiny")
    monkeypatch.delenv("UNSLOTH_CPU_BF16", raising=False)  # with which a user overrides what is found
    import torch
    from unsloth_zoo.cpu import cpu_bf16_supported

    if torch.cuda.is_available():
        pytest.skip("asks a CPU")
    assert precision.native_bf16() == cpu_bf16_supported.__wrapped__()


def test_a_small_step_is_not_lost_to_rounding():
    """TRL keeps the adapter of a 4-bit model in bfloat16, where a step of 1e-5 moves next to nothing."""
    import torch

    model = torch.nn.Linear(64, 64, bias=False)
    torch.nn.init.uniform_(model.weight, 0.02, 0.1)

    def moved() -> float:
        before = model.weight.detach().clone()
        with torch.no_grad():
            model.weight -= 1e-5
        return float((model.weight != before).float().mean())

    model.weight.data = model.weight.data.to(torch.bfloat16)
    assert moved() < 0.05
    assert adapter_in_float32(model) == 1
    assert moved() == 1
    assert adapter_in_float32(model) == 0


def test_more_tokens_than_the_model_was_made_for_are_said():
    policy = load_policy("tiny", backend="transformers", max_seq_length=100_000)
    [note] = policy.notes
    assert note.startswith("WARNING: max_seq_length = 100000, and the model was made for")
    assert note in str(policy)
