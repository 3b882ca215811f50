"""What the workbench reads and replaces of a trainer is there: of TRL's own here, of Unsloth's compiled one on a GPU."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import workbench.training
from workbench.recipe import Recipe
from workbench.tiny.task import task as arithmetic
from workbench.training.around import kinds
from workbench.training.plan.prepare import prepare
from workbench.training.playing import trainer_parts
from workbench.training.policy import load_policy
from workbench.training.replaced import OWNERS, replace
from workbench.training.trainer import make_trainer

# Under settings/ a "trainer" is a call in somebody's script.
SOURCES = [p for p in sorted(Path(workbench.training.__file__).parent.rglob("*.py")) if p.parent.name != "settings"]


def names_used() -> set[str]:
    """Attributes of whatever is called `trainer` in workbench/training, also those that are asked for with getattr."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and _is_trainer(node.value):
                found.add(node.attr)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
                asked, name = node.args[:2]
                found |= {name.value} if _is_trainer(asked) and isinstance(name, ast.Constant) else set()
    return found


def _is_trainer(node: ast.expr) -> bool:
    return getattr(node, "id", getattr(node, "attr", "")) == "trainer"


@pytest.fixture(scope="module")
def trainer():
    """The trainer that a run of the embedded policy gets on this machine."""
    policy = load_policy("tiny")
    grpo = {"max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 16}
    return make_trainer(prepare(Recipe.of({"grpo": grpo}), arithmetic(16, 2), policy=policy), policy)


@pytest.fixture(scope="module")
def source(trainer) -> str:
    """The source of the trainer's class and of those that it is made of."""
    return "".join(inspect.getsource(kind) for kind in type(trainer).__mro__ if kind is not object)


def test_every_name_that_is_used_is_there(trainer, source):
    used = names_used()
    # If the scan finds less than is known to be used, it is the scan that is broken.
    known = {"_generate", "_step", "_buffered_inputs", "_get_train_sampler", "_save_checkpoint", "create_scheduler"}
    assert known <= used
    # One of them is set when training begins.
    missing = [name for name in sorted(used) if not hasattr(trainer, name) and f"self.{name} =" not in source]
    assert missing == []


@pytest.mark.parametrize("called", ["self._generate(", "self._get_train_sampler", "self.create_scheduler(", "self._step "])
def test_what_is_replaced_on_the_trainer_is_looked_up_there(source, called):
    assert called in source


def assigned_in_the_sources() -> set[str]:
    """Methods that anything in workbench/training puts on a trainer by an assignment, which no registration sees."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES]
    assigned = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    functions = [node for node in assigned if isinstance(node.value, ast.Lambda)]
    return {to.attr for node in functions for to in node.targets if isinstance(to, ast.Attribute) and _is_trainer(to.value)}


def test_every_method_that_is_replaced_is_registered_where_that_is_done(trainer):
    by_features = {name for kind in kinds() for name in kind.around(_Bare(), trainer)}
    importlib.import_module("workbench.training.theirs")  # which attach imports
    # If less is found than is known to be replaced, it is the search that is broken.
    assert {"_compute_loss", "get_off_policy_mask"} <= by_features <= set(OWNERS)
    assert set(OWNERS) == {
        "train", "_generate", "_save_checkpoint", "_generate_and_score_completions", "_calculate_rewards", "_compute_loss",
        "_get_per_token_logps_and_entropies", "get_off_policy_mask", "create_scheduler", "_get_train_sampler",
        "create_model_card", "rollout_func",
    }  # fmt: skip
    assert set(OWNERS["_generate_and_score_completions"]) == {"TheirSession", "Turns", "Curriculum"}
    assert assigned_in_the_sources() == set()
    assert trainer.rollout_func is None  # the task's own, where it has one
    assert [name for name in OWNERS if not callable(getattr(trainer, name, None))] == ["rollout_func"]


def test_a_method_that_nobody_registered_is_not_replaced(trainer):
    with pytest.raises(LookupError, match="log"):
        replace(trainer, "log", print)
    assert "log" not in vars(trainer)


def test_what_rollouts_outside_a_trainer_are_given_is_what_a_trainer_has(trainer, source):
    parts = trainer_parts(load_policy("tiny"), arithmetic(4, 2))
    # One of them is set where there are tools.
    assert [name for name in parts if not hasattr(trainer, name) and f"self.{name}" not in source] == []


class _Bare:
    """A feature before a run: what `around` reads of it, and a trainer is not touched."""

    noted: dict = {}  # noqa: RUF012
    callbacks = ()
    why_not = None


def test_prompts_are_padded_on_the_left(source):
    assert 'padding_side="left"' in source.replace(" = ", "=")


@pytest.mark.gpu
def test_on_a_gpu_it_is_unsloths_own(trainer):
    assert "unsloth" in f"{type(trainer).__module__}.{type(trainer).__name__}".lower()


COMPILED = """
import sys
sys.path[:0] = sys.argv[2:]
from workbench.training import policy
policy._unsloth()
from unsloth.models import rl
rl._patch_trl_rl_trainers("grpo_trainer")  # as `import unsloth` does where there is a GPU
config_class, trainer_class = policy.trainer_classes("unsloth")
assert trainer_class.__name__ == "UnslothGRPOTrainer"
trained, generate = [], trainer_class._generate_and_score_completions
def watched(self, inputs):
    found = generate(self, inputs)
    trained.extend(found["advantages"].tolist())
    return found
trainer_class._generate_and_score_completions = watched
import workbench as wb
from workbench.recipe import Recipe
from workbench.run.rollouts import query
from workbench.tiny.task import task
from workbench.training.trainer import train
grpo = {"max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 24,
        "loss_type": "dr_grpo", "scale_rewards": "group"}
recipe = Recipe.of({"grpo": grpo, "policy": {"load_in_4bit": False}})
run = train(recipe, task=task(8, 4), runs=sys.argv[1])
recorded = sorted(query(run.rollouts)["advantage"])  # a step's order is shuffled after they are recorded
assert max(abs(a - b) for a, b in zip(recorded, sorted(trained), strict=True)) < 1e-5, (recorded, trained)
assert any(recorded), recorded
assert run.manifest()["settings"]["in_force"]["scale_rewards"] == "group"
[row] = [row for row in wb.plan(recipe, task=task(8, 4)).rows if row.name == "scale_rewards"]
assert (row.asked, row.in_force, row.by) == ("group", "group", "you")
"""


@pytest.mark.slow
def test_dr_grpo_with_scaling_is_trained_and_recorded_as_asked_by_unsloths_class_too(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", COMPILED, str(tmp_path / "runs"), *sys.path], capture_output=True, text=True, check=False,
        cwd=tmp_path, env={**os.environ, "UNSLOTH_COMPILE_LOCATION": str(tmp_path / "compiled")},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
