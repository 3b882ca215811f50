"""Which settings did anything: told before the run by its plan, after it by its record, and held against the adapters' bits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import workbench as wb
from workbench.base.errors import RecipeError
from workbench.base.instruments import TABLE
from workbench.health import OK, SKIPPED, RunConfig, diagnose
from workbench.recipe import Recipe, packaged
from workbench.run.inert import inert_in_plan, more_updates, ratio_is_one
from workbench.run.machine import environment
from workbench.training.building import taken_together
from workbench.training.plan import settings as settings_of
from workbench.training.plan.settings.combinations import completed
from workbench.training.plan.settings.in_force import defaults_of
from workbench.training.policy import trainer_classes

NOTHING = "nothing here"


def lines(**grpo: Any) -> list[str]:
    return settings_of.normalised(Recipe.of({"grpo": grpo}), settings_of.field_names(trainer_classes()[0]))[2]


def every_field(settings: dict[str, Any]) -> dict[str, Any]:
    return completed({"logging_steps": 1, "max_grad_norm": 0.0, **settings}, defaults_of(trainer_classes("transformers")[0]))


def judged(settings: dict[str, Any], asked: tuple[str, ...] = (), steps: int = 45, **row: Any):
    usual = {"grad_norm": 0.31, "ratio/low": 1.0, "ratio/high": 1.0, "clip_ratio/region_mean": 0.0}
    rows = [{"step": step, **usual, **row} for step in range(1, steps + 1)]
    config = RunConfig.of(every_field(settings), asked=asked)
    return next(each for each in diagnose([], rows, config) if each.name == "inert_settings")


# -- after a run ---------------------------------------------------------------------------------------------------------
def test_the_demo_s_line():
    found = judged({"epsilon": 0.2, "max_grad_norm": 1.0, "beta": 0.0})
    assert found.state == OK  # nobody asked for them
    assert found.line == (
        "epsilon, epsilon_high, delta: inert (ratio 1 in 45 of 45 steps); "
        "max_grad_norm: inert (reached in 0 of 45 steps: grad_norm 0.31 at most)"
    )
    assert found.remedy == ""
    assert (found.first_step, found.last_step) == (1, 45)


@pytest.mark.parametrize("row", [{"groups/dead": 1.0, "grad_norm": 0.0}])
def test_where_every_group_was_dead_no_setting_is_judged(row):
    assert judged({"max_grad_norm": 1.0}, **row).state == SKIPPED


def test_a_norm_of_0_asks_for_no_lower_bound():
    assert "max_grad_norm" not in judged({"max_grad_norm": 1.0}, grad_norm=0.0).remedy


def test_what_struck_is_live():
    off = {"ratio/low": 0.7, "ratio/high": 1.6, "clip_ratio/low_mean": 0.0, "clip_ratio/high_mean": 0.1, "ratio/masked": 0.25}
    settings = {"num_iterations": 2, "epsilon": 0.5, "epsilon_high": 0.5, "delta": 1.5, "off_policy_mask_threshold": 0.1}
    found = judged({**settings, "beta": 0.1, "max_grad_norm": 0.3, "mask_truncated_completions": True}, (), 4, **off, kl=0.2,
                   **{"completions/clipped_ratio": 0.5})  # fmt: skip
    assert found.evidence["inert"] == ["epsilon"]
    live = {
        "epsilon_high",
        "delta",
        "off_policy_mask_threshold",
        "num_iterations",
        "beta",
        "max_grad_norm",
        "mask_truncated_completions",
    }
    assert set(found.evidence["live"]) == live
    assert "epsilon: inert (clipped in 0 of 4 steps: the ratio went from 0.7 to 1.6)" in found.line
    assert "mask_truncated_completions (took 50% of the completions out of the loss)" in found.line


def test_without_an_inert_setting_it_is_ok():
    off = {"ratio/low": 0.7, "ratio/high": 1.6, "clip_ratio/region_mean": 0.1}
    assert judged({"num_iterations": 2, "epsilon": 0.2}, (), 4, **off).state == OK


def test_where_the_ratio_is_not_measured_the_settings_say_it_or_nobody():
    unmeasured = {"ratio/low": None, "ratio/high": None}
    assert "epsilon_high, delta: inert (one update per generation, so the ratio is exactly 1)" in judged({}, **unmeasured).line
    found = judged({"num_iterations": 2, "delta": 4.0}, (), 4, **unmeasured, **{"clip_ratio/region_mean": None})
    assert found.line == "no setting can be judged"
    assert next(each for each in diagnose([], [{"step": 1}], RunConfig()) if each.name == "inert_settings").state == SKIPPED


def test_what_vllm_s_correction_computes_apart_is_one_but_for_rounding():
    near = {"ratio/low": 0.9999, "ratio/high": 1.0001}
    found = judged({"use_vllm": True}, ("delta",), **near)
    assert "delta: inert (ratio 1 in 45 of 45 steps, and only rounding differs)" in found.line
    assert "inert (clipped in 0 of 45 steps" in judged({}, **near).line


def test_a_record_that_lacks_a_setting_is_not_judged():
    settings = every_field({})
    del settings["max_grad_norm"]
    verdicts = diagnose([], [{"step": 1}], RunConfig.of(settings))
    found = next(each for each in verdicts if each.name == "inert_settings")
    assert (found.state, found.evidence["missing"]) == (SKIPPED, "max_grad_norm")


def test_norms_between_logged_steps_are_not_known():
    assert "max_grad_norm" not in judged({"max_grad_norm": 1.0, "logging_steps": 5}).line


# -- before a run --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "one"),
    [
        ({}, True),
        ({"num_iterations": 2}, False),
        ({"gradient_accumulation_steps": 4}, True),  # all four passes are one update
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 8}, False),
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 2, "num_iterations": 2}, True),
        ({"per_device_train_batch_size": 8, "generation_batch_size": 16}, False),
        ({"use_vllm": True}, True),  # but for rounding: the old probabilities are computed apart
        ({"use_vllm": True, "vllm_importance_sampling_correction": False}, True),
    ],
)
def test_when_the_ratio_is_one(settings, one):
    assert ratio_is_one(every_field(settings)) == one


def test_the_smallest_change_is_one_that_helps():
    settings = every_field({"gradient_accumulation_steps": 4, "steps_per_generation": 1})
    assert more_updates(settings).endswith("num_iterations = 3")  # two passes of one would still be half of an update
    assert not ratio_is_one({**settings, "num_iterations": 3})


@pytest.mark.parametrize(
    ("settings", "inert"),
    [
        ({"epsilon": 0.2, "epsilon_high": 0.28, "delta": 4.0}, {"epsilon", "epsilon_high", "delta"}),
        ({"delta": 0.5}, set()),  # it cuts a ratio of 1
        ({"epsilon": 0.2, "num_iterations": 2}, set()),
        ({"loss_type": "cispo", "epsilon_high": 5.0}, {"epsilon_high", "loss_type"}),
        ({"loss_type": "cispo", "epsilon_high": 0.5}, set()),
        ({"loss_type": "sapo", "epsilon": 0.2}, {"epsilon", "loss_type"}),
        ({"importance_sampling_level": "sequence"}, {"importance_sampling_level"}),
        ({"importance_sampling_level": "sequence", "beta": 0.1}, set()),  # the corrected KL's gradient goes through the ratio
        ({"importance_sampling_level": "sequence", "top_entropy_quantile": 0.2}, set()),
        ({"off_policy_mask_threshold": 0.1}, {"off_policy_mask_threshold"}),
        ({"vespo_k_pos": 1.0}, {"vespo_k_pos"}),
        ({"use_bias_correction_kl": False}, {"use_bias_correction_kl"}),
        ({"eval_steps": 5, "per_device_eval_batch_size": 4}, {"eval_steps", "per_device_eval_batch_size"}),
        ({"optim": "adafactor", "adam_beta2": 0.9}, {"adam_beta2"}),
        ({"use_vllm": True, "epsilon": 0.2, "loss_type": "cispo", "epsilon_high": 5.0}, {"epsilon", "epsilon_high", "loss_type"}),
        ({"vllm_max_model_length": 512, "ref_model_sync_steps": 64}, {"vllm_max_model_length", "ref_model_sync_steps"}),
        ({"lr_scheduler_type": "constant_with_warmup", "lr_scheduler_kwargs": {"x": 1}}, {"lr_scheduler_kwargs"}),
        ({"temperature": 0.9, "top_entropy_quantile": 0.2, "entropy_coef": 0.01, "beta": 0.01}, set()),
    ],
)
def test_what_will_do_nothing(settings, inert):
    assert {name for idle in inert_in_plan(every_field(settings), settings) for name in idle.names} == inert


def test_a_default_is_not_named_and_its_name_is():
    assert lines() == []
    [line] = lines(epsilon=0.2)
    assert line.startswith(f"epsilon does {NOTHING}: one update per generation")
    assert line.endswith("num_iterations = 2")


def test_the_change_that_is_named_is_one_that_works():
    [line] = [line for line in lines(loss_type="vespo", delta=4.0) if line.startswith("delta does nothing")]
    assert line.endswith("to make a difference: loss_type = 'dapo', and several updates per generation: num_iterations = 2")
    assert not [line for line in lines(loss_type="dapo", delta=4.0, num_iterations=2, epsilon=0.2) if "nothing here" in line]
    [line] = [line for line in lines(importance_sampling_level="sequence", beta=0.01, loss_type="grpo") if "KL term's" in line]
    assert "set num_iterations to 2" in line


def test_what_was_asked_for_comes_first_and_one_reason_is_given_once():
    found = judged({"loss_type": "vespo", "max_grad_norm": 1.0, "delta": 4.0, "epsilon": 0.1}, asked=("delta", "epsilon"))
    assert found.line.startswith("epsilon, delta: inert (loss_type = 'vespo' does not read it); max_grad_norm: inert")


@pytest.mark.parametrize(
    ("grpo", "said"),
    [
        ({"loss_type": "luspo"}, "arXiv:2602.05261"),
        ({"loss_type": "vespo", "importance_sampling_level": "sequence"}, "weights whole sequences by itself"),
        ({"loss_type": "dapo", "importance_sampling_level": "sequence", "epsilon": 3e-4}, "counts by its length"),
        ({"loss_type": "grpo", "importance_sampling_level": "sequence"}, "with epsilon = 0.2"),
        ({"importance_sampling_level": "sequence", "top_entropy_quantile": 0.2}, "also to those of low entropy"),
        ({"epsilon_high": 0.1}, "epsilon_high = 0.1 is below epsilon = 0.2"),
        ({"delta": 1.1}, "delta = 1.1 is not above 1 + epsilon"),
        ({"epsilon": 1.5, "num_iterations": 2}, "nothing is ever clipped below"),
        ({"num_iterations": 2, "steps_per_generation": 1, "gradient_accumulation_steps": 2}, "the same gradient 2 times"),
        ({"warmup_steps": 5}, "warmup_steps does nothing here: lr_scheduler_type = 'constant'"),
        ({"scale_rewards": "group", "multi_objective_aggregation": "normalize_then_sum"}, "scale_rewards does nothing here"),
        ({"entropy_target": 0.1}, "use_adaptive_entropy is off"),
        ({"use_adaptive_entropy": True, "entropy_coef": 0.01}, "Unsloth's loss has no such controller"),
        ({"num_iterations": 8}, "num_iterations = 8 without epsilon"),
    ],
)
def test_combinations(grpo, said):
    assert len([line for line in lines(**grpo) if said in line]) == 1
    assert not [line for line in lines(num_iterations=2, epsilon=0.2, epsilon_high=0.28, delta=4.0) if "(" in line]


def test_each_combination_says_what_is_wrong_whose_word_that_is_and_what_to_do():
    from trl import GRPOConfig

    from workbench.training.plan.settings import combinations
    from workbench.training.plan.settings.combinations import _Own, applying

    told = packaged(Path(combinations.__file__).with_suffix(".yaml"))
    assert len(told) >= 15
    settings = completed({}, defaults_of(GRPOConfig))
    assert list(told) == list(applying(_Own(Recipe(), settings)))
    assert all(set(words) == {"wrong", "source", "remedy"} and all(words.values()) for words in told.values())


def test_with_vllm(monkeypatch):
    from workbench.training.plan.settings.combinations import advice

    recipe, vllm = Recipe(grpo={}), {"use_vllm": True}
    assert any("trl#6789" in line for line in advice(recipe, {**vllm, "top_p": 0.9}))
    assert not advice(recipe, vllm)
    with pytest.raises(RecipeError, match="token_truncate"):
        advice(recipe, {**vllm, "loss_type": "vespo"})


def test_what_the_libraries_warn_of_is_noted():
    assert any("use_transformers_paged" in line for line in wb.plan(Recipe(grpo={"use_transformers_paged": True})).notes)
    import logging
    import warnings

    with taken_together() as heard:
        logging.getLogger("trl.trainer.grpo_trainer").warning("mind %s", "this")
        logging.getLogger("trl.trainer.grpo_trainer").warning("`'luspo'` is said in the plan's own words")
        warnings.warn("and\n that", FutureWarning, stacklevel=1)
        warnings.warn("silenced by TRL_EXPERIMENTAL_SILENCE=1", UserWarning, stacklevel=1)
    assert heard == ["TRL warns: mind this", "Python warns: and that"]
    assert not logging.getLogger("trl").handlers


# -- the manifest --------------------------------------------------------------------------------------------------------
def test_the_environment_without_secrets_and_paths(monkeypatch):
    own = {"UNSLOTH_SEQ": "1", "VLLM_MAX_NUM_BATCHED_TOKENS": "64", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    hidden = dict.fromkeys(("VLLM_API_KEY", "TRL_TOKEN", "VLLM_PASSWD", "VLLM_PASSPHRASE", "VLLM_AUTH", "TRL_CREDENTIALS"), "x")
    hidden |= {"PYTORCH_HOME": "/somewhere", "TRL_HUB_TOKENS": "abc", "VLLM_SERVER_SECRET_KEY_V2": "x", "VLLM_PWD": "x"}
    hidden |= {"UNSLOTH_PROXY": "http://me:hunter2@host", "VLLM_NAMED_SO": "hf_" + "a" * 20, "VLLM_HTTP_AUTHORIZATION": "Basic x"}
    hidden |= {
        "VLLM_A": "https://x.org/?token=1",
        "VLLM_B": '{"api_key": "x"}',
        "VLLM_C": "~/x",
        "VLLM_D": "eyJhbGciOi.eyJzdWIi.x",
    }
    hidden |= {"UNSLOTH_LICENSE": "AB12CD34", "UNSLOTH_X": "SECRETpassword1", "PYTORCH_FOO": "bar", "TRL_PIN": "123456"}
    nothing = {"OTHER_SEQ": "1", "UNSLOTH_IS_PRESENT": "1"}
    for name, value in (own | hidden | nothing).items():
        monkeypatch.setenv(name, value)
    found = environment()
    assert own.items() <= found.items()
    assert {found[name] for name in hidden} == {"set, not shown"}
    assert not nothing.keys() & found.keys()


def recipe(name: str, **grpo: Any) -> dict[str, Any]:
    own = {"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "save_steps": 1, **grpo}
    return {"run_name": name, "policy": {"backend": "transformers", "load_in_4bit": False}, "grpo": own}


@pytest.mark.slow
@pytest.mark.skipif("several" not in TABLE, reason="its instrument is not here")
def test_another_variable_is_said_where_a_run_goes_on_and_where_runs_are_compared(home, monkeypatch, capsys):
    variable = "UNSLOTH_GRPO_LOSS_AGGREGATION"
    monkeypatch.delenv(variable, raising=False)
    one = wb.train(recipe("one"))
    monkeypatch.setenv(variable, "prompt")
    two = wb.train(recipe("two"))
    assert two.manifest()["environment"][variable] == "prompt"
    assert wb.inspection.compare_runs(one, two).settings.frame["setting"].tolist() == [f"found.environment.{variable}"]

    settings = two.manifest()["settings"]
    earlier = {name: settings["in_force"][name] for name in ("beta", "learning_rate")} | {"beta": 0.04}
    two.update_manifest(settings={**settings, "in_force": earlier})  # a record made elsewhere holds fewer
    told = wb.inspection.compare_runs(one, two).settings.frame["setting"].tolist()
    assert told == ["grpo.beta", f"found.environment.{variable}"]

    settings = one.manifest()["settings"]  # as a library whose default was another had it
    one.update_manifest(settings={**settings, "in_force": {**settings["in_force"], "epsilon": 0.1}})
    capsys.readouterr()
    wb.continue_run(one, steps=1)
    said = capsys.readouterr().out
    assert f"not as when one was begun: {variable}: not set -> prompt" in said
    assert one.manifest()["environment_after"]["2"][variable] == "prompt"
    wb.continue_run(one, steps=1)
    assert variable not in capsys.readouterr().out  # as it was when the run was last trained
    assert list(one.manifest()["environment_after"]) == ["2"]
    told = wb.inspection.compare_runs(one, wb.train(recipe("three"))).settings.frame["setting"].tolist()
    assert {"grpo.max_steps", f"found.environment_after.2.{variable}"} <= {*told}
    assert "effective epsilon: 0.1 -> 0.2" in said


@pytest.mark.slow
def test_what_is_in_force_is_compared_in_a_later_stage_too(home, capsys):
    stages = [{"name": "one", "steps": 1}, {"name": "two", "steps": 1, "grpo": {"temperature": 0.9}}]
    run = wb.train({**recipe("staged"), "stages": stages})
    capsys.readouterr()
    wb.continue_run(run, steps=1)
    assert not re.search(r"effective \w+: .* -> ", capsys.readouterr().out)
    settings = run.manifest()["settings"]
    earlier = {**settings["in_force"], "epsilon": 0.1, "of_before": 1}
    del earlier["delta"]
    run.update_manifest(settings={**settings, "in_force": earlier})
    wb.continue_run(run, steps=1)
    assert re.findall(r"effective (\w+): (.*)", capsys.readouterr().out) == [
        ("delta", "no such setting -> None"), ("epsilon", "0.1 -> 0.2"), ("of_before", "1 -> no such setting"),
    ]  # fmt: skip


# -- switches, and what the weights say ----------------------------------------------------------------------------
TWICE = {"num_iterations": 2}
CASES = {
    # name: (the others' values, the switch, whether it is inert, whether the plan can know)
    "epsilon": ({}, {"epsilon": 1e-6}, True, True),
    "epsilon_high": ({}, {"epsilon_high": 3.0}, True, True),
    "delta": ({}, {"delta": 4.0}, True, True),
    "off-policy mask": ({}, {"off_policy_mask_threshold": 1e-9}, True, True),
    "vespo's own": ({"loss_type": "vespo"}, {"vespo_k_pos": 1.0}, True, True),
    "scale_rewards beside GDPO": ({"multi_objective_aggregation": "normalize_then_sum"}, {"scale_rewards": "none"}, True, True),
    "warmup of a constant rate": ({}, {"warmup_steps": 2}, True, True),
    "mask, nothing cut": ({}, {"mask_truncated_completions": True}, True, False),
    "max_grad_norm, never reached": ({}, {"max_grad_norm": 5.0}, True, False),
    "delta, never reached": (TWICE, {"delta": 40.0}, True, False),
    "epsilon, live": (TWICE, {"epsilon": 1e-4}, False, False),
    "mask, live": ({"max_completion_length": 12}, {"mask_truncated_completions": True}, False, False),
    "max_grad_norm, live": ({}, {"max_grad_norm": 1e-3}, False, False),
    "beta, live": ({}, {"beta": 0.5}, False, False),
}
_trained: dict[str, Any] = {}


def adapter(name: str, grpo: dict[str, Any]):
    key = repr(grpo)
    if key not in _trained:
        run = wb.train(recipe(name, **grpo))
        weights, notes = load_file(run.final / "adapter_model.safetensors"), run.manifest()["settings"]["translated"]
        _trained[key] = weights, notes, wb.examine_run(run)
    return _trained[key]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_adapters_are_equal_to_the_bit_exactly_where_a_switch_is_inert(case, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path_factory.mktemp("runs")))
    others, switch, inert, known = CASES[case]
    [name] = switch
    without, _, _ = adapter("without", others)
    with_it, notes, verdicts = adapter("with-it", {**others, **switch})
    assert max(weight.abs().max() for key, weight in with_it.items() if "lora_B" in key) > 1e-4, "it was trained"
    assert all(torch.equal(without[key], with_it[key]) for key in without) == inert
    found = next(each for each in verdicts if each.name == "inert_settings")
    assert (name in found.evidence["inert"]) == inert, found.line
    assert (name in found.evidence["live"]) != inert, found.line
    assert any(NOTHING in line and name in line.partition(NOTHING)[0] for line in notes) == known
