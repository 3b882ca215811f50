"""Presets, and `wb.plan`: every one loads, is planned and trains a step; a plan says all that can be known beforehand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import workbench as wb
from workbench.base.errors import DataError, PolicyError, RecipeError, TaskError
from workbench.recipe import PolicyPart, Recipe
from workbench.tiny import MODEL_DIR
from workbench.tiny.task import task as arithmetic
from workbench.training.feature import Planned
from workbench.training.features.fitting import MemoryFit
from workbench.training.plan import settings as settings_of
from workbench.training.plan.presets import FOLDER, find_recipe, preset_names, read_source
from workbench.training.plan.settings.device import Machine
from workbench.training.policy import load_policy, trainer_classes
from workbench.training.trainer import train

NAMES = ["cpu", "gpu_24gb", "gpu_80gb", "t4"]
# Configurations that courses and blogs print, in working form: what is passed around must be planned and train.
PRINTED = sorted((Path(__file__).parent / "configurations").glob("*.yaml"))
FILES = [*(FOLDER / f"{name}.yaml" for name in NAMES), *PRINTED]
every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
GPU = Machine(cuda=True, bf16=True, vllm=True)


@pytest.fixture(scope="module")
def policy():
    """A policy of this module's own: the tests below train it."""
    return load_policy("tiny")


@pytest.fixture(scope="module")
def fields():
    return settings_of.field_names(trainer_classes()[0])


def test_these_are_the_presets():
    assert preset_names() == NAMES


@every_file
def test_a_preset_needs_no_correction(fields, file):
    recipe, name = Recipe.load(file), file.stem
    assert recipe.run_name == ("arithmetic" if name == "cpu" else name)
    assert recipe.policy.name == "tiny" or re.fullmatch(r"[\w-]+/[\w.-]+", recipe.policy.name)
    found, settings, notes = settings_of.normalised(recipe, fields, GPU)
    assert found == recipe, "every name is today's, and stands where it belongs"
    assert {**settings, **recipe.grpo} == settings, "every value is in force on a GPU with vLLM"
    settings_of.check_values(settings, settings_of.field_kinds(trainer_classes()[0]))
    settings_of.batch(settings)
    settings_of.check_lengths(recipe, settings)
    if not name.startswith("blog"):  # whose own numbers are kept, and said to be unusual
        assert [line for line in notes if "saves no memory in generation" not in line] == []


@every_file
def test_every_number_of_a_preset_is_explained(file):
    text = file.read_text(encoding="utf-8")
    bare = [line for line in text.splitlines() if re.search(r":\s*[\d.]", line) and "#" not in line]
    assert [line for line in bare if not line.startswith("seed:")] == []
    assert "Not measured on a GPU" in text or file.stem == "cpu"


@pytest.mark.slow
@every_file
def test_a_preset_trains_a_step_on_the_embedded_policy(home, policy, file):
    recipe = Recipe.load(file)
    grpo = {**recipe.grpo, "max_steps": 1, "max_completion_length": 24}
    count = grpo["num_generations"]
    if grpo["per_device_train_batch_size"] * grpo.get("gradient_accumulation_steps", 1) > 32:
        grpo |= {"per_device_train_batch_size": count, "gradient_accumulation_steps": 1}
        grpo.pop("steps_per_generation", None)
    changes = {"policy": PolicyPart(), "task": "arithmetic", "grpo": grpo}
    changes["max_prompt_length"] = recipe.max_prompt_length and min(recipe.max_prompt_length, 232)
    small = recipe.model_copy(update=changes)
    run = train(small, policy=policy, task=arithmetic(64, 8))
    assert run.manifest()["result"]["steps"] == 1
    assert run.manifest()["settings"]["in_force"]["learning_rate"] == recipe.grpo["learning_rate"]


def test_the_cpu_preset_is_the_demo(fields):
    assert Recipe.load(find_recipe("cpu")) == Recipe.load(MODEL_DIR.parent / "recipe.yaml")


