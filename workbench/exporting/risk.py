"""Merge risk: how far the 16-bit weights lie from the 4-bit ones that the adapter was trained
beside, relative to its step.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from workbench.base.errors import ExportError
from workbench.base.extras import need_train
from workbench.base.progress import progress_line
from workbench.exporting import merging
from workbench.run.directory import RunDirectory

# Above 1, merging moves the median layer further by undoing the rounding to 4 bits than by adding
# what was trained: the sum is another model than the one that earned its rewards. The embedded
# policy, whose base was trained on the grid of NF4, lies at
# 0.02 to 0.04; a 7B model whose adapter adds 1 % to its weights, at about 9 (NF4 moves a Gaussian
# matrix by 9.2 % of its norm); models whose merge wrote nonsense, at 10 to 150. Below 0.1 the shift
# is a tenth of the step, and no case is known.
LOW, HIGH = 0.1, 1.0


@dataclass(frozen=True)
class MergeRisk:
    """Per adapted layer: norm(W16 - dequant(W4)) / norm(s B A)."""

    layers: dict[str, float]
    verdict: str
    into: str  # "base" or "dequantised": what the merge is advised to go into

    @property
    def median(self) -> float:
        """Of the layers' ratios; 0 where none was measured."""
        return statistics.median_low(self.layers.values() or [0.0])

    def __str__(self) -> str:
        if not self.layers:
            return self.verdict
        worst = max(self.layers, key=self.layers.__getitem__)
        return (
            f"{self.verdict}\n  shift of the base / what training added, {len(self.layers)} layers:"
            f" median {self.median:.2g}, highest {self.layers[worst]:.2g} in {worst}"
        )


def merge_risk(run: RunDirectory) -> MergeRisk:
    """The risk of merging a run's adapter into the 16-bit base, on the CPU, one layer at a time.

    >>> len(wb.inspection.merge_risk(wb.open_run("latest", latest="trained")).layers)
    21

    RunError: the run is training, or has no adapter.
    """
    need_train()
    adapter = run.check_ended().adapter
    precision, base = run.manifest()["policy"]["precision"], merging.base_of(run)
    if merging.is_quantised(base):
        why = "the policy's folder holds 4-bit weights, and no 16-bit base is known"
        return MergeRisk({}, f"not measured: {why}", "dequantised")
    if precision != "nf4":
        return MergeRisk({}, f"none: trained beside {precision} weights, the base's own", "base")
    if merging.rescales(adapter):
        return MergeRisk({}, "not measured: DoRA also rescales its layers", "dequantised")
    deltas, stored = merging.deltas(adapter), merging.tensors_of(base)
    held, ratios, update = merging.four_bit(run), {}, progress_line("merge risk")
    for done, (layer, delta) in enumerate(deltas.items(), start=1):
        if f"{layer}.weight" in stored:
            weight, added = stored[f"{layer}.weight"]().float(), float(delta().norm())
            four = held(layer, weight)
            shift = 0.0 if four is None else float((weight - four).norm())
            ratios[layer] = shift / added if added else math.inf if shift else 0.0
        update(done, len(deltas))
    if not ratios:
        raise ExportError(
            f"{base}: none of its tensors has the name of an adapted layer"
            f" ({next(iter(deltas), 'there is none')})",
            rule="merge risk compares tensors by name",
            remedy='choose yourself: into="base" or into="dequantised"',
        )
    return _judged(ratios)


def _judged(layers: dict[str, float]) -> MergeRisk:
    median = statistics.median_low(layers.values())
    if median <= LOW:
        why = "low: the 16-bit base is close enough to the weights of training to merge into it"
    elif median <= HIGH:
        why = "moderate: merged into the 16-bit base, it may differ from what was trained"
    else:
        why = (
            f"high: the 16-bit base lies {median:.2g} times as far from the weights of training as"
            " training moved them, which is usual for few steps, a low learning rate or a large"
            " model in NF4. Unless told otherwise, the merge goes into the dequantised weights"
        )
    return MergeRisk(layers, why, "base" if median <= HIGH else "dequantised")
