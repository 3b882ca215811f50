"""The fields and names of other libraries that the workbench relies on, asked of what is installed."""

from __future__ import annotations

import fnmatch
import inspect
from pathlib import Path

import pytest

from workbench.recipe import packaged
from workbench.run.inert import SWITCHES
from workbench.run.metrics import ENTROPY, REWARD, REWARD_STD, ZERO_STD, per_function
from workbench.training.plan import settings as settings_of
from workbench.training.plan.settings.algorithms import ALGORITHMS
from workbench.training.plan.settings.in_force import settings_in_force
from workbench.training.plan.settings.names import ALIASES
from workbench.training.plan.settings.values import BOUNDS, RANGES
from workbench.training.policy import trainer_classes


@pytest.fixture(scope="module")
def classes():
    return trainer_classes()


def test_every_default_is_a_field_of_grpoconfig(classes):
    assert set(settings_of.DEFAULTS) <= settings_of.field_names(classes[0])


def test_every_new_name_is_a_field_and_every_old_one_is_not(classes):
    fields = settings_of.field_names(classes[0])
    assert set(ALIASES.values()) <= fields
    assert not set(ALIASES) & fields - {"warmup_ratio"}


def test_the_tables_of_settings_name_fields_and_each_other(classes):
    fields = settings_of.field_names(classes[0])
    names, values = (packaged(Path(settings_of.__file__).with_name(f"{name}.yaml")) for name in ("names", "values"))
    assert {*RANGES, *values["choices"], *values["unbounded"], *values["shown"]} <= fields
    assert all({"names", "words"} < set(each) <= {"names", "words", "or", *BOUNDS} for each in values["ranges"])
    assert all(set(each) == {"names", "rule", "remedy"} for each in values["refused"])
    assert {name for each in values["refused"] for name in each["names"]} <= fields
    assert set(names["why_moved"]) <= set(names["moved"])
    assert set(names["silent_when_off"]) <= set(names["left_out"])
    assert set(names["meant"]) <= fields
    for algorithm in ALGORITHMS.values():
        assert {*algorithm.fields, *algorithm.with_loss} <= fields


def test_the_manifest_keeps_every_field_but_paths_and_secrets(classes, tmp_path):
    config = classes[0](output_dir=str(tmp_path / "elsewhere"), hub_token="hf_secret", num_generations=4, use_cpu=True)
    kept = settings_in_force(config)
    left_out = settings_of.field_names(classes[0]) - kept.keys()
    assert {"output_dir", "hub_token"} <= left_out
    assert len(left_out) < 25
    assert len(kept) > 140
    for name in (
        "importance_sampling_level",
        "delta",
        "use_bias_correction_kl",
        "top_entropy_quantile",
        "adam_beta2",
        "save_steps",
    ):
        assert kept[name] == getattr(config, name)
    assert "elsewhere" not in str(kept)
    assert "hf_secret" not in str(kept)


def test_every_name_of_the_table_of_inert_settings_is_a_setting(classes):
    fields = settings_of.field_names(classes[0])
    assert [name for switch in SWITCHES for name in switch.names.split() if not fnmatch.filter(fields, name)] == []


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


def test_the_loop_that_generates_finds_what_it_reads():
    """Names of transformers, PEFT, bitsandbytes and torch that `instruments/cpu/generation` reads and nobody promises."""
    import bitsandbytes
    import torch
    import transformers
    from peft.tuners.lora import LoraLayer
    from peft.tuners.lora.layer import Linear
    from transformers import cache_utils

    generate = inspect.getsource(transformers.GenerationMixin.generate)
    assert "custom_generate" in inspect.signature(transformers.GenerationMixin.generate).parameters
    assert "isinstance(custom_generate, Callable)" in generate
    assert "_pad_token_tensor" in inspect.getsource(transformers.GenerationMixin._prepare_special_tokens)
    assert "torch.multinomial(probs, num_samples=1)" in inspect.getsource(transformers.GenerationMixin._sample)
    for name in ("lazy_initialization", "update", "batch_select_indices", "get_seq_length", "get_mask_sizes"):
        assert callable(getattr(cache_utils.DynamicLayer, name)), name
    assert callable(cache_utils.DynamicCache.batch_select_indices)
    assert hasattr(torch.nn.modules.dropout, "_DropoutNd")
    source = inspect.getsource(LoraLayer) + inspect.getsource(Linear) + inspect.getsource(inspect.getmodule(LoraLayer))
    for name in ("lora_variant", "lora_dropout", "scaling", "cast_input_dtype_enabled", "active_adapters"):
        assert name in source or hasattr(LoraLayer, name), name
    layer = inspect.getsource(bitsandbytes.nn.Linear4bit)
    for name in ("compute_type_is_set", "compute_dtype", "support_avx512bf16_for_cpu", "packing_format_for_cpu"):
        assert name in layer, name


def test_trl_still_generates_by_the_models_own_generate(classes):
    """What `instruments/cpu/generation` stands in for: a call with ids, mask and settings by name."""
    source = inspect.getsource(classes[1]._generate_single_turn)
    assert "unwrapped_model.generate(" in source
    assert "**generate_inputs, generation_config=self.generation_config" in source
    assert '{"input_ids": padded_ids, "attention_mask": attention_mask}' in source
