"""EvalLogs: what inspect_ai itself reads back of them."""

from __future__ import annotations

import importlib.util
import os
import sys

import numpy as np
import pytest
from planted import healthy, kept, planted

import workbench as wb
from workbench import inspection
from workbench.base.errors import RunError

BEFORE, AFTER = np.array([[1, 0], [0, 0], [0, 1]], bool), np.array([[1, 1], [0, 1], [0, 1]], bool)


@pytest.fixture
def run(home):
    run = planted("r", healthy, steps=2)
    kept(run, BEFORE, AFTER)
    return run


def test_without_the_library_it_says_how_to_get_it(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    with pytest.raises(RunError, match="pip install inspect-ai"):
        inspection.write_eval_log(run)
    assert not (run.path / "eval_logs").exists()


@pytest.mark.slow
def test_inspect_ai_reads_them(run):
    if importlib.util.find_spec("inspect_ai") is None and not os.environ.get("REQUIRE_EXTRAS"):
        pytest.skip("needs inspect-ai")
    from inspect_ai.analysis import samples_df
    from inspect_ai.log import list_eval_logs, read_eval_log

    files = inspection.write_eval_log(run)
    assert [file.name for file in files] == ["r-base.eval", "r-trained.eval"]
    assert len(list_eval_logs(str(run.path / "eval_logs"))) == 2
    logs = [read_eval_log(str(file)) for file in files]
    for log, right in zip(logs, (BEFORE, AFTER), strict=True):
        assert (log.status, log.eval.config.epochs, log.eval.dataset.samples) == ("success", 2, 3)
        means = {score.name: score.metrics["mean"].value for score in log.results.scores}
        assert means["correct"] == right.mean()
        values = {(sample.id, sample.epoch): sample.scores["correct"].value for sample in log.samples}
        assert values == {(p + 1, e + 1): float(right[p, e]) for p in range(3) for e in range(2)}
    evaluation = inspection.read_evaluation(run)
    [sample] = [own for own in logs[1].samples if (own.id, own.epoch) == (2, 2)]
    assert sample.output.completion == evaluation.after.completions[1][1]
    assert sample.target == str(evaluation.rows[1].get("answer", ""))
    assert sample.output.stop_reason == "stop"
    assert logs[1].eval.metadata["gain"] == evaluation.found["gain"]
    frame = samples_df(str(run.path / "eval_logs"))
    assert len(frame) == 12
    again = wb.inspection.write_eval_log(run, run.path / "elsewhere")
    assert [file.parent.name for file in again] == ["elsewhere"] * 2
