"""The exercises have the flaws that they are there for. The numbers were worked out by hand."""

from __future__ import annotations

import inspect

import pytest

from workbench.data.prompts import SYSTEM_PROMPT
from workbench.teaching.exercises import EXERCISES, exercise
from workbench.teaching.exercises.adaptive import AdaptiveReward

IDEAL = "<reasoning>\n5+7=12, 1+2+1=4\n</reasoning>\n<answer>\n42\n</answer>"
SOUP = "</answer><answer></reasoning><reasoning>"


def scores(name: str, *texts: str, answer="42", style: str | None = None, which: int = 0) -> list[float]:
    """What one of an exercise's functions gives for texts, called as TRL would with the exercise's own rows."""
    chosen = exercise(name)
    chat = chosen.chat if style is None else style == "chat"
    completions = [[{"role": "assistant", "content": text}] if chat else text for text in texts]
    [row] = chosen.rows([("What is 15 + 27?", answer)])
    columns = {key: [value] * len(texts) for key, value in row.items() if key != "prompt"}
    return chosen.functions[which](prompts=[row["prompt"]] * len(texts), completions=completions, **columns)


@pytest.mark.parametrize("chosen", EXERCISES.values(), ids=EXERCISES)
def test_rows_have_the_prompt_and_the_columns(chosen):
    [row] = chosen.rows([("What is 15 + 27?", "42")])
    assert set(row) == {"prompt", "answer", *chosen.columns}
    chat = not isinstance(row["prompt"], str)
    assert chat == chosen.chat
    assert "What is 15 + 27?" in (row["prompt"][-1]["content"] if chat else row["prompt"])
    assert chosen.asks.endswith("?")


def test_they_run_where_a_stranger_s_function_runs():
    functions = [func for each in EXERCISES.values() for func in each.functions]
    assert all(func.runs_in_worker for func in functions if inspect.isfunction(func))


def test_the_template_has_no_score_of_its_own():
    with pytest.raises(NameError, match="compute_score"):
        scores("template", IDEAL)


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("<answer>42</answer>", "42", 2.0),
        (IDEAL, "42", 0.0),  # the line breaks of the very format that is asked for
        ("<answer>42.0</answer>", "42", 0.0),
        ("<answer>$42</answer>", "42", 0.0),
        ("<answer>1,000</answer>", "1000", 0.0),
        ("<answer>42</answer>", 42, 0.0),
        ("42", "42", 2.0),  # no tags at all
        ("<answer>1</answer><answer>42</answer>", "42", 2.0),
    ],
)
def test_correctness_compares_texts(text, answer, expected):
    assert scores("correctness", text, answer=answer) == [expected]


def test_format_pays_for_empty_tags_junk_and_the_prompt_itself():
    empty = "<reasoning></reasoning><answer></answer>"
    assert scores("format", IDEAL, empty, f"Hm. {empty} Bye.", SYSTEM_PROMPT, SOUP) == [1.0, 1.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (IDEAL, 1.0),
        (SOUP, 0.969),  # 31 characters after the only closing tag of the answer
        (IDEAL + "</answer>" + "x" * 2000, 1.0),  # a second one, and no penalty
        (IDEAL + "x" * 500, 0.5),
        (IDEAL + "x" * 2000, -1.0),  # worse than nothing
        ("<reasoning></reasoning><answer></answer>", 1.0),
    ],
)
def test_incremental_format(text, expected):
    assert scores("incremental_format", text) == [pytest.approx(expected)]


def test_length_counts_characters_or_messages():
    assert scores("length", "", "abc", "x" * 2000) == [0.0, 3.0, 2000.0]
    assert scores("length_in_chat", "", "abc", "x" * 2000) == [1.0, 1.0, 1.0]


def test_think_tags_never_pay_over_two_lines():
    shown = "<think>\n15 + 27\n</think>\n<answer>\n42\n</answer>"
    assert scores("think_tags", "<think>a</think><answer>b</answer>", "<think>a</think>\n<answer>b</answer>", shown) == [
        1.0,
        0.0,
        0.0,
    ]
    with pytest.raises(TypeError, match="got 'list'"):
        scores("think_tags", shown, style="chat")


def test_ideal_length_counts_characters_without_bound():
    assert scores("ideal_length", "x" * 20, "", "x" * 2020) == [0, -20, -2000]


