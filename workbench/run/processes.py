"""Several processes that train together, one per GPU, started by `accelerate launch`: what they tell one another.

The first, the main one, owns the run: it records, reads requests, saves and prints. Each scores its own completions and hands
them over, as a group may lie across processes; whatever decides is the same in all of them after the same step.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from workbench.errors import RecipeError, WorkbenchError
from workbench.run.directory import RunDirectory

_TWO_ON_A_CPU = "accelerate launch --multi_gpu --num_processes 2 -m workbench train RECIPE, also on a CPU"


def count() -> int:
    """How many processes a launcher has started to train together; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", 1)) if "LOCAL_RANK" in os.environ else 1


def rank() -> int:
    """Which of them this is, from 0, the main one."""
    return int(os.environ.get("RANK", 0)) if count() > 1 else 0


def is_main() -> bool:
    return rank() == 0


def check(backend: str) -> None:
    """RecipeError where the processes that were asked for were not started, or cannot train together."""
    asked = os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true" and "MASTER_ADDR" in os.environ
    if asked and "LOCAL_RANK" not in os.environ:
        rule = "without mpirun, `accelerate launch --cpu` starts a single process, however many it is asked for"
        remedy = f"start them so: {_TWO_ON_A_CPU}; for one process: --num_processes 1"
        raise RecipeError("accelerate launch --cpu with several processes, and one was started", rule=rule, remedy=remedy)
    if count() > 1 and backend == "unsloth":
        value, rule = f"policy.backend = 'unsloth' in {count()} processes", "Unsloth trains on one GPU"
        raise RecipeError(value, rule=rule, remedy="set policy: {backend: transformers}, or start one process")
    _meet()


def _meet() -> bool:
    # Whether they train on GPUs. Left alone, processes without one do not find each other, and each trains a run of its own.
    import torch

    cuda = torch.cuda.is_available() and os.environ.get("ACCELERATE_USE_CPU", "").lower() != "true"
    if count() > 1 and not torch.distributed.is_initialized():
        from accelerate import PartialState

        os.environ["ACCELERATE_USE_CPU"] = str(not cuda)
        PartialState(cpu=not cuda)
    return cuda


def gathered(piece: Any) -> list[Any]:
    """What each process hands in, in order, given to all of them; if somebody hands in an exception, all raise the first one."""
    pieces = [piece]
    if count() > 1:
        import torch

        if isinstance(piece, Exception) and not isinstance(piece, WorkbenchError):
            piece = RuntimeError(f"{type(piece).__name__}: {piece}")  # others need not survive being pickled
        pieces = [None] * count()
        with torch.cuda.device(int(os.environ["LOCAL_RANK"])) if _meet() else contextlib.nullcontext():  # a thread has its own
            torch.distributed.all_gather_object(pieces, piece)
        pieces[rank()] = piece
    for each in pieces:
        if isinstance(each, Exception):
            raise each
    return pieces


def in_main(call: Callable[[], Any]) -> Any:
    """What `call` returns or raises in the main process, in all of them; it is called when all have come this far."""
    gathered(None)
    try:
        found = call() if is_main() else None
    except Exception as error:
        found = error
    return gathered(found)[0]


class Onlooker(RunDirectory):
    """The run as the processes beside the main one have it: what they would write, that one writes."""

    def _nothing(self, *_: Any, **__: Any) -> None: ...

    log_event = log_metrics = update_manifest = reopen = release = discard = _nothing


def as_seen(run: RunDirectory) -> RunDirectory:
    """The run, as this process has it."""
    return run if is_main() else Onlooker(run.path)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Around a training, also as a decorator: the processes meet, and only the main one prints."""
    with contextlib.ExitStack() as silence:
        if count() > 1:
            _meet()
        if not is_main():
            silence.enter_context(contextlib.redirect_stdout(silence.enter_context(open(os.devnull, "w"))))
        yield
