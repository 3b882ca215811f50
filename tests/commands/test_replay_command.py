"""`workbench replay`: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from commanding import workbench
from recording import record

from workbench.base.errors import RecipeError
from workbench.commands.command import weights_of
from workbench.inspection.replaying import MEANING
from workbench.tiny.task import task as arithmetic

EDITED = """
from workbench.task import Task
from workbench.tiny.task import task as arithmetic

print("loading")

def correctness_reward(completions, answer, **kwargs):
    return [1.0 if right in c[0]["content"] else 0.0 for c, right in zip(completions, answer)]

task = Task("edited", arithmetic(4, 2).rows, [correctness_reward])
"""


@pytest.fixture
def run(home):
    task = arithmetic(4, 2)
    good = "<reasoning>\nx\n</reasoning>\n<answer>\n{}\n</answer>"
    groups = [(row, [good.format(row["answer"]), "no", row["answer"], good.format("x")]) for row in task.with_ids(task.rows)]
    (home / "edited.py").write_text(EDITED)
    return record(task, [groups, groups], name="small")


def test_help_says_what_it_is_not(home):
    text = " ".join(workbench("replay", "--help", home=home).stdout.split())
    for word in ("--task", "--weight", "--out", "--limit", "--json", "Examples:"):
        assert word in text
    assert "not what a new run would reach" in text


@pytest.mark.slow
def test_json_and_side_by_side(run, home):
    arguments = ("replay", "latest", "--task", "edited.py", "--json", "--out", "new/side.parquet")
    result = workbench(*arguments, home=home)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["run"], found["completions"], found["groups"]) == ("small", 32, 8)
    assert found["meaning"] == MEANING
    assert found["old_hash"] != found["new_hash"]
    assert pq.read_table(home / "new" / "side.parquet").num_rows == 32
    changes = {row["name"]: row["change"] for row in found["functions"]}
    assert changes["correctness_reward"] == "changed"
    assert changes["style_reward"] == "removed"


@pytest.mark.slow
def test_for_people_with_another_weight(run, home):
    result = workbench("replay", "small", "--task", "arithmetic", "--weight", "style_reward=-2", home=home)
    assert result.returncode == 0, result.stderr
    assert MEANING in result.stdout
    assert "1 -> -2" in result.stdout
    assert "reward hash" in result.stdout


@pytest.mark.slow
def test_errors_are_three_lines_and_exit_code_2(run, home):
    for arguments in (
        ("replay", "nobody", "--task", "arithmetic"),
        ("replay", "small", "--task", "none.py"),
        ("replay", "small", "--task", "arithmetic", "--weight", "style_reward"),
        ("replay", "small", "--task", "countdown"),
    ):
        result = workbench(*arguments, home=home)
        assert (result.returncode, result.stdout) == (2, ""), arguments
        assert "rule:" in result.stderr
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize("text", ["a", "a=", "=1", "a=b", "a=nan", "a=inf"])
def test_a_weight_is_name_and_number(text):
    with pytest.raises(RecipeError, match=f"--weight {text}"):
        weights_of([text])
    assert weights_of(["a=0.5", "b=-1"]) == {"a": 0.5, "b": -1.0}