def test_corrected_batches_are_those_that_were_worked_out_by_hand():
    batches = {file.stem: settings_of.batch({**settings_of.DEFAULTS, **Recipe.load(file).grpo}) for file in FILES}
    assert {name: (made.prompts, made.num_generations) for name, made in batches.items()} == {
        "blog": (2, 4), "blog_math": (3, 6), "course": (1, 8), "course_vllm": (2, 4), "cpu": (8, 8), "gemma": (1, 8),
        "gpu_24gb": (4, 8), "gpu_80gb": (4, 16), "large_gpu": (1, 16), "small_gpu": (1, 8), "t4": (1, 8),
    }  # fmt: skip


# Finding one.


def test_a_file_comes_before_a_preset_of_its_name(home):
    assert find_recipe("t4") == FOLDER / "t4.yaml"
    (home / "t4").write_text("run_name: own\n")
    assert find_recipe("t4") == home / "t4"


def test_a_name_that_is_neither_is_refused_with_the_nearest(home):
    with pytest.raises(RecipeError, match="(?s)'gpu_24': no such file.*did you mean 'gpu_24gb'"):
        find_recipe("gpu_24")
    with pytest.raises(RecipeError, match="the presets are cpu, gpu_24gb"):
        find_recipe("zzz")
    for name in ("mine.yaml", "mytask.py", "units.csv"):
        (home / name).write_text("")
    assert find_recipe("mine.yaml") == home / "mine.yaml"
    with pytest.raises(RecipeError, match="did you mean 'mine.yaml'"):
        find_recipe("mine.yml")
    with pytest.raises(RecipeError, match=r"(?s)mytask.py: not a recipe.*named in a recipe, as its `task:`"):
        find_recipe("mytask.py")
    with pytest.raises(RecipeError, match=r"(?s)units.csv: not a recipe.*rows belong to a task file"):
        find_recipe("units.csv")


# Plans.


def test_what_stands_in_for_a_scripts_own_is_named_and_measured_nowhere(home):
    script = home / "own.py"
    script.write_text("from trl import GRPOTrainer\nGRPOTrainer(model=args.name, train_dataset=rows, reward_funcs=f)\n")
    found = wb.plan(script, machine=Machine(cuda=False, bf16=True, vllm=False))
    assert "task unknown (arithmetic used instead), policy unknown (tiny used instead) through transformers" in str(found)
    assert (found.prompts, found.longest_tokens) == (None, None)
    assert "epoch" not in found.words


def test_a_plan_of_the_embedded_policy_knows_everything():
    found = wb.plan("cpu", machine=Machine(cuda=False, bf16=True, vllm=False))
    assert (found.batch.completions, found.batch.num_generations) == (64, 8)
    [line] = found.notes  # four measurements of 32, beside 45 steps of 64
    assert line.startswith("eval_every = 15: 32 held-out prompts of arithmetic, one completion each")
    assert line.endswith(": 4 % as many completions as training samples")
    assert found.words == (
        "45 steps; each learns from 64 completions (8 prompts x 8). 64 completions (8 prompts x 8) are generated at once; a "
        "forward pass takes 64. 2000 prompts give 250 steps per epoch: 45 steps are 0.18 epochs"
    )
    rows = {row.name: row for row in found.rows}
    assert rows["learning_rate"][1:] == (1e-3, 1e-5, 1e-3, "you")
    assert rows["max_grad_norm"].by == "workbench default"
    assert rows["seed"].in_force == 0
    assert found.prompts == 2000
    assert 20 < found.longest_tokens < 160
    text = str(found)
    assert text.startswith("cpu: task arithmetic, policy tiny through unsloth, 4-bit, 256 tokens, LoRA r 16\n45 steps;")
    assert re.search(r"learning_rate +0\.001 +1e-05 +0\.001 +you", text)
    data = json.loads(json.dumps(found.found()))
    assert data["recipe"]["policy"]["name"] == "tiny"
    assert {"name": "learning_rate", "asked": 1e-3, "default": 1e-5, "in_force": 1e-3, "by": "you"} in data["in_force"]


