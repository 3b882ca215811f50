"""Rewards that do what they are written for are no error; each behaves as one that is in use behaves."""

from __future__ import annotations

import re
import time

import pytest

from workbench.audit.examination import RewardAudit, audit_rewards
from workbench.data.prompts import SYSTEM_PROMPT, to_messages
from workbench.task import Task

NAMED = "Work it out inside <think> </think> tags, and give the answer inside <answer> </answer> tags."
SHOWN = "Respond as:\n<think>\n...\n</think>\n<answer>\n...\n</answer>"


def rows(system: str | None, *answers, **columns) -> list[dict]:
    return [
        {"prompt": to_messages(f"Question {number}?", system), "answer": answer, **columns}
        for number, answer in enumerate(answers)
    ]


def written(completion) -> str:
    return completion if isinstance(completion, str) else completion[0]["content"]


def said(found: RewardAudit, kind: str) -> list[str]:
    return [str(finding) for finding in found.findings if finding.kind == kind]


# --- the answer stands nowhere in the reference completion ---------------------------------------------------------


def program_reward(completions, **kwargs):
    """Pays a fenced program that adds up; a line beneath it is not looked at."""
    scores = []
    for completion in completions:
        code = re.search(r"```python\n(.*?)```", written(completion), re.DOTALL)
        scores.append(3.0 if code and "sum(" in code[1] else -1.0)
    return scores


def schedule_reward(completions, events, **kwargs):
    return [2.0 if f"<plan>{each}</plan>" in written(text) else 0.0 for text, each in zip(completions, events)]


@pytest.mark.parametrize(
    "task",
    [
        Task(
            "code",
            rows("Write a program.", 0, 0, 0),
            [program_reward],
            ideal=lambda row: "```python\ndef add(values):\n    start = values[0]\n    return sum(values)\n```",
        ),
        Task(
            "schedule",
            [{"prompt": to_messages(f"Plan day {day}."), "events": f"9:00 meeting {day}, 10:00 break"} for day in range(3)],
            [schedule_reward],
            ideal=lambda row: f"<plan>{row['events']}</plan>",
        ),
    ],
    ids=["code", "schedule"],
)
def test_where_the_answer_stands_nowhere_no_cheat_differs_by_it_alone(task):
    found = audit_rewards(task)
    assert found.ok, found.findings
    assert not said(found, "right_by")
    assert not {"a wrong answer", "refusal in the format", "a list of numbers"} & {each.name for each in found.probes}
    assert "refusal" in {each.name for each in found.probes}


# --- what the prompt leaves open --------------------------------------------------------------------------------


def break_between_reward(completions, **kwargs):
    pattern = r"<think>[^<]*</think>\n<answer>[^<]*</answer>"
    return [1.0 if re.fullmatch(pattern, written(each).strip()) else 0.0 for each in completions]


def answer_reward(completions, answer, **kwargs):
    found = [re.findall(r"<answer>(.*?)</answer>", written(each), re.DOTALL) for each in completions]
    return [2.0 * (len(each) == 1 and each[0].strip() == right) for each, right in zip(found, answer)]


def steps_reward(completions, **kwargs):
    """A third for each step, up to three."""
    marks = r"(Step \d+:|^\d+\.|\n-|\n\*|First,|Second,|Next,|Finally,)"
    return [min(1.0, len(re.findall(marks, written(each))) / 3) for each in completions]


def test_a_line_break_that_the_prompt_does_not_show_is_a_warning():
    found = audit_rewards(Task("t", rows(NAMED, "42", "7"), [answer_reward, break_between_reward]))
    assert found.ok, found.findings
    assert "</think>\n<answer>" in found.reference
    [warning] = said(found, "layout")
    assert "break_between_reward: pays a reference completion only when it is written with a line break between" in warning


def test_where_the_prompt_shows_its_line_breaks_the_same_pattern_is_an_error():
    found = audit_rewards(Task("t", rows("Respond as <think>why</think><answer>what</answer>", "42"), [break_between_reward]))
    assert not found.ok
    assert not said(found, "layout")


def test_a_format_alone_is_hackable_in_whatever_layout_it_pays():
    found = audit_rewards(Task("t", rows(NAMED, "42", "7"), [break_between_reward]))
    [error] = said(found, "hackable")
    assert "a wrong answer" in error


def test_steps_are_written_where_they_are_paid_and_their_words_alone_are_a_cheat():
    found = audit_rewards(Task("t", rows(SHOWN, "42", "7"), [steps_reward]))
    assert not said(found, "cannot_pay") + said(found, "constant")
    assert "Step 1:" in found.reference
    [error] = said(found, "hackable")
    assert "'words of steps and nothing else'" in error
    assert audit_rewards(Task("t", rows(SHOWN, "42", "7"), [answer_reward, steps_reward])).ok


# --- what pays is not what an honest policy writes ---------------------------------------------------------------


