"""Memory against the card: bars that add up, labels that do not collide."""

from __future__ import annotations

import pytest

from workbench.memory import UNCALIBRATED, estimate
from workbench.memory.parts import GB, PHASES
from workbench.recipe import Recipe
from workbench.training.plan.settings.values import DEFAULTS
from workbench.views.figure import png
from workbench.views.memory import GROUPS, memory_picture


def made(vram_gb=16.0, *, name="Qwen/Qwen2.5-1.5B-Instruct", **grpo):
    recipe = Recipe(policy={"name": name, "max_seq_length": 1024})
    settings = {**DEFAULTS, "max_completion_length": 512, **grpo}
    return estimate(recipe, settings, vram_gb=vram_gb)


CASES = {
    "on the card": {},
    "far below the card": {"vram_gb": 200.0},
    "far above it": {"vram_gb": 4.0},
    "no card": {"vram_gb": None},
    "accumulated": {"gradient_accumulation_steps": 32, "gradient_checkpointing": True},
    "tiny": {"name": "tiny"},
    "vLLM": {"use_vllm": True, "gradient_checkpointing": True},
}


@pytest.mark.parametrize("case", CASES)
def test_the_bars_are_the_estimate(case):
    estimated = made(**CASES[case])
    axis = memory_picture(estimated).figure.axes[0]
    for place, phase in enumerate(PHASES):
        patches = [patch for patch in axis.patches if abs(patch.get_y() + patch.get_height() / 2 - place) < 0.01]
        assert sum(patch.get_width() for patch in patches) == pytest.approx(estimated.total(phase).bytes / GB)
        assert axis.get_xlim()[1] > estimated.total(phase).high / GB
    lines = [line for line in axis.lines if len(set(line.get_xdata())) == 1 and len(line.get_xdata()) == 2]
    limits = [line.get_xdata()[0] for line in lines if line.get_linewidth() > 1.5]
    assert limits == ([] if estimated.vram_bytes is None else [estimated.vram_bytes / GB])
    assert estimated.verdict in axis.get_title(loc="left")


@pytest.mark.parametrize("case", CASES)
def test_no_text_lies_on_another_or_outside(case):
    estimated = made(**CASES[case])
    figure = memory_picture(estimated).figure
    assert png(figure)
    axis = figure.axes[0]
    texts = [*axis.texts, *axis.get_yticklabels(), *axis.get_legend().get_texts(), axis.xaxis.label, axis._left_title]
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    page = figure.bbox
    for index, box in enumerate(boxes):
        assert box.x0 >= page.x0
        assert box.x1 <= page.x1
        assert not any(box.overlaps(other) for other in boxes[index + 1 :])


def test_the_picture_says_that_it_is_not_calibrated():
    assert UNCALIBRATED in memory_picture(made()).figure.axes[0].get_xlabel()


def test_every_part_has_a_colour():
    recipe = Recipe(policy={"name": "tiny"})
    cases = [
        *(made(**case) for case in CASES.values()),
        made(optim="adafactor", beta=0.1),
        made(use_vllm=True, use_liger_kernel=True),
    ]
    cases.append(estimate(recipe, DEFAULTS))
    named = {name for group in GROUPS.values() for name in group["parts"]}
    assert {part.name for estimated in cases for part in estimated.parts} | {"reference adapter"} == named


def test_a_phase_is_told_from_the_other_by_its_parts():
    legend = [text.get_text() for text in memory_picture(made()).figure.axes[0].get_legend().get_texts()]
    assert {"weights", "keys and values", "activations", "log-probabilities"} <= set(legend)
    assert len(set(legend)) == len(legend)
    assert "vLLM" in [text.get_text() for text in memory_picture(made(use_vllm=True)).figure.axes[0].get_legend().get_texts()]
