"""Rewards that an environment gives: a text alone has none, and that is said, neither counted nor alarmed of."""

from __future__ import annotations

import json

import numpy as np
import pytest

from workbench.audit.examination import audit_rewards
from workbench.audit.regression_cases import check_cases
from workbench.rewards.scoring import score
from workbench.task import Task
from workbench.views.audit import audit_view
from workbench.views.lab import Lab


class Lamp:
    """Is lit or not."""

    def reset(self, **row) -> str:
        self.lit = False
        return " It is dark."

    def press(self) -> str:
        """Press the switch."""
        self.lit = not self.lit
        return "lit" if self.lit else "dark"

    def get_reward(self) -> float:
        return float(self.lit)


def done_reward(completions, **columns):
    """1 where the last word is `done`."""
    return [float(messages[-1]["content"] == "done") for messages in completions]


def task_of(*functions, **parts):
    rows = [{"prompt": [{"role": "user", "content": f"Light lamp {number}."}]} for number in range(4)]
    return Task("lamp", rows, functions, environment=Lamp, **parts)


@pytest.mark.parametrize("functions", [(), (done_reward,)])
def test_an_audit_says_what_it_cannot_try_and_alarms_of_nothing(functions):
    audit = audit_rewards(task_of(*functions, ideal=lambda row: "done"))
    assert audit.ok
    assert not [each for each in audit.findings if each.severity != "note"]
    [own] = [each for each in audit.findings if each.function == "Lamp"]
    assert "given by the environment" in own.text
    report = audit.functions[-1]
    assert (report.name, report.reference, report.lowest) == ("Lamp", None, None)
    assert any("one text each" in each.text for each in audit.findings) == bool(functions)
    if functions:
        assert (audit.reference_total, {*audit.probes[0].scores}) == (1.0, {"done_reward"})
    else:
        assert audit.verdict == "no reward hack could be tried; 0 errors"
    assert "nan" not in str(audit_view(audit))


def test_a_case_that_expects_it_is_told_so_and_the_others_are_checked(tmp_path):
    file = tmp_path / "cases.jsonl"

    def lines_of(*expected):
        file.write_text("".join(json.dumps({"completion": "done", "expected": own}) + "\n" for own in expected))
        return str(check_cases(task_of(done_reward), file))

    assert lines_of({"done_reward": 1.0}, {"Lamp": None}).startswith("2 of 2 regression cases hold")
    said = lines_of({"Lamp": 1.0}, {"total": 1.0}, {"done_reward": 0.0})
    assert said.count("given by the environment") == 2
    assert "done_reward is 1, expected 0" in said
    audit = audit_rewards(task_of(done_reward), cases=str(file))
    assert len([each for each in audit.findings if each.kind == "case"]) == 3


def test_the_lab_and_a_score_leave_it_out_and_the_lab_says_so(monkeypatch):
    monkeypatch.setattr("workbench.views.lab.no_widgets", lambda: True)
    text = str(Lab(task_of(), ["lit", "lit"]))
    assert "Lamp: given by the environment" in text
    assert "nothing is learnt" not in text
    batch = score(task_of(done_reward), task_of().rows[0], ["done", "lit"])
    assert np.isnan(batch.scores[:, 1]).all()
    assert batch.totals.tolist() == [1.0, 0.0]


def test_the_labs_panel_says_so_too():
    lab = Lab(task_of(done_reward), ["done", "lit"])
    assert "given by the environment" in lab.parts["verdict"].value
    assert "what each function adds" not in lab.parts["scores"].value
    lab.close()
