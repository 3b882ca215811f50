"""Merge risk: the ratio of two norms, layer by layer, and what is advised."""

from __future__ import annotations

import math

import pytest
import torch
from made_runs import changed_model, made_run, off_the_grid, saved_adapter

import workbench as wb
from workbench.display import view_of
from workbench.errors import ExportError
from workbench.exporting import merging
from workbench.exporting.risk import MergeRisk, _judged, left
from workbench.views.merge_risk import merge_risk_picture


def test_the_ratio_is_that_of_the_rounding_to_what_was_added(home):
    """By hand: NF4 rounds a matrix to the nearest of 16 values times the largest of its 64 neighbours."""
    from bitsandbytes.functional import get_4bit_type
    from safetensors.torch import load_file

    source = changed_model(home / "model", off_the_grid)
    adapter = saved_adapter(source=source)
    found = wb.merge_risk(made_run(source=source, adapter=adapter))
    weights, lora = load_file(source / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    values = get_4bit_type("nf4", device="cpu")
    assert len(found.layers) == 21
    for layer, ratio in found.layers.items():
        blocks = weights[f"{layer}.weight"].float().reshape(-1, 64)
        largest = blocks.abs().amax(1, keepdim=True)
        nearest = values[(blocks / largest).unsqueeze(-1).sub(values).abs().argmin(-1)] * largest
        a, b = (lora[f"base_model.model.{layer}.lora_{which}.weight"] for which in "AB")
        by_hand = (blocks - nearest).norm() / (2 * b @ a).norm()  # alpha 16, r 8
        # The largest are themselves kept in 8 bits ("double quantisation").
        assert ratio == pytest.approx(float(by_hand), rel=0.05)


def test_the_embedded_policy_lies_on_the_grid(home):
    found = wb.merge_risk(made_run())
    assert found.into == "base"
    assert max(found.layers.values()) < 0.1
    assert str(found).startswith("low: ")
    least, median, most = found.quantiles()
    assert f"21 layers: {least:.2g} to {most:.2g}, median {median:.2g}" in str(found)


def test_a_run_beside_16_bit_weights_has_none(home):
    found = wb.merge_risk(made_run(precision="bfloat16"))
    assert (set(found.layers.values()), len(found.layers), found.into) == ({0.0}, 21, "base")
    assert str(found).startswith("none: it was trained beside bfloat16 weights")
    assert str(found) == found.verdict  # no ratio where nothing was shifted


def test_a_folder_of_4_bit_weights_is_not_measured_and_merged_into_what_is_there(home):
    def marked(tensors, config):
        config["quantization_config"] = {"load_in_4bit": True, "quant_method": "bitsandbytes"}

    found = wb.merge_risk(made_run(source=changed_model(home / "model", marked)))
    assert (found.layers, found.into) == ({}, "dequantised")
    assert str(found).startswith("not measured: ")


def test_an_adapter_whose_layers_the_base_does_not_have(home):
    def renamed(tensors, config):
        for name in [name for name in tensors if "_proj" in name]:
            tensors[f"elsewhere.{name}"] = tensors.pop(name)

    with pytest.raises(ExportError, match="has the name of an adapted layer"):
        wb.merge_risk(made_run(source=changed_model(home / "model", renamed)))


@pytest.mark.parametrize(
    ("ratios", "moved", "said", "into"),
    [
        ([0.02, 0.1, 50.0], 0.07, "low: ", "base"),
        ([0.2, 1.0, 50.0], 0.07, "moderate: ", "base"),
        ([0.01, 1.1, 1.2], 0.07, "high: the 16-bit base lies 1.1 times as far", "dequantised"),
        ([2043.0] * 3, 0.01, "high: the 16-bit base lies 2,000 times as far", "dequantised"),
        ([2043.0] * 3, 0.00005, "high: training moved these layers by next to nothing (under 0.01 %", "dequantised"),
        ([math.inf] * 3, 0.0, "high: training moved these layers by nothing. ", "dequantised"),
    ],
)
def test_the_median_layer_decides(ratios, moved, said, into):
    found = _judged({f"layers.{n}.q_proj": ratio for n, ratio in enumerate(ratios)}, moved)
    assert found.verdict.startswith(said)
    assert found.into == into
    assert "inf " not in str(found)
    assert ("dequantised weights" in found.verdict) == (into == "dequantised")


def test_a_run_of_few_steps_says_that_it_moved_next_to_nothing(home):
    source = changed_model(home / "model", off_the_grid)
    verdicts = []
    for name, std in (("some", 0.001), ("none", 0.000001)):  # of B: 0.6 % and 0.0006 % of a layer
        run = made_run(name, source=source, adapter=saved_adapter(std, source=source))
        verdicts.append(wb.merge_risk(run).verdict)
    assert ["next to nothing" in verdict for verdict in verdicts] == [False, True]


@pytest.mark.parametrize(
    ("units", "share"),  # bfloat16 has 7 bits after 1: a unit is 2**-7
    [(0.4, 0.0), (0.6, 1 / 0.6), (1.0, 1.0), (2.2, 2 / 2.2)],
)
def test_what_rounding_leaves_of_a_step_by_hand(units, share):
    step = torch.full((4, 8), units * 2**-7)
    assert left(torch.ones(4, 8), step, torch.bfloat16) / float(step.norm()) ** 2 == pytest.approx(share, rel=1e-5)


@pytest.mark.parametrize("precision", ["nf4", "bfloat16"])
def test_a_change_that_16_bits_round_away_is_told_before_it_is_merged(home, precision):
    source = changed_model(home / "model", off_the_grid)
    risks = []
    for std in (0.02, 2e-5):
        adapter = saved_adapter(std, source=source)
        run = made_run(f"s{std}", source=source, adapter=adapter, precision=precision, compute_dtype="bfloat16")
        risks.append(wb.merge_risk(run))
    clear, lost = risks
    assert clear.kept == pytest.approx(1.0, abs=0.1)
    assert lost.kept < 0.3
    assert "keeps" not in clear.verdict
    assert lost.verdict.startswith(f"high: rounded to bfloat16, the sum keeps {lost.kept:.0%} of what training added")
    # What a merge really holds of it.
    folder = wb.export(run, ["merged_16bit"], into=lost.into)["merged_16bit"].path
    merged, base, steps = merging.tensors_of(folder), merging.tensors_of(source), merging.deltas(run.adapter)
    held = merging.four_bit(run) if lost.into == "dequantised" else lambda layer, weight: weight
    moved, square = 0.0, 0.0
    for layer, step in steps.items():
        weight = base[f"{layer}.weight"]()
        before = held(layer, weight.float()).to(weight.dtype).float()
        moved += float(((merged[f"{layer}.weight"]().float() - before) * step()).sum())
        square += float(step().norm()) ** 2
    assert lost.kept == pytest.approx(moved / square, abs=0.02)


def test_the_picture_has_a_bar_for_each_layer_on_a_log_axis_and_the_line_at_1():
    layers = {f"model.layers.{n}.{kind}_proj": 10.0 ** (n - 1) for kind in "qv" for n in range(4)} | {"x.down_proj": math.inf}
    picture = view_of(MergeRisk(layers, "high: said", "dequantised"))
    [axis] = picture.figure.axes
    assert axis.get_yscale() == "log"
    assert len(axis.patches) == 9
    assert sum(patch.get_height() > 1 for patch in axis.patches) == 5
    assert [label.get_text() for label in axis.get_xticklabels()] == ["q_proj", "v_proj", "down_proj"]
    assert any(list(line.get_ydata()) == [1.0, 1.0] for line in axis.lines)
    assert [text.get_text().split(":")[0] for text in axis.get_legend().get_texts()] == ["1"]
    picture.figure.canvas.draw()
    assert "0.1" in [label.get_text() for label in axis.get_yticklabels()]
    assert axis.get_ylabel().startswith("shift of the base")
    assert str(picture).startswith("high: said\n")
    for empty in (MergeRisk({}, "not measured: said", "dequantised"), MergeRisk({"q_proj": 0.0}, "none: said", "base")):
        assert merge_risk_picture(empty)._repr_mimebundle_()["text/plain"].startswith(empty.verdict)
