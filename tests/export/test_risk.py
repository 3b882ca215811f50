"""Merge risk: the ratio of two norms, layer by layer, and what is advised."""

from __future__ import annotations

import math

import pytest
from made_runs import changed_model, made_run, off_the_grid, saved_adapter

import workbench as wb
from workbench.base.errors import ExportError
from workbench.exporting.risk import MergeRisk, _judged
from workbench.views.display import view_of
from workbench.views.merge_risk import merge_risk_picture


def test_the_ratio_is_that_of_the_rounding_to_what_was_added(home):
    """By hand: NF4 rounds a matrix to the nearest of 16 values times the largest of its 64 neighbours."""
    from bitsandbytes.functional import get_4bit_type
    from safetensors.torch import load_file

    source = changed_model(home / "model", off_the_grid)
    adapter = saved_adapter(source=source)
    found = wb.inspection.merge_risk(made_run(source=source, adapter=adapter))
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
    found = wb.inspection.merge_risk(made_run())
    assert found.into == "base"
    assert max(found.layers.values()) < 0.1
    assert str(found).startswith("low: ")
    assert found.median == sorted(found.layers.values())[10]
    assert f"21 layers: median {found.median:.2g}, highest {max(found.layers.values()):.2g} in " in str(found)


def test_a_run_beside_16_bit_weights_has_none(home):
    found = wb.inspection.merge_risk(made_run(precision="bfloat16"))
    assert (found.layers, found.median, found.into) == ({}, 0.0, "base")
    assert str(found) == found.verdict == "none: trained beside bfloat16 weights, the base's own"


def test_a_folder_of_4_bit_weights_is_not_measured_and_merged_into_what_is_there(home):
    def marked(tensors, config):
        config["quantization_config"] = {"load_in_4bit": True, "quant_method": "bitsandbytes"}

    found = wb.inspection.merge_risk(made_run(source=changed_model(home / "model", marked)))
    assert (found.layers, found.into) == ({}, "dequantised")
    assert str(found).startswith("not measured: ")


def test_an_adapter_whose_layers_the_base_does_not_have(home):
    def renamed(tensors, config):
        for name in [name for name in tensors if "_proj" in name]:
            tensors[f"elsewhere.{name}"] = tensors.pop(name)

    with pytest.raises(ExportError, match="has the name of an adapted layer"):
        wb.inspection.merge_risk(made_run(source=changed_model(home / "model", renamed)))


@pytest.mark.parametrize(
    ("ratios", "said", "into"),
    [
        ([0.02, 0.1, 50.0], "low: ", "base"),
        ([0.2, 1.0, 50.0], "moderate: ", "base"),
        ([0.01, 1.1, 1.2], "high: the 16-bit base lies 1.1 times as far", "dequantised"),
        ([2043.0] * 3, "high: the 16-bit base lies 2e+03 times as far", "dequantised"),
        ([math.inf] * 3, "high: ", "dequantised"),
    ],
)
def test_the_median_layer_decides(ratios, said, into):
    found = _judged({f"layers.{n}.q_proj": ratio for n, ratio in enumerate(ratios)})
    assert (found.verdict.startswith(said), found.into) == (True, into)
    assert ("dequantised weights" in found.verdict) == (into == "dequantised")


def test_a_run_that_learnt_nothing_is_not_merged_into_the_base(home):
    source = changed_model(home / "model", off_the_grid)
    found = wb.inspection.merge_risk(made_run(source=source, adapter=saved_adapter(0.0, source=source)))
    assert (set(found.layers.values()), found.into) == ({math.inf}, "dequantised")


def test_the_picture_has_a_bar_for_each_layer_on_a_log_axis_and_the_line_at_1():
    layers = {f"model.layers.{n}.{kind}_proj": 10.0 ** (n - 1) for kind in "qv" for n in range(4)} | {"x.down_proj": math.inf}
    picture = view_of(MergeRisk(layers, "high: said", "dequantised"))
    [axis] = picture.figure.axes
    assert axis.get_yscale() == "log"
    assert [patch.get_height() for patch in axis.patches] == [0.1, 1.0, 10.0, 100.0] * 2
    assert any(list(line.get_ydata()) == [1.0, 1.0] for line in axis.lines)
    assert str(picture).startswith("high: said\n")
    for empty in (MergeRisk({}, "not measured: said", "dequantised"), MergeRisk({"q_proj": 0.0}, "none: said", "base")):
        assert merge_risk_picture(empty)._repr_mimebundle_()["text/plain"].startswith(empty.verdict)
