"""The lesson as a learner has it: each blank fails with a hint; one seed of each reward, then the duel that begins with it."""

from __future__ import annotations

import re

import pytest
from trying_lessons import check_hints, shown, tried

# Of each blank, in order: what the solution says, and what somebody may well say instead.
MISTAKES = [
    ("text.count(tag) == 1", "tag in text"),
    ('prediction = "formed"', 'prediction = "both"'),
    ("/ np.sqrt(len(difference))", ""),
    ("pairs * 2 * steps", "pairs * steps"),
    ('may_say = str(duel).partition(":")[0]', 'may_say = "equally good"'),
    ("by_seed.std(ddof=1)", "by_seed.std()"),
    ("    n = (2.8 * spread / d) ** 2", "    n = 2.8 * spread / d"),
]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    return tried("two_rewards", MISTAKES, tmp_path_factory.mktemp("home"))


@pytest.mark.weekly
def test_every_blank_and_every_mistake_fails_with_a_hint_of_its_own(executed):
    check_hints(executed, len(MISTAKES))


@pytest.mark.weekly
def test_the_pair_that_was_seen_is_the_first_of_the_duel_and_a_verdict_follows(executed):
    text = shown(executed)
    seen = dict(re.findall(r"^(right|formed) +\d+ of 48 +(\d+%)$", text, re.MULTILINE))
    pairs = re.findall(r"^(\d) +(\d+%) +(\d+%) +([+-]\d+%) +(right|formed|neither)$", text, re.MULTILINE)
    assert pairs[0][:3] == ("1", seen["right"], seen["formed"])
    assert 3 <= len(pairs) <= 6
    # which of them each seed names is this machine's
    assert re.search(r"^the duel: +(undecided|\w+ is better than \w+)$", text, re.MULTILINE)
