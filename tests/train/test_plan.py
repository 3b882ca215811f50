"""Settings and batch arithmetic: old names translated and said, unknown ones refused, whole groups only."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from workbench.run.errors import RecipeError
from workbench.run.recipe import Recipe
from workbench.train.plan import (
    CHOICES,
    DEFAULTS,
    Batch,
    batch,
    check_prompts,
    check_values,
    field_kinds,
    in_words,
    settings,
)
from workbench.train.policy import trainer_classes

FIELDS = {*DEFAULTS, "num_train_epochs", "loss_type", "steps_per_generation", "generation_batch_size", "top_p"}


def of(**grpo):
    return settings(Recipe(grpo=grpo), FIELDS)


def test_what_is_asked_wins_over_the_defaults():
    found, notes = of(learning_rate=1e-3, top_p=0.9)
    assert found == {**DEFAULTS, "learning_rate": 1e-3, "top_p": 0.9}
    assert notes == []


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("kl_coef", "beta", 0.05),
        ("max_new_tokens", "max_completion_length", 256),
        ("num_generation", "num_generations", 4),
        ("warmup_ratio", "warmup_steps", 0.1),
    ],
)
def test_old_names_are_translated_and_said(old, new, value):
    found, [note] = of(**{old: value})
    assert found[new] == value
    assert old not in found
    assert old in note
    assert new in note


def test_old_and_new_name_with_different_values_is_an_error():
    with pytest.raises(RecipeError, match=r"kl_coef = 0.05 and grpo.beta = 0.1"):
        of(kl_coef=0.05, beta=0.1)
    assert of(kl_coef=0.05, beta=0.05)[0]["beta"] == 0.05


def test_max_steps_none_is_one_epoch():
    found, notes = of(max_steps=None)
    assert found["max_steps"] == -1
    assert found["num_train_epochs"] == 1
    assert "max_steps" in notes[0]


@pytest.mark.parametrize(("name", "near"), [("learning_rat", "learning_rate"), ("numgenerations", "num_generations")])
def test_unknown_names_are_refused_with_the_nearest(name, near):
    with pytest.raises(RecipeError, match=f"(?s)grpo.{name} = 1.*did you mean '{near}'"):
        of(**{name: 1})


@pytest.mark.parametrize("name", ["max_prompt_length", "reward_weights", "seed", "output_dir"])
def test_what_belongs_elsewhere_is_sent_there(name):
    with pytest.raises(RecipeError, match=f"(?s)grpo.{name}.*recipe field"):
        of(**{name: 1})


@pytest.mark.parametrize(
    ("grpo", "expected"),
    [
        ({"per_device_train_batch_size": 64, "num_generations": 8}, Batch(64, 8)),
        ({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "num_generations": 16}, Batch(32, 16)),
        ({"per_device_train_batch_size": 1, "gradient_accumulation_steps": 32, "steps_per_generation": 8}, Batch(8, 8)),
        ({"generation_batch_size": 24}, Batch(24, 8)),
    ],
)
def test_batch_arithmetic(grpo, expected):
    assert batch(of(**grpo)[0]) == expected


def test_prompts_of_a_batch():
    assert Batch(64, 8).prompts == 8


@pytest.mark.parametrize(
    ("grpo", "said"),
    [
        # Presets that are passed around for small and large GPUs: each a batch that its groups do not divide.
        (
            dict(per_device_train_batch_size=1, gradient_accumulation_steps=4, num_generations=8),
            "= 4 completions, and num_generations = 8",
        ),
        (
            dict(per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=16),
            "= 8 completions, and num_generations = 16",
        ),
        (
            dict(per_device_train_batch_size=1, gradient_accumulation_steps=16, num_generations=6),
            "= 16 completions, and num_generations = 6",
        ),
        (dict(num_generations=1), "num_generations = 1"),
    ],
)
def test_groups_that_are_not_whole_are_refused(grpo, said):
    with pytest.raises(RecipeError, match=said):
        batch(of(**grpo)[0])


@pytest.mark.parametrize(
    ("grpo", "said"),
    [
        ({"generation_batch_size": 20}, "generation_batch_size 20 = 20 completions.*make the batch 24"),
        ({"steps_per_generation": 3, "num_generations": 16}, "8 x steps_per_generation 3 = 24 completions.*batch 32"),
    ],
)
def test_the_error_names_the_factors_that_were_used(grpo, said):
    with pytest.raises(RecipeError, match=f"(?s){said}"):
        batch(of(**grpo)[0])


def test_the_remedy_names_legal_neighbours():
    with pytest.raises(RecipeError, match=r"num_generations to 4 or 8"):
        batch(of(per_device_train_batch_size=16, num_generations=6)[0])


@pytest.mark.parametrize(("prompts", "enough"), [(7, False), (8, True)])
def test_fewer_prompts_than_a_batch_are_refused(prompts, enough):
    if enough:
        check_prompts(prompts, Batch(64, 8))
    else:
        with pytest.raises(RecipeError, match=r"(?s)7 prompts.*takes 8 different prompts.*no step is trained"):
            check_prompts(prompts, Batch(64, 8))


@pytest.fixture(scope="module")
def kinds():
    return field_kinds(trainer_classes()[0])


@pytest.mark.parametrize(
    ("grpo", "said"),
    [
        ({"max_steps": "two"}, "max_steps = 'two'.*a whole number.*without quotes"),
        ({"max_steps": "45"}, "max_steps = '45'.*a whole number.*without quotes"),
        ({"max_steps": 0}, "max_steps = 0.*at least 1, or -1"),
        ({"learning_rate": "abc"}, "learning_rate = 'abc'.*is a number"),
        ({"learning_rate": -1}, "learning_rate = -1.*above 0.*1e-05 is the default"),
        ({"temperature": 0}, "temperature = 0.*above 0"),
        ({"beta": -1}, "beta = -1.*at least 0"),
        ({"loss_type": "foo"}, "loss_type = 'foo'.*one of grpo, bnpo"),
        ({"loss_type": "dapoo"}, "loss_type = 'dapoo'.*did you mean 'dapo'"),
        ({"scale_rewards": 1}, "scale_rewards = 1.*one of group, batch"),
        ({"gradient_checkpointing": "yes"}, "gradient_checkpointing = 'yes'.*true or false"),
        ({"top_p": 1.5}, "top_p = 1.5.*at most 1"),
        ({"max_steps": True}, "max_steps = True.*a whole number"),
    ],
)
def test_values_that_cannot_work_are_refused_before_anything_is_built(kinds, grpo, said):
    with pytest.raises(RecipeError, match=f"(?s){said}"):
        check_values(of(**grpo)[0], kinds)


@pytest.mark.parametrize(
    "grpo",
    [{}, {"learning_rate": 1, "max_steps": -1, "scale_rewards": False, "loss_type": "dr_grpo", "warmup_steps": 0.1}],
)
def test_values_that_work_pass(kinds, grpo):
    check_values(of(**grpo)[0], kinds)


def test_the_choices_are_those_of_the_installed_trainer():
    package = Path(importlib.util.find_spec("trl").origin).parent
    source = (package / "trainer" / "grpo_trainer.py").read_text(encoding="utf-8")
    compared = re.findall(r'self\.loss_type (?:==|in) (\[[^\]]+\]|"\w+")', source)
    found = {word for text in compared for word in re.findall(r'"(\w+)"', text)}
    assert found == set(CHOICES["loss_type"])


def test_in_words():
    assert in_words(Batch(64, 8), of(max_steps=60)[0], 2000) == (
        "60 steps; each generates 64 completions: 8 prompts x 8; 2000 prompts give 250 steps an epoch"
    )
