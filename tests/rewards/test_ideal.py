"""The honest completion is what a reader of the prompt would write, to the line break."""

from __future__ import annotations

import pytest

from workbench.audit.completions import CompletionBuilder, answer_of, wrong_answer
from workbench.audit.prompt_format import parse_format
from workbench.base.errors import TaskError
from workbench.data.prompts import SYSTEM_PROMPTS, to_messages
from workbench.tasks import countdown, csv_qa, structured

TAGS = "<reasoning>\nStep by step:\n41 + 1 = 42\n</reasoning>\n<answer>\n42\n</answer>"
THINK = "<think>\nStep by step:\n41 + 1 = 42\n</think>\n<answer>\n42\n</answer>"
GEMMA = (
    "You are given a problem. Place your working between <start_working_out> and <end_working_out>.\n"
    "Then, provide your solution between <SOLUTION></SOLUTION>"
)


def references(row, **options) -> dict[str, str]:
    return CompletionBuilder(row, **options).reference_completions()


def row(system: str, question="What is 15 + 27?", answer="42", **columns) -> dict:
    return {"prompt": to_messages(question, system), "answer": answer, **columns}


@pytest.mark.parametrize(
    ("system", "asked", "honest"),
    [
        (SYSTEM_PROMPTS["tags"], "<reasoning> <answer>", TAGS),
        (SYSTEM_PROMPTS["think"], "<think> <answer>", THINK),
        (SYSTEM_PROMPTS["mark"], "####", "Step by step:\n41 + 1 = 42\n#### 42"),
        (SYSTEM_PROMPTS["none"], "no format", "Step by step:\n41 + 1 = 42\n42"),
        ("Put the final answer in \\boxed{}.", "\\boxed{}", "Step by step:\n41 + 1 = 42\n\\boxed{42}"),
        (
            "Think in <think> and </think>, then put the answer in \\boxed{}.",
            "<think> \\boxed{}",
            "<think>Step by step:\n41 + 1 = 42</think>\n\\boxed{42}",
        ),
        (
            "Respond as <think>why</think><answer>what</answer>",
            "<think> <answer>",
            "<think>Step by step:\n41 + 1 = 42</think><answer>42</answer>",
        ),
        (
            GEMMA,
            "<start_working_out> <SOLUTION>",
            "<start_working_out>Step by step:\n41 + 1 = 42<end_working_out><SOLUTION>42</SOLUTION>",
        ),
        (
            "Use the tags <reasoning>, </reasoning>, <answer> and </answer>, like this:\n"
            "<reasoning>\n...\n</reasoning>\n<answer>\n...\n</answer>",
            "<reasoning> <answer>",
            None,
        ),
        ("<plan>\n...\n</plan>\n<work>\n...\n</work>\n<answer>\n...\n</answer>", "<plan> <work> <answer>", None),
        ("If a < b and b > c, say so in <answer></answer>.", "<answer>", "<answer>42</answer>"),
    ],
    ids=[
        *SYSTEM_PROMPTS,
        "boxed",
        "think and boxed",
        "one line",
        "start and end",
        "named first",
        "three",
        "comparison",
    ],
)
def test_the_format_that_a_prompt_asks_for(system, asked, honest):
    found = parse_format(row(system))
    assert str(found) == asked
    if honest is not None:
        assert next(iter(references(row(system)).items())) == ("as asked", honest)


def test_tags_in_a_question_are_not_asked_for_where_the_system_message_asks():
    asked = parse_format(row(SYSTEM_PROMPTS["tags"], "What does <b>bold</b> mean after ####?"))
    assert str(asked) == "<reasoning> <answer>"
    assert str(parse_format(row("Be brief.", "Answer as <answer>...</answer>."))) == "<answer>"


def test_plain_prompts_ask_too():
    asked = {
        "prompt": "Question: What is 15 + 27?\nSolve it and give the final answer after ####.\nAnswer:",
        "answer": "42",
    }
    assert CompletionBuilder(asked).reference == "Step by step:\n41 + 1 = 42\n#### 42"


def test_a_schema_is_answered_with_json_alone():
    [first, *_] = structured.task(20).rows
    found = parse_format(first)
    assert (str(found), found.json, found.answer_tag) == ("JSON", True, None)
    assert CompletionBuilder(first).reference == answer_of(first)


@pytest.mark.parametrize("make", [lambda: countdown.task(40), csv_qa.task])
def test_the_tasks_that_ship_ask_for_tags(make):
    [first, *_] = make().rows
    assert str(parse_format(first)) == "<reasoning> <answer>"
    assert CompletionBuilder(first).reference.endswith(f"<answer>\n{first['answer']}\n</answer>")


