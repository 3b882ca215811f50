"""Runs side by side: what differs, what each gained, and the prompts that all drew."""

from __future__ import annotations

import numpy as np
import pytest
from planted import healthy, kept, planted

from workbench import inspection
from workbench.base.errors import RunError
from workbench.views.display import view_of


def broken(step, row, draw):
    return f"<answer>{row['answer']}</answer>" if draw.random() < 0.5 and step % 3 else f"no {step}…"


def test_two_runs_differ_in_what_differs(home):
    one, other = planted("one", healthy, steps=8), planted("other", broken, steps=8, weights=(2.0, 1.0))
    for run, beta in ((one, 0.0), (other, 0.5)):
        run.update_manifest(settings={"asked": {}, "in_force": {"num_generations": 4, "scale_rewards": "group", "beta": beta}})
    found = inspection.compare_runs(one, other)
    differ = {row.setting: (row.one, row.other) for row in found.settings.frame.itertuples()}
    assert differ["found.rewards.weights.correctness_reward"] == ("1.0", "2.0")
    assert [name for name in differ if "beta" in name] == ["grpo.beta"]  # once
    assert not any(name.startswith(("created", "id", "run_name")) for name in differ)
    assert "not evaluated: `workbench eval one`" in str(found.held_out)
    assert found.prompts.verdict.startswith("16 prompts were drawn by both in the last quarter of their steps")
    assert inspection.compare_runs(one, one).settings.numbers["differ"] == 0
    flat = np.zeros((6, 2), bool)
    kept(one, flat, flat)
    kept(other, flat, ~flat)
    compared = inspection.compare_runs(one, other)
    assert "fixed 6, nothing broke, neither 0 of 6 prompts" in compared.held_out.verdict
    assert view_of(compared)._repr_html_().count("<img src='data:image/png") == 1


def test_three_runs_are_compared_with_the_first(home):
    runs = [planted(name, how, steps=8) for name, how in (("one", healthy), ("two", broken), ("three", healthy))]
    for run, after in zip(runs, ([0, 0, 0], [1, 1, 0], [0, 0, 0]), strict=True):
        kept(run, np.zeros((3, 2), bool), np.array([[own] * 2 for own in after], bool))
    found = inspection.compare_runs(*runs)
    assert list(found.settings.frame)[1:] == ["one", "two", "three"]
    assert (
        "one -> two, on 3 prompts that both were measured on: fixed 2, nothing broke, neither 1 of 3 prompts"
        in found.held_out.verdict
    )
    assert (
        "one -> three, on 3 prompts that both were measured on: fixed 0, nothing broke, neither 3 of 3 prompts"
        in found.held_out.verdict
    )
    assert found.held_out.frame["run"].tolist() == ["one", "two", "three"]
    assert found.prompts.frame["change"].tolist() == (found.prompts.frame["three"] - found.prompts.frame["one"]).tolist()
    assert "drawn by all" in found.prompts.verdict
    assert view_of(found)._repr_html_().count("<img src='data:image/png") == 1
    names = list(inspection.compare_runs(runs[0], runs[0], runs[0]).settings.frame)[1:]
    assert names == ["one", "one (2)", "one (3)"]
    with pytest.raises(RunError, match="two or more runs are compared"):
        inspection.compare_runs(runs[0])


def test_something_else_than_a_run_is_said(home):
    with pytest.raises(RunError, match="this view reads RunDirectory"):
        inspection.compare_runs(planted("r", healthy, steps=2), "r")
