"""Split and fingerprint: the same row falls on the same side on every machine, in any order, for ever."""

from __future__ import annotations

import random

import numpy as np
import pytest

from workbench.base.errors import DataError
from workbench.data.checks import Checked
from workbench.data.prompts import SYSTEM_PROMPT, to_messages
from workbench.data.sources import Source, open_source
from workbench.data.split import Split, split
from workbench.task import fingerprint
from workbench.tiny import task as arithmetic


def split_rows(rows, percent, key=None, salt=""):
    halves = split(rows, percent, source=Source("made", list, split_by=key, salt=salt))
    return halves.train, halves.held_out


def row(text="What is 1 + 1?", **columns):
    return {"prompt": [{"role": "user", "content": text}], "answer": "2", **columns}


def test_the_split_does_not_depend_on_order_and_keeps_keys_together():
    rows = [row(str(index), pair=str(index % 50)) for index in range(500)]
    train, held_out = split_rows(rows, 20, key="pair")
    shuffled = rows.copy()
    random.Random(0).shuffle(shuffled)
    again, _ = split_rows(shuffled, 20, key="pair")
    assert sorted(fingerprint([r]) for r in train) == sorted(fingerprint([r]) for r in again)
    assert not {r["pair"] for r in train} & {r["pair"] for r in held_out}
    assert len(train) + len(held_out) == 500


def test_the_hash_is_the_same_on_every_machine():
    # sha256("a") begins ca978112, which is 3398926610; its last two digits are 10.
    assert [len(split_rows([row(key="a")], percent, key="key")[1]) for percent in (10, 11)] == [0, 1]


def test_notebook_01_splits_as_the_embedded_policy_was_trained():
    source = open_source("arithmetic", limit=1000)
    rows = Checked(source, system=SYSTEM_PROMPT).collect().kept
    train, held_out = split_rows(rows, arithmetic.HELD_OUT_PERCENT, key=source.split_by, salt=source.salt)
    of = {problem.question: arithmetic.is_held_out(problem) for problem in arithmetic.all_problems()}
    assert not any(of[r["prompt"][-1]["content"]] for r in train)
    assert all(of[r["prompt"][-1]["content"]] for r in held_out)
    assert len(held_out) == 100
    # And the prompts are those that it was trained on, to the letter.
    assert train[0]["prompt"] == to_messages(train[0]["prompt"][-1]["content"], SYSTEM_PROMPT)


def test_asking_for_another_format_does_not_split_anew():
    questions = [str(n) for n in range(200)]
    sides = []
    for system in ("", "a", "b"):
        head = [{"role": "system", "content": system}] if system else []
        rows = [{"prompt": [*head, {"role": "user", "content": text}]} for text in questions]
        sides.append([row["prompt"][-1]["content"] for row in split_rows(rows, 20)[1]])
    assert sides[0] == sides[1] == sides[2] != []


def test_a_percentage_may_be_numpys():
    rows = [row(f"What is {number}?") for number in range(50)]
    assert split_rows(rows, np.int64(20)) == split_rows(rows, 20)


@pytest.mark.parametrize("percent", [-5, 0.1, 100, 150])
def test_percentages_that_are_none(percent):
    with pytest.raises(DataError, match="held_out_percent = "):
        split_rows([row()], percent)


def test_a_key_that_a_row_lacks():
    with pytest.raises(DataError, match="row 1 has no column 'pair'"):
        split_rows([row(pair=1), row()], 10, key="pair")


def test_questions_that_differ_in_case_and_closing_marks_are_shared():
    held_out, train = [row("What is  1?"), row("Other?")], [row("what is 1")]
    assert Split(train, held_out).shared == held_out[:1]


def test_a_split_says_how_it_was_made_and_what_a_step_takes():
    rows = [row(str(n), pair=n // 2) for n in range(200)]
    halves = split(rows, 20, source=Source("made", lambda: iter(rows), split_by="pair"))
    assert {one["pair"] for one in halves.train}.isdisjoint(one["pair"] for one in halves.held_out)
    assert halves.by == {"held_out_percent": 20, "key": "pair", "salt": ""}
    assert str(halves).startswith(f"{len(halves.train)} rows to train on, {len(halves.held_out)} held out, by pair\n0 held-out")
    given = split(rows, held_out=rows[:3], held_out_split="test")
    assert (len(given.train), given.held_out, given.shared) == (200, rows[:3], rows[:3])
    assert given.record() == {"held_out_split": "test"}
    assert given.steps(64, 8) == "a step takes 8 prompts x 8 completions; steps per epoch: 25"
    refused = [
        (60, 8, "take 56 or 64"),
        (4, 8, "take 8 or 16"),
        (1608, 8, "give at least 201"),
        (-8, 8, "take 8 or 16"),
    ]
    for completions, group, said in [*refused, (64, 1, "num_generations = 1"), (64, 0, "num_generations = 0")]:
        with pytest.raises(DataError, match=said):
            given.steps(completions, group)


def test_fingerprint_sees_every_change():
    assert fingerprint([row()]) == fingerprint([dict(reversed(row().items()))])
    assert fingerprint([row()]) != fingerprint([row(), row()])
    assert fingerprint([row()]) != fingerprint([row(answer="3")])
