"""Adapters of other programs: each is loaded as PEFT loads it, trains in its shape, and KL is from the reference named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from foreign_adapters import LAYOUTS, leave

import workbench as wb
from workbench.base.errors import PolicyError, RecipeError, RunError
from workbench.tiny.named import folder_of
from workbench.training.plan.loading import find_adapter
from workbench.training.plan.prepare import prepare
from workbench.training.policy import load_policy
from workbench.training.trainer import continue_run, make_trainer, train

GRPO = {
    "max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 8, "save_steps": 1,
    "learning_rate": 1e-3, "beta": 0.1,
}  # fmt: skip
BACKENDS = ("transformers", "unsloth")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """layout -> the folder that a user names."""
    return {layout: leave(layout, tmp_path_factory.mktemp(layout) / "mine") for layout in LAYOUTS}


def recipe(folder, grpo=None, **policy):
    part = {"backend": "transformers", "load_in_4bit": False, "adapter": str(folder), **policy}
    return wb.Recipe(policy=part, grpo={**GRPO, **(grpo or {})})


def base():
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder_of("tiny"), dtype=torch.float32).eval()


def as_peft_loads(folder):
    from peft import PeftModel

    return PeftModel.from_pretrained(base(), find_adapter(folder)).eval()


def logits(model):
    import torch

    with torch.no_grad():
        return model.eval()(torch.arange(5, 25)[None]).logits


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_is_loaded_as_peft_loads_it_and_switched_off_is_the_base(folders, layout, backend):
    asked = recipe(folders[layout], backend=backend, dtype="float32")
    policy = load_policy(asked)
    loaded, of_base = logits(policy.model), logits(base())
    assert loaded.equal(logits(as_peft_loads(folders[layout])))
    assert not loaded.allclose(of_base, atol=0.1)
    with policy.model.disable_adapter():
        assert logits(policy.model).equal(of_base)
    assert policy.parameters == load_policy("tiny", backend=backend, load_in_4bit=False).parameters
    trains = {name for name, one in policy.model.named_parameters() if one.requires_grad}
    assert any("modules_to_save" in name for name in trains) == (layout == "llama_factory")
    assert any("magnitude" in name for name in trains) == (layout == "llama_factory")
    assert all("lora_" in name or "modules_to_save" in name for name in trains)


def test_the_plan_names_shape_reference_and_checkpoint(folders):
    plan = prepare(recipe(folders["trl"]))
    [first, second] = [note for note in plan.notes if str(folders["trl"]) in note]
    assert "checkpoint-20 (" in first
    assert "reference: base" in first
    assert "checkpoint-20" in second
    assert plan.recipe.policy.adapter == str(folders["trl"] / "checkpoint-20")
    assert plan.recipe.lora.target_modules == sorted(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    )
    plan = prepare(recipe(folders["llama_factory"], reference="adapter"))
    [note] = [note for note in plan.notes if str(folders["llama_factory"]) in note]
    assert "(r 4, use_rslora, use_dora, modules_to_save)" in note
    assert "reference: adapter" in note
    assert any("modules_to_save" in note and "memory" in note for note in plan.notes)
    # a pattern is turned into the names of the layers that there are weights for
    assert prepare(recipe(folders["unsloth"])).recipe.lora.target_modules == ["down_proj", "q_proj", "v_proj"]


def kl_by_hand(policy, reference, seen):
    """TRL's estimate, of each sampled token: exp(d) - d - 1, where d is the reference's log-probability less the policy's."""
    import torch

    sums = tokens = 0
    for one in seen:
        ids = torch.cat([one["prompt_ids"], one["completion_ids"]], 1)
        mask = torch.cat([one["prompt_mask"], one["completion_mask"]], 1)
        count = one["completion_ids"].shape[1]
        positions = (mask.cumsum(1) - 1).clamp(min=0)

        def logps(model, ids=ids, mask=mask, count=count, positions=positions):
            with torch.no_grad():
                out = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits[:, -count - 1 : -1]
            return out.log_softmax(-1).gather(-1, ids[:, -count:, None])[..., 0]

        d = logps(reference) - logps(policy)
        sums += float(((d.exp() - d - 1) * one["completion_mask"]).sum())
        tokens += int(one["completion_mask"].sum())
    return sums / tokens


