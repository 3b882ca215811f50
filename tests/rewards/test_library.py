"""The contract that every reward function keeps, and the exact numbers of each."""

from __future__ import annotations

import functools
import time

import pytest

from workbench.rewards.library import (
    boxed_correctness_reward,
    correctness_reward,
    format_share,
    incremental_format_reward,
    keeps_strict_format,
    last_line_reward,
    lenient_correctness_reward,
    mark_correctness_reward,
    max_score,
    max_score_of,
    strict_format_reward,
    think_answer_format_reward,
)
from workbench.rewards.shaping import length_reward, style_reward
from workbench.rewards.verifiers import (
    countdown_reward,
    json_right_reward,
    json_schema_reward,
    json_values_reward,
    numbers_used_reward,
)
from workbench.tiny.task import REWARD_FUNCS

OTHERS = (
    lenient_correctness_reward,
    mark_correctness_reward,
    boxed_correctness_reward,
    last_line_reward,
    think_answer_format_reward,
)
IDEAL = "<reasoning>\n5+7=12, 1+2+1=4\n</reasoning>\n<answer>\n42\n</answer>"
WORTH_NOTHING = {
    "silence": "",
    "blank": " \n\t ",
    "empty tags": "<reasoning></reasoning><answer></answer>",
    "blank tags": "<reasoning>\n\n</reasoning>\n<answer>\n\n</answer>",
    "tag soup": "</answer><answer></reasoning><reasoning>",
    "tag spam": "<answer>" * 50 + "</answer>" * 50,
    "a tag alone": "<reasoning>",
    "refusal": "I cannot answer that.",
    "prompt echo": "What is 15 + 27?",
}


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def score(func, *texts: str, answer: str = "42") -> list[float]:
    return func(prompts=[""] * len(texts), completions=list(texts), answer=[answer] * len(texts))


@pytest.mark.parametrize("func", [*REWARD_FUNCS, *OTHERS], ids=lambda func: func.__name__)
class TestContract:
    @pytest.mark.parametrize("text", WORTH_NOTHING.values(), ids=WORTH_NOTHING.keys())
    def test_pays_nothing_for(self, func, text):
        assert score(func, text) == [0.0]

    def test_chat_equals_plain(self, func):
        texts = [IDEAL, *WORTH_NOTHING.values(), IDEAL + "junk", "42", "<answer>42</answer>"]
        as_chat = func(prompts=[[]] * len(texts), completions=[chat(t) for t in texts], answer=["42"] * len(texts))
        assert as_chat == score(func, *texts)

    def test_one_score_a_completion(self, func):
        assert len(score(func, *[IDEAL] * 7)) == 7
        assert func(prompts=[], completions=[], answer=[]) == []

    def test_ignores_what_else_trl_passes(self, func):
        extra = {
            "completion_ids": [[1]],
            "trainer_state": None,
            "log_extra": print,
            "log_metric": print,
            "prompt_id": ["x"],
        }
        assert func(prompts=[""], completions=[IDEAL], answer=["42"], **extra) == score(func, IDEAL)

    def test_name_is_a_legend(self, func):
        assert func.__name__.endswith("_reward")


THINK = "<think>\n15 + 27 = 42\n</think>\n<answer>\n42\n</answer>"


