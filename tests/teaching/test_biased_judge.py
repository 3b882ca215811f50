"""The lesson as a learner has it: blanks fail with a hint; what the bias does shows with every seed, and is mended."""

from __future__ import annotations

import re

import pytest
from trying_lessons import check_hints, shown, tried

# Of each blank, in order: what the solution says, and what somebody may well say instead.
MISTAKES = [
    ("np.exp(-gaps @ weights)", "np.exp(gaps @ weights)"),
    ("for_length = grades[42, 5] - grades[42, 0]", "for_length = grades[42, 5]"),
    ("characters = 100 * weights[0]", "characters = weights[0]"),
    ('prediction = "both"', 'prediction = "better"'),
    ("growth = last - first", "growth = first - last"),
    ("failed = [own.name", "failed = [own.asks"),
    ("(asks, (a, m), (b, n))", "(asks, (b, m), (a, n))"),
    ("own.std(axis=0, ddof=1) for", "own.std(axis=0) for"),
]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    return tried("biased_judge", MISTAKES, tmp_path_factory.mktemp("home"))


@pytest.mark.weekly
def test_every_blank_and_every_mistake_fails_with_a_hint_of_its_own(executed):
    check_hints(executed, len(MISTAKES))


@pytest.mark.weekly
def test_the_bias_is_read_off_the_judge_before_the_trial_names_it(executed):
    text = shown(executed)
    wrong_and_long, right_and_short = re.search(r"wrong and long: (\S+); right and short: (\S+)", text).groups()
    assert float(wrong_and_long) > float(right_and_short) + 0.5
    failed = re.search(r"^failed: (.*)$", text, re.MULTILINE)[1].split(", ")
    assert failed == ["verbosity", "injection", "authority"]
    assert "a judge trains after it has passed its trial" in text
    weights = dict(re.findall(r"^(biased|mended) +\S+ +(\S+) +\d+%$", text, re.MULTILINE))
    assert float(weights["biased"]) > 2
    assert abs(float(weights["mended"])) < 0.01
    assert "judge_reward on arithmetic, 40 prompts: passed" in text


@pytest.mark.weekly
def test_with_every_seed_the_bias_makes_texts_longer_and_no_answer_right_and_the_mended_judge_the_reverse(executed):
    text = shown(executed)
    assert "within groups the reward goes with the length" in text
    rows = re.findall(r"^(biased|mended) +(\d) +(\d+) -> (\d+) +(\d+)% -> (\d+)%$", text, re.MULTILINE)
    assert [row[:2] for row in rows] == [(judge, str(seed)) for judge in ("biased", "mended") for seed in (1, 2, 3)]
    ends = {judge: [[int(each) for each in row[2:]] for row in rows if row[0] == judge] for judge in ("biased", "mended")}
    assert all(after > before + 15 for before, after, *_ in ends["biased"])
    assert all(after < before for *_, before, after in ends["biased"])
    assert all(after < before + 10 for before, after, *_ in ends["mended"])
    assert all(after > before for *_, before, after in ends["mended"])
    apart, spread = re.search(r"^points solved +\S+ +\S+ +(\S+) +(\S+)$", text, re.MULTILINE).groups()
    assert float(apart) > 2 * float(spread)
