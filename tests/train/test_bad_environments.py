"""A run with each of the bad environments of `bad_games`: named, nothing lost, nothing a 0 that nobody gave."""

from __future__ import annotations

import pytest
from bad_games import BAD, CASES, RECORDED, STOPPED, TOLD, outcome_of
from small_models import make_speaking

from workbench.training.policy import trainer_classes

trainer_classes()  # unsloth first
# The rest takes minutes.
QUICK = {
    "constructor_raises",
    "reset_awaited",
    "any_arguments",
    "one_name",
    "reset_hangs",
    "tool_hangs",
    "tool_forks",
    "async_tool_blocks",
    "leaks",
}
# One of a kind for a merge; the others are further cases.
SOON = {"reward_hangs", "reward_raises", "reset_raises", "tool_megabyte", "async_tool_hangs", "thread", "never_ends"}


def tier(name):
    return () if name in QUICK else pytest.mark.slow if name in SOON else pytest.mark.weekly


@pytest.fixture(scope="module")
def speaks(tmp_path_factory):
    return make_speaking(tmp_path_factory.mktemp("policies") / "speaks")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("name", [pytest.param(own, marks=tier(own)) for own in CASES])
def test_it_is_named_and_nothing_is_lost(home, speaks, name):
    case = CASES[name]
    found = outcome_of(case, speaks, home / "runs")
    assert found.how == case.outcome, found
    assert any(case.said in text for text in found.said), found
    if case.outcome == STOPPED and name != "constructor_raises_later":
        assert (found.steps, found.after) == ([1], "finished")  # what was recorded stays, and the run goes on from there
        assert BAD in found.said[0]
    elif case.outcome in (RECORDED, TOLD):
        assert (found.steps, found.after) == ([1, 2, 3], "finished")
