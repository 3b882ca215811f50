"""Structured output: JSON that keeps to the schema, values that are right, and nothing for what only looks like it."""

from __future__ import annotations

import json

import pytest

from workbench.rewards.verifiers import json_of, json_right_reward, json_schema_reward, json_values_reward
from workbench.tasks.structured import EXAMPLE, SCHEMA

RIGHT = {"name": "Mara Lind", "age": 41, "city": "Oslo", "languages": ["Norwegian", "German"]}


def scores(text):
    columns = {"schema": [json.dumps(SCHEMA)], "answer": [json.dumps(RIGHT)]}
    return tuple(func(completions=[text], **columns)[0] for func in (json_schema_reward, json_values_reward, json_right_reward))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (json.dumps(RIGHT), (1.0, 2.0, 1.0)),
        (f"```json\n{json.dumps(RIGHT, indent=2)}\n```", (1.0, 2.0, 1.0)),
        (f"<answer>\n{json.dumps(RIGHT)}\n</answer>", (1.0, 2.0, 1.0)),
        (json.dumps({**RIGHT, "age": 40}), (1.0, 1.5, 0.0)),
        (json.dumps({**RIGHT, "age": "41"}), (0.0, 1.5, 0.0)),
        (json.dumps({**RIGHT, "extra": 1}), (0.0, 1.6, 0.0)),
        (json.dumps({"name": "Mara Lind"}), (0.0, 0.5, 0.0)),
        (json.dumps([RIGHT]), (0.0, 0.0, 0.0)),
        ("{}", (0.0, 0.0, 0.0)),
        ("", (0.0, 0.0, 0.0)),
        ("null", (0.0, 0.0, 0.0)),
        ("Here it is: " + json.dumps(RIGHT), (0.0, 0.0, 0.0)),
        ("[" * 5000, (0.0, 0.0, 0.0)),
        ('{"age": NaN}', (0.0, 0.0, 0.0)),
    ],
)
def test_by_hand(text, expected):
    assert scores(text) == pytest.approx(expected)


def test_the_example_is_right():
    assert json_of(EXAMPLE[1]) == RIGHT
