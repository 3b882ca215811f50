"""The difficulty profile: hand-computed numbers, kept as it goes, resumed where it stopped, and a band that loses nothing."""

from __future__ import annotations

import itertools
import json

import pytest

from workbench.base.errors import DataError
from workbench.data.difficulty import Profile, Solved, dead_share, load_profile, measure_difficulty, pick, row_key

ROWS = [{"prompt": f"question {number}", "answer": str(number)} for number in range(20)]

UNIFORM = 1.0, 1.0


def by_number(rows):
    """Question n is solved n times of 19, so the first never and the last always."""
    return [Solved(int(row["answer"]), 19, 19) for row in rows]


@pytest.mark.parametrize(("right", "of", "size"), [(3, 8, 4), (0, 8, 8), (8, 8, 8), (4, 8, 8), (5, 6, 2), (1, 4, 3)])
def test_dead_share_counts_the_groups_that_can_be_drawn(right, of, size):
    marks = [1] * right + [0] * (of - right)
    groups = list(itertools.combinations(marks, size))
    expected = sum(sum(group) in (0, size) for group in groups) / len(groups)
    assert dead_share(right, of, size, UNIFORM) == pytest.approx(expected)


def test_dead_share_from_few_completions_is_the_mean_over_the_pass_rate():
    # After 1 right of 2 the pass rate has the density 6 p (1 - p); the mean of p^4 + (1 - p)^4 over it is 2 * 6 / (6 * 7).
    assert dead_share(1, 2, 4, UNIFORM) == pytest.approx(2 / 7)
    assert 0 < dead_share(2, 2, 4, UNIFORM) < 1, "two right completions do not prove that a prompt is always solved"


def test_shares_and_dead_groups_by_hand():
    profile = Profile({}, {"a": Solved(0, 4, 4), "b": Solved(2, 4, 2), "c": Solved(4, 4, 4), "d": Solved(1, 4, 2)})
    assert profile.shares == {"never": 0.25, "sometimes": 0.5, "always": 0.25}
    assert profile.dead_groups(4) == 0.5
    assert profile.finished == 12 / 16


def test_a_profile_is_kept_and_not_measured_twice(home):
    calls = []

    def attempt(rows):
        calls.append(len(rows))
        return by_number(rows)

    told = []
    first = measure_difficulty(
        ROWS[:10], attempt, "difficulty.jsonl", {"policy": "a"}, batch=4, progress=lambda *p: told.append(p)
    )
    assert calls == [4, 4, 2]
    assert told == [(4, 10), (8, 10), (10, 10)]
    again = measure_difficulty(ROWS, attempt, "difficulty.jsonl", {"policy": "a"}, batch=16)
    assert calls == [4, 4, 2, 10]
    assert {**first.solved} == {key: again.solved[key] for key in first.solved}
    assert load_profile("difficulty.jsonl").solved == again.solved


def test_an_interrupt_keeps_what_was_measured_and_the_next_call_goes_on(home, capsys):
    def interrupted(rows):
        if rows[0]["answer"] == "8":
            raise KeyboardInterrupt
        return by_number(rows)

    part = measure_difficulty(ROWS, interrupted, "d.jsonl", {"policy": "a"}, batch=4)
    assert len(part.solved) == 8
    assert "8 of 20 prompts are measured and kept in d.jsonl" in capsys.readouterr().out
    whole = measure_difficulty(ROWS, by_number, "d.jsonl", {"policy": "a"}, batch=4)
    assert whole.solved == measure_difficulty(ROWS, by_number, "other.jsonl", {"policy": "a"}, batch=4).solved


def test_a_corrected_answer_is_measured_anew(home):
    measure_difficulty([{"prompt": "p", "answer": "0"}], by_number, "d.jsonl", {})
    [solved] = measure_difficulty([{"prompt": "p", "answer": "19"}], by_number, "d.jsonl", {}).solved.values()
    assert solved.rate == 1


def test_a_torn_line_is_measured_again(home):
    measure_difficulty(ROWS[:4], by_number, "d.jsonl", {}, batch=2)
    text = (home / "d.jsonl").read_text()
    (home / "d.jsonl").write_text(text[:-20])
    with pytest.warns(UserWarning, match="torn"):
        assert len(measure_difficulty(ROWS[:4], by_number, "d.jsonl", {}, batch=2).solved) == 4


def test_another_policys_profile_is_refused_by_name(home):
    measure_difficulty(ROWS[:2], by_number, "d.jsonl", {"policy": "a", "seed": 0})
    with pytest.raises(DataError, match="d.jsonl: measured with another policy"):
        measure_difficulty(ROWS[:2], by_number, "d.jsonl", {"policy": "b", "seed": 0})
    (home / "x.jsonl").write_text(json.dumps({"prompt": "a"}) + "\n")
    with pytest.raises(DataError, match="not a difficulty profile"):
        load_profile("x.jsonl")


def test_a_band_keeps_what_was_not_measured_and_loses_nothing():
    profile = Profile({}, {row_key(row): Solved(number, 10, 10) for number, row in enumerate(ROWS[:11])}, ROWS)
    band = profile.within(0.01, 0.99)
    assert [row["answer"] for row in band.filtered_out] == ["0", "10"]
    assert len(band.kept) == 18
    assert band.unmeasured == 9
    assert sorted(map(str, band.kept + band.filtered_out)) == sorted(map(str, ROWS))
    assert profile.within().kept == ROWS
    assert band.record() == {"pass_rates": (0.01, 0.99), **profile.shares}
    assert Profile({}, {}, ROWS).within().record() is None
    assert "steps per epoch: 4" in band.steps(8, 2)
    assert str(band) == "18 rows kept (9 of them not measured), 2 filtered out"


@pytest.mark.parametrize("band", [(0.5, 0.2), (-0.1, 1), (0, 1.1)])
def test_a_band_that_is_none(band):
    with pytest.raises(DataError, match="a band from"):
        Profile({}, {}, ROWS).within(*band)


def test_picked_rows_do_not_depend_on_the_order():
    assert pick(ROWS, 5) == pick(ROWS[::-1], 5)
    assert pick(ROWS, 5) != ROWS[:5]
