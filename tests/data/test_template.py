"""The template card: what would make a reward impossible to earn is found in the template, before any training."""

from __future__ import annotations

import json
import logging
import shutil

import pytest
from made_tokenizers import made_tokenizer
from small_models import make_base

import workbench as wb
from workbench.base.errors import DataError, PolicyError
from workbench.data.prompts import SYSTEM_PROMPT, THINK_PROMPT
from workbench.data.rendering import prompt_lengths_tokens
from workbench.data.template import tags_in, template_card, turn_end
from workbench.tiny import MODEL_DIR
from workbench.training import sampling
from workbench.training.plan.loading import load_tokenizer
from workbench.training.plan.measuring import check_tokenizer
from workbench.views.look import MARKED
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


@pytest.mark.parametrize("opening", ["<think>", "<think>\n"])
def test_a_template_that_opens_a_tag_is_found(opening):
    found = card(f"{TURN}{END}{opening}{{% endif %}}")
    assert (found.prefilled, found.closed) == ("think", False)
    assert any("writes <think> by itself" in problem for problem in found.problems)


def test_a_tag_that_a_template_opens_and_closes_matters_to_those_who_ask_for_it():
    template = f"{TURN}{END}<think>\n\n</think>\n\n{{% endif %}}"
    found = card(template)
    assert (found.prefilled, found.closed, found.problems) == ("think", True, [])
    assert "<think>, and closed" in str(card_view(found))
    [problem] = card(template, prompt=[{"role": "system", "content": THINK_PROMPT}, PROMPT[1]]).problems
    assert "opens and closes <think>" in problem
    assert "can never pay" not in problem


