"""Each illness of a run, produced for real on the embedded policy, is named with its evidence; healthy runs get no alarm."""

from __future__ import annotations

import re
import statistics

import pytest
from ill_runs import GRPO, RUNS, Fresh, run_ill

from workbench.health import ALARM, NOTE, OK, SKIPPED, WARNING, Verdict, config_of, diagnose, examine_run, worsened
from workbench.health.summary import summaries_of
from workbench.recipe import Recipe
from workbench.run.rollouts import query
from workbench.tiny.task import task as arithmetic
from workbench.training.trainer import train


@pytest.fixture(scope="module")
def fresh():
    """Gives a policy that has not learnt anything yet."""
    return Fresh()


@pytest.fixture
def examined(home, fresh, capsys):
    """Makes an ill run and gives (the verdicts by name, the run)."""

    def examine(name):
        run, _ = run_ill(RUNS[name], fresh())
        found = examine_run(run)
        for verdict in found:
            complete(verdict)
        by_name = {verdict.name: verdict for verdict in reversed(found)}
        assert by_name[RUNS[name].verdict].state in RUNS[name].states
        return by_name, run

    return examine


def complete(verdict: Verdict) -> None:
    """Whatever is said has what it takes to be acted on."""
    if verdict.state in (ALARM, WARNING):
        assert verdict.evidence
        assert verdict.cause
        assert verdict.remedy
        assert verdict.first_step is not None
        assert verdict.first_step <= verdict.last_step
        assert re.search(r"\d", verdict.line)
    elif verdict.state == SKIPPED:
        assert "missing" in verdict.evidence or verdict.evidence["has"] < verdict.evidence["needs"]


def test_a_reward_that_cannot_pay(examined):
    found, run = examined("cannot pay")
    verdict = found["reward_cannot_pay"]
    assert verdict.state == ALARM
    assert verdict.function == "one_line_reward"
    assert verdict.line == "one_line_reward has paid 0 for each of 160 completions, and says that it pays up to 1"
    assert (verdict.evidence["score"], verdict.evidence["best_score"], verdict.evidence["weight"]) == (0.0, 1.0, 1.0)
    assert (verdict.first_step, verdict.last_step) == (1, 5)
    assert "line break" in verdict.cause
    assert "workbench probe" in verdict.remedy
    assert query(run.rollouts, 'select max("score.one_line_reward") as best from rollouts')["best"][0] == 0


@pytest.mark.slow
def test_groups_that_all_score_the_same_and_what_they_cost(examined):
    """A reward for debugging that was left in."""
    found, run = examined("same score")
    dead = found["dead_groups"]
    assert dead.state == ALARM
    assert dead.evidence["share"] == 1
    assert dead.evidence["same score"] > 0
    frame = query(run.rollouts)
    assert set(dead.prompts) <= set(frame["prompt_id"])
    cost = found["wasted"]
    assert cost.state == WARNING
    assert cost.evidence["share"] == 1
    assert cost.evidence["minutes"] == pytest.approx(sum(row["step_time"] for row in run.metrics()) / 60, rel=0.01)
    assert "debug_reward has paid 1 for each of 160 completions" in found["reward_cannot_pay"].line
    assert found["zero_gradient"].state == NOTE


def test_groups_that_are_all_wrong_and_prompts_that_are_always_dead(examined):
    """Eight prompts, come again and again, that the policy cannot solve."""
    found, run = examined("all wrong")
    dead = found["dead_groups"]
    assert dead.state == ALARM
    assert "20 all wrong" in dead.line
    assert "easier prompts" in dead.remedy
    assert len(dead.prompts) == 8
    assert found["wasted"].evidence["always_dead_prompts"] == 8
    assert set(found["wasted"].prompts) == set(query(run.rollouts)["prompt_id"])
    assert found["reward_cannot_pay"].function == "correctness_reward"
    assert found["reward_cannot_pay"].state == ALARM


@pytest.mark.slow
def test_groups_that_are_all_right_are_success(examined):
    found, _ = examined("all right")
    assert (found["dead_groups"].state, found["learnt_out"].state) == (OK, NOTE)
    assert "nothing left to learn" in found["learnt_out"].line
    assert "nothing left to learn" in found["reward_cannot_pay"].line
    assert not [verdict for verdict in found.values() if verdict.state in (ALARM, WARNING)]


@pytest.mark.slow
def test_collapse_to_identical_texts(examined):
    found, run = examined("collapse")
    verdict = found["collapse"]
    assert verdict.state == ALARM
    assert verdict.evidence["identical_and_not_right"] > 0.6
    assert verdict.evidence["commonest"] in set(query(run.rollouts)["completion"])
    assert "temperature = 0.001" in verdict.cause
    assert verdict.prompts
    assert "identical texts" in found["dead_groups"].line


@pytest.mark.slow
def test_truncation(examined):
    found, run = examined("truncation")
    verdict = found["truncation"]
    assert verdict.state == ALARM
    cut = statistics.fmean(row["completions/clipped_ratio"] for row in run.metrics())
    assert verdict.evidence["share"] == pytest.approx(cut)
    assert verdict.evidence["right_of_cut"] == 0
    assert "at 10 tokens" in verdict.line
    assert "max_completion_length" in verdict.remedy
    # What follows from it is put down to it.
    assert found["reward_cannot_pay"].function == "strict_format_reward"
    assert "cut at the limit" in found["reward_cannot_pay"].cause


