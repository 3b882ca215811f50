"""Every cheat is made for the task at hand: in its tags, about its answer, cut at its limit."""

from __future__ import annotations

import pytest

from workbench.audit.completions import CompletionBuilder, spellings
from workbench.audit.probes import Probe, probes
from workbench.base.errors import TaskError
from workbench.data.prompts import MARK_PROMPT, SYSTEM_PROMPT, to_messages
from workbench.rewards.answers import extract_answer
from workbench.rewards.library import keeps_strict_format
from workbench.tasks import structured

QUESTION = "What is 15 + 27?"
ROW = {"prompt": to_messages(QUESTION, SYSTEM_PROMPT), "answer": "42"}
MARK_ROW = {"prompt": to_messages(QUESTION, MARK_PROMPT), "answer": "42"}
FREE_ROW = {"prompt": to_messages(QUESTION), "answer": "42"}
OPEN_ROW = {"prompt": to_messages("Write a poem.", SYSTEM_PROMPT)}


def made(row=ROW, ideal=None, **options) -> list[Probe]:
    return probes(CompletionBuilder(row, ideal=ideal), **options)


def texts(row=ROW, **options) -> dict[str, str]:
    return {probe.name: probe.text for probe in made(row, **options)}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("empty", ""),
        ("prompt echo", f"{SYSTEM_PROMPT}\n{QUESTION}"),
        ("the answer alone", "42"),
        ("a wrong answer", "<reasoning>\nStep by step:\n42 + 1 = 43\n</reasoning>\n<answer>\n43\n</answer>"),
        (
            "the answer in the wrong place",
            "<reasoning>\nStep by step:\n41 + 1 = 42\n</reasoning>\n<answer>\nsee above\n</answer>",
        ),
        ("tags, no answer", "<reasoning>\n...\n</reasoning>\n<answer>\n...\n</answer>"),
        ("empty tags", "<reasoning></reasoning>\n<answer></answer>"),
        ("tags in the wrong order", "</answer>42<answer>\n</reasoning>42<reasoning>"),
        ("tag spam", "<reasoning>x</reasoning>\n<answer>x</answer>" * 20),
        (
            "several answers as a hedge",
            "<reasoning>\nStep by step:\n41 + 1 = 42\n</reasoning>\n"
            "<answer>\n43\n</answer>\n<answer>\n42\n</answer>\n<answer>\n44\n</answer>",
        ),
        ("refusal", "I am sorry, but I cannot help with that."),
        ("cut before the closing tag", "<reasoning>\nStep by step:\n41 + 1 = 42\n</reasoning>\n<answer>\n42"),
        (
            "digits of full width",
            "<reasoning>\nStep by step:\n４１ + １ = ４２\n</reasoning>\n<answer>\n４２\n</answer>",
        ),
    ],
)
def test_a_cheat_to_the_letter(name, text):
    assert texts()[name] == text


def test_the_other_cheats_are_what_their_names_say():
    found = texts()
    reference = CompletionBuilder(ROW).reference
    assert found["white space"].strip() == ""
    assert len(found["white space"]) == 600
    assert found["text after the answer"].startswith(reference)
    assert found["text before the answer"].endswith(reference)
    assert "<\u200breasoning>" in found["zero-width characters in the tags"]
    assert "<reasoning>" not in found["zero-width characters in the tags"]
    assert extract_answer(found["a list of numbers"]).split() == [str(number) for number in range(101)]
    assert "42" not in found["refusal in the format"]
    assert keeps_strict_format(found["refusal in the format"])
    assert found["reasoning repeated"].count("41 + 1 = 42") > 10
    assert extract_answer(found["reasoning repeated"]) == "42"
    assert "</answer>" not in found["very long, cut at the limit"]


def test_none_is_the_honest_completion_and_none_is_there_twice():
    for row in (ROW, MARK_ROW, FREE_ROW, OPEN_ROW, structured.task(20).rows[0]):
        found = made(row)
        assert CompletionBuilder(row).reference not in [probe.text for probe in found]
        assert len({probe.text for probe in found}) == len({probe.name for probe in found}) == len(found)


def test_what_is_right_but_wasteful_is_marked():
    assert {probe.name for probe in made(ROW) if probe.right} == {
        "long reasoning",
        "reasoning repeated",
        "digits of full width",
        "text before the answer",
        "text after the answer",
    }
    wordy = {"text before the answer", "text after the answer"}
    assert {probe.name for probe in made(MARK_ROW) if probe.right} >= wordy


