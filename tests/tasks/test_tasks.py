"""Tasks that ship: rows that can be trained on, rewards that a right answer earns and nothing else does."""

from __future__ import annotations

import pytest

from workbench.audit.examination import audit_rewards
from workbench.audit.prompt_format import format_advice, grader_for
from workbench.audit.regression_cases import check_cases
from workbench.base.errors import DataError
from workbench.data.prompts import (
    EXAMPLES,
    SYSTEM_PROMPT,
    SYSTEM_PROMPTS,
    examples_for,
    prompt_for_system,
    to_messages,
)
from workbench.rewards.library import keeps_strict_format
from workbench.rewards.suite import RewardSuite
from workbench.task import Task, prompt_key
from workbench.tasks import countdown, csv_qa, gsm8k, reviews
from workbench.tasks.loading import EMBEDDED, load_task

ONE_TURN = set(EMBEDDED) - {"guess_the_number", "calculator"}  # those are an instrument's
TAGGED = "<reasoning>\nthe working\n</reasoning>\n<answer>\n{}\n</answer>"


def test_every_task_that_ships_is_tested_here():
    tested = {"arithmetic", "arithmetic_harder", "gsm8k", "countdown", "csv_qa", "json", "reviews"}
    assert tested == ONE_TURN


@pytest.fixture(params=sorted(ONE_TURN))
def task(request, hub_folder) -> Task:
    if request.param == "gsm8k":
        return gsm8k.task(hub_folder)  # the hub's own is not reachable: the same schema, in the same layout
    return load_task(request.param)


def test_its_rows_can_be_trained_on(task):
    suite = RewardSuite(task, 4)
    suite.rehearse(task.with_ids(task.rows))
    assert len(task.held_out) >= 3
    keys = [prompt_key(row["prompt"]) for row in (*task.rows, *task.held_out)]
    assert len(set(keys)) == len(keys), "no prompt stands twice, or on both sides"
    first = "user" if task.name == "reviews" else "system"
    assert all(row["prompt"][0]["role"] == first for row in task.rows)


def test_an_honest_answer_is_right_and_others_are_not(task):
    rows = [*task.rows[:40], *task.held_out[:20]]
    shape = "{}" if task.name in ("json", "reviews") else TAGGED
    suite = RewardSuite(task, 4)
    right = suite.names.index(task.right_function)
    honest = suite.score(rows, [shape.format(row["answer"]) for row in rows])
    assert (honest[:, right] > 0).all()
    assert (honest[:, suite.names.index(task.format_by)] > 0).all()
    for cheat in ("", "<reasoning></reasoning><answer></answer>", "{}", "I don't know.", shape.format("nothing")):
        assert (suite.score(rows, [cheat] * len(rows))[:, right] == 0).all()
    echo = suite.score(rows, [shape.format(row["prompt"][-1]["content"]) for row in rows])
    assert (echo[:, right] == 0).all()
    others = [rows[place - 1]["answer"] for place in range(len(rows))]
    swapped = suite.score(rows, [shape.format(answer) for answer in others])[:, right]
    assert all(score == 0 for score, row, answer in zip(swapped, rows, others, strict=True) if answer != row["answer"])


def test_countdown_puzzles_have_the_solution_that_they_say():
    from workbench.rewards.verifiers import solves

    rows = list(countdown.source(300, seed=3))
    assert all(solves(row["answer"], row["numbers"], row["target"]) for row in rows)
    assert all(solves(f"{row['answer']} = {row['target']}", row["numbers"], row["target"]) for row in rows)
    assert all(row["answer"] not in row["question"] for row in rows)
    assert keeps_strict_format(countdown.EXAMPLE[1])
    assert solves("3 * 4 - 2", [2, 3, 4], 10)


def words_in(rows):
    """(subjects, phrases) of the words of the reviews task that stand in the questions of these rows."""
    text = "\n".join(row["prompt"][-1]["content"] for row in rows)
    kinds = [(subject, phrase) for own in reviews.WORDS.values() for subject in own["subjects"] for phrase in own["positive"]]
    phrases = {phrase for own in reviews.WORDS.values() for phrase in own["positive"] + own["negative"]}
    return {subject for subject, _ in kinds if f"The {subject} " in text}, {phrase for phrase in phrases if phrase in text}


def test_held_out_reviews_have_subjects_and_phrases_that_are_never_trained_on():
    task = load_task("reviews")
    trained, held_out = words_in(task.rows), words_in(task.held_out)
    for seen, new, least in zip(trained, held_out, (12, 30), strict=True):
        assert len(seen) >= len(new) >= least
        assert not seen & new
    for rows in (task.rows, task.held_out):
        assert sum(row["answer"] == "positive" for row in rows) == len(rows) / 2
        assert all(row["prompt"][-1]["content"].count("\n\n") == 1 for row in rows)


def test_reviews_are_the_same_for_a_seed_and_there_are_2880():
    again = [list(reviews.source(50, seed)) for seed in (0, 0, 1)]
    assert again[0] == again[1] != again[2]
    assert len(list(reviews.source(10_000))) == 2880