@pytest.mark.parametrize("reference", ["base", "adapter"])
@pytest.mark.parametrize("layout", ["axolotl", "llama_factory"])
def test_kl_is_that_from_the_named_reference_computed_by_hand(home, folders, layout, reference):
    plan = prepare(recipe(folders[layout], {"max_steps": 2}, reference=reference))
    policy = load_policy(plan)
    trainer = make_trainer(plan, policy)
    seen, states, own = [], [], trainer._compute_loss

    def noted(model, inputs):
        seen.append({name: inputs[name].clone() for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")})
        states.append({name: one.detach().clone() for name, one in policy.model.named_parameters() if one.requires_grad})
        return own(model, inputs)

    trainer._compute_loss = noted
    trainer.train()
    measured = [row["kl"] for row in trainer.state.log_history if "kl" in row]
    came_from = as_peft_loads(folders[layout])
    held = {"base": base(), "adapter": came_from}[reference]
    assert measured[0] == pytest.approx(kl_by_hand(came_from, held, seen[:1]), rel=1e-3, abs=1e-9)
    assert (measured[0] == 0) == (reference == "adapter")
    # a step later the policy is another one, and the reference is not
    moved = as_peft_loads(folders[layout])
    own_weights = dict(moved.named_parameters())
    for name, value in states[1].items():
        own_weights[name].data.copy_(value)
    assert measured[1] == pytest.approx(kl_by_hand(moved, held, seen[1:]), rel=1e-3)
    assert measured[1] > 0


def test_the_reference_is_the_runs_over_its_stages_and_a_resume(home, folders, tmp_path):
    folder = shutil.copytree(folders["trl"] / "checkpoint-20", tmp_path / "mine")
    asked = recipe(folder, reference="adapter").model_dump(exclude_unset=True)
    asked["stages"] = [{"name": "one", "steps": 1}, {"name": "two", "steps": 1}]
    run = train(wb.Recipe.of(asked))
    kl = [row["kl"] for row in run.metrics()]
    assert kl[0] == 0
    assert kl[1] > 0  # from the adapter that the run began with, not from the one that the stage did
    assert run.manifest()["reference"] == "adapter"
    run = continue_run(run, steps=1)
    assert run.metrics()[2]["kl"] > 0
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes((folders["trl"] / "checkpoint-9" / weights.name).read_bytes())
    with pytest.raises(RunError, match="the reference") as raised:
        continue_run(run, steps=1)
    assert "accept_changes" in raised.value.remedy
    shutil.rmtree(folder)
    with pytest.raises(RunError, match="KL is measured from policy.adapter, which is gone"):
        continue_run(run, steps=1)


def test_a_reference_that_is_base_needs_its_folder_no_longer(home, folders, tmp_path):
    folder = shutil.copytree(folders["llama_factory"], tmp_path / "mine")
    run = train(recipe(folder))
    assert run.manifest()["reference"] == "base"
    shutil.rmtree(folder)
    assert continue_run(run, steps=1).result()["steps"] == 2


def test_reference_and_merge_are_about_an_adapter():
    for part in ({"reference": "adapter"}, {"merge_adapter": True}):
        with pytest.raises(RecipeError, match=next(iter(part))):
            prepare(wb.Recipe(policy={"backend": "transformers", "load_in_4bit": False, **part}, grpo=GRPO))


def test_the_fast_loop_draws_dora_as_trls_own_path_does(home, folders):
    from workbench.run.rollouts import query

    texts, calls = {}, {}
    for generation in ("auto", "trl"):
        asked = recipe(folders["llama_factory"]).model_copy(update={"generation": generation, "run_name": generation})
        run = train(asked)
        texts[generation] = query(run.rollouts, 'select completion from rollouts order by step, "group", generation')
        calls[generation] = run.result()["generation"]["calls"]
    assert calls["auto"]["workbench"] > 0
    assert calls["trl"]["workbench"] == 0
    assert texts["auto"].equals(texts["trl"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_rounded_by_the_trainer_and_whole_modules_train_in_32_bits(home, folders, backend):
    import torch

    plan = prepare(recipe(folders["llama_factory"], backend=backend, load_in_4bit=True))
    policy = load_policy(plan)
    before = {name: one.detach().clone() for name, one in policy.model.named_parameters() if one.requires_grad}
    trainer = make_trainer(plan, policy)
    after = {name: one for name, one in policy.model.named_parameters() if one.requires_grad}
    assert after.keys() == before.keys()
    assert all(one.dtype is torch.float32 for one in after.values())
    assert all(one.equal(before[name].float()) for name, one in after.items())
    trainer.train()
    [head] = [name for name in after if "lm_head" in name]
    assert not after[head].equal(before[head].float())


@pytest.fixture(scope="module")
def config(folders):
    return json.loads((folders["older_peft"] / "adapter_config.json").read_text())


@pytest.mark.parametrize(
    ("change", "named", "remedy"),
    [
        ({"bias": "all"}, "bias = 'all'", "merge_adapter"),
        ({"peft_type": "IA3"}, "peft_type = 'IA3'", "merge_adapter"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices = [3]", "merge_adapter"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa'", "merge_adapter"),
        ({"r": None}, "r = None", "merge_adapter"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights = 'pissa_niter_4'", "convert"),
    ],
)
def test_what_is_no_adapter_to_train_is_refused_by_name(folders, config, tmp_path, change, named, remedy):
    folder = shutil.copytree(folders["older_peft"], tmp_path / "mine")
    (folder / "adapter_config.json").write_text(json.dumps(config | change))
    with pytest.raises(PolicyError) as raised:
        prepare(recipe(folder))
    assert named in raised.value.value
    assert remedy in raised.value.remedy
    if remedy == "convert":  # PEFT would start from other weights each time that it loads it
        with pytest.raises(PolicyError, match="pissa_niter_4"):
            prepare(recipe(folder, merge_adapter=True))


def test_another_shape_is_refused_by_its_layer(folders, config, tmp_path):
    folder = shutil.copytree(folders["older_peft"], tmp_path / "mine")
    (folder / "adapter_config.json").write_text(json.dumps(config | {"r": 5}))
    with pytest.raises(PolicyError, match=r"layers\.0\.self_attn\.(q|o)_proj\.lora_") as raised:
        load_policy(recipe(folder))
    assert "adapter_config.json" in raised.value.remedy


def test_weights_of_the_base_among_the_adapters_are_refused(folders, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(folders["axolotl"], tmp_path / "mine")
    weights = load_file(folder / "adapter_model.safetensors")
    embeddings = base().get_input_embeddings().weight.detach().clone()
    weights["base_model.model.model.embed_tokens.weight"] = embeddings
    save_file(weights, folder / "adapter_model.safetensors")
    with pytest.raises(PolicyError, match="embed_tokens"):
        load_policy(recipe(folder))


def test_another_chat_template_beside_it_is_a_warning(folders, tmp_path):
    folder = Path(shutil.copytree(find_adapter(folders["trl"]), tmp_path / "own"))
    own = (folder_of("tiny") / "chat_template.jinja").read_text(encoding="utf-8")
    for template, warned in ((own + "\n", False), ("{{ messages }}", True)):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        notes = [note for note in prepare(recipe(folder)).notes if "another chat template" in note]
        assert [note.startswith("WARNING") for note in notes] == [True] * warned
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    assert [note for note in prepare(recipe(folder)).notes if "another chat template" in note]


@pytest.mark.parametrize(
    ("trained_on", "warns"),
    [
        ("unsloth/model-unsloth-bnb-4bit", False),
        ("unsloth/Model-bnb-4bit", False),
        ("/elsewhere/tiny", False),
        ("Qwen/Qwen2.5-7B", True),
        (None, False),
    ],
)
def test_another_base_than_the_policy_is_said(folders, config, tmp_path, trained_on, warns):
    folder = shutil.copytree(folders["older_peft"], tmp_path / "mine")
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": trained_on}))
    said = [note for note in prepare(recipe(folder)).notes if note.startswith("WARNING") and "trained on" in note]
    assert bool(said) == warns
    assert all(str(trained_on) in note for note in said)


# -- merged first ------------------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "grpo-workbench"


def check_merged(policy, folder):
    """The policy computes what the adapter's did, but for the rounding to 16 bits."""
    of_adapter, of_base = logits(as_peft_loads(folder)), logits(base())
    off = (logits(policy.model) - of_adapter).abs().max()
    assert off < 0.1 * (of_base - of_adapter).abs().max()


def test_merged_first_it_is_the_base_and_the_reference(home, folders, cache, capsys):
    folder = folders["llama_factory"]
    asked = recipe(folder, merge_adapter=True)
    plan = prepare(asked)
    assert "made, once" in capsys.readouterr().err
    assert (plan.recipe.policy.adapter, plan.recipe.policy.reference) == (None, "base")
    assert plan.recipe.lora.r == 16  # a new adapter, as the recipe says
    [made] = cache.glob("merged-*")
    assert plan.recipe.policy.name == str(made)
    [note] = [note for note in plan.notes if "merge_adapter" in note]
    assert str(folder) in note
    check_merged(load_policy(plan), folder)
    run = train(asked)
    assert "made, once" not in capsys.readouterr().err
    assert run.metrics()[0]["kl"] == 0
    assert any(str(folder) in note for note in run.manifest()["policy"]["notes"])
    assert run.manifest()["reference"] == "base"


@pytest.mark.weekly
def test_a_merged_base_that_was_deleted_is_made_again_the_same(home, folders, cache):
    asked = recipe(folders["llama_factory"], merge_adapter=True)
    run = train(asked)
    [made] = cache.glob("merged-*")
    shutil.rmtree(made)
    with pytest.raises(PolicyError, match=made.name):
        continue_run(run, steps=1)
    prepare(asked)
    assert continue_run(run, steps=1).result()["steps"] == 2  # its sums are those that the run began with


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(layout, marks=pytest.mark.slow if layout == "older_peft" else pytest.mark.weekly)
        for layout in LAYOUTS
        if layout != "llama_factory"
    ],
)
def test_every_layout_can_be_merged_first(folders, cache, layout):
    check_merged(load_policy(recipe(folders[layout], merge_adapter=True)), folders[layout])


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"init_lora_weights": "pissa"}, marks=pytest.mark.slow),
        pytest.param({"init_lora_weights": "olora"}, marks=pytest.mark.weekly),
        pytest.param({"bias": "all"}, marks=pytest.mark.weekly),
        pytest.param({"trainable_token_indices": [5, 6]}, marks=pytest.mark.weekly),
        pytest.param({"kind": "IA3"}, marks=pytest.mark.slow),
    ],
)
def test_what_cannot_be_trained_can_be_merged_first(cache, tmp_path, change):
    import torch
    from peft import IA3Config, LoraConfig, get_peft_model

    how = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj", "down_proj"]}
    kind = IA3Config(**how, feedforward_modules=["down_proj"]) if "kind" in change else LoraConfig(r=4, **how, **change)
    model = get_peft_model(base(), kind)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data += 0.02 * torch.randn_like(weight)
    model.save_pretrained(str(tmp_path / "mine"))
    check_merged(load_policy(recipe(tmp_path / "mine", merge_adapter=True)), tmp_path / "mine")


