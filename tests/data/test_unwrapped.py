"""Right answers as sets store them: in a tag, a box, behind a mark, as `x = 3`, as the letter of a choice."""

from __future__ import annotations

import pytest

from workbench.data.answer_column import unwrapped


@pytest.mark.parametrize(
    ("stored", "answer", "taken_out_of"),
    [
        ("<answer> 6 </answer>", "6", ["<answer>"]),
        ("<think>2 + 4</think>\n<answer>\\boxed{6}</answer>\n", "6", ["<answer>", "\\boxed{}"]),
        ("We get $\\boxed{\\frac{1}{2}}$.\nDone.", "\\frac{1}{2}", ["\\boxed{}"]),
        ("\\boxed{2} and \\boxed{3}", "2, 3", ["\\boxed{}"]),
        ("so\n#### 1,008", "1008", ["####"]),
        ("It follows.\nThe answer is: 42.", "42", ["answer:"]),
        ("**Answer:** -5", "-5", ["answer:"]),
        ("Answer: (C)", "C", ["answer:", "(B)"]),
        ("x = 3", "3", ["x ="]),
        ("$y=-0.5$", "-0.5", ["x ="]),
        ("(B)", "B", ["(B)"]),
        ("B) Paris", "B", ["(B)"]),
        ("(d)", "d", ["(B)"]),
        ("<answer></answer>", "", ["<answer>"]),
    ],
)
def test_what_an_answer_is_stored_in_comes_off(stored, answer, taken_out_of):
    assert unwrapped(stored) == (answer, taken_out_of)
    assert unwrapped(answer) == (answer, [])


@pytest.mark.parametrize(
    "whole",
    ["6 or 7", "<answer>6</answer> or <answer>7</answer>", "<answer>6", "y = 2x + 1", "x = 1, y = 2", "a) 5 b) 6", "A) 5, B) 6",
     "J. Smith", "(A) \\cup (B)", "f(x) = 3", "\\boxed{}", "####", "12 apples", "the answer is", "SELECT a FROM b WHERE c = 3"],
)  # fmt: skip
def test_what_only_looks_so_stays_as_it_is(whole):
    assert unwrapped(whole) == (whole, [])


def test_a_letter_with_a_full_stop_is_a_choice_where_the_question_has_it():
    assert unwrapped("B. Paris", "Which city?\nA. Rome\nB. Paris") == ("B", ["(B)"])
    assert unwrapped("B. Paris", "Who wrote it?") == ("B. Paris", [])


@pytest.mark.timing
def test_it_is_linear_in_the_text():
    import time

    def seconds(size):
        started = time.perf_counter()
        for part in ("<answer>", "\\boxed{", "answer: ", "answer is ", "(A) ", "x = ", "{", "}"):
            unwrapped(part * size)
        return time.perf_counter() - started

    seconds(100)
    assert min(seconds(20_000) for _ in range(3)) < 1
