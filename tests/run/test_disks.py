"""Disks that fail, refuse for a moment, or are written by two at once; text that no file can hold."""

import contextlib
import errno
import json
import multiprocessing
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from workbench.base import workspace
from workbench.base.errors import DiskError, ExportError, RunError, WorkbenchError
from workbench.base.workspace import append_line, disk_error, read_lines, replace_file, replace_folder, to_json, write_json
from workbench.commands import command
from workbench.inspection.evaluation import evaluate
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory, open_run
from workbench.teaching import lessons
from workbench.training.background import start
from workbench.training.plan.loading import find_model

PASSING = ["EBUSY", "EAGAIN", "EINTR", "ETIMEDOUT", "ESTALE", "EIO"]
STAYING = ["EXDEV", "ENOTEMPTY", "EACCES", "EROFS", "ENOSPC"]


@pytest.fixture
def clock(monkeypatch):
    waited = []
    monkeypatch.setattr(workspace.time, "sleep", waited.append)
    return waited


@pytest.fixture
def failing(monkeypatch):
    """Renames fail with an errno, so many times."""

    def fail(name, times):
        real, left = os.replace, [times]

        def replace(source, target):
            if left[0]:
                left[0] -= 1
                raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)), str(source), None, str(target))
            return real(source, target)

        monkeypatch.setattr(os, "replace", replace)

    return fail


def write(path: Path, text: str) -> None:
    with replace_file(path) as beside:
        beside.write_text(text)


def write_folder(path: Path, text: str) -> None:
    with replace_folder(path) as beside:
        (beside / "file").write_text(text)


def content(path: Path) -> str:
    return (path / "file" if path.is_dir() else path).read_text()


# -- renames -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", PASSING)
@pytest.mark.parametrize("written", [write, write_folder])
def test_a_rename_that_fails_once_is_tried_again(tmp_path, clock, failing, name, written):
    written(tmp_path / "a", "old")
    failing(name, 1)
    written(tmp_path / "a", "new")
    assert content(tmp_path / "a") == "new"
    assert clock == [0.1]
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("name", PASSING + STAYING)
@pytest.mark.parametrize("written", [write, write_folder])
def test_a_rename_that_goes_on_failing_is_said_and_the_old_one_stays(tmp_path, clock, failing, name, written):
    written(tmp_path / "a", "old")
    failing(name, 99)
    with pytest.raises(DiskError, match=r"a cannot be written: [a-z][\s\S]*rule: [\s\S]*remedy: ") as error:
        written(tmp_path / "a", "new")
    assert error.value.errno == getattr(errno, name)
    assert clock == ([0.1, 1.0, 5.0] if name in PASSING else [])
    assert content(tmp_path / "a") == "old"
    assert not (tmp_path / "b").exists()


def test_a_folder_whose_second_rename_fails_is_put_back(tmp_path, clock, monkeypatch):
    write_folder(tmp_path / "a", "old")
    real = os.replace

    def replace(source, target):
        if Path(target).name == "a" and str(source).endswith(".part"):
            raise OSError(errno.EXDEV, "Invalid cross-device link", str(source), None, str(target))
        return real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(DiskError, match="a cannot be written: its folder lies on two drives"):
        write_folder(tmp_path / "a", "new")
    assert content(tmp_path / "a") == "old"


@pytest.mark.parametrize("name", ["EBUSY", "EXDEV", "ETIMEDOUT"])
def test_in_continue_a_rename_that_fails_is_said_and_the_run_is_as_it_was(home, clock, failing, name):
    run = RunDirectory.create("r", Recipe(), {"result": {"status": "finished"}})
    run.log_metrics(1, {"reward": 1.0})
    run.release()
    failing(name, 99)
    with pytest.raises(RunError, match=r"runs/r/\S+ cannot be written: "):
        run.reopen(1)
    assert not run.live
    assert run.manifest() == {"result": {"status": "finished"}}
    assert run.metrics() == [{"step": 1, "reward": 1.0}]


# -- two writers -------------------------------------------------------------------------------------------------------
def _writes(file: str, letter: str) -> None:
    for _ in range(300):
        write_json(file, {"text": letter * 20_000})


def test_two_writers_of_one_file_and_no_reader_sees_a_half(tmp_path):
    file = tmp_path / "a.json"
    write_json(file, {"text": ""})
    writers = [multiprocessing.get_context("fork").Process(target=_writes, args=(str(file), letter)) for letter in "ab"]
    for writer in writers:
        writer.start()
    texts = set()
    while any(writer.is_alive() for writer in writers):
        texts.add(json.loads(file.read_text())["text"][:1])
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert texts <= {"", "a", "b"}
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def _updates(path: str, letter: str) -> None:
    run = RunDirectory(Path(path))
    for number in range(100):
        run.update_manifest(**{f"{letter}{number}": number})


