"""What the rules say of numbers that a small run does not make: where they wait, where they warn, what they skip."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace

import pytest
from recording import record

from workbench.health import ALARM, NOTE, OK, SKIPPED, STATES, WARNING, RunConfig, Verdict, diagnose, examine_run, worsened
from workbench.health.diagnosis import Verdicts
from workbench.health.rules import RULES
from workbench.health.summary import CallSummary, FunctionSummary, GroupSummary, StepSummary
from workbench.health.trends import change_of_share, share, slope
from workbench.health.verdicts import worst_first
from workbench.rewards.groups import DEAD_KINDS
from workbench.run.metrics import MEAN_LENGTH
from workbench.task import Task
from workbench.views.display import view_of
from workbench.views.health import verdict_lines

CONFIG = RunConfig(
    best={"right": 2.0, "format": 1.0},
    max_completion_length=100,
    beta=0.001,
    learning_rate=1e-5,
    temperature=1.0,
    right_by="right",
    format_by="format",
)


def function(name: str, mean: float, low: float = 0.0, high: float = 2.0, **more) -> FunctionSummary:
    values = {"weight": 1.0, "varies": 6, "share": 0.5, "unscored": 0, "groups": 8}
    return FunctionSummary(name=name, mean=mean, low=low, high=high, **{**values, **more})


def batch(step: int = 1, **changes) -> StepSummary:
    """A healthy batch: 8 groups of 8, half of the completions right."""
    kinds = {**dict.fromkeys(DEAD_KINDS, 0), **changes.pop("dead", {})}
    values = {
        "step": step, "stage": "1", "completions": 64, "group_size": 8,
        "functions": (function("right", 1.0), function("format", 0.5, high=1.0)),
        "group_std": 1.0, "nonfinite": 0, "metrics": {},
        "identical_right": 0, "distinct_in_groups": 0.95, "commonest": "x", "commonest_count": 3,
        "commonest_right": 1, "length": 40.0, "longest": 90, "unended": 0, "clipped": 0,
        "clipped_right": 0, "right": 32, "formatted": 32, "length_correlation": 0.1,
        "groups": tuple(GroupSummary(f"p{step}-{index}", None, 4, 0) for index in range(8)),
    }  # fmt: skip
    return StepSummary(**{**values, "dead": kinds, **changes})


def row(step: int, **values) -> dict:
    usual = {
        "step": step,
        "loss": 0.01,
        "grad_norm": 0.1,
        "kl": 0.01,
        "entropy": 0.5,
        "reward": 1.5,
        "learning_rate": 1e-5,
        "step_time": 6.0,
    }
    return {key: value for key, value in {**usual, **values}.items() if value is not ...}


def verdicts(batches, rows=None, config=CONFIG) -> dict[str, Verdict]:
    found = diagnose(batches, [row(own.step) for own in batches] if rows is None else rows, config)
    return {verdict.name: verdict for verdict in reversed(found)}


def batches(count: int, **changes) -> list[StepSummary]:
    """`count` batches; a change is a value, or a function of the step's number from 0."""
    return [
        batch(step + 1, **{key: value(step) if callable(value) else value for key, value in changes.items()})
        for step in range(count)
    ]


def test_a_healthy_record_is_all_well():
    found = verdicts(batches(30, functions=lambda n: (function("right", 1 + 0.02 * n), function("format", 0.5, high=1.0))))
    assert found.pop("inert_settings").evidence == {"missing": "use_vllm"}  # test_switches.py
    assert {name: each.state for name, each in found.items() if each.state != OK} == {}


def test_without_any_data_everything_is_skipped_and_the_missing_key_named():
    found = diagnose([], [], CONFIG)
    assert len(found) == len(RULES)
    assert {verdict.state for verdict in found} == {SKIPPED}
    assert {verdict.evidence["missing"] for verdict in found} == {"metrics.jsonl", "rollouts", "kl", "grad_norm"}


def test_without_a_record_the_metrics_still_speak():
    found = verdicts([], [row(step, grad_norm=math.nan) for step in range(1, 3)])
    assert found["non_finite"].state == ALARM
    assert found["truncation"].evidence == {"missing": "rollouts"}


def test_keys_that_are_absent_are_named():
    rows = [row(step, kl=..., grad_norm=..., step_time=...) for step in range(1, 21)]
    found = verdicts(batches(20, formatted=None), rows)
    assert found["kl_runaway"].evidence == found["kl_not_measured"].evidence == {"missing": "kl"}
    assert found["zero_gradient"].evidence == {"missing": "grad_norm"}
    assert found["format_without_right"].evidence == {"missing": "format_by"}
    assert found["wasted"].evidence["missing"] == "step_time"
    assert "minutes" not in found["wasted"].evidence


