"""Lessons: a learner's copy is never written over, what is passed is kept, and a teacher gets it solved."""

from __future__ import annotations

import json
import os
import sys

import nbformat
import pytest
from commanding import Ended, workbench
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from workbench.base.errors import RunError
from workbench.base.notebook import NOTEBOOKS, notebooks_folder
from workbench.base.workspace import workspace
from workbench.commands import demo
from workbench.teaching._lib import lessons

SOLUTION = "<details><summary>Solution</summary>\n\n```python\nx = 2\nassert x == 2\n```\n</details>"


def command(home, *words: str) -> Ended:
    return workbench("lesson", *words, home=home)


@pytest.fixture
def small(home, monkeypatch):
    """Two lessons that ship: the first of the five, and one with two blanks."""
    folder = home / "shipped"
    (folder / "teaching").mkdir(parents=True)
    nbformat.write(new_notebook(cells=[new_markdown_cell("# 01 · First")]), folder / "01_dataset.ipynb")
    made = new_notebook(cells=[new_markdown_cell("\n# By hand\n\nProse.")])
    for _ in range(2):
        made.cells += [new_code_cell("x = ...  # your turn: two\nassert x == 2"), new_markdown_cell(SOLUTION)]
    nbformat.write(made, folder / "teaching" / "grpo_by_hand.ipynb")
    monkeypatch.setattr(demo, "notebooks_folder", lambda: folder)
    monkeypatch.setattr(lessons, "notebooks_folder", lambda: folder)
    return folder


def test_a_copy_is_the_learners_and_a_fresh_one_lies_beside_it(small, home):
    copy = lessons.copy_of("grpo_by_hand")
    assert copy == home / "lessons" / "grpo_by_hand.ipynb"
    shipped = (small / "teaching" / "grpo_by_hand.ipynb").read_text()
    assert copy.read_text() == shipped
    copy.write_text(shipped.replace("x = ...", "x = 2"))
    assert lessons.copy_of("grpo_by_hand") == copy
    fresh = lessons.copy_of("grpo_by_hand", again=True)
    assert fresh == home / "lessons" / "grpo_by_hand-2.ipynb"
    assert fresh.read_text() == shipped
    assert "x = 2" in nbformat.read(copy, as_version=4).cells[1].source
    changed = fresh.stat().st_mtime + 9
    os.utime(copy, (changed, changed))
    assert lessons.copy_of("grpo_by_hand") == copy, "the one that was changed last"
    assert (small / "teaching" / "grpo_by_hand.ipynb").read_text() == shipped


def test_solved_is_filled_and_is_no_learners_copy(small, home):
    solved = lessons.copy_of("grpo_by_hand", solved=True)
    assert solved.name == "grpo_by_hand-solved.ipynb"
    nbformat.validate(nbformat.read(solved, as_version=4))
    assert [cell.source for cell in nbformat.read(solved, as_version=4).cells][1::2] == ["x = 2\nassert x == 2"] * 2
    assert lessons.copy_of("grpo_by_hand").name == "grpo_by_hand.ipynb"


def test_what_is_passed_is_kept_once_with_its_first_time(small, home, capsys):
    assert [each["passed"] for each in lessons.lessons()] == [[], []]
    lessons.done("grpo_by_hand", "advantages")
    first = lessons.passed("grpo_by_hand")
    lessons.done("grpo_by_hand", "advantages")
    lessons.done("grpo_by_hand", "clip")
    assert len((home / "lessons" / "progress.jsonl").read_text().splitlines()) == 2
    assert lessons.passed("grpo_by_hand")["advantages"] == first["advantages"]
    by_hand = next(each for each in lessons.lessons() if each["lesson"] == "grpo_by_hand")
    assert by_hand["title"] == "By hand"
    assert by_hand["exercises"] == 2
    assert sorted(by_hand["passed"]) == ["advantages", "clip"]
    assert by_hand["last"] == max(lessons.passed("grpo_by_hand").values())
    assert lessons.passed("01_dataset") == {}
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["passed: advantages (1 in grpo_by_hand)"] * 2 + ["passed: clip (2 in grpo_by_hand)"]


@pytest.mark.parametrize(("name", "stem"), [("3", "03_train"), ("03", "03_train"), ("train", "03_train"), ("01_dataset",) * 2])
def test_the_five_go_by_number_and_by_name(home, name, stem):
    assert lessons.copy_of(name).name == f"{stem}.ipynb"


def test_no_such_lesson(home):
    with pytest.raises(RunError, match=r"(?s)'03_trian'.*01_dataset, 02_rewards.*did you mean '03_train'"):
        lessons.copy_of("03_trian")


def test_each_lesson_that_ships_has_a_title_and_the_five_their_minutes(home):
    found = {each["lesson"]: each for each in lessons.lessons()}
    assert list(found)[:5] == list(NOTEBOOKS)
    assert all(each["title"] for each in found.values())
    assert all(found[stem]["minutes"] > 0 for stem in NOTEBOOKS)
    shipped = {file.stem for file in (notebooks_folder() / "teaching").glob("*.ipynb")}
    assert set(found) == {*NOTEBOOKS, *shipped}, "a notebook in teaching/ is a lesson"


@pytest.mark.parametrize("place", ["notebooks", "lessons", "notebooks/teaching"])
def test_a_lesson_works_in_the_workspace_around_its_folder(tmp_path, monkeypatch, place):
    (tmp_path / place).mkdir(parents=True)
    monkeypatch.delenv("WORKBENCH_HOME", raising=False)
    monkeypatch.chdir(tmp_path / place)
    assert workspace() == tmp_path


def test_the_command_lists_copies_and_refuses(tmp_path):
    found = json.loads(command(tmp_path, "--json").stdout)
    assert [each["lesson"] for each in found][:5] == list(NOTEBOOKS)
    assert "03_train" in command(tmp_path).stdout
    made = json.loads(command(tmp_path, "export", "--solved", "--json").stdout)
    assert made == {"copy": str(tmp_path / "lessons" / "05_export-solved.ipynb")}
    refused = command(tmp_path, "no_such")
    assert refused.returncode == 2
    assert "`workbench lesson` lists them" in refused.stderr


def test_it_is_opened_as_lab_opens_the_notebooks(home, monkeypatch):
    from workbench.commands.cli import main

    started = []
    monkeypatch.setattr("os.execv", lambda program, words: started.append(words) or sys.exit(0))  # it would not come back
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr(sys, "argv", ["workbench", "lesson", "2", "--no-browser", "--port", "9999"])
    with pytest.raises(SystemExit):
        main()
    [words] = started
    assert words[1:4] == ["-m", "jupyterlab", str(home / "lessons" / "02_rewards.ipynb")]
    assert {"--port=9999", "--no-browser", f"--ServerApp.root_dir={home}"} <= set(words)
