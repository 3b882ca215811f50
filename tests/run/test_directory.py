"""The run directory: never written over, never half read, whole after a kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

import pytest
from driving import waited_for
from killing import contents, killed_at

from workbench.base.errors import RunError
from workbench.health import examine_run
from workbench.recipe import Recipe
from workbench.run.control_file import ControlReader, RunState
from workbench.run.directory import RunDirectory, open_run
from workbench.training.changes import doubled
from workbench.training.resuming import latest_point


def test_a_second_run_of_the_same_name_gets_a_number(home):
    first = RunDirectory.create("a", Recipe(), {})
    second = RunDirectory.create("a", Recipe(), {})
    assert [first.name, second.name] == ["a", "a-2"]
    assert second.recipe().run_name == "a-2"
    assert (home / "runs" / "a" / "lock").is_file()


def test_released_runs_are_not_reused_either(home):
    RunDirectory.create("a", Recipe(), {}).release()
    assert RunDirectory.create("a", Recipe(), {}).name == "a-2"


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a b", "latest", "notebooks"])
def test_a_name_that_is_no_folder_name_is_refused(home, name):
    with pytest.raises(RunError, match="run_name = "):
        RunDirectory.create(name, Recipe(), {})
    assert not any(home.iterdir())


@pytest.mark.parametrize("file", ["manifest.json", "recipe.yaml"])
def test_a_kill_while_it_is_made_leaves_no_run_and_the_name_free(home, file):
    if (pid := os.fork()) == 0:
        replace = os.replace

        def killed(source, target):
            if os.path.basename(target) == file:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target)

        os.replace = killed
        RunDirectory.create("a", Recipe(), {})
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    with pytest.raises(RunError, match="no run 'a'"):
        open_run("a")
    assert RunDirectory.create("a", Recipe(), {}).name == "a"


def test_what_a_run_took_before_is_known_however_often_it_was_killed_since(home):
    run = RunDirectory.create("a", Recipe(), {"result": {"minutes": 3.0}})
    (run.checkpoints / ".checkpoint-4.part").mkdir(parents=True)
    run.release()
    for _ in range(2):  # and killed: without a result
        run.reopen(2)
        run.release()
    assert run.manifest()["before"] == {"minutes": 3.0}
    assert not any(run.checkpoints.iterdir())


@pytest.fixture
def finished(home):
    """A run of 6 steps that has ended, as if it had been trained; its parts are no Parquet."""
    run = RunDirectory.create("a", Recipe(), {"settings": {"in_force": {"max_steps": 6}}, "id": "1"})
    for step in range(1, 7):
        for place in (f"rollouts/step-{step:07d}-00.parquet", f"held_out/step-{step:07d}-00.parquet"):
            (run.path / place).parent.mkdir(exist_ok=True)
            (run.path / place).write_bytes(b"as it was %d" % step)
        run.log_metrics(step, {"reward": step / 2})
    for name in ("checkpoint-4", "checkpoint-6", "best-6", "final"):
        (run.checkpoints / name).mkdir(parents=True)
        (run.checkpoints / name / "adapter_config.json").write_text("{}")
        (run.checkpoints / name / "adapter_model.safetensors").write_text(name)
    run.log_event("finished", 6)
    run.update_manifest(result={"status": "finished", "steps": 6, "minutes": 1.0}, adapter="best-6")
    run.release()
    return run


def goes_on(run, step=4, row=False):
    """What a session does until it has a new step on record; then, or if it has none, it ends."""
    run.reopen(step)
    run.update_manifest(environment_after={"4": {}})
    run.log_event("continued", step)
    for place in (f"rollouts/step-{step + 1:07d}-00.parquet", f"held_out/step-{step + 1:07d}-00.parquet", "tasks/after.py"):
        (run.path / place).parent.mkdir(exist_ok=True)
        (run.path / place).write_bytes(b"another")
    (run.checkpoints / f"best-{step + 1}").mkdir()
    if row:
        run.log_metrics(step + 1, {"reward": 0.0})
        run.went_on()
    else:
        run.put_back()
    run.release()


def test_a_run_that_goes_on_no_further_is_what_it_was(finished):
    before = contents(finished.path)
    goes_on(finished, step=4)
    goes_on(finished, step=6)
    assert contents(finished.path) == before
    finished.put_back()  # there is nothing to put back
    assert contents(finished.path) == before
    assert (finished.adapter.name, finished.live, finished.kept_aside) == ("best-6", False, False)


def test_a_run_that_went_on_keeps_the_end_until_there_is_another(finished):
    goes_on(finished, row=True)
    assert [row["step"] for row in finished.metrics()] == [1, 2, 3, 4, 5]
    assert sorted(folder.name for folder in finished.checkpoints.iterdir()) == ["best-5", "checkpoint-4", "final"]
    assert finished.adapter.name == "checkpoint-4"  # that of the end is of steps that are no more
    assert not [file for file in finished.path.iterdir() if file.name.startswith(".")]
    finished.update_manifest(result={"status": "stopped", "steps": 5, "minutes": 1.0})
    assert finished.adapter == finished.final


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)], ids=["a few moments", "all moments"])
def test_killed_at_any_moment_it_is_what_it_was_or_has_gone_on(finished, monkeypatch, every):
    """Whoever opens it next, a reader or one who goes on, finds it so; `every`: of how many file operations one is tried."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # a kill is no power cut
    before, ended, number = contents(finished.path), Counter(), 0
    kept = shutil.copytree(finished.path, finished.path.parents[1] / "kept")
    for row in (False, True):
        killed, number, turn = True, 1 - every, 0
        while killed:
            number, turn = number + every, turn + 1
            shutil.rmtree(finished.path)
            shutil.copytree(kept, finished.path)
            killed = killed_at(number, lambda row=row: goes_on(RunDirectory(finished.path), row=row), finished.path)
            if turn % 3 == 0:  # and the one who puts it back is killed, too
                killed_at(number // 3, lambda: open_run(finished.path), finished.path)
            run = open_run(finished.path)
            if contents(run.path) != before:
                assert row, number
                assert [each["step"] for each in run.metrics()] == [1, 2, 3, 4, 5]
                assert [folder.name for folder in run.saved()] == ["checkpoint-4"]
                run.reopen(4)
                run.put_back()
                run.release()
            ended[row, killed, contents(run.path) == before] += 1
    assert ended[False, False, True] == ended[True, False, False] == 1
    assert ended[False, True, True] > 40 // every
    assert not ended[False, True, False]
    assert ended[True, True, True] > 30 // every


def test_of_two_rows_of_a_step_the_later_one_counts_and_is_named(finished):
    with (finished.path / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 2, "reward": 9.0}\n')  # of an owner that was replaced, or that took its place
    assert [(row["step"], row["reward"]) for row in finished.metrics()][:3] == [(1, 0.5), (2, 9.0), (3, 1.5)]
    assert doubled(finished) == ["metrics.jsonl has two rows for step 2: the later one is kept"]
    finished.reopen(4)
    assert (finished.path / "metrics.jsonl").read_text().count("\n") == 4
    assert doubled(finished) == []


def test_latest_is_the_one_begun_last_whatever_the_clock_says(home):
    for name in ("b", "a"):
        run = RunDirectory.create(name, Recipe(), {})
        run.release()
        os.utime(run.path / "recipe.yaml", (4e9, 4e9)) if name == "b" else None
    assert open_run("latest").name == "a"


DEEP = "[" * 200_000


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        *(("manifest.json", json.dumps({part: odd}), f"{part} = ")
          for part, odd in (("result", 5), ("settings", []), ("stages", {}), ("rewards", "x"), ("task", 1.5), ("policy", []))),
        ("manifest.json", DEEP, "torn"),
        ("metrics.jsonl", DEEP, ""),
        ("events.jsonl", "{}\n[]\n" + DEEP + '\n{"event": 3}\n', ""),
        ("lock", DEEP, ""),
        ("control.jsonl", DEEP, ""),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*(skipped|left out)")
def test_a_record_of_odd_types_is_refused_in_words_or_left_out(finished, file, content, said):
    (finished.path / file).write_text(content)
    looks = [
        finished.result, finished.metrics, finished.events, lambda: finished.adapter, lambda: finished.state, finished.describe,
        lambda: RunState.of(finished), lambda: finished.planned_steps, lambda: examine_run(finished),
        lambda: latest_point(finished), ControlReader(finished).take, lambda: open_run("latest"), lambda: finished.best,
    ]  # fmt: skip
    refusals = []
    for look in looks:  # any other error is one of the test
        try:
            look()
        except RunError as error:
            refusals.append(str(error))
    refusals = [each for each in refusals if "no best adapter" not in each and "no checkpoint to resume from" not in each]
    assert bool(refusals) == bool(said)
    assert all(said in each for each in refusals)
    assert finished.name in finished.describe()


def test_a_lock_that_is_a_folder_is_named(finished):
    (finished.path / "lock").mkdir()
    with pytest.raises(RunError, match="a folder stands in its place"):
        finished.reopen(4)
    (finished.path.parent / "b" / "lock").mkdir(parents=True)
    with pytest.raises(RunError, match="a folder stands in its place"):
        RunDirectory.create("b", Recipe(), {})


def test_a_manifest_with_a_byte_order_mark_is_read(finished):
    file = finished.path / "manifest.json"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert finished.result()["status"] == "finished"


@pytest.mark.parametrize("how", ["renamed", "deleted"])
def test_a_folder_that_is_gone_while_it_trains_is_named_at_the_next_step(home, how):
    run = RunDirectory.create("a", Recipe(), {})
    run.path.rename(home / "elsewhere") if how == "renamed" else shutil.rmtree(run.path)
    for write in (
        run.lock.beat,
        lambda: run.log_metrics(1, {}),
        lambda: run.log_event("stopped"),
        lambda: run.update_manifest(x=1),
    ):
        with pytest.raises(RunError, match="deleted or renamed during training"):
            write()
    assert not run.path.exists()


def test_an_owner_that_was_replaced_writes_nothing_more(finished):
    finished.reopen(4)
    (finished.path / "lock").unlink()  # so that another can take it
    other = RunDirectory(finished.path)
    other.reopen(4)
    before = contents(finished.path)
    for write in (lambda: finished.log_metrics(5, {}), lambda: finished.log_event("x"), lambda: finished.update_manifest(x=1)):
        with pytest.raises(RunError, match="taken over"):
            write()
    finished.release()
    assert contents(finished.path) == before
    assert other.live


def test_what_a_kill_left_of_a_rewritten_record_is_not_part_of_the_next(home):
    run = RunDirectory.create("a", Recipe(), {})
    for step in (1, 2, 3):
        run.log_metrics(step, {"reward": 0.5})
    run.release()
    (run.path / ".metrics.jsonl.part").write_text('{"step": 1}\n{"step": 2}\n{"st')
    run.reopen(2)
    assert run.metrics() == [{"step": step, "reward": 0.5} for step in (1, 2)]


def test_open_by_name_by_path_and_latest(home):
    RunDirectory.create("old", Recipe(), {})
    new = RunDirectory.create("new", Recipe(), {})
    assert open_run("old").name == "old"
    assert open_run("runs/old").name == "old"
    assert open_run(new.path).name == "new"
    assert open_run("latest").name == "new"


def begun(name, at, *, ended=True, adapter=True, measured_at=None):
    """A run that was begun at a time, in seconds; 5 of its 24 steps are recorded."""
    made = RunDirectory.create(name, Recipe(), {"settings": {"in_force": {"max_steps": 24}}})
    for step in range(1, 6):
        made.log_metrics(step, {"step_time": 6.0})
    os.utime(made.path / "recipe.yaml", (at, at))
    if adapter:
        made.final.mkdir(parents=True)
        (made.final / "adapter_config.json").write_text("{}")
    if measured_at:
        os.utime(made.write_json("evaluation.json", {}), (measured_at, measured_at))
    if ended:
        made.update_manifest(result={"status": "finished", "steps": 24, "minutes": 2.0})
        made.release()
    return made


def test_latest_is_the_one_that_is_needed(home):
    begun("first", 100)
    begun("second", 200)
    begun("trains", 300, ended=False, adapter=False)
    begun("empty", 400, adapter=False)
    meant = {which: open_run("latest", latest=which).name for which in ("begun", "training", "resting", "trained")}
    assert meant == {"begun": "empty", "training": "trains", "resting": "empty", "trained": "second"}
    assert open_run("second").describe("second") == "second (finished after 24 steps)"
    assert open_run("second").describe() == (
        "latest: second (finished after 24 steps); beside it: empty (finished after 24 steps, no adapter), "
        "trains (still training, step 5 of 24), first (finished after 24 steps)"
    )


def test_only_the_runs_that_are_named_are_read(home, monkeypatch):
    for number in range(8):
        begun(f"r{number}", number)
    read = []
    monkeypatch.setattr(RunDirectory, "state", property(lambda run: read.append(run.name) or "as it is"))
    beside = ", ".join(f"r{number} (as it is)" for number in (6, 5, 4, 3))
    assert open_run("r7").describe() == f"latest: r7 (as it is); beside it: {beside}, 3 more"
    assert read == ["r7", "r6", "r5", "r4", "r3"]


def test_latest_for_05_is_the_one_that_04_measured_until_another_is_begun(home):
    begun("a", 100, measured_at=300)
    begun("b", 200)  # it trained while 04 measured a
    assert open_run("latest", latest="trained").name == "b"
    assert open_run("latest", latest="measured").name == "a"
    assert open_run("a").state == "finished after 24 steps, measured"
    begun("c", 400)
    assert open_run("latest", latest="measured").name == "c"


def test_a_run_that_trains_says_so_and_what_to_do(home):
    begun("done", 100)
    trains = begun("trains", 200, ended=False, adapter=False)
    for asked in (trains.check_ended, lambda: trains.adapter):
        with pytest.raises(RunError, match=r"(?s)trains: still training, step 5 of 24.*control trains stop.*run_name = 'done'"):
            asked()
    assert open_run("done").check_ended().name == "done"


def test_where_no_run_has_what_is_needed_each_is_named(home):
    begun("a", 100, adapter=False)
    begun("b", 200, adapter=False)
    with pytest.raises(RunError, match=r"none has an adapter \(a: finished after 24 steps, no adapter, b: "):
        open_run("latest", latest="trained")
    with pytest.raises(RunError, match="a/checkpoints: no adapter"):
        open_run("a").adapter  # noqa: B018
    begun("c", 300, adapter=False, ended=False)
    with pytest.raises(RunError, match="c: still training"):
        open_run("latest", latest="measured")


def test_opening_what_is_not_there_says_what_is(home):
    with pytest.raises(RunError, match="runs in runs: none") as met:
        open_run()
    assert met.value.remedy.endswith(f"looked in {Path.cwd() / 'runs'}")
    RunDirectory.create("a", Recipe(), {})
    with pytest.raises(RunError, match=r"no run 'b' \(runs in runs: a\)"):
        open_run("b")
    RunDirectory.create("units", Recipe(), {})
    with pytest.raises(RunError, match="did you mean 'units'"):
        open_run("units2")


def test_metrics_and_events_come_back(home):
    run = RunDirectory.create("a", Recipe(), {"versions": {}})
    run.log_metrics(1, {"reward": 0.5, "kl": float("nan"), "grad_norm": float("inf")})
    run.log_event("stopped", 1, by="interrupt")
    assert run.metrics() == [{"step": 1, "reward": 0.5, "kl": None, "grad_norm": "inf"}]
    assert run.events()[0]["event"] == "stopped"
    run.update_manifest(result={"steps": 1})
    assert run.manifest() == {"versions": {}, "result": {"steps": 1}}


def test_a_missing_file_names_the_notebook_way(home):
    with pytest.raises(RunError, match="evaluation.json: no such file"):
        RunDirectory.create("a", Recipe(), {}).read_json("evaluation.json")


def test_discard_takes_only_what_a_run_wrote(home):
    run = RunDirectory.create("a", Recipe(), {})
    (run.path / "notes.txt").write_text("mine")
    run.discard()
    assert [file.name for file in run.path.iterdir()] == ["notes.txt"]
    other = RunDirectory.create("b", Recipe(), {})
    other.discard()
    assert not other.path.exists()


WRITER = """
import sys
from workbench.run.directory import RunDirectory, open_run
from workbench.recipe import Recipe
run = RunDirectory.create("killed", Recipe(), {})
print("ready", flush=True)
step = 0
while True:
    step += 1
    run.log_metrics(step, {"step_time": 1.0, "x" * 2000: 1.0})
    run.update_manifest(step=step)
"""


def test_a_kill_loses_at_most_the_line_in_flight(home):
    process = subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    run = open_run("killed")
    # Reading while another process writes: a line in flight is no torn line, and says nothing.
    while len(run.metrics()) < 20:
        assert run.result()["status"] == "running"
    process.kill()
    # Dead, though nobody has waited for it yet, as in a container.
    waited_for(lambda: not run.live)
    process.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # now the last line may be torn, and be reported
        steps = [row["step"] for row in run.metrics()]
        assert run.result() == {"status": "killed", "steps": len(steps), "minutes": len(steps) / 60}
    assert steps == list(range(1, len(steps) + 1))
    assert run.manifest()["step"] in (steps[-1] - 1, steps[-1])


def test_the_adapter_of_a_killed_run_is_its_latest_checkpoint(home):
    run = RunDirectory.create("a", Recipe(), {})
    run.release()
    with pytest.raises(RunError, match="(?s)checkpoints: no adapter.*save_steps"):
        _ = run.adapter
    for folder in ("checkpoint-20", "checkpoint-100", "checkpoint-3"):
        (run.checkpoints / folder).mkdir(parents=True)
        (run.checkpoints / folder / "adapter_config.json").write_text("{}")
    (run.checkpoints / "checkpoint-200").mkdir()  # killed while it was being written
    assert run.adapter.name == "checkpoint-100"
    run.final.mkdir()
    (run.final / "adapter_config.json").write_text("{}")
    assert run.adapter == run.final


def test_a_run_lives_while_its_owner_does(home):
    run = RunDirectory.create("a", Recipe(), {})
    assert run.live
    (run.path / "lock").write_text('{"pid": 1, "host": "another machine"}')
    assert run.live
    run.release()
    assert run.live  # it is not this process's any more
    (run.path / "lock").unlink()
    assert not run.live


@pytest.mark.parametrize(
    ("asked", "effective", "planned"),
    [
        ({"max_steps": 5}, 2, 5),  # `continue --steps 3` wrote it into the recipe
        ({}, 100, 100),  # the workbench's default
        ({"num_train_epochs": 1}, -1, 0),
        ({"max_steps": -1}, -1, 0),
    ],
)
def test_the_planned_steps_are_the_recipes(home, asked, effective, planned):
    manifest = {"settings": {"asked": {}, "in_force": {"max_steps": effective}}}
    assert RunDirectory.create("r", Recipe(grpo=asked), manifest).planned_steps == planned


def test_the_planned_steps_of_stages_are_all_of_theirs(home):
    stages = [{"name": "a", "steps": 2}, {"name": "b", "steps": 3}]
    manifest = {"settings": {"asked": {}, "in_force": {"max_steps": 2}}}
    assert RunDirectory.create("r", Recipe.of({"stages": stages}), manifest).planned_steps == 5