# --- numbers that are none --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        ({"loss": None}, ["loss"]),
        ({"grad_norm": "inf"}, ["grad_norm"]),
        ({"grad_norm": math.inf, "kl": math.nan}, ["grad_norm", "kl"]),
        ({"kl": "-inf"}, ["kl"]),
        ({"reward": math.inf}, ["reward"]),
    ],
)
def test_any_number_that_is_none_in_the_latest_row_is_an_alarm(values, keys):
    found = verdicts(batches(5), [*(row(step) for step in range(1, 5)), row(5, **values)])["non_finite"]
    assert (found.state, found.evidence["keys"]) == (ALARM, keys)
    assert (found.first_step, found.evidence["last_good_step"]) == (5, 4)


def test_a_reward_that_nothing_applied_to_is_not_broken():
    assert verdicts(batches(3), [row(1), row(2, reward=None), row(3)])["non_finite"].state == OK


def test_one_that_passed_is_a_warning_and_that_of_a_scaler_a_note():
    rows = [row(1, grad_norm="inf"), row(2, grad_norm="inf"), *(row(step) for step in range(3, 8))]
    assert verdicts(batches(7), rows)["non_finite"].state == WARNING
    assert verdicts(batches(7), rows, replace(CONFIG, fp16=True))["non_finite"].state == NOTE
    stuck = [row(step, grad_norm="inf") for step in range(1, 8)]
    assert verdicts(batches(7), stuck, replace(CONFIG, fp16=True))["non_finite"].state == ALARM


def test_an_infinite_total_in_the_rollouts_is_seen_too():
    assert verdicts(batches(3, nonfinite=lambda n: n == 2))["non_finite"].evidence["keys"] == ["reward"]


def test_a_gradient_of_zero_with_groups_to_learn_from_is_an_alarm():
    rows = [row(1), *(row(step, grad_norm=0.0) for step in range(2, 6))]
    found = verdicts(batches(5), rows)["zero_gradient"]
    assert (found.state, found.first_step, found.evidence["rows"]) == (ALARM, 2, 4)
    dead = batches(5, dead={"all right": 8})
    assert verdicts(dead, rows)["zero_gradient"].state == NOTE
    assert verdicts(batches(2), rows[:2])["zero_gradient"].state == OK


# --- KL ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kl", "state"),
    [
        ([0.0005 * n for n in range(60)], OK),  # steady, to 0.03
        ([0.01, 0.02, 3.0, 0.02, 0.01, 0.02], OK),  # a single spike
        ([0.005 * n for n in range(60)], WARNING),  # steady, to 0.3
        ([0.001 * 1.1**n for n in range(52)], WARNING),  # doubles and doubles: 0.13
        ([0.001 * 1.1**n for n in range(60)], ALARM),  # and so it goes on: 0.28
        ([0.6, 0.7, 0.9], ALARM),
    ],
)
def test_kl_by_its_height_and_by_its_growth(kl, state):
    found = verdicts(batches(len(kl)), [row(step + 1, kl=value) for step, value in enumerate(kl)])["kl_runaway"]
    assert found.state == state, found


@pytest.mark.parametrize(("length", "state"), [(3.0, OK), (5.0, OK), (6.0, ALARM), (60.0, ALARM)])
def test_kl_of_few_tokens_is_judged_by_the_completion(length, state):
    rows = [row(step, kl=0.9, **{MEAN_LENGTH: 40.0 if step < 8 else length}) for step in range(1, 13)]
    found = verdicts(batches(12), rows)["kl_runaway"]
    assert found.state == state, found
    assert found.evidence["kl_per_completion"] == pytest.approx(0.9 * length)
    assert f"0.9 nats per token (median of the latest 5 rows), {0.9 * length:.2g} per completion" in found.line


def test_a_kl_of_zero_with_beta_zero_is_no_measurement():
    found = verdicts(batches(5), [row(step, kl=0.0) for step in range(1, 6)], replace(CONFIG, beta=0.0))
    assert (found["kl_not_measured"].state, found["kl_runaway"].state) == (NOTE, SKIPPED)


# --- rewards ----------------------------------------------------------------------------------------------------


def paying(value: float, trend: float = 0.0):
    return lambda n: (function("right", 1.0 + trend * n), function("format", value, value, value, varies=0, share=0.0))