@pytest.mark.slow
def test_kl_runaway(examined):
    found, run = examined("kl runaway")
    verdict = found["kl_runaway"]
    assert verdict.state == ALARM
    assert verdict.evidence["kl"] == pytest.approx(statistics.median(row["kl"] for row in run.metrics()[-5:]))
    assert verdict.evidence["kl"] > 0.5
    assert verdict.first_step == next(row["step"] for row in run.metrics() if row["kl"] > 0.1)
    assert "learning_rate = 0.05" in verdict.cause


@pytest.mark.slow
def test_a_gradient_that_is_no_number(examined):
    """The weights take it over, and the next step cannot even sample; the record says where it began."""
    found, run = examined("not a number")
    verdict = found["non_finite"]
    assert verdict.state == ALARM
    assert verdict.evidence["keys"] == ["grad_norm"]
    assert (verdict.first_step, verdict.evidence["last_good_step"]) == (4, 3)
    assert "a checkpoint of step 3 or before" in verdict.remedy
    fourth = query(run.rollouts, "select distinct prompt_id from rollouts where step = 4")["prompt_id"]
    assert set(verdict.prompts) == set(fourth)


@pytest.mark.slow
def test_length_drift(examined):
    found, run = examined("length drift")
    verdict = found["length_drift"]
    assert verdict.state in (ALARM, WARNING)
    lengths = [row["completions/mean_length"] for row in run.metrics()]
    assert verdict.evidence["before"] == pytest.approx(statistics.fmean(lengths[:3]))
    assert verdict.evidence["after"] == pytest.approx(statistics.fmean(lengths[-3:]))
    assert verdict.evidence["ratio"] > 1.5
    assert verdict.evidence["reward_goes_with_length"] > 0.4
    assert "pays for length" in verdict.cause


@pytest.mark.slow
def test_format_up_while_correctness_is_flat(examined):
    found, run = examined("format without right")
    verdict = found["format_without_right"]
    assert verdict.state in (ALARM, WARNING)
    assert verdict.evidence["format_after"] - verdict.evidence["format_before"] > 0.3
    assert verdict.evidence["right_after"] < 0.05
    assert verdict.function == "correctness_reward"
    last = query(run.rollouts, 'select avg("score.strict_format_reward") as share from rollouts where step > 9')
    assert verdict.evidence["format_after"] == pytest.approx(last["share"][0])


@pytest.mark.slow
def test_one_function_that_decides_everything(examined):
    found, _ = examined("one function")
    verdict = found["one_function"]
    assert verdict.state == ALARM
    assert verdict.function == "padding_reward"
    assert verdict.evidence["share"]["padding_reward"] > 0.95
    assert sum(verdict.evidence["share"].values()) == pytest.approx(1)
    differing, groups = found["reward_cannot_pay"].evidence["differs_within"]["correctness_reward"]
    assert differing > 0.25 * groups
    assert "padding_reward 100" in verdict.cause


@pytest.mark.slow
def test_kl_that_is_not_measured(examined):
    found, _ = examined("kl not measured")
    assert found["kl_not_measured"].state == NOTE
    assert "beta = 0" in found["kl_not_measured"].line
    assert found["kl_runaway"].state == SKIPPED
    assert found["kl_runaway"].evidence == {"missing": "kl"}


@pytest.mark.slow
def test_learning_too_slow_to_tell(examined):
    found, run = examined("slow learning")
    verdict = found["slow_learning"]
    assert verdict.state == WARNING
    assert verdict.evidence["slope_low"] < 0 < verdict.evidence["slope_high"]
    assert verdict.evidence["kl"] < 1e-6
    assert "learning_rate = 1e-09" in verdict.cause
    assert len(run.metrics()) == 16


HEALTHY = {"max_steps": 10, "num_generations": 4, "per_device_train_batch_size": 16, "max_completion_length": 96}


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.weekly if seed > 2 else pytest.mark.slow) for seed in range(1, 10))]
)
def test_a_healthy_run_gets_no_alarm_at_any_step(home, fresh, seed, capsys):
    """The demo's recipe with fewer completions; looked at after each step, as while it trains."""
    recipe = Recipe.of({"run_name": f"healthy-{seed}", "grpo": {**GRPO, **HEALTHY}, "seed": seed})
    task = arithmetic(400, 8)
    run = train(recipe, policy=fresh(), task=task)
    summaries, rows, config = summaries_of(run), run.metrics(), config_of(run)
    for step in range(1, 11):
        found = diagnose(summaries[:step], rows[:step], config)
        assert worsened([], found) == []
    by_name = {verdict.name: verdict.state for verdict in found}
    # Silent because it looked, not because it could not.
    assert [name for name, state in by_name.items() if state == SKIPPED] == ["entropy_collapse", "slow_learning"]
    assert by_name["reward_cannot_pay"] == by_name["truncation"] == by_name["kl_runaway"] == OK
