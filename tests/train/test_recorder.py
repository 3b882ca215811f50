"""The recorder, by itself: what it lets through to the file."""

from __future__ import annotations

import pytest

from workbench.recipe import Recipe
from workbench.rewards.suite import RewardSuite
from workbench.run.directory import RunDirectory
from workbench.run.metrics import KL
from workbench.task import Task
from workbench.training.recorder import Recorder


def a_reward(completions, **kwargs):
    return [0.0] * len(completions)


@pytest.mark.parametrize(
    ("measures_kl", "rows"), [(True, [{"step": 1, "loss": 0.0, "kl": 0.0}]), (False, [{"step": 1, "loss": 0.0}])]
)
def test_a_kl_that_nobody_measured_is_not_recorded_as_zero(home, measures_kl, rows):
    """Unsloth's GPU trainer logs one when beta is 0."""
    run = RunDirectory.create("r", Recipe(), {})
    suite = RewardSuite(Task("t", [{"prompt": "x"}], [a_reward]), 2)
    Recorder(run, suite, eos_token_id=2, measures_kl=measures_kl).log(1, {"loss": 0.0, KL: 0.0})
    assert run.metrics() == rows


def test_the_end_line_names_the_functions(home):
    class Found:
        def found(self):
            kinds = [("reward_cannot_pay", "tag"), ("reward_cannot_pay", "right"), ("kl_runaway", None)]
            return [{"state": "warning", "name": name, "function": function} for name, function in kinds]

    suite = RewardSuite(Task("t", [{"prompt": "x"}], [a_reward]), 2)
    recorder = Recorder(RunDirectory.create("r", Recipe(), {}), suite, eos_token_id=2)
    recorder.watchdog = Found()
    assert recorder.verdict.startswith(
        "; warning: rewards that never fire (tag, right), warning: runaway KL (`workbench watch"
    )
