"""Tensors of exports: each spoiled one is found, with its cause and its layer, and no good one is."""

from __future__ import annotations

import json
import random
import shutil

import pytest
import torch
from sabotage import SABOTAGES, WORDS, deltas, edit_json, put_tensors, tensors, wrong_base
from small_models import ATTENTION, MLP, artefact, load, make_adapter, make_base, make_run, merge

from workbench.exporting import merging
from workbench.exporting.weights import _converts, _right, check_weights

OTHER = {"other_weights"}


def failed(checks) -> set[str]:
    return {check.cause for check in checks if check.passed is False}


def the_failed(checks):
    (check,) = [check for check in checks if check.passed is False]
    return check


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def base(folder):
    return make_base(folder / "base")


@pytest.fixture(scope="module")
def adapter(base, folder):
    return make_adapter(base, folder / "adapter")


@pytest.fixture(scope="module")
def merged(base, adapter, folder):
    return merge(base, adapter, folder / "merged_16bit")


@pytest.fixture
def run(home, base, adapter):
    return make_run(base, adapter)


def test_a_good_merge_and_its_adapter_pass(run, merged, adapter):
    checks = check_weights(artefact(merged, run))
    assert [(check.passed, check.found) for check in checks] == [(True, "all 21 are as trained")]
    assert len(deltas(adapter)) == 14
    assert [check.passed for check in check_weights(artefact(adapter, run, "adapter"))] == [True]


@pytest.mark.parametrize("cause", sorted(SABOTAGES.keys() - WORDS.keys()))
def test_a_spoiled_merge_is_found(cause, run, merged, base, adapter, tmp_path):
    spoiled = SABOTAGES[cause](merged, tmp_path / "out", base, adapter)
    assert failed(check_weights(artefact(spoiled, run))) == OTHER


@pytest.mark.parametrize("cause", ["not_merged", "merged_twice", "layer_skipped", "other_adapter", "wrong_base"])
def test_a_spoiled_adapter_is_found(cause, run, base, adapter, tmp_path):
    spoiled = SABOTAGES[cause](adapter, tmp_path / "out", base, adapter)
    assert failed(check_weights(artefact(spoiled, run, "adapter"))) == OTHER


def test_each_layer_that_is_skipped_is_named(run, merged, base, adapter, tmp_path):
    for layer in deltas(adapter):
        spoiled = SABOTAGES["layer_skipped"](merged, tmp_path / layer, base, adapter, layer.removesuffix(".weight"))
        assert the_failed(check_weights(artefact(spoiled, run))).found == f"1 differ: {layer}"


@pytest.mark.parametrize(("size", "dtype"), [(1e-4, "float16"), (1e-3, "bfloat16"), (1.0, "bfloat16")])
def test_merged_more_than_once_at_every_size(size, dtype, home, tmp_path):
    base = make_base(tmp_path / "base", dtype=dtype)
    run = make_run(base, adapter := make_adapter(base, tmp_path / "adapter", size=size))
    for times in (2, 3):
        spoiled = merge(base, adapter, tmp_path / str(times), times=times)
        assert failed(check_weights(artefact(spoiled, run))) == OTHER


def test_a_base_of_another_seed(run, adapter, tmp_path):
    other = make_base(tmp_path / "other", seed=1)
    spoiled = merge(other, adapter, tmp_path / "out")
    checks = check_weights(artefact(spoiled, run))
    assert failed(checks) == OTHER


@pytest.mark.parametrize("only", ["layers.1.post_attention_layernorm", "model.norm", "embed_tokens", "lm_head"])
def test_a_base_whose_revision_differs_in_one_tensor(only, run, merged, base, adapter, tmp_path):
    check = the_failed(check_weights(artefact(wrong_base(merged, tmp_path / "out", base, adapter, only), run)))
    assert only in check.found


def test_a_base_whose_revision_differs_in_one_adapted_layer(run, merged, base, adapter, tmp_path):
    spoiled = wrong_base(merged, tmp_path / "out", base, adapter, "layers.0.self_attn.o_proj")
    check = the_failed(check_weights(artefact(spoiled, run)))
    assert check.found == "1 differ: model.layers.0.self_attn.o_proj.weight"


@pytest.mark.parametrize("other", [{"seed": 5}, {"seed": 5, "target_modules": ["q_proj", "v_proj"]}, {"seed": 5, "r": 4}])
def test_the_adapter_of_another_run(other, run, base, tmp_path):
    spoiled = merge(base, make_adapter(base, tmp_path / "adapter", **other), tmp_path / "out")
    assert failed(check_weights(artefact(spoiled, run))) == OTHER


