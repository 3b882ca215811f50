"""The contract that every reward function keeps, and the exact numbers of each."""

from __future__ import annotations

import pytest

from workbench.rewards.library import (
    correctness_reward,
    incremental_format_reward,
    keeps_strict_format,
    length_reward,
    strict_format_reward,
    style_reward,
)
from workbench.tiny.task import REWARD_FUNCS

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


@pytest.mark.parametrize("func", REWARD_FUNCS, ids=lambda func: func.__name__)
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


@pytest.mark.parametrize(
    ("func", "most"),
    list(zip(REWARD_FUNCS, [2.0, 1.0, 1.0, 0.5, 0.25], strict=True)),
    ids=[func.__name__ for func in REWARD_FUNCS],
)
def test_the_ideal_completion_earns_everything(func, most):
    assert score(func, IDEAL) == [most]


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
        ("4", "42", False),
        ("42", "4,2", False),
        ("15", "1,5", False),
        ("42", "4_2", False),
    ],
)
def test_correctness_compares_numbers(answer, text, right):
    assert correctness_reward(prompts=[""], completions=[f"<answer>{text}</answer>"], answer=[answer]) == [2.0 * right]


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
