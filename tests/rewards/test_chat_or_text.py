"""A function gets the shape that it was written for, chat task or plain task, and the suite says so."""

from __future__ import annotations

import contextlib

import pytest

from workbench.rewards.chat_or_text import convert_call, positional_reward, responses_parameter
from workbench.rewards.library import correctness_reward
from workbench.rewards.suite import RewardSuite
from workbench.task import Task
from workbench.teaching.exercises import EXERCISES

QUESTION = "What is 15 + 27?"
CHAT = [{"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}], "answer": "42"}]
PLAIN = [{"prompt": QUESTION, "answer": "42"}]
TEXTS = ["", "42", "<answer>42</answer>", "The answer is 42, and not 43."]


def chat_reward(completions, answer, **kwargs):
    return [float(right in completion[0]["content"]) for completion, right in zip(completions, answer)]


def chat_words_reward(prompts, completions, **kwargs):
    return [
        float(len(completion[0]["content"].split())) if prompt[-1]["role"] == "user" else 0.0
        for prompt, completion in zip(prompts, completions)
    ]


def plain_reward(completions, answer, **kwargs):
    return [float(completion.strip().endswith(right)) for completion, right in zip(completions, answer)]


def length_reward(completions, **kwargs):
    return [float(len(completion)) for completion in completions]


def both_reward(completions, **kwargs):
    return [float(len(c if isinstance(c, str) else c[0]["content"])) for c in completions]


def positional(prompts, responses):
    return [float(prompt.count("+") + len(response)) for prompt, response in zip(prompts, responses)]


def scored(func, rows):
    with contextlib.closing(RewardSuite(Task("t", rows, [func]), 1)) as suite:
        return suite.score(rows * len(TEXTS), TEXTS)[:, 0].tolist(), suite.notes


@pytest.mark.parametrize(
    ("func", "expected", "chat_note", "plain_note"),
    [
        (chat_reward, [0, 1, 1, 1], None, "chat_reward: it reads messages only: with the other it raised"),
        (chat_words_reward, [0, 1, 1, 7], None, "chat_words_reward: it reads messages only: with the other it raised"),
        (plain_reward, [0, 1, 0, 0], "plain_reward: it reads plain text only: with the other it raised Attr", None),
        (
            length_reward,
            [0, 2, 19, 29],
            "length_reward: it reads plain text only: every chat completion scores 1; it gets what",
            None,
        ),
        (both_reward, [0, 2, 19, 29], None, None),
        (correctness_reward, [0, 0, 2, 0], None, None),
        (
            positional,
            [1, 3, 20, 30],
            "positional is written as (prompts, responses): it gets both as plain text",
            "positional is written as (prompts, responses): it gets both as plain text",
        ),
        (EXERCISES["length_in_chat"].functions[0], [0, 2, 19, 29], "reward_length: it reads plain text only", None),
        (EXERCISES["worked_maths"].functions[0], [0, 0, 0.2, 0], "math_reward_function is", "math_reward_function is"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_chat_and_plain_tasks_get_the_same_scores_and_the_notes_say_what_was_changed(func, expected, chat_note, plain_note):
    for rows, said in ((CHAT, chat_note), (PLAIN, plain_note)):
        scores, notes = scored(func, rows)
        assert scores == pytest.approx(expected)
        assert len(notes) == (said is not None)
        assert all(note.startswith(said) for note in notes)


def test_a_function_that_scores_the_shapes_differently_is_left_alone_and_said():
    def odd_reward(completions, **kwargs):
        return [float(len(str(completion))) for completion in completions]

    scores, [note] = scored(odd_reward, CHAT)
    assert scores[1] == len(str([{"role": "assistant", "content": "42"}]))
    assert note == "odd_reward: the same completions score differently as messages and as plain text"


def test_a_coroutine_is_not_called_to_find_out():
    calls = []

    async def paid_reward(completions, **kwargs):
        calls.append(len(completions))
        return [1.0] * len(completions)

    assert scored(paid_reward, CHAT) == ([1.0] * 4, [])
    assert calls == [4]


def test_converted_there_and_back():
    call = {"prompts": [CHAT[0]["prompt"]], "completions": ["42"], "answer": ["42"]}
    chat = convert_call(call, to_chat=True)
    assert chat["completions"] == [[{"role": "assistant", "content": "42"}]]
    assert convert_call(chat, to_chat=False) == {"prompts": [QUESTION], "completions": ["42"], "answer": ["42"]}
    assert call["completions"] == ["42"]


@pytest.mark.parametrize(
    ("func", "found"),
    [
        (positional, "responses"),
        (lambda prompts, outputs: [], "outputs"),
        (lambda prompts, completions: [], None),
        (lambda prompts, answer: [], None),
        (lambda completions, responses: [], None),
        (lambda prompts, responses, answer: [], None),
        (lambda prompts, responses, **kwargs: [], "responses"),
        (len, None),
    ],
)
def test_the_prompts_responses_style_is_known_by_its_names(func, found):
    assert responses_parameter(func) == found


def test_a_column_called_responses_is_a_column():
    assert responses_parameter(positional, ["prompt", "responses"]) is None


def test_an_adapted_function_keeps_its_name_and_takes_trls_call():
    adapted = positional_reward(positional)
    assert adapted.__name__ == "positional"
    assert adapted(prompts=[CHAT[0]["prompt"]], completions=["ab"], answer=["42"], trainer_state=None) == [3.0]
