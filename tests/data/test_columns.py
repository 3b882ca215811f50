"""Columns: asked for, or taken by a well-known name and said; never guessed in silence."""

from __future__ import annotations

import pytest

from workbench.data.columns import ANSWER_ALIASES, PROMPT_ALIASES, choose_columns
from workbench.errors import DataError
from workbench.task import RESERVED_COLUMNS


def test_their_own_names_need_no_note():
    assert choose_columns(["id", "prompt", "answer"]) == ("prompt", "answer", ())


@pytest.mark.parametrize("alias", PROMPT_ALIASES)
def test_a_well_known_prompt_is_taken_and_said(alias):
    found = choose_columns([alias, "answer"])
    assert found.prompt == alias
    assert alias in found.notes[0]
    assert "prompt_column" in found.notes[0]


@pytest.mark.parametrize("alias", ANSWER_ALIASES)
def test_a_well_known_answer_is_taken_and_said(alias):
    found = choose_columns(["prompt", alias])
    assert found.answer == alias
    assert alias in found.notes[0]


@pytest.mark.parametrize(
    ("names", "asked", "said"),
    [
        (["query", "question", "answer"], {}, "'query' and 'question' could both be the prompt.*prompt_column='query'"),
        (["prompt", "solution", "ground_truth"], {}, "could both be the answer.*answer_column='solution'"),
        (["text", "label"], {}, "no column 'prompt'; the rows have text, label.*prompt_column='text'"),
        (["prompt", "text"], {}, "no column 'answer'.*answer_column='none'\\) if no reward needs one"),
        (["prompt", "answer"], {"prompt": "promt"}, "prompt_column = 'promt'.*did you mean 'prompt'"),
        (["prompt", "answer"], {"answer": "solution"}, "answer_column = 'solution'; the rows have prompt, answer"),
    ],
)
def test_what_is_not_clear_is_asked(names, asked, said):
    with pytest.raises(DataError, match=f"(?s){said}"):
        choose_columns(names, **asked)


@pytest.mark.parametrize("reserved", sorted(RESERVED_COLUMNS))
def test_reserved_names_are_refused(reserved):
    with pytest.raises(DataError, match=f"a column is called '{reserved}'"):
        choose_columns(["prompt", "answer", reserved])


def test_capital_letters_do_not_matter():
    assert choose_columns(["Question", "Answer"])[:2] == ("Question", "Answer")


def test_a_task_without_answers():
    assert choose_columns(["prompt"], answer="none").answer is None


def test_the_advice_is_what_is_typed_here_and_there():
    with pytest.raises(DataError) as caught:
        choose_columns(["id", "question", "expected answer", "category"])
    assert "the rows have id, question, expected answer, category" in str(caught.value)
    assert caught.value.remedy == (
        "say which: --answer \"expected answer\" (answer_column='expected answer'), "
        "or --answer none (answer_column='none') if no reward needs one"
    )
    with pytest.raises(DataError, match="say which: --prompt text "):
        choose_columns(["id", "text", "answer"])


def test_a_chat_that_ends_with_the_assistants_turn_gives_the_answer():
    with pytest.raises(DataError) as caught:
        choose_columns(["messages", "meta"], answered={"messages"})
    assert caught.value.remedy == (
        "say which: --answer assistant (answer_column='assistant') for what the assistant says last, "
        "or --answer none (answer_column='none') if no reward needs one"
    )
    with pytest.raises(DataError, match="--answer gold_label .*, or --answer assistant "):
        choose_columns(["messages", "gold_label"], answered={"messages"})
    found = choose_columns(["messages", "meta"], answer="assistant", answered={"messages"})
    assert found[:2] == ("messages", "assistant")
    assert found.notes[-1] == "answer: the assistant's last turn in 'messages'"
    own = choose_columns(["messages", "assistant"], answer="assistant", answered={"messages"})
    assert own == ("messages", "assistant", own.notes[:1]), "a column of that name is that column"
    with pytest.raises(DataError, match="answer_column = 'assistant'; the rows have question, id"):
        choose_columns(["question", "id"], answer="assistant")
