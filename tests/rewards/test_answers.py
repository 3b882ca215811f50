"""Parsers: the right block, never an exception, and time linear in the text; comparison of words and numbers."""

from __future__ import annotations

import random
import subprocess
import sys
import time

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from workbench.base.errors import RewardError
from workbench.data.answer_column import extract_answer as after_mark
from workbench.data.answer_column import is_number
from workbench.rewards import library, shaping
from workbench.rewards.answers import (
    PLACES,
    blocks,
    completion_text,
    extract_answer,
    find_answer,
)
from workbench.rewards.compare import quick_same, same_answer
from workbench.rewards.library import THINK_TAGS, format_share, number_of, think_answer_format_reward
from workbench.rewards.shaping import repetition_reward
from workbench.rewards.verifiers import evaluate_expression, json_of, numbers_used_reward, solves
from workbench.tiny.task import REWARD_FUNCS

PIECES = [
    "<answer>",
    "</answer>",
    "<reasoning>",
    "</reasoning>",
    "<",
    ">",
    "/",
    "\n",
    " ",
    "42",
    "x",
    "é",
    "\x00",
    "\ud800",
]
FRAGMENTS = [
    *PIECES,
    "####",
    "#",
    "\\boxed{",
    "\\boxed",
    "\\frac{1}{2}",
    "\\frac{",
    "{",
    "}",
    "\\",
    "1,000",
    "1,",
    ",000",
    ".5",
    ".",
    "-",
    "+",
    "$",
    "%",
    "1e9",
    "e",
    "9" * 50,
    "(",
    ")",
    "*",
    "[",
    "]",
    '"a":',
    "```",
    "\r",
    "\u2028",
    "٤٢",
    "½",
    "²",
    "−",
    "Paris",
]

# Every parser of a completion or an answer. A new one is added here, and is held to all that follows.
PARSERS = {
    "blocks": lambda text: blocks(text, "answer"),
    "extract_answer": extract_answer,
    **{f"find_answer {where}": lambda text, where=where: find_answer(text, where) for where in PLACES},
    "quick_same, given": lambda text: quick_same(text, "42"),
    "quick_same, right": lambda text: quick_same("1/2", text),
    "after_mark": after_mark,
    "is_number": is_number,
    "keeps_strict_format": library.keeps_strict_format,
    "strict_format_reward": lambda text: library.strict_format_reward([text]),
    "incremental_format_reward": lambda text: library.incremental_format_reward([text]),
    "length_reward": lambda text: shaping.length_reward([text]),
    "style_reward": lambda text: shaping.style_reward([text]),
    "evaluate": evaluate_expression,
    "solves": lambda text: solves(text, [1, 2], 3),
    "numbers_used_reward": lambda text: numbers_used_reward([text], [[1, 2]]),
    "json_of": json_of,
    "think_answer_format_reward": lambda text: think_answer_format_reward([text]),
    "format_share": lambda text: format_share(text, THINK_TAGS),
    "number_of": number_of,
    "repetition_reward": lambda text: repetition_reward([text]),
}


def test_blocks_in_order():
    assert blocks("a<answer>1</answer>b<answer></answer>c<answer>3", "answer") == ["1", ""]


def test_completion_text_of_a_message_without_content():
    assert completion_text([{"role": "assistant", "content": None}]) == ""


@pytest.mark.parametrize("text", ["", "42", "<answer></answer>", "<answer>1<answer>2</answer>", "<answer>1</answer>" * 2])
def test_no_answer_in(text):
    assert extract_answer(text) is None