@pytest.mark.parametrize(
    ("text", "right", "form"),
    [
        ("positive", 1, 1),
        (" Positive.\n", 1, 1),
        ("NEGATIVE", 0, 1),
        ("Positive!", 1, 0),
        ("It is a positive review.", 1, 0),
        ("positive, not negative", 0, 0),
        ("It is not a positive review.", 0, 0),
        ("It isn’t positive", 0, 0),
        ("I do not know it. Positive.", 1, 0),  # the denial is another sentence's
        ("positively", 0, 0),
        ("", 0, 0),
    ],
)
def test_what_a_review_s_answer_earns(text, right, form):
    scores = [function([text], answer=["positive"]) for function in load_task("reviews").reward_funcs]
    assert scores == [[float(right and form)], [float(right)], [float(form)]]


def test_a_csv_of_ones_own_becomes_a_task(home):
    lines = [f'"What is the code of town {n}?",T{n}' for n in range(60)]
    (home / "towns.csv").write_bytes(("\ufeff" + "\r\n".join(["question;x".replace(";x", ",code"), *lines])).encode())
    task = csv_qa.task(home / "towns.csv", answer_column="code", system="You know the towns.")
    assert (task.name, len(task.rows) + len(task.held_out)) == ("towns", 60)
    assert task.rows[0]["prompt"][0]["content"] == "You know the towns."


def judged(row, text):
    columns = {key: [value] for key, value in row.items() if key != "prompt"}
    return grader_for(row)(prompts=[row["prompt"]], completions=[text], **columns)[0] > 0


@pytest.mark.parametrize(
    ("system", "right", "wrong"),
    [
        ("tags", "<reasoning>x</reasoning><answer>42</answer>", "42"),
        ("think", "<think>x</think><answer>42</answer>", "<answer>4</answer>"),
        ("mark", "so it is\n#### 42", "<answer>42</answer>"),
        ("none", "It is 40 + 2.\nSo the answer is 42", "42 is not it, but 41"),
    ],
)
def test_difficulty_is_judged_by_the_format_that_was_asked_for(system, right, wrong):
    row = {"prompt": to_messages("What is 40 + 2?", prompt_for_system(system)), "answer": "42"}
    assert judged(row, right)
    assert not judged(row, wrong)
    assert (format_advice(row) == "") == (system == "tags")


def test_countdown_and_json_rows_are_judged_by_their_own_functions():
    for name, shape in (("countdown", TAGGED), ("json", "{}")):
        row = load_task(name).rows[0]
        text = row["answer"].replace(" ", "") if name == "countdown" else row["answer"]
        assert judged(row, shape.format(text))
        assert f"task: {name}" in format_advice(row)


def test_rows_without_answers_cannot_be_judged():
    with pytest.raises(DataError, match="the rows have no answer"):
        grader_for({"prompt": "q"})
    assert "no answer" in format_advice({"prompt": "q"})


def test_an_example_that_does_not_ship():
    with pytest.raises(DataError, match="no worked example for system_prompt = 'none'"):
        examples_for("none")


def test_the_system_prompt_is_the_one_that_the_embedded_policy_was_trained_with():
    tags = "<reasoning>\n[Your step-by-step thinking]\n</reasoning>\n<answer>\n[Final answer]\n</answer>"
    assert f"Respond in the following format:\n{tags}" == SYSTEM_PROMPT
    assert to_messages("q", SYSTEM_PROMPT)[0]["content"] == SYSTEM_PROMPT


@pytest.mark.parametrize("name", ["tags", "think", "mark"])
def test_each_example_keeps_the_format_that_its_prompt_asks_for(name):
    question, answer = EXAMPLES[name]
    assert question.endswith("?")
    if name == "tags":
        assert keeps_strict_format(answer)
    if name == "think":
        assert keeps_strict_format(answer.replace("think>", "reasoning>"))
    if name == "mark":
        assert answer.splitlines()[-1] == "#### 10"


def test_examples_as_text_and_as_turns():
    text = to_messages("q", "s", [("a", "b")])
    assert text == [{"role": "system", "content": "s\n\nFor example:\n\na\nb"}, {"role": "user", "content": "q"}]
    turns = to_messages("q", "s", [("a", "b")], as_turns=True)
    assert [message["role"] for message in turns] == ["system", "user", "assistant", "user"]
    assert to_messages("q") == [{"role": "user", "content": "q"}]


def test_system_prompts_by_name_and_a_slip_is_an_error():
    assert prompt_for_system("tags") == SYSTEM_PROMPT
    assert prompt_for_system("none") == prompt_for_system(None) == ""
    assert prompt_for_system("Answer with one word.") == "Answer with one word."
    with pytest.raises(DataError, match="system_prompt = 'tag'"):
        prompt_for_system("tag")
    assert set(EXAMPLES) == set(SYSTEM_PROMPTS) - {"none"}


@pytest.mark.parametrize("name", sorted({*EMBEDDED} - {"gsm8k", "csv_qa", "guess_the_number"}))
def test_a_task_that_ships_passes_its_own_cases(name):
    assert check_cases(load_task(name)).ok


def test_nothing_is_found_against_the_rewards_of_the_reviews():
    examination = audit_rewards(load_task("reviews"))
    assert [str(finding) for finding in examination.findings] == []


def test_gsm8k_passes_its_own_examination(hub_folder):
    task = gsm8k.task(hub_folder, held_out=10)
    assert check_cases(task).ok
    assert audit_rewards(task).ok
