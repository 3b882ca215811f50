"""Asking an artefact: what is shown is what the model writes, and what goes wrong is said beside it."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from hostile import formulas, obeyed
from recording import record
from running import TASK
from samples import EVIL

from workbench.base.errors import ExportError, PolicyError
from workbench.exporting import passport
from workbench.exporting.artefacts import Artefact, Exported
from workbench.exporting.chat import ChatAnswer, Exchange, ask
from workbench.tiny import MODEL_DIR
from workbench.tiny.task import task as arithmetic
from workbench.views.chat import Chat

QUESTION = "What is 15 + 27?"
SYSTEM = arithmetic(8, 8).held_out[0]["prompt"][0]["content"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(base, model with a random adapter, tokenizer) of plain transformers, and the folder where PEFT saved the adapter."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("made")
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32)
    torch.manual_seed(0)
    model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj", "up_proj"], task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=1.0)
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    for saved in (model, tokenizer):
        saved.save_pretrained(folder / "adapter")
    return model.eval(), tokenizer, folder


@pytest.fixture(scope="module")
def adapter(made):
    return Artefact(made[2] / "adapter", "adapter", str(MODEL_DIR))


@pytest.fixture(scope="module")
def merged(made):
    """The same, merged: a folder of its own."""
    import copy

    model, tokenizer, folder = made
    for saved in (copy.deepcopy(model).merge_and_unload(), tokenizer):
        saved.save_pretrained(folder / "merged")
    return Artefact(folder / "merged", "merged_16bit", str(MODEL_DIR))


def greedy(model, tokenizer, messages, most: int = 40) -> list[str]:
    """What transformers' own generate writes, token by token: the text after each."""
    import torch

    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        written = model.generate(ids, do_sample=False, max_new_tokens=most)[0, ids.shape[1] :].tolist()
    return [tokenizer.decode(written[: end + 1], skip_special_tokens=True) for end in range(len(written))]


def asked(question: str = QUESTION) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


@pytest.mark.parametrize("form", ["adapter", "merged"])
def test_both_write_what_generate_writes(form, made, request):
    model, tokenizer, _ = made
    trained = greedy(model, tokenizer, asked())
    with model.disable_adapter():
        base = greedy(model, tokenizer, asked())
    assert trained != base
    asks = Exchange(request.getfixturevalue(form), SYSTEM, 40)
    assert asks.answer(QUESTION, base=True) == (base[-1], len(base), "ended by EOS")
    answer = asks.answer(QUESTION)
    assert (answer.text, answer.length_tokens) == (trained[-1], len(trained))
    assert (answer.ended == "cut") == (len(trained) == 40)
    assert asks.answer(QUESTION) == answer, "each question is asked alone"


def test_ask_is_one_answer(made, merged, monkeypatch):
    model, tokenizer, folder = made
    answer = greedy(model, tokenizer, asked(), 24)[-1]
    exported = Exported(None, {"adapter": None, "merged_16bit": merged})
    for artefact in (exported, merged, merged.path, str(folder / "adapter")):
        assert ask(artefact, QUESTION, SYSTEM, max_completion_length=24) == answer
    monkeypatch.setenv("WORKBENCH_HOME", str(folder))
    without = greedy(model, tokenizer, asked()[1:], 24)[-1]
    assert ask("merged", QUESTION, max_completion_length=24) == without != answer


def test_the_temperature_samples(adapter):
    asks = Exchange(adapter, SYSTEM, 24)
    assert len({asks.answer(QUESTION, 1.0).text for _ in range(4)}) > 1