@pytest.mark.parametrize(
    ("func", "ideal", "most"),
    [
        (correctness_reward, IDEAL, 2.0),
        (strict_format_reward, IDEAL, 1.0),
        (incremental_format_reward, IDEAL, 1.0),
        (length_reward, IDEAL, 0.5),
        (style_reward, IDEAL, 0.25),
        (lenient_correctness_reward, IDEAL, 2.0),
        (mark_correctness_reward, "15 + 27 = 42\n#### 42", 2.0),
        (boxed_correctness_reward, "15 + 27 = \\boxed{42}", 2.0),
        (last_line_reward, "15 + 27\nThe answer is 42", 2.0),
        (think_answer_format_reward, THINK, 1.0),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_ideal_completion_earns_everything(func, ideal, most):
    assert score(func, ideal) == [most]
    assert max_score_of(func) == most


@pytest.mark.parametrize(
    ("func", "most"),
    [
        (countdown_reward, 2.0),
        (numbers_used_reward, 0.5),
        (json_schema_reward, 1.0),
        (json_values_reward, 2.0),
        (json_right_reward, 1.0),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_other_tasks_functions_state_their_maximum(func, most):
    assert max_score_of(func) == most


def test_a_maximum_is_seen_through_partials_and_only_where_it_is_stated():
    assert max_score_of(functools.partial(functools.partial(style_reward), log=None)) == 0.25
    assert max_score_of(score) is None
    assert max_score_of(max_score(0)(lambda completions, **kwargs: [])) == 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<answer>42</answer>", 2.0),
        ("<answer>\n 42.0 \n</answer>", 2.0),
        ("<answer>$42</answer>", 2.0),
        ("42", 0.0),  # no answer block
        ("<answer>41</answer>", 0.0),
        ("<answer>142</answer>", 0.0),
        ("<answer>41</answer><answer>42</answer>", 0.0),  # a hedge
        ("<answer>41 or 42</answer>", 0.0),
        ("<answer>42", 0.0),  # cut before the closing tag
        ("<answer>15 + 27</answer>", 0.0),  # the question, and the sum left undone
        ("<answer>What is 15 + 27?</answer>", 0.0),
        ("<answer>84/2</answer>", 0.0),
        ("<answer>42 apples</answer>", 0.0),
        ("<answer>The answer is 42</answer>", 0.0),
    ],
)
def test_correctness(text, expected):
    assert score(correctness_reward, text) == [expected]


@pytest.mark.parametrize(
    ("answer", "text", "right"),
    [
        (42, "42", True),
        ("1,000", "1000", True),
        ("1000", "$1,000.00", True),
        ("0.5", ".50", True),
        ("3/4", "6/8", True),
        ("3/4", "0.75", True),
        ("0.333333", "1/3", True),
        ("4", "42", False),
        ("42", "4,2", False),
        ("15", "1,5", False),
        ("42", "4_2", False),
    ],
)
def test_correctness_compares_numbers(answer, text, right):
    assert correctness_reward(prompts=[""], completions=[f"<answer>{text}</answer>"], answer=[answer]) == [2.0 * right]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (IDEAL, 2.0),
        ("15 + 27 = 42\n#### 42", 2.0),
        ("\\boxed{42}", 2.0),
        ("That makes 42 apples.", 2.0),
        ("It is 42, or else 43.", 0.0),  # the last number counts
        ("42 #### 43", 0.0),  # and a place made for the answer before any number
        ("<answer>43</answer> #### 42", 0.0),
        ("<answer>42 apples</answer>", 2.0),
        ("\\boxed{x = 42}", 2.0),
        ("<answer>15 + 27</answer>", 0.0),
        ("<answer>41 or 42</answer>", 0.0),
        ("\\boxed{15 + 27}", 0.0),
        ("forty-two", 0.0),
    ],
)
def test_lenient_correctness(text, expected):
    assert score(lenient_correctness_reward, text) == [expected]


@pytest.mark.parametrize(
    ("func", "text", "expected"),
    [
        (mark_correctness_reward, "#### 41\n#### 42", 2.0),
        (mark_correctness_reward, "#### 42\nor more", 2.0),
        (mark_correctness_reward, "42", 0.0),
        (boxed_correctness_reward, "\\boxed{41} \\boxed{42}", 0.0),
        (boxed_correctness_reward, "\\boxed{41}. No: \\boxed{42}", 2.0),
        (boxed_correctness_reward, "\\boxed{42\\text{ apples}}", 2.0),
        (boxed_correctness_reward, "\\boxed{\\frac{84}{2}}", 0.0),  # a division left undone
        (boxed_correctness_reward, "\\boxed{42", 0.0),
        (last_line_reward, "42", 2.0),
        (last_line_reward, "So it is 42.", 2.0),
        (last_line_reward, "42\nI am not sure", 0.0),
        (last_line_reward, "142", 0.0),
    ],
)
def test_correctness_elsewhere(func, text, expected):
    assert score(func, text) == [expected]


@pytest.mark.parametrize(
    ("answer", "line", "right"),
    [
        ("Kuala Lumpur", "kuala lumpur", True),
        ("Paris", "It is Paris.", True),
        ("Paris", "Paris or Rome", False),
        ("1,000", "$1,000.00", True),
    ],
)
def test_the_last_line_is_words_or_a_number(answer, line, right):
    assert last_line_reward(completions=[f"thinking\n{line}\n\n"], answer=[answer]) == [2.0 * right]


@pytest.mark.parametrize(
    ("answer", "text", "right"),
    [("x+1", "1+x", True), ("x+1", "x-1", False), ("\\frac{1}{2}", "0.5", True), ("\\sqrt{2}", "2^{1/2}", True)],
)
def test_formulas_are_compared_as_formulas(answer, text, right):
    for func, shape in ((correctness_reward, "<answer>{}</answer>"), (boxed_correctness_reward, "\\boxed{{{}}}")):
        assert func(prompts=[""], completions=[shape.format(text)], answer=[answer]) == [2.0 * right]


