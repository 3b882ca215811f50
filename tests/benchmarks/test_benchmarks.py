"""The benchmarks at toy sizes: that they run, compare like with like, and that the README's tables are what they left."""

from __future__ import annotations

import contextlib
import importlib
import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))

import measuring  # noqa: E402

every = importlib.import_module("all")
SHARED = {"all", "arms", "lengthening", "made_records", "measuring"}


def benchmark(name: str) -> ModuleType:
    return importlib.import_module(name)


# --- measuring ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_round_begins_with_another_arm():
    order: list[str] = []
    found = measuring.in_rounds(["a", "b", "c"], 3, lambda arm: order.append(arm) or len(order))
    assert "".join(order) == "abcbcacab"
    assert found == {"a": [1, 6, 8], "b": [2, 4, 9], "c": [3, 5, 7]}


def test_a_ratio_is_of_the_least_and_has_the_range_of_the_rounds():
    assert measuring.ratio([2.0, 6.0], [4.0, 3.0]) == pytest.approx((2 / 3, 0.5, 2.0))


def test_quick_has_other_defaults_and_keeps_no_result():
    parser = measuring.arguments("what it is")
    parser.add_argument("--rounds", type=int, default=9)
    assert measuring.parse(parser, [], rounds=1).rounds == 9
    assert measuring.parse(parser, [], rounds=1).out == measuring.RESULTS
    quick = measuring.parse(parser, ["--quick"], rounds=1)
    assert (quick.rounds, quick.out) == (1, None)
    assert measuring.parse(parser, ["--quick", "--rounds", "2"], rounds=1).rounds == 2


def test_a_result_says_where_it_comes_from(tmp_path, capsys):
    parser = measuring.arguments("what it is")
    parser.add_argument("--policy", default="tiny")
    parser.add_argument("--step-sizes", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=9)
    asked = measuring.parse(parser, ["--out", str(tmp_path), "--policy", "small", "--step-sizes", "2", "3"], rounds=1)
    line = measuring.Line("a thing", "2.00 times as fast", "another", "0.99 to 1.01")
    file = measuring.save("thing", asked, measuring.stamp(), [line], (["arm", "s"], [["one", 1.5]]), {"seconds": [1.5]})
    content = json.loads(file.read_text(encoding="utf-8"))
    assert {"date", "machine", "load_before", "versions", "command", "lines", "table", "seconds"} <= content.keys()
    assert content["command"] == "uv run python benchmarks/thing.py --policy small --step-sizes 2 3"
    assert content["asked"] == {"quick": False, "policy": "small", "step_sizes": [2, 3], "rounds": 9}
    assert str(tmp_path) not in file.read_text(encoding="utf-8")
    assert "2.00 times as fast" in capsys.readouterr().out
    made = every.rewritten("a\n<!-- table: all -->\nold\n<!-- end -->\nb", {"thing": content})
    assert made.startswith("a\n")
    assert made.endswith("\nb")
    assert "old" not in made
    assert f"| a thing | 2.00 times as fast |  | another | 0.99 to 1.01 | `thing.py` | {content['date']} |" in made


FAST, LONG, NONE = "1.80 times as fast", "0.5 ms a batch more (1.20 times as long)", "100 ms more"


@pytest.mark.parametrize(
    ("before", "after", "noise", "worse"),
    [
        (FAST, "1.80 times as fast", "0.95 to 1.02", False),
        (FAST, "1.58 times as fast", "0.95 to 1.00", False),  # 1.14 times as slow of 1.1 / 0.95^2 = 1.22
        (FAST, "1.40 times as fast", "0.95 to 1.00", True),  # 1.29
        (FAST, "3.00 times as fast", "0.95 to 1.00", False),
        (LONG, "0.7 ms a batch more (1.40 times as long)", "1.00 to 1.00", True),  # 1.17 of 1.1
        (LONG, "0.1 ms a batch more (1.05 times as long)", "1.00 to 1.00", False),
        (NONE, "114 ms more", "2.0 ms", False),  # 1.14 of 1.1 x 1.02 x 1.018
        (NONE, "120 ms more", "2.0 ms", True),
    ],
)
def test_what_became_slower_beyond_the_noise_is_a_failure(tmp_path, before, after, noise, worse):
    for name, figure in {"before": before, "after": after}.items():
        (tmp_path / name).mkdir()
        lines = [
            measuring.Line("a thing", figure, "another", noise)._asdict(),
            measuring.Line("no time", "3 of 3", "", "none")._asdict(),
        ]
        (tmp_path / name / "steps.json").write_text(json.dumps({"lines": lines}))
    command = [sys.executable, FOLDER / "all.py", "--compare", tmp_path / "before", tmp_path / "after"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "SLOWER" in done.stdout) == (int(worse), worse), done.stderr
    assert "no time" not in done.stdout


