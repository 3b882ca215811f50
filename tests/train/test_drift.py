"""The fields and names of other libraries that the workbench relies on, asked of what is installed."""

from __future__ import annotations

import inspect

import pytest

from workbench.run.metrics import ENTROPY, REWARD, REWARD_STD, ZERO_STD, per_function
from workbench.train import plan
from workbench.train.manifest import _IN_FORCE
from workbench.train.policy import trainer_classes


@pytest.fixture(scope="module")
def classes():
    return trainer_classes()


def test_every_default_is_a_field_of_grpoconfig(classes):
    assert set(plan.DEFAULTS) <= plan.field_names(classes[0])


def test_every_new_name_is_a_field_and_every_old_one_is_not(classes):
    fields = plan.field_names(classes[0])
    assert set(plan.ALIASES.values()) <= fields
    assert not set(plan.ALIASES) & fields - {"warmup_ratio"}


def test_what_the_manifest_keeps_exists(classes):
    assert set(_IN_FORCE) <= plan.field_names(classes[0])


def test_the_trainer_still_logs_these_metrics(classes):
    source = inspect.getsource(inspect.getmodule(classes[1]))
    for name in (REWARD, REWARD_STD, ZERO_STD, ENTROPY, "completions/mean_length", "completions/clipped_ratio", "kl"):
        assert f'"{name}"' in source or f"'{name}'" in source, name
    assert per_function("x") == "rewards/x/mean"
    assert 'f"rewards/{reward_func_name}/mean"' in source


def test_the_trainer_takes_what_is_passed(classes):
    parameters = inspect.signature(classes[1].__init__).parameters
    assert {"model", "processing_class", "reward_funcs", "args", "train_dataset"} <= set(parameters)


def test_the_formula_of_the_advantage_is_still_trl_s(classes):
    """The constant and the two aggregations that `rewards/groups.py` repeats."""
    source = inspect.getsource(classes[1]._generate_and_score_completions)
    assert "std_rewards + 1e-4" in source
    assert "sum_then_normalize" in source
    assert "normalize_then_sum" in source


def test_unsloth_still_offers_what_is_called():
    import unsloth

    for name in ("from_pretrained", "get_peft_model", "for_inference", "for_training"):
        assert callable(getattr(unsloth.FastLanguageModel, name))
    parameters = inspect.signature(unsloth.FastLanguageModel.from_pretrained).parameters
    assert {"model_name", "max_seq_length", "dtype", "load_in_4bit"} <= set(parameters)