SYSTEM = "{% if m.role == 'system' %}"
SPOILED = {
    "no generation prompt": (
        "{% for m in messages %}{{ '<|user|>' if m.role != 'assistant' else '<|assistant|>' }}{{ m.content }}</s>{% endfor %}",
        "writes no generation prompt",
    ),
    "drops the system message": (f"{TURN.replace('%}<', '%}' + SYSTEM + '{% else %}<')}{{% endif %}}{END}{{% endif %}}",
                                 "the system message is not in the text"),
    "drops the last turn": (TURN.replace("messages", "messages[:1]") + END + "{% endif %}", "the user message is not in"),
    "begins twice": ("{{ bos_token }}{{ bos_token }}" + TURN + END + "{% endif %}", "two BOS tokens"),
    "runs lines together": (TURN.replace("m.content", "m.content.split() | join(' ')") + END + "{% endif %}",
                            "system message has other white space"),
    "eats tags": (TURN.replace("m.content", "m.content | striptags") + END + "{% endif %}", "(without <reasoning> </reasoning>"),
    "escapes": (TURN.replace("m.content", "m.content | e") + END + "{% endif %}", "the system message is not in the text"),
    "ends no turn": ((TURN + END + "{% endif %}").replace("{{ eos_token }}", "<|end|>"), "closes the assistant's turn with none"),
    "writes the date": ("{{ strftime_now('%d %b %Y') }} " + TURN + END + "{% endif %}", "writes today's date"),
    "writes the date in other words": ("{{ strftime_now(\"%Y-%m-%d\") }} " + TURN + END + "{% endif %}", "writes today's date"),
    "thinks first": (TURN.replace("}}{{", "}}{{ '<think>' if m.role == 'assistant' }}{{") + END + "<think>{% endif %}",
                     "writes <think> by itself"),
    "begins with a channel": (
        TURN.replace("{{ m.content }}", "{{ '<|assistant|>x<|system|>' if m.role == 'assistant' }}{{ m.content }}").replace(
            "<|user|>", "{{ '<|user|>' if m.role != 'assistant' }}") + END + "{% endif %}",
        "of which decoding leaves 'x'",
    ),
    "refuses a system message": (
        "{% for m in messages %}" + SYSTEM + "{{ raise_exception('No system, please') }}{% endif %}{% endfor %}", None),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_template_is_named(name):
    template, said = SPOILED[name]
    if said is None:
        with pytest.raises(DataError, match="(?s)No system, please.*system_prompt"):
            card(template)
    else:
        assert [problem for problem in card(template).problems if said in problem]
        assert "Nothing to worry about" not in card_view(card(template))._repr_html_()


def test_the_words_that_a_template_adds_are_shown_and_no_worry():
    own = "{% if messages[0].role != 'system' %}<|system|>You are a helpful model.</s>{% endif %}"
    found = card(own + TURN + END + "{% endif %}", prompt=PROMPT[1:])
    assert (found.adds, found.problems) == ("You are a helpful model.", [])
    assert "You are a helpful model." in str(card_view(found))
    assert card(own + TURN + END + "{% endif %}").adds == ""


def test_a_model_that_thinks_by_itself_is_said():
    quiet = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
    found = card(TURN + END + quiet)
    assert (found.thinks, found.prefilled) == ("think", None)
    [problem] = found.problems
    assert '"enable_thinking": False' in problem
    assert "<reasoning>" in problem
    asked = [{"role": "system", "content": THINK_PROMPT}, PROMPT[1]]
    assert card(TURN + END + quiet, prompt=asked).problems == []


# A folder as DeepSeek's: the class says Llama, whose tokenizer marks spaces, and tokenizer.json holds a byte-level one.


@pytest.fixture
def run_together(tmp_path):
    made = made_tokenizer("{{ bos_token }}" + TURN + END + "\n{% endif %}")
    made.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tokenizer_class": "LlamaTokenizerFast"}))
    return tmp_path


def test_a_tokenizer_that_loses_white_space_is_refused(run_together):
    tokenizer = load_tokenizer(run_together)
    found = template_card(tokenizer, PROMPT)
    assert "does not give the text back: 'Respond in the following format:' becomes 'Respond" in found.problems[0]
    assert "Respondinthefollowing" in found.problems[0]
    assert found.text.startswith("".join(token.text for token in found.tokens))
    with pytest.raises(PolicyError, match="(?s)LlamaTokenizer.*Whatis2.*PreTrainedTokenizerFast.* in tokenizer_config.json"):
        check_tokenizer(tokenizer, run_together)


def test_what_is_told_of_a_tokenizer_that_loses_white_space_helps(run_together):
    file = run_together / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    tokenizer = load_tokenizer(run_together)
    check_tokenizer(tokenizer, run_together)
    assert not [problem for problem in template_card(tokenizer, PROMPT).problems if "give the text back" in problem]


@pytest.mark.parametrize("command", ["plan", "load_policy"])
def test_plan_and_loading_refuse_it(run_together, command):
    make_base(run_together / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(run_together / name, run_together / "model" / name)
    policy = {"name": str(run_together / "model"), "backend": "transformers", "load_in_4bit": False}
    with pytest.raises(PolicyError, match="Whatis2"):
        getattr(wb, command)(wb.Recipe(policy=policy, grpo={"max_steps": 1}))


@pytest.mark.parametrize("quiet", [True, False])
def test_a_setting_that_transformers_ignores_rightly_is_not_reported(caplog, monkeypatch, quiet):
    tokenizer = made_tokenizer(TURN + END + "{% endif %}")
    tokenizer.__class__ = type(f"Once{quiet}", (type(tokenizer),), {})  # transformers says it once for a name
    tokenizer.clean_up_tokenization_spaces = True
    logger = logging.getLogger("transformers.tokenization_utils_tokenizers")
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    if not quiet:
        monkeypatch.setattr(logger, "filters", [])
    assert tokenizer.decode(tokenizer("What is it ?")["input_ids"]) == "What is it ?"
    assert ("Ignoring clean_up" in caplog.text) is not quiet


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


def test_a_turn_without_words_is_not_missed():
    call = {"role": "assistant", "content": None, "tool_calls": []}
    found = card(TURN.replace("m.content", "m.content or ''") + END + "{% endif %}", prompt=[PROMPT[1], call, PROMPT[1]])
    assert found.problems == []


def test_a_plain_prompt_has_no_turns():
    found = card(prompt="1 + 1 =")
    assert (found.chat, found.ends_turns, found.keeps_system) == (False, None, None)


def test_the_view_marks_special_tokens_and_escapes_the_rest():
    view = card_view(card(prompt=[{"role": "user", "content": "<script>alert(1)</script>"}]))
    page = view._repr_html_()
    assert "<script>" not in page
    assert f"<span style='{MARKED};border-radius:3px;padding:0 2px'>&lt;|user|&gt;</span>" in page
    assert "Nothing to worry about" in page
    assert "check: " in str(card_view(card(special=["<answer>"])))


def test_a_tokenizer_is_read_once_for_many_prompts_and_anew_when_its_folder_changes(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    shutil.copytree(MODEL_DIR, folder)
    loaded = []
    monkeypatch.setattr(sampling, "load_tokenizer", lambda name: loaded.append(name) or load_tokenizer(name))
    first = wb.preview(PROMPT, folder)
    assert wb.preview(PROMPT, folder).text == first.text
    assert wb.prompt_lengths([{"prompt": PROMPT}], folder).lengths[0] == len(first.tokens)
    assert len(loaded) == 1
    (folder / "chat_template.jinja").write_text(TURN + END + "!{% endif %}")
    assert wb.preview(PROMPT, folder).text.endswith("<|assistant|>!")
    assert len(loaded) == 2
    (folder / "chat_template.jinja").write_text("{{ word }}")
    assert wb.preview(PROMPT, folder, {"word": "one"}).text == "one"
    assert wb.preview(PROMPT, folder, {"word": "two"}).text == "two"
    assert wb.preview(PROMPT, folder).text == ""


@pytest.mark.parametrize("chat", [True, False])
def test_half_of_a_surrogate_pair_in_a_prompt_is_refused_with_its_place(chat):
    text = "What is\ud800 2 + 3?"
    rows = [{"prompt": [{"role": "user", "content": text}] if chat else text, "answer": "5"}] * 8

    def paid(completions, **kwargs):
        return [0.0] * len(completions)

    for refused in (lambda: wb.prompt_lengths(rows), lambda: wb.plan(wb.Recipe(), wb.Task("torn", rows, [paid]))):
        with pytest.raises(DataError) as error:
            refused()
        assert r"is\\ud800 2" in error.value.value
        assert "UTF-8" in error.value.remedy
