"""docs/turns.md: its code runs as it stands, and notebooks 02 to 05 take what it makes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import workbench as wb
from workbench.base.notebook import run_notebook
from workbench.run.rollouts import read_batches

PAGE = Path(__file__).parents[1] / "docs" / "turns.md"
TEXT = PAGE.read_text(encoding="utf-8")
FILE, BY_HAND, PLAN, TRAIN, READ = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def file(home):
    """The page's task file, in a workspace of its own."""
    path = home / "tasks" / "guess" / "task.py"
    path.parent.mkdir(parents=True)
    path.write_text(FILE)
    return path


def test_the_page_is_short_and_its_picture_is_there():
    assert len(TEXT) <= 7000
    assert len(FILE.splitlines()) <= 35
    [picture] = re.findall(r"\]\((images/[^)]+)\)", TEXT)
    assert 10_000 < (PAGE.parent / picture).stat().st_size < 150_000


def test_by_hand_and_the_audit(file):
    told: dict = {}
    exec(BY_HAND, told)
    assert [call.result for turn in told["game"].turns for call in turn.calls] == ["higher", "right"]
    audit = wb.audit_rewards(file)
    assert audit.ok
    assert not [own for own in audit.findings if own.severity != "note"]


@pytest.mark.slow
def test_the_page_from_plan_to_reading(file, capsys):
    told = {"wb": wb}
    plan = PLAN
    for asked, instead in {'"max_steps": 30': '"max_steps": 4', '"eval_every": 10': '"eval_every": 2'}.items():
        assert plan.count(asked) == 1
        plan = plan.replace(asked, instead)
    exec(plan, told)
    assert "turns: guess(number: integer); at most 6 rounds of calls" in capsys.readouterr().out
    exec(TRAIN, told)
    exec(READ, told)
    batches = [*read_batches(told["run"])]
    assert {name for batch in batches for name in batch.names} == {"Guess"}
    assert max(batch.totals.max() for batch in batches) > 0.5
    for batch in batches:
        for number in range(batch.group_count):  # fair: a guess is answered alike in all of a group
            answers: dict = {}
            for turns in batch.group(number).turns:
                for call in (call for turn in turns for call in turn.calls if call.result not in (None, "over")):
                    assert answers.setdefault(call.arguments["number"], call.result) == call.result


@pytest.mark.slow
def test_notebooks_02_to_05_take_the_task(file):
    own = ["task_dir=tasks/guess"]
    run_notebook("02", own)
    small = ["policy_name=tiny_turns", "max_steps=3", "max_completion_length=128", "eval_every=3", "run_name=guess"]
    run_notebook("03", [*own, *small, "per_device_train_batch_size=16"])
    run = wb.open_run("guess")
    assert run.result()["status"] == "finished"
    assert all(batch.turns for batch in read_batches(run))
    run_notebook("04", ["run_name=guess", "held_out=4", "samples=2"])
    run_notebook("05", ["run_name=guess", "formats=['adapter', 'merged_16bit']"])
