"""Grading: lessons run in kernels with right, wrong and empty blanks, and what was handed in is damaged in every way there is."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import nbformat
import pytest
from commanding import Ended, workbench

from workbench.base.notebook import execute, notebooks_folder
from workbench.teaching import cells, grading, lessons

LESSON = "grpo_by_hand"
RIGHT, WRONG, EMPTY = "= 4", "= 1", "= ..."


def lesson_with(answer: str):
    """The lesson up to its first blank, filled with `answer`, and the other blanks as they ship."""
    notebook = nbformat.read(notebooks_folder() / "teaching" / f"{LESSON}.ipynb", as_version=4)
    places = cells.blanks(notebook)
    first = notebook.cells[places[0]]
    first.source = first.source.replace("per_device_train_batch_size = ...", f"per_device_train_batch_size {answer}")
    notebook.cells = [*notebook.cells[: places[0] + 1], *(notebook.cells[place] for place in places[1:])]
    for place in range(len(notebook.cells) - len(places), len(notebook.cells)):
        notebook.cells[place].metadata["tags"] = ["raises-exception"]
    return notebook


@pytest.fixture(scope="module")
def worked(tmp_path_factory) -> Path:
    """A folder with the workspaces of three learners, each of whom ran the lesson in a kernel."""
    folder = tmp_path_factory.mktemp("class")
    for learner, answer in (("ada", RIGHT), ("ben", WRONG), ("cas", EMPTY)):
        home = folder / learner
        (home / "lessons").mkdir(parents=True)
        nbformat.write(lesson_with(answer), home / "asked.ipynb")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("WORKBENCH_HOME", str(home))
            execute(home / "asked.ipynb", home / "lessons" / f"{LESSON}.ipynb", {})
        (home / "asked.ipynb").unlink()
    return folder


@pytest.fixture
def handed_in(worked, tmp_path) -> Path:
    return Path(shutil.copytree(worked, tmp_path / "class"))


def status(grades: grading.Grades, learner: str, exercise: str = "batch size") -> str:
    [own] = [each for each in grades.blanks if (each.learner, each.lesson, each.exercise) == (learner, LESSON, exercise)]
    return own.status


def edit(notebook: Path, old: str, new: str) -> None:
    text = notebook.read_text(encoding="utf-8")
    assert text.count(old) == 1
    notebook.write_text(text.replace(old, new), encoding="utf-8")


def records(learner: Path) -> Path:
    return learner / "lessons" / "progress.jsonl"


def copy_of(learner: Path) -> Path:
    return learner / "lessons" / f"{LESSON}.ipynb"


def test_right_wrong_and_empty_blanks_of_real_notebooks(handed_in):
    grades = grading.grade(handed_in)
    assert {name: status(grades, name) for name in grades.learners} == {"ada": "passed", "ben": "no record", "cas": "empty"}
    assert status(grades, "ada", "clip") == "empty"
    assert grades.learners == {"ada": {LESSON: 1}, "ben": {LESSON: 0}, "cas": {LESSON: 0}}
    assert grades.lessons == {LESSON: 13}
    assert grades.needs_a_look, "ben filled one in that never passed"
    assert not records(handed_in / "ben").exists()
    assert not (handed_in / "cas" / "lessons" / "progress.jsonl").exists()


def test_the_record_says_by_which_code_when_and_with_which_versions(worked):
    [record] = [json.loads(line) for line in records(worked / "ada").read_text().splitlines()]
    assert set(record) == {"time", "lesson", "exercise", "cell", "workbench", "python", "torch", "trl", "checksum"}
    notebook = lessons.read_notebook(copy_of(worked / "ada"))
    [source] = [cell["source"] for cell in notebook["cells"] if "batch_size = 4" in cell["source"]]
    assert record["cell"] == cells.cell_hash(source)
    assert lessons.is_sealed(record)
    # and the notebook, handed in alone, has the same one
    assert [own for _, own in lessons.handed_in(copy_of(worked / "ada")) if isinstance(own, dict)] == [record]


def test_a_loose_notebook_is_a_learner_and_carries_its_record(worked, tmp_path):
    for learner in ("ada", "cas"):
        shutil.copyfile(copy_of(worked / learner), tmp_path / f"{learner}.ipynb")
    grades = grading.grade(tmp_path)
    assert {name: sum(own.values()) for name, own in grades.learners.items()} == {"ada.ipynb": 1, "cas.ipynb": 0}


def test_a_folder_with_a_record_is_one_learners(worked):
    grades = grading.grade(worked / "ada" / "lessons")
    assert grades.learners == {"lessons": {LESSON: 1}}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("batch_size = 4", "batch_size = 2 * 2", "changed since"),
        ("batch_size = 4", "batch_size = 4  ", "passed"),
        ("batch_size = 4", "batch_size = ...", "changed since"),
    ],
)
def test_a_cell_that_was_changed_after_it_passed(handed_in, old, new, told):
    edit(copy_of(handed_in / "ada"), old, new)
    assert status(grading.grade(handed_in), "ada") == told


def forged(source: str, **more: object) -> str:
    record = {"time": "2026-01-01T00:00:00+00:00", "lesson": LESSON, "exercise": "batch size"}
    record |= {"cell": cells.cell_hash(source), "workbench": lessons.__version__, **more}
    return json.dumps(record | {"checksum": lessons.digest(sorted(record.items()))}) + "\n"


@pytest.mark.parametrize(("version", "told"), [(lessons.__version__, "checks changed"), ("0.0.9", "another version")])
def test_a_record_of_a_cell_without_the_lessons_check(handed_in, version, told):
    copy = copy_of(handed_in / "ben")
    edit(copy, "assert per_device_train_batch_size == 4", "assert per_device_train_batch_size != 4")
    [source] = [cell["source"] for cell in lessons.read_notebook(copy)["cells"] if "batch_size != 4" in cell["source"]]
    records(handed_in / "ben").write_text(forged(source, workbench=version))
    grades = grading.grade(handed_in)
    assert status(grades, "ben") == told
    assert grades.learners["ben"] == {LESSON: 0}


def test_a_record_made_by_hand_passes_and_the_table_says_that_it_can(handed_in):
    copy = copy_of(handed_in / "ben")
    [source] = [cell["source"] for cell in lessons.read_notebook(copy)["cells"] if "batch_size = 1" in cell["source"]]
    records(handed_in / "ben").write_text(forged(source))
    grades = grading.grade(handed_in)
    assert status(grades, "ben") == "passed"
    assert "by hand" in grades.cannot_know
    assert grades.cannot_know in grades.remarks()


def test_a_record_edited_without_its_checksum(handed_in):
    copy = copy_of(handed_in / "ada")
    notebook = json.loads(copy.read_text())
    for cell in notebook["cells"]:
        cell["outputs"] = []
    copy.write_text(json.dumps(notebook))
    edit(records(handed_in / "ada"), '"time": "2', '"time": "3')
    assert status(grading.grade(handed_in), "ada") == "altered record"


def test_a_notebook_without_its_outputs_and_records_was_never_passed(handed_in):
    copy = copy_of(handed_in / "ada")
    notebook = json.loads(copy.read_text())
    for cell in notebook["cells"]:
        cell["outputs"] = []
    copy.write_text(json.dumps(notebook))
    assert status(grading.grade(handed_in), "ada") == "passed"
    records(handed_in / "ada").unlink()
    assert status(grading.grade(handed_in), "ada") == "no record"


def test_damage_is_named_and_the_rest_is_graded(handed_in):
    with records(handed_in / "ada").open("a") as lines:
        lines.write('{"time": "2026-')
    copy_of(handed_in / "ben").write_text("{")
    (handed_in / "dot").mkdir()
    (handed_in / "eli").mkdir()
    (handed_in / "eli" / "notes.ipynb").write_text('{"cells": [{"cell_type": "code", "source": ["done(LESSON)"], "outputs": 3}]}')
    (handed_in / "fay").mkdir()
    (handed_in / "fay" / "progress.jsonl").write_bytes(b'\xff\n[1]\n{"lesson": []}\n')
    grades = grading.grade(handed_in)
    assert status(grades, "ada") == "passed"
    said = "\n".join(grades.notes)
    for what in (
        "line 2: torn",
        f"{LESSON}.ipynb: not read",
        "ben: nothing",
        "dot: nothing",
        "eli: nothing",
        "notes.ipynb: not read",
    ):
        assert what in said
    assert "fay" in said
    assert grades.learners["dot"] == {}


def test_of_several_copies_the_best_counts_and_an_exercise_of_no_lesson_is_named(handed_in):
    shutil.copyfile(copy_of(handed_in / "cas"), handed_in / "ada" / "lessons" / f"{LESSON}-2.ipynb")
    edit(copy_of(handed_in / "cas"), f'done(\\"{LESSON}\\", \\"clip\\")', f'done(\\"{LESSON}\\", \\"clap\\")')
    for hidden in (".ipynb_checkpoints/x.ipynb", "._x.ipynb"):  # of JupyterLab, and of a zip made on a Mac
        for folder in (handed_in, handed_in / "ada" / "lessons"):
            (folder / hidden).parent.mkdir(exist_ok=True)
            (folder / hidden).write_text("{")
    grades = grading.grade(handed_in)
    assert list(grades.learners) == ["ada", "ben", "cas"]
    assert status(grades, "ada") == "passed"
    assert status(grades, "cas", "clip") == "no cell"
    assert not any("not read" in note for note in grades.notes)
    assert any("cas" in note and "clap" in note for note in grades.notes)


def test_the_same_code_in_two_hands_is_said_and_the_folded_solution_is_told_apart(handed_in):
    assert not grading.grade(handed_in).identical
    for learner, comment in (("ben", "two"), ("eli", "2 of 4")):
        shutil.copytree(handed_in / "ada", handed_in / learner, dirs_exist_ok=True)
        edit(copy_of(handed_in / learner), "batch_size = 4", f"batch_size = 2 * 2  # {comment}")
    grades = grading.grade(handed_in)
    own = {each.learner: each for each in grades.blanks if each.exercise == "batch size"}
    assert own["ada"].as_solution, "a comment more or less"
    assert own["ada"].same_as == []
    assert own["ben"].same_as == ["eli"]
    assert grades.identical == [{"lesson": LESSON, "one": "ben", "other": "eli", "blanks": 1, "records": 1}]
    assert "ben and eli" in grades.remarks()


def test_a_blank_that_says_its_points_is_worth_them(tmp_path, handed_in, monkeypatch):
    folder = Path(shutil.copytree(notebooks_folder(), tmp_path / "shipped"))
    notebook = json.loads((folder / "teaching" / f"{LESSON}.ipynb").read_text())
    notebook["cells"][cells.blanks(lessons.read_notebook(folder / "teaching" / f"{LESSON}.ipynb"))[0]]["metadata"]["points"] = 3
    (folder / "teaching" / f"{LESSON}.ipynb").write_text(json.dumps(notebook))
    monkeypatch.setattr(lessons, "notebooks_folder", lambda: folder)
    grades = grading.grade(handed_in)
    assert grades.learners["ada"] == {LESSON: 3}
    assert grades.lessons == {LESSON: 15}


def command(home: Path, *words: str) -> Ended:
    return workbench("lesson", *words, home=home)


def test_the_command_prints_a_table_writes_a_csv_beside_the_last_and_says_by_its_code_whether_to_look(handed_in, tmp_path):
    (handed_in / "=1+1").mkdir()
    shutil.copyfile(copy_of(handed_in / "cas"), handed_in / "=1+1" / "mine.ipynb")
    first = command(tmp_path, "--grade", "class", "--csv", "grades.csv")
    assert first.returncode == 1
    assert "1 of 13" in first.stdout
    rows = list(csv.DictReader((tmp_path / "grades.csv").open(encoding="utf-8")))
    assert len(rows) == 4 * 13
    assert {row["learner"] for row in rows} == {"ada", "ben", "cas", "'=1+1"}
    assert [row["points"] for row in rows if row["status"] == "passed"] == ["1"]
    (tmp_path / "grades.csv").write_text("mine")
    shutil.rmtree(handed_in / "ben")
    second = command(tmp_path, LESSON, "--grade", "class", "--csv", "grades.csv", "--json")
    assert second.returncode == 0
    assert (tmp_path / "grades.csv").read_text() == "mine"
    assert "grades-2.csv" in second.stderr
    found = json.loads(second.stdout)
    assert found["learners"]["ada"] == {LESSON: 1}
    assert found["needs_a_look"] is False


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--grade", "nowhere"), "no notebook and no progress.jsonl"),
        (("--grade", "empty"), "no notebook and no progress.jsonl"),
        (("03_train", "--grade", "class"), LESSON),
        (("--csv", "grades.csv"), "--grade FOLDER"),
    ],
)
def test_the_command_refuses(handed_in, tmp_path, words, told):
    (tmp_path / "empty").mkdir()
    refused = command(tmp_path, *words)
    assert refused.returncode == 2
    assert told in refused.stderr
    assert "remedy" in refused.stderr
