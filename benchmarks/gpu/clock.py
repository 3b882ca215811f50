"""What is timed and weighed of each step of an arm, and the medians of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpu.hardware import synchronise

COMPLETIONS = 64  # of a step
Row = dict[str, Any]


class Clock:
    """A watcher that takes the time from one logged step to the next, and the most memory that was
    held until then.

    A step is logged after its loss was read from the GPU, and the GPU is waited for before the
    clock is read.

    Args:
        seconds: no step is begun that would end after so long; two are made at least.
        begun: called with the run and its settings before the first step.
        keep: called with all rows after each step.
    """

    def __init__(
        self,
        seconds: float,
        begun: Callable[[Any, dict[str, Any]], None] = lambda run, settings: None,
        keep: Callable[[list[Row]], None] = lambda rows: None,
    ) -> None:
        self.seconds, self.begun, self.keep = seconds, begun, keep
        self.rows: list[Row] = []

    def begin(self, run: Any, total_steps: int, settings: dict[str, Any]) -> None:
        import torch

        self.run, self.total = run, total_steps
        self.begun(run, dict(settings))
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()  # what loading took is another matter
        synchronise()
        self.first = self.last = time.perf_counter()

    def update(self, step: int, values: dict[str, Any]) -> None:
        synchronise()
        now = time.perf_counter()
        seconds, self.last = now - self.last, now
        self.rows.append(
            {"step": step, "seconds": seconds, **_split(seconds, values), **memory_held()}
        )
        self.keep(self.rows)
        # The request is answered at the end of the next step, so one more is made before the run
        # ends.
        if (
            now - self.first + 2 * seconds > self.seconds
            and step + 1 < self.total
            and self.run.live
        ):
            from workbench.run.control_file import send

            send(self.run, "stop", by="the suite's clock")

    def end(self, message: str) -> None:
        pass


def _split(seconds: float, values: dict[str, Any]) -> Row:
    from workbench.run.metrics import CLIPPED, GENERATE_S, MEAN_LENGTH, REWARD_S

    mean, generate_s, reward_s = (
        values.get(MEAN_LENGTH),
        values.get(GENERATE_S),
        values.get(REWARD_S),
    )
    return {
        "generate_s": generate_s,
        # All the rest, the optimiser too. TRL's own time of a step leaves that out, and does not
        # wait for the GPU.
        "train_s": None if generate_s is None else seconds - generate_s - (reward_s or 0.0),
        "reward_s": reward_s,
        # really generated, also where one ended early
        "tokens": None if mean is None else mean * COMPLETIONS,
        "longest": values.get("completions/max_length"),
        "clipped": values.get(CLIPPED),
        **{key: values.get(key) for key in ("reward", "group_reward_std", "loss", "grad_norm")},
    }


def memory_held() -> Row:
    """Of the GPU, by torch's counters: what is held now, and the peaks since they were reset; None
    without one.
    """
    import torch

    if not torch.cuda.is_available():
        return {"held_bytes": None, "allocated_bytes": None, "reserved_bytes": None}
    return {
        "held_bytes": torch.cuda.memory_allocated(),
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def summary(rows: Sequence[Row], warmup: int) -> dict[str, Any]:
    """Medians over the steps after the warm-up, and the most memory over all; {} without a step.

    Where the time sufficed for no other, the first steps count, and `warm` is false.
    """
    if not rows:
        return {}
    counted = rows[warmup:] or rows

    def median(name: str) -> float | None:
        values = [row[name] for row in counted if row.get(name) is not None]
        return statistics.median(values) if values else None

    def most(name: str) -> float | None:
        return max((row[name] for row in rows if row.get(name) is not None), default=None)

    step_s, generate_s, tokens = median("seconds"), median("generate_s"), median("tokens")
    return {
        "steps": len(counted),
        "warm": len(rows) > warmup,
        "step_s": step_s,
        "least_step_s": min(row["seconds"] for row in counted),
        **{
            name: median(name)
            for name in ("generate_s", "train_s", "reward_s", "tokens", "longest")
        },
        "tokens_per_s": tokens / step_s if tokens else None,
        "generated_tokens_per_s": tokens / generate_s if tokens and generate_s else None,
        "allocated_bytes": most("allocated_bytes"),
        "reserved_bytes": most("reserved_bytes"),
    }
