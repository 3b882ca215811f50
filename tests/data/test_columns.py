"""Columns: asked for, or taken by a well-known name and said; never guessed in silence."""

from __future__ import annotations

import pytest

from workbench.base.errors import DataError
from workbench.data.answer_column import ANSWER_ALIASES
from workbench.data.columns import PROMPT_ALIASES, as_values, choose_columns
from workbench.task import RESERVED_COLUMNS

CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


def choose(names, chats=(), **asked):
    return choose_columns([{name: CHAT if name in chats else "x" for name in names}], asked.get("prompt"), asked.get("answer"))


def test_their_own_names_need_no_note():
    assert choose(["id", "prompt", "answer"])[:3] == ("prompt", "answer", [])


@pytest.mark.parametrize("alias", PROMPT_ALIASES)
def test_a_well_known_prompt_is_taken_and_said(alias):
    found = choose([alias, "answer"])
    assert found[0] == alias
    assert alias in found[2][0]
    assert "prompt_column" in found[2][0]


@pytest.mark.parametrize("alias", ANSWER_ALIASES)
def test_a_well_known_answer_is_taken_and_said(alias):
    found = choose(["prompt", alias])
    assert found[1] == alias
    assert alias in found[2][0]


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
        choose(names, **asked)


@pytest.mark.parametrize("reserved", sorted(RESERVED_COLUMNS))
def test_reserved_names_are_refused(reserved):
    with pytest.raises(DataError, match=f"a column is called '{reserved}'"):
        choose(["prompt", "answer", reserved])


def test_capital_letters_do_not_matter():
    assert choose(["Question", "Answer"])[:2] == ("Question", "Answer")


def test_a_task_without_answers():
    assert choose(["prompt"], answer="none")[1] is None


def test_the_advice_is_what_is_typed_here_and_there():
    with pytest.raises(DataError) as caught:
        choose(["id", "question", "expected answer", "category"])
    assert "the rows have id, question, expected answer, category" in str(caught.value)
    assert caught.value.remedy == (
        "say which: --answer \"expected answer\" (answer_column='expected answer'), "
        "or --answer none (answer_column='none') if no reward needs one"
    )
    with pytest.raises(DataError, match="say which: --prompt text "):
        choose(["id", "text", "answer"])


def test_a_chat_that_ends_with_the_assistants_turn_gives_the_answer():
    with pytest.raises(DataError) as caught:
        choose(["messages", "meta"], chats={"messages"})
    assert caught.value.remedy == (
        "say which: --answer assistant (answer_column='assistant') for what the assistant says last, "
        "or --answer none (answer_column='none') if no reward needs one"
    )
    with pytest.raises(DataError, match="--answer gold_label .*, or --answer assistant "):
        choose(["messages", "gold_label"], chats={"messages"})
    found = choose(["messages", "meta"], answer="assistant", chats={"messages"})
    assert found[:2] == ("messages", "assistant")
    assert found[2][-1] == "answer: the assistant's last turn in 'messages'"
    own = choose(["messages", "assistant"], answer="assistant", chats={"messages"})
    assert own[:3] == ("messages", "assistant", own[2][:1]), "a column of that name is that column"
    with pytest.raises(DataError, match="answer_column = 'assistant'; the rows have question, id"):
        choose(["question", "id"], answer="assistant")


def test_in_a_notebook_the_parameter_comes_first(monkeypatch):
    monkeypatch.setattr("workbench.data.columns.in_kernel", lambda: True)
    with pytest.raises(DataError) as caught:
        choose(["id", "Ticket Text", "answer"])
    assert caught.value.remedy == "say which: prompt_column='Ticket Text' in 01's More parameters (--prompt \"Ticket Text\")"


ALPACA = [{"instruction": "Name the capital.", "input": land, "output": "x"} for land in ("Peru", "Cuba", "")]


def test_a_question_in_two_columns_is_joined_by_a_template():
    with pytest.raises(DataError, match="'instruction' and 'input' could both be the prompt") as caught:
        choose_columns(ALPACA, None, None)
    assert "prompt_column='{instruction}\\n\\n{input}'" in caught.value.remedy
    assert choose_columns(ALPACA, "instruction", None).beside == ["input"]
    template = "{instruction}\n\nThe land:\n{input}"
    joined = [as_values(row, [template])[template] for row in ALPACA]
    assert joined == ["Name the capital.\n\nThe land:\nPeru", "Name the capital.\n\nThe land:\nCuba", "Name the capital."]
    with pytest.raises(DataError, match="(?s)prompt_column = 'inptu'.*did you mean 'input'"):
        choose_columns(ALPACA, "{instruction} {inptu}", None)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (["Rome", "Paris"], "A) Rome\nB) Paris"),
        ({"label": ["1", "2"], "text": ["Rome", "Paris"]}, "1) Rome\n2) Paris"),
        ({"a": 1}, '{"a": 1}'),
        ([3, 4], "[3, 4]"),
        (7, "7"),
        (float("nan"), ""),
    ],
)
def test_how_a_template_writes_a_value(value, text):
    assert as_values({"options": value}, ["{options}"])["{options}"] == text


def test_what_stands_in_the_prompt_already_or_belongs_to_the_answer_is_not_beside_it():
    row = {"prompt": "It rains. Does it?", "context": "It  rains.", "answer": "yes", "solution_text": "so: yes", "id": "a b"}
    assert choose_columns([row], None, None).beside == []
    unlisted = [{"prompt": "Who?", "letter": f"Dear {name}, hello", "id": name, "answer": name} for name in ("Ada", "Ben")]
    assert choose_columns(unlisted, None, None).beside == ["letter"], "two rows with one prompt differ in it"


def test_a_field_within_a_column():
    row = {"reward_model": {"ground_truth": "7"}}
    assert as_values(row, ["reward_model.ground_truth"]) == {**row, "reward_model.ground_truth": "7"}
    assert as_values(row, ["reward_model.answer"]) == row