def test_a_model_of_no_shipped_shape_is_planned_without_the_hub(monkeypatch, caplog):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    asked = {"task": "arithmetic", "policy": {"name": "nobody/nothing-135M"}, "grpo": {"max_steps": 2}}
    found = wb.plan(Recipe.of(asked), vram_gb=24)
    assert found.memory is None
    why = "policy 'nobody/nothing-135M': the hub cannot be reached (OfflineModeIsEnabled)"
    assert [line for line in found.notes if line.startswith("not ")] == [
        f"not checked: {why}; so no prompt was measured with its tokenizer",
        f"not estimated: memory; {why}",
    ]
    assert found.prompts == 2000
    assert not caplog.records, "the hub's client writes a line for each try"


def test_memory_is_not_estimated_of_a_model_that_the_script_does_not_name():
    script = "from trl import GRPOConfig\nargs = GRPOConfig(max_steps=5, max_completion_length=64)\n"
    found = wb.plan(script, vram_gb=24)
    assert found.memory is None
    assert found.notes[-1] == "not estimated: memory, because no model name could be read from the script"
    named = wb.plan(script + "GRPOTrainer('tiny', args=args)\n", vram_gb=24)
    assert named.memory.fits


@pytest.mark.parametrize(
    ("asked", "row"),
    [
        ({"seed": 0}, (0, 0, 0, "you")),
        ({"seed": 7}, (7, 0, 7, "you")),
        ({"grpo": {"random_state": 7}}, (7, 0, 7, "you")),
        ({}, (None, 0, 0, "workbench default")),
    ],
)
def test_the_seed_is_whose_it_is(asked, row):
    [found] = [one for one in wb.plan(Recipe.of(asked)).rows if one.name == "seed"]
    assert found[1:] == row