def test_an_adapter_with_more_targets_than_the_run(base, merged, home, tmp_path):
    run = make_run(base, make_adapter(base, tmp_path / "adapter", target_modules=["q_proj", "v_proj"]))
    assert failed(check_weights(artefact(merged, run))) == OTHER


def test_a_scale_that_is_not_the_run_s(base, adapter, run, tmp_path):
    other = shutil.copytree(adapter, tmp_path / "adapter")
    edit_json(other / "adapter_config.json", lora_alpha=4)
    assert failed(check_weights(artefact(merge(base, other, tmp_path / "out"), run))) == OTHER
    assert "lora_alpha" in the_failed(check_weights(artefact(other, run, "adapter"))).found


def test_a_step_that_16_bits_cannot_hold_is_no_fault(base, home, tmp_path):
    run = make_run(base, make_adapter(base, tmp_path / "adapter", size=1e-9))
    checks = check_weights(artefact(merge(base, run.adapter, tmp_path / "out"), run))
    assert [check.passed for check in checks] == [True]


def test_what_the_base_ties_stays_tied(home, tmp_path):
    base = make_base(tmp_path / "base", "qwen2", tied=True)
    run = make_run(base, adapter := make_adapter(base, tmp_path / "adapter"))
    merged = merge(base, adapter, tmp_path / "merged")
    assert not failed(check_weights(artefact(merged, run)))
    lost = SABOTAGES["tied_head_lost"](merged, tmp_path / "lost", base, adapter)
    assert failed(check_weights(artefact(lost, run))) == OTHER
    # A head of its own, as some merges leave it: harmless while it equals the embeddings.
    edit_json(lost / "config.json", tie_word_embeddings=True)
    found = tensors(lost)
    put_tensors(lost, found | {"lm_head.weight": found["model.embed_tokens.weight"].clone()})
    assert not failed(check_weights(artefact(lost, run)))
    put_tensors(lost, found | {"lm_head.weight": found["model.embed_tokens.weight"] * 1.5})
    assert failed(check_weights(artefact(lost, run))) == OTHER
    other = merge(make_base(tmp_path / "other", "qwen2", tied=True, seed=3), adapter, tmp_path / "out")
    assert failed(check_weights(artefact(other, run))) == OTHER


def test_modules_that_were_trained_whole(home, base, tmp_path):
    run = make_run(base, adapter := make_adapter(base, tmp_path / "adapter", modules_to_save=["lm_head", "embed_tokens"]))
    merged = merge(base, adapter, tmp_path / "merged")
    assert not failed(check_weights(artefact(merged, run)))
    put_tensors(merged, tensors(merged) | {"lm_head.weight": tensors(base)["lm_head.weight"]})
    check = the_failed(check_weights(artefact(merged, run)))
    assert check.found == "1 differ: lm_head.weight"


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings:UserWarning", "ignore:Input and output emb:UserWarning")
def test_a_trained_head_on_a_tied_base(home, tmp_path):
    base = make_base(tmp_path / "base", tied=True)
    run = make_run(base, adapter := make_adapter(base, tmp_path / "adapter", modules_to_save=["lm_head"]))
    merged = merge(base, adapter, tmp_path / "merged")
    trained = tensors(adapter)["base_model.model.lm_head.weight"].bfloat16()
    right = tensors(merged) | {"lm_head.weight": trained}
    put_tensors(merged, right)
    edit_json(merged / "config.json", tie_word_embeddings=False)
    assert not failed(check_weights(artefact(merged, run)))
    put_tensors(merged, {name: own for name, own in right.items() if name != "lm_head.weight"})
    edit_json(merged / "config.json", tie_word_embeddings=True)
    assert failed(check_weights(artefact(merged, run))) == OTHER


def test_missing_and_unknown_tensors_are_named(run, merged, tmp_path):
    found = tensors(merged)
    out = shutil.copytree(merged, tmp_path / "out")
    put_tensors(out, {name: own for name, own in found.items() if "layers.1.input_layernorm" not in name})
    check = the_failed(check_weights(artefact(out, run)))
    assert "layers.1.input_layernorm" in check.found
    # Old checkpoints hold what can be computed; loading neither misses nor wants it.
    put_tensors(out, found | {"model.layers.2.input_layernorm.weight": torch.ones(64)})
    assert not failed(check_weights(artefact(out, run)))  # which nobody loads