@pytest.mark.parametrize(
    ("where", "text", "found"),
    [
        ("tag", "<answer>4</answer> no, <answer> 5\n</answer>", "5"),
        ("tag", "<answer>4</answer> no, <answer>5", "4"),
        ("tag", "<answer>4<answer>5</answer>", "5"),
        ("tag", "<answer>4</answer><answer></answer>", None),
        ("tag", "4", None),
        ("mark", "8 - 3\n#### 5", "5"),
        ("mark", "#### 5\n#### $1,008 \nmore", "$1008"),
        ("mark", "#### 1,008", "1008"),
        ("mark", "####", None),
        ("boxed", r"\boxed{4} and \boxed{\frac{9}{2}}.", r"4, \frac{9}{2}"),
        ("boxed", r"\boxed{4}, no: \boxed{\frac{9}{2}}.", r"\frac{9}{2}"),
        ("boxed", r"\boxed{\boxed{4} + 5}", "4"),
        ("boxed", r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        ("boxed", r"\boxed {4}", "4"),
        ("boxed", r"\boxed{4} then \boxed{5", "4"),
        ("boxed", r"} \boxed{4} {", "4"),
        ("boxed", r"\boxed{}", None),
        ("boxed", r"\boxed 4", None),
        ("number", "first 3, then 4.", "4"),
        ("number", "It costs $1,234.50.", "$1,234.50"),
        ("number", "x = -7", "-7"),
        ("number", "10-5", "5"),
        ("number", "between 5 - 8", "8"),
        ("number", "that is 3/4 of it", "3/4"),
        ("number", "that is 50% of it", "50%"),
        ("number", r"so $\frac{3}{4}$", r"$\frac{3}{4}"),
        ("number", "about .5", ".5"),
        ("number", "1.5e-3 m", "1.5e-3"),
        ("number", "4,2", "2"),
        ("number", "a−5", "5"),
        ("number", "is −5", "-5"),
        ("number", "none ٤٢", None),
        ("number", "is （−５）", "-5"),
        ("number", "at 10:45", "10:45"),
        ("number", "sqrt(16)", None),
        ("number", "GPT-4", None),
        ("number", "5 million", "5e6"),
        ("number", "x > 4", None),
        ("number", "6.0 × 10⁻³ m", "6.0 × 10^{-3}"),
        ("number", "1 234 567 of 8 people", "8"),
        ("number", "now 1 234 567", "1,234,567"),
        ("plain", "  Paris \n", "Paris"),
        ("plain", "I think:\n\nParis\n \n", "Paris"),
        ("plain", " \n ", None),
        ("any", r"<answer>4</answer> #### 5 \boxed{6} 7", "4"),
        ("any", r"<answer></answer> \boxed{6} 7", "6"),
        ("any", "#### 5\n7", "5"),
        ("any", "perhaps 7 of them", "7"),
        ("any", "I do not know", None),
    ],
)
def test_find_answer(where, text, found):
    assert find_answer(text, where) == found


def test_find_answer_in_another_tag():
    assert find_answer("<solution>4</solution>", "tag", tag="solution") == "4"


def test_find_answer_knows_its_places():
    with pytest.raises(RewardError, match="(?s)where = 'box'.*'boxed'"):
        find_answer("4", "box")


@pytest.mark.parametrize(
    ("given_answer", "right", "same"),
    [
        ("42", 42, True),
        ("42.", "42", True),
        ("4", "42", False),
        ("$1,000.00", 1000, True),
        ("1,0000", "1000", None),
        ("4,2", "42", None),
        ("-5", "−5", True),
        ("-$5", "$-5", True),
        ("--5", "5", None),
        ("007", "7", True),
        (".5", "1/2", True),
        ("+.5", r"\frac{1}{2}", True),
        (r"-\frac{3}{4}", "-0.75", True),
        (r"\frac{3}{-4}", "-0.75", True),
        ("1 1/2", "1.5", True),
        ("-1 1/2", "-1.5", True),
        ("1 1/2", "1", False),
        ("1e3", "1000", True),
        ("1e3", "1", False),
        ("50%", "0.5", True),
        ("50%", "50", True),
        ("50 %", r"50\%", True),
        ("50.5%", "0.505", True),
        ("50.5%", "50.5", None),
        ("1/3", "0.333333", None),  # six places: math-verify's own rule
        ("1/3", "0.33", False),
        ("1/0", "1", None),
        ("Paris", "paris", True),
        ("Paris", "London", False),
        ("New  York", "new york.", True),
        (r"\text{Paris}", "paris", True),
        (r"$\text{ Paris }$", "London", False),
        ("five", "5", False),
        ("5", "five", False),
        ("", "", False),
        ("", "5", False),
        ("X", "x", True),
        ("$x+1$", "$x+1$", True),
        ("$x+1$", "$1+x$", None),
        ("a-b", "5", None),
        ("well-known", "5", False),
        ("٤٢", "٤٢", True),
        ("x" * 3000, "42", False),
    ],
)
def test_quick_same(given_answer, right, same):
    assert quick_same(given_answer, right) is same


@pytest.mark.timing
@pytest.mark.parametrize("hostile", ["1e999", "9" * 100_000, "NaN", "inf", "1" * 1000 + "/3", "9^" * 2000])
def test_hostile_numbers_are_decided_at_once(hostile):
    started = time.process_time()
    assert quick_same(hostile, "42") in (False, None)
    assert time.process_time() - started < 0.1


@pytest.mark.timing
@pytest.mark.parametrize("hostile", ["9^{9^{9^9}}", "1e999999999", "9" * 100_000, "NaN", "inf", "٤٢"])
def test_hostile_numbers_are_only_text(hostile):
    same_answer("$x$", "$2$")  # starts the worker
    started = time.perf_counter()
    assert same_answer(hostile, "42", deadline_s=0.5) is False
    assert time.perf_counter() - started < 1.5


def test_import_is_light():
    script = "import sys, workbench.rewards.answers, workbench.rewards.compare; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"sympy", "math_verify", "numpy", "latex2sympy2_extended", "antlr4"} & set(loaded)


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_any_text_gets_one_finite_score(text):
    for func in REWARD_FUNCS:
        [score] = func(prompts=[""], completions=[text], answer=["42"])
        assert 0.0 <= score <= 2.0


@settings(max_examples=300)
@given(st.one_of(st.text(max_size=200), st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join)))
def test_no_parser_raises(text):
    for parser in PARSERS.values():
        parser(text)


