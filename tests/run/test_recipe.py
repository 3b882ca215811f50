"""Recipes: a round trip, and an error that names the field for whatever is wrong."""

from __future__ import annotations

import pytest

from workbench.errors import RecipeError
from workbench.recipe import Recipe


def test_round_trip(tmp_path):
    recipe = Recipe.of({"task": "arithmetic", "grpo": {"beta": 0.001}, "lora": {"r": 8}, "seed": 3})
    recipe.save(tmp_path / "recipe.yaml")
    assert Recipe.load(tmp_path / "recipe.yaml") == recipe


def test_a_number_that_yaml_takes_for_text_is_a_number(tmp_path):
    (tmp_path / "recipe.yaml").write_text("grpo: {learning_rate: 1e-5, beta: 1.0e-3, loss_type: dapo}")
    assert Recipe.load(tmp_path / "recipe.yaml").grpo == {"learning_rate": 1e-5, "beta": 1e-3, "loss_type": "dapo"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"polcy": {}}, "did you mean 'policy'"),
        ({"policy": {"load_in_4bits": True}}, "policy.load_in_4bits.*\n.*\n.*did you mean 'load_in_4bit'"),
        ({"learning_rate": 1e-5}, "settings of trl.GRPOConfig go under `grpo:`"),
        ({"lora": {"r": 0}}, "lora.r = 0"),
        ({"seed": "one"}, "seed = 'one'"),
        ({"policy": {"max_seq_length": 8}}, "max_seq_length = 8"),
        ({"rewards": {"on_error": "ignore"}}, "rewards.on_error = 'ignore'.*'stop' or 'skip'"),
        ({"rewards": {"deadline_s": 0}}, "rewards.deadline_s = 0.*greater than 0"),
        ({"rewards": {"deadline_s": "soon"}}, "rewards.deadline_s = 'soon'"),
        ({"rewards": {"deadline": 5}}, "rewards.deadline = 5.*did you mean 'deadline_s'"),
        ({"reward": {}}, "did you mean 'rewards'"),
    ],
)
def test_what_is_wrong_is_named(content, said):
    with pytest.raises(RecipeError, match=f"(?s){said}"):
        Recipe.of(content)


def test_what_a_failing_reward_does_to_the_run(tmp_path):
    assert (Recipe().rewards.deadline_s, Recipe().rewards.on_error) == (60.0, "stop")
    (tmp_path / "recipe.yaml").write_text("rewards: {deadline_s: null, on_error: skip}")
    recipe = Recipe.load(tmp_path / "recipe.yaml")
    assert (recipe.rewards.deadline_s, recipe.rewards.on_error) == (None, "skip")
    recipe.save(tmp_path / "again.yaml")
    assert Recipe.load(tmp_path / "again.yaml") == recipe


def test_a_policy_may_be_a_word():
    assert Recipe.of({"policy": "tiny"}).policy == Recipe().policy


@pytest.mark.parametrize(
    ("text", "said"),
    [("a: [1", "valid YAML"), ("- 1\n- 2", "holds a list"), ("", "empty")],
    ids=["torn", "list", "empty"],
)
def test_files(tmp_path, text, said):
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(RecipeError, match=said):
        Recipe.load(file)


def test_a_missing_file(tmp_path):
    with pytest.raises(RecipeError, match="no such file"):
        Recipe.load(tmp_path / "none.yaml")
