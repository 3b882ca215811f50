"""The recorder, by itself: what it lets through to the file."""

from __future__ import annotations

import pytest

from workbench.health import RunConfig, Verdict, Watchdog
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory
from workbench.run.metrics import KL
from workbench.training.recorder import Recorder


@pytest.mark.parametrize(
    ("measures_kl", "rows"), [(True, [{"step": 1, "loss": 0.0, "kl": 0.0}]), (False, [{"step": 1, "loss": 0.0}])]
)
def test_a_kl_that_nobody_measured_is_not_recorded_as_zero(home, measures_kl, rows):
    """Unsloth's GPU trainer logs one when beta is 0."""
    run = RunDirectory.create("r", Recipe(), {})
    recorder = Recorder(run, eos_token_id=2)
    recorder.measures_kl = measures_kl
    recorder.log(1, {"loss": 0.0, KL: 0.0})
    assert run.metrics() == rows


def test_the_end_line_names_the_functions(home):
    watchdog = Watchdog(RunConfig)
    kinds = [("reward_cannot_pay", "tag"), ("reward_cannot_pay", "right"), ("kl_runaway", ""), ("length_drift", "")]
    states = ["warning", "warning", "warning", "ok"]
    watchdog.verdicts = [Verdict(name, state, "", function=own) for (name, own), state in zip(kinds, states, strict=True)]
    recorder = Recorder(RunDirectory.create("r", Recipe(), {}), eos_token_id=2)
    recorder.watchdog = watchdog
    assert recorder.verdict.startswith("; warning: rewards that never fire (tag, right), warning: runaway KL (`workbench watch")
