"""Serving: the Modelfile serves as the run was trained, and the commands name what is there."""

from __future__ import annotations

import dataclasses
import re
import shutil

import pytest
from recording import record

from workbench.data.prompts import SYSTEM_PROMPT
from workbench.exporting import serving
from workbench.exporting.artefacts import FORMATS, Artefact
from workbench.recipe import Recipe
from workbench.tiny import MODEL_DIR
from workbench.tiny.task import task as arithmetic


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
    assert "TEMPLATE" not in text
    assert '"raw": true' in text
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
