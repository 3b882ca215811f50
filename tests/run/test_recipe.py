"""Recipes: a round trip, and an error that names the field for whatever is wrong."""

from __future__ import annotations

import re

import pytest

from workbench.base.errors import RecipeError
from workbench.recipe import NAMED_POLICIES, Recipe, template_kwargs
from workbench.tiny.named import named_policies
from workbench.training import around
from workbench.training.feature import Asked
from workbench.training.plan.settings import overridden


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
        ({"seed": 2**32}, "seed = 4294967296"),
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


# -- bounds --------------------------------------------------------------------------------------------------------------
def _bomb(levels: int) -> str:
    lines = [f"a0: &a0 [{', '.join('x' * 9)}]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, levels)]
    return "\n".join(lines)


def _merges(levels: int) -> str:
    lines = [f"  a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 10)}]}}" for level in range(1, levels)]
    return "\n".join(["grpo:", "  a0: &a0 {x: 1}", *lines])


@pytest.mark.timeout(100)  # without a bound some of these took longer than that; with it, a second
@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (_bomb(9), "aliases"),
        ("grpo:\n  " + _bomb(8).replace("\n", "\n  "), "aliases"),
        ("grpo: &all\n  a: *all\n", "aliases"),
        ("grpo: &all\n  a: {<<: *all}\n", "aliases"),
        (_merges(8), "aliases"),
        ("grpo:\n  a: &a " + "x" * 900_000 + "\n  b: [" + ", ".join(["*a"] * 9_000) + "]\n", "aliases"),
        ("run_name: " + "x" * 50_000_000, "at most 1 MB"),
        ("grpo: " + "[" * 3_000 + "]" * 3_000, "aliases"),
        ("grpo: " + "[" * 500_000, "aliases"),
        ("seed: " + "9" * 100_000, "valid YAML"),
        ("grpo: {max_steps: " + "9" * 4_000 + "}", "63 bits"),
        ("grpo: {a: [" + "1, " * 300_000 + "1]}", "aliases"),
        ("stages:\n" + "".join(f"- {{name: s{number}, steps: 1}}\n" for number in range(3_000)), "at most 100 items"),
    ],
    ids=[
        "bomb", "bomb-in-grpo", "itself", "merges-itself", "merges", "text", "50-MB", "deep", "deeper", "huge", "huge-setting",
        "long", "stages",
    ],
)  # fmt: skip
def test_a_recipe_without_bounds_is_refused_at_once(tmp_path, text, rule):
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(RecipeError) as error:
        Recipe.load(tmp_path / "r.yaml")
    assert re.search(rule, error.value.rule)
    assert len(error.value.value) < 1000
    assert not re.search(r"(?<!\b1) MB", error.value.value)  # only the beginning of a large file is read


@pytest.mark.parametrize("text", ["grpo.beta=" + "[" * 3_000, "seed=" + "9" * 5_000, "grpo.max_steps=" + "9" * 4_000])
def test_a_value_without_bounds_is_refused(text):
    with pytest.raises(RecipeError):
        overridden(Recipe(), [text])


@pytest.mark.parametrize("text", ["!!int ''", "!!int _", "!!bool x", "!!float ''", "!!timestamp x", "!!set {a}", "!mine x"])
def test_a_tag_is_refused_with_its_line(tmp_path, text):
    (tmp_path / "r.yaml").write_text(f"run_name: !!str 1\nseed: {text}\n")
    with pytest.raises(RecipeError, match=r"line 2: the tag [\s\S]*rule: [\s\S]*remedy: "):
        Recipe.load(tmp_path / "r.yaml")


@pytest.mark.parametrize("value", ["[" * 100_000, '{"a": ' + "[" * 100 + "]" * 100 + "}", '{"a": ' + "9" * 4_000 + "}"])
def test_arguments_of_a_template_without_bounds_are_refused(value):
    with pytest.raises(RecipeError) as error:
        template_kwargs(value)
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize(
    "content",
    [
        {"run_name": "\ud800"},
        {"grpo": {"run_name": "a\udfff"}},
        {"stages": [{"name": "a", "steps": 1, "prompts": {"\ud800": 1}}]},
    ],
)
def test_a_lone_surrogate_is_in_no_recipe(content):
    with pytest.raises(RecipeError, match="UTF-8"):  # it could not be read again
        Recipe.of(content)


def test_aliases_that_repeat_a_little_are_taken(tmp_path):
    lines = "stages:\n- {name: a, steps: 1, grpo: &own {beta: 0.1}}\n- {name: b, steps: 1, grpo: {<<: *own}}\n"
    (tmp_path / "r.yaml").write_text(lines)
    assert [stage.grpo for stage in Recipe.load(tmp_path / "r.yaml").stages] == [{"beta": 0.1}] * 2


@pytest.mark.parametrize(("name", "value"), [("api_key", "0123456789"), ("persona", "hf_" + "a" * 20)])
def test_a_template_is_given_no_key(name, value):
    with pytest.raises(RecipeError, match="holds a key") as error:
        template_kwargs({name: value})
    assert value not in str(error.value)
    assert template_kwargs({"bos_token": "<|begin_of_text|>", "enable_thinking": False})


def test_a_recipe_knows_the_policies_that_are_no_path():
    assert named_policies().keys() == NAMED_POLICIES


@pytest.mark.parametrize(("field", "value"), [("curriculum", True), ("difficulty", "auto"), ("judge", "accept")])
def test_what_an_instrument_reads_is_refused_where_that_is_not_there(field, value, monkeypatch):
    monkeypatch.setattr(around, "TABLE", {})
    with pytest.raises(RecipeError, match=field) as caught:
        around.planned(Asked(Recipe.of({"task": "reasoning_gym/chain_sum", field: value})))
    assert "instrument" in caught.value.rule
