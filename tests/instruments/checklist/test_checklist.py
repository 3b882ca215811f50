"""Checklists tick themselves: by what the rows, rewards and plan are, and by what a run left."""

from __future__ import annotations

import dataclasses
import json

import pytest
from recording import record

import workbench as wb
from workbench.health.verdicts import NAMES
from workbench.instruments.checklist import ticking as module
from workbench.tiny.task import task as arithmetic
from workbench.views.display import view_of

ROW = {"prompt": [{"role": "user", "content": "What is 15 + 27?"}], "answer": "42"}


def of(boxes, words):
    [box] = [box for box in boxes if words in box.what]
    return box


@pytest.fixture(scope="module")
def small():
    return arithmetic(32, 8)


def test_a_good_task_is_ticked_by_its_own_rows_and_rewards(small, home):
    boxes = wb.checklist(small)
    assert of(boxes, "every row").state == "ticked"
    assert of(boxes, "every row").why.startswith("32 rows read, 32 kept")
    assert (of(boxes, "held out").state, of(boxes, "held out").why) == ("ticked", "8 held-out prompts")
    assert of(boxes, "can pay").state == "ticked"
    assert "nothing is wrong" in of(boxes, "can pay").why
    assert not of(boxes, "can pay").call
    assert of(boxes, "solves the prompts").state == "open"
    assert "wb.profile_difficulty" in of(boxes, "solves the prompts").call
    assert of(boxes, "the plan").state == "cannot be told"
    assert {box.when for box in boxes} == {"before"}


def test_a_bad_task_is_open_where_it_is_bad(small, home):
    leak = dataclasses.replace(small, held_out=[*small.held_out, small.rows[0]])
    leaked = of(wb.checklist(leak), "every row")
    assert leaked.state == "open"
    assert "32 rows read, 31 kept" in leaked.why
    hacked = wb.checklist(wb.rewards.exercise("strict_and_soft").task())
    assert of(hacked, "can pay").state == "open"
    assert "best reward hack 0.5" in of(hacked, "can pay").why
    assert of(hacked, "held out").state == "open"
    assert of(hacked, "tested on completions").why == "0 regression cases"


