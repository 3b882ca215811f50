"""Merge risk: how far the 16-bit weights lie from the 4-bit ones that the adapter was trained
beside, relative to its step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from workbench.errors import ExportError
from workbench.exporting import merging
from workbench.progress import progress_line
from workbench.run.directory import RunDirectory

# Above 1, merging moves the median layer further by undoing the rounding to 4 bits than by adding
# what was trained: the sum is another model than the one that earned its rewards. The embedded
# policy, whose base was trained on the grid of NF4, lies at
# 0.02 to 0.04; a 7B model whose adapter adds 1 % to its weights, at about 9 (NF4 moves a Gaussian
# matrix by 9.2 % of its norm); models whose merge wrote nonsense, at 10 to 150. Below 0.1 the shift
# is a tenth of the step, and no case is known.
LOW, HIGH = 0.1, 1.0
# Of a layer's norm, what training added. The demo adds 0.08; two steps at its learning rate 0.008,
# at a hundredth of it 0.00008.
_NOTHING = 1e-4


@dataclass(frozen=True)
class MergeRisk:
    """Per adapted layer: norm(W16 - dequant(W4)) / norm(s B A)."""

    layers: dict[str, float]
    verdict: str
    into: str  # "base" or "dequantised": what the merge is advised to go into

    def quantiles(self) -> list[float]:
        """Minimum, median and maximum of the layers' ratios; empty where none was measured."""
        ordered = sorted(self.layers.values())
        return [ordered[0], ordered[len(ordered) // 2], ordered[-1]] if ordered else []

    def __str__(self) -> str:
        if self.quantiles()[:1] in ([], [math.inf]):
            return self.verdict
        least, median, most = map(_rounded, self.quantiles())
        worst = max(self.layers, key=self.layers.__getitem__)
        return (
            f"{self.verdict}\n  shift of the base / what training added, {len(self.layers)} layers:"
            f" {least} to {most}, median {median}; highest: {worst}"
        )


def merge_risk(run: RunDirectory) -> MergeRisk:
    """The risk of merging a run's adapter into the 16-bit base, on the CPU, one layer at a time.

    >>> len(wb.merge_risk(wb.open_run("latest", latest="trained")).layers)
    21

    RunError: the run is training, or has no adapter.
    """
    adapter = run.check_ended().adapter
    precision, base = run.manifest()["policy"]["precision"], merging.base_of(run)
    if precision != "nf4":
        verdict = (
            f"none: it was trained beside {precision} weights, which are the base's;"
            " `prove` measures what 16 bits keep"
        )
        return MergeRisk(dict.fromkeys(merging.deltas(adapter), 0.0), verdict, "base")
    if merging.is_quantised(base):
        verdict = (
            "not measured: the policy's folder holds 4-bit weights, and no 16-bit base is known"
        )
        return MergeRisk({}, verdict, "dequantised")
    held, deltas, stored = merging.four_bit(run), merging.deltas(adapter), merging.tensors_of(base)
    layers = [layer for layer in deltas if f"{layer}.weight" in stored]
    if not layers:
        raise ExportError(
            f"{base}: none of its tensors has the name of an adapted layer"
            f" ({next(iter(deltas), 'there is none')})",
            rule="merge risk compares tensors by name",
            remedy='choose yourself: into="base" or into="dequantised"',
        )
    ratios, moved, update = {}, [], progress_line("merge risk")
    for done, layer in enumerate(layers, start=1):
        weight = stored[f"{layer}.weight"]().float()
        four, added = held(layer, weight), float(deltas[layer]().norm())
        shift = 0.0 if four is None else float((weight - four).norm())
        ratios[layer] = shift / added if added else math.inf if shift else 0.0
        moved.append(added / (float(weight.norm()) or 1.0))
        update(done, len(layers))
    return _judged(ratios, sorted(moved)[(len(moved) - 1) // 2])


def _judged(layers: dict[str, float], moved: float) -> MergeRisk:
    # `moved`: norm(s B A) / norm(W) of the median layer.
    median = sorted(layers.values())[len(layers) // 2]
    if median <= LOW:
        why = "low: the 16-bit base is close enough to the weights of training to merge into it"
        return MergeRisk(layers, f"{why} safely", "base")
    if median <= HIGH:
        why = "moderate: merged into the 16-bit base, it may differ from what was trained"
        return MergeRisk(layers, why, "base")
    why = (
        f"the 16-bit base lies {_rounded(median)} times as far from the weights of training as"
        " training moved them; several times or more is usual for a large model in NF4"
    )
    if not moved:
        why = "training moved these layers by nothing"
    elif moved < _NOTHING:
        why = (
            "training moved these layers by next to nothing (under 0.01 % of their size): its"
            " steps were few, or its learning rate low"
        )
    verdict = f"high: {why}. Unless told otherwise, the merge goes into the dequantised weights"
    return MergeRisk(layers, verdict, "dequantised")


def _rounded(ratio: float) -> str:
    return f"{float(f'{ratio:.2g}'):,.12g}" if ratio < math.inf else "infinite"
