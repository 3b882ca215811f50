"""Every field of GRPOConfig and key of generation_kwargs: changes a number, is refused, moved, left out, or named as inert.

`settings_tried.json` has what each did when it was tried (the weekly tests try all of them again), `settings_table.md` is made
of it and of the package's own tables: `python tests/train/test_settings_table.py` writes it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from trying_settings import BASE, SAMPLED, TRIED, changed, sampled, trained

import workbench as wb
from workbench.errors import RecipeError
from workbench.run.inert import SWITCHES
from workbench.training import settings as settings_of
from workbench.training.policy import trainer_classes
from workbench.training.settings.names import ELSEWHERE, LEFT_OUT, MOVED
from workbench.training.settings.values import _REFUSED, SAMPLING

TABLE = Path(__file__).with_name("settings_table.md")
# What changes no number that is learnt, and what it changes instead.
OTHERWISE = {
    "speed or memory": """gradient_checkpointing torch_compile torch_compile_backend torch_compile_mode use_cache
        torch_empty_cache_steps dataloader_num_workers dataloader_pin_memory dataloader_prefetch_factor
        dataloader_multiprocessing_context dataloader_in_order cache_implementation use_cpu full_determinism
        use_transformers_continuous_batching use_transformers_paged""",
    "what is logged or printed": """logging_strategy log_on_each_node log_level log_level_replica logging_nan_inf_filter
        log_multimodal log_unique_prompts report_to project trackio_space_id trackio_bucket_id trackio_static_space_id debug""",
    "what is saved": "save_strategy save_steps save_total_limit save_only_model save_on_each_node enable_jit_checkpoint",
    "several processes": """average_tokens_across_devices accelerator_config parallelism_config ddp_find_unused_parameters
        ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout fsdp fsdp_config deepspeed
        local_rank ds3_gather_for_generation""",
    "precision of a GPU": "fp16 tf32",
    "only with tools": "max_tool_calling_iterations",
    "only a template that reads it": "chat_template_kwargs",
    "only a model that has dropout": "disable_dropout",
    "only code that comes with a model, which is never run": "trust_remote_code",
}
TRIED_GRPO = {name: (value, given, seen) for name, value, given, seen in TRIED["grpo"]}


def kind(name: str) -> tuple[str, str]:
    """(what becomes of a field of GRPOConfig, why that is known)."""
    _, given, seen = TRIED_GRPO.get(name, (None, {}, "untried"))
    inert = any(switch.of([name]) for switch in SWITCHES)
    tables = {"left out": LEFT_OUT, "moved": MOVED, "refused": ELSEWHERE}
    for words, table in tables.items():
        if name in table:
            return words, str(table[name])
    if name in _REFUSED:
        return "refused", _REFUSED[name]["rule"]
    if seen in ("weights", "logs", "weights and logs"):
        besides = f", with {given}" if given else ""
        return "changes a number" + ", or is named as inert" * inert, f"tried: {seen} differ{besides}"
    if inert:
        return "named as inert", f"tried: {seen} differs"
    other = next((words for words, names in OTHERWISE.items() if name in names.split()), "")
    if other:
        return f"changes {other}" if " " in other and not other.startswith(
            ("only", "several", "precision")
        ) else other, f"tried: {seen}"
    return ("refused", f"tried: {seen}") if seen.endswith("Error") else ("", "")


def sampling_kind(name: str) -> str:
    [named] = [words for words in ("refused", "changes", "inert") if name in SAMPLING[words]] or ["inert"]  # vLLM's words
    return {"changes": "changes what is sampled", "inert": "named as inert"}.get(named, named)


def written() -> str:
    fields = sorted(settings_of.field_names(trainer_classes("transformers")[0]))
    lines = ["# What becomes of each setting", "", "Made by `test_settings_table.py`.", "", "## GRPOConfig", ""]
    lines += ["| field | what becomes of it | known from |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {' | '.join(kind(name))} |" for name in fields]
    lines += ["", "## generation_kwargs", "", "| key | what becomes of it | tried |", "| --- | --- | --- |"]
    seen = {name: seen for name, _, seen in TRIED["generation_kwargs"]}
    lines += [f"| `{name}` | {sampling_kind(name)} | {seen[name]} |" for name in sorted(seen)]
    return "\n".join(lines) + "\n"


def test_no_field_is_without_a_class():
    fields = settings_of.field_names(trainer_classes("transformers")[0])
    assert [name for name in sorted(fields) if not kind(name)[0]] == []


def test_no_key_of_generation_kwargs_is_without_a_class():
    from transformers import GenerationConfig

    keys = set(GenerationConfig().to_dict()) | {"custom_generate"}
    assert {name for words in ("refused", "changes", "inert") for name in SAMPLING[words]} == keys
    assert {name for name, *_ in TRIED["generation_kwargs"]} >= keys - {"custom_generate"}
    for name, _, seen in TRIED["generation_kwargs"]:
        known = {"changes": "changes what is sampled", "nothing": "named as inert"}
        if name in keys and seen in known and name not in ("num_return_sequences", "cache_implementation"):
            assert sampling_kind(name) == known[seen], name


def test_the_table_is_the_one_in_the_repository():
    assert TABLE.read_text(encoding="utf-8") == written()


def lines(**grpo) -> list[str]:
    fields = settings_of.field_names(trainer_classes("transformers")[0])
    return settings_of.normalised(wb.Recipe.of({"grpo": grpo}), fields)[2]


@pytest.mark.parametrize(
    ("given", "grpo", "said"),
    [
        ({"top_p": 1.0}, {"top_p": 0.95}, ["top_p", "1.0", "0.95"]),
        ({"temperature": 0.1}, {}, ["temperature", "0.1", "1.0", "loss"]),
        ({"repetition_penalty": 1.2}, {}, ["repetition_penalty", "1.2"]),
        ({"max_tokens": 99, "n": 1}, {}, ["max_tokens, n", "max_completion_length, num_generations"]),
        ({"stop": ["x"], "seed": 3}, {}, ["stop, seed"]),
        ({"length_penalty": 2.0}, {}, ["length_penalty"]),
    ],
)
def test_what_wins_and_what_does_nothing_is_named(given, grpo, said):
    [line] = [line for line in lines(generation_kwargs=given, **grpo) if "generation_kwargs" in line]
    assert all(word in line for word in said)


@pytest.mark.parametrize("given", [{}, {"top_p": 0.95}, {"no_repeat_ngram_size": 3, "top_h": 0.2}])
def test_what_says_the_same_or_acts_needs_no_line(given):
    assert not [line for line in lines(generation_kwargs=given, top_p=0.95) if "generation_kwargs" in line]


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"num_return_sequences": 4}, "num_generations"),
        ({"do_sample": False}, "differ"),
        ({"max_new_tokens": 10}, "max_completion_length"),
        ({"temperature": 0}, "above 0"),
        ({"prompt_lookup_num_tokens": 3}, "one prompt"),
        ("top_p=1", "mapping"),
    ],
)
def test_what_cannot_work_is_refused(given, word):
    kinds = settings_of.field_kinds(trainer_classes("transformers")[0])
    with pytest.raises(RecipeError) as refused:
        settings_of.check_values({**settings_of.DEFAULTS, "generation_kwargs": given}, kinds)
    assert word in refused.value.rule
    assert refused.value.remedy


def test_the_same_value_or_none_is_fine():
    kinds = settings_of.field_kinds(trainer_classes("transformers")[0])
    for given in ({"max_new_tokens": 96}, {"num_return_sequences": None}, {"do_sample": True}, {}, None):
        settings_of.check_values({**settings_of.DEFAULTS, "generation_kwargs": given}, kinds)


@pytest.mark.parametrize(
    ("grpo", "word"),
    [
        ({"learning_rate": 0}, "learning_rate = 0"),
        ({"neftune_noise_alpha": 5}, "neftune_noise_alpha = 5"),
        ({"warmup_steps": 50, "max_steps": 20, "lr_scheduler_type": "linear"}, "warmup_steps = 50"),
        ({"data_seed": 3}, "data_seed"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor"),
    ],
)
def test_what_disturbs_or_teaches_nothing_is_named(grpo, word):
    assert len([line for line in lines(**grpo) if word in line]) == 1
    assert not [line for line in lines() if word in line]


def test_the_plan_names_what_wins_what_is_never_saved_and_what_stands_in_the_environment(monkeypatch):
    monkeypatch.setenv("UNSLOTH_GRPO_SEQ_PACKING", "0")
    recipe = {"policy": {"name": "tiny", "load_in_4bit": False}}
    grpo = {"generation_kwargs": {"top_p": 1.0}, "top_p": 0.95, "max_steps": 5, "save_steps": 9}
    plan = wb.plan(wb.Recipe.of({**recipe, "grpo": grpo}))
    row = next(row for row in plan.rows if row.name == "top_p")
    assert (row.asked, row.in_force, row.by) == (0.95, 1.0, "generation_kwargs")
    assert [note for note in plan.notes if "save_steps 9 > max_steps 5" in note]
    unsloth = plan.recipe.policy.backend == "unsloth"
    assert any("UNSLOTH_GRPO_SEQ_PACKING = 0" in note for note in plan.notes) == unsloth
    plain = wb.plan(wb.Recipe.of({"policy": {**recipe["policy"], "backend": "transformers"}, "grpo": {"max_steps": 5}}))
    assert not [note for note in plain.notes if "save_steps" in note or "UNSLOTH" in note]


@pytest.mark.weekly
@pytest.mark.parametrize("name", TRIED_GRPO)
def test_each_setting_does_what_the_table_says(name):
    value, given, seen = TRIED_GRPO[name]
    assert changed(_trained(**given), **given, **{name: value}) == seen


_KEPT: dict[str, tuple] = {}


def _trained(**given) -> tuple:
    if str(given) not in _KEPT:
        _KEPT[str(given)] = trained(**given)
    return _KEPT[str(given)]


@pytest.mark.slow
def test_each_key_of_generation_kwargs_does_what_the_table_says():
    policy = wb.load_policy("tiny", backend="transformers", load_in_4bit=False)
    plain = sampled(policy)
    assert plain == sampled(policy)
    assert len(plain) == 16
    for name, value, seen in TRIED["generation_kwargs"]:
        now = sampled(policy, **{name: value})
        found = now if isinstance(now, str) else "nothing" if now == plain else "changes"
        assert found == seen, name


def test_what_is_tried_is_another_value():
    assert all(
        value != {**BASE, **given}.get(name, "unset") for name, (value, given, seen) in TRIED_GRPO.items() if "weights" in seen
    )
    assert all(value != SAMPLED.get(name, "unset") for name, value, seen in TRIED["generation_kwargs"] if seen == "changes")


if __name__ == "__main__":
    sys.stdout.write(f"{TABLE.write_text(written(), encoding='utf-8')} characters\n")