@pytest.mark.parametrize(
    ("value", "best", "state", "said"),
    [
        (0.0, 1.0, ALARM, "has paid 0 for each of 256 completions, and says that it pays up to 1"),
        (0.5, 1.0, ALARM, "has paid 0.5"),
        (-1.0, 0.0, ALARM, "has paid -1"),
        (0.0, None, WARNING, "what it could pay is not known"),
        (1.0, 1.0, NOTE, "nothing left to learn"),
        (0.0, 0.0, OK, "each function has paid differently"),
    ],
)
def test_a_function_that_always_pays_the_same(value, best, state, said):
    config = replace(CONFIG, best={"right": 2.0, "format": best})
    found = verdicts(batches(4, functions=paying(value)), config=config)["reward_cannot_pay"]
    assert found.state == state
    assert said in found.line


def test_while_the_reward_rises_a_rare_function_is_given_time():
    found = verdicts(batches(12, functions=paying(0.0, trend=0.03)))["reward_cannot_pay"]
    assert (found.state, found.function) == (WARNING, "format")
    assert verdicts(batches(17, functions=paying(0.0, trend=0.03)))["reward_cannot_pay"].state == ALARM


def test_too_few_completions_are_no_evidence():
    small = batches(7, completions=8, functions=paying(0.0))
    assert verdicts(small)["reward_cannot_pay"].evidence["needs"] == 8
    small = batches(4, completions=24, group_size=4, functions=paying(0.0))
    evidence = verdicts(small)["reward_cannot_pay"].evidence
    assert (evidence["needs"], evidence["has"], evidence["of"]) == (128, 96, "completions")


def test_a_function_without_weight_may_pay_what_it_likes():
    mute = (function("right", 1.0), function("format", 0.0, 0.0, 0.0, weight=0.0))
    assert verdicts(batches(9, functions=mute))["reward_cannot_pay"].state == OK


def test_a_function_that_never_says_anything_is_named():
    silent = (function("right", 1.0), FunctionSummary("format", 1.0, None, None, None, 0, 0.0, 64))
    found = verdicts(batches(4, functions=silent))["reward_cannot_pay"]
    assert (found.state, found.function) == (WARNING, "format")
    assert "none of 256 completions" in found.line
    silent = (silent[0], silent[1]._replace(unscored=24))
    early = verdicts(batches(4, completions=24, group_size=4, functions=silent))["reward_cannot_pay"]
    assert early.state == SKIPPED  # not that it "paid differently"
    assert (early.evidence["needs"], early.evidence["has"]) == (128, 96)


@pytest.mark.parametrize("score", [1.0, 0.5])
def test_completions_without_a_score_are_counted_beside_those_that_are_paid_alike(score):
    """A `get_reward` that forgets to return what a lost game earns."""
    forgets = (FunctionSummary("right", 1.0, score, score, score, 0, 0.0, 40),)
    found = verdicts(batches(8, functions=forgets))["reward_cannot_pay"]
    assert "for each of 192 completions, and 320 got no score" in found.line


@pytest.mark.parametrize(
    ("shares", "varies", "state"),
    [((0.98, 0.02), 6, NOTE), ((0.02, 0.98), 6, ALARM), ((0.02, 0.98), 1, OK), ((0.1, 0.9), 6, OK)],
)
def test_one_function_decides(shares, varies, state):
    functions = (
        function("right", 1.0, share=shares[0], varies=varies),
        function("format", 0.5, share=shares[1], varies=varies),
    )
    assert verdicts(batches(5, functions=functions))["one_function"].state == state


ASKED = [f"{'word ' * (number + 1)}?" for number in range(4)]


def correct_reward(completions, answer, **kwargs):
    return [float(text.split()[0] == right) for text, right in zip(completions, answer)]


def by_prompt_reward(prompts, **kwargs):
    return [len(prompt) / 100 for prompt in prompts]


def by_batch_reward(completions, **kwargs):
    return [sum(map(len, completions)) / len(completions)] * len(completions)


def rounded_reward(completions, prompts, **kwargs):
    return [round(len(prompt) / 3 + len(text) / 1000) for prompt, text in zip(prompts, completions)]


def two_scores_reward(prompts, **kwargs):
    return [float(len(prompt) > 14) for prompt in prompts]


def equal_in_groups(
    *functions, steps=3, weights=None, right=lambda step, place: place % 2, alike=False, best=None
) -> list[Verdict]:
    """Verdicts of reward_cannot_pay on four groups of four a step, in which `right` completions begin with the answer."""
    task = Task("t", [{"prompt": ask, "answer": "7"} for ask in ASKED], [correct_reward, *functions], weights)

    def texts(step, number):
        words = ["same"] * 4 if alike else [f"{'word ' * place}{'x' * step}" for place in range(4)]
        return [f"{7 if right(step, place) else 8} {word}" for place, word in enumerate(words)]

    groups = [[(own, texts(step, number)) for number, own in enumerate(task.rows)] for step in range(steps)]
    run = record(task, groups, weights=dict(zip(task.function_names, weights)) if weights else None)
    return [each for each in examine_run(run) if each.name == "reward_cannot_pay"]