# -- what TRL and Unsloth themselves leave -----------------------------------------------------------------------------


def left_by_trl(folder):
    from datasets import Dataset
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    how = SFTConfig(output_dir=str(folder), max_steps=2, save_steps=1, use_cpu=True, bf16=False, report_to="none", max_length=64)
    rows = Dataset.from_list([{"text": "What is 2 + 3? <answer>5</answer>"}] * 16)
    lora = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear")
    trainer = SFTTrainer(model=base(), args=how, train_dataset=rows, peft_config=lora)
    trainer.train()


def left_by_unsloth(folder):
    import unsloth
    from unsloth_zoo.peft_utils import get_peft_regex

    model, tokenizer = unsloth.FastLanguageModel.from_pretrained(str(folder_of("tiny")), max_seq_length=64, load_in_4bit=True)
    model = unsloth.FastLanguageModel.get_peft_model(model, r=4, target_modules=get_peft_regex(model), use_rslora=True)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data += 0.02
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


@pytest.mark.slow
@pytest.mark.parametrize("program", [left_by_trl, left_by_unsloth])
def test_what_the_programs_themselves_leave_trains(home, tmp_path, program):
    program(tmp_path / "theirs")
    assert (tmp_path / "theirs" / "adapter_config.json").is_file() == (program is left_by_unsloth)
    asked = recipe(tmp_path / "theirs", {"max_steps": 2}, reference="adapter", dtype="float32")
    saved = json.loads(Path(find_adapter(tmp_path / "theirs"), "adapter_config.json").read_text())
    assert isinstance(saved["target_modules"], str) == (program is left_by_unsloth)  # a pattern
    assert logits(load_policy(asked).model).equal(logits(as_peft_loads(tmp_path / "theirs")))
    run = train(asked)
    assert run.metrics()[0]["kl"] == 0
    assert run.metrics()[1]["kl"] > 0


