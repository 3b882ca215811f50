"""What the workbench reads and replaces of a trainer is there: of TRL's own here, of Unsloth's compiled one on a GPU."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import workbench.train
from workbench.run.recipe import Recipe
from workbench.tiny.task import task as arithmetic
from workbench.train.policy import load_policy, trainer_classes
from workbench.train.session import build_config, build_trainer
from workbench.train.stages import fit, planned_stages

# Under plan/ a "trainer" is a call in somebody's script.
SOURCES = [p for p in sorted(Path(workbench.train.__file__).parent.rglob("*.py")) if p.parent.name != "plan"]


def names_used() -> set[str]:
    """Attributes of whatever is called `trainer` in workbench/train, also those that are asked for with getattr."""
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
def trainer(tmp_path_factory):
    """The trainer that a run of the embedded policy gets on this machine."""
    config_class, trainer_class = trainer_classes("unsloth")
    policy = load_policy("tiny")
    grpo = {"max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 16}
    [stage] = planned_stages(Recipe.of({"grpo": grpo}), arithmetic(16, 2), config_class)
    fit(stage, policy.tokenizer, policy.max_seq_length)
    yield build_trainer(
        trainer_class, build_config(config_class, stage, tmp_path_factory.mktemp("out"), policy), stage, policy
    )
    stage.suite.close()


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


@pytest.mark.parametrize(
    "called", ["self._generate(", "self._get_train_sampler", "self.create_scheduler(", "self._step "]
)
def test_what_is_replaced_on_the_trainer_is_looked_up_there(source, called):
    assert called in source


def test_prompts_are_padded_on_the_left(source):
    assert 'padding_side="left"' in source.replace(" = ", "=")


@pytest.mark.gpu
def test_on_a_gpu_it_is_unsloths_own(trainer):
    assert "unsloth" in f"{type(trainer).__module__}.{type(trainer).__name__}".lower()
