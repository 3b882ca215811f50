"""Layouts of public GRPO repositories: `check` keeps their rows, finds prompt and answer, and says what it did."""

from __future__ import annotations

import pytest
from layouts import LAYOUTS, TASK, write_rows

from workbench.data.checks import check
from workbench.errors import DataError


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