def test_whole_numbers_never_wait_for_a_formula(monkeypatch):
    monkeypatch.setattr("workbench.rewards.compare.verdicts", lambda *_: pytest.fail("math-verify was asked"))
    texts = [
        "42",
        "41",
        "15 + 27",
        "The answer is 42",
        "x = 42",
        "forty",
        "4 2",
        "84/2",
        "42/0",
        "4.2e1",
        "$42$",
        "\\sqrt{4}",
    ]
    given = score(correctness_reward, *(f"<answer>{text}</answer>" for text in texts))
    assert [text for text, paid in zip(texts, given, strict=True) if paid] == ["42", "4.2e1", "$42$"]


def test_a_formula_that_nobody_could_judge_in_time_is_not_called_wrong(monkeypatch):
    monkeypatch.setattr("workbench.rewards.library.same_answers", lambda given, right: [None, True, False])
    assert score(correctness_reward, "a", "b", "c") == [None, 2.0, 0.0]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (IDEAL, True),
        (IDEAL.replace("\n", ""), True),
        (IDEAL.replace("</reasoning>\n", "</reasoning>\n\n\n"), True),
        (IDEAL.replace("12,", "12,\nthen\n"), True),  # several lines of reasoning
        (f"  {IDEAL}\n", True),
        ("Sure! " + IDEAL, False),
        (IDEAL + " Done.", False),
        (IDEAL.replace("</reasoning>", ""), False),
        (IDEAL + IDEAL, False),
        (IDEAL.replace("\n42\n", "<answer>42</answer>"), False),
        ("<answer>42</answer><reasoning>x</reasoning>", False),
    ],
)
def test_strict_format(text, kept):
    assert keeps_strict_format(text) is kept
    assert score(strict_format_reward, text) == [float(kept)]
    renamed = text.replace("reasoning>", "think>")
    assert score(think_answer_format_reward, renamed) == [float(kept)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<reasoning>x</reasoning><answer>4</answer>", 1.0),
        ("<reasoning>x</reasoning>", 0.5),
        ("<answer>4</answer>", 0.5),
        ("<answer>4", 0.25),
        ("<reasoning>x</reasoning><answer>4", 0.75),
        ("<reasoning></reasoning><answer>4</answer>", 0.5),  # the empty block earns nothing
        ("<answer>4</answer><reasoning>x</reasoning>", 0.5 - 0.024),  # 24 characters after the last answer tag
        (IDEAL + "x" * 100, 0.9),
        (IDEAL + "x" * 5000, 0.75),  # the penalty is bounded
    ],
)
def test_incremental_format(text, expected):
    assert score(incremental_format_reward, text) == [pytest.approx(expected)]


def test_format_share_with_other_tags():
    text = "<plan>x</plan><work>y</work><answer>4</answer>"
    tags = ("plan", "work", "answer")
    assert format_share(text, tags) == 1.0
    assert format_share(text.replace("</work>", ""), tags) == pytest.approx(4 / 6)
    assert format_share(text + "x" * 5000, tags) == pytest.approx(5 / 6)
    assert format_share("", tags) == 0.0


@pytest.mark.timing
@pytest.mark.parametrize("text", ["<answer>" * 20_000, "<reasoning><answer>" * 20_000, "</answer>" * 20_000 + "x" * 9])
def test_a_long_loop_of_tags_is_read_in_no_time(text):
    started = time.perf_counter()
    for func in (*REWARD_FUNCS, *OTHERS):
        assert score(func, text) == [0.0]
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(("characters", "expected"), [(60, 0.5), (120, 0.5), (180, 0.25), (240, 0.0), (2000, 0.0)])
def test_length_counts_characters(characters, expected):
    text = "<reasoning>" + "x" * (characters - 41) + "</reasoning><answer>4</answer>"
    assert len(text) == characters
    assert score(length_reward, text) == [pytest.approx(expected)]


@pytest.mark.parametrize(
    ("answer", "expected"), [("42", 0.25), ("x = 3", 0.0), ("The answer is 42.", 0.0), ("42.", 0.0), ("4" * 21, 0.0)]
)
def test_style(answer, expected):
    assert score(style_reward, f"<answer>\n{answer}\n</answer>") == [expected]