@pytest.mark.parametrize(
    ("function_", "between"),
    [(by_prompt_reward, "prompts"), (by_batch_reward, "batches"), (rounded_reward, "prompts")],
)
def test_a_function_that_is_equal_within_every_group_is_named_at_step_3(home, function_, between):
    assert equal_in_groups(function_, steps=1)[0].state == SKIPPED
    [found] = equal_in_groups(function_)
    assert (found.state, found.function) == (WARNING, function_.__name__)
    assert found.evidence == {"differs_within": {"correct_reward": [12, 12], function_.__name__: [0, 12]}}
    # Wilson's 99 % bound for 0 of 12: z^2 / (n + z^2) = 6.6348 / 18.6348, z = 2.5758
    assert f"{function_.__name__} differs within 0 of 12 groups (0 to 36 %)" in found.line
    assert f"between {between}" in found.line
    assert found.cause
    assert "workbench probe" in found.remedy


@pytest.mark.parametrize(
    ("why", "functions", "more"),
    [
        ("nothing is learnt from a metric of weight 0", [by_prompt_reward], {"weights": [1.0, 0.0]}),
        ("all are right in most groups: nothing can differ", [two_scores_reward], {"steps": 20, "right": lambda *_: True}),
        ("one text for all of a group is equal to any function", [by_prompt_reward], {"alike": True, "right": lambda *_: False}),
        ("it differs in one group of the first step", [lambda prompts, trainer_state, **_: [
            len(prompt) + (trainer_state.global_step == 0 and place == 0) for place, prompt in enumerate(prompts)]], {}),
    ],
)  # fmt: skip
def test_no_false_alarm_over_functions_that_are_equal_for_a_good_reason(home, why, functions, more):
    functions[0].__name__ = functions[0].__name__.replace("<lambda>", "differs_once")
    found = equal_in_groups(*functions, **more)
    assert functions[0].__name__ not in [each.function for each in found], why


def test_of_two_scores_48_groups_tell(home):
    [found] = equal_in_groups(two_scores_reward, steps=12)
    assert (found.state, found.evidence["differs_within"]["two_scores_reward"]) == (WARNING, [0, 48])
    for steps in (3, 11):  # each prompt may be too hard or too easy
        [found] = equal_in_groups(two_scores_reward, steps=steps)
        assert (found.state, found.function) == (SKIPPED, "two_scores_reward")
        assert (found.evidence["needs"], found.evidence["has"]) == (48, 4 * steps)
    [found] = equal_in_groups(two_scores_reward, steps=1)
    assert found.state == SKIPPED


def test_within_how_many_groups_each_weighted_function_differs_stands_for_every_one():
    """Of eight groups a batch `right` differs within six, `format` within none; `muted` has no weight."""
    muted = function("muted", 0.5, weight=0.0)
    functions = (function("right", 1.0), function("format", 0.5, 0.2, 1.0, varies=0), muted)
    found = diagnose(batches(6, functions=functions), [], CONFIG)
    [named] = [each for each in found if each.name == "reward_cannot_pay"]
    assert (named.state, named.function) == (WARNING, "format")
    assert named.evidence["differs_within"] == {"right": [36, 48], "format": [0, 48]}
    # 99 %, Wilson: 36 of 48 is 0.5656 to 0.8729, 0 of 48 is 0 to 6.6348 / 54.6348
    [line] = [line for line in verdict_lines(found).splitlines() if line.startswith("scores differ within")]
    assert line.split(": ")[1].split(", ") == ["right 36 of 48 groups (57 to 87 %)", "format 0 of 48 groups (0 to 12 %)"]
    assert line in str(view_of(found))


@pytest.mark.parametrize(
    ("why", "differs_at", "mean", "more", "state"),
    [
        ("1 of 480 groups: its score hangs on the prompt", 60, 0.4, {}, NOTE),
        ("one that nearly always pays its best has been learnt", 60, 0.95, {}, OK),
        ("60 of 480 groups are more than a tenth", 1, 0.4, {}, OK),
        ("where most groups are all right, nothing is left that could differ", 60, 0.4, {"dead": {"all right": 5}}, OK),
        ("others differ within few groups also", 60, 0.4, {"varies": 3}, OK),
    ],
)
def test_a_function_that_differs_within_very_few_groups_is_named_in_a_note(why, differs_at, mean, more, state):
    right = function("right", 1.0, varies=more.pop("varies", 6))

    def functions(n):
        return right, function("format", mean, high=1.0, varies=int((n + 1) % differs_at == 0))

    found = verdicts(batches(60, functions=functions, **more))["reward_cannot_pay"]
    assert (found.state, found.function) == (state, "format" if state == NOTE else ""), why
    assert bool(found.remedy) == (state == NOTE)


