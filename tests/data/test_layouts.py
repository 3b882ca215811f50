"""Layouts of public GRPO repositories: `check` keeps their rows, finds prompt and answer, and says what it did."""

from __future__ import annotations

import shlex

import pytest
from commanding import workbench
from layouts import LAYOUTS, TASK, write_all, write_rows

import workbench as wb
from workbench.base.errors import DataError
from workbench.data.checks import check


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_layout_is_read_as_its_people_mean_it(name, tmp_path):
    layout = LAYOUTS[name]
    report = check(write_rows(layout, tmp_path), **layout.options)
    assert (report.read, report.kept_rows) == (len(layout.rows()), layout.kept), str(report)
    assert layout.said in str(report)
    if layout.kept:
        first = report.kept[0]
        assert layout.asks in first["prompt"][-1]["content"]
        assert first["answer"] == layout.answer


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("verl", "--answer reward_model.ground_truth"),
        ("alpaca", '--prompt "{instruction}\\n\\n{input}"'),
        ("preferences", "--answer chosen"),
        ("meta_math", "--answer response"),
        ("share_gpt", "--answer assistant"),
        ("classification", "--prompt text"),
    ],
)
def test_where_it_cannot_know_the_remedy_is_what_works(name, remedy, tmp_path):
    with pytest.raises(DataError) as caught:
        check(write_rows(LAYOUTS[name], tmp_path))
    assert f"say which: {remedy}" in caught.value.remedy


@pytest.mark.parametrize(("name", "column"), [("choices", "options"), ("squad", "context"), ("text_to_sql", "context")])
def test_what_stands_beside_the_question_is_named(name, column, tmp_path):
    path, options = write_rows(LAYOUTS[name], tmp_path), {**LAYOUTS[name].options, "prompt_column": "question"}
    named = [note for note in check(path, **options).notes if f"'{column}'" in note]
    assert named
    assert f'--prompt "{{question}}\\n\\n{{{column}}}"' in named[0]
    assert not [note for note in check(path, **LAYOUTS[name].options).notes if note.startswith("beside")]


def test_the_task_files_that_are_written_run():
    compile(TASK.format(name="x", suffix=".csv", options=""), "task.py", "exec")


@pytest.mark.weekly  # half a minute each
@pytest.mark.parametrize("name", [name for name, layout in LAYOUTS.items() if layout.kept])
def test_every_command_takes_each_layout(name, tmp_path):
    write_all(tmp_path)
    place = tmp_path / name
    asked = shlex.split((place / "check.txt").read_text(encoding="utf-8"))[1:]
    yes = {"check": {0}, "probe": {0, 1}, "plan": {0}, "train": {0}, "eval": {0, 1}, "report": {0}}
    for arguments in (
        asked,
        ["probe", "task.py"],
        ["plan", "recipe.yaml"],
        ["train", "recipe.yaml"],
        ["eval", name],
        ["report", name],
    ):
        ended = workbench(*arguments, home=place)
        assert ended.returncode in yes[arguments[0]], ended.stderr
        assert "Traceback" not in ended.stdout + ended.stderr
    assert wb.open_run(place / "runs" / name).result()["steps"] == 3