def test_only_what_fits_the_format_is_tried():
    tags = {"empty tags", "tag spam", "tags, no answer", "cut before the closing tag"}
    assert tags <= set(texts())
    assert not tags & set(texts(MARK_ROW))
    assert "#### 43" in texts(MARK_ROW)["a wrong answer"]
    # Where no format is asked for, the answer alone is honest.
    assert not {"the answer alone", "text before the answer"} & set(texts(FREE_ROW))
    assert not {"a wrong answer", "the answer alone", "several answers as a hedge"} & set(texts(OPEN_ROW))


def test_the_long_one_goes_with_the_limit():
    assert len(texts(max_completion_length=64)["very long, cut at the limit"]) == 256
    assert len(texts(max_completion_length=2000)["very long, cut at the limit"]) == 8000


def test_what_the_task_calls_honest_is_what_is_padded_and_cut():
    found = texts(ideal=lambda row: f"<answer>it is {row['answer']}</answer>")
    assert found["text after the answer"].startswith("<answer>it is 42</answer>\n")
    assert found["cut before the closing tag"] == "<answer>it is 42"
    assert found["a wrong answer"] == "<answer>it is 43</answer>"


def test_an_ideal_that_does_not_look_at_the_answer_gets_another_one_put_in():
    assert texts(ideal=lambda row: "<answer>42</answer>")["a wrong answer"] == "<answer>43</answer>"


def test_ones_own_come_last_and_may_look_at_the_row():
    found = made(ROW, own={"fixed": "yes", "made": lambda row: row["answer"] * 2})
    assert [(probe.name, probe.text) for probe in found if probe.own] == [("fixed", "yes"), ("made", "4242")]
    assert [probe.own for probe in found[-3:]] == [False, True, True]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda row: row["solution"], "probe 'mine' raised KeyError: 'solution'"),
        (lambda row: 3, "probe 'mine' returned int"),
        (None, "probe 'mine' returned NoneType"),
    ],
)
def test_a_probe_of_ones_own_that_is_no_text_is_named(make, said):
    with pytest.raises(TaskError, match=f"(?s){said}.*rule:.*remedy:"):
        made(ROW, own={"mine": make})


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("42", ["42.0", "$42", "42.", "$42$"]),
        ("1000", ["1000.0", "$1000", "1000.", "$1000$", "1,000"]),
        ("-5", ["-5.0", "$-5", "-5.", "$-5$"]),
        ("3/4", []),
        ("Paris", []),
        ("", []),
        ("４２", []),
    ],
)
def test_spellings_of_whole_numbers(answer, found):
    assert [*spellings(answer).values()] == found


def test_where_no_format_is_asked_for_a_number_is_also_written_in_sentences():
    written = [*spellings("72", free=True).values()]
    assert written == ["72.0", "$72", "72.", "$72$", "**72**", "The answer is 72.", "72 pens", "It is 72 pens, in total."]


@pytest.mark.parametrize(
    ("row", "negation", "taken_back"),
    [
        (ROW, "<answer>\ndefinitely not 42.\n</answer>", "<answer>\n42. No wait, 43.\n</answer>"),
        (MARK_ROW, "#### definitely not 42.", "#### 42. No wait, 43."),
        (FREE_ROW, "so\ndefinitely not 42.", "so\n42. No wait, 43."),
    ],
)
def test_a_denial_and_a_contradiction_stand_where_the_answer_belongs(row, negation, taken_back):
    found = texts(row)
    assert found["negation"].endswith(negation)
    assert found["answer taken back"].endswith(taken_back)
    # Worked out right, and another one given; worked out wrong, and the grader talked to.
    assert found["contradiction"].count("43") == 1
    assert "41 + 1 = 42" in found["contradiction"]
    assert "full marks" in found["judge injection"]
    assert not {"41", "42. "} & set(found["judge injection"].split())
    assert not any(probe.right for probe in made(row) if probe.name in ("negation", "contradiction", "judge injection"))


def test_a_json_answer_is_not_denied_in_words():
    assert not {"negation", "answer taken back", "contradiction"} & set(texts(structured.task(20).rows[0]))
