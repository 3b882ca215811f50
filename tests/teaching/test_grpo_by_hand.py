"""The lesson as a learner has it: each blank fails loudly with its own hint, and with its solutions it runs to its end."""

from __future__ import annotations

import re

import pytest
from trying_lessons import check_hints, shown, tried

# Of each blank, in order: what the solution says, and what somebody may well say instead.
MISTAKES = [
    ("per_device_train_batch_size = 4", "per_device_train_batch_size = 1"),
    (" - logits.logsumexp(-1)", ""),
    ("rewards.std()", "rewards.std(correction=0)"),
    ("-(A * lengths).sum() / N", "-A.mean()"),
    ("/ (G * lengths[:, None])", "/ N"),
    ('"dr_grpo": torch.ones(G) / (G * L)', '"dr_grpo": torch.ones(G) / L'),
    ("-torch.min(", "-torch.max("),
    ('"update 1": True', '"update 1": False'),
    ("torch.exp(reference - now) - (reference - now) - 1", "now - reference"),
    ('"lora_B"\n', '"lora_A"\n'),
    ("v.sqrt() / (1 - beta2) ** 0.5", "v.sqrt()"),
    ('("dapo", "bnpo"): True', '("dapo", "bnpo"): False'),
    ("error = (V - R) ** 2", "error = V - R"),
]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    return tried("grpo_by_hand", MISTAKES, tmp_path_factory.mktemp("home"))


@pytest.mark.slow
def test_every_blank_and_every_mistake_fails_with_a_hint_of_its_own(executed):
    check_hints(executed, len(MISTAKES))


@pytest.mark.slow
def test_filled_it_runs_to_its_end_and_the_adapters_are_equal(executed):
    text = shown(executed)
    assert "equal in every bit" in text
    # What the last words on loss types say: five of the seven are one adapter, grpo and dr_grpo are not.
    left = dict(re.findall(r"^(dapo|dapo, epsilon 1e-6|bnpo|grpo|dr_grpo|cispo|vespo) +([0-9a-f]{12}) ", text, re.MULTILINE))
    assert len(left) == 7
    assert len({left.pop("grpo"), left.pop("dr_grpo"), *left.values()}) == 3
    assert len(set(left.values())) == 1
