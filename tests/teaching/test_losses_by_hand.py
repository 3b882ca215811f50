"""GRPO's eight losses, written out from their papers, against what TRL's trainer computes; the default, to the last bit.

Each formula says which paper it is of, and was written from it and from the description in TRL's documentation. The hand
computes in 64 bits from the log-probabilities, TRL in 32.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

import workbench as wb
from workbench.recipe import Recipe
from workbench.training.plan.settings.values import CHOICES

EPSILON, CISPO_CAP, BETA, LONGEST = 0.2, 5.0, 0.04, 64
SAPO_POS, SAPO_NEG = 1.0, 1.05  # temperatures
VESPO_POS, VESPO_NEG = (2.0, 3.0), (3.0, 2.0)  # k and lambda
GRPO = {
    "max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
    "max_completion_length": LONGEST, "learning_rate": 1e-2, "beta": BETA, "scale_rewards": "group",
}  # fmt: skip
MORE = {"cispo": {"epsilon_high": CISPO_CAP}, "luspo": {"importance_sampling_level": "sequence"}}


def surrogate(ratio, A):
    """PPO's clipped objective (arXiv 1707.06347, equation 7), as a loss."""
    import torch

    return -torch.min(ratio * A, ratio.clamp(1 - EPSILON, 1 + EPSILON) * A)


def of_a_token(kind, logps, old, ratio, A, mask):
    """The policy's loss of each token, [B, T], or of each sequence, [B, 1], as its ratio is."""
    import torch

    match kind:
        case "grpo" | "bnpo" | "dapo" | "dr_grpo" | "luspo":  # DeepSeekMath, arXiv 2402.03300, equation 3
            return surrogate(ratio, A)
        case "cispo":  # MiniMax-M1, arXiv 2506.13585: REINFORCE, weighted by a capped ratio that is a constant
            return -torch.clamp(ratio, max=CISPO_CAP).detach() * A * logps
        case "sapo":  # arXiv 2511.20347: a soft gate, whose slope at ratio 1 is 1
            t = torch.where(A > 0, SAPO_POS, SAPO_NEG)
            return -4 / t / (1 + torch.exp(-t * (ratio - 1))) * A
        case "vespo":  # arXiv 2602.10693: REINFORCE, weighted by w^k e^(lambda (1 - w)) of the sequence's whole ratio w
            w = torch.exp(((logps - old) * mask).sum(1, keepdim=True)).detach()
            k, rate = (torch.where(A >= 0, *of) for of in zip(VESPO_POS, VESPO_NEG, strict=True))
            return -(w**k) * torch.exp(rate * (1 - w)) * A * logps
    raise AssertionError(kind)


def by_hand(kind, logps, old, reference, A, mask, tokens, passes):
    """A pass's part of a step's loss. `tokens`: of all passes together."""
    import torch

    ratio, d = torch.exp(logps - old), reference - logps
    if kind == "luspo":  # arXiv 2602.05261, of GSPO's ratio (2507.18071): the geometric mean over a sequence's tokens
        ratio = torch.exp(((logps - old) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True))
    kl = ratio * (torch.exp(d) - d - 1)  # Schulman's k3, weighted as in DeepSeek-V3.2, arXiv 2512.02556
    each = of_a_token(kind, logps, old, ratio, A, mask) + BETA * kl
    of_sequences = (each * mask).sum(1)
    match kind:
        case "grpo" | "sapo":
            return (of_sequences / mask.sum(1)).mean() / passes
        case "luspo":  # not divided by the length
            return of_sequences.mean() / passes
        case "bnpo":
            return of_sequences.sum() / mask.sum() / passes
        case "dr_grpo":  # arXiv 2503.20783
            return of_sequences.sum() / (len(mask) * LONGEST) / passes
    return of_sequences.sum() / tokens  # DAPO, arXiv 2503.14476


def logps_of(model, batch, dtype=None):
    """[B, T] log-probabilities of the completions' tokens; 0 for padding."""
    import torch

    ids, seen = (torch.cat([batch[f"prompt_{kind}"], batch[f"completion_{kind}"]], dim=1) for kind in ("ids", "mask"))
    width = batch["completion_ids"].shape[1]
    logits = model(input_ids=ids, attention_mask=seen, logits_to_keep=width + 1, use_cache=False).logits[:, :-1]
    logits = logits.to(dtype or logits.dtype)
    written = logits.gather(-1, batch["completion_ids"][..., None])[..., 0]
    return (written - logits.logsumexp(-1)).masked_fill(batch["completion_mask"] == 0, 0.0)


class Hand:
    """A policy, its adapter at the start, and the trainers that train from there."""

    def __init__(self) -> None:
        loading = {"name": "tiny", "backend": "transformers", "dtype": "float32"}  # TRL's own trainer, in exact 32 bits
        self.recipe = {"run_name": "hand", "policy": loading}
        self.task = dataclasses.replace(task := wb.load_task("arithmetic"), rows=task.rows[:2])
        plan = self.plan()
        self.policy = wb.load_policy(plan)
        wb.make_trainer(plan, self.policy)  # the first trainer made with a 4-bit policy rounds its adapter, to bfloat16 and back
        self.adapter = {name: own for name, own in self.policy.model.named_parameters() if own.requires_grad}
        self.start = {name: own.detach().clone() for name, own in self.adapter.items()}

    def plan(self, **grpo):
        return wb.plan(Recipe.of({**self.recipe, "grpo": {**GRPO, **grpo}}), task=self.task)

    def trained(self, **grpo):
        """(the trainer after its one step from the start, its run)."""
        import torch

        with torch.no_grad():
            for name, own in self.adapter.items():
                own.copy_(self.start[name])
        plan = self.plan(**grpo)
        trainer = wb.make_trainer(plan, self.policy)
        run = wb.attach(trainer, plan, watchers=[])
        trainer.train()
        return trainer, run

    def gradient(self, loss):
        """Of the whole adapter, in a row."""
        import torch

        found = torch.autograd.grad(loss, list(self.adapter.values()))
        return torch.cat([own.flatten() for own in found])


