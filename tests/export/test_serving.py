"""Serving: the Ollama template renders what the model's own does, or is not given; Modelfile and commands name what is there."""

from __future__ import annotations

import dataclasses
import re
import shutil

import pytest
from recording import record

from workbench.data.prompts import SYSTEM_PROMPT
from workbench.data.template import prompt_text
from workbench.exporting import serving
from workbench.exporting.artefacts import FORMATS, Artefact
from workbench.recipe import Recipe
from workbench.tiny import MODEL_DIR
from workbench.tiny.task import task as arithmetic
from workbench.training.loading import load_tokenizer

CHATML = "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}"
FIRST_USER = (
    "{% set told = '' %}{% if messages[0].role == 'system' %}{% set told = messages[0].content + '\n\n' %}"
    "{% set messages = messages[1:] %}{% endif %}"
)
TURNS = "{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else 'user') + '\n' }}"
FAMILIES = {
    "the embedded policy's": (MODEL_DIR / "chat_template.jinja").read_text(),
    "ChatML": CHATML + "{{ '<|im_start|>assistant\n' }}",
    "ChatML, a default system message": (
        "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nYou are kind.<|im_end|>\n' }}{% endif %}"
        + CHATML + "{{ '<|im_start|>assistant\n' }}"
    ),
    "ChatML, thinking off": CHATML + "{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}",
    "Llama 3": (
        "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim }}"
        "<|eot_id|>{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    ),
    "Gemma 2": (
        "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        + TURNS + "{{ m.content | trim + '<end_of_turn>\n' }}{% endfor %}{{ '<start_of_turn>model\n' }}"
    ),
    "Phi": "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}{{ '<|assistant|>\n' }}",
}  # fmt: skip
OTHERS = {
    "counts": "{% for m in messages %}{{ loop.index }}. {{ m.content }}\n{% endfor %}",
    "changes": "{% for m in messages %}{{ m.content | upper }}\n{% endfor %}",
    "Gemma 3": (
        "{{ bos_token }}" + FIRST_USER + TURNS + "{{ (told if loop.first else '') + m.content | trim + '<end_of_turn>\n' }}"
        "{% endfor %}{{ '<start_of_turn>model\n' }}"
    ),
    "Mistral": (
        "{{ bos_token }}" + FIRST_USER + "{% for m in messages %}{% if m.role == 'user' %}"
        "{{ '[INST] ' + (told if loop.first else '') + m.content + ' [/INST]' }}{% else %}{{ ' ' + m.content + eos_token }}"
        "{% endif %}{% endfor %}"
    ),
    "forgets": "{{ messages[-1].content }}",
    "Go's own signs": "{% for m in messages %}{{ '{{' + m.content }}{% endfor %}",
    "of a file's end": '{% for m in messages %}{{ \'"""\' + m.content }}{% endfor %}',
    "refuses": "{{ raise_exception('no') }}",
}
CONVERSATIONS = [
    [("user", "What is 1 + 1?")],
    [("system", "Be kind.\n\nAnd brief."), ("user", "What is 1 + 1?")],
    [("system", "Be kind."), ("user", "one"), ("assistant", "two"), ("user", "three"), ("assistant", "four"), ("user", "five")],
]


def go(template, system, messages):
    """What Go's text/template makes of the few things that these templates use."""
    tokens = iter(re.split(r"(\{\{.*?\}\})", template, flags=re.DOTALL))
    known = {".System": system}

    def block():
        found = []
        for token in tokens:
            word = token.strip("{} ") if token.startswith("{{") else None
            if word is None:
                found.append(("text", token))
            elif word in ("end", "else") or word.startswith("else if "):
                return found, word
            elif word.startswith("if "):
                arms, condition = [], word.removeprefix("if ")
                while True:
                    body, ended = block()
                    arms.append((condition, body))
                    if ended == "end":
                        break
                    condition = ended.removeprefix("else if ") if ended != "else" else None
                found.append(("if", arms))
            elif word == "range .Messages":
                found.append(("range", block()[0]))
            else:
                found.append(("do", word))
        return found, ""

    def true(condition, message):
        if condition is None:
            return True
        role = re.fullmatch(r'eq \.Role "(\w+)"', condition)
        return message["role"] == role[1] if role else bool(known[condition])

    def said(nodes, message=None):
        text = ""
        for kind, node in nodes:
            if kind == "text":
                text += node
            elif kind == "if":
                text += said(next((body for condition, body in node if true(condition, message)), []), message)
            elif kind == "range":
                text += "".join(said(node, each) for each in messages)
            else:
                text += message["content"] if node == ".Content" else known[node]
        return text

    nodes, rest = block()
    assert not rest
    return said(nodes)


@pytest.fixture
def tokenizer():
    return load_tokenizer("tiny")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_ollama_template_renders_what_the_models_own_does(tokenizer, family):
    tokenizer.chat_template = FAMILIES[family]
    template = serving.go_template(tokenizer)
    assert template
    for conversation in CONVERSATIONS:
        messages = [{"role": role, "content": content} for role, content in conversation]
        system = messages[0]["content"] if messages[0]["role"] == "system" else ""
        if not (system and family == "Gemma 2"):
            assert go(template, system, messages) == prompt_text(messages, tokenizer)


@pytest.mark.parametrize("template", OTHERS)
def test_a_template_that_does_more_has_none(tokenizer, template):
    tokenizer.chat_template = OTHERS[template]
    assert serving.go_template(tokenizer) is None


@pytest.fixture
def run(home):
    """A run with its tokenizer beside, as an export leaves it, and a GGUF artefact that is being made."""
    task = arithmetic(4, 4)
    run = record(task, [[(task.rows[0], ["one", "two"])]], name="My-run")
    Recipe(run_name="My-run", policy={"max_seq_length": 128}, lora={"r": 4}).save(run.path / "recipe.yaml")
    in_force = {"temperature": 0.7, "top_p": 0.9, "top_k": None, "repetition_penalty": 1.0}
    run.update_manifest(settings={"in_force": {**run.manifest()["settings"]["in_force"], **in_force}})
    shutil.copytree(MODEL_DIR, run.path / "export" / "merged_16bit")
    (run.path / "export" / ".staged").mkdir()
    (run.path / "export" / ".staged" / "my-F16.gguf").touch()
    return run


def artefact(run, format="gguf_f16"):
    return Artefact(run.path / "export" / format, format, "some/base-1B", run=run)


def test_the_modelfile_serves_as_it_was_trained(run):
    staged = run.path / "export" / ".staged"
    serving.write(staged, artefact(run))
    text = (staged / "Modelfile").read_text()
    assert text.startswith("FROM ./my-F16.gguf\n# ")
    assert "unproven" in text
    assert f'TEMPLATE """{serving.go_template(load_tokenizer("tiny"))}"""\n' in text
    asked = dict(re.findall(r"^PARAMETER (\w+) (.+)$", text, re.M))
    assert asked == {
        "num_ctx": "128", "temperature": "0.7", "top_p": "0.9", "top_k": "0", "repeat_penalty": "1.0", "stop": '"</s>"'
    }  # fmt: skip
    assert f'SYSTEM """{SYSTEM_PROMPT}"""' in text
    assert str(run.path) not in text
    merged = run.path / "export" / "merged_16bit"
    (merged / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    serving.write(staged, artefact(run))
    assert re.findall(r"^PARAMETER stop (.+)$", (staged / "Modelfile").read_text(), re.M) == ['"<s>"', '"</s>"']
    (merged / "chat_template.jinja").write_text(OTHERS["counts"])
    serving.write(staged, artefact(run))
    text = (staged / "Modelfile").read_text()
    assert 'TEMPLATE """{{ .Prompt }}"""' in text
    assert '"raw": true' in text
    assert "SYSTEM" not in text
    serving.write(staged, artefact(run, "merged_16bit"))


def test_the_modelfile_has_the_settings_of_the_last_stage_and_nothing_secret(run, monkeypatch):
    stages = [{"name": "short", "settings": {"temperature": 0.8}}, {"name": "long", "settings": {"temperature": 0.5}}]
    run.update_manifest(stages=stages)
    batch, place = serving.batch_and_place(run)
    prompt = [{"role": "system", "content": "Use /srv/home-of-ann/notes.txt and hf_abcdefghijklmnopqrst."}, batch.prompts[0][-1]]
    monkeypatch.setattr(serving, "batch_and_place", lambda run: (dataclasses.replace(batch, prompts=[prompt]), place))
    staged = run.path / "export" / ".staged"
    serving.write(staged, artefact(run))
    text = (staged / "Modelfile").read_text()
    assert "PARAMETER temperature 0.5\n" in text
    assert 'SYSTEM """Use notes.txt and [removed]."""' in text


def test_commands_name_the_files(run):
    (run.path / "export" / "gguf_f16").mkdir()
    (run.path / "export" / "gguf_f16" / "my-F16.gguf").touch()
    found = {format: serving.commands(artefact(run, format)) for format in FORMATS if format not in ("gguf_q8_0", "gguf_q4_k_m")}
    assert found["merged_16bit"] == {
        "vLLM": "vllm serve .", "MLX": "mlx_lm.convert --hf-path . -q",
        "transformers": "transformers.pipeline(\"text-generation\", model='.')",
    }  # fmt: skip
    assert found["adapter"]["vLLM"] == "vllm serve some/base-1B --enable-lora --max-lora-rank 8 --lora-modules my-run=."
    assert set(found["merged_4bit"]) == {"vLLM", "transformers"}
    assert found["gguf_f16"]["llama.cpp"] == "llama-server --model ./my-F16.gguf --jinja"
    assert found["gguf_f16"]["Ollama"] == "ollama create my-run -f ./Modelfile && ollama run my-run"
