"""Merge risk: how far the 16-bit weights lie from the 4-bit ones that the adapter was trained
beside, relative to its step; and how much of the step is left once the sum is rounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from workbench.errors import ExportError
from workbench.exporting import merging
from workbench.extras import need_train
from workbench.kinds import Tensor
from workbench.progress import progress_line
from workbench.run.directory import RunDirectory

if TYPE_CHECKING:
    import torch

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
# Of what training added, what rounding has to leave. A weight moves only where the step is half a
# unit of the type or more: of a real model's nine first steps at a learning rate of 1e-4, bfloat16
# keeps 14 %, and its merge writes what lies a third of the way from the base to the policy; of the
# demo's, it keeps all.
_KEPT = 0.5


@dataclass(frozen=True)
class MergeRisk:
    """Per adapted layer: norm(W16 - dequant(W4)) / norm(s B A)."""

    layers: dict[str, float]
    verdict: str
    into: str  # "base" or "dequantised": what the merge is advised to go into
    # the share of what training added that is left once that sum is rounded to the base's type;
    # None: not measured, or nothing was added
    kept: float | None = None

    def quantiles(self) -> list[float]:
        """Minimum, median and maximum of the layers' ratios; empty where none was measured."""
        ordered = sorted(self.layers.values())
        return [ordered[0], ordered[len(ordered) // 2], ordered[-1]] if ordered else []

    def __str__(self) -> str:
        # Nothing was measured, nothing was added, or nothing was shifted: there is no ratio.
        if {*self.quantiles()} <= {0.0} or self.quantiles()[0] == math.inf:
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
    need_train()
    adapter = run.check_ended().adapter
    precision, base = run.manifest()["policy"]["precision"], merging.base_of(run)
    if merging.is_quantised(base):
        verdict = (
            "not measured: the policy's folder holds 4-bit weights, and no 16-bit base is known"
        )
        return MergeRisk({}, verdict, "dequantised")
    held = merging.four_bit(run) if precision == "nf4" else None
    if merging.rescales(adapter):
        verdict = "not measured: DoRA also rescales its layers; `prove` measures what the sum does"
        return MergeRisk({}, verdict, "dequantised" if held else "base")
    deltas, stored = merging.deltas(adapter), merging.tensors_of(base)
    layers = [layer for layer in deltas if f"{layer}.weight" in stored]
    if not layers:
        raise ExportError(
            f"{base}: none of its tensors has the name of an adapted layer"
            f" ({next(iter(deltas), 'there is none')})",
            rule="merge risk compares tensors by name",
            remedy='choose yourself: into="base" or into="dequantised"',
        )
    ratios, moved, update = {}, [], progress_line("merge risk")
    kept = {"base": 0.0, "dequantised": 0.0}  # of `square`
    square, dtype = 0.0, merging.sum_type(stored[f"{layers[0]}.weight"]().dtype)
    for done, layer in enumerate(layers, start=1):
        weight, step = stored[f"{layer}.weight"](), deltas[layer]()
        step = step if step.shape == weight.shape else step.T  # Conv1D stores the transpose
        four = held(layer, weight.float()) if held else None
        before = {"base": weight.float(), "dequantised": weight.float() if four is None else four}
        for into, own in before.items():
            kept[into] += left(own, step, dtype)
        added, shift = float(step.norm()), float((before["base"] - before["dequantised"]).norm())
        square += added**2
        ratios[layer] = shift / added if added else math.inf if shift else 0.0
        moved.append(added / (float(before["base"].norm()) or 1.0))
        update(done, len(layers))
    if held:
        risk = _judged(ratios, sorted(moved)[(len(moved) - 1) // 2])
    else:
        why = f"it was trained beside {precision} weights, which are the base's"
        risk = MergeRisk(ratios, f"none: {why}; `prove` measures what the sum does", "base")
    return _rounding(risk, kept[risk.into] / square, str(dtype)[6:]) if square else risk


def left(before: Tensor, step: Tensor, dtype: torch.dtype) -> float:
    """What rounding their sum to `dtype` leaves of a step, along it: the step's squared norm if all
    is left.
    """
    moved = (before + step).to(dtype).float() - before.to(dtype).float()
    return float((moved * step).sum())


def _rounding(risk: MergeRisk, kept: float, kind: str) -> MergeRisk:
    if kept >= _KEPT:
        return replace(risk, kept=kept)
    verdict = (
        f"high: rounded to {kind}, the sum keeps {max(kept, 0.0):.0%} of what training added, which"
        f" is less than {kind} resolves. Take the adapter, which keeps all of it, or train further"
    )
    return replace(risk, kept=kept, verdict=verdict)


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