@pytest.mark.parametrize("name", ["t4", str(PRINTED[2])])
def test_without_the_hub_the_rest_is_planned_and_that_is_said(name, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = wb.plan(name)
    unknown = [line for line in found.notes if line.startswith("not checked: ")]
    assert len(unknown) == 2
    assert all("the hub cannot be reached" in line for line in unknown)
    assert found.prompts is None
    assert "a forward pass takes" in found.words
    assert "epoch" not in found.words.partition(";")[2]


def test_a_script_is_planned_as_text_and_as_a_file(home):
    script = (
        "config = GRPOConfig(per_device_train_batch_size=1, gradient_accumulation_steps=4, num_generations=8,\n"
        "    max_completion_length=64, kl_coef=0.01, max_steps=5)\n"
    )
    (home / "train.py").write_text(script)
    for source in (script, "train.py"):
        found = wb.plan(source)
        assert found.settings["gradient_accumulation_steps"] == 8
        assert "kl_coef is called beta in this version: beta = 0.01" in found.notes
        rows = {row.name: row for row in found.rows}
        assert rows["gradient_accumulation_steps"][1:] == (4, 1, 8, "changed by the workbench")
        assert found.recipe.task == "arithmetic"


@pytest.mark.parametrize(
    ("recipe", "error", "said"),
    [
        ({"grpo": {"learning_rate": "abc"}}, RecipeError, "learning_rate = 'abc'"),
        ({"grpo": {"learning_rat": 1}}, RecipeError, "did you mean 'learning_rate'"),
        ({"grpo": {"steps_per_generation": 3, "per_device_train_batch_size": 1}}, RecipeError, "= 3 completions"),
        ({"grpo": {"max_completion_length": 256}}, RecipeError, "policy.max_seq_length = 256"),
        ({"grpo": {"max_completion_length": 250}}, DataError, "longest prompt"),
        ({"grpo": {"per_device_train_batch_size": 80_000}}, RecipeError, "2000 prompts.*no step is trained"),
        ({"grpo": {"auto_find_batch_size": True}}, RecipeError, "auto_find_batch_size = True"),
        ({"task": "nothing.py"}, TaskError, "no such file"),
        ({"policy": {"name": "nothing"}}, PolicyError, "'nothing': unknown"),
        ({"reward_weights": {"wrong_reward": 1.0}}, RecipeError, "reward_weights: 'wrong_reward'"),
        ({"stages": [{"name": "a", "steps": 1, "grpo": {"betta": 1}}]}, RecipeError, "did you mean 'beta'"),
    ],
)
def test_what_would_stop_the_training_stops_the_plan(recipe, error, said):
    with pytest.raises(error, match=f"(?s){said}"):
        wb.plan(Recipe.of(recipe))


def test_stages_are_planned_one_by_one():
    stages = [{"name": "a", "steps": 3}, {"name": "b", "steps": 4, "grpo": {"kl_coef": 0.01}}]
    found = wb.plan(Recipe.of({"stages": stages}))
    assert re.search(r"stage 'a': 3 steps; .*stage 'b': 4 steps; ", found.words)
    assert found.recipe.stages[1].grpo == {"beta": 0.01}


@pytest.mark.parametrize(
    ("grpo", "steps", "line"),
    [
        (
            {"max_steps": 500, "num_train_epochs": 3},
            [3, 4],
            "the steps of the stages decide: 3 + 4 = 7; grpo.max_steps = 500 and grpo.num_train_epochs = 3 do not count "
            "beside them",
        ),
        ({"max_steps": 500}, [6], "the steps of the stages decide: 6; grpo.max_steps = 500 does not count beside them"),
        ({}, [3, 4], None),
        ({"max_steps": -1}, [3, 4], None),
    ],
)
def test_the_steps_of_the_stages_decide_and_that_is_said(grpo, steps, line):
    stages = [{"name": f"s{number}", "steps": each} for number, each in enumerate(steps)]
    recipe = Recipe.of({"stages": stages, "grpo": grpo})
    found = wb.plan(recipe)
    assert [note for note in found.notes if "decide" in note or "max_steps" in note] == ([line] if line else [])
    assert settings_of.stages_decide(recipe) == ([line] if line else [])
    rows = {row.name: row for row in found.rows}
    assert (rows["max_steps"].in_force, rows["max_steps"].by) == (sum(steps), "stages")
    assert rows["max_steps"].asked == grpo.get("max_steps")
    assert settings_of.stages_decide(Recipe.of({"grpo": grpo})) == []


def test_memory_is_asked_with_what_is_known(monkeypatch):
    seen = []
    look = lambda *known: seen.append(known) or (True, ["told"], {"gb": 0.1})  # noqa: E731
    monkeypatch.setattr(MemoryFit, "plan", classmethod(lambda cls, asked: Planned(memory=look)))
    found = wb.plan("cpu")
    assert found.found()["memory"] == {"gb": 0.1}
    assert "{'gb': 0.1}" in str(found)
    assert (found.settings["gradient_checkpointing"], found.notes[1:]) == (True, ("told",))
    [([(recipe, settings, longest)], machine, decided)] = seen
    assert (recipe.run_name, settings["num_generations"], longest) == ("arithmetic", 8, found.longest_tokens)
    assert (machine, decided) == (found.machine, None)


def test_a_file_that_is_neither_is_refused(home):
    (home / "cells.ipynb").write_text("{}")
    with pytest.raises(RecipeError, match="(?s)not a recipe.*one .py file"):
        read_source("cells.ipynb")


@pytest.mark.slow
def test_the_plain_backend_is_planned_without_unsloth():
    script = (
        f"import sys\nimport workbench as wb\nfound = wb.plan({str(PRINTED[2])!r})\n"
        "assert 'unsloth' not in sys.modules\nprint(found.settings['num_generations'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "8", done.stderr[-2000:]