@pytest.mark.slow
@settings(max_examples=100, phases=[Phase.explicit, Phase.generate])
@given(st.integers(0, 2**64))
def test_no_parser_raises_on_100_000_texts(seed):
    draw = random.Random(seed)
    for _ in range(1000):
        text = "".join(draw.choices(FRAGMENTS, k=draw.randrange(1, 25)))
        for name, parser in PARSERS.items():
            try:
                parser(text)
            except Exception as error:
                pytest.fail(f"{name} raised {error!r} on {text!r}")


@pytest.mark.timing
@pytest.mark.parametrize(
    "pattern",
    [
        "<answer>",
        "</answer>",
        "<answer>1</answer>",
        "<reasoning>",
        "<reasoning>x</reasoning>\n",
        "x\n",
        "####",
        "#### 1\n",
        "\\boxed{",
        "\\boxed ",
        "\\boxed{1}",
        "{",
        "}",
        "{}",
        "1",
        "1,",
        "1,000",
        ",000",
        "1.",
        "1/",
        "-",
        "$",
        "-$-",
        "1e",
        "\\frac{1",
        "9^",
        "(",
        " ",
        "1 ",
        "a ",
        '{"a":',
        "```\n",
    ],
)
def test_time_is_linear(pattern):
    def seconds(length: int) -> float:
        text = pattern * (length // len(pattern))
        started = time.perf_counter()
        for parser in PARSERS.values():
            parser(text)
        return time.perf_counter() - started

    ratio = 9.9
    for _ in range(4):  # a busy machine spoils one measurement, never all of them
        both = [(seconds(100_000), seconds(200_000)) for _ in range(5)]
        ratio = min(ratio, min(long for _, long in both) / min(short for short, _ in both))
        if ratio <= 2.6:  # 2 if linear, 4 if quadratic
            return
    pytest.fail(f"twice the length took {ratio:.1f} times as long")