def test_two_that_add_to_one_manifest_lose_nothing(home):
    run = RunDirectory.create("r", Recipe(), {})
    run.release()
    writers = [multiprocessing.get_context("fork").Process(target=_updates, args=(str(run.path), letter)) for letter in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert set(run.manifest()) == {f"{letter}{number}" for letter in "ab" for number in range(100)}


def test_what_a_killed_writer_left_is_removed_and_a_living_ones_stays(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (gone.pid, os.getpid()):
        (tmp_path / f".a.{pid}-{workspace._HOST}00000000.part").write_text("half")
        (tmp_path / f".b.{pid}-{workspace._HOST}00000000.before").mkdir()
    (tmp_path / ".mine.1-2.part").write_text("somebody's own")
    write(tmp_path / "c", "")
    left = {each.name for each in tmp_path.iterdir()}
    assert left == {
        "c", ".mine.1-2.part", f".a.{os.getpid()}-{workspace._HOST}00000000.part",
        f".b.{os.getpid()}-{workspace._HOST}00000000.before",
    }  # fmt: skip


@pytest.mark.parametrize("work", ["eval", "export"])
def test_another_adapter_is_chosen_when_nobody_measures_or_exports(home, work):
    run = RunDirectory.create("r", Recipe(), {})
    run.release()
    with run.alone(work), pytest.raises(RunError, match=rf"r: another process is running {work} on it[\s\S]*wait until"):
        run.use_best(False)
    with run.alone(work), pytest.raises(ExportError), run.alone(work, ExportError):
        pass
    assert not list(run.path.glob(".*.lock"))


def test_two_do_not_measure_one_run_at_once(home):
    run = RunDirectory.create("r", Recipe(), {})
    run.release()
    with run.alone("eval"), pytest.raises(RunError, match="r: another process is running eval on it"):
        evaluate(run)


def test_on_a_drive_that_can_only_be_read_nobody_is_sent_to_train(home, monkeypatch):
    run = RunDirectory.create("r", Recipe(), {})
    run.release()
    real = os.open

    def refuse(path, flags, *mode, **more):
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return real(path, flags, *mode, **more)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DiskError, match="it can only be read") as error:
        evaluate(run)
    assert "train" not in error.value.remedy


# -- full, and read-only -----------------------------------------------------------------------------------------------
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_line_on_a_full_disk_is_said(tmp_path):
    (tmp_path / "lines").symlink_to("/dev/full")
    with pytest.raises(DiskError, match="the disk is full"):
        append_line(tmp_path / "lines", {"a": "b" * 100_000})


@contextlib.contextmanager
def at_most(what, most):
    """This process may have at most so much of it."""
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))


def text_into(file):
    file.write_text("x" * 100_000)


def weights_into(folder):
    from safetensors.numpy import save_file

    save_file({"weights": np.zeros(100_000)}, folder / "weights.safetensors")


def table_into(file):
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"noise": np.random.default_rng(0).random(100_000)}), file)


@pytest.mark.parametrize(
    ("writer", "into"), [(replace_file, text_into), (replace_folder, weights_into), (replace_file, table_into)]
)
def test_a_limit_of_files_sizes_or_numbers_is_said_though_the_error_names_no_file(tmp_path, writer, into):
    with writer(tmp_path / "a") as place:  # once without a limit: it imports
        into(place)
    for what, most, why in ((resource.RLIMIT_FSIZE, 4096, "grow so large"), (resource.RLIMIT_NOFILE, 0, "are open")):
        with pytest.raises(DiskError, match=rf"/b cannot be written: [\w ]+{why}") as met, at_most(what, most):  # noqa: SIM117
            with writer(tmp_path / "b") as place:
                into(place)
        assert ("ulimit" in met.value.remedy, "free" in str(met.value)) == (True, False)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
@pytest.mark.parametrize(
    "does",
    [
        lambda: RunDirectory.create("r", Recipe(), {}),
        lambda: start(Recipe()),
        lambda: lessons.copy_of("grpo_by_hand"),
        lambda: lessons.done("lesson", "exercise"),
        lambda: write(workspace.resolve("there/report.html"), ""),
    ],
    ids=["train", "start", "lesson", "progress", "report"],
)
def test_where_no_folder_can_be_made_it_is_said(home, monkeypatch, does, number):
    def mkdir(self, *args, **kwargs):
        if not self.is_dir():
            raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(DiskError, match=r"cannot be written: [\s\S]*rule: [\s\S]*remedy: "):
        does()