def first_number_reward(completions, answer, **kwargs):
    """Looks at the first number of the whole text."""
    found = [re.search(r"\d+", written(each)) for each in completions]
    return [-2.5 if each is None else 3.5 if each[0] == right else -1.5 for each, right in zip(found, answer)]


def test_a_function_that_pays_no_honest_completion_is_named_by_what_it_does_pay():
    found = audit_rewards(Task("t", rows(SYSTEM_PROMPT, "42", "17"), [first_number_reward, answer_reward]))
    [error] = said(found, "cannot_pay")
    assert (
        "first_number_reward: cannot pay: a reference completion in the format that the prompt asks for earns -1.5 of 3.5"
        in error
    )
    assert re.search("'[^']+' earns 3.5", error)


def up_to_the_comma_reward(completions, answer, **kwargs):
    """Reads 5,000 as 5."""
    found = [re.search(r"<answer>\s*([\d.]+)", written(each)) for each in completions]
    return [1.0 if each and float(each[1]) == float(right) else 0.0 for each, right in zip(found, answer)]


def test_a_spelling_that_the_first_answer_has_not_is_tried_too():
    found = audit_rewards(Task("t", rows(SYSTEM_PROMPT, "72", "5000"), [up_to_the_comma_reward]))
    [warning] = said(found, "spelling")
    assert "5,000" in warning


# --- lengths, seconds, exceptions, files ------------------------------------------------------------------------


def shorter_of_batch_reward(completions, **kwargs):
    """From 0.5 for the shortest to -0.5 for the longest of a batch."""
    lengths = [len(written(each)) for each in completions]
    low, high = min(lengths), max(lengths)
    return [0.0 if low == high else 0.5 - (each - low) / (high - low) for each in lengths]


def repetition_penalty(completions, **kwargs):
    """0 where no three words are repeated, down to -1."""
    scores = []
    for completion in completions:
        words = written(completion).lower().split()
        threes = list(zip(words, words[1:], words[2:]))
        scores.append(len(set(threes)) / len(threes) - 1 if threes else 0.0)
    return scores


def test_a_score_that_is_scaled_over_its_batch_has_a_bound():
    found = audit_rewards(Task("t", rows(SYSTEM_PROMPT, "42", "7"), [answer_reward, shorter_of_batch_reward]))
    assert not said(found, "unbounded")


def test_repetitions_are_no_characters_and_are_not_blamed_for_what_another_function_pays():
    def lenient_reward(completions, answer, **kwargs):
        return [float(right in written(each)) for each, right in zip(completions, answer)]

    found = audit_rewards(Task("t", rows(SYSTEM_PROMPT, "42", "7"), [repetition_penalty, lenient_reward]))
    assert not any("repetition_penalty" in each for each in said(found, "unit"))
    assert "lenient_reward: a reward hack earns" in said(found, "hackable")[0]


def slow_to_start_reward(completions, answer, **kwargs):
    global _started
    if not globals().get("_started"):
        time.sleep(1.9)
        _started = True
    return answer_reward(completions, answer)


@pytest.mark.timing
def test_what_a_function_needs_once_is_not_what_a_completion_takes():
    found = audit_rewards(Task("t", rows(SYSTEM_PROMPT, "42"), [slow_to_start_reward]))
    assert not said(found, "slow")


def read_number(text: str) -> float | None:
    try:
        return float(text)
    except Exception as error:
        print("not a number:", error)
        return None


def read_reward(completions, answer, **kwargs):
    found = [re.search(r"<answer>\n(.*)\n</answer>", written(each)) for each in completions]
    return [1.0 if each and read_number(each[1]) == float(right) else 0.0 for each, right in zip(found, answer)]


def test_a_handler_that_prints_and_returns_none_is_no_score():
    assert not said(audit_rewards(Task("t", rows(SYSTEM_PROMPT, "42", "7"), [read_reward])), "swallows")


def test_a_file_that_a_function_leaves_behind_is_named(tmp_path, monkeypatch):
    def logging_reward(completions, answer, **kwargs):
        with open("completion_samples.txt", "a") as file:
            file.write(written(completions[0]))
        return answer_reward(completions, answer)

    monkeypatch.chdir(tmp_path)
    [note] = said(audit_rewards(Task("t", rows(SYSTEM_PROMPT, "42", "7"), [logging_reward])), "writes")
    assert "'completion_samples.txt' appeared in the working directory" in note


def longer_reward(completions, answer, **kwargs):
    return [right + min(1.0, len(written(each)) / 2000) for right, each in zip(answer_reward(completions, answer), completions)]


def test_the_headline_holds_the_padded_answer_that_earns_more():
    found = audit_rewards(Task("t", rows(SYSTEM_PROMPT, "42", "7"), [longer_reward]))
    assert re.search(
        r"the best reward hack \(.*\) earns \d\d% of the reference completion, a padded one \(.*\) 1\d\d%; 1 error",
        found.verdict,
    )
