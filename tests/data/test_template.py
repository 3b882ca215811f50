"""The template card: what would make a reward impossible to earn is found in the template, before any training."""

from __future__ import annotations

import json
import shutil

import pytest

from workbench.data.prompts import SYSTEM_PROMPT, THINK_PROMPT
from workbench.data.template import prompt_lengths_tokens, tags_in, template_card, turn_end
from workbench.errors import DataError
from workbench.tiny import MODEL_DIR
from workbench.training.loading import load_tokenizer
from workbench.views.results import card_view

PROMPT = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": "What is 1 + 1?"}]
TURN = "{% for m in messages %}<|user|>{{ m.content }}"
END = "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>"


def card(template=None, prompt=PROMPT, special=()):
    tokenizer = load_tokenizer()
    if template is not None:
        tokenizer.chat_template = template
    if special:
        tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    return template_card(tokenizer, prompt)


def test_the_embedded_policys_template_is_sound():
    found = card()
    assert found.problems == []
    assert found.survives == dict.fromkeys(("<reasoning>", "</reasoning>", "<answer>", "</answer>"), True)
    assert (found.ends_turns, found.keeps_system, found.prefilled, found.doubled_bos) == (True, True, None, False)
    assert found.text == "".join(token.text for token in found.tokens)
    assert [token.text for token in found.tokens if token.special] == [
        "<|system|>",
        "</s>",
        "<|user|>",
        "</s>",
        "<|assistant|>",
    ]


def test_tags_that_are_special_tokens_vanish():
    found = card(special=["<answer>", "</answer>"])
    assert found.survives["<answer>"] is False
    assert found.survives["<reasoning>"] is True
    assert "<answer> </answer>: special tokens, which vanish" in found.problems[0]


@pytest.mark.parametrize("opening", ["<think>", "<think>\n", "<think>\n\n</think>\n\n"])
def test_a_template_that_opens_a_tag_is_found(opening):
    found = card(f"{TURN}{END}{opening}{{% endif %}}")
    assert found.prefilled == "think"
    assert any("writes <think> by itself" in problem for problem in found.problems)


def test_a_template_that_drops_the_system_message_is_found():
    found = card("{% for m in messages if m.role != 'system' %}<|user|>{{ m.content }}" + END + "{% endif %}")
    assert found.keeps_system is False
    assert any("the system message is not in the text" in problem for problem in found.problems)


def test_a_template_whose_turns_end_otherwise_is_found():
    found = card(TURN + "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}")
    assert found.ends_turns is False
    assert any("none of the tokens that end a completion (</s>)" in problem for problem in found.problems)


def test_a_turn_may_end_with_any_token_that_ends_a_completion():
    tokenizer = load_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    tokenizer.chat_template = TURN + "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    tokenizer.eos_ids = [2, end, 10**6]  # as its model says
    found = template_card(tokenizer, PROMPT)
    assert (found.ends_turns, found.problems) == (True, [])
    assert found.eos_tokens == {2: "</s>", end: "<|end|>"}
    assert f"</s> (2), <|end|> ({end})" in str(card_view(found))
    assert turn_end(tokenizer, PROMPT) == end
    assert turn_end(tokenizer, "1 + 1 =") is None


@pytest.mark.parametrize(
    ("file", "content", "ids"),
    [
        ("generation_config.json", {"eos_token_id": [3, 3, 1]}, [2, 3, 1]),
        ("generation_config.json", {"eos_token_id": 2}, [2]),
        ("generation_config.json", {}, [2]),
        ("generation_config.json", {"eos_token_id": {"a": "b"}}, [2]),
        ("generation_config.json", [], [2, 5]),  # damaged: the config is asked, as where there is none
        (None, None, [2, 5]),
    ],
)
def test_what_ends_completions_is_read_as_a_model_reads_it(file, content, ids, tmp_path):
    folder = shutil.copytree(MODEL_DIR, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": [2, 5]}))
    (folder / "generation_config.json").unlink()
    if file:
        (folder / file).write_text(json.dumps(content))
    assert load_tokenizer(folder).eos_ids == ids


def test_the_text_is_shown_to_the_letter():
    question = "Où est l'été, 漢🙂?  Two  spaces."
    found = card(prompt=[{"role": "user", "content": question}])
    assert question in "".join(token.text for token in found.tokens) == found.text


def test_a_role_in_angle_brackets_is_no_tag():
    assert card(TURN + END + "<assistant>{% endif %}").prefilled is None


def test_the_tags_are_those_that_the_prompt_asks_for():
    assert tags_in([{"role": "system", "content": THINK_PROMPT}]) == ("<think>", "</think>", "<answer>", "</answer>")
    assert tags_in([{"role": "user", "content": "<a>x</a>"}]) == ()


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('System role not supported') }}", "refuses messages of system, user: System role"),
        (None, "(?s)no chat template.*put a chat_template.jinja beside the weights"),
    ],
)
def test_a_template_that_refuses_or_is_not_there_is_an_error_with_a_remedy(template, said):
    tokenizer = load_tokenizer()
    tokenizer.chat_template = template
    for look in (
        lambda: template_card(tokenizer, PROMPT),
        lambda: prompt_lengths_tokens([{"prompt": PROMPT}], tokenizer),
    ):
        with pytest.raises(DataError, match=said):
            look()


def test_a_doubled_bos_is_found():
    assert card("{{ bos_token }}{{ bos_token }}" + TURN + END + "{% endif %}").doubled_bos


def test_a_plain_prompt_has_no_turns():
    found = card(prompt="1 + 1 =")
    assert (found.chat, found.ends_turns, found.keeps_system) == (False, None, None)


def test_the_view_marks_special_tokens_and_escapes_the_rest():
    view = card_view(card(prompt=[{"role": "user", "content": "<script>alert(1)</script>"}]))
    page = view._repr_html_()
    assert "<script>" not in page
    assert "<span style='background:#f3d9a4;color:#222;border-radius:3px;padding:0 2px'>&lt;|user|&gt;</span>" in page
    assert "Nothing to worry about" in page
    assert "check: " in str(card_view(card(special=["<answer>"])))
