"""Token ids of exports: what the run's own tokenizer and template give, or the cause of the first difference."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from recording import record
from sabotage import WORDS, edit_json
from small_models import WORDS as FILES

from workbench.data.rendering import prompt_text
from workbench.exporting.artefacts import Artefact
from workbench.exporting.tokens import check_tokens
from workbench.task import Task
from workbench.tasks.loading import load_task
from workbench.tiny import MODEL_DIR
from workbench.training.plan.loading import load_tokenizer

TASK = load_task("arithmetic")
TEXTS = ["<think>15 + 27</think><answer>42</answer>", "", "Grüße 你好 🙂\n\n  two  spaces", "</s> as text", "1" * 50]


class FakeReader:
    """What a reader over transformers says of tokens. `adds_bos`: whoever loads it puts a BOS before what it renders."""

    def __init__(self, folder: Any, adds_bos: bool = False, ends: list | None = None, kwargs: dict | None = None) -> None:
        self.tokenizer, self.adds_bos = load_tokenizer(folder, kwargs), adds_bos
        self.ends = ends or [self.tokenizer.eos_token_id]
        self.bos = self.tokenizer.bos_token_id

    def render(self, prompt: Any) -> str | None:
        return prompt_text(prompt, self.tokenizer) if isinstance(prompt, str) or self.tokenizer.chat_template else None

    def prompt_ids(self, prompt: Any) -> list[int]:
        ids = self.tokenizer(self.render(prompt), add_special_tokens=isinstance(prompt, str))["input_ids"]
        return [self.bos, *ids] if self.adds_bos else ids

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.fixture
def folder(tmp_path):
    """The words of an export: the tokenizer's files and the configs, without weights."""
    out = tmp_path / "merged_16bit"
    out.mkdir()
    for name in (*FILES, "config.json"):
        shutil.copyfile(MODEL_DIR / name, out / name)
    return out


def begun(task: Task = TASK, name: str = "r", **recipe: Any):
    """A run with a record of these texts; its manifest as training writes it."""
    run = record(task, [[(row, TEXTS) for row in task.with_ids(task.rows[:2])]], name=name)
    run.release()
    functions = run.manifest()["rewards"]["functions"]
    run.update_manifest(task={"name": task.name}, id=name, rewards={"functions": functions})
    run.recipe().model_copy(update={"task": task.source or task.name, **recipe}).save(run.path / "recipe.yaml")
    return run


@pytest.fixture
def run(home):
    return begun()


def checked(folder, run, most=40, **reader):
    checks = check_tokens(Artefact(folder, "merged_16bit", str(MODEL_DIR), run=run), FakeReader(folder, **reader), most)
    return checks, [check.cause for check in checks if check.passed is False]


def test_a_good_export_has_the_same_ids(folder, run):
    checks, failed = checked(folder, run, 250)
    assert [check.passed for check in checks] == [True] * 3
    assert [check.name for check in checks] == [
        "EOS", "ids of 250 rendered prompts", "ids of 4 recorded completions",
    ]  # fmt: skip
    assert not failed


@pytest.mark.parametrize("cause", WORDS)
def test_spoiled_words_are_named(cause, folder, run, tmp_path):
    _, failed = checked(WORDS[cause](folder, tmp_path / "out", MODEL_DIR, None), run)
    assert failed[0] == cause


def test_another_template_shows_where_the_two_part(folder, run):
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("'<|assistant|>'", "'<|assistant|>Sure: '"))
    checks, failed = checked(folder, run)
    assert failed == ["template_lost"]
    assert checks[1].found.startswith("40 of 40 differ; ")
    assert "'' in training, 'Sure: ' here" in checks[1].found


def test_a_template_that_is_missing_is_told_once(folder, run):
    (folder / "chat_template.jinja").unlink()
    checks, failed = checked(folder, run)
    assert failed == ["template_lost"]
    assert checks[1].found.endswith("finds no chat template")
    assert checks[2].found == "equal"


def test_a_template_that_fails_on_some_prompts(folder, run):
    template = folder / "chat_template.jinja"
    template.write_text(
        "{%- if messages[-1]['content'].startswith('What is 1') %}{{ raise_exception('no') }}{% endif -%}" + template.read_text()
    )
    checks, failed = checked(folder, run)
    assert failed == ["template_lost"]
    assert checks[1].found.startswith("4 of 40 differ; ")
    assert " is refused: " in checks[1].found


def test_a_bos_that_the_loading_software_adds_to_the_template_s(folder, run, home):
    """The common double BOS: the template writes one, as in training, and the tokenizer is told to add another."""
    base = shutil.copytree(MODEL_DIR, home / "with_bos")
    template = "{{ bos_token }}" + (base / "chat_template.jinja").read_text()
    for own in (base, folder):
        (own / "chat_template.jinja").write_text(template)
    trained = begun(name="b", policy=run.recipe().policy.model_copy(update={"name": str(base)}))
    assert not checked(folder, trained)[1]
    checks, failed = checked(folder, trained, adds_bos=True)
    assert failed == ["double_bos"]
    assert checks[1].found.endswith("two BOS tokens, which training had not")


def test_a_bos_that_training_did_not_have(folder, run):
    checks, failed = checked(folder, run, adds_bos=True)
    assert failed == ["tokenizer_differs"]
    assert "parts at 0: [4, " in checks[1].found
    assert "in training, [1, 4, " in checks[1].found


