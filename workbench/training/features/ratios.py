"""How far the importance ratio goes; TRL logs only how much of it was clipped.

Unsloth's GPU trainer computes its loss elsewhere: there nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from workbench.base.kinds import Fields, Function, Model, Tensor, Trainer
from workbench.run.metrics import RATIO_HIGH, RATIO_LOW, RATIO_MASKED
from workbench.training.feature import Feature
from workbench.training.replaced import replaces

_OVER: dict[str, Callable[[list[float]], float]] = {
    RATIO_LOW: min,
    RATIO_HIGH: max,
    RATIO_MASKED: np.mean,
}


@replaces("_compute_loss", "_get_per_token_logps_and_entropies", "get_off_policy_mask")
class RatioWatch(Feature):
    """Records the minimum and maximum ratio of every loss, and how much an off-policy mask
    removes.
    """

    key = "ratio"

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        # since the latest row of metrics, of each loss
        self.noted: dict[str, list[float]] = {name: [] for name in _OVER}

    def row(self) -> dict[str, float]:
        """The numbers of all losses since the latest row."""
        values = {name: _OVER[name](noted) for name, noted in self.noted.items() if noted}
        for noted in self.noted.values():
            noted.clear()
        return values

    def around(self, trainer: Trainer) -> dict[str, Function]:
        """What computes the loss, the log-probabilities, and the mask."""
        names = ("_compute_loss", "_get_per_token_logps_and_entropies", "get_off_policy_mask")
        if not all(hasattr(trainer, name) for name in names):
            return {}
        compute, logps_of, mask_of = (getattr(trainer, name) for name in names)
        ratios = self.noted
        batch: list[Fields] = []  # of the latest loss
        lost = "a ratio was not recorded"

        def note(logps: Tensor) -> None:
            old, low, high = batch[0].get("old_per_token_logps"), 1.0, 1.0
            if old is not None:
                mask = batch[0]["completion_mask"] * batch[0].get("tool_mask", 1)
                away, kept = (logps.detach() - old) * mask, mask.bool()
                if trainer.importance_sampling_level == "sequence":
                    away, kept = away.sum(-1) / mask.sum(-1).clamp(min=1), mask.sum(-1) > 0
                if not kept.any():
                    return
                low, high = (float(end) for end in away[kept].exp().aminmax())
            ratios[RATIO_LOW].append(low)
            ratios[RATIO_HIGH].append(high)

        def _compute_loss(model: Model, inputs: Fields) -> Tensor:
            batch[:] = [inputs]
            return compute(model, inputs)

        def logps(*args: object, **more: object) -> object:
            computed = logps_of(*args, **more)
            if batch and computed[0].requires_grad:  # not those of the old policy or the reference
                with self.session.spared(lost):
                    note(computed[0])
            return computed

        def get_off_policy_mask(*args: object, **more: object) -> Tensor:
            kept = mask_of(*args, **more)
            with self.session.spared(lost):
                ratios[RATIO_MASKED].append(1 - float(kept.float().mean()))
            return kept

        return dict(zip(names, (_compute_loss, logps, get_off_policy_mask), strict=True))
