"""A run followed and steered from a terminal."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from driving import waited_for
from hostile import HOSTILE, VISIBLE, in_a_terminal, obeyed, run_command
from running import Running

from workbench.base.errors import RequestError
from workbench.run.directory import open_run
from workbench.views.run_view import FollowedRun
from workbench.views.terminal import TerminalProgress
from workbench.views.watch import answered, control, follow, snapshot, snapshot_text


@pytest.fixture
def running(home):
    opened = Running("r", 40)
    yield opened
    opened.suite.close()


def followed(name: str) -> FollowedRun:
    return FollowedRun(open_run(name, latest="training"))


@pytest.mark.slow
def test_a_snapshot_for_people(running):
    assert "waiting for the first step" in snapshot_text(followed("r"))
    for _ in range(5):
        running.step()
    text = snapshot_text(followed("latest"))
    assert text.startswith("r: step 5 of 40\n  reward ")
    assert "no sign of: NaN or infinite values" in text
    assert "step 5, group 2 of 4: What is" in text
    assert "\u202e" not in text


def test_in_a_narrow_terminal_lines_are_broken_between_words(running, monkeypatch):
    for _ in range(4):
        running.step()
    whole = snapshot_text(followed("r"))
    terminal = SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True), maxsize=sys.maxsize)
    monkeypatch.setattr("workbench.views.watch.sys", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    narrow = snapshot_text(followed("r"))
    assert max(map(len, whole.splitlines())) > 80 >= max(map(len, narrow.splitlines()))
    clockless = [re.sub(r"\d:\d\d", "", text).split() for text in (narrow, whole)]
    assert clockless[0] == clockless[1]


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


def test_the_picture_is_written(running, tmp_path, monkeypatch, capfd):
    running.step()
    code, out, _ = run_command(monkeypatch, capfd, "watch", "r", "--png", str(tmp_path / "run.png"))
    assert (code, out) == (0, "")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_no_such_run(home, monkeypatch, capfd):
    code, _, err = run_command(monkeypatch, capfd, "watch", "nonesuch")
    assert (code, "no run 'nonesuch'" in err) == (2, True)


@pytest.mark.slow
def test_a_run_of_another_process_is_followed_and_steered(home, capfd):
    script = Path(__file__).parents[1] / "running.py"
    process = subprocess.Popen([sys.executable, str(script), "other", "4000", "0.2"])
    try:
        waited_for(lambda: (home / "runs" / "other" / "metrics.jsonl").is_file())
        found = followed("other")
        statuses = []
        watching = threading.Thread(target=lambda: statuses.append(follow(found, every_s=0.1)))
        watching.start()
        answer = control(open_run("other"), "weight", ["format_reward", "0.5"])
        assert (answer["applied"], answer["by"]) == (True, "command line")
        assert answered(answer, 60) == f"from step {answer['from_step']}: format x 1 → x 0.5"
        refused = control(open_run("other"), "mute", ["nonesuch"])
        assert answered(refused, 60).splitlines()[0] == "refused: mute nonesuch: function 'nonesuch'"
        assert answered(refused, 60).splitlines()[1].startswith("  rule: ")
        assert control(open_run("other"), "stop")["applied"]
        watching.join(60)
        assert statuses == ["stopped"]
    finally:
        process.kill()
        process.wait()
    said = capfd.readouterr().err
    assert f"step {answer['from_step']}: format x 1 → x 0.5" in said
    assert "refused: mute nonesuch" in said
    assert "other: stopped after" in said
    with pytest.raises(RequestError, match="is not training"):
        control(open_run("other"), "stop")


def test_latest_is_the_run_that_trains_and_is_named(running, home, monkeypatch, capfd):
    running.step()
    Running("later").finish()
    monkeypatch.chdir(home)
    code, out, err = run_command(monkeypatch, capfd, "watch", "--once")
    assert (code, out.splitlines()[0]) == (0, "r: step 1 of 40")
    assert "latest: r (still training, step 1 of 40); beside it: later (finished after 0 steps, no adapter)" in err
    code, out, err = run_command(monkeypatch, capfd, "control", "latest", "checkpoint", "--timeout", "0.1")
    assert (code, "latest: r (still" in err) == (3, True)
    code, out, err = run_command(monkeypatch, capfd, "replay", "latest", "--task", "nonesuch")
    assert (code, "latest: r (still" in err) == (2, True)


def test_a_request_that_is_not_answered_in_time(running):
    found = control(open_run("r"), "checkpoint", timeout_s=0.3)
    assert found["applied"] is None
    assert "not answered after 0.3 s" in answered(found, 0.3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["weight", "a_reward"], "weight takes function and value"),
        (["weight", "a_reward", "1", "2"], "more = '2' given.*takes function and value.*write weight FUNCTION VALUE"),
        (["stop", "now"], "stop: more = 'now' given.*stop takes no details"),
        (["puase"], "did you mean 'pause'"),
        (["beta", "x"], "a number from 0 on"),
    ],
)
def test_a_request_that_cannot_be_right(running, words, said):
    with pytest.raises(RequestError, match=f"(?s){said}"):
        control(open_run("r"), words[0], words[1:])


@pytest.fixture
def hostile(running, monkeypatch):
    """A run whose completions are hostile, and a refusal and an alarm that quote them."""
    monkeypatch.setattr(Running, "_text", lambda self, answer, good: HOSTILE + (answer if self.rng.random() < 0.5 else ""))
    for _ in range(3):
        running.step()
    refuse(running)
    running.run.log_event("alarm", 3, name="x", line=HOSTILE, remedy=HOSTILE)
    return running


def refuse(running):
    running.run.log_event("control", 3, action="weight", by=HOSTILE, applied=False, function=HOSTILE, why=HOSTILE)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["watch", "r", "--once"], 0),
        (["watch", "r", "--json"], 0),
        (["control", "r", "mute", HOSTILE, "--timeout", "0.1"], 3),
        (["control", "r", "weight", "format_reward", HOSTILE], 2),
        (["replay", "r", "--task", "task.py", "--weight", "correctness_reward=-1"], 0),
        (["replay", "r", "--task", "task.py", "--json"], 0),
    ],
)
def test_what_a_completion_holds_never_reaches_the_terminal_raw(hostile, home, monkeypatch, capfd, arguments, code):
    here = str(Path(__file__).parents[1])
    (home / "task.py").write_text(f"import sys\nsys.path.append({here!r})\nfrom running import TASK as task\n")
    monkeypatch.chdir(home)
    ended, out, err = run_command(monkeypatch, capfd, *arguments)
    assert obeyed(out + err) == []
    assert ended == code, err
    if "--json" in arguments:
        json.loads(out)
    elif code == 0:
        assert VISIBLE[:20] in out


@pytest.mark.slow
def test_a_watched_run_draws_its_own_bar_and_obeys_nothing_else(hostile, home):
    def go_on():
        hostile.step()
        refuse(hostile)
        hostile.finish()

    code, shown, _ = in_a_terminal("watch", "r", "--every", "0.2", home=home, once_shown=go_on)
    assert code == 0
    assert "\x1b[2K" in shown, "a bar was drawn"
    assert "refused: weight" in shown
    assert "r: finished after" in shown
    assert "[red]r[/red][link=http://e.vil]l[/link]:warning:" in shown
    assert obeyed(shown, bar=True) == []


class Screen(io.StringIO):
    def isatty(self):
        return True


NUMBERS = {"reward": 1.5, "group_reward_std": 0.5, "kl": 0.25, "groups/dead": 0.1}


@pytest.mark.parametrize(
    ("columns", "shown", "cut"),
    [("200", ("std 0.50", "kl 0.2500", "\u2501"), ()), ("80", ("reward 1.50", "dead 10%", "0:00:00"), ("std", "\u2501"))],
)
def test_a_narrow_terminal_loses_the_bar_before_the_numbers(monkeypatch, columns, shown, cut):
    monkeypatch.setattr(sys, "stdout", Screen())
    monkeypatch.setattr(sys, "stderr", Screen())
    monkeypatch.setenv("COLUMNS", columns)
    terminal = TerminalProgress()
    terminal.begin(SimpleNamespace(name="arithmetic"), 100, {})
    with terminal.bar:
        terminal.update(10, NUMBERS)
    text = sys.stderr.getvalue()
    assert "10/100" in text
    assert all(word in text for word in shown)
    assert not any(word in text for word in ("…", *cut))


@pytest.mark.parametrize("variable", ["", "FORCE_COLOR", "TTY_COMPATIBLE"])
def test_a_file_gets_no_bar(monkeypatch, capsys, variable):
    monkeypatch.setenv(variable or "NO_SUCH", "1")
    terminal = TerminalProgress()
    terminal.begin(SimpleNamespace(name="run"), 20, {})
    for step in range(1, 21):
        terminal.update(step, NUMBERS)
    terminal.end("finished after 20 steps")
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(":")[0] for line in err.splitlines()] == ["step 1", "step 10", "step 20"]
    assert terminal.ended == "finished after 20 steps"


def test_a_bars_texts_are_no_markup(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Screen())
    monkeypatch.setattr(sys, "stderr", Screen())
    monkeypatch.setenv("COLUMNS", "400")
    terminal = TerminalProgress()
    terminal.begin(SimpleNamespace(name=f"name {HOSTILE}"), 4, {})
    with terminal.bar:
        terminal.update(1, {}, f"numbers {HOSTILE}")
        terminal.say(f"said {HOSTILE}")
        print(f"printed {HOSTILE}", end="", flush=True)
    assert obeyed(sys.stderr.getvalue(), bar=True) == []
    for word in ("name", "numbers", "said"):
        assert f"{word} \\x1b[2J\\x1b[31m" in sys.stderr.getvalue()
    assert "printed \\x1b[2J" in sys.stderr.getvalue()
    assert sys.stderr.getvalue().count("[red]r[/red][link=http://e.vil]l[/link]:warning:") >= 4