def test_problem_swallows_what_it_cannot_read():
    right = "<answer>42</answer>"
    assert scores("problem", right) == [1.0]
    assert scores("problem", right, style="chat") == [0.0]
    with pytest.raises(TypeError, match="answers"):
        EXERCISES["problem"].functions[0](prompts=[""], completions=[right], answer=["42"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"<think>{'x' * 20}</think><answer>4</answer>", 0.5),
        (f"<think>{'x' * 21}</think><answer>4</answer>", 1.0),
        ("<think></think><answer></answer>", 0.5),
        (f"junk <think>{'x' * 21}</think><answer>?</answer> junk", 1.0),
        ("42", 0.0),
    ],
)
def test_think_content(text, expected):
    assert scores("think_content", text) == [expected]


def test_worked_maths_pays_for_wrong_answers_and_cannot_be_called():
    [func] = EXERCISES["worked_maths"].functions
    texts = ["1 + 1 = 3\n#### 99", "a well-known fact", "42"]
    assert func(prompts=[""] * 3, responses=texts) == pytest.approx([0.6, 0.2, 0.0])
    with pytest.raises(TypeError, match="completions"):
        scores("worked_maths", "42")


def test_debug_prints_and_tells_nothing_apart(capsys):
    assert scores("debug", "right", "wrong", "third") == [1.0, 1.0, 1.0]
    assert capsys.readouterr().out == "Response 0: right...\nResponse 1: wrong...\n"


@pytest.mark.parametrize(("calls", "success", "weight"), [(20, 0.1, 38.34), (50, 0.1, 9100.4), (50, 0.9, 0.00515)])
def test_an_adaptive_weight_has_no_bound(calls, success, weight):
    reward = AdaptiveReward(lambda completions, **kwargs: [1.0] * len(completions))
    for _ in range(calls):
        reward.adjust_weight(success)
    assert reward(completions=[""]) == [pytest.approx(weight, rel=1e-3)]


def test_adaptive_rewards_share_one_name():
    assert [type(func).__name__ for func in EXERCISES["adaptive"].functions] == ["AdaptiveReward"] * 2
    assert [scores("adaptive", "<answer>42</answer>", which=which) for which in (0, 1)] == [[2.0], [0.0]]


def test_the_combination_pays_half_for_format_alone():
    empty = "<reasoning></reasoning><answer></answer>"
    assert [scores("combination", empty, which=which) for which in range(3)] == [[1.0], [1.0], [0.0]]


@pytest.mark.parametrize(
    ("text", "strict", "soft"),
    [
        (IDEAL.replace("4\n</r", "4\nso\n</r") + "\n", 0.0, 0.0),  # several lines of reasoning
        (IDEAL, 0.0, 0.0),
        (IDEAL + "\n", 0.5, 0.0),
        ("<reasoning>x</reasoning><answer>4</answer>", 0.0, 0.5),
        ("<reasoning></reasoning><answer></answer>", 0.0, 0.5),
    ],
)
def test_strict_and_soft_hardly_ever_pay_for_what_is_asked(text, strict, soft):
    assert scores("strict_and_soft", text) == [strict]
    assert scores("strict_and_soft", text, which=1) == [soft]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (IDEAL + "\n", 0.5),
        (IDEAL, 0.5 - 0.001 * len(IDEAL) + 0.001),  # without the last line break all of it counts as text after it
        (IDEAL + "\n" + "x" * 100, 0.5 - 0.2),  # each character costs twice
        (IDEAL + "\n" + "x" * 2000, -3.5),
        ("<reasoning>\n\n</reasoning>\n<answer>\n\n</answer>\n", 0.5),  # nothing in either block
    ],
)
def test_xml_count(text, expected):
    assert scores("xml_count", text) == [pytest.approx(expected)]


def test_trls_accuracy_pays_for_boxes_and_skips_words():
    assert scores("trl_accuracy", "\\boxed{42}", "42", "$42$", "<answer>42</answer>") == [1.0, 0.0, 0.0, 0.0]
    assert scores("trl_accuracy", "\\boxed{Paris}", "Paris", answer="Paris") == [None, None]


def test_trls_think_format_pays_for_empty_thoughts_and_not_for_a_tag_that_the_template_wrote():
    assert scores("trl_think_format", "<think></think>", "15 + 27</think>42") == [1.0, 0.0]
