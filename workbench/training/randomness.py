"""The states of the random generators, so that what looks at a run does not change it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Generator

from workbench.base.extras import need_train
from workbench.base.kinds import Fields


def random_states() -> Fields:
    """The current states of all random generators that loading and training draw from."""
    need_train()
    import numpy as np
    import torch

    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": cuda,
    }


def put_back(states: Fields) -> None:
    """Restore the states of all random generators."""
    import numpy as np
    import torch

    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


@contextlib.contextmanager
def random_kept() -> Generator[None]:
    """The caller's random numbers continue as if nothing had drawn from them meanwhile. Also a
    decorator.
    """
    states = random_states()
    try:
        yield
    finally:
        put_back(states)