def test_the_other_honest_completions_differ_in_white_space_only():
    found = references(row(SYSTEM_PROMPTS["tags"]))
    assert list(found) == [
        "as asked",
        "with a newline at the end",
        "with its reasoning on one line",
        "with its reasoning on one line and a newline at the end",
        "all on one line",
    ]
    assert found["all on one line"] == "<reasoning>Step by step: 41 + 1 = 42</reasoning><answer>42</answer>"
    assert len({"".join(text.split()) for text in found.values()}) == 1


def test_without_a_format_an_answer_may_stand_alone_or_in_a_sentence():
    assert list(references(row("")).values())[1:] == [
        "42",
        "It is 42",
        "Step by step: 41 + 1 = 42\nAnswer: 42",
    ]


def test_what_the_task_says_itself_counts():
    found = references(row(SYSTEM_PROMPTS["tags"]), ideal=lambda row: f"It is {row['answer']}!")
    assert list(found.values()) == ["It is 42!", "It is 42!\n"]


def test_without_an_answer_something_is_written():
    assert (
        "<answer>\nwhat was asked for\n</answer>"
        in CompletionBuilder({"prompt": to_messages("?", SYSTEM_PROMPTS["tags"])}).reference
    )


@pytest.mark.parametrize(
    ("answer", "text"),
    [("42", "42"), (42, "42"), (4.5, "4.5"), (None, ""), (["a", 1], '["a", 1]'), ({"a": "é"}, '{"a": "é"}')],
)
def test_an_answer_is_what_a_policy_would_write(answer, text):
    assert answer_of({"answer": answer}) == text
    assert answer_of({}) == ""
    assert answer_of({"solution": "7"}, "solution") == "7"


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        ("42", "43"),
        ("-1", "0"),
        ("3/4", "999999"),
        ("1,000", "999999"),
        ("Paris", "not Paris"),
        ("", "not "),
        ('{"a": true, "b": [1, "x"], "c": null}', '{"a": false, "b": [2, "something else"], "c": true}'),
        ("[oops", "not [oops"),
    ],
)
def test_a_wrong_answer_is_of_the_same_kind(answer, wrong):
    assert wrong_answer(answer) == wrong


def test_the_working_ends_in_the_answer():
    writer = CompletionBuilder({"prompt": "?", "answer": "1000"})
    assert writer.reasoning() == "Step by step:\n999 + 1 = 1000"
    assert writer.reasoning("Paris", 1) == "Step by step: it comes to Paris"


@pytest.mark.parametrize(
    ("answer", "others", "wrong", "wrong_too"),
    [
        ("42", [], "43", "44"),
        ("5.25", [], "999999", "1000000"),
        ("yes", ["no", "Yes"], "no", "not no"),
        ("B", ["A", "C"], "A", "C"),
        ('{"age": 41}', [], '{"age": 42}', '{"age": 43}'),
    ],
)
def test_wrong_answers_are_of_the_same_kind_and_wrong(answer, others, wrong, wrong_too):
    writer = CompletionBuilder({"prompt": "?", "answer": answer}, others=others)
    assert (writer.wrong, writer.wrong_too) == (wrong, wrong_too)


def test_what_the_prompt_has_opened_is_not_opened_again():
    asking = "Think in <think> </think>, then answer in <answer> </answer>.\nAssistant: <think>"
    assert (
        CompletionBuilder({"prompt": asking, "answer": "42"}).reference == "Step by step:\n41 + 1 = 42</think><answer>42</answer>"
    )


def test_tags_that_are_named_in_words_are_thought_first():
    asking = "Answer in <answer></answer>. Think in <think></think> first."
    assert str(parse_format({"prompt": asking})) == "<think> <answer>"
    assert str(parse_format({"prompt": "<answer>\n[answer]\n</answer>\n<think>\n[why]\n</think>"})) == "<answer> <think>"


def test_tags_may_be_of_any_script():
    assert CompletionBuilder({"prompt": "<思考>…</思考><答案>…</答案>", "answer": "42"}).reference.endswith("<答案>42</答案>")


def test_an_ideal_that_fails_is_named():
    with pytest.raises(TaskError, match="ideal raised KeyError"):
        CompletionBuilder({"prompt": "?"}, ideal=lambda row: row["nothing"])
    with pytest.raises(TaskError, match="ideal returned int"):
        CompletionBuilder({"prompt": "?"}, ideal=lambda row: 3)
