"""The lesson as a learner has it: each blank fails with a hint, and what it says of luck is what was measured."""

from __future__ import annotations

import re

import pytest
from trying_lessons import check_hints, shown, tried

# Of each blank, in order: what the solution says, and what somebody may well say instead.
MISTAKES = [
    ("return (low + high) // 2", "return low"),
    ("most = 2**5 - 1", "most = 2**5"),
    ("((share > 0) & (share < 1))", "(share > 0)"),
    ('prediction = "more slowly"', 'prediction = "slower"'),
    ('may_say = "undecided"', 'may_say = "fair is faster"'),
    (" - within / k", ""),
]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    return tried("play_it", MISTAKES, tmp_path_factory.mktemp("home"))


@pytest.mark.slow
def test_every_blank_and_every_mistake_fails_with_a_hint_of_its_own(executed):
    check_hints(executed, len(MISTAKES))


@pytest.mark.slow
def test_both_runs_learn_and_luck_is_what_the_words_say(executed):
    text = shown(executed)
    curves = {name: re.findall(r"\d+(?=%)", rest) for name, rest in re.findall(r"^(fair|unfair) +(\d+%.*)$", text, re.MULTILINE)}
    assert curves.keys() == {"fair", "unfair"}
    for curve in curves.values():
        assert int(curve[0]) + 20 < int(curve[-1])
    luck = dict(re.findall(r"^(the embedded policy|you, with 3).* (\d+)%$", text, re.MULTILINE))
    assert int(luck["the embedded policy"]) < 15
    assert luck["you, with 3"] == "100"
