"""The embedded policy's tokenizer: any text survives it, tags are text, and both of its forms agree."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tools.tiny import habits
from workbench.data.prompts import SYSTEM_PROMPT, to_messages
from workbench.tiny import MODEL_DIR
from workbench.tiny import task as arithmetic

# SentencePiece writes a space as U+2581, so that one character comes back as a space. Control pieces are what text
# cannot spell in SentencePiece and what the fast tokenizer reads as control; both are outside of "any text" here.
CONTROL = ("<unk>", "<s>", "</s>", "<pad>", "<|system|>", "<|user|>", "<|assistant|>")
characters = st.characters(exclude_categories=("Cs",), exclude_characters="\u2581")
pieces = st.one_of(st.text(characters, max_size=12), st.sampled_from([*habits.TAGS, " ", "  ", "\n", "\t", "42", "<", "e"]))
texts = st.lists(pieces, max_size=12).map("".join).filter(lambda text: not any(mark in text for mark in CONTROL))


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODEL_DIR)


@pytest.fixture(scope="module")
def sentencepiece_model():
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_file=str(MODEL_DIR / "tokenizer.model"))


@settings(max_examples=200, deadline=None)
@given(text=texts)
@example("")
@example("  two  spaces, a\ttab,\r\nand a line \n")
@example("naïve 漢字 🎉 \u200d\u0000 <0x0A>")
@example("a<reasoning>b</reasoning>\n<answer> 42</answer>c")
@example("<reasoning><reasoning <answer")
def test_any_text_survives_and_both_forms_agree(tokenizer, sentencepiece_model, text):
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert ids == sentencepiece_model.encode(text)


def test_numbers_are_single_digits(tokenizer):
    assert tokenizer.tokenize("12345")[-5:] == list("12345")
    multi_digit = [piece for piece in tokenizer.get_vocab() if sum(c.isdigit() for c in piece) > 1]
    assert all(piece.startswith("<0x") for piece in multi_digit)


@pytest.mark.parametrize("tag", habits.TAGS)
def test_a_tag_is_one_ordinary_token(tokenizer, tag):
    (token,) = tokenizer(tag)["input_ids"]
    assert token not in tokenizer.all_special_ids
    assert tokenizer.decode([token], skip_special_tokens=True) == tag
    assert token in tokenizer(f"x{tag}y")["input_ids"]


def test_control_tokens_are_distinct_and_skipped(tokenizer):
    ids = [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id]
    ids += tokenizer.convert_tokens_to_ids(["<|system|>", "<|user|>", "<|assistant|>"])
    assert len(set(ids)) == 7
    assert tokenizer.decode(ids, skip_special_tokens=True) == ""


def test_a_turn_ends_with_eos_and_nothing_is_put_in_the_assistants_mouth(tokenizer):
    chat = [*to_messages("What is 15 + 27?", SYSTEM_PROMPT), {"role": "assistant", "content": "42"}]
    whole = tokenizer.apply_chat_template(chat)["input_ids"]
    opened = tokenizer.apply_chat_template(chat[:-1], add_generation_prompt=True)["input_ids"]
    assert whole[-1] == tokenizer.eos_token_id
    assert whole == opened + tokenizer("42")["input_ids"] + [tokenizer.eos_token_id]
    assert opened[-1] == tokenizer.convert_tokens_to_ids("<|assistant|>")
    assert tokenizer.bos_token_id not in whole


def test_a_template_takes_many_turns_and_needs_no_system_message(tokenizer):
    chat = [
        {"role": "user", "content": "What is 1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "What is 2 + 2?"},
    ]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == "<|user|>What is 1 + 1?</s><|assistant|>2</s><|user|>What is 2 + 2?</s><|assistant|>"


def test_the_system_prompt_is_cheap(tokenizer):
    assert len(tokenizer.apply_chat_template(to_messages("What is 15 + 27?", SYSTEM_PROMPT))["input_ids"]) <= 50
    assert len(tokenizer(habits.ideal_completion(arithmetic.Problem(85, "+", 27)))["input_ids"]) <= 45