# -- each trains, on both backends -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("in_4bit", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_trains_from_either_reference(home, folders, layout, backend, in_4bit):
    kl = {}
    for reference in ("base", "adapter"):
        asked = recipe(folders[layout], {"max_steps": 2}, backend=backend, load_in_4bit=in_4bit, reference=reference)
        run = train(asked.model_copy(update={"run_name": reference}))
        assert run.result()["status"] == "finished"
        assert run.manifest()["reference"] == reference
        kl[reference] = [row["kl"] for row in run.metrics()]
    assert kl["adapter"][0] == 0
    assert kl["adapter"][1] > 0
    assert kl["base"][0] > 0


@pytest.mark.slow
def test_a_run_of_dora_and_whole_modules_is_measured_and_exported(home, folders):
    import torch
    from transformers import AutoModelForCausalLM

    asked = recipe(folders["llama_factory"], {"max_steps": 2}, load_in_4bit=True)
    run = train(asked)
    risk = wb.inspection.merge_risk(run)
    assert "DoRA" in risk.verdict
    assert (risk.layers, risk.into) == ({}, "dequantised")
    merged = wb.export(run, formats=["merged_16bit"])["merged_16bit"]
    policy = load_policy(run.recipe(), adapter=run.adapter)
    exported = AutoModelForCausalLM.from_pretrained(merged.path, dtype=torch.float32)
    before = logits(base())
    live = logits(policy.model)
    assert (logits(exported) - live).abs().max() < 0.1 * (live - before).abs().max()
    evaluation = wb.evaluate(run, held_out=4, samples=2)
    assert len(evaluation.prompts) == 4
