"""Several processes that train together, one per GPU, started by `accelerate launch`: their
communication.

The first, the main one, owns the run: it records, reads requests, saves and prints. Each scores its
own completions and passes them on, as a group may span processes; requests become effective in all
of them after the same step.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from workbench.base.errors import RecipeError, WorkbenchError

T = TypeVar("T")


def count() -> int:
    """How many processes a launcher has started to train together; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", 1)) if "LOCAL_RANK" in os.environ else 1


def rank() -> int:
    """Which of them this is, from 0, the main one."""
    return int(os.environ.get("RANK", 0)) if count() > 1 else 0


def is_main() -> bool:
    return rank() == 0


def check_processes(backend: str) -> None:
    """RecipeError where the requested processes were not started, or cannot train together."""
    if (
        "LOCAL_RANK" not in os.environ
        and "MASTER_ADDR" in os.environ
        and os.environ.get("ACCELERATE_USE_CPU") == "True"
    ):
        raise RecipeError(
            "accelerate launch --cpu with several processes, and one was started",
            rule="without mpirun, `accelerate launch --cpu` starts a single process, however many"
            " are requested",
            remedy="write --multi_gpu instead of --cpu, even on a CPU; for one process:"
            " --num_processes 1",
        )
    if count() > 1 and backend == "unsloth":
        raise RecipeError(
            f"policy.backend = 'unsloth' in {count()} processes",
            rule="Unsloth trains on one GPU",
            remedy="set policy: {backend: transformers}, or start one process",
        )
    if not is_main():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  for as long as this process lives
    if count() > 1:
        _on_gpus()


def _on_gpus() -> bool:
    import torch

    cuda = torch.cuda.is_available() and os.environ.get("ACCELERATE_USE_CPU", "").lower() != "true"
    # without a GPU they would not find each other, and each train alone
    os.environ["ACCELERATE_USE_CPU"] = str(not cuda)
    return cuda


def gathered(piece: object) -> list[Any]:
    """Each process's contribution, in order, given to all of them; if one is an exception, all
    raise the first.
    """
    pieces = [piece]
    if count() > 1:
        import torch

        cuda = _on_gpus()
        if not torch.distributed.is_initialized():  # before there is a GRPOConfig
            from accelerate import PartialState

            PartialState(cpu=not cuda)
        if isinstance(piece, Exception) and not isinstance(piece, WorkbenchError):
            # others need not survive being pickled
            piece = RuntimeError(f"{type(piece).__name__}: {piece}")
        pieces = [None] * count()
        # a thread has its own
        with torch.cuda.device(int(os.environ["LOCAL_RANK"])) if cuda else contextlib.nullcontext():
            torch.distributed.all_gather_object(pieces, piece)
        pieces[rank()] = piece
    for each in pieces:
        if isinstance(each, Exception):
            raise each
    return pieces


def in_main(call: Callable[[], T]) -> T:
    """In all processes, what `call` returns or raises in the main one; it is called when all have
    come this far.
    """
    gathered(None)
    try:
        found = call() if is_main() else None
    except Exception as error:
        found = error
    return gathered(found)[0]


def as_seen(run: T) -> T:
    """The run, as this process has it: the main one writes for all."""
    for name in (
        "log_event",
        "log_metrics",
        "update_manifest",
        "reopen",
        "release",
        "discard",
        "went_on",
        "put_back",
        "mend",
    ):
        if not is_main():
            setattr(run, name, lambda *_, **__: None)
    return run
