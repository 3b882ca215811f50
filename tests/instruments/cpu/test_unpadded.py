"""The loss without padding beside TRL's own path: the same log-probabilities, gradients and curve, to the bit."""

from __future__ import annotations

import weakref

import pytest
import torch

from workbench.instruments.cpu import unpadded
from workbench.instruments.cpu.unpadded import reason_against, unpadded_logps
from workbench.recipe import Recipe
from workbench.tiny.task import task as arithmetic
from workbench.training import trainer as training
from workbench.training.plan.precision import native_bf16
from workbench.training.plan.prepare import prepare
from workbench.training.policy import load_policy

GRPO = {
    "max_steps": 3,
    "num_generations": 4,
    "per_device_train_batch_size": 8,
    "max_completion_length": 32,
    "learning_rate": 1e-2,
    "beta": 0.01,
}
CURVE = ("reward", "loss", "kl", "grad_norm", "entropy", "completions/mean_length")


def recipe_of(backend: str = "transformers", *, in_4bit: bool = False, **more) -> Recipe:
    policy = {"name": "tiny", "backend": backend, "load_in_4bit": in_4bit, **more}
    return Recipe.of({"policy": policy, "grpo": GRPO})


def made(recipe: Recipe):
    """(policy, a trainer that nothing is attached to); its adapter does something, as after some steps."""
    plan = prepare(recipe, arithmetic())
    policy = load_policy(plan)
    trainer = training.make_trainer(plan, policy)
    torch.manual_seed(1)
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter.data, std=0.05)
    return policy, trainer


