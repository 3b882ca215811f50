"""Without the extras: every command that looks at rewards, data and runs works, the others say which extra they need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from recording import record

import workbench as wb
from workbench.base.instruments import TABLE
from workbench.task import fingerprint
from workbench.training.resuming import sum_of_state

ABSENT = ("torch", "trl", "unsloth", "unsloth_zoo", "transformers", "peft", "datasets", "bitsandbytes")
# Read by every Python that is begun with it: workers and servers of reward functions, too.
BLOCKER = """
import importlib.metadata, sys
from importlib.machinery import PathFinder

class Absent(PathFinder):
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in {absent} else PathFinder.find_spec(name, path, target)

def from_name(name, found=importlib.metadata.Distribution.from_name):
    if name in {absent}:
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)

sys.meta_path[sys.meta_path.index(PathFinder)] = Absent
importlib.metadata.Distribution.from_name = from_name
"""


@pytest.fixture(scope="module")
def light(tmp_path_factory) -> Path:
    """A workspace with one run that was stopped and saved, in whose Pythons those libraries are neither imported nor listed."""
    home = tmp_path_factory.mktemp("light")
    (home / "sitecustomize.py").write_text(BLOCKER.format(absent=ABSENT))
    task = wb.load_task("arithmetic")
    row = {**task.rows[0], "prompt_id": 0}
    right = f"<reasoning>\nit is so\n</reasoning>\n<answer>\n{row['answer']}\n</answer>\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_HOME", str(home))
        run = record(task, [[(row, [right, "<answer>", "?", right])]] * 3)
        folder = run.checkpoints / "checkpoint-2"
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text("{}")
        (folder / "trainer_state.json").write_text('{"global_step": 2, "max_steps": 3}')
        state = {"stage": 0, "step": 2, "done": 2, "run": run.identity, "files": {}}
        (folder / "state.json").write_text(json.dumps(state | {"sha256": sum_of_state(state)}))
        prompts = {"rows": fingerprint(task.rows), "held_out": fingerprint(task.held_out)}
        run.update_manifest(task=prompts, result={"status": "stopped", "steps": 2, "minutes": 1.0})
        run.release()
    return home


def python(home: Path, *arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "WORKBENCH_HOME": str(home), "PYTHONPATH": str(home)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=home)


def workbench(home: Path, *arguments: str) -> subprocess.CompletedProcess:
    return python(home, "-m", "workbench", *arguments)


def test_they_are_really_absent(light):
    for module in ABSENT:
        ended = python(light, "-c", f"import {module}")
        assert f"No module named '{module}'" in ended.stderr
        ended = python(light, "-c", f"import importlib.metadata as m; m.version({module!r})")
        assert "PackageNotFoundError" in ended.stderr


@pytest.mark.parametrize(
    ("words", "holds"),
    [
        (("check", "arithmetic"), "rows read"),
        (("probe", "arithmetic"), "nothing is wrong"),
        *([(("probe", "guess_the_number"), "each member of a group begins in the same state")] * ("games" in TABLE)),
        (("replay", "r", "--task", "arithmetic", "--weight", "style_reward=0"), "advantages"),
        (("report", "r", "--markdown"), "written: runs/r/report.md"),
        (("watch", "r", "--once"), "step"),
        (("explain", "reward_std"), "TRL 1.14.2"),
        (("control", "--help"), "learning_rate"),
    ],
    ids=lambda words: words[0] if isinstance(words, tuple) else "",
)
def test_a_command_that_looks_works(light, words, holds):
    ended = workbench(light, *words)
    assert ended.returncode == 0, ended.stderr
    assert holds in ended.stdout


def test_doctor_exits_with_1_where_nothing_can_train_and_says_what_to_install(light):
    ended = workbench(light, "doctor")
    assert ended.returncode == 1, ended.stderr
    assert "pip install '.[train]'" in ended.stdout


def test_the_reward_lab_scores(light):
    script = "import workbench as wb; lab = wb.Lab('arithmetic'); print(lab.parts['seen-0'].value); lab.close()"
    ended = python(light, "-c", script)
    assert ended.returncode == 0, ended.stderr
    assert "total <b>" in ended.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "cpu"),
        ("plan", "cpu", "--set", "policy.load_in_4bit=true"),
        ("train", "cpu"),
        ("demo",),
        ("check", "arithmetic", "--policy", "tiny"),
        ("check", "openai/gsm8k"),
        ("probe", "arithmetic", "--policy", "tiny"),
    ],
    ids=" ".join,
)
def test_a_command_that_needs_a_model_names_the_extra(light, words):
    ended = workbench(light, *words)
    assert ended.returncode == 2
    assert "MissingError: " in ended.stderr
    assert "pip install '.[train]'" in ended.stderr
    assert "grpo-workbench[" not in ended.stderr, "nothing was released under that name"
    assert "do not" not in ended.stderr, "a rule that lists what works without it"
    assert "Traceback" not in ended.stderr


DEFAULTS = """
import workbench as wb
from workbench.training.plan.measuring import without_extras
for policy in ({}, {"load_in_4bit": True}, {"backend": "unsloth", "load_in_4bit": False}):
    recipe = wb.Recipe(policy=policy)
    try: lines = without_extras(recipe)
    except wb.errors.WorkbenchError as error: lines = [f"{type(error).__name__} {error.value}: {error.remedy}"]
    print(recipe.policy.backend, recipe.policy.load_in_4bit, *lines, sep=" | ")