@pytest.mark.slow
def test_difficulty_is_read_where_notebook_01_left_it(small, home):
    folder = home / "tasks" / "arithmetic"
    folder.mkdir(parents=True)
    named = dataclasses.replace(small, name="arithmetic")

    def profile(*right: int) -> str:
        lines = [{"settings": {}}, *({"row": str(n), "right": each, "of": 8, "finished": 8} for n, each in enumerate(right))]
        (folder / "difficulty.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return of(wb.checklist(named), "solves the prompts").state

    assert profile(4, 4, 4, 0) == "ticked"  # one of four groups of 8 would be dead
    assert profile(4, 0, 0, 8) == "open"  # three


@pytest.mark.slow
def test_a_recipe_is_planned_and_a_refused_one_says_why(home):
    boxes = wb.checklist({"task": "arithmetic", "grpo": {"num_generations": 4, "per_device_train_batch_size": 8}})
    assert of(boxes, "the plan").state == "ticked"
    assert "8 completions (2 prompts x 4)" in of(boxes, "the plan").why
    assert of(boxes, "prompts and completions fit").state == "ticked"
    assert "completion 96, of 256 tokens" in of(boxes, "prompts and completions fit").why
    assert of(boxes, "is logged").state == "ticked"
    refused = wb.checklist({"grpo": {"num_generations": 1}})
    assert "num_generations = 1" in of(refused, "the plan").why
    assert [box.state for box in refused].count("open") == 1
    seldom = wb.checklist({"grpo": {"logging_steps": 10}})
    assert of(seldom, "is logged").state == "open"


def score(texts):
    """A group's completions under two functions: right answers in the format, or not."""
    return (ROW, texts)


GOOD, WRONG = "<reasoning>\n40+2\n</reasoning>\n<answer>\n42\n</answer>", "<answer>41</answer>"


def test_a_run_whose_groups_are_dead_is_open_and_what_nobody_measured_too(small, home):
    run = record(small, [[score([WRONG] * 4)] * 8] * 4, name="dead")
    boxes = wb.checklist(run)
    assert {box.when for box in boxes} == {"during", "after"}
    assert of(boxes, "groups are alive").state == "open"
    assert "100 %" in of(boxes, "groups are alive").why
    assert of(boxes, "the reward rises").state == "cannot be told"
    assert of(boxes, "read at every step").why == "4 steps are on record"
    for words in ("better than its base", "enough different", "taught or sharpened", "format is kept"):
        assert of(boxes, words).state == "open"
    assert of(boxes, "merged").why == "exported: nothing"
    assert of(boxes, "is what was trained").call == "wb.prove(run.path)"
    assert of(boxes, "documented").state == "ticked"
    assert "correctness_reward 1" in of(boxes, "documented").why
    assert of(boxes, "made again").state == "open"


@pytest.mark.parametrize(
    ("ended", "state", "why"),
    [
        ({"status": "finished", "steps": 1, "minutes": 0}, "ticked", "finished after 1 step"),
        ({"status": "failed", "steps": 1, "minutes": 0, "error": "OutOfMemoryError: 2 GB"}, "open", "OutOfMemoryError: 2 GB"),
        (None, "cannot be told", "killed after 0 steps"),  # perhaps by the system, for lack of memory
    ],
)
def test_a_run_that_failed_says_of_what(small, home, ended, state, why):
    run = record(small, [[score([GOOD, WRONG])]])
    run.update_manifest(result=ended)
    run.release()
    box = of(wb.checklist(run), "no step failed")
    assert box.state == state
    assert box.why.startswith(why)


def test_a_run_whose_groups_are_mixed_is_alive(small, home):
    run = record(small, [[score([GOOD, GOOD, WRONG, WRONG])] * 8] * 4, name="alive")
    assert of(wb.checklist(run), "groups are alive").state == "ticked"


@pytest.mark.parametrize(
    ("passed", "state", "why"),
    [
        ({"adapter": True, "merged_16bit": True}, "ticked", "proven: adapter, merged_16bit"),
        ({"adapter": True, "merged_16bit": False}, "open", "proven: adapter"),
        ({"adapter": True, "merged_16bit": None}, "open", "proven: adapter"),  # it has no proof
        ({"adapter": True, "merged_16bit": "torn"}, "open", "proven: adapter"),
        ({}, "open", "proven: nothing"),
    ],
)
def test_proven_means_every_export_passed(small, home, passed, state, why):
    run = record(small, [[score([GOOD, WRONG])]])
    for name, result in passed.items():
        (run.export / name).mkdir(parents=True)
        (run.export / name / "passport.json").write_text("{}")
        if result is not None:
            (run.export / name / "proof.json").write_text("{" if result == "torn" else json.dumps({"passed": result}))
    boxes = wb.checklist(run)
    assert (of(boxes, "is what was trained").state, of(boxes, "is what was trained").why) == (state, why)
    assert of(boxes, "merged").state == ("ticked" if passed else "open")


def found(low, needed, word, formats=(0.5, 0.9)):
    ends = [{"correct": 0.4, "correct_lenient": 0.5, "format": each} for each in formats]
    gain = {"correct": 0.1, "low": low, "high": 0.2}
    verdict = {"word": word, "why": "because"}
    return {"before": ends[0], "after": ends[1], "gain": gain, "needed": needed, "prompts": 80, "samples": 16, "verdict": verdict}


@pytest.mark.parametrize(
    ("numbers", "states"),
    [
        (found(0.05, None, "sharpened"), [True, True, True, True]),
        (found(-0.01, 300, "cannot be told", (0.9, 0.5)), [False, False, False, None]),
        (found(0.05, None, "taught", (None, None)), [None, True, True, True]),
    ],
)
def test_an_evaluation_ticks_four_boxes(numbers, states):
    assert list(module._MEASURED) == ["format", "gain", "enough", "taught"]
    assert [judge(numbers)[0] for judge in module._MEASURED.values()] == states


def test_each_box_has_a_name_a_call_and_something_that_looks(small, home):
    import yaml

    boxes = yaml.safe_load((module.Path(module.__file__).with_suffix(".yaml")).read_text())
    keys = [key for phase in ("during", "after") for key in boxes[phase]]
    assert len(set(keys)) == len(keys)
    assert all(box["what"] and box["call"] for phase in boxes.values() for box in phase.values())
    read = [name for box in boxes["during"].values() for name in box.get("verdicts", ())]
    assert set(read) <= set(NAMES)
    assert "not looked at" not in {box.why for box in wb.checklist(record(small, [[score([GOOD, WRONG])]]))}


def test_it_is_a_table_in_a_cell_and_lines_elsewhere(small, home):
    boxes = wb.checklist(small)
    page, text = view_of(boxes)._repr_html_(), str(boxes)
    assert page.count("<tr") == 1 + len(boxes)
    ticked = sum(box.state == "ticked" for box in boxes)
    assert text.splitlines()[-1] == f"{ticked} of {len(boxes)} ticked"
    assert all(f"  -> {box.call}" in text for box in boxes if box.call)
