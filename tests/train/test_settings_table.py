"""Every field of GRPOConfig and key of generation_kwargs: changes a number, changes none, is refused, moved, left out, or inert.

`settings_tried.json` has what each did when it was tried (the weekly tests try all of them again), `settings_table.md` is made
of it and of the package's own tables: `python tests/train/test_settings_table.py` writes it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from trying_settings import BASE, SAMPLED, TRIED, changed, sampled, trained

import workbench as wb
from workbench.base.errors import RecipeError
from workbench.run.inert import SWITCHES
from workbench.training.plan import settings as settings_of
from workbench.training.plan.settings.device import Machine
from workbench.training.plan.settings.names import ELSEWHERE, LEFT_OUT, MOVED
from workbench.training.plan.settings.values import _REFUSED, SAMPLING
from workbench.training.policy import trainer_classes

TABLE = Path(__file__).with_name("settings_table.md")
CLASSES = {
    "changes a number": "weights or logs of two steps differ, under the settings named beside it",
    "named": "`plan` says that it does nothing here, and why (`run/inert.yaml`, `run/inert.py`, or the plan's own check)",
    "refused": "`plan` refuses it, with the value, the rule and a remedy",
    "left out": "`plan` leaves it out, and says what does it instead",
    "moved": "`plan` sets the recipe's own field, and says so",
    "no number: speed or memory": "how long a step takes, or what it holds; `plan` says nothing",
    "no number: logs": "what is logged, printed or sent to a tracker; `plan` says nothing",
    "no number: files": "what is saved; `plan` says nothing",
}
NO_NUMBER = {
    "speed or memory": """gradient_checkpointing torch_compile_backend use_cache torch_empty_cache_steps
        dataloader_num_workers dataloader_pin_memory dataloader_prefetch_factor dataloader_multiprocessing_context
        dataloader_in_order cache_implementation""",
    "logs": """log_level logging_nan_inf_filter log_multimodal log_unique_prompts report_to project trackio_space_id
        trackio_bucket_id trackio_static_space_id debug""",
    "files": "save_strategy save_steps save_total_limit save_only_model enable_jit_checkpoint",
}
# Said by `prepare.py`, `device.py`, `rendering.py` and `turns/planning.py`, or refused by `loading.py` and by TRL itself.
BY_THE_PLAN = {
    "named": {"fp16", "chat_template_kwargs", "max_tool_calling_iterations", "tf32", "use_vllm"},
    "refused": {"router_aux_loss_coef"},
}
TRIED_GRPO = {name: (value, given, seen) for name, value, given, seen in TRIED["grpo"]}


def kind(name: str) -> tuple[str, str]:
    """(what becomes of a field of GRPOConfig, why that is known)."""
    _, given, seen = TRIED_GRPO.get(name, (None, {}, ""))
    for words, table in {"left out": LEFT_OUT, "moved": MOVED, "refused": ELSEWHERE}.items():
        if name in table:
            return words, str(table[name])
    besides = f", with {given}" if given else ""
    differ = bool({"weights", "logs"} & set(seen.split()))
    tried = f"tried: {seen}{' differ' * differ}{besides}"
    named = "named" * any(switch.of([name]) for switch in SWITCHES)
    if name in _REFUSED:
        return "refused", f"{tried}; {_REFUSED[name]['rule']}"
    if differ:
        return " or ".join(["changes a number", *named.split()]), tried
    named = named or next((words for words, names in BY_THE_PLAN.items() if name in names), "")
    other = next((f"no number: {words}" for words, names in NO_NUMBER.items() if name in names.split()), "")
    return named or other, tried


def sampling_kind(name: str) -> str:
    if name == "cache_implementation":
        return "no number: speed or memory"
    [found] = [words for words in ("refused", "changes", "inert") if name in SAMPLING[words]] or ["inert"]  # vLLM's words
    return {"changes": "changes a number", "inert": "named"}.get(found, found)


def written() -> str:
    fields = sorted(settings_of.field_names(trainer_classes("transformers")[0]))
    lines = ["# What becomes of each setting", "", "Made by `test_settings_table.py`, which also asks `plan` of each."]
    lines += ["Tried on the CPU, in one process, with the embedded policy.", ""]
    lines += [f"- **{name}**: {meaning}." for name, meaning in CLASSES.items()]
    lines += ["", "## GRPOConfig", "", "| field | what becomes of it | known from |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {' | '.join(kind(name))} |" for name in fields]
    lines += ["", "## generation_kwargs", "", "| key | what becomes of it | tried |", "| --- | --- | --- |"]
    seen = {name: seen for name, _, seen in TRIED["generation_kwargs"]}
    lines += [f"| `{name}` | {sampling_kind(name)} | {seen[name]} |" for name in sorted(seen)]
    return "\n".join(lines) + "\n"


def test_no_field_is_without_a_class():
    fields = settings_of.field_names(trainer_classes("transformers")[0])
    assert {name for name in fields if kind(name)[0].removesuffix(" or named") not in CLASSES} == set()
    # What the workbench sets itself, and refuses or leaves out where a recipe has it.
    assert fields - TRIED_GRPO.keys() == {"output_dir", "push_to_hub", "resume_from_checkpoint", "reward_weights"}


def test_no_key_of_generation_kwargs_is_without_a_class():
    from transformers import GenerationConfig

    keys = set(GenerationConfig().to_dict()) | {"custom_generate"}
    assert {name for words in ("refused", "changes", "inert") for name in SAMPLING[words]} == keys
    assert {name for name, *_ in TRIED["generation_kwargs"]} >= keys - {"custom_generate"}
    for name, _, seen in TRIED["generation_kwargs"]:
        known = {"changes": "changes a number", "nothing": "named"}
        if name in keys and seen in known and name not in ("num_return_sequences", "cache_implementation"):
            assert sampling_kind(name) == known[seen], name


def test_the_table_is_the_one_in_the_repository():
    assert TABLE.read_text(encoding="utf-8") == written()


def lines(**grpo) -> list[str]:
    fields = settings_of.field_names(trainer_classes("transformers")[0])
    return settings_of.normalised(wb.Recipe.of({"grpo": grpo}), fields)[2]


def said(machine=None, **grpo) -> list[str]:
    """What a plan of these settings says, or refuses; as `prepare` does it, without the files of a whole plan."""
    config_class = trainer_classes("transformers")[0]
    fields, kinds = settings_of.field_names(config_class), settings_of.field_kinds(config_class)
    try:
        _, settings, notes = settings_of.normalised(wb.Recipe.of({"grpo": grpo}), fields, machine)
        settings_of.check_values(settings, kinds)
    except RecipeError as refused:
        return [f"refused: {refused.value}"] if refused.rule and refused.remedy else []
    return notes


@pytest.mark.parametrize("name", sorted(TRIED_GRPO))
def test_the_plan_says_what_the_table_says(name):
    word, value = kind(name)[0], TRIED_GRPO[name][0]
    if word not in ("named", "refused"):
        return
    if any(name in names for names in BY_THE_PLAN.values()):
        try:
            policy = {"name": "tiny", "backend": "transformers", "load_in_4bit": False}
            lines = list(wb.plan(wb.Recipe.of({"policy": policy, "grpo": {name: value}})).notes)
        except RecipeError as refused:
            lines = [f"refused: {refused.value}"]
    else:
        lines = said(**{name: value})
    own = [line for line in lines if name in line]
    assert own
    assert own[0].startswith("refused") == (word == "refused")


@pytest.mark.parametrize(("name", "value", "seen"), TRIED["generation_kwargs"])
def test_the_plan_says_what_the_table_says_of_generation_kwargs(name, value, seen):
    [*own] = [line for line in said(generation_kwargs={name: value}) if name in line and "generation_kwargs" in line]
    assert own or sampling_kind(name) not in ("named", "refused")
    assert any(line.startswith("refused") for line in own) or sampling_kind(name) != "refused"


def test_what_is_for_several_processes_or_a_gpu_is_not_named_where_there_are_some(monkeypatch):
    on_a_gpu = Machine(cuda=True, bf16=True)
    assert any("use_cpu does nothing here" in line for line in said(Machine(cuda=False, bf16=True), use_cpu=True))
    assert not [line for line in said(on_a_gpu, use_cpu=True, full_determinism=True) if "does nothing" in line]
    assert any("ddp_timeout does nothing here" in line for line in said(ddp_timeout=5))
    assert said(parallelism_config={})[0] == "refused: grpo.parallelism_config = {}"
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not [line for line in said(ddp_timeout=5, fsdp="full_shard") if "does nothing" in line or "refused" in line]


def test_disable_dropout_is_named_where_nothing_is_dropped():
    fields = settings_of.field_names(trainer_classes("transformers")[0])
    for dropout, count in ((0.0, 1), (0.1, 0)):
        recipe = wb.Recipe.of({"grpo": {"disable_dropout": True}, "lora": {"lora_dropout": dropout}})
        assert sum("disable_dropout" in line for line in settings_of.normalised(recipe, fields)[2]) == count


def test_a_record_without_the_plans_facts_says_nothing_of_them():
    from trl import GRPOConfig

    from workbench.run.inert import inert_in_plan
    from workbench.training.plan.settings.combinations import completed
    from workbench.training.plan.settings.in_force import defaults_of

    settings = completed({}, defaults_of(GRPOConfig))
    assert not inert_in_plan(settings, ["ddp_timeout", "disable_dropout", "use_cpu"])
    assert len(inert_in_plan(settings | {"processes": 1, "lora_dropout": 0, "cuda": False},
                             ["ddp_timeout", "disable_dropout", "use_cpu"])) == 3  # fmt: skip


def test_a_list_of_words_is_no_word():
    kinds = settings_of.field_kinds(trainer_classes("transformers")[0])
    assert "include_for_metrics" not in kinds
    assert kinds["optim_args"] == {str, type(None)}


def test_what_transformers_says_of_torch_compile_at_every_config_is_no_news():
    import logging

    import workbench.training.plan.loading

    logger = logging.getLogger("transformers.training_args")
    words = ("The speedups for torchdynamo mostly come with a newer GPU", "torch_compile: another matter")
    kept = [logger.filter(logging.LogRecord(logger.name, logging.WARNING, "", 0, line, (), None)) for line in words]
    assert [bool(each) for each in kept] == [False, True]
    assert workbench.training.plan.loading._NOT_NEWS


def test_the_loss_of_a_router_is_for_models_that_give_its_logits():
    from workbench.memory.shapes import from_config, routes

    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
             "intermediate_size": 16, "vocab_size": 32, "head_dim": 8}  # fmt: skip
    experts = {"moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2}
    assert routes(from_config({**small, **experts, "model_type": "qwen3_moe"}))
    assert not routes(from_config({**small, "model_type": "qwen3"}))


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
