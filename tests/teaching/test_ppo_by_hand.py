"""The lesson as a learner has it: each blank fails with a hint; PPO, GRPO and RLOO agree with TRL's trainers where they must."""

from __future__ import annotations

import re

import pytest
from trying_lessons import check_hints, shown, tried

# Of each blank, in order: what the solution says, and what somebody may well say instead.
MISTAKES = [
    ("one_hot(last, T) * r[:, None]", "one_hot(last * 0, T) * r[:, None]"),
    ("return r[:, None].expand(mask.shape)", "return token_rewards(r, mask)"),
    ("/ R.var()", "/ V.var()"),
    ("+ gamma * next_V - V[:, t]", "+ V[:, t] - gamma * next_V"),
    ('pushed = "last"', 'pushed = "all"'),
    ("torch.max((V", "torch.min((V"),
    ("per_weight = 4", "per_weight = 2"),
    ("/ (len(r) - 1)", "/ len(r)"),
    ('prediction = "PPO"', 'prediction = "DPO"'),
    ("gradients.var(dim=0).sum()", "gradients.var(dim=0).mean()"),
]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    return tried("ppo_by_hand", MISTAKES, tmp_path_factory.mktemp("home"))


@pytest.mark.slow
def test_every_blank_and_every_mistake_fails_with_a_hint_of_its_own(executed):
    check_hints(executed, len(MISTAKES))


@pytest.mark.slow
def test_what_the_last_words_say_of_noise_and_memory_is_what_was_measured(executed):
    text = shown(executed)
    rows = re.findall(r"^(REINFORCE|RLOO|GRPO|PPO, [\w =.]+?) +\d+\.\d +\d\.\d\d +(\d\.\d\d) to (\d\.\d\d)$", text, re.MULTILINE)
    against_rloo = {kind: (float(low), float(high)) for kind, low, high in rows}
    assert len(against_rloo) == 6
    # the words claim this of the fitted value alone
    fitted = against_rloo["PPO, lambda = 0.95"][1], against_rloo["PPO, lambda = 1"][1]
    assert fitted[0] < fitted[1] < 1 < against_rloo["PPO, untrained value"][1]
    # a head costs nothing to speak of, a value network of its own as much as the policy
    times = dict(re.findall(r"^(.+?) {2,}0\.\d{3} .* (\d\.\d\d)$", text, re.MULTILINE))
    assert times == {"GRPO, RLOO": "1.00", "PPO, value head on the policy": "1.00", "PPO, separate value network": "2.00"}
    # of new prompts the value knows next to nothing before the first token, and something before the last
    known = dict(re.findall(r"^(first|half-way|last) +(-?\d+)%$", text, re.MULTILINE))
    assert int(known["first"]) < 10 < int(known["half-way"]) < int(known["last"])