def test_groups_of_which_nothing_is_scored_are_in_no_share(home):
    """A function that has a score for one prompt of four, and tells its completions apart."""

    def sometimes_reward(completions, prompts, **kwargs):
        return [len(text) / 100 if prompt == ASKED[0] else None for prompt, text in zip(prompts, completions)]

    [found] = equal_in_groups(sometimes_reward, steps=4)
    assert (found.state, found.evidence["differs_within"]) == (OK, {"correct_reward": [16, 16], "sometimes_reward": [4, 4]})


# --- groups and texts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dead", "right", "state"),
    [
        ({"all wrong": 1}, 0, OK),
        ({"all wrong": 4}, 0, WARNING),
        ({"all wrong": 4, "same score": 2}, 0, ALARM),
        ({"all right": 7}, 0, OK),
        ({"identical texts": 7}, 7, OK),  # late in a run: sure, and right
        ({"identical texts": 7}, 0, ALARM),
    ],
)
def test_dead_groups_by_kind(dead, right, state):
    found = verdicts(batches(20, dead=dead, identical_right=right))
    assert found["dead_groups"].state == state
    assert found["collapse"].state == (ALARM if dead == {"identical texts": 7} and not right else OK)


def measurement(step: int, solved: int) -> dict:
    return {
        "step": step,
        "correct": solved / 32,
        "reward": solved / 32,
        "right": "1" * solved + "0" * (32 - solved),
        "adapter": "a",
    }


def learnt(count: int = 60, from_: int = 20, all_right: int = 8, held_out=(), rewards=lambda n: 2.0) -> Verdict:
    """A run whose groups are mixed for `from_` steps, and then mostly all right."""
    dead = lambda n: {"all right": all_right if n >= from_ else 0}  # noqa: E731
    functions = lambda n: (function("right", rewards(n)), function("format", 1.0))  # noqa: E731
    many = batches(count, dead=dead, right=60, functions=functions)
    found = diagnose(many, [row(own.step) for own in many], CONFIG, held_out)
    return next(each for each in found if each.name == "learnt_out")


def test_a_run_that_is_learnt_out_is_told_when_it_became_so():
    """Eight groups a batch all right from step 21 on. A window of 20 batches is judged by the bound of its share, 99 %, above
    half: 13 of its batches are enough (104 of 160 groups: 65 %, at least 55 %), 12 (60 %, at least 50 %) just are not."""
    found = learnt()
    assert (found.state, found.last_step) == (WARNING, 60)
    assert (found.evidence["since"], found.evidence["steps"]) == (14, 47)
    assert found.evidence["minutes"] == pytest.approx(47 * 6 / 60)
    assert "brought no improvement" in found.line
    assert "as far as training prompts tell" in found.line
    assert found.remedy.startswith("stop here")


def test_learnt_out_waits_for_twenty_steps_and_for_most_groups():
    assert learnt(count=34).state == NOTE  # 14 of 20 batches: not yet three in four beyond doubt
    assert learnt(all_right=3).state == OK
    assert learnt(all_right=5, count=120).state == NOTE  # 62 %: by the training prompts alone that is not enough
    assert learnt(rewards=lambda n: 1.0 + 0.01 * n).state == NOTE  # the reward still rises


def test_held_out_prompts_decide_whether_it_is_learnt_out():
    flat = [measurement(step, solved) for step, solved in ((0, 12), (20, 28), (30, 29), (40, 28), (50, 29), (60, 28))]
    found = learnt(all_right=6, held_out=flat)
    assert found.state == WARNING
    assert (found.evidence["held_out"], found.evidence["best_step"]) == (pytest.approx(28.4 / 32), 30)
    # By least squares over five: one prompt, the 29th, goes 0 1 0 1 0, which is level; 3 / 32 is left open.
    assert [found.evidence[f"gain{end}"] for end in ("", "_low", "_high")] == pytest.approx([0, -3 / 32, 3 / 32])
    assert "held-out prompts stay at 89 % (-9 to +9 points in that time)" in found.line
    assert "that of step 30" in found.remedy
    rising = [measurement(step, solved) for step, solved in ((0, 12), (20, 14), (30, 18), (40, 22), (50, 26), (60, 30))]
    found = learnt(all_right=6, held_out=rising)
    assert (found.state, "but held-out prompts still gain" in found.line) == (NOTE, True)
    found = learnt(all_right=8, held_out=rising[:4])
    assert (found.state, found.line[-15:]) == (NOTE, "too few to tell")
    falling = [measurement(step, solved) for step, solved in ((0, 12), (20, 30), (30, 25), (40, 18), (50, 13), (60, 10))]
    found = learnt(all_right=6, held_out=falling)
    assert (found.state, "held-out prompts even got worse" in found.line) == (WARNING, True)
    assert "that of step 20" in found.remedy
    up_and_down = [measurement(step, solved) for step, solved in ((0, 12), (20, 27), (30, 28), (40, 30), (50, 27), (60, 30))]
    found = learnt(all_right=6, held_out=up_and_down)
    assert (found.state, "10 points cannot be ruled out" in found.line) == (NOTE, True)


