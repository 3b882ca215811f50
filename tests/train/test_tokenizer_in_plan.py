"""What a policy's tokenizer decides is found by `plan`, before anything is trained; paths start from the recipe's folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import workbench as wb
from workbench.base.errors import DataError, PolicyError, RecipeError, RunError
from workbench.task import Task
from workbench.tiny import MODEL_DIR
from workbench.training.plan.prepare import settled

GRPO = {"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 40}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def policy(folder: Path, special: tuple[str, ...] = (), added: tuple[str, ...] = (), pad: str = "") -> Path:
    """A copy of the embedded policy whose tokenizer has other tokens, and whose embedding is as it was."""
    from transformers import AutoTokenizer

    shutil.copytree(MODEL_DIR, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": [*special]})
    tokenizer.add_tokens([*added])
    if pad:
        tokenizer.add_special_tokens({"pad_token": pad})
    tokenizer.save_pretrained(folder)
    return folder


def recipe(name: object, **more) -> wb.Recipe:
    own = {"name": str(name), "backend": "transformers", "load_in_4bit": False}
    return wb.Recipe.of({"policy": own, "grpo": GRPO, **more})


def planned_on(words: str, count: int = 8) -> Task:
    def fine_reward(completions, **_):
        return [float(len(turn[0]["content"]) % 2) for turn in completions]

    rows = [{"prompt": [{"role": "user", "content": f"{words} {number}"}], "answer": "1"} for number in range(count)]
    return Task("planned", rows, [fine_reward])


def test_tags_that_vanish_are_a_warning_of_the_plan(home):
    special = policy(home / "special", special=("<answer>", "</answer>"))
    notes = [note for note in wb.plan(recipe(special)).notes if note.startswith("WARNING: <answer> </answer>")]
    assert len(notes) == 1
    assert not [note for note in wb.plan(recipe("tiny")).notes if "vanish" in note]
    loaded = wb.load_policy(recipe(special))  # and measured again as loaded
    assert notes[0] in settled(wb.plan(recipe(special)), loaded).notes


def test_a_prompt_with_a_token_that_the_embedding_lacks_is_refused_before_loading(home):
    bigger = policy(home / "bigger", added=("<|plan|>", "<|done|>"))
    with pytest.raises(PolicyError) as refused:
        wb.plan(recipe(bigger), planned_on("<|plan|> add"))
    rows = json.loads((MODEL_DIR / "config.json").read_text())["vocab_size"]
    assert "<|plan|>" in refused.value.value
    assert f"the embedding {rows} rows" in refused.value.value
    assert "resize_token_embeddings" in refused.value.remedy
    wb.plan(recipe(bigger), planned_on("add"))  # nobody uses them
    assert wb.load_policy(recipe(bigger)).tokenizer.embedded == rows


def test_a_padding_token_that_the_embedding_lacks_is_refused_by_plan_and_by_load(home):
    padded = policy(home / "padded", added=("<|a|>",), pad="<|mypad|>")
    for door in (wb.plan, wb.load_policy):
        with pytest.raises(PolicyError, match="mypad"):
            door(recipe(padded))


def test_a_template_that_refuses_a_system_message_has_a_remedy_for_a_task_file(home):
    shutil.copytree(MODEL_DIR, home / "nosystem")
    template = home / "nosystem/chat_template.jinja"
    refuses = "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}{% endfor %}"
    template.write_text(refuses + template.read_text())
    with pytest.raises(DataError) as refused:
        wb.plan(recipe(home / "nosystem"))
    assert "user's message" in refused.value.remedy


def test_what_the_policy_s_own_generation_config_adds_is_named(home):
    own = shutil.copytree(MODEL_DIR, home / "own")
    file = own / "generation_config.json"
    content = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**content, "no_repeat_ngram_size": 3, "top_p": 0.8, "min_p": 0.1}))
    said = [note for note in wb.plan(recipe(own)).notes if "generation_config" in note]
    assert len(said) == 1
    assert "min_p = 0.1" in said[0]
    assert "no_repeat_ngram_size = 3" in said[0]
    assert "top_p" not in said[0]  # TRL says it in each call
    same = {**GRPO, "generation_kwargs": {"no_repeat_ngram_size": 0}, "min_p": 0.2}
    assert not [note for note in wb.plan(recipe(own, grpo=same)).notes if "generation_config" in note]


# -- paths
@pytest.fixture
def written(home):
    folder = home / "recipes"
    folder.mkdir()
    (folder / "task.py").write_text("import workbench as wb\ntask = wb.load_task('arithmetic')\n")
    text = "task: task.py\npolicy: {name: ../mine, backend: transformers, load_in_4bit: false}\n"
    (folder / "r.yaml").write_text(text + f"grpo: {json.dumps(GRPO)}\n")
    shutil.copytree(MODEL_DIR, home / "mine")
    return folder / "r.yaml"


def test_task_and_policy_are_looked_for_beside_the_recipe(home, written, monkeypatch):
    shutil.copytree(MODEL_DIR, home.parent / "mine", dirs_exist_ok=True)  # what `../mine` is from the current folder
    (home / "task.py").write_text("raise RuntimeError('another task')\n")
    loaded = wb.Recipe.load("recipes/r.yaml")
    assert loaded.task == str(written.parent / "task.py")
    assert loaded.policy.name == str(home / "mine")
    assert wb.plan("recipes/r.yaml").recipe.policy.name == loaded.policy.name
    monkeypatch.chdir(written.parent)
    assert wb.Recipe.load("r.yaml").policy.name in ("../mine", str(home / "mine"))


def test_what_only_the_current_folder_has_is_taken_with_a_line(home, written):
    (written.parent / "task.py").rename(home / "task.py")
    plan = wb.plan("recipes/r.yaml")
    assert plan.recipe.task == "task.py"
    assert [note for note in plan.notes if note.startswith("task.py is not beside the recipe")]


def test_an_embedded_name_is_no_folder_beside_the_recipe(home, written):
    shutil.copytree(MODEL_DIR, written.parent / "tiny")
    written.write_text("policy: tiny\ntask: arithmetic\n")
    (written.parent / "arithmetic").mkdir()
    loaded = wb.Recipe.load(written)
    assert (loaded.policy.name, loaded.task) == ("tiny", "arithmetic")


def test_a_recipe_is_found_from_the_workspace_and_a_missing_one_says_where(home, written, monkeypatch):
    (home / "notebooks").mkdir()
    monkeypatch.chdir(home / "notebooks")
    assert wb.Recipe.load("recipes/r.yaml").grpo["max_steps"] == 2
    with pytest.raises(RecipeError) as missing:
        wb.Recipe.load("recipes/none.yaml")
    assert str(home) in missing.value.remedy


@pytest.mark.parametrize("kind", ["file", "mapping", "recipe"])
def test_a_run_is_started_from_a_file_a_mapping_or_a_recipe(home, kind):
    content = {"run_name": "a/b"}
    (home / "r.yaml").write_text("run_name: a/b\n")
    given = {"file": "r.yaml", "mapping": content, "recipe": wb.Recipe.of(content)}[kind]
    with pytest.raises(RunError, match="a/b"):  # as far as it can be told without a process
        wb.start(given)
    with pytest.raises(RecipeError, match="none.yaml"):
        wb.start("none.yaml")


# -- damaged weights
@pytest.mark.slow
def test_weights_that_are_no_numbers_before_the_first_update_are_damaged(home):
    from safetensors.torch import load_file, save_file

    damaged = shutil.copytree(MODEL_DIR, home / "damaged")
    weights = load_file(damaged / "model.safetensors")
    name = next(name for name in weights if "down_proj" in name)
    weights[name][0, 0] = float("nan")
    save_file(weights, damaged / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RunError) as refused:
        wb.train(recipe(damaged))
    assert "nothing has been updated" in refused.value.value
    assert "learning_rate" not in refused.value.remedy


def test_the_plan_s_lines_are_printed_once(home, capsys):
    plan = wb.plan(recipe("tiny", grpo={**GRPO, "epsilon": 0.2}))
    line = next(note for note in plan.notes if note.startswith("epsilon does nothing"))
    trainer = wb.make_trainer(plan, wb.load_policy(plan))
    print(plan)
    wb.attach(trainer, plan)
    assert capsys.readouterr().out.count(line) == 1