def test_what_measures_a_time_runs_alone_and_the_others_two_at_a_time(monkeypatch):
    alive, seen, both = set(), [], threading.Barrier(2, timeout=60)

    def pretend(command, env):
        name = Path(command[1]).stem
        alive.add(name)
        if name in every.TOGETHER:
            both.wait()  # it breaks where the other one is not begun meanwhile
        seen.append((name, len(alive), env.get("OMP_NUM_THREADS")))
        alive.discard(name)
        return subprocess.CompletedProcess(command, int(name in ("scoring", "health")))

    monkeypatch.setattr(every.subprocess, "run", pretend)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert every.run(["health", "scoring", "judges", "start"], {}) == ["scoring", "health"]
    assert seen[:2] == [("scoring", 1, "2"), ("start", 1, "2")]
    assert {name for name, *_ in seen[2:]} == {"health", "judges"}
    assert {threads for *_, threads in seen[2:]} == {"1"}
    assert len(set(every.NAMES)) == len(every.NAMES)


def test_no_two_lines_of_a_result_have_one_name():
    # By its name a line finds its figure of before, and the weekly comparison the same line of another week.
    for name, content in every.results().items():
        named = [line["what"] for line in content["lines"]]
        assert len(set(named)) == len(named), name


def test_two_folders_that_share_no_time_are_no_success(tmp_path):
    done = subprocess.run(
        [sys.executable, FOLDER / "all.py", "--compare", tmp_path, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode
    assert "nothing was compared" in done.stderr


def test_the_short_form_asks_for_what_there_is():
    assert set(every.SHORT) <= set(every.NAMES)
    workflow = (FOLDER.parent / ".github" / "workflows" / "weekly.yml").read_text(encoding="utf-8")
    for words in ("all.py --short --out", "all.py --compare"):
        assert words in workflow


def test_the_readmes_tables_are_those_of_the_results():
    text = every.README.read_text(encoding="utf-8")
    assert every.rewritten(text, every.results()) == text, "run `python benchmarks/all.py --write`"
    for name in ("all", *every.NAMES):
        assert f"<!-- table: {name} -->" in text


def test_all_runs_every_benchmark_and_each_says_what_it_does():
    scripts = {file.stem for file in FOLDER.glob("*.py")} - SHARED
    assert scripts == set(every.NAMES)
    for name in scripts | {"all"}:
        source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
        assert f"uv run python benchmarks/{name}.py" in source.partition('"""\n\n')[0]
        assert "description=__doc__" in source or "measuring.arguments(__doc__)" in source


@pytest.mark.parametrize(
    ("claimed", "right", "of", "outcome"),
    [
        (True, 30, 60, "landed"),
        (True, 13, 60, "landed"),
        (True, 8, 60, "contradicted"),  # the interval, 7 to 24 %, lies mostly outside
        (True, 52, 60, "contradicted"),
        (False, 0, 60, "honestly none"),
        (False, 60, 60, "honestly none"),
        (False, 16, 60, "contradicted"),  # 17 to 39 %
        (False, 30, 60, "contradicted"),
        (True, 0, 0, "not measured"),
    ],
)
def test_what_auto_said_of_a_level_is_held_against_fresh_completions(claimed, right, of, outcome):
    levels = benchmark("levels")
    assert levels.outcome(claimed, right, of) == outcome
    kept = {"task": "t", "level": "0", "said": "", "in_band": claimed, "fresh": [right, of]}
    lines, (_, rows), found, _ = levels.report("tiny", 50, [], [kept], [])
    assert f"1 {outcome}" in lines[1].figure
    assert lines[1].figure.count("0 ") == 3
    assert (rows[0][-1], found["auto"][0]["outcome"]) == (outcome, outcome)


def test_of_taught_tasks_those_with_a_level_known_to_be_in_the_band_count():
    levels = benchmark("levels")

    def of(known, in_band=True, right=30, level="0"):
        asked = {"said": "s", "level": level, "in_band": in_band, "fresh": [right, 60], "seen": [1, 100]}
        found = {"task": "t", "taught": 400, "known": known, "tried": [[0, 90, 180]], "commit": "abc"}
        return found | (asked | {"commit_of_auto": "def"} if known is not None else {"said": ""})

    untaught = of(None) | {"task": "u", "taught": 0, "said": "task 'reasoning_gym/u@0': 8 different questions"}
    taught = [of(0), of(1, level="1"), of(0, in_band=False), of(0, right=5), of(None), untaught]
    lines, (header, rows), found, notes = levels.report("tiny", 50, [], [], taught)
    assert [row[-1] for row in rows] == ["landed", "landed", "missed", "contradicted", "-"]
    assert lines[-1].figure == "2 landed, 1 missed, 1 contradicted, 0 not measured"
    assert "4 tasks" in lines[-1].what
    assert dict(zip(header, rows[4]))["what auto said"] == "not asked"
    assert "5 tasks were taught, 4 count; in 1" in notes[-4]
    assert " 4 of the 400 questions" in notes[-4]
    assert notes[-3] == "Not taught: u (8 different questions)."
    assert notes[-2:] == ["Measured at, taught: abc.", "Measured at, auto of taught: def."]
    assert [each["outcome"] for each in found["taught"]] == [*(row[-1] for row in rows), "-"]


def test_a_task_that_takes_too_long_is_ended_even_under_an_except():
    levels = benchmark("levels")

    def forever():
        while True:
            with contextlib.suppress(Exception):
                sum(range(1000))

    with pytest.raises(levels.OutOfTimeError), levels.within(1):
        forever()
    with levels.within(1):
        pass
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_tasks_that_are_kept_are_not_measured_again_and_no_more_than_are_enough(tmp_path):
    levels, measured = benchmark("levels"), []

    def measure(name):
        measured.append(name)
        return {"task": name}

    def kept(minutes, enough):
        found = levels.kept(tmp_path / "kept.jsonl", ["a", "b", "c"], measure, minutes, lambda so_far: len(so_far) == enough)
        return [each["task"] for each in found]

    assert kept(1, 2) == ["a", "b"] == measured
    assert kept(1, 1) == ["a"]
    assert kept(0, 3) == ["a", "b"] == measured  # no time is left for another
    assert kept(1, 3) == measured == ["a", "b", "c"]
    lines = map(json.loads, (tmp_path / "kept.jsonl").read_text().splitlines())
    assert {line["commit"] for line in lines} == {measuring.stamp()["versions"]["commit"]}


# --- the benchmarks -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_steps_compares_the_same_learning():
    steps = benchmark("steps")
    arms = [steps.TRL, f"{steps.TRL} again", steps.WORKBENCH]
    found = steps.measure("demo, 16 bit", 1, 1, small=True, arms=arms)
    assert list(found["arms"]) == arms
    for own in found["arms"].values():
        assert 0 < own["least_generate_s"] < own["least_step_s"]
    assert len(found["curve_of_trl"]) == 3
    assert {"reward", "loss", "kl"} <= found["curve_of_trl"][0].keys()
    for curve in found["curves"].values():
        assert curve["largest_difference"]["loss"] < 1e-3
        assert curve["largest_difference"]["reward"] < 1e-6
    assert found["curves"]["TRL again"]["equal_to_the_bit"]
    assert found["ratios"].keys() == {"TRL / workbench", "A/A of TRL"}
    assert found["arms"][steps.WORKBENCH]["generated_by"] == {"by": "workbench", "calls": {"workbench": 3, "trl": 0}}
    json.dumps(found)
    rows = steps.rows_of({"demo, 16 bit": found})
    assert [row[1] for row in rows] == list(found["arms"])


def test_a_learning_curve_that_differs_is_seen():
    from arms import Run, same_curve

    one, other = Run(rows=[{"reward": 1.0, "loss": 0.5}] * 2), Run(rows=[{"reward": 1.0, "loss": 0.5}] * 2)
    assert same_curve(one, other)["equal_to_the_bit"]
    other.rows = [other.rows[0], {"reward": 0.75, "loss": 0.5}]
    found = same_curve(one, other)
    assert (found["equal_to_the_bit"], found["first_difference_at_step"]) == (False, 2)
    assert found["largest_difference"]["reward"] == 0.25


@pytest.mark.slow
def test_generation_counts_the_same_tokens():
    found = benchmark("generation").measure(False, 60, prompts=2, longest=8, rounds=1)
    assert 60 <= found["prompt_tokens"] < 90
    assert found["completions"] == 16
    assert 16 <= found["tokens"] <= 16 * 8
    assert found["equal_completions"]["generate again"] == 16
    assert len(found["part_brings"]) == 3


def test_completions_are_equal_whatever_the_padding():
    import torch

    equal = benchmark("generation").equal
    one = torch.tensor([[5, 6, 2], [5, 2, 0]])
    assert equal(one, one, 0) == 2
    assert equal(one, torch.tensor([[5, 6], [5, 2]]), 0) == 1  # the first one was cut


@pytest.mark.slow
def test_checkpoints_hold_the_same_kinds_of_state():
    checkpoints = benchmark("checkpoints")
    with measuring.empty_home():
        runs = checkpoints.measure(1, 1, [checkpoints.OURS, checkpoints.THEIRS])
    ours, theirs = (checkpoints.figures(runs[arm]) for arm in (checkpoints.OURS, checkpoints.THEIRS))
    assert {"optimizer.safetensors", "state.json"} <= ours["files"].keys()
    assert not [name for name in ours["files"] if name.endswith((".pt", ".bin", ".pth"))]
    assert {"optimizer.pt", "rng_state.pth"} <= theirs["files"].keys()
    assert ours["least_ms"] > 0
    assert len(ours["saves_ms"][0]) == 1


@pytest.mark.weekly
def test_runs_that_are_killed_go_on_as_if_nothing_had_been(tmp_path):
    words = ["--quick", "--json", "--kills", "9", "--trl", "1", "--keep", str(tmp_path / "kept"), "--config"]
    found = measuring.own_process("kills.py", *words, "accumulation 2", "stages", "logging_steps 2")  # it fails if one is lost
    ours = [one for one in found["tries"] if one["arm"] == "workbench"]
    assert len(ours) == 9
    assert len({one["config"] for one in ours}) == 3
    assert {one["outcome"] for one in ours} <= {"exact", "none yet"}, ours
    assert len([one for one in ours if one["outcome"] == "exact"]) >= 3
    assert len([one for one in found["tries"] if one["arm"] == "TRL"]) == 1
    assert not (tmp_path / "kept").exists()


def test_what_became_of_a_killed_run_is_judged(tmp_path):
    kills = benchmark("kills")
    left = {"status": "finished", "metrics": [{"step": 1, "loss": 0.5}], "rollouts": "a", "adapter": "b"}
    assert kills.differs(left, json.loads(json.dumps(left))) == ""
    assert kills.differs({**left, "metrics": [{"step": 1, "loss": 0.25}]}, left) == "metrics of step 1: loss = 0.25, not 0.5"
    assert kills.differs({**left, "metrics": []}, left) == "steps in metrics: [], not [1]"
    for name in ("status", "rollouts", "adapter", "result", "health"):
        assert kills.differs({**left, name: "another"}, left) == name
    assert "not readable" in kills.differs({"not readable": "torn"}, left)

    class Arm(kills.Workbench):
        def __init__(self, saved):
            self.saved = lambda folder: saved

    def outcome(kind, said, saved):
        ended = kills.Ended("failed", f"{kind} WorkbenchError" if kind == "RunError" else kind, said)
        return kills.judged(Arm(saved), None, tmp_path, ended)["outcome"]

    assert outcome("RunError", "r: no checkpoint to resume from", False) == "none yet"
    assert outcome("RunError", "r: no checkpoint to resume from", True) == "lost"
    assert outcome("RunError", "all 6 steps are trained", True) == "trained"
    assert outcome("RunError", "another reason", False) == outcome("KeyError", "no run 'r'", False) == "raw"
    assert kills.judged(Arm(True), None, tmp_path, kills.Ended("hung"))["outcome"] == "lost"


@pytest.mark.slow
def test_reading_and_replaying_a_made_up_record():
    reading, replay = benchmark("reading"), benchmark("replay")
    with measuring.empty_home():
        reading.make(rows=64 * 120, a_step=64)
        answers = {question: reading.measure(question)["answer"] for question in reading.questions()}
        replayed = replay.measure(64)
    assert answers["the table of all steps (04)"] == answers["all lines of metrics"] == 120
    assert answers["the group that taught most in the last step (04)"] == 8
    assert answers["a group of the newest step (panel)"] == 8
    assert "decided" in answers["what decided a group of the last step (04)"]
    assert answers["the curves (04)"] > 10_000
    assert replayed["completions"] == 64
    assert replayed["peak_mb"] > 20


@pytest.mark.weekly
def test_a_made_up_long_run_is_recorded_and_examined():
    with measuring.empty_home():
        [held] = benchmark("long_run").record([6], merged=True)
    assert (held["steps"], held["files"]) == (6, 6)
    assert set(held["seconds"]) == {f"{name}{again}" for name in benchmark("long_run").questions() for again in ("", " again")}


@pytest.mark.slow
def test_scoring_gives_the_scores_of_a_plain_loop():
    found = benchmark("scoring").measure(16, count=1, rounds=1)
    assert found["completions"] == 16
    assert all(speed > 0 for speed in found["completions_per_s"].values())


@pytest.mark.slow
def test_answers_agree_with_math_verify(monkeypatch):
    answers = benchmark("answers")
    monkeypatch.setattr(answers, "MIXES", {name: answers.MIXES[name] for name in ("integers", "formulas")})
    ours, theirs = (answers.measure(arm, 8)["verdicts"] for arm in ("workbench", "math-verify"))
    assert ours == theirs
    assert "1" in ours["integers"]
    assert "0" in ours["integers"]


def test_dataset_checks_keep_the_same_rows(tmp_path):
    checks, file = benchmark("dataset_checks"), tmp_path / "rows.jsonl"
    checks.make(file, 200)
    kept = {arm: checks.measure(arm, str(file))["kept"] for arm in ("workbench", "map, batched")}
    assert kept["workbench"] == kept["map, batched"] < 200


@pytest.mark.slow
def test_redraws_are_measured_by_length():
    found = benchmark("hooks").redraws(lengths=(5, 20), times=1)
    assert [row["steps"] for row in found] == [5, 5, 20]
    assert all(row["ms"] > 0 and row["bytes"] > 1000 for row in found)


@pytest.mark.slow
def test_a_healthy_run_is_looked_at_after_every_step():
    health = benchmark("health")
    ill_runs = importlib.import_module("ill_runs")  # of this folder
    with measuring.empty_home():
        found = health.healthy(ill_runs.Fresh(), 0, 2, per_device_train_batch_size=8, max_completion_length=16)
    assert len(found["reward"]) == 2
    assert sum(found["states"].values()) > 5


@pytest.mark.weekly
def test_a_broken_run_is_made_and_repaired():
    with measuring.empty_home():
        found = benchmark("broken_runs").measure("run_02", "unsloth", 0)
    assert found["illness"] == "cannot pay"
    assert found["broken"] < found["threshold"] <= found["repaired"]
    assert found["held"]


@pytest.mark.weekly
def test_bad_environments_are_trained_with_and_without_the_workbench(tmp_path):
    words = ["--quick", "--cases", "tool_list", "any_arguments", "--out", str(tmp_path)]
    subprocess.run([sys.executable, str(FOLDER / "bad_environments.py"), *words], check=True)
    content = json.loads((tmp_path / "bad_environments.json").read_text(encoding="utf-8"))
    found = {one["case"]: one for one in content["runs"]}
    assert all(one["held"] for one in found.values())
    assert found["tool_list"]["trl"].startswith("ends: TypeError")  # of the template, raw
    assert found["any_arguments"]["trl"] == "finishes"


def test_a_child_that_fails_is_told_from_one_that_refuses():
    from workbench.base.errors import RunError

    def refuses():
        raise RunError("a value", rule="a rule", remedy="a remedy")

    forked = benchmark("damage").forked
    assert forked(lambda: print("said") or [1]) == ([1], "", False, "", "said\n", "")
    assert forked(refuses).outcome == "refused"
    assert forked(lambda: 1 / 0).outcome == "raw"
    assert forked(lambda: benchmark("damage").killed()).raised == "Killed"
    assert forked(lambda: time.sleep(60), longest_s=0.2).outcome == "hung"


@pytest.mark.weekly
def test_a_damaged_run_is_never_silent_and_no_message_raw(tmp_path):
    command = [sys.executable, FOLDER / "damage.py", "--every", "30", "--rounds", "2", "--json", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["campaign"] for row in rows} == {"damages", "race", "edits", "disk"}
    assert json.loads((tmp_path / "damage.json").read_text())["bad"] == 0
    assert {"older", "refused", "one owner"} <= {row["outcome"] for row in rows}


def test_a_judges_bias_is_named_by_itself_or_not():
    judges = benchmark("judges")
    named = {"position": ["position"], "verbosity": [], "authority": ["authority", "injection"]}
    measure = {"name": "unreadable", "verdict": "failed", "value": 1.0, "low": 0.84, "high": 1.0}
    untold = {"name": "verbosity", "verdict": "cannot be told", "value": None, "low": None, "high": None}
    trial = {"kind": "scoring", "asked": "m", "rows": 2, "verdict": "failed: unreadable", "took_minutes": 1.5}
    trial["measures"] = [measure, untold]
    lines, (_, rows) = judges.report(named, {"scores": [True, False, True]}, [trial])
    assert [line.figure for line in lines] == ["1 of 3", "2 of 3"]
    assert rows[1:3] == [["planted: verbosity", "nothing"], ["planted: authority", "authority, injection"]]
    assert [row[1] for row in rows[3:]] == ["failed, 1.5 min", "1.00 (0.84 to 1.00), failed", "cannot be told"]


def test_duels_of_a_bank_of_runs_are_counted(tmp_path):
    """Made-up runs: the better arm solves 8 of 10 prompts, the others 2 of 10; nothing is trained."""
    duel = benchmark("duel")
    bank = duel.Bank(tmp_path, 0, minutes=0)
    for seed in range(1, 2 * duel.PAIRS + 1):
        for arm, solved in {"five": 8, "coin": 2, "reversed": 8}.items():
            bank.runs[arm, seed] = {"solved": "1" * solved + "0" * (10 - solved)}
    del bank.runs["reversed", 8]
    found = [duel.fought(kind, number, bank) for number in (0, 1) for kind in duel.KINDS]
    assert [own and own["called"] for own in found] == [False, True, None, True]  # what is missing is not counted
    assert found[1]["mean"] == pytest.approx(0.6)
    lines, (header, rows), _, _ = duel.report([own for own in found if own], [])
    assert [line.figure for line in lines] == ["0", "2"]
    assert [dict(zip(header, row))["budget saved"] for row in rows] == ["0%", "50%"]


@pytest.mark.weekly
def test_duels_are_fought_for_real():
    subprocess.run([sys.executable, str(FOLDER / "duel.py"), "--quick"], check=True)


def test_control_arms_are_counted_by_verdict():
    arm = benchmark("control_arm")
    interval = {"value": 0.5, "low": 0.4, "high": 0.6}

    def side(verdict: str) -> dict:
        return {"verdict": verdict, "sign": "x", "grew": interval, "undone": interval}

    verdicts = [("cause", "not the cause"), ("cannot be told", "cause"), ("not the cause", "cannot be told")]
    found = [
        {"hack": "h", "seed": 1, "equal": cause != "cause", "cause": side(cause), "innocent": side(innocent)}
        for cause, innocent in verdicts
    ]
    lines, (header, rows), _, _ = arm.report(found)
    assert [line.figure for line in lines] == ["1 of 3", "1 of 3", "2 of 6", "2 of 3"]
    assert dict(zip(header, rows[0]))["undone, points"] == "+50 (+40 to +60)"
    assert [row[-1] for row in rows] == [verdict for pair in verdicts for verdict in pair]


@pytest.mark.weekly
def test_a_task_is_taught_and_its_level_asked_for_real(tmp_path):
    words = ["--quick", "--taught", "1", "--home", str(tmp_path / "home"), "--out", str(tmp_path)]
    subprocess.run([sys.executable, str(FOLDER / "levels.py"), *words], check=True)
    (found,) = json.loads((tmp_path / "levels.json").read_text())["taught"]
    level, right, of = found["tried"][0]
    assert (level, found["known"]) == (0, 0)
    assert 0.2 < right / of < 0.8  # untaught it solves 11 % of them
    assert found["outcome"] == "landed"
    assert found["seen"][0] == 0 < found["seen"][1]  # auto asked of none that it was taught


@pytest.mark.weekly
def test_a_control_arm_is_trained_for_real():
    subprocess.run([sys.executable, str(FOLDER / "control_arm.py"), "--quick"], check=True)


def test_a_line_keeps_the_figure_that_stood_there_before(tmp_path):
    measuring, file = benchmark("measuring"), tmp_path / "steps.json"
    lines = [{"what": "a step", "figure": "1.7 times as fast"}, {"what": "a new thing", "figure": "3 s"}]
    assert measuring.with_before(lines, file) == lines
    file.write_text(json.dumps({"date": "2026-11-21", "lines": [{"what": "a step", "figure": "1.5 times as fast"}]}))
    found = measuring.with_before(lines, file)
    assert [line["before"] for line in found] == ["1.5 times as fast (2026-11-21)", ""]
    result = {
        "date": "2026-11-27",
        "versions": {"commit": "abc"},
        "lines": [{**line, "against": "TRL", "noise": "1"} for line in found],
    }
    assert "1.7 times as fast | 1.5 times as fast (2026-11-21) | TRL" in benchmark("all").overview({"steps": result})


def test_start_measures_a_process_and_refuses_one_that_fails(monkeypatch):
    start = benchmark("start")
    assert start.start("import workbench") > 0
    monkeypatch.setitem(start.ARMS, "broken", ("-c", "raise SystemExit('broken on purpose')"))
    with pytest.raises(RuntimeError, match="broken on purpose"):
        start.start("broken")


def test_a_training_is_waited_for_until_its_first_step_and_ended_then(tmp_path):
    start = benchmark("start")
    trains = (
        "import pathlib, sys, time; own = pathlib.Path(sys.argv[1]) / 'first'; own.mkdir(); time.sleep(0.5)\n"
        "(own / 'metrics.jsonl').write_text('{}'); time.sleep(600)"
    )
    assert 0.5 < start.first_step([sys.executable, "-c", trains], tmp_path) < 300
    with pytest.raises(RuntimeError, match="broken on purpose"):
        start.first_step([sys.executable, "-c", "raise SystemExit('broken on purpose')"], tmp_path / "none")


def test_a_measurement_in_a_process_of_its_own(tmp_path):
    benchmark("dataset_checks").make(tmp_path / "rows.jsonl", 100)
    words = ["--measure", "workbench", "--file", str(tmp_path / "rows.jsonl")]
    assert measuring.own_process("dataset_checks.py", *words)["kept"] == 99


def test_what_the_readme_promises_is_what_was_measured():
    """The bounds that the project has set itself, held against the committed results."""
    found = {
        name: json.loads((FOLDER / "results" / f"{name}.json").read_text()) for name in ("steps", "hooks", "answers", "start")
    }
    demo = found["steps"]["cases"]["demo, nf4"]
    gain, *between = demo["ratios"]["TRL / workbench"]
    assert gain >= 1.3
    assert between[0] > max(demo["ratios"]["A/A of TRL"]), "the gain lies outside the noise"
    for case in found["steps"]["cases"].values():
        assert all(curve["equal_to_the_bit"] for curve in case["curves"].values())
    # Recording and verdicts; pictures cost what it takes for none to be older than 10 s. Both show most beside short steps.
    short, demo = found["hooks"]["runs"]
    assert (short[0]["completions_a_step"], demo[0]["completions_a_step"]) == (8, 64)
    assert all(run["hooks_share"] - run["drawing_share"] <= 0.02 for run in short)
    assert all(run["hooks_share"] <= 0.1 for run in short)
    assert all(round(run["hooks_share"], 3) <= 0.02 for run in demo)
    assert max(row["ratio"] for row in found["hooks"]["redraw"]) <= 1.5
    assert found["answers"]["times_as_fast"]["mostly integers"]["of_least"] >= 5
    assert found["start"]["over_python_ms"]["import workbench"] <= 150


@pytest.mark.weekly
def test_a_models_parts_are_measured_in_turns(capsys):
    """On the embedded policy, which needs no extra: every part, and what is left of it."""
    real = benchmark("real_model")
    words = ["real_model.py", "--quick", "--policy", "tiny", "--part", "step", "larger", "sampling", "eval", "export", "curve"]
    done = subprocess.run([sys.executable, FOLDER / words[0], *words[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sizes = [f"{real.WHAT['step']}, {case}, up to 64 tokens" for case in real.LARGER]
    for what in (*real.WHAT.values(), *sizes):
        assert f"SmolLM2-135M: {what}: " in done.stdout
    assert "8 of 8" in done.stdout  # completions of the loop and of generate, and of wb.sample and generate
    assert "in float32 equal to the bit (TRL again: equal to the bit)" in done.stdout
    assert done.stderr.count("workbench again: ") == len(real.WHAT) + len(real.LARGER)


def test_both_measurements_of_an_arm_count():
    real = benchmark("real_model")
    seconds = {"TRL": [4.0, 9.0], "TRL again": [5.0, 6.0], "workbench": [2.0, 2.0], "workbench again": [2.5, 1.5]}
    found = real.compared("TRL", seconds)
    assert found["times_as_fast"] == pytest.approx((4 / 1.5, 2.0, 4.0))
    assert found["a_over_a_theirs"] == pytest.approx((4 / 5, 0.8, 1.5))


def test_the_reviews_pay_for_the_word_alone():
    real = benchmark("real_model")
    task = real.task_of()
    assert len({row["prompt"][0]["content"] for row in task.rows}) == len(task.rows) == 32
    texts = ["Positive.", "It is positive", "negative", ""]
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    assert real.one_word_reward(completions, ["positive"] * 4) == [1.0, 0.3, 0.0, 0.0]


def test_two_busy_processes_end_with_what_they_disturb():
    real = benchmark("real_model")
    with real._two_busy() as both:
        assert [process.poll() for process in both] == [None, None]
    assert all(process.returncode for process in both)


@pytest.mark.weekly
def test_resident_memory_is_measured_in_a_process_of_its_own():
    resident = benchmark("resident")
    words = ["--quick", "--policy", "tiny", "--measure", "bfloat16, 16 x 20", resident.OURS]
    found = measuring.own_process("resident.py", *words)
    assert 5e8 < found["peak"] < 2e10


def test_a_process_does_not_count_what_its_parent_held():
    held = np.ones(2**26)  # 512 MiB, and getrusage of a child tells of them
    code = "import measuring; print(measuring.peak_mb())"
    done = subprocess.run([sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True, check=True)
    assert 5 < float(done.stdout) < 512 < measuring.peak_mb()
    assert held.nbytes == 2**29


def test_all_tells_how_it_is_used():
    done = subprocess.run([sys.executable, FOLDER / "all.py", "--help"], capture_output=True, text=True, check=True)
    assert "--quick" in done.stdout
    assert "dataset_checks" in done.stdout


@pytest.mark.weekly
def test_held_out_compares_the_same_training():
    held_out = benchmark("held_out")
    with measuring.empty_home():
        price = held_out.cost(1, 2, every=1, small=True)
        late = held_out.learnt(2, 1, prompts=4, every=1, small=True)
    assert price["adapters_equal"]
    # Base, two steps, 8 prompts each; two steps of 8 completions.
    assert (price["completions_measured"], price["completions_trained"]) == (24, 16)
    assert 0 < price["share_recorded"][0] < 1
    assert [own["step"] for own in late["curve"]] == [0, 1, 2]
    assert late["told"] is False
    json.dumps([price, late])


@pytest.mark.weekly
def test_a_warm_start_is_held_against_grpo_alone():
    warm_start = benchmark("warm_start")
    with measuring.empty_home():
        found = [warm_start.measure(0, 1, samples) for samples in (None, 1)]
    cold, warm = found
    assert cold["before"] == cold["after_warm_start"] == warm["before"]
    assert (cold["tries"], cold["samples"], warm["samples"]) == (0, 0, 1)
    assert 1 <= warm["tries"] <= 1000
    _, rows = warm_start.table_of(found)
    assert [row[:2] for row in rows] == [["0", "GRPO alone"], ["0", "warm start, GRPO"]]
    json.dumps(found)


def test_the_table_of_a_warm_start_pairs_the_prompts():
    # Two prompts, two completions: alone one is right of four, with a warm start three of four.
    shared = {"seed": 0, "before": [[False, False]] * 2, "after_warm_start": [[True, False]] * 2}
    alone = {**shared, "samples": 0, "tries": 0, "after": [[True, False], [False, False]]}
    warm = {**shared, "samples": 4, "tries": 99, "after": [[True, True], [True, False]]}
    [line], rows = benchmark("warm_start").table_of([alone, warm])
    assert line.figure.startswith("75% right, +50% ")
    assert line.against == "25.0% without"
    assert rows[0][4] == "-"
    assert rows[1][4].startswith("50.0%")