"""


@pytest.fixture
def without(light, tmp_path):
    """A workspace in whose Pythons only Unsloth and bitsandbytes are absent."""
    blocker = BLOCKER.format(absent=("unsloth", "unsloth_zoo", "bitsandbytes"))
    (tmp_path / "sitecustomize.py").write_text(blocker)
    return tmp_path


def test_without_unsloth_and_bitsandbytes_the_defaults_are_plain_and_16_bits_each_with_a_line(without):
    script = DEFAULTS.replace("import workbench as wb", "import workbench as wb, workbench.base.errors")
    none, four_bits, unsloth = python(without, "-c", script).stdout.splitlines()
    assert none.startswith("transformers | False | policy.backend = 'transformers': Unsloth is not installed here")
    assert "| policy.load_in_4bit = False: bitsandbytes is not installed here" in none
    assert four_bits.startswith("transformers | True | MissingError bitsandbytes is not installed here: ")
    assert "policy.load_in_4bit: false" in four_bits
    assert unsloth == "unsloth | False"  # trainer_classes says what is missing


SCRIPT = """
from unsloth import FastLanguageModel
from trl import GRPOConfig, GRPOTrainer

model, tokenizer = FastLanguageModel.from_pretrained(model_name="tiny", max_seq_length=256, load_in_4bit=False)
model = FastLanguageModel.get_peft_model(model, r=8)
args = GRPOConfig(max_steps=2, num_generations=4, per_device_train_batch_size=8, max_completion_length=64)
GRPOTrainer(model=model, reward_funcs=[reward], args=args, train_dataset=rows).train()
"""
PLANS = """
import workbench as wb
for said in ([], ["policy.backend=transformers"]):
    made = wb.plan("train.py", said=said)
    notes = [line for line in made.notes if "policy.backend" in line]
    print(made.recipe.policy.backend, *notes, sep=" | ")
    made.recipe.save(f"asked{len(said)}.yaml", portable=True)
wb.plan("cpu").recipe.save("cpu.yaml", portable=True)
"""


def test_a_script_for_unsloth_is_planned_where_there_is_none_and_its_recipe_is_left_to_the_next_machine(without):
    (without / "train.py").write_text(SCRIPT)
    ended = python(without, "-c", PLANS)
    assert ended.returncode == 0, ended.stderr
    alone, told = [line for line in ended.stdout.splitlines() if line.startswith("transformers")]
    assert "line 5: policy.backend = 'unsloth' is left out: Unsloth is not installed here" in alone
    assert "is left out" not in told
    written = {name: yaml.safe_load((without / f"{name}.yaml").read_text())["policy"] for name in ("asked0", "asked1", "cpu")}
    assert "backend" not in written["asked0"]
    assert written["asked1"]["backend"] == "transformers"
    assert written["asked0"]["load_in_4bit"] is False, "the script says so"
    assert not {"backend", "load_in_4bit"} & written["cpu"].keys(), "nobody does"


@pytest.mark.slow
def test_without_unsloth_and_bitsandbytes_it_trains_and_plans_in_16_bits(without):
    recipe = wb.Recipe(run_name="plain", grpo={"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8})
    (without / "recipe.yaml").write_text("run_name: plain\ngrpo: " + str(recipe.grpo))
    ended = workbench(without, "plan", "recipe.yaml")
    assert ended.returncode == 0, ended.stderr
    assert "through transformers, 16-bit" in ended.stdout
    assert "policy.backend = 'transformers'" in ended.stdout
    ended = workbench(without, "train", "recipe.yaml")
    assert ended.returncode == 0, ended.stderr
    policy = wb.open_run(without / "runs" / "plain").manifest()["policy"]
    assert (policy["backend_name"], policy["linear4bit"]) == ("transformers", 0)
    ended = workbench(without, "plan", "recipe.yaml", "--set", "policy.backend=unsloth")
    assert ended.returncode == 2
    assert "MissingError: unsloth is not installed here" in ended.stderr
    assert "uv pip install -e '.[unsloth]'" in ended.stderr


# Every function of the face that imports one of the eight, as a person calls it.
CALLS = {
    "plan": "wb.plan(wb.Recipe())",
    "load_policy": "wb.load_policy('tiny')",
    "train": "wb.train(wb.Recipe())",
    "start": "wb.start(wb.Recipe())",
    "attach": "wb.attach(object())",
    "preview": "wb.preview(task.rows, 'tiny')",
    "prompt_lengths": "wb.prompt_lengths(task.rows, 'tiny')",
    "open_source": "wb.open_source('openai/gsm8k')",
    "merge_risk": "wb.inspection.merge_risk(run)",
    "export": "wb.export(run)",
    "ask": "wb.ask('.', 'What is 15 + 27?')",
    "chat": "wb.chat('.')",
    "prove": "wb.prove(Artefact(run.path, 'adapter', 'tiny', run=run))",
    "evaluate": "wb.evaluate(run)",
    "sample": "wb.sample(wb.load_policy('tiny'), ['What is 15 + 27?'])",
    "continue_run": "wb.continue_run(run)",
    "RewardModel": "RewardModel('nowhere').scores(prompts=['a'], completions=['b'])",
}


def test_no_function_raises_an_import_error_without_a_remedy(light):
    script = "import workbench as wb\nfrom workbench.rewards.models import RewardModel\n"
    script += "from workbench.exporting.artefacts import Artefact\n"
    script += "task, run = wb.load_task('arithmetic'), wb.open_run('r')\n"
    for name, call in CALLS.items():
        script += f"try: {call}\nexcept Exception as error: met = error\n"
        script += f"print({name!r}, type(met).__name__, \"'.[\" in str(met), sep=': ')\n"
    ended = python(light, "-c", script)
    assert ended.returncode == 0, ended.stderr
    said = dict(line.split(": ", 1) for line in ended.stdout.splitlines() if line.partition(":")[0] in CALLS)
    assert said == dict.fromkeys(CALLS, "MissingError: True")
