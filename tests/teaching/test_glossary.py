"""The glossary: everything that is logged or can be set has an entry, and the entry holds for the installed version."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
from importlib import metadata
from pathlib import Path

import pytest
from commanding import Ended, workbench

import workbench as wb
from workbench.base.errors import TermError
from workbench.health.rules.numbers import KL_ALARM, KL_WARNING
from workbench.health.verdicts import NAMES
from workbench.recipe import Recipe
from workbench.run import metrics
from workbench.teaching.glossary import _entries, terms
from workbench.training.plan import Plan
from workbench.training.plan.settings.values import CHOICES, DEFAULTS
from workbench.views.audit import functions_table, probes_table
from workbench.views.run_view import _NUMBERS

FIELDS = {"kind", "meaning", "unit", "good", "healthy", "default", "changed", "source", "also", "field"}
TRLS = Path(importlib.util.find_spec("trl").origin).parent / "trainer" / "grpo_trainer.py"


def test_every_entry_has_its_fields_and_they_are_text():
    assert len(_entries()) > 120
    for name, entry in _entries().items():
        assert set(entry) <= FIELDS, name
        assert entry["kind"] in ("metric", "setting", "recipe", "word"), name
        for key in ("unit", "good", "healthy", "source"):
            assert isinstance(entry.get(key, ""), str), (name, key)
        assert entry.get("good", "up") in ("up", "down"), name
        assert entry["source"], name
        for text in (entry["meaning"], *entry.get("changed", {}).values()):
            assert all(text.values() if isinstance(text, dict) else [text]), name
        assert str(wb.explain(name)).startswith(f"{name} ({entry['kind']}"), "and is found by its own name"


def test_no_word_stands_for_two_entries():
    words = [word.casefold() for name, entry in _entries().items() for word in {name, *entry.get("also", ())}]
    assert [word for word in set(words) if words.count(word) > 1] == ["kl"]  # kl itself, and as KL


def test_every_name_of_the_workbench_is_explained():
    constants = [value for name, value in vars(metrics).items() if name.isupper() and isinstance(value, str)]
    assert len(constants) >= 18
    for name in [*constants, metrics.per_function("my_reward"), metrics.weight_of("my_reward")]:
        assert wb.explain(name)["name"] == name


def test_every_word_that_people_are_shown_is_explained():
    audit = wb.audit_rewards("arithmetic", rows=1)
    tables = [functions_table(audit).header, probes_table(audit).header[:3], Plan.HEADER[1:]]
    shown = {*NAMES, *NAMES.values(), *itertools.chain(*tables), *(label for label, *_ in _NUMBERS)}
    shown = {word.removesuffix(" this step") for word in shown}
    recipe, parts = Recipe(), ("policy", "lora", "rewards")
    shown |= {*Recipe.model_fields, *(f"{part}.{key}" for part in parts for key in type(getattr(recipe, part)).model_fields)}
    shown |= {"twin", "duel", "trial", "lab", "answer_column", "right_by", "format_by", "ideal", "guessed", "rung", "alarm"}
    assert len(shown) > 90
    unknown = []
    for word in sorted(shown):
        try:
            wb.explain(word)
        except TermError:
            unknown.append(word)
    assert unknown == []


def test_a_version_that_nobody_has_read_is_doubted():
    told = wb.explain("reward_std", "99")
    assert "newer than any known here" in told["doubt"]
    assert told["doubt"] in str(told)
    assert "doubt" not in wb.explain("reward_std")
    assert "doubt" not in wb.explain("advantage", "99")  # not TRL's


def test_everything_that_the_installed_trl_logs_is_explained():
    logged = re.findall(r'_metrics\[[^\]]+\]\[(f?"[^"]+")\]', TRLS.read_text(encoding="utf-8"))
    names = {re.sub(r"\{\w+\}", "my_reward", name.removeprefix("f").strip('"')) for name in logged}
    assert len(names) >= 30
    assert {"reward_std", "clip_ratio/low_mean", "rewards/my_reward/mean"} <= names
    for name in names:
        assert "GRPOTrainer" in wb.explain(name)["source"] or "GRPOConfig" in wb.explain(name)["source"], name


@pytest.fixture(scope="module")
def config_fields():
    import dataclasses

    from workbench.training.policy import trainer_classes

    return {field.name: field for field in dataclasses.fields(trainer_classes("transformers")[0])}


@pytest.mark.slow
def test_every_setting_exists_with_the_stated_default(config_fields):
    settings = terms()["setting"]
    assert len(settings) >= 40
    for name in settings:
        stated, field = wb.explain(name), config_fields[name]
        default = field.default_factory() if callable(field.default_factory) else field.default
        default = getattr(default, "value", default)
        assert (stated["default"], type(stated["default"])) == (default, type(default)), name
    assert set(DEFAULTS) - set(settings) == {
        "logging_nan_inf_filter",
        "report_to",
        "save_only_model",
        "save_strategy",
        "save_total_limit",
    }
    assert set(CHOICES) <= set(settings)


def test_every_field_of_the_recipe_exists_with_the_stated_default():
    for name in terms()["recipe"]:
        value = Recipe()
        for part in _entries()[name].get("field", name).split("."):
            value = getattr(value, part)
        assert wb.explain(name).get("default") == value


@pytest.mark.parametrize(
    ("name", "trl", "key", "says"),
    [
        ("reward_std", "0.26.2", "meaning", "within the group"),
        ("reward_std", "0.27", "meaning", "whole generation batch"),
        ("beta", "0.18", "default", 0.04),
        ("beta", "0.19", "default", 0.0),
        ("loss_type", "0.21", "default", "bnpo"),
        ("loss_type", "0.22", "default", "dapo"),
        ("max_completion_length", "1.9.5", "default", 256),
        ("max_completion_length", "1.10", "default", 512),
        ("use_bias_correction_kl", "1.9", "default", False),  # 1.10 comes after 1.9
        ("use_bias_correction_kl", "1.10.0", "default", True),
        ("temperature", "0.1", "default", 0.9),  # older than the trainer: as it began
        ("top_k", "0.20", "default", None),
    ],
)
def test_what_it_says_is_of_the_version(name, trl, key, says):
    found = wb.explain(name, trl)
    assert says in found[key] if key == "meaning" else (found[key], type(found[key])) == (says, type(says))
    assert found["trl"] == trl


def test_the_installed_version_is_the_one_that_is_explained():
    assert wb.explain("beta")["trl"] == metadata.version("trl")
    assert wb.explain("beta")["changed"] == {"0.19 (default)": "0.04 became 0.0"}
    assert "0.04 became 0.0" in str(wb.explain("beta"))
    assert wb.explain("learning_rate")["in the workbench"] == DEFAULTS["learning_rate"]
    assert wb.explain("loss_type")["takes"].startswith("grpo, bnpo, dr_grpo")


def test_healthy_ranges_are_those_of_the_health_rules():
    assert f"warns at {KL_WARNING:g} and alarms at {KL_ALARM:g}" in wb.explain("kl")["healthy"]
    for name in ("dead_groups", "collapse", "length_drift", "kl_runaway"):
        assert name in NAMES
        assert wb.explain(name)["source"] == "wb.examine_run" or name == "dead_groups"


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("kl_coef", "beta"),
        ("Dead Groups", "dead group"),
        ("dead_group", "dead group"),
        ("zero-variance group", "dead group"),
        ("completion_length", "completions/mean_length"),
        ("rewards/mine/std", "rewards/mine/std"),
        ("sampling/sampling_logp_difference/max", "sampling/sampling_logp_difference/max"),
        ("KL", "kl"),
    ],
)
def test_old_names_other_names_and_names_with_a_function_are_known(asked, found):
    assert wb.explain(asked)["name"] == found


def test_an_unknown_term_is_told_the_nearest():
    with pytest.raises(TermError, match="(?s)'reward_sdt'.*did you mean 'reward_std' or"):
        wb.explain("reward_sdt")
    with pytest.raises(TermError, match="workbench explain"):
        wb.explain("qqqqqqqq")
    with pytest.raises(TermError, match="(?s)trl = 'new'.*0.26"):
        wb.explain("beta", "new")


def test_the_command():
    def ran(*words: str) -> Ended:
        return workbench("explain", *words)

    found = json.loads(ran("clip_ratio", "--json").stdout)
    assert found["unit"] == "share"
    assert "0.17" in found["changed"]
    assert "within the group" in ran("reward_std", "--trl", "0.26").stdout
    listed = json.loads(ran("--json").stdout)
    assert listed == terms()
    typo = ran("clip_ratoi")
    assert typo.returncode == 2
    assert "'clip_ratio'" in typo.stderr


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"loss_type": "cispo", "entropy_coef": 0.01}, {"loss_type": "vespo"}])
def test_every_number_that_a_real_run_logs_is_explained(home, more):
    grpo = {"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 32, "beta": 0.001}
    run = wb.train({"run_name": "logs", "policy": {"load_in_4bit": False, "backend": "transformers"}, "grpo": grpo | more})
    logged = {name for row in run.metrics() for name in row}
    assert len(logged) > 35
    for name in logged:
        assert wb.explain(name)["kind"] in ("metric", "setting"), name