def test_what_is_too_long_is_cut_or_refused_in_words(adapter):
    asks = Exchange(adapter, SYSTEM, 3)
    assert asks.answer(QUESTION)[1:] == (3, "cut")
    tokens = len(_ids(asks, asked()))  # of 512 that the embedded policy reads
    asks.max_completion_length = 200
    filled = "9 " * ((500 - tokens) // 2)
    room = 512 - len(_ids(asks, asked(filled)))
    assert asks.answer(filled).length_tokens <= room < 200
    with pytest.raises(ExportError, match=r"(?s)the question has \d+ tokens.*512.*ask something shorter"):
        asks.answer("9 " * 600)


def _ids(asks: Exchange, messages: list[dict[str, str]]) -> list[int]:
    return asks._reader(False).prompt_ids(messages)


def test_a_run_says_how_it_was_asked(home, adapter):
    row = {**TASK.rows[0], "prompt": [{"role": "system", "content": "Be brief."}, *TASK.rows[0]["prompt"]]}
    run = record(TASK, [[(row, ["2", "3"])]])
    of = replace(adapter, run=run)
    run.update_manifest(
        settings={"in_force": {"max_completion_length": 48, "temperature": 0.7}}, policy={"source": str(MODEL_DIR)}
    )
    asks = Exchange(of)
    assert (asks.system_prompt, asks.max_completion_length, asks.temperature) == ("Be brief.", 48, 0.7)
    assert Chat(of).temperature == 0.7
    assert vars(Exchange(of, "", 7)).items() >= {"system_prompt": "", "max_completion_length": 7}.items()
    shutil.rmtree(run.rollouts)
    assert Exchange(of).system_prompt == ""


@pytest.mark.parametrize(
    ("prompt", "as_text", "system"),
    [([{"role": "system", "content": "Be brief."}], False, "Be brief."), ([], False, ""), ("2 + 2 =", True, "")],
)
def test_away_from_its_run_the_passport_says_how_it_was_asked(adapter, tmp_path, prompt, as_text, system):
    away = shutil.copytree(adapter.path, tmp_path / "mine")
    passport._write(away, {"format": "adapter", "base": str(MODEL_DIR), "prompt": prompt})
    asks = Exchange(away)
    assert (asks.system_prompt, asks.as_text) == (system, as_text)
    assert Exchange(away, "").system_prompt == ""


def test_an_unknown_base_and_a_folder_without_a_model_are_named(merged, tmp_path):
    with pytest.raises(ExportError, match=r"its base is not known[\s\S]*wb.export"):
        Exchange(merged.path).answer(QUESTION, base=True)
    with pytest.raises(PolicyError, match="no config.json"):
        ask(tmp_path, QUESTION)


# --- the panel ----------------------------------------------------------------------------------------------------


def test_base_and_trained_stand_side_by_side(adapter):
    panel = Chat(adapter, QUESTION, SYSTEM, temperature=0)
    [(question, answers)] = panel.turns
    assert (question, [*answers]) == (QUESTION, ["base", "trained"])
    page, text = panel._repr_html_(), str(panel)
    assert page.count("<td") == 3
    for who, answer in answers.items():
        assert f"[{who}: {answer.length_tokens} tokens, {answer.ended}]\n{answer.text}" in text
    assert "one sample" not in text  # but the likeliest tokens
    sampled = str(Chat(adapter, QUESTION, SYSTEM, temperature=0.7, base=False))
    assert "one sample at temperature 0.7: another may differ\n" in sampled


def test_a_failure_is_an_error_and_nothing_is_lost(adapter, tmp_path):
    panel = Chat(adapter, QUESTION, SYSTEM, temperature=0, base=False)
    with pytest.raises(ExportError, match="the question has"):
        panel.send("9 " * 600)
    assert len(panel.turns) == 1
    assert panel.send(QUESTION) is panel
    assert panel.turns[1] == panel.turns[0]


def test_what_a_model_writes_is_text(adapter):
    panel = Chat(adapter, "", EVIL)
    both = {"base": ChatAnswer(EVIL, 0, ""), "trained": ChatAnswer(EVIL * 30, 9, f"cut: {EVIL}")}
    panel.turns.append((EVIL, both))
    page, text = panel._repr_html_(), str(panel)
    assert text.count("<script>") == 33, "in whole"
    assert "<script" not in page
    assert not formulas(page)
    for found in (page, text):
        assert obeyed(found) == []
        found.encode()


def test_the_face_has_it():
    import workbench as wb

    assert wb.chat is Chat
    assert wb.ask is ask
