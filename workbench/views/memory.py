"""Will it fit? The memory of a recipe as bars against the card."""

from __future__ import annotations

from workbench.memory import UNCALIBRATED, MemoryEstimate
from workbench.memory.parts import GB, PHASES, add, in_gb
from workbench.views.figure import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    Picture,
    lying,
    new_figure,
    with_legend,
)

# What is drawn in one colour: name, its parts' names, colour.
_GROUPS = (
    ("weights", ("weights",), BLUE),
    ("LoRA, gradients, optimiser", ("LoRA", "reference adapter", "optimiser", "gradients"), GREEN),
    ("vLLM", ("vLLM",), RED),
    ("keys and values", ("keys and values",), ORANGE),
    ("activations", ("activations",), PURPLE),
    ("log-probabilities", ("log-probabilities",), SKY),
    ("scratch", ("scratch",), GREY),
    ("CUDA and its allocator", ("CUDA and its allocator",), "#cccccc"),
)


def memory_picture(estimate: MemoryEstimate) -> Picture:
    """One bar per phase, its parts stacked, the whole range from low to high as a whisker, the
    card's limit as a line.
    """
    figure, axis = new_figure(9.5, 2.7)
    spans = {phase: estimate.total(phase) for phase in PHASES}
    widest = max([span.high for span in spans.values()] + [estimate.vram_bytes or 0]) / GB
    for place, (phase, span) in enumerate(spans.items()):
        start = 0.0
        for name, names, colour in _GROUPS:
            parts = [part for part in estimate.of(phase) if part.name in names]
            if parts:
                width = add(parts).bytes / GB
                axis.barh(
                    place,
                    width,
                    left=start,
                    height=0.5,
                    color=colour,
                    edgecolor="white",
                    linewidth=0.8,
                    label=name,
                )
                start += width
        ends = [[(span.bytes - span.low) / GB], [(span.high - span.bytes) / GB]]
        axis.errorbar(start, place, xerr=ends, color=BLACK, elinewidth=1.2, capsize=5, capthick=1.2)
    # The figures stand beside the bars: on them they would cross the card's line.
    labels = [
        f"{phase}\n{in_gb(span.bytes)}\n({span.low / GB:.1f} to {span.high / GB:.1f})"
        for phase, span in spans.items()
    ]
    lying(axis, range(len(PHASES)), labels)
    axis.set_ylim(len(PHASES) - 0.45, -0.75)
    axis.set_xlim(0, 1.12 * widest)
    if estimate.vram_bytes is not None:
        limit = estimate.vram_bytes / GB
        card = f"the card: {in_gb(estimate.vram_bytes)}"
        axis.axvline(limit, color=RED, linewidth=1.8)
        axis.axvspan(limit, 1.12 * widest, color=RED, alpha=0.06)
        side, shift = ("left", 0.012) if limit < 0.8 * widest else ("right", -0.012)
        axis.text(limit + shift * widest, -0.72, card, color=RED, fontsize=8, va="top", ha=side)
    handles = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    order = [name for name, _, _ in _GROUPS if name in handles]
    unit = f"GB, estimated: {UNCALIBRATED}"
    title = f"{estimate.shape.name}: {estimate.verdict}"
    return Picture(
        with_legend(figure, axis, [handles[name] for name in order], order, x=unit, title=title),
        str(estimate),
    )