@pytest.fixture(scope="module")
def hand(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_HOME", str(tmp_path_factory.mktemp("home")))
        yield Hand()


def test_these_are_all_the_losses_that_a_recipe_may_name():
    assert set(CHOICES["loss_type"]) == {"grpo", "bnpo", "dapo", "dr_grpo", "cispo", "sapo", "luspo", "vespo"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHOICES["loss_type"])
def test_the_loss_is_the_papers_in_a_step_of_training_and_off_policy(hand, kind):
    import torch

    trainer, run = hand.trained(loss_type=kind, **MORE.get(kind, {}))
    model, passes = hand.policy.model.eval(), trainer._buffered_inputs
    tokens = sum(int(one["completion_mask"].sum()) for one in passes)
    assert len(passes) == 2
    assert len({int(one["completion_mask"].sum()) for one in passes}) == 2  # or bnpo and dapo could not be told apart

    def computed(one, now, of_all, count):
        fixed = {
            "old": old[id(one)],
            "reference": start[id(one)],
            "A": one["advantages"][:, None],
            "mask": one["completion_mask"],
        }
        fixed = {name: value.double() for name, value in fixed.items()}
        return by_hand(kind, now.double(), **fixed, tokens=of_all, passes=count)

    # The step that was trained: every ratio is 1, the reference is the policy.
    with torch.no_grad(), model.disable_adapter():
        start = {id(one): logps_of(model, one) for one in passes}  # a new adapter adds nothing
    old = start
    with torch.no_grad():
        expected = sum(computed(one, start[id(one)], tokens, 2) for one in passes)
    assert run.metrics()[0]["loss"] == pytest.approx(float(expected), rel=1e-6, abs=1e-6)
    assert max(abs(float(one["advantages"].abs().max())) for one in passes) > 0.5

    # After it, on the same completions: ratios are off 1, some clipped, and the KL is not 0. In evaluation mode TRL takes
    # the whole generation batch for one pass.
    both = {name: torch.cat([one[name] for one in passes]) for name in ("prompt_ids", "prompt_mask", "advantages")}
    both |= {name: torch.cat([one[name] for one in passes]) for name in ("completion_ids", "completion_mask")}
    both["num_items_in_batch"] = both["completion_mask"].sum()
    now, mask = logps_of(model, both), both["completion_mask"].bool()
    old = {id(both): torch.cat([start[id(one)] for one in passes]) + 0.3 * both["advantages"].sign()[:, None] * mask}
    start[id(both)] = torch.cat([start[id(one)] for one in passes])
    ratio = torch.exp(now - old[id(both)])[mask].detach()
    assert float(ratio.min()) < 1 - EPSILON < 1 + EPSILON < float(ratio.max())
    mine = computed(both, now, tokens, 1)
    theirs = trainer.compute_loss(
        model, {**both, "old_per_token_logps": old[id(both)], "ref_per_token_logps": start[id(both)]}
    )  # fmt: skip
    assert float(theirs.detach()) == pytest.approx(float(mine.detach()), rel=1e-6, abs=1e-6)
    # Two losses of one value may pull differently: what is held constant in them shows in the gradient alone.
    mine, theirs = hand.gradient(mine), hand.gradient(theirs)
    assert float((mine - theirs).abs().max()) < 1e-5 * float(mine.abs().max())


@pytest.mark.slow
def test_the_default_step_by_hand_leaves_the_trained_adapter_bit_for_bit(request):
    # In a process of its own: once imported, as another test may have done, Unsloth alters how transformers computes.
    if "unsloth" in sys.modules:
        again = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "slow", request.node.nodeid]
        done = subprocess.run(again, cwd=request.config.rootpath, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
        return
    hand = request.getfixturevalue("hand")
    import torch
    from peft import get_peft_model_state_dict
    from safetensors.torch import load_file

    grpo = {"learning_rate": 1e-3, "beta": 0.0, "gradient_accumulation_steps": 1, "per_device_train_batch_size": 8}
    trainer, run = hand.trained(**grpo)
    assert trainer.loss_type == "dapo"
    [batch], model = trainer._buffered_inputs, hand.policy.model
    trained = load_file(run.adapter / "adapter_model.safetensors")
    with torch.no_grad():
        for name, own in hand.adapter.items():
            own.copy_(hand.start[name])
    model.zero_grad()
    untrained = {name: own.clone() for name, own in get_peft_model_state_dict(model).items()}
    now, A, mask = logps_of(model, batch), batch["advantages"][:, None], batch["completion_mask"]
    ((surrogate(torch.exp(now - now.detach()), A) * mask).sum() / mask.sum()).backward()
    torch.nn.utils.clip_grad_norm_(hand.adapter.values(), 1.0)
    with torch.no_grad():
        for own in hand.adapter.values():  # AdamW's first step, arXiv 1711.05101: both averages begin at 0
            m, v = (1 - 0.9) * own.grad, (1 - 0.999) * own.grad * own.grad
            own -= 1e-3 / (1 - 0.9) * m / (v.sqrt() / (1 - 0.999) ** 0.5 + 1e-8)
    mine = get_peft_model_state_dict(model)
    assert mine.keys() == trained.keys()
    assert [name for name in mine if not torch.equal(mine[name], trained[name])] == []
    moved = [name for name in mine if not torch.equal(mine[name], untrained[name])]
    assert moved == [name for name in mine if "lora_B" in name]  # B starts at 0, and with it A's gradient