def ragged(rows: int = 6, prompt: int = 9, completion: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    """ids and mask [rows, prompt + completion], padded on the left of a prompt and after a completion."""
    torch.manual_seed(2)
    ids = torch.randint(3, 200, (rows, prompt + completion))
    place = torch.arange(prompt + completion)
    first = torch.randint(0, 4, (rows, 1))
    end = prompt + torch.randint(1, completion + 1, (rows, 1))
    end[0] = prompt  # as where truncated completions are masked: none of its tokens counts
    end[1] = prompt + completion
    return ids, ((place >= first) & (place < end)).long()


@pytest.mark.parametrize("in_4bit", [False, True], ids=["16 bit", "nf4"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_log_probabilities_entropies_and_gradients_are_equal_to_the_bit(dtype, in_4bit):
    if dtype == "bfloat16" and unpadded.fast_bf16():
        pytest.skip("on a processor with AMX a run leaves it to TRL")
    policy, trainer = made(recipe_of(in_4bit=in_4bit, dtype=dtype))
    assert reason_against(policy.model) is None
    ids, mask = ragged()
    found = {}
    for by in ("TRL", "unpadded"):
        policy.model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            if by == "TRL":
                logps, entropies, _ = trainer._get_per_token_logps_and_entropies(
                    policy.model, ids, mask, 20, compute_entropy=True
                )
            else:
                logps, entropies, _ = unpadded_logps(policy.model, ids, mask, 20, temperature=trainer.temperature, entropy=True)
        (logps * torch.linspace(-1, 1, logps.numel()).view_as(logps)).sum().backward()
        gradients = {name: one.grad for name, one in policy.model.named_parameters() if one.requires_grad}
        found[by] = {"logps": logps.detach(), "entropies": entropies, **gradients}
    assert found["TRL"]["logps"].count_nonzero() > 20
    different = [name for name, one in found["TRL"].items() if not torch.equal(one, found["unpadded"][name])]
    assert different == []


@pytest.mark.parametrize("backend", ["transformers", "unsloth"])
def test_a_run_learns_what_it_learns_by_trls_own_path(backend, monkeypatch, tmp_path):
    """In bfloat16 where Unsloth loads the policy; on a processor with AMX that is left to TRL."""
    left = backend == "unsloth" and unpadded.fast_bf16()
    curves, results, calls = [], [], []
    monkeypatch.setattr(unpadded, "unpadded_logps", lambda *a, **more: calls.append(1) or unpadded_logps(*a, **more))
    for why_not in (None, "not asked for"):
        monkeypatch.setattr(unpadded, "reason_against", lambda model, why_not=why_not: why_not)
        run = training.train(recipe_of(backend), task=arithmetic(), watchers=[], runs=tmp_path / str(why_not))
        curves.append([{key: row[key] for key in CURVE} for row in run.metrics()])
        results.append(run.result()["unpadded"])
    assert results == ["bfloat16 on a processor with AMX" if left else True, "not asked for"]
    assert len(calls) == (0 if left else 2 * GRPO["max_steps"])  # of the policy and of the reference
    assert len(curves[0]) == GRPO["max_steps"]
    assert curves[0] == curves[1]


@pytest.mark.parametrize(
    ("dtype", "autocast", "amx", "left"),
    [
        ("bfloat16", False, True, True),
        ("float32", True, True, True),
        ("float32", False, True, False),
        ("bfloat16", False, False, False),
    ],
)  # fmt: skip
def test_bfloat16_is_left_to_trl_where_a_row_depends_on_the_others(dtype, autocast, amx, left, monkeypatch, tmp_path):
    """AMX rounds a product's row otherwise in another batch: gradients of the demo's second batch differed."""
    if autocast and not native_bf16():
        pytest.skip("bf16 is left out where a processor only emulates it")
    monkeypatch.setattr(unpadded, "fast_bf16", lambda: amx)
    recipe = recipe_of(dtype=dtype).model_copy(deep=True)
    recipe.grpo["bf16"] = autocast
    run = training.train(recipe, task=arithmetic(), watchers=[], runs=tmp_path)
    assert ("AMX" in str(run.result()["unpadded"])) == left


def test_where_the_first_batch_differs_trls_path_computes_them_all(monkeypatch, tmp_path):
    from trl import GRPOTrainer

    recipe = recipe_of().model_copy(deep=True)
    recipe.grpo["beta"] = 0.0  # the first batch is the loss's
    calls, held = [], []
    theirs = GRPOTrainer._get_per_token_logps_and_entropies

    def off_by_a_bit(*args, **more):
        logps, *others = unpadded_logps(*args, **more)
        logps = logps.nextafter(torch.tensor(0.0))
        calls.append(weakref.ref(logps))
        return logps, *others

    def watched(*args, **more):
        if torch.is_grad_enabled():
            held.extend(one() is not None for one in calls)
        return theirs(*args, **more)

    monkeypatch.setattr(unpadded, "unpadded_logps", off_by_a_bit)
    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", watched)
    run = training.train(recipe, task=arithmetic(), watchers=[], runs=tmp_path)
    assert len(calls) == 1
    assert held
    assert not any(held), "two graphs at once took 1.5 GB more beside a model of 135M"
    assert "bit" in run.result()["unpadded"]


def test_an_adapter_on_the_head_is_left_to_trl(tmp_path):
    """It is given the completions' tokens alone."""
    recipe = recipe_of().model_copy(deep=True)
    recipe.lora.target_modules = ["q_proj", "lm_head"]
    run = training.train(recipe, task=arithmetic(), watchers=[], runs=tmp_path)
    assert "head" in run.result()["unpadded"]


def test_checkpointing_that_begins_with_the_training_is_left_to_trl(tmp_path):
    recipe = recipe_of().model_copy(deep=True)
    recipe.grpo["gradient_checkpointing"] = True
    run = training.train(recipe, task=arithmetic(), watchers=[], runs=tmp_path)
    assert "checkpointing" in run.result()["unpadded"]


def test_a_token_after_padding_is_left_to_trl():
    policy, _ = made(recipe_of())
    ids, mask = ragged()
    mask[2, 15], mask[2, 16] = 0, 1
    assert unpadded_logps(policy.model, ids, mask, 20, temperature=1.0, entropy=False) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: setattr(model.config, "_attn_implementation", "eager"), "attention"),
        (lambda model: setattr(model.config, "layer_types", ["sliding_attention"]), "full attention"),
        (lambda model: setattr(model.config, "attention_dropout", 0.1), "dropout"),
        (lambda model: model.lm_head.weight.requires_grad_(), "LoRA"),
        (lambda model: model.gradient_checkpointing_enable(), "checkpointing"),
    ],
)  # fmt: skip
def test_what_it_does_not_cover_is_named(change, reason):
    policy = load_policy("tiny", backend="transformers", load_in_4bit=False)
    change(policy.model.base_model.model)
    assert reason in (reason_against(policy.model) or "")