def test_a_text_that_only_lacks_the_bos_that_is_added_later_is_no_difference(folder, run, home):
    base = shutil.copytree(MODEL_DIR, home / "with_bos")
    (base / "chat_template.jinja").write_text("{{ bos_token }}" + (base / "chat_template.jinja").read_text())
    trained = begun(name="b", policy=run.recipe().policy.model_copy(update={"name": str(base)}))
    assert not checked(folder, trained, adds_bos=True)[1]


def test_another_vocabulary_shows_text_and_ids(folder, run):
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["merges"] = content["model"]["merges"][:20]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    checks, failed = checked(folder, run)
    assert failed == ["tokenizer_differs"] * 2
    assert "differ; " in checks[1].found
    assert " in training, [" in checks[1].found
    assert "differ; " in checks[2].found


def test_a_token_that_is_no_longer_special(folder, run):
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "<|assistant|>"]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    edit_json(folder / "tokenizer_config.json", extra_special_tokens=None)
    assert checked(folder, run)[1] == ["tokenizer_differs"]


@pytest.mark.parametrize(
    ("file", "changed", "said"),
    [
        ("generation_config.json", {"eos_token_id": None}, "None in generation_config.json"),
        ("generation_config.json", {"eos_token_id": [3, 1]}, "[3, 1] in generation_config.json"),
        ("config.json", {"eos_token_id": 3}, "3 in config.json"),
        ("tokenizer_config.json", {"eos_token": "<pad>"}, "'<pad>' in tokenizer_config.json"),
    ],
)
def test_each_file_names_eos(file, changed, said, folder, run):
    edit_json(folder / file, **changed)
    checks, failed = checked(folder, run)
    assert failed[0] == "eos_missing"
    assert said in checks[0].found


def test_more_than_one_eos_is_enough(folder, run):
    edit_json(folder / "generation_config.json", eos_token_id=[2, 3])
    edit_json(folder / "config.json", eos_token_id=None)
    assert not checked(folder, run)[1]


def test_an_eos_that_is_loaded_otherwise(folder, run):
    checks, failed = checked(folder, run, ends=[3])
    assert failed == ["eos_missing"]
    assert checks[0].found == "3 as it is loaded; training ended completions with 2 (</s>)"


def test_every_token_that_ended_completions_is_named(folder, run):
    run.update_manifest(eos_ids=[2, 5])
    assert checked(folder, run)[1] == ["eos_missing"]
    for file in ("generation_config.json", "config.json"):
        edit_json(folder / file, eos_token_id=[5, 2, 7])
    checks, failed = checked(folder, run)  # in its files, and not as it is loaded
    assert failed == ["eos_missing"]
    text = load_tokenizer().convert_ids_to_tokens(5)
    assert checks[0].found == f"2 as it is loaded; training ended completions with 2 (</s>), 5 ({text})"
    assert not checked(folder, run, ends=[2, 5, 7])[1]


def test_the_arguments_of_the_template_are_those_of_the_run(folder, run, home):
    base = shutil.copytree(MODEL_DIR, home / "thinker")
    template = (base / "chat_template.jinja").read_text() + "{{ 'quiet' if enable_thinking is false }}"
    for own in (base, folder):
        (own / "chat_template.jinja").write_text(template)
    kwargs = {"enable_thinking": False}
    policy = run.recipe().policy.model_copy(update={"name": str(base)})
    quiet = begun(name="q", policy=policy, grpo={"chat_template_kwargs": kwargs})
    assert not checked(folder, quiet, kwargs=kwargs)[1]
    assert checked(folder, quiet)[1] == ["template_lost"]


def test_prompts_that_are_plain_text_get_what_the_tokenizer_adds(folder, home):
    task = home / "task.py"
    task.write_text(
        "import workbench as wb\ndef short_reward(completions, **columns):\n    return [1.0] * len(completions)\n"
        "rows = [{'prompt': f'{n} + {n} ='} for n in range(8)]\n"
        "task = wb.Task('plain', rows[:6], [short_reward], held_out=rows[6:])\n"
    )
    run = begun(load_task(task))
    (folder / "chat_template.jinja").unlink()
    checks, failed = checked(folder, run)
    assert not failed
    assert checks[1].name == "ids of 8 rendered prompts"


def test_what_cannot_be_loaded_is_not_judged(folder, run, home):
    shutil.rmtree(run.rollouts)
    checks, failed = checked(folder, run)
    assert ([check.passed for check in checks], failed) == ([True, True, None], [])
    gone = begun(name="g")
    gone.recipe().model_copy(update={"task": "nowhere.py"}).save(gone.path / "recipe.yaml")
    assert [check.passed for check in checked(folder, gone)[0]] == [True, None, True]
    gone.update_manifest(attached=True)
    assert "task of the workbench" in checked(folder, gone)[0][1].found
    lost = begun(name="l", policy=run.recipe().policy.model_copy(update={"name": str(home / "nowhere")}))
    assert [check.passed for check in checked(folder, lost)[0]] == [None]
    assert [check.passed for check in check_tokens(Artefact(folder, "adapter", "x"), FakeReader(folder))] == [None]