def test_a_command_on_a_full_disk_ends_with_words(monkeypatch, capsys):
    def app():
        raise OSError(errno.ENOSPC, "No space left on device", "/somewhere/x")

    monkeypatch.setattr(command, "app", app)
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2
    assert "/somewhere/x cannot be written: the disk is full" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOENT, "no such file", "/elsewhere"), False),
        (OSError(errno.ECONNREFUSED, "refused"), False),
        (ValueError("no"), False),
        (OSError(errno.EMFILE, "Too many open files"), False),
        (RuntimeError("413: File too large"), False),
        (RuntimeError("I/O error: No space left on device (os error 28)"), True),
        (RuntimeError('IO Error: Could not write "x": No space left on device'), True),
    ],
)
def test_only_what_is_about_the_disk_is_said_of_it(tmp_path, error, said):
    assert (disk_error(error, tmp_path / "a") is not None) == said


@pytest.mark.parametrize("link", ["nowhere", "r"], ids=["dangling", "loop"])
def test_a_link_that_leads_nowhere_in_a_runs_place_is_said(home, link):
    (home / "runs").mkdir(exist_ok=True)
    (home / "runs" / "r").symlink_to(link)
    with pytest.raises(DiskError, match="runs/r cannot be written"):
        RunDirectory.create("r", Recipe(), {})


# -- surrogates --------------------------------------------------------------------------------------------------------
def test_a_lone_surrogate_is_written_as_its_escape(tmp_path):
    assert to_json({"\ud800": ["a\udfffb", "ü", "😀"]}) == {"\\ud800": ["a\\udfffb", "ü", "😀"]}
    append_line(tmp_path / "lines", {"\ud800": 1.0})
    write_json(tmp_path / "file", {"said": "\ud800"})
    assert list(read_lines(tmp_path / "lines")) == [{"\\ud800": 1.0}]
    assert json.loads((tmp_path / "file").read_text()) == {"said": "\\ud800"}


def test_a_place_that_is_not_utf_8_is_refused(tmp_path):
    with pytest.raises(RunError, match=r"w\\udcff: not in UTF-8[\s\S]*WORKBENCH_HOME"):
        RunDirectory.create("r", Recipe(), {}, os.fsdecode(os.fsencode(tmp_path) + b"/w\xff"))


# -- names, and memory ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["x" * 300, "a\x00b", "\x1b[2J", "a/" + "b" * 300])
def test_names_that_no_run_can_have_are_refused(home, name):
    for refused in (lambda: RunDirectory.create(name, Recipe(), {}), lambda: open_run(name)):
        with pytest.raises(RunError) as error:
            refused()
        assert len(str(error.value)) < 700


@pytest.mark.parametrize("name", ["x" * 100_000, "a/b@x", "a\x1b[2J/b", "a/" + "b" * 200, "x/" * 3_000])
def test_policies_that_no_hub_has_are_refused(home, name):
    with pytest.raises(WorkbenchError, match="rule: ") as error:
        find_model(name, ask_hub=False)
    assert "\x1b" not in str(error.value)


def test_a_source_with_a_name_that_no_file_has_is_refused(home):
    with pytest.raises(WorkbenchError, match="rule: "):
        workspace.find("x" * 5_000)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("could not create a primitive")])
def test_a_command_without_memory_ends_with_words(monkeypatch, capsys, error):
    def app():
        raise error

    monkeypatch.setattr(command, "app", app)
    with pytest.raises(SystemExit):
        command.main()
    assert "a command fits into memory" in capsys.readouterr().err


@pytest.mark.parametrize("fault", [KeyError("steps"), ZeroDivisionError("division by zero"), AssertionError()])
def test_a_fault_of_the_workbenchs_own_ends_with_2_and_where_it_happened(monkeypatch, capsys, fault):
    """1 is the answer "no" of a command, so that a script may rely on it."""

    monkeypatch.setattr(command.app, "registered_commands", [*command.app.registered_commands])

    @command.app.command(name="breaks")
    def breaks():
        raise fault

    monkeypatch.setattr("sys.argv", ["workbench", "breaks"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "in breaks" in said
    assert said.splitlines()[-1].startswith(type(fault).__name__)
