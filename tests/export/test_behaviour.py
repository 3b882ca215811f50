"""What an artefact writes against the live policy: what is found, and what chance alone does not find."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from workbench.exporting import apart, behaviour
from workbench.exporting.artefacts import Artefact
from workbench.exporting.checks import Proof
from workbench.exporting.reference import ProofRequest, Reference, Written, measured_reference
from workbench.rewards.suite import RewardSuite
from workbench.task import Task

PROMPTS, TOKENS = 64, 20


def right_reward(completions, **columns):
    return [2.0 if "right" in (text if isinstance(text, str) else text[0]["content"]) else 0.0 for text in completions]


ROWS = [{"prompt": f"{number}?"} for number in range(PROMPTS)]
SUITE = RewardSuite(Task("t", ROWS[:2], [right_reward], held_out=ROWS), 2)


def artefact(format="merged_16bit", into="base"):
    return Artefact(Path("a"), format, "base", into)


def drawn(seed=0, effect=0.3):
    """(a reference that is right in 9 of 10, and whose run moved log-probabilities by `effect`; the policy's own result)."""
    rng = np.random.default_rng(seed)
    policy = -rng.exponential(0.5, (PROMPTS, TOKENS))
    base = policy + effect * rng.standard_normal((PROMPTS, TOKENS))
    right = [number % 10 != 0 for number in range(PROMPTS)]
    ids, ended = [[number, 2] for number in range(PROMPTS)], [True] * PROMPTS
    written = Written(ids, ended, [2.0 * each for each in right], right)
    reference = Reference(written, written, ids, policy.tolist(), base.tolist())
    found = {"ids": ids, "ended": ended, "texts": ["right" if each else "wrong" for each in right], "logprobs": policy.tolist()}
    return reference, found


def check_behaviour(artefact, found, *asked, **more):
    return behaviour.check_behaviour(artefact, Written(**found), *asked, **more)


def causes(found, reference, **kind):
    return [check.cause for check in check_behaviour(artefact(**kind), found, reference, SUITE)[0] if check.passed is False]


def told(found, reference, **kind):
    return {check.name.split(" of ")[0]: check.passed for check in check_behaviour(artefact(**kind), found, reference, SUITE)[0]}


@pytest.mark.parametrize("kind", [{}, {"into": "dequantised"}, {"format": "adapter"}, {"format": "gguf_q4_k_m"}])
def test_the_policy_itself_passes(kind):
    reference, found = drawn()
    checks, measured = check_behaviour(artefact(**kind), found, reference, SUITE)
    assert all(check.passed is not False for check in checks)
    assert checks[0].passed is checks[2].passed is checks[3].passed is True
    assert measured["of_the_run"]["share"] == pytest.approx(1.0)
    assert measured["kl_per_token"]["artefact"] == 0.0
    assert measured["reward"]["difference"] == measured["reward"]["low"] == 0.0
    assert measured["pass@1"]["policy"] == measured["pass@1"]["artefact"] == pytest.approx(57 / 64)


def test_greedy_answers_that_the_base_gives_too_are_said_to_tell_nothing():
    reference, found = drawn()  # the base's answers are the policy's
    words = "policy and base cannot be told apart here, so this line says nothing about training"
    assert check_behaviour(artefact(), found, reference, SUITE)[0][3].found.endswith(words)
    right = [each and number % 2 == 0 for number, each in enumerate(reference.policy.right)]  # and now half of them
    worse = replace(reference.base, right=right, reward=[2.0 * each for each in right])
    assert words not in check_behaviour(artefact(), found, replace(reference, base=worse), SUITE)[0][3].found


@pytest.mark.parametrize("format", ["adapter", "merged_16bit", "gguf_q8_0"])
def test_what_writes_like_the_base_is_found_though_its_answers_are_the_policys(format):
    reference, found = drawn()
    assert causes(found | {"logprobs": reference.base_logprobs}, reference, format=format)[0] == "differs"


def test_rounding_larger_than_the_runs_change_hides_neither():
    reference, found = drawn(effect=0.1)
    noise = 0.3 * np.random.default_rng(1).standard_normal((PROMPTS, TOKENS))
    good = found | {"logprobs": (np.array(reference.policy_logprobs) + noise).tolist()}
    assert told(good, reference, format="gguf_q4_k_m")["the run's change is in it"] is True
    # Far from both: no word of the base, where its probabilities are another model's.
    assert causes(good, reference, format="gguf_q4_k_m") == []


def test_what_is_far_from_policy_and_base_is_not_called_the_base():
    reference, found = drawn()
    policy, base = (np.array(each) for each in (reference.policy_logprobs, reference.base_logprobs))
    away = found | {"logprobs": (base - 5 * (policy - base)).tolist()}
    assert causes(away, reference) == ["differs"]  # though it earns what the policy does
    beyond = found | {"logprobs": (base + 4 * (policy - base)).tolist()}
    assert causes(beyond, reference) == ["differs"]


def noisy(reference, share, noise, seed=1):
    """Log-probabilities `share` of the way from base to policy, give or take `noise`."""
    policy, base = (np.array(each) for each in (reference.policy_logprobs, reference.base_logprobs))
    return (base + share * (policy - base) + noise * np.random.default_rng(seed).standard_normal(base.shape)).tolist()


@pytest.mark.parametrize("vouched", [False, True])
def test_noise_larger_than_the_runs_change_hides_no_artefact_without_it(vouched):
    reference, found = drawn(effect=0.5)
    at_base = found | {"logprobs": noisy(reference, 0.0, 0.6)}
    [check, *_], measured = check_behaviour(artefact("gguf_q4_k_m"), at_base, reference, SUITE, vouched)
    assert -0.3 < measured["of_the_run"]["low"] < 0 < measured["of_the_run"]["high"] < 0.3
    assert (check.passed, check.cause) == (False, "differs")
    assert check.remedy.startswith("take gguf_q8_0" if vouched else "prove merged_16bit")


def test_half_of_the_runs_change_within_the_interval_cannot_be_told():
    reference, found = drawn(effect=0.5)
    between = found | {"logprobs": noisy(reference, 0.4, 0.6)}
    [check, *_], measured = check_behaviour(artefact("gguf_q4_k_m"), between, reference, SUITE)
    assert measured["of_the_run"]["share"] < 0.5 < measured["of_the_run"]["high"]
    assert check.mark == "cannot be told"


@pytest.mark.parametrize(
    ("share", "mark"), [(0.0, "FAILED"), (0.3, "FAILED"), (0.4, "FAILED"), (0.6, "passed"), (1.4, "passed"), (1.6, "FAILED")]
)
@pytest.mark.parametrize("format", ["merged_16bit", "gguf_f16", "gguf_q8_0"])
def test_an_artefact_that_is_nearer_to_the_base_than_to_the_policy_fails(share, mark, format):
    reference, found = drawn()
    policy, base = (np.array(each) for each in (reference.policy_logprobs, reference.base_logprobs))
    between = found | {"logprobs": (base + share * (policy - base)).tolist()}
    checks, _ = check_behaviour(artefact(format), between, reference, SUITE)
    assert [checks[0].mark, checks[1].mark] == [mark, "measured"]  # the second has no limit in the 16-bit base
    assert checks[0].cause == {"passed": "", "FAILED": "differs"}[mark]
    assert Proof("a", format, tuple(checks)).passed == (mark == "passed")
    assert checks[0].found.startswith(f"{share:.0%} of the way")


@pytest.mark.parametrize(("effect", "passed"), [(0.0, None), (0.001, None), (0.004, False)])
def test_what_equals_the_base_is_told_where_the_measurement_is_clear(effect, passed):
    reference, found = drawn(effect=effect)
    [check, *_], _ = check_behaviour(artefact(), found | {"logprobs": reference.base_logprobs}, reference, SUITE)
    assert (check.passed, check.mark) == (passed, "FAILED" if passed is False else "cannot be told")
    assert check.found.startswith("the run changed nothing") == (not effect)


def test_merged_twice_is_told_by_the_share():
    reference, found = drawn(effect=0.005)
    policy, base = (np.array(each) for each in (reference.policy_logprobs, reference.base_logprobs))
    twice = found | {"logprobs": (2 * policy - base).tolist()}
    assert causes(twice, reference) == causes(twice, reference, format="gguf_q8_0") == ["differs"]


@pytest.mark.parametrize("format", ["merged_16bit", "gguf_f16"])
def test_in_16_bits_rounding_that_takes_a_small_step_is_no_fault_of_an_export_whose_tensors_are_right(format):
    reference, found = drawn(effect=0.01)
    at_base = found | {"logprobs": reference.base_logprobs}
    [check, *_], _ = check_behaviour(artefact(format), at_base, reference, SUITE, vouched=True)
    assert (check.passed, check.mark) == (None, "cannot be told")
    assert check.found.endswith("16 bits round a step as small as the run's away; take the adapter")
    assert causes(at_base, reference, format=format) == ["differs"]  # nobody vouches for its tensors
    big, found = drawn(effect=0.3)  # a policy that matters is missed
    [check, *_], _ = check_behaviour(artefact(format), found | {"logprobs": big.base_logprobs}, big, SUITE, vouched=True)
    assert (check.passed, check.cause, check.remedy) == (False, "differs", "take the adapter, or train further")
    assert check.found.endswith(": 16 bits round most of the change away")
    [check, *_], _ = check_behaviour(artefact(format), found | {"logprobs": big.base_logprobs}, big, SUITE)
    assert ("round" in check.found, check.remedy.startswith("export it again")) == (False, True)


@pytest.mark.parametrize(
    ("format", "rounds", "remedy"),
    [
        ("merged_4bit", "NF4", "take gguf_q8_0 or merged_16bit"),
        ("gguf_q4_k_m", "Q4_K_M", "take gguf_q8_0 or merged_16bit"),
        ("gguf_q8_0", "Q8_0", "take merged_16bit or the adapter"),
    ],
)
@pytest.mark.parametrize("effect", [0.01, 0.3])
def test_a_quantised_form_without_the_runs_change_fails_though_its_tensors_are_right(format, rounds, remedy, effect):
    reference, found = drawn(effect=effect)
    at_base = found | {"logprobs": reference.base_logprobs}
    [check, *_], _ = check_behaviour(artefact(format), at_base, reference, SUITE, vouched=True)
    assert (check.passed, check.cause, check.remedy) == (False, "differs", remedy)
    assert check.found.endswith(f": {rounds} rounds most of the change away")
    [check, *_], _ = check_behaviour(artefact(format), at_base, reference, SUITE)  # its tensors could not be read
    assert (check.cause, "rounds" in check.found) == ("differs", False)
    assert check.remedy.startswith("prove merged_16bit; if that passes")


def test_fewer_prompts_may_not_tell_what_more_of_them_do_and_never_say_the_opposite():
    reference, found = drawn(effect=0.05)
    noise = 0.04 * np.random.default_rng(3).standard_normal((PROMPTS, TOKENS))
    at_base = (np.array(reference.base_logprobs) + noise).tolist()
    said = []
    for count in (4, 16, 64):
        written = Written(*([own[:count] for own in vars(reference.policy).values()]))
        short = Reference(written, written, *(
            getattr(reference, name)[:count] for name in ("sampled_ids", "policy_logprobs", "base_logprobs")
        ))  # fmt: skip
        few = {name: own[:count] for name, own in (found | {"logprobs": at_base}).items()}
        said.append(check_behaviour(artefact("merged_4bit"), few, short, SUITE)[0][0].passed)
    assert said == [None, False, False]


def test_rounding_noise_much_larger_than_the_step_cannot_be_told():
    reference, found = drawn(effect=0.01)
    noise = 2.0 * np.random.default_rng(1).standard_normal((PROMPTS, TOKENS))
    for place in (reference.policy_logprobs, reference.base_logprobs):
        noisy = found | {"logprobs": (np.array(place) + noise).tolist()}
        assert told(noisy, reference, format="gguf_q8_0")["the run's change is in it"] is None


def test_a_limit_that_the_base_keeps_tells_nothing():
    reference, found = drawn(effect=0.01)
    assert told(found, reference, format="adapter")["log-probabilities"] is None
    reference, found = drawn(effect=0.3)
    assert told(found, reference, format="adapter")["log-probabilities"] is True


def spoiled(found, count, word="wrong"):
    texts = list(found["texts"])
    hit = [place for place, text in enumerate(texts) if text == "right"][:count]
    return found | {"texts": [word if place in hit else text for place, text in enumerate(texts)]}


def test_worse_is_what_chance_does_not_do():
    reference, found = drawn()
    assert causes(spoiled(found, 9), reference) == []  # 1 in 512
    assert causes(spoiled(found, 10), reference) == ["worse"]  # 1 in 1,024, one-sided


def alike(share=1.0):
    """What the policy answers, and what an artefact does that is wrong where it is right: one pair of answers, in `share`."""
    reference, found = drawn()
    same = [number < share * PROMPTS for number in range(PROMPTS)]
    ids = [[7, 5, 2] if each else own for each, own in zip(same, reference.policy.ids, strict=True)]
    policy = replace(reference.policy, ids=ids, right=[True] * PROMPTS, reward=[2.0] * PROMPTS)
    theirs = [[7, 4, 4] if each else own for each, own in zip(same, ids, strict=True)]
    return replace(reference, policy=policy), found | {"ids": theirs, "texts": ["wrong" if each else "right" for each in same]}


@pytest.mark.parametrize("format", ["adapter", "merged_16bit", "gguf_q4_k_m"])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_same_two_answers_again_and_again_are_one_witness(format, share):
    reference, found = alike(share)
    checks, measured = check_behaviour(artefact(format), found, reference, SUITE)
    assert (checks[3].mark, causes(found, reference, format=format)) == ("cannot be told", [])
    assert f"{share * PROMPTS:.0f} prompts fell" in checks[3].found
    assert "1 witnesses" in checks[3].found
    assert (measured["pass@1"]["fell"], measured["pass@1"]["chance"]) == (1, 0.5)
    assert measured["pass@1"]["difference"] == pytest.approx(-share)
    assert measured["pass@1"]["high"] > 0
    # Where the answers are different ones, it is no chance.
    apart = found | {"ids": [[7, 4, number] for number in range(PROMPTS)]}
    assert causes(apart, reference, format=format) == ["worse"]


def test_what_parts_at_a_tie_of_the_policys_precision_is_no_difference():
    reference, found = alike()
    apart = found | {"ids": [[7, 4, number] for number in range(PROMPTS)]}
    tie = [(0, 7), (1, 5), (1, 4), (2, 2)]
    close = replace(reference, ties=[tie] * PROMPTS)
    checks, measured = check_behaviour(artefact(), apart, close, SUITE)
    assert checks[3].passed
    assert checks[3].found.endswith("; 64 answers part at a tie of the policy's own precision")
    assert (measured["ties"], measured["pass@1"]["artefact"], measured["pass@1"]["difference"]) == (64, 0.0, 0.0)
    for other in ([(0, 7), (1, 5)], [(0, 4), (1, 5), (2, 4)]):  # another token, or another place
        assert causes(apart, replace(reference, ties=[other] * PROMPTS)) == ["worse"]
    some = replace(reference, ties=[tie] * 55 + [tie[:2]] * 9)
    assert causes(apart, some) == []  # 9 are left, which is 1 in 512
    assert causes(apart, replace(some, ties=[tie] * 54 + [tie[:2]] * 10)) == ["worse"]


def test_falls_and_rises_are_chance():
    reference, found = drawn()
    texts = spoiled(found, 20)["texts"]
    risen = [place for place, own in enumerate(reference.policy.right) if not own][:6]
    mixed = ["right" if place in risen else text for place, text in enumerate(texts)]
    assert causes(found | {"texts": mixed}, reference) == []


def test_quantising_may_cost_five_points_beyond_the_interval():
    reference, found = drawn()
    assert causes(spoiled(found, 7), reference, format="gguf_q4_k_m") == []  # 11 points, the interval ends at 3
    assert causes(spoiled(found, 9), reference, format="gguf_q4_k_m") == ["worse"]  # at 5.3; in 16 bits it is not significant


def test_completions_that_do_not_end_are_told_from_a_broken_model():
    reference, found = drawn()
    endless = found | {"ended": [place > 20 for place in range(PROMPTS)]}
    assert causes(endless, reference) == ["eos_missing"]
    assert causes(endless, reference, format="gguf_q8_0") == ["eos_missing"]
    broken = endless | {"logprobs": (np.array(reference.policy_logprobs) - 3.0).tolist()}
    assert causes(broken, reference) == ["worse"]


def test_the_weights_of_training_give_the_probabilities_of_training():
    reference, found = drawn()
    apart = found | {"logprobs": (np.array(reference.policy_logprobs) - 0.1).tolist()}
    assert causes(apart, reference, into="dequantised") == causes(apart, reference, format="adapter") == ["differs"]
    assert causes(apart, reference, into="base") == causes(apart, reference, format="gguf_q8_0", into="dequantised") == []


def test_numbers_that_are_none_are_no_model():
    reference, found = drawn()
    logprobs = [[float("nan"), *row[1:]] for row in found["logprobs"]]
    assert causes(found | {"logprobs": logprobs}, reference) == ["unreadable"]


def test_few_prompts_tell_nothing_of_damage():
    reference, found = drawn()
    few = {name: value[:6] for name, value in found.items()}
    short = Reference(*[Written([[1]] * 6, [True] * 6, [2.0] * 6, [True] * 6)] * 2, [[1]] * 6,
                      reference.policy_logprobs[:6], reference.base_logprobs[:6])  # fmt: skip
    by_name = told(few | {"texts": ["wrong"] * 6}, short)
    assert by_name["completions end by EOS"] is by_name["greedy answers to 6 held-out prompts"] is None
    proof = Proof("a", "merged_16bit", tuple(check_behaviour(artefact(), few, short, SUITE)[0]))
    assert "cannot be told: completions end by EOS, greedy answers to 6 held-out prompts" in proof.verdict


def test_greedy_answers_and_ends_name_the_base_beside_the_policy():
    reference, found = drawn()
    base = Written(reference.base.ids, [place % 4 != 0 for place in range(PROMPTS)], [0.5] * PROMPTS, [False] * PROMPTS)
    checks = check_behaviour(artefact(), found, replace(reference, base=base), SUITE)[0]
    assert checks[1].found.startswith("mean difference 0.0000, the base's 0.2")
    assert "; KL per token 0 (0 to 0), the base's 0.0" in checks[1].found
    assert checks[2].found == "100% end, the policy's 100%, the base's 75%"
    # 57 of 64 are right and earn 2.
    said = "reward 1.78, the policy's 1.78 (+0.00 to +0.00), the base's 0.50; "
    assert checks[3].found == said + "pass@1 89%, the policy's 89% (+0 to +0 points), the base's 0%"


def test_good_exports_give_no_false_alarm():
    for seed in range(50):
        reference, found = drawn(seed)
        rng = np.random.default_rng(1000 + seed)
        noise = 0.02 * rng.standard_normal((PROMPTS, TOKENS))
        flipped = ["right" if (text == "right") != (rng.random() < 0.05) else "wrong" for text in found["texts"]]
        near = found | {"logprobs": (np.array(reference.policy_logprobs) + noise).tolist(), "texts": flipped}
        for kind in ({}, {"into": "dequantised"}, {"format": "gguf_q4_k_m"}):
            assert causes(near, reference, **kind) == [], seed


def test_the_reference_is_what_the_process_answered_scored_here(monkeypatch):
    written = Written([[1], [2]], [True, False], texts=["right", "wrong"])
    logprobs = [[-0.5], [-0.25]]
    answer = Reference(written, written, [[3], [4]], logprobs, logprobs, [[(0, 7)], []])
    monkeypatch.setattr(apart, "run_apart", lambda *_: answer)
    request = ProofRequest(SimpleNamespace(name="r"), [row["prompt"] for row in ROWS[:2]], 8)
    found = measured_reference(SUITE, request, lambda name: None)
    assert (found.policy.reward, found.policy.right) == ([2.0, 0.0], [True, False])
    assert (found.ties, found.policy_logprobs) == (answer.ties, logprobs)