def test_learnt_out_counts_the_minutes_of_all_steps():
    """Six seconds a step; a row of every fifth one is their mean."""
    many = batches(60, dead=lambda n: {"all right": 8 if n >= 20 else 0}, right=60)
    for every in (1, 5):
        found = diagnose(many, [row(own.step) for own in many if own.step % every == 0], CONFIG)
        assert next(each for each in found if each.name == "learnt_out").evidence["minutes"] == pytest.approx(47 * 6 / 60)


def test_one_text_for_every_prompt_is_a_collapse():
    assert verdicts(batches(5, commonest_count=60, commonest_right=4))["collapse"].state == ALARM
    assert verdicts(batches(5, commonest_count=60, commonest_right=55))["collapse"].state == OK


@pytest.mark.parametrize(("clipped", "state"), [(6, OK), (20, WARNING), (40, ALARM)])
def test_truncation_by_its_share(clipped, state):
    cut = batches(20, clipped=clipped, unended=clipped, longest=100)
    assert verdicts(cut)["truncation"].state == state


def test_completions_that_end_with_another_token_are_not_taken_for_cut():
    found = verdicts(batches(20, clipped=1, unended=60, longest=70))["truncation"]
    assert found.state == NOTE
    assert "no EOS token" in found.line


@pytest.mark.parametrize(("calls", "state", "said"), [(0, NOTE, "no EOS token"), (90, WARNING, "what tools answered")])
def test_what_tools_answered_fills_a_rollout_only_where_tools_were_called(calls, state, said):
    of_calls = CallSummary(calls, 0, "", 0, "", "")
    found = verdicts(batches(20, clipped=1, unended=60, longest=70, calls=of_calls))["truncation"]
    assert found.state == state
    assert said in found.line


def test_a_length_that_grows_with_the_answers_is_no_drift():
    longer = {"length": lambda n: 40.0 + 4 * n}
    assert verdicts(batches(20, **longer))["length_drift"].state == ALARM
    assert verdicts(batches(20, right=lambda n: 16 + 2 * n, **longer))["length_drift"].state == NOTE
    noise = random.Random(0)
    assert verdicts(batches(20, length=lambda n: noise.uniform(20, 60)))["length_drift"].state == OK


@pytest.mark.parametrize(
    ("changes", "paid", "state"),
    [
        ({"right": lambda n: 4 + n % 3}, 0.02, NOTE),  # the reward rises, some are right, all end by themselves
        ({"right": lambda n: 4 + n % 3}, 0.0, ALARM),
        ({"right": 0}, 0.02, ALARM),  # paid for being short, and nothing is right
        ({"right": lambda n: 30 - n}, 0.02, ALARM),  # paid more, and less often right
        ({"right": lambda n: 4 + n % 3, "clipped": 40, "unended": 40}, 0.02, ALARM),
    ],
)
def test_a_policy_that_is_paid_for_a_short_answer_learns_to_be_short(changes, paid, state):
    rewards = {"functions": lambda n: (function("mentions", 0.2 + paid * n),)}
    found = verdicts(batches(20, length=lambda n: 24.0 - n, **rewards, **changes))["length_drift"]
    assert found.state == state


@pytest.mark.parametrize(
    ("formatted", "right", "state"),
    [
        (lambda n: 6 + 3 * n, 32, ALARM),
        (lambda n: 6 + 2 * n, 32, WARNING),
        (lambda n: 6 + 3 * n, lambda n: 6 + 2 * n, OK),
        (32, 32, OK),
    ],
)
def test_format_without_right(formatted, right, state):
    assert verdicts(batches(19, formatted=formatted, right=right))["format_without_right"].state == state


def test_wasted_minutes_and_prompts_that_are_always_dead():
    groups = (
        GroupSummary("hard", "all wrong", 0, 0),
        GroupSummary("done", "all right", 8, 0),
        GroupSummary("live", None, 4, 0),
    )
    found = verdicts(batches(10, dead={"all wrong": 5}, groups=groups))["wasted"]
    assert found.state == NOTE
    assert found.evidence["minutes"] == pytest.approx(10 * 6 / 60 * 5 / 8)
    assert (found.prompts, found.evidence["prompts_seen_again"]) == (("hard",), 3)


