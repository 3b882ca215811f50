"""A run followed and steered from a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from running import Running

from workbench.run.errors import RequestError, RunError
from workbench.watching import answered, control, follow, followed, snapshot, snapshot_text, write_picture


@pytest.fixture
def running(home):
    opened = Running("r", 40)
    yield opened
    opened.suite.close()


def test_a_snapshot_for_people(running):
    assert "waiting for the first step" in snapshot_text(followed("r"))
    for _ in range(5):
        running.step()
    text = snapshot_text(followed("latest"))
    assert text.startswith("r: step 5 of 40\n  reward ")
    assert "ok:" in text
    assert "step 5, group 1 of 4: What is" in text
    assert "\u202e" not in text


def test_a_snapshot_for_scripts(running):
    for _ in range(3):
        running.step()
    found = json.loads(json.dumps(snapshot(followed("r"))))
    assert (found["status"], found["step"], found["steps"]) == ("running", 3, 40)
    assert found["to_go_s"] == pytest.approx(37 * 0.3)
    assert found["metrics"]["completions/mean_length"] > 0
    assert not [key for key in found["metrics"] if " x " in key]
    assert found["weights"] == {"correctness_reward": 1.0, "format_reward": 1.0}
    assert {"name", "state", "function", "line", "remedy"} == set(found["verdicts"][0])
    running.finish()
    assert snapshot(followed("r"))["status"] == "finished"


def test_the_picture_is_written(running, tmp_path):
    running.step()
    assert write_picture(followed("r"), tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_no_such_run(home):
    with pytest.raises(RunError, match="no run 'nonesuch'"):
        followed("nonesuch")


def test_a_run_of_another_process_is_followed_and_steered(home, capfd):
    script = Path(__file__).parent / "running.py"
    process = subprocess.Popen([sys.executable, str(script), "other", "400", "0.2"])
    try:
        until = time.monotonic() + 60
        while not (home / "runs" / "other" / "metrics.jsonl").is_file() and time.monotonic() < until:
            time.sleep(0.1)
        found = followed("other")
        statuses = []
        watching = threading.Thread(target=lambda: statuses.append(follow(found, every_s=0.1)))
        watching.start()
        answer = control("other", "weight", ["format_reward", "0.5"])
        assert (answer["applied"], answer["by"]) == (True, "command line")
        assert answered(answer, 60) == f"from step {answer['from_step']}: format x 1 → x 0.5"
        refused = control("other", "mute", ["nonesuch"])
        assert answered(refused, 60).splitlines()[0] == "refused: mute nonesuch: function 'nonesuch'"
        assert answered(refused, 60).splitlines()[1].startswith("  rule: ")
        assert control("other", "stop")["applied"]
        watching.join(60)
        assert statuses == ["stopped"]
    finally:
        process.kill()
        process.wait()
    said = capfd.readouterr().err
    assert f"step {answer['from_step']}: format x 1 → x 0.5" in said
    assert "refused: mute nonesuch" in said
    assert "other: stopped after" in said
    with pytest.raises(RequestError, match="does not train"):
        control("other", "stop")


def test_a_request_that_is_not_answered_in_time(running):
    found = control("r", "checkpoint", timeout_s=0.3)
    assert found["applied"] is None
    assert "not answered after 0.3 s" in answered(found, 0.3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["weight", "a_reward"], "weight takes function and value"),
        (["weight", "a_reward", "1", "2"], "workbench control r weight FUNCTION VALUE"),
        (["stop", "now"], "stop takes nothing more"),
        (["puase"], "did you mean 'pause'"),
        (["beta", "x"], "a number from 0 on"),
    ],
)
def test_a_request_that_cannot_be_right(running, words, said):
    with pytest.raises(RequestError, match=said):
        control("r", words[0], words[1:])
