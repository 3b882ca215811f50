"""The lesson as a learner has it: each blank fails with a hint; two budgets are spent on three rungs."""

from __future__ import annotations

import re

import pytest
from trying_lessons import check_hints, shown, tried

# Of each blank, in order: what the solution says, and what somebody may well say instead.
MISTAKES = [
    ("is_right and completion.finished", "is_right"),
    ("[-100] * len(before) + completion.ids", "before + completion.ids"),
    ('"expert iteration": 3', '"expert iteration": 1'),
    ('["GRPO", "GRPO"]', '["GRPO", "PPO"]'),
    ("return t * values.std(ddof=1)", "return t * values.std()"),
    ("apart = by_seed[one, completions] - by_seed[other, completions]", "apart = by_seed[one, completions]"),
    ("updates = passes * examples / 8", "updates = examples / 8"),
    ("1 - p**G - (1 - p) ** G", "1 - p**G"),
    ('"groups that teach": completions // G * mixed(p)', '"groups that teach": completions * mixed(p)'),
    ('"Add {} and {}.": "GRPO"', '"Add {} and {}.": "stop"'),
]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    quick = {"seeds": 3, "budgets": [192, 768]}
    return tried("ladder", MISTAKES, tmp_path_factory.mktemp("home"), quick)


@pytest.mark.weekly  # six minutes of one process
def test_every_blank_and_every_mistake_fails_with_a_hint_of_its_own(executed):
    check_hints(executed, len(MISTAKES))


@pytest.mark.weekly  # six minutes of one process
def test_another_look_finds_more_to_imitate_and_written_answers_teach_what_none_can_sample(executed):
    text = shown(executed)
    found = re.findall(r"^768 +expert iteration +(\d) +(\d+)% +(\d+) +(\d+)$", text, re.MULTILINE)
    assert [own[0] for own in found] == ["1", "2", "3"]
    assert all(own[2] == own[3] for own in found)  # eight passes, eight in an update
    assert int(found[0][1]) < int(found[2][1])
    before, after = (int(re.search(rf"^{name} +(\d+)%$", text, re.MULTILINE)[1]) for name in ("before", "256 written answers"))
    assert before < 5 < 50 < after
    for advised in ("GRPO", "demonstrations"):
        assert f"next rung: {advised};" in text