# --- progress ---------------------------------------------------------------------------------------------------


def wavering(trend: float, count: int, noise: float = 0.2) -> list[StepSummary]:
    draw = random.Random(1)
    means = [1 + trend * n + draw.gauss(0, noise) for n in range(count)]
    return batches(count, functions=lambda n: (function("right", means[n]), function("format", 0.5, high=1.0)))


@pytest.mark.parametrize(
    ("trend", "count", "kl", "state", "said"),
    [
        (0.0, 10, 0.01, SKIPPED, "10 of 16 batches"),
        (0.03, 40, 0.01, OK, "rises"),
        (0.0, 30, 0.01, NOTE, "cannot be told from noise yet"),
        (0.0, 30, 1e-7, WARNING, "hardly moved"),
        (0.0, 100, 0.01, WARNING, "at best"),
        (-0.05, 40, 0.01, WARNING, "falls"),
    ],
)
def test_progress(trend, count, kl, state, said):
    noise = 0.02 if said == "at best" else 0.2
    found = verdicts(wavering(trend, count, noise), [row(step + 1, kl=kl) for step in range(count)])["slow_learning"]
    assert found.state == state, found
    assert said in found.line


def test_a_flat_end_of_a_run_that_has_learnt_is_no_illness():
    functions = (function("right", 1.9), function("format", 1.0, high=1.0))
    found = verdicts(batches(100, right=61, functions=functions), [row(n + 1, kl=1e-7) for n in range(100)])
    assert found["slow_learning"].state == OK


def test_a_change_of_weights_is_not_taken_for_a_trend():
    def functions(step):
        weight = 1.0 if step < 15 else 10.0
        return (function("right", 1.0 + 0.001 * (step % 2), weight=weight), function("format", 0.5, high=1.0))

    found = verdicts(batches(30, functions=functions))["slow_learning"]
    assert found.evidence["slope"] == pytest.approx(0, abs=1e-3)


def test_a_new_stage_begins_anew():
    ill = batches(20, dead={"all wrong": 8}, clipped=60, unended=60, longest=100)
    assert {verdicts(ill)[name].state for name in ("dead_groups", "truncation")} == {ALARM}
    both = ill + [replace(own, step=own.step + 20, stage="2") for own in batches(20)]
    found = verdicts(both)
    assert {found[name].state for name in ("dead_groups", "truncation")} == {OK}
    assert found["dead_groups"].first_step == 21
    assert verdicts(both[:21])["dead_groups"].state == SKIPPED


# --- together ---------------------------------------------------------------------------------------------------


def test_the_worst_comes_first_and_of_those_what_began_first():
    seen = [("note", NOTE, 1), ("late", ALARM, 11), ("warned", WARNING, None), ("early", ALARM, 2)]
    verdicts = Verdicts(Verdict(name, state, "", first_step=step) for name, state, step in seen)
    assert [each.name for each in worst_first(verdicts)] == ["early", "late", "warned", "note"]
    assert [line.split(":")[1].strip() for line in str(verdicts).splitlines()] == ["early", "late", "warned", "note"]


def test_only_what_got_worse_is_news():
    before = [Verdict("a", OK, ""), Verdict("b", ALARM, ""), Verdict("c", WARNING, ""), Verdict("d", SKIPPED, "")]
    after = [Verdict("a", WARNING, ""), Verdict("b", ALARM, ""), Verdict("c", ALARM, ""), Verdict("d", NOTE, "")]
    assert [verdict.name for verdict in worsened(before, after)] == ["a", "c"]
    assert [verdict.name for verdict in worsened([], after)] == ["a", "b", "c"]
    assert worsened([Verdict("r", ALARM, "", function="f")], [Verdict("r", ALARM, "", function="g")])


@pytest.mark.timing
def test_two_hundred_batches_are_examined_in_a_moment():
    """3 ms were measured on two cores; a shared machine may take longer."""
    many, rows = batches(200), [row(step + 1) for step in range(200)]
    diagnose(many, rows, CONFIG)  # the first brings in a library
    costs = []
    for _ in range(20):
        started = time.process_time()
        diagnose(many, rows, CONFIG)
        costs.append(time.process_time() - started)
    assert min(costs) < 0.02


def test_states_are_in_order_of_badness():
    assert STATES == (ALARM, WARNING, NOTE, OK, SKIPPED)


