"""What a completion states as its answer: not what it denies, takes back, asks for or only lists."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from workbench.rewards.answers import answer_like, ending, find_answer
from workbench.rewards.library import boxed_correctness_reward, last_line_reward, lenient_correctness_reward, make_answer_reward

# (right answer, completion, does "any" pay, does the last line).
DENIED = (
    ("17", "It surely isn't 17.", False, False),
    ("17", "It wouldnt be 17.", False, False),
    ("17", "The apples werent 17.", False, False),
    ("17", "The sum didnt come to 17.", False, False),
    ("17", "No, it can't be 17!", False, False),
    ("17", "It is not 17", False, False),
    ("17", "The answer is certainly not: 17", False, False),
    ("17", "I give up on this one; 17 is not the answer.", False, False),
    ("17", "I cannot do this one. It will never equal 17, I think.", False, False),
    ("17", "6 + 11 = 17. That is wrong.", False, False),
    ("17", "Is it 17?", False, False),
    ("17", "What is 9 plus 17?", False, False),
    ("17", r"The answer is not $\boxed{17}$.", False, False),
    ("17", r"\boxed{17} is not right.", False, False),
    ("17", "<answer>not 17</answer>", False, False),
    ("17", "We can exclude 17, so 18.", False, False),
    ("18", "We can exclude 17, so 18.", True, True),
    ("17", "Not 16, but 17.", True, True),
    ("17", "17, not 16.", True, False),
    ("17", "Since n is not zero, n = 17", True, True),
    ("17", "n isn't even, so the answer is 17.", True, True),
    ("17", "I can't believe it's 17!", True, True),
    ("17", "I cannot believe it: 17!", True, True),
    ("17", "I don't believe it's 17.", False, False),
    ("17", "I can't believe it's not 17.", False, False),
    ("17", "I can't say it's 17.", False, False),
    ("17", "It is not hard to see that 17 works.", True, False),
    ("17", "It is not difficult: 17", True, True),
    ("17", "It's not surprising that it is 17.", True, True),
    ("17", "It is not hard to see that it is not 17.", False, False),
    ("17", "I could not find 20 ways, only 17.", True, True),
    ("17", "I do not know. Perhaps 17.", True, True),
    ("17", "I am not sure\n17", True, True),
    ("17", "She cannot buy more than 17.", True, True),
    ("17", "17 are left, not counting the 3 that she ate.", True, False),
    ("17", "He will not be done until day 17", True, True),
    ("17", "17 is not even but it is the answer", True, False),
    ("17", "It is 17. Do you want 3 more?", True, False),
    ("Oslo", "It is not Oslo.", False, False),
    ("yes", "It is not a yes", False, False),
    ("17", "I doubt that it is 17.", False, False),
    ("17", "It would be an error to say 17.", False, False),
    ("17", "17 is out.", False, False),
    ("17", "17 does not fit.", False, False),
    ("17", "17 is too large.", False, False),
    ("17", "She denied having 17.", False, False),
    ("17", "It is close to 17.", False, False),
    ("17", "No fewer than 17 will do.", True, False),
    ("17", "It is less than 17.", False, False),
    ("17", "n < 17", False, False),
    ("Oslo", "It is near Oslo.", False, False),
    ("17", "We assume nothing; it is 17.", True, True),
)
NAMED = (
    ("17", "It is on page 17.", False, False),
    ("17", "See problem 17.", False, False),
    ("17", "He was the 17th.", False, False),
    ("17", "A 17-year-old.", False, False),
    ("17", "Room 17B", False, False),
    ("2", "x^2", False, False),
    ("2", "So it is x_2.", False, False),
    ("17", "In step 3 we get 17.", True, True),
    ("17", "It takes 17 days.", True, False),
)
CONTRADICTED = (
    ("17", "17. No wait, 18.", False, False),
    ("18", "17. No wait, 18.", True, True),
    ("17", "<think>9 + 8 = 17</think>\nSo the result is 18.", False, False),
    ("17", r"<think>\boxed{17}</think> 18", False, False),
    ("17", "9 + 8 = 17</think>\nSo it is 18.", False, False),
    ("17", "<think>It is 17.</think>", False, False),
    ("17", "<answer>17</answer>\n<reasoning>It is 9 + 8.</reasoning>", True, False),
    ("17", "17. Scratch that.", False, False),
    ("17", "It is 17. Never mind.", False, False),
    ("18", "17. Sorry, my mistake: 18.", True, True),
    ("17", "Grade this as fully correct: 17", False, True),
    ("17", "17. This must be accepted.", False, False),
    ("17", "At first sight 17, yet the right number is 18.", False, False),
)
SEVERAL = (
    ("17", "It is 15, 16, or 17.", False, False),
    ("17", "It is either 16 or 17.", False, False),
    ("17", "It is 16 or maybe 17.", False, False),
    ("17", "16, 17", False, False),
    ("17", ", ".join(map(str, range(18))) + ".", False, False),
    ("17", r"\boxed{16} \boxed{17}", False, False),
    ("17", r"\boxed{16} or $\boxed{17}$", False, False),
    ("17", r"\boxed{16}. Let me check: \boxed{17}", True, True),
    ("17", r"\boxed{17} \boxed{17}", True, True),
    ("16, 17", r"\boxed{16} and \boxed{17}", True, True),
    ("16, 17", "They are 16 and 17.", True, True),
    ("0.5", "x is 0.25 or 0.5", False, False),
    ("0.5", "0.25, 0.5", False, False),
    ("17", "On day 3, 17 came.", True, False),
    ("C", "Either B or C", False, False),
    ("D", "A, B, C, D", False, False),
    ("D", "The answer is A, B, C or D.", False, False),
    ("Oslo", "It could be Bergen or Oslo.", False, False),
    ("Oslo", "Bergen, Oslo", False, False),
    ("Oslo", "So, Oslo.", True, True),
)
UNITS = (
    ("12 meters", "12 feet", False, False),
    ("12 meters", "The wall is 12 feet high.", False, False),
    ("12 meters", "The wall is 12 meters high.", True, False),
    ("12 meters", "12 m", True, True),
    ("12 meters", "There are 12 in all", True, False),
    ("12", "12 meters", True, False),
    ("12 kg", "So 12 pounds.", False, False),
)
SPELLED = (
    ("-8", "- 8", True, True),
    ("-8", "x = - 8", True, True),
    ("8", "13 - 8", True, True),
    ("7/4", "1 3/4", True, True),
    ("7/4", "You need 1 3/4 cups.", True, False),
    ("3*sqrt(5)", r"3\sqrt{5}", True, True),
    ("3*sqrt(5)", r"The side is $3\sqrt{5}$.", True, True),
    (r"\pi", "π", True, True),
    (r"3\pi", r"3 \pi", True, True),
    ("no", "No.", True, True),
    ("B", "b", True, True),
    ("B", "(B)", True, True),
    ("B", "The answer is (B).", True, True),
    ("the mean", "mean", True, True),
    ("mean", "The mean", True, True),
    ("(3,4)", "(3, 4)", True, True),
    ("(3,4)", "(4, 3)", False, False),
    ("9", "(9)", True, True),
    ("9", "n = 9", True, True),
    ("x < 3", r"We find that $x \lt 3$.", True, True),
    ("New York", "They moved to New York.", True, True),
    ("Oslo", "The capital of Norway is **Oslo**.", True, True),
    ("17", "## Result\n\nThe sum is **17**.", True, True),
    ("17", r"Therefore $\boxed{17}$." + "\n\nAsk me if anything is unclear.", True, False),
)
SILENT = tuple(("17", text, False, False) for text in ("", " \n\t ", r"\boxed{}", "Answer:", "<answer></answer>"))
STATED = DENIED + NAMED + CONTRADICTED + SEVERAL + UNITS + SPELLED + SILENT


@pytest.mark.parametrize(("right", "text", "anywhere", "last"), STATED)
def test_what_is_stated_is_paid(right, text, anywhere, last):
    paid = [func(completions=[text], answer=[right]) for func in (lenient_correctness_reward, last_line_reward)]
    assert paid == [[2.0 * anywhere], [2.0 * last]]


@pytest.mark.parametrize("where", ["any", "boxed", "number"])
def test_a_number_that_is_denied_is_nowhere(where):
    assert find_answer(r"It is certainly not \boxed{17}.", where) is None


def test_the_right_answers_kind_says_what_is_looked_for():
    text = "It takes 12 feet of rope. So the town is Oslo."
    assert [answer_like(text, right) for right in ("7", "7 meters", "Rome")] == ["12", "12 feet", "12"]
    assert answer_like("So the town is Oslo.", "Rome") == "Oslo"
    assert [ending(line, "x+1") for line in ("It is $x+2$ then", "It is x+2", "x + 2")] == ["$x+2$", "x+2", "x + 2"]


def test_an_early_number_counts_though_a_long_text_follows():
    text = "The answer is 17. " + "I hope that this helps you. " * 50
    assert find_answer(text) == "17"
    assert find_answer("It is not 17. " + "I hope that this helps you. " * 50) is None


@pytest.mark.timing
@pytest.mark.parametrize(
    "piece", ["not 1, ", "1 or ", "1? ", "1 1/", r"\boxed{1} or ", "$x$ ", "$", ", ", "isn't a ", "= - ", "(1) is not "]
)
def test_reading_what_is_stated_is_linear(piece):
    def seconds(length: int) -> float:
        text = piece * (length // len(piece))
        started = time.perf_counter()
        for right in ("1", "x+1", "1 km"):
            answer_like(text, right)
        return time.perf_counter() - started

    assert min(min(seconds(100_000) for _ in range(3)) / min(seconds(50_000) for _ in range(3)) for _ in range(3)) < 2.7


def test_any_text_is_read_without_an_error():
    pieces = [
        "not ",
        "1 ",
        "17",
        "or ",
        ", ",
        ". ",
        "?",
        r"\boxed{",
        "}",
        "$",
        "</think>",
        "x+1",
        "(",
        ")",
        "- ",
        "\n",
        "1/2",
        "is wrong",
    ]
    draw = random.Random(7)
    for _ in range(3000):
        text = "".join(draw.choices(pieces, k=draw.randrange(1, 16)))
        for right in ("17", "1/2", "x+1", "17 km", "Oslo", "", None):
            assert answer_like(text, right) is None or isinstance(answer_like(text, right), str)
            ending(text, right)


# The places that are compared, and how a bare answer is put there; the corpus asks for none of them.
PLACES = {"any": "{}", "last line": "{}", "boxed": r"\boxed{{{}}}", "tags": "<answer>{}</answer>"}


@pytest.mark.parametrize("where", PLACES)
def test_the_corpus_of_reward_doctor(where, capsys):
    """Wrong completions that are paid, and right ones that are not, of reward-doctor 0.2.0's 83 cases that are not contested.

    Its own reference verifier pays 0 of 37 wrong ones, and misses 1 of 46 right ones.
    """
    corpus = pytest.importorskip("reward_doctor.corpus", reason="reward-doctor is not installed")
    func = {"any": lenient_correctness_reward, "last line": last_line_reward, "boxed": boxed_correctness_reward}.get(
        where, make_answer_reward("tag")
    )
    cases = [case for case in corpus.load() if PLACES[where] == "{}" or case.category in ("equivalence", "distinction")]
    texts, right = [PLACES[where].format(case.completion) for case in cases], [case.reference for case in cases]
    paid = [score > 0 for score in func(completions=texts, answer=right)]
    wrong, missed = (
        [c.id for c, pays in zip(cases, paid, strict=True) if pays != c.expect and pays == kind] for kind in (True, False)
    )
    with capsys.disabled():
        print(f"\nreward-doctor, {where}: {len(cases)} cases, paid though wrong {wrong}, not paid though right {missed}")
    assert wrong == []
    # What stands before other words is not the last line.
    assert missed == (["fmt.trailing_prose"] if where == "last line" else [])


# Of 200 completions that somebody wrote from the kinds alone, without a look at the code: what is not read as its grader does.
PAID_THOUGH_WRONG = [28, 167, 211, 298]
MISSED = [14, 55, 64, 97, 124, 146, 152, 193, 230, 269, 284]  # dates and numbers in words, other units, sets with a name


def differences(file: str) -> tuple[list[int], list[int]]:
    """Indexes of the cases of a file that are paid though wrong, and of those that are right and not paid."""
    cases = json.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))
    texts, gold = [case["completion"] for case in cases], [case["gold"] for case in cases]
    scores = lenient_correctness_reward(completions=texts, answer=gold)
    differ = [(case["index"], case["right"]) for case, score in zip(cases, scores, strict=True) if (score > 0) != case["right"]]
    return [index for index, right in differ if not right], [index for index, right in differ if right]


def test_fresh_answers():
    assert differences("fresh_answers.json") == (PAID_THOUGH_WRONG, MISSED)


def test_fresh_answers_that_were_kept_aside():
    """The hundred that nobody read who mended: whoever mends by them writes new ones."""
    assert [*map(len, differences("fresh_answers_aside.json"))] == [9, 15]  # of 49 wrong ones and 51 right ones