def test_what_the_base_stores_and_nobody_loads_may_be_missing(home, adapter, base, merged, tmp_path):
    older = shutil.copytree(base, tmp_path / "older")
    put_tensors(older, tensors(base) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    assert not failed(check_weights(artefact(merged, make_run(older, adapter))))


def test_a_config_that_decides_otherwise(run, merged, tmp_path):
    out = shutil.copytree(merged, tmp_path / "out")
    rope = json.loads((out / "config.json").read_text())["rope_parameters"]
    edit_json(out / "config.json", rope_parameters=rope | {"rope_theta": 5e5})
    check = the_failed(check_weights(artefact(out, run)))
    assert check.found == "1 differ: rope_parameters"


def test_biases_that_were_trained(home, tmp_path):
    base = make_base(tmp_path / "base", "qwen2")
    run = make_run(base, adapter := make_adapter(base, tmp_path / "adapter", bias="all"))
    merged = merge(base, adapter, tmp_path / "out")
    checks = check_weights(artefact(merged, run))
    assert [check.passed for check in checks] == [True]
    name = "model.layers.1.self_attn.q_proj.bias"
    put_tensors(merged, tensors(merged) | {name: tensors(merged)[name] + 1})
    check = the_failed(check_weights(artefact(merged, run)))
    assert check.found == f"1 differ: {name}"


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning")
def test_an_adapter_that_does_more_than_add_to_layers_is_not_judged(home, base, tmp_path):
    run = make_run(base, adapter := make_adapter(base, tmp_path / "adapter", target_modules=["embed_tokens", "q_proj"]))
    (check,) = check_weights(artefact(merge(base, adapter, tmp_path / "out"), run))
    assert (check.passed, "more than add s B A to layers of the base: model.embed_tokens" in check.found) == (None, True)


def test_a_torn_file_is_left_to_whoever_loads_it(run, merged, tmp_path):
    out = shutil.copytree(merged, tmp_path / "out")
    content = (out / "model.safetensors").read_bytes()
    (out / "model.safetensors").write_bytes(content[: len(content) // 2])
    [check] = check_weights(artefact(out, run))
    assert (check.passed, "weights of" in check.found) == (None, True)


def test_what_cannot_be_told_says_why(run, merged, adapter, base, home):
    edit_json(run.final / "adapter_config.json", use_dora=True)
    checks = check_weights(artefact(merged, run))
    assert not failed(checks)
    assert any(check.passed is None and "more than add s B A" in check.found for check in checks)
    shutil.rmtree(run.final)
    shutil.copytree(adapter, run.final)
    gone = make_run(base, adapter, "gone", source=str(base / "nowhere"))
    gone.recipe().model_copy(update={"policy": gone.recipe().policy.model_copy(update={"name": str(base / "nowhere")})}).save(
        gone.path / "recipe.yaml"
    )
    (check,) = check_weights(artefact(merged, gone))
    assert (check.passed, "cannot be compared" in check.found) == (None, True)


def test_merged_into_the_dequantised_weights(home, base, adapter, merged, tmp_path):
    run = make_run(base, adapter, precision="nf4")
    out = merging.write_merged(base, adapter, tmp_path / "out", held=merging.four_bit(run))
    assert [check.passed for check in check_weights(artefact(out, run, into="dequantised"))] == [True]
    assert failed(check_weights(artefact(out, run))) == OTHER
    assert failed(check_weights(artefact(merged, run, into="dequantised"))) == OTHER
    for cause in ("merged_twice", "layer_skipped", "not_merged", "other_adapter"):
        spoiled = SABOTAGES[cause](out, tmp_path / cause, base, adapter)
        assert failed(check_weights(artefact(spoiled, run, into="dequantised"))) == OTHER


# -- in 4 bits --------------------------------------------------------------------------------------------------------
def in_four_bits(merged, folder):
    """A merged folder as `export` writes it in 4 bits, beside it."""
    from workbench.exporting import making
    from workbench.exporting.artefacts import Artefact

    shutil.copytree(merged, folder / "merged_16bit")
    making._merged_4bit(None, Artefact(folder / "merged_4bit", "merged_4bit", ""), folder / "merged_4bit")
    return folder / "merged_4bit"


@pytest.mark.parametrize("kind", [{}, {"kind": "qwen2", "tied": True}, {"dtype": "float16"}])
def test_a_good_merge_in_four_bits_passes(kind, home, tmp_path):
    base = make_base(tmp_path / "base", **kind)
    run = make_run(base, adapter := make_adapter(base, tmp_path / "adapter", target_modules=ATTENTION))
    four = in_four_bits(merge(base, adapter, tmp_path / "merged"), tmp_path)
    checks = check_weights(artefact(four, run, "merged_4bit"))
    assert {check.passed for check in checks} == {True}
    stored = tensors(four)
    assert stored["model.layers.0.mlp.up_proj.weight"].dtype == torch.uint8  # not adapted, and quantised all the same


def test_a_good_merge_into_the_dequantised_weights_passes_in_four_bits(home, base, adapter, tmp_path):
    run = make_run(base, adapter, precision="nf4")
    out = merging.write_merged(base, adapter, tmp_path / "out", held=merging.four_bit(run))
    four = in_four_bits(out, tmp_path / "four")
    assert {check.passed for check in check_weights(artefact(four, run, "merged_4bit", into="dequantised"))} == {True}
    # Into the other weights. Which fault it is, NF4's own rounding hides.
    assert failed(check_weights(artefact(four, run, "merged_4bit"))) == OTHER


@pytest.mark.parametrize("cause", sorted(SABOTAGES.keys() - WORDS.keys()))
def test_a_spoiled_merge_is_named_in_four_bits(cause, run, merged, base, adapter, tmp_path):
    spoiled = SABOTAGES[cause](merged, tmp_path / "out", base, adapter)
    assert failed(check_weights(artefact(in_four_bits(spoiled, tmp_path), run, "merged_4bit"))) == OTHER


def test_a_step_that_four_bits_round_away_is_no_fault(base, home, tmp_path):
    run = make_run(base, adapter := make_adapter(base, tmp_path / "adapter", size=1e-9))
    four = in_four_bits(merge(base, adapter, tmp_path / "merged"), tmp_path)
    checks = check_weights(artefact(four, run, "merged_4bit"))
    assert [check.passed for check in checks] == [True, True]


def test_another_version_of_the_quantiser_is_forgiven_a_few_weights_and_no_more():
    draws = torch.Generator().manual_seed(0)
    whole = (torch.randn(64, 128, generator=draws) * 0.02).bfloat16()
    again = merging.in_nf4(whole)
    few, many = again.clone(), again.clone()
    few.view(-1)[::1000] = again.view(-1).flip(0)[::1000]  # 9 of 8,192
    many.view(-1)[::10] = again.view(-1).flip(0)[::10]
    other = merging.in_nf4(whole + 0.002 * torch.randn(64, 128, generator=draws).bfloat16())
    found = [_converts(stored, lambda: again, whole) for stored in (again, whole, few, many, other, again.T)]
    assert found == [True, True, True, False, False, False]


def test_tensors_in_four_bits_that_are_not_those_of_the_merge_beside_them_are_found(run, merged, base, adapter, tmp_path):
    four = in_four_bits(SABOTAGES["layer_skipped"](merged, tmp_path / "out", base, adapter), tmp_path)
    shutil.rmtree(tmp_path / "merged_16bit")
    [check] = check_weights(artefact(four, run, "merged_4bit"))
    assert (check.passed, "not beside it" in check.found) == (None, True)
    shutil.copytree(merged, tmp_path / "merged_16bit")
    whole, check = check_weights(artefact(four, run, "merged_4bit"))
    assert (whole.passed, check.cause, check.found.startswith("1 differ: ")) == (True, "other_weights", True)


# -- good exports: no false alarm ---------------------------------------------------------------------------------------
def good_export(number: int, folder) -> list:
    """The checks of one good export, everything about it drawn at random."""
    draw = random.Random(number)
    dtype, tied, kind = draw.choice(["bfloat16", "float16"]), draw.random() < 0.4, draw.choice(["llama", "qwen2"])
    shards = draw.choice(["1GB", "60KB"])
    base = make_base(folder / "base", kind, tied=tied, dtype=dtype, seed=number, shards=shards)
    targets = draw.sample(ATTENTION + MLP, draw.randint(1, 7))
    lora = {"r": draw.choice([1, 2, 4, 8, 16, 32]), "lora_alpha": draw.choice([1, 8, 16, 64]), "target_modules": targets}
    lora |= {"use_rslora": draw.random() < 0.3}
    if draw.random() < 0.3:
        lora |= {"rank_pattern": {targets[0]: 3}, "alpha_pattern": {targets[-1]: 5, rf"layers\.1\..*{targets[0]}": 7}}
    if draw.random() < 0.2 and not tied:
        lora |= {"modules_to_save": draw.choice([["lm_head"], ["embed_tokens", "lm_head"]])}
    adapter = make_adapter(base, folder / "adapter", size=10 ** draw.uniform(-6, 0.5), seed=number, **lora)
    run = make_run(base, adapter, f"r{number}", precision=draw.choice(["nf4", dtype]))
    into, out = "base", folder / "merged"
    if draw.random() < 0.5:
        merge(base, adapter, out, shards=shards)
    elif run.manifest()["policy"]["precision"] == "nf4" and draw.random() < 0.5:
        into, out = "dequantised", merging.write_merged(base, adapter, out, held=merging.four_bit(run))
    else:
        merging.write_merged(base, adapter, out)
    own = merging.copy_adapter(run.adapter, folder / "copy")
    return [*check_weights(artefact(out, run, into=into)), *check_weights(artefact(own, run, "adapter"))]


def test_good_exports_raise_no_alarm(home, tmp_path):
    for number in range(3):
        assert not failed(good_export(number, tmp_path / f"{number}")), number


@pytest.mark.slow
def test_fifty_good_exports_raise_no_alarm(home, tmp_path):
    told = []
    for number in range(100, 150):
        checks = good_export(number, tmp_path / f"{number}")
        assert not [check for check in checks if check.passed is False], number
        told += [check.passed for check in checks if "change" in check.name]
    assert len(told) == 50
    assert told.count(True) >= 40  # most can be told, too


# -- one tensor ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_step_added_once_over_seven_magnitudes(dtype):
    draws = torch.Generator().manual_seed(0)
    base = (torch.randn(64, 96, generator=draws) * 0.02).to(dtype)
    for power in range(-7, 1):
        step, other = (torch.randn(64, 96, generator=draws) * 0.02 * 10.0**power for _ in range(2))
        for k in range(4):
            found = _right((base.float() + k * step).to(dtype), base, step)
            assert found if k == 1 else (not found or power <= -5), (power, k)
        found = _right((base.float() + other).to(dtype), base, step)
        assert not found or power <= -5, power


@pytest.mark.parametrize("k", [0.25, 0.9, 1.1, 1.5])
def test_at_another_scale_it_is_something_else(k):
    draws = torch.Generator().manual_seed(0)
    base, step = ((torch.randn(64, 96, generator=draws) * 0.02).bfloat16() for _ in range(2))
    assert _right((base.float() + k * step.float()).bfloat16(), base, step.float()) is False


def test_one_weight_that_is_another_is_seen_among_many_that_moved():
    draws = torch.Generator().manual_seed(0)
    base, step = ((torch.randn(64, 96, generator=draws) * 0.02).bfloat16() for _ in range(2))
    stored = (base.float() + step.float()).bfloat16()
    assert _right(stored, base, step.float()) is True
    stored[3, 5] += 0.1  # a thousandth of the distance that the step moves
    assert _right(stored, base, step.float()) is False


def test_a_weight_that_is_not_a_number_is_seen_with_a_step_and_without():
    ones = torch.ones(16, 16).bfloat16()
    spoiled = ones.clone()
    spoiled[2, 3] = torch.nan
    assert _right(spoiled, ones, None) is False
    assert _right(spoiled, ones, 0.0 * ones.float()) is False
    assert _right(ones, ones, None) is True


def test_not_added_is_told_where_the_sum_would_be_the_next_number_of_its_type():
    unit, ones = 2.0**-7, torch.ones(16, 16)
    assert _right(ones.bfloat16(), ones.bfloat16(), 0.6 * unit * ones) is False
    between = ones * (1 + 0.3 * unit)  # a dequantised weight
    assert _right(between.bfloat16(), between, 0.4 * unit * ones) is False


def test_another_order_of_the_sums_is_forgiven():
    draws = torch.Generator().manual_seed(0)
    base = (torch.randn(64, 96, generator=draws) * 0.02).bfloat16()
    for power in range(-3, 1):
        step = torch.randn(64, 96, generator=draws) * 0.02 * 10.0**power
        apart = step * (1 + 1e-6 * torch.randn(step.shape, generator=draws))
        assert _right((base.float() + apart).bfloat16(), base, step) is True


def test_a_tensor_of_another_shape_is_something_else():
    assert _right(torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(3, 2)) is False


def test_the_delta_is_the_one_that_peft_computes(base, adapter):
    from peft import PeftModel

    model = PeftModel.from_pretrained(load(base), adapter)
    for name, module in model.base_model.model.named_modules():
        if hasattr(module, "get_delta_weight"):
            torch.testing.assert_close(merging.deltas(adapter)[name](), module.get_delta_weight("default"), rtol=1e-6, atol=1e-9)
