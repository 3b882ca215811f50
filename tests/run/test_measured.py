"""What a run's events say of held-out prompts that were measured while it trained."""

from __future__ import annotations

import pytest

from workbench.base.errors import RunError
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory
from workbench.run.held_out import best_of, flags, held_out, in_numbers


def event(step: int, correct: float = 0.5, reward: float = 1.0, key: str = "k", **more) -> dict:
    of = {"key": key, "right": "0110", "adapter": f"after {step}" if step else "base", "low": 0.0, "high": 1.0}
    return {"event": "held_out", "step": step, "correct": correct, "reward": reward, **of, **more}


def steps(events: list[dict]) -> list[int]:
    return [own["step"] for own in held_out(events)]


def test_what_was_measured_after_the_checkpoint_that_a_run_went_on_from_does_not_count():
    told = [event(0), event(10), event(20), event(30), {"event": "continued", "step": 20}]
    assert steps(told) == [0, 10, 20]
    assert steps([*told, {"event": "checkpoint", "step": 25}, event(30, 0.9)]) == [0, 10, 20, 30]
    assert held_out([*told, event(20, 0.9)])[-1]["correct"] == 0.9


def test_a_warm_start_is_measured_beside_the_base():
    told = [event(0), event(0, 0.8, adapter="warm"), event(10, 0.7)]
    assert [own["adapter"] for own in held_out(told)] == ["base", "warm", "after 10"]
    assert best_of(held_out(told))["adapter"] == "warm"


def test_measurements_of_other_prompts_are_not_on_one_curve():
    assert steps([event(0), event(10), event(0, key="other"), event(20, key="other")]) == [0, 20]


def test_the_best_is_the_most_correct_then_the_best_paid_then_the_earliest_and_never_base():
    found = [event(0, 0.9), event(10, 0.5, 3.0), event(20, 0.75, 1.0), event(30, 0.75, 2.0), event(40, 0.75, 2.0)]
    assert best_of(found)["step"] == 30
    assert best_of(found[:1]) is None
    assert flags(found[0]).tolist() == [[False], [True], [True], [False]]


def test_a_measurement_in_words():
    base = {"step": 0, "correct": 0.375, "low": 0.229, "high": 0.547}
    assert in_numbers(base) == "38 % (23 to 55), base"
    gained = {**base, "gain": 0.1875, "gain_low": 0.04, "gain_high": 0.33}
    assert in_numbers(gained) == "38 % (23 to 55), +19 points over base (+4 to +33), after the warm start"
    assert in_numbers({**gained, "step": 5}) == "38 % (23 to 55), +19 points over base (+4 to +33)"


def test_the_best_adapter_is_found_and_taken_where_it_is_asked_for(home):
    run = RunDirectory.create("r", Recipe(), {"settings": {}})
    run.release()
    with pytest.raises(RunError, match="no best adapter"):
        _ = run.best
    for name in ("best-10", "best-30", "final"):
        (run.checkpoints / name).mkdir(parents=True)
        (run.checkpoints / name / "adapter_config.json").write_text("{}")
    for own in (event(0, 0.9), event(10, 0.6), event(20, 0.8), event(30, 0.7)):
        run.log_event("held_out", **{name: value for name, value in own.items() if name != "event"})
    assert run.best.name == "best-30", "that of step 20 was better, and its folder is gone"
    assert run.adapter == run.final
    assert run.use_best() == run.best == RunDirectory(run.path).adapter
    assert run.use_best(False) == run.final
    run.use_best()
    run.reopen(20)  # it goes on: neither a later best nor the choice outlasts it
    run.release()
    assert sorted(folder.name for folder in run.checkpoints.iterdir()) == ["best-10", "final"]
    assert run.manifest()["adapter"] is None