def test_intervals():
    from scipy import stats

    low, high = stats.binomtest(7, 40).proportion_ci(0.99, "wilson")
    assert share(7, 40)[1:] == pytest.approx((low, high), abs=1e-4)
    assert share(0, 0)[1:] == (0.0, 1.0)
    rise = change_of_share((10, 100), (40, 100))
    assert rise.value == pytest.approx(0.3)
    assert 0.1 < rise.low < 0.3 < rise.high < 0.5
    values = [1.0, 2.5, 2.0, 4.0, 4.5, 6.5]
    line = stats.linregress(range(6), values)
    half = line.stderr * stats.t.ppf(0.995, 4)
    assert slope(values) == pytest.approx((line.slope, line.slope - half, line.slope + half))
    assert slope([1.0, 2.0]).low == -math.inf


# --- functions that cancel, an entropy that collapses -----------------------------------------------------------


def format_reward(completions, **kwargs):
    return [2.0 if "tag" in text else 0.0 for text in completions]


def length_reward(completions, **kwargs):
    return [-2.0 if len(text.split()) > 1 else 0.0 for text in completions]


def test_functions_that_cancel_are_named_in_the_verdict(home):
    cancel, live = ["tag long", "plain"], ["tag", "plain"]
    own = {"prompt": "?", "answer": "1"}
    steps = [[(own, cancel), (own, cancel), (own, cancel), (own, live)]] * 4
    found = {each.name: each for each in examine_run(record(Task("t", [own], [format_reward, length_reward]), steps))}
    dead = found["dead_groups"]
    assert dead.state in (WARNING, ALARM)
    assert dead.line.endswith("12 functions cancel; format_reward +2 and length_reward -2 cancel in 12 of 16 groups")
    assert dead.evidence["cancel"] == {"format_reward": 2.0, "length_reward": -2.0}
    assert dead.cause == "what one function pays, another takes away"


def falling(last, steps=20):
    """Rows whose entropy falls from 0.7, evenly by factors."""
    return [row(step + 1, entropy=0.7 * (last / 0.7) ** (step / (steps - 1))) for step in range(steps)]


def test_an_entropy_that_collapses_while_nothing_gets_better_is_a_warning():
    """Medians of the first and of the last 5 of 20 rows: 0.7 x 0.01 ** (2 / 19) = 0.43 and 0.7 x 0.01 ** (17 / 19) = 0.011."""
    found = verdicts(batches(20), falling(0.007))["entropy_collapse"]
    assert found.state == WARNING
    assert found.line == "entropy 0.43 -> 0.011 nats per token, right 50 % -> 50 %: more certain, but no better"
    assert (found.evidence["before"], found.evidence["after"]) == pytest.approx((0.4311, 0.01137), rel=1e-3)
    assert "entropy_coef" in found.remedy


FEW = {"group_size": 4, "commonest_count": 1, "formatted": None}


@pytest.mark.parametrize(
    ("why", "rows", "changes"),
    [
        ("it fell by less", falling(0.07), {}),
        ("right answers rose", falling(0.007), {"right": lambda n: 20 + 2 * n}),
        ("the reward rose", falling(0.007), {"functions": lambda n: (function("right", 1 + 0.02 * n),)}),
        ("nothing is left to learn", falling(0.007), {"right": 62}),
        ("a rise cannot be ruled out", falling(0.007), {**FEW, "completions": 8, "right": 4}),
        ("it rose", falling(7.0), {}),
    ],
)
def test_an_entropy_that_falls_as_it_should_is_none(why, rows, changes):
    assert verdicts(batches(20, **changes), rows)["entropy_collapse"].state == OK, why


def test_entropy_that_is_not_logged_or_too_short_is_said():
    without = verdicts(batches(20), [row(step, entropy=...) for step in range(1, 21)])["entropy_collapse"]
    assert (without.state, without.evidence) == (SKIPPED, {"missing": "entropy"})
    assert verdicts(batches(20), falling(0.007)[:7])["entropy_collapse"].evidence == {"needs": 8, "has": 7, "of": "rows"}
    assert verdicts(batches(11), falling(0.007, 11))["entropy_collapse"].state == SKIPPED


def test_a_warm_start_is_named_to_a_policy_that_is_never_right_and_to_no_other():
    def remedies(right, config=CONFIG, kind="all wrong", low=0.0):
        pays = function("right", 0.0, low=low, high=low)
        found = verdicts(batches(10, dead={kind: 8}, right=right, functions=(pays, function("format", 0.5))), config=config)
        return found["dead_groups"].remedy, found["reward_cannot_pay"].remedy

    assert all("; if the rewards can pay, `warm_start: 32` in the recipe" in remedy for remedy in remedies(1))  # 1 of 64
    assert not any("warm_start" in remedy for remedy in remedies(2))  # 1 of 32
    assert "warm_start" not in remedies(0, kind="identical texts")[0]
    begun = replace(CONFIG, warm_start=True)
    assert all("its warm start was too small" in remedy and "`warm_start" not in remedy for remedy in remedies(0, begun))
